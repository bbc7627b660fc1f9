//! Creation and cancellation of reinstall orders, with the checks that precede them.

use super::new_order_approval::find_required_approval;
use super::order_descriptions::describe_placed_order;
use super::order_recheck::recheck_machine_file;
use super::reinstall_overrides::read_overrides;
use super::{
    MachineSummary, OperatorAuth, find_allocated, invalid_reinstall, locked_machine, reinstall_plan, summarize_machine,
};
use crate::install_state_enrichment;
use crate::{AppState, metrics, out_of_band};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use common::error_code::ErrorCode;
use common::type_errors::locate_json_error;
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use http_server::server_log::MachineOrigin;
use model::allocation::{Allocation, ApprovedPlan};
use model::layout;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use site::allocation_resolution::{layout_digest, resolve_allocation, resolve_created_image};
use site::effective_allocation::{NOT_KEEPABLE_CODE, effective_allocation, with_effective_allocation};
use site::ganeti_os_definition_state::DefinitionState;
use site::operator_files::{MachineSpec, suggest_name};
use site::requested_steps::check_enabled_templates;
use site::site_objects::SiteObjects;
use site::snapshot::SiteSnapshot;
use std::sync::Arc;
use std::time::Duration;
use store::marker_layout_comparison::{contradiction_remedy, find_contradiction};
use store::{
    CancelOutcome, InstallState, OrderBasis, OrderOutcome, ReinstallOrder, ReinstallOverrides, restore_confirmation,
};

/// Maximum time for which a reinstall request waits for the `verify` program of an OS definition.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(30);

/// Fields of a request. Other fields are refused, because a misspelled option must not be ignored.
const REQUEST_FIELDS: [&str; 11] = [
    "id",
    "imageid",
    "name",
    "description",
    "without_marker",
    "change_promise",
    "give_up",
    "leave_locked",
    "replace_newer",
    "apply_allocation",
    "approved",
];

/// metal-api's `v1.MachineReinstallRequest`, with additional fields.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ReinstallRequest {
    pub id: String,
    /// Id of the new image.
    pub imageid: String,
    /// True if the reinstall proceeds without an install marker, because the disk that contained it was replaced.
    #[serde(default)]
    pub without_marker: bool,
    /// True if the reinstall uses the layout of the machine file, even if it contradicts the recorded wipe policies
    /// of the installed layout.
    #[serde(default)]
    pub change_promise: bool,
    /// Serial numbers of disks whose data may be erased.
    #[serde(default)]
    pub give_up: Vec<String>,
    /// UUIDs of the preserved LUKS containers that may stay locked, although the reinstall may erase the only copy of
    /// their keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leave_locked: Vec<String>,
    /// True if the reinstall replaces the installation on the disks even if that installation is newer than the order.
    #[serde(default)]
    pub replace_newer: bool,
    /// True if the reinstall applies the allocation of the machine file instead of preserving the installed allocation.
    #[serde(default)]
    pub apply_allocation: bool,
    /// Approved plan of this reinstall. The machine carries out only this plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved: Option<ApprovedPlan>,
    /// Accepted for compatibility with metal-api, but ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Accepted for compatibility with metal-api, but ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// Parses the body of a request.
///
/// # Errors
/// Returns an error if a field is unknown, missing, or has another type.
pub(crate) fn parse_request(document: Map<String, Value>) -> Result<ReinstallRequest, ApiError> {
    if let Some(other) = document.keys().find(|name| !REQUEST_FIELDS.contains(&name.as_str())) {
        let others = suggest_name(other, REQUEST_FIELDS.into_iter());
        return Err(ApiError::bad_request(format!("request body: unknown field {other:?}{others}")));
    }
    ReinstallRequest::deserialize(Value::Object(document))
        .map_err(|error| ApiError::bad_request(format!("request body: {}", locate_json_error(&error))))
}

