//! Tests of plans on loop devices, and of the state after a failure.

use super::*;
use control::fake_control_plane::FakeControl;
use linux::storage::test_loop_device::TestLoopDevice;
use linux::storage::{busy_device_users, disk_identity, signature_wipe};
use model::allocation::{self, Allocation, FinisherChoice};
use model::deploy_steps::StepList;
use model::device_name::DevicePath;
use model::image_boot_contents::BootContents;
use model::install_marker::RecordedDisk;
use model::install_report::{HiddenFiles, InstallOutcome, PreservationProof};
use model::inventory::Inventory;
use model::layout::{FilesystemFormat, Layout};
use operations::{
    ActivationRehearsal, AddedPartition, AnnouncePointOfNoReturn, AssembleArray, BurnDisk, ByteRange, DeviceOp,
    DiskIdentity, ExpectedFilesystem, FinalReport, FinishInputs, FlushDisks, FstabEntry, LockDisk, MachineFiles,
    MakeFilesystem, MountFilesystem, ObjectLocator, PlanAssignment, PreservedObject, ProvePreserved, ResolveImage,
    RestoreOp, StageExtents, StopArray, WipeDisk, WriteFstab, WriteMachineFiles, WriteMarker,
};
use plan::{InstallMode, PlanRequest, PlanSubject};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

mod raw_images;
mod run_reports;

use raw_images::{installed, root_on};

mod bluestore_label_wipe;
mod partly_kept_disk;
mod refusals;

struct Bench {
    control: Arc<FakeControl>,
    reporter: Arc<ProgressReporter>,
}

impl Bench {
    fn new() -> Bench {
        let control = Arc::new(FakeControl::default());
        Bench { reporter: Arc::new(ProgressReporter::new(control.clone())), control }
    }

    fn session(&self) -> PlanExecutor {
        PlanExecutor::new(self.reporter.clone(), self.control.clone(), ImageTrust::default())
    }

    fn run(&self, plan: &Plan) -> Result<RunFacts, StageFailure> {
        self.session().run_plan(plan)
    }
}

fn plan(stages: Vec<(StageName, Vec<Operation>)>) -> Plan {
    let stages: Vec<PlanStage> = stages.into_iter().map(|(name, operations)| PlanStage { name, operations }).collect();
    let destructive = |stage: &PlanStage| stage.name.failure_state().is_incomplete();
    Plan {
        mode: InstallMode::Install,
        subject: PlanSubject::default(),
        layout: "test".into(),
        disks: vec![],
        point_of_no_return: stages.iter().position(destructive).unwrap_or(stages.len()),
        stages,
        fstab: vec![entry()],
        root_uuid: UUID.into(),
        already: None,
        warnings: vec![],
        dismantled: vec![],
        opaque: vec![],
        summary: Default::default(),
        sizes: Default::default(),
        extents: vec![],
        volumes: vec![],
        firmware: None,
        verdicts: None,
    }
}

fn entry() -> FstabEntry {
    FstabEntry {
        source: format!("UUID={UUID}"),
        path: "/".into(),
        format: FilesystemFormat::Ext4,
        options: vec![],
        pass: 1,
    }
}

const UUID: &str = "5a1d7c0e-93b2-4f57-8f0c-6e1a2b3c4d5e";

/// Returns the identity of a disk in the form that plans contain. The identity is empty if the disk does not exist.
fn identity(device: &DevicePath) -> DiskIdentity {
    fs::File::open(device).map(|disk| disk_identity::read_identity(&disk, device).unwrap()).unwrap_or_default()
}

fn identify_operation(disk: &TestLoopDevice) -> Operation {
    Operation::Run(SessionOp::IdentifyDisk(disk.identity()))
}

fn wipe_operation(device: DevicePath, zero: Vec<ByteRange>) -> Operation {
    let identity = identity(&device);
    Operation::Device(DeviceOp::WipeDisk(WipeDisk {
        device,
        identity,
        methods: vec![],
        strict: false,
        budget_seconds: 60,
        first: zero.get(..1).unwrap_or_default().to_vec(),
        zero,
    }))
}

