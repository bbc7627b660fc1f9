//! State of an allocation on a machine: the started installation, the installed system, the open reinstall order, and
//! the result of the last reinstall.

use super::attempt_failure::AttemptFailure;
use super::install_attempt::StartedAttempt;
use super::installed_allocation::InstalledAllocation;
use super::json_columns::{parse_column, to_json_column};
use super::plan_approval::Approval;
use super::reinstall_order_records::{ReinstallOrder, ReinstallOutcome, read_order};
use super::{
    ServerState, TokenHash, database_epoch, disk_boot_prohibitions, lost_records, now, restore_confirmation,
    unknown_machines,
};
use crate::sql::{self, Connection, OptionalExtension, params};
use common::error::Result;
use model::install_marker::{AttemptRecord, FencingToken, InstallMarker, RecordedDisk};
use model::install_report::PreparedVolume;
use model::layout::Layout;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

/// State of an allocation on a machine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InstallState {
    /// Time at which the allocation was first recorded; empty if the allocation is not on record.
    pub created: String,
    pub succeeded: bool,
    /// True if the operator has adopted the allocation, that is, reported it as installed, and the machine has not
    /// reported the installation yet.
    pub adopted: bool,
    /// Install marker that the operator was shown when the allocation was adopted.
    pub adopted_marker: Option<InstallMarker>,
    /// True if the installation is known only from an adopted install marker. The recorded image, disks and volumes are
    /// then not verified.
    pub is_claimed: bool,
    /// Id of the installed image; `None` in databases of earlier versions.
    pub image: Option<String>,
    /// Installed layout, as it was served to the machine; `None` in databases of earlier versions, which store only the
    /// id of the layout.
    pub layout: Option<Value>,
    /// Fields with which the allocation was installed; `None` if an earlier version of the server recorded the
    /// installation, or the operator adopted it.
    pub installed_allocation: Option<InstalledAllocation>,
    /// Id of the layout that was last served to the machine.
    pub layout_id: Option<String>,
    /// Layout that was last served to the machine.
    pub handed_out: Option<ServedLayout>,
    pub marker: Option<InstallMarker>,
    pub order: Option<ReinstallOrder>,
    pub outcome: Option<ReinstallOutcome>,
    /// Failure of the last attempt; `None` if the last attempt has succeeded, or if the operator has adopted the
    /// installation or ordered a reinstall since.
    pub failure: Option<AttemptFailure>,
    /// First installation that has passed its point of no return, and is not complete.
    pub first: Option<FirstInstall>,
    /// Install marker of this allocation that the machine has reported, but that the server does not trust. The marker
    /// waits for the operator's confirmation.
    pub waits: Option<InstallMarker>,
    /// Kubernetes volumes that the last installation reported.
    pub volumes: Vec<PreparedVolume>,
    /// Id of another machine on which this allocation is installed. If set, this machine must not receive the
    /// allocation.
    pub elsewhere: Option<String>,
    /// True if the machine must not boot this allocation from its disks: a migration has transferred the allocation to
    /// another machine, or has overwritten the system of the allocation.
    pub barred: bool,
    /// True if the database was restored from a backup, and the record of the machine has not been confirmed since
    /// then, or the operator has not confirmed the reinstall order since then.
    pub unconfirmed: bool,
    /// Fencing token of the first installation; `None` until the allocation is served, and in databases of earlier
    /// versions.
    pub fencing: Option<FencingToken>,
    /// Ids that the machine had before it was renamed.
    pub former: Vec<String>,
    /// True if this database has replaced a lost one, which may have recorded an installation on the machine.
    pub unremembered: bool,
    /// Layout that a template generates from the machine's registered hardware, or the reason why the template cannot
    /// generate one.
    pub generated: Option<Result<Layout, String>>,
    /// Problems of deploy templates that the machine's traits enable, but that the machine's registered hardware does
    /// not support.
    pub unsupported: Vec<String>,
    /// Approval of the machine's next installation, or the reason why it cannot be used.
    pub approved: Option<Result<Arc<Approval>, String>>,
}

