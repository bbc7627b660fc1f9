//! OS definitions in Ganeti's format. A definition is a directory with parameters, variants, and a program `verify`
//! that rejects invalid parameters before anything is erased. `directory_parser` parses a definition, `parameters`
//! resolves parameter values, and `environment` builds the environment of its programs. Other crates do the I/O.

mod directory_parser;
mod environment;
mod parameters;
mod required_programs;
#[cfg(test)]
mod tests;

pub use directory_parser::{DefinitionFile, DefinitionFiles, OsDefinition, OsParameter, SystemSource};
pub use environment::{GanetiDisk, GanetiInstance, GanetiNic};
pub use parameters::{ParameterChange, ParameterLevels, parse_changes, split_changes, update_stored};

use crate::install_marker::RecordedDefinition;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Component, Path};

/// `PATH` for the programs of a definition. It is the `DEFAULT_PATH` of Ganeti.
pub const PATH: &str = "/sbin:/bin:/usr/sbin:/usr/bin";

/// OS definition and variant: `NAME` or `NAME+VARIANT`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct OsSelector {
    pub name: String,
    /// Name of the variant; empty if no variant is specified.
    pub variant: String,
}

impl OsSelector {
    /// Parses `NAME` or `NAME+VARIANT`.
    ///
    /// # Errors
    /// Fails if the name is not valid for a definition, or if the variant is invalid.
    pub fn parse(text: &str) -> Result<OsSelector, String> {
        let (name, variant) = text.split_once('+').map_or((text, None), |(name, variant)| (name, Some(variant)));
        if !is_name(name) {
            return Err(format!("{name:?} is not a valid OS definition name; use letters, digits, - and _"));
        }
        match variant {
            Some(variant) if variant.is_empty() || variant.contains(char::is_whitespace) => {
                Err(format!("{text:?}: the variant name after the + is missing or invalid"))
            }
            _ => Ok(OsSelector { name: name.to_owned(), variant: variant.unwrap_or_default().to_owned() }),
        }
    }
}

impl std::fmt::Display for OsSelector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        if self.variant.is_empty() { Ok(()) } else { write!(f, "+{}", self.variant) }
    }
}

/// Returns whether Ganeti accepts this name for a definition's directory.
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

/// OS definition that the control plane sends to the agent, with everything that the programs of the definition need.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct SelectedDefinition {
    /// Name of the definition's directory.
    pub name: String,
    /// Variant; empty if the definition has none.
    #[serde(default)]
    pub variant: String,
    /// Version of Ganeti's OS interface: 10, 15 or 20.
    pub api: u32,
    /// Values of parameters, by parameter name. A parameter that is not listed has the default of the definition.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
    /// Files of the definition, by their paths in its directory. They include `verify` if the definition has one.
    #[serde(default)]
    pub files: DefinitionFiles,
}

impl SelectedDefinition {
    pub fn selector(&self) -> OsSelector {
        OsSelector { name: self.name.clone(), variant: self.variant.clone() }
    }

    /// Checks the selection, and returns a problem; `None` if there is none. A control plane that selects from a valid
    /// definition never causes a problem.
    pub fn find_problem(&self) -> Option<String> {
        let is_inside = |path: &String| {
            !path.is_empty() && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
        };
        let name = OsSelector::parse(&self.selector().to_string()).err();
        let parameter = self.parameters.iter().find_map(|(name, value)| parameters::check_parameter(name, value).err());
        let outside = self.files.keys().find(|path| !is_inside(path));
        let outside = outside.map(|path| format!("{path:?} is not a valid path of a file in a definition"));
        name.or(parameter).or(outside).or(self.required_programs().err())
    }

    /// Returns the version of the definition, if it has one.
    pub fn os_version(&self) -> Option<&str> {
        directory_parser::parse_os_version(&self.files)
    }

    /// Returns the record of the definition for the install marker.
    pub fn to_record(&self) -> RecordedDefinition {
        RecordedDefinition { os: self.selector().to_string(), os_version: self.os_version().map(str::to_owned) }
    }

    /// Returns whether the definition has a `create` program. A definition without this program refers to an image.
    pub fn has_create(&self) -> bool {
        self.files.contains_key(directory_parser::CREATE)
    }

    /// Returns whether the definition has a `verify` program.
    pub fn has_verify(&self) -> bool {
        self.files.contains_key(directory_parser::VERIFY_PROGRAM)
    }
}
