//! Handling of the reports that machines send at the end of an installation: their effects on the record of the machine
//! and on its reinstall order.

use crate::attempt_failure::AttemptFailure;
use crate::disk_boot_prohibitions::remove_prohibition;
use crate::event_history::{HistoryEntry, insert_entry};
use crate::install_attempt::ATTEMPTS;
use crate::install_state::{InstallState, read_install_state};
use crate::installed_allocation::complete_record;
use crate::json_columns::to_json_column;
use crate::marker_layout_comparison::find_contradiction;
use crate::registered_boots::current_token;
use crate::reinstall_order_records::{ReinstallOrder, ReinstallOutcome, delete_order, store_order, store_outcome};
use crate::restore_confirmation::{ConfirmedBy, insert_confirmation};
use crate::sql::{self, OptionalExtension, Transaction, params};
use crate::success_proof::{self, SuccessEffect, UnprovenReason};
use crate::{ServerState, TokenHash, first_install, migration_records, now, to_json, unrecorded_installations};
use common::error::Result;
use control::agent_api_types::InstallReport;
use model::install_marker::InstallMarker;
use operations::{FailureState, StageName};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReportOutcome {
    /// True if this report was not received before.
    pub news: bool,
    /// True if the machine must start another attempt immediately.
    pub retry: bool,
    /// Reinstall order to which the report refers, in its state after the report.
    pub order: Option<ReinstallOrder>,
    /// True if the installation has succeeded; `None` if the report refers to an order that is not open.
    pub over: Option<bool>,
    /// Reason why the reported success is not valid. If set, nothing was recorded.
    pub unproven: Option<UnprovenReason>,
}

impl ServerState {
    /// Stores the report of this boot, and records its effects. A repeated report has no effect. A report of success is
    /// not stored if the success is not proven.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn handle_report(
        &self,
        machine: &str,
        allocation: &str,
        boot: TokenHash,
        report: &InstallReport,
    ) -> Result<ReportOutcome> {
        let (machine, allocation, text) = (machine.to_owned(), allocation.to_owned(), to_json(report)?);
        let report = report.clone();
        self.run_durably_for(machine.clone(), move |transaction| {
            let before = read_install_state(transaction, &machine, &allocation)?;
            let judged = report
                .success
                .then(|| success_proof::evaluate_success(&before, &allocation, boot, &report))
                .transpose();
            let effect = match judged {
                Ok(effect) => effect,
                Err(why) => {
                    if why == UnprovenReason::NotAdopted {
                        unrecorded_installations::withdraw_adoption(
                            transaction,
                            &machine,
                            &allocation,
                            report.marker.as_ref(),
                        )?;
                    }
                    return Ok(ReportOutcome { unproven: Some(why), ..ReportOutcome::default() });
                }
            };
            let is_late = is_late_failure(transaction, (&machine, &allocation), &before, boot, &report, &text)?;
            let reported = record_effect(transaction, (&machine, &allocation), &before, effect, (boot, &report))?;
            confirm_by_report(transaction, &machine, &allocation, &report)?;
            let waits =
                find_unknown_marker(&read_install_state(transaction, &machine, &allocation)?, &allocation, &report);
            let waits = waits.map(to_json_column).transpose()?;
            let update = "UPDATE allocations SET waits = ?3 WHERE machine = ?1 AND id = ?2";
            transaction.execute(update, params![machine, allocation, waits])?;
            if !is_late {
                store_failure(transaction, (&machine, &allocation), &report)?;
            }
            transaction.execute("UPDATE machines SET reported = ?2 WHERE id = ?1", params![machine, now()])?;
            let is_same =
                "UPDATE allocations SET report = ?3 WHERE machine = ?1 AND id = ?2 AND report IS DISTINCT FROM ?3";
            let other_text = transaction.execute(is_same, params![machine, allocation, text])? > 0;
            let after = read_install_state(transaction, &machine, &allocation)?;
            let news = other_text || before.succeeded != after.succeeded || before.order != after.order;
            if news {
                record_history(transaction, (&machine, &allocation), reported.order.as_ref(), &report)?;
            }
            Ok(ReportOutcome { news, ..reported })
        })
        .await
    }
}

