//! Assembling in a machine with md and the device mapper: what is seen, and that the disks stay as they are.

use super::*;
use crate::inventory::{Health, Stacked, StackedKind, Use};

const GROUP: &[&str] = &["/dev/nvme0n1", "/dev/nvme1n1"];

/// An array of the inventory whose kernel device has that size.
fn found(inventory: &mut Inventory, name: &str, size_bytes: Option<u64>) -> uuid::Uuid {
    let uuid = uuid::Uuid::new_v4();
    let running = size_bytes.map(|_| name.into());
    inventory.arrays.push(Array { uuid, running, ..Array::default() });
    let kind = StackedKind::Array;
    let stacked = size_bytes.map(|size_bytes| Stacked { name: name.into(), kind, size_bytes, ..Stacked::default() });
    inventory.stacked.extend(stacked);
    uuid
}

#[test]
fn an_array_that_does_not_run_after_all_tries_is_handed_over() {
    let mut inventory = Inventory::default();
    let (late, inactive) = (found(&mut inventory, "md1", Some(1 << 30)), found(&mut inventory, "md2", Some(0)));
    let (gone, untried) = (found(&mut inventory, "md3", None), found(&mut inventory, "md4", None));
    let failed = |uuid, why: &str| Failed { tried: Tried::Array(uuid), why: why.to_owned() };
    let failed = vec![failed(late, "one"), failed(inactive, "one"), failed(gone, "one"), failed(inactive, "two")];
    let (disks, locks) = (Vec::new(), Locks::default());
    let assembled = Assembled { before: vec!["md2".into()], disks, locks, failed, notes: Vec::new() };
    assembled.mark(&mut inventory);
    let why = [late, inactive, gone, untried].map(|uuid| inventory.failure(&Tried::Array(uuid)));
    assert_eq!(why, [None, Some("two"), Some("one"), None]);
    assert_eq!([0, 1].map(|index| inventory.stacked[index].assembled), [true, false]);
    let text = serde_json::to_string(&inventory).unwrap();
    assert_eq!(serde_json::from_str::<Inventory>(&text).unwrap(), inventory);
}

fn ran(line: &str) {
    let mut words = line.split(' ');
    let tool = words.next().unwrap();
    let command = Command::new(tool).args(words).env("MDADM_NO_UDEV", "1").env("DM_DISABLE_UDEV", "1");
    command.run().unwrap_or_else(|error| panic!("{error}"));
}

fn tried(line: &str) {
    let _ = Command::new("sh").args(["-c", line]).run();
}

/// Takes everything down that runs, several times as one lies on the other.
fn stop_all() {
    for _ in 0..4 {
        tried("dmsetup remove_all; for md in /sys/block/md*; do mdadm -q --stop /dev/${md##*/}; done");
    }
    // dmsetup leaves the links of volumes behind, and lvm makes no group whose directory is there.
    tried("rm -rf /dev/vg00 /dev/vg01 /dev/twin /dev/half");
}

/// Stops all and empties these disks, to the end: an array over the same partitions would show what lay inside the one before.
fn blank(disks: &[&str]) {
    stop_all();
    for disk in disks {
        let disk = fs::File::options().write(true).open(disk).unwrap();
        kernel::zero_out(&disk, 0, kernel::size_bytes(&disk).unwrap()).unwrap();
    }
}

fn hash(disks: &[&str]) -> String {
    for disk in disks {
        kernel::flush_buffers(&fs::File::open(disk).unwrap()).unwrap();
    }
    Command::new("md5sum").args(disks).run().unwrap().stdout
}

/// Cuts a disk to partitions of that size, so that hashing takes seconds and not minutes.
fn cut(disk: &str, size_mib: u64, count: u64) {
    let path = DevicePath::from(disk);
    let partition = |number: u64| crate::plan::NewPartition {
        number: number as u32 + 1,
        device: path.partition(number as u32 + 1),
        first_lba: (1 + number * size_mib) * 2048,
        last_lba: (1 + (number + 1) * size_mib) * 2048 - 1,
        kind: crate::layout::PartitionKind::Linux.guid(),
        guid: uuid::Uuid::new_v4(),
        name: String::new(),
    };
    let partitions = (0..count).map(partition).collect();
    let guid = uuid::Uuid::new_v4();
    crate::storage::gpt::write(&crate::plan::PartitionTable {
        device: path.clone(),
        identity: crate::storage::identify::read(&std::fs::File::open(&path).unwrap(), &path).unwrap(),
        guid,
        sector_bytes: 512,
        partitions,
    })
    .unwrap();
}

