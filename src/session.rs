//! Executor of plans. A session owns the state of a run and lives as long as the agent, so it can run several plans one after another.
//!
//! Only operations of the printed plan are executed, with one exception: the results of an installation that fails are made unbootable
//! (`undo`).

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

/// Time to deliver pending events before kexec.
pub const LAST_WORDS: Duration = Duration::from_secs(3);

/// Mount point of the target.
pub const TARGET: &str = "/run/drophammer/target";

/// State shared between stages, with the operations to undo.
pub struct Session {
    reporter: Arc<Reporter>,
    control: Arc<dyn Control>,
    trust: Trust,
    /// Printed form of the running plan.
    printed: String,
    /// Disks of the plan.
    held: Held,
    locks: Locks,
    mounts: Mounts,
    image: Option<image::Incoming>,
    /// Secrets of the installed system that the control plane has released separately.
    secrets: ReleasedSecrets,
    /// Receiving end of a migration.
    incoming: Option<Incoming>,
    /// Digest that identifies the sender and its boot after everything was received.
    received_from: Option<String>,
    /// UUID of the filesystem with `/` of a raw image.
    brought_root_uuid: Option<String>,
    /// Partition for cloud-init's seed of a raw image.
    brought_seed: Option<Seed>,
    /// Boot entries that the boot loader requires. Empty if the image's installer created it, which writes them itself.
    entries_wanted: Vec<EntryWanted>,
    facts: Facts,
    /// Operations to undo, oldest first.
    undo: Vec<Undo>,
}

/// Requirements for an image.
#[derive(Debug, Clone, Default)]
pub struct Trust {
    /// Keys of trusted signers.
    pub keys: image::Keys,
    /// Oldest acceptable version of each operating system.
    pub minimum: image::Minimum,
}

/// Results of a session so far.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Kernel that is loaded for kexec.
    pub boot: Option<BootInfo>,
    /// Install marker as written.
    pub marker: Option<Marker>,
    pub done: Done,
}

/// Failure of a stage.
#[derive(Debug)]
pub struct Failure {
    pub stage: StageName,
    pub leaves: Leaves,
    pub past_point_of_no_return: bool,
    pub error: Error,
    /// Changes to the disks before the failure.
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

    /// Runs the stages in order until the first error. A plan that ends with `boot.kexec` does not return on success.
    ///
    /// # Errors
    /// Fails at the first operation that fails. The session has been left then: everything is unmounted and unlocked as far as possible,
    /// and the results are unbootable unless complete.
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

    /// Runs operations on separate devices concurrently, so that the slowest disk determines the duration.
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

    /// Records how to undo an operation. Called before the operation, since a partial operation must be undone too.
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
                // Fetched before the first write: a later failure would leave the machine without a system.
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
                // Erases partition tables too, since it is unknown what else is bootable.
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
    Error::new(Phase::Storage, "a thread of drophammer panicked; see the console")
}

/// Returns the peak resident memory of this process.
pub fn peak_rss_bytes() -> Option<u64> {
    // Linux counts in KiB (getrusage(2)).
    u64::try_from(getrusage(UsageWho::RUSAGE_SELF).ok()?.max_rss()).ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests;
