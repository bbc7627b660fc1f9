//! A scenario as it is written. `docs/scenarios.md` explains each field; `reader.rs` reads it.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// One file: a machine and what is done with it, run after run.
#[derive(Debug)]
pub struct Scenario {
    pub name: String,
    /// Where it was read from; files that it names are looked for here first.
    pub folder: PathBuf,
    pub machine: Machine,
    pub runs: Vec<Run>,
}

/// The machine, the same in all runs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    pub about: String,
    pub firmware: Firmware,
    #[serde(default = "default_memory_mib")]
    pub memory_mib: u32,
    #[serde(default = "default_processors")]
    pub processors: u32,
    /// For each time that the machine is switched on.
    #[serde(default = "default_deadline_seconds")]
    pub deadline_seconds: u64,
    /// Too long for every change.
    #[serde(default)]
    pub full: bool,
    pub disks: Vec<Disk>,
    /// QEMU models; the machine boots from the first.
    #[serde(default = "default_nics")]
    pub nics: Vec<String>,
    #[serde(default)]
    pub kernel_arguments: String,
    /// A shell script that the neutral ramdisk runs before the first run, with all disks writable.
    pub prepare: Option<String>,
}

/// Fields of [`Machine`]; every other field on top belongs to the runs.
pub const MACHINE_FIELDS: [&str; 10] = [
    "about",
    "firmware",
    "memory_mib",
    "processors",
    "deadline_seconds",
    "full",
    "disks",
    "nics",
    "kernel_arguments",
    "prepare",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Firmware {
    Bios,
    Uefi,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// As the kernel of the machine will name it.
    pub name: String,
    pub bus: Bus,
    pub size_mib: u64,
    #[serde(default = "default_sector")]
    pub sector: u32,
    pub serial: Option<String>,
    /// The firmware boots from this one; without any, from the first.
    #[serde(default)]
    pub boot: bool,
    /// Reads and writes at most so many MiB a second.
    pub throttle_mib: Option<u64>,
    #[serde(default)]
    pub before: Vec<Before>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bus {
    Virtio,
    Sata,
    Nvme,
    Scsi,
}

/// What is on a disk before the first run, applied in order.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Before {
    Random(Random),
    Pattern(Pattern),
    Mkfs(Mkfs),
    Gpt(Vec<Partition>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Random {
    pub seed: u64,
    #[serde(default)]
    pub at_mib: u64,
    pub mib: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pattern {
    pub text: String,
    #[serde(default)]
    pub at_mib: u64,
    pub mib: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mkfs {
    /// `swap`, or anything that has a `mkfs.FORMAT` on this host.
    pub format: String,
    #[serde(default)]
    pub at_mib: u64,
    pub mib: u64,
    #[serde(default)]
    pub options: Vec<String>,
}

/// A partition, both as `before` writes it and as `expect` wants it: what is not said is not looked at.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Partition {
    pub number: u32,
    pub label: Option<String>,
    /// `efi`, `linux`, `raid`, `lvm`, `swap` or a GUID.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub start_mib: Option<u64>,
    pub size_mib: Option<u64>,
    /// Ends within the last 2 MiB of the disk.
    #[serde(default)]
    pub to_end: bool,
}

/// One life of the machine, from switching on to what is found on its disks.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The layout itself, given to the server letter by letter.
    pub layout: Option<String>,
    pub layout_file: Option<PathBuf>,
    #[serde(default)]
    pub image: Image,
    /// The allocation of the run before once more, not a new one.
    #[serde(default)]
    pub same_allocation: bool,
    /// The disks in the order in which they are plugged in for this run; without it, as the machine lists them.
    #[serde(default)]
    pub disks_order: Vec<String>,
    #[serde(default)]
    pub events: Vec<Event>,
    pub expect: Expect,
    /// Anything that the server's machine file takes; read apart because its types are not ours to know.
    #[serde(skip)]
    pub allocation: serde_json::Map<String, serde_json::Value>,
}

/// The image that is offered: a file, and what was done to it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// Beside the scenario, or among the built artifacts; the tiny OS without it.
    pub file: Option<PathBuf>,
    /// The tar is cut after so many bytes, then compressed as if nothing had happened.
    pub cut_tar_at: Option<u64>,
    /// `zstd`, `lz4`, `gzip` or `bzip2`: compress the tar anew.
    pub compress: Option<String>,
    pub truncate_at: Option<u64>,
    pub flip_byte_at: Option<u64>,
    pub append: Option<String>,
    /// The allocation names it, the server has no such file.
    #[serde(default)]
    pub missing: bool,
    #[serde(default)]
    pub digest: Digest,
    /// The first answer with the image breaks after so many bytes, the next one after the second number, …
    #[serde(default)]
    pub cut_connection_at: Vec<u64>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Digest {
    /// Of the file as it is served.
    #[default]
    Right,
    /// Of the file before it was damaged.
    Original,
    Wrong,
    None,
    /// No digest in the allocation, a metal-stack `.md5` beside the image.
    Md5,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    pub at: Moment,
    #[serde(rename = "do")]
    pub act: Act,
    #[serde(default)]
    pub seconds: u64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// The server hears of this step for the first time.
    Step(String),
    /// The server hears of this event for the first time.
    Event(String),
    Console(String),
    ProgressBytes(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// The machine loses power and is switched on again.
    PowerCut,
    LinkDown,
    /// The server stands still, connections stay open.
    ServerStop,
    /// The server is killed and started again.
    ServerKill,
    /// The server answers 500 to everything.
    ServerErrors,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    #[serde(default)]
    pub outcome: Outcome,
    pub failed_step: Option<String>,
    #[serde(default)]
    pub report_contains: Vec<String>,
    #[serde(default)]
    pub events_in_order: Vec<String>,
    #[serde(default)]
    pub console_contains: Vec<String>,
    /// Lines `METHOD PATH RANGE` as the server's network card would see them.
    #[serde(default)]
    pub requests: Vec<String>,
    /// Problems that the server shows to its operator.
    #[serde(default)]
    pub server_says: Vec<String>,
    #[serde(default)]
    pub untouched_disks: Vec<String>,
    /// Disk to a text that is nowhere on it any more.
    #[serde(default)]
    pub no_trace_of: BTreeMap<String, String>,
    /// Lines `DEVICE METHOD` of the report: how each disk was erased.
    #[serde(default)]
    pub erased: Vec<String>,
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

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
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
}

/// What the installed system says, both times.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tiny {
    #[serde(default)]
    pub mounts: Vec<String>,
    #[serde(default)]
    pub fstab: Vec<String>,
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
#[derive(Debug, Default, Deserialize)]
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

#[derive(Debug, Default, Deserialize)]
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

/// Two machines run at once, on the two cores that the host may have.
fn default_processors() -> u32 {
    1
}

fn default_memory_mib() -> u32 {
    1024
}

fn default_deadline_seconds() -> u64 {
    180
}

fn default_sector() -> u32 {
    512
}

fn default_nics() -> Vec<String> {
    vec!["virtio-net-pci".to_owned()]
}
