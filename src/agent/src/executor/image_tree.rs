//! Operations on the image, and on the root directory that the image is extracted to.

use super::{PlanExecutor, panic_error, raw_image};
use common::diagnostic;
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use image::{FileConflicts, MountsBelow};
use linux::storage::writeback;
use linux::verify_program::{VerifyVerdict, run_verify};
use model::allocation::{self, SecretPurpose};
use model::architecture::Architecture;
use model::install_marker::InstallMarker;
use model::install_report::{BootEntryRequest, BootInfo, HiddenFiles};
use model::os_definition::SelectedDefinition;
use newroot::NewRoot;
use newroot::boot::boot_discovery::BootSource;
use newroot::boot::boot_info::{read_boot_info, write_boot_info};
use newroot::boot::{boot_discovery, efi, kexec};
use newroot::system_setup::selinux;
use newroot::system_setup::{self, BootRecord};
use operations::{BootEntries, BurnDisk, FinishInputs, ImageNeeds, MachineFiles, RemoveVariables};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use time::OffsetDateTime;

/// Timeout of the `verify` program of an OS definition. The program needs less time even on an emulated machine.
const VERIFY_DEADLINE: Duration = Duration::from_secs(60);

impl PlanExecutor {
    pub(super) fn open_image(
        &mut self,
        name: &str,
        image: &allocation::AllocatedImage,
        onto: Option<&BurnDisk>,
        needs: Option<&ImageNeeds>,
    ) -> Result<()> {
        let super::ImageTrust { keys, minimum } = self.trust.clone();
        let allocation::AllocatedImage { id, url, mirrors, digest, mut pull_secrets, .. } = image.clone();
        let released = self.control.fetch_secrets(SecretPurpose::Image)?;
        pull_secrets.extend(released.into_iter().flat_map(|released| released.pull_secrets));
        let digest = image::parse_given_digest(digest.as_deref(), &url)?;
        let source = image::ImageSource { url, id: Some(id), mirrors, digest, pull_secrets, keys, minimum };
        let reached = image::resolve_image(&source)?;
        let size = reached.size_bytes().map_or("unknown size".to_owned(), |bytes| format!("{bytes} bytes"));
        let signed = match (&reached.signed_by, &reached.signed_as) {
            (Some(key), Some(id)) => format!(", signed by {key} as {id}"),
            (Some(key), None) => {
                format!(
                    ", signed by {key} without an image name: the signature does not prove that this is the requested image"
                )
            }
            (None, _) => String::new(),
        };
        self.print_line(&format!("{name}: {size}, {}{signed}", reached.digest));
        if let (Some(needs), Some(contents)) = (needs, reached.contents()) {
            let judgement = needs.find_image_deficiencies(contents);
            if !judgement.refused.is_empty() {
                let code = judgement.refused.iter().find_map(|problem| problem.code);
                return Err(Error::refusal(Phase::Image, diagnostic::join_problems(&judgement.refused))
                    .with_code(code.unwrap_or(ErrorCode::ImageNotBootable)));
            }
            // If the control plane has sent the list of the image's contents, these warnings about the image were
            // already printed with the plan.
            if image.contents.is_none() {
                judgement.warnings.iter().for_each(|warning| self.print_line(&format!("WARNING: {warning}")));
            }
        }
        self.image = Some(match onto {
            Some(burn) => raw_image::start_raw_image(reached, burn)?,
            None => {
                let mut incoming = image::IncomingImage::start(reached, image::PayloadKind::Tar)?;
                incoming.require_tree()?;
                incoming
            }
        });
        Ok(())
    }

    /// Runs the `verify` program of an OS definition. The server may have been unable to run this program, so the agent
    /// runs it in the ramdisk in any case.
    pub(super) fn verify_definition(&self, os: &str, chosen: &SelectedDefinition) -> Result<()> {
        let refused = |why: String| Err(Error::refusal(Phase::Image, why).with_code(ErrorCode::VerifyProgram));
        match run_verify(chosen, VERIFY_DEADLINE) {
            VerifyVerdict::Good => Ok(()),
            VerifyVerdict::Refused(why) => refused(format!("the verify program of {os} rejects the parameters: {why}")),
            VerifyVerdict::NotRun(why) => {
                refused(format!("cannot run the verify program of {os} in this ramdisk: {why}"))
            }
        }
    }

    /// Returns the image that an earlier stage has opened.
    pub(super) fn take_image(&mut self, name: &str) -> Result<image::IncomingImage> {
        let not_reached = || {
            Error::new(
                Phase::Image,
                format!("internal error: the plan writes image {name}, which was not opened before"),
            )
        };
        self.image.take().ok_or_else(not_reached)
    }

