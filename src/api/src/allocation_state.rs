//! Complete state of an allocation: in addition to the database records, the layout that templates generate, the
//! templates that the hardware does not support, and the approval in force.

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
    let standing = app.state.read_install_state(&machine.id, &allocation.id).await?;
    let standing = add_template_results(app, machine, standing, known).await?;
    add_approval(app, &machine.id, &allocation.id, standing, known).await
}

/// Computes the results of the machine's templates for its registered hardware: the generated layout, and the templates
/// that the hardware does not support. Adds the results to the state. If the machine has not registered, adds nothing.
///
/// # Errors
/// Returns an error if the database cannot be read, or the planner fails.
pub async fn add_template_results(
    app: &AppState,
    machine: &MachineSpec,
    standing: InstallState,
    known: &SiteObjects,
) -> Result<InstallState, ApiError> {
    let standing = InstallState { generated: None, unsupported: Vec::new(), ..standing };
    let Some(arrays) = MachineArrays::find(&with_effective_allocation(machine, &standing), known) else {
        return Ok(standing);
    };
    let Some(registered) = app.state.find_registration(&machine.id).await? else { return Ok(standing) };
    let add_results = move || match registered.parse_inventory() {
        Some(inventory) => arrays.add_results(&inventory, standing),
        None => standing,
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
    standing: InstallState,
    known: &SiteObjects,
) -> Result<InstallState, ApiError> {
    let approved = match known.approvals.other_allocation(machine, allocation) {
        Some(other) => known.approvals.find_in_force(machine, &app.state.read_install_state(machine, &other).await?),
        None => known.approvals.find_in_force(machine, &standing),
    };
    Ok(InstallState { approved, ..standing })
}
