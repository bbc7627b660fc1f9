//! UUIDs and MAC addresses with which machines have registered.

use super::ServerState;
use crate::schema::POSTGRES_MAC_ARRAY;
use crate::sql::{self, Connection, OptionalExtension};
use common::error::Result;
use control::agent_api_types::RegisterRequest;
use model::machine_identity::{RegisteredIdentity, parse_usable_uuid, usable_mac};

impl ServerState {
    /// Reads the UUID and the MACs with which the machine registered last. Returns an empty identity if it has never
    /// registered.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn read_registered_identity(&self, machine: &str) -> Result<RegisteredIdentity> {
        let machine = machine.to_owned();
        self.run_job(move |connection| read_identity(connection, &machine)).await
    }

    /// Returns the ids of all machines whose last registration lists a NIC with this MAC.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn find_machines_with_mac(&self, mac: &str) -> Result<Vec<String>> {
        let mac = mac.to_ascii_lowercase();
        self.run_job(move |connection| find_machines_with_mac(connection, mac)).await
    }

    /// Returns the ids of all machines whose last registration lists a NIC with this MAC. Reads without waiting for the
    /// queued jobs of machines. A power failure may still undo a registration on which the result is based.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn find_committed_machines_with_mac(&self, mac: &str) -> Result<Vec<String>> {
        let mac = mac.to_ascii_lowercase();
        self.read_committed(move |connection| find_machines_with_mac(connection, mac)).await
    }

    /// Returns the ids of all machines that have registered, each with the version of the machine's registration. The
    /// version changes with every registration.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn list_registration_versions(&self) -> Result<Vec<(String, String)>> {
        self.run_job(|connection| {
            let select = connection.prepare_cached(
                "SELECT id, coalesce(registered_at, '') || ' ' || length(registered) FROM machines
                 WHERE registered IS NOT NULL",
            )?;
            select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        })
        .await
    }
}

fn find_machines_with_mac(connection: &Connection, mac: String) -> sql::Result<Vec<String>> {
    let select = match connection.as_sqlite() {
        Some(_) => "SELECT machine FROM machine_macs WHERE mac = ?1 ORDER BY machine".to_owned(),
        None => format!("SELECT id FROM machines WHERE {POSTGRES_MAC_ARRAY} @> ARRAY[?1] ORDER BY id"),
    };
    connection.prepare_cached(&select)?.query_map([mac], |row| row.get(0))?.collect()
}

/// Reads the identity from the machine's last registration. If the UUID column is NULL, as in databases of earlier
/// versions, the UUID is read from the registration. After a rename of the machine, the column is empty, and the
/// identity has no UUID, because the registration may contain the UUID of the replaced mainboard.
fn read_identity(connection: &Connection, machine: &str) -> sql::Result<RegisteredIdentity> {
    let select = "SELECT macs, registered, smbios_uuid FROM machines WHERE id = ?1 AND registered IS NOT NULL";
    let row = connection.prepare_cached(select)?.query_row([machine], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, Option<String>>(2)?))
    });
    let Some((macs, document, uuid)) = row.optional()? else { return Ok(RegisteredIdentity::default()) };
    let macs: Vec<String> = serde_json::from_str(&macs).unwrap_or_default();
    Ok(RegisteredIdentity {
        uuid: uuid.or_else(|| reported_uuid(&document)).as_deref().and_then(parse_usable_uuid),
        macs: macs.iter().filter_map(|mac| usable_mac(mac)).collect(),
    })
}

fn reported_uuid(document: &str) -> Option<String> {
    serde_json::from_str::<RegisterRequest>(document).ok()?.inventory?.system.uuid
}
