//! Options of the operator's commands.

use super::add_machine::AddOptions;
use super::allocate_machine::AllocateOptions;
use super::connection::ServerOptions;
use super::machine_details::event_lists::{EventOptions, HistoryOptions};
use super::machine_details::{LogOptions, ShowMachineOptions};
use super::reinstall_options::{PlanMachineOptions, ReinstallOrderOptions};
use super::watched_output::WatchedListOptions;
use crate::local_commands::layout_from_machine::FromMachineOptions;
use crate::object_list::DocumentOptions;
use bmc::PowerAction;
use clap::builder::FalseyValueParser;
use clap::{Args, Subcommand};
use model::inventory::FirmwareType;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct MachineOptions {
    #[command(subcommand)]
    pub command: MachineCommand,
    #[command(flatten)]
    pub of: ServerOptions,
    /// Print the server's response as JSON.
    #[arg(long, global = true, env = "DROPHAMMER_JSON", value_parser = FalseyValueParser::new())]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum MachineCommand {
    /// List the machines: phase, installed image, time since the last request, open orders, and the reason for a
    /// failure.
    #[command(visible_alias = "ls")]
    List(WatchedListOptions),
    /// Show everything about one machine: state, failure, file, hardware, and the timeline of its last installation.
    Show(ShowMachineOptions),
    /// List the stored events of a machine, the oldest first.
    Events(EventOptions),
    /// Print the console log of a machine: the output of ramdisk and agent during its last boots.
    Logs(LogOptions),
    /// List the orders and the finished installations of a machine, successful or failed, the oldest first.
    History(HistoryOptions),
    /// Print what the next boot of a machine would do, disk by disk; the same as `drophammer plan --machine`.
    #[command(after_help = super::reinstall_options::plan_help())]
    Plan(PlanMachineOptions),
    /// Create the machine file of a registered machine, with its MACs and its size. With --image, the file also
    /// contains an allocation, and the machine is installed.
    #[command(visible_alias = "create")]
    Add(AddOptions),
    /// Install free machines: add an allocation to their files.
    Allocate(AllocateOptions),
    /// Order a reinstall: the image is replaced; disks without wipeonreinstall are preserved.
    Reinstall(ReinstallOrderOptions),
    /// Lock machines, with a reason that is written to their files. Nothing can be ordered for a locked machine, and
    /// it can be neither freed nor allocated.
    Lock(LockOptions),
    /// Unlock machines.
    Unlock(NamedMachinesOptions),
    /// Free machines: remove the allocations from their files, and power the machines off if their management
    /// controllers are known. The disks are unchanged, and a machine waits in the ramdisk after its next boot over
    /// PXE.
    Free(NamedMachinesOptions),
    /// Change the OS parameters in a machine file.
    Modify(ModifyMachineOptions),
    /// Power a machine on or off through its management controller, set its next boot to PXE, or print its power state.
    Power(PowerOptions),
    /// Migrate a machine to the hardware of another machine: order, show, approve, cancel or finish the migration. To
    /// copy single disks between two hosts without a server, use `drophammer move`.
    Move(MoveOptions),
    /// Record the installations that the install markers of machines describe, after the server has lost its own
    /// records. The machines then boot their disks. For a machine that another installer has installed, run `drophammer
    /// adopt` on that machine instead.
    Adopt(AdoptOptions),
    /// Print the `drophammer reinstall` command for the running machine, with the digest of kernel, ramdisk and kernel
    /// command line. With this digest, the machine detects a kernel, ramdisk or kernel command line that was replaced
    /// in transit. Such a replacement is possible if the server uses plain HTTP.
    BootDigest(BootDigestOptions),
    /// Confirm that the records of these machines are up to date after the database was restored from a backup. The
    /// server neither installs nor migrates a machine whose record is not confirmed.
    Confirm(ConfirmOptions),
    /// Move the records of a machine to its new id, after a new mainboard or new firmware has changed the id.
    Rename(RenameOptions),
}