fn machine_files() -> SessionOp {
    let allocation = Allocation { id: "a-1".into(), hostname: "web-1".into(), ..Allocation::default() };
    let assigned = PlanAssignment { allocation, consoles: vec![] };
    SessionOp::WriteMachineFiles(WriteMachineFiles {
        files: Box::new(MachineFiles { assigned, ..MachineFiles::default() }),
    })
}

/// Returns all stages up to the mounted target.
fn prepare(disk: &TestLoopDevice, preserved: &TestLoopDevice) -> Vec<(StageName, Vec<Operation>)> {
    let device = disk.path().to_owned();
    let zero = vec![ByteRange { start: 0, length: 1 << 20 }];
    let format = FilesystemFormat::Ext4;
    let (partition, uuid, label) = (disk.partition(2), UUID.to_owned(), Some("root".to_owned()));
    let make = MakeFilesystem { device: partition.clone(), format, label, uuid, createoptions: vec![] };
    let mount = MountFilesystem { device: partition, path: "/".into(), format, options: vec![], others: vec![] };
    vec![
        (StageName::StorageIdentify, vec![identify_operation(disk), identify_operation(preserved)]),
        (
            StageName::StorageLock,
            vec![Operation::Run(SessionOp::LockDisk(LockDisk { device: preserved.path().clone(), untouched: vec![] }))],
        ),
        (StageName::StorageWipe, vec![wipe_operation(device, zero)]),
        (
            StageName::StoragePartition,
            vec![Operation::Device(DeviceOp::WriteTable(disk.table(512, &[(2, 2048, 65535)])))],
        ),
        (StageName::StorageFormat, vec![Operation::Device(DeviceOp::MakeFilesystem(make))]),
        (StageName::StorageMount, vec![Operation::Run(SessionOp::Mount(mount))]),
        (StageName::TargetFiles, vec![Operation::Run(machine_files())]),
    ]
}

fn signature(device: &DevicePath) -> String {
    let blkid = linux::process::ToolCommand::new("blkid").args(["-p", "-o", "value", "-s", "TYPE", device.as_str()]);
    blkid.run().map(|output| output.stdout.trim().to_owned()).unwrap_or_default()
}

