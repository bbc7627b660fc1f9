//! A session runs the operations of plans and nothing else. It owns what a run carries, and lives as long as the agent: it can be
//! handed one plan now and another one minutes later.
//!
//! What is not in the printed plan does not happen, with one exception: what an installation that fails half-way has made is made
//! unbootable (`undo`).

use crate::allocation::{ReleasedSecrets, SecretPurpose};
use crate::control::{AttemptNotice, Control};
use crate::error::{Error, Phase, Result};
use crate::facts::{BootInfo, Done, EntryWanted};
use crate::image::{self, Beneath};
use crate::marker::Marker;
use crate::moving::whole::Incoming;
use crate::plan::{Leaves, OfRun, OnDevice, Operation, Plan, Seed, Stage, StageName};
use crate::report::Reporter;
use crate::storage::identify::Held;
use crate::storage::lock::Locks;
use crate::storage::luks;
use crate::storage::mount::Mounts;
use crate::target::{self, Root, crypttab, fstab};
use alone::on_device;
use nix::sys::resource::{UsageWho, getrusage};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use undo::Undo;

mod alone;
mod closing;
mod created;
mod disk;
mod incoming;
mod moved;
mod paths;
mod tree;
mod undo;

/// Events that still wait get so long before kexec.
pub const LAST_WORDS: Duration = Duration::from_secs(3);

/// Where the target is mounted while it is made.
pub const TARGET: &str = "/run/drophammer/target";

/// What the stages hand on to each other, and what is to be taken back.
pub struct Session {
    reporter: Arc<Reporter>,
    control: Arc<dyn Control>,
    trust: Trust,
    /// The plan that runs, as it was printed.
    printed: String,
    /// The disks of the plan.
    held: Held,
    locks: Locks,
    mounts: Mounts,
    image: Option<image::Incoming>,
    /// Secrets of the installed system that the control plane has released separately.
    secrets: ReleasedSecrets,
    /// Where another machine brings what was on its disks.
    incoming: Option<Incoming>,
    /// Names the boot of that machine in which it has brought all.
    received_from: Option<String>,
    /// Of the filesystem with `/` that a raw image has brought.
    brought_root_uuid: Option<String>,
    /// The partition for cloud-init's seed that a raw image has brought.
    brought_seed: Option<Seed>,
    /// What the boot loader wants the firmware to know. Empty when the image's installer has made it, and told the firmware itself.
    entries_wanted: Vec<EntryWanted>,
    facts: Facts,
    /// Oldest first.
    undo: Vec<Undo>,
}

/// What an image must prove.
#[derive(Debug, Clone, Default)]
pub struct Trust {
    /// Who may have signed it.
    pub keys: image::Keys,
    /// How old it may be.
    pub minimum: image::Minimum,
}

/// What a session has done and found so far.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// What is loaded for kexec.
    pub boot: Option<BootInfo>,
    /// As it is on the disk.
    pub marker: Option<Marker>,
    pub done: Done,
}

/// Which stage failed, and whether the old system is still whole.
#[derive(Debug)]
pub struct Failure {
    pub stage: StageName,
    pub leaves: Leaves,
    pub past_point_of_no_return: bool,
    pub error: Error,
    /// All that was done until then.
    pub done: Box<Done>,
}

impl Session {
    pub fn new(reporter: Arc<Reporter>, control: Arc<dyn Control>, trust: Trust) -> Session {
        Session {
            reporter,
            control,
            trust,
            printed: String::new(),
            held: Held::default(),
            locks: Locks::default(),
            mounts: Mounts::new(TARGET),
            image: None,
            secrets: ReleasedSecrets::default(),
            incoming: None,
            received_from: None,
            brought_root_uuid: None,
            brought_seed: None,
            entries_wanted: Vec::new(),
            facts: Facts::default(),
            undo: Vec::new(),
        }
    }

    /// Runs the stages in their order and stops at the first error. A plan that ends in `boot.kexec` does not return when all is
    /// well.
    ///
    /// # Errors
    /// The first operation that fails. The session has been left then: everything is unmounted and unlocked as far as possible,
    /// and what was made is not bootable unless it was complete.
    pub fn run(&mut self, plan: &Plan) -> Result<Facts, Failure> {
        self.printed = plan.to_string();
        let reporter = self.reporter.clone();
        for (index, stage) in plan.stages.iter().enumerate() {
            if let Err(error) = reporter.stage(stage.name.as_str(), || self.stage(stage)) {
                let leaves = plan.leaves(index);
                self.leave(leaves);
                let past_point_of_no_return = index >= plan.point_of_no_return;
                let done = Box::new(self.facts.done.clone());
                return Err(Failure { stage: stage.name, leaves, past_point_of_no_return, error, done });
            }
        }
        Ok(self.facts.clone())
    }

    fn stage(&mut self, stage: &Stage) -> Result<()> {
        if stage.name.runs_side_by_side() {
            self.side_by_side(&stage.operations)?;
        } else {
            stage.operations.iter().try_for_each(|operation| self.operation(operation))?;
        }
        undo::wipes_are_whole(&mut self.undo);
        Ok(())
    }

