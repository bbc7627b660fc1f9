//! `/machines/ID/actions`: switches a machine on and off, locks it, and frees it. An action that interrupts the
//! machine or removes a protection must be confirmed with the machine's name.

use super::machine_name_confirmation::{confirmation_name, require_name, show_name_field};
use super::page_frame;
use super::session::LoggedIn;
use super::submitted_forms::ChangeForm;
use api::AppState;
use api::metal_api::{machine_lock, machines};
use api::operator_api::find_machine;
use api::power;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use bmc::PowerAction;
use http_server::api_error::ApiError;
use maud::{Markup, html};
use site::operator_files::MachineSpec;
use std::sync::Arc;

/// Power actions, each with the value of its form field and its description.
pub(crate) const POWER_ACTIONS: [(PowerAction, &str, &str); 4] = [
    (PowerAction::On, "on", "power on"),
    (PowerAction::Cycle, "cycle", "power off and on immediately, without a shutdown"),
    (PowerAction::Off, "off", "power off immediately, without a shutdown"),
    (PowerAction::Pxe, "pxe", "boot over PXE at the next boot; the power state does not change"),
];

/// `GET /machines/{id}/actions`: shows the forms.
pub(crate) async fn get_actions(
    State(app): State<Arc<AppState>>,
    person: LoggedIn,
    Path(id): Path<String>,
) -> Result<Response, Response> {
    let machine = find_machine(&app, &id.to_lowercase());
    let machine = machine.map_err(|error| page_frame::render_error(&app, Some(&person), error))?;
    let name = confirmation_name(&machine);
    let main = html! {
        p { a href={ "/machines/" (machine.id) } { (name) } }
        h1 { "Actions on " (name) }
        (show_power(&person, &machine))
        (show_lock(&person, &machine))
        (show_free(&person, &machine))
    };
    Ok(page_frame::render_page(&app, &person, &format!("Actions on {name}"), "", main))
}

fn show_power(person: &LoggedIn, machine: &MachineSpec) -> Markup {
    html! {
        h2 #power { "Power" }
        @if machine.bmc.is_none() {
            p.faint { "The machine file does not name a management controller. Add " code { "bmc:" } " with url, username and password to the file." }
        } @else {
            form.stack method="post" action={ "/machines/" (machine.id) "/power" } {
                (page_frame::form_token(person))
                fieldset {
                    legend { "Action" }
                    @for (index, (_, word, description)) in POWER_ACTIONS.iter().enumerate() {
                        p { label { input type="radio" name="action" value=(word) checked[index == 0]; " " (description) } }
                    }
                }
                (show_name_field(machine, "power-name"))
                button.danger { "Switch " (confirmation_name(machine)) }
            }
        }
    }
}

fn show_lock(person: &LoggedIn, machine: &MachineSpec) -> Markup {
    html! {
        h2 #lock { "Lock" }
        form.stack method="post" action={ "/machines/" (machine.id) "/lock" } {
            (page_frame::form_token(person))
            input type="hidden" name="shown" value=(machine.locked.as_deref().unwrap_or_default());
            @if let Some(reason) = &machine.locked {
                p { "Locked: " (reason) }
                (show_name_field(machine, "unlock-name"))
                button.danger { "Unlock " (confirmation_name(machine)) }
            } @else {
                p.faint { "Nothing can be ordered for a locked machine. The reason is written to the machine file." }
                label for="reason" { "Reason" }
                input #reason name="reason" autocomplete="off" required;
                button { "Lock" }
            }
        }
    }
}

fn show_free(person: &LoggedIn, machine: &MachineSpec) -> Markup {
    html! {
        h2 #free { "Free" }
        @match (&machine.allocation, &machine.locked) {
            (None, _) => p.faint { "The machine is free." },
            (Some(_), Some(_)) => p.faint { "The machine is locked, so it cannot be freed." },
            (Some(allocation), None) => form.stack method="post" action={ "/machines/" (machine.id) "/free" } {
                (page_frame::form_token(person))
                input type="hidden" name="allocation" value=(allocation.id.as_str());
                p {
                    "Removes allocation " code { (allocation.id.as_str()) } " from the machine file, and switches the machine off if its management controller is known. "
                    "Its disks are unchanged until the machine is allocated and installed again."
                }
                (show_name_field(machine, "free-name"))
                button.danger { "Free " (confirmation_name(machine)) }
            },
        }
    }
}

/// `POST /machines/{id}/power`: performs a power action, as `POST /v1/machine/{id}/power` does.
pub(crate) async fn post_power(change: ChangeForm) -> Response {
    let done = async {
        let machine = change.find_machine()?;
        require_name(&machine, change.form.get("name"), "the power was not switched")?;
        let wanted = change.form.get("action");
        let action = POWER_ACTIONS.iter().find(|(_, word, _)| *word == wanted).map(|(action, ..)| *action);
        let action =
            action.ok_or_else(|| ApiError::bad_request("the power was not switched: the form has no action"))?;
        power::switch_as_requested(&change.app, &machine.id, action, change.peer).await?;
        Ok(machine.id)
    };
    change.respond(done.await)
}

/// `POST /machines/{id}/lock`: locks a machine with a reason, or unlocks a locked machine.
pub(crate) async fn post_lock(change: ChangeForm) -> Response {
    let done = async {
        let permit = change.wait_for_permit().await;
        let machine = change.find_machine()?;
        if change.form.get("shown") != machine.locked.as_deref().unwrap_or_default() {
            return Err(changed_since("the lock"));
        }
        let reason = change.form.get("reason").trim();
        let reason = match (&machine.locked, reason) {
            (Some(_), "") => {
                require_name(&machine, change.form.get("name"), "the machine is still locked")?;
                None
            }
            (None, "") => return Err(ApiError::bad_request("the machine is not locked: a lock requires a reason")),
            (_, reason) => Some(reason),
        };
        machine_lock::set_lock(&permit, &machine.id, reason).await.map_err(|refusal| refusal.into_error())?;
        Ok(machine.id)
    };
    change.respond(done.await)
}

/// `POST /machines/{id}/free`: removes the allocation, as `DELETE /v1/machine/{id}/free` does.
pub(crate) async fn post_free(change: ChangeForm) -> Response {
    let done = async {
        let permit = change.wait_for_permit().await;
        let machine = change.find_machine()?;
        require_name(&machine, change.form.get("name"), "the machine was not freed")?;
        let own = machine.allocation.as_ref().map(|allocation| allocation.id.as_str());
        if change.form.get("allocation") != own.unwrap_or_default() {
            return Err(changed_since("the allocation"));
        }
        let freed = machines::remove_allocation(&permit, &machine.id).await;
        freed.map(|()| machine.id).map_err(|refusal| refusal.into_error())
    };
    change.respond(done.await)
}

/// Returns the error for a form that was loaded before `what` changed.
fn changed_since(what: &str) -> ApiError {
    let why = format!("nothing was changed: {what} has changed since the page was loaded; reload the page");
    ApiError::new(StatusCode::CONFLICT, why)
}
