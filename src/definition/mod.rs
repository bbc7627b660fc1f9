//! OS definitions as Ganeti has them: a directory with parameters, variants, and a `verify` that says no before anything is
//! destroyed. `directory` reads one, `parameters` settles whose word counts, `environment` is what its programs are told. Pure: who
//! reads the files and runs the programs is elsewhere.

mod directory;
mod environment;
mod needs;
mod parameters;
#[cfg(test)]
mod tests;

pub use directory::{Definition, File, Files, Parameter, Source};
pub use environment::{Card, Disk, Instance};
pub use parameters::{Change, Levels};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Component, Path};

/// Ganeti's `DEFAULT_PATH` of programs that it starts.
pub const PATH: &str = "/sbin:/bin:/usr/sbin:/usr/bin";

/// `NAME` or `NAME+VARIANT`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Os {
    pub name: String,
    /// Empty when none is named.
    pub variant: String,
}

impl Os {
    /// # Errors
    /// It cannot be the name of a definition.
    pub fn read(text: &str) -> Result<Os, String> {
        let (name, variant) = text.split_once('+').map_or((text, None), |(name, variant)| (name, Some(variant)));
        if !is_name(name) {
            return Err(format!("{name:?} is no name of an OS definition: it has letters, digits, - and _"));
        }
        match variant {
            Some(variant) if variant.is_empty() || variant.contains(char::is_whitespace) => {
                Err(format!("{text:?} names no variant after its +"))
            }
            _ => Ok(Os { name: name.to_owned(), variant: variant.unwrap_or_default().to_owned() }),
        }
    }
}

impl std::fmt::Display for Os {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        if self.variant.is_empty() { Ok(()) } else { write!(f, "+{}", self.variant) }
    }
}

/// What Ganeti takes as the name of a definition's directory.
pub fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

/// A definition as it was chosen for an allocation, with all that its programs need. It goes to the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Chosen {
    /// Of its folder.
    pub name: String,
    /// Empty when the definition has none.
    #[serde(default)]
    pub variant: String,
    /// Version of Ganeti's interface: 10, 15 or 20.
    pub api: u32,
    /// By their names. What is not here has the definition's own default.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
    /// By their paths in the definition's directory. `verify` is among them where there is one.
    #[serde(default)]
    pub files: Files,
}

impl Chosen {
    pub fn os(&self) -> Os {
        Os { name: self.name.clone(), variant: self.variant.clone() }
    }

    /// Why no server has read it from a definition, or none that can be installed.
    pub fn impossible(&self) -> Option<String> {
        let is_inside = |path: &String| {
            !path.is_empty() && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
        };
        let name = Os::read(&self.os().to_string()).err();
        let parameter = self.parameters.iter().find_map(|(name, value)| parameters::wrong(name, value).err());
        let outside = self.files.keys().find(|path| !is_inside(path));
        let outside = outside.map(|path| format!("{path:?} is no path of a file in a definition"));
        name.or(parameter).or(outside).or(self.needs().err())
    }

    /// Is there a program that makes the system? Else it wraps an image.
    pub fn creates(&self) -> bool {
        self.files.contains_key(directory::CREATE)
    }

    /// Is there somebody who can say no?
    pub fn has_verify(&self) -> bool {
        self.files.contains_key(directory::VERIFY)
    }
}
