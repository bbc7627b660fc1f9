//! The operator's OS definitions: `os/NAME/`, what is said for all machines with one (`os/*.yaml`), and what becomes of the one that an
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

/// What became of the definition that an allocation names.
#[derive(Debug, Clone, Default)]
pub enum Settled {
    /// It names none.
    #[default]
    Unnamed,
    /// Its `verify` has not ended yet.
    Waits,
    Good(Box<Chosen>),
    /// It cannot be installed with it, for these reasons.
    Bad(String),
}

impl Settled {
    /// As the machine is told it. Parameters may be secrets.
    pub fn told(&self, with_secrets: bool) -> Option<Chosen> {
        let Settled::Good(chosen) = self else { return None };
        let mut told = (**chosen).clone();
        if !with_secrets {
            told.parameters.values_mut().for_each(String::clear);
        }
        Some(told)
    }

    /// What it makes itself, without an image: it is known by the definition's name with its variant.
    pub fn creates(&self) -> Option<Os> {
        let Settled::Good(chosen) = self else { return None };
        chosen.creates().then(|| chosen.os())
    }
}

/// An allocation's definition, and the image that it wraps. What it makes itself is known by its own name.
pub struct Choice {
    pub settled: Settled,
    pub image: Option<String>,
    /// What is not wrong, but worth saying.
    pub note: Option<String>,
}

/// One in its folder.
struct Found {
    stamp: Result<Stamp, String>,
    definition: Result<Definition, String>,
}

/// All of them as they are on the disk.
pub struct Definitions {
    path: PathBuf,
    found: BTreeMap<String, Found>,
    files: Folder<Site>,
    /// Of the files, what counts: where it is said, and what.
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

    /// Reads what has changed; true when anything has. A server needs no `os/`.
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

    /// Settles what counts for all machines, and tells what is wrong with definitions and their parameters.
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
                        let why = format!("{os} is in {} already, which counts", first.display());
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

    /// Parameters for all machines that the definition does not have. One that is not there yet may have them.
    fn unknown(&self, os: &Os, (path, said): &(PathBuf, Vec<Said>)) -> Vec<String> {
        let Some(Ok(definition)) = self.found.get(&os.name).map(|found| &found.definition) else { return Vec::new() };
        unknown(definition, said).map(|why| say(path, &why, false)).collect()
    }

    /// `None`: the allocation names no definition.
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
            return Err(here(format!("there is no OS definition {:?} in os/{others}", os.name)));
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

/// What the definition does not have, with its place.
fn unknown(definition: &Definition, said: &[Said]) -> impl Iterator<Item = String> {
    said.iter().filter_map(|said| Some(at_change(said, &definition.parameter(said).err()?)))
}

fn plain(said: &[Said]) -> Vec<Change> {
    said.iter().map(|said| (**said).clone()).collect()
}

fn one_line(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join("; ")
}

/// Names of the folders in it. What cannot be listed has none.
fn folders(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.path().is_dir());
    let names = folders.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| !name.starts_with('.')).collect()
}

#[cfg(test)]
mod tests;
