//! Expectations of a run in a scenario file. `docs/scenario-expectations.md` describes each field, and
//! `expectation_check.rs` compares them with the observations.

use crate::scenario::Partition;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Expectations of one run.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunExpectations {
    #[serde(default)]
    pub outcome: Outcome,
    /// Number of boots over the network. Another boot follows each failure except the last.
    #[serde(default = "once")]
    pub boots: u32,
    /// True if the agent starts the installed system by a reboot through the firmware, because its kernel does not
    /// support kexec.
    #[serde(default)]
    pub rebooted: bool,
    pub failed_step: Option<String>,
    #[serde(default)]
    pub report_contains: Vec<String>,
    #[serde(default)]
    pub events_in_order: Vec<String>,
    #[serde(default)]
    pub console_contains: Vec<String>,
    #[serde(default)]
    pub console_lacks: Vec<String>,
    /// True if the layout that is derived from the waiting machine must be the layout of the scenario.
    #[serde(default)]
    pub discovered: bool,
    /// Patterns that the console of the boot from disk must contain.
    #[serde(default)]
    pub disk_console_contains: Vec<String>,
    /// Requests that must have reached the server, as lines `METHOD PATH RANGE`.
    #[serde(default)]
    pub requests: Vec<String>,
    /// Problems that the server must report to the operator.
    #[serde(default)]
    pub server_says: Vec<String>,
    /// Violations that the witness must find: writes outside of the announced extents.
    #[serde(default)]
    pub witness_says: Vec<String>,
    #[serde(default)]
    pub untouched_disks: Vec<String>,
    /// State that must not have changed since an earlier run.
    pub unchanged: Option<UnchangedObjects>,
    /// Text that must not be on the disk, by name of the disk.
    #[serde(default)]
    pub no_trace_of: BTreeMap<String, String>,
    /// Erasures of disks that the report must contain, as lines `DEVICE METHOD`.
    #[serde(default)]
    pub erased: Vec<String>,
    /// Objects that the report must prove to be preserved, such as `filesystem at /var/lib`.
    #[serde(default)]
    pub kept: Vec<String>,
    /// Number of files of the image that are hidden, by mount point.
    #[serde(default)]
    pub hidden: BTreeMap<String, u64>,
    /// State of the reinstall order at the end of the run.
    pub order: Option<ExpectedOrder>,
    /// True if, after a failure, the firmware must find nothing bootable on the disks.
    #[serde(default)]
    pub nothing_bootable: bool,
    /// Disks that are removed one at a time, each for an additional boot from disk.
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
    /// The machine reports a successful installation, starts the system by kexec, and after a power cycle boots it from
    /// disk without a network.
    #[default]
    Installed,
    /// The machine reports a failure.
    Failed,
    /// The machine reports a failure, and has not written to any disk.
    Refused,
    /// The server has no allocation for the machine. The machine registers and waits, and its console shows
    /// `console_contains`.
    Waiting,
    /// Nothing is installed: the machine boots over PXE, and the server lets it boot the system on its disk.
    Local,
    /// The machine reports a failure before the point of no return, the reinstall order ends, and the old system runs
    /// again.
    OldSystem,
    /// The agent finds its own installation on the disks, and boots it without a change.
    Already,
    /// After failures, the machine waits for the operator, and its console shows `console_contains`.
    Stopped,
    /// The server refuses the reinstall order, and the machine is not switched on.
    Denied,
    /// Either an installation or a refusal.
    InstalledOrRefused,
}

impl Outcome {
    /// Returns whether a system is running at the end, after a boot over the network or from disk.
    pub fn ends_with_running_system(self) -> bool {
        use Outcome::{Already, Installed, InstalledOrRefused, Local, OldSystem};
        matches!(self, Installed | InstalledOrRefused | Local | OldSystem | Already)
    }
}

impl RunExpectations {
    /// Returns the expectations that apply after a run with two permitted outcomes. The message of a refusal is
    /// expected only after a refusal, and everything else only after an installation.
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

/// Objects that must be equal at the end of this run and of an earlier run. They are compared while the machine is off.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnchangedObjects {
    /// Number of the earlier run, starting at 1.
    pub since_run: usize,
    /// Devices whose UUIDs are compared, as blkid finds them: UUIDs of partition tables, partitions, filesystems and
    /// array members.
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
    /// All lines of fstab, compared field by field.
    pub fstab_is: Option<Vec<String>>,
    #[serde(default)]
    pub swaps: Vec<String>,
    /// All arrays, as lines `NAME LEVEL METADATA PLACES MEMBERS SPARES`.
    pub arrays: Option<Vec<String>>,
    /// All volume groups, as lines `NAME TAGS PVS`.
    pub groups: Option<Vec<String>>,
    /// All logical volumes, as lines `GROUP/NAME TYPE STRIPES MIB`.
    pub volumes: Option<Vec<String>>,
    /// Other sections of the facts, by name.
    #[serde(default)]
    pub facts: BTreeMap<String, Vec<String>>,
}

/// Expected facts about the disks after the run, which the inspection ramdisk collects.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskExpectations {
    /// Filesystems that are mounted read-only, in this order, such as `sda2:/`.
    #[serde(default)]
    pub mount: Vec<String>,
    /// All arrays, as lines `NAME LEVEL METADATA PLACES MEMBERS SPARES`.
    pub arrays: Option<Vec<String>>,
    /// All volume groups, as lines `NAME TAGS PVS`.
    pub groups: Option<Vec<String>>,
    /// All logical volumes, as lines `GROUP/NAME TYPE STRIPES MIB`.
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
    pub fn has_no_expectations(&self) -> bool {
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
