//! Handling of machines whose control plane does not record installations. The install marker on the disks identifies
//! the installation. Reinstall orders in a machine file are handled by `order_number_check`.
//!
//! | the disks contain | the file requests | action |
//! |---|---|---|
//! | no marker of this allocation | an installation | carried out, if all objects that could contain a marker were read, or if the operator discards the disks of the unread objects (`give_up`) |
//! | no marker of this machine, but data on disks that the layout preserves | an installation | refused: the disk with the marker may have been replaced |
//! | a marker of this allocation | an installation | the installed system is booted |
//! | a marker of the started attempt of this reinstall | a reinstall | the installed system is booted, as decided by the crate `plan` |
//! | anything else | a reinstall | refused if no attempts are left, otherwise carried out or refused by the crate `plan` |

use super::opaque_object_refusal::refuse_opaque;
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use model::allocation::{Allocation, OrderNumber};
use model::install_marker::InstallMarker;
use model::inventory::Inventory;
use model::layout::Layout;
use plan::{InstallClaim, PlanRequest};

/// Completes the allocation from the markers on the disks. A reinstall order without an id gets the next free number as
/// its id, because this control plane does not assign ids.
///
/// # Errors
/// Fails if the reinstall order has no attempts left, or if an installation could erase a marker that was not readable.
pub(crate) fn complete_from_markers(machine: &str, allocation: &mut Allocation, inventory: &Inventory) -> Result<()> {
    let (machine, former_machines) = (machine.to_owned(), allocation.former_machines.clone());
    let claim = InstallClaim { machine, former_machines, allocation: allocation.id.clone(), ..InstallClaim::default() };
    let markers = inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
    let own: Vec<&InstallMarker> = markers.filter(|marker| claim.is_ours(marker)).collect();
    if allocation.reinstall {
        let last = own.iter().filter_map(|marker| OrderNumber::parse(marker.order.as_deref()?)).max();
        let next = last.map_or(OrderNumber::FIRST, OrderNumber::successor);
        if let Some(order) = allocation.order.as_mut().filter(|order| order.id.is_empty()) {
            order.id = next.to_string();
        }
        return require_attempts_left(allocation, inventory, claim, &own);
    }
    if own.is_empty() {
        return refuse_opaque(inventory, &allocation.give_up);
    }
    allocation.succeeded = true;
    Ok(())
}

/// Refuses a reinstall that has no attempts left. A control plane that does not count attempts would otherwise request
/// the reinstall at every boot. The reinstall is accepted if the last attempt was successful and only its report was
/// lost.
fn require_attempts_left(
    allocation: &Allocation,
    inventory: &Inventory,
    claim: InstallClaim,
    own: &[&InstallMarker],
) -> Result<()> {
    let Some(order) = allocation.order.as_ref().filter(|order| order.attempt > order.attempts) else { return Ok(()) };
    let (begun_on, attempt) = (order.disks.clone(), order.attempt_record.clone().filter(|_| order.started));
    let claim = InstallClaim { order: Some(order.id.clone()), begun_on, attempt, ..claim };
    if own.iter().any(|marker| plan::is_carried_out(inventory, &claim, marker)) {
        return Ok(());
    }
    let message = format!(
        "all {attempts} attempts of this reinstall have failed; inspect the machine, and order the reinstall again",
        attempts = order.attempts
    );
    Err(Error::refusal(Phase::Plan, message).with_code(ErrorCode::AttemptsExhausted))
}

/// Fails if an object of the machine was not read, because this object may contain the install marker.
///
/// # Errors
/// Lists each such object with reason and remedy.
pub(crate) fn require_all_read(inventory: &Inventory) -> Result<()> {
    refuse_opaque(inventory, &[])
}