    pub(super) fn write_image(&mut self, name: &str, beneath: &MountsBelow, memory_bytes: u64) -> Result<()> {
        let incoming = self.take_image(name)?;
        let reporter = &*self.reporter;
        writeback::limit_dirty_memory(memory_bytes);
        let began = Instant::now();
        let burned =
            incoming.burn_to_root(self.mounts.root(), beneath, &|progress| reporter.report_progress(progress))?;
        let figures = burned.to_figures(began.elapsed());
        self.print_line(&format!("{name}: {figures}"));
        self.facts.done.burn = Some(figures);
        let (bytes, entries, resumed) = (burned.bytes, burned.entries, burned.resumed);
        self.print_line(&format!(
            "image {name}: {entries} files from {bytes} bytes of image data; the connection was resumed {resumed} times"
        ));
        for HiddenFiles { path, files } in &burned.hidden {
            self.print_line(&format!(
                "{path}: {files} files of the image will be hidden by the preserved filesystem that is mounted at \
                this path"
            ));
        }
        let FileConflicts { files, first } = burned.conflicts;
        if files > 0 {
            let places = first.join(", ");
            self.print_line(&format!(
                "{files} files of the image were skipped, because preserved directories have the same paths: {places}"
            ));
        }
        self.facts.done.hidden = burned.hidden;
        newroot::marker_file::remove_marker(&self.open_root()?)
    }

    pub(super) fn write_machine_files(&self, files: &MachineFiles) -> Result<()> {
        let root = self.open_root()?;
        let files = &self.add_secrets(files);
        let allocation = &files.assigned.allocation;
        // If the image lacks its required installer, a later operation fails and reports the missing installer.
        let is_read = system_setup::Finisher::choose(&root, allocation.finisher())
            .is_ok_and(system_setup::Finisher::reads_password);
        let password = if is_read { allocation.console_password.as_str() } else { "" };
        newroot::metal_installer_files::write_metal_files(
            &root,
            files,
            self.root_uuid(files),
            password,
            OffsetDateTime::now_utc(),
        )
    }

    /// Returns the inputs for files of the installed system, completed with the secrets that the control plane has sent
    /// separately from the allocation.
    fn add_secrets(&self, files: &MachineFiles) -> MachineFiles {
        let mut files = files.clone();
        files.assigned.allocation = self.secrets.fill_secrets(files.assigned.allocation);
        files
    }

    /// Returns the inputs of an operation, completed with the secrets that the control plane has sent separately from
    /// the allocation.
    pub(super) fn finishing_with_secrets(&self, finishing: &FinishInputs) -> FinishInputs {
        FinishInputs { files: Box::new(self.add_secrets(&finishing.files)), ..finishing.clone() }
    }

    pub(super) fn finish_tree(&mut self, finishing: &FinishInputs) -> Result<()> {
        let finishing = &self.finishing_with_secrets(finishing);
        let (root, reporter) = (self.open_root()?, &*self.reporter);
        let root_uuid = self.root_uuid(&finishing.files);
        let now = OffsetDateTime::now_utc();
        // The image's programs use only one CPU. Meanwhile, another thread writes the image's dirty pages to the disk.
        let mounts = &self.mounts;
        let boots = thread::scope(|scope| {
            let early = scope.spawn(|| mounts.write_back_early());
            let made = system_setup::finish_tree(&root, finishing, root_uuid, now, &|line| reporter.print_line(line));
            let early = early.join().unwrap_or_else(|_| Err(panic_error()));
            made.and_then(|boots| early.map(|()| boots))
        })?;
        match boots {
            BootRecord::Written => Ok(()),
            BootRecord::Created(booting) => {
                write_boot_info(&booting.info, &root)?;
                self.entries_wanted = booting.entries;
                Ok(())
            }
            // `false`: an image that consists of files does not contain an installed boot loader, so the system can be
            // booted only by kexec.
            BootRecord::Unknown => match self.describe_boot(&root, false)? {
                None => Ok(()),
                Some(reason) => Err(Error::new(Phase::Boot, reason)),
            },
        }
    }

    /// Finds the boot parameters of the installed system. Returns `None` if the system can be booted by kexec. If only
    /// the system's boot loader can determine the parameters, returns the reason; the machine is then booted through
    /// its firmware.
    fn describe_boot(&mut self, root: &NewRoot, has_loader: bool) -> Result<Option<String>> {
        match boot_discovery::write_missing_boot_info(root, has_loader)? {
            BootSource::BootInfo => Ok(None),
            BootSource::Config(from) => {
                self.print_line(&format!("the kernel, the initrd and the kernel arguments are taken from {from}"));
                Ok(None)
            }
            BootSource::Firmware { known, reason } => {
                self.firmware_boot = Some(known);
                Ok(Some(reason))
            }
        }
    }

