//! Decision about what a machine boots next. An installed machine is installed again only if a reinstall is ordered,
//! and the number of attempts is limited.

use super::boot_activity::MachineBoot;
use super::boot_target::{BootTarget, FileAllocation};
use super::boots::current_boot;
use super::database_file::Durability;
use super::event_history::{HistoryEntry, HistoryKind, insert_entry};
use super::install_attempt::ATTEMPTS;
use super::install_state::read_install_state;
use super::migration_boot::{effective_files, migration_boot};
use super::order_records::{ReinstallOrder, ReinstallOutcome, delete_order, store_order, store_outcome};
use super::{ServerState, now, out_of_band, unknown_machines};
use crate::sql::{self, OptionalExtension, Transaction};
use common::error::Result;
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Response to a boot request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootDecision {
    pub next: BootTarget,
    /// Active boot of the machine, or `None`. The boot request does not affect the active boot.
    pub active: Option<MachineBoot>,
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
        self.run_as_durable_as_needed(move |transaction| {
            let active = current_boot(transaction, &machine)?.filter(|boot| heard.is_active(boot));
            let files = effective_files(transaction, &machine, files)?;
            let before = transaction.total_changes();
            let next = choose_boot(transaction, &machine, &files, active.is_some(), heard.quiet)?;
            let durability = durability_since(transaction, before);
            match (&files, &next) {
                (FileAllocation::Nothing, BootTarget::Install)
                    if !unknown_machines::admit_machine(transaction, &machine, &heard, most_unknown, None)? =>
                {
                    return Ok((BootDecision { next: BootTarget::Crowded, active }, durability));
                }
                (FileAllocation::Nothing, _) => {}
                _ => unknown_machines::mark_known(transaction, &machine)?,
            }
            Ok((BootDecision { next, active }, durability))
        })
        .await
    }
}

/// Returns the durability of a decision about the next boot. A decision that has changed a reinstall order is synced:
/// the number of database changes is then larger than `changes`, the number before the decision. Other decisions are
/// not synced, since any client can cause them, and each sync is slow.
pub(crate) fn durability_since(transaction: &Transaction, changes: u64) -> Durability {
    match transaction.total_changes() > changes {
        true => Durability::Synced,
        false => Durability::Deferred,
    }
}

/// Returns the target that the machine boots. If `is_heard` is true, another boot of the machine is active, and no
/// attempt is counted.
pub fn choose_boot(
    transaction: &Transaction,
    machine: &str,
    files: &FileAllocation,
    is_heard: bool,
    quiet: Duration,
) -> sql::Result<BootTarget> {
    if let Some(next) = migration_boot(transaction, machine, files)? {
        return Ok(next);
    }
    match files {
        FileAllocation::Allocated(allocation) if is_heard => preview_boot(transaction, machine, allocation),
        FileAllocation::Allocated(allocation) => decide_boot(transaction, machine, allocation, quiet),
        FileAllocation::Free => Ok(BootTarget::Install),
        FileAllocation::Nothing => decide_without_file(transaction, machine),
    }
}

/// Returns the target that the machine would boot. Neither counts an attempt nor abandons the reinstall order.
fn preview_boot(transaction: &Transaction, machine: &str, allocation: &str) -> sql::Result<BootTarget> {
    let standing = read_install_state(transaction, machine, allocation)?;
    Ok(match (standing.elsewhere, standing.succeeded, standing.order) {
        (Some(other), _, _) => BootTarget::Elsewhere(other),
        (None, false, _) => BootTarget::Install,
        (None, true, Some(order)) if standing.unconfirmed && !order.given_up => BootTarget::Unconfirmed(order),
        (None, true, Some(order)) => BootTarget::Attempt(order),
        (None, true, None) => BootTarget::Disk,
    })
}

/// Returns whether an attempt was counted recently, and the boot of this attempt has not registered yet. In that case,
/// another boot request does not count as an attempt, since the request may come from any client.
fn is_attempt_counted(order: &ReinstallOrder, quiet: Duration) -> bool {
    let handed = order.handed.as_ref().and_then(|handed| OffsetDateTime::parse(handed, &Rfc3339).ok());
    handed.is_some_and(|handed| (OffsetDateTime::now_utc() - handed).unsigned_abs() < quiet)
}

pub(crate) fn decide_boot(
    transaction: &Transaction,
    machine: &str,
    allocation: &str,
    quiet: Duration,
) -> sql::Result<BootTarget> {
    let standing = read_install_state(transaction, machine, allocation)?;
    if let Some(other) = standing.elsewhere {
        return Ok(BootTarget::Elsewhere(other));
    }
    if !standing.succeeded {
        return Ok(BootTarget::Install);
    }
    let Some(mut order) = standing.order else { return Ok(BootTarget::Disk) };
    if standing.unconfirmed && !order.given_up {
        return Ok(BootTarget::Unconfirmed(order));
    }
    if is_attempt_counted(&order, quiet) && !order.given_up {
        return Ok(BootTarget::Attempt(order));
    }
    if !order.given_up && out_of_band::is_unfinished(transaction, machine, &order.id)? {
        return Ok(BootTarget::Attempt(order));
    }
    if order.attempts < ATTEMPTS && !order.given_up {
        order.attempts += 1;
        order.handed = Some(now());
        store_order(transaction, machine, allocation, &order)?;
        return Ok(BootTarget::Attempt(order));
    }
    if order.begun {
        // The last attempt may have succeeded although its report was lost in a power failure. One more boot can report
        // the success.
        let is_unheard = !std::mem::replace(&mut order.given_up, true);
        if is_unheard {
            store_order(transaction, machine, allocation, &order)?;
        }
        return Ok(if is_unheard { BootTarget::Attempt(order) } else { BootTarget::Stop(order) });
    }
    delete_order(transaction, machine, allocation)?;
    let message = format!("abandoned after {ATTEMPTS} attempts, none of which reached the point of no return");
    let entry = HistoryEntry { message: message.clone(), ..HistoryEntry::from_order(HistoryKind::Failed, &order) };
    insert_entry(transaction, machine, &entry)?;
    store_outcome(transaction, machine, allocation, &ReinstallOutcome::from_order(&order, false, message))?;
    Ok(BootTarget::Dropped(order))
}

/// Returns the boot target of a machine that has no machine file. An installed machine boots from its disk until its
/// machine file is back. If a reinstall has started, the disk does not contain a complete system, so the machine boots
/// the ramdisk and waits for its machine file. No attempt is counted.
fn decide_without_file(transaction: &Transaction, machine: &str) -> sql::Result<BootTarget> {
    let select = "SELECT o.begun FROM allocations a LEFT JOIN orders o ON o.machine = a.machine AND o.allocation = a.id
         WHERE a.machine = ?1 AND a.succeeded = 1 ORDER BY coalesce(o.begun, 0) DESC LIMIT 1";
    let installed = transaction.query_row(select, [machine], |row| row.get::<_, Option<u32>>(0)).optional()?;
    Ok(match installed {
        Some(begun) if begun.unwrap_or_default() == 0 => BootTarget::NoFile,
        Some(_) | None => BootTarget::Install,
    })
}
