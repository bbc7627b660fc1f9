//! `/bulk/review` and `/bulk/confirm`: reinstalls of several machines, cancellation of several orders, and power
//! actions. The checks of each machine are the same as for an action on its own page. `bulk_pages` renders the pages.

use super::allocation_differences::AllocationChanges;
use super::bulk_pages::{BulkResults, show_review};
use super::page_frame::{self, named_words};
use super::plan_preview::PlanPreview;
use super::power_lock_and_free_page::POWER_ACTIONS;
use super::reinstall::{ReinstallPreview, preview_digest, preview_reinstall};
use super::session::LoggedIn;
use super::submitted_forms::{ChangeForm, SubmittedForm};
use api::AppState;
use api::access::set_audited_object;
use api::base_url::BaseUrls;
use api::display_phase::DisplayPhase;
use api::operator_api::reinstalls::{self, ReinstallRequest};
use api::operator_api::{OperatorAuth, find_machine, summarize_machine};
use api::power;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use bmc::PowerAction;
use common::error_code::ErrorCode;
use common::format::format_count;
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use plan::DiskVerdict;
use plan::request_from_allocation::preview::PreviewPlan;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Maximum number of machines of an action. The review page requires the plans of all these machines.
const MACHINES: usize = 500;
/// Maximum size of a form, in bytes. The form contains an id and a digest for each machine.
const FORM_BYTES: usize = 256 << 10;

/// Time limit of a request. Machines that are not processed within this time remain unchanged, and are listed in the
/// result. The limit is below a minute, because proxies often abort requests after a minute.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(45);

/// Action on all selected machines.
pub(crate) enum BulkAction {
    /// Order reinstalls with this image.
    Reinstall(String),
    Cancel,
    Power(PowerAction),
}

/// Machine on which the action can be carried out, with the effect of the action.
pub(crate) struct ReviewedMachine {
    pub id: String,
    pub name: String,
    /// Phase of the machine, which a power action may interrupt. `None` for other actions.
    pub phase: Option<DisplayPhase>,
    /// Number of bytes that would be lost, and the disks that would be wiped.
    pub lost: u64,
    pub wiped: Vec<String>,
    /// Reason why the plan is only a prediction.
    pub foreseen: Option<&'static str>,
    /// Digest of the plan. The action is refused if the digest has changed since the plan was shown.
    pub digest: String,
}

/// Machine on which the action cannot be carried out, with the reason.
pub(crate) struct RefusedMachine {
    pub id: String,
    pub name: String,
    pub reason: String,
}

/// Time after which a request does not process further machines.
#[derive(Debug, Clone, Copy)]
struct TimeLimit(Instant);

impl TimeLimit {
    /// Returns the result of `work`, or `None` if the time limit is reached first.
    async fn run<T>(self, work: impl Future<Output = T>) -> Option<T> {
        if Instant::now() >= self.0 { None } else { timeout_at(self.0, work).await.ok() }
    }
}

impl BulkAction {
    fn parse(form: &SubmittedForm) -> Result<BulkAction, ApiError> {
        match (form.get("action"), form.get("image")) {
            ("reinstall", "") => Err(ApiError::bad_request("nothing was ordered: no image is selected")),
            ("reinstall", image) => Ok(BulkAction::Reinstall(image.to_owned())),
            ("cancel", _) => Ok(BulkAction::Cancel),
            (word, _) => {
                let action = POWER_ACTIONS.iter().find(|(_, power, _)| *power == word);
                let action = action.ok_or_else(|| ApiError::bad_request("the form has no action"))?;
                Ok(BulkAction::Power(action.0))
            }
        }
    }

