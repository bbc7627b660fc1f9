//! Events, reports and history of machines, for the operator. The history contains one entry for each reinstall order
//! and each ended attempt, and outlives the events.

use super::json_columns::to_json_column;
use super::reinstall_order_records::ReinstallOrder;
use super::{ServerState, now};
use crate::sql::{self, OptionalExtension, Transaction, params};
use common::error::Result;
use control::agent_api_types::InstallReport;
use serde::{Deserialize, Serialize};

/// Maximum number of entries stored per machine.
const MAXIMUM_MACHINE_ENTRIES: u32 = 200;

/// Type of a history entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HistoryKind {
    Ordered,
    Cancelled,
    Installed,
    Failed,
}

impl HistoryKind {
    pub fn as_str(self) -> &'static str {
        match self {
            HistoryKind::Ordered => "ordered",
            HistoryKind::Cancelled => "cancelled",
            HistoryKind::Installed => "installed",
            HistoryKind::Failed => "failed",
        }
    }
}

/// Entry of a machine's history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct HistoryEntry {
    /// Time of the order or the report, as RFC 3339 in UTC.
    pub time: String,
    pub kind: HistoryKind,
    /// Id of the image, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Id of the reinstall order; absent for a first installation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
    /// Stage in which the installation failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// Result as reported by the machine; empty for orders.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Duration of all stages together, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
}

impl HistoryEntry {
    pub(crate) fn from_order(kind: HistoryKind, order: &ReinstallOrder) -> HistoryEntry {
        let (image, order) = (Some(order.image.clone()), Some(order.id.clone()));
        HistoryEntry { time: now(), kind, image, order, stage: None, message: String::new(), seconds: None }
    }

    pub(crate) fn from_report(report: &InstallReport, image: Option<String>) -> HistoryEntry {
        let seconds: f64 = report.timings.iter().map(|time| time.seconds).filter(|seconds| *seconds >= 0.0).sum();
        HistoryEntry {
            time: now(),
            kind: if report.success { HistoryKind::Installed } else { HistoryKind::Failed },
            image,
            order: report.order.clone(),
            stage: report.step.clone().filter(|step| !report.success && !step.is_empty()),
            message: report.reason().to_owned(),
            seconds: Some(seconds).filter(|_| !report.timings.is_empty() && seconds.is_finite()),
        }
    }
}

/// Adds an entry to the history of the machine, and deletes its oldest entries above the limit.
pub(crate) fn insert_entry(transaction: &Transaction, machine: &str, entry: &HistoryEntry) -> sql::Result<()> {
    transaction.execute(
        "INSERT INTO history (machine, time, entry) VALUES (?1, ?2, ?3)",
        params![machine, entry.time, to_json_column(entry)?],
    )?;
    transaction.execute(
        "DELETE FROM history WHERE machine = ?1 AND id <= (SELECT id FROM history WHERE machine = ?1
         ORDER BY id DESC LIMIT 1 OFFSET ?2)",
        params![machine, MAXIMUM_MACHINE_ENTRIES],
    )?;
    Ok(())
}

impl ServerState {
    /// Returns the last events of the machine with their times, the oldest first. An event is JSON.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn list_events(&self, machine: &str, most: u32) -> Result<Vec<(String, String)>> {
        let machine = machine.to_owned();
        self.run_job(move |connection| {
            let select = "SELECT time, event FROM events WHERE machine = ?1 ORDER BY id DESC LIMIT ?2";
            let select = connection.prepare_cached(select)?;
            let rows = select.query_map(params![machine, most], |row| Ok((row.get(0)?, row.get(1)?)))?;
            let mut events = rows.collect::<sql::Result<Vec<_>>>()?;
            events.reverse();
            Ok(events)
        })
        .await
    }

    /// Returns the history of the machine, the oldest entry first. Omits entries of a newer version that this version
    /// does not support.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn list_history(&self, machine: &str) -> Result<Vec<HistoryEntry>> {
        let machine = machine.to_owned();
        let rows = self.run_job(move |connection| {
            let select = "SELECT entry FROM history WHERE machine = ?1 ORDER BY id";
            let select = connection.prepare_cached(select)?;
            select.query_map([machine], |row| row.get::<_, String>(0))?.collect::<sql::Result<Vec<_>>>()
        });
        Ok(rows.await?.iter().filter_map(|entry| serde_json::from_str(entry).ok()).collect())
    }

    /// Returns the last report of the allocation, as JSON.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn last_report(&self, machine: &str, allocation: &str) -> Result<Option<String>> {
        let key = [machine.to_owned(), allocation.to_owned()];
        self.run_job(move |connection| {
            let select = "SELECT report FROM allocations WHERE machine = ?1 AND id = ?2";
            let report = connection.query_row(select, key, |row| row.get::<_, Option<String>>(0)).optional()?;
            Ok(report.flatten())
        })
        .await
    }
}