    /// Finds the boot parameters of a system that has its own boot loader.
    pub(super) fn describe_boot_with_loader(&mut self, root: &NewRoot) -> Result<()> {
        if let Some(reason) = self.describe_boot(root, true)? {
            self.print_line(&format!(
                "WARNING: {reason}: the machine reboots through its firmware instead of by kexec"
            ));
        }
        Ok(())
    }

    /// Returns the UUID of the root filesystem: from the raw image if a raw image was written, otherwise from the plan.
    pub(super) fn root_uuid<'a>(&'a self, files: &'a MachineFiles) -> &'a str {
        self.brought_root_uuid.as_ref().unwrap_or(&files.root_uuid)
    }

    /// Finds the boot loader that the image contains.
    pub(super) fn find_loader(&mut self) -> Result<()> {
        let loader = efi::loader::find_loader(&self.open_root()?, Architecture::NATIVE)?;
        self.print_line(&format!("boot loader of the image: {loader}"));
        self.entries_wanted = vec![BootEntryRequest { esp: 0, loader, arguments: String::new() }];
        Ok(())
    }

    /// Writes boot entries, or prints a line if the image's installer has already written them.
    pub(super) fn write_boot_entries(&self, planned: &BootEntries) {
        if self.entries_wanted.is_empty() {
            return self.print_line("boot entries: written by the image's installer");
        }
        efi::write_boot_entries(Path::new(efi::VARIABLES), planned, &self.entries_wanted, &|line| {
            self.print_line(line)
        });
    }

    pub(super) fn remove_variables(&self, removal: &RemoveVariables) -> Result<()> {
        efi::remove_variables(Path::new(efi::VARIABLES), removal, &|line| self.print_line(line))
    }

    pub(super) fn load_kernel(&mut self) -> Result<()> {
        if let Some(boot) = &self.firmware_boot {
            self.print_line("no kernel is loaded: the boot loader of the image starts the system");
            self.facts.boot = Some(boot.clone());
            return Ok(());
        }
        let root = self.open_root()?;
        let boot = read_boot_info(&root)?;
        if !kexec::is_supported() {
            return self.boot_through_firmware(boot);
        }
        let first = selinux::add_relabeling_arguments(&root, &boot);
        self.print_line(&format!("{} {}", first.kernel, first.cmdline));
        kexec::load_from_root(&root, &first)?;
        self.facts.boot = Some(boot);
        Ok(())
    }

    /// Prepares a reboot into the installed system through the firmware, because the kernel of the ramdisk does not
    /// support kexec. If the boot entry cannot be selected, the firmware's boot order decides, which is sufficient
    /// after an installation: a server that has received the report of success boots the machine from its disk.
    fn boot_through_firmware(&mut self, boot: BootInfo) -> Result<()> {
        let selected = efi::boot_own_entry_next(Path::new(efi::VARIABLES));
        match selected {
            Ok(entry) => self.print_line(&format!(
                "no kernel is loaded, because this kernel does not support kexec: the firmware starts {entry} at the next boot"
            )),
            Err(error) if !self.entries_wanted.is_empty() => self.print_line(&format!(
                "WARNING: this kernel does not support kexec, and the boot entry of the system cannot be selected: {error}. \
                 The machine reboots, and the firmware's boot order applies"
            )),
            Err(error) => return Err(error),
        }
        self.facts.boot = Some(boot.clone());
        self.firmware_boot = Some(boot);
        Ok(())
    }

    /// Writes the install marker after everything else is on the disks. A system that has a marker is therefore
    /// complete even after a power failure, and boots without journal replay.
    pub(super) fn write_marker(&mut self, marker: &InstallMarker) -> Result<()> {
        self.mounts.write_back()?;
        let mut marker = InstallMarker { received_from: self.received_from.clone(), ..marker.clone() };
        // The UUIDs of new volumes are not in the plan, because LVM has assigned them when it created the volumes.
        for recorded in marker.volumes.iter_mut().flatten() {
            if let Some(done) = self.facts.done.volumes.iter().find(|done| done.uid == recorded.uid) {
                recorded.path.clone_from(&done.path);
            }
        }
        self.facts.marker =
            Some(newroot::marker_file::write_marker(&self.open_root()?, &marker, OffsetDateTime::now_utc())?);
        self.mounts.write_back()
    }
}
