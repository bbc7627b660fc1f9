//! Reinstalls with a control plane that does not support reinstalls: metal-stack's API v2 supports only first
//! installations. In the layout or the allocation, the operator lists the disks to preserve (`drophammer.keep`). The
//! install marker on the disks identifies the owner of the data.
//!
//! | `keep` is set | the disks contain | the machine is |
//! |---|---|---|
//! | no | anything | installed as an empty machine |
//! | yes | the marker of another allocation of this machine and project | reinstalled; the listed disks are preserved |
//! | yes | the marker of this machine, but of another project | installed as an empty machine: the data belongs to another owner |
//! | yes | no marker, but data on the listed disks | not installed: an attempt was interrupted, or the disk with the marker was replaced |
//! | yes | no marker, and no data | installed as an empty machine |
//! | yes | several markers of this machine and project, none of which lists the others as replaced | not installed: it is unknown which one is the newest |
//!
//! As with every control plane, a marker of this allocation itself means that the allocation is already installed.

use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use model::allocation::{Allocation, OrderNumber, OrderedReinstall};
use model::device_name::DevicePath;
use model::install_marker::{InstallMarker, lineage};
use model::inventory::Inventory;
use model::storage_graph;
use plan::has_contents;

/// Returns whether this installation preserves disks.
pub(crate) fn preserves_disks(machine: &str, allocation: &Allocation, inventory: &Inventory) -> bool {
    allocation.keeps && !find_owner_installations(machine, allocation, inventory).is_empty()
}

/// Converts the requested installation to a reinstall of the newest installation of this machine and project. In the
/// inventory, the marker of that installation gets the id of the current allocation. Returns a message for the
/// operator.
///
/// # Errors
/// Fails if it is unknown which of several markers is the newest.
pub(crate) fn adopt_as_reinstall(
    machine: &str,
    allocation: &mut Allocation,
    inventory: &mut Inventory,
) -> Result<Option<String>> {
    if !allocation.keeps {
        return Ok(None);
    }
    let Some(marker) = find_newest_installation(machine, allocation, inventory)?.cloned() else { return Ok(None) };
    let last = marker.order.as_deref().and_then(OrderNumber::parse);
    let id = last.map_or(OrderNumber::FIRST, OrderNumber::successor).to_string();
    allocation.reinstall = true;
    allocation.order = Some(OrderedReinstall { id, attempt: 1, attempts: 1, ..OrderedReinstall::default() });
    for filesystem in &mut inventory.filesystems {
        if let Some(found) = filesystem.marker.as_mut().filter(|found| **found == marker) {
            found.allocation.clone_from(&allocation.id);
        }
    }
    Ok(Some(format!(
        "drophammer.keep: the disks contain the install marker of allocation {allocation} of this machine and project; the listed disks are preserved",
        allocation = marker.allocation
    )))
}

/// Returns the marker of the newest installation of the allocation's project on this machine. Returns `None` if there
/// is no such marker, or if a marker shows that the allocation itself is already installed.
///
/// # Errors
/// Fails if it is unknown which installation is the newest.
fn find_newest_installation<'a>(
    machine: &str,
    allocation: &Allocation,
    inventory: &'a Inventory,
) -> Result<Option<&'a InstallMarker>> {
    let markers = find_owner_installations(machine, allocation, inventory);
    if markers.is_empty() {
        return Ok(None);
    }
    let newest = lineage::find_newest(&markers).map(|newest| markers[newest]);
    newest.map(Some).ok_or_else(|| {
        let found = markers.iter().map(|marker| format!("allocation {} of {}", marker.allocation, marker.time));
        let found: Vec<String> = found.collect();
        let message = format!(
            "drophammer.keep: the disks contain several installations of this machine and project, and no marker proves which one is the \
             newest: {}. Nothing was erased. Erase the root filesystems of the older installations with wipefs -a in the rescue shell",
            found.join("; ")
        );
        Error::refusal(Phase::Plan, message).with_code(ErrorCode::InstallationUnconfirmed)
    })
}

/// Returns the install markers of this machine that belong to the allocation's project. Returns an empty list if a
/// marker shows that the allocation itself is already installed.
fn find_owner_installations<'a>(
    machine: &str,
    allocation: &Allocation,
    inventory: &'a Inventory,
) -> Vec<&'a InstallMarker> {
    let own = || machine_markers(machine, inventory);
    if own().any(|marker| marker.allocation == allocation.id) {
        return Vec::new();
    }
    own().filter(|marker| !marker.project.is_empty() && marker.project == allocation.project).collect()
}

fn machine_markers<'a>(machine: &str, inventory: &'a Inventory) -> impl Iterator<Item = &'a InstallMarker> {
    let markers = inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
    markers.filter(move |marker| marker.machine.eq_ignore_ascii_case(machine))
}

