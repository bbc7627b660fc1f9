//! Executor of plans. A session is a [`PlanExecutor`]: it holds everything that its plans have mounted, locked and
//! started. A session can execute several plans in succession, such as the parts of a deploy.
//!
//! Only operations of the printed plan are executed, with one exception: a failed installation is made unbootable
//! (`session_cleanup`).

use crate::report::ProgressReporter;
use common::error::{Error, Phase, Result};
use control::{AttemptNotice, ControlPlane};
use device_operation_dispatch::{check_table_edits, run_device_op};
use image::MountsBelow;
use linux::storage::disk_identity::HeldDisks;
use linux::storage::luks;
use linux::storage::mount::MountStack;
use linux::storage::write_protection::WriteLocks;
use model::allocation::{ReleasedSecrets, SecretPurpose};
use model::device_name::DevicePath;
use model::install_marker::InstallMarker;
use model::install_report::{BootEntryRequest, BootInfo, DiskChanges};
use newroot::{NewRoot, crypttab, fstab};
use nix::sys::resource::{UsageWho, getrusage};
use operations::{
    AdaptImage, AdaptMoved, AnnouncePointOfNoReturn, BurnImage, CheckContainers, CheckMigrationCanceled, ExtendFstab,
    FailureState, FindPrograms, GrowFilesystem, InjectFiles, LoadKernel, LockDisk, MountFilesystem, MountReadOnly,
    Operation, PlanStage, PlannedOperation, ProvePreserved, ResolveImage, SeedFilesystem, SessionOp, StageName,
    UndoOperation, UnlockDisk, VerifyDefinition, WriteCrypttab, WriteFstab, WriteK8sVolumeFiles, WriteMachineFiles,
    WriteMarker,
};
use plan::Plan;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use transfer::machine_migration::IncomingMigration;

mod device_operation_dispatch;
mod image_stages;
mod migration_adaptation;
mod migration_receiver;
mod os_create_program;
mod preservation_verification;
mod raw_image;
mod report_and_kexec;
mod session_cleanup;
mod system_completion;

/// Maximum duration for which kexec is delayed to deliver pending events.
pub(crate) const FINAL_EVENTS_TIMEOUT: Duration = Duration::from_secs(3);

/// Mount point of the system that is being installed.
pub(crate) const TARGET: &str = "/run/drophammer/target";

/// State shared between stages, with the operations to undo.
pub(crate) struct PlanExecutor {
    reporter: Arc<ProgressReporter>,
    control: Arc<dyn ControlPlane>,
    trust: ImageTrust,
    /// Text of the plan that is being executed, as it was printed.
    printed: String,
    /// Disks of the plan, which stay open while the plan is executed.
    held: HeldDisks,
    locks: WriteLocks,
    mounts: MountStack,
    image: Option<image::IncomingImage>,
    /// Secrets of the installed system that the control plane has sent separately from the allocation.
    secrets: ReleasedSecrets,
    /// Receiver of a migration; set only on the target machine.
    incoming: Option<IncomingMigration>,
    /// Digest of the sender's certificate. The sender generates a new certificate at each boot. The field is set after
    /// all devices have been received.
    received_from: Option<String>,
    /// UUID of the root filesystem in a raw image; `None` if no raw image was written.
    brought_root_uuid: Option<String>,
    /// Partition, in the raw image, to which cloud-init's seed is written.
    brought_seed: Option<SeedFilesystem>,
    /// Boot entries for the boot loader of the installed system. Empty if the image's installer has installed the
    /// boot loader, because that installer writes the entries itself.
    entries_wanted: Vec<BootEntryRequest>,
    /// Numbers of the boot entries of the installed system that the firmware has stored.
    entries_written: Vec<u16>,
    /// Known boot parameters of a system that is booted through the firmware. Parameters that only the system's boot
    /// loader can determine are missing.
    firmware_boot: Option<BootInfo>,
    /// Device that is mounted at `/` of the target.
    root_device: Option<DevicePath>,
    facts: RunFacts,
    /// Operations to undo, oldest first.
    undo: Vec<UndoOperation>,
}

