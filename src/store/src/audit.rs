//! Audit log: one entry for each request that changes something, and for refused requests. An entry is stored before its
//! change, and completed afterwards. A transaction of the database that carries out the change marks the entry as
//! committed. No function changes an entry after its completion; entries are deleted only by the retention.

use crate::database_file::Durability;
use crate::json_columns::{parse_column, to_json_column};
use crate::sql::{self, Row, Transaction, params};
use crate::{ServerState, now};
use common::error::Result;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};

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

/// Value that a request has changed. Secrets are replaced.
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
    /// Id of the request, which the log of the server contains too.
    pub request: String,
    pub method: String,
    pub path: String,
    /// Method and route, such as `POST /v1/machine/{id}/reinstall`.
    pub action: String,
    /// Id of the machine, or name of another object; empty if the path contains none.
    pub object: String,
    pub outcome: AuditOutcome,
    /// HTTP status of the response; absent while the request is being handled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// True if a transaction of the request is in the database.
    pub committed: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<AuditChange>,
    /// Reason of a refusal.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// Filters of the audit log. Empty filters match every entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditQuery {
    /// User.
    pub who: String,
    /// Id of a machine, or name of another object.
    pub machine: String,
    /// Part of the action.
    pub action: String,
    /// Time of the earliest entry, as RFC 3339.
    pub since: String,
    /// Only entries with a lower id.
    pub before: Option<i64>,
    /// Only entries with a higher id, the oldest first. Otherwise, the newest entry is first.
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

/// Marks an entry as committed, in the transaction that carries out its change.
pub(crate) fn mark_committed(transaction: &Transaction, entry: i64) -> sql::Result<()> {
    transaction.execute("UPDATE audit SET committed = 1 WHERE id = ?1 AND outcome = 'started'", [entry])?;
    Ok(())
}

impl ServerState {
    /// Stores an entry, and returns its id. The entry is on disk when this function returns, unless it is complete
    /// already. The field `id` is ignored.
    ///
    /// # Errors
    /// Returns an error if the database cannot be written.
    pub async fn append_audit(&self, entry: AuditEntry) -> Result<i64> {
        self.run_synced_uncounted(move |transaction| {
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
        })
        .await
    }

    /// Completes an entry that was stored before its change. Returns the complete entry, or `None` if the entry is
    /// complete already, or was deleted.
    ///
    /// # Errors
    /// Returns an error if the database cannot be written.
    pub async fn complete_audit(
        &self,
        id: i64,
        status: u16,
        changes: Vec<AuditChange>,
        reason: String,
    ) -> Result<Option<AuditEntry>> {
        self.run_as_durable_as_needed(move |transaction| {
            let update = "UPDATE audit SET status = ?2, outcome = ?3, changes = ?4, reason = ?5
                WHERE id = ?1 AND outcome = 'started'";
            let outcome = AuditOutcome::from_status(status).as_str();
            let count = transaction
                .execute(update, params![id, i64::from(status), outcome, to_json_column(&changes)?, reason])?;
            let select = format!("{COLUMNS} WHERE id = ?1");
            let entry = if count == 0 { None } else { Some(transaction.query_row(&select, [id], read_entry)?) };
            Ok((entry, Durability::Deferred))
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
                "{COLUMNS} WHERE (?1 = '' OR who = ?1) AND (?2 = '' OR object = ?2) AND (?3 = '' OR LOWER(action) LIKE LOWER(?4))
                 AND time >= ?5 AND id < ?6 AND id > ?7 ORDER BY id {order} LIMIT ?8"
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
            ];
            connection.prepare_cached(&select)?.query_map(values, read_entry)?.collect()
        })
        .await
    }

    /// Deletes the entries that exceed the retention.
    ///
    /// # Errors
    /// Returns an error if the database cannot be written.
    pub async fn trim_audit(&self, retention: AuditRetention) -> Result<()> {
        let since = OffsetDateTime::now_utc() - Duration::days(retention.days.into());
        let since = since.format(&Rfc3339).unwrap_or_else(|_| now());
        self.run_deferred(move |connection| {
            connection.execute(
                "DELETE FROM audit WHERE time < ?1 OR id <= (SELECT id FROM audit ORDER BY id DESC LIMIT 1 OFFSET ?2)",
                params![since, retention.entries],
            )
        })
        .await
        .map(drop)
    }
}
