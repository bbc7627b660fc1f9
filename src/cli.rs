//! The command line: what can be asked for, with an example each.

use crate::plan::Erase;
#[cfg(feature = "serve")]
use crate::serve::fronts::TlsOptions;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

const EXIT_CODES: &str = "\
Exit status: 0 done, 1 failed, 2 refused or not valid (nothing was written), 64 wrong usage,
75 (agent only) failed, and the machine is to boot again at once.";

/// Install agent for bare-metal servers.
#[derive(Debug, Parser)]
#[command(name = "drophammer", version, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Install this machine by what its control plane says (runs in the ramdisk).
    ///
    /// Reads the kernel command line: drophammer.url=, drophammer.token=, drophammer.machine=, drophammer.key=, console=.
    #[cfg(feature = "agent")]
    #[command(after_help = "Example: the kernel command line of the ramdisk\n  \
        drophammer.url=http://10.0.0.1:8080 drophammer.token=SECRET console=ttyS0,115200n8")]
    Agent,
    /// Carry out the reinstall that is ordered for this running machine: into the agent by kexec, without its firmware.
    ///
    /// Asks nothing. Where kexec is not possible the machine reboots over PXE.
    #[cfg(feature = "agent")]
    #[command(after_help = format!(
        "Example: after `drophammer machine reinstall ID --image IMAGE`, on the machine\n  \
        drophammer reinstall --server http://10.0.0.1:8080\n\n{EXIT_CODES}"
    ))]
    Reinstall(Reinstall),
    /// Pack an image, or burn one outside of an installation.
    #[cfg(feature = "agent")]
    Image(Image),
    /// Be the control plane of a desk or a rack.
    #[cfg(feature = "serve")]
    #[command(after_help = format!(
        "Examples: serve, copy its database while it runs, put a copy back\n  \
        drophammer serve /srv/drophammer --listen 10.0.0.1:8080\n  \
        drophammer serve backup /srv/drophammer /backup/drophammer-$(date +%F)\n  \
        drophammer serve restore /srv/drophammer /backup/drophammer-2026-11-22\n\n{EXIT_CODES}"
    ))]
    Serve(Serve),
    /// List the machines of a server, and order reinstalls.
    #[cfg(feature = "serve")]
    #[command(after_help = format!(
        "Examples: what there is, renew the image and keep the data, take it back\n  \
        drophammer machine list --server http://10.0.0.1:8080\n  \
        drophammer machine reinstall storage-7 --image debian-13.1.20261101\n  \
        drophammer machine reinstall storage-7 --cancel\n\n\
        A new mainboard: the same machine with another id\n  \
        drophammer machine rename OLD-UUID NEW-UUID\n\n{EXIT_CODES}"
    ))]
    Machine(Machine),
    /// Print this machine as JSON. Reads only.
    #[command(after_help = "Example:\n  drophammer inventory > storage-7.json")]
    Inventory,
    /// Print what an installation would do, disk by disk, with the point of no return. Reads only.
    #[command(after_help = format!(
        "Examples: a machine in a rack, planned on a desk from its inventory, or from what its server knows\n  \
        drophammer plan --layout storage.yaml --inventory storage-7.json --reinstall\n  \
        drophammer plan --machine storage-7 --server http://10.0.0.1:8080\n\n{EXIT_CODES}"
    ))]
    Plan(Plan),
    /// Check layouts: all that is wrong with each, and whether two of them are for the same size and image.
    #[command(after_help = format!(
        "Examples: a set, the layout that a machine would get, the canonical spelling\n  \
        drophammer check layouts/\n  \
        drophammer check layouts/ --select c1-large-x86 debian-12.0.20261101\n  \
        drophammer check default.yaml --fix\n\n{EXIT_CODES}"
    ))]
    Check(Check),
    /// Draw a layout: disks, partitions, arrays, groups, volumes, filesystems, mount points.
    #[cfg(feature = "desk")]
    #[command(after_help = format!("Example: a picture for the runbook\n  drophammer tree storage.yaml --svg=storage.svg\n\n{EXIT_CODES}"))]
    Tree(Tree),
    /// Print the JSON Schema of layouts, allocations or machine files, with which editors complete and check them.
    #[cfg(feature = "desk")]
    #[command(after_help = "Example:\n  drophammer schema layout > layout.schema.json")]
    Schema(Schema),
}