#[derive(Debug, Args)]
pub struct LayoutOptions {
    #[command(subcommand)]
    pub command: LayoutCommand,
    #[command(flatten)]
    pub of: ServerOptions,
    /// Print the server's response as JSON.
    #[arg(long, global = true, env = "DROPHAMMER_JSON", value_parser = FalseyValueParser::new())]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum LayoutCommand {
    /// List the layouts: filesystems, sizes and images.
    #[command(visible_alias = "ls")]
    List(WatchedListOptions),
    /// Print a layout as YAML.
    Show {
        /// Id of the layout.
        #[arg(value_name = "ID")]
        id: String,
        #[command(flatten)]
        format: DocumentOptions,
    },
    /// Create a layout from a file. Fails if the server already has a layout with this id.
    #[command(visible_alias = "add")]
    Create {
        /// File with the layout; - reads standard input.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Create or update a layout from a file. Comments in the server's file are preserved.
    Apply {
        /// File with the layout; - reads standard input.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Print the layout of a machine that another installer has installed: a reinstall with this layout renews the
    /// system, and preserves everything else.
    FromMachine(FromMachineOptions),
    /// Delete a layout that is not in use.
    #[command(visible_alias = "rm")]
    Delete {
        /// Id of the layout.
        #[arg(value_name = "ID")]
        id: String,
    },
}

#[derive(Debug, Args)]
pub struct VolumeOptions {
    #[command(subcommand)]
    pub command: VolumeCommand,
    #[command(flatten)]
    pub of: ServerOptions,
    /// Print the server's response as JSON.
    #[arg(long, global = true, env = "DROPHAMMER_JSON", value_parser = FalseyValueParser::new())]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// List the volumes: machine, state, path.
    #[command(visible_alias = "ls")]
    List {
        /// Print PersistentVolume manifests of the available volumes instead of the list, for kubectl apply -f.
        #[arg(long, env = "DROPHAMMER_MANIFESTS", value_parser = FalseyValueParser::new())]
        manifests: bool,
        #[command(flatten)]
        list: WatchedListOptions,
    },
    /// Add the volumes and storage classes in a file to a machine file.
    #[command(visible_alias = "create")]
    Add {
        /// The machine's id or its name.
        #[arg(value_name = "ID")]
        machine: String,
        /// Output of kubectl get volumes,storageclasses -o yaml; - reads standard input.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Print a volume as YAML.
    Show {
        /// Name of the volume.
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        format: DocumentOptions,
    },
    /// Remove a volume from a machine file. The data of the volume is preserved, but drophammer no longer manages the
    /// volume.
    #[command(visible_alias = "rm")]
    Delete {
        /// The machine's id or its name.
        #[arg(value_name = "ID")]
        machine: String,
        /// Name of the volume.
        #[arg(value_name = "NAME")]
        volume: String,
        /// Phase of the volume's PersistentVolume, as printed by kubectl get pv; `none` if the volume has no
        /// PersistentVolume. The server does not query Kubernetes for the phase.
        #[arg(long, value_name = "none|pending|available|bound|released|failed")]
        persistent_volume: String,
    },
}

/// Changes of OS parameters, in the syntax of Ganeti.
#[derive(Debug, Args)]
pub struct ParameterOptions {
    /// Changes, separated by commas: KEY=VALUE stores a value, and -KEY deletes the stored value. Write a comma
    /// within a value as \\,.
    #[arg(short = 'O', long = "os-parameters", value_name = "KEY=VALUE,-KEY", allow_hyphen_values = true)]
    pub os_parameters: Vec<String>,
}

#[derive(Debug, Args)]
pub struct ModifyMachineOptions {
    /// Id or name of the machine.
    #[arg(value_name = "ID")]
    pub machine: String,
    #[command(flatten)]
    pub parameters: ParameterOptions,
}

#[derive(Debug, Args)]
pub struct LockOptions {
    /// Ids or names of machines.
    #[arg(value_name = "ID", required = true)]
    pub machines: Vec<String>,
    /// Reason for the lock.
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
}

#[derive(Debug, Args)]
pub struct NamedMachinesOptions {
    /// Ids or names of machines.
    #[arg(value_name = "ID", required = true)]
    pub machines: Vec<String>,
}

#[derive(Debug, Args)]
pub struct AdoptOptions {
    /// Ids or names of machines.
    #[arg(value_name = "ID", required_unless_present = "waiting")]
    pub machines: Vec<String>,
    /// Only list machines that wait because their install marker is not trusted, and print the command that adopts
    /// them.
    #[arg(long, conflicts_with = "machines")]
    pub waiting: bool,
    /// Adopt only machines with this install marker, which `--waiting` has listed; repeat the option for each machine.
    #[arg(long = "marker", value_name = "DIGEST", conflicts_with = "waiting")]
    pub markers: Vec<String>,
}

#[derive(Debug, Args)]
pub struct BootDigestOptions {
    /// Id or name of the machine.
    #[arg(value_name = "ID")]
    pub machine: String,
    /// URL at which the machine reaches the server [default: the URL of `drophammer serve --url`].
    #[arg(long, value_name = "URL")]
    pub at: Option<String>,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("which").required(true).args(["machines", "all"])))]
pub struct ConfirmOptions {
    /// Ids or names of machines.
    #[arg(value_name = "ID")]
    pub machines: Vec<String>,
    /// Confirm all machines. Machines that are added later also do not need confirmation.
    #[arg(long)]
    pub all: bool,
}

#[derive(Debug, Args)]
pub struct PowerOptions {
    pub action: PowerCommand,
    /// Id or name of the machine.
    #[arg(value_name = "ID")]
    pub machine: String,
    #[command(flatten)]
    pub controller: ControllerOptions,
}

/// Action on the power of a machine, or query of its power state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PowerCommand {
    /// Switch the machine on.
    On,
    /// Switch the machine off immediately, without a shutdown.
    Off,
    /// Power-cycle the machine, or switch it on if it is off.
    Cycle,
    /// Boot over PXE at the next boot only.
    Pxe,
    /// Print the power state that the controller reports: on, off, changing or unknown.
    Status,
}

