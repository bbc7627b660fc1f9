//! `/machines/ID/file`: editor of a machine file. A text is checked before it is written. If the text causes an
//! installation, the page shows the plan. The operator types the name of the machine to write the file.

use super::confirmation::{confirmation_name, require_name, show_name_field};
use super::form::SubmittedForm;
use super::page_frame;
use super::plan_preview::{self, PlanPreview};
use super::session::LoggedIn;
use api::allocation_state::read_full_state;
use api::base_url::BaseUrls;
use api::metal_api::edited_files::hex_digest;
use api::metal_api::machine_file_replacement::{
    MachineFileText, check_machine_text, read_machine_text, replace_machine_text,
};
use api::metal_api::{ApiRefusal, EditTurn};
use api::operator::find_machine;
use api::{AppState, access};
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use http_server::api_error::ApiError;
use http_server::quotas::ClientAddress;
use maud::{Markup, html};
use site::operator_files::MachineSpec;
use std::sync::Arc;

/// Maximum size of the form, which contains the text of the file, in bytes.
const FORM_BYTES: usize = 1 << 20;

/// Value of the field `do` of the button that writes the file. The other button only checks the text.
const WRITE: &str = "write";

/// Text in the editor.
struct EditedText {
    text: String,
    /// Digest of the file's text on which the edited text is based.
    base: String,
}

/// Result of the check of a text.
enum CheckedText {
    /// The text was not checked yet.
    Unchecked,
    Invalid(String),
    /// The text does not cause an installation.
    Harmless,
    /// The text causes an installation on a machine that has never registered, so the disks are unknown.
    Unregistered,
    /// The text causes an installation with this plan.
    Installs(PlanPreview),
}

impl CheckedText {
    /// Returns a digest of the text and its plan. A text is written only if its digest is still the digest that was shown.
    fn digest(&self, text: &str) -> String {
        let plan = match self {
            CheckedText::Installs(PlanPreview::Planned(planned, _)) => {
                planned.verdicts.as_ref().map_or("nothing".to_owned(), |verdicts| verdicts.digest())
            }
            CheckedText::Unregistered => "unregistered".to_owned(),
            _ => String::new(),
        };
        hex_digest(format!("{plan}\n{text}").as_bytes())
    }

    /// Returns whether the text may be written. A text that causes an installation must have a plan.
    fn is_writable(&self) -> bool {
        use CheckedText::{Harmless, Installs, Unregistered};
        matches!(self, Harmless | Unregistered | Installs(PlanPreview::Planned(..)))
    }
}

/// `GET /machines/{id}/file`: shows the text of the file.
pub(crate) async fn get_file(
    State(app): State<Arc<AppState>>,
    person: LoggedIn,
    Path(id): Path<String>,
) -> Result<Response, Response> {
    let id = id.to_lowercase();
    let read = async {
        let machine = find_machine(&app, &id)?;
        let file = read_machine_text(&app, &id).await.map_err(ApiRefusal::into_error)?;
        Ok((machine, file))
    };
    let (machine, file) = read.await.map_err(|error| page_frame::render_error(&app, Some(&person), error))?;
    let edited = EditedText { base: hex_digest(file.text.as_bytes()), text: file.text.clone() };
    Ok(render_editor(&app, &person, &machine, &file, &edited, &CheckedText::Unchecked))
}

/// `POST /machines/{id}/file`: checks the text, and writes the text if the name of the machine was typed.
pub(crate) async fn post_file(
    State(app): State<Arc<AppState>>,
    base: BaseUrls,
    person: LoggedIn,
    Path(id): Path<String>,
    peer: ClientAddress,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let done = async {
        let form = SubmittedForm::read_verified_up_to(&app, &person, peer, &headers, body, FORM_BYTES).await?;
        let turn = EditTurn::wait_for_turn(&app, peer, headers).await;
        let machine = find_machine(&app, &id.to_lowercase())?;
        submit_text(&turn, &base, &person, &machine, &form).await
    };
    done.await.unwrap_or_else(|error: ApiError| page_frame::render_error(&app, Some(&person), error))
}

