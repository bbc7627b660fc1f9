//! Leases that determine which of several servers owns an action on a machine's management controller.
//!
//! A lease has an expiry time, which is compared only with the clock of the database, and a fencing number, which
//! increases with each claim. Before each request to the controller, the server renews its lease in a durable
//! transaction, which also records that the request may be sent. If the server exits before it has recorded the
//! response, another server finds this record, and does not repeat a request that must not be sent twice.
//!
//! Claims and releases neither wait for the disk nor wake the other servers. The transaction that permits the first
//! request makes the claim durable. If a release is lost, the lease expires.
//!
//! A SQLite file belongs to one server, so leases of earlier processes of this server are abandoned.

use crate::json_columns::{parse_column, to_json_column};
use crate::postgres_database::NOW;
use crate::sql::{self, Connection, OptionalExtension, Row, Transaction, params};
use crate::{ServerState, now};
use common::error::Result;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Duration of a lease.
pub const LEASE: Duration = Duration::from_secs(10);
/// Interval at which a lease is renewed.
pub const RENEWAL: Duration = Duration::from_millis(2500);
/// Time before the expiry of a lease at which its server stops sending requests.
const LEASE_END_MARGIN: Duration = Duration::from_secs(1);

/// SQL statement that creates the table of leases.
pub(crate) const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS server_leases (
        machine TEXT PRIMARY KEY, holder TEXT NOT NULL, sequence INTEGER NOT NULL, expires INTEGER NOT NULL,
        switched INTEGER NOT NULL, pending INTEGER NOT NULL, document TEXT NOT NULL) STRICT;
";

/// Identity of this server process, for leases.
#[derive(Debug, Clone)]
pub(crate) struct ServerInstance {
    id: Arc<str>,
    /// Name of the host and id of the process, for operators.
    name: Arc<str>,
}

impl ServerInstance {
    pub(crate) fn holder_id(&self) -> &str {
        &self.id
    }

    pub(crate) fn display_name(&self) -> &str {
        &self.name
    }
}

impl Default for ServerInstance {
    fn default() -> ServerInstance {
        let host = nix::unistd::gethostname().unwrap_or_default();
        let name = format!("{} (process {})", host.to_string_lossy(), std::process::id());
        ServerInstance { id: Uuid::new_v4().to_string().into(), name: name.into() }
    }
}

/// Origin of an action on a management controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActionOrigin {
    /// The action was requested by an operator, who waits for the result.
    Operator,
    /// The action is the power cycle of a machine in a rollout.
    Rollout { rollout: i64, number: usize },
    /// The action is a Redfish step before an installation.
    Step,
}

/// Action for which a lease is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeasedAction {
    pub origin: ActionOrigin,
    /// Name of the action, such as `cycle`.
    pub action: String,
    /// User or rollout that has requested the action.
    pub requested_by: String,
    /// Server that holds the lease.
    #[serde(default)]
    pub server: String,
    /// Time of the claim, as RFC 3339 in UTC, by the clock of the server; for display only.
    #[serde(default)]
    pub since: String,
}

impl LeasedAction {
    pub fn new(origin: ActionOrigin, action: impl ToString, requested_by: impl ToString) -> LeasedAction {
        let (action, requested_by) = (action.to_string(), requested_by.to_string());
        LeasedAction { origin, action, requested_by, server: String::new(), since: now() }
    }

    /// Describes the action for operators.
    pub fn describe(&self) -> String {
        let LeasedAction { action, requested_by, server, since, .. } = self;
        format!("{action}, requested by {requested_by} at {since}, at server {server}")
    }
}

/// Lease that this server holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerLease {
    pub machine: String,
    /// Fencing number of the lease.
    pub sequence: i64,
    pub action: LeasedAction,
}

/// Lease that is no longer in force, because its server has neither renewed nor released it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbandonedLease {
    pub lease: ServerLease,
    /// True if the server may have sent a request that changes the power state.
    pub may_have_switched: bool,
    /// True if the server may have sent a request whose response is not recorded.
    pub is_pending: bool,
}

/// Result of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseClaim {
    Claimed(ServerLease),
    /// Another action on the machine is in progress.
    Busy(LeasedAction),
    /// The action must not be carried out.
    Refused,
}

struct StoredLease {
    holder: String,
    expires: i64,
    abandoned: AbandonedLease,
}

const COLUMNS: &str = "machine, holder, sequence, expires, switched, pending, document";

impl StoredLease {
    fn read(row: &Row) -> sql::Result<StoredLease> {
        let missing = || sql::Error::Unsuitable("a lease has no document".to_owned());
        let lease = ServerLease {
            machine: row.get(0)?,
            sequence: row.get(2)?,
            action: parse_column(row, 6)?.ok_or_else(missing)?,
        };
        let abandoned = AbandonedLease {
            lease,
            may_have_switched: row.get::<_, i64>(4)? == 1,
            is_pending: row.get::<_, i64>(5)? == 1,
        };
        Ok(StoredLease { holder: row.get(1)?, expires: row.get(3)?, abandoned })
    }

