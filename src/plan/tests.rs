//! The decision table as cases, and what must hold for every layout on every machine.

use super::*;
use crate::inventory::{self, Signature, Table, Use};
use crate::layout::{Disk, Filesystem, Format, Partition, PartitionKind, partition_device};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn filesystem(path: &str, device: &str, format: Format, label: &str) -> Filesystem {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Filesystem {
        path: some(path),
        device: device.to_owned(),
        format,
        label: some(label),
        mountoptions: Vec::new(),
        createoptions: Vec::new(),
    }
}

fn partition(number: u32, label: &str, size_mib: u64, kind: PartitionKind) -> Partition {
    Partition { number, label: Some(label.to_owned()), size_mib, kind: Some(kind) }
}

/// System on sda, data on sdb, which a reinstall keeps.
fn layout() -> Layout {
    Layout {
        id: "data".to_owned(),
        filesystems: vec![
            filesystem("/srv", "/dev/sdb1", Format::Ext4, "srv"),
            filesystem("/boot/efi", "/dev/sda1", Format::Vfat, "efi"),
            filesystem("", "/dev/sda3", Format::Swap, ""),
            filesystem("/", "/dev/sda2", Format::Ext4, "root"),
            filesystem("/tmp", "tmpfs", Format::Tmpfs, ""),
        ],
        disks: vec![
            Disk {
                hints: Default::default(),
                device: "/dev/sda".to_owned(),
                wipeonreinstall: true,
                partitions: vec![
                    partition(1, "efi", 500, PartitionKind::Boot),
                    partition(2, "root", 5000, PartitionKind::Linux),
                    partition(3, "swap", 0, PartitionKind::Linux),
                ],
            },
            Disk {
                hints: Default::default(),
                device: "/dev/sdb".to_owned(),
                wipeonreinstall: false,
                partitions: vec![partition(1, "srv", 0, PartitionKind::Linux)],
            },
        ],
        ..Layout::default()
    }
}

fn disk(name: &str, size_mib: u64) -> inventory::Disk {
    inventory::Disk {
        name: name.to_owned(),
        device: format!("/dev/{name}"),
        size_bytes: size_mib * MIB,
        sector_bytes: 512,
        ..inventory::Disk::default()
    }
}

fn machine() -> Inventory {
    Inventory { disks: vec![disk("sda", 20_000), disk("sdb", 8_000), disk("sdc", 9_000)], ..Inventory::default() }
}

fn counting() -> impl FnMut() -> Uuid {
    let mut next = 0u128;
    move || {
        next += 1;
        Uuid::from_u128(next << 96 | next)
    }
}

fn subject() -> Subject {
    Subject {
        machine: "4c4c4544-0051-3010".to_owned(),
        name: "storage-7".to_owned(),
        image: "debian-12.0.20261101".to_owned(),
        url: "http://10.0.0.1/debian-12.tar.zst".to_owned(),
    }
}

fn make(layout: &Layout, inventory: &Inventory, mode: Mode) -> Result<Plan, Box<Refusal>> {
    super::make(layout, inventory, Request { mode, erase: Erase::Quick, subject: subject() }, &mut counting())
}

fn reasons(result: Result<Plan, Box<Refusal>>) -> Vec<String> {
    result.unwrap_err().problems.iter().map(ToString::to_string).collect()
}

/// The machine after the plan has been executed.
fn after(plan: &Plan, mut inventory: Inventory) -> Inventory {
    for operation in plan.steps.iter().flat_map(|step| &step.operations) {
        match operation {
            Operation::WipeDisk(WipeDisk { device, .. }) => {
                let disk = inventory.disks.iter_mut().find(|disk| disk.device == *device).unwrap();
                (disk.table, disk.signatures) = (None, Vec::new());
            }
            Operation::WriteTable(table) => {
                let disk = inventory.disks.iter_mut().find(|disk| disk.device == table.device).unwrap();
                let sector = u64::from(table.sector_bytes);
                let partitions = table.partitions.iter().map(|new| inventory::Partition {
                    number: new.number,
                    device: new.device.clone(),
                    start_bytes: new.first_lba * sector,
                    size_bytes: (new.last_lba + 1 - new.first_lba) * sector,
                    kind: new.kind.to_string(),
                    guid: Some(new.guid),
                    label: new.name.clone(),
                    ..inventory::Partition::default()
                });
                disk.table =
                    Some(Table { kind: "gpt".to_owned(), guid: Some(table.guid), partitions: partitions.collect() });
            }
            Operation::MakeFilesystem(make) => {
                let signature = Signature {
                    kind: make.format.name().to_owned(),
                    usage: String::new(),
                    label: make.label.clone().unwrap_or_default(),
                    uuid: make.uuid.clone(),
                };
                *signatures(&mut inventory, &make.device) = vec![signature];
            }
            _ => {}
        }
    }
    inventory
}

