//! Assembly in a virtual machine with md and the device mapper: contents that are found, and disks that do not change.

use super::volume_groups::format_table;
use super::*;
use crate::probe::DeviceRange;
use crate::storage::vm_test_disks::fingerprints;
use model::inventory::{DeviceUse, StackedDevice, StackedDeviceKind, VolumeHealth};

mod array_bitmaps;
mod inactive_volumes;
mod take_down;
mod volumes;

const GROUP: &[&str] = &["/dev/nvme0n1", "/dev/nvme1n1"];

/// Adds an array to the inventory; its kernel device has this size.
fn found(inventory: &mut Inventory, name: &str, size_bytes: Option<u64>) -> uuid::Uuid {
    let uuid = uuid::Uuid::new_v4();
    let running = size_bytes.map(|_| name.into());
    inventory.arrays.push(MdArray { uuid, running, ..MdArray::default() });
    let kind = StackedDeviceKind::Array;
    let stacked =
        size_bytes.map(|size_bytes| StackedDevice { name: name.into(), kind, size_bytes, ..StackedDevice::default() });
    inventory.stacked.extend(stacked);
    uuid
}

#[test]
fn array_that_never_started_is_recorded_as_failed() {
    let mut inventory = Inventory::default();
    let (late, inactive) = (found(&mut inventory, "md1", Some(1 << 30)), found(&mut inventory, "md2", Some(0)));
    let (gone, untried) = (found(&mut inventory, "md3", None), found(&mut inventory, "md4", None));
    let failed = |uuid, why: &str| InspectionFailure { tried: InspectionTarget::Array(uuid), why: why.to_owned() };
    let failed = vec![failed(late, "one"), failed(inactive, "one"), failed(gone, "one"), failed(inactive, "two")];
    let (disks, locks) = (Vec::new(), WriteLocks::default());
    let assembled = ReadOnlyAssembly {
        before: vec!["md2".into()],
        disks,
        locks,
        failed,
        arrays: Default::default(),
        groups: Default::default(),
        tried: Vec::new(),
        notes: Vec::new(),
    };
    assembled.mark_inventory(&mut inventory);
    let why = [late, inactive, gone, untried].map(|uuid| inventory.find_failure(&InspectionTarget::Array(uuid)));
    assert_eq!(why, [None, Some("two"), Some("one"), None]);
    assert_eq!([0, 1].map(|index| inventory.stacked[index].assembled), [true, false]);
    let text = serde_json::to_string(&inventory).unwrap();
    assert_eq!(serde_json::from_str::<Inventory>(&text).unwrap(), inventory);
}

fn ran(line: &str) {
    let mut words = line.split(' ');
    let tool = words.next().unwrap();
    let command = ToolCommand::new(tool).args(words).env("MDADM_NO_UDEV", "1").env("DM_DISABLE_UDEV", "1");
    command.run().unwrap_or_else(|error| panic!("{error}"));
}

fn tried(line: &str) {
    let _ = ToolCommand::new("sh").args(["-c", line]).run();
}

/// Takes down all arrays and mappings. Repeats this, because they are on top of each other.
fn stop_all() {
    for _ in 0..4 {
        tried("dmsetup remove_all; for md in /sys/block/md*; do mdadm -q --stop /dev/${md##*/}; done");
    }
    // dmsetup does not remove the links of volumes, and lvm refuses to create a group whose directory exists.
    tried("rm -rf /dev/vg00 /dev/vg01 /dev/twin /dev/half");
}

/// Takes everything down and zeroes these disks completely: a later array on the same partitions would otherwise show
/// the contents of an earlier one.
fn blank(disks: &[&str]) {
    stop_all();
    for disk in disks {
        let disk = fs::File::options().write(true).open(disk).unwrap();
        block_device::zero_range(&disk, 0, block_device::read_size_bytes(&disk).unwrap()).unwrap();
    }
}

