//! Types of a scenario file (`docs/scenarios.md`, `docs/scenario-runs.md`), which `scenario_parser.rs` parses.

use crate::expectations::RunExpectations;
use crate::reinstall_order_options::ReinstallOrderOptions;
use crate::scenario_image::OfferedImage;
use model::architecture::Architecture;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Scenario: a machine and its runs.
#[derive(Debug)]
pub struct Scenario {
    pub name: String,
    /// Folder of the scenario file. Files that the scenario names are first searched in this folder.
    pub folder: PathBuf,
    pub machine: Machine,
    pub runs: Vec<ScenarioRun>,
}

/// Machine, which is the same in all runs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    pub about: String,
    pub firmware: Firmware,
    #[serde(default)]
    pub architecture: Architecture,
    #[serde(default = "default_memory_mib")]
    pub memory_mib: u32,
    #[serde(default = "default_processors")]
    pub processors: u32,
    /// Time limit of each boot, in seconds.
    #[serde(default = "default_deadline_seconds")]
    pub deadline_seconds: u64,
    /// True if the scenario takes too long to run for every change.
    #[serde(default)]
    pub full: bool,
    pub disks: Vec<Disk>,
    /// QEMU models of the NICs.
    #[serde(default = "default_nics")]
    pub nics: Vec<String>,
    /// Index of the NIC over which the machine boots. If it is not the first NIC, the other NICs are in other networks,
    /// with DHCP but without the server.
    #[serde(default)]
    pub boot_nic: usize,
    /// VLAN of the switch port of the first NIC, which forwards only tagged frames of this VLAN.
    pub vlan: Option<u16>,
    #[serde(default)]
    pub kernel_arguments: String,
    /// Time of the machine's clock at power-on; `None` for the current time.
    pub clock: Option<String>,
    /// True if machine and server use TLS, except for the files that firmware loads.
    #[serde(default)]
    pub tls: bool,
    /// True if the machine has a TPM 2.
    #[serde(default)]
    pub tpm: bool,
    /// True if the machine has a BMC with a KCS interface and the FRU inventory of `testdata/bmc`.
    #[serde(default)]
    pub bmc: bool,
    /// Shell script that the inspection ramdisk runs before the first run, with write access to all disks.
    pub prepare: Option<String>,
}