/// Requirements that an image must meet to be accepted.
#[derive(Debug, Clone, Default)]
pub(crate) struct ImageTrust {
    /// Public keys of the signers whose images are trusted.
    pub keys: image::SignatureKeys,
    /// Oldest permitted version of each operating system.
    pub minimum: image::MinimumVersions,
}

/// Results of the plans that a session has executed so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunFacts {
    /// Kernel that is loaded for kexec.
    pub boot: Option<BootInfo>,
    /// Install marker that this run has written; `None` if it has not written a marker.
    pub marker: Option<InstallMarker>,
    pub done: DiskChanges,
}

/// Failure of a stage of the plan.
#[derive(Debug)]
pub(crate) struct StageFailure {
    pub stage: StageName,
    pub leaves: FailureState,
    pub past_point_of_no_return: bool,
    pub error: Error,
    /// Changes that this run made to the disks before it failed.
    pub done: Box<DiskChanges>,
}

impl PlanExecutor {
    pub(crate) fn new(
        reporter: Arc<ProgressReporter>,
        control: Arc<dyn ControlPlane>,
        trust: ImageTrust,
    ) -> PlanExecutor {
        PlanExecutor {
            reporter,
            control,
            trust,
            printed: String::new(),
            held: HeldDisks::default(),
            locks: WriteLocks::default(),
            mounts: MountStack::new(TARGET),
            image: None,
            secrets: ReleasedSecrets::default(),
            incoming: None,
            received_from: None,
            brought_root_uuid: None,
            brought_seed: None,
            entries_wanted: Vec::new(),
            entries_written: Vec::new(),
            firmware_boot: None,
            root_device: None,
            facts: RunFacts::default(),
            undo: Vec::new(),
        }
    }

    /// Runs the stages in order until the first error. A plan that ends with `boot.kexec` does not return on success.
    ///
    /// # Errors
    /// Fails at the first operation that fails. Before the error is returned, the session unmounts and unlocks
    /// everything as far as possible, and makes an incomplete installation unbootable.
    pub(crate) fn run_plan(&mut self, plan: &Plan) -> Result<RunFacts, StageFailure> {
        self.printed = plan.to_string();
        let reporter = self.reporter.clone();
        for (index, stage) in plan.stages.iter().enumerate() {
            if let Err(error) = reporter.run_stage(stage.name.as_str(), || {
                check_table_edits(plan, stage.name)?;
                self.run_stage(stage)
            }) {
                let error = error.with_default_code(stage.name.error_code());
                let leaves = plan.state_after_failure(index);
                self.leave_session(leaves);
                let past_point_of_no_return = index >= plan.point_of_no_return;
                let done = Box::new(self.facts.done.clone());
                return Err(StageFailure { stage: stage.name, leaves, past_point_of_no_return, error, done });
            }
        }
        Ok(self.facts.clone())
    }

    fn run_stage(&mut self, stage: &PlanStage) -> Result<()> {
        if stage.name.runs_concurrently() {
            self.run_concurrently(&stage.operations)?;
        } else {
            stage.operations.iter().try_for_each(|operation| self.run_operation(operation))?;
        }
        if stage.name.is_destructive() {
            self.locks.verify_locks()?;
        }
        session_cleanup::mark_wipes_complete(&mut self.undo);
        Ok(())
    }

