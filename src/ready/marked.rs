//! A reinstall where the control plane has none. metal-stack's API v2 knows installations alone; the operator marks a layout or an
//! allocation with the disks that are kept (`drophammer.keep`), and the marker on the disks says whose they are.
//!
//! | marked | the disks have | |
//! |---|---|---|
//! | no | anything | an installation, of an empty machine |
//! | yes | the marker of this machine and of the same project, of another allocation | a reinstall: the disks that are named are kept |
//! | yes | the marker of this machine and of another project | an installation, of an empty machine: those are not this owner's data |
//! | yes | no marker, and something on the disks that are named | refused: an attempt was cut off, or the disk with the marker was replaced |
//! | yes | no marker, and nothing there | an installation, of an empty machine |
//!
//! The marker of this very allocation means that it is installed, here as everywhere.

use super::remembered::{holds_something, number};
use crate::allocation::{Allocation, Order};
use crate::device::DevicePath;
use crate::error::{Error, Phase, Result};
use crate::inventory::Inventory;
use crate::marker::Marker;
use crate::topology;

/// Is this installation one that keeps?
pub fn keeps(machine: &str, allocation: &Allocation, inventory: &Inventory) -> bool {
    allocation.keeps && last(machine, allocation, inventory).is_some()
}

/// Makes a reinstall of it, and takes the marker for one of this allocation. Returns what a person should hear of it.
pub fn adopt(machine: &str, allocation: &mut Allocation, inventory: &mut Inventory) -> Option<String> {
    let marker = last(machine, allocation, inventory).filter(|_| allocation.keeps)?.clone();
    let id = (number(marker.order.as_deref()) + 1).to_string();
    allocation.reinstall = true;
    allocation.order = Some(Order { id, attempt: 1, attempts: 1, ..Order::default() });
    for filesystem in &mut inventory.filesystems {
        if let Some(found) = filesystem.marker.as_mut().filter(|found| **found == marker) {
            found.allocation.clone_from(&allocation.id);
        }
    }
    Some(format!(
        "drophammer.keep: the disks have the marker of allocation {}, of this machine and this project: what is named is kept",
        marker.allocation
    ))
}

/// The latest of the same owner, where this allocation itself is not installed.
fn last<'a>(machine: &str, allocation: &Allocation, inventory: &'a Inventory) -> Option<&'a Marker> {
    let own = || of(machine, inventory);
    if own().any(|marker| marker.allocation == allocation.id) {
        return None;
    }
    let same = own().filter(|marker| !marker.project.is_empty() && marker.project == allocation.project);
    same.max_by_key(|marker| &marker.time)
}

fn of<'a>(machine: &str, inventory: &'a Inventory) -> impl Iterator<Item = &'a Marker> {
    let markers = inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
    markers.filter(move |marker| marker.machine.eq_ignore_ascii_case(machine))
}

/// # Errors
/// What is to be kept may be there, and nothing says whose it is.
pub fn nothing_is_lost(machine: &str, allocation: &Allocation, inventory: &Inventory) -> Result<()> {
    if !allocation.keeps || of(machine, inventory).next().is_some() {
        return Ok(());
    }
    let unread = |_| {
        Error::refusal(Phase::Layout, "drophammer.keep names disks of a layout that cannot be read: nothing is erased")
    };
    let parsed = allocation.layout().map_err(unread)?;
    let named = parsed.layout.disks.iter().filter(|disk| !disk.wipeonreinstall);
    let found = named.filter_map(|disk| topology::find::disk(disk, inventory).ok());
    let held: Vec<DevicePath> = found.filter(|disk| holds_something(disk)).map(|disk| disk.device.clone()).collect();
    if held.is_empty() {
        return Ok(());
    }
    let message = format!(
        "{} is to be kept (drophammer.keep) and has something on it, but no disk has the marker of an installation of this machine: was an \
         attempt cut off, or the disk with the marker replaced? Nothing is erased. Where nobody needs what is there: wipefs -a in the rescue shell",
        held.join(", ")
    );
    Err(Error::refusal(Phase::Plan, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{Disk, Filesystem, Table};
    use serde_json::json;

    const LAYOUT: &str = "id: l
disks:
  - {device: /dev/sda, wipeonreinstall: true, partitions: [{number: 1, size: 0}]}
  - {device: /dev/sdb, partitions: [{number: 1, size: 0}]}
filesystems: [{path: /, device: /dev/sda1, format: ext4}, {path: /srv, device: /dev/sdb1, format: ext4}]
";

    fn allocation(keeps: bool) -> Allocation {
        let layout = crate::layout::read_yaml(LAYOUT).unwrap().layout;
        let filesystemlayout = json!(layout);
        Allocation { id: "new".into(), project: "p".into(), keeps, filesystemlayout, ..Allocation::default() }
    }

    fn inventory(markers: &[(&str, &str, &str)], sdb_holds: bool) -> Inventory {
        let marker = |(machine, allocation, project): &(&str, &str, &str)| Filesystem {
            marker: Some(Marker {
                machine: (*machine).into(),
                allocation: (*allocation).into(),
                project: (*project).into(),
                order: Some("4".into()),
                ..Marker::default()
            }),
            ..Filesystem::default()
        };
        let disk =
            |name: &str| Disk { name: name.into(), device: format!("/dev/{name}").as_str().into(), ..Disk::default() };
        let sdb = Disk { table: sdb_holds.then(Table::default), ..disk("sdb") };
        let disks = vec![disk("sda"), sdb];
        Inventory { disks, filesystems: markers.iter().map(marker).collect(), ..Inventory::default() }
    }

    #[test]
    fn the_table_holds() {
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
            let (mut asked, mut there) = (allocation(keeps_disks), inventory(&markers, sdb_holds));
            assert_eq!(keeps("m", &asked, &there), reinstall, "{markers:?}");
            let lost = nothing_is_lost("m", &asked, &there);
            assert_eq!(lost.is_err(), refused, "{markers:?}");
            let said = adopt("m", &mut asked, &mut there);
            assert_eq!((said.is_some(), asked.reinstall), (reinstall, reinstall), "{markers:?}");
            if reinstall {
                assert_eq!(asked.order_id(), Some("5"));
                assert_eq!(there.filesystems[0].marker.as_ref().unwrap().allocation, "new");
            }
        }
    }

    #[test]
    fn nothing_is_erased_for_a_layout_that_cannot_be_read() {
        let asked = Allocation { filesystemlayout: json!({"id": 7}), ..allocation(true) };
        assert!(nothing_is_lost("m", &asked, &inventory(&[], true)).unwrap_err().is_refusal());
    }
}
