//! Runs the plan and nothing else. What is not in the printed plan does not happen, except for one thing: when an
//! install fails half-way, what it has made so far is made unbootable.

use crate::allocation::Allocation;
use crate::boot::{BootInfo, kexec};
use crate::control::Control;
use crate::control::wire::{EventName, Report, StepTime};
use crate::error::{Error, Phase, Result};
use crate::image;
use crate::inventory::Inventory;
use crate::layout::Format;
use crate::plan::{MakeFilesystem, Operation, Plan, Step, StepName};
use crate::report::Reporter;
use crate::storage::lock::Locks;
use crate::storage::mount::{self, Mounts};
use crate::storage::{erase, filesystem, gpt, identify, lvm, raid, release, wipe};
use crate::target::{self, Root, fstab, installer};
use nix::sys::resource::{UsageWho, getrusage};
use std::time::Duration;
use time::OffsetDateTime;

/// Events that still wait get so long before kexec.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// Where the target is mounted while it is made.
pub const TARGET: &str = "/run/drophammer/target";

/// A plan and all that its steps need.
pub struct Installation<'a> {
    pub plan: &'a Plan,
    /// As it was printed.
    pub plan_text: &'a str,
    pub allocation: &'a Allocation,
    /// The machine's id.
    pub machine: &'a str,
    pub inventory: &'a Inventory,
    /// `console=` of the kernel command line, in order.
    pub consoles: &'a [String],
    pub reporter: &'a Reporter,
    pub control: &'a dyn Control,
}

/// Which step failed, and whether the old system is still whole.
#[derive(Debug)]
pub struct Failure {
    pub step: StepName,
    pub past_point_of_no_return: bool,
    pub error: Error,
}

/// Runs the steps in order and stops at the first error. A plan that ends in `boot.kexec` does not return when all is
/// well.
///
/// # Errors
/// The first operation that fails; everything is unmounted and unlocked then as far as possible, and what was made
/// is not bootable unless it was complete.
pub fn execute(installation: &Installation) -> Result<(), Failure> {
    let mut run = Run {
        installation,
        locks: Locks::default(),
        mounts: Mounts::new(TARGET),
        image: None,
        boot: None,
        wiped: Vec::new(),
        made: Vec::new(),
    };
    for (index, step) in installation.plan.steps.iter().enumerate() {
        if let Err(error) = installation.reporter.step(step.name.as_str(), || run.step(step)) {
            run.clean_up(step.name);
            let past_point_of_no_return = index >= installation.plan.point_of_no_return;
            return Err(Failure { step: step.name, past_point_of_no_return, error });
        }
    }
    Ok(())
}

/// What the steps hand on to each other.
struct Run<'a> {
    installation: &'a Installation<'a>,
    locks: Locks,
    mounts: Mounts,
    image: Option<image::Reached>,
    boot: Option<BootInfo>,
    /// Disks that this run has begun to make anew.
    wiped: Vec<String>,
    /// Devices with a filesystem of this run.
    made: Vec<String>,
}

