//! Enrichment of the recorded state of an allocation: the layout that templates generate, the templates that the
//! hardware does not support, and the approval in force.

use super::AppState;
use http_server::api_error::ApiError;
use site::effective_allocation::with_effective_allocation;
use site::operator_files::MachineSpec;
use site::requested_steps::MachineArrays;
use site::site_objects::SiteObjects;
use store::InstallState;

/// Returns the state of the machine's allocation, including the results of its templates and the approval in force.
/// Returns an empty state if the machine has no allocation.
///
/// # Errors
/// Returns an error if the database cannot be read or written.
pub async fn read_full_state(
    app: &AppState,
    machine: &MachineSpec,
    known: &SiteObjects,
) -> Result<InstallState, ApiError> {
    let Some(allocation) = &machine.allocation else { return Ok(InstallState::default()) };
    let install_state = app.state.read_install_state(&machine.id, &allocation.id).await?;
    let install_state = add_template_results(app, machine, install_state, known).await?;
    add_approval(app, &machine.id, &allocation.id, install_state, known).await
}

/// Computes the results of the machine's templates for its registered hardware: the generated layout, and the templates
/// that the hardware does not support. Adds the results to the state. If the machine has not registered, adds nothing.
///
/// # Errors
/// Returns an error if the database cannot be read, or the planner fails.
pub async fn add_template_results(
    app: &AppState,
    machine: &MachineSpec,
    install_state: InstallState,
    known: &SiteObjects,
) -> Result<InstallState, ApiError> {
    let install_state = InstallState { generated: None, unsupported: Vec::new(), ..install_state };
    let Some(arrays) = MachineArrays::find(&with_effective_allocation(machine, &install_state), known) else {
        return Ok(install_state);
    };
    let Some(registered) = app.state.find_registration(&machine.id).await? else { return Ok(install_state) };
    let add_results = move || match registered.parse_inventory() {
        Some(inventory) => arrays.add_results(&inventory, install_state),
        None => install_state,
    };
    app.planner.run_job(&machine.id, add_results).await
}

/// Adds the approval that is in force for the machine to the state.
///
/// # Errors
/// Returns an error if the database cannot be read or written.
pub(crate) async fn add_approval(
    app: &AppState,
    machine: &str,
    allocation: &str,
    install_state: InstallState,
    known: &SiteObjects,
) -> Result<InstallState, ApiError> {
    let approved = match known.approvals.other_allocation(machine, allocation) {
        Some(other) => known.approvals.find_in_force(machine, &app.state.read_install_state(machine, &other).await?),
        None => known.approvals.find_in_force(machine, &install_state),
    };
    Ok(InstallState { approved, ..install_state })
}
