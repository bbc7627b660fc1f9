//! Machines that the operator has freed. The system of the previous tenant may still run on such a machine.

use super::event_history::{HistoryEntry, HistoryKind, insert_entry};
use super::incomplete_installations::is_replaced;
use super::install_state::{InstallState, read_install_state};
use super::migration_records::find_live;
use super::reinstall_order_records::{ReinstallOrder, delete_order, store_order};
use super::{ServerState, out_of_band_runs};
use crate::sql::{self, Connection, OptionalExtension, Transaction, params};
use common::error::Result;

/// Result of [`ServerState::release_allocation`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "each request contains only one value of this enum")]
pub enum ReleaseOutcome {
    /// The allocation is released. Contains the reinstall order that was canceled.
    Released(Option<ReinstallOrder>),
    /// An installation of the allocation has passed its point of no return and has not ended. Nothing has changed.
    Started,
}

/// SQL query that returns a row if the system of a previous tenant may run: an allocation other than the one in the
/// machine file is installed. The query returns no row if the allocation in the machine file is installed or its
/// installation has started, or if a registered boot of the machine has not ended.
const PREVIOUS_SYSTEM_QUERY: &str = "SELECT 1 FROM allocations a WHERE a.machine = ?1 AND a.id IS DISTINCT FROM ?2
         AND (a.succeeded = 1 OR a.adopted IS NOT NULL)
         AND NOT EXISTS (SELECT 1 FROM allocations b WHERE b.machine = ?1 AND b.id = ?2
             AND (b.succeeded = 1 OR b.adopted IS NOT NULL OR b.begun IS NOT NULL))
         AND NOT EXISTS (SELECT 1 FROM boots WHERE machine = ?1 AND address IS NOT NULL AND over IS NULL)";

impl ServerState {
    /// Cancels the reinstall order of the allocation, ends the boots that may have received the allocation, and
    /// records that the machine is freed. No attempt can start afterwards. An order that was abandoned after its
    /// point of no return remains, because the system of the allocation is incomplete: if the allocation is added
    /// again, the machine must not boot this system.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn release_allocation(&self, machine: &str, allocation: &str) -> Result<ReleaseOutcome> {
        let (machine, allocation, time) = (machine.to_owned(), allocation.to_owned(), self.shared_timestamp());
        self.run_durably_for(machine.clone(), move |transaction| {
            let standing = read_install_state(transaction, &machine, &allocation)?;
            if is_installing(&standing) {
                return Ok(ReleaseOutcome::Started);
            }
            let order = standing.order.filter(|order| !order.started);
            if let Some(order) = &order {
                cancel_released_order(transaction, &machine, &allocation, order)?;
            }
            // A boot that has not received the allocation remains: its machine waits in the ramdisk.
            let delete = "DELETE FROM boots WHERE machine = ?1
                 AND EXISTS (SELECT 1 FROM allocations WHERE machine = ?1 AND id = ?2)";
            transaction.execute(delete, [&machine, &allocation])?;
            out_of_band_runs::delete_run(transaction, &machine)?;
            record_freed(transaction, &machine, &time)?;
            Ok(ReleaseOutcome::Released(order))
        })
        .await
    }

    /// Restores an order that [`ServerState::release_allocation`] has canceled. Returns false if the allocation has
    /// another order now, or the machine is part of a migration.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn restore_released_order(&self, machine: &str, allocation: &str, order: ReinstallOrder) -> Result<bool> {
        let (machine, allocation) = (machine.to_owned(), allocation.to_owned());
        self.run_durably_for(machine.clone(), move |transaction| {
            let has_order = read_install_state(transaction, &machine, &allocation)?.order.is_some();
            if has_order || find_live(transaction, &machine)?.is_some() {
                return Ok(false);
            }
            store_order(transaction, &machine, &allocation, &order)?;
            insert_entry(transaction, &machine, &HistoryEntry::from_order(HistoryKind::Ordered, &order))?;
            Ok(true)
        })
        .await
    }

    /// Cancels the reinstall orders of an allocation that was removed from the machine file. `current` is the
    /// allocation that the file contains now. An order that has started is deleted only if another allocation was
    /// installed later, or the operator has adopted the current allocation: otherwise, the disks still contain the
    /// incomplete system of the order. Returns the deleted orders.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn cancel_removed_orders(
        &self,
        machine: &str,
        allocation: &str,
        current: Option<&str>,
    ) -> Result<Option<ReinstallOrder>> {
        let (machine, allocation) = (machine.to_owned(), allocation.to_owned());
        let current = current.map(str::to_owned);
        self.run_durably_for(machine.clone(), move |transaction| {
            let Some(order) = read_install_state(transaction, &machine, &allocation)?.order else { return Ok(None) };
            let is_adopted = match &current {
                Some(current) => {
                    let current = read_install_state(transaction, &machine, current)?;
                    current.adopted || current.is_claimed
                }
                None => false,
            };
            let is_superseded = is_adopted || is_replaced(transaction, &machine, &allocation, order.fencing.as_ref())?;
            if order.started && !is_superseded {
                return Ok(None);
            }
            cancel_released_order(transaction, &machine, &allocation, &order)?;
            Ok(Some(order))
        })
        .await
    }

    /// Returns the machines and allocations for which reinstall orders are open.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn list_ordered_allocations(&self) -> Result<Vec<(String, String)>> {
        self.run_job(|connection| {
            let select =
                connection.prepare_cached("SELECT machine, allocation FROM orders ORDER BY machine, allocation")?;
            select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        })
        .await
    }

    /// Records that the operator frees the machine. A boot that was requested before the machine was freed can no
    /// longer register.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn free_machine(&self, machine: &str) -> Result<()> {
        let (machine, time) = (machine.to_owned(), self.shared_timestamp());
        self.run_durably_for(machine.clone(), move |transaction| {
            out_of_band_runs::delete_run(transaction, &machine)?;
            record_freed(transaction, &machine, &time)
        })
        .await
    }

    /// Returns whether the system of a previous tenant may still run on the machine. `allocation` is the allocation in
    /// the machine file.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn may_run_previous_system(&self, machine: &str, allocation: Option<&str>) -> Result<bool> {
        let (machine, allocation) = (machine.to_owned(), allocation.map(str::to_owned));
        self.run_job(move |connection| may_run_previous_system(connection, &machine, allocation.as_deref())).await
    }
}

