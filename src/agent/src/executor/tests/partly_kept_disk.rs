//! Reinstalls of a disk with one preserved partition. The plans are made by the planner, and run on a loop device.

use super::*;
use linux::process::ToolCommand;
use linux::storage::partition_table::write_partition_table;
use model::inventory::{DeviceSignature, DiskPartition, DiskTable, FirmwareType, InventoryDisk};
use plan::DiskVerdict;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Partition with the data, in bytes.
const DATA: ByteRange = ByteRange { start: 81 * MIB, length: 40 * MIB };

/// Disk with an ESP, a root filesystem, and a partition with data that reinstalls preserve.
struct SharedDisk(TestLoopDevice);

impl SharedDisk {
    fn new() -> SharedDisk {
        let disk = TestLoopDevice::new(160 * MIB, 512);
        let lba = |mib: u64| mib * MIB / 512;
        let bounds = [(1, lba(1), lba(41) - 1), (2, lba(41), lba(81) - 1), (3, lba(81), lba(121) - 1)];
        write_partition_table(&disk.table(512, &bounds)).unwrap();
        let shared = SharedDisk(disk);
        (1..=3).for_each(|number| wait_until_free(&shared.0.partition(number)));
        run_tool("mkfs.vfat", &[shared.0.partition(1).as_str()]);
        for (number, label) in [(2, "root"), (3, "srv")] {
            run_tool("mkfs.ext4", &["-q", "-L", label, shared.0.partition(number).as_str()]);
        }
        shared.with_data(|data| fs::write(data, content()).unwrap());
        shared
    }

    fn data(&self) -> DevicePath {
        self.0.partition(3)
    }

    /// Mounts the preserved partition, and calls the function with the path of the file on it.
    fn with_data(&self, use_file: impl FnOnce(&Path)) {
        let point = tempfile::tempdir().unwrap();
        run_tool("mount", &["-t", "ext4", self.data().as_str(), point.path().to_str().unwrap()]);
        use_file(&point.path().join("rows"));
        run_tool("umount", &[point.path().to_str().unwrap()]);
    }

    /// Returns every byte of the preserved partition.
    fn read_preserved(&self) -> Vec<u8> {
        nix::unistd::sync();
        let mut bytes = vec![0; DATA.length as usize];
        fs::File::open(self.0.image()).unwrap().read_exact_at(&mut bytes, DATA.start).unwrap();
        bytes
    }

    /// Checks the table with sgdisk, the preserved filesystem with e2fsck, and its file.
    fn assert_intact(&self) {
        let check = run_tool("sgdisk", &["-v", self.0.path().as_str()]);
        assert!(check.contains("No problems found"), "{check}");
        run_tool("e2fsck", &["-fn", self.data().as_str()]);
        self.with_data(|data| assert!(fs::read(data).unwrap() == content(), "the file has changed"));
    }

    /// Reads the disk as an inventory, from the output of sfdisk and blkid.
    fn read_inventory(&self) -> Inventory {
        let device = self.0.path().clone();
        let json: serde_json::Value = serde_json::from_str(&run_tool("sfdisk", &["--json", device.as_str()])).unwrap();
        let table = &json["partitiontable"];
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let partitions = table["partitions"].as_array().unwrap().iter().map(|part| {
            let node: DevicePath = text(&part["node"]).into();
            DiskPartition {
                number: node.as_str().rsplit('p').next().unwrap().parse().unwrap(),
                start_bytes: part["start"].as_u64().unwrap() * 512,
                size_bytes: part["size"].as_u64().unwrap() * 512,
                kind: text(&part["type"]).to_lowercase(),
                guid: text(&part["uuid"]).parse().ok(),
                label: text(&part["name"]),
                signatures: read_signature(&node),
                device: node,
                ..DiskPartition::default()
            }
        });
        let guid = text(&table["id"]).parse().ok();
        let disk = InventoryDisk {
            name: device.as_str().trim_start_matches("/dev/").into(),
            diskseq: self.0.identity().diskseq.map_or(0, |number| number.get()),
            size_bytes: self.0.identity().size_bytes,
            sector_bytes: 512,
            table: Some(DiskTable { kind: "gpt".into(), guid, partitions: partitions.collect() }),
            device,
            ..InventoryDisk::default()
        };
        let mut inventory = Inventory { disks: vec![disk], ..Inventory::default() };
        inventory.system.firmware = FirmwareType::Uefi;
        inventory
    }

