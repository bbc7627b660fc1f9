//! Running block devices on top of other block devices: md, device mapper, bcache.

use super::device_contents::{self, DeviceContents, ProbeTarget};
use super::device_users::DeviceUsers;
use super::sysfs::{ProbeRoots, list_names, parse_sectors, read_attribute};
use common::error::Result;
use model::device_name::KernelName;
use model::inventory::{OVERLAY, StackedDevice, StackedDeviceKind};
use std::path::Path;

/// Returns all stacked devices, by name.
pub(super) fn read_stacked_devices(roots: &ProbeRoots, users: &DeviceUsers) -> Result<Vec<StackedDevice>> {
    let mut stacked = Vec::new();
    for name in list_names(&roots.sys.join("block"))? {
        let dir = roots.sys.join("block").join(&name);
        if let Some(kind) = detect_kind(&name, &dir) {
            stacked.extend(read_stacked_device(roots, users, &name, &dir, kind)?);
        }
    }
    Ok(stacked)
}

/// Returns the type of a stacked device; `None` for other devices. A disk below bcache also has a `bcache` directory,
/// so the name of the device is checked in addition.
fn detect_kind(name: &str, dir: &Path) -> Option<StackedDeviceKind> {
    if name.starts_with("md") && dir.join("md").is_dir() {
        return Some(StackedDeviceKind::Array);
    }
    if name.starts_with("bcache") && dir.join("bcache").exists() {
        return Some(StackedDeviceKind::Bcache);
    }
    if !name.starts_with("dm-") {
        return None;
    }
    // The device's UUID begins with a prefix that identifies the tool that created the device (dmsetup(8)).
    let uuid = read_attribute(&dir.join("dm/uuid"));
    if uuid.starts_with(OVERLAY) {
        return Some(StackedDeviceKind::Other);
    }
    Some(match uuid.split_once('-') {
        Some(("LVM" | "drophammer", _)) => StackedDeviceKind::Volume,
        Some(("CRYPT", _)) => StackedDeviceKind::Crypt,
        _ => StackedDeviceKind::Other,
    })
}

fn read_stacked_device(
    roots: &ProbeRoots,
    users: &DeviceUsers,
    name: &str,
    dir: &Path,
    kind: StackedDeviceKind,
) -> Result<Option<StackedDevice>> {
    let mapped = read_attribute(&dir.join("dm/name"));
    let is_overlay = mapped.starts_with(OVERLAY);
    let mut below = list_names(&dir.join("slaves"))?;
    // Below an overlay, there is also a loop device that holds the changes in memory. This loop device is omitted,
    // because it is not a disk.
    below.retain(|name| !(is_overlay && name.starts_with("loop")));
    let size_bytes = parse_sectors(&read_attribute(&dir.join("size"))).unwrap_or_default();
    // A device such as md127 continues to exist after its array was stopped, and is omitted. An inactive array also has
    // the size 0, but is listed, because its members are in use.
    if kind == StackedDeviceKind::Array && below.is_empty() && size_bytes == 0 {
        return Ok(None);
    }
    let name = KernelName::from(name);
    let device = if mapped.is_empty() { name.device_path() } else { format!("/dev/mapper/{mapped}").into() };
    let sector_bytes = read_attribute(&dir.join("queue/logical_block_size")).parse().unwrap_or(512);
    // The partition table in a volume is that of a disk image, whose size the guest or the operator has chosen. The
    // part of the image that exists is read like that of any other image. Like an intact image, it therefore blocks
    // neither the reinstall of a machine that preserves the volume nor a first installation. A partition table on any
    // other stacked device was made for this device, and a partition beyond its end shows that the device has
    // changed.
    let may_be_cut_off = kind == StackedDeviceKind::Volume;
    let target = ProbeTarget { name: &name, device: &device, sector_bytes, size_bytes, may_be_cut_off };
    // The contents of a suspended device are not read, because reads would block forever. The contents of an overlay
    // are not read either, because they are those of the device below.
    let is_suspended = read_attribute(&dir.join("dm/suspended")) == "1";
    let DeviceContents { table, signatures, uses: of_partitions, unreadable, blank } = match size_bytes {
        0 => DeviceContents::default(),
        _ if is_overlay => DeviceContents::default(),
        _ if is_suspended => DeviceContents {
            unreadable: Some(format!("{device}: the device is suspended (dmsetup resume)")),
            ..DeviceContents::default()
        },
        _ => device_contents::read_contents(&target, roots, users)?,
    };
    let mut uses = users.find_uses(dir, &device)?;
    let blank = blank && uses.is_empty();
    uses.extend(of_partitions);
    let below = below.into_iter().map(KernelName::from).collect();
    let assembled = false;
    Ok(Some(StackedDevice {
        name,
        device,
        kind,
        below,
        size_bytes,
        table,
        signatures,
        uses,
        assembled,
        unreadable,
        blank,
    }))
}

#[cfg(test)]
mod tests {
    use super::super::simulated_machine::{FakeMachine, ran};
    use super::super::{ProbeDepth, read_inventory_at};
    use super::*;
    use crate::storage::vm_test_disks::TestDisks;
    use model::inventory::DeviceUse;

