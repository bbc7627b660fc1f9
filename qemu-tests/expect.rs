//! What must be true after a run, as it is written. `docs/scenarios.md` explains each field; `check.rs` compares.

use crate::scenario::Partition;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    #[serde(default)]
    pub outcome: Outcome,
    /// How often the machine may boot over the network. Each failure except the last is followed by one more boot.
    #[serde(default = "once")]
    pub boots: u32,
    pub failed_step: Option<String>,
    #[serde(default)]
    pub report_contains: Vec<String>,
    #[serde(default)]
    pub events_in_order: Vec<String>,
    #[serde(default)]
    pub console_contains: Vec<String>,
    #[serde(default)]
    pub console_lacks: Vec<String>,
    /// On the console of the boot from disk.
    #[serde(default)]
    pub disk_console_contains: Vec<String>,
    /// Lines `METHOD PATH RANGE` as the server's network card would see them.
    #[serde(default)]
    pub requests: Vec<String>,
    /// Problems that the server shows to its operator.
    #[serde(default)]
    pub server_says: Vec<String>,
    /// What the witness must find: writes where nobody may write.
    #[serde(default)]
    pub witness_says: Vec<String>,
    #[serde(default)]
    pub untouched_disks: Vec<String>,
    /// What is still as an earlier run has left it.
    pub unchanged: Option<Unchanged>,
    /// Disk to a text that must be nowhere on it.
    #[serde(default)]
    pub no_trace_of: BTreeMap<String, String>,
    /// Lines `DEVICE METHOD` of the report: how each disk was erased.
    #[serde(default)]
    pub erased: Vec<String>,
    /// Objects that the report proves to be kept: `filesystem at /var/lib`.
    #[serde(default)]
    pub kept: Vec<String>,
    /// By mount point, how many files of the image lie beneath.
    #[serde(default)]
    pub hidden: BTreeMap<String, u64>,
    /// What the server has left of the order when all is over.
    pub order: Option<Order>,
    /// After a failure: the firmware finds nothing to boot on the disks.
    #[serde(default)]
    pub nothing_bootable: bool,
    /// One more boot from disk for each of these, without it.
    #[serde(default)]
    pub boots_without: Vec<String>,
    #[serde(default)]
    pub tiny: Tiny,
    #[serde(default)]
    pub inspect: Inspect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    None,
    Open,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Reported, kexec'd, and after a power cycle without network booted from disk.
    #[default]
    Installed,
    /// A failure was reported.
    Failed,
    /// A failure was reported and no disk was written to.
    Refused,
    /// The server has nothing that it could hand out: the machine registers and waits.
    Waiting,
    /// Nothing was installed: the machine came up over PXE into the system on its disk.
    Local,
    /// A failure that left every disk as it was is reported, the order is gone, and the old system is back.
    OldSystem,
    /// The agent finds its own work on the disks, destroys nothing and boots it.
    Already,
    /// After failures the machine waits for a person, with `console_contains` on its console.
    Stopped,
    /// The button is refused; the machine is not even switched on.
    Denied,
    /// One of the two, and either is right.
    InstalledOrRefused,
}

impl Outcome {
    /// A system comes up at the end, over the network or from disk.
    pub fn comes_up(self) -> bool {
        use Outcome::{Already, Installed, InstalledOrRefused, Local, OldSystem};
        matches!(self, Installed | InstalledOrRefused | Local | OldSystem | Already)
    }
}

impl Expect {
    /// What counts after a run with two allowed ends. The words of a refusal count after a refusal, and everything else
    /// after an installation.
    pub fn settled(&self, came_up: bool) -> Expect {
        let whole = self.clone();
        match (self.outcome, came_up) {
            (Outcome::InstalledOrRefused, true) => {
                Expect { outcome: Outcome::Installed, report_contains: vec![], failed_step: None, ..whole }
            }
            (Outcome::InstalledOrRefused, false) => Expect {
                outcome: Outcome::Refused,
                events_in_order: vec![],
                no_trace_of: BTreeMap::new(),
                erased: vec![],
                boots_without: vec![],
                disk_console_contains: vec![],
                tiny: Tiny::default(),
                inspect: Inspect::default(),
                ..whole
            },
            _ => whole,
        }
    }
}

/// Compared at the end of both runs, when the machine is off.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unchanged {
    /// The number of the earlier run, from 1.
    pub since_run: usize,
    /// Devices: all UUIDs that blkid sees there, of table, partition, filesystem and member.
    #[serde(default)]
    pub uuids: Vec<String>,
    /// Their bytes.
    #[serde(default)]
    pub regions: Vec<Region>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Region {
    pub disk: String,
    pub at_mib: u64,
    pub mib: u64,
}

/// What the installed system says, both times.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tiny {
    #[serde(default)]
    pub mounts: Vec<String>,
    #[serde(default)]
    pub fstab: Vec<String>,
    /// All of it, line by line and field by field.
    pub fstab_is: Option<Vec<String>>,
    #[serde(default)]
    pub swaps: Vec<String>,
    /// All of them, one line each: `NAME LEVEL METADATA PLACES MEMBERS SPARES`.
    pub arrays: Option<Vec<String>>,
    /// All of them: `NAME TAGS PVS`.
    pub groups: Option<Vec<String>>,
    /// All of them: `GROUP/NAME TYPE STRIPES MIB`.
    pub volumes: Option<Vec<String>>,
    /// Other sections by name.
    #[serde(default)]
    pub facts: BTreeMap<String, Vec<String>>,
}

/// What a neutral ramdisk finds on the disks afterwards.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inspect {
    /// Mounted read-only, in this order: `sda2:/`.
    #[serde(default)]
    pub mount: Vec<String>,
    /// All of them, one line each: `NAME LEVEL METADATA PLACES MEMBERS SPARES`.
    pub arrays: Option<Vec<String>>,
    /// All of them: `NAME TAGS PVS`.
    pub groups: Option<Vec<String>>,
    /// All of them: `GROUP/NAME TYPE STRIPES MIB`.
    pub volumes: Option<Vec<String>>,
    /// By device: the types of all signatures that are on it.
    #[serde(default)]
    pub signatures: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    pub partitions: BTreeMap<String, Vec<Partition>>,
    #[serde(default)]
    pub blkid: BTreeMap<String, BTreeMap<String, String>>,
    #[serde(default)]
    pub fsck_clean: Vec<String>,
    #[serde(default)]
    pub files: BTreeMap<String, File>,
}

impl Inspect {
    pub fn asks_nothing(&self) -> bool {
        let stack = [&self.arrays, &self.groups, &self.volumes];
        stack.iter().all(|lines| lines.is_none())
            && self.signatures.is_empty()
            && self.partitions.is_empty()
            && self.blkid.is_empty()
            && self.fsck_clean.is_empty()
            && self.files.is_empty()
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    #[serde(default)]
    pub missing: bool,
    /// `regular file`, `directory`, `symbolic link`, … as stat(1) says it.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Octal.
    pub mode: Option<String>,
    pub uid: Option<String>,
    pub gid: Option<String>,
    pub size: Option<String>,
    /// Seconds since the epoch.
    pub mtime: Option<String>,
    pub sha256: Option<String>,
    #[serde(default)]
    pub contains: Vec<String>,
}

fn once() -> u32 {
    1
}
