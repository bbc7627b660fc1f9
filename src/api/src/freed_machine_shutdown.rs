//! Cancellation of orders and revocation of boots when a machine is freed, so that the machine is not reinstalled, and
//! power-off, so that the system of the previous tenant is stopped. Also cancels the orders of allocations that were
//! removed from machine files by other means.

use super::metal_api::ApiRefusal;
use super::metrics::OrderEvent;
use super::{AppState, power};
use bmc::PowerAction;
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use site::operator_files;
use site::snapshot::SiteSnapshot;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::{FileStamp, ReinstallOrder, ReleaseOutcome};

/// Pause after a failed cancellation of removed orders.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Time for which a machine file must be unchanged before the order of a removed allocation is canceled. A program may
/// write the file in several steps, and the first part of a machine file can be a valid file without an allocation.
const SETTLING_TIME: Duration = Duration::from_secs(2);

/// Files that no longer contain an allocation with an order, by machine and allocation.
type RemovedAllocations = BTreeMap<(String, String), UnsettledFile>;

/// Cancels the reinstall order of an allocation that is about to be removed from the machine file, and ends the boots
/// of the allocation. Returns the canceled order.
///
/// # Errors
/// Returns an error if an installation of the allocation has passed its point of no return, or the database fails.
pub(crate) async fn release_allocation(
    app: &AppState,
    peer: ClientAddress,
    id: &str,
    allocation: &str,
) -> Result<Option<ReinstallOrder>, ApiRefusal> {
    match app.state.release_allocation(id, allocation).await? {
        ReleaseOutcome::Released(order) => {
            order.iter().for_each(|order| log_cancellation(app, id, order, &format!("{peer} frees the machine")));
            Ok(order)
        }
        ReleaseOutcome::Started => Err(ApiRefusal::conflict(format!(
            "an installation of machine {id} has passed its point of no return: wait until it has ended"
        ))
        .with_error_code(ErrorCode::OrderTooLate)),
    }
}

/// Restores the order that [`release_allocation`] has canceled, because the machine file could not be changed. Returns
/// the refusal of the change, with the effects that the request has nevertheless had.
pub(crate) async fn restore_order(
    app: &AppState,
    id: &str,
    allocation: &str,
    released: Option<ReinstallOrder>,
    refusal: ApiRefusal,
) -> ApiRefusal {
    let refusal = refusal.with_consequence("the machine was not freed, but an agent that was running must boot again");
    let Some(order) = released else { return refusal };
    let what = format!("reinstall order {} with image {}", order.id, order.image);
    let consequence = match app.state.restore_released_order(id, allocation, order).await {
        Ok(true) => format!("{what} was canceled, and is in force again"),
        Ok(false) => format!("{what} was canceled, and another order or a migration has replaced it"),
        Err(error) => format!("{what} was canceled, and cannot be restored: {error}; order the reinstall again"),
    };
    app.watch.log_note(format!("{}: {consequence}", app.directory().display_name(id)));
    refusal.with_consequence(&consequence)
}

fn log_cancellation(app: &AppState, id: &str, order: &ReinstallOrder, reason: &str) {
    app.counters.count_order(OrderEvent::Cancelled);
    let name = app.directory().display_name(id).to_owned();
    app.watch.log_note(format!("{name}: reinstall with image {image} cancelled: {reason}", image = order.image));
}

/// Cancels reinstall orders of allocations that an edit has removed from the machine files. Otherwise such an order
/// would be carried out if the allocation was added again. Never returns before the server exits.
pub async fn cancel_removed_orders(app: Arc<AppState>) {
    let mut directory = app.directory.clone();
    let mut before: Option<Arc<SiteSnapshot>> = None;
    let mut removed = RemovedAllocations::new();
    loop {
        let now = directory.borrow_and_update().clone();
        match cancel_orders_since(&app, before.as_deref(), &now, &mut removed).await {
            Ok(()) => before = Some(now),
            Err(error) => {
                let why = format!("orders of removed allocations cannot be canceled: {error}; the server tries again");
                app.log_rate_limited(ErrorCode::ServerProblem.annotate(why));
                tokio::time::sleep(RETRY_INTERVAL).await;
                continue;
            }
        }
        let has_ended = match removed.is_empty() {
            true => directory.changed().await.is_err(),
            false => matches!(tokio::time::timeout(SETTLING_TIME, directory.changed()).await, Ok(Err(_))),
        };
        if has_ended {
            return;
        }
    }
}

