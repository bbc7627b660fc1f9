//! Installations of machines whose control plane does not record them. The install marker on the disks specifies what was installed; orders
//! of a file are compared in `file_order`.
//!
//! | the disks contain | the file requests | action |
//! |---|---|---|
//! | no marker of this allocation | an installation | carried out, if all objects that could contain a marker were read, or the operator gives up their disks |
//! | no marker of this machine, but data on disks that the layout preserves | an installation | refused: the disk with the marker may have been replaced |
//! | a marker of this allocation | an installation | the installed system is booted |
//! | anything | a reinstall, and the marker is of its begun attempt | the installed system is booted (`plan`) |
//! | anything | a reinstall | carried out, or refused (`plan`), while attempts are left |

use super::opaque::refuse_opaque;
use crate::allocation::{Allocation, OrderNumber};
use crate::device::DevicePath;
use crate::error::{Error, Phase, Result};
use crate::inventory::{Disk, Inventory};
use crate::layout::Layout;
use crate::marker::Marker;
use crate::plan::{self, Claim, DiskPlan, Memory, Mode, Request, Verdict, Waiver};
use uuid::Uuid;

/// Completes the allocation from the markers on the disks. An order without an id gets the next number, since its control plane does not
/// number reinstalls.
///
/// # Errors
/// Refuses if no attempt of the order is left, or an installation could erase a marker that could not be read.
pub fn by_disks(machine: &str, allocation: &mut Allocation, inventory: &Inventory) -> Result<()> {
    let (machine, former_machines) = (machine.to_owned(), allocation.former_machines.clone());
    let claim = Claim { machine, former_machines, allocation: allocation.id.clone(), ..Claim::default() };
    let markers = inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
    let own: Vec<&Marker> = markers.filter(|marker| claim.is_ours(marker)).collect();
    if allocation.reinstall {
        let last = own.iter().filter_map(|marker| OrderNumber::parse(marker.order.as_deref()?)).max();
        let next = last.map_or(OrderNumber::FIRST, OrderNumber::next);
        if let Some(order) = allocation.order.as_mut().filter(|order| order.id.is_empty()) {
            order.id = next.to_string();
        }
        return attempts_are_left(allocation, inventory, claim, &own);
    }
    if own.is_empty() {
        return refuse_opaque(inventory, &allocation.give_up);
    }
    allocation.succeeded = true;
    Ok(())
}

/// Refuses a reinstall without attempts left, unless the last attempt has completed it and only its report was lost. A control plane that
/// does not count attempts requests the reinstall at every boot.
fn attempts_are_left(allocation: &Allocation, inventory: &Inventory, claim: Claim, own: &[&Marker]) -> Result<()> {
    let Some(order) = allocation.order.as_ref().filter(|order| order.attempt > order.attempts) else { return Ok(()) };
    let (begun_on, attempt) = (order.disks.clone(), order.attempt_record.clone().filter(|_| order.begun));
    let claim = Claim { order: Some(order.id.clone()), begun_on, attempt, ..claim };
    if own.iter().any(|marker| plan::is_carried_out(inventory, &claim, marker)) {
        return Ok(());
    }
    let message = format!(
        "all {} attempts of this reinstall have failed; inspect the machine, and order the reinstall again",
        order.attempts
    );
    Err(Error::refusal(Phase::Plan, message))
}

/// Refuses if an object of the machine was not read, since it may contain the marker.
///
/// # Errors
/// Lists each such object with reason and remedy.
pub fn all_was_looked_into(inventory: &Inventory) -> Result<()> {
    refuse_opaque(inventory, &[])
}

