//! State of an allocation, with everything on which its installation depends: the layout that templates generate, and the approval in
//! force.

use super::AppState;
use super::api_error::ApiError;
use site::effective_allocation::effective_allocation;
use site::operator_files::AllocationSpec;
use site::requested_steps::{GeneratedLayout, find_requested_arrays};
use site::resolve::SiteObjects;
use store::InstallState;

/// Returns the state of the allocation, including the layout that its templates generate and the approval in force.
///
/// # Errors
/// The database cannot be read or written.
pub(crate) async fn read_full_state(
    app: &AppState,
    machine: &str,
    allocation: &AllocationSpec,
    known: &SiteObjects,
) -> Result<InstallState, ApiError> {
    let standing = app.state.read_install_state(machine, &allocation.id).await?;
    let effective = effective_allocation(allocation, &standing).allocation;
    let generated = generate_layout(app, machine, &effective, known).await?;
    add_approval(app, machine, &allocation.id, InstallState { generated, ..standing }, known).await
}

/// Generates the layout from the templates of the allocation and the registered hardware of the machine. Returns `None` if no template
/// generates a layout, or the machine has not registered.
///
/// # Errors
/// The database cannot be read, or the planner fails.
pub(crate) async fn generate_layout(
    app: &AppState,
    machine: &str,
    allocation: &AllocationSpec,
    known: &SiteObjects,
) -> Result<GeneratedLayout, ApiError> {
    let Some(arrays) = find_requested_arrays(allocation, known) else { return Ok(None) };
    let Some(registered) = app.state.find_registration(machine).await? else { return Ok(None) };
    let generate = move || Some(arrays.generate_layout(&registered.parse_inventory()?));
    app.planner.run_job(machine, generate).await
}

/// Adds the machine's approval in force to the state.
///
/// # Errors
/// The database cannot be read or written.
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
