//! A scenario as it is written. `docs/scenarios.md` explains each field; `reader.rs` reads it.

use crate::expect::Expect;
use crate::fleet::Fleet;
use crate::served::Image;
use crate::typist::Typed;
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
    /// The first card's port of the switch lets this VLAN through, with its tag, and nothing else.
    pub vlan: Option<u16>,
    #[serde(default)]
    pub kernel_arguments: String,
    /// Machine and server speak TLS, except for what firmware loads.
    #[serde(default)]
    pub tls: bool,
    /// The machine has a TPM 2.
    #[serde(default)]
    pub tpm: bool,
    /// A shell script that the neutral ramdisk runs before the first run, with all disks writable.
    pub prepare: Option<String>,
}

/// Fields of [`Machine`]; every other field on top belongs to the runs.
pub const MACHINE_FIELDS: [&str; 13] = [
    "about",
    "firmware",
    "memory_mib",
    "processors",
    "deadline_seconds",
    "full",
    "disks",
    "nics",
    "vlan",
    "kernel_arguments",
    "tls",
    "tpm",
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
    /// None for a second path, which has its disk's.
    #[serde(default)]
    pub size_mib: u64,
    #[serde(default = "default_sector")]
    pub sector: u32,
    /// An empty one: the disk has none.
    pub serial: Option<String>,
    /// Write-protected.
    #[serde(default)]
    pub read_only: bool,
    /// This is no disk of its own, but a second path to the disk of this name.
    pub path_of: Option<String>,
    /// The SCSI disk is a stick behind USB.
    #[serde(default)]
    pub usb: bool,
    /// Nothing in these MiB can be read or written.
    #[serde(default)]
    pub errors_at_mib: Vec<u64>,
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
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The layout itself, given to the server letter by letter.
    pub layout: Option<String>,
    pub layout_file: Option<PathBuf>,
    /// A deploy template, given to the server in the same way. One that makes the layout of its arrays goes with a layout that nobody
    /// names: `allocation: {filesystemlayout: null}`.
    pub template: Option<String>,
    #[serde(default)]
    pub image: Image,
    /// OS definitions, by name the text of each file. What begins with `#!` is executable.
    #[serde(default)]
    pub os: BTreeMap<String, BTreeMap<String, String>>,
    /// The allocation of the run before once more, not a new one.
    #[serde(default)]
    pub same_allocation: bool,
    /// The operator presses the button first: the same allocation, this run's image.
    #[serde(skip)]
    pub reinstall: Option<Reinstall>,
    /// The server comes back without its database.
    #[serde(default)]
    pub forget: bool,
    /// No control plane is asked: the machine's file is on the wire.
    pub fleet: Option<Fleet>,
    /// Where the machine starts from when it is switched on.
    #[serde(default)]
    pub boot: BootFrom,
    /// As the machine's `prepare`, before this run.
    pub prepare: Option<String>,
    /// A shell script that the agent's ramdisk runs before the agent.
    pub before_agent: Option<String>,
    /// What the firmware says from this run on; the server's file keeps what it has.
    pub uuid: Option<String>,
    /// The MACs of the network cards, in their order, from this run on.
    #[serde(default)]
    pub macs: Vec<String>,
    /// Disks that are not plugged in during this run.
    #[serde(default)]
    pub absent: Vec<String>,
    /// Disks in whose places there are new and empty ones from this run on.
    #[serde(default)]
    pub replaced: Vec<String>,
    /// The machine has another TPM from this run on.
    #[serde(default)]
    pub new_tpm: bool,
    /// The disks in the order in which they are plugged in for this run; without it, as the machine lists them.
    #[serde(default)]
    pub disks_order: Vec<String>,
    #[serde(default)]
    pub events: Vec<Event>,
    #[serde(default)]
    pub types: Vec<Typed>,
    pub expect: Expect,
    /// Anything that the server's machine file takes; read apart because its types are not ours to know.
    #[serde(skip)]
    pub allocation: serde_json::Map<String, serde_json::Value>,
    /// The same of what is around the allocation in that file.
    #[serde(skip)]
    pub machine_file: serde_json::Map<String, serde_json::Value>,
}

/// The button, as the operator presses it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reinstall {
    /// "I know that the disk with the marker was replaced."
    #[serde(default)]
    pub without_marker: bool,
    /// Serial numbers of disks whose data nobody needs.
    #[serde(default)]
    pub give_up: Vec<String>,
    #[serde(default)]
    pub change_promise: bool,
}

impl Reinstall {
    /// What the operator types.
    pub fn options(&self) -> Vec<&str> {
        let flags = [("--without-marker", self.without_marker), ("--change-promise", self.change_promise)];
        let flags = flags.into_iter().filter_map(|(option, is_set)| is_set.then_some(option));
        flags.chain(self.give_up.iter().flat_map(|serial| ["--give-up", serial])).collect()
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BootFrom {
    #[default]
    Pxe,
    /// The harness asks the server in iPXE's place, and hands kernel and ramdisk to QEMU: the same without the minutes of the firmware.
    Direct,
    /// The installed system is started from disk, fetches `drophammer` and runs `drophammer reinstall`.
    Kexec,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    pub at: Moment,
    #[serde(rename = "do")]
    pub act: Act,
    #[serde(default)]
    pub seconds: u64,
    /// So many seconds later.
    #[serde(default)]
    pub after: u64,
    /// Does the answer still reach the machine? Only for what happens at a request.
    #[serde(default)]
    pub answer: Answer,
    /// The disks that are plugged anew.
    #[serde(default)]
    pub disks: Vec<String>,
}

impl Event {
    /// It waits on the wire for the answer to a request.
    pub fn is_at_answer(&self) -> bool {
        matches!(self.at, Moment::Request(_)) && matches!(self.act, Act::ServerKill | Act::PowerCut | Act::Cancel)
    }
}

/// What becomes of the answer to such a request; the server has done what was asked.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    #[default]
    Passed,
    Lost,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// The server hears of this step for the first time.
    Step(String),
    /// The server hears of this event for the first time.
    Event(String),
    Console(String),
    /// So many bytes of an image have gone over the wire, which holds back the rest until the event has happened.
    ImageBytes(u64),
    /// `METHOD PATH`, as it goes over the wire for the first time.
    Request(String),
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
    /// Disks are pulled while the machine runs, and plugged in again in each other's places.
    Replug,
    /// The operator takes the order back, before the machine can ask for anything else.
    Cancel,
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