impl PowerCommand {
    /// Returns the power action; `None` if only the power state is queried.
    pub(crate) fn action(self) -> Option<PowerAction> {
        match self {
            PowerCommand::On => Some(PowerAction::On),
            PowerCommand::Off => Some(PowerAction::Off),
            PowerCommand::Cycle => Some(PowerAction::Cycle),
            PowerCommand::Pxe => Some(PowerAction::Pxe),
            PowerCommand::Status => None,
        }
    }
}

/// Management controller that is contacted directly, without the server.
#[derive(Debug, Args)]
pub struct ControllerOptions {
    /// Management controller to contact directly, without the server: https://HOST (Redfish) or ipmi://HOST [default:
    /// the server contacts the controller in `bmc:` of the machine file].
    #[arg(long, value_name = "URL", requires = "bmc_user")]
    pub bmc: Option<String>,
    /// User name at the management controller.
    #[arg(long, value_name = "NAME", requires = "bmc")]
    pub bmc_user: Option<String>,
    /// File with the password. If omitted, the password is read from the environment variable DROPHAMMER_BMC_PASSWORD.
    #[arg(long, value_name = "FILE", requires = "bmc")]
    pub bmc_password_file: Option<PathBuf>,
    /// Accept any TLS certificate of the controller. An attacker on the network can then read the password.
    #[arg(long, requires = "bmc")]
    pub bmc_insecure: bool,
    /// Firmware type of the machine, for the action `pxe` [default: with IPMI, uefi; with Redfish, the boot mode that
    /// the controller reports].
    #[arg(long, value_name = "TYPE", requires = "bmc")]
    pub firmware: Option<FirmwareOption>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum FirmwareOption {
    Uefi,
    Bios,
}

impl From<FirmwareOption> for FirmwareType {
    fn from(option: FirmwareOption) -> FirmwareType {
        match option {
            FirmwareOption::Uefi => FirmwareType::Uefi,
            FirmwareOption::Bios => FirmwareType::Bios,
        }
    }
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("done").args(["cancel", "finish", "approve"])))]
pub struct MoveOptions {
    /// The source machine, by its id or name.
    #[arg(value_name = "A")]
    pub machine: String,
    /// The target machine, by its id or name. If omitted, the newest migration of the source machine is shown.
    #[arg(value_name = "B", conflicts_with = "done")]
    pub to: Option<String>,
    /// Assign a disk of the target machine, by its serial number or name, to a disk of the layout. Use this option for
    /// every disk of the layout or for none [default: disks with the same names, or else all disks in the order of
    /// their names].
    #[arg(long = "disk", value_name = "NAME=DISK", requires = "to")]
    pub disks: Vec<String>,
    /// Start the migration now: set both machines to boot over PXE next and power-cycle them, through the controllers
    /// in `bmc:` of their machine files.
    #[arg(long, requires = "to")]
    pub now: bool,
    /// Approve the certificate of the source or target machine by its fingerprint, which the console of that machine
    /// shows. Nothing is copied until both certificates are approved. If one of the machines boots again, both
    /// certificates must be approved again.
    #[arg(long, value_name = "FINGERPRINT")]
    pub approve: Vec<String>,
    /// Copy without approval of the certificates, on trusted networks only: any machine that impersonates the target
    /// machine receives the contents of the source machine's disks, and any machine that impersonates the source
    /// machine overwrites the disks of the target machine.
    #[arg(long, requires = "to")]
    pub allow_unapproved: bool,
    /// Cancel the migration: the source machine boots its disks. If the target machine has received all data, --off is
    /// also required.
    #[arg(long)]
    pub cancel: bool,
    /// Confirm that the target machine is switched off. Required with --cancel if the target machine has received all
    /// data, because the machine may then run the system. The server does not check that the machine is off.
    #[arg(long, value_name = "B", requires = "cancel")]
    pub off: Option<String>,
    /// Confirm that the system runs on the target machine. The migration then ends, and the source machine no longer
    /// has an allocation.
    #[arg(long)]
    pub finish: bool,
}

#[derive(Debug, Args)]
pub struct RenameOptions {
    /// Previous id of the machine.
    #[arg(value_name = "OLD")]
    pub old: String,
    /// New id of the machine.
    #[arg(value_name = "NEW")]
    pub new: String,
}