    /// Returns whether the holder of the lease may still act. `time` is the time of the database's clock.
    fn is_in_force(&self, own: &ServerInstance, time: Option<i64>) -> bool {
        match time {
            Some(time) => !self.holder.is_empty() && self.expires > time,
            None => self.holder == *own.id,
        }
    }
}

/// Returns the time of PostgreSQL's clock in milliseconds; `None` on SQLite.
pub(crate) fn read_time(connection: &Connection) -> sql::Result<Option<i64>> {
    match connection.as_postgres() {
        Some(_) => connection.query_row(&format!("SELECT {NOW}"), [], |row| row.get(0)).map(Some),
        None => Ok(None),
    }
}

/// Returns the end of a lease that is claimed or renewed at this time.
pub(crate) fn compute_lease_end(time: Option<i64>) -> i64 {
    time.unwrap_or_default() + i64::try_from(LEASE.as_millis()).unwrap_or(i64::MAX)
}

fn read_lease(connection: &Connection, machine: &str) -> sql::Result<Option<StoredLease>> {
    let select = format!("SELECT {COLUMNS} FROM server_leases WHERE machine = ?1");
    connection.query_row(&select, [machine], StoredLease::read).optional()
}

/// Claims the lease of a machine, if no server holds it. An abandoned lease can be claimed only to continue the
/// abandoned action; the caller then passes this lease as `former`.
pub(crate) fn claim_lease(
    transaction: &Transaction,
    own: &ServerInstance,
    machine: &str,
    mut action: LeasedAction,
    former: Option<&ServerLease>,
) -> sql::Result<LeaseClaim> {
    let time = read_time(transaction)?;
    let stored = read_lease(transaction, machine)?;
    let sequence = stored.as_ref().map_or(0, |stored| stored.abandoned.lease.sequence);
    let is_free = stored.as_ref().is_none_or(|stored| stored.holder.is_empty());
    match stored.filter(|stored| !stored.holder.is_empty()) {
        Some(stored) if stored.is_in_force(own, time) => return Ok(LeaseClaim::Busy(stored.abandoned.lease.action)),
        Some(stored) if former != Some(&stored.abandoned.lease) => {
            return Ok(LeaseClaim::Busy(stored.abandoned.lease.action));
        }
        _ => {}
    }
    if is_free && former.is_some() {
        return Ok(LeaseClaim::Refused);
    }
    action.server = own.name.to_string();
    let upsert = "INSERT INTO server_leases (machine, holder, sequence, expires, switched, pending, document)
         VALUES (?1, ?2, ?3, ?4, 0, 0, ?5) ON CONFLICT (machine) DO UPDATE
         SET holder = ?2, sequence = ?3, expires = ?4, switched = 0, pending = 0, document = ?5";
    let document = to_json_column(&action)?;
    transaction.execute(upsert, params![machine, own.id.as_ref(), sequence + 1, compute_lease_end(time), document])?;
    Ok(LeaseClaim::Claimed(ServerLease { machine: machine.to_owned(), sequence: sequence + 1, action }))
}

/// Renews a lease that is still in force, and records that a request may be sent. Returns false if the lease has ended.
pub(crate) fn permit_request(
    transaction: &Transaction,
    own: &ServerInstance,
    lease: &ServerLease,
    switches: bool,
) -> sql::Result<bool> {
    let time = read_time(transaction)?;
    let update =
        "UPDATE server_leases SET expires = ?4, pending = 1, switched = CASE WHEN ?5 = 1 THEN 1 ELSE switched END
         WHERE machine = ?1 AND holder = ?2 AND sequence = ?3 AND expires > ?6";
    let values = params![
        lease.machine,
        own.id.as_ref(),
        lease.sequence,
        compute_lease_end(time),
        switches,
        time.unwrap_or_default()
    ];
    Ok(transaction.execute(update, values)? == 1)
}

/// Returns whether the lease has permitted a request that changes the power state.
pub(crate) fn has_switched(connection: &Connection, lease: &ServerLease) -> sql::Result<bool> {
    let stored = read_lease(connection, &lease.machine)?.map(|stored| stored.abandoned);
    Ok(stored.is_some_and(|stored| stored.lease.sequence == lease.sequence && stored.may_have_switched))
}

/// Releases a lease, unless another server has claimed it in the meantime. Returns whether it was released.
pub(crate) fn release_lease(transaction: &Transaction, lease: &ServerLease) -> sql::Result<bool> {
    let update = "UPDATE server_leases SET holder = '', expires = 0, switched = 0, pending = 0
         WHERE machine = ?1 AND sequence = ?2 AND holder <> ''";
    Ok(transaction.execute(update, params![lease.machine, lease.sequence])? == 1)
}