async fn submit_text(
    turn: &EditTurn,
    base: &BaseUrls,
    person: &LoggedIn,
    machine: &MachineSpec,
    form: &SubmittedForm,
) -> Result<Response, ApiError> {
    let app = &turn.app;
    let file = read_machine_text(app, &machine.id).await.map_err(ApiRefusal::into_error)?;
    let edited =
        EditedText { text: restore_line_ends(form.get("text"), &file.text), base: form.get("base").to_owned() };
    if edited.base != hex_digest(file.text.as_bytes()) {
        let path = file.path.display();
        let why = format!(
            "{path} has changed since the page was loaded; nothing was written: go back, copy your text, reload the page, and repeat your changes"
        );
        return Err(ApiError::new(StatusCode::CONFLICT, why));
    }
    let checked = check_text(app, base, machine, &edited.text).await?;
    let is_confirmed = form.get("do") == WRITE && form.get("shown") == checked.digest(&edited.text);
    if !checked.is_writable() || !is_confirmed || form.get("name").is_empty() {
        return Ok(render_editor(app, person, machine, &file, &edited, &checked));
    }
    require_name(machine, form.get("name"), "nothing was written")?;
    replace_machine_text(turn, &machine.id, &file, &edited.text).await.map_err(ApiRefusal::into_error)?;
    Ok(Redirect::to(&format!("/machines/{}", machine.id)).into_response())
}

/// Returns the text with the line ends of the file. Browsers submit all line ends as CRLF.
fn restore_line_ends(text: &str, file: &str) -> String {
    let text = text.replace("\r\n", "\n");
    if file.contains("\r\n") { text.replace('\n', "\r\n") } else { text }
}

/// Returns the reason why a text must not replace the machine's allocation, or `None` if it may. The allocation of an
/// installed, locked or migrating machine ends only by freeing the machine, which also ends the installed system.
async fn explain_kept_allocation(
    app: &AppState,
    current: &MachineSpec,
    new: &MachineSpec,
) -> Result<Option<String>, ApiError> {
    let Some(own) = &current.allocation else { return Ok(None) };
    if new.allocation.as_ref().is_some_and(|allocation| allocation.id == own.id) {
        return Ok(None);
    }
    let standing = app.state.read_install_state(&current.id, &own.id).await?;
    let why = if current.locked.is_some() {
        "the machine is locked"
    } else if app.state.find_live_migration(&current.id).await?.is_some() {
        "the machine takes part in a migration"
    } else if standing.is_installed() || standing.first.is_some() || standing.order.is_some() {
        "the machine is installed with this allocation, or its installation has started"
    } else {
        return Ok(None);
    };
    Ok(Some(format!(
        "the text removes allocation {} or changes its id, but {why}; free the machine first, then add another allocation",
        own.id.as_str()
    )))
}

async fn check_text(
    app: &AppState,
    base: &BaseUrls,
    current: &MachineSpec,
    text: &str,
) -> Result<CheckedText, ApiError> {
    let id = current.id.as_str();
    let machine = match check_machine_text(app, id, text).await.map_err(ApiRefusal::into_error) {
        Ok(machine) => machine,
        Err(error) => {
            let (status, why) = error.parts();
            return if status.is_server_error() {
                Err(ApiError::new(status, why))
            } else {
                Ok(CheckedText::Invalid(why))
            };
        }
    };
    if machine.project != current.project {
        access::check_new_project(machine.project.as_deref())?;
    }
    if let Some(why) = explain_kept_allocation(app, current, &machine).await? {
        return Ok(CheckedText::Invalid(why));
    }
    if machine.allocation.is_none() {
        return Ok(CheckedText::Harmless);
    }
    let standing = read_full_state(app, &machine, &app.directory().known).await?;
    match (standing.will_install(), app.state.find_registration(id).await?) {
        (false, _) => Ok(CheckedText::Harmless),
        (true, None) => Ok(CheckedText::Unregistered),
        (true, Some(_)) => {
            plan_preview::load_preview(app, base, &machine, standing, false).await.map(CheckedText::Installs)
        }
    }
}