/// Refuses an installation if the disk with the marker may have been replaced. Contents that the layout preserves would then be on the
/// other disks, and the installation would erase them. They need not be complete or match the layout: a volume group may lack a member, or
/// a label may differ.
///
/// A layout that does not support reinstalls preserves nothing.
///
/// # Errors
/// Refuses if no disk has a marker of this machine, and a reinstall would preserve disks, or would be refused because of their contents.
pub fn nothing_is_orphaned(layout: &Layout, inventory: &Inventory, request: &Request) -> Result<()> {
    let installs = request.claim.clone().filter(|claim| request.mode == Mode::Install && !claim.is_installed());
    let keeps = layout.disks.iter().any(|disk| disk.wipeonreinstall);
    let Some(claim) = installs.filter(|_| keeps) else { return Ok(()) };
    let mut markers = inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
    if markers.any(|marker| claim.is_of_this_machine(marker)) {
        return Ok(());
    }
    let claim = Some(Claim { waiver: Some(Waiver::Operator), memory: Memory::ControlPlane, ..claim });
    let reinstall = Request { mode: Mode::Reinstall, claim, ..request.clone() };
    let (disks, why_not) = match plan::make(layout, inventory, reinstall, &mut Uuid::new_v4) {
        Ok(plan) => (plan.disks, None),
        Err(refusal) => (refusal.disks, refusal.problems.into_iter().next()),
    };
    let holds = |disk: &DiskPlan| inventory.disks.iter().any(|is| is.name == disk.name && holds_something(is));
    let kept = disks.into_iter().filter(|disk| disk.verdict == Verdict::Keep && holds(disk));
    let kept: Vec<DevicePath> = kept.map(|disk| disk.device).collect();
    if kept.is_empty() {
        return Ok(());
    }
    let (is, holds) = if kept.len() == 1 { ("is", "holds") } else { ("are", "hold") };
    let holds = match why_not {
        None => format!("already {holds} the expected contents"),
        Some(problem) => format!("{holds} data (a reinstall would be refused: {problem})"),
    };
    let message = format!(
        "{} {is} preserved by this layout, and {holds}, but no disk has the marker of an installation: the disk with the marker may have \
         been replaced. To preserve the data, order a reinstall with \"without_marker\": true; if it is not needed, erase it with \
         wipefs -a in the rescue shell",
        kept.join(", ")
    );
    Err(Error::refusal(Phase::Plan, message))
}

