//! Confirmation of a change: the operator types the name of the machine.

use http_server::api_error::ApiError;
use maud::{Markup, html};
use site::operator_files::MachineSpec;

/// Returns the text that the operator must type to confirm: the machine's name, or its id if it has no name.
pub(crate) fn confirmation_name(machine: &MachineSpec) -> &str {
    if machine.name.is_empty() { &machine.id } else { &machine.name }
}

/// Renders the field for the name. `field` is the id of the field, because a page may contain several forms.
pub(crate) fn show_name_field(machine: &MachineSpec, field: &str) -> Markup {
    let name = confirmation_name(machine);
    html! {
        label for=(field) { "Type " strong { (name) } " to confirm" }
        input id=(field) name="name" data-name=(name) autocomplete="off" autocapitalize="off" spellcheck="false" required;
    }
}

/// Checks that the operator has typed the name. `unchanged` is the beginning of the error message, such as `nothing was
/// ordered`.
///
/// # Errors
/// Returns an error if another text was typed.
pub(crate) fn require_name(machine: &MachineSpec, typed: &str, unchanged: &str) -> Result<(), ApiError> {
    let name = confirmation_name(machine);
    match typed.trim() == name {
        true => Ok(()),
        false => Err(ApiError::bad_request(format!(
            "{unchanged}: the name was not confirmed: {typed:?} was typed, but the machine's name is {name:?}"
        ))),
    }
}
