//! What an operator can ask of a server.

use crate::bmc::Action;
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    pub command: MachineCommand,
    #[command(flatten)]
    pub of: OfServer,
    /// What the server answers, as JSON.
    #[arg(long, global = true)]
    pub json: bool,
}

/// Which server, and that it may be asked.
#[derive(Debug, Clone, Default, Args)]
pub struct OfServer {
    /// Where `drophammer serve` is; DROPHAMMER_SERVER when it is left out [default: http://127.0.0.1:8080].
    #[arg(long, global = true, value_name = "URL")]
    pub server: Option<String>,
    /// File with the operator's token; DROPHAMMER_TOKEN_FILE when it is left out [default: ./operator.token].
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum MachineCommand {
    /// One line a machine: what it runs, what is ordered, how its last reinstall ended.
    List,
    /// Make a file of a machine that has registered, with its MACs and its size. Nothing is installed before it has an allocation.
    Add(Add),
    /// Order a reinstall: the image is renewed, disks without wipeonreinstall are kept.
    Reinstall(Order),
    /// Switch a machine through its management controller, or have it boot over PXE next.
    Power(Switch),
    /// Move a machine to another one's hardware: order it, show how far it is, take it back, or say that its system runs there.
    Move(Move),
    /// The server has forgotten that machines are installed: the marker on their disks is believed, and they boot what they have.
    Adopt(Adopt),
    /// Print the command that carries out a reinstall on the running machine, with a digest of kernel, ramdisk and command line: over plain HTTP another host
    /// could replace them.
    BootDigest(BootDigest),
    /// The server's database was restored from a backup: its records of these machines are up to date, and orders are carried out again.
    Confirm(Confirm),
    /// A machine has another id now (a new mainboard, another firmware): what is known of it moves there.
    Rename(Rename),
}

#[derive(Debug, Args)]
pub struct LayoutOptions {
    #[command(subcommand)]
    pub command: LayoutCommand,
    #[command(flatten)]
    pub of: OfServer,
    /// What the server answers, as JSON.
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum LayoutCommand {
    /// One line a layout: its filesystems, and for which sizes and images it is.
    #[command(visible_alias = "ls")]
    List,
    /// Print a layout as YAML.
    Show {
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Make a layout of a file. There must be none with its id.
    Create {
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Have a layout be as in a file, whether there is one with its id or not. Comments of the server's file stay.
    Apply {
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Delete a layout that no machine uses.
    Delete {
        #[arg(value_name = "ID")]
        id: String,
    },
}

#[derive(Debug, Args)]
pub struct VolumeOptions {
    #[command(subcommand)]
    pub command: VolumeCommand,
    #[command(flatten)]
    pub of: OfServer,
    /// What the server answers, as JSON.
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// One line a volume: its machine, how far it is, what it is mounted by.
    #[command(visible_alias = "ls")]
    List {
        /// Print PersistentVolumes of those that are available instead, for kubectl apply -f.
        #[arg(long)]
        manifests: bool,
    },
    /// Put the volumes and storage classes of a file into a machine's file.
    Add {
        /// The machine's id or its name.
        #[arg(value_name = "ID")]
        machine: String,
        /// What kubectl get volumes,storageclasses -o yaml prints.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Take a volume out of a machine's file. Its data stay, and nobody writes to it any more.
    Rm {
        /// The machine's id or its name.
        #[arg(value_name = "ID")]
        machine: String,
        /// The volume's name.
        #[arg(value_name = "NAME")]
        volume: String,
        /// The phase of its PersistentVolume, as kubectl get pv says it, or none: this server does not ask Kubernetes.
        #[arg(long, value_name = "none|pending|available|bound|released|failed")]
        persistent_volume: String,
    },
}

#[derive(Debug, Args)]
pub struct ListImages {
    /// Hidden and blacklisted ones too.
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub of: OfServer,
    /// What the server answers, as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ModifyImage {
    /// Id of the image, or name of an OS definition. There need not be one yet.
    #[arg(value_name = "ID")]
    pub image: String,
    /// A hidden image is in no list, but can be installed.
    #[arg(long, value_name = "true|false")]
    pub hidden: Option<bool>,
    /// A blacklisted image is in no list, and does not install; what runs it can be reinstalled with it.
    #[arg(long, value_name = "true|false")]
    pub blacklisted: Option<bool>,
    #[command(flatten)]
    pub of: OfServer,
    /// What the server answers, as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Adopt {
    /// Ids of machines, or their names.
    #[arg(value_name = "ID", required_unless_present = "waiting")]
    pub machines: Vec<String>,
    /// Only show which machines wait because a marker of their allocation is not believed, and the command that adopts them.
    #[arg(long, conflicts_with = "machines")]
    pub waiting: bool,
}

#[derive(Debug, Args)]
pub struct BootDigest {
    /// The machine's id or its name.
    #[arg(value_name = "ID")]
    pub machine: String,
    /// URL at which the machine reaches the server [default: that of `drophammer serve --url`].
    #[arg(long, value_name = "URL")]
    pub at: Option<String>,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("which").required(true).args(["machines", "all"])))]
pub struct Confirm {
    /// Ids of machines, or their names.
    #[arg(value_name = "ID")]
    pub machines: Vec<String>,
    /// All machines, also those that are added later.
    #[arg(long)]
    pub all: bool,
}

#[derive(Debug, Args)]
pub struct Add {
    /// The machine's id, as the server's output says it.
    #[arg(value_name = "ID")]
    pub machine: String,
    /// What it is to be called: machines/NAME.yaml of the server's directory.
    #[arg(long)]
    pub name: String,
    /// Its size [default: the one of sizes/ whose constraints take it].
    #[arg(long)]
    pub size: Option<String>,
}

#[derive(Debug, Args)]
pub struct Switch {
    pub action: Action,
    /// The machine's id or its name.
    #[arg(value_name = "ID")]
    pub machine: String,
    #[command(flatten)]
    pub controller: Controller,
}

/// A management controller that is asked from here, and not by the server.
#[derive(Debug, Args)]
pub struct Controller {
    /// Ask this one, without the server: https://HOST (Redfish) or ipmi://HOST [default: `bmc:` of the machine's file, by the server].
    #[arg(long, value_name = "URL", requires = "bmc_user")]
    pub bmc: Option<String>,
    /// User at the management controller.
    #[arg(long, value_name = "NAME", requires = "bmc")]
    pub bmc_user: Option<String>,
    /// File with the password; DROPHAMMER_BMC_PASSWORD has it when this is left out.
    #[arg(long, value_name = "FILE", requires = "bmc")]
    pub bmc_password_file: Option<PathBuf>,
    /// Take any certificate: whoever is on the way can read the password.
    #[arg(long, requires = "bmc")]
    pub bmc_insecure: bool,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("done").args(["cancel", "finish"])))]
pub struct Move {
    /// The machine that is moved, by its id or its name.
    #[arg(value_name = "A")]
    pub machine: String,
    /// The machine that receives, by its id or its name. Without it the newest move of A is shown.
    #[arg(value_name = "B", conflicts_with = "done")]
    pub to: Option<String>,
    /// Which disk of B a name of the layout means, by its serial number or its name; given for every disk of the layout, or for none [default:
    /// those with the same names, or as many as there are, in the order of their names].
    #[arg(long = "disk", value_name = "NAME=DISK", requires = "to")]
    pub disks: Vec<String>,
    /// Have both machines carry it out now: they boot over PXE next, and are switched off and on, as `bmc:` of their files says.
    #[arg(long, requires = "to")]
    pub now: bool,
    /// Take the move back: A boots its disks. Refused when B has received all, without --off.
    #[arg(long)]
    pub cancel: bool,
    /// With --cancel, when B has received all and may run the system: you say that B is switched off, and nobody looks.
    #[arg(long, value_name = "B", requires = "cancel")]
    pub off: Option<String>,
    /// You say that the system runs on B: A is released.
    #[arg(long)]
    pub finish: bool,
}

#[derive(Debug, Args)]
pub struct Rename {
    /// The id that it had.
    #[arg(value_name = "OLD")]
    pub old: String,
    /// The id that it has.
    #[arg(value_name = "NEW")]
    pub new: String,
}

#[derive(Debug, Args)]
pub struct Order {
    /// The machine's id or its name.
    #[arg(value_name = "ID")]
    pub machine: String,
    /// Id of the new image.
    #[arg(long, required_unless_present = "cancel", conflicts_with = "cancel")]
    pub image: Option<String>,
    /// Also when the disk that carries / has no marker of this machine, because it was replaced.
    #[arg(long, conflicts_with = "cancel")]
    pub without_marker: bool,
    /// With the layout of its file, also where that promises other things than what is installed: a disk that was kept so far
    /// may be wiped.
    #[arg(long, conflicts_with = "cancel")]
    pub change_promise: bool,
    /// Give up the data of the disk with this serial number; may be given several times.
    #[arg(long, value_name = "SERIAL", conflicts_with = "cancel")]
    pub give_up: Vec<String>,
    /// Replace the installation on the disks even if it is newer than what the server has on record.
    #[arg(long, conflicts_with = "cancel")]
    pub replace_newer: bool,
    /// Have the machine carry it out now: it boots over PXE next, and is switched off and on, as `bmc:` of its file says.
    #[arg(long, conflicts_with = "cancel")]
    pub now: bool,
    /// Take the order back, as long as it has not begun.
    #[arg(long)]
    pub cancel: bool,
}
