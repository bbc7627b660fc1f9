//! The operator's requests to order, show, approve, cancel and finish migrations. A migration order is refused with
//! all objections to it at once, before anything is stored.

use super::certificate_approval::CertificateShown;
use super::machine_requests::describe_migration;
use super::refusal_error;
use super::{ApprovedCertificates, Migration, MigrationEndpoint, MigrationEvent, MigrationState, disk_mapping};
use crate::AppState;
use crate::access::HIDDEN_MACHINE_TEXT;
use crate::metal_api::{ApiRefusal, EditPermit, EditRequest};
use crate::operator_api::OperatorAuth;
use crate::request_body::EVENT_BYTES;
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use common::diagnostic;
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use model::allocation::Allocation;
use model::install_marker::{InstallMarker, RecordedDisk};
use model::inventory::Inventory;
use model::machine_migration::MigrationSide;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use site::operator_files::MachineSpec;
use std::collections::BTreeMap;
use std::sync::Arc;
use store::boot_activity::ACTIVE_BOOT_TIMEOUT;
use store::{InstallState, MigrationPlacement, MigrationUpdate, now};

/// Request body: a migration that the operator orders.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MigrationRequest {
    /// Id of the target machine.
    pub to: String,
    /// Disk of the target machine for each disk name of the layout. Each disk is specified by its serial number or by
    /// its device name on the target.
    #[serde(default)]
    pub disks: BTreeMap<String, String>,
    /// True if data is copied without the operator's approval of the certificates. Another machine can then impersonate
    /// source or target.
    #[serde(default)]
    pub allow_unapproved: bool,
}

/// Request body: certificates whose fingerprints the operator has compared with those shown on the machines' consoles.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CertificateApproval {
    /// Fingerprints of the certificates. Each fingerprint may be shortened to its first 16 or more hexadecimal digits.
    pub fingerprints: Vec<String>,
}

/// Migration as shown to the operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct MigrationView {
    /// Id of the migration order.
    pub id: String,
    /// Id of the source machine.
    pub from: String,
    /// Id of the target machine.
    pub to: String,
    /// Id of the allocation.
    pub allocation: String,
    pub state: MigrationState,
    /// Time at which the migration was ordered, RFC 3339 in UTC.
    pub created: String,
    /// Disk of the target machine for each disk name of the layout.
    pub disks: Vec<RecordedDisk>,
    /// True if the source waits in its ramdisk, and has contacted the server recently.
    pub from_stands: bool,
    /// True if the target waits in its ramdisk, and has contacted the server recently.
    pub to_stands: bool,
    /// Number of boots of the target that passed the point of no return and failed.
    pub failures: u32,
    /// Last problem that the source reported.
    pub from_says: String,
    /// Last problem that the target reported.
    pub to_says: String,
    /// Certificate of the source; absent if the source does not wait in its ramdisk.
    #[serde(default)]
    pub from_certificate: Option<CertificateShown>,
    /// Certificate of the target; absent if the target does not wait in its ramdisk.
    #[serde(default)]
    pub to_certificate: Option<CertificateShown>,
}

async fn view_migration(app: &AppState, migration: Migration) -> Result<MigrationView, ApiError> {
    let now = app.state.read_current_boots(&migration).await?;
    let is_heard = |end: &MigrationEndpoint| app.state.heard.time_since_call(&end.boot) < ACTIVE_BOOT_TIMEOUT;
    let stands = |part| migration.state.is_open() && migration.present_endpoint(part, now).is_some_and(is_heard);
    let certificate = |part| migration.present_endpoint(part, now).and_then(|_| migration.certificate_view(part));
    Ok(MigrationView {
        from_certificate: certificate(MigrationSide::Source),
        to_certificate: certificate(MigrationSide::Target),
        from_stands: stands(MigrationSide::Source),
        to_stands: stands(MigrationSide::Target),
        id: migration.id,
        from: migration.source,
        to: migration.target,
        allocation: migration.allocation,
        state: migration.state,
        created: migration.created,
        disks: migration.disks,
        failures: migration.failures,
        from_says: migration.source_problem,
        to_says: migration.target_problem,
    })
}

