//! Runs the plan and nothing else. What is not in the printed plan does not happen, except for one thing: when an
//! install fails half-way, what it has made so far is made unbootable.

use crate::allocation::{self, Allocation};
use crate::boot::{BootInfo, kexec};
use crate::control::Control;
use crate::control::wire::{BurnFigures, Erased, EventName, Hidden, KeptProof, PointOfNoReturn, Report, StepTime};
use crate::error::{Error, Phase, Result};
use crate::image::{self, Beneath, Conflicts};
use crate::inventory::{self, Inventory};
use crate::layout::Format;
use crate::marker::{MarkedDisk, Marker};
use crate::plan::{self, CreateArray, CreateGroup, Kept, Operation, Plan, Rehearsal, Step, StepName};
use crate::report::Reporter;
use crate::storage::identify::Held;
use crate::storage::lock::Locks;
use crate::storage::mount::{self, Mounts};
use crate::storage::rehearse::{self, Rehearsed};
use crate::storage::writeback;
use crate::target::{self, Root, fstab, installer};
use alone::on_device;
use nix::sys::resource::{UsageWho, getrusage};
use std::thread;
use std::time::{Duration, Instant};
use time::OffsetDateTime;

mod alone;
mod cleanup;
mod disk;
mod paths;

/// Events that still wait get so long before kexec.
pub const LAST_WORDS: Duration = Duration::from_secs(3);

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
    /// Who may have signed the image.
    pub keys: &'a image::Keys,
    /// And how old it may be.
    pub minimum: &'a image::Minimum,
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
    let mut run = Run::new(installation, Mounts::new(TARGET));
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
    /// The disks of the plan.
    held: Held,
    locks: Locks,
    mounts: Mounts,
    image: Option<image::Incoming>,
    boot: Option<BootInfo>,
    /// Disks that this run has begun to make anew.
    wiped: Vec<String>,
    /// Devices with a filesystem of this run.
    made: Vec<String>,
    /// How to take down the arrays and groups that this run has started, oldest first.
    running: Vec<Operation>,
    erased: Vec<Erased>,
    hidden: Vec<Hidden>,
    burn: Option<BurnFigures>,
    kept: Vec<KeptProof>,
    /// As it is on the disk.
    marker: Option<Marker>,
    /// Of the filesystem with `/` that a raw image has brought.
    brought_root_uuid: Option<String>,
}

