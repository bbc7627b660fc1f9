//! Confirmation by the name of the machine.

use super::refuse;
use crate::confirmation::read_confirmation;
use common::error::Result;

/// Requires that the operator has specified or types the name of the machine.
///
/// # Errors
/// Refuses if the name differs, or cannot be requested.
pub(crate) fn confirm_name(name: &str, given: Option<&str>, is_interactive: bool) -> Result<()> {
    let prompt = format!("Type the name of the machine ({name}) to confirm:");
    match read_confirmation(given.map(str::to_owned), &prompt, is_interactive)? {
        Some(typed) if typed == name => Ok(()),
        Some(typed) => Err(refuse(format!(
            "drophammer adopt: not confirmed: {typed:?} is not the name of the machine, {name:?}. Nothing was changed"
        ))),
        None => Err(refuse(format!("drophammer adopt: not confirmed; add `--yes {name}`. Nothing was changed"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_name_confirms() {
        confirm_name("web-1", Some("web-1"), false).unwrap();
        confirm_name("web-1", Some(" web-1\n"), false).unwrap();
        for (given, expected) in [
            (Some("web-2"), "is not the name"),
            (Some("WEB-1"), "is not the name"),
            (Some(""), "is not the name"),
            (None, "add `--yes web-1`"),
        ] {
            let error = confirm_name("web-1", given, false).unwrap_err();
            assert!(error.is_refusal() && error.to_string().contains(expected), "{given:?}: {error}");
        }
    }
}