    /// Each works on a device of its own: the slowest disk sets the time, not their number.
    fn side_by_side(&mut self, operations: &[Operation]) -> Result<()> {
        let mut on_devices = Vec::new();
        for operation in operations {
            match operation {
                Operation::Device(on) => {
                    self.prove_paths(operation)?;
                    on_devices.push(on);
                }
                Operation::Run(of) => self.of_run(of)?,
            }
        }
        on_devices.iter().for_each(|operation| self.note(operation));
        let reporter = &*self.reporter;
        let results: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> =
                on_devices.iter().map(|operation| scope.spawn(|| on_device(operation, reporter))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked()))).collect()
        });
        let mut failures = Vec::new();
        for result in results {
            match result {
                Ok(erased) => self.facts.done.erased.extend(erased),
                Err(error) => failures.push(error),
            }
        }
        if failures.len() < 2 {
            return failures.pop().map_or(Ok(()), Err);
        }
        let texts: Vec<String> = failures.iter().map(Error::to_string).collect();
        Err(Error::new(failures[0].phase, texts.join("; ")))
    }

    fn operation(&mut self, operation: &Operation) -> Result<()> {
        self.prove_paths(operation)?;
        match operation {
            Operation::Device(operation) => {
                self.note(operation);
                self.facts.done.erased.extend(on_device(operation, &self.reporter)?);
                Ok(())
            }
            Operation::Run(operation) => self.of_run(operation),
        }
    }

    /// How the operation is taken back. Before it runs, not after: half of it is to be taken back too.
    fn note(&mut self, operation: &OnDevice) {
        match Undo::of(operation) {
            Some(undo) => self.undo.push(undo),
            None => self.undo.retain(|undo| !matches!(undo, Undo::TakeDown(down) if down == operation)),
        }
    }

    fn of_run(&mut self, operation: &OfRun) -> Result<()> {
        match operation {
            OfRun::VerifyDefinition { os, chosen, .. } => self.verify_definition(os, chosen),
            OfRun::FindPrograms { os, programs } => self.find_programs(os, programs),
            OfRun::IdentifyDisk(identity) => self.held.hold(identity),
            OfRun::CheckContainers(containers) => luks::check(containers),
            OfRun::ReachImage { name, image, onto, needs, .. } => {
                self.reach_image(name, image, onto.as_ref(), needs.as_ref())
            }
            OfRun::LockDisk { device, untouched } => {
                self.undo.push(Undo::Unlock);
                self.locks.lock(device)?;
                self.locks.remember(device, untouched);
                Ok(())
            }
            OfRun::UnlockDisk { device, others } => self.locks.unlock_disk(device, others),
            OfRun::Rehearse(rehearsal) => self.rehearse(rehearsal),
            OfRun::TellPointOfNoReturn { allocation, order, disks, extents, approved, secret_digest } => {
                let (order, approved, secret_digest) =
                    (order.as_deref(), approved.as_deref(), secret_digest.as_deref());
                let notice = AttemptNotice { allocation, order, disks, extents, approved, secret_digest };
                self.control.point_of_no_return(&notice)?;
                // Before the first write: a later failure to fetch them would leave the machine without a system.
                self.secrets = self.control.secrets(SecretPurpose::System)?.unwrap_or_default();
                Ok(())
            }
            OfRun::MoveStands { order } => self.move_stands(order),
            OfRun::Mount(filesystem) => {
                self.undo.push(Undo::Unmount);
                self.mounts.mount(filesystem)
            }
            OfRun::MountReadOnly(filesystem) => {
                self.undo.push(Undo::Unmount);
                self.mounts.mount_read_only(filesystem)
            }
            OfRun::BurnImage { name, hidden, merged, fresh, memory_bytes } => {
                self.burn_image(name, &Beneath { hidden, merged, fresh }, *memory_bytes)
            }
            OfRun::BurnDisk(burn) => {
                // Its tables too: nobody knows what else of it can boot.
                self.undo.push(Undo::Made(burn.device.clone()));
                self.burn_disk(burn)
            }
            OfRun::CreateSystem(create) => self.create_system(create),
            OfRun::Receive(receive) => self.receive(receive),
            OfRun::AdaptMoved(finishing) => self.adapt_moved(finishing),
            OfRun::GrowFilesystem(mount) => self.grow(mount),
            OfRun::WriteMachineFiles { files } => self.write_machine_files(files),
            OfRun::InjectFiles(files) => target::inject::inject(&self.root()?, files),
            OfRun::Finish(finishing) => self.finish(finishing),
            OfRun::AdaptImage(finishing) => self.adapt_image(finishing),
            OfRun::WritePersistent(write) => {
                self.facts.done.volumes = target::volumes::write(&self.root()?, write, &|line| self.say(line))?;
                Ok(())
            }
            OfRun::ExtendFstab(entries) => fstab::extend(&self.root()?, entries),
            OfRun::WriteFstab(entries) => fstab::write(&self.root()?, entries),
            OfRun::WriteCrypttab(entries) => crypttab::write(&self.root()?, entries, &|line| self.say(line)),
            OfRun::FindLoader => self.find_loader(),
            OfRun::RemoveVariables(removal) => self.remove_variables(removal),
            OfRun::WriteBootEntries(entries) => {
                self.write_boot_entries(entries);
                Ok(())
            }
            OfRun::LoadKernel => self.load_kernel(),
            OfRun::ProveKept(kept) => self.prove_kept(kept),
            OfRun::WriteMarker(marker) => self.write_marker(marker),
            OfRun::Unmount => self.unmount(),
            OfRun::FlushDisks { disks } => self.flush(disks),
            OfRun::Report(closing) => self.report(closing),
            OfRun::Kexec => self.kexec(),
        }
    }

    fn say(&self, line: &str) {
        self.reporter.say(line);
    }

    fn root(&self) -> Result<Root> {
        Root::open(self.mounts.root())
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
