//! Steps that the agent offers to a conductor. If a template contains any other step, the conductor rejects the
//! template before the first step runs.
//!
//! In a deployment, all offered steps have priority 0, so that they run only if a template lists them. Ironic would run
//! a step with a priority above 0 in every deployment.

use super::StepKind;

/// Step in the response to `get_…_steps`.
#[derive(Debug, PartialEq, Eq)]
pub struct OfferedStep {
    pub interface: &'static str,
    pub step: &'static str,
    /// Description for operators.
    pub about: &'static str,
    pub kinds: &'static [StepKind],
    /// Priority in automated cleaning. The conductor's configuration can override it.
    pub clean_priority: u32,
    /// True if the conductor can abort after this step.
    pub abortable: bool,
    pub arguments: &'static [OfferedArgument],
}

/// Argument of an offered step.
#[derive(Debug, PartialEq, Eq)]
pub struct OfferedArgument {
    pub name: &'static str,
    pub about: &'static str,
    pub required: bool,
}

const fn required_argument(name: &'static str, about: &'static str) -> OfferedArgument {
    OfferedArgument { name, about, required: true }
}

const fn optional_argument(name: &'static str, about: &'static str) -> OfferedArgument {
    OfferedArgument { name, about, required: false }
}

const LAYOUT: OfferedArgument =
    required_argument("layout", "The filesystem layout, in any format that drophammer reads.");
const IMAGE: OfferedArgument = optional_argument(
    "image",
    "The image: a URL, or an object with the fields `url`, `digest`, `id`, `mirrors` and `finish`. Defaults to the node's `image_source`.",
);
const ERASE: OfferedArgument = optional_argument(
    "erase",
    "Thoroughness of erasing disks before new contents are written to them: `quick`, `secure` or `none`.",
);
const MODE: OfferedArgument =
    optional_argument("mode", "`install`, or `reinstall`, which preserves disks as the layout specifies.");
const WITHOUT_MARKER_ARGUMENT: OfferedArgument = optional_argument(
    "without_marker",
    "If true, a reinstall does not require an install marker: the operator confirms that the disk with the old system was replaced.",
);
const LEAVE_LOCKED: OfferedArgument = optional_argument(
    "leave_locked",
    "A list of UUIDs of preserved LUKS containers that may stay locked in a reinstall, even if the reinstall erases the only copy of their keys.",
);
const LOGICAL_DISKS: OfferedArgument = required_argument(
    "logical_disks",
    "The arrays, each with size_gb, raid_level, and optionally is_root_volume, volume_name, physical_disks.",
);
const DELETE_CONFIGURATION: OfferedArgument =
    optional_argument("delete_configuration", "Must be true, because the disks of the arrays are always recreated.");
const RAID_CONFIG: OfferedArgument =
    required_argument("raid_config", "An object whose field `logical_disks` lists the arrays.");
const DELETE_EXISTING: OfferedArgument = optional_argument("delete_existing", DELETE_CONFIGURATION.about);
const IMAGE_INFO: OfferedArgument =
    required_argument("image_info", "The image, in the format of Ironic's deploy interface `direct`.");
const CONFIG_DRIVE: OfferedArgument =
    optional_argument("configdrive", "The config drive, compressed with gzip and encoded in base64.");
const FILES: OfferedArgument = optional_argument(
    "files",
    "A list of files. Each file has a `path`, either `content` (base64 or a URL) or `deleted`, and optionally `partition`, `mode`, `owner` and `group`.",
);
const ALONE: OfferedArgument = optional_argument(
    "alone",
    "If true, `write_files`, `run_installer`, `prepare_boot` and `finish` are separate steps of the template, not part of this step.",
);

const fn deploy_step(step: &'static str, about: &'static str, arguments: &'static [OfferedArgument]) -> OfferedStep {
    let kinds = &[StepKind::Deploy];
    OfferedStep { interface: "deploy", step, about, kinds, clean_priority: 0, abortable: false, arguments }
}

const fn erase_step(step: &'static str, about: &'static str, clean_priority: u32) -> OfferedStep {
    let kinds = &[StepKind::Clean, StepKind::Deploy];
    OfferedStep { interface: "deploy", step, about, kinds, clean_priority, abortable: true, arguments: &[] }
}

