//! Actions on several machines: orders or cancels reinstalls. The operator selects machines in the list, reviews what each
//! machine would lose, and confirms by typing the number of machines. Each machine passes the same checks as in a single
//! action, and a failure on one machine does not affect the others.

use super::allocation_differences::AllocationChanges;
use super::form::SubmittedForm;
use super::page_frame;
use super::plan_preview::PlanPreview;
use super::reinstall::{ReinstallPreview, preview_digest, preview_reinstall};
use super::session::LoggedIn;
use api::AppState;
use api::base_url::BaseUrls;
use api::operator::reinstalls::{self, ReinstallRequest};
use api::operator::{OperatorAuth, find_machine, summarize_machine};
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use common::format::{format_bytes, format_count};
use http_server::api_error::ApiError;
use http_server::quotas::ClientAddress;
use maud::{Markup, html};
use plan::DiskVerdict;
use plan::request_from_allocation::preview::{NOBODY_LOOKED, PreviewPlan};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Maximum number of machines of an action. Plans of all these machines are computed for one page.
const MACHINES: usize = 500;
/// Maximum size of a form, in bytes. The form contains an id and a digest for each machine.
const FORM_BYTES: usize = 256 << 10;

/// Action on all selected machines.
enum BulkAction {
    /// Order reinstalls with this image.
    Reinstall(String),
    Cancel,
}

/// Machine that the action would change, and the effect on this machine.
struct ReviewedMachine {
    id: String,
    name: String,
    /// Number of bytes that would be lost, and the disks that would be wiped.
    lost: u64,
    wiped: Vec<String>,
    /// Reason why the plan is only a prediction.
    foreseen: Option<&'static str>,
    /// Digest of the plan; the action is refused if its digest differs from the digest that was shown.
    digest: String,
}

/// Machine, with the reason why the action cannot be carried out on it.
struct RefusedMachine {
    name: String,
    reason: String,
}

impl BulkAction {
    fn parse(form: &SubmittedForm) -> Result<BulkAction, ApiError> {
        match (form.get("action"), form.get("image")) {
            ("reinstall", "") => Err(ApiError::bad_request("nothing was ordered: no image is selected")),
            ("reinstall", image) => Ok(BulkAction::Reinstall(image.to_owned())),
            ("cancel", _) => Ok(BulkAction::Cancel),
            _ => Err(ApiError::bad_request("the form has no action")),
        }
    }