impl InstallState {
    /// Returns whether the allocation is installed according to the machine or the operator.
    pub fn is_installed(&self) -> bool {
        self.succeeded || self.adopted
    }

    /// Returns whether a reinstall can be ordered. An adopted installation whose machine has not reported a marker is
    /// reinstalled only if the order permits this, because the machine might not have a marker: other installers do not
    /// write markers.
    pub fn can_be_reinstalled(&self, without_marker: bool) -> bool {
        // A started reinstall has replaced the installed system, so the marker of that system is irrelevant.
        let has_started = self.order.as_ref().is_some_and(|order| order.started);
        let is_proven = self.succeeded && (!self.is_claimed || self.marker.is_some() || has_started);
        is_proven || (self.is_installed() && without_marker)
    }

    /// If the operator has adopted the allocation, marks it as installed and claimed ([`InstallState::is_claimed`]).
    /// Otherwise, returns the state unchanged.
    pub fn with_claimed_installation(self) -> InstallState {
        match self.adopted {
            true => InstallState { succeeded: true, adopted: false, is_claimed: true, ..self },
            false => self,
        }
    }

    /// Returns whether the next boot installs the machine: the allocation was never installed, or a reinstall is
    /// ordered and not suspended.
    pub fn will_install(&self) -> bool {
        !self.is_installed() || self.order.as_ref().is_some_and(|order| !order.is_suspended())
    }

    /// Returns the fields that a reinstall preserves, or `None` if the fields of the machine file apply. The fields of
    /// the machine file apply if the allocation is not installed, if its installed fields are not recorded, or if the
    /// reinstall order requests the fields of the machine file.
    pub fn preserved_allocation(&self) -> Option<&InstalledAllocation> {
        let applies_file = self.order.as_ref().is_some_and(|order| order.apply_allocation && !order.is_suspended());
        self.installed_allocation.as_ref().filter(|_| self.succeeded && !applies_file)
    }

    /// Returns an identifier that changes with each completed installation; empty if no installation has completed.
    pub fn last_installation(&self) -> String {
        match (&self.marker, self.succeeded) {
            (_, false) => String::new(),
            (Some(marker), true) => format!("{} {}", marker.time, marker.order.as_deref().unwrap_or("first")),
            (None, true) => "without a marker".to_owned(),
        }
    }

    /// Removes the requirement of an approval from the reinstall order.
    pub fn without_required_approval(self) -> InstallState {
        let order = self.order.map(|order| ReinstallOrder { required_approval: None, ..order });
        InstallState { order, ..self }
    }

    /// Removes the reinstall order if it is suspended, or if the machine is installed and needs confirmation. The
    /// machine then boots its installed system.
    pub fn without_withheld_order(self) -> InstallState {
        let is_suspended = self.order.as_ref().is_some_and(ReinstallOrder::is_suspended);
        match is_suspended || (self.unconfirmed && self.is_installed()) {
            true => InstallState { order: None, ..self },
            false => self,
        }
    }

    /// Returns the layout with which an installation has started, or `None` if no installation has started. Later
    /// attempts continue with this layout even if the operator's files contain another one: the installation may be
    /// complete, and only its report may have been lost. An order that replaces an abandoned one also continues with
    /// it, unless it applies the layout of the machine file: the layout of the abandoned order may preserve a disk
    /// that the layout of the earlier installation wipes.
    pub fn pinned_layout(&self) -> Option<&Value> {
        let given = self.handed_out.as_ref()?;
        let started = match &self.order {
            Some(order) => order.started && (given.order == order.id || !order.change_promise),
            None => !self.succeeded && self.first.as_ref().is_some_and(|first| !first.heard),
        };
        started.then_some(&given.layout)
    }
}

/// Layout that was served to a machine.
#[derive(Debug, Clone, PartialEq)]
pub struct ServedLayout {
    pub layout: Value,
    /// Id of the reinstall order for which the layout was served; empty for a first installation.
    pub order: String,
}

