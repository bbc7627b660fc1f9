//! Site-wide parameters of OS definitions, from `os/*.yaml`. They apply to all machines.

use super::unknown_parameters;
use crate::operator_files::format_at;
use crate::operator_files::os_parameters::{OsParametersFile, SpannedChange, format_at_change};
use crate::yaml_folder::format_problem;
use linux::verify_program::VerifyVerdict;
use model::ganeti_os_definition::{OsDefinition, OsSelector, ParameterChange, ParameterLevels, SelectedDefinition};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Path of a file with parameters, and the parameters in the file.
type FileParameters = (PathBuf, Vec<SpannedChange>);

/// Site-wide parameters, by definition or variant.
#[derive(Debug, Clone, Default)]
pub(super) struct SiteParameters(BTreeMap<OsSelector, FileParameters>);

impl SiteParameters {
    /// Collects the parameters of all files. If two files configure the same definition, the file whose name sorts
    /// first takes precedence.
    pub(super) fn collect(files: Vec<(PathBuf, OsParametersFile)>, problems: &mut Vec<String>) -> SiteParameters {
        let mut site = BTreeMap::<OsSelector, FileParameters>::new();
        for (path, file) in files {
            for (name, os, said) in file {
                match site.get(&os) {
                    Some((first, _)) => {
                        let why = format!(
                            "OS definition {os} is already configured in {first_file}, which takes precedence",
                            first_file = first.display()
                        );
                        problems.push(format_problem(&path, &format_at(&name, &why), false));
                    }
                    None => drop(site.insert(os, (path.clone(), said))),
                }
            }
        }
        SiteParameters(site)
    }

    /// For the definition `name` and each of its variants, returns the names of the parameters that are set or removed.
    pub(super) fn preset_names(&self, name: &str) -> BTreeMap<String, Vec<String>> {
        let own = self.0.iter().filter(|(os, _)| os.name == name);
        let keys = |said: &[SpannedChange]| said.iter().map(|change| change.key().to_owned()).collect();
        own.map(|(os, (_, said))| (os.to_string(), keys(said))).collect()
    }

    pub(super) fn changes(&self, os: &OsSelector) -> Vec<ParameterChange> {
        self.0.get(os).map(|(_, said)| without_spans(said)).unwrap_or_default()
    }

    pub(super) fn file(&self, os: &OsSelector) -> Option<&Path> {
        self.0.get(os).map(|(path, _)| path.as_path())
    }

    /// Returns a copy in which the parameters of one definition or variant are replaced by `new`.
    pub(super) fn with_changes(&self, os: &OsSelector, new: Vec<SpannedChange>) -> SiteParameters {
        let mut site = self.clone();
        site.0.insert(os.clone(), (PathBuf::new(), new));
        site
    }

    /// Returns the parameters of a definition and those of one of its variants. The second item is `None` if `variant`
    /// is empty.
    pub(super) fn levels(&self, name: &str, variant: &str) -> [Option<&FileParameters>; 2] {
        let get = |variant: &str| self.0.get(&OsSelector { name: name.to_owned(), variant: variant.to_owned() });
        [get(""), if variant.is_empty() { None } else { get(variant) }]
    }

    /// Selects the variant of the definition. Applies the site-wide parameters of the definition and of the variant,
    /// and the allocation's parameters in `own`.
    pub(super) fn select(&self, definition: &OsDefinition, variant: &str, own: &[SpannedChange]) -> SelectedDefinition {
        let levels = self.levels(&definition.name, variant);
        let [site, of_variant] = levels.map(|said| said.map(|(_, said)| without_spans(said)).unwrap_or_default());
        let levels = ParameterLevels { site: &site, variant: &of_variant, allocation: &without_spans(own) };
        definition.select(variant, levels.resolve(definition))
    }

    /// Returns a message for each parameter that the definition does not support.
    pub(super) fn find_unknown(&self, definition: &OsDefinition) -> Vec<String> {
        let own = self.0.iter().filter(|(os, _)| os.name == definition.name);
        let unknown = own.flat_map(|(_, (path, said))| {
            unknown_parameters(definition, said).map(|why| format_problem(path, &why, false))
        });
        unknown.collect()
    }

    /// Verifies the site-wide parameters of the definition and of its variants, without parameters of an allocation.
    /// Returns a message for each list of parameters that the `verify` program refuses. `get_verdict` returns `None`
    /// while the program is still running.
    pub(super) fn verify(
        &self,
        definition: &OsDefinition,
        mut get_verdict: impl FnMut(&SelectedDefinition) -> Option<VerifyVerdict>,
    ) -> Vec<String> {
        let (mut problems, mut refused) = (Vec::new(), BTreeSet::new());
        let plain = [String::new()];
        let variants = if definition.variants.is_empty() { &plain[..] } else { &definition.variants };
        for variant in variants {
            // A refusal is reported for each variant that has its own parameters, and only once for all other
            // variants.
            let levels = self.levels(&definition.name, variant).map(|level| level.filter(|(_, said)| !said.is_empty()));
            let Some((path, said)) = levels[1].or(levels[0]) else { continue };
            let Some(first) = said.first() else { continue };
            let level = if levels[1].is_some() { variant.as_str() } else { "" };
            let chosen = self.select(definition, variant, &[]);
            if let Some(VerifyVerdict::Refused(why)) = get_verdict(&chosen)
                && refused.insert(level)
            {
                let os = chosen.selector();
                let why = format!("the verify program of {os} rejects the site-wide parameters: {why}");
                problems.push(format_problem(path, &format_at_change(first, &why), false));
            }
        }
        problems
    }
}

fn without_spans(said: &[SpannedChange]) -> Vec<ParameterChange> {
    said.iter().map(|said| (**said).clone()).collect()
}