/// Cancels orders whose allocation is not in the machine file, but was in the file in the snapshot `before`. A missing
/// or invalid file does not cancel an order, nor does a file that may still be being written. Without `before`, all
/// orders are compared, unless other servers share the database: their files may be newer than those of this server.
async fn cancel_orders_since(
    app: &AppState,
    before: Option<&SiteSnapshot>,
    now: &SiteSnapshot,
    removed: &mut RemovedAllocations,
) -> common::error::Result<()> {
    let is_compared = before.is_some() || !app.state.is_shared();
    let was_in = |id: &str, allocation: &str| {
        let contains = |current: Option<String>| current.as_deref() == Some(allocation);
        before.is_none_or(|before| find_allocation(before, id).is_some_and(contains))
    };
    let ordered: BTreeSet<(String, String)> = app.state.list_ordered_allocations().await?.into_iter().collect();
    removed.retain(|key, _| ordered.contains(key));
    for key in ordered {
        let (id, allocation) = &key;
        let current = match find_allocation(now, id) {
            Some(current) if current.as_ref() != Some(allocation) => current,
            _ => {
                removed.remove(&key);
                continue;
            }
        };
        let is_known = removed.contains_key(&key) || (is_compared && was_in(id, allocation));
        if !is_known || app.state.find_live_migration(id).await?.is_some() {
            removed.remove(&key);
            continue;
        }
        let found = stamp_without_allocation(app, now, id, allocation).await;
        let looked = Instant::now();
        let file = removed.entry(key.clone()).or_insert_with(|| UnsettledFile { stamp: found.clone(), since: looked });
        // A document in the database is always complete.
        let settling_time = if app.documents.stored().is_some() { Duration::ZERO } else { SETTLING_TIME };
        if !file.has_settled(found, looked, settling_time) {
            continue;
        }
        if let Some(order) = app.state.cancel_removed_orders(id, allocation, current.as_deref()).await? {
            let reason = format!("allocation {allocation} was removed from the machine file");
            log_cancellation(app, id, &order, &reason);
            app.request_reload();
        }
        removed.remove(&key);
    }
    Ok(())
}

/// Returns the allocation in the machine file: `None` if there is no usable file, and `Some(None)` if the file contains
/// no allocation.
fn find_allocation(snapshot: &SiteSnapshot, id: &str) -> Option<Option<String>> {
    let machine = snapshot.find_machine(id)?;
    Some(machine.allocation.as_ref().map(|allocation| allocation.id.to_string()))
}

/// Reads the machine file again. Returns its stamp if the file is valid and does not contain the allocation.
async fn stamp_without_allocation(app: &AppState, now: &SiteSnapshot, id: &str, allocation: &str) -> Option<FileStamp> {
    let (documents, path) = (app.documents.clone(), now.machine_files.get(id)?.clone());
    let allocation = allocation.to_owned();
    let read = move || {
        let stamp = documents.stamp(&path).ok()?;
        let machine = operator_files::parse_machine(&documents.read(&path).ok()?).ok()?;
        let contains = machine.allocation.is_some_and(|found| *found.id == allocation);
        (!contains).then_some(stamp)
    };
    tokio::task::spawn_blocking(read).await.ok().flatten()
}

/// Machine file that no longer contains an allocation with an order.
#[derive(Debug)]
struct UnsettledFile {
    /// Stamp of the file when it was last read; `None` if the file contained the allocation, or could not be used.
    stamp: Option<FileStamp>,
    /// Time since which the file has this stamp.
    since: Instant,
}

impl UnsettledFile {
    /// Records that the file had this stamp at the time `now`. Returns whether the file has been unchanged for the
    /// settling time.
    fn has_settled(&mut self, stamp: Option<FileStamp>, now: Instant, settling_time: Duration) -> bool {
        if self.stamp != stamp {
            *self = UnsettledFile { stamp, since: now };
        }
        self.stamp.is_some() && now.duration_since(self.since) >= settling_time
    }
}

/// Revokes the tokens of all boots that the machine has requested so far. Powers the machine off if the previous
/// tenant's system may still run. If the machine cannot be powered off, a problem is logged.
///
/// # Errors
/// Returns an error if the database fails.
pub(crate) async fn end_previous_system(app: &AppState, id: &str) -> Result<(), ApiError> {
    app.state.free_machine(id).await?;
    if !app.state.may_run_previous_system(id, None).await? {
        return Ok(());
    }
    let name = app.directory().display_name(id).to_owned();
    match power::switch_machine(app, id, PowerAction::Off).await {
        Ok(()) => app.watch.log_note(format!("{name}: powered off, because it was freed")),
        Err(error) => app.watch.log_problem(format!(
            "{name}: cannot power off the freed machine: {error}; power the machine off before it gets another \
            allocation: the system of the previous tenant may still be running, and root on that system can register \
            as this machine",
            error = error.parts().1
        )),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_settles_only_while_it_is_unchanged() {
        let stamp = |size: i64| Some(FileStamp { size, ..FileStamp::default() });
        let (began, two) = (Instant::now(), Duration::from_secs(2));
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        let mut file = UnsettledFile { stamp: stamp(1), since: began };
        assert!(file.has_settled(stamp(1), began, Duration::ZERO), "documents in the database are complete");
        assert!(!file.has_settled(stamp(1), at(1), two));
        assert!(!file.has_settled(stamp(2), at(3), two), "another part was written");
        assert!(!file.has_settled(stamp(2), at(4), two));
        assert!(!file.has_settled(None, at(5), two) && !file.has_settled(None, at(9), two), "the allocation is back");
        assert!(!file.has_settled(stamp(2), at(10), two));
        assert!(file.has_settled(stamp(2), at(12), two));
    }
}