    const MIB: u64 = 1 << 20;

    /// Adds a stacked device on top of the devices `below`, with a file as its device node.
    fn stack(tree: &FakeMachine, name: &str, number: &str, below: &[&str], size_bytes: u64) {
        tree.write(&format!("sys/block/{name}/size"), format!("{}\n", size_bytes / 512));
        tree.write(&format!("sys/block/{name}/dev"), format!("{number}\n"));
        for below in below {
            tree.write(&format!("sys/block/{name}/slaves/{below}"), "");
        }
        std::fs::File::create(tree.path(&format!("dev/{name}"))).unwrap().set_len(size_bytes).unwrap();
    }

    fn mapped(tree: &FakeMachine, name: &str, number: &str, mapped: &str, uuid: &str) {
        stack(tree, name, number, &["md127"], 16 * MIB);
        tree.write(&format!("sys/block/{name}/dm/name"), format!("{mapped}\n"));
        tree.write(&format!("sys/block/{name}/dm/uuid"), format!("{uuid}\n"));
        tree.write(&format!("sys/block/{name}/dm/suspended"), "0\n");
    }

    fn stacked(tree: &FakeMachine) -> Vec<StackedDevice> {
        read_inventory_at(&tree.roots(), ProbeDepth::Deep).unwrap().stacked
    }

    #[test]
    fn overlay_has_no_signatures_and_no_loop_device_below() {
        let tree = FakeMachine::new();
        mapped(&tree, "dm-0", "253:0", "drophammer-overlay-sda1", "drophammer-overlay-sda1");
        tree.write("sys/block/dm-0/slaves/loop3", "");
        ran("mkswap", &[tree.path("dev/dm-0").to_str().unwrap()]);
        let [overlay] = &stacked(&tree)[..] else { panic!("{:?}", stacked(&tree)) };
        assert_eq!(
            (overlay.kind, overlay.is_overlay(), &overlay.below[..]),
            (StackedDeviceKind::Other, true, &["md127".into()][..])
        );
        assert!(overlay.signatures.is_empty() && !overlay.blank);
    }

    #[test]
    fn array_with_partitions_and_volumes_is_read() {
        let tree = FakeMachine::new();
        stack(&tree, "md127", "9:127", &["sda2", "sdb2"], 64 * MIB);
        tree.write("sys/block/md127/md/array_state", "clean\n");
        let script = "label: gpt\nsize=16MiB, name=root\n";
        super::super::simulated_machine::sfdisk(&tree.path("dev/md127"), script);
        tree.write("sys/block/md127/md127p1/partition", "1\n");
        tree.write("sys/block/md127/md127p1/start", "2048\n");
        tree.write("sys/block/md127/md127p1/size", format!("{}\n", 16 * MIB / 512));
        tree.write("sys/block/md127/md127p1/dev", "259:0\n");
        std::fs::File::create(tree.path("dev/md127p1")).unwrap().set_len(16 * MIB).unwrap();
        ran("mkfs.ext4", &["-q", tree.path("dev/md127p1").to_str().unwrap()]);
        mapped(&tree, "dm-0", "253:0", "vg00-root", "LVM-abc");
        ran("mkswap", &[tree.path("dev/dm-0").to_str().unwrap()]);
        tree.write("sys/block/md127/holders/dm-0", "");
        tree.write("proc/self/mountinfo", "28 1 259:0 / /mnt rw - ext4 /dev/md127p1 rw\n");
        tree.write("proc/swaps", "Filename Type Size Used Priority\n/dev/mapper/vg00-root partition 1 0 -2\n");
        let [volume, array] = &stacked(&tree)[..] else { panic!("{:?}", stacked(&tree)) };
        assert_eq!(
            (array.device.as_str(), array.kind, array.size_bytes),
            ("/dev/md127", StackedDeviceKind::Array, 64 * MIB)
        );
        assert_eq!(
            (&array.below[..], &array.uses[..]),
            (&["sda2".into(), "sdb2".into()][..], &[DeviceUse::Holder("dm-0".into())][..])
        );
        let partition = &array.table.as_ref().unwrap().partitions[0];
        assert_eq!((partition.device.as_str(), partition.signatures[0].kind.as_str()), ("/dev/md127p1", "ext4"));
        assert_eq!(partition.uses, [DeviceUse::Mounted("/mnt".into())]);
        assert_eq!(
            (volume.name.as_str(), volume.device.as_str(), volume.kind),
            ("dm-0", "/dev/mapper/vg00-root", StackedDeviceKind::Volume)
        );
        assert_eq!((volume.signatures[0].kind.as_str(), &volume.uses[..]), ("swap", &[DeviceUse::Swap][..]));
    }