/// Fields of [`Machine`]. All other fields at the top level belong to the runs.
pub const MACHINE_FIELDS: [&str; 17] = [
    "about",
    "firmware",
    "architecture",
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

impl Machine {
    /// Returns the path of a build result for this machine, among the artifacts: `ramdisk` or `ramdisk-arm64`.
    pub fn artifact(&self, name: &str) -> String {
        match self.architecture {
            Architecture::Amd64 => name.to_owned(),
            Architecture::Arm64 => format!("{name}-arm64"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Firmware {
    Bios,
    Uefi,
}

/// Disk of the machine, or a second path to a disk.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Kernel name of the disk in the machine.
    pub name: String,
    pub bus: Bus,
    /// Size in MiB; absent for a second path.
    #[serde(default)]
    pub size_mib: u64,
    #[serde(default = "default_sector")]
    pub sector: u32,
    /// Serial number; empty if the disk has none.
    pub serial: Option<String>,
    /// True if the disk is write-protected.
    #[serde(default)]
    pub read_only: bool,
    /// Name of the disk to which this entry is a second path.
    pub path_of: Option<String>,
    /// True if the SCSI disk is a USB stick.
    #[serde(default)]
    pub usb: bool,
    /// Indices of the MiB that cannot be read or written, as with bad blocks.
    #[serde(default)]
    pub errors_at_mib: Vec<u64>,
    /// True if the firmware boots from this disk. By default, it boots from the first disk.
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

/// Initial content of a disk. Several contents are written in their order.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InitialContent {
    Random(RandomContent),
    Pattern(PatternContent),
    Mkfs(MkfsContent),
    Gpt(Vec<Partition>),
    /// Contents of this file, such as the disk of another machine.
    Copy(PathBuf),
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

/// Partition, in `before` and in `expect`. Unspecified fields are not compared.
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

/// Run of the machine, from power-on to the inspection of its disks.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioRun {
    /// Layout, which the server receives unchanged.
    pub layout: Option<String>,
    pub layout_file: Option<PathBuf>,
    /// Deploy template, which the server receives unchanged. If the template generates the layout from its own arrays,
    /// the allocation must not contain a layout: `allocation: {filesystemlayout: null}`.
    pub template: Option<String>,
    #[serde(default)]
    pub image: OfferedImage,
    /// OS definitions: text of each file, by definition and file name. Files that begin with `#!` are executable.
    #[serde(default)]
    pub os: BTreeMap<String, BTreeMap<String, String>>,
    /// True if the allocation of the previous run is used again.
    #[serde(default)]
    pub same_allocation: bool,
    /// Reinstall that the operator orders before this run, with the same allocation and this run's image.
    #[serde(skip)]
    pub reinstall: Option<ReinstallOrderOptions>,
    /// True if the operator adopts the machine, which another installer has installed, before this run.
    #[serde(default)]
    pub adopted: bool,
    /// True if the database of the server is removed before this run.
    #[serde(default)]
    pub forget: bool,
    /// Signature of the machine file of a machine without a control plane. The proxy serves the file.
    pub fleet: Option<FleetSignature>,
    /// Source from which the machine boots when it is switched on.
    #[serde(default)]
    pub boot: BootFrom,
    /// Shell script as in [`Machine::prepare`], which runs before this run.
    pub prepare: Option<String>,
    /// Shell script that the agent's ramdisk runs before the agent.
    pub before_agent: Option<String>,
    /// UUID that the firmware reports from this run on. The server's machine file is not changed.
    pub uuid: Option<String>,
    /// MACs of the NICs, in their order, from this run on.
    #[serde(default)]
    pub macs: Vec<String>,
    /// Disks that are not plugged in during this run.
    #[serde(default)]
    pub absent: Vec<String>,
    /// Disks that new, empty disks replace from this run on.
    #[serde(default)]
    pub replaced: Vec<String>,
    /// True if the machine has another TPM from this run on.
    #[serde(default)]
    pub new_tpm: bool,
    /// Order in which the disks are plugged in during this run. By default, it is the order of the scenario.
    #[serde(default)]
    pub disks_order: Vec<String>,
    #[serde(default)]
    pub events: Vec<ScenarioEvent>,
    #[serde(default)]
    pub types: Vec<TypedLine>,
    pub expect: RunExpectations,
    /// Fields for the allocation in the machine file. They are JSON, because their types are not defined here.
    #[serde(skip)]
    pub allocation: serde_json::Map<String, serde_json::Value>,
    /// Fields for the machine file, outside of the allocation.
    #[serde(skip)]
    pub machine_file: serde_json::Map<String, serde_json::Value>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BootFrom {
    #[default]
    Pxe,
    /// The harness requests the boot script instead of iPXE, and passes kernel and ramdisk to QEMU. This saves the
    /// minutes that firmware takes.
    Direct,
    /// The installed system boots from disk, downloads `drophammer` and runs `drophammer reinstall`.
    Kexec,
}

/// Event during a run: an action, and the moment at which it is triggered.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioEvent {
    pub at: EventTrigger,
    #[serde(rename = "do")]
    pub act: EventAction,
    #[serde(default)]
    pub seconds: u64,
    /// Time between the trigger and the action, in seconds.
    #[serde(default)]
    pub after: u64,
    /// Whether the response still reaches the machine, for an event at a request.
    #[serde(default)]
    pub answer: ResponseFate,
    /// Disks that are removed and plugged in again.
    #[serde(default)]
    pub disks: Vec<String>,
}

impl ScenarioEvent {
    /// Returns whether the proxy executes the event, at the response to a request.
    pub fn is_at_answer(&self) -> bool {
        matches!(self.at, EventTrigger::Request(_))
            && matches!(self.act, EventAction::ServerKill | EventAction::PowerCut | EventAction::Cancel)
    }
}

/// Whether the machine receives the response to a request that the server has processed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ResponseFate {
    #[default]
    Passed,
    Lost,
}

/// Moment that triggers an event.
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
    /// A request `METHOD PATH` passes the proxy for the first time.
    Request(String),
}

/// Action of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventAction {
    /// The machine is power cycled.
    PowerCut,
    LinkDown,
    /// The server process is stopped (SIGSTOP). Its connections stay open.
    ServerStop,
    /// The server is killed and restarted.
    ServerKill,
    /// The server responds to all requests with status 500.
    ServerErrors,
    /// Disks are removed while the machine is running, and plugged in again in exchanged slots.
    Replug,
    /// The operator cancels the order before the machine can send another request.
    Cancel,
}

/// Default number of processors of a machine. Two machines may run at the same time on a host with only two cores.
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

/// Line that is typed whenever the console shows `at`, in each boot of the run.
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
