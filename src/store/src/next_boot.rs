//! Decides what a machine boots next. An installed machine is installed again only if a reinstall is ordered, and the
//! number of attempts is limited.

use super::boot_activity::{BootActivity, MachineBoot};
use super::boot_target::{BootTarget, FileAllocation};
use super::database_file::Durability;
use super::event_history::{HistoryEntry, HistoryKind, insert_entry};
use super::incomplete_installations::has_incomplete_system;
use super::install_attempt::{ATTEMPTS, UNREGISTERED_BOOTS};
use super::install_state::read_install_state;
use super::migration_boot::{effective_files, migration_boot};
use super::registered_boots::current_boot;
use super::reinstall_order_records::{ReinstallOrder, ReinstallOutcome, store_order, store_outcome};
use super::{ServerState, out_of_band_runs, registered_boots, unknown_machines};
use crate::sql::{self, OptionalExtension, Transaction};
use common::error::Result;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Response to a boot request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootDecision {
    pub next: BootTarget,
    /// True if the machine must not boot the system on its disks, even if its ramdisk cannot be loaded.
    pub excludes_disk: bool,
    /// Active boot of the machine, or `None`. The boot request does not affect the active boot.
    pub active: Option<MachineBoot>,
    /// Request time that the token of the requested boot contains; see [`registered_boots::request_time`].
    pub requested: OffsetDateTime,
}

impl ServerState {
    /// Decides what the machine boots, and counts an attempt if a reinstall is ordered. The transaction is synced only
    /// if it has counted an attempt. Any client can send a boot request, and each sync is slow, so other requests do
    /// not cause a sync.
    ///
    /// An installed machine whose machine file is missing is not treated as a new machine: see [`BootTarget::NoFile`].
    /// While another boot is active, no attempt is counted. The attempt of the requested boot is then counted when that
    /// boot registers.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn decide_next_boot(&self, machine: &str, files: FileAllocation) -> Result<BootDecision> {
        let (machine, heard, most_unknown) = (machine.to_owned(), self.heard.clone(), self.most_unknown);
        self.run_as_durable_as_needed_for(machine.clone(), move |transaction| {
            let active = current_boot(transaction, &machine)?.filter(|boot| heard.is_active(boot));
            let requested = registered_boots::request_time(transaction, &machine, heard.clock.now())?;
            let files = effective_files(transaction, &machine, files)?;
            let before = transaction.total_changes();
            let next = choose_boot(transaction, &machine, &files, active.is_some(), &heard)?;
            let durability = durability_since(transaction, before);
            let excludes_disk =
                next.excludes_disk() || has_incomplete_system(transaction, &machine, files.allocation())?;
            let decision = BootDecision { next, excludes_disk, active, requested };
            match (&files, &decision.next) {
                (FileAllocation::NoMachineFile, BootTarget::Install)
                    if !unknown_machines::admit_machine(transaction, &machine, &heard, most_unknown, None)? =>
                {
                    return Ok((BootDecision { next: BootTarget::TooManyUnknown, ..decision }, durability));
                }
                (FileAllocation::NoMachineFile, _) => {}
                _ => unknown_machines::mark_known(transaction, &machine)?,
            }
            Ok((decision, durability))
        })
        .await
    }
}

/// Returns the durability of a decision about the next boot: synced if the decision has changed a reinstall order, that
/// is, if the number of database changes exceeds `changes`, the number before the decision. Other decisions are not
/// synced, since any client can trigger them, and each sync is slow.
pub(crate) fn durability_since(transaction: &Transaction, changes: u64) -> Durability {
    match transaction.total_changes() > changes {
        true => Durability::Synced,
        false => Durability::Deferred,
    }
}