    /// Plans a reinstall with a root partition of this size. The plan contains only stages that use disks.
    fn plan_reinstall(&self, root_mib: u32) -> Plan {
        let yaml = format!(
            "{{id: shared, constraints: {{sizes: [], images: {{}}}}, disks: [{{device: {device}, wipeonreinstall: true, \
             partitions: [{{number: 1, label: efi, size: 40, gpttype: ef00}}, {{number: 2, label: root, size: {root_mib}}}, \
             {{number: 3, size: 40, preserve: true}}]}}], filesystems: [{{path: /, device: {device}p2, format: ext4, \
             label: root}}, {{path: /boot/efi, device: {device}p1, format: vfat}}, {{path: /srv, device: {device}p3, \
             format: ext4, label: srv}}]}}",
            device = self.0.path()
        );
        let layout = model::layout::read_yaml(&yaml).unwrap().layout;
        let (mode, steps, assigned) = (InstallMode::Reinstall, StepList::default(), PlanAssignment::default());
        let request = PlanRequest { mode, steps, subject: PlanSubject::default(), assigned, claim: None };
        let whole = plan::make_plan(&layout, &self.read_inventory(), request, &mut uuid::Uuid::new_v4);
        let whole = whole.unwrap_or_else(|refusal| panic!("{refusal}"));
        assert_eq!(whole.disks[0].verdict, DiskVerdict::PartlyKept);
        let stages = whole.stages.into_iter().filter(|stage| STAGES.contains(&stage.name)).map(|stage| {
            let operations = stage.operations.into_iter().filter(|operation| !is_omitted(operation));
            (stage.name, operations.collect())
        });
        plan(stages.collect())
    }
}

const STAGES: [StageName; 9] = [
    StageName::StorageIdentify,
    StageName::StorageLock,
    StageName::StorageRelease,
    StageName::StorageWipe,
    StageName::StoragePartition,
    StageName::StorageFormat,
    StageName::StorageMount,
    StageName::StorageMountPreserved,
    StageName::StorageUnmount,
];

/// Returns whether the tests omit the operation: a trial, or the mount of the ESP, because the kernel of the host may
/// lack the vfat driver.
fn is_omitted(operation: &Operation) -> bool {
    match operation {
        Operation::Device(DeviceOp::TryFilesystem(_)) => true,
        Operation::Run(SessionOp::Mount(mount)) => mount.format == FilesystemFormat::Vfat,
        _ => false,
    }
}

fn content() -> Vec<u8> {
    (0..3_000_000_u32).flat_map(|number| (number.wrapping_mul(2_654_435_761)).to_le_bytes()).collect()
}

/// Waits until the partition can be opened exclusively. While another process scans the disk, the kernel claims it
/// (`disk_scan_partitions` in block/genhd.c), and mkfs fails.
fn wait_until_free(partition: &DevicePath) {
    let exclusively = || {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).custom_flags(nix::fcntl::OFlag::O_EXCL.bits()).open(partition.as_str())
    };
    let free = (0..100).any(|_| {
        exclusively().is_ok() || {
            std::thread::sleep(Duration::from_millis(100));
            false
        }
    });
    assert!(free, "{partition} is in use");
}

fn run_tool(tool: &str, args: &[&str]) -> String {
    ToolCommand::new(tool).args(args).run().unwrap().stdout
}

fn read_signature(device: &DevicePath) -> Vec<DeviceSignature> {
    let value = |tag: &str| {
        let blkid = ToolCommand::new("blkid").args(["-p", "-o", "value", "-s", tag, device.as_str()]).run();
        blkid.map(|output| output.stdout.trim().to_owned()).unwrap_or_default()
    };
    let (kind, usage, label, uuid) = (value("TYPE"), value("USAGE"), value("LABEL"), value("UUID"));
    if kind.is_empty() { vec![] } else { vec![DeviceSignature { kind, usage, label, uuid }] }
}

/// Session with its own directory for the target. When the session is dropped, the links to the filesystems that it has
/// created are removed.
struct TestSession {
    session: PlanExecutor,
    _target: tempfile::TempDir,
    links: Vec<String>,
}

impl TestSession {
    fn new() -> TestSession {
        let target = tempfile::tempdir().unwrap();
        let session = PlanExecutor { mounts: MountStack::new(target.path()), ..Bench::new().session() };
        TestSession { session, _target: target, links: Vec::new() }
    }

    fn run(&mut self, plan: &Plan) -> Result<(), Box<StageFailure>> {
        let created = plan.stages.iter().flat_map(|stage| &stage.operations).filter_map(|operation| match operation {
            Operation::Device(DeviceOp::MakeFilesystem(make)) => Some(make.uuid.clone()),
            _ => None,
        });
        self.links.extend(created);
        self.session.run_plan(plan).map(drop).map_err(Box::new)
    }
}

