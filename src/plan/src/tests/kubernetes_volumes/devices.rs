//! Devices of Kubernetes volumes, and the paths to these devices.

use super::*;
use operations::{DeviceOp, Operation, StageName};

/// A `Block` volume on LVM has no UUID of its own. It is therefore identified by its name, unless it contains a
/// filesystem of another volume.
#[test]
fn refuses_two_listed_volumes_on_one_logical_volume() {
    let mut layout = layout();
    layout.logicalvolumes.push(logical("bare", "csi", 100, LvmType::Linear));
    let first = [raw("a", 1, "Filesystem", "/dev/csi/bare"), in_group("web", 3, "Filesystem", "csi", "1Gi")];
    let mut inventory = after(&planned(&layout, &machine(), InstallMode::Install, &first).unwrap(), machine());
    mark(&mut inventory);
    let b = raw("b", 2, "Block", "/dev/csi/bare");
    for volumes in [[first[0].clone(), b.clone()], [b, first[0].clone()]] {
        let said = refused(&layout, &inventory, InstallMode::Reinstall, &volumes);
        assert!(said.len() == 1 && said[0].contains("contains the filesystem of volume a"), "{said:?}");
    }
    let mut renamed = first[1].clone();
    renamed["metadata"]["name"] = json!("old");
    let again = [renamed, in_group("web", 4, "Block", "csi", "1Gi")];
    let said = refused(&layout, &inventory, InstallMode::Reinstall, &again);
    assert!(said.iter().any(|said| said.contains("contains the filesystem of volume old")), "{said:?}");
}

/// A volume's disk is identified by the UUID of the volume, so changed kernel names have no effect.
#[test]
fn volume_is_identified_by_uuid_instead_of_path() {
    let volumes = [raw("data", 1, "Filesystem", "/dev/sdc"), raw("block", 2, "Block", "/dev/sdd")];
    let mut inventory = installed(&volumes);
    let (name, device) = (inventory.disks[2].name.clone(), inventory.disks[2].device.clone());
    inventory.disks[2].name = inventory.disks[3].name.clone();
    inventory.disks[2].device = inventory.disks[3].device.clone();
    (inventory.disks[3].name, inventory.disks[3].device) = (name, device);
    inventory.disks[3].table.as_mut().unwrap().partitions[0].device = "/dev/sdc1".into();
    let plan = planned(&layout(), &inventory, InstallMode::Reinstall, &volumes).unwrap();
    assert_eq!(format_volumes(&plan), ["data /dev/sdd keep sdd", "block /dev/sdc1 keep sdc"]);
    let said = |name: &str, named: &str, on: &str| {
        format!("volume {name} refers to /dev/{named}, but is kept on /dev/{on}, which has the UUID of the volume")
    };
    assert_eq!(plan.warnings, [said("data", "sdc", "sdd"), said("block", "sdd", "sdc1")]);
    // If two disks have the UUID, either one may be the copy, so the plan is refused.
    let copy =
        DeviceSignature { kind: "ext4".into(), usage: "filesystem".into(), uuid: uid(1), ..DeviceSignature::default() };
    inventory.disks.push(model::inventory::InventoryDisk { signatures: vec![copy], ..disk("sde", 400) });
    let said = refused(&layout(), &inventory, InstallMode::Reinstall, &volumes);
    assert!(said[0].contains("has its UUID 9474cda7-0dbe-40fc-9842-3cb0404a7201 on several devices"), "{said:?}");
}

#[test]
fn blank_disks_are_discovered_by_hints_and_found_again() {
    let mut machine = machine();
    machine.disks.extend([disk("sde", 500), disk("sdf", 600)]);
    machine.disks[4].blank = true;
    machine.disks[4].serial = "WD-1".into();
    let volumes = [
        discover("large", 1, json!({"size": ">= 5"})),
        discover("any", 2, json!({})),
        raw("named", 3, "Filesystem", "/dev/sdd"),
    ];
    let plan = planned(&layout(), &machine, InstallMode::Install, &volumes).unwrap();
    assert_eq!(format_volumes(&plan), ["large /dev/sdc make sdc", "any /dev/sde make sde", "named /dev/sdd make sdd"]);
    assert_sound(&plan, &machine);
    let installed = after(&plan, machine.clone());
    let again = planned(&layout(), &installed, InstallMode::Reinstall, &volumes).unwrap();
    assert_eq!(format_volumes(&again), ["large /dev/sdc keep sdc", "any /dev/sde keep sde", "named /dev/sdd keep sdd"]);
    let more = [&volumes[..], &[discover("none", 4, json!({"serial": "x"}))]].concat();
    let said = refused(&layout(), &machine, InstallMode::Install, &more);
    assert!(
        said[0].contains(
            "cannot find a blank disk that matches its hints: /dev/sda (used by the layout or another volume)"
        ),
        "{said:?}"
    );
    assert!(said[0].contains("/dev/sdf (not blank: data of no known kind)"), "{said:?}");
}