    pub(crate) fn word(&self) -> &'static str {
        match self {
            BulkAction::Reinstall(_) => "reinstall",
            BulkAction::Cancel => "cancel",
            BulkAction::Power(action) => {
                POWER_ACTIONS.iter().find(|(power, ..)| power == action).map_or("", |(_, word, _)| word)
            }
        }
    }

    pub(crate) fn image(&self) -> &str {
        match self {
            BulkAction::Reinstall(image) => image,
            BulkAction::Cancel | BulkAction::Power(_) => "",
        }
    }

    /// Returns the title of the action on a number of machines, such as `Reinstall 3 machines with debian-13`.
    pub(crate) fn title(&self, count: usize) -> String {
        let machines = format_count(count, "machine", "machines");
        match self {
            BulkAction::Reinstall(image) => format!("Reinstall {machines} with {image}"),
            BulkAction::Cancel => format!("Cancel the orders of {machines}"),
            BulkAction::Power(PowerAction::On) => format!("Switch on {machines}"),
            BulkAction::Power(PowerAction::Off) => format!("Switch off {machines}"),
            BulkAction::Power(PowerAction::Cycle) => format!("Switch {machines} off and on"),
            BulkAction::Power(PowerAction::Pxe) => format!("Boot {machines} over PXE at the next boot"),
        }
    }

    fn request(&self, id: &str) -> ReinstallRequest {
        ReinstallRequest { id: id.to_owned(), imageid: self.image().to_owned(), ..ReinstallRequest::default() }
    }

    /// Returns the effect on a machine. The error is the reason why the action cannot be carried out.
    async fn review(&self, app: &AppState, base: &BaseUrls, id: &str) -> Result<ReviewedMachine, ApiError> {
        let machine = find_machine(app, id)?;
        let reviewed = ReviewedMachine {
            id: machine.id.clone(),
            name: app.directory().display_name(&machine.id).to_owned(),
            phase: None,
            lost: 0,
            wiped: Vec::new(),
            foreseen: None,
            digest: String::new(),
        };
        match self {
            BulkAction::Reinstall(_) => self.review_reinstall(app, base, reviewed).await,
            BulkAction::Cancel => {
                let order = summarize_machine(app, &machine).await?.order;
                let order = order.ok_or_else(|| ApiError::not_found("no reinstall is ordered"))?;
                let started = || Err(reinstalls::already_started(&order));
                if order.started { started() } else { Ok(ReviewedMachine { digest: order.id.clone(), ..reviewed }) }
            }
            BulkAction::Power(_) if machine.bmc.is_none() => {
                let why = "the machine file does not name a management controller: add `bmc`";
                Err(ApiError::new(StatusCode::CONFLICT, why).with_error_code(ErrorCode::ManagementController))
            }
            BulkAction::Power(_) => {
                let phase = DisplayPhase::current(app, &summarize_machine(app, &machine).await?);
                Ok(ReviewedMachine { phase: Some(phase), digest: phase.word.to_owned(), ..reviewed })
            }
        }
    }

    /// Returns the effect of a reinstall on a machine.
    async fn review_reinstall(
        &self,
        app: &AppState,
        base: &BaseUrls,
        reviewed: ReviewedMachine,
    ) -> Result<ReviewedMachine, ApiError> {
        let ReinstallPreview { plan, changes } = preview_reinstall(app, base, &self.request(&reviewed.id)).await?;
        match plan {
            PlanPreview::Refused(why) => {
                let reasons = why.lines().next().unwrap_or_default();
                Err(ApiError::new(StatusCode::CONFLICT, format!("the plan is refused: {reasons}")))
            }
            PlanPreview::Unknown(why) => {
                Err(ApiError::new(StatusCode::CONFLICT, format!("the plan is unknown: {why}")))
            }
            PlanPreview::Planned(planned, _) => {
                if let Some(why) = explain_individual_review(&planned, &changes) {
                    let why = format!("order this reinstall on the machine's page: {why}");
                    return Err(ApiError::new(StatusCode::CONFLICT, why));
                }
                let wiped = planned
                    .disks
                    .iter()
                    .filter(|disk| matches!(disk.verdict, DiskVerdict::Wipe | DiskVerdict::PartlyKept));
                Ok(ReviewedMachine {
                    lost: planned.disks.iter().fold(0, |sum: u64, disk| sum.saturating_add(disk.lost_bytes)),
                    wiped: wiped.map(|disk| format!("{} {}", disk.device, disk.serial)).collect(),
                    foreseen: planned.foreseen,
                    digest: preview_digest(&planned, &changes),
                    ..reviewed
                })
            }
        }
    }

    /// Carries out the action on a machine, provided that the action still has the effect that was shown. The time
    /// limit applies only to the review; a change that has started is completed. Returns `None` if the time limit is
    /// reached before the change.
    async fn carry_out(
        &self,
        app: &Arc<AppState>,
        base: &BaseUrls,
        peer: ClientAddress,
        (id, shown): (&str, &str),
        limit: TimeLimit,
    ) -> Option<Result<(), ApiError>> {
        match limit.run(self.review(app, base, id)).await? {
            Err(error) => return Some(Err(error)),
            Ok(reviewed) if reviewed.digest != shown => {
                let why = "the plan, the order or the phase has changed since it was shown; review the machine again";
                return Some(Err(ApiError::new(StatusCode::CONFLICT, why)));
            }
            Ok(_) => {}
        }
        Some(match self {
            BulkAction::Reinstall(_) => reinstalls::place_order(app, peer, &self.request(id)).await.map(drop),
            BulkAction::Power(action) => power::switch_as_requested(app, &id.to_lowercase(), *action, peer).await,
            BulkAction::Cancel => {
                reinstalls::cancel_reinstall(State(app.clone()), Path(id.to_owned()), OperatorAuth, peer)
                    .await
                    .map(drop)
            }
        })
    }
}

