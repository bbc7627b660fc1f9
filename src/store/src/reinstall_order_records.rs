//! Stored orders for reinstalls, and the results of the last reinstalls. `reinstall_orders` decides how orders and
//! results change.

use super::install_attempt::StartedAttempt;
use super::json_columns::{parse_column, to_json_column};
use super::required_approval::RequiredApproval;
use super::restore_confirmation;
use crate::sql::{self, Connection, OptionalExtension, Transaction, params};
use common::timestamp::now;
use model::install_marker::{FencingToken, RecordedDisk};
use serde::{Deserialize, Serialize};

/// Options with which the operator permits a reinstall that would otherwise be refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReinstallOverrides {
    #[serde(default)]
    pub without_marker: bool,
    #[serde(default)]
    pub change_promise: bool,
    #[serde(default)]
    pub give_up: Vec<String>,
    #[serde(default)]
    pub leave_locked: Vec<String>,
    #[serde(default)]
    pub replace_newer: bool,
    /// True if the reinstall applies the allocation of the machine file instead of the installed one.
    #[serde(default)]
    pub apply_allocation: bool,
    /// Digest of the layout for which the operator has set `change_promise`; `None` without this option, and in
    /// orders of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout_digest: Option<String>,
}

/// Fields of an order that are stored as one JSON document.
#[derive(Default, Serialize, Deserialize)]
struct StoredOptions {
    #[serde(flatten)]
    overrides: ReinstallOverrides,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    created_by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    required_approval: Option<RequiredApproval>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_final_boot: bool,
}

/// Open order for a reinstall.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ReinstallOrder {
    pub id: String,
    /// Id of the image.
    pub image: String,
    pub created: String,
    /// User who has ordered the reinstall; empty if the order was placed by an earlier version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub created_by: String,
    /// Number of attempts so far. An attempt begins when the ramdisk is served. All boots that are served before the
    /// agent registers belong to the same attempt.
    pub attempts: u32,
    /// True if an attempt has announced that it passes the point of no return. The machine might not have received the
    /// server's response to the announcement.
    #[serde(rename = "begun")]
    pub started: bool,
    pub without_marker: bool,
    /// True if the reinstall applies the layout of the machine file, even if that layout and the installed layout have
    /// different wipe policies for a disk.
    #[serde(default)]
    pub change_promise: bool,
    /// Serial numbers of disks whose data may be erased.
    #[serde(default)]
    pub give_up: Vec<String>,
    /// UUIDs of the preserved LUKS containers that may stay locked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leave_locked: Vec<String>,
    /// True if the reinstall may replace the installation on the disks even if that installation is newer than the
    /// reinstall order.
    #[serde(default)]
    pub replace_newer: bool,
    /// True if the reinstall applies the allocation of the machine file instead of the installed one.
    #[serde(default)]
    pub apply_allocation: bool,
    /// Fencing token of the reinstall order; not shown to operators.
    #[serde(skip)]
    pub fencing: Option<FencingToken>,
    /// True if the operator has placed or confirmed the reinstall order after the last restore of the database; not
    /// shown to operators.
    #[serde(skip)]
    pub confirmed: bool,
    /// Disks that the most recent attempt announced at its start; not shown to operators.
    #[serde(skip)]
    pub disks: Vec<RecordedDisk>,
    /// Most recent attempt; `None` if no attempt has started on this server. The value is not shown to operators.
    #[serde(skip)]
    pub attempt: Option<StartedAttempt>,
    /// True if no further attempt is made until the operator orders another reinstall. If an attempt of the order has
    /// passed the point of no return, the order is abandoned, and the machine waits at its console. Otherwise the
    /// order is suspended, and the machine boots its disk.
    pub given_up: bool,
    /// Time at which the last boot of the current attempt was counted; `None` once a boot of the attempt has
    /// registered. The value is not shown to operators.
    #[serde(skip)]
    pub handed: Option<String>,
    /// Number of counted boots of the current attempt, none of which has registered; not shown to operators.
    #[serde(skip)]
    pub unregistered: u32,
    /// True if the ramdisk was served once more after the last attempt, because the attempt may have succeeded without
    /// a report; not shown to operators.
    #[serde(skip)]
    pub is_final_boot: bool,
    /// Approval without which the order is withheld; `None` if no approval was in force when the order was placed. The
    /// value is not shown to operators.
    #[serde(skip)]
    pub required_approval: Option<RequiredApproval>,
    /// Digest of the layout for which the operator has set `change_promise`; not shown to operators.
    #[serde(skip)]
    pub layout_digest: Option<String>,
}

impl ReinstallOrder {
    /// Returns whether the reinstall order is suspended: its attempts are used up, and none of them has passed the
    /// point of no return. The order stays until the operator replaces or cancels it.
    pub fn is_suspended(&self) -> bool {
        self.given_up && !self.started
    }
}

