//! Identity of the machine that a management controller must belong to, and refusal of a controller that the files of
//! several machines name. Both are checked against the machines of all projects.

use crate::{AppState, access};
use axum::http::StatusCode;
use bmc::TargetMachine;
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;
use model::bmc::BmcAddress;
use site::controller_index::ControllerSharing;
use site::operator_files::MachineSpec;
use store::StoredRegistration;

/// Returns the UUID that the controller should report. If the operator has chosen another id for the machine, the
/// machine file contains this UUID in `smbios_uuid`.
pub(crate) fn firmware_uuid(machine: &MachineSpec) -> String {
    machine.smbios_uuid.map_or_else(|| machine.id.clone(), |uuid| uuid.to_string())
}

/// Returns the machine that must be behind the controller at this address, without its firmware type.
pub(crate) fn find_target(app: &AppState, machine: &MachineSpec, at: &BmcAddress) -> TargetMachine {
    let directory = app.whole_directory();
    TargetMachine {
        uuid: Some(firmware_uuid(machine)),
        firmware: None,
        other_uuids: directory.other_firmware_uuids(&machine.id),
        must_match_uuid: directory.compare_controller(at, &machine.id) == ControllerSharing::ProvenByUuid,
    }
}

/// Adds the registered firmware type. Parses the inventory, so it must not run on a thread that serves requests.
pub(crate) fn with_firmware(target: TargetMachine, registered: Option<StoredRegistration>) -> TargetMachine {
    let inventory = registered.and_then(|registered| registered.parse_inventory());
    TargetMachine { firmware: inventory.map(|inventory| inventory.system.firmware), ..target }
}

/// Refuses an action through a controller that the file of another machine also names: the action might switch that
/// machine.
///
/// # Errors
/// Returns an error that names the other machine, if the user may see it.
pub(crate) fn refuse_shared_controller(app: &AppState, machine: &str, at: &BmcAddress) -> Result<(), ApiError> {
    let ControllerSharing::Conflict(other) = app.whole_directory().compare_controller(at, machine) else {
        return Ok(());
    };
    let visible = app.directory();
    let other = match visible.find_machine(&other) {
        Some(_) => format!("machine {}", visible.display_name(&other)),
        None => access::HIDDEN_MACHINE_TEXT.to_owned(),
    };
    let name = visible.display_name(machine);
    let why = format!(
        "{name}: the power state and the boot device were not changed: the file of {other} also names the management \
         controller {at}, which can belong to only one of the two machines; correct the address in one of the files"
    );
    Err(ApiError::new(StatusCode::CONFLICT, why)
        .with_code("controller-shared")
        .with_error_code(ErrorCode::ManagementController))
}