/// Deletes all leases of a restored database. Returns the origins of the actions that had not ended.
pub(crate) fn delete_leases(transaction: &Transaction) -> sql::Result<Vec<ActionOrigin>> {
    let held = read_held(transaction)?;
    transaction.execute("DELETE FROM server_leases", [])?;
    Ok(held.into_iter().map(|stored| stored.abandoned.lease.action.origin).collect())
}

impl ServerState {
    /// Claims the lease of a machine for an action. `former` is the abandoned lease whose action is taken over.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn claim_lease(
        &self,
        machine: &str,
        action: LeasedAction,
        former: Option<ServerLease>,
    ) -> Result<LeaseClaim> {
        let (own, machine) = (self.instance.clone(), machine.to_owned());
        self.run_deferred(move |transaction| claim_lease(transaction, &own, &machine, action, former.as_ref())).await
    }

    /// Renews a lease. Returns false if it has ended.
    ///
    /// # Errors
    /// Returns an error if the database cannot be written.
    pub async fn renew_lease(&self, lease: &ServerLease) -> Result<bool> {
        let (own, lease) = (self.instance.clone(), lease.clone());
        self.run_deferred(move |transaction| {
            let time = read_time(transaction)?;
            let update = "UPDATE server_leases SET expires = ?4
                 WHERE machine = ?1 AND holder = ?2 AND sequence = ?3 AND expires > ?5";
            let end = compute_lease_end(time);
            let values = params![lease.machine, own.id.as_ref(), lease.sequence, end, time.unwrap_or_default()];
            Ok(transaction.execute(update, values)? == 1)
        })
        .await
    }

    /// Permits the next request of an action. The caller must send the request immediately. `permit` is called within
    /// a transaction; it checks whether the request is permitted, and records the permission. Returns false if the
    /// request must not be sent.
    ///
    /// # Errors
    /// Returns an error if the database cannot be written. The request must then not be sent.
    pub(crate) async fn permit_within_lease(
        &self,
        permit: impl FnOnce(&Transaction, &ServerInstance) -> sql::Result<bool> + Send + 'static,
    ) -> Result<bool> {
        let (own, began) = (self.instance.clone(), Instant::now());
        let is_permitted = self.run_durably(move |transaction| permit(transaction, &own)).await?;
        // If the process was paused after the transaction, the lease may have expired.
        Ok(is_permitted && began.elapsed() < LEASE - LEASE_END_MARGIN)
    }

    /// Permits the next request of an action. Returns false if the lease has ended.
    ///
    /// # Errors
    /// Returns an error if the database cannot be written. The request must then not be sent.
    pub async fn permit_request(&self, lease: &ServerLease, switches: bool) -> Result<bool> {
        let lease = lease.clone();
        self.permit_within_lease(move |transaction, own| permit_request(transaction, own, &lease, switches)).await
    }

    /// Records that the controller has responded to the permitted request.
    ///
    /// # Errors
    /// Returns an error if the database cannot be written.
    pub async fn confirm_request(&self, lease: &ServerLease) -> Result<()> {
        let lease = lease.clone();
        self.run_deferred(move |transaction| {
            let update = "UPDATE server_leases SET pending = 0 WHERE machine = ?1 AND sequence = ?2";
            transaction.execute(update, params![lease.machine, lease.sequence]).map(drop)
        })
        .await
    }

    /// Releases a lease, unless another server has claimed it in the meantime. Returns whether it was released.
    ///
    /// # Errors
    /// Returns an error if the database cannot be written.
    pub async fn release_lease(&self, lease: &ServerLease) -> Result<bool> {
        let lease = lease.clone();
        self.run_deferred(move |transaction| release_lease(transaction, &lease)).await
    }

    /// Returns the leases that have ended without being released.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn list_abandoned_leases(&self) -> Result<Vec<AbandonedLease>> {
        let own = self.instance.clone();
        self.run_job(move |connection| {
            let time = read_time(connection)?;
            let all = read_held(connection)?.into_iter().filter(|stored| !stored.is_in_force(&own, time));
            Ok(all.map(|stored| stored.abandoned).collect())
        })
        .await
    }

    /// Returns whether a server may still send a request of this rollout.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn has_pending_requests(&self, rollout: i64) -> Result<bool> {
        let own = self.instance.clone();
        self.run_job(move |connection| {
            let time = read_time(connection)?;
            let is_of_rollout =
                |origin: &ActionOrigin| matches!(origin, ActionOrigin::Rollout { rollout: id, .. } if *id == rollout);
            Ok(read_held(connection)?.iter().any(|stored| {
                stored.abandoned.is_pending
                    && stored.is_in_force(&own, time)
                    && is_of_rollout(&stored.abandoned.lease.action.origin)
            }))
        })
        .await
    }
}

fn read_held(connection: &Connection) -> sql::Result<Vec<StoredLease>> {
    let select = format!("SELECT {COLUMNS} FROM server_leases WHERE holder <> ''");
    connection.prepare_cached(&select)?.query_map([], StoredLease::read)?.collect()
}