impl<'a> Run<'a> {
    fn new(installation: &'a Installation<'a>, mounts: Mounts) -> Run<'a> {
        Run {
            installation,
            held: Held::default(),
            locks: Locks::default(),
            mounts,
            image: None,
            boot: None,
            wiped: Vec::new(),
            made: Vec::new(),
            running: Vec::new(),
            erased: Vec::new(),
            hidden: Vec::new(),
            burn: None,
            kept: Vec::new(),
            marker: installation.plan.already.clone(),
            brought_root_uuid: None,
        }
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        if step.name.runs_side_by_side() {
            return self.side_by_side(&step.operations);
        }
        step.operations.iter().try_for_each(|operation| self.operation(operation))
    }

    /// Each operation of these works on a device of its own: the slowest disk sets the time, not their number.
    fn side_by_side(&mut self, operations: &[Operation]) -> Result<()> {
        operations.iter().try_for_each(|operation| self.prove_paths(operation))?;
        operations.iter().for_each(|operation| self.note(operation));
        let results: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> =
                operations.iter().map(|operation| scope.spawn(|| on_device(operation, self.installation))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked()))).collect()
        });
        let mut failures = Vec::new();
        for result in results {
            match result {
                Ok(erased) => self.erased.extend(erased),
                Err(error) => failures.push(error),
            }
        }
        if failures.len() < 2 {
            return failures.pop().map_or(Ok(()), Err);
        }
        let texts: Vec<String> = failures.iter().map(Error::to_string).collect();
        Err(Error::new(failures[0].phase, texts.join("; ")))
    }

    /// Before, not after: half of it is to be cleaned up too.
    fn note(&mut self, operation: &Operation) {
        match operation {
            Operation::WipeDisk(disk) => self.wiped.push(disk.device.clone()),
            // Its tables too: nobody knows what else of it can boot.
            Operation::BurnDisk(burn) => self.made.push(burn.device.clone()),
            // `none` is left as it is, now and then.
            Operation::MakeFilesystem(make) if make.format != Format::None => self.made.push(make.device.clone()),
            Operation::CreateArray(CreateArray { device, .. }) | Operation::AssembleArray { device, .. } => {
                self.running.push(Operation::StopArray { device: device.clone() });
            }
            Operation::CreateGroup(CreateGroup { name, devices, .. })
            | Operation::ActivateGroup { name, devices, .. } => {
                self.running.push(Operation::DeactivateGroup { name: name.clone(), devices: devices.clone() });
            }
            Operation::DeactivateGroup { .. } | Operation::StopArray { .. } => {
                self.running.retain(|running| running != operation);
            }
            _ => {}
        }
    }

    fn operation(&mut self, operation: &Operation) -> Result<()> {
        self.prove_paths(operation)?;
        self.note(operation);
        match operation {
            Operation::IdentifyDisk(identity) => self.held.hold(identity),
            Operation::ReachImage { name, url } => self.reach_image(name, url),
            Operation::LockDisk { device, untouched } => {
                self.locks.lock(device)?;
                self.locks.remember(device, untouched);
                Ok(())
            }
            Operation::UnlockDisk { device, others } => self.locks.unlock_disk(device, others),
            Operation::Rehearse(rehearsal) => self.rehearse(rehearsal),
            Operation::TellPointOfNoReturn { disks } => self.tell_point_of_no_return(disks.clone()),
            // What is booted as it is, is not written either.
            Operation::Mount(filesystem) if self.installation.plan.already.is_some() => {
                self.mounts.mount_read_only(filesystem)
            }
            Operation::Mount(filesystem) => self.mounts.mount(filesystem),
            Operation::BurnImage { name, hidden, merged, fresh } => {
                self.burn_image(name, &Beneath { hidden, merged, fresh })
            }
            Operation::BurnDisk(burn) => self.burn_disk(burn),
            Operation::GrowFilesystem(mount) => self.grow(mount),
            Operation::WriteMachineFiles => self.write_machine_files(),
            Operation::RunInstaller { devices } => self.run_installer(devices),
            Operation::AdaptImage { devices } => self.adapt_image(devices),
            Operation::ExtendFstab => fstab::extend(&self.root()?, &self.installation.plan.fstab),
            Operation::WriteFstab => fstab::write(&self.root()?, &self.installation.plan.fstab),
            Operation::LoadKernel => self.load_kernel(),
            Operation::ProveKept(kept) => self.prove_kept(kept),
            Operation::WriteMarker(marker) => self.write_marker(marker),
            Operation::Unmount => self.mounts.finish(),
            Operation::FlushDisks { disks } => self.flush(disks),
            Operation::Report => self.report(),
            Operation::Kexec => self.kexec(),
            on_a_device => {
                self.erased.extend(on_device(on_a_device, self.installation)?);
                Ok(())
            }
        }
    }

    fn say(&self, line: &str) {
        self.installation.reporter.say(line);
    }

    fn root(&self) -> Result<Root> {
        Root::open(self.mounts.root())
    }

    fn reach_image(&mut self, name: &str, url: &str) -> Result<()> {
        let Installation { allocation, keys, minimum, .. } = *self.installation;
        let allocation::Image { id, mirrors, digest, .. } = allocation.image.clone();
        let (url, keys, minimum) = (url.to_owned(), keys.clone(), minimum.clone());
        let source = image::Source { url, id: Some(id), mirrors, digest, keys, minimum };
        let reached = image::reach(&source)?;
        let size = reached.size_bytes().map_or("of unknown size".to_owned(), |bytes| format!("{bytes} bytes"));
        let signed = match (&reached.signed_by, &reached.signed_as) {
            (Some(key), Some(id)) => format!(", signed by {key} as {id}"),
            (Some(key), None) => format!(", signed by {key} without a name: any image of that key could stand there"),
            (None, _) => String::new(),
        };
        self.say(&format!("{name}: {size}, {}{signed}", reached.digest));
        self.image = Some(match self.installation.plan.image_disk() {
            Some(burn) => disk::arriving(reached, burn)?,
            None => {
                let mut incoming = image::Incoming::start(reached, image::Plain::Tar)?;
                incoming.require_tree()?;
                incoming
            }
        });
        Ok(())
    }

    fn rehearse(&self, rehearsal: &Rehearsal) -> Result<()> {
        let began = Instant::now();
        let Rehearsed { filesystems, memory_bytes } = rehearse::rehearse(rehearsal)?;
        let (seconds, memory) = (began.elapsed().as_secs_f64(), crate::text::bytes(memory_bytes));
        self.say(&format!(
            "what is kept came back in rehearsal, filesystems: {filesystems}; {seconds:.1} s, {memory} of memory"
        ));
        Ok(())
    }

    fn tell_point_of_no_return(&self, disks: Vec<MarkedDisk>) -> Result<()> {
        let Installation { plan, allocation, control, .. } = *self.installation;
        let (allocationuuid, order) = (allocation.id.clone(), allocation.order_id().to_owned());
        control.point_of_no_return(&PointOfNoReturn { allocationuuid, order, disks, extents: plan.extents.clone() })
    }

    fn burn_image(&mut self, name: &str, beneath: &Beneath) -> Result<()> {
        let not_reached = || Error::new(Phase::Image, format!("the plan burns {name} without having reached it"));
        let incoming = self.image.take().ok_or_else(not_reached)?;
        let Installation { reporter, inventory, .. } = *self.installation;
        writeback::start_early(inventory.memory_bytes);
        let began = Instant::now();
        let burned = incoming.burn(self.mounts.root(), beneath, &|progress| reporter.progress(progress))?;
        let figures = burned.figures(began.elapsed());
        self.say(&format!("{name}: {figures}"));
        self.burn = Some(figures);
        let (bytes, entries, resumed) = (burned.bytes, burned.entries, burned.resumed);
        self.say(&format!("{name}: {entries} files from {bytes} bytes, connection resumed {resumed} times"));
        for Hidden { path, files } in &burned.hidden {
            self.say(&format!("{path}: {files} files of the image will lie hidden beneath the kept filesystem"));
        }
        let Conflicts { files, first } = burned.conflicts;
        if files > 0 {
            let places = first.join(", ");
            self.say(&format!(
                "{files} files of the image were left out, where a kept directory has their name: {places}"
            ));
        }
        self.hidden = burned.hidden;
        target::marker::forget(&self.root()?)
    }

    fn run_installer(&self, devices: &[String]) -> Result<()> {
        let reporter = self.installation.reporter;
        installer::run(&self.root()?, devices, installer::DEADLINE, &|line| reporter.say(line))
    }

    fn write_machine_files(&self) -> Result<()> {
        let Installation { plan, allocation, machine, inventory, consoles, .. } = *self.installation;
        let root_uuid = self.brought_root_uuid.as_ref().unwrap_or(&plan.root_uuid);
        let machine = target::files::Machine { allocation, id: machine, inventory, consoles, plan, root_uuid };
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

    fn prove_kept(&mut self, kept: &[Kept]) -> Result<()> {
        self.kept = plan::kept::compare(kept, &inventory::read()?);
        let mut changed = plan::kept::differences(&self.kept);
        changed.extend(self.locks.changed());
        if changed.is_empty() {
            self.say(&format!("{} kept objects are what they were", self.kept.len()));
            return Ok(());
        }
        Err(Error::new(Phase::Storage, format!("what was to be kept HAS CHANGED: {}", changed.join("; "))))
    }

    /// All else must be on the disks before it: who has the marker is whole, also after a power cut, and is booted without
    /// replaying a journal.
    fn write_marker(&mut self, marker: &Marker) -> Result<()> {
        self.mounts.write_back()?;
        self.marker = Some(target::marker::write(&self.root()?, marker, OffsetDateTime::now_utc())?);
        self.mounts.write_back()
    }

    fn flush(&mut self, disks: &[String]) -> Result<()> {
        disks.iter().try_for_each(|disk| mount::flush_disk(disk))?;
        self.locks.unlock()
    }

    fn report(&self) -> Result<()> {
        let Installation { plan_text, allocation, reporter, control, .. } = *self.installation;
        let boot = self.boot.clone();
        let boot = boot.ok_or_else(|| Error::new(Phase::Boot, "the plan reports success without a loaded kernel"))?;
        let message = match &self.installation.plan.already {
            Some(marker) => format!("{} is installed already; nothing was written", marker.image),
            None => format!("{} is installed", allocation.image.id),
        };
        control.report(&Report {
            success: true,
            message,
            allocationuuid: allocation.id.clone(),
            step: None,
            kernel: boot.kernel,
            initrd: boot.initrd,
            cmdline: boot.cmdline,
            bootloaderid: boot.bootloader_id,
            timings: reporter.timings(),
            plan: plan_text.to_owned(),
            peak_rss_bytes: peak_rss_bytes(),
            erased: self.erased.clone(),
            order: allocation.order_id().to_owned(),
            untouched: false,
            marker: self.marker.clone(),
            kept: self.kept.clone(),
            hidden: self.hidden.clone(),
            burn: self.burn.clone(),
        })?;
        Ok(())
    }

    fn kexec(&self) -> Result<()> {
        let reporter = self.installation.reporter;
        println!("\n{}", StepTime::table(&reporter.timings()));
        reporter.phase(EventName::BootingNewKernel, "leaving the ramdisk");
        reporter.flush(LAST_WORDS);
        match kexec::start()? {}
    }
}

fn panicked() -> Error {
    Error::new(Phase::Storage, "a thread of drophammer panicked; its words are on the console")
}

/// The most memory that this process has had at one time.
pub fn peak_rss_bytes() -> Option<u64> {
    // Linux counts in KiB (getrusage(2)).
    u64::try_from(getrusage(UsageWho::RUSAGE_SELF).ok()?.max_rss()).ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests;
