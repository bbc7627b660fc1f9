//! Types of a scenario file. `docs/scenarios.md` describes each field; `scenario_parser.rs` parses it.

use crate::expectations::RunExpectations;
use crate::served_image::OfferedImage;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Scenario: a machine and its runs.
#[derive(Debug)]
pub struct Scenario {
    pub name: String,
    /// Folder of the file; files that it names are looked up here first.
    pub folder: PathBuf,
    pub machine: Machine,
    pub runs: Vec<ScenarioRun>,
}

/// Machine, the same in all runs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    pub about: String,
    pub firmware: Firmware,
    #[serde(default = "default_memory_mib")]
    pub memory_mib: u32,
    #[serde(default = "default_processors")]
    pub processors: u32,
    /// Deadline of each boot.
    #[serde(default = "default_deadline_seconds")]
    pub deadline_seconds: u64,
    /// True if the scenario takes too long to run for every change.
    #[serde(default)]
    pub full: bool,
    pub disks: Vec<Disk>,
    /// QEMU models of the NICs.
    #[serde(default = "default_nics")]
    pub nics: Vec<String>,
    /// Index of the NIC over which the machine boots. If it is not the first, the other NICs are in other networks, which
    /// have DHCP but no server.
    #[serde(default)]
    pub boot_nic: usize,
    /// VLAN of the switch port of the first NIC: only tagged frames of this VLAN pass.
    pub vlan: Option<u16>,
    #[serde(default)]
    pub kernel_arguments: String,
    /// Date of the machine's clock at power-on; the present time if it is not set.
    pub clock: Option<String>,
    /// True if machine and server use TLS, except for files that firmware loads.
    #[serde(default)]
    pub tls: bool,
    /// True if the machine has a TPM 2.
    #[serde(default)]
    pub tpm: bool,
    /// True if the machine has a BMC with a KCS interface and the FRU inventory of `testdata/bmc`.
    #[serde(default)]
    pub bmc: bool,
    /// Shell script that the inspection ramdisk runs before the first run, with all disks writable.
    pub prepare: Option<String>,
}

/// Fields of [`Machine`]; all other fields at the top level belong to the runs.
pub const MACHINE_FIELDS: [&str; 16] = [
    "about",
    "firmware",
    "memory_mib",
    "processors",
    "deadline_seconds",
    "full",
    "disks",
    "nics",
    "boot_nic",
    "vlan",
    "kernel_arguments",
    "clock",
    "tls",
    "tpm",
    "bmc",
    "prepare",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Firmware {
    Bios,
    Uefi,
}

/// Disk of the machine, or a second path to one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Kernel name of the disk in the machine.
    pub name: String,
    pub bus: Bus,
    /// Size; absent for a second path, which has the size of its disk.
    #[serde(default)]
    pub size_mib: u64,
    #[serde(default = "default_sector")]
    pub sector: u32,
    /// Serial number; empty for a disk without one.
    pub serial: Option<String>,
    /// True if the disk is write-protected.
    #[serde(default)]
    pub read_only: bool,
    /// Name of the disk to which this is a second path.
    pub path_of: Option<String>,
    /// True if the SCSI disk is a USB stick.
    #[serde(default)]
    pub usb: bool,
    /// Bad blocks: MiB that cannot be read or written.
    #[serde(default)]
    pub errors_at_mib: Vec<u64>,
    /// True if the firmware boots from this disk; by default, from the first.
    #[serde(default)]
    pub boot: bool,
    /// Maximum throughput in MiB per second.
    pub throttle_mib: Option<u64>,
    #[serde(default)]
    pub before: Vec<InitialContent>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bus {
    Virtio,
    Sata,
    Nvme,
    Scsi,
}

/// Initial content of a disk; applied in order.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InitialContent {
    Random(RandomContent),
    Pattern(PatternContent),
    Mkfs(MkfsContent),
    Gpt(Vec<Partition>),
}

/// Range filled with pseudorandom bytes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomContent {
    pub seed: u64,
    #[serde(default)]
    pub at_mib: u64,
    pub mib: u64,
}

/// Range filled with a repeated text.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PatternContent {
    pub text: String,
    #[serde(default)]
    pub at_mib: u64,
    pub mib: u64,
}

/// Filesystem created by `mkfs`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MkfsContent {
    /// `swap`, or any format for which the host has a `mkfs.FORMAT`.
    pub format: String,
    #[serde(default)]
    pub at_mib: u64,
    pub mib: u64,
    #[serde(default)]
    pub options: Vec<String>,
}

/// Partition, in `before` and in `expect`: unspecified fields are not compared.
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
    /// True if the partition ends within the last 2 MiB of the disk.
    #[serde(default)]
    pub to_end: bool,
}

