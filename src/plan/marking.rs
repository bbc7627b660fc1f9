//! What the marker of this installation will say.

use super::{Request, find};
use crate::inventory::Inventory;
use crate::layout::Layout;
use crate::marker::{MarkedDisk, Marker};

/// Without the time, which the plan does not know. Nobody's installation leaves no marker.
pub fn marker(layout: &Layout, inventory: &Inventory, request: &Request) -> Option<Marker> {
    let claim = request.claim.as_ref()?;
    // A disk that is missing keeps its record: it may come back.
    let known = claim.begun_on.iter().chain(claim.installed.iter().flat_map(|marker| &marker.disks));
    let disks = layout.disks.iter().filter_map(|listed| match find::disk(listed, inventory) {
        Ok(disk) => Some(MarkedDisk {
            device: listed.device.clone(),
            serial: disk.serial.clone(),
            wwn: disk.wwn.clone(),
            size_bytes: disk.size_bytes,
        }),
        Err(_) => known.clone().find(|known| known.device == listed.device).cloned(),
    });
    Some(Marker {
        machine: claim.machine.clone(),
        allocation: claim.allocation.clone(),
        order: claim.order.clone(),
        image: request.subject.image.clone(),
        layout: layout.id.clone(),
        time: String::new(),
        disks: disks.collect(),
    })
}
