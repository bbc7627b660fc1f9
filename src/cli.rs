//! The command line: what can be asked for, with an example each.

use clap::{Parser, Subcommand};

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
    /// Reads the kernel command line: drophammer.url= and drophammer.token=, or drophammer.file=; drophammer.machine=, drophammer.key=, console=.
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
    Reinstall(crate::reinstall::Options),
    /// Pack an image, burn one outside of an installation, or list the images of a server.
    #[cfg(any(feature = "agent", feature = "serve"))]
    Image(Image),
    /// Send disks to another machine, or receive them, over TLS between two certificates. Ganeti's `import-export` is understood.
    #[cfg(feature = "agent")]
    Move(crate::moving::options::Options),
    /// Print the commands that bring the ramdisk's network up as drophammer.network= on the kernel command line says.
    #[cfg(feature = "agent")]
    #[command(hide = true)]
    Uplink,
    /// Decode an image for the process that has started this one.
    #[cfg(feature = "agent")]
    #[command(name = crate::command::powerless::WORKER, hide = true)]
    ImageWorker,
    /// Read which blocks the filesystems of a disk use, for the process that has started this one.
    #[cfg(feature = "agent")]
    #[command(name = crate::command::powerless::USED_BLOCKS_WORKER, hide = true)]
    UsedBlocksWorker,
    /// Run the verify of an OS definition in a sandbox, for the process that has started this one.
    #[cfg(any(feature = "agent", feature = "serve"))]
    #[command(name = crate::verify::WORKER, hide = true)]
    VerifyWorker,
    /// Be the control plane of a desk or a rack.
    #[cfg(feature = "serve")]
    #[command(after_help = format!(
        "Examples: serve; on a desk, where machines boot from this host; all that is wrong with the directory\n  \
        drophammer serve /srv/drophammer --listen 10.0.0.1:8080\n  \
        drophammer serve /srv/drophammer --pxe eth1\n  \
        drophammer serve /srv/drophammer --check\n\n\
        Copy its database while it runs, put a copy back\n  \
        drophammer serve backup /srv/drophammer /backup/drophammer-$(date +%F)\n  \
        drophammer serve restore /srv/drophammer /backup/drophammer-2026-11-22\n\n{EXIT_CODES}"
    ))]
    Serve(Box<crate::serve::Serve>),
    /// List the machines of a server, add new ones, order reinstalls and moves, and switch machines.
    #[cfg(feature = "serve")]
    #[command(after_help = format!(
        "Examples: what there is, renew the image and keep the data, take it back\n  \
        drophammer machine list --server http://10.0.0.1:8080\n  \
        drophammer machine reinstall storage-7 --image debian-13.1.20261101\n  \
        drophammer machine reinstall storage-7 --cancel\n\n\
        A machine that has registered becomes a file, without an allocation\n  \
        drophammer machine add UUID --name storage-7\n\n\
        Switch it, or reinstall it at once, by the bmc of its file\n  \
        drophammer machine power cycle storage-7\n  \
        drophammer machine reinstall storage-7 --image debian-13.1.20261101 --now\n\n\
        A new mainboard: the same machine with another id\n  \
        drophammer machine rename OLD-UUID NEW-UUID\n\n{EXIT_CODES}"
    ))]
    Machine(crate::operator::Options),
    /// List, show and change the layouts of a server.
    #[cfg(feature = "serve")]
    #[command(after_help = format!(
        "Examples: what there is, one of them as YAML, and one as it is in a file\n  \
        drophammer layout list --server http://10.0.0.1:8080\n  \
        drophammer layout show default > default.yaml\n  \
        drophammer layout apply default.yaml\n\n{EXIT_CODES}"
    ))]
    Layout(crate::operator::LayoutOptions),
    /// List the volumes of Kubernetes of a server's machines, and change what is to be prepared.
    #[cfg(feature = "serve")]
    #[command(after_help = format!(
        "Examples: what there is, the manifests of what is prepared, one more, and one less\n  \
        drophammer volume list --server http://10.0.0.1:8080\n  \
        drophammer volume list --manifests | kubectl apply -f -\n  \
        drophammer volume add web-1 volumes.yaml\n  \
        drophammer volume rm web-1 db-1 --persistent-volume released\n\n{EXIT_CODES}"
    ))]
    Volume(crate::operator::VolumeOptions),
    /// Print this machine as JSON, and on standard error what could not be looked into. Reads only.
    #[cfg(feature = "survey")]
    #[command(after_help = "Example:\n  drophammer inventory > storage-7.json")]
    Inventory(crate::look::Options),
    /// Print what an installation would do, disk by disk, with the point of no return. Reads only.
    #[cfg(feature = "desk")]
    #[command(after_help = format!(
        "Examples: a machine in a rack, planned on a desk from its inventory, or from what its server knows\n  \
        drophammer plan --layout storage.yaml --inventory storage-7.json --reinstall\n  \
        drophammer plan --machine storage-7 --server http://10.0.0.1:8080\n\n{EXIT_CODES}"
    ))]
    Plan(crate::desk::plan::Options),
    /// Plan all machines of a server's directory at once, before anything happens, and approve the plans.
    #[cfg(all(feature = "desk", feature = "serve"))]
    #[command(after_help = crate::desk::rack::EXIT_CODES)]
    Rack(crate::desk::rack::Options),
    /// Check layouts: all that is wrong with each, and whether two of them are for the same size and image.
    #[cfg(feature = "desk")]
    #[command(after_help = format!(
        "Examples: a set, the layout that a machine would get, the canonical spelling\n  \
        drophammer check layouts/\n  \
        drophammer check layouts/ --select c1-large-x86 debian-12.0.20261101\n  \
        drophammer check default.yaml --fix\n\n{EXIT_CODES}"
    ))]
    Check(crate::desk::check::Options),
    /// Draw a layout: disks, partitions, arrays, groups, volumes, filesystems, mount points.
    #[cfg(feature = "desk")]
    #[command(after_help = format!("Example: a picture for the runbook\n  drophammer tree storage.yaml --svg=storage.svg\n\n{EXIT_CODES}"))]
    Tree(crate::desk::tree::Options),
    /// Print the JSON Schema of layouts, allocations, files of machines and images, manifests or templates, with which editors complete and check them.
    #[cfg(feature = "desk")]
    #[command(after_help = "Example:\n  drophammer schema layout > layout.schema.json")]
    Schema(crate::desk::schema::Options),
    /// Print what completes this command line in a shell.
    #[cfg(feature = "shell")]
    #[command(after_help = "Examples:\n  \
        drophammer completion bash > /etc/bash_completion.d/drophammer\n  \
        drophammer completion zsh > /usr/local/share/zsh/site-functions/_drophammer\n  \
        drophammer completion fish > /etc/fish/completions/drophammer.fish")]
    Completion { shell: Shell },
    /// Write manual pages into a folder, one for each command.
    #[cfg(feature = "shell")]
    #[command(after_help = "Example:\n  drophammer man /usr/local/share/man/man1")]
    Man { folder: std::path::PathBuf },
}