/// Refuses an installation that could erase the listed disks.
///
/// # Errors
/// Fails if the listed disks may contain data and no marker identifies the owner of the data. Also fails if it is
/// unknown which of several installations is the newest.
pub(crate) fn refuse_data_loss(machine: &str, allocation: &Allocation, inventory: &Inventory) -> Result<()> {
    if !allocation.keeps {
        return Ok(());
    }
    if machine_markers(machine, inventory).next().is_some() {
        return find_newest_installation(machine, allocation, inventory).map(drop);
    }
    let unread = |_| {
        Error::refusal(Phase::Layout, "drophammer.keep lists disks, but the layout is invalid; nothing was erased")
            .with_code(ErrorCode::PreservedDataLoss)
    };
    let parsed = allocation.parse_layout().map_err(unread)?;
    let named = parsed.layout.disks.iter().filter(|disk| !disk.wipeonreinstall);
    let found = named.filter_map(|disk| storage_graph::disk_lookup::find_disk(disk, inventory).ok());
    let held: Vec<DevicePath> = found.filter(|disk| has_contents(disk)).map(|disk| disk.device.clone()).collect();
    if held.is_empty() {
        return Ok(());
    }
    let message = format!(
        "{} must be preserved (drophammer.keep) and contains data, but no disk has the marker of an installation of this machine: an \
         attempt may have been interrupted, or the disk with the marker may have been replaced. Nothing was erased. If the data is not needed, run \
         wipefs -a on these disks in the rescue shell",
        held.join(", ")
    );
    Err(Error::refusal(Phase::Plan, message).with_code(ErrorCode::PreservedDataLoss))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::inventory::{DiskTable, FilesystemContents, InventoryDisk};
    use serde_json::json;

    const LAYOUT: &str = "id: l
disks:
  - {device: /dev/sda, wipeonreinstall: true, partitions: [{number: 1, size: 0}]}
  - {device: /dev/sdb, partitions: [{number: 1, size: 0}]}
filesystems: [{path: /, device: /dev/sda1, format: ext4}, {path: /srv, device: /dev/sdb1, format: ext4}]
";

    fn allocation(keeps: bool) -> Allocation {
        let layout = model::layout::read_yaml(LAYOUT).unwrap().layout;
        let filesystemlayout = json!(layout);
        Allocation { id: "new".into(), project: "p".into(), keeps, filesystemlayout, ..Allocation::default() }
    }

    fn inventory(markers: &[(&str, &str, &str)], sdb_holds: bool) -> Inventory {
        let marker = |(machine, allocation, project): &(&str, &str, &str)| FilesystemContents {
            marker: Some(InstallMarker {
                machine: (*machine).into(),
                allocation: (*allocation).into(),
                project: (*project).into(),
                order: Some("4".into()),
                ..InstallMarker::default()
            }),
            ..FilesystemContents::default()
        };
        let disk = |name: &str| InventoryDisk {
            name: name.into(),
            device: format!("/dev/{name}").as_str().into(),
            ..InventoryDisk::default()
        };
        let sdb = InventoryDisk { table: sdb_holds.then(DiskTable::default), ..disk("sdb") };
        let disks = vec![disk("sda"), sdb];
        Inventory { disks, filesystems: markers.iter().map(marker).collect(), ..Inventory::default() }
    }

    #[test]
    fn marker_of_the_same_project_becomes_a_reinstall() {
        for (keeps_disks, markers, sdb_holds, reinstall, refused) in [
            (false, vec![("m", "old", "p")], true, false, false),
            (true, vec![("m", "old", "p")], true, true, false),
            (true, vec![("M", "old", "p")], true, true, false),
            (true, vec![("m", "old", "q")], true, false, false),
            (true, vec![("m", "old", "")], true, false, false),
            (true, vec![("m", "old", "p"), ("m", "new", "p")], true, false, false),
            (true, vec![("other", "old", "p")], true, false, true),
            (true, vec![], true, false, true),
            (true, vec![], false, false, false),
            (false, vec![], true, false, false),
        ] {
            let (mut request, mut there) = (allocation(keeps_disks), inventory(&markers, sdb_holds));
            assert_eq!(preserves_disks("m", &request, &there), reinstall, "{markers:?}");
            let lost = refuse_data_loss("m", &request, &there);
            assert_eq!(lost.is_err(), refused, "{markers:?}");
            let said = adopt_as_reinstall("m", &mut request, &mut there).unwrap();
            assert_eq!((said.is_some(), request.reinstall), (reinstall, reinstall), "{markers:?}");
            if reinstall {
                assert_eq!(request.order_id(), Some("5"));
                assert_eq!(there.filesystems[0].marker.as_ref().unwrap().allocation, "new");
            }
        }
    }

    #[test]
    fn unreadable_layout_prevents_erasure() {
        let request = Allocation { filesystemlayout: json!({"id": 7}), ..allocation(true) };
        assert!(refuse_data_loss("m", &request, &inventory(&[], true)).unwrap_err().is_refusal());
    }

    /// The times of two installations do not prove which one is newer, because either clock may have been wrong.
    #[test]
    fn superseding_installation_counts_as_the_newest() {
        for [old_time, new_time] in [["2099-01-01", "1970-01-01"], ["1970-01-01", "2099-01-01"]] {
            let mut there = inventory(&[("m", "first", "p"), ("m", "second", "p")], true);
            let [old, new] = &mut there.filesystems[..] else { panic!("{there:?}") };
            let (old, new) = (old.marker.as_mut().unwrap(), new.marker.as_mut().unwrap());
            (old.time, new.time) = (old_time.into(), new_time.into());
            new.supersedes = lineage::collect_superseded(std::iter::once(&*old));
            let mut unproven = there.clone();
            let said = adopt_as_reinstall("m", &mut allocation(true), &mut there).unwrap().unwrap();
            assert!(said.contains("the install marker of allocation second"), "{said}");
            unproven.filesystems[1].marker.as_mut().unwrap().supersedes.clear();
            for refused in [
                adopt_as_reinstall("m", &mut allocation(true), &mut unproven.clone()).map(drop),
                refuse_data_loss("m", &allocation(true), &unproven),
            ] {
                let refused = refused.unwrap_err().to_string();
                assert!(refused.contains("first") && refused.contains("second"), "{refused}");
            }
            assert!(preserves_disks("m", &allocation(true), &unproven), "the machine must not count as empty");
            assert_eq!(adopt_as_reinstall("m", &mut allocation(false), &mut unproven).unwrap(), None);
        }
    }
}