#[cfg(feature = "agent")]
#[derive(Debug, Args)]
pub struct Reinstall {
    /// The control plane.
    #[arg(long, value_name = "URL")]
    pub server: String,
    /// The machine's id [default: its SMBIOS UUID].
    #[arg(long, value_name = "UUID")]
    pub machine: Option<uuid::Uuid>,
    /// Only print what would happen.
    #[arg(long)]
    pub dry_run: bool,
}

#[cfg(feature = "agent")]
impl From<Reinstall> for crate::reinstall::Options {
    fn from(reinstall: Reinstall) -> Self {
        let Reinstall { server, machine, dry_run } = reinstall;
        crate::reinstall::Options { server, machine, dry_run }
    }
}

#[cfg(feature = "agent")]
#[derive(Debug, Args)]
pub struct Image {
    #[command(subcommand)]
    pub command: ImageCommand,
}

#[cfg(feature = "agent")]
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Stream an image below a directory, exactly as an installation does, and say how fast and what the bottleneck was.
    ///
    /// What is below the directory already stays, except that files of the same name are replaced, as tar does. Whiteouts
    /// of an OCI image's layers remove only what this burn has brought. When this fails, what came so far is left there.
    #[command(after_help = format!(
        "Example:\n  \
        drophammer image burn http://10.0.0.1/debian-12.tar.zst /mnt --digest sha256:HEX\n  \
        drophammer image burn http://10.0.0.1/debian-12.raw.zst /dev/sdb --overwrite\n\n{EXIT_CODES}"
    ))]
    Burn(Burn),
    /// Pack a directory or a disk image, with its manifest and, given a key, signatures. The same input gives the same bytes.
    ///
    /// SOURCE_DATE_EPOCH, where it is set, is the latest time in the image.
    #[cfg(feature = "desk")]
    #[command(after_help = format!(
        "Examples: a tree that debootstrap made, signed; the disk of a virtual machine\n  \
        drophammer image pack rootfs/ -o debian-12.tar.zst --key release.key --id debian-12.0.20261101\n  \
        drophammer image pack appliance.qcow2 -o appliance.raw.zst\n\n{EXIT_CODES}"
    ))]
    Pack(Pack),
}

#[cfg(feature = "agent")]
#[derive(Debug, Args)]
pub struct Burn {
    /// Where the image is.
    pub url: String,
    /// Directory that becomes the image's root; with --overwrite the disk that takes a raw image, or a file in place of one.
    pub target: PathBuf,
    /// `sha256:HEX` or `sha512:HEX` of the image as it travels [default: what lies beside it].
    #[arg(long)]
    pub digest: Option<String>,
    /// Another place with the same bytes; may be given several times.
    #[arg(long, value_name = "URL")]
    pub mirror: Vec<String>,
    /// minisign public key that may have signed the image, or its file; may be given several times. With one, a signature is
    /// required.
    #[arg(long, value_name = "KEY|FILE")]
    pub key: Vec<String>,
    /// A raw disk image replaces ALL that is on the target. On a disk the backup GPT goes to its end; a file gets the table as the
    /// image has it.
    #[arg(long)]
    pub overwrite: bool,
    /// The figures as JSON.
    #[arg(long)]
    pub json: bool,
}

#[cfg(feature = "serve")]
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Serve {
    #[command(subcommand)]
    pub command: Option<ServeCommand>,
    #[command(flatten)]
    pub options: Option<ServeOptions>,
}

#[cfg(feature = "serve")]
#[derive(Debug, Subcommand)]
pub enum ServeCommand {
    /// Copy the database into a new file, whole and consistent, while the server runs.
    Backup(Backup),
    /// Put a backup in the place of the database. The server must not run.
    Restore(Restore),
}

#[cfg(feature = "serve")]
#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
pub struct Backup {
    /// The server's directory.
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// The copy, which must not be there yet.
    #[arg(required = true)]
    pub file: PathBuf,
}

#[cfg(feature = "serve")]
#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
pub struct Restore {
    /// The server's directory.
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// What `drophammer serve backup` made.
    #[arg(required = true)]
    pub file: PathBuf,
    /// Also when the directory knows of more than the backup does.
    #[arg(long)]
    pub older: bool,
}

