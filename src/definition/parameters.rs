//! Parameters of an OS definition: syntax and precedence.

use super::Definition;
use std::collections::BTreeMap;

/// Maximum length of a value. Linux limits one environment variable to 128 KiB with its name.
const MOST_BYTES: usize = 64 << 10;

/// Change of one parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// `KEY=VALUE`.
    Set(String, String),
    /// `-KEY`: discards the value set at the levels before.
    TakeAway(String),
}

impl Change {
    /// Parses `KEY=VALUE` or `-KEY`, the syntax of Ganeti's `--os-parameters`. Any text is a valid value.
    ///
    /// # Errors
    /// Returns an error if it is neither.
    pub fn read(text: &str) -> Result<Change, String> {
        match (text.split_once('='), text.strip_prefix('-')) {
            (None, Some(key)) => name(key).map(|()| Change::TakeAway(key.to_owned())),
            (None, None) => Err(format!("{text:?} is neither KEY=VALUE nor -KEY")),
            (Some((key, value)), _) => {
                wrong(key, value)?;
                Ok(Change::Set(key.to_owned(), value.to_owned()))
            }
        }
    }

    pub fn key(&self) -> &str {
        match self {
            Change::Set(key, _) | Change::TakeAway(key) => key,
        }
    }

    /// Returns whether both changes concern the same parameter.
    pub fn is_about_the_same(&self, other: &Change) -> bool {
        variable(self.key()) == variable(other.key())
    }
}

/// Checks name and value of a parameter.
///
/// # Errors
/// Returns an error if no parameter can have this name or this value.
pub fn wrong(key: &str, value: &str) -> Result<(), String> {
    name(key)?;
    if value.contains('\0') || value.len() > MOST_BYTES {
        let most = MOST_BYTES >> 10;
        return Err(format!("the value of {key} contains a NUL byte or is longer than {most} KiB"));
    }
    Ok(())
}

/// Checks the name of a parameter.
///
/// # Errors
/// Returns an error if no parameter can have this name.
pub fn name(name: &str) -> Result<(), String> {
    let is_word = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if is_word && !name.is_empty() && !name.starts_with('-') {
        return Ok(());
    }
    Err(format!("{name:?} is not a valid parameter name; use letters, digits, _ and -"))
}

/// Returns the name of the environment variable for a parameter.
pub fn variable(name: &str) -> String {
    format!("OSP_{}", name.to_uppercase().replace('-', "_"))
}

/// Changes of parameters by level. Later levels take precedence.
#[derive(Debug, Clone, Default)]
pub struct Levels<'a> {
    /// Changes for all machines with the definition.
    pub site: &'a [Change],
    /// Changes for all machines with the variant.
    pub variant: &'a [Change],
    pub allocation: &'a [Change],
}

impl Levels<'_> {
    /// Returns the values to pass to the definition, by parameter name. Parameters that no level sets are left out: the
    /// definition has defaults for them.
    pub fn settle(&self, definition: &Definition) -> BTreeMap<String, String> {
        let mut settled = BTreeMap::new();
        for change in [self.site, self.variant, self.allocation].into_iter().flatten() {
            // Changes of unknown parameters have been rejected before.
            let Ok(parameter) = definition.parameter(change) else { continue };
            match change {
                Change::Set(_, value) => settled.insert(parameter.name.clone(), value.clone()),
                Change::TakeAway(_) => settled.remove(&parameter.name),
            };
        }
        settled
    }
}
