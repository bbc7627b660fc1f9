//! Operations that complete the new system: machine files, finishing, boot entries, kernel and install marker.

use super::{PlanExecutor, panic_error};
use common::error::{Error, Phase, Result};
use model::architecture::Architecture;
use model::install_marker::InstallMarker;
use model::install_report::{BootEntryRequest, BootInfo};
use newroot::NewRoot;
use newroot::boot::boot_info::{read_boot_info, write_boot_info};
use newroot::boot::boot_parameter_discovery::BootSource;
use newroot::boot::{boot_parameter_discovery, efi, kexec};
use newroot::system_setup::selinux;
use newroot::system_setup::{self, BootRecord, PreservedEsps};
use operations::{FinishInputs, MachineFiles, RemoveVariables, WriteBootEntries};
use std::path::Path;
use std::thread;
use time::OffsetDateTime;
use uuid::Uuid;

impl PlanExecutor {
    pub(super) fn write_machine_files(&self, files: &MachineFiles) -> Result<()> {
        let root = self.open_root()?;
        let files = &self.add_secrets(files);
        let allocation = &files.assigned.allocation;
        // If the image lacks its required installer, a later operation fails and reports the missing installer.
        let is_read = system_setup::FinishingComponent::choose(&root, allocation.finisher())
            .is_ok_and(system_setup::FinishingComponent::reads_password);
        let password = if is_read { allocation.console_password.as_str() } else { "" };
        newroot::etc_metal_files::write_metal_files(
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
            BootRecord::Unknown => {
                match self.describe_boot(&root, false, &PreservedEsps::from_esps(&finishing.esps))? {
                    None => Ok(()),
                    Some(reason) => Err(Error::new(Phase::Boot, reason)),
                }
            }
        }
    }

    /// Finds the boot parameters of the installed system. Returns `None` if the system can be booted by kexec. If only
    /// the system's boot loader can determine the parameters, returns the reason; the machine is then booted through
    /// its firmware.
    fn describe_boot(&mut self, root: &NewRoot, has_loader: bool, preserved: &PreservedEsps) -> Result<Option<String>> {
        match boot_parameter_discovery::write_missing_boot_info(root, has_loader, preserved)? {
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
    pub(super) fn describe_boot_with_loader(&mut self, root: &NewRoot, preserved: &PreservedEsps) -> Result<()> {
        if let Some(reason) = self.describe_boot(root, true, preserved)? {
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
        let found = efi::loader_search::find_loader(&self.open_root()?, Architecture::NATIVE)?;
        self.print_line(&format!("boot loader of the image: {loader}", loader = found.path));
        let required = !found.has_fallback;
        self.entries_wanted = vec![BootEntryRequest { loader: found.path, required, ..BootEntryRequest::default() }];
        Ok(())
    }

    /// Writes boot entries, or prints a line if the image's installer has already written them.
    pub(super) fn write_boot_entries(&mut self, planned: &WriteBootEntries) -> Result<()> {
        if self.entries_wanted.is_empty() {
            self.print_line("boot entries: written by the image's installer");
            return Ok(());
        }
        self.entries_written =
            efi::write_boot_entries(Path::new(efi::VARIABLES), planned, &self.entries_wanted, &|line| {
                self.print_line(line)
            })?;
        Ok(())
    }

    pub(super) fn remove_variables(&self, removal: &RemoveVariables) -> Result<()> {
        efi::remove_variables(Path::new(efi::VARIABLES), removal, &|line| self.print_line(line))
    }

    /// Loads the kernel of the installed system. `installed_esps` are the EFI system partitions of a system that an
    /// earlier run has installed; `None` if this run has installed the system.
    pub(super) fn load_kernel(&mut self, installed_esps: Option<&[Uuid]>) -> Result<()> {
        if let Some(boot) = &self.firmware_boot {
            self.print_line("no kernel is loaded: the boot loader of the image starts the system");
            self.facts.boot = Some(boot.clone());
            return Ok(());
        }
        let root = self.open_root()?;
        let boot = read_boot_info(&root)?;
        if !kexec::is_supported() {
            return self.boot_through_firmware(boot, installed_esps);
        }
        let first = selinux::add_relabeling_arguments(&root, &boot);
        self.print_line(&format!("{} {}", first.kernel, first.cmdline));
        kexec::load_from_root(&root, &first)?;
        self.facts.boot = Some(boot);
        Ok(())
    }

    /// Prepares a reboot into the installed system through the firmware, because the kernel of the ramdisk does not
    /// support kexec. If the boot entry cannot be selected, the firmware's boot order decides, which is sufficient
    /// after an installation: a server that has received the report of success boots the machine from its disk. The
    /// entries of other systems are not considered, because drophammer may have installed them, too.
    fn boot_through_firmware(&mut self, boot: BootInfo, installed_esps: Option<&[Uuid]>) -> Result<()> {
        let variables = Path::new(efi::VARIABLES);
        let selected = match installed_esps {
            Some(esps) => efi::boot_installed_system_next(variables, esps),
            None => efi::boot_written_entry_next(variables, &self.entries_written),
        };
        match selected {
            Ok(entry) => self.print_line(&format!(
                "no kernel is loaded, because this kernel does not support kexec: the firmware starts {entry} at the next boot"
            )),
            Err(error) if installed_esps.is_none() => self.print_line(&format!(
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
        // Set before the marker is written, because a failed write may nevertheless have reached the disk.
        self.facts.marker = Some(marker.clone());
        self.facts.marker =
            Some(newroot::marker_file::write_marker(&self.open_root()?, &marker, OffsetDateTime::now_utc())?);
        self.mounts.write_back()
    }
}