/// Checks that the current user may access both machines of the migration of machine `id`.
///
/// # Errors
/// Returns an error if the user has no access to one of the machines. The error does not name the other machine.
fn check_both_visible(app: &AppState, id: &str, migration: &Migration) -> Result<(), ApiError> {
    match app.may_see_migration(migration) {
        true => Ok(()),
        false => {
            let why = format!(
                "machine {id} is part of a migration with {HIDDEN_MACHINE_TEXT}: ask an admin to handle the migration"
            );
            Err(ApiError::new(StatusCode::FORBIDDEN, why).with_error_code(ErrorCode::AccessDenied))
        }
    }
}

fn no_migration_error(id: &str) -> ApiError {
    ApiError::not_found(format!("machine {id} is not part of a migration"))
}

/// Handles `GET /v1/machine/{id}/move`: returns the machine's open migration or, if no migration is open, the newest
/// one.
pub(crate) async fn show_migration(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
    _: OperatorAuth,
) -> Result<Json<MigrationView>, ApiError> {
    let id = id.to_lowercase();
    let migration = app.state.find_last_migration(&id).await?.ok_or_else(|| no_migration_error(&id))?;
    check_both_visible(&app, &id, &migration)?;
    view_migration(&app, migration).await.map(Json)
}

/// Handles `POST /v1/machine/{id}/move`: orders a migration.
pub(crate) async fn order_migration(
    Path(id): Path<String>,
    EditRequest { document: request, permit }: EditRequest<MigrationRequest, EVENT_BYTES>,
) -> Result<Json<MigrationView>, ApiRefusal> {
    let EditPermit { app, peer, .. } = &permit;
    let new = check_order(&permit, &id.to_lowercase(), &request).await.map_err(ApiRefusal::from)?;
    match app.state.place_migration(new.clone()).await? {
        MigrationPlacement::Placed => {}
        MigrationPlacement::Rejected(why) => return Err(ApiRefusal::conflict(format!("not migrated: {why}"))),
    }
    app.watch.log_note(format!("{peer} ordered migration {}", describe_migration(&app.directory(), &new)));
    app.request_reload();
    Ok(Json(view_migration(app, new).await?))
}

/// Checks the migration order, and converts it to a migration. The error lists all objections to the order.
async fn check_order(permit: &EditPermit, id: &str, request: &MigrationRequest) -> Result<Migration, ApiError> {
    let EditPermit { app, directory, .. } = permit;
    let to = request.to.to_lowercase();
    let unknown = |id: &str| ApiError::not_found(format!("machine {id} not found in machines/"));
    let a = directory.find_machine(id).ok_or_else(|| unknown(id))?;
    let b = directory.find_machine(&to).ok_or_else(|| unknown(&to))?;
    if a.id == b.id {
        return Err(ApiError::bad_request("not migrated: source and target are the same machine"));
    }
    let mut problems = Vec::new();
    for machine in [a, b] {
        problems.extend(machine.explain_lock().map(|why| format!("machine {} is {why}", machine.id)));
        let open = app.state.find_live_migration(&machine.id).await?;
        problems.extend(open.map(|migration| store::explain_migration_block(&machine.id, &migration)));
    }
    if let Some(allocation) = &b.allocation {
        problems.push(format!(
            "the file of machine {to} contains allocation {allocation}: remove that allocation first",
            allocation = *allocation.id
        ));
    }
    let inventory = app.read_inventory(&to).await?;
    if inventory.is_none() {
        problems.push(format!("machine {to} has not registered its hardware: boot it over PXE once"));
    }
    let Some(allocation) = &a.allocation else {
        problems.push(format!("the file of machine {id} does not contain an allocation"));
        return Err(refusal_error(&problems, [a, b]));
    };
    let install_state = app.state.read_install_state(id, &allocation.id).await?;
    problems.extend(find_record_problems(a, &allocation.id, &install_state));
    let disks = match (&install_state.layout, inventory) {
        (Some(layout), Some(inventory)) => map_target_disks(layout, &inventory, (id, &to), request, &mut problems),
        (None, _) if install_state.succeeded => {
            problems.push(format!("this server does not have the layout with which machine {id} was installed"));
            Vec::new()
        }
        (None, _) | (_, None) => Vec::new(),
    };
    let marker = install_state.marker;
    problems.extend(disks.iter().filter_map(|disk| explain_shared_disk(disk, marker.as_ref()?, id, &to)));
    if !problems.is_empty() {
        return Err(refusal_error(&problems, [a, b]));
    }
    Ok(Migration { allow_unapproved: request.allow_unapproved, ..new_migration(a, b, &allocation.id, marker, disks) })
}

