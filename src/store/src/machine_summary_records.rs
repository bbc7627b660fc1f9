//! All records that the summary of a machine needs. A list reads the records of many machines in one job.

use super::freed_machines::may_run_previous_system;
use super::install_state::read_install_state;
use super::machine_contact::read_contact;
use super::machine_migration::Migration;
use super::migration_records::find_live;
use super::out_of_band_runs::read_run;
use super::{InstallState, MachineContact, OutOfBandRun, ServerState};
use crate::sql::{self, Connection, OptionalExtension};
use common::error::Result;

/// Number of machines whose records are read in one job of a SQLite file. Each job costs two thread switches.
const MACHINES_PER_JOB: usize = 64;

/// Number of machines whose records are read in one job in PostgreSQL, where each machine takes about a millisecond.
/// Requests that create machine files wait for such a job before each of their reads.
const MACHINES_PER_POSTGRES_JOB: usize = 8;

/// Records of one machine.
#[derive(Debug, Clone)]
pub struct MachineRecords {
    pub install_state: InstallState,
    pub contact: MachineContact,
    /// Open migration of the machine.
    pub migration: Option<Migration>,
    /// Last run of steps through the machine's management controller over Redfish.
    pub run: Option<OutOfBandRun>,
    /// True if the system of a previous tenant may still run on the machine.
    pub may_run_previous_system: bool,
}

impl ServerState {
    /// Returns the time at which the machine was last seen, and the last event that it sent, as JSON.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn last_event(&self, machine: &str) -> Result<Option<(String, String)>> {
        let machine = machine.to_owned();
        self.run_job(move |connection| {
            let select = "SELECT last_seen, last_event FROM machines WHERE id = ?1 AND last_event IS NOT NULL";
            connection.query_row(select, [&machine], |row| Ok((row.get(0)?, row.get(1)?))).optional()
        })
        .await
    }

    /// Returns whether the database has a record of this allocation on the machine: the allocation was served, adopted
    /// or reported at some time.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn has_allocation(&self, machine: &str, allocation: &str) -> Result<bool> {
        let key = [machine.to_owned(), allocation.to_owned()];
        self.run_job(move |connection| {
            let select = "SELECT 1 FROM allocations WHERE machine = ?1 AND id = ?2";
            connection.query_row(select, key, |_| Ok(())).optional().map(|there| there.is_some())
        })
        .await
    }

    /// Returns whether the database has a record of the machine. A machine is recorded when it requests a boot, unless
    /// it is unknown and the limit of unknown machines is reached.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn is_recorded(&self, machine: &str) -> Result<bool> {
        let machine = machine.to_owned();
        self.run_job(move |connection| {
            connection.prepare_cached("SELECT 1 FROM machines WHERE id = ?1")?.exists([machine])
        })
        .await
    }

    /// Returns the records of these machines, in their order. Each machine is specified by its id, and by the id of the
    /// allocation in its machine file.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn read_machine_records(&self, machines: Vec<(String, Option<String>)>) -> Result<Vec<MachineRecords>> {
        let mut all = Vec::with_capacity(machines.len());
        let reads_postgres = self.is_shared() && self.record_copy.is_none();
        let count = if reads_postgres { MACHINES_PER_POSTGRES_JOB } else { MACHINES_PER_JOB };
        for part in machines.chunks(count) {
            let part = part.to_vec();
            let read = self.read_records(move |connection| {
                part.iter().map(|(id, allocation)| read_records(connection, id, allocation.as_deref())).collect()
            });
            let read: Vec<MachineRecords> = read.await?;
            all.extend(read);
        }
        for records in &mut all {
            self.add_last_call(&mut records.contact);
        }
        Ok(all)
    }
}

fn read_records(connection: &Connection, id: &str, allocation: Option<&str>) -> sql::Result<MachineRecords> {
    Ok(MachineRecords {
        // The state is also read for machines without an allocation, because they may also need confirmation after a
        // restore.
        install_state: read_install_state(connection, id, allocation.unwrap_or_default())?,
        contact: read_contact(connection, id)?,
        migration: find_live(connection, id)?,
        run: read_run(connection, id)?,
        may_run_previous_system: may_run_previous_system(connection, id, allocation)?,
    })
}
