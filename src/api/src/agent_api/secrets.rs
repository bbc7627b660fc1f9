//! Secrets of an allocation. A secret is sent only to the boot that installs the allocation, and only when that boot
//! needs the secret.

use crate::AppState;
use crate::machine_auth::MachineCaller;
use crate::migration_requests::machine_requests;
use crate::request_body::{EVENT_BYTES, read_operator_document};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_server::api_error::ApiError;
use model::allocation::{ReleasedSecrets, SecretField, SecretPurpose, SecretsRequest};
use model::secret_text::SecretText;
use site::allocation_resolution::ResolvedAllocation;
use std::sync::Arc;
use store::MachineBoot;

/// `POST /v1/machine/{id}/secrets`: returns the secrets for one purpose to the boot that installs the allocation.
pub(crate) async fn release_secrets(
    State(app): State<Arc<AppState>>,
    MachineCaller { id, boot, peer }: MachineCaller,
    body: Body,
) -> Result<Response, ApiError> {
    let SecretsRequest { allocationuuid, purpose } = read_operator_document(&app, peer, body, EVENT_BYTES).await?;
    let directory = app.directory();
    let name = directory.display_name(&id);
    let refuse = |reason: &str| {
        let message = format!("machine {id}: cannot send secrets of allocation {allocationuuid}: {reason}");
        Err(ApiError::new(StatusCode::CONFLICT, message))
    };
    let given =
        machine_requests::find_assignment(&app, &directory, &boot).await?.filter(|given| given.moving.is_none());
    let Some(assigned) = given.map(|given| given.assigned).filter(|assigned| assigned.installs) else {
        return refuse("the machine is not being installed");
    };
    if *assigned.allocation.id != allocationuuid {
        return refuse(&format!(
            "the machine now has allocation {current_allocation}",
            current_allocation = *assigned.allocation.id
        ));
    }
    if let Some(reason) = refusal_reason(&boot, purpose) {
        return refuse(reason);
    }
    let released = collect_secrets(&assigned, purpose);
    let fields =
        secret_fields(&assigned).into_iter().filter(|field| field.purpose() == purpose).map(SecretField::as_str);
    let fields: Vec<&str> = fields.collect();
    let mut sent = assigned.allocation.to_fields().secrets;
    sent.retain(|name, _| fields.contains(&name.as_str()));
    app.state.record_sent_secrets(&id, &allocationuuid, boot.started, sent).await?;
    app.watch.log_note(format!(
        "{name}: sent secrets of allocation {allocationuuid} to {peer}: {fields}",
        fields = fields.join(", ")
    ));
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(released)).into_response())
}

/// Returns the reason why the boot must not receive secrets for this purpose now, or `None` if the boot may receive the
/// secrets.
fn refusal_reason(boot: &MachineBoot, purpose: SecretPurpose) -> Option<&'static str> {
    match (purpose, boot.started) {
        _ if boot.over.is_some() => Some("the installation of this boot has already ended"),
        (SecretPurpose::System, false) => Some("the installation has not passed its point of no return"),
        (SecretPurpose::DiskKey | SecretPurpose::Image, true) => {
            Some("the installation has passed its point of no return")
        }
        _ => None,
    }
}

/// Returns the secret fields that the machine can still request: before the point of no return, all secret fields;
/// after the point of no return, only the secrets of the installed system.
pub(crate) fn requestable_fields(assigned: &ResolvedAllocation, has_not_begun: bool) -> Vec<SecretField> {
    let can_request = |field: &SecretField| has_not_begun || field.purpose() == SecretPurpose::System;
    let fields = if assigned.installs { secret_fields(assigned) } else { Vec::new() };
    fields.into_iter().filter(can_request).collect()
}

/// Returns the secret fields that are set in the allocation.
fn secret_fields(assigned: &ResolvedAllocation) -> Vec<SecretField> {
    let told = assigned.allocation.to_agent_allocation();
    [
        (SecretField::DiskKey, !told.disk_key.is_empty()),
        (SecretField::PullSecrets, !assigned.image.pull_secrets.is_empty()),
        (SecretField::UserData, !told.user_data.is_empty()),
        (SecretField::ConsolePassword, !told.console_password.is_empty()),
        (SecretField::Vpn, !told.vpn.is_null()),
    ]
    .into_iter()
    .filter_map(|(field, is_there)| is_there.then_some(field))
    .collect()
}

fn collect_secrets(assigned: &ResolvedAllocation, purpose: SecretPurpose) -> ReleasedSecrets {
    let told = assigned.allocation.to_agent_allocation();
    let none = ReleasedSecrets::default();
    match purpose {
        SecretPurpose::DiskKey => ReleasedSecrets { disk_key: told.disk_key, ..none },
        SecretPurpose::Image => ReleasedSecrets { pull_secrets: assigned.image.pull_secrets.clone(), ..none },
        SecretPurpose::System => ReleasedSecrets {
            user_data: SecretText::new(told.user_data),
            console_password: SecretText::new(told.console_password),
            vpn: told.vpn,
            ..none
        },
    }
}
