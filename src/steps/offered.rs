//! Steps that are offered to a conductor, which rejects a template with any other step before the first step runs.
//!
//! In a deploy, all of them have priority 0 and run only if a template lists them. Ironic would run others in every deploy.

use super::Kind;

/// Step in the response to `get_…_steps`.
#[derive(Debug, PartialEq, Eq)]
pub struct Offer {
    pub interface: &'static str,
    pub step: &'static str,
    /// Description for operators.
    pub about: &'static str,
    pub kinds: &'static [Kind],
    /// Priority in automated cleaning, which the conductor's configuration can override.
    pub clean_priority: u32,
    /// Whether the conductor can abort after this step.
    pub abortable: bool,
    pub arguments: &'static [Taken],
}

/// Argument of an offered step.
#[derive(Debug, PartialEq, Eq)]
pub struct Taken {
    pub name: &'static str,
    pub about: &'static str,
    pub required: bool,
}

const fn required(name: &'static str, about: &'static str) -> Taken {
    Taken { name, about, required: true }
}

const fn optional(name: &'static str, about: &'static str) -> Taken {
    Taken { name, about, required: false }
}

const LAYOUT: Taken = required("layout", "The filesystem layout, in any format that drophammer reads.");
const IMAGE: Taken = optional(
    "image",
    "The image: a URL, or an object with url, digest, id, mirrors, finish. Defaults to the node's image_source.",
);
const ERASE: Taken =
    optional("erase", "Thoroughness of erasing disks before they are recreated: quick, secure or none.");
const MODE: Taken = optional("mode", "install, or reinstall, which preserves disks as the layout specifies.");
const WITHOUT_MARKER: Taken =
    optional("without_marker", "true: reinstall although the disk with the old system was replaced.");
const LOGICAL_DISKS: Taken = required(
    "logical_disks",
    "The arrays: size_gb, raid_level, and optionally is_root_volume, volume_name, physical_disks.",
);
const DELETE_CONFIGURATION: Taken = optional("delete_configuration", "Erase the disks: must be true.");
const RAID_CONFIG: Taken = required("raid_config", "The arrays, as logical_disks in an object.");
const DELETE_EXISTING: Taken = optional("delete_existing", DELETE_CONFIGURATION.about);
const IMAGE_INFO: Taken = required("image_info", "The image, as the deploy interface direct describes it.");
const CONFIG_DRIVE: Taken = optional("configdrive", "The config drive, as gzip in base64.");
const FILES: Taken = optional(
    "files",
    "Files: path, content as base64 or a URL, or deleted, and optionally partition, mode, owner, group.",
);
const ALONE: Taken = optional(
    "alone",
    "true: write_files, run_installer, prepare_boot and finish are separate steps of the template, not part of this step.",
);

const fn deploy(step: &'static str, about: &'static str, arguments: &'static [Taken]) -> Offer {
    let kinds = &[Kind::Deploy];
    Offer { interface: "deploy", step, about, kinds, clean_priority: 0, abortable: false, arguments }
}

const fn erase(step: &'static str, about: &'static str, clean_priority: u32) -> Offer {
    let kinds = &[Kind::Clean, Kind::Deploy];
    Offer { interface: "deploy", step, about, kinds, clean_priority, abortable: true, arguments: &[] }
}

const fn raid(step: &'static str, about: &'static str, kinds: &'static [Kind], arguments: &'static [Taken]) -> Offer {
    Offer { interface: "raid", step, about, kinds, clean_priority: 0, abortable: false, arguments }
}

pub static OFFERED: [Offer; 15] = [
    deploy(
        "install",
        "Does everything: layout, image, installer and boot entries, in one plan with one point of no return.",
        &[LAYOUT, IMAGE, ERASE, MODE, WITHOUT_MARKER],
    ),
    deploy(
        "apply_layout",
        "Wipes disks as the layout specifies, then creates partitions, arrays, volume groups and filesystems.",
        &[LAYOUT, ERASE, MODE, WITHOUT_MARKER],
    ),
    raid(
        "apply_configuration",
        "The same, with a layout that is defined by these arrays.",
        &[Kind::Deploy],
        &[RAID_CONFIG, DELETE_EXISTING],
    ),
    deploy(
        "create_configuration",
        "The same, in the format of the proposal for deploy templates.",
        &[LOGICAL_DISKS, DELETE_CONFIGURATION],
    ),
    deploy(
        "burn_image",
        "Streams the image to the filesystems of apply_layout, and makes it bootable.",
        &[IMAGE, ALONE],
    ),
    deploy(
        "write_image",
        "Writes a whole-disk image, raw or qcow2, unchanged, followed by the config drive.",
        &[IMAGE_INFO, CONFIG_DRIVE],
    ),
    deploy("write_files", "Writes install.yaml, user data and disk.json for the image's installer.", &[]),
    deploy("run_installer", "Runs the image's installer and writes fstab.", &[]),
    deploy("prepare_boot", "Writes the firmware's boot entries if the agent installs the boot loader.", &[]),
    deploy("finish", "Verifies preserved contents, writes the install marker, unmounts and flushes the disks.", &[]),
    Offer {
        interface: "deploy",
        step: "inject_files",
        about: "Writes files into an installed system, or deletes them.",
        kinds: &[Kind::Deploy, Kind::Service],
        clean_priority: 0,
        abortable: false,
        arguments: &[FILES],
    },
    erase("erase_devices_metadata", "Zeroes all partition tables and signatures.", 99),
    erase("erase_devices", "Erases every disk unrecoverably, with a proof for each.", 10),
    raid("delete_configuration", "Dissolves every array, and leaves its disks empty.", &[Kind::Clean], &[]),
    raid("create_configuration", "Creates the arrays of the node's target_raid_config.", &[Kind::Clean], &[]),
];

/// Returns the steps for an operation.
pub fn offered(kind: Kind) -> impl Iterator<Item = &'static Offer> {
    OFFERED.iter().filter(move |offer| offer.kinds.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_has_one_name_and_one_place() {
        for (index, offer) in OFFERED.iter().enumerate() {
            let name = (offer.interface, offer.step);
            assert!(OFFERED[..index].iter().all(|other| (other.interface, other.step) != name), "{name:?}");
            assert!(!offer.kinds.is_empty() && !offer.about.is_empty(), "{name:?}");
        }
        let clean: Vec<&str> = offered(Kind::Clean).map(|offer| offer.step).collect();
        let raid = ["delete_configuration", "create_configuration"];
        assert_eq!(clean, [&["erase_devices_metadata", "erase_devices"][..], &raid].concat());
        let service: Vec<&str> = offered(Kind::Service).map(|offer| offer.step).collect();
        assert_eq!(service, ["inject_files"]);
    }
}
