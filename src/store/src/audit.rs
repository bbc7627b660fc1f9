//! Audit log: one entry for each request that changes something, and for each refused request. An entry is stored when
//! the request arrives, and is completed with the response. The entry is on disk before the change that the request
//! makes, or together with it. The database transaction that makes the change marks the entry as committed. A completed
//! entry is never changed; only the retention deletes entries.

use crate::ServerState;
use crate::json_columns::{parse_column, to_json_column};
use crate::sql::{self, Row, Transaction, params};
use common::error::Result;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Maximum number of entries in a page.
pub const PAGE: u32 = 1000;

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AuditOutcome {
    /// The request is being handled, or the server exited before the response was ready.
    Started,
    /// The request was carried out.
    Done,
    /// The request was refused: the status is below 500.
    Refused,
    /// The request failed: the status is 500 or above.
    Failed,
}

impl AuditOutcome {
    /// Returns the outcome of a response with this status.
    pub fn from_status(status: u16) -> AuditOutcome {
        match status {
            0..400 => AuditOutcome::Done,
            400..500 => AuditOutcome::Refused,
            _ => AuditOutcome::Failed,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            AuditOutcome::Started => "started",
            AuditOutcome::Done => "done",
            AuditOutcome::Refused => "refused",
            AuditOutcome::Failed => "failed",
        }
    }

    fn parse(text: &str) -> AuditOutcome {
        let all = [AuditOutcome::Done, AuditOutcome::Refused, AuditOutcome::Failed];
        all.into_iter().find(|outcome| outcome.as_str() == text).unwrap_or(AuditOutcome::Started)
    }
}

/// Field that a request has changed, with its value before and after the request. Secrets in the values are replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct AuditChange {
    /// Object and field, such as `machines/one.yaml: /allocation/image`.
    pub path: String,
    /// Value before the request; absent if the field did not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// Value after the request; absent if the field no longer exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
}

/// Entry of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct AuditEntry {
    pub id: i64,
    /// Time of the request, as RFC 3339 in UTC.
    pub time: String,
    /// User who sent the request; empty if the request was not authenticated.
    pub user: String,
    /// Name of the user's token.
    pub token: String,
    /// Role of the user at the time of the request.
    pub role: String,
    pub address: String,
    /// Id of the request, which also identifies its lines in the server's log.
    pub request: String,
    pub method: String,
    pub path: String,
    /// Method and route, such as `POST /v1/machine/{id}/reinstall`.
    pub action: String,
    /// Id of the machine, or name of another object; ids of several machines are separated by `, `. Empty if the
    /// request has no object, or if the object is in the body of a request that is still being handled.
    pub object: String,
    pub outcome: AuditOutcome,
    /// HTTP status of the response; absent while the request is being handled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// True if a transaction of the request was committed.
    pub committed: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<AuditChange>,
    /// Reason why the request was refused; empty if it was not refused.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

impl AuditEntry {
    /// Returns the ids or names of the objects.
    pub fn objects(&self) -> impl Iterator<Item = &str> {
        self.object.split(", ")
    }
}

/// Requirement on when an entry must be on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditDurability {
    /// The entry is on disk before the request changes something. Required for requests that write files, or send
    /// requests to management controllers.
    BeforeChange,
    /// The entry is on disk as soon as a later durable transaction is on disk, because the log of the database is
    /// sequential. A power failure may undo the entry only together with the change. Requires that the request changes
    /// nothing outside of the database.
    WithChange,
}

/// Filters of the audit log. Empty filters match every entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AuditQuery {
    /// Name of the user.
    pub who: String,
    /// Id of a machine, or name of another object. An entry with several objects matches if one of them has this id or
    /// name.
    pub machine: String,
    /// Text that the action must contain.
    pub action: String,
    /// Time of the earliest entry, as RFC 3339.
    pub since: String,
    /// Exclusive upper limit of the ids of the entries.
    pub before: Option<i64>,
    /// Exclusive lower limit of the ids. If set, the oldest entry is first; otherwise, the newest entry is first.
    pub after: Option<i64>,
    /// Maximum number of entries.
    pub limit: Option<u32>,
}

/// Limits above which the oldest entries are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditRetention {
    pub days: u32,
    pub entries: u32,
}

const COLUMNS: &str = "SELECT id, time, who, token, role, address, request, method, path, action, object, outcome,
    status, committed, changes, reason FROM audit";