/// Returns whether the disk contains anything recognizable. Unrecognizable contents count as nothing: `wipefs -a` leaves a disk like that.
pub(super) fn holds_something(disk: &Disk) -> bool {
    disk.table.is_some() || !disk.signatures.is_empty() || !disk.uses.is_empty() || disk.unreadable.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::{Machine, Order};
    use crate::inventory::{Filesystem, PhysicalVolume, Signature, VolumeGroup};
    use crate::marker::{AttemptRecord, AttemptSecret};

    fn marker(machine: &str, allocation: &str, order: &str) -> Inventory {
        let (machine, allocation, order) =
            (machine.to_owned(), allocation.to_owned(), crate::empty::some(order.to_owned()));
        let marker = Some(Marker { machine, allocation, order, ..Marker::default() });
        let filesystems = vec![Filesystem { device: "/dev/sda".into(), marker, ..Filesystem::default() }];
        Inventory { filesystems, ..Inventory::default() }
    }

    fn asked(order: Option<&str>) -> Allocation {
        let order = order.map(|id| Order { id: id.to_owned(), ..Order::default() });
        Allocation { id: "a".into(), reinstall: order.is_some(), order, ..Allocation::default() }
    }

    #[test]
    fn a_marker_of_this_allocation_means_that_it_is_installed() {
        for (disks, is_installed) in [
            (Inventory::default(), false),
            (marker("m", "other", ""), false),
            (marker("other", "a", ""), false),
            (marker("m", "a", ""), true),
            (marker("m", "a", "3"), true),
        ] {
            let mut allocation = asked(None);
            by_disks("m", &mut allocation, &disks).unwrap();
            assert_eq!((allocation.succeeded, allocation.reinstall), (is_installed, false), "{disks:?}");
        }
    }

    /// The flag of metal-api says "reinstall", and no more.
    #[test]
    fn an_order_without_an_id_is_the_next_one_as_long_as_there_are_attempts() {
        for (disks, attempt, id) in [
            (marker("m", "a", ""), 1, Some("1")),
            (marker("m", "a", "3"), 3, Some("4")),
            (marker("m", "b", "3"), 3, Some("1")),
            (marker("m", "a", "18446744073709551615"), 1, Some("1")),
            (marker("m", "a", "9007199254740991"), 1, Some("1")),
            (marker("m", "a", "3"), 4, None),
        ] {
            let order = Order { attempt, attempts: 3, ..Order::default() };
            let mut allocation = Allocation { order: Some(order), ..asked(Some("")) };
            let result = by_disks("m", &mut allocation, &disks);
            assert!(allocation.reinstall && !allocation.succeeded);
            match result {
                Ok(()) => assert_eq!(allocation.order_id(), id),
                Err(error) => assert!(id.is_none() && error.is_refusal(), "{error}"),
            }
        }
    }

    /// A number in the marker proves nothing; secret and image of the attempt that has begun do.
    #[test]
    fn only_the_marker_of_the_begun_attempt_replaces_attempts_that_are_used_up() {
        let secret = AttemptSecret::draw(&mut Uuid::new_v4);
        let record = AttemptRecord { secret_digest: secret.digest().unwrap(), image: Some("i".into()) };
        let own = Marker { secret: Some(secret), image: "i".into(), ..first(&marker("m", "a", "3")) };
        for (found, record, begun, is_proven) in [
            (own.clone(), Some(record.clone()), true, true),
            (own.clone(), Some(record.clone()), false, false),
            (own.clone(), None, true, false),
            (Marker { secret: None, ..own.clone() }, Some(record.clone()), true, false),
            (Marker { image: "j".into(), ..own.clone() }, Some(record.clone()), true, false),
            (Marker { order: Some("4".into()), ..own.clone() }, Some(record), true, false),
        ] {
            let order =
                Order { id: "3".into(), attempt: 4, attempts: 3, begun, attempt_record: record, ..Order::default() };
            let mut allocation = Allocation { order: Some(order), ..asked(Some("")) };
            let disks = Inventory {
                filesystems: vec![Filesystem { marker: Some(found.clone()), ..Filesystem::default() }],
                ..Inventory::default()
            };
            assert_eq!(by_disks("m", &mut allocation, &disks).is_ok(), is_proven, "{found:?}");
            assert!(allocation.reinstall && !allocation.succeeded, "the plan decides");
        }
    }

    fn first(inventory: &Inventory) -> Marker {
        inventory.filesystems[0].marker.clone().unwrap()
    }

    /// System on sda, data on sdb, which a reinstall keeps.
    const LAYOUT: &str = "
id: data
disks:
  - device: /dev/sda
    wipeonreinstall: true
    partitions:
      - {number: 1, label: root, size: 0, gpttype: '8300'}
  - device: /dev/sdb
    partitions: []
filesystems:
  - {device: /dev/sda1, path: /, format: ext4, label: root}
  - {device: /dev/sdb, path: /srv, format: ext4, label: srv}
";

    /// A replaced sda, and that on sdb.
    fn machine(label: &str) -> Inventory {
        let disk = |device: &str, serial: &str| Disk {
            name: device.trim_start_matches("/dev/").into(),
            device: device.into(),
            serial: serial.into(),
            size_bytes: 20 << 30,
            sector_bytes: 512,
            ..Disk::default()
        };
        let found = Signature {
            kind: "ext4".into(),
            usage: "filesystem".into(),
            label: label.into(),
            uuid: "5a1d7c0e-93b2-4f57-8f0c-6e1a2b3c4d5e".into(),
        };
        let data = Disk { signatures: vec![found], ..disk("/dev/sdb", "B") };
        Inventory { disks: vec![disk("/dev/sda", "A"), data], ..Inventory::default() }
    }

    /// The same, with a group on sdb and sdc.
    const GROUP: &str = "
id: group
disks:
  - device: /dev/sda
    wipeonreinstall: true
    partitions:
      - {number: 1, label: root, size: 0, gpttype: '8300'}
  - {device: /dev/sdb, partitions: []}
  - {device: /dev/sdc, partitions: []}
volumegroups:
  - {name: data, devices: [/dev/sdb, /dev/sdc]}
logicalvolumes:
  - {name: srv, volumegroup: data, size: 0, lvmtype: linear}
filesystems:
  - {device: /dev/sda1, path: /, format: ext4, label: root}
  - {device: /dev/data/srv, path: /srv, format: ext4, label: srv}
";

    /// A replaced sda, one half of the group on sdb, and that in the place of sdc.
    fn half_a_group(sdc: Disk) -> Inventory {
        let mut inventory = machine("srv");
        inventory.disks[1].signatures = vec![Signature {
            kind: "LVM2_member".into(),
            usage: "raid".into(),
            uuid: "p-1".into(),
            ..Signature::default()
        }];
        let physical = [(Some("/dev/sdb".into()), "p-1"), (None, "p-2")].map(|(device, uuid)| PhysicalVolume {
            device,
            uuid: uuid.into(),
            size_bytes: 20 << 30,
        });
        let (name, uuid, physical) = ("data".into(), "g-1".into(), physical.into());
        inventory.groups.push(VolumeGroup { name, uuid, physical, extent_bytes: 4 << 20, ..VolumeGroup::default() });
        inventory.disks.push(Disk { name: "sdc".into(), device: "/dev/sdc".into(), serial: "C".into(), ..sdc });
        inventory
    }

    #[test]
    fn what_the_layout_keeps_is_not_erased_because_the_disk_with_the_marker_is_gone() {
        let with = |change: &dyn Fn(&mut Disk)| {
            let mut machine = machine("srv");
            machine.disks[1].signatures.clear();
            change(&mut machine.disks[1]);
            machine
        };
        let blank = with(&|disk| disk.blank = true);
        let blank_sdc = || Disk { blank: true, ..with(&|_| ()).disks[1].clone() };
        let other_life = Inventory { filesystems: marker("m", "other", "").filesystems, ..machine("srv") };
        let (matches, differs) = (
            "/dev/sdb is preserved by this layout, and already holds the expected contents",
            "/dev/sdb is preserved by this layout, and holds data (a reinstall would be refused: ",
        );
        let reserved = LAYOUT.replace("  - {device: /dev/sdb, path: /srv, format: ext4, label: srv}\n", "");
        let for_ever = LAYOUT.replace("wipeonreinstall: true", "wipeonreinstall: false");
        for (layout, inventory, order, refused) in [
            (LAYOUT, &machine("srv"), None, Some(matches)),
            (LAYOUT, &machine("else"), None, Some(differs)),
            (LAYOUT, &with(&|disk| disk.unreadable = Some("EIO".into())), None, Some(differs)),
            // The other half went with the disk that had the marker, or is something else now.
            (GROUP, &half_a_group(blank_sdc()), None, Some(differs)),
            (GROUP, &half_a_group(machine("x").disks[1].clone()), None, Some("/dev/sdb, /dev/sdc are preserved")),
            // What wipefs leaves, and a disk that is new.
            (LAYOUT, &with(&|_| ()), None, None),
            (LAYOUT, &blank, None, None),
            (reserved.as_str(), &blank, None, None),
            (for_ever.as_str(), &machine("srv"), None, None),
            (LAYOUT, &other_life, None, None),
            (LAYOUT, &machine("srv"), Some("1"), None),
            (GROUP, &half_a_group(blank_sdc()), Some("1"), None),
        ] {
            let layout = crate::layout::read_yaml(layout).unwrap().layout;
            let request = crate::assigned::request(&Machine::default(), "m", &asked(order), &[]);
            let judged = nothing_is_orphaned(&layout, inventory, &request).map_err(|error| error.to_string());
            assert_eq!(judged.is_err(), refused.is_some(), "{judged:?} {inventory:?}");
            refused.iter().for_each(|words| {
                let error = judged.as_ref().unwrap_err();
                assert!(error.contains(words) && error.contains("without_marker"), "{words}: {error}");
            });
        }
    }
}
