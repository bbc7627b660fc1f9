//! The operator's OS definitions (`os/NAME/`), their parameters for all machines (`os/*.yaml`), and the resolution of the definition that
//! an allocation names.

mod definition_files;
mod verify_results;

pub use verify_results::{VerifyCache, VerifyResult};

use crate::operator_files::os_parameters::{OsParametersFile, SpannedChange, format_at_change, parse_site_parameters};
use crate::operator_files::{AllocationSpec, format_at, suggest_name};
use crate::os_definition_state::DefinitionState;
use crate::yaml_folder::{YamlFolder, format_problem};
use definition_files::FolderStamp;
use linux::verify::VerifyVerdict;
use marked_yaml::Spanned;
use model::os_definition::{
    OsDefinition, OsSelector, ParameterChange, ParameterLevels, SelectedDefinition, SystemSource,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Definition that an allocation names, and the image that the definition wraps. If the definition creates the OS itself, the image has
/// the name of the definition.
pub(crate) struct DefinitionChoice {
    pub settled: DefinitionState,
    pub image: Option<String>,
    /// Remark for the operator that is not a problem.
    pub note: Option<String>,
}

/// Definition as it was read from its folder.
struct LoadedDefinition {
    stamp: Result<FolderStamp, String>,
    definition: Result<OsDefinition, String>,
}

/// All definitions on disk.
pub struct OsDefinitions {
    path: PathBuf,
    found: BTreeMap<String, LoadedDefinition>,
    files: YamlFolder<OsParametersFile>,
    /// Parameters in force for all machines with an OS, each with the file that contains them.
    site: BTreeMap<OsSelector, (PathBuf, Vec<SpannedChange>)>,
    verified: VerifyCache,
}

impl OsDefinitions {
    pub fn new(path: PathBuf, verified: VerifyCache) -> OsDefinitions {
        let files = YamlFolder::new(path.clone(), parse_site_parameters);
        OsDefinitions { path, found: BTreeMap::new(), files, site: BTreeMap::new(), verified }
    }

    pub(crate) fn store_verdict(&mut self, done: VerifyResult) {
        self.verified.store_result(done);
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.verified.is_waiting()
    }

    /// Reads changed files, and returns whether anything has changed. The folder `os/` may be missing.
    pub(crate) fn rescan(&mut self) -> bool {
        if !self.path.is_dir() {
            let had = !(self.found.is_empty() && self.files.entries.is_empty());
            self.found.clear();
            self.files.entries.clear();
            return had;
        }
        let mut changed = self.files.rescan();
        let names = list_folders(&self.path);
        let before = self.found.len();
        self.found.retain(|name, _| names.contains(name));
        changed |= self.found.len() != before;
        for name in names {
            let folder = self.path.join(&name);
            let stamp = definition_files::stamp_folder(&folder).map_err(|error| error.to_string());
            if self.found.get(&name).is_some_and(|found| found.stamp == stamp) {
                continue;
            }
            let files =
                stamp.clone().and_then(|_| definition_files::read_files(&folder).map_err(|error| error.to_string()));
            let definition =
                files.and_then(|files| OsDefinition::parse(&name, files).map_err(|wrong| wrong.join("\n")));
            self.found.insert(name, LoadedDefinition { stamp, definition });
            changed = true;
        }
        changed
    }

    /// Determines the parameters for all machines. Returns the problems of the definitions and of these parameters.
    pub(crate) fn collect_problems(&mut self) -> Vec<String> {
        let mut problems = Vec::new();
        for (name, found) in &self.found {
            let why = found.definition.as_ref().err();
            problems.extend(why.map(|why| format_problem(&self.path.join(name), why, false)));
        }
        self.site.clear();
        for (path, site) in self.files.take_in_force(&mut problems) {
            for (name, os, said) in site {
                match self.site.get(&os) {
                    Some((first, _)) => {
                        let why = format!("{os} is already configured in {}, which takes precedence", first.display());
                        problems.push(format_problem(&path, &format_at(&name, &why), false));
                    }
                    None => drop(self.site.insert(os, (path.clone(), said))),
                }
            }
        }
        let wrong = self.site.iter().flat_map(|(os, said)| self.find_unknown_parameters(os, said));
        problems.extend(wrong.collect::<Vec<_>>());
        problems
    }

    /// Returns a problem for each parameter in a file of `os/` that the definition does not support. A definition that does not exist is
    /// not a problem, since it may be added later.
    fn find_unknown_parameters(&self, os: &OsSelector, (path, said): &(PathBuf, Vec<SpannedChange>)) -> Vec<String> {
        let Some(Ok(definition)) = self.found.get(&os.name).map(|found| &found.definition) else { return Vec::new() };
        unknown_parameters(definition, said).map(|why| format_problem(path, &why, false)).collect()
    }

    /// Returns the definition that the allocation names, or `None` if the allocation does not name one.
    pub(crate) fn choose_definition(&mut self, allocation: &AllocationSpec) -> Option<DefinitionChoice> {
        let named = allocation.os.as_ref()?;
        let (chosen, image) = match self.resolve_definition(named, &allocation.changes) {
            Ok(chosen) => chosen,
            Err(why) => return Some(DefinitionChoice { settled: DefinitionState::Bad(why), image: None, note: None }),
        };
        let os = chosen.selector();
        let (settled, note) = match self.verified.get_verdict(&chosen) {
            None => (DefinitionState::Waits, None),
            Some(VerifyVerdict::Good) => (DefinitionState::Good(Box::new(chosen)), None),
            Some(VerifyVerdict::Refused(why)) => (
                DefinitionState::Bad(format_at(
                    named,
                    &format!("the verify program of {os} refuses these parameters: {why}"),
                )),
                None,
            ),
            Some(VerifyVerdict::NotRun(why)) => {
                let note = format!(
                    "the verify program of {os} was not run here: {why}. The machine runs it before it writes anything"
                );
                (DefinitionState::Good(Box::new(chosen)), Some(format_at(named, &note)))
            }
        };
        Some(DefinitionChoice { settled, image: Some(image), note })
    }

    fn resolve_definition(
        &self,
        named: &Spanned<String>,
        own: &[SpannedChange],
    ) -> Result<(SelectedDefinition, String), String> {
        let here = |why: String| format_at(named, &why);
        let os = OsSelector::parse(named).map_err(here)?;
        let Some(found) = self.found.get(&os.name) else {
            let others = suggest_name(&os.name, self.found.keys().map(String::as_str));
            return Err(here(format!("OS definition {:?} not found in os/{others}", os.name)));
        };
        let path = self.path.join(&os.name);
        let definition = found.definition.as_ref();
        let definition =
            definition.map_err(|why| here(format!("{} cannot be used: {}", path.display(), join_lines(why))))?;
        let variant = definition.resolve_variant(&os).map_err(here)?;
        let site = self.site.get(&OsSelector { name: os.name.clone(), variant: String::new() });
        let of_variant = self.site.get(&OsSelector { name: os.name.clone(), variant: variant.to_owned() });
        let of_variant = of_variant.filter(|_| !variant.is_empty());
        let mut wrong: Vec<String> = unknown_parameters(definition, own).collect();
        for (path, said) in [site, of_variant].into_iter().flatten() {
            wrong.extend(unknown_parameters(definition, said).map(|why| here(format!("{}:{why}", path.display()))));
        }
        if !wrong.is_empty() {
            return Err(wrong.join("\n"));
        }
        let [site, of_variant] =
            [site, of_variant].map(|said| said.map(|(_, said)| without_spans(said)).unwrap_or_default());
        let levels = ParameterLevels { site: &site, variant: &of_variant, allocation: &without_spans(own) };
        let chosen = definition.select(variant, levels.resolve(definition));
        if let Some(why) = chosen.find_problem() {
            return Err(here(why));
        }
        let image = match &definition.source {
            SystemSource::Image(image) => image.clone(),
            SystemSource::Create => chosen.selector().to_string(),
        };
        Ok((chosen, image))
    }
}

/// Returns a problem, with its position, for each parameter that the definition does not support.
fn unknown_parameters(definition: &OsDefinition, said: &[SpannedChange]) -> impl Iterator<Item = String> {
    said.iter().filter_map(|said| Some(format_at_change(said, &definition.find_parameter(said).err()?)))
}

fn without_spans(said: &[SpannedChange]) -> Vec<ParameterChange> {
    said.iter().map(|said| (**said).clone()).collect()
}

fn join_lines(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join("; ")
}

/// Returns the names of the folders in `path`; none if it cannot be listed.
fn list_folders(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.path().is_dir());
    let names = folders.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| !name.starts_with('.')).collect()
}

#[cfg(test)]
mod tests;