/// Result of the last reinstall, or of the last attempt of a reinstall order that is still open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ReinstallOutcome {
    /// Id of the reinstall order.
    pub order: String,
    /// Id of the image.
    pub image: String,
    pub success: bool,
    pub message: String,
    /// Time of the result, as RFC 3339 in UTC.
    pub time: String,
}

impl ReinstallOutcome {
    pub(crate) fn from_order(order: &ReinstallOrder, success: bool, message: impl Into<String>) -> ReinstallOutcome {
        let ReinstallOrder { id, image, .. } = order.clone();
        ReinstallOutcome { order: id, image, success, message: message.into(), time: now() }
    }
}

/// Reads the open reinstall order of the allocation.
pub(crate) fn read_order(
    connection: &Connection,
    machine: &str,
    allocation: &str,
) -> sql::Result<Option<ReinstallOrder>> {
    let select = "SELECT id, image, created, attempts, begun, without_marker, given_up, disks, words, handed, fencing,
             attempt, unregistered
         FROM orders WHERE machine = ?1 AND allocation = ?2";
    let order = connection.prepare_cached(select)?.query_row([machine, allocation], |row| {
        let options: StoredOptions = parse_column(row, 8)?.unwrap_or_default();
        let StoredOptions { overrides, created_by, required_approval, is_final_boot } = options;
        let ReinstallOverrides { change_promise, give_up, leave_locked, replace_newer, apply_allocation, .. } =
            overrides.clone();
        let fencing: Option<FencingToken> = parse_column(row, 10)?;
        let database = fencing.as_ref().map(|token| token.database.as_str());
        Ok(ReinstallOrder {
            replace_newer,
            apply_allocation,
            confirmed: restore_confirmation::is_confirmed_order(connection, machine, database)?,
            fencing,
            id: row.get(0)?,
            image: row.get(1)?,
            created: row.get(2)?,
            created_by,
            attempts: row.get(3)?,
            // In databases of earlier versions, this column contains the number of an attempt.
            started: row.get::<_, u32>(4)? > 0,
            without_marker: row.get(5)?,
            given_up: row.get(6)?,
            disks: parse_column(row, 7)?.unwrap_or_default(),
            attempt: parse_column(row, 11)?,
            change_promise,
            give_up,
            leave_locked,
            handed: row.get(9)?,
            unregistered: parse_column(row, 12)?.unwrap_or_default(),
            is_final_boot,
            required_approval,
            layout_digest: overrides.layout_digest,
        })
    });
    order.optional()
}

pub(crate) fn store_order(
    transaction: &Transaction,
    machine: &str,
    allocation: &str,
    order: &ReinstallOrder,
) -> sql::Result<()> {
    let ReinstallOrder { id, image, created, attempts, started, without_marker, change_promise, give_up, .. } = order;
    let ReinstallOrder { disks, attempt, given_up, handed, replace_newer, apply_allocation, fencing, .. } = order;
    let unregistered = to_json_column(&order.unregistered)?;
    let overrides = ReinstallOverrides {
        without_marker: *without_marker,
        change_promise: *change_promise,
        give_up: give_up.clone(),
        leave_locked: order.leave_locked.clone(),
        replace_newer: *replace_newer,
        apply_allocation: *apply_allocation,
        layout_digest: order.layout_digest.clone(),
    };
    let (created_by, required_approval) = (order.created_by.clone(), order.required_approval.clone());
    let words = StoredOptions { overrides, created_by, required_approval, is_final_boot: order.is_final_boot };
    let (disks, words) = (to_json_column(disks)?, to_json_column(&words)?);
    let fencing = fencing.as_ref().map(to_json_column).transpose()?;
    let attempt = attempt.as_ref().map(to_json_column).transpose()?;
    transaction.execute(
        "INSERT INTO orders
         (machine, allocation, id, image, created, attempts, begun, without_marker, given_up, disks, words, handed,
             fencing, attempt, unregistered)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)
         ON CONFLICT (machine, allocation) DO UPDATE SET id = ?3, image = ?4, created = ?5, attempts = ?6, begun = ?7,
             without_marker = ?8, given_up = ?9, disks = ?10, words = ?11, handed = ?12, fencing = ?13, attempt = ?14,
             unregistered = ?15",
        params![
            machine,
            allocation,
            id,
            image,
            created,
            attempts,
            started,
            without_marker,
            given_up,
            disks,
            words,
            handed,
            fencing,
            attempt,
            unregistered
        ],
    )?;
    Ok(())
}

pub(crate) fn delete_order(transaction: &Transaction, machine: &str, allocation: &str) -> sql::Result<()> {
    transaction.execute("DELETE FROM orders WHERE machine = ?1 AND allocation = ?2", [machine, allocation])?;
    Ok(())
}

pub(crate) fn store_outcome(
    transaction: &Transaction,
    machine: &str,
    allocation: &str,
    outcome: &ReinstallOutcome,
) -> sql::Result<()> {
    let text = to_json_column(outcome)?;
    transaction.execute(
        "UPDATE allocations SET outcome = ?3 WHERE machine = ?1 AND id = ?2",
        params![machine, allocation, text],
    )?;
    Ok(())
}
