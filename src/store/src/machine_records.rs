//! All records of a machine that its summary needs, read at once. A list of machines reads many of them in one job.

use super::freed_machines::may_run_previous_system;
use super::install_state::read_install_state;
use super::machine_contact::read_contact;
use super::machine_migration::Migration;
use super::migration_records::find_live;
use super::out_of_band::read_run;
use super::{InstallState, MachineContact, OutOfBandRun, ServerState};
use crate::sql::{self, Connection};
use common::error::Result;

/// Maximum number of machines that are read in one job. Other jobs wait for the end of the job.
const AT_ONCE: usize = 64;

/// Records of one machine.
#[derive(Debug, Clone)]
pub struct MachineRecords {
    pub standing: InstallState,
    pub contact: MachineContact,
    /// Open migration of the machine.
    pub migration: Option<Migration>,
    /// Last run of steps over Redfish.
    pub run: Option<OutOfBandRun>,
    /// True if the system of a previous tenant may still run on the machine.
    pub may_run_previous_system: bool,
}

impl ServerState {
    /// Returns the records of these machines, in their order. Each machine is specified by its id, and by the id of the
    /// allocation in its machine file.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn read_machine_records(&self, machines: Vec<(String, Option<String>)>) -> Result<Vec<MachineRecords>> {
        let mut all = Vec::with_capacity(machines.len());
        for part in machines.chunks(AT_ONCE) {
            let part = part.to_vec();
            let read = self.run_job(move |connection| {
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
        // Machines without an allocation may need confirmation too.
        standing: read_install_state(connection, id, allocation.unwrap_or_default())?,
        contact: read_contact(connection, id)?,
        migration: find_live(connection, id)?,
        run: read_run(connection, id)?,
        may_run_previous_system: may_run_previous_system(connection, id, allocation)?,
    })
}