/// Returns whether the report is a late failure: the boot has already reported the end of its installation, and the new
/// report either repeats the last report, or concerns neither the open order nor the open first installation. A late
/// failure is not stored as the machine's failure, because the failure may have been cleared in the meantime.
fn is_late_failure(
    transaction: &Transaction,
    (machine, allocation): (&str, &str),
    before: &InstallState,
    boot: TokenHash,
    report: &InstallReport,
    text: &str,
) -> sql::Result<bool> {
    let select = "SELECT count(*) FROM boots WHERE hash = ?1 AND over IS NOT NULL";
    let has_ended = transaction.query_row(select, params![boot], |row| row.get::<_, i64>(0))? > 0;
    if report.success || !has_ended {
        return Ok(false);
    }
    let select = "SELECT count(*) FROM allocations WHERE machine = ?1 AND id = ?2 AND report = ?3";
    let repeats = transaction.query_row(select, params![machine, allocation, text], |row| row.get::<_, i64>(0))? > 0;
    let is_open = match &before.order {
        Some(order) => report.order.as_ref() == Some(&order.id),
        None => report.order.is_none() && !before.is_installed(),
    };
    Ok(repeats || !is_open)
}

/// Adds the report to the machine's history, with the id of an image: that of the order, otherwise that in the reported
/// install marker, otherwise that of the image that was served last.
fn record_history(
    transaction: &Transaction,
    (machine, allocation): (&str, &str),
    order: Option<&ReinstallOrder>,
    report: &InstallReport,
) -> sql::Result<()> {
    let marked = report.marker.as_ref().map(|marker| marker.image.clone());
    let served = || first_install::served_image(transaction, machine, allocation).transpose();
    let ordered = order.map(|order| order.image.clone()).or(marked);
    let image = ordered.map(Ok).or_else(served).transpose()?;
    insert_entry(transaction, machine, &HistoryEntry::from_report(report, image))
}

/// Stores the failure that the report describes. A report of success clears the failure.
fn store_failure(
    transaction: &Transaction,
    (machine, allocation): (&str, &str),
    report: &InstallReport,
) -> sql::Result<()> {
    let failure = AttemptFailure::from_report(report);
    let failure = failure.as_ref().map(to_json_column).transpose()?;
    let update = "UPDATE allocations SET failure = ?3 WHERE machine = ?1 AND id = ?2";
    transaction.execute(update, params![machine, allocation, failure]).map(drop)
}

/// Records the effect of a report: `effect` is the effect of a proven success, or `None` for a failure.
fn record_effect(
    transaction: &Transaction,
    (machine, allocation): (&str, &str),
    before: &InstallState,
    effect: Option<SuccessEffect>,
    (boot, report): (TokenHash, &InstallReport),
) -> sql::Result<ReportOutcome> {
    transaction.execute(
        "INSERT INTO allocations (machine, id, created) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
        params![machine, allocation, now()],
    )?;
    let order = before.order.clone().filter(|order| report.order.as_ref() == Some(&order.id));
    let is_recorded = effect != Some(SuccessEffect::NoEffect);
    let mut reported = ReportOutcome { order: order.clone().filter(|_| is_recorded), ..ReportOutcome::default() };
    // If the machine needs confirmation, the report is about its installed system, which it boots even if a reinstall
    // is ordered.
    let is_about_it = order.is_some() || before.order.is_none() || before.unconfirmed;
    match (effect, order) {
        (Some(effect), _) => record_success(transaction, (machine, allocation), before, effect, report)?,
        (None, Some(order)) if !is_of_attempt(transaction, machine, &order, boot)? => {
            return Ok(ReportOutcome::default());
        }
        (None, Some(order)) => reported = record_failed_attempt(transaction, machine, allocation, order, report)?,
        (None, None) if report.order.is_none() => {
            first_install::record_failure(transaction, machine, allocation, before.first.clone(), report)?
        }
        // The report does not concern the open order, so the order remains open.
        (None, None) => {}
    }
    Ok(ReportOutcome { over: is_about_it.then_some(report.success), ..reported })
}

