//! `/machines/ID/allocate`: adds an allocation to the file of a free machine. The new file must pass the checks of the
//! file editor. Before the file is written, the page shows the plan and requires the name of the machine. Allocations
//! of several machines in `bulk_actions` use the same checks and fields.

use super::machine_file_preview::{CheckedText, TextEffect, WRITE, check_text, write_checked_text};
use super::machine_name_confirmation::{confirmation_name, require_name, show_name_field};
use super::page_frame::{self, named_words};
use super::session::LoggedIn;
use super::submitted_forms::{ChangeForm, SubmittedForm};
use api::AppState;
use api::base_url::BaseUrls;
use api::metal_api::ApiRefusal;
use api::metal_api::machine_file_replacement::{MachineFileText, NewAllocation, read_machine_text};
use api::metal_api::machines::check_over_redfish;
use api::operator_api::find_machine;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;
use maud::{Markup, html};
use site::operator_files::{MachineSpec, replace_positions};
use site::snapshot::SiteSnapshot;
use std::sync::Arc;
use uuid::Uuid;

/// Maximum size of the form, which contains the user data, in bytes.
const FORM_BYTES: usize = 1 << 20;

/// State of the form.
struct AllocateState {
    machine: MachineSpec,
    new: NewAllocation,
    /// Text of the machine file with the allocation.
    text: String,
    checked: CheckedText,
    /// Status and reason of a refusal that does not concern the fields of the form.
    refused: Option<(StatusCode, String)>,
}

/// `GET /machines/{id}/allocate`: shows the form.
pub(crate) async fn get_allocate(
    State(app): State<Arc<AppState>>,
    person: LoggedIn,
    Path(id): Path<String>,
) -> Result<Response, Response> {
    let machine = find_machine(&app, &id.to_lowercase()).and_then(require_free);
    let machine = machine.map_err(|error| page_frame::render_error(&app, Some(&person), error))?;
    let hostname = machine.name.to_lowercase();
    let new = NewAllocation { id: Uuid::new_v4().to_string(), hostname, ..NewAllocation::default() };
    let state = AllocateState { machine, new, text: String::new(), checked: CheckedText::Unchecked, refused: None };
    Ok(render_form(&app, &person, &state))
}

/// Returns the machine if it is free and not locked.
///
/// # Errors
/// Returns an error with the reason why the machine cannot be allocated.
pub(crate) fn require_free(machine: MachineSpec) -> Result<MachineSpec, ApiError> {
    let name = confirmation_name(&machine);
    let why = match (&machine.allocation, machine.explain_lock()) {
        (None, None) => return Ok(machine),
        (Some(_), _) => format!("machine {name} already has an allocation: free the machine first"),
        (None, Some(why)) => format!("machine {name} is {why}"),
    };
    Err(ApiError::new(StatusCode::CONFLICT, why))
}

/// Reads the allocation from the fields of the form. The id of the allocation is also a field of the form: the digest
/// of the text depends on this id, so it must not change between preview and confirmation.
pub(crate) fn parse_allocation(form: &SubmittedForm) -> NewAllocation {
    let given = |name: &str| form.get(name).trim().to_owned();
    let keys = form.get("ssh_key").lines().map(str::trim).filter(|key| !key.is_empty());
    NewAllocation {
        id: given("allocation"),
        hostname: given("hostname"),
        image: given("image"),
        layout: given("layout"),
        ssh_pub_keys: keys.map(str::to_owned).collect(),
        user_data: form.get("user_data").replace("\r\n", "\n"),
    }
}

/// `POST /machines/{id}/allocate`: shows the plan. Writes the allocation if the name of the machine was typed, and the
/// plan has not changed since it was shown.
pub(crate) async fn post_allocate(base: BaseUrls, change: ChangeForm<FORM_BYTES>) -> Response {
    submit_allocation(&change, &base).await.unwrap_or_else(|error| change.show_error(error))
}

async fn submit_allocation(change: &ChangeForm<FORM_BYTES>, base: &BaseUrls) -> Result<Response, ApiError> {
    let ChangeForm { app, person, form, .. } = change;
    let machine = change.find_machine().and_then(require_free)?;
    let new = parse_allocation(form);
    let AllocationEdit { file, text, checked } = check_allocation(app, base, person, &machine, &new).await?;
    let mut state = AllocateState { machine, new, text, checked, refused: None };
    if form.get("do") == WRITE
        && let Some(described) = state.checked.writable()
    {
        let written = match form.get("shown") == state.checked.digest(&state.text) {
            true => match require_name(&state.machine, form.get("name"), "nothing was allocated") {
                Ok(()) => write_checked_text(&change.wait_for_permit().await, &file, &state.text, described).await,
                Err(error) => Err(error),
            },
            false => {
                let why = "nothing was allocated: the fields, the plan or the machine file have changed since the plan was shown. Review the plan below";
                Err(ApiError::new(StatusCode::CONFLICT, why))
            }
        };
        match written.map_err(|error| named_words(app, person, error)) {
            Ok(()) => return Ok(Redirect::to(&format!("/machines/{}", state.machine.id)).into_response()),
            Err(refused) => state.refused = Some(refused),
        }
    }
    Ok(render_form(app, person, &state))
}

/// Text of a machine file with a new allocation, and the result of its check.
pub(crate) struct AllocationEdit {
    /// The machine file without the allocation.
    pub file: MachineFileText,
    pub text: String,
    pub checked: CheckedText,
}