fn signatures<'a>(inventory: &'a mut Inventory, device: &str) -> &'a mut Vec<Signature> {
    let mut disks = inventory.disks.iter_mut();
    disks
        .find_map(|disk| {
            if disk.device == device {
                return Some(&mut disk.signatures);
            }
            let partitions = &mut disk.table.as_mut()?.partitions;
            Some(&mut partitions.iter_mut().find(|partition| partition.device == device)?.signatures)
        })
        .unwrap()
}

fn installed() -> Inventory {
    after(&make(&layout(), &machine(), Mode::Install).unwrap(), machine())
}

fn verdicts(plan: &Plan) -> Vec<Verdict> {
    plan.disks.iter().map(|disk| disk.verdict).collect()
}

#[test]
fn a_fresh_install_wipes_every_listed_disk_and_no_other() {
    let plan = make(&layout(), &machine(), Mode::Install).unwrap();
    assert_eq!(verdicts(&plan), [Verdict::Wipe, Verdict::Wipe, Verdict::NotOurs]);
    let names: Vec<&str> = plan.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "image.reach",
            "storage.lock",
            "storage.wipe",
            "storage.partition",
            "storage.format",
            "storage.mount",
            "image.burn",
            "target.files",
            "target.installer",
            "target.fstab",
            "boot.load",
            "storage.unmount",
            "report.final",
            "boot.kexec"
        ]
    );
    assert_eq!(plan.steps[plan.point_of_no_return].name, StepName::StorageWipe);
    assert_eq!(plan.steps[1].operations, [Operation::LockDisk { device: "/dev/sdc".to_owned() }]);
}

