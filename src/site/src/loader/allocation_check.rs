//! Check that the allocation in a machine file can be carried out.

use crate::allocation_resolution::{explain_layout_contradiction, find_differences, resolve_allocation};
use crate::effective_allocation::with_effective_allocation;
use crate::ganeti_os_definitions::{DefinitionChoice, OsDefinitions};
use crate::operator_files::MachineSpec;
use crate::requested_steps::{self, MachineArrays};
use crate::site_objects::SiteObjects;
use marked_yaml::Spanned;
use store::{InstallState, ServerState};

/// Machine whose allocation can be carried out.
pub(crate) struct SettledMachine {
    /// Machine with its resolved OS definition.
    pub machine: MachineSpec,
    /// Remarks for the operator.
    pub notes: Vec<String>,
    /// Reason why the machine cannot be reinstalled: the layout in the files contradicts the machine's install marker.
    pub contradiction: Option<String>,
    /// True if a template generates a layout from the machine's registered hardware.
    pub depends_on_hardware: bool,
}

/// Checks that the allocation of the machine can be carried out.
pub(crate) fn check_machine_allocation(
    definitions: &mut OsDefinitions,
    state: &ServerState,
    known: &SiteObjects,
    machine: &MachineSpec,
) -> Result<SettledMachine, String> {
    let (machine, note) = apply_definition(definitions, machine);
    let install_state = read_install_state_with_results(state, &machine, known)?;
    // A withheld order is not a problem of the machine file.
    let withheld = known.approvals.explain_withheld_order(&machine.id, &install_state);
    let install_state = install_state.without_required_approval();
    resolve_allocation(&machine, &install_state, known)?;
    let notes = find_differences(&machine, &install_state, known).into_iter().chain(note).chain(withheld).collect();
    let contradiction = explain_layout_contradiction(&machine, &install_state, known);
    let effective = with_effective_allocation(&machine, &install_state);
    let depends_on_hardware = MachineArrays::find(&effective, known).is_some();
    Ok(SettledMachine { machine, notes, contradiction, depends_on_hardware })
}

/// Resolves the OS definition that the machine's allocation names in `os`. Returns the machine with this definition and
/// the image of the definition. Also returns a remark for the operator, or `None` if no remark is necessary.
pub(super) fn apply_definition(
    definitions: &mut OsDefinitions,
    machine: &MachineSpec,
) -> (MachineSpec, Option<String>) {
    let mut machine = machine.clone();
    let Some(allocation) = &mut machine.allocation else { return (machine, None) };
    let Some(DefinitionChoice { settled, image, note }) = definitions.choose_definition(allocation) else {
        return (machine, None);
    };
    if let (Some(image), Some(os)) = (image, &allocation.os) {
        allocation.image = Spanned::new(*os.span(), image);
    }
    allocation.definition = settled;
    (machine, note)
}

fn read_install_state_with_results(
    state: &ServerState,
    machine: &MachineSpec,
    known: &SiteObjects,
) -> Result<InstallState, String> {
    let add_results = |install_state| {
        requested_steps::add_results_blocking(state, machine, install_state, known).map_err(|error| error.to_string())
    };
    let Some(allocation) = &machine.allocation else { return add_results(InstallState::default()) };
    let install_state =
        state.read_install_state_blocking(&machine.id, &allocation.id).map_err(|error| error.to_string())?;
    let install_state = add_results(install_state)?;
    let approved = match known.approvals.other_allocation(&machine.id, &allocation.id) {
        Some(other) => {
            let other = state.read_install_state_blocking(&machine.id, &other).map_err(|error| error.to_string())?;
            known.approvals.find_in_force(&machine.id, &other)
        }
        None => known.approvals.find_in_force(&machine.id, &install_state),
    };
    Ok(InstallState { approved, ..install_state })
}