/// Creates `count` partitions of this size on a disk.
fn cut(disk: &str, size_mib: u64, count: u64) {
    let path = DevicePath::from(disk);
    let partition = |number: u64| operations::NewPartition {
        number: number as u32 + 1,
        device: path.partition_path(number as u32 + 1),
        first_lba: (1 + number * size_mib) * 2048,
        last_lba: (1 + (number + 1) * size_mib) * 2048 - 1,
        kind: model::layout::PartitionType::Linux.guid(),
        guid: uuid::Uuid::new_v4(),
        name: String::new(),
    };
    let partitions = (0..count).map(partition).collect();
    let guid = uuid::Uuid::new_v4();
    crate::storage::partition_table::write_partition_table(&operations::PartitionTable {
        device: path.clone(),
        identity: crate::storage::disk_identity::read_identity(&std::fs::File::open(&path).unwrap(), &path).unwrap(),
        guid,
        sector_bytes: 512,
        partitions,
    })
    .unwrap();
}

/// Assembles, reads the inventory, and takes everything down. Checks that the partitions have not changed, and returns
/// the inventory and the notes.
fn looked(disks: &[&str], parts: &[&str]) -> (Inventory, Vec<String>) {
    stop_all();
    let before = fingerprints(parts);
    let names: Vec<DevicePath> = disks.iter().map(|disk| (*disk).into()).collect();
    let mut assembled = assemble_read_only(&names).unwrap();
    let mut inventory = probe::read_inventory(ProbeDepth::Deep).unwrap();
    assembled.mark_inventory(&mut inventory);
    let writable = || names.iter().all(|disk| !is_read_only(disk).unwrap());
    assert!(!writable());
    assembled.unlock_disks().unwrap();
    assert!(writable());
    assembled.inspect_filesystems(&mut inventory).unwrap();
    let notes = assembled.notes.clone();
    // Wait, so that delayed writes of the kernel are noticed.
    std::thread::sleep(Duration::from_millis(1500));
    assert!(writable());
    stop_all();
    assert_eq!(fingerprints(parts), before, "{notes:?}");
    (inventory, notes)
}

/// Returns the disks that became writable after they were locked. A short change may be missed, but no change is
/// reported falsely.
fn watch(disks: &[&str], over: &std::sync::atomic::AtomicBool) -> Vec<String> {
    let (mut locked, mut opened) = (HashSet::new(), Vec::new());
    while !over.load(std::sync::atomic::Ordering::Relaxed) {
        for disk in disks {
            match is_read_only(&(*disk).into()).unwrap() {
                true => drop(locked.insert(*disk)),
                false if locked.contains(disk) => opened.push((*disk).to_owned()),
                false => {}
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    opened
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_disks_that_are_only_read_remain_locked_during_inspection() {
    crate::storage::vm_test_disks::assert_test_machine();
    parts();
    create("clean", "1", "--metadata=1.2", &["/dev/vda1", "/dev/vdb1"]);
    ran("mkfs.ext4 -q -L clean /dev/md/clean");
    stop_all();
    let before = fingerprints(&PARTS);
    let over = std::sync::atomic::AtomicBool::new(false);
    let names: Vec<DevicePath> = DISKS.iter().map(|disk| (*disk).into()).collect();
    // The second disk appears after the first was inspected.
    let assembled = assemble_read_only(&names[..1]).unwrap();
    let (inventory, mut locks) = std::thread::scope(|scope| {
        let watching = scope.spawn(|| watch(&DISKS, &over));
        let looked = probe::read_inventory(ProbeDepth::Deep).and_then(|mut inventory| {
            assembled.mark_inventory(&mut inventory);
            let locks = assembled.inspect_and_keep_locks(&mut inventory)?;
            Ok((inventory, locks))
        });
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(watching.join().unwrap(), [""; 0]);
        looked.unwrap()
    });
    for disk in &names {
        assert!(is_read_only(disk).unwrap() && locks.contains(disk), "{disk}");
        assert!(crate::storage::signature_wipe::wipe_ends(&disk.partition_path(2)).is_err(), "{disk}");
        // A disk locked by this program is not reported as write-protected.
        assert!(!inventory.find_disk(disk.as_str()).unwrap().read_only, "{disk}");
    }
    assert_eq!(inside(&inventory, array(&inventory, "clean")), ["ext4"]);
    stop_all();
    assert_eq!(fingerprints(&PARTS), before);
    locks.unlock_all().unwrap();
    assert!(names.iter().all(|disk| !is_read_only(disk).unwrap()));
}

fn seen<'a>(inventory: &'a Inventory, device: &str) -> &'a StackedDevice {
    let found = inventory.stacked.iter().find(|stacked| stacked.device == device);
    found.unwrap_or_else(|| panic!("no {device} in {:?}", inventory.stacked))
}

fn array<'a>(inventory: &'a Inventory, name: &str) -> &'a MdArray {
    let found = inventory.arrays.iter().find(|array| array.name == name);
    found.unwrap_or_else(|| panic!("no {name} in {:?}", inventory.arrays))
}