#[test]
fn mounts_and_fstab_have_parents_first() {
    let plan = make(&layout(), &machine(), Mode::Install).unwrap();
    let paths: Vec<&str> = plan.fstab.iter().map(|entry| entry.path.as_str()).collect();
    assert_eq!(paths, ["/", "/srv", "/tmp", "/boot/efi", "none"]);
    let passes: Vec<u8> = plan.fstab.iter().map(|entry| entry.pass).collect();
    assert_eq!(passes, [1, 2, 0, 2, 0]);
    assert_eq!(plan.fstab[0].source, format!("UUID={}", plan.root_uuid));
    assert_eq!(plan.fstab[2].source, "tmpfs");
    let mounts: Vec<&str> = plan
        .steps
        .iter()
        .flat_map(|step| &step.operations)
        .filter_map(|operation| match operation {
            Operation::Mount(mount) => Some(mount.path.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(mounts, ["/", "/srv", "/boot/efi"]);
}

#[test]
fn the_printed_plan() {
    let mut inventory = installed();
    inventory.disks[0].model = "SAMSUNG MZ7LH480".to_owned();
    inventory.disks[0].serial = "S45NNE0M01".to_owned();
    let plan = make(&layout(), &inventory, Mode::Reinstall).unwrap();
    let expected = include_str!("../../testdata/plans/reinstall.txt");
    assert_eq!(plan.to_string(), expected, "\n{plan}");
}

#[test]
fn a_reinstall_keeps_what_it_was_told_to_keep() {
    let before = installed();
    let plan = make(&layout(), &before, Mode::Reinstall).unwrap();
    assert_eq!(verdicts(&plan), [Verdict::Wipe, Verdict::Keep, Verdict::NotOurs]);
    let srv = before.disks[1].table.as_ref().unwrap().partitions[0].signatures[0].uuid.clone();
    let entry = plan.fstab.iter().find(|entry| entry.path == "/srv").unwrap();
    assert_eq!(entry.source, format!("UUID={srv}"));
    let kept = plan.steps.iter().find(|step| step.name == StepName::StorageMountKept).unwrap();
    assert_eq!(kept.operations[0], Operation::UnlockDisk { device: "/dev/sdb".to_owned() });
    assert_eq!(after(&plan, before.clone()).disks[1], before.disks[1]);
}

/// An inventory change and the sentence that it must lead to.
type Case = (&'static str, fn(&mut Inventory), &'static str);

#[test]
fn a_kept_disk_that_differs_is_refused_with_both_sides() {
    fn srv(inventory: &mut Inventory) -> &mut inventory::Partition {
        &mut inventory.disks[1].table.as_mut().unwrap().partitions[0]
    }
    let cases: [Case; 10] = [
        (
            "unreadable",
            |inventory| inventory.disks[1].unreadable = Some("Input/output error".to_owned()),
            "disks[1].device: /dev/sdb is to be kept, but what is on it cannot be read: Input/output error",
        ),
        (
            "blank",
            |inventory| inventory.disks[1].table = None,
            "disks[1].partitions: /dev/sdb is to be kept with 1 partitions, but has no GPT: there is blank",
        ),
        (
            "other table",
            |inventory| inventory.disks[1].table.as_mut().unwrap().kind = "dos".to_owned(),
            "disks[1].partitions: /dev/sdb is to be kept with 1 partitions, but has no GPT: there is DOS 1 partition · ext4 \"srv\"",
        ),
        (
            "no such partition",
            |inventory| srv(inventory).number = 4,
            "disks[1].partitions[0]: /dev/sdb1 is to be kept, but /dev/sdb has no partition 1",
        ),
        (
            "other type",
            |inventory| srv(inventory).kind = PartitionKind::LinuxLvm.guid().to_string(),
            "disks[1].partitions[0]: /dev/sdb1 is to be kept as type 8300 (0fc63daf-8483-4772-8e79-3d69d8477de4), but has type e6d6d379-f507-44c2-a23c-238f2a3df928",
        ),
        (
            "other filesystem",
            |inventory| srv(inventory).signatures[0].kind = "xfs".to_owned(),
            "filesystems[0]: /dev/sdb1 is to be kept with ext4 \"srv\", but there is xfs \"srv\"",
        ),
        (
            "other label",
            |inventory| srv(inventory).signatures[0].label = "backup".to_owned(),
            "filesystems[0]: /dev/sdb1 is to be kept with ext4 \"srv\", but there is ext4 \"backup\"",
        ),
        (
            "no filesystem",
            |inventory| srv(inventory).signatures.clear(),
            "filesystems[0]: /dev/sdb1 is to be kept with ext4 \"srv\", but there is nothing that is known on its 8.39 GB",
        ),
        (
            "two signatures",
            |inventory| {
                let second = Signature { kind: "linux_raid_member".to_owned(), ..Signature::default() };
                srv(inventory).signatures.push(second);
            },
            "filesystems[0]: /dev/sdb1 is to be kept with ext4 \"srv\", but there are several signatures at once: ext4 \"srv\" and RAID member",
        ),
        (
            "disk gone",
            |inventory| {
                inventory.disks.remove(1);
            },
            "disks[1].device: device:/dev/sdb does not exist on given hardware: its disks are /dev/sda (21.0 GB), /dev/sdc (9.44 GB)",
        ),
    ];
    for (name, change, expected) in cases {
        let mut inventory = installed();
        change(&mut inventory);
        let reasons = reasons(make(&layout(), &inventory, Mode::Reinstall));
        assert!(reasons.iter().any(|reason| reason == expected), "{name}: {reasons:#?}");
    }
}

#[test]
fn a_kept_partition_must_have_its_size() {
    let mut layout = layout();
    layout.disks[1].partitions[0].size_mib = 4000;
    let reasons = reasons(make(&layout, &installed(), Mode::Reinstall));
    assert_eq!(reasons, ["disks[1].partitions[0]: /dev/sdb1 is to be kept with 4000 MiB, but has 7998 MiB"]);
}

#[test]
fn what_cannot_be_made_is_refused_all_at_once() {
    let mut inventory = machine();
    inventory.disks[0].size_bytes = 5000 * MIB;
    inventory.disks[1].uses = vec![Use::Holder("md127".to_owned()), Use::Mounted("/data".to_owned())];
    inventory.disks[1].read_only = true;
    let reasons = reasons(make(&layout(), &inventory, Mode::Install));
    assert_eq!(
        reasons,
        [
            "disks[0].partitions: device:/dev/sda is not big enough required:5503MiB, existing:5000MiB (with 1 MiB at each end for the partition table)",
            "disks[1].device: /dev/sdb is in use (held by md127): unmount or stop it first; nothing here does that for you",
            "disks[1].device: /dev/sdb is in use (mounted at /data): unmount or stop it first; nothing here does that for you",
            "disks[1].device: /dev/sdb is read-only: it cannot be written (write protection switch, failing disk?)",
        ]
    );
}

#[test]
fn one_disk_under_two_names_is_refused() {
    let mut inventory = machine();
    inventory.disks[0].by_path = "/dev/disk/by-path/pci-0000:00:1f.2-ata-1".to_owned();
    let mut layout = layout();
    layout.disks[1].device.clone_from(&inventory.disks[0].by_path);
    layout.filesystems[0].device = partition_device(&layout.disks[1].device, 1);
    let reasons = reasons(make(&layout, &inventory, Mode::Install));
    assert!(reasons[0].ends_with("is /dev/sda again, which the layout lists already"), "{reasons:?}");
}

#[test]
fn a_layout_that_wipes_nothing_cannot_be_reinstalled() {
    let mut layout = layout();
    layout.disks[0].wipeonreinstall = false;
    let reasons = reasons(make(&layout, &installed(), Mode::Reinstall));
    assert!(reasons[0].contains("filesystemlayout:data is not reinstallable, abort reinstallation"), "{reasons:?}");
}

#[test]
fn a_by_path_device_is_written_under_its_kernel_name() {
    let mut inventory = machine();
    inventory.disks[1].by_path = "/dev/disk/by-path/pci-0000:00:1f.2-ata-2".to_owned();
    let mut layout = layout();
    layout.disks[1].device.clone_from(&inventory.disks[1].by_path);
    layout.filesystems[0].device = partition_device(&layout.disks[1].device, 1);
    let plan = make(&layout, &inventory, Mode::Install).unwrap();
    assert!(plan.to_string().contains("sdb1 at /srv"), "{plan}");
}

prop_compose! {
    fn any_disk(name: &'static str)(
        size_mib in 0u64..20_000,
        sector_bytes in prop_oneof![Just(512u32), Just(4096)],
        read_only in prop::bool::weighted(0.05),
        held in prop::bool::weighted(0.05),
        partitions in prop::collection::vec((1u32..9, 0u64..20_000, 0u64..20_000), 0..3),
    ) -> inventory::Disk {
        let partitions = partitions.into_iter().map(|(number, start_mib, mib)| inventory::Partition {
            number,
            device: partition_device(&format!("/dev/{name}"), number),
            start_bytes: start_mib * MIB,
            size_bytes: mib * MIB,
            ..inventory::Partition::default()
        }).collect();
        inventory::Disk {
            sector_bytes,
            read_only,
            uses: if held { vec![Use::Swap] } else { Vec::new() },
            table: Some(Table { kind: "gpt".to_owned(), guid: None, partitions }),
            ..disk(name, size_mib)
        }
    }
}

prop_compose! {
    fn any_layout_disk(name: &'static str)(
        wipeonreinstall in any::<bool>(),
        sizes in prop::collection::vec(0u64..4000, 0..4),
    ) -> Disk {
        let partitions = sizes.iter().enumerate().map(|(index, &size_mib)| {
            // Only the last may be of size 0.
            let size_mib = if index + 1 < sizes.len() { size_mib.max(1) } else { size_mib };
            partition(index as u32 + 1, "p", size_mib, PartitionKind::Linux)
        }).collect();
        Disk { device: format!("/dev/{name}"), hints: Default::default(), partitions, wipeonreinstall }
    }
}

fn any_layout() -> impl Strategy<Value = Layout> {
    let disks = (any_layout_disk("sda"), any_layout_disk("sdb"), any_layout_disk("sdc"), 1usize..4);
    disks.prop_map(|(a, b, c, count)| {
        let disks: Vec<Disk> = [a, b, c].into_iter().take(count).collect();
        let devices = disks.iter().flat_map(|disk| {
            let partitions = disk.partitions.iter().map(|partition| partition_device(&disk.device, partition.number));
            if disk.partitions.is_empty() { vec![disk.device.clone()] } else { partitions.collect() }
        });
        let filesystems = devices.enumerate().map(|(index, device)| {
            let path = if index == 0 { "/".to_owned() } else { format!("/data{index}") };
            filesystem(&path, &device, Format::Ext4, "")
        });
        Layout { filesystems: filesystems.collect(), disks, ..Layout::default() }
    })
}

fn any_machine() -> impl Strategy<Value = Inventory> {
    (any_disk("sda"), any_disk("sdb"), any_disk("sdc"), any_disk("sdd"))
        .prop_map(|(a, b, c, d)| Inventory { disks: vec![a, b, c, d], ..Inventory::default() })
}

/// Devices that an operation writes destructively.
fn destroyed(operation: &Operation) -> Option<&str> {
    match operation {
        Operation::WipeDisk(WipeDisk { device, .. }) => Some(device),
        Operation::WriteTable(table) => Some(&table.device),
        Operation::MakeFilesystem(make) => Some(&make.device),
        _ => None,
    }
}

fn assert_sound(plan: &Plan, inventory: &Inventory) {
    let steps = plan.steps.iter().enumerate();
    for (index, step) in steps {
        for operation in &step.operations {
            if let Some(device) = destroyed(operation) {
                let disk = plan.disks.iter().find(|disk| device.starts_with(&disk.device)).unwrap();
                assert_eq!(disk.verdict, Verdict::Wipe, "{device}");
                assert!(index >= plan.point_of_no_return);
            }
            match operation {
                Operation::WipeDisk(WipeDisk { device, zero, .. }) => {
                    let size_bytes = inventory.disk(device).unwrap().size_bytes;
                    assert!(zero.iter().all(|range| range.start + range.length <= size_bytes));
                    assert!(zero.windows(2).all(|pair| pair[0].start + pair[0].length < pair[1].start));
                }
                Operation::WriteTable(table) => assert_table(table, inventory.disk(&table.device).unwrap()),
                _ => {}
            }
        }
    }
    let mounts: Vec<&str> = plan.fstab.iter().map(|entry| entry.path.as_str()).collect();
    for (index, path) in mounts.iter().enumerate() {
        assert!(mounts[..index].iter().all(|earlier| !earlier.starts_with(&format!("{path}/"))));
    }
}

fn assert_table(table: &PartitionTable, disk: &inventory::Disk) {
    let sector = u64::from(disk.sector_bytes);
    assert_eq!(table.sector_bytes, disk.sector_bytes);
    let mut next = MIB / sector;
    let mut partitions: Vec<&NewPartition> = table.partitions.iter().collect();
    partitions.sort_by_key(|partition| partition.number);
    for partition in partitions {
        assert!(partition.first_lba >= next && partition.first_lba <= partition.last_lba);
        assert_eq!(partition.first_lba * sector % MIB, 0);
        next = partition.last_lba + 1;
    }
    // Backup entries and header.
    assert!(next * sector + 16384 + sector <= disk.size_bytes);
}

proptest! {
    #[test]
    fn no_plan_destroys_what_is_kept_or_foreign(layout in any_layout(), machine in any_machine(), again in any::<bool>()) {
        let mode = if again { Mode::Reinstall } else { Mode::Install };
        if let Ok(plan) = make(&layout, &machine, mode) {
            assert_sound(&plan, &machine);
            prop_assert_eq!(plan.to_string().matches("point of no return").count(), 1);
        }
    }

    #[test]
    fn a_reinstall_over_an_install_keeps_and_a_second_one_too(layout in any_layout(), machine in any_machine()) {
        let Ok(first) = make(&layout, &machine, Mode::Install) else { return Ok(()) };
        let installed = after(&first, machine);
        match make(&layout, &installed, Mode::Reinstall) {
            Ok(second) => {
                assert_sound(&second, &installed);
                let reinstalled = after(&second, installed.clone());
                for (disk, plan) in installed.disks.iter().zip(&second.disks) {
                    if plan.verdict != Verdict::Wipe {
                        prop_assert_eq!(Some(disk), reinstalled.disk(&disk.device));
                    }
                }
                prop_assert!(make(&layout, &reinstalled, Mode::Reinstall).is_ok());
            }
            Err(refusal) => prop_assert!(layout.disks.iter().all(|disk| !disk.wipeonreinstall), "{}", refusal),
        }
    }
}
