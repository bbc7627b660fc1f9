//! Review of an action on several machines: the effect on each machine, or the reason why the action cannot be carried
//! out. The checks of a machine are the same as for an action on its own page.

use super::allocate::{AllocationEdit, check_allocation, require_free};
use super::bulk_actions::BulkAction;
use super::machine_file_preview::{CheckedText, TextEffect, write_checked_text};
use super::plan_preview::PlanPreview;
use super::reinstall::{ReinstallPreview, preview_digest, preview_reinstall};
use super::session::LoggedIn;
use api::AppState;
use api::base_url::BaseUrls;
use api::display_phase::DisplayPhase;
use api::metal_api::EditPermit;
use api::metal_api::document_edits::hex_digest;
use api::metal_api::machine_file_replacement::{MachineFileText, NewAllocation};
use api::operator_api::reinstalls::{self, ReinstallRequest};
use api::operator_api::{find_machine, summarize_machine};
use axum::http::StatusCode;
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;
use plan::DiskVerdict;
use plan::request_from_allocation::preview::PreviewPlan;
use site::operator_files::{MachineSpec, replace_positions};
use store::explain_migration_block;
use uuid::Uuid;

/// Digest of the review of a machine that is not locked.
const UNLOCKED: &str = "unlocked";

/// Machine on which the action can be carried out, with the effect of the action.
#[derive(Default)]
pub(crate) struct ReviewedMachine {
    pub id: String,
    pub name: String,
    /// Phase of the machine, which the action may interrupt. `None` for actions that interrupt nothing.
    pub phase: Option<DisplayPhase>,
    /// Installed image of a machine that will be freed, or the reason of a lock that will be removed.
    pub detail: String,
    /// Number of bytes that would be lost, and the disks that would be wiped.
    pub lost: u64,
    pub wiped: Vec<String>,
    /// Reason why the plan is only a prediction.
    pub foreseen: Option<&'static str>,
    /// Digest of the plan. The action is refused if the digest has changed since the plan was shown.
    pub digest: String,
    /// File of a machine that will be allocated.
    new_file: Option<NewMachineFile>,
}

/// Machine file with an allocation that has been checked, but is not written.
struct NewMachineFile {
    /// The file without the allocation.
    old: MachineFileText,
    text: String,
    described: Box<MachineSpec>,
}

/// Machine on which the action cannot be carried out, with the reason.
pub(crate) struct RefusedMachine {
    pub id: String,
    pub name: String,
    pub reason: String,
}

impl ReviewedMachine {
    /// Writes the file of a machine that will be allocated.
    ///
    /// # Errors
    /// Returns an error if a file has changed since the review, so that the allocation is no longer valid.
    pub(crate) async fn write_file(&self, permit: &EditPermit) -> Result<(), ApiError> {
        match &self.new_file {
            Some(NewMachineFile { old, text, described }) => write_checked_text(permit, old, text, described).await,
            None => Ok(()),
        }
    }

    fn with_plan(self, planned: &PreviewPlan) -> ReviewedMachine {
        let is_wiped = |verdict: DiskVerdict| matches!(verdict, DiskVerdict::Wipe | DiskVerdict::PartlyKept);
        let wiped = planned.disks.iter().filter(|disk| is_wiped(disk.verdict));
        ReviewedMachine {
            lost: planned.disks.iter().fold(0, |sum: u64, disk| sum.saturating_add(disk.lost_bytes)),
            wiped: wiped.map(|disk| format!("{} {}", disk.device, disk.serial)).collect(),
            foreseen: planned.foreseen,
            ..self
        }
    }
}

impl BulkAction {
    /// Returns the effect on a machine. `shown` is the digest of an earlier review; an allocation has the same id as in
    /// this review.
    ///
    /// # Errors
    /// Returns the reason why the action cannot be carried out.
    pub(crate) async fn review(
        &self,
        app: &AppState,
        base: &BaseUrls,
        person: &LoggedIn,
        (id, shown): (&str, Option<&str>),
    ) -> Result<ReviewedMachine, ApiError> {
        let machine = find_machine(app, id)?;
        let name = app.directory().display_name(&machine.id).to_owned();
        let reviewed = ReviewedMachine { id: machine.id.clone(), name, ..ReviewedMachine::default() };
        match self {
            BulkAction::Reinstall(image) => review_reinstall(app, base, image, reviewed).await,
            BulkAction::Allocate(common) => {
                let id = shown.and_then(|shown| shown.split_once(' ')).map(|(id, _)| id);
                let id = id.filter(|id| Uuid::parse_str(id).is_ok()).map(str::to_owned);
                let id = id.unwrap_or_else(|| Uuid::new_v4().to_string());
                let machine = require_named(require_free(machine)?)?;
                let new = NewAllocation { id, hostname: machine.name.to_lowercase(), ..common.clone() };
                let checked = check_allocation(app, base, person, &machine, &new).await?;
                review_allocation(&new, checked, reviewed)
            }
            BulkAction::Cancel => {
                let order = summarize_machine(app, &machine).await?.order;
                let order = order.ok_or_else(|| ApiError::not_found("no reinstall is ordered"))?;
                let started = || Err(reinstalls::already_started(&order));
                if order.started { started() } else { Ok(ReviewedMachine { digest: order.id.clone(), ..reviewed }) }
            }
            BulkAction::Free => review_release(app, &machine, reviewed).await,
            BulkAction::Lock(_) => match machine.explain_lock() {
                Some(why) => Err(refuse_locked(&why)),
                None => Ok(ReviewedMachine { digest: UNLOCKED.to_owned(), ..reviewed }),
            },
            BulkAction::Unlock => {
                let detail = machine.locked.ok_or_else(|| conflict("the machine is not locked"))?;
                Ok(ReviewedMachine { digest: hex_digest(detail.as_bytes()), detail, ..reviewed })
            }
            BulkAction::Power(_) if machine.bmc.is_none() => {
                let why = "the machine file does not name a management controller: add `bmc`";
                Err(conflict(why).with_error_code(ErrorCode::ManagementController))
            }
            BulkAction::Power(_) => {
                let phase = DisplayPhase::current(app, &summarize_machine(app, &machine).await?);
                Ok(ReviewedMachine { phase: Some(phase), digest: phase.word.to_owned(), ..reviewed })
            }
        }
    }
}

