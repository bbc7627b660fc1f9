//! `/bulk/review` and `/bulk/confirm`: actions on several machines, such as reinstalls, allocations, locks and power
//! actions. `bulk_review` determines the effect of an action on each machine, and `bulk_pages` renders the pages.

use super::allocate::parse_allocation;
use super::bulk_pages::{BulkResults, show_review};
use super::bulk_review::{RefusedMachine, ReviewedMachine, reinstall_request};
use super::page_frame::{self, named_words};
use super::power_lock_and_free_page::POWER_ACTIONS;
use super::session::LoggedIn;
use super::submitted_forms::{ChangeForm, SubmittedForm};
use api::AppState;
use api::access::set_audited_object;
use api::base_url::BaseUrls;
use api::metal_api::machine_file_replacement::NewAllocation;
use api::metal_api::{ApiRefusal, EditPermit, machine_lock, machines};
use api::operator_api::OperatorAuth;
use api::operator_api::reinstalls;
use api::power;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use bmc::PowerAction;
use common::format::format_count;
use http_server::api_error::ApiError;
use std::collections::BTreeSet;
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
    /// Add this allocation to the machine files. The id of the allocation and the hostname differ between the machines.
    Allocate(NewAllocation),
    /// Cancel the reinstall orders.
    Cancel,
    /// Remove the allocations from the machine files.
    Free,
    /// Lock the machines with this reason, which is empty until the confirmation.
    Lock(String),
    Unlock,
    Power(PowerAction),
}

/// Reason why a machine was not changed.
enum UnchangedReason {
    /// The time limit was reached first.
    TimeLimit,
    Refused(ApiError),
}

