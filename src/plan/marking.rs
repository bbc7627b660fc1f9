//! Content of the install marker that this installation writes.

use super::receiving;
use super::verdict::Decided;
use super::{Claim, Request};
use crate::inventory::{self, Inventory, OwnIdentifiers};
use crate::layout;
use crate::marker::{MarkedDisk, Marker, lineage};
use crate::topology::Match;

/// Returns the marker without the time, which the plan does not know. An offline plan has no marker.
pub fn marker(meant: &Match, request: &Request, decided: &Decided) -> Option<Marker> {
    let layout = meant.graph.layout;
    let claim = request.claim.as_ref()?;
    let identifiers = OwnIdentifiers::of(&meant.inventory.disks);
    // An absent disk keeps its record, because it may be attached again.
    let known = claim.begun_on.iter().chain(claim.installed.iter().flat_map(|marker| &marker.disks));
    let disks = layout.disks.iter().enumerate().filter_map(|(index, listed)| {
        let promise = Some(listed.promise());
        match meant.disk(index) {
            Some(disk) => {
                let guid = guid(listed, disk, decided);
                Some(MarkedDisk { device: listed.device.to_string(), guid, promise, ..of_disk(disk, &identifiers) })
            }
            None => {
                let known = known.clone().find(|known| known.device == listed.device)?;
                Some(MarkedDisk { promise, guid_before: None, making: Vec::new(), ..known.clone() })
            }
        }
    });
    Some(Marker {
        machine: claim.machine.clone(),
        allocation: claim.allocation.clone(),
        project: request.assigned.allocation.project.clone(),
        order: claim.order.clone(),
        fencing: claim.fencing.clone(),
        secret: decided.secret.clone(),
        image: request.subject.image.clone(),
        layout: layout.id.clone(),
        layout_digest: Some(receiving::digest(layout, request)),
        time: String::new(),
        disks: disks.collect(),
        received_from: None,
        supersedes: superseded(meant.inventory, request, claim),
        volumes: Some(decided.persistent.records.clone()),
    })
}

/// Returns the digests of the installations that this one replaces: those of this machine, found or recorded, and the one that is received
/// from another machine.
fn superseded(inventory: &Inventory, request: &Request, claim: &Claim) -> Vec<String> {
    let found = inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
    let found = found.filter(|marker| claim.is_of_this_machine(marker));
    let carried = request.receiving().and_then(|moving| moving.carried.as_ref()).map(|carried| &carried.marker);
    lineage::supersede(carried.into_iter().chain(found).chain(&claim.installed))
}

/// Returns the records of the disks for the control plane when an attempt starts, with the tables that they have before.
pub fn begun_on(meant: &Match, marker: Option<&Marker>) -> Vec<MarkedDisk> {
    let disks = marker.into_iter().flat_map(|marker| &marker.disks);
    let before = |device: &str| {
        let listed = meant.graph.layout.disks.iter().position(|listed| listed.device == device)?;
        table_guid(meant.disk(listed)?)
    };
    disks.map(|disk| MarkedDisk { guid_before: before(&disk.device), ..disk.clone() }).collect()
}

/// Returns all properties that distinguish the disk from others, except its table. A value that another disk of the machine shares
/// identifies neither, even if that disk is removed later. A placeholder identifies no disk.
pub fn of_disk(disk: &inventory::Disk, identifiers: &OwnIdentifiers) -> MarkedDisk {
    let named = named(disk);
    MarkedDisk {
        serial: if identifiers.has_serial(disk) { named.serial } else { String::new() },
        wwn: if identifiers.has_wwn(disk) { named.wwn } else { String::new() },
        ..named
    }
}

/// Returns the record with identifiers that other disks of the machine may share, as two paths to one disk do.
pub fn named(disk: &inventory::Disk) -> MarkedDisk {
    MarkedDisk {
        serial: disk.serial.clone(),
        wwn: disk.wwn.clone(),
        size_bytes: disk.size_bytes,
        sector_bytes: disk.sector_bytes,
        model: disk.model.clone(),
        by_path: disk.by_path.clone(),
        ..MarkedDisk::default()
    }
}

/// Returns the GUID of the new table, else of the preserved one. The GUID of a raw image is not known yet, and its copies share it.
fn guid(listed: &layout::Disk, disk: &inventory::Disk, decided: &Decided) -> Option<String> {
    let new = decided.tables.iter().find(|table| disk.device == table.device).map(|table| table.guid.to_string());
    let loses_its_own = listed.image || decided.wipes.iter().any(|wipe| disk.device == wipe.device);
    new.or_else(|| if loses_its_own { None } else { table_guid(disk) })
}

/// Returns the GUID of the disk's GPT.
pub fn table_guid(disk: &inventory::Disk) -> Option<String> {
    disk.table.as_ref()?.guid.map(|guid| guid.to_string())
}