fn read_entry(row: &Row) -> sql::Result<AuditEntry> {
    Ok(AuditEntry {
        id: row.get(0)?,
        time: row.get(1)?,
        user: row.get(2)?,
        token: row.get(3)?,
        role: row.get(4)?,
        address: row.get(5)?,
        request: row.get(6)?,
        method: row.get(7)?,
        path: row.get(8)?,
        action: row.get(9)?,
        object: row.get(10)?,
        outcome: AuditOutcome::parse(&row.get::<_, String>(11)?),
        status: row.get::<_, Option<i64>>(12)?.and_then(|status| u16::try_from(status).ok()),
        committed: row.get(13)?,
        changes: parse_column(row, 14)?.unwrap_or_default(),
        reason: row.get(15)?,
    })
}

/// Marks an entry as committed. Must be called in the transaction that makes the change.
pub(crate) fn mark_committed(transaction: &Transaction, entry: i64) -> sql::Result<()> {
    transaction.execute("UPDATE audit SET committed = 1 WHERE id = ?1 AND outcome = 'started'", [entry])?;
    Ok(())
}

/// Escapes the wildcards of LIKE in a text that a pattern must match literally.
fn escape_pattern(text: &str) -> String {
    text.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_")
}

impl ServerState {
    /// Stores an entry, and returns its id. The field `id` is ignored.
    ///
    /// # Errors
    /// Returns an error if the database cannot be written.
    pub async fn append_audit(&self, entry: AuditEntry, durability: AuditDurability) -> Result<i64> {
        let append = move |transaction: &Transaction| {
            let insert = "INSERT INTO audit (time, who, token, role, address, request, method, path, action, object,
                outcome, status, committed, changes, reason)
                VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, 0, ?13, ?14) RETURNING id";
            let values = params![
                entry.time,
                entry.user,
                entry.token,
                entry.role,
                entry.address,
                entry.request,
                entry.method,
                entry.path,
                entry.action,
                entry.object,
                entry.outcome.as_str(),
                entry.status.map(i64::from),
                to_json_column(&entry.changes)?,
                entry.reason,
            ];
            transaction.query_row(insert, values, |row| row.get(0))
        };
        match durability {
            AuditDurability::BeforeChange => self.run_synced_uncounted(append).await,
            AuditDurability::WithChange => self.run_deferred(append).await,
        }
    }

    /// Syncs the entries that were stored with [`AuditDurability::WithChange`].
    ///
    /// # Errors
    /// Returns an error if the database cannot be written.
    pub async fn sync_audit(&self) -> Result<()> {
        let update = "UPDATE identity SET transactions = transactions";
        self.run_synced_uncounted(move |transaction| transaction.execute(update, []).map(drop)).await
    }

    /// Completes an entry that was stored before the audited change was made. If `object` is empty, the object of the
    /// entry remains unchanged. Returns the complete entry, or `None` if the entry was completed before, or was
    /// deleted.
    ///
    /// # Errors
    /// Returns an error if the database cannot be written.
    pub async fn complete_audit(
        &self,
        (id, object): (i64, String),
        status: u16,
        changes: Vec<AuditChange>,
        reason: String,
    ) -> Result<Option<AuditEntry>> {
        self.run_deferred(move |transaction| {
            let update = "UPDATE audit SET status = ?2, outcome = ?3, changes = ?4, reason = ?5,
                object = CASE WHEN ?6 = '' THEN object ELSE ?6 END WHERE id = ?1 AND outcome = 'started'";
            let outcome = AuditOutcome::from_status(status).as_str();
            let values = params![id, i64::from(status), outcome, to_json_column(&changes)?, reason, object];
            let count = transaction.execute(update, values)?;
            let select = format!("{COLUMNS} WHERE id = ?1");
            let entry = if count == 0 { None } else { Some(transaction.query_row(&select, [id], read_entry)?) };
            Ok(entry)
        })
        .await
    }

    /// Returns the entries that match the filters.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn list_audit(&self, query: AuditQuery) -> Result<Vec<AuditEntry>> {
        self.run_job(move |connection| {
            let order = if query.after.is_some() { "ASC" } else { "DESC" };
            let select = format!(
                "{COLUMNS} WHERE (?1 = '' OR who = ?1)
                 AND (?2 = '' OR object = ?2 OR (', ' || object || ', ') LIKE ?9 ESCAPE '\\')
                 AND (?3 = '' OR LOWER(action) LIKE LOWER(?4)) AND time >= ?5 AND id < ?6 AND id > ?7
                 ORDER BY id {order} LIMIT ?8"
            );
            let values = params![
                query.who,
                query.machine,
                query.action,
                format!("%{}%", query.action),
                query.since,
                query.before.unwrap_or(i64::MAX),
                query.after.unwrap_or_default(),
                query.limit.unwrap_or(PAGE).min(PAGE),
                format!("%, {}, %", escape_pattern(&query.machine)),
            ];
            connection.prepare_cached(&select)?.query_map(values, read_entry)?.collect()
        })
        .await
    }
}
