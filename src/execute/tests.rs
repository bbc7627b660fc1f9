//! Plans run on loop devices, and what a failure leaves behind.

use super::*;
use crate::allocation::Machine;
use crate::allocation::Order;
use crate::control::wire::{Acknowledged, Event, PointOfNoReturn, Register};
use crate::marker::MarkedDisk;
use crate::plan::KeptObject;
use crate::plan::{
    BurnDisk, ByteRange, DiskIdentity, ExpectedFilesystem, Extents, FstabEntry, MakeFilesystem, Mode, MountFilesystem,
    Subject, WipeDisk,
};
use crate::storage::loopdev::LoopDevice;
use crate::storage::{busy, identify, wipe};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Keeps what it is told, or refuses it.
#[derive(Default)]
struct Fake {
    refuses: AtomicBool,
    begun: Mutex<Vec<PointOfNoReturn>>,
    reports: Mutex<Vec<Report>>,
}

impl Fake {
    fn answer(&self) -> Result<()> {
        match self.refuses.load(Ordering::Relaxed) {
            true => Err(Error::new(Phase::Control, "not acknowledged")),
            false => Ok(()),
        }
    }
}

impl Control for Fake {
    fn register(&self, _: &Register) -> Result<()> {
        Ok(())
    }

    fn wait(&self, _: Duration) -> Result<bool> {
        Ok(true)
    }

    fn machine(&self) -> Result<Machine> {
        Ok(Machine::default())
    }

    fn event(&self, _: &Event) -> Result<()> {
        Ok(())
    }

    fn point_of_no_return(&self, notice: &PointOfNoReturn) -> Result<()> {
        self.begun.lock().unwrap().push(notice.clone());
        self.answer()
    }

    fn report(&self, report: &Report) -> Result<Acknowledged> {
        self.reports.lock().unwrap().push(report.clone());
        self.answer().map(|()| Acknowledged::default())
    }
}

struct Bench {
    control: Arc<Fake>,
    allocation: Allocation,
    inventory: Inventory,
    keys: image::Keys,
    minimum: image::Minimum,
    reporter: Reporter,
}

impl Bench {
    fn new() -> Bench {
        let allocation = Allocation { id: "a-1".into(), hostname: "web-1".into(), ..Allocation::default() };
        let (control, inventory) = (Arc::new(Fake::default()), Inventory::default());
        let reporter = Reporter::new(control.clone());
        let (keys, minimum) = (image::Keys::default(), image::Minimum::default());
        Bench { control, allocation, inventory, keys, minimum, reporter }
    }

    fn installation<'a>(&'a self, plan: &'a Plan) -> Installation<'a> {
        Installation {
            plan,
            plan_text: "the plan",
            allocation: &self.allocation,
            machine: "m-1",
            inventory: &self.inventory,
            consoles: &[],
            keys: &self.keys,
            minimum: &self.minimum,
            reporter: &self.reporter,
            control: &*self.control,
        }
    }
}

fn plan(steps: Vec<(StepName, Vec<Operation>)>) -> Plan {
    let steps: Vec<Step> = steps.into_iter().map(|(name, operations)| Step { name, operations }).collect();
    let destructive = |step: &Step| step.name >= StepName::StorageWipe;
    let entry =
        FstabEntry { source: format!("UUID={UUID}"), path: "/".into(), format: Format::Ext4, options: vec![], pass: 1 };
    Plan {
        mode: Mode::Install,
        subject: Subject::default(),
        layout: "test".into(),
        disks: vec![],
        point_of_no_return: steps.iter().position(destructive).unwrap_or(steps.len()),
        steps,
        fstab: vec![entry],
        root_uuid: UUID.into(),
        already: None,
        warnings: vec![],
        torn: vec![],
        summary: Default::default(),
        sizes: Default::default(),
        extents: vec![],
    }
}

const UUID: &str = "5a1d7c0e-93b2-4f57-8f0c-6e1a2b3c4d5e";

