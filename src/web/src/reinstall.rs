//! Reinstall from the web page. The operator selects options, reviews the plan with the data that would be lost or
//! preserved, and confirms it by typing the machine's name.

use super::allocation_differences::AllocationChanges;
use super::machine_name_confirmation::{confirmation_name, require_name, show_name_field};
use super::page_frame;
use super::plan_preview::{self, PlanPreview};
use super::session::LoggedIn;
use super::submitted_forms::{ChangeForm, SubmittedForm};
use api::AppState;
use api::base_url::BaseUrls;
use api::operator_api::reinstall_plan::{HypotheticalOrder, simulate_order, split_list};
use api::operator_api::reinstalls::{self, ReinstallRequest};
use api::operator_api::{OperatorAuth, find_machine};
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use http_server::api_error::ApiError;
use maud::{Markup, html};
use plan::request_from_allocation::preview::PreviewPlan;
use site::effective_allocation::{effective_allocation, find_allocation_differences, is_unrecorded};
use site::operator_files::MachineSpec;
use std::sync::Arc;
use store::InstallState;

/// Reads the reinstall options from the fields of a form.
fn parse_request(id: &str, form: &SubmittedForm) -> ReinstallRequest {
    ReinstallRequest {
        id: id.to_owned(),
        imageid: form.get("image").to_owned(),
        without_marker: !form.get("without_marker").is_empty(),
        change_promise: !form.get("change_promise").is_empty(),
        give_up: split_list(form.get("give_up")),
        leave_locked: split_list(form.get("leave_locked")),
        replace_newer: !form.get("replace_newer").is_empty(),
        apply_allocation: !form.get("apply_allocation").is_empty(),
        ..ReinstallRequest::default()
    }
}

/// Plan of a reinstall, and the effects of the reinstall on the allocation.
pub(super) struct ReinstallPreview {
    pub(super) plan: PlanPreview,
    pub(super) changes: AllocationChanges,
}

/// Returns the preview of the reinstall. The error is the reason why the reinstall cannot be ordered.
pub(super) async fn preview_reinstall(
    app: &AppState,
    base: &BaseUrls,
    reinstall_request: &ReinstallRequest,
) -> Result<ReinstallPreview, ApiError> {
    let HypotheticalOrder { machine, install_state, .. } = simulate_order(app, reinstall_request).await?;
    let Some(allocation) = &machine.allocation else {
        return Err(ApiError::bad_request("the machine is no longer allocated"));
    };
    let changes = AllocationChanges {
        differences: find_allocation_differences(allocation, &install_state),
        is_unrecorded: is_unrecorded(&install_state),
    };
    let plan = plan_preview::load_preview(app, base, &machine, install_state, false).await?;
    Ok(ReinstallPreview { plan, changes })
}

/// Returns a digest of the plan and the changes of the allocation. An order is refused if the digest has changed since
/// the preview was shown.
pub(super) fn preview_digest(planned: &PreviewPlan, changes: &AllocationChanges) -> String {
    let plan = planned.verdicts.as_ref().map_or("nothing".to_owned(), |verdicts| verdicts.digest());
    format!("{plan}{}", changes.digest())
}

/// `GET /machines/{id}/reinstall`: shows the options and, once they are submitted, the plan. Nothing is ordered.
pub(crate) async fn get_reinstall(
    State(app): State<Arc<AppState>>,
    base: BaseUrls,
    person: LoggedIn,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, Response> {
    let refused = |error: ApiError| page_frame::render_error(&app, Some(&person), error);
    let machine = find_machine(&app, &id.to_lowercase()).map_err(refused)?;
    let reinstall_request = parse_request(&machine.id, &SubmittedForm::parse_query(query.as_deref()));
    let allocation = machine.allocation.as_ref().map(|allocation| allocation.id.to_string()).unwrap_or_default();
    let install_state =
        app.state.read_install_state(&machine.id, &allocation).await.map_err(|error| refused(error.into()))?;
    let (status, plan) = match reinstall_request.imageid.is_empty() {
        true => (StatusCode::OK, html! {}),
        false => match preview_reinstall(&app, &base, &reinstall_request).await {
            Ok(outlook) => (StatusCode::OK, show_confirmation(&person, &machine, &reinstall_request, &outlook)),
            Err(error) => {
                let (status, why) = page_frame::named_words(&app, &person, error);
                (status, html! { p.problem.words role="alert" { strong { "Refused: " } (why) } })
            }
        },
    };
    let main = html! {
        p { a href={ "/machines/" (machine.id) } { (confirmation_name(&machine)) } }
        h1 { "Reinstall " (confirmation_name(&machine)) }
        (show_options(&app, &machine, &reinstall_request, &install_state))
        (plan)
    };
    let mut response =
        page_frame::render_page(&app, &person, &format!("Reinstall {}", confirmation_name(&machine)), "", main);
    *response.status_mut() = status;
    Ok(response)
}

fn show_options(
    app: &AppState,
    machine: &MachineSpec,
    reinstall_request: &ReinstallRequest,
    install_state: &InstallState,
) -> Markup {
    let directory = app.directory();
    let in_force = machine.allocation.as_ref().map(|in_file| match reinstall_request.apply_allocation {
        true => in_file.clone(),
        false => effective_allocation(in_file, &InstallState { order: None, ..install_state.clone() }).allocation,
    });
    let made = in_force.and_then(|allocation| allocation.definition.created_os());
    let images: Vec<String> = match made {
        Some(os) => vec![os.to_string()],
        None => directory.known.images.keys().cloned().collect(),
    };
    html! {
        form.stack method="get" {
            label for="image" { "Image" @if let Some(image) = &install_state.image { span.faint { " (installed: " (image) ")" } } }
            select #image name="image" required {
                option value="" { "select" }
                @for image in &images { option value=(image) selected[*image == reinstall_request.imageid] { (image) } }
            }
            details open[has_overrides(reinstall_request)] {
                summary { "More options" }
                p { label { input type="checkbox" name="without_marker" value="yes" checked[reinstall_request.without_marker]; " The disk of the root filesystem was replaced: proceed even though the new disk has no install marker" } }
                p { label { input type="checkbox" name="change_promise" value="yes" checked[reinstall_request.change_promise]; " Use the layout of the machine file, even if this layout wipes a disk that was preserved so far" } }
                p { label { input type="checkbox" name="replace_newer" value="yes" checked[reinstall_request.replace_newer]; " Replace the installation on the disks, even if the installation is newer than the server's record" } }
                p { label { input type="checkbox" name="apply_allocation" value="yes" checked[reinstall_request.apply_allocation]; " Apply the allocation of the machine file (hostname, keys, user data, …), instead of keeping the installed allocation" } }
                p { label { "Serial numbers of the disks whose data may be erased, separated by commas " input name="give_up" value=(reinstall_request.give_up.join(", ")); } }
                p { label { "UUIDs of the LUKS containers that may stay locked although their key may be erased, separated by commas " input name="leave_locked" value=(reinstall_request.leave_locked.join(", ")); } }
            }
            button { "Show plan" }
        }
        p.faint { "Nothing is ordered yet." }
    }
}