/// Assembles, reads, stops again; the disks' parts must be what they were. Gives what was seen.
fn looked(disks: &[&str], parts: &[&str]) -> (Inventory, Vec<String>) {
    stop_all();
    let before = hash(parts);
    let names: Vec<DevicePath> = disks.iter().map(|disk| (*disk).into()).collect();
    let mut assembled = assemble(&names).unwrap();
    let mut inventory = survey::read(Depth::Deep).unwrap();
    assembled.mark(&mut inventory);
    let writable = || names.iter().all(|disk| !is_read_only(disk).unwrap());
    assert!(!writable());
    assembled.unlock().unwrap();
    assert!(writable());
    assembled.look(&mut inventory).unwrap();
    let notes = assembled.notes.clone();
    // Time for whatever the kernel would like to write by itself.
    std::thread::sleep(Duration::from_millis(1500));
    assert!(writable());
    stop_all();
    assert_eq!(hash(parts), before, "{notes:?}");
    (inventory, notes)
}

fn seen<'a>(inventory: &'a Inventory, device: &str) -> &'a Stacked {
    let found = inventory.stacked.iter().find(|stacked| stacked.device == device);
    found.unwrap_or_else(|| panic!("no {device} in {:?}", inventory.stacked))
}

fn array<'a>(inventory: &'a Inventory, name: &str) -> &'a Array {
    let found = inventory.arrays.iter().find(|array| array.name == name);
    found.unwrap_or_else(|| panic!("no {name} in {:?}", inventory.arrays))
}