/// Returns whether the system of a previous tenant may still run on the machine, according to
/// [`PREVIOUS_SYSTEM_QUERY`]. `allocation` is the allocation in the machine file.
pub(crate) fn may_run_previous_system(
    connection: &Connection,
    machine: &str,
    allocation: Option<&str>,
) -> sql::Result<bool> {
    connection.prepare_cached(PREVIOUS_SYSTEM_QUERY)?.exists(params![machine, allocation])
}

/// Returns whether an installation of the allocation has passed its point of no return and has not ended.
fn is_installing(standing: &InstallState) -> bool {
    standing.order.as_ref().is_some_and(|order| order.started && !order.given_up)
        || (!standing.is_installed() && standing.first.as_ref().is_some_and(|first| !first.heard))
}

/// Deletes the reinstall order of an allocation that is removed from the machine file.
fn cancel_released_order(
    transaction: &Transaction,
    machine: &str,
    allocation: &str,
    order: &ReinstallOrder,
) -> sql::Result<()> {
    delete_order(transaction, machine, allocation)?;
    let message = "the allocation was removed from the machine file".to_owned();
    let entry = HistoryEntry { message, ..HistoryEntry::from_order(HistoryKind::Cancelled, order) };
    insert_entry(transaction, machine, &entry)
}

fn record_freed(transaction: &Transaction, machine: &str, time: &str) -> sql::Result<()> {
    let upsert = "INSERT INTO machines (id, freed) VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE SET freed = ?2";
    transaction.execute(upsert, params![machine, time]).map(drop)
}

/// Returns the time at which the machine was last freed, as RFC 3339; `None` if it was never freed.
pub(crate) fn last_freed(connection: &Connection, machine: &str) -> sql::Result<Option<String>> {
    let select = "SELECT freed FROM machines WHERE id = ?1";
    connection.prepare_cached(select)?.query_row([machine], |row| row.get(0)).optional().map(Option::flatten)
}
