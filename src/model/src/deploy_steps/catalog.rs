//! Catalog of the steps that an installation can run. Messages, documentation and the list for a conductor are
//! generated from it.
//!
//! The catalog contains only implemented steps.

/// Step of the catalog.
#[derive(Debug, PartialEq, Eq)]
pub struct CatalogStep {
    /// Full name, which consists of interface and step: `deploy.burn_image`.
    pub name: &'static str,
    /// Description for operators.
    pub about: &'static str,
    /// Default priority. Steps run in the order of descending priority. A step with priority 0 runs only if a template
    /// sets another priority.
    pub priority: u32,
    /// True for a core step. A template can set the arguments of a core step and can disable the step, but
    /// cannot change its position.
    pub core: bool,
    /// True if the server runs the step through the machine's management controller. The agent runs all other steps.
    pub out_of_band: bool,
    pub arguments: &'static [StepArgument],
    pub kinds: &'static [StepKind],
}

/// Argument of a step.
#[derive(Debug, PartialEq, Eq)]
pub struct StepArgument {
    pub name: &'static str,
    pub about: &'static str,
    /// Allowed values. Empty if any value is allowed.
    pub values: &'static [&'static str],
}

/// Operation during which a step can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    Deploy,
    /// Ironic's cleaning, which prepares a machine between two deployments.
    Clean,
    /// Ironic's servicing, which is maintenance of a deployed machine.
    Service,
}

const DEPLOY: &[StepKind] = &[StepKind::Deploy];

const ERASE: StepArgument = StepArgument {
    name: "erase",
    about: "thoroughness of erasing disks before new contents are written to them",
    values: &["quick", "secure", "none"],
};

const LOGICAL_DISKS: StepArgument = StepArgument {
    name: "logical_disks",
    about: "the arrays, each with size_gb, raid_level, and optionally is_root_volume, volume_name, physical_disks",
    values: &[],
};

const DELETE_CONFIGURATION: StepArgument = StepArgument {
    name: "delete_configuration",
    about: "must be true, because the disks of the arrays are always recreated",
    values: &[],
};

const RAID_CONFIG: StepArgument =
    StepArgument { name: "raid_config", about: "an object whose field `logical_disks` lists the arrays", values: &[] };

const DELETE_EXISTING: StepArgument =
    StepArgument { name: "delete_existing", about: DELETE_CONFIGURATION.about, values: &[] };

/// Steps that only define the layout for the plan. The step `deploy.apply_layout` creates the partitions and arrays,
/// regardless of the priorities of these steps.
pub const LAYOUT_DEFINITION_STEPS: [&str; 2] = ["raid.create_configuration", "raid.apply_configuration"];

const fn argument(name: &'static str, about: &'static str) -> StepArgument {
    StepArgument { name, about, values: &[] }
}

const SETTINGS: StepArgument =
    argument("settings", "BIOS attributes: a list of objects with the fields `name` and `value`");
const DEVICE: StepArgument = argument("device", "boot device: pxe, disk, cdrom, bios or uefihttp");
const PERSISTENT: StepArgument =
    argument("persistent", "whether the device applies to every boot (true) or only to the next boot (false)");

const fn out_of_band_step(name: &'static str, about: &'static str, arguments: &'static [StepArgument]) -> CatalogStep {
    CatalogStep { name, about, priority: 0, core: false, out_of_band: true, arguments, kinds: DEPLOY }
}

pub static CATALOG: [CatalogStep; 14] = [
    CatalogStep {
        name: "deploy.apply_layout",
        about: "wipes disks as the layout specifies, then creates partitions, arrays, volume groups and filesystems",
        priority: 90,
        core: true,
        out_of_band: false,
        arguments: &[ERASE],
        kinds: DEPLOY,
    },
    CatalogStep {
        name: "deploy.burn_image",
        about: "streams the image to the mounted filesystems, or a raw image to its disk",
        priority: 80,
        core: true,
        out_of_band: false,
        arguments: &[],
        kinds: DEPLOY,
    },
    CatalogStep {
        name: "deploy.write_files",
        about: "writes install.yaml, user data and disk.json for the image's installer",
        priority: 70,
        core: true,
        out_of_band: false,
        arguments: &[],
        kinds: DEPLOY,
    },
    CatalogStep {
        name: "deploy.run_installer",
        about: "runs the image's installer and writes fstab",
        priority: 65,
        core: true,
        out_of_band: false,
        arguments: &[],
        kinds: DEPLOY,
    },
    CatalogStep {
        name: "deploy.prepare_boot",
        about: "loads the installed kernel; if the agent installs the boot loader, also writes the firmware's boot entries",
        priority: 60,
        core: true,
        out_of_band: false,
        arguments: &[],
        kinds: DEPLOY,
    },
    CatalogStep {
        name: "deploy.finish",
        about: "verifies preserved contents, writes the install marker, unmounts and flushes the disks",
        priority: 45,
        core: true,
        out_of_band: false,
        arguments: &[],
        kinds: DEPLOY,
    },
    CatalogStep {
        name: "raid.create_configuration",
        about: "defines the layout by a list of arrays, in the format of Ironic's proposal for deploy templates",
        priority: 0,
        core: false,
        out_of_band: false,
        arguments: &[LOGICAL_DISKS, DELETE_CONFIGURATION],
        kinds: DEPLOY,
    },
    CatalogStep {
        name: "raid.apply_configuration",
        about: "defines the layout by a list of arrays, in the format of current versions of Ironic",
        priority: 0,
        core: false,
        out_of_band: false,
        arguments: &[RAID_CONFIG, DELETE_EXISTING],
        kinds: DEPLOY,
    },
    out_of_band_step(
        "bios.apply_configuration",
        "sets BIOS attributes, restarts the machine, and verifies the values",
        &[SETTINGS],
    ),
    out_of_band_step(
        "bios.factory_reset",
        "resets the BIOS attributes to their defaults, and restarts the machine",
        &[],
    ),
    out_of_band_step(
        "management.set_boot_device",
        "sets the device from which the machine boots",
        &[DEVICE, PERSISTENT],
    ),
    out_of_band_step("power.power_on", "switches the machine on", &[]),
    out_of_band_step("power.power_off", "switches the machine off", &[]),
    out_of_band_step("power.reboot", "restarts the machine", &[]),
];

/// Returns the names of the core steps, in order.
pub fn core_steps() -> impl Iterator<Item = &'static str> {
    CATALOG.iter().filter(|entry| entry.core).map(|entry| entry.name)
}
