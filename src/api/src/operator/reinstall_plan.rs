//! Plan of a reinstall before the reinstall is ordered, and orders that carry out only the plan that the operator has
//! approved.

use super::reinstalls::{self, OrderableReinstall, ReinstallRequest};
use crate::AppState;
use crate::allocation_state;
use crate::deploy_templates::template_files;
use crate::metal_api::ApiRefusal;
use crate::metal_api::edited_files::{self, stored_documents, wait_until_published};
use crate::plan_input::WAITS;
use crate::rack_plan::build_order;
use axum::http::StatusCode;
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;
use model::allocation::ApprovedPlan;
use plan::{ApprovalSummary, InstallMode, approval_comparison};
use serde::Deserialize;
use site::allocation_resolution::resolve_before_approval;
use site::approved_inputs::{InputDigests, describe_changed_input, digest_inputs, list_changed_inputs};
use site::operator_files::MachineSpec;
use site::plan_approvals::{self, render_approval};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use store::{InstallState, now};

/// Names of the fields of [`ReinstallQuery`].
pub(crate) const QUERY: [&str; 6] =
    ["image", "without_marker", "change_promise", "give_up", "replace_newer", "apply_allocation"];

/// Query of `GET /v1/machine/{id}/preview`: the reinstall to plan. Without `image`, the current orders are planned.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ReinstallQuery {
    image: Option<String>,
    without_marker: bool,
    change_promise: bool,
    /// Serial numbers, separated by commas.
    give_up: String,
    replace_newer: bool,
    apply_allocation: bool,
}

impl ReinstallQuery {
    /// Returns the request that would order the reinstall, or `None` if no reinstall is queried.
    pub(crate) fn into_request(self, id: &str) -> Option<ReinstallRequest> {
        let serials = self.give_up.split(',').map(str::trim).filter(|serial| !serial.is_empty());
        let give_up = serials.map(str::to_owned).collect();
        Some(ReinstallRequest {
            id: id.to_owned(),
            imageid: self.image?,
            without_marker: self.without_marker,
            change_promise: self.change_promise,
            give_up,
            replace_newer: self.replace_newer,
            apply_allocation: self.apply_allocation,
            ..ReinstallRequest::default()
        })
    }
}

/// Machine with the state that it would have after the order.
pub struct HypotheticalOrder {
    pub machine: MachineSpec,
    pub standing: InstallState,
}

/// Returns the state that the machine would have if the reinstall were ordered. Nothing is stored.
///
/// # Errors
/// Returns the reason why the reinstall cannot be ordered.
pub async fn simulate_order(app: &AppState, asked: &ReinstallRequest) -> Result<HypotheticalOrder, ApiError> {
    let OrderableReinstall { machine, standing, words, .. } = reinstalls::check_orderable(app, asked).await?;
    if let Some(begun) = standing.order.as_ref().filter(|order| order.begun && !order.given_up) {
        return Err(reinstalls::already_started(begun));
    }
    let mut standing = allocation_state::read_full_state(app, &machine, &app.directory().known).await?;
    let earlier = standing.order.take().filter(|order| order.begun);
    standing.order = Some(build_order(asked.imageid.clone(), words, earlier));
    let standing = allocation_state::add_template_results(app, &machine, standing, &app.directory().known).await?;
    Ok(HypotheticalOrder { machine, standing })
}