impl Drop for TestSession {
    fn drop(&mut self) {
        // The session ends as if its process had ended: nothing is wiped.
        self.session.leave_session(FailureState::Complete);
        for uuid in &self.links {
            let _ = fs::remove_file(Path::new("/dev/disk/by-uuid").join(uuid));
        }
    }
}

/// Splits a plan after its first `done` operations.
fn split_plan(whole: &Plan, done: usize) -> (Plan, Plan) {
    let (mut first, mut rest, mut seen) = (Vec::new(), Vec::new(), 0);
    for stage in &whole.stages {
        let count = done.saturating_sub(seen).min(stage.operations.len());
        let (before, after) = stage.operations.split_at(count);
        seen += stage.operations.len();
        for (part, operations) in [(&mut first, before), (&mut rest, after)] {
            if !operations.is_empty() {
                part.push((stage.name, operations.to_vec()));
            }
        }
    }
    (plan(first), plan(rest))
}

fn count_operations(plan: &Plan, is: impl Fn(&Operation) -> bool) -> usize {
    plan.stages.iter().flat_map(|stage| &stage.operations).filter(|operation| is(operation)).count()
}

/// Returns the number of operations up to and including the first one for which `is` returns true.
fn position_of(plan: &Plan, is: impl Fn(&Operation) -> bool) -> usize {
    plan.stages.iter().flat_map(|stage| &stage.operations).position(is).unwrap() + 1
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_data_next_to_the_root_survive_a_reinstall_interrupted_after_any_operation() {
    let shared = SharedDisk::new();
    let unlock = |operation: &Operation| matches!(operation, Operation::Run(SessionOp::UnlockDisk(_)));
    let edit = |operation: &Operation| matches!(operation, Operation::Device(DeviceOp::EditTable(_)));
    for done in 0.. {
        // The size alternates, so that each reinstall changes the partition table.
        let whole = shared.plan_reinstall([30, 38][done % 2]);
        assert_eq!((count_operations(&whole, unlock), count_operations(&whole, edit)), (1, 1), "{whole}");
        let unlocked = position_of(&whole, unlock);
        let before = shared.read_preserved();
        let (first, rest) = split_plan(&whole, done);
        let mut interrupted = TestSession::new();
        interrupted.run(&first).map_err(|failure| failure.error).unwrap();
        if interrupted.session.locks.contains(&shared.data()) {
            let refused = signature_wipe::wipe_ends(&shared.data()).unwrap_err().to_string();
            assert!(refused.contains("Operation not permitted"), "{refused}");
        }
        drop(interrupted);
        if done <= unlocked {
            assert!(shared.read_preserved() == before, "changed by the first {done} operations");
        }
        shared.assert_intact();
        let before = shared.read_preserved();
        let again = shared.plan_reinstall([30, 38][done % 2]);
        let (up_to_unlock, last) = split_plan(&again, position_of(&again, unlock));
        let mut session = TestSession::new();
        session.run(&up_to_unlock).map_err(|failure| failure.error).unwrap();
        assert!(shared.read_preserved() == before, "changed by the attempt after {done} operations");
        session.run(&last).map_err(|failure| failure.error).unwrap();
        drop(session);
        shared.assert_intact();
        assert_eq!(
            (signature(&shared.0.partition(1)), signature(&shared.0.partition(2))),
            ("vfat".into(), "ext4".into())
        );
        if rest.stages.is_empty() {
            assert!(done > 8, "{whole}");
            return;
        }
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_a_failed_reinstall_makes_the_new_system_unbootable_and_leaves_its_neighbor() {
    let shared = SharedDisk::new();
    let mut whole = shared.plan_reinstall(30);
    whole.stages.retain(|stage| stage.name < StageName::StorageMountPreserved);
    let by_the_image = FinishInputs { way: FinisherChoice::Image, ..FinishInputs::default() };
    let failing = vec![Operation::Run(SessionOp::Finish(Box::new(by_the_image)))];
    whole.stages.push(PlanStage { name: StageName::TargetInstaller, operations: failing });
    let before = shared.read_preserved();
    let failure = TestSession::new().run(&whole).unwrap_err();
    assert_eq!((failure.stage, failure.leaves), (StageName::TargetInstaller, FailureState::Incomplete));
    assert_eq!((signature(&shared.0.partition(1)), signature(&shared.0.partition(2))), (String::new(), String::new()));
    assert!(shared.read_preserved() == before);
    shared.assert_intact();
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_a_disk_that_cannot_be_cleared_does_not_boot_and_leaves_the_data() {
    let shared = SharedDisk::new();
    for (name, range, boots) in [
        ("beyond the disk", ByteRange { start: 160 * MIB, length: MIB }, false),
        ("in the preserved partition", ByteRange { start: DATA.start + MIB, length: 4096 }, true),
    ] {
        run_tool("mkfs.vfat", &[shared.0.partition(1).as_str()]);
        let mut whole = shared.plan_reinstall(30);
        for operation in whole.stages.iter_mut().flat_map(|stage| &mut stage.operations) {
            match operation {
                Operation::Device(DeviceOp::ClearRanges(clear)) if boots => clear.first.push(range),
                Operation::Device(DeviceOp::ClearRanges(clear)) => clear.zero.push(range),
                _ => {}
            }
        }
        let before = shared.read_preserved();
        let failure = TestSession::new().run(&whole).unwrap_err();
        assert_eq!((failure.stage, failure.leaves), (StageName::StorageWipe, FailureState::Incomplete), "{name}");
        let left = if boots { "vfat" } else { "" };
        assert_eq!(signature(&shared.0.partition(1)), left, "{name}: {}", failure.error);
        assert!(shared.read_preserved() == before, "{name}");
        shared.assert_intact();
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_nothing_is_mounted_if_the_preserved_partition_lost_its_write_protection() {
    let shared = SharedDisk::new();
    let whole = shared.plan_reinstall(30);
    let edited = position_of(&whole, |operation| matches!(operation, Operation::Device(DeviceOp::EditTable(_))));
    let (first, rest) = split_plan(&whole, edited);
    let mut session = TestSession::new();
    let before = shared.read_preserved();
    session.run(&first).map_err(|failure| failure.error).unwrap();
    run_tool("blockdev", &["--setrw", shared.data().as_str()]);
    let failure = session.run(&rest).unwrap_err();
    assert_eq!(failure.stage, StageName::StorageFormat);
    assert!(failure.error.to_string().contains("no longer read-only"), "{}", failure.error);
    assert!(shared.read_preserved() == before);
    shared.assert_intact();
}

/// Inverts the first byte of the backup header of a disk with 160 MiB.
fn damage_backup(shared: &SharedDisk) {
    let disk = fs::OpenOptions::new().read(true).write(true).open(shared.0.path()).unwrap();
    let mut byte = [0];
    disk.read_exact_at(&mut byte, 160 * MIB - 512).unwrap();
    disk.write_all_at(&[!byte[0]], 160 * MIB - 512).unwrap();
    disk.sync_all().unwrap();
}

/// Grows the disk. Its table still ends at 160 MiB.
fn grow_disk(shared: &SharedDisk) {
    fs::OpenOptions::new().write(true).open(shared.0.image()).unwrap().set_len(400 * MIB).unwrap();
    run_tool("losetup", &["--set-capacity", shared.0.path().as_str()]);
}

fn read_image(shared: &SharedDisk) -> Vec<u8> {
    nix::unistd::sync();
    fs::read(shared.0.image()).unwrap()
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_a_table_that_cannot_be_edited_is_refused_before_anything_is_written() {
    type Damage = fn(&SharedDisk);
    let cases: [(Damage, u32, &str); 2] = [
        (damage_backup, 30, "does not contain a GPT header"),
        (grow_disk, 200, "partition 2 cannot be added: the sectors"),
    ];
    for (change, root_mib, expected) in cases {
        let shared = SharedDisk::new();
        change(&shared);
        let (whole, before) = (shared.plan_reinstall(root_mib), read_image(&shared));
        let failure = TestSession::new().run(&whole).unwrap_err();
        assert!(read_image(&shared) == before, "the disk was written: {}", failure.error);
        assert_eq!((failure.stage, failure.leaves), (StageName::StorageLock, FailureState::Untouched));
        assert_eq!(failure.error.code(), StageName::StoragePartition.error_code());
        assert!(failure.error.to_string().contains(expected), "{}", failure.error);
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_a_table_that_is_damaged_after_the_check_is_refused_before_the_first_wipe() {
    let shared = SharedDisk::new();
    let whole = shared.plan_reinstall(30);
    let cleared = position_of(&whole, |operation| matches!(operation, Operation::Device(DeviceOp::ClearRanges(_))));
    let (first, rest) = split_plan(&whole, cleared - 1);
    let mut session = TestSession::new();
    session.run(&first).map_err(|failure| failure.error).unwrap();
    damage_backup(&shared);
    let before = read_image(&shared);
    let failure = session.run(&rest).unwrap_err();
    assert_eq!(failure.stage, StageName::StorageWipe, "{}", failure.error);
    assert!(read_image(&shared) == before, "the disk was written: {}", failure.error);
}