/// Returns the target that the machine boots. If `is_heard` is true, another boot of the machine is active, so no
/// attempt is counted. If an installation of another allocation is incomplete, the machine boots the ramdisk instead of
/// its disk.
pub fn choose_boot(
    transaction: &Transaction,
    machine: &str,
    files: &FileAllocation,
    is_heard: bool,
    heard: &BootActivity,
) -> sql::Result<BootTarget> {
    if let Some(next) = migration_boot(transaction, machine, files)? {
        return Ok(next);
    }
    let next = match files {
        FileAllocation::Allocated(allocation) if is_heard => preview_boot(transaction, machine, allocation)?,
        FileAllocation::Allocated(allocation) => {
            decide_boot(transaction, machine, allocation, BootRequestSender::Firmware(heard))?
        }
        FileAllocation::Free => BootTarget::Install,
        FileAllocation::NoMachineFile => decide_without_file(transaction, machine)?,
    };
    let is_incomplete = next.boots_disk() && has_incomplete_system(transaction, machine, files.allocation())?;
    Ok(if is_incomplete { BootTarget::Install } else { next })
}

/// Returns the target that the machine would boot. Neither counts an attempt nor abandons the reinstall order.
fn preview_boot(transaction: &Transaction, machine: &str, allocation: &str) -> sql::Result<BootTarget> {
    let install_state = read_install_state(transaction, machine, allocation)?;
    Ok(match (install_state.elsewhere, install_state.succeeded, install_state.order) {
        (Some(other), _, _) => BootTarget::InstalledElsewhere(other),
        (None, false, _) => BootTarget::Install,
        (None, true, Some(order)) if order.is_suspended() => BootTarget::Suspended(order),
        (None, true, Some(order)) if install_state.unconfirmed && !order.given_up => BootTarget::Unconfirmed(order),
        (None, true, Some(order)) => BootTarget::Attempt(order),
        (None, true, None) => BootTarget::Disk,
    })
}

/// Sender of the request for which a boot target is chosen.
#[derive(Clone, Copy)]
pub(crate) enum BootRequestSender<'a> {
    /// The firmware, or another client on the boot network. Whether it receives the response is unknown.
    Firmware(&'a BootActivity),
    /// The agent, which registers its boot.
    Agent,
}

pub(crate) fn decide_boot(
    transaction: &Transaction,
    machine: &str,
    allocation: &str,
    requester: BootRequestSender,
) -> sql::Result<BootTarget> {
    let install_state = read_install_state(transaction, machine, allocation)?;
    if let Some(other) = install_state.elsewhere {
        return Ok(BootTarget::InstalledElsewhere(other));
    }
    if !install_state.succeeded {
        return Ok(BootTarget::Install);
    }
    let Some(order) = install_state.order else { return Ok(BootTarget::Disk) };
    if order.is_suspended() {
        return Ok(BootTarget::Suspended(order));
    }
    if install_state.unconfirmed && !order.given_up {
        return Ok(BootTarget::Unconfirmed(order));
    }
    if !order.given_up && out_of_band_runs::is_unfinished(transaction, machine, &order.id)? {
        return Ok(BootTarget::Attempt(order));
    }
    attempt_order(transaction, machine, allocation, order, requester)
}