    /// Runs operations on different devices concurrently. The slowest disk then determines the duration.
    fn run_concurrently(&mut self, operations: &[Operation]) -> Result<()> {
        let mut on_devices = Vec::new();
        for operation in operations {
            match operation {
                Operation::Device(on) => {
                    self.verify_paths(operation)?;
                    on_devices.push((operation, on));
                }
                Operation::Run(_) => self.run_operation(operation)?,
            }
        }
        // The undo is recorded only after all paths are verified, because the undo of an operation writes its device
        // even if the operation was never started.
        on_devices.iter().for_each(|(operation, _)| self.record_undo(operation));
        let reporter = &*self.reporter;
        let results: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> =
                on_devices.iter().map(|(_, on)| scope.spawn(|| run_device_op(on, reporter))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panic_error()))).collect()
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
        let joined = Error::new(failures[0].phase, texts.join("; "));
        let code = failures.iter().find_map(Error::specific_code);
        Err(code.map_or_else(|| Error::new(failures[0].phase, texts.join("; ")), |code| joined.with_code(code)))
    }

    fn run_operation(&mut self, operation: &Operation) -> Result<()> {
        self.verify_paths(operation)?;
        self.record_undo(operation);
        match operation {
            Operation::Device(operation) => {
                self.facts.done.erased.extend(run_device_op(operation, &self.reporter)?);
                Ok(())
            }
            Operation::Run(operation) => self.run_session_op(operation),
        }
    }

    /// Verifies the device paths that an operation passes to a tool or the kernel.
    ///
    /// # Errors
    /// Fails if a path leads to a disk that is not the disk in the plan. In that case, the operation has not written
    /// anything.
    fn verify_paths(&self, operation: &Operation) -> Result<()> {
        operation.effect().opened.into_iter().try_for_each(|device| self.held.verify_underlying_disks(device))
    }

    /// Records how to undo an operation. Called before the operation, since a partial operation must also be
    /// undone.
    fn record_undo(&mut self, operation: &Operation) {
        // If the operation itself does what a recorded undo would do later, this undo is no longer needed.
        if let Operation::Device(operation) = operation {
            self.undo.retain(|undo| !session_cleanup::is_done_by(undo, operation));
        }
        self.undo.extend(operation.effect().undo);
    }

    fn run_session_op(&mut self, operation: &SessionOp) -> Result<()> {
        match operation {
            SessionOp::VerifyDefinition(VerifyDefinition { os, chosen, .. }) => self.verify_definition(os, chosen),
            SessionOp::FindPrograms(FindPrograms { os, programs }) => self.find_programs(os, programs),
            SessionOp::IdentifyDisk(identity) => self.held.hold_disk(identity),
            SessionOp::CheckContainers(CheckContainers(containers)) => luks::check_requirements(containers),
            SessionOp::ResolveImage(ResolveImage { name, image, onto, needs, .. }) => {
                self.open_image(name, image, onto.as_ref(), needs.as_ref())
            }
            SessionOp::LockDisk(lock) => self.lock_disk(lock),
            SessionOp::UnlockDisk(unlock) => self.unlock_disk(unlock),
            SessionOp::Rehearse(rehearsal) => self.run_rehearsal(rehearsal),
            SessionOp::AnnouncePointOfNoReturn(announcement) => self.announce_point_of_no_return(announcement),
            SessionOp::CheckMigrationCanceled(CheckMigrationCanceled { order }) => self.check_migration_stands(order),
            SessionOp::Mount(filesystem) => self.mount_filesystem(filesystem),
            SessionOp::MountReadOnly(MountReadOnly(filesystem)) => self.mounts.mount_read_only(filesystem),
            SessionOp::BurnImage(BurnImage { name, hidden, merged, fresh, memory_bytes }) => {
                self.write_image(name, &MountsBelow { hidden, merged, fresh }, *memory_bytes)
            }
            SessionOp::BurnDisk(burn) => self.write_raw_image(burn),
            SessionOp::CreateSystem(create) => self.run_create_program(create),
            SessionOp::Receive(receive) => self.receive_system(receive),
            SessionOp::AdaptMoved(AdaptMoved(finishing)) => self.adapt_migrated(finishing),
            SessionOp::GrowFilesystem(GrowFilesystem(mount)) => self.grow_filesystem(mount),
            SessionOp::WriteMachineFiles(WriteMachineFiles { files }) => self.write_machine_files(files),
            SessionOp::InjectFiles(InjectFiles(files)) => {
                newroot::injected_files::inject_files(&self.open_root()?, files)
            }
            SessionOp::Finish(finishing) => self.finish_tree(finishing),
            SessionOp::AdaptImage(AdaptImage(finishing)) => self.adapt_image(finishing),
            SessionOp::WriteK8sVolumeFiles(volumes) => self.write_volumes(volumes),
            SessionOp::ExtendFstab(ExtendFstab(entries)) => fstab::extend_fstab(&self.open_root()?, entries),
            SessionOp::WriteFstab(WriteFstab(entries)) => fstab::write_fstab(&self.open_root()?, entries),
            SessionOp::WriteCrypttab(entries) => self.write_crypttab(entries),
            SessionOp::FindBootLoader => self.find_loader(),
            SessionOp::RemoveVariables(removal) => self.remove_variables(removal),
            SessionOp::WriteBootEntries(entries) => self.write_boot_entries(entries),
            SessionOp::LoadKernel(LoadKernel { installed_esps }) => self.load_kernel(installed_esps.as_deref()),
            SessionOp::ProvePreserved(ProvePreserved(preserved)) => self.verify_preserved(preserved),
            SessionOp::WriteMarker(WriteMarker(marker)) => self.write_marker(marker),
            SessionOp::Unmount => self.unmount_target(),
            SessionOp::FlushDisks(flush) => self.flush_disks(flush),
            SessionOp::Report(closing) => self.report_success(closing),
            SessionOp::Kexec => self.start_kernel(),
        }
    }

    fn mount_filesystem(&mut self, filesystem: &MountFilesystem) -> Result<()> {
        self.mounts.mount_filesystem(filesystem)?;
        if filesystem.path == "/" {
            self.root_device = Some(filesystem.device.clone());
        }
        Ok(())
    }

    fn lock_disk(&mut self, LockDisk { device, untouched }: &LockDisk) -> Result<()> {
        self.locks.lock_disk(device)?;
        self.locks.record_digests(device, untouched);
        Ok(())
    }

    /// Makes a preserved disk or partition writable, after verifying that no process could write to any locked device
    /// so far.
    fn unlock_disk(&mut self, UnlockDisk { device, others }: &UnlockDisk) -> Result<()> {
        self.locks.verify_locks()?;
        self.locks.unlock_disk(device, others)
    }

    fn announce_point_of_no_return(&mut self, announcement: &AnnouncePointOfNoReturn) -> Result<()> {
        let AnnouncePointOfNoReturn { allocation, order, disks, extents, approved, secret_digest } = announcement;
        let (order, approved, secret_digest) = (order.as_deref(), approved.as_deref(), secret_digest.as_deref());
        let notice = AttemptNotice { allocation, order, disks, extents, approved, secret_digest };
        self.control.announce_point_of_no_return(&notice)?;
        // The secrets are fetched before the first write: if fetching failed later, the machine would be left without a
        // system.
        self.secrets = self.control.fetch_secrets(SecretPurpose::System)?.unwrap_or_default();
        Ok(())
    }

    fn write_volumes(&mut self, volumes: &WriteK8sVolumeFiles) -> Result<()> {
        let root = self.open_root()?;
        self.facts.done.volumes = newroot::k8s_volumes::write_volumes(&root, volumes, &|line| self.print_line(line))?;
        Ok(())
    }

    fn write_crypttab(&self, WriteCrypttab(entries): &WriteCrypttab) -> Result<()> {
        crypttab::extend_crypttab(&self.open_root()?, entries, &|line| self.print_line(line))
    }

    fn print_line(&self, line: &str) {
        self.reporter.print_line(line);
    }

    fn open_root(&self) -> Result<NewRoot> {
        NewRoot::open(self.mounts.root())
    }
}

fn panic_error() -> Error {
    Error::new(Phase::Storage, "internal error: a thread of drophammer panicked; see the console")
}

/// Returns the peak resident memory of this process.
pub(crate) fn peak_rss_bytes() -> Option<u64> {
    // Linux reports this value in KiB (getrusage(2)).
    u64::try_from(getrusage(UsageWho::RUSAGE_SELF).ok()?.max_rss()).ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests;