const fn raid_step(
    step: &'static str,
    about: &'static str,
    kinds: &'static [StepKind],
    arguments: &'static [OfferedArgument],
) -> OfferedStep {
    OfferedStep { interface: "raid", step, about, kinds, clean_priority: 0, abortable: false, arguments }
}

pub static OFFERED: [OfferedStep; 15] = [
    deploy_step(
        "install",
        "Performs the whole installation (layout, image, installer and boot entries), in one plan with one point of no return.",
        &[LAYOUT, IMAGE, ERASE, MODE, WITHOUT_MARKER_ARGUMENT, LEAVE_LOCKED],
    ),
    deploy_step(
        "apply_layout",
        "Wipes disks as the layout specifies, then creates partitions, arrays, volume groups and filesystems.",
        &[LAYOUT, ERASE, MODE, WITHOUT_MARKER_ARGUMENT, LEAVE_LOCKED],
    ),
    raid_step(
        "apply_configuration",
        "Does the same as the step `apply_layout`, but with a layout that is defined by a list of arrays.",
        &[StepKind::Deploy],
        &[RAID_CONFIG, DELETE_EXISTING],
    ),
    deploy_step(
        "create_configuration",
        "Does the same as the step `apply_configuration`, but with the arrays in the format of the proposal for deploy templates.",
        &[LOGICAL_DISKS, DELETE_CONFIGURATION],
    ),
    deploy_step(
        "burn_image",
        "Streams the image to the filesystems of the applied layout, and makes the image bootable.",
        &[IMAGE, ALONE],
    ),
    deploy_step(
        "write_image",
        "Writes a whole-disk image (raw or qcow2) unchanged, followed by the config drive.",
        &[IMAGE_INFO, CONFIG_DRIVE],
    ),
    deploy_step("write_files", "Writes install.yaml, user data and disk.json for the image's installer.", &[]),
    deploy_step("run_installer", "Runs the image's installer and writes fstab.", &[]),
    deploy_step("prepare_boot", "Writes the firmware's boot entries if the agent installs the boot loader.", &[]),
    deploy_step(
        "finish",
        "Verifies preserved contents, writes the install marker, unmounts and flushes the disks.",
        &[],
    ),
    OfferedStep {
        interface: "deploy",
        step: "inject_files",
        about: "Writes or deletes files of an installed system.",
        kinds: &[StepKind::Deploy, StepKind::Service],
        clean_priority: 0,
        abortable: false,
        arguments: &[FILES],
    },
    erase_step("erase_devices_metadata", "Zeroes all partition tables and signatures.", 99),
    erase_step("erase_devices", "Erases every disk irrecoverably, and reports a proof of erasure for each disk.", 10),
    raid_step("delete_configuration", "Removes every array, and leaves its disks empty.", &[StepKind::Clean], &[]),
    raid_step("create_configuration", "Creates the arrays of the node's target_raid_config.", &[StepKind::Clean], &[]),
];

/// Returns the steps that can run during this operation.
pub fn steps_for_kind(kind: StepKind) -> impl Iterator<Item = &'static OfferedStep> {
    OFFERED.iter().filter(move |offer| offer.kinds.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offered_steps_are_unique_and_listed_by_purpose() {
        for (index, offer) in OFFERED.iter().enumerate() {
            let name = (offer.interface, offer.step);
            assert!(OFFERED[..index].iter().all(|other| (other.interface, other.step) != name), "{name:?}");
            assert!(!offer.kinds.is_empty() && !offer.about.is_empty(), "{name:?}");
        }
        let clean: Vec<&str> = steps_for_kind(StepKind::Clean).map(|offer| offer.step).collect();
        let raid = ["delete_configuration", "create_configuration"];
        assert_eq!(clean, [&["erase_devices_metadata", "erase_devices"][..], &raid].concat());
        let service: Vec<&str> = steps_for_kind(StepKind::Service).map(|offer| offer.step).collect();
        assert_eq!(service, ["inject_files"]);
    }
}
