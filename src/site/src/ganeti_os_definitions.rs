//! The operator's OS definitions (`os/NAME/`), their parameters for all machines (`os/*.yaml`), and the resolution of
//! the definition that an allocation names.

mod catalog;
mod definition_files;
mod site_parameters;
mod verify_results;

pub use catalog::DefinitionCatalog;
pub(crate) use definition_files::FolderStamp;
pub use verify_results::{VerifyCache, VerifyResult, verify_now};

use crate::documents::SiteDocuments;
use crate::ganeti_os_definition_state::DefinitionState;
use crate::operator_files::os_parameters::{OsParametersFile, SpannedChange, format_at_change, parse_site_parameters};
use crate::operator_files::{AllocationSpec, format_at};
use crate::yaml_folder::{YamlFolder, format_problem};
use linux::verify_program::VerifyVerdict;
use model::ganeti_os_definition::OsDefinition;
use site_parameters::SiteParameters;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of a file that every OS definition contains.
const INTERFACE_FILE: &str = "ganeti_api_version";

/// Returns whether a path is the folder of an OS definition.
pub fn is_definition_folder(path: &Path) -> bool {
    path.join(INTERFACE_FILE).is_file()
}

/// Checks the files of an OS definition. The `verify` program is not run.
///
/// # Errors
/// Returns all problems, one per line.
pub fn check_definition(folder: &Path) -> Result<(), String> {
    let folder = std::path::absolute(folder).map_err(|error| error.to_string())?;
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let files = definition_files::read_files(&folder).map_err(|error| error.to_string())?;
    OsDefinition::parse(&name, files).map(drop).map_err(|problems| problems.join("\n"))
}

/// Definition that an allocation names, and the image of the definition. If the definition creates the OS itself, the
/// image has the name of the definition.
pub(crate) struct DefinitionChoice {
    pub settled: DefinitionState,
    pub image: Option<String>,
    /// Remark for the operator that does not describe a problem.
    pub note: Option<String>,
}

/// All OS definitions in the operator's directory.
pub struct OsDefinitions {
    path: PathBuf,
    /// Stamps of the definitions' folders at the last scan, by the name of the definition. A stamp changes whenever a
    /// file in the folder changes.
    stamps: BTreeMap<String, Result<FolderStamp, String>>,
    files: YamlFolder<OsParametersFile>,
    catalog: DefinitionCatalog,
    verified: VerifyCache,
    documents: SiteDocuments,
}

impl OsDefinitions {
    pub fn new(path: PathBuf, verified: VerifyCache) -> OsDefinitions {
        let files = YamlFolder::new(path.clone(), parse_site_parameters);
        let catalog = DefinitionCatalog::new(path.clone());
        let documents = SiteDocuments::of_directory(&path);
        OsDefinitions { path, stamps: BTreeMap::new(), files, catalog, verified, documents }
    }

    /// Sets the source from which the definitions are read.
    pub(crate) fn set_documents(&mut self, documents: &SiteDocuments) {
        self.files.set_documents(documents);
        self.documents = documents.clone();
    }

    pub(crate) fn store_verdict(&mut self, done: VerifyResult) {
        self.verified.store_result(done);
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.verified.is_waiting()
    }