/// Returns the objections to the migration that are based on the server's record of the source's installation.
fn find_record_problems(machine: &MachineSpec, allocation: &str, install_state: &InstallState) -> Vec<String> {
    let (id, mut problems) = (&machine.id, Vec::new());
    if !install_state.succeeded {
        problems.push(format!(
            "allocation {allocation} of machine {id} is not installed according to this server's records"
        ));
    }
    if install_state.order.is_some() {
        problems.push(format!("a reinstall of machine {id} is ordered"));
    }
    if has_volumes(machine) || !install_state.volumes.is_empty() {
        problems.push(format!("allocation {allocation} has Kubernetes volumes, which cannot be migrated"));
    }
    if install_state.succeeded && install_state.marker.is_none() {
        problems.push(format!(
            "this server does not have the install marker of machine {id}, which the machine reports only at the end of an installation: reinstall machine {id} first"
        ));
    }
    problems
}

/// Selects the target's disks for the installed layout. Objections to the layout or the disks are added to `problems`.
fn map_target_disks(
    layout: &Value,
    inventory: &Inventory,
    (from, to): (&str, &str),
    request: &MigrationRequest,
    problems: &mut Vec<String>,
) -> Vec<RecordedDisk> {
    let of = Allocation { filesystemlayout: layout.clone(), ..Allocation::default() };
    let layout = match of.parse_layout() {
        Ok(parsed) => parsed.layout,
        Err(wrong) => {
            problems.push(format!("the layout of machine {from} is invalid: {}", diagnostic::join_problems(&wrong)));
            return Vec::new();
        }
    };
    let raw = layout.disks.iter().filter(|disk| disk.image);
    problems.extend(raw.map(|disk| {
        format!(
            "layout {layout} writes a raw image to {disk}: the migration is not supported, because the server does not know the partitions of a raw image",
            layout = layout.id,
            disk = disk.device
        )
    }));
    if layout.encryption_specs().next().is_some() {
        problems.push(format!(
            "layout {layout} has encrypted filesystems or volume groups, whose keys would not be migrated: decrypt \
            these filesystems and groups first",
            layout = layout.id
        ));
    }
    disk_mapping::map_disks(&layout, &inventory.disks, &request.disks).unwrap_or_else(|wrong| {
        problems.extend(wrong.into_iter().map(|wrong| format!("machine {to}: {wrong}")));
        Vec::new()
    })
}

/// Returns a newly ordered migration.
fn new_migration(
    a: &MachineSpec,
    b: &MachineSpec,
    allocation: &str,
    marker: Option<InstallMarker>,
    disks: Vec<RecordedDisk>,
) -> Migration {
    Migration {
        id: uuid::Uuid::new_v4().to_string(),
        source: a.id.clone(),
        target: b.id.clone(),
        allocation: allocation.to_owned(),
        state: MigrationState::Ordered,
        created: now(),
        fencing: None,
        marker,
        disks,
        carried: None,
        source_endpoint: None,
        target_endpoint: None,
        started_copy: None,
        failures: 0,
        failed: None,
        left: None,
        source_problem: String::new(),
        target_problem: String::new(),
        files: false,
        allow_unapproved: false,
        approved: ApprovedCertificates::default(),
    }
}

/// Returns an objection if the target's disk is the same physical disk as one of the source's disks.
fn explain_shared_disk(disk: &RecordedDisk, of_sender: &InstallMarker, from: &str, to: &str) -> Option<String> {
    let (there, by) = of_sender.disks.iter().find_map(|there| Some((there, there.explain_same_disk(disk)?)))?;
    Some(format!(
        "machine {to}: the disk that replaces {disk} has the same {by} as {source_disk} of machine {from}: both machines are connected to this disk, or the disk was moved. Put the disk back, or choose another disk",
        disk = disk.device,
        source_disk = there.device
    ))
}

