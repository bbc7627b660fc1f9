//! Expectations of a run as they are written. `docs/scenario-expectations.md` describes each field;
//! `expectation_check.rs` compares them.

use crate::scenario::Partition;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Expectations of one run.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunExpectations {
    #[serde(default)]
    pub outcome: Outcome,
    /// Number of boots over the network. Each failure except the last is followed by another boot.
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
    /// Patterns on the console of the boot from disk.
    #[serde(default)]
    pub disk_console_contains: Vec<String>,
    /// Requests that must have reached the server, as lines `METHOD PATH RANGE`.
    #[serde(default)]
    pub requests: Vec<String>,
    /// Problems that the server reports to the operator.
    #[serde(default)]
    pub server_says: Vec<String>,
    /// Violations that the witness must find: writes outside of the announced extents.
    #[serde(default)]
    pub witness_says: Vec<String>,
    #[serde(default)]
    pub untouched_disks: Vec<String>,
    /// State that must be unchanged since an earlier run.
    pub unchanged: Option<UnchangedObjects>,
    /// Text that must not be on the disk, by disk.
    #[serde(default)]
    pub no_trace_of: BTreeMap<String, String>,
    /// Erasure of each disk according to the report, as lines `DEVICE METHOD`.
    #[serde(default)]
    pub erased: Vec<String>,
    /// Objects that the report proves to be preserved: `filesystem at /var/lib`.
    #[serde(default)]
    pub kept: Vec<String>,
    /// Number of hidden files of the image, by mount point.
    #[serde(default)]
    pub hidden: BTreeMap<String, u64>,
    /// State of the order at the end of the run.
    pub order: Option<ExpectedOrder>,
    /// True if, after a failure, the firmware must not find anything bootable on the disks.
    #[serde(default)]
    pub nothing_bootable: bool,
    /// Disks that are removed one at a time, each for another boot from disk.
    #[serde(default)]
    pub boots_without: Vec<String>,
    #[serde(default)]
    pub tiny: SystemExpectations,
    #[serde(default)]
    pub inspect: DiskExpectations,
}

/// Expected state of the reinstall order at the end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExpectedOrder {
    None,
    Open,
}

/// Outcome of a run.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The installation is reported as successful, boots by kexec, and boots from disk after a power cycle without network.
    #[default]
    Installed,
    /// A failure was reported.
    Failed,
    /// A failure was reported, and no disk was written to.
    Refused,
    /// The server has no allocation for the machine, which registers and waits.
    Waiting,
    /// Nothing was installed: the machine booted over PXE into the system on its disk.
    Local,
    /// A failure before the point of no return is reported, the reinstall order has ended, and the old system runs
    /// again.
    OldSystem,
    /// The agent finds its own installation on the disks, does not change it, and boots it.
    Already,
    /// After failures the machine waits for the operator, with `console_contains` on its console.
    Stopped,
    /// The reinstall order is refused; the machine is not switched on.
    Denied,
    /// Either an installation or a refusal.
    InstalledOrRefused,
}

impl Outcome {
    /// Returns whether a system runs at the end, after a boot over the network or from disk.
    pub fn comes_up(self) -> bool {
        use Outcome::{Already, Installed, InstalledOrRefused, Local, OldSystem};
        matches!(self, Installed | InstalledOrRefused | Local | OldSystem | Already)
    }
}

impl RunExpectations {
    /// Returns the expectations after a run with two allowed outcomes: the message of a refusal is only expected after a refusal,
    /// everything else only after an installation.
    pub fn select_outcome(&self, came_up: bool) -> RunExpectations {
        let whole = self.clone();
        match (self.outcome, came_up) {
            (Outcome::InstalledOrRefused, true) => {
                RunExpectations { outcome: Outcome::Installed, report_contains: vec![], failed_step: None, ..whole }
            }
            (Outcome::InstalledOrRefused, false) => RunExpectations {
                outcome: Outcome::Refused,
                events_in_order: vec![],
                no_trace_of: BTreeMap::new(),
                erased: vec![],
                boots_without: vec![],
                disk_console_contains: vec![],
                tiny: SystemExpectations::default(),
                inspect: DiskExpectations::default(),
                ..whole
            },
            _ => whole,
        }
    }
}

/// Objects that must be the same at the end of this run and of an earlier run. They are compared while the machine is
/// off.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnchangedObjects {
    /// Number of the earlier run, from 1.
    pub since_run: usize,
    /// Devices whose UUIDs are compared, as blkid finds them: of partition table, partition, filesystem and array member.
    #[serde(default)]
    pub uuids: Vec<String>,
    /// Ranges whose bytes are compared.
    #[serde(default)]
    pub regions: Vec<ComparedRegion>,
}

/// Range of a disk whose bytes are compared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComparedRegion {
    pub disk: String,
    pub at_mib: u64,
    pub mib: u64,
}

/// Expected facts of the installed system, after the boot over the network and after the boot from disk.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SystemExpectations {
    #[serde(default)]
    pub mounts: Vec<String>,
    #[serde(default)]
    pub fstab: Vec<String>,
    /// Complete fstab, line by line and field by field.
    pub fstab_is: Option<Vec<String>>,
    #[serde(default)]
    pub swaps: Vec<String>,
    /// All arrays, one line each: `NAME LEVEL METADATA PLACES MEMBERS SPARES`.
    pub arrays: Option<Vec<String>>,
    /// All volume groups: `NAME TAGS PVS`.
    pub groups: Option<Vec<String>>,
    /// All logical volumes: `GROUP/NAME TYPE STRIPES MIB`.
    pub volumes: Option<Vec<String>>,
    /// Other sections of the facts, by name.
    #[serde(default)]
    pub facts: BTreeMap<String, Vec<String>>,
}

/// Expected facts that the inspection ramdisk finds on the disks after the run.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskExpectations {
    /// Filesystems to mount read-only, in this order: `sda2:/`.
    #[serde(default)]
    pub mount: Vec<String>,
    /// All arrays, one line each: `NAME LEVEL METADATA PLACES MEMBERS SPARES`.
    pub arrays: Option<Vec<String>>,
    /// All volume groups: `NAME TAGS PVS`.
    pub groups: Option<Vec<String>>,
    /// All logical volumes: `GROUP/NAME TYPE STRIPES MIB`.
    pub volumes: Option<Vec<String>>,
    /// Types of all signatures, by device.
    #[serde(default)]
    pub signatures: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    pub partitions: BTreeMap<String, Vec<Partition>>,
    #[serde(default)]
    pub blkid: BTreeMap<String, BTreeMap<String, String>>,
    #[serde(default)]
    pub fsck_clean: Vec<String>,
    #[serde(default)]
    pub files: BTreeMap<String, FileExpectations>,
}

impl DiskExpectations {
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

/// Expected attributes of a file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileExpectations {
    #[serde(default)]
    pub missing: bool,
    /// File type as stat(1) prints it: `regular file`, `directory`, `symbolic link`, …
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Octal mode.
    pub mode: Option<String>,
    pub uid: Option<String>,
    pub gid: Option<String>,
    pub size: Option<String>,
    /// Modification time in seconds since the epoch.
    pub mtime: Option<String>,
    pub sha256: Option<String>,
    #[serde(default)]
    pub contains: Vec<String>,
}

fn once() -> u32 {
    1
}