    /// Reads changed files, and returns whether anything has changed. The folder `os/` may be missing.
    pub(crate) fn rescan(&mut self) -> bool {
        let stored = self.documents.list_stored_folders(&self.path);
        if stored.is_none() && !self.path.is_dir() {
            let had = !(self.stamps.is_empty() && self.files.entries.is_empty());
            self.stamps.clear();
            self.catalog.definitions.clear();
            self.files.entries.clear();
            return had;
        }
        let mut changed = self.files.rescan();
        let names = stored.map_or_else(|| list_folders(&self.path), |names| names.into_iter().collect());
        let before = self.stamps.len();
        self.stamps.retain(|name, _| names.contains(name));
        self.catalog.definitions.retain(|name, _| names.contains(name));
        changed |= self.stamps.len() != before;
        for name in names {
            let folder = self.path.join(&name);
            let stored = self.documents.stored_definition(&folder);
            let stamp = match &stored {
                Some((_, stamp)) => Ok(stamp.clone()),
                None => definition_files::stamp_folder(&folder).map_err(|error| error.to_string()),
            };
            if self.stamps.get(&name) == Some(&stamp) {
                continue;
            }
            let read = || match stored {
                Some((files, _)) => definition_files::check_limits(&files).map(|()| files),
                None => definition_files::read_files(&folder),
            };
            let files = stamp.clone().and_then(|_| read().map_err(|error| error.to_string()));
            let definition =
                files.and_then(|files| OsDefinition::parse(&name, files).map_err(|wrong| wrong.join("\n")));
            self.catalog.definitions.insert(name.clone(), definition.map(Arc::new));
            self.stamps.insert(name, stamp);
            changed = true;
        }
        changed
    }

    /// Determines the site-wide parameters, and verifies them. Returns the problems of the definitions and of the
    /// site-wide parameters.
    pub(crate) fn collect_problems(&mut self) -> Vec<String> {
        let mut problems = Vec::new();
        for (name, definition) in &self.catalog.definitions {
            let why = definition.as_ref().err();
            problems.extend(why.map(|why| format_problem(&self.path.join(name), why, false)));
        }
        self.catalog.site = SiteParameters::collect(self.files.take_last_valid(&mut problems), &mut problems);
        // Site-wide parameters of a definition that does not exist are not a problem, since the definition may be added
        // later.
        let DefinitionCatalog { definitions, site, .. } = &self.catalog;
        for definition in definitions.values().filter_map(|definition| definition.as_ref().ok()) {
            let unknown = site.find_unknown(definition);
            if unknown.is_empty() {
                let verified = &mut self.verified;
                problems.extend(site.verify(definition, |chosen| verified.get_verdict(chosen)));
            }
            problems.extend(unknown);
        }
        problems
    }

    /// Returns the definitions and the site-wide parameters.
    pub(crate) fn catalog(&self) -> &DefinitionCatalog {
        &self.catalog
    }

    /// Returns the definition that the allocation names, or `None` if the allocation does not name one.
    pub(crate) fn choose_definition(&mut self, allocation: &AllocationSpec) -> Option<DefinitionChoice> {
        let named = allocation.os.as_ref()?;
        let (chosen, image) = match self.catalog.resolve(named, &allocation.changes) {
            Ok(chosen) => chosen,
            Err(why) => {
                return Some(DefinitionChoice { settled: DefinitionState::Unusable(why), image: None, note: None });
            }
        };
        let os = chosen.selector();
        let (settled, note) = match self.verified.get_verdict(&chosen) {
            None => (DefinitionState::Verifying, None),
            Some(VerifyVerdict::Good) => (DefinitionState::Usable(Box::new(chosen)), None),
            Some(VerifyVerdict::Refused(why)) => (
                DefinitionState::Unusable(format_at(
                    named,
                    &format!("the verify program of {os} refuses these parameters: {why}"),
                )),
                None,
            ),
            Some(VerifyVerdict::NotRun(why)) => {
                let note = format!(
                    "the verify program of {os} was not run here: {why}. The machine runs the program before it writes to its disks"
                );
                (DefinitionState::Usable(Box::new(chosen)), Some(format_at(named, &note)))
            }
        };
        Some(DefinitionChoice { settled, image: Some(image), note })
    }
}

/// Returns a message, with the position of the parameter, for each parameter that the definition does not support.
fn unknown_parameters(definition: &OsDefinition, said: &[SpannedChange]) -> impl Iterator<Item = String> {
    said.iter().filter_map(|said| Some(format_at_change(said, &definition.find_parameter(said).err()?)))
}

/// Returns the names of the folders in `path`. Returns an empty list if `path` cannot be listed.
fn list_folders(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.path().is_dir());
    let names = folders.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| !name.starts_with('.')).collect()
}

#[cfg(test)]
mod tests;