/// First installation that has passed its point of no return.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstInstall {
    pub disks: Vec<RecordedDisk>,
    /// Hash of the token of the boot that was the last to pass the point of no return.
    pub by: TokenHash,
    /// True if no earlier boot passed the point of no return.
    pub only: bool,
    /// True if the agent has reported a failure during the boot that was the last to pass the point of no return.
    pub heard: bool,
    /// Record of the attempt of the boot that was the last to pass the point of no return. `None` if the agent did not
    /// send a digest of the attempt's secret, and in databases of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<AttemptRecord>,
}

impl FirstInstall {
    /// Returns the attempt of the boot that was the last to pass the point of no return.
    pub(crate) fn to_attempt(&self) -> StartedAttempt {
        StartedAttempt { by: self.by, record: self.record.clone() }
    }
}

/// Record of an allocation that was served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedRecord {
    /// Time at which the allocation was first recorded, as RFC 3339 in UTC.
    pub created: String,
    /// Fencing token of the allocation's first installation.
    pub fencing: Option<FencingToken>,
}

/// Data that the server records when it sends an installation to a machine.
pub struct ServedInstall<'a> {
    pub layout_id: &'a str,
    pub layout: &'a Value,
    /// Id of the image.
    pub image: &'a str,
    /// Id of the reinstall order; empty for a first installation.
    pub order: &'a str,
    /// Fields of the allocation.
    pub fields: &'a InstalledAllocation,
}

impl ServerState {
    /// Returns the state of the allocation.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn read_install_state(&self, machine: &str, allocation: &str) -> Result<InstallState> {
        let (machine, allocation) = (machine.to_owned(), allocation.to_owned());
        self.run_job(move |connection| read_install_state(connection, &machine, &allocation)).await
    }

    /// Blocking variant of [`ServerState::read_install_state`].
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub fn read_install_state_blocking(&self, machine: &str, allocation: &str) -> Result<InstallState> {
        let (machine, allocation) = (machine.to_owned(), allocation.to_owned());
        self.read_records_blocking(move |connection| read_install_state(connection, &machine, &allocation))
    }

    /// Records the layout and image that are being served to the machine.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn record_served(
        &self,
        machine: &str,
        allocation: &str,
        what: ServedInstall<'_>,
    ) -> Result<ServedRecord> {
        let (machine, allocation) = (machine.to_owned(), allocation.to_owned());
        let (id, document, image) = (what.layout_id.to_owned(), what.layout.to_string(), what.image.to_owned());
        let (order, fields) = (what.order.to_owned(), what.fields.clone());
        // When success is reported, this layout becomes the installed layout. The layout must be on disk by then, even
        // if the server loses power in the meantime.
        self.run_durably_for(machine.clone(), move |transaction| {
            transaction.execute(
                "INSERT INTO layouts (machine, allocation, layout, document, image, for_order, fields)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
                 ON CONFLICT (machine, allocation) DO UPDATE SET layout = ?3, document = ?4, image = ?5, for_order = ?6,
                     fields = ?7",
                params![machine, allocation, id, document, image, order, to_json_column(&fields)?],
            )?;
            transaction.execute(
                "INSERT INTO allocations (machine, id, created) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
                params![machine, allocation, now()],
            )?;
            // The machine is marked as known, because its machine file may have been added while the machine waited.
            unknown_machines::mark_known(transaction, &machine)?;
            let fencing = database_epoch::find_or_issue_token(transaction, &machine, &allocation)?;
            let select = "SELECT created FROM allocations WHERE machine = ?1 AND id = ?2";
            let created = transaction.query_row(select, [&machine, &allocation], |row| row.get(0))?;
            Ok(ServedRecord { created, fencing })
        })
        .await
    }
}

const OTHER_MACHINE_QUERY: &str =
    "SELECT machine FROM allocations WHERE id = ?2 AND machine <> ?1 AND succeeded = 1 LIMIT 1";

