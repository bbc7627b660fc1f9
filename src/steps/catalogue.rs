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

pub static CATALOGUE: [Entry; 6] = [
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
];