/// Run of the machine, from switching on to the inspection of its disks.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioRun {
    /// Layout, passed to the server verbatim.
    pub layout: Option<String>,
    pub layout_file: Option<PathBuf>,
    /// Deploy template, passed to the server verbatim. A template that creates a layout from its arrays is used with an allocation without
    /// a layout: `allocation: {filesystemlayout: null}`.
    pub template: Option<String>,
    #[serde(default)]
    pub image: OfferedImage,
    /// OS definitions: text of each file, by definition and file name. Files that begin with `#!` are executable.
    #[serde(default)]
    pub os: BTreeMap<String, BTreeMap<String, String>>,
    /// True if the allocation of the previous run is used again.
    #[serde(default)]
    pub same_allocation: bool,
    /// Reinstall that the operator orders first: the same allocation, with this run's image.
    #[serde(skip)]
    pub reinstall: Option<ReinstallOrder>,
    /// True if the server restarts without its database.
    #[serde(default)]
    pub forget: bool,
    /// Machine file without a control plane; the proxy serves it.
    pub fleet: Option<FleetSignature>,
    /// Boot source when the machine is switched on.
    #[serde(default)]
    pub boot: BootFrom,
    /// Like the machine's `prepare`, before this run.
    pub prepare: Option<String>,
    /// Shell script that the agent's ramdisk runs before the agent.
    pub before_agent: Option<String>,
    /// UUID that the firmware reports from this run on; the server's file is not changed.
    pub uuid: Option<String>,
    /// MACs of the NICs, in their order, from this run on.
    #[serde(default)]
    pub macs: Vec<String>,
    /// Disks that are not plugged in during this run.
    #[serde(default)]
    pub absent: Vec<String>,
    /// Disks that are replaced by new, empty ones from this run on.
    #[serde(default)]
    pub replaced: Vec<String>,
    /// True if the machine has another TPM from this run on.
    #[serde(default)]
    pub new_tpm: bool,
    /// Order in which the disks are plugged in during this run; by default, the order of the machine.
    #[serde(default)]
    pub disks_order: Vec<String>,
    #[serde(default)]
    pub events: Vec<ScenarioEvent>,
    #[serde(default)]
    pub types: Vec<TypedLine>,
    pub expect: RunExpectations,
    /// Fields for the allocation in the server's machine file; parsed separately because their types are not defined here.
    #[serde(skip)]
    pub allocation: serde_json::Map<String, serde_json::Value>,
    /// Fields for the machine file outside of the allocation.
    #[serde(skip)]
    pub machine_file: serde_json::Map<String, serde_json::Value>,
}

/// Reinstall order with its options.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReinstallOrder {
    /// Confirms that the disk with the marker was replaced.
    #[serde(default)]
    pub without_marker: bool,
    /// Serial numbers of disks whose data may be erased.
    #[serde(default)]
    pub give_up: Vec<String>,
    #[serde(default)]
    pub change_promise: bool,
}

impl ReinstallOrder {
    /// Returns the command line options.
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
    /// The harness requests the boot script in place of iPXE, and passes kernel and ramdisk to QEMU, which saves the
    /// minutes that firmware takes.
    Direct,
    /// The installed system boots from disk, downloads `drophammer` and runs `drophammer reinstall`.
    Kexec,
}

/// Event during a run: an action, and the moment that triggers it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioEvent {
    pub at: EventTrigger,
    #[serde(rename = "do")]
    pub act: EventAction,
    #[serde(default)]
    pub seconds: u64,
    /// Delay in seconds.
    #[serde(default)]
    pub after: u64,
    /// True if the response still reaches the machine; only for events at a request.
    #[serde(default)]
    pub answer: ResponseFate,
    /// Disks that are replugged.
    #[serde(default)]
    pub disks: Vec<String>,
}

impl ScenarioEvent {
    /// Returns whether the event waits in the proxy for the response to a request.
    pub fn is_at_answer(&self) -> bool {
        matches!(self.at, EventTrigger::Request(_))
            && matches!(self.act, EventAction::ServerKill | EventAction::PowerCut | EventAction::Cancel)
    }
}

/// Fate of the response to the request, which the server has processed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ResponseFate {
    #[default]
    Passed,
    Lost,
}

/// Moment at which an event happens.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventTrigger {
    /// The server receives this step for the first time.
    Step(String),
    /// The server receives this event for the first time.
    Event(String),
    Console(String),
    /// This number of bytes of an image has passed the proxy, which holds back the rest until the event has happened.
    ImageBytes(u64),
    /// `METHOD PATH`, when it passes the proxy for the first time.
    Request(String),
}

/// Action of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventAction {
    /// The machine is power cycled.
    PowerCut,
    LinkDown,
    /// The server is stopped (SIGSTOP); connections stay open.
    ServerStop,
    /// The server is killed and restarted.
    ServerKill,
    /// The server responds 500 to everything.
    ServerErrors,
    /// Disks are removed while the machine runs, and plugged in again in each other's slots.
    Replug,
    /// The operator cancels the order before the machine can send another request.
    Cancel,
}

/// Default number of processors of a machine. A host may have only two cores, on which two machines run concurrently.
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

/// Line that is typed each time the console shows `at`, in each boot of the run.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TypedLine {
    pub at: String,
    /// Text without the line ending.
    pub line: String,
}

/// Signature of the machine file, made with `testdata/trust/one.key`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FleetSignature {
    Signed,
    Unsigned,
}