/// Returns the signatures on an array that was assembled.
fn inside(inventory: &Inventory, array: &MdArray) -> Vec<String> {
    let Some(name) = &array.running else { return Vec::new() };
    let stacked = inventory.stacked.iter().find(|stacked| stacked.name == *name).unwrap();
    assert!(stacked.assembled && stacked.kind == StackedDeviceKind::Array, "{stacked:?}");
    stacked.signatures.iter().map(|signature| signature.kind.clone()).collect()
}

const PARTS: [&str; 8] =
    ["/dev/vda1", "/dev/vda2", "/dev/vda3", "/dev/vda4", "/dev/vdb1", "/dev/vdb2", "/dev/vdb3", "/dev/vdb4"];
const DISKS: [&str; 2] = ["/dev/vda", "/dev/vdb"];

fn parts() {
    blank(&DISKS);
    for disk in DISKS {
        cut(disk, 32, 4);
    }
    for part in PARTS {
        crate::storage::signature_wipe::wipe_ends(&part.into()).unwrap();
    }
}

fn create(name: &str, level: &str, options: &str, members: &[&str]) {
    let count = members.len();
    let members = members.join(" ");
    let options = if options.is_empty() { String::new() } else { format!(" {options}") };
    ran(&format!(
        "mdadm --create /dev/md/{name} --run --homehost=any --level={level} --raid-devices={count}{options} {members}"
    ));
}

