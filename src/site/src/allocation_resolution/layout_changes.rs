//! Layouts that have changed since the operator ordered a reinstall, or since they were sent to the machine.

use super::{layout_id, resolve_allocation};
use crate::operator_files::{AllocationSpec, MachineSpec, format_at};
use crate::site_objects::SiteObjects;
use common::encoding::format_sha256;
use serde_json::Value;
use store::InstallState;

/// Returns the digest of a layout in JSON.
pub fn layout_digest(layout: &Value) -> String {
    format_sha256(layout.to_string())
}

/// Returns a refusal if the files now specify another layout than the one that was served for an installation that has
/// not started yet: a disk that was removed from the layout must not be erased.
pub fn explain_layout_change(
    machine: &MachineSpec,
    install_state: &InstallState,
    known: &SiteObjects,
) -> Option<String> {
    let served = install_state.handed_out.as_ref().filter(|_| install_state.pinned_layout().is_none())?;
    let resolved = resolve_allocation(machine, install_state, known).ok()??;
    (resolved.layout != served.layout).then(|| {
        format!(
            "the layout of the machine is now {layout}, with other contents than the layout that was sent to the machine: boot \
             the machine again",
            layout = resolved.layout_id
        )
    })
}

/// Checks that the layout is the one for which the operator has ordered the reinstall with `--change-promise`. With
/// this option, the layout may wipe disks that the installed layout preserves, so it must not apply to a later
/// layout.
///
/// # Errors
/// Returns the problem with its position in the machine file.
pub(super) fn check_ordered_layout(
    allocation: &AllocationSpec,
    install_state: &InstallState,
    layout: &Value,
) -> Result<(), String> {
    let ordered = install_state.order.as_ref().and_then(|order| order.layout_digest.as_ref());
    if ordered.is_none_or(|ordered| *ordered == layout_digest(layout)) {
        return Ok(());
    }
    let why = format!(
        "layout {layout} has changed since the reinstall was ordered with --change-promise: order the reinstall again, or \
         restore the layout",
        layout = layout_id(layout)
    );
    Err(format_at(&allocation.id, &why))
}
