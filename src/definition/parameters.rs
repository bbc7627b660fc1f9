//! Parameters of a definition: how they are written down, and whose word counts.

use super::Definition;
use std::collections::BTreeMap;

/// More than any program is given in one variable of its environment (Linux: 128 KiB with its name).
const MOST_BYTES: usize = 64 << 10;

/// What somebody says about a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// `KEY=VALUE`.
    Set(String, String),
    /// `-KEY`: what those said who come before is forgotten.
    TakeAway(String),
}

impl Change {
    /// `KEY=VALUE` or `-KEY`, as Ganeti's `--os-parameters` has them. Any text is a value.
    ///
    /// # Errors
    /// It is neither.
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

    /// Do both speak of the same parameter?
    pub fn is_about_the_same(&self, other: &Change) -> bool {
        variable(self.key()) == variable(other.key())
    }
}

/// # Errors
/// No parameter can have this name or this value.
pub fn wrong(key: &str, value: &str) -> Result<(), String> {
    name(key)?;
    if value.contains('\0') || value.len() > MOST_BYTES {
        let most = MOST_BYTES >> 10;
        return Err(format!("the value of {key} has a NUL in it, or more than {most} KiB"));
    }
    Ok(())
}

/// # Errors
/// No parameter can have this name.
pub fn name(name: &str) -> Result<(), String> {
    let is_word = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if is_word && !name.is_empty() && !name.starts_with('-') {
        return Ok(());
    }
    Err(format!("{name:?} is no name of a parameter: it has letters, digits, _ and -"))
}

/// What a program of the definition sees.
pub fn variable(name: &str) -> String {
    format!("OSP_{}", name.to_uppercase().replace('-', "_"))
}

/// Who has a say, the last of them the last word.
#[derive(Debug, Clone, Default)]
pub struct Levels<'a> {
    /// For all machines with the definition.
    pub site: &'a [Change],
    /// For all machines with the variant.
    pub variant: &'a [Change],
    pub allocation: &'a [Change],
}

impl Levels<'_> {
    /// What the definition is told: by its own names. What nobody has set, it knows the default of.
    pub fn settle(&self, definition: &Definition) -> BTreeMap<String, String> {
        let mut settled = BTreeMap::new();
        for change in [self.site, self.variant, self.allocation].into_iter().flatten() {
            // What it does not have was refused.
            let Ok(parameter) = definition.parameter(change) else { continue };
            match change {
                Change::Set(_, value) => settled.insert(parameter.name.clone(), value.clone()),
                Change::TakeAway(_) => settled.remove(&parameter.name),
            };
        }
        settled
    }
}
