//! Boot scripts for PXE, and boot information for running systems that start the ramdisk with kexec. A boot that
//! carries out a reinstall order is counted as an attempt before the ramdisk is served.

use super::abandoned_reinstall_messages::{describe_stopped, describe_suspended, log_order_end};
use super::base_url::BaseUrls;
use super::boot_messages::{
    RELEASED, describe_attempt, describe_migration_role, describe_missing_file, describe_other_id,
    describe_unconfirmed, describe_unconfirmed_migration,
};
use super::source_port_check::SourcePort;
use super::{AppState, agent_api, machine_auth, machine_identification, source_port_check};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{Method, StatusCode};
use common::error_code::ErrorCode;
use control::agent_api_types;
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use http_server::server_log::MachineOrigin;
use model::architecture::Architecture;
use model::install_report::{EventName, ProgressEvent};
use model::machine_identity::{BootIdentity, MachineMatch, parse_mac, parse_usable_uuid};
use pxe::ipxe;
use serde::Deserialize;
use site::{boot_value_validation, operator_files};
use std::sync::Arc;
use store::boot_token::RequestedBoot;
use store::{BootDecision, BootTarget, FileAllocation, MachineBoot, restore_confirmation};
use time::OffsetDateTime;

pub async fn start_script(base: BaseUrls) -> String {
    ipxe::start_script(&base.files)
}

#[derive(Deserialize)]
pub struct BootQuery {
    #[serde(default)]
    uuid: String,
    #[serde(default)]
    mac: String,
    /// iPXE's setting `buildarch`; in a request for `/boot.json`, the architecture of the running system.
    #[serde(default)]
    arch: String,
}

/// `/boot.ipxe`: the boot script of a machine. It contains a token that authorizes only the registration of this boot.
pub async fn boot_script(
    State(app): State<Arc<AppState>>,
    base: BaseUrls,
    peer: ClientAddress,
    method: Method,
    query: Result<Query<BootQuery>, QueryRejection>,
) -> Result<String, ApiError> {
    let asking = identify_requester(&app, peer, &method, query).await?;
    if let Some(why) = asking.withheld {
        if app.state.is_barred_from_disks(&asking.id, asking.files).await? {
            app.log_rate_limited(format!(
                "{why}. The system is incomplete or migrated: the machine waits instead of booting from its disk"
            ));
            return Ok(ipxe::hold_script(&base.files, &asking.id));
        }
        app.log_rate_limited(why);
        return Ok(ipxe::local_disk_script(&asking.id));
    }
    let decision = app.state.decide_next_boot(&asking.id, asking.files.clone()).await?;
    let BootDecision { next, excludes_disk, active, requested } = decision;
    let token = asking.issue_token(&app, requested, active.is_some())?;
    let initrd = ramdisk_file(&app, &asking.id, asking.architecture).await;
    log_active_boot(&app, &asking, active, peer).await?;
    let Some((message, stop)) = describe_pxe_boot(&asking.id, &next) else {
        return Err(machine_auth::too_many_machines(&app, &asking.id, peer));
    };
    log_unproven(&app, &asking, &next, peer);
    if matches!(next, BootTarget::InstalledElsewhere(_) | BootTarget::NoFile) {
        app.log_rate_limited(format!("machine {machine} at {peer} {message}", machine = asking.id));
    }
    record_event(&app, &asking.id, peer, EventName::PxeBooting, &message).await?;
    log_order_end(&app, &asking.id, &next, peer);
    Ok(match stop {
        Some(stop) => {
            log_missing_ramdisk(&app, &asking, peer);
            let ramdisk = ipxe::RamdiskBoot { initrd, ..asking.ramdisk(&app, &base, &token, stop) };
            ipxe::ramdisk_script(&ramdisk, excludes_disk)
        }
        None => ipxe::local_disk_script(&asking.id),
    })
}

