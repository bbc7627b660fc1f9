//! Adaptation of a system that is received from another machine.

use super::PlanExecutor;
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use model::architecture::Architecture;
use model::install_report::{BootEntryRequest, BootInfo};
use model::inventory::FirmwareType;
use model::machine_migration::{MigrationAnswer, MigrationOffer};
use newroot::NewRoot;
use newroot::boot::boot_info::{read_boot_info, write_boot_info};
use newroot::boot::efi;
use newroot::boot::efi::loader_search::FoundLoader;
use newroot::system_setup::{self, AdaptedBoot, MigratedBoot, PreservedEsps};
use operations::{FinishInputs, ReceiveMigration, ReceivedDevice};
use transfer::machine_migration::TransferDevice;

impl PlanExecutor {
    /// Receives all devices of the migration. If the run fails later, the received devices are made unbootable.
    pub(super) fn receive_system(&mut self, receive: &ReceiveMigration) -> Result<()> {
        let device = |received: &ReceivedDevice| TransferDevice {
            name: received.name.to_string(),
            path: received.device.clone(),
        };
        let total_bytes = receive.devices.iter().map(|received| received.size_bytes).sum();
        let from = self.receive_devices(&receive.order, receive.devices.iter().map(device).collect(), total_bytes)?;
        self.received_from = Some(from.digest());
        Ok(())
    }

    /// Checks that the migration was not canceled. Called before the marker is written, because a system with a marker
    /// may be booted, and the control plane was not queried during the adaptation.
    ///
    /// # Errors
    /// Fails if the migration was canceled, or if the sender has rebooted since the transfer. In the latter case, the
    /// next run receives everything again.
    pub(super) fn check_migration_stands(&self, order: &str) -> Result<()> {
        let machine = match self.control.fetch_machine() {
            Ok(machine) => machine,
            Err(error) => {
                self.print_line(&format!(
                    "{error}; the control plane's response to the final report will show whether the migration was canceled"
                ));
                return Ok(());
            }
        };
        match machine.migration_status(order) {
            MigrationAnswer::Done | MigrationAnswer::Ended => Err(Error::denial(
                Phase::Move,
                "the control plane has ended the migration; the received system must not be booted",
            )
            .with_code(ErrorCode::MigrationEnded)),
            MigrationAnswer::Role(MigrationOffer { peer: Some(peer), .. })
                if self.received_from.as_ref().is_some_and(|from| *from != peer.digest()) =>
            {
                Err(Error::new(
                    Phase::Move,
                    "the source machine has rebooted since everything was received, and its system may have written to its disks; a new \
                     transfer is required",
                ))
            }
            MigrationAnswer::Role(_) | MigrationAnswer::Waiting(_) | MigrationAnswer::Unmentioned => Ok(()),
        }
    }

    /// Adapts the received system to this machine. Removes the sender's install marker first, because a partially
    /// adapted system must not be treated as installed.
    pub(super) fn adapt_migrated(&mut self, finishing: &FinishInputs) -> Result<()> {
        let root = self.open_root()?;
        newroot::marker_file::remove_marker(&root)?;
        let came = self.find_received_loader(finishing);
        let with = MigratedBoot { loader: came.is_some(), info: read_boot_info(&root).is_ok() };
        let root_uuid = self.root_uuid(&finishing.files).to_owned();
        let (reporter, root_uuid) = (&*self.reporter, root_uuid.as_str());
        let adapted =
            system_setup::adapt_migrated_system(&root, finishing, root_uuid, with, &|line| reporter.print_line(line))?;
        let info = self.updated_boot_info(&root, &adapted, root_uuid, &PreservedEsps::from_esps(&finishing.esps))?;
        if let Some(info) = info {
            write_boot_info(&info, &root)?;
        }
        self.entries_wanted = match (adapted.entries.is_empty(), came) {
            (true, Some(FoundLoader { path, has_fallback })) => {
                self.print_line(&format!(
                    "the firmware of this machine will start the boot loader {path} of the received system"
                ));
                let entry = |esp| {
                    let (loader, arguments) = (path.clone(), String::new());
                    BootEntryRequest { esp, loader, arguments, required: !has_fallback }
                };
                (0..finishing.esps.len()).map(entry).collect()
            }
            _ => adapted.entries,
        };
        Ok(())
    }

    /// Returns the boot loader on the first mounted EFI system partition. Other EFI system partitions are copies of the
    /// first.
    fn find_received_loader(&self, finishing: &FinishInputs) -> Option<FoundLoader> {
        if finishing.firmware != FirmwareType::Uefi {
            return None;
        }
        let path = finishing.esps.iter().find_map(|esp| esp.path.as_deref())?;
        let esp = NewRoot::open(&self.mounts.root().join(path.trim_start_matches('/'))).ok()?;
        efi::loader_search::find_loader(&esp, Architecture::NATIVE).ok()
    }

    /// Returns the boot parameters for this machine if they differ from the boot parameters in the received system.
    fn updated_boot_info(
        &mut self,
        root: &NewRoot,
        adapted: &AdaptedBoot,
        root_uuid: &str,
        preserved: &PreservedEsps,
    ) -> Result<Option<BootInfo>> {
        if let Some(info) = &adapted.info {
            return Ok(Some(info.clone()));
        }
        self.describe_boot_with_loader(root, preserved)?;
        if self.firmware_boot.is_some() {
            return Ok(None);
        }
        let before = read_boot_info(root)?;
        let mut info = before.clone();
        if let Some((kernel, initrd)) = &adapted.newest
            && !root.path_exists(&info.kernel)
        {
            self.print_line(&format!(
                "kernel {recorded_kernel} does not exist; booting {kernel} instead",
                recorded_kernel = info.kernel
            ));
            (info.kernel, info.initrd) = (kernel.clone(), initrd.clone());
        }
        info.cmdline = replace_root_device(&info.cmdline, root_uuid);
        Ok(Some(info).filter(|info| *info != before))
    }
}

/// Replaces the source machine's device name in `root=` of a kernel command line with the UUID of the filesystem.
fn replace_root_device(line: &str, root_uuid: &str) -> String {
    let words = line.split_whitespace().map(|word| match word.strip_prefix("root=/dev/") {
        Some(name) if !name.contains('/') && !name.starts_with("md") => format!("root=UUID={root_uuid}"),
        _ => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_in_root_argument_becomes_its_uuid() {
        for (line, expected) in [
            ("root=/dev/sda2 ro quiet", "root=UUID=r ro quiet"),
            ("console=ttyS0 root=/dev/nvme0n1p2", "console=ttyS0 root=UUID=r"),
            ("root=UUID=1 ro", "root=UUID=1 ro"),
            ("root=/dev/mapper/vg-root ro", "root=/dev/mapper/vg-root ro"),
            ("root=/dev/vg/root", "root=/dev/vg/root"),
            ("root=/dev/md0", "root=/dev/md0"),
            ("", ""),
        ] {
            assert_eq!(replace_root_device(line, "r"), expected, "{line}");
        }
    }
}
