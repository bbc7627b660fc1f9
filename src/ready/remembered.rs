//! Where no control plane remembers the machine, its own disks do: the marker says what was installed, and by which order last.
//!
//! | the disks have | the file asks for | |
//! |---|---|---|
//! | no marker of this allocation | an installation | it is made, when everything was looked into that could contain a marker, or the operator gives up its disks |
//! | no marker of this machine, and something is recognised on disks that the layout keeps | an installation | refused: the disk with the marker may have been replaced |
//! | no marker of this allocation | a reinstall | refused, as everywhere (`plan`) |
//! | one | an installation | what is there is booted |
//! | one | order N, the marker has none or an earlier one | the reinstall |
//! | one | order N, the marker has N or a later one | what is there is booted |
//!
//! So the same file can lie there for ever, and one from the days of an earlier order does nothing.

use super::opaque::refuse_opaque;
use crate::allocation::Allocation;
use crate::device::DevicePath;
use crate::error::{Error, Phase, Result};
use crate::inventory::{Disk, Inventory};
use crate::layout::Layout;
use crate::plan::{self, Claim, DiskPlan, Memory, Mode, Request, Verdict, Waiver};
use uuid::Uuid;

/// Adds to the allocation what the disks remember. Returns what a person should hear of it. An order without an id is the next one: it
/// comes from a control plane that knows that there is one, and no more.
///
/// # Errors
/// The attempts of the order are used up. Or a marker may be where nobody could look: an installation could erase what it stands for.
pub fn by_disks(machine: &str, allocation: &mut Allocation, inventory: &Inventory) -> Result<Option<String>> {
    let (machine, former_machines) = (machine.to_owned(), allocation.former_machines.clone());
    let claim = Claim { machine, former_machines, allocation: allocation.id.clone(), ..Claim::default() };
    let markers = inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
    let done = markers.filter(|marker| claim.is_ours(marker)).map(|marker| number(marker.order.as_deref())).max();
    if let Some(order) = allocation.order.as_mut().filter(|order| order.id.is_empty()) {
        order.id = (done.unwrap_or(0) + 1).to_string();
    }
    match (done, allocation.reinstall) {
        (None, true) => attempts_are_left(allocation).map(|()| None),
        (None, false) => refuse_opaque(inventory, &allocation.give_up).map(|()| None),
        (Some(_), false) => {
            allocation.succeeded = true;
            Ok(None)
        }
        (Some(done), true) if number(allocation.order_id()) <= done => {
            let order = allocation.order_id().unwrap_or("without an id");
            let message = format!("order {order} is not carried out: order {done} was, by the marker");
            (allocation.reinstall, allocation.order, allocation.succeeded) = (false, None, true);
            Ok(Some(message))
        }
        (Some(_), true) => attempts_are_left(allocation).map(|()| None),
    }
}

/// A control plane that counts nothing hands out a reinstall at every boot.
fn attempts_are_left(allocation: &Allocation) -> Result<()> {
    let Some(order) = allocation.order.as_ref().filter(|order| order.attempt > order.attempts) else { return Ok(()) };
    let message = format!(
        "the {} attempts of this reinstall are used up: a person has to look, and to order it anew",
        order.attempts
    );
    Err(Error::refusal(Phase::Plan, message))
}

/// The orders of files count up. A first installation has none, and those of a server are no numbers.
pub(super) fn number(order: Option<&str>) -> u64 {
    order.and_then(|order| order.parse().ok()).unwrap_or(0)
}

/// Refuses while an object of the machine was not looked into: the marker may be in it.
///
/// # Errors
/// Each such object with reason and remedy.
pub fn all_was_looked_into(inventory: &Inventory) -> Result<()> {
    refuse_opaque(inventory, &[])
}

/// The disk with the marker may have been replaced. What the layout keeps lies on the other disks then, and an installation would
/// erase it. Whether that is all there and as the layout says does not matter: a group may miss a member, a label may be another.
///
/// A layout that cannot be reinstalled keeps nothing.
///
/// # Errors
/// No disk has a marker of this machine, and a reinstall would keep disks, or would be refused for what is on them.
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
        None => format!("already {holds} what it puts there"),
        Some(problem) => format!("{holds} data (a reinstall would be refused: {problem})"),
    };
    let message = format!(
        "{} {is} to be kept by this layout, and {holds}, but no disk has the marker of an installation: \
         was the disk with the marker replaced? To keep what is there, ask for a reinstall with \"without_marker\": true in its \
         order; where nobody needs it, erase it: wipefs -a in the rescue shell",
        kept.join(", ")
    );
    Err(Error::refusal(Phase::Plan, message))
}

