//! Handling of install reports from machines whose migration is in progress or has ended.

use super::{MigrationUpdate, apply_event, explain_unconfirmed};
use crate::disk_boot_prohibitions::bar_allocations;
use crate::json_columns::{parse_column, to_json_column};
use crate::machine_migration::{Migration, MigrationEvent, MigrationState};
use crate::migration_records::{find_live, read_current_boots};
use crate::sql::{self, OptionalExtension, Transaction, params};
use crate::{ServerState, TokenHash, to_json};
use common::error::Result;
use control::agent_api_types::InstallReport;
use model::machine_migration::MigrationSide;

impl ServerState {
    /// Stores a report of a machine in a migration, with all its effects. While a machine needs confirmation after a
    /// restore, a report neither ends the migration nor permits a machine to boot its system. Returns `None` if the
    /// report is not about a migration. The inner error is the reason why a reported success is rejected.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn handle_migration_report(
        &self,
        machine: &str,
        boot: TokenHash,
        report: &InstallReport,
    ) -> Result<Option<Result<MigrationUpdate, String>>> {
        let (machine, report, text) = (machine.to_owned(), report.clone(), to_json(report)?);
        self.run_durably(move |transaction| handle_report(transaction, &machine, boot, &report, &text)).await
    }
}

/// Handles a report, as [`ServerState::handle_migration_report`] does. `text` is the report as JSON.
pub fn handle_report(
    transaction: &Transaction,
    machine: &str,
    boot: TokenHash,
    report: &InstallReport,
    text: &str,
) -> sql::Result<Option<Result<MigrationUpdate, String>>> {
    let of = find_live(transaction, machine)?.filter(|migration| migration.allocation == report.allocationuuid);
    // If the migration has ended, only a repeated report of success is handled here.
    let Some(migration) = of else { return handle_repeated_report(transaction, machine, boot, report) };
    let part = migration.role_of(machine);
    let step = report.step.as_deref().map(|step| format!("{step}: ")).unwrap_or_default();
    let message = format!("{step}{}", report.message);
    let word = match (report.success, explain_unconfirmed(transaction, &migration)?) {
        (true, Some(why)) => return Ok(Some(Err(why))),
        (true, None) => success_event(transaction, &migration, part, boot, report)?,
        // The failure would end the migration, and both machines would boot from their disks.
        (false, Some(_)) if report.untouched || part == MigrationSide::Source => {
            MigrationEvent::ProblemReported(part, boot, message)
        }
        (false, _) => MigrationEvent::Failed { part, boot, untouched: report.untouched, message },
    };
    let heard = apply_event(transaction, &migration, &word)?;
    if let Ok(MigrationUpdate { migration: Migration { state: MigrationState::Booting, .. }, news: true }) = &heard
        && report.success
    {
        let marker = report.marker.as_ref().map(to_json_column).transpose()?;
        transaction.execute(
            "UPDATE allocations SET report = ?3, marker = coalesce(?4, marker) WHERE machine = ?1 AND id = ?2",
            params![machine, migration.allocation, text, marker],
        )?;
    }
    Ok(Some(heard))
}

/// Returns the event that corresponds to a report of success.
fn success_event(
    transaction: &Transaction,
    migration: &Migration,
    part: MigrationSide,
    boot: TokenHash,
    report: &InstallReport,
) -> sql::Result<MigrationEvent> {
    let received_from = report.marker.as_ref().and_then(|marker| marker.received_from.clone());
    Ok(MigrationEvent::Succeeded {
        part,
        boot,
        received_from,
        now: read_current_boots(transaction, &migration.source, &migration.target)?,
    })
}

/// Handles a report of a machine whose migration has ended. If the boot that received the system repeats its report of
/// success, the report is acknowledged. Other reports are handled as if the machine were not part of a migration.
fn handle_repeated_report(
    transaction: &Transaction,
    machine: &str,
    boot: TokenHash,
    report: &InstallReport,
) -> sql::Result<Option<Result<MigrationUpdate, String>>> {
    let select = "SELECT document FROM moves WHERE (a = ?1 OR b = ?1) AND allocation = ?2 ORDER BY rowid DESC LIMIT 1";
    let key = [machine, report.allocationuuid.as_str()];
    let migration: Option<Migration> =
        transaction.query_row(select, key, |row| parse_column(row, 0)).optional()?.flatten();
    let Some(migration) = migration.filter(|_| !report.allocationuuid.is_empty()) else { return Ok(None) };
    let is_taken_back = matches!(migration.state, MigrationState::Cancelled | MigrationState::Refused);
    if !report.success && !report.untouched && is_taken_back && migration.target == machine {
        // The target has written without permission: it must not boot from its disks.
        bar_allocations(transaction, machine, &migration.allocation, &migration.id)?;
    }
    if !report.success {
        return Ok(None);
    }
    let has_begun = migration.started_copy.as_ref().is_some_and(|started| started.by == boot);
    match migration.role_of(machine) {
        MigrationSide::Target if has_begun => {
            let word = success_event(transaction, &migration, MigrationSide::Target, boot, report)?;
            Ok(Some(migration.apply_event(&word).map(|after| MigrationUpdate { migration: after, news: false })))
        }
        _ => Ok(None),
    }
}
