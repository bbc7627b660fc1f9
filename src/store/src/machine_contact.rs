//! Last contact of a machine with the server: the time, the last event, and the address.

use super::registered_boots::current_boot;
use super::{MachineBoot, ServerState};
use crate::sql::{self, Connection, OptionalExtension};
use common::error::Result;
use time::format_description::well_known::Rfc3339;

/// Last contact of a machine with the server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineContact {
    /// Time of the last registration, event or request, as RFC 3339 in UTC; `None` if the machine was never seen.
    pub last_seen: Option<String>,
    /// Last event, as JSON.
    pub last_event: Option<String>,
    /// True if the machine has reported the end of an installation, and no later boot has sent an event.
    pub has_reported: bool,
    /// The machine's boot that registered last.
    pub boot: Option<MachineBoot>,
}

impl ServerState {
    /// Returns the last contact of the machine.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn read_contact(&self, machine: &str) -> Result<MachineContact> {
        let machine = machine.to_owned();
        let mut contact = self.run_job(move |connection| read_contact(connection, &machine)).await?;
        self.add_last_call(&mut contact);
        Ok(contact)
    }

    /// Adds the time of the last request, which is only in memory, since requests are too frequent to be stored.
    pub fn add_last_call(&self, contact: &mut MachineContact) {
        let called = contact.boot.as_ref().and_then(|boot| self.heard.last_call(&boot.hash));
        let called = called.and_then(|time| time.format(&Rfc3339).ok());
        contact.last_seen = contact.last_seen.take().max(called);
    }
}

/// Reads the stored contact of a machine.
pub(crate) fn read_contact(connection: &Connection, machine: &str) -> sql::Result<MachineContact> {
    let select = "SELECT last_seen, last_event, reported IS NOT NULL FROM machines WHERE id = ?1";
    let contact = connection.prepare_cached(select)?.query_row([machine], |row| {
        let (last_seen, last_event, has_reported) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(MachineContact { last_seen, last_event, has_reported, boot: None })
    });
    let boot = current_boot(connection, machine)?;
    Ok(MachineContact { boot, ..contact.optional()?.unwrap_or_default() })
}
