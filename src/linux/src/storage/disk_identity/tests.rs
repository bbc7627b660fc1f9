//! Unchanged disks, and disks that were replaced by others with the same names.

use super::*;
use crate::probe::ProbeDepth;
use crate::storage::test_loop_device::TestLoopDevice;
use crate::storage::{disk_erase, partition_table};
use operations::{ByteRange, PartitionTable, WipeDisk};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;

fn disk(serial: &str, wwn: &str, size_bytes: u64) -> DiskIdentity {
    let (serial, wwn) =
        (empty_string_as_none::non_empty(serial.to_owned()), empty_string_as_none::non_empty(wwn.to_owned()));
    DiskIdentity { device: "/dev/sda".into(), size_bytes, serial, wwn, diskseq: None }
}

#[test]
fn identifiers_of_the_plan_must_match_the_present_disk() {
    let cases: [(DiskIdentity, DiskIdentity, &[&str]); 8] = [
        (disk("S1", "0x5", 9), disk("S1", "0x5", 9), &[]),
        (disk("", "", 9), disk("S1", "0x5", 9), &[]),
        (disk("S1", "", 9), disk("S1", "0x5", 9), &[]),
        (disk("S1", "", 9), disk("S2", "", 9), &["the serial was S1 when the plan was made, and is S2 now"]),
        (disk("S1", "", 9), disk("", "", 9), &["the serial was S1 when the plan was made, and is unknown now"]),
        (disk("", "0x5", 9), disk("S2", "0x6", 9), &["the wwn was 0x5 when the plan was made, and is 0x6 now"]),
        (disk("", "", 9), disk("", "", 10), &["9 bytes are now 10"]),
        (
            disk("S1", "0x5", 9),
            disk("S2", "0x6", 10),
            &[
                "the serial was S1 when the plan was made, and is S2 now",
                "the wwn was 0x5 when the plan was made, and is 0x6 now",
                "9 bytes are now 10",
            ],
        ),
    ];
    for (plan, now, expected) in cases {
        assert_eq!(list_differences(&plan, &now), expected, "{plan:?} {now:?}");
    }
}

/// Two disks of the same size, without serial numbers: one was unplugged, and the other one got its name.
#[test]
fn similar_disk_has_another_sequence_number() {
    let numbered =
        |diskseq: u64, serial: &str| DiskIdentity { diskseq: NonZeroU64::new(diskseq), ..disk(serial, "", 9) };
    let other: &[&str] = &["the disk's sequence number (diskseq) was 7 when the plan was made, and is 8 now"];
    for (plan, now, expected) in [
        (numbered(7, ""), numbered(7, ""), &[][..]),
        (numbered(7, ""), numbered(8, ""), other),
        (numbered(7, "S1"), numbered(8, "S1"), other),
        // The kernel or the inventory does not provide the number.
        (numbered(7, ""), numbered(0, ""), &[]),
        (numbered(0, ""), numbered(8, ""), &[]),
    ] {
        assert_eq!(list_differences(&plan, &now), expected, "{plan:?} {now:?}");
    }
}