/// Stores the reinstall order if it can be carried out.
pub async fn place_order(
    app: &AppState,
    peer: ClientAddress,
    reinstall_request: &ReinstallRequest,
) -> Result<MachineSummary, ApiError> {
    let orderable = prepare_order(app, reinstall_request).await?;
    let approval = find_required_approval(app, reinstall_request, &orderable).await?;
    let OrderableReinstall { machine, allocation, words, .. } = orderable;
    let id = &machine.id;
    let file = recheck_machine_file(app, id, &allocation).await?;
    let basis = OrderBasis { machine_file: file.document.clone(), approval };
    let placed = app.state.place_order(id, &allocation, &reinstall_request.imageid, words, Some(basis)).await?;
    drop(file);
    match placed {
        OrderOutcome::Placed { order, replaced } => {
            app.counters.count_order(metrics::OrderEvent::Placed);
            let listed =
                MachineSummary { replaced: replaced.map(|order| *order), ..summarize_machine(app, &machine).await? };
            let who = MachineOrigin::new(id, app.directory().display_name(id), peer);
            app.watch.log_reinstall(who, describe_placed_order(&order, &listed));
            app.request_reload();
            Ok(listed)
        }
        OrderOutcome::NotInstalled => Err(invalid_reinstall(explain_not_installed(id, &allocation, false))),
        OrderOutcome::Started(order) => Err(already_started(&order)),
        OrderOutcome::Blocked(why) => Err(ApiError::new(StatusCode::CONFLICT, why)),
    }
}

/// Checks whether the reinstall can be ordered and carried out, and stores the approval of its plan if the request
/// contains one.
///
/// # Errors
/// Returns the reason why the reinstall cannot be ordered.
pub(crate) async fn prepare_order(
    app: &AppState,
    reinstall_request: &ReinstallRequest,
) -> Result<OrderableReinstall, ApiError> {
    let orderable = check_orderable(app, reinstall_request).await?;
    check_over_redfish(app, &orderable.machine, &orderable.allocation, &orderable.words).await?;
    if let Some(approved) = &reinstall_request.approved {
        // If a reinstall has started, its next attempt still needs the approval that is in force. An order that would
        // replace this approval is therefore refused.
        if let Some(started) = orderable.install_state.order.as_ref().filter(|order| order.started && !order.given_up) {
            return Err(already_started(started));
        }
        reinstall_plan::approve_plan(app, reinstall_request, &orderable, approved).await?;
    }
    Ok(orderable)
}

/// Checks that the machine's Redfish service supports the steps of the reinstall.
async fn check_over_redfish(
    app: &AppState,
    machine: &MachineSpec,
    allocation: &str,
    words: &ReinstallOverrides,
) -> Result<(), ApiError> {
    let install_state = state_for_order(app.state.read_install_state(&machine.id, allocation).await?, words);
    let effective = with_effective_allocation(machine, &install_state);
    out_of_band::check_controller(&effective, &app.directory().known).await
}

/// Reinstall that has passed all checks of an order.
pub struct OrderableReinstall {
    pub machine: MachineSpec,
    /// Id of the machine's allocation.
    pub allocation: String,
    pub install_state: InstallState,
    pub words: ReinstallOverrides,
}