fn render_editor(
    app: &AppState,
    person: &LoggedIn,
    machine: &MachineSpec,
    file: &MachineFileText,
    edited: &EditedText,
    checked: &CheckedText,
) -> Response {
    let name = confirmation_name(machine);
    let rows = edited.text.lines().count().clamp(12, 40) + 1;
    let main = html! {
        p { a href={ "/machines/" (machine.id) } { (name) } }
        h1 { "Machine file of " (name) }
        p.faint { code { (file.path.strip_prefix(&app.dir).unwrap_or(&file.path).display()) } " may contain passwords and keys." }
        form.stack.wide method="post" {
            (page_frame::form_token(person))
            input type="hidden" name="base" value=(edited.base);
            label for="text" { "Text" }
            // Browsers remove the first line end of a text area.
            textarea #text.mono name="text" rows=(rows) spellcheck="false" autocapitalize="off" { "\n" (edited.text) }
            p { button formnovalidate { "Check" } " " span.faint { "Nothing is written yet." } }
            (show_result(machine, edited, checked))
        }
        @if let CheckedText::Installs(plan) = checked { (show_plan(plan)) }
    };
    let mut response = page_frame::render_page(app, person, &format!("Machine file of {name}"), "", main);
    if matches!(checked, CheckedText::Invalid(_)) {
        *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
    }
    response
}

fn show_result(machine: &MachineSpec, edited: &EditedText, checked: &CheckedText) -> Markup {
    html! {
        @if let CheckedText::Invalid(why) = checked {
            p.problem.words role="alert" { strong { "Not valid, nothing was written:" } "\n" (why) }
        }
        @if checked.is_writable() {
            p role="status" {
                "The text is valid."
                @match checked {
                    CheckedText::Installs(_) => strong { " With this text, the machine will be installed at its next boot over PXE. The plan is below." },
                    CheckedText::Unregistered => strong { " With this text, the machine will be installed at its first boot over PXE. Its disks are unknown." },
                    _ => " The text does not cause an installation.",
                }
            }
            input type="hidden" name="shown" value=(checked.digest(&edited.text));
            (show_name_field(machine, "name"))
            button.danger name="do" value=(WRITE) { "Write the file of " (confirmation_name(machine)) }
        }
    }
}

fn show_plan(plan: &PlanPreview) -> Markup {
    html! {
        @match plan {
            PlanPreview::Planned(planned, registered) => {
                (plan_preview::show_inventory_source(registered))
                (plan_preview::show_plan(planned))
            }
            PlanPreview::Refused(why) => { h2 { "Plan refused, nothing was written" } pre.problem tabindex="0" role="alert" { (why) } }
            PlanPreview::Unknown(why) => p.problem role="alert" { "Nothing was written, because the plan is unknown: " (why) "." },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_are_those_of_the_file() {
        assert_eq!(restore_line_ends("a\r\nb\r\n", "x\n"), "a\nb\n");
        assert_eq!(restore_line_ends("a\r\nb\r\n", "x\r\n"), "a\r\nb\r\n");
        assert_eq!(restore_line_ends("a\nb", ""), "a\nb");
    }

    #[test]
    fn a_text_without_a_plan_of_its_installation_is_not_writable() {
        assert!(CheckedText::Harmless.is_writable() && CheckedText::Unregistered.is_writable());
        for checked in [
            CheckedText::Unchecked,
            CheckedText::Invalid("w".to_owned()),
            CheckedText::Installs(PlanPreview::Refused("w".to_owned())),
            CheckedText::Installs(PlanPreview::Unknown("w".to_owned())),
        ] {
            assert!(!checked.is_writable());
        }
        assert_ne!(CheckedText::Harmless.digest("a"), CheckedText::Harmless.digest("b"));
        assert_ne!(CheckedText::Harmless.digest("a"), CheckedText::Unregistered.digest("a"));
    }
}