/// Shells that it can be completed in.
#[cfg(feature = "shell")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[cfg(any(feature = "agent", feature = "serve"))]
#[derive(Debug, clap::Args)]
pub struct Image {
    #[command(subcommand)]
    pub command: ImageCommand,
}

#[cfg(any(feature = "agent", feature = "serve"))]
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// One line an image of a server.
    #[cfg(feature = "serve")]
    #[command(visible_alias = "ls", after_help = format!(
        "Example:\n  drophammer image list --all --server http://10.0.0.1:8080\n\n{EXIT_CODES}"
    ))]
    List(crate::operator::ListImages),
    /// Hide or blacklist an image of a server, or no longer.
    #[cfg(feature = "serve")]
    #[command(after_help = format!(
        "Example: nothing new is installed with it, and what runs it is still reinstalled\n  \
        drophammer image modify debian-11.0.20240101 --blacklisted true\n\n{EXIT_CODES}"
    ))]
    Modify(crate::operator::ModifyImage),
    /// Stream an image below a directory, exactly as an installation does, and say how fast and what the bottleneck was.
    ///
    /// What is below the directory already stays, except that files of the same name are replaced, as tar does. Whiteouts
    /// of an OCI image's layers remove only what this burn has brought. When this fails, what came so far is left there.
    #[cfg(feature = "agent")]
    #[command(after_help = format!(
        "Example:\n  \
        drophammer image burn http://10.0.0.1/debian-12.tar.zst /mnt --digest sha256:HEX\n  \
        drophammer image burn http://10.0.0.1/debian-12.raw.zst /dev/sdb --overwrite\n\n{EXIT_CODES}"
    ))]
    Burn(crate::burn::Options),
    /// Pack a directory or a disk image, with its manifest and, given a key, signatures. The same input gives the same bytes.
    ///
    /// SOURCE_DATE_EPOCH, where it is set, is the latest time in the image.
    #[cfg(all(feature = "agent", feature = "desk"))]
    #[command(after_help = format!(
        "Examples: a tree that debootstrap made, signed; the disk of a virtual machine\n  \
        drophammer image pack rootfs/ -o debian-12.tar.zst --key release.key --id debian-12.0.20261101\n  \
        drophammer image pack appliance.qcow2 -o appliance.raw.zst\n\n{EXIT_CODES}"
    ))]
    Pack(crate::pack::Options),
}
