//! Operations that make an image bootable.

use crate::operation_text::{DeviceSizes, OperationLine, OperationText, strip_dev};
use crate::{Effect, FinishInputs, PlannedOperation, UndoOperation};
use model::allocation::FinisherChoice;
use model::device_name::DevicePath;
use model::inventory::FirmwareType;
use serde::Serialize;

/// Operation that makes a file-based image bootable, by the image's installer in a chroot or by the agent's own boot
/// setup.
impl PlannedOperation for FinishInputs {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        describe_finisher(self).and(describe_seed(self)).into()
    }

    fn effect(&self) -> Effect<'_> {
        // The boot loader is written to these disks, so their paths are verified before.
        let boot_disks = self.boot_disks.iter().filter(|disk| self.writes_boot_areas() && disk.gap.is_some());
        let devices = boot_disks.map(|disk| &disk.device).chain(find_temporary_seed(self));
        Effect::opening(devices).undone_by([UndoOperation::EndProcesses])
    }
}

impl FinishInputs {
    /// Returns whether the built-in finisher may write a boot loader outside of partitions.
    fn writes_boot_areas(&self) -> bool {
        self.firmware == FirmwareType::Bios && matches!(self.way, FinisherChoice::Auto | FinisherChoice::Builtin)
    }
}

/// Operation that makes a raw image, which is not specific to a machine, bootable on this machine. If the image has no
/// installer, the boot loader in the image is used, and `/etc/metal/boot-info.yaml` is derived from the configuration
/// of this boot loader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AdaptImage(pub Box<FinishInputs>);

impl PlannedOperation for AdaptImage {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        OperationText::after(describe_raw_finisher(self.0.way)).and(describe_seed(&self.0)).into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::opening(find_temporary_seed(&self.0)).undone_by([UndoOperation::EndProcesses])
    }
}

/// Returns the device to which the cloud-init seed is written, if this device must be mounted only for the seed.
/// Returns `None` if the device is mounted in the target anyway, or if the seed is written to the root filesystem.
fn find_temporary_seed(finishing: &FinishInputs) -> Option<&DevicePath> {
    finishing.seed.as_ref().filter(|seed| seed.path.is_none()).map(|seed| &seed.device)
}

/// Describes the device to which the cloud-init seed is written; `None` if the seed is written to the root filesystem.
fn describe_seed(finishing: &FinishInputs) -> Option<String> {
    let condition = match finishing.way {
        FinisherChoice::Auto => "if the image has cloud-init and no installer",
        FinisherChoice::Builtin => "if the image has cloud-init",
        FinisherChoice::Image | FinisherChoice::None => return None,
    };
    Some(format!("cloud-init seed on {device}, {condition}", device = strip_dev(&finishing.seed.as_ref()?.device)))
}

fn describe_finisher(finishing: &FinishInputs) -> OperationText {
    match finishing.way {
        FinisherChoice::Auto => OperationText::after(
            "/install-go or /install.sh of the image, in a chroot; if the image has neither, the built-in finisher",
        ),
        FinisherChoice::Image => OperationText::after("/install-go or /install.sh of the image, in a chroot"),
        FinisherChoice::Builtin => OperationText::after("the built-in finisher").with(describe_built_in(finishing)),
        FinisherChoice::None => OperationText::after("nothing: the image boots unmodified"),
    }
}

fn describe_raw_finisher(way: FinisherChoice) -> &'static str {
    match way {
        FinisherChoice::Auto => {
            "/install-go or /install.sh of the image, if the image has one of them; the machine boots the \
            kernel that the image's boot loader selects"
        }
        FinisherChoice::Image => {
            "/install-go or /install.sh of the image; the machine boots the kernel that the image's boot loader \
            selects"
        }
        FinisherChoice::Builtin => {
            "built-in: hostname, owner and user data; the machine boots the kernel that the image's boot loader selects"
        }
        FinisherChoice::None => "nothing: the machine boots the kernel that the image's boot loader selects",
    }
}

fn describe_built_in(finishing: &FinishInputs) -> Vec<String> {
    let allocation = &finishing.files.assigned.allocation;
    let keys = allocation.ssh_pub_keys.len();
    let name = if allocation.hostname.is_empty() { "unchanged, as in the image" } else { &allocation.hostname };
    let on = |devices: Vec<&str>| if devices.is_empty() { "no disk".to_owned() } else { devices.join(", ") };
    let places = match finishing.firmware {
        FirmwareType::Uefi => on(finishing.esps.iter().map(|esp| strip_dev(&esp.device)).collect()),
        FirmwareType::Bios => on(finishing.boot_disks.iter().map(|disk| strip_dev(&disk.device)).collect()),
    };
    let firmware = match finishing.firmware {
        FirmwareType::Uefi => "UEFI",
        FirmwareType::Bios => "BIOS",
    };
    let arguments = match allocation.kernel_arguments.join(" ") {
        none if none.is_empty() => String::new(),
        arguments => format!(" with {arguments}"),
    };
    vec![
        format!(
            "hostname {name}; SSH keys of the owner: {keys}; the machine-id and SSH host keys of the image are discarded"
        ),
        format!("boot loader for {firmware} on {places}; the kernel of the image{arguments}"),
    ]
}
