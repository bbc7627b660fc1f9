//! Endpoint for the final reports of installations, and the responses to reports that are refused or ignored.

use super::DOCUMENT_BYTES;
use crate::AppState;
use crate::machine_auth::{EventCaller, MachineCaller};
use crate::migration_requests::machine_reports;
use crate::request_body::read_machine_document;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use common::error_code::ErrorCode;
use common::format::untrusted_text_limits::{NAME_BYTES, first_line, truncate_with_mark};
use control::ReportAcknowledgement;
use control::agent_api_types::InstallReport;
use http_server::api_error::ApiError;
use http_server::server_log::MachineOrigin;
use std::sync::Arc;
use store::{ATTEMPTS, ReportOutcome, UnprovenReason};

/// Maximum length of an id in an error message, in bytes.
const ID_BYTES: usize = 128;

pub(crate) async fn post_report(
    State(app): State<Arc<AppState>>,
    EventCaller(MachineCaller { id, boot, peer }): EventCaller,
    body: Body,
) -> Result<Json<ReportAcknowledgement>, ApiError> {
    let mut report: InstallReport = read_machine_document(&app, peer, body, DOCUMENT_BYTES).await?;
    let directory = app.directory();
    let current = directory.find_machine(&id).and_then(|machine| machine.allocation.as_ref());
    if let Some(current) = current
        && report.allocationuuid.is_empty()
    {
        report.allocationuuid = current.id.to_string();
    }
    let who = MachineOrigin::new(&id, directory.display_name(&id), peer);
    if let Some(acknowledged) = machine_reports::handle_report(&app, &who, &boot, &report).await? {
        return Ok(Json(acknowledged));
    }
    let is_current = current.is_some_and(|current| *current.id == report.allocationuuid);
    if boot.address.is_none() || !(is_current || app.state.has_allocation(&id, &report.allocationuuid).await?) {
        return ignore_foreign_report(&app, &who, &report, boot.address.is_some());
    }
    let reported = app.state.handle_report(&id, &report.allocationuuid, boot.hash, &report).await?;
    if let Some(why) = reported.unproven {
        return Err(refuse_success(&app, &id, &report, &why));
    }
    if let Some(success) = reported.over {
        app.state.record_boot_end(&id, boot.hash, success).await?;
    }
    if reported.news {
        app.counters.count_report(&report);
        app.watch.log_report(who.clone(), &report);
        if let Some(text) = describe_ending(&reported, &report) {
            app.watch.log_reinstall(who, text);
        }
        app.request_machine_reload(&id, None);
    }
    Ok(Json(ReportAcknowledgement { retry: reported.retry }))
}

/// Refuses a report of success that does not prove the success, and logs a warning for the operator. The machine then
/// does not boot from its disks.
fn refuse_success(app: &AppState, machine: &str, report: &InstallReport, why: &UnprovenReason) -> ApiError {
    let message = why
        .explain(machine, &common::format::truncate_bytes(&report.allocationuuid, ID_BYTES).escape_debug().to_string());
    let logged = format!("{}: {message}", app.directory().display_name(machine));
    app.log_rate_limited(ErrorCode::SuccessNotRecorded.annotate(logged));
    let refusal = ApiError::new(StatusCode::CONFLICT, message).with_code(why.code());
    refusal.with_error_code(ErrorCode::SuccessNotRecorded)
}

/// Responds to a report about an allocation that the machine never had, or to a report from a boot that has not
/// registered. Logs the report as one line, and does not store it.
fn ignore_foreign_report(
    app: &AppState,
    who: &MachineOrigin,
    report: &InstallReport,
    has_registered: bool,
) -> Result<Json<ReportAcknowledgement>, ApiError> {
    let allocation = &report.allocationuuid;
    let end = if report.success { "success" } else { "failure" };
    let why = match has_registered {
        true => format!("allocation {allocation:?} never belonged to this machine"),
        false => "the boot that sent the report has not registered".to_owned(),
    };
    app.rate_limited_log.log_note(format!(
        "{who}  reports {end}; the report is ignored, because {why}: {message}",
        message = truncate_with_mark(&first_line(&report.message), NAME_BYTES)
    ));
    match report.success {
        true => {
            let message =
                format!("the report of success is rejected: allocation {allocation:?} never belonged to this machine");
            Err(ApiError::new(StatusCode::CONFLICT, message))
        }
        false => Ok(Json(ReportAcknowledgement::default())),
    }
}

/// Describes the effect of a report on the reinstall order.
fn describe_ending(reported: &ReportOutcome, report: &InstallReport) -> Option<String> {
    let order = reported.order.as_ref()?;
    let (image, attempt) = (&order.image, order.attempts);
    Some(if report.success {
        format!("done: image {image}, attempt {attempt} of {ATTEMPTS}")
    } else if reported.retry {
        format!("attempt {attempt} of {ATTEMPTS} failed: the machine retries")
    } else if order.given_up {
        format!("abandoned after {attempt} attempts: the machine is only partially installed and waits at its console")
    } else {
        format!(
            "abandoned: the disks are unchanged, so the machine boots its old system; image {image} was not installed"
        )
    })
}