/// Returns whether the request has an option of the section "More options".
fn has_overrides(reinstall_request: &ReinstallRequest) -> bool {
    let ReinstallRequest { without_marker, change_promise, replace_newer, apply_allocation, .. } = reinstall_request;
    let has_lists = !reinstall_request.give_up.is_empty() || !reinstall_request.leave_locked.is_empty();
    *without_marker || *change_promise || *replace_newer || *apply_allocation || has_lists
}

/// Shows the plan, and the form that orders the reinstall. If the reinstall cannot be ordered on this page, shows the
/// reason instead.
fn show_confirmation(
    person: &LoggedIn,
    machine: &MachineSpec,
    reinstall_request: &ReinstallRequest,
    outlook: &ReinstallPreview,
) -> Markup {
    match &outlook.plan {
        PlanPreview::Refused(why) => html! {
            h2 { "Plan refused" }
            pre.problem tabindex="0" role="alert" { (why) }
            p { "This reinstall cannot be ordered." }
        },
        PlanPreview::Unknown(why) => html! {
            p.problem role="alert" { "The plan is unknown: " (why) "." }
            p { "As long as the plan is unknown, order the reinstall on the command line: "
                code { "drophammer machine reinstall " (confirmation_name(machine)) " --image " (reinstall_request.imageid) } }
        },
        PlanPreview::Planned(planned, registered) => html! {
            (plan_preview::show_inventory_source(registered))
            (outlook.changes.show())
            (plan_preview::show_plan(planned))
            (show_order_form(person, machine, reinstall_request, preview_digest(planned, &outlook.changes)))
        },
    }
}

/// Renders the form that orders the reinstall. Hidden fields contain the options and the digest of the preview.
fn show_order_form(
    person: &LoggedIn,
    machine: &MachineSpec,
    reinstall_request: &ReinstallRequest,
    shown: String,
) -> Markup {
    let said = |is_so: bool| if is_so { "yes" } else { "" }.to_owned();
    let fields = [
        ("image", reinstall_request.imageid.clone()),
        ("without_marker", said(reinstall_request.without_marker)),
        ("change_promise", said(reinstall_request.change_promise)),
        ("replace_newer", said(reinstall_request.replace_newer)),
        ("give_up", reinstall_request.give_up.join(", ")),
        ("leave_locked", reinstall_request.leave_locked.join(", ")),
        ("apply_allocation", said(reinstall_request.apply_allocation)),
        ("shown", shown),
    ];
    html! {
        form.stack method="post" {
            (page_frame::form_token(person))
            @for (field, value) in &fields { input type="hidden" name=(field) value=(value); }
            (show_name_field(machine, "name"))
            button.danger { "Reinstall " (confirmation_name(machine)) " with " (reinstall_request.imageid) }
        }
    }
}

/// `POST /machines/{id}/reinstall`: orders the reinstall if the plan is still the plan that was shown. Performs the
/// same checks as the API.
pub(crate) async fn post_reinstall(base: BaseUrls, change: ChangeForm) -> Response {
    let done = async {
        let ChangeForm { app, form, .. } = &change;
        let machine = change.find_machine()?;
        let reinstall_request = parse_request(&machine.id, form);
        require_name(&machine, form.get("name"), "nothing was ordered")?;
        let outlook = preview_reinstall(app, &base, &reinstall_request).await?;
        let is_shown = matches!(&outlook.plan, PlanPreview::Planned(planned, _) if preview_digest(planned, &outlook.changes) == form.get("shown"));
        if !is_shown {
            let why = "nothing was ordered: the plan has changed since it was shown, or the machine file has changed. Go back and review the plan";
            return Err(ApiError::new(StatusCode::CONFLICT, why));
        }
        reinstalls::place_order(app, change.peer, &reinstall_request).await.map(|listed| listed.id)
    };
    change.respond(done.await)
}

/// `POST /machines/{id}/cancel`: cancels the machine's reinstall order.
pub(crate) async fn post_cancel(change: ChangeForm) -> Response {
    let id = Path(change.machine_id().to_owned());
    let cancelled = reinstalls::cancel_reinstall(State(change.app.clone()), id, OperatorAuth, change.peer).await;
    change.respond(cancelled.map(|listed| listed.0.id))
}