/// Checks whether the reinstall can be ordered.
///
/// # Errors
/// Returns the reason why the reinstall cannot be ordered.
pub async fn check_orderable(
    app: &AppState,
    reinstall_request: &ReinstallRequest,
) -> Result<OrderableReinstall, ApiError> {
    let id = reinstall_request.id.to_lowercase();
    await_definition(app, &id).await?;
    app.await_image(&reinstall_request.imageid).await;
    let directory = app.directory();
    let (machine, allocation) = find_allocated(app, &id)?;
    if let Some(why) = machine.explain_lock() {
        return Err(locked_machine(&id, &why));
    }
    let install_state = app.state.read_install_state(&id, &allocation).await?;
    if install_state.unconfirmed {
        return Err(ApiError::new(StatusCode::CONFLICT, restore_confirmation::explain_confirmation(&id)));
    }
    if !install_state.can_be_reinstalled(reinstall_request.without_marker) {
        return Err(invalid_reinstall(explain_not_installed(&id, &allocation, install_state.is_installed())));
    }
    let install_state = install_state.with_claimed_installation();
    let words = read_overrides(reinstall_request)?;
    let in_file = machine.allocation.as_ref();
    let of_order = state_for_order(install_state.clone(), &words);
    let effective = in_file.map(|in_file| effective_allocation(in_file, &of_order).allocation);
    let of_order = install_state_enrichment::add_template_results(app, &machine, of_order, &directory.known).await?;
    let install_state =
        InstallState { generated: of_order.generated, unsupported: of_order.unsupported, ..install_state };
    let made = effective.as_ref().and_then(|allocation| Some((allocation, allocation.definition.created_os()?)));
    match (made, directory.known.images.get(&reinstall_request.imageid)) {
        (Some((allocation, os)), _) => {
            drop(resolve_created_image(allocation, &os, &reinstall_request.imageid).map_err(invalid_reinstall)?)
        }
        (None, Some(Some(_))) => {}
        (None, Some(None)) => {
            let why = "cannot be used yet: its digest is pending, or its file is unreadable; see the server's output and retry";
            return Err(invalid_reinstall(format!("image {:?} {why}", reinstall_request.imageid)));
        }
        (None, None) => {
            return Err(invalid_reinstall(directory.known.explain_absent_image(&reinstall_request.imageid).reason));
        }
    }
    let runs = install_state.image.as_deref() == Some(&reinstall_request.imageid);
    if !runs && directory.known.states.is_blacklisted(&reinstall_request.imageid) {
        let image = &reinstall_request.imageid;
        let why = format!("image {image} is blacklisted: only machines that run this image can be reinstalled with it");
        return Err(invalid_reinstall(why));
    }
    let layout = find_reinstallable_layout(&machine, install_state.clone(), &directory.known, &words)?;
    // The option applies only to the layout that the operator has seen.
    let words = ReinstallOverrides { layout_digest: words.change_promise.then(|| layout_digest(&layout)), ..words };
    Ok(OrderableReinstall { machine, allocation, install_state, words })
}

/// Waits until the `verify` program of the OS definition in the machine's allocation has ended. Returns immediately if
/// the allocation does not name a definition. The server runs `verify` when the server starts, and after each change of
/// the definition or its parameters.
///
/// # Errors
/// Returns an error if `verify` takes too long, or has refused the definition.
async fn await_definition(app: &AppState, id: &str) -> Result<(), ApiError> {
    let definition = |directory: &SiteSnapshot| {
        directory.find_machine(id).and_then(|machine| machine.allocation.as_ref()).map(|is| is.definition.clone())
    };
    let mut directory = app.directory.clone();
    let is_verified = |directory: &SiteSnapshot| !matches!(definition(directory), Some(DefinitionState::Verifying));
    let verified = tokio::time::timeout(VERIFY_TIMEOUT, directory.wait_for(|directory| is_verified(directory))).await;
    let Ok(Ok(verified)) = verified else {
        let message = format!("the OS definition of machine {id} is still being verified: try again in a minute");
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message));
    };
    match definition(&verified) {
        Some(DefinitionState::Unusable(why)) => Err(invalid_reinstall(why)),
        _ => Ok(()),
    }
}

/// `DELETE /v1/machine/{id}/reinstall`: cancels a reinstall order that has not started.
pub async fn cancel_reinstall(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
    _: OperatorAuth,
    peer: ClientAddress,
) -> Result<Json<MachineSummary>, ApiError> {
    let id = id.to_lowercase();
    let (machine, allocation) = find_allocated(&app, &id)?;
    match app.state.cancel_order(&id, &allocation).await? {
        CancelOutcome::Done(order) => {
            app.counters.count_order(metrics::OrderEvent::Cancelled);
            let who = MachineOrigin::new(&id, app.directory().display_name(&id), peer);
            app.watch.log_reinstall(who, format!("cancelled: image {}", order.image));
            app.request_reload();
            Ok(Json(summarize_machine(&app, &machine).await?))
        }
        CancelOutcome::NothingOrdered => Err(ApiError::not_found(format!("no reinstall of machine {id} is ordered"))),
        CancelOutcome::Started(order) => Err(already_started(&order)),
    }
}

/// Returns the state against which a new order with these options is checked. The open order is omitted from the state:
/// the new order would replace the open order, and the image of the open order may no longer exist.
fn state_for_order(install_state: InstallState, words: &ReinstallOverrides) -> InstallState {
    InstallState {
        order: None,
        layout: install_state.layout.filter(|_| !words.change_promise),
        installed_allocation: install_state.installed_allocation.filter(|_| !words.apply_allocation),
        ..install_state
    }
}