/// The filesystem on a running array.
fn inside(inventory: &Inventory, array: &Array) -> Vec<String> {
    let Some(name) = &array.running else { return Vec::new() };
    let stacked = inventory.stacked.iter().find(|stacked| stacked.name == *name).unwrap();
    assert!(stacked.assembled && stacked.kind == StackedKind::Array, "{stacked:?}");
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
        crate::storage::wipe::wipe_ends(&part.into()).unwrap();
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
fn pieces_become_a_table() {
    let piece = |device: &str, first: u64, count: u64| Piece {
        device: device.into(),
        start_bytes: (1 << 20) + first * (4 << 20),
        size_bytes: count * (4 << 20),
    };
    let expected = "0 24576 linear /dev/vda 26624,24576 16384 linear /dev/vdb 67584";
    assert_eq!(table(&[piece("/dev/vda", 3, 3), piece("/dev/vdb", 8, 2)]), expected);
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_assembling_arrays_changes_nothing() {
    crate::storage::vmdisks::assert_test_machine();
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
    crate::storage::vmdisks::assert_test_machine();
    parts();
    // Without --assume-clean its resync is still to come.
    create("five", "5", "--metadata=1.2", &["/dev/vda1", "/dev/vdb1", "/dev/vda2"]);
    create("ten", "10", "--metadata=1.2 --assume-clean", &["/dev/vdb2", "/dev/vda3", "/dev/vdb3", "/dev/vda4"]);
    ran("mkfs.ext4 -q /dev/md/ten");
    ran("mdadm --fail /dev/md/ten /dev/vdb3");
    create("lost", "1", "--metadata=1.2", &["/dev/vdb4", "missing"]);
    let (inventory, notes) = looked(&DISKS, &PARTS);
    assert_eq!((array(&inventory, "five").running.is_some(), notes.len()), (true, 0), "{notes:?}");
    assert_eq!(inside(&inventory, array(&inventory, "ten")), ["ext4"]);
    // One of three members is left: it cannot run, and the others do not suffer.
    ran("mdadm --zero-superblock /dev/vda1");
    ran("mdadm --zero-superblock /dev/vdb1");
    let (inventory, notes) = looked(&DISKS, &PARTS);
    let five = array(&inventory, "five");
    assert_eq!((five.running.as_ref(), five.members.len(), notes.len()), (None, 1, 1), "{notes:?}");
    assert!(notes[0].contains("is not assembled: `mdadm --assemble"), "{notes:?}");
    assert_eq!(inside(&inventory, array(&inventory, "ten")), ["ext4"]);
    blank(&DISKS);
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_assembling_arrays_that_the_kernel_writes_to_at_every_start_changes_nothing() {
    crate::storage::vmdisks::assert_test_machine();
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
    // What was put up to look is taken down to assemble for real.
    assemble(&DISKS.map(DevicePath::from)).unwrap().unlock().unwrap();
    let array = array(&inventory, "parity");
    let members: Vec<DevicePath> = array.members.iter().map(|member| member.device.clone()).collect();
    members.iter().for_each(|member| crate::storage::release::release_above(member).unwrap());
    crate::storage::raid::assemble(&"/dev/md/parity".into(), array.uuid, &members).unwrap();
    let below: Vec<KernelName> =
        survey::read(Depth::Deep).unwrap().stacked.into_iter().flat_map(|it| it.below).collect();
    assert!(below.iter().any(|name| name == "vda1"), "{below:?}");
    blank(&DISKS);
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_assembled_are_two_arrays_of_one_name() {
    crate::storage::vmdisks::assert_test_machine();
    parts();
    create("root", "1", "--metadata=1.2", &["/dev/vda1", "/dev/vdb1"]);
    ran("mdadm --stop /dev/md/root");
    create("root", "1", "--metadata=1.2", &["/dev/vda2", "/dev/vdb2"]);
    let (inventory, notes) = looked(&DISKS, &PARTS);
    let running: Vec<bool> = inventory.arrays.iter().map(|array| array.running.is_some()).collect();
    assert_eq!((running, notes.len()), (vec![true, true], 0), "{notes:?}");
    blank(&DISKS);
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_assembled_are_arrays_groups_and_what_lies_on_them() {
    crate::storage::vmdisks::assert_test_machine();
    parts();
    create("below", "1", "--metadata=1.2", &["/dev/vda1", "/dev/vdb1"]);
    create("beside", "1", "--metadata=1.2", &["/dev/vda2", "/dev/vdb2"]);
    create("above", "0", "--metadata=1.2", &["/dev/md/below", "/dev/md/beside"]);
    ran("lvm vgcreate -y vg00 /dev/vda3 /dev/md/above");
    ran("lvm lvcreate -y -n root -L 16m vg00 /dev/md/above");
    ran("mkfs.ext4 -q /dev/vg00/root");
    ran("lvm lvcreate -y -n wide -i 2 -L 16m vg00");
    ran("lvm lvcreate -y -n part -L 12m vg00");
    ran("lvm lvcreate -y -n part2 -L 12m vg00");
    create("onvolumes", "1", "--metadata=1.0", &["/dev/vg00/part", "/dev/vg00/part2"]);
    ran("mkfs.ext4 -q /dev/md/onvolumes");
    let (inventory, notes) = looked(&DISKS, &PARTS);
    assert_eq!(notes, Vec::<String>::new());
    let root = seen(&inventory, "/dev/mapper/vg00-root");
    assert_eq!((root.kind, root.signatures[0].kind.as_str(), root.assembled), (StackedKind::Volume, "ext4", true));
    let above = array(&inventory, "above");
    assert_eq!(root.below, [above.running.clone().unwrap()]);
    assert_eq!(inside(&inventory, array(&inventory, "onvolumes")), ["ext4"]);
    let group = &inventory.groups[0];
    let mut devices: Vec<&str> = group.devices().map(DevicePath::as_str).collect();
    devices.sort_unstable();
    assert_eq!(devices, [&*format!("/dev/{}", above.running.clone().unwrap()), "/dev/vda3"]);
    assert!(group.volumes.iter().all(|volume| volume.running.is_some()), "{group:?}");
    blank(&DISKS);
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_assembled_only_are_volumes_that_write_nothing() {
    crate::storage::vmdisks::assert_test_machine();
    parts();
    ran("lvm vgcreate -y --addtag a --addtag b vg00 /dev/vda1 /dev/vdb1 /dev/vda2 /dev/vdb2");
    ran("lvm lvcreate -y -n linear -L 12m vg00");
    ran("mkfs.ext4 -q /dev/vg00/linear");
    ran("lvm lvcreate -y -n striped -i 2 -L 16m vg00");
    ran("lvm lvcreate -y --type raid1 -m 1 -n mirrored -L 12m vg00");
    ran("lvm lvcreate -y --type thin-pool -Zn -n pool -L 16m vg00");
    ran("lvm lvcreate -y -n origin -L 12m vg00");
    ran("lvm lvcreate -y -s -n copy -L 8m vg00/origin");
    let (inventory, notes) = looked(&DISKS, &PARTS);
    assert_eq!(notes, Vec::<String>::new());
    let group = &inventory.groups[0];
    assert_eq!((group.tags.len(), group.extent_bytes, group.physical.len()), (2, 4 << 20, 4));
    let mut volumes: Vec<_> =
        group.volumes.iter().map(|it| (it.name.as_str(), it.kind.as_str(), it.stripes, it.running.is_some())).collect();
    volumes.sort_unstable();
    let expected = [
        ("copy", "snapshot", 1, false),
        ("linear", "linear", 1, true),
        ("mirrored", "raid1", 2, true),
        ("origin", "linear", 1, false),
        ("pool", "thin-pool", 1, false),
        ("striped", "striped", 2, true),
    ];
    assert_eq!(volumes, expected);
    assert_eq!(seen(&inventory, "/dev/mapper/vg00-linear").signatures[0].kind, "ext4");
    blank(&DISKS);
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_assembled_are_partial_groups_and_groups_of_one_name() {
    crate::storage::vmdisks::assert_test_machine();
    parts();
    for (part, volume) in [("/dev/vda1", "a"), ("/dev/vdb1", "b")] {
        ran(&format!("lvm vgcreate -y twin {part}"));
        ran(&format!("lvm lvcreate -y -n {volume} -L 12m twin"));
        ran("lvm vgchange -an twin");
        // lvm does not make a second group of the name while it sees the first.
        if part == "/dev/vda1" {
            ran(&format!("dd if={part} of=/tmp/first bs=1M count=2 status=none"));
            ran(&format!("dd if=/dev/zero of={part} bs=1M count=2 status=none"));
        }
    }
    ran("dd if=/tmp/first of=/dev/vda1 bs=1M count=2 status=none");
    ran("lvm vgcreate -y half /dev/vda2 /dev/vdb2");
    ran("lvm lvcreate -y -n here -L 12m half /dev/vda2");
    ran("lvm lvcreate -y -n gone -i 2 -L 16m half");
    ran("lvm vgchange -an half");
    ran("dd if=/dev/zero of=/dev/vdb2 bs=1M count=2 status=none");
    let (inventory, notes) = looked(&DISKS, &PARTS);
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains("volume group half") && notes[0].contains("partial"), "{notes:?}");
    let names: Vec<&str> = inventory.groups.iter().map(|group| group.name.as_str()).collect();
    assert_eq!(names, ["half", "twin", "twin"]);
    let physical = inventory.groups[0].physical.iter();
    let devices: Vec<Option<&str>> =
        physical.map(|physical| physical.device.as_ref().map(DevicePath::as_str)).collect();
    assert_eq!(devices, [Some("/dev/vda2"), None]);
    for device in ["/dev/mapper/twin-a", "/dev/mapper/twin-b", "/dev/mapper/half-here"] {
        assert!(seen(&inventory, device).assembled);
    }
    blank(&DISKS);
}

/// The number in the marker of the only filesystem, and how the volume is.
fn told(inventory: &Inventory) -> (String, Health) {
    let [filesystem] = &inventory.filesystems[..] else { panic!("{:?}", inventory.filesystems) };
    assert_eq!(filesystem.device, "/dev/mapper/vg00-sa--fe");
    let volume = inventory.groups[0].volumes.iter().find(|volume| volume.name == "sa-fe").unwrap();
    let shown = seen(inventory, filesystem.device.as_str());
    assert_eq!((volume.running.as_ref(), shown.kind, shown.assembled), (Some(&shown.name), StackedKind::Volume, true));
    (filesystem.marker.as_ref().unwrap().image.clone(), volume.health)
}

/// Writes a marker onto the volume, which is active.
fn mark(image: &str) {
    ran("mkdir -p /tmp/volume");
    ran("mount -t ext4 /dev/vg00/sa-fe /tmp/volume");
    fs::create_dir_all("/tmp/volume/etc/metal").unwrap();
    let marker = crate::marker::Marker { image: image.to_owned(), ..crate::marker::Marker::default() };
    let text = serde_json::to_vec(&marker).unwrap();
    fs::write("/tmp/volume/etc/metal/drophammer.json", text).unwrap();
    ran("umount /tmp/volume");
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_assembled_raid1_volumes_show_their_latest_copy() {
    crate::storage::vmdisks::assert_test_machine();
    // Hashing takes long.
    const USED: [&str; 3] = ["/dev/vda1", "/dev/vdb1", "/dev/vda2"];
    parts();
    ran("lvm vgcreate -y vg00 /dev/vda1 /dev/vdb1 /dev/vda2");
    ran("lvm lvcreate -y --type raid1 -m 1 -n sa-fe -L 12m vg00 /dev/vda1 /dev/vdb1");
    ran("lvm lvcreate -y -n between -L 4m vg00 /dev/vda1");
    // Its first copy is in two pieces now.
    ran("lvm lvextend -y -L 16m vg00/sa-fe");
    ran("lvm lvremove -y vg00/between");
    ran("mkfs.ext4 -q /dev/vg00/sa-fe");
    mark("one");
    let (inventory, notes) = looked(&DISKS, &USED);
    assert_eq!((told(&inventory), notes), (("one".to_owned(), Health::Whole), vec![]));

    for (part, text) in [("/dev/vda1", "two"), ("/dev/vdb1", "three")] {
        ran(&format!("dd if={part} of=/tmp/part bs=1M count=1 status=none"));
        ran(&format!("dd if=/dev/zero of={part} bs=1M count=1 status=none"));
        let (inventory, notes) = looked(&DISKS, &USED);
        assert_eq!((told(&inventory).1, notes), (Health::Degraded, vec![]), "{part} is missing");
        // Used without it, and then it is back, with a copy that is behind.
        ran("lvm vgchange -ay --activationmode degraded vg00");
        mark(text);
        stop_all();
        ran(&format!("dd if=/tmp/part of={part} bs=1M status=none"));
        let (inventory, notes) = looked(&DISKS, &USED);
        assert_eq!((told(&inventory), notes), ((text.to_owned(), Health::Degraded), vec![]), "{part} is behind");
        if part == "/dev/vda1" {
            ran("lvm vgchange -ay vg00");
            ran("lvm lvchange --refresh vg00/sa-fe");
            for _ in 0..100 {
                let status = Command::new("dmsetup").args(["status", "vg00-sa--fe"]).run().unwrap().stdout;
                if status.contains(" AA 32768/32768 ") {
                    break;
                }
                std::thread::sleep(Duration::from_millis(200));
            }
            let (inventory, _) = looked(&DISKS, &USED);
            assert_eq!(told(&inventory), (text.to_owned(), Health::Whole));
        }
    }
    // The other way round, too: each was used without the other.
    ran("dd if=/dev/vda1 of=/tmp/part bs=1M count=1 status=none");
    ran("dd if=/dev/zero of=/dev/vda1 bs=1M count=1 status=none");
    ran("lvm vgchange -ay --activationmode degraded vg00");
    mark("four");
    stop_all();
    ran("dd if=/tmp/part of=/dev/vda1 bs=1M status=none");
    let (inventory, notes) = looked(&DISKS, &USED);
    let volume = &inventory.groups[0].volumes[0];
    assert_eq!((volume.running.as_ref(), volume.health), (None, Health::Lost));
    assert!(notes.len() == 1 && notes[0].contains("no copy of the raid1 volume sa-fe"), "{notes:?}");
    blank(&DISKS);
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_assembled_only_is_not_what_ran_before() {
    crate::storage::vmdisks::assert_test_machine();
    blank(GROUP);
    ran("lvm vgcreate -y vg01 /dev/nvme0n1 /dev/nvme1n1");
    ran("lvm lvcreate -y -n swap -L 64m vg01");
    ran("mkswap /dev/vg01/swap");
    let mut assembled = assemble(&["/dev/nvme0n1".into()]).unwrap();
    assembled.unlock().unwrap();
    tried("swapon /dev/dm-0 || swapon /dev/vg01/swap");
    let mut assembled = assemble(&[]).unwrap();
    let mut inventory = survey::read(Depth::Deep).unwrap();
    assembled.mark(&mut inventory);
    assembled.unlock().unwrap();
    tried("swapoff -a; swapoff /dev/dm-0");
    let swap = seen(&inventory, "/dev/mapper/vg01-swap");
    assert_eq!((swap.assembled, &swap.uses[..]), (false, &[Use::Swap][..]));
    blank(GROUP);
}