#[test]
fn missing_disk_is_refused() {
    let plan = DiskIdentity { device: "/dev/no-such-disk".into(), ..disk("S1", "", 9) };
    let error = open_identified_disk(&plan).unwrap_err().to_string();
    assert!(error.starts_with("find the disk /dev/no-such-disk of the plan (nothing was written): "), "{error}");
    let plan = DiskIdentity { device: "/dev/null".into(), ..plan };
    assert!(open_identified_disk(&plan).unwrap_err().to_string().contains("not a block device"));
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_disk_of_another_size_is_refused() {
    let device = TestLoopDevice::new(16 << 20, 512);
    let plan = DiskIdentity { device: device.path().clone(), ..disk("", "", 16 << 20) };
    open_identified_disk(&plan).unwrap();
    let error = open_identified_disk(&DiskIdentity { size_bytes: 17 << 20, ..plan.clone() }).unwrap_err().to_string();
    let expected = "is not the disk for which the plan was made: 17825792 bytes are now 16777216; nothing was written";
    assert_eq!(error, format!("{} {expected}", device.path()));
    let error = open_identified_disk(&DiskIdentity { serial: Some("S1".into()), ..plan }).unwrap_err().to_string();
    assert!(error.contains("the serial was S1 when the plan was made, and is unknown now"), "{error}");
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_another_disk_with_the_same_name_is_not_written() {
    let (identity, disk) = TestLoopDevice::exchanged(16 << 20);
    let device = disk.path().to_owned();
    assert_eq!((&identity.device, identity.size_bytes), (disk.path(), 16 << 20));
    assert_ne!(identity.diskseq, None);
    let writable = File::options().write(true).open(disk.path()).unwrap();
    writable.write_all_at(&[0xaa; 4096], 0).unwrap();
    writable.sync_all().unwrap();
    drop(writable);
    let before = fs::read(disk.image()).unwrap();

    let zero = vec![ByteRange { start: 0, length: 1 << 20 }];
    let wipe = WipeDisk {
        device,
        identity: identity.clone(),
        methods: vec![],
        strict: false,
        budget_seconds: 60,
        first: vec![],
        zero,
    };
    let table = PartitionTable { identity: identity.clone(), ..disk.table(512, &[(1, 2048, 4095)]) };
    for (error, end) in [
        (open_identified_disk(&identity).map(drop), "; nothing was written"),
        (disk_erase::wipe_disk(&wipe).map(drop), "; the disk was not changed"),
        (partition_table::write_partition_table(&table), "; the disk was not changed"),
    ] {
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("is not the disk for which the plan was made: the disk's sequence number (diskseq) was "),
            "{error}"
        );
        assert!(error.ends_with(end), "{error}");
    }
    assert!(before == fs::read(disk.image()).unwrap(), "the disk has changed");
    // With its own identity, the disk is written.
    disk_erase::wipe_disk(&WipeDisk { identity: disk.identity(), ..wipe }).unwrap();
    partition_table::write_partition_table(&PartitionTable { identity: disk.identity(), ..table }).unwrap();
}

/// A device that a tool writes by its path is rejected if it is on a disk that is not in the plan.
#[test]
#[ignore = "needs root and loop devices"]
fn loop_path_must_be_on_a_disk_of_the_plan() {
    let (ours, other) = (TestLoopDevice::new(16 << 20, 512), TestLoopDevice::new(16 << 20, 512));
    for disk in [&ours, &other] {
        partition_table::write_partition_table(&disk.table(512, &[(1, 2048, 4095)])).unwrap();
    }
    let mut held = HeldDisks::default();
    assert!(held.verify_underlying_disks(ours.path()).is_err());
    held.hold_disk(&ours.identity()).unwrap();
    held.verify_underlying_disks(ours.path()).unwrap();
    held.verify_underlying_disks(&ours.partition(1)).unwrap();
    for device in [other.path(), &other.partition(1)] {
        let error = held.verify_underlying_disks(device).unwrap_err().to_string();
        let name = other.path().kernel_name();
        assert_eq!(
            error,
            format!("{device} is on {name}, which is not a disk of the plan; the device was not changed")
        );
    }
    assert!(held.verify_underlying_disks(&"/dev/no-such-disk".into()).is_err());
}

/// An open loop device exists until it is closed, so its name is not reused.
#[test]
#[ignore = "needs root and loop devices"]
fn loop_name_of_a_held_disk_is_not_reused() {
    let disk = TestLoopDevice::new(16 << 20, 512);
    let mut held = HeldDisks::default();
    held.hold_disk(&disk.identity()).unwrap();
    let losetup = |args: &[&str]| crate::process::ToolCommand::new("losetup").args(args).run();
    losetup(&["--detach", disk.path().as_str()]).unwrap();
    let other = tempfile::NamedTempFile::new().unwrap();
    other.as_file().set_len(16 << 20).unwrap();
    losetup(&[disk.path().as_str(), other.path().to_str().unwrap()]).unwrap_err();
    held.verify_underlying_disks(disk.path()).unwrap();
    // Dropped in this order, because another test may take the name as soon as the device is closed.
    drop(disk);
    drop(held);
}

/// NVMe, SATA and virtio disks have their serial numbers in different sysfs files.
#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_every_disk_of_the_inventory_is_identified_uniquely() {
    crate::storage::vm_test_disks::assert_test_machine();
    let inventory = probe::read_inventory(ProbeDepth::Deep).unwrap();
    let identities: Vec<DiskIdentity> = inventory.disks.iter().map(DiskIdentity::from_disk).collect();
    assert!(identities.len() >= 11, "{identities:?}");
    for identity in &identities {
        assert!(identity.serial.is_some(), "{identity:?}");
        open_identified_disk(identity).unwrap();
        for other in identities.iter().filter(|other| other.device != identity.device) {
            let moved = DiskIdentity { device: other.device.clone(), ..identity.clone() };
            let error = open_identified_disk(&moved).unwrap_err().to_string();
            assert!(
                error.contains(&format!(
                    "the serial was {} when the plan was made, and is {} now",
                    identity.serial.as_ref().unwrap(),
                    other.serial.as_ref().unwrap()
                )),
                "{error}"
            );
        }
    }
}