/// Counts an attempt of the reinstall order, or another boot of the current attempt. Boots belong to the same attempt
/// until one of them has registered, because the firmware repeats requests whose response it has not received.
fn attempt_order(
    transaction: &Transaction,
    machine: &str,
    allocation: &str,
    mut order: ReinstallOrder,
    requester: BootRequestSender,
) -> sql::Result<BootTarget> {
    match (&order.handed, requester) {
        // The attempt was already counted when its ramdisk was served. It begins now, because its boot registers.
        (Some(_), BootRequestSender::Agent) => return Ok(BootTarget::Attempt(order)),
        // Any client can send boot requests, so requests that follow each other quickly are not counted.
        (Some(handed), BootRequestSender::Firmware(heard)) if heard.clock.is_close_to(handed, heard.quiet) => {
            return Ok(BootTarget::Attempt(order));
        }
        _ if order.given_up => return Ok(BootTarget::AbandonedAfterErase(order)),
        (Some(_), _) if order.unregistered < UNREGISTERED_BOOTS => order.unregistered += 1,
        (None, _) if !order.is_final_boot && order.attempts < ATTEMPTS => {
            (order.attempts, order.unregistered) = (order.attempts + 1, 1);
        }
        // The final boot has ended without a report, because the machine boots again.
        _ if order.is_final_boot => return abandon_order(transaction, machine, allocation, order),
        // All attempts are used up. The last one may have succeeded, and a power failure may have prevented its report,
        // so one more boot is served, which can report the success. Until this boot has ended, the order is not
        // abandoned: another order must not replace it.
        _ if order.started => (order.is_final_boot, order.unregistered) = (true, order.unregistered.max(1)),
        _ => return suspend_order(transaction, machine, allocation, order),
    }
    order.handed = match requester {
        BootRequestSender::Firmware(heard) => heard.clock.now().format(&Rfc3339).ok(),
        BootRequestSender::Agent => None,
    };
    store_order(transaction, machine, allocation, &order)?;
    Ok(BootTarget::Attempt(order))
}

/// Suspends a reinstall order whose attempts are used up before its point of no return. The order is not deleted,
/// because the operator has received a response that the order is stored. Only the operator can remove it.
fn suspend_order(
    transaction: &Transaction,
    machine: &str,
    allocation: &str,
    mut order: ReinstallOrder,
) -> sql::Result<BootTarget> {
    let reason = match order.handed {
        Some(_) => format!("no agent has registered after {UNREGISTERED_BOOTS} boots of the ramdisk"),
        None => format!("none of {ATTEMPTS} attempts has reached the point of no return"),
    };
    let message = format!("suspended: {reason}; remove the cause, then order the reinstall again, or cancel the order");
    give_up_order(transaction, (machine, allocation), &mut order, message)?;
    Ok(BootTarget::Suspended(order))
}

/// Abandons a started reinstall order whose final boot has not reported a success.
fn abandon_order(
    transaction: &Transaction,
    machine: &str,
    allocation: &str,
    mut order: ReinstallOrder,
) -> sql::Result<BootTarget> {
    let message = "abandoned: the installation has started, and no attempt has reported its success; remove the cause, \
         then order the reinstall again";
    give_up_order(transaction, (machine, allocation), &mut order, message.to_owned())?;
    Ok(BootTarget::AbandonedAfterErase(order))
}

/// Records that no further attempt of the order is made, and why.
fn give_up_order(
    transaction: &Transaction,
    (machine, allocation): (&str, &str),
    order: &mut ReinstallOrder,
    message: String,
) -> sql::Result<()> {
    (order.given_up, order.handed, order.unregistered) = (true, None, 0);
    store_order(transaction, machine, allocation, order)?;
    let entry = HistoryEntry { message: message.clone(), ..HistoryEntry::from_order(HistoryKind::Failed, order) };
    insert_entry(transaction, machine, &entry)?;
    store_outcome(transaction, machine, allocation, &ReinstallOutcome::from_order(order, false, message))
}

/// Returns the boot target of a machine that has no machine file. An installed machine boots from its disk until its
/// machine file is back. If a reinstall has started, the disk does not contain a complete system, so the machine boots
/// the ramdisk and waits for its machine file. No attempt is counted.
fn decide_without_file(transaction: &Transaction, machine: &str) -> sql::Result<BootTarget> {
    let select = "SELECT o.begun FROM allocations a LEFT JOIN orders o ON o.machine = a.machine AND o.allocation = a.id
         WHERE a.machine = ?1 AND a.succeeded = 1 ORDER BY coalesce(o.begun, 0) DESC LIMIT 1";
    let installed = transaction.query_row(select, [machine], |row| row.get::<_, Option<u32>>(0)).optional()?;
    Ok(match installed {
        Some(started) if started.unwrap_or_default() == 0 => BootTarget::NoFile,
        Some(_) | None => BootTarget::Install,
    })
}
