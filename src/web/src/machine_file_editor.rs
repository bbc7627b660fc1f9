//! `/machines/ID/file`: editor of a machine file. An edited file is checked before it is written. If the edited file
//! triggers an installation, the page shows the plan of the installation, and the operator must type the machine's name
//! before the file is written.

use super::machine_file_preview::{CheckedText, TextEffect, WRITE, check_text, write_checked_text};
use super::machine_name_confirmation::{confirmation_name, require_name, show_name_field};
use super::page_frame::{self, named_words};
use super::session::LoggedIn;
use super::submitted_forms::ChangeForm;
use api::AppState;
use api::base_url::BaseUrls;
use api::metal_api::ApiRefusal;
use api::metal_api::document_edits::hex_digest;
use api::metal_api::machine_file_replacement::{MachineFileText, read_machine_text};
use api::operator_api::find_machine;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use http_server::api_error::ApiError;
use maud::{Markup, html};
use site::operator_files::MachineSpec;
use std::sync::Arc;

/// Maximum size of the form, which contains the text of the file, in bytes.
const FORM_BYTES: usize = 1 << 20;

/// State of the editor.
struct EditorState {
    machine: MachineSpec,
    file: MachineFileText,
    /// Text in the editor.
    text: String,
    checked: CheckedText,
    /// Status and reason of a refusal that does not concern the text itself.
    refused: Option<(StatusCode, String)>,
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
    let text = file.text.clone();
    let state = EditorState { machine, file, text, checked: CheckedText::Unchecked, refused: None };
    Ok(render_editor(&app, &person, &state))
}

/// `POST /machines/{id}/file`: checks the text. Writes the text if the operator was shown the result of this check, and
/// has typed the name of the machine.
pub(crate) async fn post_file(base: BaseUrls, change: ChangeForm<FORM_BYTES>) -> Response {
    submit_text(&change, &base).await.unwrap_or_else(|error| change.show_error(error))
}

async fn submit_text(change: &ChangeForm<FORM_BYTES>, base: &BaseUrls) -> Result<Response, ApiError> {
    let ChangeForm { app, person, form, .. } = change;
    let machine = change.find_machine()?;
    let file = read_machine_text(app, &machine.id).await.map_err(ApiRefusal::into_error)?;
    let text = restore_line_ends(form.get("text"), &file.text);
    if form.get("base") != hex_digest(file.text.as_bytes()) {
        return Ok(show_conflict(change, machine, file, text));
    }
    let checked = check_text(app, base, &machine, &text).await?;
    let is_confirmed = form.get("do") == WRITE && form.get("shown") == checked.digest(&text);
    let mut state = EditorState { machine, file, text, checked, refused: None };
    if let Some(new) = state.checked.writable().filter(|_| is_confirmed && !form.get("name").is_empty()) {
        let written = match require_name(&state.machine, form.get("name"), "nothing was written") {
            Ok(()) => write_checked_text(&change.wait_for_permit().await, &state.file, &state.text, new).await,
            Err(error) => Err(error),
        };
        match written.map_err(|error| named_words(app, person, error)) {
            Ok(()) => return Ok(Redirect::to(&format!("/machines/{}", state.machine.id)).into_response()),
            Err((StatusCode::CONFLICT, _)) => {
                let file = read_machine_text(app, &state.machine.id).await.map_err(ApiRefusal::into_error)?;
                return Ok(show_conflict(change, state.machine, file, state.text));
            }
            Err(refused) => state.refused = Some(refused),
        }
    }
    Ok(render_editor(app, person, &state))
}

/// Shows the submitted text, and the current text of the file, which has changed since the operator loaded the page.
/// The next submission is based on the current text.
fn show_conflict(
    change: &ChangeForm<FORM_BYTES>,
    machine: MachineSpec,
    file: MachineFileText,
    text: String,
) -> Response {
    let why = format!(
        "{file} has changed since the page was loaded; nothing was written. Your text is preserved: add the changes of the current file, which is shown below, then check the text again",
        file = file.path.display()
    );
    let refused = Some((StatusCode::CONFLICT, why));
    let state = EditorState { machine, file, text, checked: CheckedText::Unchecked, refused };
    render_editor(&change.app, &change.person, &state)
}

/// Returns the text with the line ends of the file. Browsers submit all line ends as CRLF.
fn restore_line_ends(text: &str, file: &str) -> String {
    let text = text.replace("\r\n", "\n");
    if file.contains("\r\n") { text.replace('\n', "\r\n") } else { text }
}

fn render_editor(app: &AppState, person: &LoggedIn, state: &EditorState) -> Response {
    let EditorState { machine, file, text, checked, refused } = state;
    let name = confirmation_name(machine);
    let rows = text.lines().count().clamp(12, 40) + 1;
    let is_conflict = refused.as_ref().is_some_and(|(status, _)| *status == StatusCode::CONFLICT);
    let main = html! {
        p { a href={ "/machines/" (machine.id) } { (name) } }
        h1 { "Machine file of " (name) }
        p.faint { code { (file.path.strip_prefix(&app.dir).unwrap_or(&file.path).display()) } " may contain passwords and keys." }
        @if let Some((_, why)) = refused { p.problem.words role="alert" { (why) } }
        form.stack.wide method="post" {
            (page_frame::form_token(person))
            input type="hidden" name="base" value=(hex_digest(file.text.as_bytes()));
            label for="text" { "Text" }
            // Browsers remove the first line end of a text area, so one is added.
            textarea #text.mono name="text" rows=(rows) spellcheck="false" autocapitalize="off" { "\n" (text) }
            p { button formnovalidate { "Check" } " " span.faint { "Nothing is written yet." } }
            (show_result(state))
        }
        @if is_conflict { h2 { "Current file" } pre tabindex="0" { (file.text) } }
        (checked.show_plan())
    };
    let mut response = page_frame::render_page(app, person, &format!("Machine file of {name}"), "", main);
    *response.status_mut() = checked.response_status(refused.as_ref());
    response
}

fn show_result(state: &EditorState) -> Markup {
    let EditorState { machine, text, checked, .. } = state;
    html! {
        @if let CheckedText::Invalid(why) = checked {
            p.problem.words role="alert" { strong { "The text is not valid; nothing was written:" } "\n" (why) }
        }
        @if let (CheckedText::Valid(_, effect), Some(_)) = (checked, checked.writable()) {
            p role="status" {
                "The text is valid."
                @match effect {
                    TextEffect::Installs(_) => strong { " With this text, the machine will be installed at its next boot over PXE. The plan is below." },
                    TextEffect::Unregistered => strong { " With this text, the machine will be installed at its first boot over PXE. Its disks are unknown." },
                    TextEffect::Harmless => " The text does not cause an installation.",
                }
            }
            input type="hidden" name="shown" value=(checked.digest(text));
            (show_name_field(machine, "name"))
            button.danger name="do" value=(WRITE) { "Write the file of " (confirmation_name(machine)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_of_the_file_are_restored() {
        assert_eq!(restore_line_ends("a\r\nb\r\n", "x\n"), "a\nb\n");
        assert_eq!(restore_line_ends("a\r\nb\r\n", "x\r\n"), "a\r\nb\r\n");
        assert_eq!(restore_line_ends("a\nb", ""), "a\nb");
    }
}