/// Records a success that was proven.
fn record_success(
    transaction: &Transaction,
    (machine, allocation): (&str, &str),
    before: &InstallState,
    effect: SuccessEffect,
    report: &InstallReport,
) -> sql::Result<()> {
    let is_moved = before.barred || migration_records::explain_block(transaction, machine)?.is_some();
    match effect {
        SuccessEffect::Order(order) => complete_order(transaction, machine, allocation, &order, report),
        SuccessEffect::NoEffect => Ok(()),
        SuccessEffect::Installation | SuccessEffect::Adoption if before.elsewhere.is_some() || is_moved => Ok(()),
        SuccessEffect::Installation => {
            record_installed(transaction, machine, allocation, report, None)?;
            complete_record(transaction, machine, allocation)?;
            end_adoption(transaction, machine, allocation)
        }
        SuccessEffect::Adoption => record_installed(transaction, machine, allocation, report, None),
    }
}

/// Confirms a machine if its report of success contains the recorded install marker, which proves that the database
/// has recorded the current installation. A machine in a migration is not confirmed, because a marker on its own
/// disks does not prove which data the other machine has received.
fn confirm_by_report(
    transaction: &Transaction,
    machine: &str,
    allocation: &str,
    report: &InstallReport,
) -> sql::Result<()> {
    let InstallState { succeeded, marker, unconfirmed, .. } = read_install_state(transaction, machine, allocation)?;
    let agrees = succeeded && report.success && marker.is_some() && marker == report.marker;
    if unconfirmed && agrees && migration_records::find_live(transaction, machine)?.is_none() {
        insert_confirmation(transaction, machine, ConfirmedBy::Marker)?;
    }
    Ok(())
}

/// Returns the reported marker if it names this allocation but the server must not record it as installed: the report
/// is a failure, or the machine needs confirmation and the recorded marker differs.
fn find_unknown_marker<'a>(
    install_state: &InstallState,
    allocation: &str,
    report: &'a InstallReport,
) -> Option<&'a InstallMarker> {
    let is_unknown = |marker: &&InstallMarker| {
        let differs = install_state.unconfirmed && install_state.marker.as_ref() != Some(*marker);
        marker.allocation == allocation && (!report.success || differs)
    };
    report.marker.as_ref().filter(is_unknown)
}

fn complete_order(
    transaction: &Transaction,
    machine: &str,
    allocation: &str,
    order: &ReinstallOrder,
    report: &InstallReport,
) -> sql::Result<()> {
    record_installed(transaction, machine, allocation, report, Some(&order.image))?;
    complete_record(transaction, machine, allocation)?;
    end_adoption(transaction, machine, allocation)?;
    store_outcome(
        transaction,
        machine,
        allocation,
        &ReinstallOutcome::from_order(order, true, report.message.as_str()),
    )?;
    delete_order(transaction, machine, allocation)
}

/// Ends an adoption: the installation is now proven, and no longer known only from the adopted marker.
fn end_adoption(transaction: &Transaction, machine: &str, allocation: &str) -> sql::Result<()> {
    let update = "UPDATE allocations SET adopted = NULL, adopted_marker = NULL WHERE machine = ?1 AND id = ?2";
    transaction.execute(update, [machine, allocation]).map(drop)
}

