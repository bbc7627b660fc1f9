//! Finishing operations, which make an image bootable, as text.

use super::operations::Said;
use super::short;
use crate::allocation::Finish;
use crate::inventory::Firmware;
use crate::plan::Finishing;

/// Describes the finishing of an image that is a tree of files.
pub fn tree(finishing: &Finishing) -> Said {
    by_way(finishing).and(seed(finishing))
}

/// Describes the device of the cloud-init seed, if it is not in the tree.
fn seed(finishing: &Finishing) -> Option<String> {
    let condition = match finishing.way {
        Finish::Auto => "if the image has cloud-init and no installer",
        Finish::Builtin => "if the image has cloud-init",
        Finish::Image | Finish::None => return None,
    };
    Some(format!("cloud-init seed on {}, {condition}", short(&finishing.seed.as_ref()?.device)))
}

fn by_way(finishing: &Finishing) -> Said {
    match finishing.way {
        Finish::Auto => {
            Said::after("/install-go or /install.sh of the image, in a chroot; if there is none, the built-in finisher")
        }
        Finish::Image => Said::after("/install-go or /install.sh of the image, in a chroot"),
        Finish::Builtin => Said::after("the built-in finisher").with(built_in(finishing)),
        Finish::None => Said::after("nothing: the image boots unmodified"),
    }
}

/// Describes the finishing of a system that was received from another machine.
pub fn moved(finishing: &Finishing) -> Said {
    let loader = match finishing.firmware {
        Firmware::Uefi => "keep the boot loader on its EFI system partition".to_owned(),
        Firmware::Bios => {
            let disks: Vec<&str> = finishing.boot_disks.iter().map(|disk| short(&disk.device)).collect();
            format!("GRUB for BIOS on {}", disks.join(", "))
        }
    };
    Said::after("adapted to this hardware: initramfs if needed, MAC addresses, disk names in fstab").with(vec![loader])
}

/// Describes the finishing of a raw image, which was built for any machine.
pub fn raw(finishing: &Finishing) -> Said {
    Said::after(raw_by_way(finishing.way)).and(seed(finishing))
}

fn raw_by_way(way: Finish) -> &'static str {
    match way {
        Finish::Auto => {
            "/install-go or /install.sh of the image, if it has one; boots the kernel that its boot loader selects"
        }
        Finish::Image => "/install-go or /install.sh of the image; boots the kernel that its boot loader selects",
        Finish::Builtin => "built-in: hostname, owner and user data; boots the kernel that its boot loader selects",
        Finish::None => "nothing: boots the kernel that its boot loader selects",
    }
}

fn built_in(finishing: &Finishing) -> Vec<String> {
    let allocation = &finishing.files.assigned.allocation;
    let keys = allocation.ssh_pub_keys.len();
    let name = if allocation.hostname.is_empty() { "as in the image" } else { &allocation.hostname };
    let on = |devices: Vec<&str>| if devices.is_empty() { "no disk".to_owned() } else { devices.join(", ") };
    let places = match finishing.firmware {
        Firmware::Uefi => on(finishing.esps.iter().map(|esp| short(&esp.device)).collect()),
        Firmware::Bios => on(finishing.boot_disks.iter().map(|disk| short(&disk.device)).collect()),
    };
    let firmware = match finishing.firmware {
        Firmware::Uefi => "UEFI",
        Firmware::Bios => "BIOS",
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
