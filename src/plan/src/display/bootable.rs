//! Finishing operations, which make an image bootable, as text.

use super::operations::OperationText;
use super::strip_dev;
use crate::FinishInputs;
use model::allocation::FinisherChoice;
use model::inventory::FirmwareType;

/// Describes the finishing of an image that is a tree of files.
pub fn describe_tree(finishing: &FinishInputs) -> OperationText {
    describe_finisher(finishing).and(describe_seed(finishing))
}

/// Describes the device of the cloud-init seed, if it is not in the tree.
fn describe_seed(finishing: &FinishInputs) -> Option<String> {
    let condition = match finishing.way {
        FinisherChoice::Auto => "if the image has cloud-init and no installer",
        FinisherChoice::Builtin => "if the image has cloud-init",
        FinisherChoice::Image | FinisherChoice::None => return None,
    };
    Some(format!("cloud-init seed on {}, {condition}", strip_dev(&finishing.seed.as_ref()?.device)))
}

fn describe_finisher(finishing: &FinishInputs) -> OperationText {
    match finishing.way {
        FinisherChoice::Auto => OperationText::after(
            "/install-go or /install.sh of the image, in a chroot; if there is none, the built-in finisher",
        ),
        FinisherChoice::Image => OperationText::after("/install-go or /install.sh of the image, in a chroot"),
        FinisherChoice::Builtin => OperationText::after("the built-in finisher").with(describe_built_in(finishing)),
        FinisherChoice::None => OperationText::after("nothing: the image boots unmodified"),
    }
}

/// Describes the finishing of a system that was received from another machine.
pub fn describe_migrated(finishing: &FinishInputs) -> OperationText {
    let loader = match finishing.firmware {
        FirmwareType::Uefi => "keep the boot loader on its EFI system partition".to_owned(),
        FirmwareType::Bios => {
            let disks: Vec<&str> = finishing.boot_disks.iter().map(|disk| strip_dev(&disk.device)).collect();
            format!("GRUB for BIOS on {}", disks.join(", "))
        }
    };
    OperationText::after("adapted to this hardware: initramfs if needed, MAC addresses, disk names in fstab")
        .with(vec![loader])
}

/// Describes the finishing of a raw image, which was built for any machine.
pub fn describe_raw(finishing: &FinishInputs) -> OperationText {
    OperationText::after(describe_raw_finisher(finishing.way)).and(describe_seed(finishing))
}

fn describe_raw_finisher(way: FinisherChoice) -> &'static str {
    match way {
        FinisherChoice::Auto => {
            "/install-go or /install.sh of the image, if it has one; boots the kernel that its boot loader selects"
        }
        FinisherChoice::Image => {
            "/install-go or /install.sh of the image; boots the kernel that its boot loader selects"
        }
        FinisherChoice::Builtin => {
            "built-in: hostname, owner and user data; boots the kernel that its boot loader selects"
        }
        FinisherChoice::None => "nothing: boots the kernel that its boot loader selects",
    }
}

fn describe_built_in(finishing: &FinishInputs) -> Vec<String> {
    let allocation = &finishing.files.assigned.allocation;
    let keys = allocation.ssh_pub_keys.len();
    let name = if allocation.hostname.is_empty() { "as in the image" } else { &allocation.hostname };
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
            "hostname {name}; SSH keys of the owner: {keys}; without the machine-id and SSH host keys of the image"
        ),
        format!("boot loader for {firmware} on {places}; the kernel of the image{arguments}"),
    ]
}