impl From<ApiError> for UnchangedReason {
    fn from(error: ApiError) -> UnchangedReason {
        UnchangedReason::Refused(error)
    }
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
            ("allocate", "") => Err(ApiError::bad_request("nothing was allocated: no image is selected")),
            ("allocate", _) => Ok(BulkAction::Allocate(parse_allocation(form))),
            ("cancel", _) => Ok(BulkAction::Cancel),
            ("free", _) => Ok(BulkAction::Free),
            ("lock", _) => Ok(BulkAction::Lock(form.get("reason").trim().to_owned())),
            ("unlock", _) => Ok(BulkAction::Unlock),
            (word, _) => {
                let action = POWER_ACTIONS.iter().find(|(_, power, _)| *power == word);
                let action = action.ok_or_else(|| ApiError::bad_request("the form has no action"))?;
                Ok(BulkAction::Power(action.0))
            }
        }
    }

    fn word(&self) -> &'static str {
        match self {
            BulkAction::Reinstall(_) => "reinstall",
            BulkAction::Allocate(_) => "allocate",
            BulkAction::Cancel => "cancel",
            BulkAction::Free => "free",
            BulkAction::Lock(_) => "lock",
            BulkAction::Unlock => "unlock",
            BulkAction::Power(action) => {
                POWER_ACTIONS.iter().find(|(power, ..)| power == action).map_or("", |(_, word, _)| word)
            }
        }
    }

    /// Returns the names and the values of the form fields that describe the action. The reason of a lock is not
    /// included, because it is entered with the confirmation.
    pub(crate) fn form_fields(&self) -> Vec<(&'static str, String)> {
        let mut fields = vec![("action", self.word().to_owned())];
        match self {
            BulkAction::Reinstall(image) => fields.push(("image", image.clone())),
            BulkAction::Allocate(new) => fields.extend([
                ("image", new.image.clone()),
                ("layout", new.layout.clone()),
                ("ssh_key", new.ssh_pub_keys.join("\n")),
                ("user_data", new.user_data.clone()),
            ]),
            _ => {}
        }
        fields
    }

    /// Returns the title of the action on a number of machines, such as `Reinstall 3 machines with debian-13`.
    pub(crate) fn title(&self, count: usize) -> String {
        let machines = format_count(count, "machine", "machines");
        match self {
            BulkAction::Reinstall(image) => format!("Reinstall {machines} with {image}"),
            BulkAction::Allocate(new) => format!("Allocate {machines} and install {}", new.image),
            BulkAction::Cancel => format!("Cancel the orders of {machines}"),
            BulkAction::Free => format!("Free {machines}"),
            BulkAction::Lock(_) => format!("Lock {machines}"),
            BulkAction::Unlock => format!("Unlock {machines}"),
            BulkAction::Power(PowerAction::On) => format!("Switch on {machines}"),
            BulkAction::Power(PowerAction::Off) => format!("Switch off {machines}"),
            BulkAction::Power(PowerAction::Cycle) => format!("Switch {machines} off and on"),
            BulkAction::Power(PowerAction::Pxe) => format!("Boot {machines} over PXE at the next boot"),
        }
    }

    /// Returns the heading of the list of changed machines.
    pub(crate) fn result_heading(&self) -> &'static str {
        match self {
            BulkAction::Reinstall(_) => "Reinstall ordered",
            BulkAction::Allocate(_) => "Allocated",
            BulkAction::Cancel => "Order canceled",
            BulkAction::Free => "Freed",
            BulkAction::Lock(_) => "Locked",
            BulkAction::Unlock => "Unlocked",
            BulkAction::Power(PowerAction::Pxe) => "PXE selected",
            BulkAction::Power(_) => "Switched",
        }
    }

    /// Checks the fields of the confirmation.
    fn check_confirmation(&self, typed: &str, count: usize) -> Result<(), ApiError> {
        if typed.trim() != count.to_string() {
            let why = format!("nothing was changed: {typed:?} was typed, but the number of machines is {count}");
            return Err(ApiError::bad_request(why));
        }
        match self {
            BulkAction::Lock(reason) if reason.is_empty() => {
                Err(ApiError::bad_request("nothing was changed: a lock requires a reason"))
            }
            _ => Ok(()),
        }
    }

    /// Carries out the action on a machine, provided that the action still has the effect that was shown. The time
    /// limit applies only to the review; a change that has started is completed.
    async fn carry_out(
        &self,
        change: &ChangeForm<FORM_BYTES>,
        base: &BaseUrls,
        reviewed: (&str, &str),
        limit: TimeLimit,
    ) -> Result<(), UnchangedReason> {
        let (app, peer) = (&change.app, change.peer);
        match self {
            BulkAction::Reinstall(image) => {
                let machine = self.review_again(change, base, reviewed, limit).await?;
                reinstalls::place_order(app, peer, &reinstall_request(&machine.id, image)).await?;
            }
            BulkAction::Allocate(_) => {
                let machine = self.review_again(change, base, reviewed, limit).await?;
                machine.write_file(&change.wait_for_permit().await).await?;
            }
            BulkAction::Cancel => {
                let id = Path(self.review_again(change, base, reviewed, limit).await?.id);
                let _ = reinstalls::cancel_reinstall(State(app.clone()), id, OperatorAuth, peer).await?;
            }
            BulkAction::Free => {
                // While this request holds the permit, no other request changes the reviewed allocation or lock.
                let permit = wait_for_permit(change, limit).await?;
                let machine = self.review_again(change, base, reviewed, limit).await?;
                machines::remove_allocation(&permit, &machine.id).await.map_err(ApiRefusal::into_error)?;
            }
            BulkAction::Lock(_) | BulkAction::Unlock => {
                let permit = wait_for_permit(change, limit).await?;
                let machine = self.review_again(change, base, reviewed, limit).await?;
                let reason = if let BulkAction::Lock(reason) = self { Some(reason.as_str()) } else { None };
                machine_lock::set_lock(&permit, &machine.id, reason).await.map_err(ApiRefusal::into_error)?;
            }
            BulkAction::Power(action) => {
                let machine = self.review_again(change, base, reviewed, limit).await?;
                power::switch_as_requested(app, &machine.id, *action, peer).await?;
            }
        }
        Ok(())
    }

    /// Reviews the machine, and checks that the effect is the one that was shown.
    async fn review_again(
        &self,
        change: &ChangeForm<FORM_BYTES>,
        base: &BaseUrls,
        (id, shown): (&str, &str),
        limit: TimeLimit,
    ) -> Result<ReviewedMachine, UnchangedReason> {
        // On the heap, because the futures of the plan are large.
        let review = Box::pin(self.review(&change.app, base, &change.person, (id, Some(shown))));
        let reviewed = limit.run(review).await.ok_or(UnchangedReason::TimeLimit)??;
        if reviewed.digest != shown {
            let why = "the plan, the order, the machine file or the phase has changed since it was shown; review the machine again";
            return Err(ApiError::new(StatusCode::CONFLICT, why).into());
        }
        Ok(reviewed)
    }
}

/// Waits for the permit to change files.
async fn wait_for_permit(change: &ChangeForm<FORM_BYTES>, limit: TimeLimit) -> Result<EditPermit, UnchangedReason> {
    limit.run(change.wait_for_permit()).await.ok_or(UnchangedReason::TimeLimit)
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
            match limit.run(Box::pin(action.review(app, &base, person, (id.as_str(), None)))).await {
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
        let ChangeForm { app, person, form, .. } = &change;
        let action = BulkAction::parse(form)?;
        let machines: Vec<(&str, &str)> = form.get_all("machine").zip(form.get_all("shown")).collect();
        check_count(machines.len())?;
        set_audited_object(&machines.iter().map(|(id, _)| *id).collect::<Vec<_>>().join(", "));
        action.check_confirmation(form.get("count"), machines.len())?;
        let limit = TimeLimit(Instant::now() + TIME_LIMIT);
        let mut results = BulkResults::default();
        for (id, shown) in machines {
            match Box::pin(action.carry_out(&change, &base, (id, shown), limit)).await {
                Ok(()) => results.changed.push((id.to_owned(), app.directory().display_name(id).to_owned())),
                Err(UnchangedReason::Refused(error)) => {
                    results.refused.push(refuse_machine(app, person, id.to_owned(), error));
                }
                Err(UnchangedReason::TimeLimit) => results.unreached.push(id.to_owned()),
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