/// Returns the reason why the operator must review a reinstall on the page of its machine, which shows more details
/// than the table of this page. Returns `None` if the table shows all effects.
fn explain_individual_review(planned: &PreviewPlan, changes: &AllocationChanges) -> Option<&'static str> {
    let dismantles = planned.plan.as_ref().is_some_and(|plan| !plan.dismantled.is_empty());
    let recreates = planned.disks.iter().any(|disk| disk.verdict == DiskVerdict::Make);
    match () {
        () if changes.is_unrecorded => Some("the server has no record of the installed allocation"),
        () if dismantles => Some("an array or volume group will be dismantled"),
        () if recreates => Some("a disk that would be preserved is blank, and will be recreated"),
        () => None,
    }
}

/// Checks that at least one machine and not too many machines are selected.
fn check_count(count: usize) -> Result<(), ApiError> {
    match count {
        0 => Err(ApiError::bad_request("no machine is selected")),
        1..=MACHINES => Ok(()),
        _ => Err(ApiError::bad_request(format!("{count} machines are selected; at most {MACHINES} are allowed"))),
    }
}

/// `POST /bulk/review`: shows the effect on each machine. Nothing is ordered or canceled.
pub(crate) async fn post_review(base: BaseUrls, change: ChangeForm<FORM_BYTES>) -> Response {
    let done = async {
        let ChangeForm { app, person, form, .. } = &change;
        let action = BulkAction::parse(form)?;
        let ids: BTreeSet<String> = form.get_all("machine").map(str::to_lowercase).collect();
        check_count(ids.len())?;
        set_audited_object(&ids.iter().map(String::as_str).collect::<Vec<_>>().join(", "));
        let limit = TimeLimit(Instant::now() + TIME_LIMIT);
        let (mut reviewed, mut refused, mut unreached) = (Vec::new(), Vec::new(), Vec::new());
        for id in ids {
            match limit.run(action.review(app, &base, &id)).await {
                Some(Ok(machine)) => reviewed.push(machine),
                Some(Err(error)) => refused.push(refuse_machine(app, person, id, error)),
                None => unreached.push(id),
            }
        }
        let main = show_review(app, person, &action, &reviewed, &refused, &unreached);
        Ok(page_frame::render_page(app, person, &action.title(reviewed.len()), "", main))
    };
    done.await.unwrap_or_else(|error: ApiError| change.show_error(error))
}

/// Returns the machine and the reason why the action is refused for it.
fn refuse_machine(app: &AppState, person: &LoggedIn, id: String, error: ApiError) -> RefusedMachine {
    let reason = named_words(app, person, error).1;
    RefusedMachine { name: app.directory().display_name(&id).to_owned(), id, reason }
}

/// `POST /bulk/confirm`: carries out the action, and lists the result of each machine.
pub(crate) async fn post_confirm(base: BaseUrls, change: ChangeForm<FORM_BYTES>) -> Response {
    let done = async {
        let ChangeForm { app, person, peer, form, .. } = &change;
        let action = BulkAction::parse(form)?;
        let machines: Vec<(&str, &str)> = form.get_all("machine").zip(form.get_all("shown")).collect();
        check_count(machines.len())?;
        set_audited_object(&machines.iter().map(|(id, _)| *id).collect::<Vec<_>>().join(", "));
        if form.get("count").trim() != machines.len().to_string() {
            let (typed, count) = (form.get("count"), machines.len());
            return Err(ApiError::bad_request(format!(
                "nothing was changed: {typed:?} was typed, but the number of machines is {count}"
            )));
        }
        let limit = TimeLimit(Instant::now() + TIME_LIMIT);
        let mut results = BulkResults::default();
        for (id, shown) in machines {
            match action.carry_out(app, &base, *peer, (id, shown), limit).await {
                Some(Ok(())) => results.changed.push((id.to_owned(), app.directory().display_name(id).to_owned())),
                Some(Err(error)) => results.refused.push(refuse_machine(app, person, id.to_owned(), error)),
                None => results.unreached.push(id.to_owned()),
            }
        }
        let main = results.show(app, person, &action);
        Ok(page_frame::render_page(app, person, "Results", "", main))
    };
    done.await.unwrap_or_else(|error: ApiError| change.show_error(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_work_starts_after_the_time_limit() {
        let past = TimeLimit(Instant::now());
        assert_eq!(past.run(async { 1 }).await, None);
        let later = TimeLimit(Instant::now() + Duration::from_secs(3600));
        assert_eq!(later.run(async { 1 }).await, Some(1));
        let soon = TimeLimit(Instant::now() + Duration::from_millis(20));
        assert_eq!(soon.run(std::future::pending::<u8>()).await, None, "started work does not exceed the limit");
    }
}