/// Records that the allocation is installed. Also records the layout and image that were served last, unless the
/// reported install marker contradicts them.
fn record_installed(
    transaction: &Transaction,
    machine: &str,
    allocation: &str,
    report: &InstallReport,
    ordered: Option<&str>,
) -> sql::Result<()> {
    let select = "SELECT document, image FROM layouts WHERE machine = ?1 AND allocation = ?2";
    let handed_out = transaction.query_row(select, [machine, allocation], |row| Ok((row.get(0)?, row.get(1)?)));
    let (layout, handed_out): (Option<String>, Option<String>) = handed_out.optional()?.unwrap_or_default();
    let marked = report.marker.as_ref().map(|marker| marker.image.clone()).filter(|image| !image.is_empty());
    let image = ordered.map(str::to_owned).or(marked).or(handed_out);
    // If the machine was already installed, its marker may belong to an earlier layout than the one that was served
    // last.
    let is_other = |marker: &InstallMarker| {
        let document = layout.as_deref().and_then(|layout| serde_json::from_str::<serde_json::Value>(layout).ok());
        document.is_some_and(|document| find_contradiction(marker, &document).is_some())
    };
    let layout = if report.marker.as_ref().is_some_and(is_other) { None } else { layout };
    let marker = report.marker.as_ref().and_then(|marker| serde_json::to_string(marker).ok());
    // The machine's disks now contain this installation, and no longer a system that a migration has copied to them, or
    // an incomplete system of another allocation.
    remove_prohibition(transaction, machine, None)?;
    let replaced = "UPDATE allocations SET begun = NULL WHERE machine = ?1 AND id <> ?2 AND begun IS NOT NULL";
    transaction.execute(replaced, [machine, allocation])?;
    // If the agent only found and booted an installed system, its report does not list volumes.
    let volumes = report.burn.as_ref().and_then(|_| serde_json::to_string(&report.volumes).ok());
    transaction.execute(
        "UPDATE allocations SET succeeded = 1, image = ?3, layout = coalesce(?4, layout), marker = ?5, begun = NULL,
            volumes = coalesce(?6, volumes)
         WHERE machine = ?1 AND id = ?2",
        params![machine, allocation, image, layout, marker, volumes],
    )?;
    Ok(())
}

/// Returns whether the boot makes an attempt of the order: it is the boot that started the last attempt, or the current
/// boot of the machine. The report of an earlier boot must not end the attempt of its successor.
fn is_of_attempt(
    transaction: &Transaction,
    machine: &str,
    order: &ReinstallOrder,
    boot: TokenHash,
) -> sql::Result<bool> {
    let started_by = order.attempt.as_ref().map(|attempt| attempt.by);
    Ok(match current_token(transaction, machine)? {
        Some(current) => current == boot || started_by == Some(boot),
        None => started_by.is_none_or(|started_by| started_by == boot),
    })
}

/// Records that an attempt of the open order has failed.
fn record_failed_attempt(
    transaction: &Transaction,
    machine: &str,
    allocation: &str,
    mut order: ReinstallOrder,
    report: &InstallReport,
) -> sql::Result<ReportOutcome> {
    let step = report.step.as_deref().map(|step| format!("{step}: ")).unwrap_or_default();
    let reason = report.reason();
    store_outcome(
        transaction,
        machine,
        allocation,
        &ReinstallOutcome::from_order(&order, false, format!("{step}{reason}")),
    )?;
    // The order is deleted even if it counts as started: the attempt may have announced its start without receiving
    // the response. The agent has checked that the old installation is complete.
    if report.untouched {
        delete_order(transaction, machine, allocation)?;
        return Ok(ReportOutcome { order: Some(order), ..ReportOutcome::default() });
    }
    order.started = true;
    // If `storage.prove_kept` has failed, data on preserved disks has changed. Another attempt would not detect this,
    // since it would compare with the changed data.
    let failed = report.step.as_deref().and_then(StageName::named);
    let has_changed = failed.is_some_and(|stage| stage.failure_state() == FailureState::Changed);
    order.given_up |= has_changed || order.attempts >= ATTEMPTS || order.is_final_boot;
    store_order(transaction, machine, allocation, &order)?;
    Ok(ReportOutcome { retry: !order.given_up, order: Some(order), ..ReportOutcome::default() })
}
