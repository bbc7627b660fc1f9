//! Plan of a reinstall that is not ordered yet, and the approval of such a plan: the machine carries out only the
//! approved plan.

use super::reinstalls::{self, OrderableReinstall, ReinstallRequest};
use crate::AppState;
use crate::deploy_templates::template_files;
use crate::install_state_enrichment;
use crate::metal_api::ApiRefusal;
use crate::metal_api::document_edits::{self, database_edits, wait_until_published};
use crate::plan_input::INPUT_NOT_READY;
use crate::rack_plan::build_order;
use axum::http::StatusCode;
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;
use model::allocation::ApprovedPlan;
use plan::{ApprovalSummary, InstallMode, approval_comparison};
use serde::Deserialize;
use site::allocation_resolution::resolve_before_approval;
use site::approved_input_digests::{InputDigests, describe_changed_input, digest_inputs, list_changed_inputs};
use site::operator_files::MachineSpec;
use site::plan_approvals::{self, render_approval};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use store::{InstallState, now};

/// Query of `GET /v1/machine/{id}/preview`: the reinstall to plan. Without `image`, the current orders are planned.
#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ReinstallQuery {
    /// Id of the image. If absent, the current orders are planned, and the other parameters are ignored.
    image: Option<String>,
    /// Plan a reinstall that proceeds without an install marker.
    without_marker: bool,
    /// Plan a reinstall that uses the layout of the machine file, even if it contradicts the recorded wipe policies.
    change_promise: bool,
    /// Serial numbers, separated by commas.
    give_up: String,
    /// UUIDs of LUKS containers, separated by commas.
    leave_locked: String,
    /// Plan a reinstall that replaces an installation which is newer than the order.
    replace_newer: bool,
    /// Plan a reinstall that applies the allocation of the machine file.
    apply_allocation: bool,
}

impl ReinstallQuery {
    /// Returns the request that would order the reinstall, or `None` if the query does not specify an image.
    pub(crate) fn into_request(self, id: &str) -> Option<ReinstallRequest> {
        Some(ReinstallRequest {
            id: id.to_owned(),
            imageid: self.image?,
            without_marker: self.without_marker,
            change_promise: self.change_promise,
            give_up: split_list(&self.give_up),
            leave_locked: split_list(&self.leave_locked),
            replace_newer: self.replace_newer,
            apply_allocation: self.apply_allocation,
            ..ReinstallRequest::default()
        })
    }
}

/// Splits a list at its commas. Empty entries are ignored.
pub fn split_list(list: &str) -> Vec<String> {
    list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(str::to_owned).collect()
}

/// Machine, and the state that its allocation would have after a reinstall order.
pub struct HypotheticalOrder {
    pub machine: MachineSpec,
    pub install_state: InstallState,
    /// Id of the suspended or abandoned order that the order would replace.
    pub replaces: Option<String>,
}

/// Returns the machine and the state that it would have if the reinstall were ordered. Stores nothing.
///
/// # Errors
/// Returns the reason why the reinstall cannot be ordered.
pub async fn simulate_order(
    app: &AppState,
    reinstall_request: &ReinstallRequest,
) -> Result<HypotheticalOrder, ApiError> {
    let OrderableReinstall { machine, install_state, words, .. } =
        reinstalls::check_orderable(app, reinstall_request).await?;
    if let Some(started) = install_state.order.as_ref().filter(|order| order.started && !order.given_up) {
        return Err(reinstalls::already_started(started));
    }
    let install_state = install_state_enrichment::read_full_state(app, &machine, &app.directory().known).await?;
    let mut install_state = install_state.with_claimed_installation();
    let replaced = install_state.order.take();
    let replaces = replaced.as_ref().filter(|order| order.given_up).map(|order| order.id.clone());
    let earlier = replaced.filter(|order| order.started);
    install_state.order = Some(build_order(reinstall_request.imageid.clone(), words, earlier));
    let install_state =
        install_state_enrichment::add_template_results(app, &machine, install_state, &app.directory().known).await?;
    Ok(HypotheticalOrder { machine, install_state, replaces })
}