/// Reads the state of an allocation. The state is consistent only if the caller reads within a transaction.
pub fn read_install_state(connection: &Connection, machine: &str, allocation: &str) -> sql::Result<InstallState> {
    let key = [machine, allocation];
    let select = "SELECT created, succeeded, a.image, a.layout, l.layout, marker, outcome, begun, document, for_order,
         adopted IS NOT NULL, waits, volumes, fencing, adopted_marker, a.fields, failure
         FROM allocations a LEFT JOIN layouts l ON l.machine = a.machine AND l.allocation = a.id
         WHERE a.machine = ?1 AND a.id = ?2";
    let install_state = connection.prepare_cached(select)?.query_row(key, |row| {
        let (succeeded, is_adopted) = (row.get(1)?, row.get(10)?);
        Ok(InstallState {
            created: row.get(0)?,
            succeeded,
            adopted: is_adopted && !succeeded,
            is_claimed: is_adopted && succeeded,
            adopted_marker: parse_column(row, 14)?,
            image: row.get(2)?,
            installed_allocation: parse_column(row, 15)?,
            failure: parse_column(row, 16)?,
            layout: parse_column(row, 3)?,
            layout_id: row.get(4)?,
            marker: parse_column(row, 5)?,
            outcome: parse_column(row, 6)?,
            first: parse_column(row, 7)?,
            waits: parse_column(row, 11)?,
            volumes: parse_column(row, 12)?.unwrap_or_default(),
            fencing: parse_column(row, 13)?,
            handed_out: match parse_column(row, 8)? {
                Some(layout) => Some(ServedLayout { layout, order: row.get::<_, Option<_>>(9)?.unwrap_or_default() }),
                None => None,
            },
            ..InstallState::default()
        })
    });
    let mut install_state = install_state.optional()?.unwrap_or_default();
    if !install_state.succeeded {
        install_state.elsewhere =
            connection.prepare_cached(OTHER_MACHINE_QUERY)?.query_row(key, |row| row.get(0)).optional()?;
    }
    install_state.unremembered = lost_records::may_have_lost_record(connection, machine)?;
    install_state.barred = disk_boot_prohibitions::is_barred(connection, machine, allocation)?;
    install_state.unconfirmed = restore_confirmation::needs_confirmation(connection, machine)?;
    let former = connection.prepare_cached("SELECT former FROM former WHERE machine = ?1 ORDER BY former")?;
    install_state.former = former.query_map([machine], |row| row.get(0))?.collect::<Result<_, _>>()?;
    install_state.order = read_order(connection, machine, allocation)?;
    // A marker on the disks proves the recorded installation, but not that the order is still wanted: the order may
    // have been canceled or replaced after the backup.
    install_state.unconfirmed |= install_state.order.as_ref().is_some_and(|order| !order.confirmed);
    Ok(install_state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema;

    #[test]
    fn order_that_replaces_an_abandoned_one_continues_with_its_layout() {
        let layout = serde_json::json!({ "id": "of the abandoned order" });
        let order = |started: bool, change_promise: bool| {
            let order = serde_json::json!({
                "id": "second", "image": "i", "created": "", "attempts": 0, "begun": started, "without_marker": false,
                "change_promise": change_promise, "given_up": false
            });
            let served = ServedLayout { layout: layout.clone(), order: "first".to_owned() };
            InstallState {
                succeeded: true,
                order: Some(serde_json::from_value(order).unwrap()),
                handed_out: Some(served),
                ..InstallState::default()
            }
        };
        assert_eq!(order(true, false).pinned_layout(), Some(&layout));
        assert_eq!(order(true, true).pinned_layout(), None, "the operator wants the layout of the machine file");
        assert_eq!(order(false, false).pinned_layout(), None);
    }

    /// The summary of ten thousand machines executes this query ten thousand times.
    #[test]
    fn allocation_lookup_uses_the_index() {
        let connection = Connection::open_in_memory().unwrap();
        schema::upgrade_schema(&connection).unwrap();
        let explain = format!("EXPLAIN QUERY PLAN {OTHER_MACHINE_QUERY}");
        let how: String = connection.query_row(&explain, ["m", "a"], |row| row.get(3)).unwrap();
        assert_eq!(how, "SEARCH allocations USING INDEX allocations_by_id (id=?)");
    }
}