/// Approves the plan in the request of a reinstall, and waits until the approval is in force. The machine then carries
/// out only this plan.
///
/// # Errors
/// Returns an error if the plan is not the plan of this reinstall, or the approval cannot be written.
pub(crate) async fn approve_plan(
    app: &AppState,
    asked: &ReinstallRequest,
    orderable: &OrderableReinstall,
    approved: &ApprovedPlan,
) -> Result<(), ApiError> {
    let verdicts = approval_comparison::parse_approval(&approved.verdicts, &approved.sha256);
    let verdicts = verdicts.map_err(|why| ApiError::bad_request(format!("approved: {why}")))?;
    check_plan_of(&verdicts, asked, orderable)?;
    let inputs = find_approved_inputs(app, asked, approved).await?;
    let id = &orderable.machine.id;
    let text = render_approval(&verdicts, inputs, orderable.standing.last_installation(), now());
    let text = text.map_err(|why| ApiError::bad_request(format!("approved: {why}")))?;
    let path = plan_approvals::approval_path(&app.dir, id);
    store_approval(app, &path, &text).await?;
    let is_in_force = |known: &site::snapshot::SiteSnapshot| {
        let found = known.known.approvals.find_in_force(id, &orderable.standing);
        found.is_some_and(|found| found.is_ok_and(|found| found.to_wire().sha256 == approved.sha256))
    };
    wait_until_published(app, &path, Some(&text), is_in_force).await.map_err(|refusal| refusal.into_error())
}

/// Stores the approval of a machine. An approval in the database that another request stores at the same time is not
/// overwritten.
async fn store_approval(app: &AppState, path: &Path, text: &str) -> Result<(), ApiError> {
    let present = edited_files::read_file(app, path).await.map_err(ApiRefusal::into_error)?;
    if let Some(stored) = stored_documents::change(app, path, present.as_deref(), Some(text)).await? {
        return stored.require_stored(path).map_err(ApiRefusal::into_error);
    }
    let (target, content) = (path.to_owned(), text.to_owned());
    let written = tokio::task::spawn_blocking(move || write_approval(&target, &content)).await;
    let failed = |why: String| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot write the approval {}: {why}", path.display()))
    };
    written.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))
}

/// Returns the digests of the present inputs of the reinstall. The digests in the request, if any, are those of the inputs
/// from which the plan was made.
async fn find_approved_inputs(
    app: &AppState,
    asked: &ReinstallRequest,
    approved: &ApprovedPlan,
) -> Result<InputDigests, ApiError> {
    let HypotheticalOrder { machine, standing } = simulate_order(app, asked).await?;
    let conflict = |why: String| ApiError::new(StatusCode::CONFLICT, format!("approved: {why}"));
    let resolved = resolve_before_approval(&machine, &standing, &app.directory().known).map_err(conflict)?;
    let inputs = digest_inputs(&resolved.ok_or_else(|| conflict(WAITS.to_owned()))?);
    let changed = list_changed_inputs(&approved.inputs, &inputs);
    if changed.is_empty() {
        return Ok(inputs);
    }
    let changed: Vec<String> = changed.iter().map(|name| describe_changed_input(name, &asked.imageid)).collect();
    let why = format!("the plan is outdated: {changes}; review and save a new plan", changes = changed.join("; "));
    Err(conflict(why).with_error_code(ErrorCode::ApprovalMismatch))
}

/// Writes the approval so that only the server can read it, because a digest of user data can confirm a guess of its
/// content.
fn write_approval(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    template_files::write_file(path, text)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))
}

/// Checks that the approved plan is a plan of the requested reinstall.
fn check_plan_of(
    verdicts: &ApprovalSummary,
    asked: &ReinstallRequest,
    orderable: &OrderableReinstall,
) -> Result<(), ApiError> {
    let pairs = [
        ("machine", &verdicts.machine, &orderable.machine.id),
        ("allocation", &verdicts.allocation, &orderable.allocation),
        ("image", &verdicts.image, &asked.imageid),
    ];
    let differs = pairs.into_iter().find(|(_, planned, requested)| planned != requested);
    let why = match differs {
        Some((what, planned, requested)) => {
            format!("the plan is for {what} {planned}, but the reinstall is for {requested}")
        }
        None if verdicts.mode != InstallMode::Reinstall => "the plan is not the plan of a reinstall".to_owned(),
        None => return Ok(()),
    };
    Err(ApiError::new(StatusCode::CONFLICT, format!("approved: {why}; make the plan again")))
}
