//! Machines that use a layout or an image. A layout or image in use cannot be deleted.

use super::api_refusal::ApiResult;
use crate::AppState;
use site::allocation_resolution::layout_id;
use site::operator_files::MachineSpec;
use site::snapshot::SiteSnapshot;
use store::InstallState;

/// Returns the ids of machines that are installed with this layout, or whose next installation would use it.
pub(crate) async fn machines_with_layout(app: &AppState, directory: &SiteSnapshot, id: &str) -> ApiResult<Vec<String>> {
    let mut users = Vec::new();
    for machine in directory.machines() {
        let Some(allocation) = &machine.allocation else { continue };
        let install_state = app.state.read_install_state(&machine.id, &allocation.id).await?;
        if uses_layout(directory, machine, &install_state, id) {
            users.push(machine.id.clone());
        }
    }
    users.sort();
    Ok(users)
}

/// Returns the ids of machines that run this image, or whose next installation would use it.
pub(crate) async fn machines_with_image(app: &AppState, directory: &SiteSnapshot, id: &str) -> ApiResult<Vec<String>> {
    let mut users = Vec::new();
    for machine in directory.machines() {
        let Some(allocation) = &machine.allocation else { continue };
        let install_state = app.state.read_install_state(&machine.id, &allocation.id).await?;
        let is_ordered = install_state.order.as_ref().is_some_and(|order| order.image == id);
        let is_new = !install_state.is_installed() && allocation.image.as_str() == id;
        let runs =
            install_state.image.as_deref() == Some(id) || (install_state.adopted && allocation.image.as_str() == id);
        if is_ordered || is_new || runs {
            users.push(machine.id.clone());
        }
    }
    users.sort();
    Ok(users)
}

fn uses_layout(directory: &SiteSnapshot, machine: &MachineSpec, install_state: &InstallState, id: &str) -> bool {
    let Some(allocation) = &machine.allocation else { return false };
    let is_this = |layout: &serde_json::Value| layout_id(layout) == id;
    let named = allocation.filesystemlayout.as_deref().map(String::as_str);
    let chosen = || {
        let size = machine.size.as_ref()?;
        directory.known.set.select(size, &allocation.image).ok()
    };
    named == Some(id)
        || install_state.layout.as_ref().is_some_and(is_this)
        || install_state.layout_id.as_deref() == Some(id)
        || install_state.handed_out.as_ref().is_some_and(|given| is_this(&given.layout))
        || (named.is_none() && !install_state.is_installed() && chosen().is_some_and(|chosen| chosen.id == id))
}
