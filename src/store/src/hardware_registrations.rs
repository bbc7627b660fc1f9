//! Registrations: the hardware that machines report at the start of a boot, and whether an installation has changed the
//! disks since then.

use super::{ServerState, TokenHash, now, to_json};
use crate::sql::{self, Connection, OptionalExtension, Transaction, params};
use common::error::Result;
use control::agent_api_types::RegisterRequest;
use model::inventory::Inventory;
use model::machine_identity::parse_usable_uuid;

/// Text that occurs in a stored registration only if the machine has inspected its disks. Strings inside the
/// registration cannot contain this text, because quotation marks in strings are escaped.
const INSPECTED: &str = r#""explored":true"#;

/// Stored registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRegistration {
    /// [`RegisterRequest`] as JSON.
    pub document: String,
    /// Time of the registration; `None` in databases of earlier versions.
    pub time: Option<String>,
    /// True if the machine has started to erase disks since the registration.
    pub has_begun_since: bool,
}

impl ServerState {
    /// Stores the registration of a machine.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn store_registration(&self, machine: &str, name: &str, register: &RegisterRequest) -> Result<()> {
        let macs: Vec<&str> = register.hardware.nics.iter().map(|nic| nic.mac.as_str()).collect();
        let (machine, name) = (machine.to_owned(), name.to_owned());
        let uuid = register.inventory.as_ref().and_then(|inventory| inventory.system.uuid.as_deref());
        let uuid = uuid.and_then(parse_usable_uuid).map(|uuid| uuid.to_string());
        let (macs, text) = (to_json(&macs)?, to_json(register)?);
        self.run_deferred(move |transaction| {
            let uuid = match uuid {
                Some(uuid) => Some(uuid),
                None => read_earlier_uuid(transaction, &machine)?,
            };
            transaction.execute(
                "INSERT INTO machines (id, macs, name, registered, registered_at, last_seen, smbios_uuid)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6)
                 ON CONFLICT (id) DO UPDATE SET macs = ?2, name = ?3, registered = ?4, registered_at = ?5, last_seen = ?5,
                 begun_since = NULL, smbios_uuid = ?6",
                params![machine, macs, name, text, now(), uuid],
            )
        })
        .await
        .map(drop)
    }

    /// Replaces the registration of a machine that has inspected its disks since it registered. Changes nothing and
    /// returns false if the stored registration already contains an inspection, or the machine has started to erase its
    /// disks. A boot can therefore replace its registration only once, and only with an inspection that precedes the
    /// erasure.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn complete_registration(&self, machine: &str, register: &RegisterRequest) -> Result<bool> {
        let (machine, text) = (machine.to_owned(), to_json(register)?);
        self.run_deferred(move |transaction| {
            transaction.execute(
                "UPDATE machines SET registered = ?2, registered_at = ?3, last_seen = ?3
                 WHERE id = ?1 AND registered NOT LIKE ?4 AND begun_since IS NULL",
                params![machine, text, now(), format!("%{INSPECTED}%")],
            )
        })
        .await
        .map(|changed| changed > 0)
    }

    /// Returns the last registration of the machine.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn find_registration(&self, machine: &str) -> Result<Option<StoredRegistration>> {
        let machine = machine.to_owned();
        self.run_job(move |connection| read_registration(connection, &machine)).await
    }

    /// Returns the last registration of the machine, even if a power failure may still undo it; in that case, the
    /// machine registers again. Does not wait for the jobs that machines have queued.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn find_committed_registration(&self, machine: &str) -> Result<Option<StoredRegistration>> {
        let machine = machine.to_owned();
        self.read_committed(move |connection| read_registration(connection, &machine)).await
    }

    /// Blocking variant of [`ServerState::find_registration`].
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub fn find_registration_blocking(&self, machine: &str) -> Result<Option<StoredRegistration>> {
        let machine = machine.to_owned();
        self.run_job_blocking(move |connection| read_registration(connection, &machine))
    }

    /// Returns, for each allocation with a report, the id of the machine and the last report as JSON.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub fn list_reports_blocking(&self) -> Result<Vec<(String, String)>> {
        self.run_job_blocking(|connection| {
            let all = connection.prepare("SELECT machine, report FROM allocations WHERE report IS NOT NULL")?;
            all.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        })
    }

    /// Returns the inventory in the machine's last registration, or `None` if this version does not support the
    /// inventory.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub fn read_inventory_blocking(&self, machine: &str) -> Result<Option<Inventory>> {
        let registered = self.find_registration_blocking(machine)?;
        Ok(registered.and_then(|registered| registered.parse_inventory()))
    }
}

impl StoredRegistration {
    /// Parses the inventory. Returns `None` if this version does not support the inventory. Parsing may take a long
    /// time, and must not run on a thread that serves requests.
    pub fn parse_inventory(&self) -> Option<Inventory> {
        let register = serde_json::from_str::<RegisterRequest>(&self.document).ok()?;
        register.inventory.filter(|inventory| inventory.find_exceeded_limit().is_none())
    }
}

/// Returns the UUID that the machine reported last. Databases of earlier versions contain the UUID only in the
/// registration.
fn read_earlier_uuid(transaction: &Transaction, machine: &str) -> sql::Result<Option<String>> {
    let select = "SELECT smbios_uuid, registered FROM machines WHERE id = ?1";
    let row = transaction.query_row(select, [machine], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let (uuid, registered): (Option<String>, Option<String>) = row.unwrap_or_default();
    let reported = || {
        let document: serde_json::Value = serde_json::from_str(&registered?).ok()?;
        document.pointer("/inventory/system/uuid")?.as_str().map(str::to_owned)
    };
    Ok(uuid.or_else(reported))
}

fn read_registration(connection: &Connection, machine: &str) -> sql::Result<Option<StoredRegistration>> {
    let select = "SELECT registered, registered_at, begun_since IS NOT NULL FROM machines
         WHERE id = ?1 AND registered IS NOT NULL";
    let registered = connection.query_row(select, [machine], |row| {
        Ok(StoredRegistration { document: row.get(0)?, time: row.get(1)?, has_begun_since: row.get(2)? })
    });
    registered.optional()
}

/// Records that the machine has started to erase disks in this boot. Its registered inventory is then outdated. Removes
/// the install marker that waits for the operator's confirmation, because the disks no longer contain it.
pub(crate) fn record_erase_start(transaction: &Transaction, boot: TokenHash) -> sql::Result<()> {
    let of_boot = "(SELECT machine FROM boots WHERE hash = ?1)";
    let update = format!("UPDATE machines SET begun_since = ?2 WHERE id = {of_boot}");
    transaction.execute(&update, params![boot, now()])?;
    transaction.execute(&format!("UPDATE allocations SET waits = NULL WHERE machine = {of_boot}"), [boot])?;
    Ok(())
}
