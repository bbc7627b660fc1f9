//! The operator's OS definitions (`os/NAME/`), their parameters for all machines (`os/*.yaml`), and the choice of the definition that an
//! allocation names.

mod folder;
mod verified;

pub use verified::{Done, Verified};

use super::folder::{Folder, say};
use super::input::os::{Said, Site, at_change, site};
use super::input::{Allocation, at, nearest};
use crate::definition::{Change, Chosen, Definition, Levels, Os, Source};
use crate::verify::Verdict;
use folder::Stamp;
use marked_yaml::Spanned;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// State of the OS definition that an allocation names.
#[derive(Debug, Clone, Default)]
pub enum Settled {
    /// The allocation names none.
    #[default]
    Unnamed,
    /// The `verify` program is still running.
    Waits,
    Good(Box<Chosen>),
    /// The allocation cannot be installed with it, for these reasons.
    Bad(String),
}

impl Settled {
    /// Returns the definition as it is sent to the machine. Parameters may be secrets: without `with_secrets`, their values are cleared.
    pub fn told(&self, with_secrets: bool) -> Option<Chosen> {
        let Settled::Good(chosen) = self else { return None };
        let mut told = (**chosen).clone();
        if !with_secrets {
            told.parameters.values_mut().for_each(String::clear);
        }
        Some(told)
    }

    /// Returns the OS that the definition creates itself, without an image.
    pub fn creates(&self) -> Option<Os> {
        let Settled::Good(chosen) = self else { return None };
        chosen.creates().then(|| chosen.os())
    }
}

/// Definition of an allocation, and the image that it wraps. If it creates the OS itself, the image is the definition's own name.
pub struct Choice {
    pub settled: Settled,
    pub image: Option<String>,
    /// Remark for the operator that is not a problem.
    pub note: Option<String>,
}

/// Definition as read from its folder.
struct Found {
    stamp: Result<Stamp, String>,
    definition: Result<Definition, String>,
}

/// All definitions on disk.
pub struct Definitions {
    path: PathBuf,
    found: BTreeMap<String, Found>,
    files: Folder<Site>,
    /// Parameters in force for all machines with an OS, and the file that sets them.
    site: BTreeMap<Os, (PathBuf, Vec<Said>)>,
    verified: Verified,
}

impl Definitions {
    pub fn new(path: PathBuf, verified: Verified) -> Definitions {
        let files = Folder::new(path.clone(), site);
        Definitions { path, found: BTreeMap::new(), files, site: BTreeMap::new(), verified }
    }

    pub fn verified(&mut self, done: Done) {
        self.verified.keep(done);
    }

    pub fn waits(&self) -> bool {
        self.verified.waits()
    }

    /// Reads changed files, and returns whether anything has changed. The folder `os/` is optional.
    pub fn look(&mut self) -> bool {
        if !self.path.is_dir() {
            let had = !(self.found.is_empty() && self.files.entries.is_empty());
            self.found.clear();
            self.files.entries.clear();
            return had;
        }
        let mut changed = self.files.look();
        let names = folders(&self.path);
        let before = self.found.len();
        self.found.retain(|name, _| names.contains(name));
        changed |= self.found.len() != before;
        for name in names {
            let folder = self.path.join(&name);
            let stamp = folder::stamp(&folder).map_err(|error| error.to_string());
            if self.found.get(&name).is_some_and(|found| found.stamp == stamp) {
                continue;
            }
            let files = stamp.clone().and_then(|_| folder::read(&folder).map_err(|error| error.to_string()));
            let definition = files.and_then(|files| Definition::read(&name, files).map_err(|wrong| wrong.join("\n")));
            self.found.insert(name, Found { stamp, definition });
            changed = true;
        }
        changed
    }

    /// Determines the parameters for all machines, and returns problems of definitions and of these parameters.
    pub fn problems(&mut self) -> Vec<String> {
        let mut problems = Vec::new();
        for (name, found) in &self.found {
            let why = found.definition.as_ref().err();
            problems.extend(why.map(|why| say(&self.path.join(name), why, false)));
        }
        self.site.clear();
        for (path, site) in self.files.in_force(&mut problems) {
            for (name, os, said) in site {
                match self.site.get(&os) {
                    Some((first, _)) => {
                        let why = format!("{os} is already configured in {}, which takes precedence", first.display());
                        problems.push(say(&path, &at(&name, &why), false));
                    }
                    None => drop(self.site.insert(os, (path.clone(), said))),
                }
            }
        }
        let wrong = self.site.iter().flat_map(|(os, said)| self.unknown(os, said));
        problems.extend(wrong.collect::<Vec<_>>());
        problems
    }