#[test]
fn ranges_become_a_device_mapper_table() {
    let piece = |device: &str, first: u64, count: u64| DeviceRange {
        device: device.into(),
        start_bytes: (1 << 20) + first * (4 << 20),
        size_bytes: count * (4 << 20),
    };
    let expected = "0 24576 linear /dev/vda 26624,24576 16384 linear /dev/vdb 67584";
    assert_eq!(format_table(&[piece("/dev/vda", 3, 3), piece("/dev/vdb", 8, 2)]), expected);
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_assembling_arrays_changes_nothing() {
    crate::storage::vm_test_disks::assert_test_machine();
    parts();
    create("clean", "1", "--metadata=1.2 --bitmap=internal", &["/dev/vda1", "/dev/vdb1"]);
    ran("mkfs.ext4 -q -L clean /dev/md/clean");
    create("half", "1", "--metadata=1.0", &["/dev/vda2", "missing"]);
    ran("mkfs.ext4 -q -L half /dev/md/half");
    create("nought", "0", "--metadata=1.1", &["/dev/vda3", "/dev/vdb3"]);
    ran("mkfs.ext4 -q -L nought /dev/md/nought");
    create("old", "1", "--metadata=0.90", &["/dev/vda4", "/dev/vdb4"]);
    ran("mkfs.vfat -n OLD /dev/md/old");
    let (inventory, notes) = looked(&DISKS, &PARTS);
    assert_eq!(notes, Vec::<String>::new());
    for (name, level, metadata, members) in
        [("clean", "raid1", "1.2", 2), ("half", "raid1", "1.0", 1), ("nought", "raid0", "1.1", 2)]
    {
        let array = array(&inventory, name);
        assert_eq!((array.level.as_str(), array.metadata.as_str(), array.raid_devices), (level, metadata, 2));
        assert_eq!(array.members.len(), members, "{array:?}");
        assert_eq!(inside(&inventory, array), ["ext4"], "{array:?}");
    }
    let old = array(&inventory, "");
    assert_eq!((old.metadata.as_str(), inside(&inventory, old)), ("0.90", vec!["vfat".to_owned()]));
    assert_eq!(inventory.filesystems.len(), 4, "{:?}", inventory.filesystems);
    assert!(inventory.filesystems.iter().all(|found| found.used_bytes < found.size_bytes && found.marker.is_none()));
    blank(&DISKS);
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_assembling_damaged_arrays_changes_nothing() {
    crate::storage::vm_test_disks::assert_test_machine();
    parts();
    // Without --assume-clean, the array still needs a resync.
    create("five", "5", "--metadata=1.2", &["/dev/vda1", "/dev/vdb1", "/dev/vda2"]);
    create("ten", "10", "--metadata=1.2 --assume-clean", &["/dev/vdb2", "/dev/vda3", "/dev/vdb3", "/dev/vda4"]);
    ran("mkfs.ext4 -q /dev/md/ten");
    ran("mdadm --fail /dev/md/ten /dev/vdb3");
    create("lost", "1", "--metadata=1.2", &["/dev/vdb4", "missing"]);
    let (inventory, notes) = looked(&DISKS, &PARTS);
    assert_eq!((array(&inventory, "five").running.is_some(), notes.len()), (true, 0), "{notes:?}");
    assert_eq!(inside(&inventory, array(&inventory, "ten")), ["ext4"]);
    // With one of three members left, the array cannot run; other arrays are not affected.
    ran("mdadm --zero-superblock /dev/vda1");
    ran("mdadm --zero-superblock /dev/vdb1");
    let (inventory, notes) = looked(&DISKS, &PARTS);
    let five = array(&inventory, "five");
    assert_eq!((five.running.as_ref(), five.members.len(), notes.len()), (None, 1, 1), "{notes:?}");
    assert!(notes[0].contains("cannot be assembled: `mdadm --assemble"), "{notes:?}");
    assert_eq!(inside(&inventory, array(&inventory, "ten")), ["ext4"]);
    blank(&DISKS);
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_assembling_arrays_that_the_kernel_writes_to_at_every_start_changes_nothing() {
    crate::storage::vm_test_disks::assert_test_machine();
    parts();
    create("parity", "5", "--metadata=1.2 --consistency-policy=ppl", &["/dev/vda1", "/dev/vdb1", "/dev/vda2"]);
    ran("mkfs.ext4 -q -L parity /dev/md/parity");
    let options = "--metadata=1.2 --write-journal=/dev/vdb4";
    create("journal", "5", options, &["/dev/vdb2", "/dev/vda3", "/dev/vdb3"]);
    ran("mkfs.ext4 -q -L journal /dev/md/journal");
    let (inventory, notes) = looked(&DISKS, &PARTS);
    assert_eq!(notes, Vec::<String>::new());
    for (name, members) in [("parity", 3), ("journal", 4)] {
        let array = array(&inventory, name);
        assert!(array.writes_at_start, "{array:?}");
        assert_eq!((array.members.len(), inside(&inventory, array)), (members, vec!["ext4".to_owned()]), "{array:?}");
    }
    assert_eq!(inventory.filesystems.len(), 2, "{:?}", inventory.filesystems);
    // Objects assembled for inspection are taken down before they are assembled permanently.
    assemble_read_only(&DISKS.map(DevicePath::from)).unwrap().unlock_disks().unwrap();
    let array = array(&inventory, "parity");
    let members: Vec<DevicePath> = array.members.iter().map(|member| member.device.clone()).collect();
    members.iter().for_each(|member| crate::storage::teardown::release_above(member).unwrap());
    crate::storage::mdadm::assemble_array(&"/dev/md/parity".into(), array.uuid, &members).unwrap();
    let below: Vec<KernelName> =
        probe::read_inventory(ProbeDepth::Deep).unwrap().stacked.into_iter().flat_map(|it| it.below).collect();
    assert!(below.iter().any(|name| name == "vda1"), "{below:?}");
    blank(&DISKS);
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_assembled_are_two_arrays_of_the_same_name() {
    crate::storage::vm_test_disks::assert_test_machine();
    parts();
    create("root", "1", "--metadata=1.2", &["/dev/vda1", "/dev/vdb1"]);
    ran("mdadm --stop /dev/md/root");
    create("root", "1", "--metadata=1.2", &["/dev/vda2", "/dev/vdb2"]);
    let (inventory, notes) = looked(&DISKS, &PARTS);
    let running: Vec<bool> = inventory.arrays.iter().map(|array| array.running.is_some()).collect();
    assert_eq!((running, notes.len()), (vec![true, true], 0), "{notes:?}");
    blank(&DISKS);
}
