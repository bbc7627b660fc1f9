//! Refusal of an installation if an object on the machine's disks cannot be read and installations are recorded only on
//! the disks: the unreadable object may contain the install marker.

use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use model::device_name::KernelName;
use model::inventory::{Inventory, OpaqueObject, UniqueIdentifiers};
use model::storage_graph::DeviceStack;

/// Fails if an object of the machine was not read. Objects that are only on disks in `give_up`, whose contents the
/// operator discards, are ignored.
///
/// # Errors
/// Lists each such object with reason and remedy.
pub(crate) fn refuse_opaque(inventory: &Inventory, give_up: &[String]) -> Result<()> {
    let (stack, identifiers) = (DeviceStack::new(inventory), UniqueIdentifiers::from_disks(&inventory.disks));
    let is_given_up = |name: &KernelName| {
        let disk = inventory.disks.iter().find(|disk| disk.name == *name);
        disk.is_some_and(|disk| give_up.iter().any(|given| identifiers.is_named_by(disk, given)))
    };
    let counts = |object: &OpaqueObject| {
        let mut disks =
            object.devices.iter().flat_map(|device| stack.disks_below(&stack.kernel_name(device))).peekable();
        disks.peek().is_none() || !disks.all(|disk| is_given_up(&disk))
    };
    let opaque = inventory.find_opaque_objects().into_iter().filter(counts);
    let opaque = opaque.map(|object| format!("{object} ({}; {})", object.reason, object.remedy));
    let opaque: Vec<String> = opaque.collect();
    if opaque.is_empty() {
        return Ok(());
    }
    let message = format!(
        "the contents of {} cannot be read, and may include the only record that this allocation is already installed. If the contents \
         are not needed, erase them with wipefs -a in the rescue shell",
        opaque.join(", ")
    );
    Err(Error::refusal(Phase::Plan, message).with_code(ErrorCode::ObjectNotInspected))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::state_from_markers::{complete_from_markers, require_all_read};
    use model::allocation::Allocation;
    use model::install_marker::InstallMarker;
    use model::inventory::{
        DeviceSignature, FilesystemContents, InspectionFailure, InspectionTarget, InventoryDisk, LvmLogicalVolume,
        LvmPhysicalVolume, LvmVolumeGroup, StackedDevice, StackedDeviceKind, UnassignedDevices,
    };

    fn waiving_allocation(give_up: &[&str]) -> Allocation {
        let give_up = give_up.iter().map(|it| (*it).to_owned()).collect();
        Allocation { id: "a".into(), give_up, ..Allocation::default() }
    }

    /// Returns a machine whose second disk has this signature.
    fn with(kind: &str, usage: &str) -> Inventory {
        let signatures = vec![DeviceSignature { kind: kind.into(), usage: usage.into(), ..DeviceSignature::default() }];
        let disk = |name: &str, serial: &str| InventoryDisk {
            name: name.into(),
            device: format!("/dev/{name}").into(),
            serial: serial.into(),
            ..InventoryDisk::default()
        };
        let disks = vec![disk("sda", "A"), InventoryDisk { signatures, ..disk("sdb", "B") }];
        Inventory { disks, ..Inventory::default() }
    }

    fn with_group(kind: &str, closed: Option<&str>) -> Inventory {
        let physical = vec![LvmPhysicalVolume { device: Some("/dev/sdb".into()), ..LvmPhysicalVolume::default() }];
        let volumes = vec![LvmLogicalVolume { name: "root".into(), kind: kind.into(), ..LvmLogicalVolume::default() }];
        let closed = closed.map(str::to_owned);
        let group = LvmVolumeGroup { name: "vg00".into(), physical, volumes, closed, ..LvmVolumeGroup::default() };
        Inventory { groups: vec![group], ..with("LVM2_member", "raid") }
    }

    fn with_unreadable_volume() -> Inventory {
        let (name, device, below) = ("dm-0".into(), "/dev/mapper/vg00-root".into(), vec!["sdb".into()]);
        let (kind, unreadable) = (StackedDeviceKind::Volume, Some("EIO".to_owned()));
        let volume = StackedDevice { name, device, kind, below, size_bytes: 1, unreadable, ..StackedDevice::default() };
        Inventory { stacked: vec![volume], ..with("swap", "other") }
    }

    fn installed() -> FilesystemContents {
        let (machine, allocation) = ("m".into(), "a".into());
        let marker = Some(InstallMarker { machine, allocation, ..InstallMarker::default() });
        FilesystemContents { device: "/dev/sda".into(), marker, ..FilesystemContents::default() }
    }

    #[test]
    fn refuses_to_install_over_uninspected_objects() {
        let array = InspectionFailure { tried: InspectionTarget::Array(uuid::Uuid::nil()), why: "w".into() };
        let unknown = UnassignedDevices { devices: vec!["/dev/sdc1".into()], reason: "r".into() };
        let unreadable = InventoryDisk { unreadable: Some("EIO".into()), ..with("", "").disks[0].clone() };
        for (inventory, unseen) in [
            (with("ext4", "filesystem"), Some("/dev/sdb")),
            (with("xfs", "filesystem"), Some("/dev/sdb")),
            (with("vfat", "filesystem"), None),
            (with("ntfs", "filesystem"), None),
            (with("swap", "other"), None),
            (with("crypto_LUKS", "crypto"), Some("crypto_LUKS on /dev/sdb")),
            (with("zfs_member", "raid"), Some("zfs_member on /dev/sdb")),
            (with("bcache", "other"), Some("bcache on /dev/sdb")),
            (with_group("thin", None), Some("logical volume vg00/root (thin) on /dev/sdb")),
            (with_group("linear", None), Some("logical volume vg00/root (linear) on /dev/sdb")),
            (with_group("snapshot", None), Some("logical volume vg00/root (snapshot) on /dev/sdb")),
            (
                with_group("linear", Some("the volume group is exported: run `vgimport`")),
                Some("volume group vg00 (root) on /dev/sdb"),
            ),
            (Inventory { disks: vec![unreadable], ..Inventory::default() }, Some("unreadable region on /dev/sda")),
            (with_unreadable_volume(), Some("unreadable region on /dev/mapper/vg00-root")),
            (Inventory { failed: vec![array], ..Inventory::default() }, Some("array 0000")),
            (Inventory { unknown: vec![unknown], ..Inventory::default() }, Some("/dev/sdc1")),
        ] {
            let result =
                complete_from_markers("m", &mut waiving_allocation(&[]), &inventory).map_err(|error| error.to_string());
            assert_eq!(result.is_err(), unseen.is_some(), "{result:?}");
            unseen.iter().for_each(|unseen| assert!(result.as_ref().unwrap_err().contains(unseen), "{result:?}"));
            assert_eq!(require_all_read(&inventory).is_err(), unseen.is_some(), "of a pool");
            // With a marker, the installation is known.
            let known = Inventory { filesystems: vec![installed()], ..inventory };
            complete_from_markers("m", &mut waiving_allocation(&[]), &known).unwrap();
        }
    }

    #[test]
    fn discarded_disks_may_be_uninspected() {
        let two = |serial: &str| {
            let mut inventory = with_group("thin", None);
            inventory.disks[0].serial = serial.into();
            let first = LvmPhysicalVolume { device: Some("/dev/sda".into()), ..LvmPhysicalVolume::default() };
            inventory.groups[0].physical.push(first);
            inventory
        };
        for (inventory, give_up, allowed) in [
            (with("crypto_LUKS", "crypto"), &["B"][..], true),
            (with("crypto_LUKS", "crypto"), &["A"], false),
            (with("crypto_LUKS", "crypto"), &[""], false),
            (with_group("thin", None), &["B"], true),
            (with_unreadable_volume(), &["B"], true),
            (with_unreadable_volume(), &["A"], false),
            // The object is on both disks.
            (two("A"), &["B"], false),
            (two("A"), &["A", "B"], true),
            // Two disks have this serial number, so it identifies neither.
            (two("B"), &["B"], false),
        ] {
            assert_eq!(
                complete_from_markers("m", &mut waiving_allocation(give_up), &inventory).is_ok(),
                allowed,
                "{give_up:?} {inventory:?}"
            );
            assert!(require_all_read(&inventory).is_err());
        }
    }
}