/// Stores the approval of the plan that the request contains, and waits until the approval is in force. The machine
/// then carries out only this plan.
///
/// # Errors
/// Returns an error if the plan is not the plan of this reinstall, or the approval cannot be written.
pub(crate) async fn approve_plan(
    app: &AppState,
    reinstall_request: &ReinstallRequest,
    orderable: &OrderableReinstall,
    approved: &ApprovedPlan,
) -> Result<(), ApiError> {
    let verdicts = approval_comparison::parse_approval(&approved.verdicts, &approved.sha256);
    let verdicts = verdicts.map_err(|why| ApiError::bad_request(format!("approved: {why}")))?;
    check_plan_of(&verdicts, reinstall_request, orderable)?;
    let inputs = find_approved_inputs(app, reinstall_request, approved).await?;
    let id = &orderable.machine.id;
    let text = render_approval(&verdicts, inputs, orderable.install_state.last_installation(), now());
    let text = text.map_err(|why| ApiError::bad_request(format!("approved: {why}")))?;
    let path = plan_approvals::approval_path(&app.dir, id);
    store_approval(app, &path, &text).await?;
    let is_in_force = |known: &site::snapshot::SiteSnapshot| {
        let found = known.known.approvals.find_in_force(id, &orderable.install_state);
        found.is_some_and(|found| found.is_ok_and(|found| found.to_wire().sha256 == approved.sha256))
    };
    wait_until_published(app, &path, Some(&text), is_in_force).await.map_err(|refusal| refusal.into_error())
}

/// Syncs the entry of the request in the audit log, and then stores the approval for a machine. If approvals are stored
/// in the database, fails if another request stores an approval for the machine at the same time.
async fn store_approval(app: &AppState, path: &Path, text: &str) -> Result<(), ApiError> {
    app.state.sync_audit().await?;
    let present = document_edits::read_file(app, path).await.map_err(ApiRefusal::into_error)?;
    if let Some(stored) = database_edits::change(app, path, present.as_deref(), Some(text)).await? {
        return stored.require_stored(path).map_err(ApiRefusal::into_error);
    }
    let (target, content) = (path.to_owned(), text.to_owned());
    let written = tokio::task::spawn_blocking(move || write_approval(&target, &content)).await;
    let failed = |why: String| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot write the approval {}: {why}", path.display()))
    };
    written.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))
}

/// Returns the digests of the current inputs of the reinstall. Fails if the request contains other digests, because the
/// approved plan was then made from other inputs.
async fn find_approved_inputs(
    app: &AppState,
    reinstall_request: &ReinstallRequest,
    approved: &ApprovedPlan,
) -> Result<InputDigests, ApiError> {
    let HypotheticalOrder { machine, install_state, .. } = simulate_order(app, reinstall_request).await?;
    let conflict = |why: String| ApiError::new(StatusCode::CONFLICT, format!("approved: {why}"));
    let resolved = resolve_before_approval(&machine, &install_state, &app.directory().known).map_err(conflict)?;
    let inputs = digest_inputs(&resolved.ok_or_else(|| conflict(INPUT_NOT_READY.to_owned()))?);
    let changed = list_changed_inputs(&approved.inputs, &inputs);
    if changed.is_empty() {
        return Ok(inputs);
    }
    let changed: Vec<String> =
        changed.iter().map(|name| describe_changed_input(name, &reinstall_request.imageid)).collect();
    let why = format!("the plan is outdated: {changes}; review and save a new plan", changes = changed.join("; "));
    Err(conflict(why).with_error_code(ErrorCode::ApprovalMismatch))
}

/// Writes the approval so that only the server can read it: with the digest of user data, a reader could verify a
/// guess of its content.
fn write_approval(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    template_files::write_file(path, text)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))
}

/// Checks that the approved plan belongs to the requested reinstall.
fn check_plan_of(
    verdicts: &ApprovalSummary,
    reinstall_request: &ReinstallRequest,
    orderable: &OrderableReinstall,
) -> Result<(), ApiError> {
    let pairs = [
        ("machine", &verdicts.machine, &orderable.machine.id),
        ("allocation", &verdicts.allocation, &orderable.allocation),
        ("image", &verdicts.image, &reinstall_request.imageid),
    ];
    let differs = pairs.into_iter().find(|(_, planned, requested)| planned != requested);
    let why = match differs {
        Some((what, planned, requested)) => {
            format!("the plan is for {what} {planned}, but the reinstall is for {requested}")
        }
        None if verdicts.mode != InstallMode::Reinstall => {
            "the plan is for a first installation, not a reinstall".to_owned()
        }
        None => return Ok(()),
    };
    Err(ApiError::new(StatusCode::CONFLICT, format!("approved: {why}; make the plan again")))
}
