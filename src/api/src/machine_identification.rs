//! Identification of machines that boot and register. This module collects the data from files and registrations, and
//! reports the results. The decisions are made in [`model::machine_identity`].

use super::AppState;
use axum::http::StatusCode;
use common::error_code::ErrorCode;
use control::agent_api_types::RegisterRequest;
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use model::machine_identity::{
    BootIdentity, KnownMachine, MachineMatch, UuidProof, describe_other_macs, match_machine, parse_usable_uuid,
    prove_uuid, usable_mac,
};
use site::operator_files::MachineSpec;
use site::snapshot::SiteSnapshot;
use uuid::Uuid;

/// Determines which machine requests a boot.
pub(crate) async fn match_boot_request(
    app: &AppState,
    directory: &SiteSnapshot,
    asking: &BootIdentity,
) -> Result<MachineMatch, ApiError> {
    let by_uuid = asking.uuid.and_then(|uuid| directory.find_machine_by_uuid(&uuid.to_string()));
    let mut by_mac = Vec::new();
    for machine in asking.mac.iter().flat_map(|mac| directory.find_machines_by_mac(mac)) {
        by_mac.push(load_known_machine(app, machine).await?);
    }
    if let (Some(mac), None, [_]) = (&asking.mac, by_uuid, &by_mac[..]) {
        // If another machine has registered with this MAC, the MAC does not identify the machine whose file lists it.
        for id in app.state.find_machines_with_mac(mac).await? {
            let other = directory.find_machine(&id).filter(|other| by_mac.iter().all(|known| known.id != other.id));
            if let Some(other) = other {
                by_mac.push(load_known_machine(app, other).await?);
            }
        }
    }
    let by_uuid = match by_uuid {
        Some(machine) => Some(load_known_machine(app, machine).await?),
        None => None,
    };
    Ok(match_machine(asking, by_uuid.as_ref(), &by_mac))
}

async fn load_known_machine(app: &AppState, machine: &MachineSpec) -> Result<KnownMachine, ApiError> {
    Ok(KnownMachine {
        id: machine.id.clone(),
        name: machine.name.clone(),
        macs: machine.macs.clone(),
        smbios_uuid: machine.smbios_uuid,
        registered: app.state.read_registered_identity(&machine.id).await?,
    })
}

/// Rejects a registration with this id if it comes from another machine. That machine must neither receive the
/// allocation that belongs to the id, nor replace the registered data.
///
/// # Errors
/// Returns an error if the registration is from another machine.
pub(crate) async fn refuse_other_machine(
    app: &AppState,
    directory: &SiteSnapshot,
    id: &str,
    register: &RegisterRequest,
    peer: ClientAddress,
) -> Result<(), ApiError> {
    let Some(machine) = directory.find_machine(id) else { return Ok(()) };
    let known = load_known_machine(app, machine).await?;
    let proof = register.inventory.as_ref().map(|_| prove_uuid(&known, reported_uuid(register)));
    let contradiction = match proof {
        Some(UuidProof::Contradicted(why)) => Some(why),
        Some(UuidProof::Unproven(why)) => {
            app.log_rate_limited(ErrorCode::DuplicateUuid.annotate(format!("{why} (registered from {peer})")));
            None
        }
        Some(UuidProof::Proven) | None => None,
    };
    let why = match contradiction {
        Some(why) => Some(why),
        None => explain_mac_contradiction(app, directory, &known, register).await?,
    };
    let Some(why) = why else { return Ok(()) };
    let message = format!("{why}; the registration came from {peer}");
    app.log_rate_limited(ErrorCode::DuplicateUuid.annotate(message.clone()));
    Err(ApiError::new(StatusCode::CONFLICT, message).with_error_code(ErrorCode::DuplicateUuid))
}

/// Returns a reason if the MACs show that the registration comes from another machine, and `None` otherwise. A MAC that
/// several machines have is ignored.
async fn explain_mac_contradiction(
    app: &AppState,
    directory: &SiteSnapshot,
    known: &KnownMachine,
    register: &RegisterRequest,
) -> Result<Option<String>, ApiError> {
    let macs = registered_macs(register);
    let expected = if known.macs.is_empty() { &known.registered.macs } else { &known.macs };
    if macs.is_empty() || expected.is_empty() {
        return Ok(None);
    }
    for mac in macs.iter().filter(|mac| expected.contains(mac)) {
        if !is_shared_mac(app, directory, mac, &known.id).await? {
            return Ok(None);
        }
    }
    let seen = macs.join(" ");
    Ok(Some(match known.macs.is_empty() {
        false => describe_other_macs(known, &seen),
        true => format!(
            "a machine with id {} ({:?}) has MACs {seen}, but was registered with {}: these may be two machines with the same UUID, so this \
            registration is refused. If this is the same machine, list its MACs in its machine file; if these are two machines, use a different id for each machine, and list each machine's MACs in its machine file",
            known.id,
            known.name,
            expected.join(" ")
        ),
    }))
}

/// Returns whether another machine has this MAC, according to that machine's file or registration. Machines that have
/// no machine file are ignored.
async fn is_shared_mac(app: &AppState, directory: &SiteSnapshot, mac: &str, own: &str) -> Result<bool, ApiError> {
    if directory.find_machines_by_mac(mac).any(|machine| machine.id != own) {
        return Ok(true);
    }
    let registered = app.state.find_machines_with_mac(mac).await?;
    Ok(registered.iter().any(|id| id != own && directory.find_machine(id).is_some()))
}

/// Returns the MACs of a registration that can identify a machine.
pub(crate) fn registered_macs(register: &RegisterRequest) -> Vec<String> {
    register.hardware.nics.iter().filter_map(|nic| usable_mac(&nic.mac)).collect()
}

fn reported_uuid(register: &RegisterRequest) -> Option<Uuid> {
    register.inventory.as_ref()?.system.uuid.as_deref().and_then(parse_usable_uuid)
}

/// Returns a warning for the operator if the previous registration of this id contained none of the MACs. In that case,
/// two machines may share the id.
pub(crate) async fn warn_of_two_machines(
    app: &AppState,
    id: &str,
    macs: &[String],
) -> Result<Option<String>, ApiError> {
    let before = app.state.read_registered_identity(id).await?.macs;
    if before.is_empty() || macs.is_empty() || macs.iter().any(|mac| before.contains(mac)) {
        return Ok(None);
    }
    Ok(Some(format!(
        "this machine has the MACs {macs}, but machine {id} was registered with the MACs {registered_macs}: two machines may have the same UUID; if so, give each machine its own id, and list each machine's MACs in its machine file",
        macs = macs.join(" "),
        registered_macs = before.join(" ")
    )))
}

/// Returns the reason why the UUID in the last registration does not prove that the registered machine is the one in
/// the machine file. Such a machine may be installed only on blank disks. Returns `None` if the UUID proves the
/// identity, or if the machine has no machine file or no registered inventory.
pub(crate) async fn explain_blank_only(
    app: &AppState,
    directory: &SiteSnapshot,
    id: &str,
) -> Result<Option<String>, ApiError> {
    let Some(machine) = directory.find_machine(id) else { return Ok(None) };
    let Some(inventory) = app.read_inventory(id).await? else { return Ok(None) };
    let reported = inventory.system.uuid.as_deref().and_then(parse_usable_uuid);
    Ok(match prove_uuid(&load_known_machine(app, machine).await?, reported) {
        UuidProof::Proven => None,
        UuidProof::Unproven(why) | UuidProof::Contradicted(why) => Some(why),
    })
}