impl Run<'_> {
    fn step(&mut self, step: &Step) -> Result<()> {
        step.operations.iter().try_for_each(|operation| self.operation(operation))
    }

    fn operation(&mut self, operation: &Operation) -> Result<()> {
        match operation {
            Operation::ReachImage { name, url } => self.reach_image(name, url),
            Operation::LockDisk { device } => self.locks.lock(device),
            Operation::UnlockDisk { device } => self.locks.unlock_disk(device),
            Operation::IdentifyDisk(identity) => identify::identify(identity),
            Operation::Release(holder) => release::release(holder),
            Operation::AssertFree { disks } => release::assert_free(disks),
            Operation::CreateArray(array) => raid::create(array),
            Operation::CreateGroup(group) => lvm::create_group(group),
            Operation::CreateVolume(volume) => lvm::create_volume(volume),
            Operation::AssembleArray { device, uuid, members } => raid::assemble(device, *uuid, members),
            Operation::ActivateGroup { name, devices } => lvm::activate(name, devices),
            Operation::DeactivateGroup { name, devices } => lvm::deactivate(name, devices),
            Operation::StopArray { device } => raid::stop(device),
            Operation::WipeDisk(disk) => {
                self.wiped.push(disk.device.clone());
                erase::wipe(disk).map(drop)
            }
            Operation::WriteTable(table) => gpt::write(table),
            Operation::MakeFilesystem(make) => self.make_filesystem(make),
            Operation::Mount(filesystem) => self.mounts.mount(filesystem),
            Operation::BurnImage { name } => self.burn_image(name),
            Operation::WriteMachineFiles => self.write_machine_files(),
            Operation::RunInstaller => {
                installer::run(&self.root()?, installer::DEADLINE, &|line| self.installation.reporter.say(line))
            }
            Operation::WriteFstab => fstab::write(&self.root()?, &self.installation.plan.fstab),
            Operation::LoadKernel => self.load_kernel(),
            Operation::Unmount => self.mounts.finish(),
            Operation::FlushDisks { disks } => self.flush(disks),
            Operation::Report => self.report(),
            Operation::Kexec => self.kexec(),
        }
    }

    fn say(&self, line: &str) {
        self.installation.reporter.say(line);
    }

    fn root(&self) -> Result<Root> {
        Root::open(self.mounts.root())
    }

    fn reach_image(&mut self, name: &str, url: &str) -> Result<()> {
        let digest = self.installation.allocation.image.digest.clone();
        let reached = image::reach(&image::Source { url: url.to_owned(), digest })?;
        let size = reached.size_bytes.map_or("of unknown size".to_owned(), |bytes| format!("{bytes} bytes"));
        self.say(&format!("{name}: {size}, {}", reached.digest));
        self.image = Some(reached);
        Ok(())
    }

    fn make_filesystem(&mut self, make: &MakeFilesystem) -> Result<()> {
        // Before, not after: half a mkfs is to be cleaned up too. `none` is left as it is, now and then.
        if make.format != Format::None {
            self.made.push(make.device.clone());
        }
        filesystem::make(make)
    }

    fn burn_image(&self, name: &str) -> Result<()> {
        let not_reached = || Error::new(Phase::Image, format!("the plan burns {name} without having reached it"));
        let reached = self.image.as_ref().ok_or_else(not_reached)?;
        let reporter = self.installation.reporter;
        let burned = image::burn(reached, self.mounts.root(), &|progress| reporter.progress(progress))?;
        let (bytes, entries, resumed) = (burned.bytes, burned.entries, burned.resumed);
        self.say(&format!("{name}: {entries} files from {bytes} bytes, connection resumed {resumed} times"));
        Ok(())
    }

    fn write_machine_files(&self) -> Result<()> {
        let Installation { plan, allocation, machine, inventory, consoles, .. } = *self.installation;
        let machine = target::files::Machine { allocation, id: machine, inventory, consoles, plan };
        target::files::write(&self.root()?, &machine, OffsetDateTime::now_utc())
    }

    fn load_kernel(&mut self) -> Result<()> {
        let root = self.root()?;
        let boot = BootInfo::read(&root)?;
        self.say(&format!("{} {}", boot.kernel, boot.cmdline));
        kexec::load(&root, &boot)?;
        self.boot = Some(boot);
        Ok(())
    }

    fn flush(&mut self, disks: &[String]) -> Result<()> {
        disks.iter().try_for_each(|disk| mount::flush_disk(disk))?;
        self.locks.unlock()
    }

    fn report(&self) -> Result<()> {
        let Installation { plan_text, allocation, reporter, control, .. } = *self.installation;
        let boot = self.boot.clone();
        let boot = boot.ok_or_else(|| Error::new(Phase::Boot, "the plan reports success without a loaded kernel"))?;
        control.report(&Report {
            success: true,
            message: format!("{} is installed", allocation.image.id),
            allocationuuid: allocation.id.clone(),
            step: None,
            console_password: allocation.console_password.clone(),
            kernel: boot.kernel,
            initrd: boot.initrd,
            cmdline: boot.cmdline,
            bootloaderid: boot.bootloader_id,
            timings: reporter.timings(),
            plan: plan_text.to_owned(),
            peak_rss_bytes: peak_rss_bytes(),
            erased: Vec::new(),
        })
    }

    fn kexec(&self) -> Result<()> {
        let reporter = self.installation.reporter;
        println!("\n{}", StepTime::table(&reporter.timings()));
        reporter.phase(EventName::BootingNewKernel, "leaving the ramdisk");
        reporter.flush(LAST_WORDS);
        match kexec::start()? {}
    }

    /// Best effort, after a failure: each thing that does not work is said, and the next one is tried.
    fn clean_up(&mut self, failed: StepName) {
        if self.boot.is_some() {
            kexec::unload();
        }
        installer::end_processes(self.mounts.root(), &|line| self.say(line));
        for error in self.mounts.abandon() {
            self.say(&format!("clean up: {error}"));
        }
        // A report or a kexec that fails leaves a complete system on the disks; what goes before it does not.
        if failed < StepName::ReportFinal {
            self.make_unbootable();
        }
        if let Err(error) = self.locks.unlock() {
            self.say(&format!("clean up: {error}"));
        }
    }

    /// Only what this run has made: no firmware finds a boot loader there any more, no boot loader a filesystem.
    fn make_unbootable(&self) {
        let disks = self.wiped.iter().map(|disk| (disk, wipe::wipe_boot_code(disk)));
        let filesystems = self.made.iter().map(|device| (device, wipe::wipe_ends(device)));
        for (device, result) in disks.chain(filesystems) {
            match result {
                Ok(()) => self.say(&format!("{device}: wiped, so that nothing half-installed can boot")),
                Err(error) => self.say(&format!("{device} MAY STILL BE BOOTABLE: {error}")),
            }
        }
    }
}