/// Adds the allocation to the text of the machine file, and checks the new text. Writes nothing.
///
/// # Errors
/// Returns an error if the file contains a lock or another allocation, or if the check itself fails. Problems of the
/// allocation are part of the result.
pub(crate) async fn check_allocation(
    app: &AppState,
    base: &BaseUrls,
    person: &LoggedIn,
    machine: &MachineSpec,
    new: &NewAllocation,
) -> Result<AllocationEdit, ApiError> {
    let file = read_machine_text(app, &machine.id).await.map_err(ApiRefusal::into_error)?;
    let text = new.add_to(&file).map_err(ApiRefusal::into_error)?;
    let checked = match new.image.is_empty() {
        true => CheckedText::Invalid(ErrorCode::Settings.annotate("no image is selected")),
        false => match check_over_redfish(app, &machine.id).await.map_err(ApiRefusal::into_error) {
            Ok(()) => check_text(app, base, machine, &text).await?,
            Err(error) => CheckedText::Invalid(named_words(app, person, error).1),
        },
    };
    Ok(AllocationEdit { file, text, checked })
}

fn render_form(app: &AppState, person: &LoggedIn, state: &AllocateState) -> Response {
    let AllocateState { machine, checked, refused, .. } = state;
    let name = confirmation_name(machine);
    let main = html! {
        p { a href={ "/machines/" (machine.id) } { (name) } }
        h1 { "Allocate " (name) }
        @if let Some((_, why)) = refused { p.problem.words role="alert" { (why) } }
        form.stack method="post" {
            (page_frame::form_token(person))
            (show_fields(&app.directory(), &state.new))
            p { button formnovalidate { "Show plan" } " " span.faint { "Nothing is written yet." } }
            (show_result(state))
        }
        (checked.show_plan())
    };
    let mut response = page_frame::render_page(app, person, &format!("Allocate {name}"), "", main);
    *response.status_mut() = checked.response_status(refused.as_ref());
    response
}

fn show_fields(directory: &SiteSnapshot, new: &NewAllocation) -> Markup {
    html! {
        input type="hidden" name="allocation" value=(new.id);
        label for="hostname" { "Hostname" }
        input #hostname name="hostname" value=(new.hostname) autocomplete="off" autocapitalize="off" spellcheck="false" required;
        (show_common_fields(directory, new))
    }
}

/// Renders the fields that can have the same values for several machines.
pub(crate) fn show_common_fields(directory: &SiteSnapshot, new: &NewAllocation) -> Markup {
    html! {
        (show_image_fields(directory, "select", &new.image, &new.layout))
        label for="ssh_key" { "SSH public keys, one per line" }
        textarea #ssh_key name="ssh_key" rows="3" spellcheck="false" { "\n" (new.ssh_pub_keys.join("\n")) }
        label for="user_data" { "User data" }
        textarea #user_data.mono name="user_data" rows="5" spellcheck="false" autocapitalize="off" { "\n" (new.user_data) }
    }
}

/// Renders the fields for image and layout. `no_image` is the label of the option that selects no image.
pub(crate) fn show_image_fields(directory: &SiteSnapshot, no_image: &str, image: &str, layout: &str) -> Markup {
    let options = |ids: Vec<&str>, selected: &str| {
        html! { @for id in ids { option value=(id) selected[selected == id] { (id) } } }
    };
    html! {
        label for="image" { "Image" }
        select #image name="image" {
            option value="" { (no_image) }
            (options(directory.known.listed_images().collect(), image))
        }
        label for="layout" { "Layout" }
        select #layout name="layout" {
            option value="" { "the layout for the machine's size and the image" }
            (options(directory.known.layouts.keys().map(String::as_str).collect(), layout))
        }
    }
}

fn show_result(state: &AllocateState) -> Markup {
    let AllocateState { machine, new, text, checked, .. } = state;
    html! {
        @if let CheckedText::Invalid(why) = checked {
            p.problem.words role="alert" {
                strong { "Nothing was allocated:" } "\n" (replace_positions(text, why, str::to_owned))
            }
        }
        @if let (CheckedText::Valid(_, effect), Some(_)) = (checked, checked.writable()) {
            p.problem {
                "The machine will be installed with " (new.image) ": at once if it waits in the ramdisk, and otherwise at its next boot over PXE. "
                @match effect {
                    TextEffect::Unregistered => "The machine has never registered, so its disks are unknown.",
                    _ => "The plan is below.",
                }
            }
            input type="hidden" name="shown" value=(checked.digest(text));
            (show_name_field(machine, "name"))
            button.danger name="do" value=(WRITE) { "Allocate " (confirmation_name(machine)) " and install " (new.image) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use site::operator_files;

    #[test]
    fn only_free_machines_are_allocated() {
        let machine = |more: &str| {
            let text = format!("id: 4c4c4544-0051-3010-8052-b4c04f4d0001\nname: one\n{more}");
            operator_files::parse_machine(&text).unwrap()
        };
        assert!(require_free(machine("")).is_ok());
        for (more, words) in [
            ("locked: broken fan\n", "broken fan"),
            (
                "allocation: {id: 6f0c3b9e-3d57-4c57-8f0e-000000000001, hostname: h, image: debian-12}\n",
                "free the machine first",
            ),
        ] {
            let (status, why) = require_free(machine(more)).unwrap_err().parts();
            assert!(status == StatusCode::CONFLICT && why.contains(words), "{why}");
        }
    }

    #[test]
    fn fields_of_a_form_become_an_allocation() {
        let form = "allocation=a&hostname=+web+&image=i&layout=&ssh_key=k1%0D%0A%0D%0A+k2+&user_data=x%0D%0A+y%0D%0A";
        let new = parse_allocation(&SubmittedForm::parse_query(Some(form)));
        assert_eq!((new.hostname.as_str(), new.layout.as_str()), ("web", ""));
        assert_eq!(new.ssh_pub_keys, ["k1", "k2"]);
        assert_eq!(new.user_data, "x\n y\n", "white space of user data is preserved");
    }
}