    fn word(&self) -> &'static str {
        match self {
            BulkAction::Reinstall(_) => "reinstall",
            BulkAction::Cancel => "cancel",
        }
    }

    fn image(&self) -> &str {
        match self {
            BulkAction::Reinstall(image) => image,
            BulkAction::Cancel => "",
        }
    }

    /// Returns the title of the action on a number of machines, such as `Reinstall 3 machines with debian-13`.
    fn title(&self, count: usize) -> String {
        let machines = format_count(count, "machine", "machines");
        match self {
            BulkAction::Reinstall(image) => format!("Reinstall {machines} with {image}"),
            BulkAction::Cancel => format!("Cancel the orders of {machines}"),
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
            lost: 0,
            wiped: Vec::new(),
            foreseen: None,
            digest: String::new(),
        };
        let BulkAction::Reinstall(_) = self else {
            let order = summarize_machine(app, &machine).await?.order;
            let order = order.ok_or_else(|| ApiError::not_found("no reinstall is ordered"))?;
            let started = || Err(reinstalls::already_started(&order));
            return if order.begun { started() } else { Ok(ReviewedMachine { digest: order.id.clone(), ..reviewed }) };
        };
        let ReinstallPreview { plan, changes } = preview_reinstall(app, base, &self.request(&machine.id)).await?;
        match plan {
            PlanPreview::Refused(why) => {
                Err(ApiError::new(StatusCode::CONFLICT, format!("the plan is refused: {why}")))
            }
            PlanPreview::Unknown(why) => {
                Err(ApiError::new(StatusCode::CONFLICT, format!("the plan is unknown: {why}")))
            }
            PlanPreview::Planned(planned, _) => {
                if let Some(why) = explain_individual_review(&planned, &changes) {
                    let why = format!("order this reinstall on the machine's page: {why}");
                    return Err(ApiError::new(StatusCode::CONFLICT, why));
                }
                let wiped = planned.disks.iter().filter(|disk| disk.verdict == DiskVerdict::Wipe);
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

    /// Carries out the action on a machine, if its effect is still the effect that was shown.
    async fn carry_out(
        &self,
        app: &Arc<AppState>,
        base: &BaseUrls,
        peer: ClientAddress,
        (id, shown): (&str, &str),
    ) -> Result<(), ApiError> {
        if self.review(app, base, id).await?.digest != shown {
            let why = "the plan or the order has changed since it was shown; review the machine again";
            return Err(ApiError::new(StatusCode::CONFLICT, why));
        }
        match self {
            BulkAction::Reinstall(_) => reinstalls::place_order(app, peer, &self.request(id)).await.map(drop),
            BulkAction::Cancel => {
                reinstalls::cancel_reinstall(State(app.clone()), Path(id.to_owned()), OperatorAuth, peer)
                    .await
                    .map(drop)
            }
        }
    }
}

/// Returns the reason why the operator must review a reinstall on the page of its machine, which shows more than the table
/// of several machines, or `None` if the table shows all effects.
fn explain_individual_review(planned: &PreviewPlan, changes: &AllocationChanges) -> Option<&'static str> {
    let dismantles = planned.plan.as_ref().is_some_and(|plan| !plan.torn.is_empty());
    let recreates = planned.disks.iter().any(|disk| disk.verdict == DiskVerdict::Make);
    match () {
        () if changes.is_unrecorded => Some("the server has no record of the installed allocation"),
        () if dismantles => Some("an array or volume group will be dismantled"),
        () if recreates => Some("a disk that would be preserved is blank, and will be recreated"),
        () => None,
    }
}

/// Checks the number of machines.
fn check_count(count: usize) -> Result<(), ApiError> {
    match count {
        0 => Err(ApiError::bad_request("no machine is selected")),
        1..=MACHINES => Ok(()),
        _ => Err(ApiError::bad_request(format!("{count} machines are selected; at most {MACHINES} are allowed"))),
    }
}

/// `POST /bulk/review`: shows the effect on each machine. Nothing is ordered or canceled.
pub(crate) async fn post_review(
    State(app): State<Arc<AppState>>,
    base: BaseUrls,
    person: LoggedIn,
    peer: ClientAddress,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let done = async {
        let form = SubmittedForm::read_verified_up_to(&app, &person, peer, &headers, body, FORM_BYTES).await?;
        let action = BulkAction::parse(&form)?;
        let ids: BTreeSet<String> = form.get_all("machine").map(str::to_lowercase).collect();
        check_count(ids.len())?;
        let (mut reviewed, mut refused) = (Vec::new(), Vec::new());
        for id in ids {
            match action.review(&app, &base, &id).await {
                Ok(machine) => reviewed.push(machine),
                Err(error) => {
                    let name = app.directory().display_name(&id).to_owned();
                    refused.push(RefusedMachine { name, reason: error.parts().1 });
                }
            }
        }
        let title = action.title(reviewed.len());
        Ok(page_frame::render_page(&app, &person, &title, "", show_review(&person, &action, &reviewed, &refused)))
    };
    done.await.unwrap_or_else(|error: ApiError| page_frame::render_error(&app, Some(&person), error))
}

fn show_review(
    person: &LoggedIn,
    action: &BulkAction,
    reviewed: &[ReviewedMachine],
    refused: &[RefusedMachine],
) -> Markup {
    let lost = reviewed.iter().fold(0, |sum: u64, machine| sum.saturating_add(machine.lost));
    let count = reviewed.len();
    html! {
        p { a href="/" { "Machines" } }
        h1 { (action.title(count)) }
        (show_refused("Machines that will be skipped", refused))
        @if !reviewed.is_empty() {
            @if let BulkAction::Reinstall(_) = action { p { strong { "Data lost: " (format_bytes(lost)) } } }
            div.scroll { table {
                tr { th { "Machine" } @if let BulkAction::Reinstall(_) = action { th.number { "Data lost" } th { "Wiped disks" } } }
                @for machine in reviewed {
                    tr {
                        td { a href={ "/machines/" (machine.id) } { (machine.name) } }
                        @if let BulkAction::Reinstall(_) = action {
                            td.number { (format_bytes(machine.lost)) }
                            td {
                                (if machine.wiped.is_empty() { "none".to_owned() } else { machine.wiped.join(", ") })
                                @if let Some(why) = machine.foreseen { p.faint { (why) ": " (NOBODY_LOOKED) } }
                            }
                        }
                    }
                }
            } }
            (show_confirmation(person, action, reviewed))
        }
    }
}

/// Renders the form that carries out the action. Hidden fields contain the machines and the digests of their plans.
fn show_confirmation(person: &LoggedIn, action: &BulkAction, reviewed: &[ReviewedMachine]) -> Markup {
    let count = reviewed.len();
    html! {
        form.stack method="post" action="/bulk/confirm" {
            (page_frame::form_token(person))
            input type="hidden" name="action" value=(action.word());
            input type="hidden" name="image" value=(action.image());
            @for machine in reviewed {
                input type="hidden" name="machine" value=(machine.id);
                input type="hidden" name="shown" value=(machine.digest);
            }
            label for="count" { "Type " strong { (count) } ", the number of machines, to confirm" }
            input #count name="count" data-name=(count) inputmode="numeric" autocomplete="off" required;
            button.danger { (action.title(count)) }
        }
    }
}

fn show_refused(title: &str, refused: &[RefusedMachine]) -> Markup {
    html! {
        @if !refused.is_empty() {
            h2 { (title) ": " (refused.len()) }
            div.scroll { table {
                tr { th { "Machine" } th { "Reason" } }
                @for machine in refused { tr { td { (machine.name) } td.words.bad { (machine.reason) } } }
            } }
        }
    }
}

/// `POST /bulk/confirm`: carries out the action, and lists the result of each machine.
pub(crate) async fn post_confirm(
    State(app): State<Arc<AppState>>,
    base: BaseUrls,
    person: LoggedIn,
    peer: ClientAddress,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let done = async {
        let form = SubmittedForm::read_verified_up_to(&app, &person, peer, &headers, body, FORM_BYTES).await?;
        let action = BulkAction::parse(&form)?;
        let machines: Vec<(&str, &str)> = form.get_all("machine").zip(form.get_all("shown")).collect();
        check_count(machines.len())?;
        if form.get("count").trim() != machines.len().to_string() {
            let (typed, count) = (form.get("count"), machines.len());
            return Err(ApiError::bad_request(format!(
                "nothing was changed: {typed:?} was typed, but the number of machines is {count}"
            )));
        }
        let (mut changed, mut refused) = (Vec::new(), Vec::new());
        for (id, shown) in machines {
            let name = app.directory().display_name(id).to_owned();
            match action.carry_out(&app, &base, peer, (id, shown)).await {
                Ok(()) => changed.push((id, name)),
                Err(error) => refused.push(RefusedMachine { name, reason: error.parts().1 }),
            }
        }
        let main = show_results(&action, &changed, &refused);
        Ok(page_frame::render_page(&app, &person, "Results", "", main))
    };
    done.await.unwrap_or_else(|error: ApiError| page_frame::render_error(&app, Some(&person), error))
}

fn show_results(action: &BulkAction, changed: &[(&str, String)], refused: &[RefusedMachine]) -> Markup {
    let done = match action {
        BulkAction::Reinstall(_) => "Reinstall ordered",
        BulkAction::Cancel => "Order canceled",
    };
    html! {
        p { a href="/" { "Machines" } }
        h1 { (changed.len()) " of " (format_count(changed.len() + refused.len(), "machine", "machines")) " changed" }
        (show_refused("Unchanged machines", refused))
        @if !changed.is_empty() {
            h2 { (done) ": " (changed.len()) }
            ul { @for (id, name) in changed { li { a href={ "/machines/" (id) } { (name) } } } }
        }
    }
}