fn conflict(why: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::CONFLICT, why)
}

fn refuse_locked(why: &str) -> ApiError {
    conflict(format!("the machine is {why}")).with_error_code(ErrorCode::MachineLocked)
}

/// Returns the request for a reinstall with this image.
pub(crate) fn reinstall_request(id: &str, image: &str) -> ReinstallRequest {
    ReinstallRequest { id: id.to_owned(), imageid: image.to_owned(), ..ReinstallRequest::default() }
}

/// Returns the effect of a reinstall on a machine.
async fn review_reinstall(
    app: &AppState,
    base: &BaseUrls,
    image: &str,
    reviewed: ReviewedMachine,
) -> Result<ReviewedMachine, ApiError> {
    let ReinstallPreview { plan, changes } =
        preview_reinstall(app, base, &reinstall_request(&reviewed.id, image)).await?;
    let planned = require_plan(plan, changes.is_unrecorded)?;
    Ok(ReviewedMachine { digest: preview_digest(&planned, &changes), ..reviewed.with_plan(&planned) })
}

/// Returns the effect of an allocation. The digest begins with the id of the allocation, so that the confirmation
/// writes the allocation that was reviewed.
fn review_allocation(
    new: &NewAllocation,
    allocation: AllocationEdit,
    reviewed: ReviewedMachine,
) -> Result<ReviewedMachine, ApiError> {
    let AllocationEdit { file: old, text, checked } = allocation;
    let digest = format!("{} {}", new.id, checked.digest(&text));
    let (described, effect) = match checked {
        CheckedText::Valid(described, effect) => (described, effect),
        CheckedText::Invalid(why) => {
            let why = replace_positions(&text, &why, str::to_owned);
            return Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, why));
        }
        CheckedText::Unchecked => return Err(conflict("the allocation was not checked")),
    };
    let reviewed = match effect {
        TextEffect::Installs(plan) => reviewed.with_plan(&*require_plan(plan, false)?),
        TextEffect::Harmless => reviewed,
        TextEffect::Unregistered => {
            let why = "the machine has never registered, so its disks are unknown: boot it over PXE once, or allocate it on its own page";
            return Err(conflict(why));
        }
    };
    Ok(ReviewedMachine { digest, new_file: Some(NewMachineFile { old, text, described }), ..reviewed })
}

/// Returns the machine if it has a name, which becomes the hostname.
fn require_named(machine: MachineSpec) -> Result<MachineSpec, ApiError> {
    let why = "the machine has no name that could become the hostname: allocate it on its own page";
    if machine.name.is_empty() { Err(conflict(why)) } else { Ok(machine) }
}

/// Returns the effect of freeing a machine.
async fn review_release(
    app: &AppState,
    machine: &MachineSpec,
    reviewed: ReviewedMachine,
) -> Result<ReviewedMachine, ApiError> {
    if let Some(why) = machine.explain_lock() {
        return Err(refuse_locked(&why));
    }
    let allocation = machine.allocation.as_ref().ok_or_else(|| conflict("the machine is already free"))?;
    if let Some(migration) = app.state.find_live_migration(&machine.id).await? {
        return Err(conflict(explain_migration_block(&machine.id, &migration)));
    }
    let summary = summarize_machine(app, machine).await?;
    let phase = DisplayPhase::current(app, &summary);
    let digest = format!("{} {}", allocation.id.as_str(), phase.word);
    Ok(ReviewedMachine { phase: Some(phase), detail: summary.image.unwrap_or_default(), digest, ..reviewed })
}

/// Returns the plan if the table of the review shows all its effects. `is_unrecorded` is true if the server has no
/// record of the installed allocation.
fn require_plan(plan: PlanPreview, is_unrecorded: bool) -> Result<Box<PreviewPlan>, ApiError> {
    match plan {
        PlanPreview::Refused(why) => {
            let reasons = why.lines().next().unwrap_or_default();
            Err(conflict(format!("the plan is refused: {reasons}")))
        }
        PlanPreview::Unknown(why) => Err(conflict(format!("the plan is unknown: {why}"))),
        PlanPreview::Planned(planned, _) => match explain_individual_review(&planned, is_unrecorded) {
            Some(why) => Err(conflict(format!("order this installation on the machine's page: {why}"))),
            None => Ok(planned),
        },
    }
}

/// Returns the reason why the operator must review an installation on the page of its machine, which shows more details
/// than the table of the review. Returns `None` if the table shows all effects.
fn explain_individual_review(planned: &PreviewPlan, is_unrecorded: bool) -> Option<&'static str> {
    let dismantles = planned.plan.as_ref().is_some_and(|plan| !plan.dismantled.is_empty());
    let recreates = planned.disks.iter().any(|disk| disk.verdict == DiskVerdict::Make);
    match () {
        () if is_unrecorded => Some("the server has no record of the installed allocation"),
        () if dismantles => Some("an array or volume group will be dismantled"),
        () if recreates => Some("a disk that would be preserved is blank, and will be recreated"),
        () => None,
    }
}
