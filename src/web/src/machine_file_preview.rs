//! Check of an edited machine file: its validity, and the plan of the installation that the file would trigger. The
//! checks are repeated when the file is written.

use super::page_frame::operator_words;
use super::plan_preview::{self, PlanPreview};
use api::base_url::BaseUrls;
use api::install_state_enrichment::read_full_state;
use api::metal_api::document_edits::hex_digest;
use api::metal_api::machine_file_replacement::{
    MachineFileText, check_machine_text, recheck_machine, replace_machine_text,
};
use api::metal_api::{ApiRefusal, EditPermit};
use api::operator_api::find_machine;
use api::{AppState, access};
use axum::http::StatusCode;
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;
use maud::{Markup, html};
use site::operator_files::MachineSpec;

/// Value of the field `do` of the button that writes the file. Other buttons only check the text.
pub(crate) const WRITE: &str = "write";

/// Result of the check of an edited machine file.
pub(crate) enum CheckedText {
    /// The file was not checked yet.
    Unchecked,
    Invalid(String),
    /// The file describes this machine, and would have this effect.
    Valid(Box<MachineSpec>, TextEffect),
}

/// Effect of an edited machine file on the machine.
pub(crate) enum TextEffect {
    /// The file does not trigger an installation.
    Harmless,
    /// The file triggers an installation on a machine that has never registered, so the disks are unknown.
    Unregistered,
    /// The text causes an installation with this plan.
    Installs(PlanPreview),
}

impl CheckedText {
    /// Returns a digest of the text and the plan. The text is written only if this digest was shown to the operator.
    pub(crate) fn digest(&self, text: &str) -> String {
        let plan = match self {
            CheckedText::Valid(_, TextEffect::Installs(PlanPreview::Planned(planned, _))) => {
                planned.verdicts.as_ref().map_or("nothing".to_owned(), |verdicts| verdicts.digest())
            }
            CheckedText::Valid(_, TextEffect::Unregistered) => "unregistered".to_owned(),
            _ => String::new(),
        };
        hex_digest(format!("{plan}\n{text}").as_bytes())
    }

    /// Returns the machine that the text describes. Returns `None` if the text must not be written, because it is
    /// unchecked or invalid, or because the plan of the installation that it triggers is refused or unknown.
    pub(crate) fn writable(&self) -> Option<&MachineSpec> {
        use TextEffect::{Harmless, Installs, Unregistered};
        match self {
            CheckedText::Valid(machine, Harmless | Unregistered | Installs(PlanPreview::Planned(..))) => Some(machine),
            _ => None,
        }
    }

    /// Returns the status of the page that shows the result. `refused` is the status and the reason of a refusal that
    /// does not concern the text itself.
    pub(crate) fn response_status(&self, refused: Option<&(StatusCode, String)>) -> StatusCode {
        match (refused, self) {
            (Some((status, _)), _) => *status,
            (None, CheckedText::Invalid(_)) => StatusCode::UNPROCESSABLE_ENTITY,
            _ => StatusCode::OK,
        }
    }

    /// Shows the plan of the installation that the file would trigger.
    pub(crate) fn show_plan(&self) -> Markup {
        let CheckedText::Valid(_, TextEffect::Installs(plan)) = self else { return html! {} };
        html! {
            @match plan {
                PlanPreview::Planned(planned, registered) => {
                    (plan_preview::show_inventory_source(registered))
                    (plan_preview::show_plan(planned))
                }
                PlanPreview::Refused(why) => {
                    h2 { "Plan refused, nothing was written" }
                    pre.problem tabindex="0" role="alert" { (why) }
                }
                PlanPreview::Unknown(why) => {
                    p.problem role="alert" { "Nothing was written, because the plan is unknown: " (why) "." }
                }
            }
        }
    }
}

/// Checks an edited text that would replace the machine file of `current`. Writes nothing, and does not block other
/// changes.
///
/// # Errors
/// Returns an error if the check itself fails. Problems of the file are part of the result.
pub(crate) async fn check_text(
    app: &AppState,
    base: &BaseUrls,
    current: &MachineSpec,
    text: &str,
) -> Result<CheckedText, ApiError> {
    let id = current.id.as_str();
    let machine = match check_machine_text(app, id, text).await.map_err(ApiRefusal::into_error) {
        Ok(machine) => machine,
        Err(error) if error.status().is_server_error() => return Err(error),
        Err(error) => return Ok(CheckedText::Invalid(operator_words(error).1)),
    };
    if machine.project != current.project {
        access::check_new_project(machine.project.as_deref())?;
    }
    if let Some(why) = explain_kept_allocation(app, current, &machine).await? {
        return Ok(CheckedText::Invalid(ErrorCode::ControlPlane.annotate_uncoded(why)));
    }
    let effect = find_effect(app, base, &machine).await?;
    Ok(CheckedText::Valid(Box::new(machine), effect))
}

