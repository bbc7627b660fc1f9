//! Parameters of an OS definition: their syntax, and the precedence of their values.

use super::OsDefinition;
use std::collections::BTreeMap;
use std::fmt;

/// Maximum length of a value, in bytes. Linux limits an environment variable to 128 KiB, including its name.
const MAXIMUM_VALUE_BYTES: usize = 64 << 10;

/// Change of one parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParameterChange {
    /// `KEY=VALUE`: sets the value of the parameter.
    Set(String, String),
    /// `-KEY`: discards the value that an earlier level has set.
    Unset(String),
}

impl ParameterChange {
    /// Parses `KEY=VALUE` or `-KEY`, which is the syntax of Ganeti's `--os-parameters`. The value may be any text.
    ///
    /// # Errors
    /// Fails if the text has another form, or if the name or the value is invalid.
    pub fn parse(text: &str) -> Result<ParameterChange, String> {
        match (text.split_once('='), text.strip_prefix('-')) {
            (None, Some(key)) => check_parameter_name(key).map(|()| ParameterChange::Unset(key.to_owned())),
            (None, None) => Err(format!("{text:?} is neither KEY=VALUE nor -KEY")),
            (Some((key, value)), _) => {
                check_parameter(key, value)?;
                Ok(ParameterChange::Set(key.to_owned(), value.to_owned()))
            }
        }
    }

    pub fn key(&self) -> &str {
        match self {
            ParameterChange::Set(key, _) | ParameterChange::Unset(key) => key,
        }
    }

    /// Returns whether both changes concern the same parameter.
    pub fn has_same_parameter(&self, other: &ParameterChange) -> bool {
        variable_name(self.key()) == variable_name(other.key())
    }
}

impl fmt::Display for ParameterChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParameterChange::Set(key, value) => write!(f, "{key}={value}"),
            ParameterChange::Unset(key) => write!(f, "-{key}"),
        }
    }
}

/// Applies requested changes to the stored parameters of one level, with the rules of Ganeti's `--os-parameters`:
/// `KEY=VALUE` replaces the stored change of the parameter, and `-KEY` deletes the stored change.
pub fn update_stored(stored: &[ParameterChange], requested: &[ParameterChange]) -> Vec<ParameterChange> {
    let is_requested = |change: &&ParameterChange| requested.iter().any(|other| other.has_same_parameter(change));
    let preserved = stored.iter().filter(|change| !is_requested(change));
    let set = requested.iter().filter(|change| matches!(change, ParameterChange::Set(..)));
    preserved.chain(set).cloned().collect()
}

/// Splits the value of `--os-parameters` at its commas, with the rules of Ganeti. `\,` denotes a comma within a value,
/// and `\\` denotes a backslash.
pub fn split_changes(text: &str) -> Vec<String> {
    let (mut all, mut last) = (Vec::new(), String::new());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\\' => last.push(rest.next_if(|next| [',', '\\'].contains(next)).unwrap_or(c)),
            ',' => all.push(std::mem::take(&mut last)),
            c => last.push(c),
        }
    }
    all.push(last);
    all
}

/// Parses changes of parameters.
///
/// # Errors
/// Fails if a change is invalid, or if two of them concern the same parameter.
pub fn parse_changes(texts: &[String]) -> Result<Vec<ParameterChange>, String> {
    let mut all = Vec::<ParameterChange>::new();
    for text in texts {
        let change = ParameterChange::parse(text)?;
        if all.iter().any(|other| other.has_same_parameter(&change)) {
            return Err(format!("{:?} is given twice", change.key()));
        }
        all.push(change);
    }
    Ok(all)
}

/// Checks name and value of a parameter.
///
/// # Errors
/// Fails if no parameter can have this name or this value.
pub(crate) fn check_parameter(key: &str, value: &str) -> Result<(), String> {
    check_parameter_name(key)?;
    if value.contains('\0') || value.len() > MAXIMUM_VALUE_BYTES {
        let most = MAXIMUM_VALUE_BYTES >> 10;
        return Err(format!("the value of {key} contains a NUL byte or is longer than {most} KiB"));
    }
    Ok(())
}

/// Checks the name of a parameter.
///
/// # Errors
/// Fails if no parameter can have this name.
pub(crate) fn check_parameter_name(name: &str) -> Result<(), String> {
    let is_word = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if is_word && !name.is_empty() && !name.starts_with('-') {
        return Ok(());
    }
    Err(format!("{name:?} is not a valid parameter name; use letters, digits, _ and -"))
}

/// Returns the name of the environment variable in which programs receive the value of a parameter.
pub fn variable_name(name: &str) -> String {
    format!("OSP_{}", name.to_uppercase().replace('-', "_"))
}

/// Changes of parameters, by level. A later level takes precedence over an earlier one.
#[derive(Debug, Clone, Default)]
pub struct ParameterLevels<'a> {
    /// Changes for all machines that use the definition.
    pub site: &'a [ParameterChange],
    /// Parameter changes that apply to all machines with the variant.
    pub variant: &'a [ParameterChange],
    pub allocation: &'a [ParameterChange],
}

impl ParameterLevels<'_> {
    /// Returns the values that are passed to the definition's programs, by parameter name. Parameters that no level
    /// sets are omitted, because the definition has defaults for them.
    pub fn resolve(&self, definition: &OsDefinition) -> BTreeMap<String, String> {
        let mut settled = BTreeMap::new();
        for change in [self.site, self.variant, self.allocation].into_iter().flatten() {
            // A change of an unknown parameter is skipped, because such changes were rejected earlier.
            let Ok(parameter) = definition.find_parameter(change) else { continue };
            match change {
                ParameterChange::Set(_, value) => settled.insert(parameter.name.clone(), value.clone()),
                ParameterChange::Unset(_) => settled.remove(&parameter.name),
            };
        }
        settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(texts: &[&str]) -> Result<Vec<ParameterChange>, String> {
        parse_changes(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn requested_parameters_replace_and_delete_stored_ones() {
        for (stored, requested, expected) in [
            (&["a=1", "b=2"][..], &["a=3"][..], &["b=2", "a=3"][..]),
            (&["a=1", "b=2"], &["-A"], &["b=2"]),
            (&["-a", "b=2"], &["-a", "c="], &["b=2", "c="]),
            (&["a-b=1"], &["A_B=2"], &["A_B=2"]),
            (&[], &["-a"], &[]),
        ] {
            let updated = update_stored(&parse(stored).unwrap(), &parse(requested).unwrap());
            let updated: Vec<String> = updated.iter().map(ToString::to_string).collect();
            assert_eq!(updated, expected, "{stored:?} {requested:?}");
        }
    }

    #[test]
    fn parameter_changes_are_split_at_commas() {
        for (text, expected) in [
            ("a=1,-b", &["a=1", "-b"][..]),
            ("a=1\\,2,b=\\\\,c", &["a=1,2", "b=\\", "c"]),
            ("a=\\d\\", &["a=\\d\\"]),
            ("", &[""]),
            ("a=,", &["a=", ""]),
        ] {
            assert_eq!(split_changes(text), expected, "{text}");
        }
        assert_eq!(parse(&["a=1", "A=2"]), Err("\"A\" is given twice".to_owned()));
        assert_eq!(parse(&[""]), Err("\"\" is neither KEY=VALUE nor -KEY".to_owned()));
    }
}
