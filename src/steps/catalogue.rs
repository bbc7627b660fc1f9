//! The steps that there are. Refusals, documentation and what a conductor is told come from this table.
//!
//! A step that nothing here can run is not in it.

/// One step that can be named.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    /// `deploy.burn_image`: the interface, and the step's own name.
    pub name: &'static str,
    /// What it does, for a person.
    pub about: &'static str,
    /// Steps run from the highest priority to the lowest; 0 runs only where a template gives another priority.
    pub priority: u32,
    /// The install cannot be put together in another order. A template can give a core step arguments, and can disable it.
    pub core: bool,
    pub arguments: &'static [Argument],
    pub kinds: &'static [Kind],
}

/// Something that a template can tell a step.
#[derive(Debug, PartialEq, Eq)]
pub struct Argument {
    pub name: &'static str,
    pub about: &'static str,
    /// All values that it can have; anything where there are none.
    pub values: &'static [&'static str],
}

/// What a machine is going through when the step can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Deploy,
    /// Ironic's word for what a machine goes through between two deploys.
    Clean,
    /// A running machine is taken out of service for it.
    Service,
}

const DEPLOY: &[Kind] = &[Kind::Deploy];

const ERASE: Argument = Argument {
    name: "erase",
    about: "how thoroughly disks are erased before they are made anew",
    values: &["quick", "secure", "none"],
};

const LOGICAL_DISKS: Argument = Argument {
    name: "logical_disks",
    about: "the arrays: size_gb, raid_level, and if wanted is_root_volume, volume_name, physical_disks",
    values: &[],
};

const DELETE_CONFIGURATION: Argument = Argument {
    name: "delete_configuration",
    about: "what was on the disks goes: true, which is all that can be said",
    values: &[],
};

const RAID_CONFIG: Argument =
    Argument { name: "raid_config", about: "the arrays, as logical_disks in an object", values: &[] };

const DELETE_EXISTING: Argument = Argument { name: "delete_existing", about: DELETE_CONFIGURATION.about, values: &[] };

/// Steps out of which the layout is made, before there is a plan. Its disks and arrays are made by `deploy.apply_layout`, whatever
/// the priority of these is.
pub const MAKE_THE_LAYOUT: [&str; 2] = ["raid.create_configuration", "raid.apply_configuration"];

pub static CATALOGUE: [Entry; 8] = [
    Entry {
        name: "deploy.apply_layout",
        about: "wipes what the layout gives away, then makes partitions, arrays, groups and filesystems",
        priority: 90,
        core: true,
        arguments: &[ERASE],
        kinds: DEPLOY,
    },
    Entry {
        name: "deploy.burn_image",
        about: "streams the image onto the mounted filesystems, or a raw image onto its disk",
        priority: 80,
        core: true,
        arguments: &[],
        kinds: DEPLOY,
    },
    Entry {
        name: "deploy.write_files",
        about: "writes install.yaml, user data and disk.json for the image's installer",
        priority: 70,
        core: true,
        arguments: &[],
        kinds: DEPLOY,
    },
    Entry {
        name: "deploy.run_installer",
        about: "runs the image's installer and writes fstab",
        priority: 65,
        core: true,
        arguments: &[],
        kinds: DEPLOY,
    },
    Entry {
        name: "deploy.prepare_boot",
        about: "writes the firmware's boot entries where the agent makes the boot loader, and loads the installed kernel",
        priority: 60,
        core: true,
        arguments: &[],
        kinds: DEPLOY,
    },
    Entry {
        name: "deploy.finish",
        about: "proves what was kept, writes the marker, unmounts and flushes the disks",
        priority: 45,
        core: true,
        arguments: &[],
        kinds: DEPLOY,
    },
    Entry {
        name: "raid.create_configuration",
        about: "the layout is made of these arrays, in the words of Ironic's proposal for deploy templates",
        priority: 0,
        core: false,
        arguments: &[LOGICAL_DISKS, DELETE_CONFIGURATION],
        kinds: DEPLOY,
    },
    Entry {
        name: "raid.apply_configuration",
        about: "the same in the words of today's Ironic",
        priority: 0,
        core: false,
        arguments: &[RAID_CONFIG, DELETE_EXISTING],
        kinds: DEPLOY,
    },
];

/// Names of the core steps, in their order.
pub fn core() -> impl Iterator<Item = &'static str> {
    CATALOGUE.iter().filter(|entry| entry.core).map(|entry| entry.name)
}