/// Returns the layout of a reinstall. Checks that the machine can be reinstalled: its allocation and its layout are
/// valid, and the layout permits a reinstall to erase at least one disk.
pub(crate) fn find_reinstallable_layout(
    machine: &MachineSpec,
    install_state: InstallState,
    known: &SiteObjects,
    words: &ReinstallOverrides,
) -> Result<Value, ApiError> {
    let install_state = state_for_order(install_state, words);
    let in_file = machine.allocation.as_ref();
    if let Some(why) = in_file.and_then(|in_file| effective_allocation(in_file, &install_state).problem) {
        return Err(invalid_reinstall(why).with_code(NOT_KEEPABLE_CODE));
    }
    check_enabled_templates(machine, &install_state, known).map_err(invalid_reinstall)?;
    let marker = install_state.marker.clone();
    let assigned = resolve_allocation(machine, &install_state, known).map_err(invalid_reinstall)?;
    let Some(assigned) = assigned else {
        return Err(invalid_reinstall(format!("machine {machine} is no longer allocated", machine = machine.id)));
    };
    let broken =
        marker.filter(|_| !words.change_promise).and_then(|marker| find_contradiction(&marker, &assigned.layout));
    if let Some(why) = broken {
        return Err(invalid_reinstall(format!("{why}: {}", contradiction_remedy(&machine.id))));
    }
    let allocation = Allocation { filesystemlayout: assigned.layout.clone(), ..Allocation::default() };
    let layout = allocation.parse_layout().map_err(|problems| {
        invalid_reinstall(format!(
            "the layout of machine {machine} is invalid: {problems}",
            machine = machine.id,
            problems = common::diagnostic::join_problems(&problems)
        ))
    })?;
    match layout.layout.disks.iter().any(|disk: &layout::DiskSpec| disk.wipeonreinstall) {
        true => Ok(assigned.layout),
        false => Err(ApiError::bad_request(format!(
            "filesystemlayout:{} is not reinstallable, abort reinstallation",
            assigned.layout_id
        ))
        .with_error_code(ErrorCode::NotReinstallable)),
    }
}

/// Returns the error message for a reinstall of an allocation that is not installed. If the allocation was adopted, the
/// message does not announce an installation at the next boot; it asks for the install marker or `--without-marker`.
fn explain_not_installed(id: &str, allocation: &str, is_adopted: bool) -> String {
    match is_adopted {
        false => format!(
            "allocation {allocation} of machine {id} is not installed yet: the machine installs it at its next boot over PXE"
        ),
        true => format!(
            "allocation {allocation} of machine {id} was adopted, but the machine has not reported an install marker: boot the machine \
             over PXE, or order the reinstall with --without-marker if its disks do not have an install marker"
        ),
    }
}

pub fn already_started(order: &ReinstallOrder) -> ApiError {
    let image = &order.image;
    let message = match order.given_up {
        true => format!(
            "the reinstall with image {image} was abandoned after its point of no return: order another reinstall, which replaces it"
        ),
        false => format!("the reinstall with image {image} has passed its point of no return: wait until it has ended"),
    };
    ApiError::new(StatusCode::CONFLICT, message).with_error_code(ErrorCode::OrderTooLate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_fields_of_a_request_are_accepted() {
        let text = Some(String::new());
        let approved = Some(ApprovedPlan::default());
        let leave_locked = vec!["5b9e2c74-1f0a-4c3b-9d52-7a1f0c3b9d52".to_owned()];
        let (name, description) = (text.clone(), text);
        let request = ReinstallRequest { name, description, approved, leave_locked, ..ReinstallRequest::default() };
        let document = serde_json::to_value(&request).unwrap();
        let Value::Object(document) = document else { panic!("an object") };
        assert!(
            document.len() == REQUEST_FIELDS.len()
                && document.keys().all(|name| REQUEST_FIELDS.contains(&name.as_str()))
        );
        assert_eq!(parse_request(document).unwrap(), request);
    }
}