async fn find_effect(app: &AppState, base: &BaseUrls, machine: &MachineSpec) -> Result<TextEffect, ApiError> {
    if machine.allocation.is_none() {
        return Ok(TextEffect::Harmless);
    }
    let install_state = read_full_state(app, machine, &app.directory().known).await?;
    match (install_state.will_install(), app.state.find_registration(&machine.id).await?) {
        (false, _) => Ok(TextEffect::Harmless),
        (true, None) => Ok(TextEffect::Unregistered),
        (true, Some(_)) => {
            plan_preview::load_preview(app, base, machine, install_state, false).await.map(TextEffect::Installs)
        }
    }
}

/// Replaces the text of `file` by `text`, which describes the machine `checked`. Other requests may have changed
/// files since the check, so all checks except the plan are repeated while this request holds the edit permit.
///
/// # Errors
/// Returns status 409 if the file has changed since it was read, and 422 if the text has become invalid.
pub(crate) async fn write_checked_text(
    permit: &EditPermit,
    file: &MachineFileText,
    text: &str,
    checked: &MachineSpec,
) -> Result<(), ApiError> {
    let current = find_machine(&permit.app, &checked.id)?;
    recheck_machine(&permit.app, &current.id, checked).await.map_err(ApiRefusal::into_error)?;
    if let Some(why) = explain_kept_allocation(&permit.app, &current, checked).await? {
        return Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, why));
    }
    replace_machine_text(permit, &current.id, file, text).await.map_err(ApiRefusal::into_error)
}

/// Returns the reason why an edited file must not remove or replace the machine's allocation; `None` if the change is
/// allowed. The allocation of an installed, locked or migrating machine may be ended only by freeing the machine, which
/// also stops the installed system.
async fn explain_kept_allocation(
    app: &AppState,
    current: &MachineSpec,
    new: &MachineSpec,
) -> Result<Option<String>, ApiError> {
    let Some(own) = &current.allocation else { return Ok(None) };
    if new.allocation.as_ref().is_some_and(|allocation| allocation.id == own.id) {
        return Ok(None);
    }
    let install_state = app.state.read_install_state(&current.id, &own.id).await?;
    let locked = current.explain_lock().map(|why| format!("the machine is {why}"));
    let why = if let Some(locked) = &locked {
        locked
    } else if app.state.find_live_migration(&current.id).await?.is_some() {
        "the machine takes part in a migration"
    } else if install_state.is_installed() || install_state.first.is_some() || install_state.order.is_some() {
        "the machine is installed with this allocation, or its installation has started"
    } else {
        return Ok(None);
    };
    Ok(Some(format!(
        "the text removes allocation {allocation} or changes its id, which is not allowed, because {why}; free the machine first, then add another allocation",
        allocation = own.id.as_str()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use site::operator_files;

    fn valid(effect: TextEffect) -> CheckedText {
        let machine = operator_files::parse_machine("id: 4c4c4544-0051-3010-8052-b4c04f4d0001\n").unwrap();
        CheckedText::Valid(Box::new(machine), effect)
    }

    #[test]
    fn text_with_refused_or_unknown_plan_is_not_writable() {
        for effect in [TextEffect::Harmless, TextEffect::Unregistered] {
            assert!(valid(effect).writable().is_some());
        }
        for checked in [
            CheckedText::Unchecked,
            CheckedText::Invalid("w".to_owned()),
            valid(TextEffect::Installs(PlanPreview::Refused("w".to_owned()))),
            valid(TextEffect::Installs(PlanPreview::Unknown("w".to_owned()))),
        ] {
            assert!(checked.writable().is_none());
        }
        let [harmless, unregistered] = [TextEffect::Harmless, TextEffect::Unregistered].map(valid);
        assert_ne!(harmless.digest("a"), harmless.digest("b"));
        assert_ne!(harmless.digest("a"), unregistered.digest("a"));
    }
}