    #[test]
    fn types_of_mapped_devices_are_recognized() {
        let tree = FakeMachine::new();
        let cases = [
            ("LVM-x", StackedDeviceKind::Volume),
            ("drophammer-x", StackedDeviceKind::Volume),
            ("CRYPT-LUKS2-x", StackedDeviceKind::Crypt),
            ("mpath-x", StackedDeviceKind::Other),
            ("", StackedDeviceKind::Other),
        ];
        for (number, (uuid, _)) in cases.iter().enumerate() {
            mapped(&tree, &format!("dm-{number}"), &format!("253:{number}"), &format!("name{number}"), uuid);
        }
        let kinds: Vec<_> = stacked(&tree).iter().map(|stacked| stacked.kind).collect();
        assert_eq!(kinds, cases.map(|(_, kind)| kind));
    }

    #[test]
    fn inactive_devices_are_listed_if_they_have_members() {
        let tree = FakeMachine::new();
        stack(&tree, "md126", "9:126", &["sda"], 0);
        stack(&tree, "md127", "9:127", &[], 0);
        stack(&tree, "bcache0", "252:0", &["sdb"], 16 * MIB);
        for dir in ["md126/md/dev-sda", "md127/md/x", "bcache0/bcache"] {
            tree.write(&format!("sys/block/{dir}"), "");
        }
        let found: Vec<_> =
            stacked(&tree).into_iter().map(|stacked| (stacked.name, stacked.kind, stacked.below)).collect();
        let expected = [
            ("bcache0".into(), StackedDeviceKind::Bcache, vec!["sdb".into()]),
            ("md126".into(), StackedDeviceKind::Array, vec!["sda".into()]),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn unreadable_device_is_opaque() {
        let tree = FakeMachine::new();
        mapped(&tree, "dm-0", "253:0", "vg00-root", "LVM-abc");
        std::fs::remove_file(tree.path("dev/dm-0")).unwrap();
        let inventory = read_inventory_at(&tree.roots(), ProbeDepth::Deep).unwrap();
        let expected = "/dev/mapper/vg00-root: No such file or directory";
        assert_eq!(inventory.stacked[0].unreadable.as_deref(), Some(expected));
        let opaque = inventory.find_opaque_objects();
        assert!(opaque.iter().any(|object| object.reason == expected), "{opaque:?}");
    }

    /// A sector fails in which libblkid looks for btrfs.
    #[test]
    #[ignore = "needs the device mapper: scripts/test vm runs it in a machine"]
    fn vm_volume_with_an_unreadable_sector_is_opaque() {
        let disks = TestDisks::take("vda");
        let disk = &disks.all()[0];
        let file = tempfile::NamedTempFile::new().unwrap();
        let rest = (1 << 21) - 136;
        let table = format!("0 128 linear {disk} 0\n128 8 error\n136 {rest} linear {disk} 136\n");
        std::fs::write(file.path(), table).unwrap();
        let path = file.path().to_str().unwrap();
        ran("dmsetup", &["create", "--noudevsync", "--readonly", "--uuid", "LVM-test", "vg00-root", path]);
        let inventory = crate::probe::read_inventory(ProbeDepth::Deep).unwrap();
        let volume = inventory.stacked.iter().find(|device| device.device == "/dev/mapper/vg00-root").unwrap();
        assert!(volume.unreadable.as_ref().unwrap().contains("Input/output error") && !volume.blank, "{volume:?}");
        let opaque = inventory.find_opaque_objects();
        assert!(opaque.iter().any(|object| object.devices == [volume.device.clone()]), "{opaque:?}");
        ran("dmsetup", &["remove", "--noudevsync", "vg00-root"]);
    }

    /// A volume may contain the image of a virtual machine that is larger than the volume.
    #[test]
    fn cut_off_table_makes_only_devices_other_than_volumes_uncertain() {
        for (uuid, is_uncertain) in [("LVM-abc", false), ("CRYPT-LUKS2-abc", true), ("mpath-abc", true)] {
            let tree = FakeMachine::new();
            mapped(&tree, "dm-0", "253:0", "guest", uuid);
            let script = "label: dos\nsize=4MiB, type=83\nsize=8MiB, type=83\n";
            super::super::simulated_machine::sfdisk(&tree.path("dev/dm-0"), script);
            tree.write("sys/block/dm-0/size", (8 * MIB / 512).to_string());
            let [device] = &stacked(&tree)[..] else { panic!() };
            assert_eq!(device.unreadable.is_some(), is_uncertain, "{uuid}: {:?}", device.unreadable);
            assert_eq!((device.table.as_ref().unwrap().partitions.len(), device.blank), (1, false));
        }
    }

    #[test]
    fn suspended_device_is_not_read() {
        let tree = FakeMachine::new();
        mapped(&tree, "dm-0", "253:0", "vg00-root", "LVM-abc");
        ran("mkswap", &[tree.path("dev/dm-0").to_str().unwrap()]);
        assert_eq!(stacked(&tree)[0].signatures.len(), 1);
        tree.write("sys/block/dm-0/dm/suspended", "1\n");
        let [device] = &stacked(&tree)[..] else { panic!() };
        assert_eq!(device.signatures.len(), 0);
        assert_eq!(
            device.unreadable.as_deref(),
            Some("/dev/mapper/vg00-root: the device is suspended (dmsetup resume)")
        );
    }
}
