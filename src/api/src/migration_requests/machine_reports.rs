//! Reports of the two machines of a migration: results of attempts, and the event that the received system runs.

use super::machine_requests::{conflict_error, describe_migration};
use super::{Migration, MigrationEvent, MigrationState};
use crate::AppState;
use control::ReportAcknowledgement;
use control::agent_api_types::InstallReport;
use http_server::api_error::ApiError;
use http_server::server_log::MachineOrigin;
use store::token_hash::TokenHash;
use store::{MachineBoot, MigrationUpdate};

/// Handles a report of a machine in a migration. Returns `None` if the report is not about the migration.
///
/// # Errors
/// Returns an error if the database cannot be read or written, or if a report of success is not valid. In the latter
/// case, the machine must not boot the system that it received.
pub async fn handle_report(
    app: &AppState,
    who: &MachineOrigin,
    boot: &MachineBoot,
    report: &InstallReport,
) -> Result<Option<ReportAcknowledgement>, ApiError> {
    if boot.address.is_none() {
        return Ok(None);
    }
    let id = &boot.machine;
    let Some(heard) = app.state.handle_migration_report(id, boot.hash, report).await? else { return Ok(None) };
    let MigrationUpdate { migration, news } = heard.map_err(conflict_error)?;
    let retry = !report.success && migration.target == *id && migration.should_retry();
    if report.success || !retry {
        app.state.record_boot_end(id, boot.hash, report.success).await?;
    }
    if news {
        app.counters.count_report(report);
        app.watch.log_report(who.clone(), report);
        app.watch.log_note(format!("the migration {}", describe_migration(&app.directory(), &migration)));
        log_silent_source(app, &migration);
        app.request_reload();
    }
    Ok(Some(ReportAcknowledgement { retry }))
}

/// Logs a warning if the target has received all data, but the source machine has not contacted the server recently:
/// the source may be switched off, or may be running its own system.
fn log_silent_source(app: &AppState, migration: &Migration) {
    let receiver = migration.target_endpoint.as_ref().filter(|_| migration.state == MigrationState::Booting);
    if receiver.is_some_and(|receiver| !app.certificate_checks.has_checked(&migration.source, &receiver.certificate)) {
        app.watch.log_note(format!(
            "machine {source} has not contacted the server for half a minute: make sure that the machine is off, or waits in its ramdisk. Data that the machine's own system writes now is not migrated", source = app.directory().display_name(&migration.source)));
    }
}

/// Handles the event with which a machine reports that its installed system runs. If the event comes from the boot that
/// received a migrated system, records that this system runs on the target.
///
/// # Errors
/// Returns an error if the database cannot be read or written.
pub(crate) async fn record_phoned_home(app: &AppState, id: &str, boot: TokenHash) -> Result<(), ApiError> {
    match app.state.apply_migration_event(id, "", MigrationEvent::PhonedHome(boot)).await? {
        Some(Ok(MigrationUpdate { migration, news: true })) => {
            app.watch.log_note(format!(
                "migration {migration}: source machine {source} is now free",
                migration = describe_migration(&app.directory(), &migration),
                source = migration.source
            ));
            app.request_reload();
        }
        Some(Err(why)) => app.log_rate_limited(format!(
            "machine {machine} reports that its system runs, but its migration is not finished: {why}",
            machine = app.directory().display_name(id)
        )),
        Some(Ok(_)) | None => {}
    }
    Ok(())
}