/// Disks, partitions, logical volumes and arrays that the layout provides for Kubernetes volumes.
#[test]
fn devices_of_the_layout_provide_volumes() {
    let mut layout = layout();
    layout.disks.push(DiskSpec {
        partitions: vec![partition(1, "a", 200, PartitionType::Linux), partition(2, "b", 0, PartitionType::Linux)],
        ..whole("/dev/sdc")
    });
    layout.disks.push(whole("/dev/sdd"));
    layout.logicalvolumes.push(logical("bare", "csi", 100, LvmType::Linear));
    let volumes = [
        raw("fs", 1, "Filesystem", "/dev/sdc1"),
        raw("part", 2, "Block", "/dev/sdc2"),
        raw("lv", 3, "Block", "/dev/csi/bare"),
        raw("disk", 4, "Block", "/dev/sdd"),
    ];
    let plan = planned(&layout, &machine(), InstallMode::Install, &volumes).unwrap();
    assert_eq!(prepares(&plan), ["fs", "disk"]);
    let tables = super::super::arrays_and_groups::operations(&plan, StageName::StoragePartition);
    let parts = tables.iter().filter_map(|operation| match operation {
        Operation::Device(DeviceOp::WriteTable(table)) if table.device == "/dev/sdc" => Some(&table.partitions),
        _ => None,
    });
    let part = &parts.flatten().find(|part| part.number == 2).unwrap();
    assert_eq!((part.guid.to_string(), part.name.as_str()), (uid(2), "part"));
    let inventory = after(&plan, machine());
    let again = planned(&layout, &inventory, InstallMode::Reinstall, &volumes).unwrap();
    assert!(format_volumes(&again).iter().all(|line| line.contains(" keep ")), "{again}");
    assert_sound(&again, &inventory);
    // Only a logical volume can be added to a preserved device.
    let mut other = volumes.clone();
    other[0] = raw("fs", 9, "Filesystem", "/dev/sdc1");
    let said = refused(&layout, &inventory, InstallMode::Reinstall, &other);
    assert!(
        said[0].contains("must be preserved on /dev/sdc1, which does not have the UUID of the volume: there is ext4"),
        "{said:?}"
    );
}

/// udev creates no link with the GUID of an empty partition on an array. The path therefore contains the UUID of the
/// array, before and after a reinstall.
#[test]
fn array_uuid_identifies_its_block_volume() {
    let mut layout = layout();
    layout.disks.extend(["/dev/sdc", "/dev/sdd"].map(whole));
    layout.raid.push(raid("/dev/md/data", &["/dev/sdc", "/dev/sdd"], RaidLevel::Raid1, 0));
    let block = [raw("array", 1, "Block", "/dev/md/data")];
    let plan = planned(&layout, &machine(), InstallMode::Install, &block).unwrap();
    assert_eq!(prepares(&plan), ["array"]);
    let made = super::super::arrays_and_groups::operations(&plan, StageName::StorageRaid);
    let uuid = made.iter().find_map(|operation| match operation {
        Operation::Device(DeviceOp::CreateArray(array)) => Some(model::inventory::format_array_uuid(array.uuid)),
        _ => None,
    });
    let path = format!("/dev/disk/by-id/md-uuid-{}-part1", uuid.unwrap());
    assert_eq!(path.len(), "/dev/disk/by-id/md-uuid-01234567:89abcdef:01234567:89abcdef-part1".len());
    assert_eq!(plan.volumes[0].path.as_ref(), Some(&path));
    let inventory = after(&plan, machine());
    let again = planned(&layout, &inventory, InstallMode::Reinstall, &block).unwrap();
    assert_eq!((again.volumes[0].path.as_ref(), again.volumes[0].verdict), (Some(&path), PersistentVerdict::Keep));
    assert_sound(&again, &inventory);

    // A link with the UUID of a filesystem exists on every type of device.
    let filesystem = [raw("array", 1, "Filesystem", "/dev/md/data")];
    let plan = planned(&layout, &machine(), InstallMode::Install, &filesystem).unwrap();
    assert_eq!(plan.volumes[0].path, Some(format!("/dev/disk/by-uuid/{}", uid(1))));
}