fn run<'a>(installation: &'a Installation<'a>, made: Vec<String>, boot: Option<BootInfo>) -> Run<'a> {
    Run { made, boot, ..Run::new(installation, Mounts::new("/nonexistent/target")) }
}

/// As the plan would have it of a disk that is there.
fn identity(device: &str) -> DiskIdentity {
    fs::File::open(device).map(|disk| identify::read(&disk, device).unwrap()).unwrap_or_default()
}

fn identify_operation(disk: &LoopDevice) -> Operation {
    Operation::IdentifyDisk(disk.identity())
}

fn wipe_operation(device: String, zero: Vec<ByteRange>) -> Operation {
    let identity = identity(&device);
    Operation::WipeDisk(WipeDisk { device, identity, methods: vec![], strict: false, budget_seconds: 60, zero })
}

/// Everything up to the mounted target.
fn prepare(disk: &LoopDevice, kept: &LoopDevice) -> Vec<(StepName, Vec<Operation>)> {
    let device = disk.path().to_owned();
    let zero = vec![ByteRange { start: 0, length: 1 << 20 }];
    let format = Format::Ext4;
    let (partition, uuid, label) = (disk.partition(2), UUID.to_owned(), Some("root".to_owned()));
    let make = MakeFilesystem { device: partition.clone(), format, label, uuid, createoptions: vec![] };
    let mount = MountFilesystem { device: partition, path: "/".into(), format, options: vec![] };
    vec![
        (StepName::StorageIdentify, vec![identify_operation(disk), identify_operation(kept)]),
        (StepName::StorageLock, vec![Operation::LockDisk { device: kept.path().into(), untouched: vec![] }]),
        (StepName::StorageWipe, vec![wipe_operation(device, zero)]),
        (StepName::StoragePartition, vec![Operation::WriteTable(disk.table(512, &[(2, 2048, 65535)]))]),
        (StepName::StorageFormat, vec![Operation::MakeFilesystem(make)]),
        (StepName::StorageMount, vec![Operation::Mount(mount)]),
        (StepName::TargetFiles, vec![Operation::WriteMachineFiles]),
    ]
}

fn signature(device: &str) -> String {
    let blkid = crate::command::Command::new("blkid").args(["-p", "-o", "value", "-s", "TYPE", device]);
    blkid.run().map(|output| output.stdout.trim().to_owned()).unwrap_or_default()
}