// This is a single test, since all tests would use the same target directory.
#[test]
#[ignore = "needs root and loop devices"]
fn loop_plan_is_executed_and_a_failure_leaves_nothing_bootable() {
    let (disk, preserved) = (TestLoopDevice::new(64 << 20, 512), TestLoopDevice::new(16 << 20, 512));
    let bench = Bench::new();
    let mut stages = prepare(&disk, &preserved);
    stages.push((StageName::TargetFstab, vec![Operation::Run(SessionOp::WriteFstab(WriteFstab(vec![entry()])))]));
    let marker = InstallMarker { machine: "m-1".into(), allocation: "a-1".into(), ..InstallMarker::default() };
    stages.push((StageName::TargetMarker, vec![Operation::Run(SessionOp::WriteMarker(WriteMarker(marker.clone())))]));
    stages.push((
        StageName::StorageUnmount,
        vec![
            Operation::Run(SessionOp::Unmount),
            Operation::Run(SessionOp::FlushDisks(FlushDisks { disks: vec![disk.path().clone()], keep_locks: false })),
        ],
    ));
    let whole = plan(stages);
    bench.run(&whole).map_err(|failure| failure.error).unwrap();
    assert_eq!(signature(&disk.partition(2)), "ext4");
    assert!(busy_device_users::list_mounts_below(Path::new(TARGET)).is_empty());
    signature_wipe::wipe_ends(preserved.path()).unwrap();
    let mut mounts = MountStack::new(TARGET);
    let Operation::Run(SessionOp::Mount(root)) = &whole.stages[5].operations[0] else { unreachable!() };
    mounts.mount_filesystem(root).unwrap();
    let fstab = fs::read_to_string(mounts.root().join("etc/fstab")).unwrap();
    assert!(fstab.contains(&format!("UUID={UUID}")), "{fstab}");
    assert!(fs::read_to_string(mounts.root().join("etc/metal/install.yaml")).unwrap().contains("web-1"));
    let text = fs::read_to_string(mounts.root().join(&model::install_marker::PATH[1..])).unwrap();
    let found: InstallMarker = serde_json::from_str(&text).unwrap();
    assert!(found.time.ends_with('Z'), "{found:?}");
    assert_eq!(found, InstallMarker { time: found.time.clone(), ..marker });
    mounts.unmount_all().unwrap();
    let timed: Vec<String> = bench.reporter.stage_times().into_iter().map(|timing| timing.stage).collect();
    assert_eq!(timed, whole.stages.iter().map(|stage| stage.name.to_string()).collect::<Vec<_>>());

    // After the marker is written, a disk that cannot be flushed makes the system incomplete, and its marker is
    // erased. An array that cannot be stopped leaves the system complete, because the marker proves that it is
    // complete.
    let marker = WriteMarker(InstallMarker { machine: "m-1".into(), ..InstallMarker::default() });
    let flush = |device: &DevicePath| {
        Operation::Run(SessionOp::FlushDisks(FlushDisks { disks: vec![device.clone()], keep_locks: true }))
    };
    let stop = Operation::Device(DeviceOp::StopArray(StopArray { device: "/dev/md/absent".into() }));
    for (flushed, failed, left) in [
        (&DevicePath::from("/dev/absent"), StageName::StorageUnmount, ""),
        (disk.path(), StageName::StorageDeactivate, "ext4"),
    ] {
        let mut stages = prepare(&disk, &preserved);
        stages.push((StageName::TargetMarker, vec![Operation::Run(SessionOp::WriteMarker(marker.clone()))]));
        stages.push((StageName::StorageUnmount, vec![Operation::Run(SessionOp::Unmount), flush(flushed)]));
        stages.push((StageName::StorageDeactivate, vec![stop.clone()]));
        let failure = bench.run(&plan(stages)).unwrap_err();
        assert_eq!((failure.stage, signature(&disk.partition(2)).as_str()), (failed, left), "{}", failure.error);
        signature_wipe::wipe_ends(preserved.path()).unwrap();
    }

    // The target does not contain an image, so there is no installer.
    let by_the_image = FinishInputs { way: FinisherChoice::Image, ..FinishInputs::default() };
    let mut stages = prepare(&disk, &preserved);
    stages.push((StageName::TargetInstaller, vec![Operation::Run(SessionOp::Finish(Box::new(by_the_image)))]));
    stages.push((StageName::ReportFinal, vec![Operation::Run(SessionOp::Report(FinalReport::default()))]));
    let cut = plan(stages);
    let failure = bench.run(&cut).unwrap_err();
    assert_eq!(failure.stage, StageName::TargetInstaller);
    assert!(failure.past_point_of_no_return);
    assert!(failure.error.to_string().contains("the image does not contain an installer"), "{}", failure.error);
    let erased: Vec<&str> = failure.done.erased.iter().map(|erased| erased.device.as_str()).collect();
    assert_eq!(erased, [disk.path().as_str()]);
    assert_eq!(signature(&disk.partition(2)), "");
    assert!(busy_device_users::list_mounts_below(Path::new(TARGET)).is_empty());
    signature_wipe::wipe_ends(preserved.path()).unwrap();
    assert!(bench.control.ended.lock().unwrap().is_empty());

    // The plan runs in two parts, as a conductor orders them; then the session ends.
    let whole = plan(prepare(&disk, &preserved));
    let mut session = bench.session();
    for steps in [&["deploy.apply_layout"][..], &["deploy.burn_image", "deploy.write_files"]] {
        session.run_plan(&whole.select_steps(steps)).map_err(|failure| failure.error).unwrap();
        assert_eq!(signature(&disk.partition(2)), "ext4");
    }
    assert!(Path::new(TARGET).join("etc/metal/install.yaml").exists());
    session.leave_session(FailureState::Incomplete);
    assert_eq!(signature(&disk.partition(2)), "");
    assert!(busy_device_users::list_mounts_below(Path::new(TARGET)).is_empty());
    signature_wipe::wipe_ends(preserved.path()).unwrap();
    fs::remove_file(Path::new("/dev/disk/by-uuid").join(UUID)).unwrap();
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_complete_system_survives_an_unacknowledged_report() {
    let disk = TestLoopDevice::new(16 << 20, 512);
    linux::process::ToolCommand::new("mkfs.ext4").args(["-q", disk.path().as_str()]).run().unwrap();
    let bench = Bench::new();
    for (leaves, left) in [
        (FailureState::Complete, "ext4"),
        (FailureState::Unreported, "ext4"),
        (FailureState::Untouched, "ext4"),
        (FailureState::Announced, "ext4"),
        (FailureState::Incomplete, ""),
    ] {
        let mut session = bench.session();
        session.run_operation(&identify_operation(&disk)).unwrap();
        session.undo.push(UndoOperation::WipeDeviceEnds(disk.path().clone()));
        session.leave_session(leaves);
        assert_eq!(signature(disk.path()), left, "{leaves:?}");
    }
}

/// If the report is rejected, the source machine of the migration may run the system again, so this machine's copy is
/// made unbootable. Without a response, this machine may have to run the system, so nothing is wiped.
#[test]
#[ignore = "needs root and loop devices"]
fn loop_denied_report_makes_received_system_unbootable() {
    let disk = TestLoopDevice::new(16 << 20, 512);
    let bench = Bench::new();
    let boot = Some(BootInfo {
        kernel: "/vmlinuz".into(),
        initrd: "/initrd".into(),
        cmdline: "ro".into(),
        bootloader_id: "metal-debian".into(),
    });
    let received = FinalReport { taken_back: vec![disk.path().clone()], ..FinalReport::default() };
    for (denies, refuses, closing, left) in [
        (false, false, &received, "gpt"),
        (false, true, &received, "gpt"),
        (true, false, &FinalReport::default(), "gpt"),
        (true, false, &received, ""),
    ] {
        linux::process::ToolCommand::new("sgdisk").args(["-o", disk.path().as_str()]).run().unwrap();
        bench.control.denies.store(denies, Ordering::Relaxed);
        bench.control.refuses.store(refuses, Ordering::Relaxed);
        let mut session = bench.session();
        session.facts.boot = boot.clone();
        session.run_operation(&identify_operation(&disk)).unwrap();
        let reported = session.report_success(closing);
        assert_eq!(reported.is_ok(), !denies && !refuses);
        let blkid = linux::process::ToolCommand::new("blkid");
        let table = blkid.args(["-p", "-o", "value", "-s", "PTTYPE", disk.path().as_str()]).run();
        let table = table.map(|output| output.stdout.trim().to_owned()).unwrap_or_default();
        assert_eq!(table, left, "{reported:?}");
        if left.is_empty() {
            let text = reported.unwrap_err().to_string();
            assert!(text.contains("the start and the end of") && text.contains("the migration was canceled"), "{text}");
        }
    }
    // A disk that no operation has identified as the disk in the plan is not wiped.
    let mut session = bench.session();
    session.facts.boot = boot;
    let text = session.report_success(&received).unwrap_err().to_string();
    assert!(text.contains("MAY STILL BE BOOTABLE"), "{text}");
}

/// A failed wipe may already have erased the boot code. The start of the disk is then erased too, so that the next
/// attempt does not mistake the disk for an untouched one.
#[test]
#[ignore = "needs root and loop devices"]
fn loop_failed_wipe_still_erases_the_start_of_the_disk() {
    let disk = TestLoopDevice::new(16 << 20, 512);
    linux::process::ToolCommand::new("mkfs.vfat").args([disk.path()]).run().unwrap();
    let bench = Bench::new();
    let beyond = vec![ByteRange { start: 32 << 20, length: 1 << 20 }];
    let plan = plan(vec![
        (StageName::StorageIdentify, vec![identify_operation(&disk)]),
        (StageName::StorageWipe, vec![wipe_operation(disk.path().clone(), beyond)]),
    ]);
    let failure = bench.run(&plan).unwrap_err();
    assert_eq!((failure.stage, failure.past_point_of_no_return), (StageName::StorageWipe, true));
    assert!(fs::read(disk.image()).unwrap()[..1 << 20].iter().all(|byte| *byte == 0));
}

/// In the minutes between identification and wipe, a disk may be removed, and another disk may get its name.
#[test]
#[ignore = "needs root and loop devices"]
fn loop_another_disk_with_the_name_is_not_changed() {
    let (identity, disk) = TestLoopDevice::exchanged(16 << 20);
    linux::process::ToolCommand::new("mkfs.ext4").args(["-q", disk.path().as_str()]).run().unwrap();
    let (bench, device) = (Bench::new(), disk.path().to_owned());
    let zero = vec![ByteRange { start: 0, length: 1 << 20 }];
    let wipe = WipeDisk { device, identity, methods: vec![], strict: false, budget_seconds: 60, first: vec![], zero };
    let make = MakeFilesystem {
        device: disk.path().clone(),
        format: FilesystemFormat::Ext4,
        label: None,
        uuid: UUID.into(),
        createoptions: vec![],
    };
    let before = fs::read(disk.image()).unwrap();
    for (stage, operation) in [
        (StageName::StorageWipe, Operation::Device(DeviceOp::WipeDisk(wipe))),
        (StageName::StorageFormat, Operation::Device(DeviceOp::MakeFilesystem(make))),
        (StageName::StorageMount, Operation::Run(SessionOp::Mount(root_on(&disk, &[])))),
    ] {
        let plan = plan(vec![(stage, vec![operation])]);
        let failure = bench.run(&plan).unwrap_err();
        assert_eq!(failure.stage, stage);
        assert!(failure.error.to_string().contains("which is not a disk of the plan"), "{}", failure.error);
        assert!(before == fs::read(disk.image()).unwrap(), "{stage}: the disk has changed");
    }
}

/// The kernel lists the other devices of a btrfs filesystem by path, and a path may refer to another disk by now.
#[test]
#[ignore = "needs root and loop devices"]
fn loop_other_btrfs_devices_are_identified_before_the_mount() {
    let (disk, (identity, other)) = (installed(&[]), TestLoopDevice::exchanged(16 << 20));
    let bench = Bench::new();
    let mount = MountFilesystem { others: vec![other.path().clone()], ..root_on(&disk, &[]) };
    let over = vec![disk.path().to_owned(), other.path().to_owned()];
    let rehearsal = ActivationRehearsal { over, operations: vec![RestoreOp::Mount(mount.clone())] };
    let mounted = Operation::Run(SessionOp::Mount(mount));
    let identified = |identity: DiskIdentity| Operation::Run(SessionOp::IdentifyDisk(identity));
    for (stage, operation) in [
        (StageName::StorageRehearse, Operation::Run(SessionOp::Rehearse(rehearsal))),
        (StageName::StorageMountPreserved, mounted.clone()),
    ] {
        let plan = plan(vec![(StageName::StorageIdentify, vec![identify_operation(&disk)]), (stage, vec![operation])]);
        let failure = bench.run(&plan).unwrap_err();
        let name = other.path().kernel_name();
        let expected =
            format!("{} is on {name}, which is not a disk of the plan; the device was not changed", other.path());
        assert_eq!((failure.stage, failure.error.to_string().as_str()), (stage, expected.as_str()));
    }
    let dir = tempfile::tempdir().unwrap();
    let mut session = PlanExecutor { mounts: MountStack::new(dir.path()), ..bench.session() };
    session.run_operation(&identify_operation(&disk)).unwrap();
    let error = session.run_operation(&identified(identity)).unwrap_err().to_string();
    assert!(error.contains("the disk's sequence number (diskseq) was "), "{error}");
    session.run_operation(&identified(other.identity())).unwrap();
    session.run_operation(&mounted).unwrap();
    session.leave_session(FailureState::Untouched);
}