/// The most memory that the agent has had at one time.
fn peak_rss_bytes() -> Option<u64> {
    // Linux counts in KiB (getrusage(2)).
    u64::try_from(getrusage(UsageWho::RUSAGE_SELF).ok()?.max_rss()).ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::Machine;
    use crate::control::wire::{Event, Register};
    use crate::plan::{ByteRange, FstabEntry, Mode, MountFilesystem, Subject, WipeDisk};
    use crate::storage::busy;
    use crate::storage::loopdev::LoopDevice;
    use std::fs;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    /// Keeps the reports, or refuses them.
    #[derive(Default)]
    struct Fake {
        refuses: AtomicBool,
        reports: Mutex<Vec<Report>>,
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

        fn report(&self, report: &Report) -> Result<()> {
            self.reports.lock().unwrap().push(report.clone());
            if self.refuses.load(Ordering::Relaxed) {
                Err(Error::new(Phase::Control, "not acknowledged"))
            } else {
                Ok(())
            }
        }
    }

    struct Bench {
        control: Arc<Fake>,
        allocation: Allocation,
        inventory: Inventory,
        reporter: Reporter,
    }

    impl Bench {
        fn new() -> Bench {
            let allocation = Allocation { id: "a-1".into(), hostname: "web-1".into(), ..Allocation::default() };
            let (control, inventory) = (Arc::new(Fake::default()), Inventory::default());
            let reporter = Reporter::new(control.clone());
            Bench { control, allocation, inventory, reporter }
        }

        fn installation<'a>(&'a self, plan: &'a Plan) -> Installation<'a> {
            Installation {
                plan,
                plan_text: "the plan",
                allocation: &self.allocation,
                machine: "m-1",
                inventory: &self.inventory,
                consoles: &[],
                reporter: &self.reporter,
                control: &*self.control,
            }
        }
    }

    fn plan(steps: Vec<(StepName, Vec<Operation>)>) -> Plan {
        let steps: Vec<Step> = steps.into_iter().map(|(name, operations)| Step { name, operations }).collect();
        let destructive = |step: &Step| step.name >= StepName::StorageWipe;
        let entry = FstabEntry {
            source: format!("UUID={UUID}"),
            path: "/".into(),
            format: Format::Ext4,
            options: vec![],
            pass: 1,
        };
        Plan {
            mode: Mode::Install,
            subject: Subject::default(),
            layout: "test".into(),
            disks: vec![],
            point_of_no_return: steps.iter().position(destructive).unwrap_or(steps.len()),
            steps,
            fstab: vec![entry],
            root_uuid: UUID.into(),
        }
    }

    const UUID: &str = "5a1d7c0e-93b2-4f57-8f0c-6e1a2b3c4d5e";

    fn run<'a>(installation: &'a Installation<'a>, made: Vec<String>, boot: Option<BootInfo>) -> Run<'a> {
        let (locks, mounts) = (Locks::default(), Mounts::new("/nonexistent/target"));
        Run { installation, locks, mounts, image: None, boot, wiped: Vec::new(), made }
    }

    fn wipe_operation(device: String, zero: Vec<ByteRange>) -> Operation {
        Operation::WipeDisk(WipeDisk { device, methods: vec![], strict: false, budget_seconds: 60, zero })
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
            (StepName::StorageLock, vec![Operation::LockDisk { device: kept.path().into() }]),
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
        let Operation::Mount(root) = &whole.steps[4].operations[0] else { unreachable!() };
        mounts.mount(root).unwrap();
        let fstab = fs::read_to_string(mounts.root().join("etc/fstab")).unwrap();
        assert!(fstab.contains(&format!("UUID={UUID}")), "{fstab}");
        assert!(fs::read_to_string(mounts.root().join("etc/metal/install.yaml")).unwrap().contains("web-1"));
        mounts.finish().unwrap();
        let timed: Vec<String> = bench.reporter.timings().into_iter().map(|timing| timing.step).collect();
        assert_eq!(timed, whole.steps.iter().map(|step| step.name.to_string()).collect::<Vec<_>>());

        // There is no image in the target, so there is no installer.
        let mut steps = prepare(&disk, &kept);
        steps.push((StepName::TargetInstaller, vec![Operation::RunInstaller]));
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
            run(&installation, vec![disk.path().into()], None).clean_up(failed);
            assert_eq!(signature(disk.path()), left, "{failed}");
        }
    }

    #[test]
    fn a_failure_before_the_first_write_says_so() {
        let bench = Bench::new();
        let lock = Operation::LockDisk { device: "/dev/no-such-disk".into() };
        let plan = plan(vec![
            (StepName::StorageLock, vec![lock]),
            (StepName::StorageWipe, vec![wipe_operation("/dev/no-such-disk".into(), vec![])]),
        ]);
        let failure = execute(&bench.installation(&plan)).unwrap_err();
        assert_eq!((failure.step, failure.past_point_of_no_return), (StepName::StorageLock, false));
        assert_eq!(bench.reporter.timings().len(), 1);
    }

    #[test]
    fn the_report_has_what_was_booted_and_must_be_acknowledged() {
        let boot = BootInfo {
            kernel: "/vmlinuz".into(),
            initrd: "/initrd".into(),
            cmdline: "ro".into(),
            bootloader_id: "metal-debian".into(),
        };
        let bench = Bench::new();
        let plan = plan(vec![]);
        let installation = bench.installation(&plan);
        assert!(run(&installation, vec![], None).report().is_err());
        run(&installation, vec![], Some(boot.clone())).report().unwrap();
        let reports = bench.control.reports.lock().unwrap();
        let [report] = reports.as_slice() else { panic!("{reports:?}") };
        assert!(report.success && report.step.is_none());
        assert_eq!((report.allocationuuid.as_str(), report.plan.as_str()), ("a-1", "the plan"));
        assert_eq!((report.kernel.as_str(), report.bootloaderid.as_str()), ("/vmlinuz", "metal-debian"));
        assert!(report.peak_rss_bytes.unwrap() > 1 << 20);
        drop(reports);

        bench.control.refuses.store(true, Ordering::Relaxed);
        let installation = bench.installation(&plan);
        assert!(run(&installation, vec![], Some(boot)).report().is_err());
    }
}