fn has_volumes(machine: &MachineSpec) -> bool {
    let volumes = machine.allocation.as_ref().and_then(|allocation| allocation.passed_on.get("volumes"));
    volumes.and_then(Value::as_array).is_some_and(|all| !all.is_empty())
}

#[derive(Deserialize, schemars::JsonSchema)]
pub(crate) struct CancelQuery {
    /// Id of the target machine, which confirms that this machine is switched off.
    #[serde(default)]
    off: Option<String>,
}

/// Handles `DELETE /v1/machine/{id}/move`: cancels a migration. If the target may already run the system, the
/// operator must confirm that the target is switched off: the parameter `off` must contain the target's id.
pub(crate) async fn cancel_migration(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
    _: OperatorAuth,
    peer: ClientAddress,
    query: Result<Query<CancelQuery>, QueryRejection>,
) -> Result<Json<MigrationView>, ApiError> {
    let Query(CancelQuery { off }) = query.map_err(|error| ApiError::bad_request(error.to_string()))?;
    let id = id.to_lowercase();
    let migration = app.state.find_live_migration(&id).await?.ok_or_else(|| no_migration_error(&id))?;
    check_both_visible(&app, &id, &migration)?;
    let off = off.map(|off| off.to_lowercase());
    if let Some(other) = off.as_ref().filter(|off| **off != migration.target) {
        return Err(ApiError::bad_request(format!(
            "the query parameter `off` confirms that the target machine is switched off, so it must be the machine's \
            id, {target}; it is {other}",
            target = migration.target
        )));
    }
    apply_event(&app, &migration, MigrationEvent::Cancelled { off: off.is_some() }, peer).await
}

/// Handles `POST /v1/machine/{id}/move/finish`: the operator confirms that the system runs on the target.
pub(crate) async fn finish_migration(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
    _: OperatorAuth,
    peer: ClientAddress,
) -> Result<Json<MigrationView>, ApiError> {
    let id = id.to_lowercase();
    let migration = app.state.find_last_migration(&id).await?.ok_or_else(|| no_migration_error(&id))?;
    check_both_visible(&app, &id, &migration)?;
    if migration.state == MigrationState::Done {
        return view_migration(&app, migration).await.map(Json);
    }
    apply_event(&app, &migration, MigrationEvent::Finished, peer).await
}

/// Handles `POST /v1/machine/{id}/move/approve`: the operator has compared the fingerprints with those shown on the
/// consoles of both machines.
pub(crate) async fn approve_certificates(
    Path(id): Path<String>,
    EditRequest { document: approval, permit }: EditRequest<CertificateApproval, EVENT_BYTES>,
) -> Result<Json<MigrationView>, ApiRefusal> {
    let EditPermit { app, peer, .. } = &permit;
    let id = id.to_lowercase();
    let migration = app.state.find_live_migration(&id).await?.ok_or_else(|| no_migration_error(&id))?;
    check_both_visible(app, &id, &migration)?;
    let now = app.state.read_current_boots(&migration).await?;
    let word = MigrationEvent::Approved { fingerprints: approval.fingerprints, now };
    Ok(apply_event(app, &migration, word, *peer).await?)
}

async fn apply_event(
    app: &AppState,
    migration: &Migration,
    word: MigrationEvent,
    peer: ClientAddress,
) -> Result<Json<MigrationView>, ApiError> {
    let unknown = || no_migration_error(&migration.source);
    let heard = app.state.apply_migration_event(&migration.source, &migration.id, word).await?.ok_or_else(unknown)?;
    let MigrationUpdate { migration, news } = heard.map_err(|why| ApiError::new(StatusCode::CONFLICT, why))?;
    if news {
        app.watch.log_note(format!(
            "{peer} updated migration {migration}",
            migration = describe_migration(&app.directory(), &migration)
        ));
        app.request_reload();
    }
    view_migration(app, migration).await.map(Json)
}