/// Is anything recognised there? What nobody recognises is nothing here: that is how `wipefs -a` leaves a disk.
pub(super) fn holds_something(disk: &Disk) -> bool {
    disk.table.is_some() || !disk.signatures.is_empty() || !disk.uses.is_empty() || disk.unreadable.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::{Machine, Order};
    use crate::inventory::{Filesystem, PhysicalVolume, Signature, VolumeGroup};
    use crate::marker::Marker;

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
    fn what_is_carried_out_is_not_carried_out_again() {
        let none = Inventory::default();
        for (order, disks, is_installed, reinstalls) in [
            (None, &none, false, false),
            (None, &marker("m", "other", ""), false, false),
            (None, &marker("other", "a", ""), false, false),
            (None, &marker("m", "a", ""), true, false),
            (None, &marker("m", "a", "3"), true, false),
            (Some("1"), &none, false, true),
            (Some("1"), &marker("m", "a", ""), false, true),
            (Some("1"), &marker("m", "a", "5f0c-of-a-server"), false, true),
            (Some("10"), &marker("m", "a", "9"), false, true),
            (Some("2"), &marker("m", "a", "2"), true, false),
            (Some("02"), &marker("m", "a", "2"), true, false),
            (Some("1"), &marker("m", "a", "2"), true, false),
        ] {
            let mut allocation = asked(order);
            let said = by_disks("m", &mut allocation, disks).unwrap();
            assert_eq!((allocation.succeeded, allocation.reinstall), (is_installed, reinstalls), "{order:?} {disks:?}");
            assert_eq!(said.is_some(), order.is_some() && is_installed);
        }
    }

    /// metal-api's flag says "reinstall", and no more.
    #[test]
    fn an_order_without_an_id_is_the_next_one_as_long_as_there_are_attempts() {
        for (disks, attempt, id) in [
            (marker("m", "a", ""), 1, Some("1")),
            (marker("m", "a", "3"), 3, Some("4")),
            (marker("m", "b", "3"), 3, Some("1")),
            (marker("m", "a", "3"), 4, None),
        ] {
            let order = Order { attempt, attempts: 3, ..Order::default() };
            let mut allocation = Allocation { order: Some(order), ..asked(Some("")) };
            let told = by_disks("m", &mut allocation, &disks);
            assert!(allocation.reinstall && !allocation.succeeded);
            match told {
                Ok(said) => assert_eq!((said, allocation.order_id()), (None, id)),
                Err(error) => assert!(id.is_none() && error.is_refusal(), "{error}"),
            }
        }
        // It was carried out, and its report was lost, however many times.
        for attempt in [2, 4] {
            let order = Order { id: "3".into(), attempt, attempts: 3, begun: true, ..Order::default() };
            let mut allocation = Allocation { order: Some(order), ..asked(Some("")) };
            assert!(by_disks("m", &mut allocation, &marker("m", "a", "3")).unwrap().is_some());
            assert_eq!((allocation.reinstall, allocation.succeeded), (false, true));
        }
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
            "/dev/sdb is to be kept by this layout, and already holds what it puts there",
            "/dev/sdb is to be kept by this layout, and holds data (a reinstall would be refused: ",
        );
        let reserved = LAYOUT.replace("  - {device: /dev/sdb, path: /srv, format: ext4, label: srv}\n", "");
        let for_ever = LAYOUT.replace("wipeonreinstall: true", "wipeonreinstall: false");
        for (layout, inventory, order, refused) in [
            (LAYOUT, &machine("srv"), None, Some(matches)),
            (LAYOUT, &machine("else"), None, Some(differs)),
            (LAYOUT, &with(&|disk| disk.unreadable = Some("EIO".into())), None, Some(differs)),
            // The other half went with the disk that had the marker, or is something else now.
            (GROUP, &half_a_group(blank_sdc()), None, Some(differs)),
            (GROUP, &half_a_group(machine("x").disks[1].clone()), None, Some("/dev/sdb, /dev/sdc are to be kept")),
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
