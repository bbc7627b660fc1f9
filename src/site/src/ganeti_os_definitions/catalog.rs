//! OS definitions and site-wide parameters of a snapshot: resolves the definition of an allocation, and checks
//! requested changes of parameters.

use super::site_parameters::SiteParameters;
use super::{unknown_parameters, verify_now};
use crate::ganeti_os_definition_state::DefinitionState;
use crate::operator_files::os_parameters::SpannedChange;
use crate::operator_files::{AllocationSpec, format_at, suggest_name};
use marked_yaml::{Span, Spanned};
use model::ganeti_os_definition::{OsDefinition, OsSelector, ParameterChange, SelectedDefinition, SystemSource};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// OS definitions in `os/`, with the parameters that apply to all machines.
#[derive(Debug, Clone, Default)]
pub struct DefinitionCatalog {
    folder: PathBuf,
    /// Definitions by name; an error is the reason why the definition cannot be used.
    pub definitions: BTreeMap<String, Result<Arc<OsDefinition>, String>>,
    pub(super) site: SiteParameters,
}

impl DefinitionCatalog {
    pub(super) fn new(folder: PathBuf) -> DefinitionCatalog {
        DefinitionCatalog { folder, ..DefinitionCatalog::default() }
    }

    /// For the definition `name` and each of its variants, returns the names of the parameters that are set or removed
    /// for all machines.
    pub fn preset_names(&self, name: &str) -> BTreeMap<String, Vec<String>> {
        self.site.preset_names(name)
    }

    /// Returns the site-wide parameters that are stored for a definition or variant.
    pub fn site_changes(&self, os: &OsSelector) -> Vec<ParameterChange> {
        self.site.changes(os)
    }

    /// Returns the path of the file with the parameters of a definition or variant; `None` if no such file exists.
    pub fn site_file(&self, os: &OsSelector) -> Option<&Path> {
        self.site.file(os)
    }

    /// Combines a definition with the parameters `own` of an allocation, and with the site-wide parameters.
    ///
    /// # Errors
    /// Returns an error if the definition cannot be used, or a parameter is unknown.
    pub fn select_for_allocation(&self, os: &str, own: &[ParameterChange]) -> Result<SelectedDefinition, String> {
        let named = Spanned::new(Span::new_blank(), os.to_owned());
        self.resolve(&named, &with_spans(own)).map(|(chosen, _)| chosen)
    }

    /// Resolves the definition that the allocation names, and stores the definition and its image in the allocation,
    /// as the loader does for a machine file. Blocks while the `verify` program of the definition runs.
    pub fn resolve_definition(&self, allocation: &mut AllocationSpec) {
        let Some(named) = allocation.os.clone() else { return };
        allocation.definition = match self.resolve(&named, &allocation.changes) {
            Err(why) => DefinitionState::Unusable(why),
            Ok((chosen, image)) => {
                allocation.image = Spanned::new(*named.span(), image);
                match verify_now(&chosen) {
                    Ok(()) => DefinitionState::Usable(Box::new(chosen)),
                    Err(why) => DefinitionState::Unusable(format_at(&named, &why)),
                }
            }
        };
    }

    /// Returns the variant that `os` names, or every variant of the definition if `os` names none, each with the
    /// site-wide parameters that would apply if `new` were stored for `os`. Returns an empty list if the definition
    /// does not exist or cannot be used; the parameters are then stored unchecked.
    ///
    /// # Errors
    /// Returns an error if the variant does not exist, or a parameter is unknown.
    pub fn select_for_site(&self, os: &OsSelector, new: &[ParameterChange]) -> Result<Vec<SelectedDefinition>, String> {
        let Some(Ok(definition)) = self.definitions.get(&os.name) else { return Ok(Vec::new()) };
        let new = with_spans(new);
        let unknown: Vec<String> = unknown_parameters(definition, &new).collect();
        if !unknown.is_empty() {
            return Err(unknown.join("\n"));
        }
        let site = self.site.with_changes(os, new);
        if !os.variant.is_empty() {
            let variant = definition.resolve_variant(os)?;
            return Ok(vec![site.select(definition, variant, &[])]);
        }
        let plain = [String::new()];
        let variants = if definition.variants.is_empty() { &plain[..] } else { &definition.variants };
        Ok(variants.iter().map(|variant| site.select(definition, variant, &[])).collect())
    }

    /// Resolves the definition that an allocation names, with the allocation's own parameters. Also returns the image
    /// of the definition. If the definition creates the system itself, the image has the name of the definition.
    ///
    /// # Errors
    /// Returns an error if the definition cannot be used, or a parameter is unknown.
    pub(super) fn resolve(
        &self,
        named: &Spanned<String>,
        own: &[SpannedChange],
    ) -> Result<(SelectedDefinition, String), String> {
        let here = |why: String| format_at(named, &why);
        let os = OsSelector::parse(named).map_err(here)?;
        let Some(definition) = self.definitions.get(&os.name) else {
            let others = suggest_name(&os.name, self.definitions.keys().map(String::as_str));
            return Err(here(format!("OS definition {os:?} not found in os/{others}", os = os.name)));
        };
        let path = self.folder.join(&os.name);
        let definition = definition.as_ref();
        let definition =
            definition.map_err(|why| here(format!("{} cannot be used: {}", path.display(), join_lines(why))))?;
        let variant = definition.resolve_variant(&os).map_err(here)?;
        let mut wrong: Vec<String> = unknown_parameters(definition, own).collect();
        for (path, said) in self.site.levels(&os.name, variant).into_iter().flatten() {
            wrong.extend(unknown_parameters(definition, said).map(|why| here(format!("{}:{why}", path.display()))));
        }
        if !wrong.is_empty() {
            return Err(wrong.join("\n"));
        }
        let chosen = self.site.select(definition, variant, own);
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

/// Adds empty positions to parameter changes that were not read from a file.
fn with_spans(changes: &[ParameterChange]) -> Vec<SpannedChange> {
    changes.iter().map(|change| Spanned::new(Span::new_blank(), change.clone())).collect()
}

fn join_lines(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join("; ")
}