#[cfg(feature = "serve")]
#[derive(Debug, Args)]
pub struct ServeOptions {
    /// Directory with machines/, layouts/, images/ and boot/.
    pub dir: PathBuf,
    /// Address and port; port 0 takes a free one and prints it.
    #[arg(long, default_value = "0.0.0.0:8080", value_name = "ADDRESS:PORT")]
    pub listen: std::net::SocketAddr,
    /// Answer the operator's calls here, and not where machines ask.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub operator_listen: Option<std::net::SocketAddr>,
    /// Speak TLS: this certificate, then those that sign it (PEM). --listen has then only what firmware loads.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's key (PEM, without a passphrase).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Where calls and images are answered over TLS.
    #[arg(long, default_value = "0.0.0.0:8443", value_name = "ADDRESS:PORT", requires = "tls_cert")]
    pub tls_listen: std::net::SocketAddr,
    /// A proxy before this server: whom it asks for, its X-Forwarded-For says; may be given several times.
    #[arg(long = "proxy", value_name = "ADDRESS")]
    pub proxies: Vec<std::net::IpAddr>,
    /// How machines reach this server; without it, as each request names it.
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Directory with vmlinuz and initrd [default: DIR/boot].
    #[arg(long, value_name = "DIR")]
    pub boot: Option<PathBuf>,
    /// More for the kernel command line of the ramdisk.
    #[arg(long, value_name = "ARGUMENTS", default_value = "")]
    pub cmdline: String,
    /// One JSON object a line instead of text.
    #[arg(long)]
    pub json: bool,
}

#[cfg(feature = "serve")]
impl From<ServeOptions> for crate::serve::Options {
    fn from(serve: ServeOptions) -> Self {
        let ServeOptions { dir, listen, operator_listen, proxies, url, boot, cmdline, json, .. } = serve;
        let tls = serve.tls_cert.zip(serve.tls_key).map(|(certificates, key)| TlsOptions {
            certificates,
            key,
            listen: serve.tls_listen,
        });
        crate::serve::Options { dir, listen, operator_listen, tls, proxies, url, boot, cmdline, json }
    }
}

#[cfg(feature = "serve")]
#[derive(Debug, Args)]
pub struct Machine {
    #[command(subcommand)]
    pub command: MachineCommand,
    #[command(flatten)]
    pub of: OfServer,
    /// What the server answers, as JSON.
    #[arg(long, global = true)]
    pub json: bool,
}

/// Which server, and that it may be asked.
#[cfg(feature = "serve")]
#[derive(Debug, Clone, Default, Args)]
pub struct OfServer {
    /// Where `drophammer serve` is; DROPHAMMER_SERVER when it is left out [default: http://127.0.0.1:8080].
    #[arg(long, global = true, value_name = "URL")]
    pub server: Option<String>,
    /// File with the operator's token; DROPHAMMER_TOKEN_FILE when it is left out [default: ./operator.token].
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

#[cfg(feature = "serve")]
#[derive(Debug, Subcommand)]
pub enum MachineCommand {
    /// One line a machine: what it runs, what is ordered, how its last reinstall ended.
    List,
    /// Order a reinstall: the image is renewed, disks without wipeonreinstall are kept.
    Reinstall(Order),
    /// The server has forgotten that machines are installed: the marker on their disks is believed, and they boot what they have.
    Adopt(Adopt),
    /// A machine has another id now (a new mainboard, another firmware): what is known of it moves there.
    Rename(Rename),
}

#[cfg(feature = "serve")]
#[derive(Debug, Args)]
pub struct Adopt {
    /// Ids of machines, or their names.
    #[arg(value_name = "ID", required_unless_present = "waiting")]
    pub machines: Vec<String>,
    /// Only show which machines wait because a marker of their allocation is not believed, and the command that adopts them.
    #[arg(long, conflicts_with = "machines")]
    pub waiting: bool,
}

#[cfg(feature = "serve")]
#[derive(Debug, Args)]
pub struct Rename {
    /// The id that it had.
    #[arg(value_name = "OLD")]
    pub old: String,
    /// The id that it has.
    #[arg(value_name = "NEW")]
    pub new: String,
}

#[cfg(feature = "serve")]
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
    /// Take the order back, as long as it has not begun.
    #[arg(long)]
    pub cancel: bool,
}