/// Describes the boot that the firmware requests, and returns whether the ramdisk starts without the agent; `None`
/// instead of the latter if the machine boots its disk. Returns `None` if the machine must not boot.
fn describe_pxe_boot(id: &str, next: &BootTarget) -> Option<(String, Option<bool>)> {
    Some(match next {
        BootTarget::Install => ("boots the ramdisk".to_owned(), Some(false)),
        BootTarget::Attempt(order) => (describe_attempt(order), Some(false)),
        BootTarget::Unconfirmed(order) => (describe_unconfirmed(order), Some(false)),
        BootTarget::MigrationRamdisk(part, state) => (describe_migration_role(*part, *state), Some(false)),
        BootTarget::UnconfirmedMigration(unconfirmed) => (describe_unconfirmed_migration(unconfirmed), Some(false)),
        BootTarget::MigratedAway => (RELEASED.to_owned(), Some(false)),
        BootTarget::Disk => ("is installed and boots its disk".to_owned(), None),
        BootTarget::Suspended(order) => (describe_suspended(order), None),
        BootTarget::InstalledElsewhere(other) => (describe_other_id(id, other), None),
        BootTarget::NoFile => (describe_missing_file(id), None),
        BootTarget::AbandonedAfterErase(order) => (describe_stopped(order), Some(true)),
        BootTarget::TooManyUnknown => return None,
    })
}

/// `/boot.json`: boot information for a running machine that is about to carry out its reinstall. The request is
/// refused if neither a reinstall nor a migration is ordered, or if an unprivileged process may have sent it.
pub(crate) async fn boot_json(
    State(app): State<Arc<AppState>>,
    base: BaseUrls,
    peer: ClientAddress,
    source: SourcePort,
    method: Method,
    query: Result<Query<BootQuery>, QueryRejection>,
) -> Result<Json<agent_api_types::NextBoot>, ApiError> {
    let asking = identify_requester(&app, peer, &method, query).await?;
    source_port_check::require_privileged(&app, source, peer, &asking.id, "request its reinstall")?;
    if let Some(why) = asking.withheld {
        app.log_rate_limited(why.clone());
        return Err(ApiError::new(StatusCode::CONFLICT, why));
    }
    let BootDecision { next, active, requested, .. } =
        app.state.decide_next_boot(&asking.id, asking.files.clone()).await?;
    let token = asking.issue_token(&app, requested, active.is_some())?;
    log_active_boot(&app, &asking, active, peer).await?;
    log_unproven(&app, &asking, &next, peer);
    log_order_end(&app, &asking.id, &next, peer);
    let id = &asking.id;
    let what = describe_kexec_boot(&app, id, peer, &next)?;
    record_event(&app, id, peer, EventName::PlannedReboot, &format!("{what} by kexec, without the firmware")).await?;
    let initrd = ramdisk_file(&app, id, asking.architecture).await;
    log_missing_ramdisk(&app, &asking, peer);
    let ramdisk = ipxe::RamdiskBoot { initrd, ..asking.ramdisk(&app, &base, &token, false) };
    Ok(Json(agent_api_types::NextBoot {
        kernel: ramdisk.kernel_url(),
        initrd: ramdisk.initrd_url(),
        cmdline: ramdisk.kernel_arguments(),
    }))
}

/// Describes the boot that a running machine may start by kexec.
///
/// # Errors
/// Returns an error if the machine must not boot the ramdisk now.
fn describe_kexec_boot(app: &AppState, id: &str, peer: ClientAddress, next: &BootTarget) -> Result<String, ApiError> {
    let refusal = match next {
        BootTarget::Attempt(order) => return Ok(describe_attempt(order)),
        BootTarget::MigrationRamdisk(part, state) => return Ok(describe_migration_role(*part, *state)),
        BootTarget::MigratedAway => format!("machine {id} {RELEASED}"),
        BootTarget::Unconfirmed(_) => restore_confirmation::explain_confirmation(id),
        BootTarget::UnconfirmedMigration(unconfirmed) => restore_confirmation::explain_confirmation(unconfirmed),
        BootTarget::Install => format!("machine {id}: this server has no record that the allocation is installed"),
        BootTarget::Disk => format!(
            "no reinstall of machine {id} is ordered: order one with `drophammer machine reinstall {id} --image IMAGE`"
        ),
        BootTarget::Suspended(order) => describe_suspended(order),
        BootTarget::InstalledElsewhere(other) => format!("machine {id} {}", describe_other_id(id, other)),
        BootTarget::NoFile => format!("machine {id} {}", describe_missing_file(id)),
        BootTarget::AbandonedAfterErase(order) => describe_stopped(order),
        BootTarget::TooManyUnknown => return Err(machine_auth::too_many_machines(app, id, peer)),
    };
    Err(ApiError::new(StatusCode::CONFLICT, refusal))
}

const PLAIN: &str = "initrd";

/// File name of the ramdisk with cryptsetup, for machines with encrypted storage.
const LUKS_RAMDISK_FILE: &str = "initrd-luks";