/// Refuses an installation if the disk with the marker may have been replaced: the remaining disks then contain data
/// that the layout preserves, and that the installation would erase. The data may be incomplete or differ from the
/// layout: a volume group may lack a physical volume, or a label may differ.
///
/// A layout that does not support reinstalls does not preserve any data.
///
/// # Errors
/// Fails if no disk has a marker of this machine, and a reinstall would either preserve disks, or be refused because of
/// their contents.
pub(crate) fn refuse_orphaning(layout: &Layout, inventory: &Inventory, request: &PlanRequest) -> Result<()> {
    let Some(found) = plan::find_endangered_data(layout, inventory, request) else { return Ok(()) };
    let (is, holds) = if found.disks.len() == 1 { ("is", "holds") } else { ("are", "hold") };
    let (holds, refusal, first) = match found.refusal {
        None => (format!("already {holds} the expected contents"), String::new(), ""),
        Some(problem) => {
            let refusal = format!(" A reinstall would also be refused at present: {problem}.");
            (format!("{holds} data"), refusal, "first correct this problem, then ")
        }
    };
    let message = format!(
        "{} {is} preserved by this layout, and {holds}, but no disk has the marker of an installation: the disk with the marker may have \
         been replaced.{refusal} To preserve the data, {first}order a reinstall with \"without_marker\": true; if the data is not \
         needed, run wipefs -a on the preserved disks in the rescue shell",
        found.disks.join(", ")
    );
    Err(Error::refusal(Phase::Plan, message).with_code(ErrorCode::PreservedDataLoss))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::allocation::{AssignedMachine, OrderedReinstall};
    use model::install_marker::{AttemptRecord, AttemptSecret};
    use model::inventory::{DeviceSignature, FilesystemContents, InventoryDisk, LvmPhysicalVolume, LvmVolumeGroup};
    use uuid::Uuid;

    fn marker(machine: &str, allocation: &str, order: &str) -> Inventory {
        let (machine, allocation, order) =
            (machine.to_owned(), allocation.to_owned(), common::empty_string_as_none::non_empty(order.to_owned()));
        let marker = Some(InstallMarker { machine, allocation, order, ..InstallMarker::default() });
        let filesystems =
            vec![FilesystemContents { device: "/dev/sda".into(), marker, ..FilesystemContents::default() }];
        Inventory { filesystems, ..Inventory::default() }
    }

    fn ordered_allocation(order: Option<&str>) -> Allocation {
        let order = order.map(|id| OrderedReinstall { id: id.to_owned(), ..OrderedReinstall::default() });
        Allocation { id: "a".into(), reinstall: order.is_some(), order, ..Allocation::default() }
    }

    #[test]
    fn marker_of_this_allocation_counts_as_installed() {
        for (disks, is_installed) in [
            (Inventory::default(), false),
            (marker("m", "other", ""), false),
            (marker("other", "a", ""), false),
            (marker("m", "a", ""), true),
            (marker("m", "a", "3"), true),
        ] {
            let mut allocation = ordered_allocation(None);
            complete_from_markers("m", &mut allocation, &disks).unwrap();
            assert_eq!((allocation.succeeded, allocation.reinstall), (is_installed, false), "{disks:?}");
        }
    }

    /// metal-api sends only a reinstall flag, without an order id.
    #[test]
    fn order_without_id_gets_the_next_number() {
        for (disks, attempt, id) in [
            (marker("m", "a", ""), 1, Some("1")),
            (marker("m", "a", "3"), 3, Some("4")),
            (marker("m", "b", "3"), 3, Some("1")),
            (marker("m", "a", "18446744073709551615"), 1, Some("1")),
            (marker("m", "a", "9007199254740991"), 1, Some("1")),
            (marker("m", "a", "3"), 4, None),
        ] {
            let order = OrderedReinstall { attempt, attempts: 3, ..OrderedReinstall::default() };
            let mut allocation = Allocation { order: Some(order), ..ordered_allocation(Some("")) };
            let result = complete_from_markers("m", &mut allocation, &disks);
            assert!(allocation.reinstall && !allocation.succeeded);
            match result {
                Ok(()) => assert_eq!(allocation.order_id(), id),
                Err(error) => assert!(id.is_none() && error.is_refusal(), "{error}"),
            }
        }
    }

    /// An order number in the marker proves nothing; only the secret and the image of the started attempt do.
    #[test]
    fn only_the_current_attempts_marker_excuses_exhausted_attempts() {
        let secret = AttemptSecret::generate(&mut Uuid::new_v4);
        let record = AttemptRecord { secret_digest: secret.digest().unwrap(), image: Some("i".into()) };
        let own = InstallMarker { secret: Some(secret), image: "i".into(), ..first(&marker("m", "a", "3")) };
        for (found, record, started, is_proven) in [
            (own.clone(), Some(record.clone()), true, true),
            (own.clone(), Some(record.clone()), false, false),
            (own.clone(), None, true, false),
            (InstallMarker { secret: None, ..own.clone() }, Some(record.clone()), true, false),
            (InstallMarker { image: "j".into(), ..own.clone() }, Some(record.clone()), true, false),
            (InstallMarker { order: Some("4".into()), ..own.clone() }, Some(record), true, false),
        ] {
            let order = OrderedReinstall {
                id: "3".into(),
                attempt: 4,
                attempts: 3,
                started,
                attempt_record: record,
                ..OrderedReinstall::default()
            };
            let mut allocation = Allocation { order: Some(order), ..ordered_allocation(Some("")) };
            let disks = Inventory {
                filesystems: vec![FilesystemContents { marker: Some(found.clone()), ..FilesystemContents::default() }],
                ..Inventory::default()
            };
            assert_eq!(complete_from_markers("m", &mut allocation, &disks).is_ok(), is_proven, "{found:?}");
            assert!(allocation.reinstall && !allocation.succeeded, "the plan decides");
        }
    }

    fn first(inventory: &Inventory) -> InstallMarker {
        inventory.filesystems[0].marker.clone().unwrap()
    }

    /// System on sda, and data on sdb, which a reinstall preserves.
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

    /// Returns a machine with a replaced sda, and an ext4 filesystem with this label on sdb.
    fn machine(label: &str) -> Inventory {
        let disk = |device: &str, serial: &str| InventoryDisk {
            name: device.trim_start_matches("/dev/").into(),
            device: device.into(),
            serial: serial.into(),
            size_bytes: 20 << 30,
            sector_bytes: 512,
            ..InventoryDisk::default()
        };
        let found = DeviceSignature {
            kind: "ext4".into(),
            usage: "filesystem".into(),
            label: label.into(),
            uuid: "5a1d7c0e-93b2-4f57-8f0c-6e1a2b3c4d5e".into(),
        };
        let data = InventoryDisk { signatures: vec![found], ..disk("/dev/sdb", "B") };
        Inventory { disks: vec![disk("/dev/sda", "A"), data], ..Inventory::default() }
    }

    /// The same layout, with a volume group on sdb and sdc instead of the filesystem on sdb.
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

    /// Returns a machine with a replaced sda, one physical volume of the group on sdb, and the disk `sdc`.
    fn half_a_group(sdc: InventoryDisk) -> Inventory {
        let mut inventory = machine("srv");
        inventory.disks[1].signatures = vec![DeviceSignature {
            kind: "LVM2_member".into(),
            usage: "raid".into(),
            uuid: "p-1".into(),
            ..DeviceSignature::default()
        }];
        let physical = [(Some("/dev/sdb".into()), "p-1"), (None, "p-2")].map(|(device, uuid)| LvmPhysicalVolume {
            device,
            uuid: uuid.into(),
            size_bytes: 20 << 30,
        });
        let (name, uuid, physical) = ("data".into(), "g-1".into(), physical.into());
        inventory.groups.push(LvmVolumeGroup {
            name,
            uuid,
            physical,
            extent_bytes: 4 << 20,
            ..LvmVolumeGroup::default()
        });
        inventory.disks.push(InventoryDisk {
            name: "sdc".into(),
            device: "/dev/sdc".into(),
            serial: "C".into(),
            ..sdc
        });
        inventory
    }

    #[test]
    fn missing_marker_disk_does_not_erase_preserved_disks() {
        let with = |change: &dyn Fn(&mut InventoryDisk)| {
            let mut machine = machine("srv");
            machine.disks[1].signatures.clear();
            change(&mut machine.disks[1]);
            machine
        };
        let blank = with(&|disk| disk.blank = true);
        let blank_sdc = || InventoryDisk { blank: true, ..with(&|_| ()).disks[1].clone() };
        let other_life = Inventory { filesystems: marker("m", "other", "").filesystems, ..machine("srv") };
        let (matches, differs) = (
            "/dev/sdb is preserved by this layout, and already holds the expected contents",
            "/dev/sdb is preserved by this layout, and holds data, but no disk has the marker",
        );
        let reserved = LAYOUT.replace("  - {device: /dev/sdb, path: /srv, format: ext4, label: srv}\n", "");
        let for_ever = LAYOUT.replace("wipeonreinstall: true", "wipeonreinstall: false");
        for (layout, inventory, order, refused) in [
            (LAYOUT, &machine("srv"), None, Some(matches)),
            (LAYOUT, &machine("else"), None, Some(differs)),
            (LAYOUT, &with(&|disk| disk.unreadable = Some("EIO".into())), None, Some(differs)),
            // One physical volume of the group is missing: `sdc` is blank, or has other content.
            (GROUP, &half_a_group(blank_sdc()), None, Some(differs)),
            (GROUP, &half_a_group(machine("x").disks[1].clone()), None, Some("/dev/sdb, /dev/sdc are preserved")),
            // A disk after `wipefs -a`, and a new disk.
            (LAYOUT, &with(&|_| ()), None, None),
            (LAYOUT, &blank, None, None),
            (reserved.as_str(), &blank, None, None),
            (for_ever.as_str(), &machine("srv"), None, None),
            (LAYOUT, &other_life, None, None),
            (LAYOUT, &machine("srv"), Some("1"), None),
            (GROUP, &half_a_group(blank_sdc()), Some("1"), None),
        ] {
            let layout = model::layout::read_yaml(layout).unwrap().layout;
            let request = plan::request_from_allocation::build_request(
                &AssignedMachine::default(),
                "m",
                &ordered_allocation(order),
                &[],
            );
            let judged = refuse_orphaning(&layout, inventory, &request).map_err(|error| error.to_string());
            assert_eq!(judged.is_err(), refused.is_some(), "{judged:?} {inventory:?}");
            refused.iter().for_each(|words| {
                let error = judged.as_ref().unwrap_err();
                assert!(error.contains(words) && error.contains("without_marker"), "{words}: {error}");
            });
        }
    }
}