// One test, since there is one target directory.
#[test]
#[ignore = "needs root and loop devices"]
fn loop_a_plan_is_run_and_a_failure_leaves_nothing_bootable() {
    let (disk, kept) = (LoopDevice::new(64 << 20, 512), LoopDevice::new(16 << 20, 512));
    let bench = Bench::new();
    let mut steps = prepare(&disk, &kept);
    steps.push((StepName::TargetFstab, vec![Operation::WriteFstab]));
    let marker = Marker { machine: "m-1".into(), allocation: "a-1".into(), ..Marker::default() };
    steps.push((StepName::TargetMarker, vec![Operation::WriteMarker(marker.clone())]));
    steps.push((
        StepName::StorageUnmount,
        vec![Operation::Unmount, Operation::FlushDisks { disks: vec![disk.path().into()] }],
    ));
    let whole = plan(steps);
    execute(&bench.installation(&whole)).map_err(|failure| failure.error).unwrap();
    assert_eq!(signature(&disk.partition(2)), "ext4");
    assert!(busy::mounts_below(Path::new(TARGET)).is_empty());
    wipe::wipe_ends(kept.path()).unwrap();
    let mut mounts = Mounts::new(TARGET);
    let Operation::Mount(root) = &whole.steps[5].operations[0] else { unreachable!() };
    mounts.mount(root).unwrap();
    let fstab = fs::read_to_string(mounts.root().join("etc/fstab")).unwrap();
    assert!(fstab.contains(&format!("UUID={UUID}")), "{fstab}");
    assert!(fs::read_to_string(mounts.root().join("etc/metal/install.yaml")).unwrap().contains("web-1"));
    let text = fs::read_to_string(mounts.root().join(&crate::marker::PATH[1..])).unwrap();
    let found: Marker = serde_json::from_str(&text).unwrap();
    assert!(found.time.ends_with('Z'), "{found:?}");
    assert_eq!(found, Marker { time: found.time.clone(), ..marker });
    mounts.finish().unwrap();
    let timed: Vec<String> = bench.reporter.timings().into_iter().map(|timing| timing.step).collect();
    assert_eq!(timed, whole.steps.iter().map(|step| step.name.to_string()).collect::<Vec<_>>());

    // There is no image in the target, so there is no installer.
    let mut steps = prepare(&disk, &kept);
    steps.push((StepName::TargetInstaller, vec![Operation::RunInstaller { devices: vec![] }]));
    steps.push((StepName::ReportFinal, vec![Operation::Report]));
    let cut = plan(steps);
    let failure = execute(&bench.installation(&cut)).unwrap_err();
    assert_eq!(failure.step, StepName::TargetInstaller);
    assert!(failure.past_point_of_no_return);
    assert!(failure.error.to_string().contains("the image has no installer"), "{}", failure.error);
    assert_eq!(signature(&disk.partition(2)), "");
    assert!(busy::mounts_below(Path::new(TARGET)).is_empty());
    wipe::wipe_ends(kept.path()).unwrap();
    assert!(bench.control.reports.lock().unwrap().is_empty());
    fs::remove_file(Path::new("/dev/disk/by-uuid").join(UUID)).unwrap();
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_a_complete_system_survives_a_report_that_is_not_acknowledged() {
    let disk = LoopDevice::new(16 << 20, 512);
    crate::command::Command::new("mkfs.ext4").args(["-q", disk.path()]).run().unwrap();
    let (bench, plan) = (Bench::new(), plan(vec![]));
    let installation = bench.installation(&plan);
    for (failed, left) in
        [(StepName::BootKexec, "ext4"), (StepName::ReportFinal, "ext4"), (StepName::StorageUnmount, "")]
    {
        let mut run = run(&installation, vec![disk.path().into()], None);
        run.operation(&identify_operation(&disk)).unwrap();
        run.clean_up(failed);
        assert_eq!(signature(disk.path()), left, "{failed}");
    }
}

/// The next attempt is not to take it for one that was never touched: its boot code would be gone.
#[test]
#[ignore = "needs root and loop devices"]
fn loop_a_disk_that_was_to_be_wiped_loses_its_beginning_also_when_that_fails() {
    let disk = LoopDevice::new(16 << 20, 512);
    crate::command::Command::new("mkfs.vfat").args([disk.path()]).run().unwrap();
    let bench = Bench::new();
    let beyond = vec![ByteRange { start: 32 << 20, length: 1 << 20 }];
    let plan = plan(vec![
        (StepName::StorageIdentify, vec![identify_operation(&disk)]),
        (StepName::StorageWipe, vec![wipe_operation(disk.path().into(), beyond)]),
    ]);
    let failure = execute(&bench.installation(&plan)).unwrap_err();
    assert_eq!((failure.step, failure.past_point_of_no_return), (StepName::StorageWipe, true));
    assert!(fs::read(disk.image()).unwrap()[..1 << 20].iter().all(|byte| *byte == 0));
}

/// Between identify and wipe lie minutes: a disk is pulled, and another one takes its name.
#[test]
#[ignore = "needs root and loop devices"]
fn loop_another_disk_that_has_taken_the_name_is_neither_written_nor_cleaned_up() {
    let (identity, disk) = LoopDevice::exchanged(16 << 20);
    crate::command::Command::new("mkfs.ext4").args(["-q", disk.path()]).run().unwrap();
    let (bench, device) = (Bench::new(), disk.path().to_owned());
    let zero = vec![ByteRange { start: 0, length: 1 << 20 }];
    let wipe = WipeDisk { device, identity, methods: vec![], strict: false, budget_seconds: 60, zero };
    let make = MakeFilesystem {
        device: disk.path().into(),
        format: Format::Ext4,
        label: None,
        uuid: UUID.into(),
        createoptions: vec![],
    };
    let before = fs::read(disk.image()).unwrap();
    for (step, operation, why) in [
        (StepName::StorageWipe, Operation::WipeDisk(wipe), "is not the disk that the plan was made for"),
        (StepName::StorageFormat, Operation::MakeFilesystem(make), "which is no disk of the plan by now"),
        (StepName::StorageMount, Operation::Mount(root_on(&disk, &[])), "which is no disk of the plan by now"),
    ] {
        let plan = plan(vec![(step, vec![operation])]);
        let failure = execute(&bench.installation(&plan)).unwrap_err();
        assert_eq!(failure.step, step);
        assert!(failure.error.to_string().contains(why), "{}", failure.error);
        assert!(before == fs::read(disk.image()).unwrap(), "{step}: the disk has changed");
    }
}

#[test]
fn a_failure_before_the_first_write_says_so() {
    let bench = Bench::new();
    let lock = Operation::LockDisk { device: "/dev/no-such-disk".into(), untouched: vec![] };
    let plan = plan(vec![
        (StepName::StorageLock, vec![lock]),
        (StepName::StorageWipe, vec![wipe_operation("/dev/no-such-disk".into(), vec![])]),
    ]);
    let failure = execute(&bench.installation(&plan)).unwrap_err();
    assert_eq!((failure.step, failure.past_point_of_no_return), (StepName::StorageLock, false));
    assert_eq!(bench.reporter.timings().len(), 1);
}

#[test]
fn a_reinstall_that_is_not_wanted_any_more_destroys_nothing() {
    let mut bench = Bench::new();
    bench.allocation.order = Some(Order { id: "o-1".into(), ..Order::default() });
    let disks = vec![MarkedDisk { device: "os".into(), serial: "A0".into(), ..MarkedDisk::default() }];
    let extents = vec![Extents { steps: vec![StepName::StorageWipe], disks: vec![] }];
    let plan = Plan {
        extents: extents.clone(),
        ..plan(vec![
            (StepName::ReportBegin, vec![Operation::TellPointOfNoReturn { disks: disks.clone() }]),
            (StepName::StorageWipe, vec![wipe_operation("/dev/no-such-disk".into(), vec![])]),
        ])
    };
    for (refuses, failed) in [(true, StepName::ReportBegin), (false, StepName::StorageWipe)] {
        bench.control.refuses.store(refuses, Ordering::Relaxed);
        let failure = execute(&bench.installation(&plan)).unwrap_err();
        assert_eq!((failure.step, failure.past_point_of_no_return), (failed, !refuses));
    }
    let expected = PointOfNoReturn { allocationuuid: "a-1".into(), order: "o-1".into(), disks, extents };
    assert_eq!(*bench.control.begun.lock().unwrap(), [expected.clone(), expected]);
}

#[test]
fn what_is_not_as_it_was_fails_the_install_with_both_sides() {
    let identity = BTreeMap::from([("guid".to_owned(), "c0ffee".to_owned())]);
    let gone = Kept { object: KeptObject::Disk("no-such-disk".into()), identity };
    let marker = Operation::WriteMarker(Marker::default());
    let plan = plan(vec![
        (StepName::StorageWipe, vec![]),
        (StepName::StorageProveKept, vec![Operation::ProveKept(vec![gone])]),
        (StepName::TargetMarker, vec![marker]),
    ]);
    let bench = Bench::new();
    let failure = execute(&bench.installation(&plan)).unwrap_err();
    assert_eq!((failure.step, failure.past_point_of_no_return), (StepName::StorageProveKept, true));
    let text = failure.error.to_string();
    assert!(text.contains("HAS CHANGED: ") && text.contains("no-such-disk"), "{text}");
}

/// A whole disk with an ext4 that has these files.
fn installed(files: &[(&str, &str)]) -> LoopDevice {
    let disk = LoopDevice::new(16 << 20, 512);
    crate::command::Command::new("mkfs.ext4").args(["-q", disk.path()]).run().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut mounts = Mounts::new(dir.path());
    mounts.mount(&root_on(&disk, &[])).unwrap();
    let root = Root::open(dir.path()).unwrap();
    files.iter().for_each(|(path, text)| root.write(path, 0o644, text.as_bytes()).unwrap());
    drop(root);
    mounts.finish().unwrap();
    disk
}

fn root_on(disk: &LoopDevice, options: &[&str]) -> MountFilesystem {
    let options = options.iter().map(|option| (*option).to_owned()).collect();
    MountFilesystem { device: disk.path().into(), path: "/".into(), format: Format::Ext4, options }
}

/// A raw image in a file: a GPT with one ext4.
fn raw_image(directory: &Path) -> image::Source {
    let path = directory.join("disk.raw");
    let script = format!(
        "truncate -s 32M {0} && echo 'size=16M, uuid=5e1f0000-0000-4000-8000-000000000001' | sfdisk -q -X gpt {0} && \
         mkfs.ext4 -q -U {UUID} -E offset=1048576 {0} 16M && sha256sum {0} > {0}.sha256",
        path.display()
    );
    crate::command::Command::new("sh").args(["-c", &script]).run().unwrap();
    image::Source { url: format!("file://{}", path.display()), ..image::Source::default() }
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_a_raw_image_is_burned_unless_another_disk_has_its_uuids() {
    let (disk, directory) = (LoopDevice::new(64 << 20, 512), tempfile::tempdir().unwrap());
    let source = raw_image(directory.path());
    let root = ExpectedFilesystem {
        number: 1,
        device: disk.partition(1),
        path: "/".into(),
        format: Format::Ext4,
        label: None,
    };
    let burn = |taken: &str| BurnDisk {
        name: "debian".into(),
        device: disk.path().into(),
        identity: identity(disk.path()),
        size_bytes: 64 << 20,
        sector_bytes: 512,
        grow: Some(1),
        filesystems: vec![root.clone()],
        taken: [(taken.to_owned(), "/dev/sdb1".to_owned())].into(),
    };
    let (bench, plan) = (Bench::new(), plan(vec![]));
    let installation = bench.installation(&plan);
    let burned = |burn: &BurnDisk| {
        let image = Some(disk::arriving(image::reach(&source)?, burn)?);
        let mut run = Run { image, ..Run::new(&installation, Mounts::new("/nonexistent/target")) };
        run.operation(&identify_operation(&disk))?;
        run.operation(&Operation::BurnDisk(burn.clone())).map(|()| run.brought_root_uuid)
    };
    let before = fs::read(disk.image()).unwrap();
    let error = burned(&burn("5e1f0000-0000-4000-8000-000000000001")).unwrap_err().to_string();
    assert!(error.contains(&format!("of {} is that of /dev/sdb1", disk.partition(1))), "{error}");
    let error = burned(&BurnDisk { sector_bytes: 4096, ..burn("") }).unwrap_err().to_string();
    assert!(error.contains("is for disks with sectors of 512 bytes"), "{error}");
    assert!(before == fs::read(disk.image()).unwrap(), "the disk has changed");

    let error = burned(&burn(UUID)).unwrap_err().to_string();
    assert!(error.contains(&format!("{UUID} of {} is that of /dev/sdb1", disk.partition(1))), "{error}");
    // It is a reinstall then: the UUIDs that the disk has itself are nobody else's.
    assert_eq!(burned(&burn("another")).unwrap().as_deref(), Some(UUID));
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_what_is_installed_already_is_never_written() {
    let boot_info = "kernel: /vmlinuz\ninitrd: ''\ncmdline: ro\nbootloader_id: b\n";
    let disk = installed(&[("/etc/metal/boot-info.yaml", boot_info), ("/vmlinuz", "no kernel")]);
    let before = fs::read(disk.image()).unwrap();
    let bench = Bench::new();
    let already = Some(Marker { image: "debian-12".into(), ..Marker::default() });
    let steps = vec![
        (StepName::StorageMount, vec![Operation::Mount(root_on(&disk, &["ro", "noload"]))]),
        (StepName::BootLoad, vec![Operation::LoadKernel]),
    ];
    let plan = Plan { already, ..plan(steps) };
    let installation = bench.installation(&plan);
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run { made: vec![disk.path().into()], ..Run::new(&installation, Mounts::new(dir.path())) };
    run.step(&plan.steps[0]).unwrap();
    let read_only = run.root().unwrap().write("/file", 0o600, b"").unwrap_err().to_string();
    assert!(read_only.contains("Read-only file system"), "{read_only}");
    let error = run.step(&plan.steps[1]).unwrap_err().to_string();
    assert!(error.starts_with("load /vmlinuz for kexec: "), "{error}");
    // Not even what it takes for made itself: there is nothing half-made here.
    run.clean_up(StepName::BootLoad);
    assert!(busy::mounts_below(dir.path()).is_empty());
    assert!(before == fs::read(disk.image()).unwrap(), "the disk has changed");
}

#[test]
fn the_report_has_what_was_booted_and_must_be_acknowledged() {
    let boot = BootInfo {
        kernel: "/vmlinuz".into(),
        initrd: "/initrd".into(),
        cmdline: "ro".into(),
        bootloader_id: "metal-debian".into(),
    };
    let mut bench = Bench::new();
    bench.allocation.order = Some(Order { id: "o-1".into(), ..Order::default() });
    let plan = plan(vec![]);
    let installation = bench.installation(&plan);
    assert!(run(&installation, vec![], None).report().is_err());
    let (hidden, kept) = (Hidden { path: "/var/lib".into(), files: 7 }, KeptProof::default());
    let marker = Some(Marker { order: "o-1".into(), ..Marker::default() });
    let whole = run(&installation, vec![], Some(boot.clone()));
    Run { marker: marker.clone(), hidden: vec![hidden.clone()], kept: vec![kept.clone()], ..whole }.report().unwrap();
    let reports = bench.control.reports.lock().unwrap();
    let [report] = reports.as_slice() else { panic!("{reports:?}") };
    assert!(report.success && report.step.is_none());
    assert_eq!((report.allocationuuid.as_str(), report.plan.as_str()), ("a-1", "the plan"));
    assert_eq!((report.kernel.as_str(), report.bootloaderid.as_str()), ("/vmlinuz", "metal-debian"));
    assert!(report.peak_rss_bytes.unwrap() > 1 << 20);
    assert_eq!((report.order.as_str(), &report.marker, report.untouched), ("o-1", &marker, false));
    assert_eq!((report.hidden.as_slice(), report.kept.as_slice()), (&[hidden][..], &[kept][..]));
    drop(reports);

    bench.control.refuses.store(true, Ordering::Relaxed);
    let installation = bench.installation(&plan);
    assert!(run(&installation, vec![], Some(boot.clone())).report().is_err());

    bench.control.refuses.store(false, Ordering::Relaxed);
    let already = Marker { image: "debian-12".into(), ..Marker::default() };
    let plan = Plan { already: Some(already.clone()), ..plan };
    let installation = bench.installation(&plan);
    run(&installation, vec![], Some(boot)).report().unwrap();
    let report = bench.control.reports.lock().unwrap().pop().unwrap();
    let message = "debian-12 is installed already; nothing was written";
    assert_eq!((report.message.as_str(), report.marker), (message, Some(already)));
}
