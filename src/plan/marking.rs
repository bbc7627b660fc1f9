//! What the marker of this installation will say.

use super::{PartitionTable, Request, find};
use crate::inventory::{self, Inventory};
use crate::layout::Layout;
use crate::marker::{MarkedDisk, Marker};

/// Without the time, which the plan does not know. Nobody's installation leaves no marker.
pub fn marker(layout: &Layout, inventory: &Inventory, request: &Request, tables: &[PartitionTable]) -> Option<Marker> {
    let claim = request.claim.as_ref()?;
    // A disk that is missing keeps its record: it may come back.
    let known = claim.begun_on.iter().chain(claim.installed.iter().flat_map(|marker| &marker.disks));
    let disks = layout.disks.iter().filter_map(|listed| match find::disk(listed, inventory) {
        Ok(disk) => Some(MarkedDisk {
            device: listed.device.clone(),
            serial: disk.serial.clone(),
            wwn: disk.wwn.clone(),
            size_bytes: disk.size_bytes,
            guid: guid(disk, tables),
            making: Vec::new(),
        }),
        Err(_) => {
            let known = known.clone().find(|known| known.device == listed.device).cloned();
            known.map(|known| MarkedDisk { making: Vec::new(), ..known })
        }
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

/// That of the new table, else that of the one which stays.
fn guid(disk: &inventory::Disk, tables: &[PartitionTable]) -> String {
    let new = tables.iter().find(|table| table.device == disk.device).map(|table| table.guid);
    let guid = new.or(disk.table.as_ref().and_then(|table| table.guid));
    guid.map(|guid| guid.to_string()).unwrap_or_default()
}
