//! Kernel names in an fstab that may now belong to other devices.

use super::foreign_machine::ForeignMachine;
use crate::{assess_reinstall, discover_layout};
use model::inventory::FilesystemContents;

const LINUX: &str = "0fc63daf-8483-4772-8e79-3d69d8477de4";

/// A machine with a data disk, whose fstab contains only kernel names. The system is on sda.
fn machine(is_mounted: bool) -> ForeignMachine {
    let point = is_mounted.then_some("/srv");
    let mut machine = ForeignMachine::read("debian-plain").add_disk(&[(LINUX, 100_000, "ext4", point)]);
    machine.fstab = "/dev/sdb1 /srv ext4 defaults 0 2\n".to_owned() + &machine.fstab;
    machine
}

#[test]
fn kernel_name_must_be_confirmed_by_a_running_mount() {
    assert_eq!(machine(true).obstacles(), [""; 0]);
    machine(false).assert_refused("fstab mounts /dev/sdb1 at /srv, but this kernel name may belong to another device");
}

/// The ramdisk has found the disks in another order than the installed system.
#[test]
fn recorded_fstab_must_be_on_the_device_that_it_mounts_as_root() {
    let machine = machine(false);
    let mut partitions = machine.inventory.disks[0].table.as_ref().unwrap().partitions.iter();
    let root = partitions.find(|partition| partition.signatures.iter().any(|found| found.kind == "ext4")).unwrap();
    let root = root.device.clone();
    let obstacles = |fstab: String| {
        let contents = FilesystemContents { device: root.clone(), fstab: Some(fstab), ..FilesystemContents::default() };
        let inventory = model::inventory::Inventory { filesystems: vec![contents], ..machine.inventory.clone() };
        assess_reinstall(&discover_layout(&inventory, None, "web"), &inventory).obstacles
    };
    let exchanged = obstacles(format!("/dev/sdb1 / ext4 defaults 0 1\n{root} /data ext4 defaults 0 2\n"));
    assert!(
        exchanged.iter().any(|why| why.contains("fstab mounts /dev/sdb1 at /, but this kernel name")),
        "{exchanged:?}"
    );
    assert!(exchanged.iter().any(|why| why.contains(&format!("fstab mounts {root} at /data"))), "{exchanged:?}");
    let by_uuid = obstacles("UUID=uuid-sdb1 / ext4 defaults 0 1\n".to_owned());
    assert!(by_uuid.iter().any(|why| why.contains("but it mounts another device at /")), "{by_uuid:?}");
    let own = obstacles(format!("{root} / ext4 defaults 0 1\n"));
    assert!(!own.iter().any(|why| why.contains("kernel name") || why.contains("another device")), "{own:?}");
}
