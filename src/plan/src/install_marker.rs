//! Content of the install marker that this installation writes.

use super::plan_decisions::PlanDecisions;
use super::recorded_disk::{full_record, table_guid};
use super::{InstallClaim, PlanRequest, migration_target};
use model::ganeti_os_definition::SelectedDefinition;
use model::install_marker::{InstallMarker, RecordedDefinition, RecordedDisk, lineage};
use model::inventory::{self, Inventory, UniqueIdentifiers};
use model::layout;
use model::layout::preserved_objects::PreservedObjects;
use model::storage_graph::LayoutMatch;

/// Returns the marker that the plan writes. The time in this marker is empty, because the time of the installation is
/// not known when the plan is made. Returns `None` for an offline plan.
pub(crate) fn build_marker(
    meant: &LayoutMatch,
    request: &PlanRequest,
    decided: &PlanDecisions,
) -> Option<InstallMarker> {
    let layout = meant.graph.layout;
    let claim = request.claim.as_ref()?;
    let identifiers = UniqueIdentifiers::from_disks(&meant.inventory.disks);
    // An absent disk may be attached again later, so its earlier record is copied to the new marker.
    let known = claim.begun_on.iter().chain(claim.installed.iter().flat_map(|marker| &marker.disks));
    let preserved_objects = PreservedObjects::from_graph(&meant.graph);
    let disks = layout.disks.iter().enumerate().filter_map(|(index, listed)| {
        let promise = Some(listed.wipe_policy());
        let preserved = preserved_objects.numbers_on(listed);
        match meant.matched_disk(index) {
            Some(disk) => {
                let guid = future_table_guid(listed, disk, decided);
                Some(RecordedDisk {
                    device: listed.device.to_string(),
                    guid,
                    promise,
                    preserved,
                    ..unique_record(disk, &identifiers)
                })
            }
            None => {
                let known = known.clone().find(|known| known.device == listed.device)?;
                Some(RecordedDisk { promise, preserved, guid_before: None, making: Vec::new(), ..known.clone() })
            }
        }
    });
    Some(InstallMarker {
        machine: claim.machine.clone(),
        allocation: claim.allocation.clone(),
        project: request.assigned.allocation.project.clone(),
        order: claim.order.clone(),
        fencing: claim.fencing.clone(),
        secret: decided.secret.clone(),
        image: request.subject.image.clone(),
        layout: layout.id.clone(),
        layout_digest: Some(migration_target::stored_layout_digest(layout, request)),
        time: String::new(),
        disks: disks.collect(),
        received_from: None,
        preserved: preserved_objects.names_on_renewed_disks(),
        renewed: Some(preserved_objects.renewed_volume_names()).filter(|names| !names.is_empty()),
        supersedes: superseded_digests(meant.inventory, request, claim),
        volumes: Some(decided.persistent.records.clone()),
        definition: installed_definition(request),
    })
}

/// Returns the OS definition of the system. For a received system, this is the definition with which it was installed
/// on the source machine; otherwise, it is the definition in the allocation.
fn installed_definition(request: &PlanRequest) -> Option<RecordedDefinition> {
    match request.receiving() {
        Some(moving) => moving.carried.as_ref()?.marker.definition.clone(),
        None => request.assigned.allocation.definition.as_ref().map(SelectedDefinition::to_record),
    }
}

/// Returns the digests of the installations that this installation replaces: the installations of this machine, on the
/// disks or in the records of the control plane, and the installation that is received from another machine.
fn superseded_digests(inventory: &Inventory, request: &PlanRequest, claim: &InstallClaim) -> Vec<String> {
    let found = inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
    let found = found.filter(|marker| claim.is_of_this_machine(marker));
    let source_marker = request.receiving().and_then(|moving| moving.carried.as_ref()).map(|source| &source.marker);
    lineage::collect_superseded(source_marker.into_iter().chain(found).chain(&claim.installed))
}

/// Returns the disk records that the control plane stores when an attempt starts. Each record contains the partition
/// table of the disk as it is before the attempt changes it.
pub(crate) fn started_records(meant: &LayoutMatch, marker: Option<&InstallMarker>) -> Vec<RecordedDisk> {
    let disks = marker.into_iter().flat_map(|marker| &marker.disks);
    let before = |device: &str| {
        let listed = meant.graph.layout.disks.iter().position(|listed| listed.device == device)?;
        table_guid(meant.matched_disk(listed)?)
    };
    disks.map(|disk| RecordedDisk { guid_before: before(&disk.device), ..disk.clone() }).collect()
}

/// Returns the properties that distinguish the disk from other disks, except its partition table. An identifier that
/// two disks of the machine share is omitted, because it identifies neither of them, not even after one disk was
/// removed. Placeholders are also omitted.
pub(crate) fn unique_record(disk: &inventory::InventoryDisk, identifiers: &UniqueIdentifiers) -> RecordedDisk {
    let named = full_record(disk);
    RecordedDisk {
        serial: if identifiers.has_serial(disk) { named.serial } else { String::new() },
        wwn: if identifiers.has_wwn(disk) { named.wwn } else { String::new() },
        ..named
    }
}

/// Returns the GUID of the new partition table, or of the preserved one. The GUID of the table in a raw image is
/// omitted: it is not known yet, and all copies of the image have the same GUID.
fn future_table_guid(
    listed: &layout::DiskSpec,
    disk: &inventory::InventoryDisk,
    decided: &PlanDecisions,
) -> Option<String> {
    let new = decided.tables.iter().find(|table| disk.device == table.device).map(|table| table.guid.to_string());
    let loses_its_own = listed.image || decided.wipes.iter().any(|wipe| disk.device == wipe.device);
    new.or_else(|| if loses_its_own { None } else { table_guid(disk) })
}