    /// Returns a problem for each parameter that the definition does not have. A missing definition may be added later.
    fn unknown(&self, os: &Os, (path, said): &(PathBuf, Vec<Said>)) -> Vec<String> {
        let Some(Ok(definition)) = self.found.get(&os.name).map(|found| &found.definition) else { return Vec::new() };
        unknown(definition, said).map(|why| say(path, &why, false)).collect()
    }

    /// Returns the definition that the allocation names; `None` if it names none.
    pub fn choose(&mut self, allocation: &Allocation) -> Option<Choice> {
        let named = allocation.os.as_ref()?;
        let (chosen, image) = match self.chosen(named, &allocation.changes) {
            Ok(chosen) => chosen,
            Err(why) => return Some(Choice { settled: Settled::Bad(why), image: None, note: None }),
        };
        let os = chosen.os();
        let (settled, note) = match self.verified.of(&chosen) {
            None => (Settled::Waits, None),
            Some(Verdict::Good) => (Settled::Good(Box::new(chosen)), None),
            Some(Verdict::Refused(why)) => {
                (Settled::Bad(at(named, &format!("verify of {os} refuses these parameters: {why}"))), None)
            }
            Some(Verdict::NotRun(why)) => {
                let note =
                    format!("verify of {os} was not run here: {why}. The machine runs it before it writes anything");
                (Settled::Good(Box::new(chosen)), Some(at(named, &note)))
            }
        };
        Some(Choice { settled, image: Some(image), note })
    }

    fn chosen(&self, named: &Spanned<String>, own: &[Said]) -> Result<(Chosen, String), String> {
        let here = |why: String| at(named, &why);
        let os = Os::read(named).map_err(here)?;
        let Some(found) = self.found.get(&os.name) else {
            let others = nearest(&os.name, self.found.keys().map(String::as_str));
            return Err(here(format!("OS definition {:?} not found in os/{others}", os.name)));
        };
        let path = self.path.join(&os.name);
        let definition = found.definition.as_ref();
        let definition =
            definition.map_err(|why| here(format!("{} cannot be used: {}", path.display(), one_line(why))))?;
        let variant = definition.variant(&os).map_err(here)?;
        let site = self.site.get(&Os { name: os.name.clone(), variant: String::new() });
        let of_variant = self.site.get(&Os { name: os.name.clone(), variant: variant.to_owned() });
        let of_variant = of_variant.filter(|_| !variant.is_empty());
        let mut wrong: Vec<String> = unknown(definition, own).collect();
        for (path, said) in [site, of_variant].into_iter().flatten() {
            wrong.extend(unknown(definition, said).map(|why| here(format!("{}:{why}", path.display()))));
        }
        if !wrong.is_empty() {
            return Err(wrong.join("\n"));
        }
        let [site, of_variant] = [site, of_variant].map(|said| said.map(|(_, said)| plain(said)).unwrap_or_default());
        let levels = Levels { site: &site, variant: &of_variant, allocation: &plain(own) };
        let chosen = definition.chosen(variant, levels.settle(definition));
        if let Some(why) = chosen.impossible() {
            return Err(here(why));
        }
        let image = match &definition.source {
            Source::Image(image) => image.clone(),
            Source::Create => chosen.os().to_string(),
        };
        Ok((chosen, image))
    }
}

/// Returns a problem, with its location, for each parameter that the definition does not have.
fn unknown(definition: &Definition, said: &[Said]) -> impl Iterator<Item = String> {
    said.iter().filter_map(|said| Some(at_change(said, &definition.parameter(said).err()?)))
}

fn plain(said: &[Said]) -> Vec<Change> {
    said.iter().map(|said| (**said).clone()).collect()
}

fn one_line(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join("; ")
}

/// Returns the names of the folders in `path`; none if it cannot be listed.
fn folders(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.path().is_dir());
    let names = folders.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| !name.starts_with('.')).collect()
}

#[cfg(test)]
mod tests;