/// Returns the file name, for amd64, of the ramdisk that the machine's current layout requires. If the layout changes
/// after the boot, the machine must boot again.
pub(crate) async fn ramdisk_file(app: &AppState, id: &str, architecture: Architecture) -> &'static str {
    let directory = app.directory();
    let is_encrypted = match agent_api::wire_allocation::find_assignment(app, &directory, id).await {
        Ok(Some((assigned, _))) => {
            let lists = ["filesystems", "volumegroups"].map(|list| assigned.layout[list].as_array());
            lists.into_iter().flatten().flatten().any(|item| !item["encrypted"].is_null())
        }
        // The allocation cannot be resolved, for example because the digest of its image is still being computed.
        _ => {
            let allocation = directory.find_machine(id).and_then(|machine| machine.allocation.as_ref());
            let named = allocation.and_then(|allocation| allocation.filesystemlayout.as_deref());
            let layout = named.and_then(|named| directory.known.layouts.get(named));
            layout.is_some_and(|layout| layout.encryption_specs().next().is_some())
        }
    };
    if !is_encrypted {
        return PLAIN;
    }
    let file = app.boot.join(ipxe::boot_file_name(LUKS_RAMDISK_FILE, architecture));
    if ipxe::is_usable_file(&file) {
        return LUKS_RAMDISK_FILE;
    }
    app.log_rate_limited(format!(
        "{id}: the machine's layout has encrypted filesystems, but {file} is missing or empty, so the agent will refuse the installation: create the file with scripts/build-ramdisk", file = file.display()));
    PLAIN
}

/// Machine that sends a boot request, identified by its UUID or MAC.
struct BootRequest {
    id: String,
    /// MAC of the NIC from which the machine boots.
    mac: Option<String>,
    architecture: Architecture,
    consoles: Vec<String>,
    network: Option<String>,
    files: FileAllocation,
    /// Reason why the request is refused; `None` if the request is accepted.
    withheld: Option<String>,
    /// Reason why the request may come from another machine; `None` if the identity of the client is proven.
    unproven: Option<String>,
}

impl BootRequest {
    /// Returns a new token for a boot of this machine. `created` is the time at which the boot was requested.
    fn issue_token(&self, app: &AppState, created: OffsetDateTime, while_active: bool) -> Result<String, ApiError> {
        let boot = RequestedBoot { machine: self.id.clone(), created, while_active };
        Ok(app.boot_tokens.issue_token(&boot)?)
    }

    fn ramdisk<'a>(
        &'a self,
        app: &'a AppState,
        base: &'a BaseUrls,
        token: &'a str,
        stop: bool,
    ) -> ipxe::RamdiskBoot<'a> {
        let BootRequest { id, architecture, consoles, network, .. } = self;
        let network = network.as_deref();
        let BaseUrls { calls: url, files } = base;
        ipxe::RamdiskBoot {
            url,
            files,
            token,
            machine: id,
            consoles,
            network,
            cmdline: &app.cmdline,
            stop,
            architecture: *architecture,
            initrd: PLAIN,
        }
    }
}

async fn identify_requester(
    app: &AppState,
    peer: ClientAddress,
    method: &Method,
    query: Result<Query<BootQuery>, QueryRejection>,
) -> Result<BootRequest, ApiError> {
    if *method == Method::HEAD {
        return Err(ApiError::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "the method HEAD is not allowed, because a boot script counts as an attempt of the machine's reinstall order; use GET",
        ));
    }
    let Query(query) = query.map_err(|error| ApiError::bad_request(error.to_string()))?;
    let asking = parse_identity(&query).map_err(ApiError::bad_request)?;
    let directory = app.directory();
    let (id, withheld, unproven) = match machine_identification::match_boot_request(app, &directory, &asking).await? {
        MachineMatch::Proven { id, warning } => {
            warning.into_iter().for_each(|warning| app.log_rate_limited(warning));
            (id, None, None)
        }
        MachineMatch::Unproven { id, why } => (id, None, Some(why)),
        MachineMatch::Unknown(uuid) => (uuid.to_string(), None, None),
        MachineMatch::Withheld { id, why } => (id, Some(add_origin(&why, peer)), None),
        MachineMatch::Ambiguous(why) => {
            app.log_rate_limited(add_origin(&why, peer));
            return Err(ApiError::new(StatusCode::CONFLICT, why).with_error_code(ErrorCode::DuplicateUuid));
        }
        MachineMatch::Unidentified => {
            app.log_rate_limited(machine_auth::describe_unidentified_machine(peer, &asking));
            return Err(ApiError::bad_request(
                "the machine cannot be identified: its `uuid` is not usable, and none of the files in machines/ lists its `mac`",
            ));
        }
    };
    let machine = directory.find_machine(&id);
    // The allocation is read from the file without being resolved. It could not be resolved while the digest of its
    // image is being computed, but an installed machine must count as installed during this time.
    let files = match machine.map(|machine| &machine.allocation) {
        Some(Some(allocation)) => FileAllocation::Allocated(allocation.id.to_string()),
        Some(None) => FileAllocation::Free,
        None => FileAllocation::NoMachineFile,
    };
    let withheld = withheld.or_else(|| machine_auth::foreign_nic_message(app, machine?, peer));
    let architecture = ipxe::parse_buildarch(&query.arch);
    let consoles = machine.map_or_else(operator_files::default_consoles, |machine| machine.consoles.clone());
    let consoles = operator_files::consoles_for(consoles, architecture);
    let network = machine.and_then(|machine| machine.ramdisk_network.clone());
    Ok(BootRequest { id, mac: asking.mac, architecture, consoles, network, files, withheld, unproven })
}