#[cfg(all(feature = "agent", feature = "desk"))]
#[derive(Debug, Args)]
pub struct Pack {
    /// The root of a filesystem tree, or the file of a disk image, raw or qcow2.
    #[arg(value_name = "DIR|DISK")]
    pub source: PathBuf,
    /// The image; IMAGE.manifest and IMAGE.sha256 come to lie beside it.
    #[arg(short, long, value_name = "IMAGE")]
    pub output: PathBuf,
    /// Secret key of minisign; its password comes from the terminal or DROPHAMMER_KEY_PASSWORD.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Id of the image with its version, as allocations name it: `debian-12.0.20261101`. A signature is for this image then.
    #[arg(long, value_name = "OS-VERSION")]
    pub id: Option<String>,
    /// Of zstd, from fast to small.
    #[arg(long, default_value_t = 12, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=22))]
    pub level: i32,
    /// What was made, as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Plan {
    /// The layout, YAML or JSON; - is standard input.
    #[cfg_attr(feature = "serve", arg(long, value_name = "FILE", required_unless_present = "machine"))]
    #[cfg_attr(not(feature = "serve"), arg(long, value_name = "FILE", required = true))]
    pub layout: Option<PathBuf>,
    /// A machine of a server, by its id or name: what it would be told now, and the inventory that it has registered.
    /// With --layout that layout; with --inventory that inventory.
    #[cfg(feature = "serve")]
    #[arg(long, value_name = "ID")]
    pub machine: Option<String>,
    #[cfg(feature = "serve")]
    #[command(flatten)]
    pub of: OfServer,
    /// What `drophammer inventory` printed; without it, this machine.
    #[arg(long, value_name = "FILE")]
    pub inventory: Option<PathBuf>,
    /// How thoroughly disks are erased before they are made anew; with --machine the server's word counts.
    #[arg(long, value_enum, default_value_t)]
    pub erase: Erase,
    /// Preview a reinstall: disks without wipeonreinstall are kept, and what is on them is shown.
    #[arg(long)]
    pub reinstall: bool,
    /// As after a reboot into the agent: what the inventory shows as mounted, and its swap, is not in the way. A reinstall is
    /// always shown so.
    #[arg(long)]
    pub at_rest: bool,
    /// Preview a reinstall that is ordered with --without-marker.
    #[arg(long, requires = "reinstall")]
    pub without_marker: bool,
    /// The plan as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Check {
    /// Layouts, YAML or JSON, one or several a file; of a directory all *.yaml, *.yml and *.json; - is standard input. All of
    /// them are one set.
    #[arg(required = true, value_name = "FILE|DIR")]
    pub files: Vec<PathBuf>,
    /// The findings as JSON.
    #[arg(long)]
    pub json: bool,
    /// Print the layout that is chosen for this size and image: id and file.
    #[arg(long, num_args = 2, value_names = ["SIZE", "IMAGE"])]
    pub select: Vec<String>,
    /// Notes count as problems do.
    #[arg(long, conflicts_with = "fix")]
    pub strict: bool,
    /// Print one valid file in the canonical spelling: edited where it differs, comments and order stay.
    #[arg(long, conflicts_with_all = ["json", "select"])]
    pub fix: bool,
    /// Put the canonical spelling into the files themselves.
    #[arg(long, requires = "fix")]
    pub write: bool,
}

#[cfg(feature = "desk")]
#[derive(Debug, Args)]
pub struct Tree {
    /// The layout, YAML or JSON.
    #[arg(value_name = "LAYOUT")]
    pub layout: PathBuf,
    /// A picture instead: to FILE, or to standard output.
    // With `=`, so that no layout is ever taken for the file to write.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub svg: Option<Option<PathBuf>>,
}

#[cfg(feature = "desk")]
#[derive(Debug, Args)]
pub struct Schema {
    /// What the schema is of.
    pub of: Document,
}

/// A document that people write.
#[cfg(feature = "desk")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Document {
    Layout,
    /// What an agent gets from its control plane.
    Allocation,
    /// A file of `machines/` of `drophammer serve`.
    Machine,
}
