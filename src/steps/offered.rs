//! The steps that a conductor is offered. What is not here is not known to it: it refuses a template that names anything else,
//! before the first step runs.
//!
//! In a deploy each has priority 0: it runs where a template names it. Ironic would run the others in every deploy.

use super::Kind;

/// One step, as `get_…_steps` lists it.
#[derive(Debug, PartialEq, Eq)]
pub struct Offer {
    pub interface: &'static str,
    pub step: &'static str,
    /// What it does, for a person.
    pub about: &'static str,
    pub kinds: &'static [Kind],
    /// In an automated cleaning. The conductor's configuration has the last word.
    pub clean_priority: u32,
    /// Can the conductor give up between this step and the next?
    pub abortable: bool,
    pub arguments: &'static [Taken],
}

/// An argument of a step that is offered.
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

const LAYOUT: Taken = required("layout", "The filesystem layout, in any spelling that drophammer reads.");
const IMAGE: Taken = optional(
    "image",
    "The image: a URL, or an object with url, digest, id, mirrors, finish. The node's image_source where it is absent.",
);
const ERASE: Taken =
    optional("erase", "How thoroughly disks are erased before they are made anew: quick, secure or none.");
const MODE: Taken = optional("mode", "install, or reinstall: then the disks stay that the layout keeps.");
const WITHOUT_MARKER: Taken =
    optional("without_marker", "true: a reinstall goes on although the disk with the old system was replaced.");
const LOGICAL_DISKS: Taken = required(
    "logical_disks",
    "The arrays: size_gb, raid_level, and if wanted is_root_volume, volume_name, physical_disks.",
);
const DELETE_CONFIGURATION: Taken =
    optional("delete_configuration", "What was on the disks goes: true, which is all that can be said.");
const RAID_CONFIG: Taken = required("raid_config", "The arrays, as logical_disks in an object.");
const DELETE_EXISTING: Taken = optional("delete_existing", DELETE_CONFIGURATION.about);
const IMAGE_INFO: Taken = required("image_info", "The image, as the deploy interface direct describes it.");
const CONFIG_DRIVE: Taken = optional("configdrive", "The config drive, as gzip in base64.");
const FILES: Taken = optional(
    "files",
    "Files: path, content as base64 or a URL, or deleted, and if wanted partition, mode, owner, group.",
);
const ALONE: Taken = optional(
    "alone",
    "true: write_files, run_installer, prepare_boot and finish are steps of the template, and not part of this one.",
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
        "Everything: layout, image, installer, boot entries, in one plan with one point of no return.",
        &[LAYOUT, IMAGE, ERASE, MODE, WITHOUT_MARKER],
    ),
    deploy(
        "apply_layout",
        "Wipes what the layout gives away, then makes partitions, arrays, groups and filesystems.",
        &[LAYOUT, ERASE, MODE, WITHOUT_MARKER],
    ),
    raid(
        "apply_configuration",
        "The same with a layout that is made of these arrays.",
        &[Kind::Deploy],
        &[RAID_CONFIG, DELETE_EXISTING],
    ),
    deploy(
        "create_configuration",
        "The same in the words of the proposal for deploy templates.",
        &[LOGICAL_DISKS, DELETE_CONFIGURATION],
    ),
    deploy("burn_image", "Streams the image onto what apply_layout has made, and makes it boot.", &[IMAGE, ALONE]),
    deploy(
        "write_image",
        "Writes the image of a whole disk, raw or qcow2, as it is, and the config drive behind it.",
        &[IMAGE_INFO, CONFIG_DRIVE],
    ),
    deploy("write_files", "Writes install.yaml, user data and disk.json for the image's installer.", &[]),
    deploy("run_installer", "Runs the image's installer and writes fstab.", &[]),
    deploy("prepare_boot", "Writes the firmware's boot entries where the agent makes the boot loader.", &[]),
    deploy("finish", "Proves what was kept, writes the marker, unmounts and flushes the disks.", &[]),
    Offer {
        interface: "deploy",
        step: "inject_files",
        about: "Puts files into an installed system, or takes them away.",
        kinds: &[Kind::Deploy, Kind::Service],
        clean_priority: 0,
        abortable: false,
        arguments: &[FILES],
    },
    erase("erase_devices_metadata", "Zeroes every place where disks have tables and signatures.", 99),
    erase("erase_devices", "Erases every disk so that nothing can be read again, with a proof of each.", 10),
    raid("delete_configuration", "Takes every array apart, and leaves its disks empty.", &[Kind::Clean], &[]),
    raid("create_configuration", "Makes the arrays of the node's target_raid_config.", &[Kind::Clean], &[]),
];

/// Those that run while the machine goes through this.
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