/// Parses the UUID and the MAC of the query. An empty value is treated as absent.
fn parse_identity(query: &BootQuery) -> Result<BootIdentity, String> {
    let given = |text: &'_ str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let uuid = given(&query.uuid).map(|uuid| boot_value_validation::parse_uuid(&uuid)).transpose()?.flatten();
    let mac = given(&query.mac).map(|mac| parse_mac(&mac)).transpose()?;
    Ok(BootIdentity { uuid: uuid.as_deref().and_then(parse_usable_uuid), mac })
}

fn add_origin(why: &str, peer: ClientAddress) -> String {
    ErrorCode::DuplicateUuid.annotate(format!("{why}; the request came from {peer}"))
}

/// Logs a warning if a machine whose identity is not proven receives the ramdisk for an installation.
fn log_unproven(app: &AppState, asking: &BootRequest, next: &BootTarget, peer: ClientAddress) {
    if let (BootTarget::Install | BootTarget::Attempt(_), Some(why)) = (next, &asking.unproven) {
        app.log_rate_limited(add_origin(why, peer));
    }
}

/// Logs a warning if the boot directory has no kernel or ramdisk for the architecture of the machine.
fn log_missing_ramdisk(app: &AppState, asking: &BootRequest, peer: ClientAddress) {
    let architecture = asking.architecture;
    let missing = [ipxe::KERNEL, PLAIN].map(|name| app.boot.join(ipxe::boot_file_name(name, architecture)));
    if let Some(file) = missing.iter().find(|file| !ipxe::is_usable_file(file)) {
        app.log_rate_limited(ErrorCode::BootFilesMissing.annotate(format!(
            "machine {machine} at {peer} is {architecture} and cannot boot the ramdisk, because {file} is missing or empty: create the \
             file with scripts/build-ramdisk --arch {architecture}",
            machine = asking.id,
            file = file.display()
        )));
    }
}

/// Logs that a boot was requested while another boot of the machine is active.
async fn log_active_boot(
    app: &AppState,
    asking: &BootRequest,
    active: Option<MachineBoot>,
    peer: ClientAddress,
) -> Result<(), ApiError> {
    let Some(active) = active else { return Ok(()) };
    let two_machines = machine_identification::warn_of_two_machines(app, &asking.id, asking.mac.as_slice()).await?;
    let (at, seconds) = (active.address.unwrap_or_default(), app.state.heard.time_since_call(&active.hash).as_secs());
    app.log_rate_limited(format!(
        "{machine}: boot requested from {peer}; the boot at {at} was active {seconds} s ago and continues{note}",
        machine = app.directory().display_name(&asking.id),
        note = two_machines.map(|why| format!("; {why}")).unwrap_or_default()
    ));
    Ok(())
}

async fn record_event(
    app: &AppState,
    id: &str,
    peer: ClientAddress,
    event: EventName,
    message: &str,
) -> Result<(), ApiError> {
    let event = ProgressEvent { event, message: message.to_owned(), stage: None, seconds: None, progress: None };
    if !agent_api::is_event_within_quota(app, peer) {
        return Ok(());
    }
    app.state.store_event(id, &event, false).await?;
    app.watch.log_event(MachineOrigin::new(id, app.directory().display_name(id), peer), event);
    Ok(())
}
