//! Command line interface, with an example for every command.

use agent::cli::{AgentCommand, EXIT_CODES};
use clap::{Parser, Subcommand};

/// Install agent for bare-metal servers.
#[derive(Debug, Parser)]
#[command(name = "drophammer", version, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: CliCommand,
}

#[derive(Debug, Subcommand)]
pub enum CliCommand {
    #[command(flatten)]
    Agent(AgentCommand),
    /// Pack an image, write an image to a disk or directory outside of an installation, or list the images of a server.
    Image(ImageArgs),
    /// Run the control plane for machines on a test bench or in a rack.
    #[command(after_help = format!(
        "Examples: create a directory; run the server; boot machines on a bench from this host; check the directory\n  \
        drophammer serve --init /srv/drophammer\n  \
        drophammer serve /srv/drophammer --listen 10.0.0.1:8080\n  \
        drophammer serve /srv/drophammer --pxe eth1\n  \
        drophammer serve /srv/drophammer --check\n\n\
        Back up the database while the server runs; restore a backup\n  \
        drophammer serve backup /srv/drophammer /backup/drophammer-$(date +%F)\n  \
        drophammer serve restore /srv/drophammer /backup/drophammer-2026-11-22\n\n{EXIT_CODES}"
    ))]
    Serve(Box<server::ServeArgs>),
    /// List the machines of a server, add new machines, order reinstalls and migrations, and power machines on and off.
    #[command(after_help = format!(
        "Examples: list the machines; install a new image and preserve the data; cancel this reinstall\n  \
        drophammer machine list --server http://10.0.0.1:8080\n  \
        drophammer machine reinstall storage-7 --image debian-13.1.20261101\n  \
        drophammer machine reinstall storage-7 --cancel\n\n\
        Reinstall many machines, at most 20 at a time, from Tuesday on; lock a machine against orders\n  \
        drophammer machine reinstall --filter image=debian-12* --image debian-13.1.20261101 --at-most 20 --now --start 2026-12-01T02:00Z\n  \
        drophammer machine lock storage-9 --reason \"holds the only copy\"\n\n\
        Save the plan of a reinstall, and order exactly this plan\n  \
        drophammer machine plan storage-7 --image debian-13.1.20261101 --out storage-7.plan\n  \
        drophammer machine reinstall --plan storage-7.plan\n\n\
        Show one machine, and follow its console log\n  \
        drophammer machine show storage-7\n  \
        drophammer machine logs -f storage-7\n\n\
        Create the machine file of the only new machine that waits; with --image, also install the machine\n  \
        drophammer machine add --name storage-7\n  \
        drophammer machine add --name storage-7 --image debian-13.1.20261101 --layout default --ssh-key id.pub\n\n\
        Power-cycle a machine, or reinstall it immediately, through the controller (`bmc:`) in its machine file\n  \
        drophammer machine power cycle storage-7\n  \
        drophammer machine reinstall storage-7 --image debian-13.1.20261101 --now\n\n\
        Install a free machine; the disks of its layout are erased\n  \
        drophammer machine allocate storage-7 --image debian-13.1.20261101 --ssh-key id.pub\n\n\
        After a new mainboard: move the machine to its new id\n  \
        drophammer machine rename OLD-UUID NEW-UUID\n\n{EXIT_CODES}"
    ))]
    Machine(crate::server_commands::MachineOptions),
    /// Adopt this machine, which another installer has installed: write the install marker, and register the machine
    /// at a server, so that a later reinstall renews the system and preserves the data. The system and its data are
    /// not changed.
    ///
    /// Prints the plan of a later reinstall, and asks for confirmation before anything is written. To restore the
    /// server's lost records of machines that drophammer has installed, use `drophammer machine adopt` instead.
    #[command(after_help = format!(
        "Examples: print the plan; adopt the machine; remove the adoption\n  \
        drophammer adopt --dry-run\n  \
        drophammer adopt --image debian-13.1.20261101 --server https://install.rack:8443 --token-file admin.token\n  \
        drophammer adopt --undo\n\n\
        Without a server: write a machine file for a fleet that is managed with files only\n  \
        drophammer adopt --fleet web-1.json\n\n{EXIT_CODES}"
    ))]
    Adopt(Box<crate::machine_adoption::MachineAdoptionOptions>),
    /// List, show, halt, resume and cancel rollouts. A rollout reinstalls many machines, a limited number at a time.
    #[command(after_help = format!(
        "Examples: order a rollout; show its progress; start no further machines; continue\n  \
        drophammer machine reinstall storage-8 storage-9 storage-10 --image debian-13.1.20261101 --at-most 2 --now\n  \
        drophammer rollout show 7\n  \
        drophammer rollout halt 7\n  \
        drophammer rollout resume 7\n\n{EXIT_CODES}"
    ))]
    Rollout(crate::server_commands::rollouts::RolloutOptions),
    /// List, show and change the layouts of a server, or write the layout of an existing machine.
    #[command(after_help = format!(
        "Examples: list the layouts; print one as YAML; create or update one from a file\n  \
        drophammer layout list --server http://10.0.0.1:8080\n  \
        drophammer layout show default > default.yaml\n  \
        drophammer layout apply default.yaml\n\n\
        Write the layout of this machine, which another installer has installed\n  \
        drophammer layout from-machine --id web-1 > web-1.yaml\n\n{EXIT_CODES}"
    ))]
    Layout(crate::server_commands::LayoutOptions),
    /// List and show the OS definitions of a server, and change their parameters for all machines.
    #[command(after_help = format!(
        "Examples: list the definitions; show the parameters of one, and the machines that use it\n  \
        drophammer os list --all --server http://10.0.0.1:8080\n  \
        drophammer os show web\n\n\
        Change parameters for all machines with a definition, and for one machine\n  \
        drophammer os modify web -O ns1=192.0.2.53,-proxy\n  \
        drophammer machine modify web-1 -O track=testing\n\n{EXIT_CODES}"
    ))]
    Os(crate::server_commands::os_definitions::OsOptions),
    /// List the Kubernetes volumes of a server's machines, and add or remove volumes in machine files.
    #[command(after_help = format!(
        "Examples: list the volumes; print the manifests of prepared volumes; add volumes; remove one\n  \
        drophammer volume list --server http://10.0.0.1:8080\n  \
        drophammer volume list --manifests | kubectl apply -f -\n  \
        drophammer volume add web-1 volumes.yaml\n  \
        drophammer volume delete web-1 db-1 --persistent-volume released\n\n{EXIT_CODES}"
    ))]
    Volume(crate::server_commands::VolumeOptions),
    /// Store a server and the operator's token for it, so that later commands need neither --server nor --token-file.
    #[command(after_help = format!(
        "Examples: enter the token; read the token from the server's host\n  \
        drophammer login https://install.rack:8443\n  \
        ssh install.rack sudo cat /var/lib/drophammer/operator.token | drophammer login install.rack:8443\n\n\
        Files: $XDG_CONFIG_HOME/drophammer/config.yaml [default: ~/.config/drophammer/config.yaml]\n\n{EXIT_CODES}"
    ))]
    Login(crate::server_commands::login::LoginOptions),
    /// List, select and change the servers that `drophammer login` has stored.
    #[command(after_help = format!(
        "Examples: list the contexts; select one; add one whose token is in a file\n  \
        drophammer config list\n  \
        drophammer config use install.rack\n  \
        drophammer config set bench --server 10.0.0.1:8080 --token-file ~/bench.token\n\n\
        Files: $XDG_CONFIG_HOME/drophammer/config.yaml [default: ~/.config/drophammer/config.yaml]\n\n{EXIT_CODES}"
    ))]
    Config(crate::server_commands::contexts::ConfigArgs),
    /// List, show and change the deploy templates of a server.
    #[command(after_help = format!(
        "Examples: print one as YAML; create or update one from a file\n  \
        drophammer template show CUSTOM_MIRROR\n  \
        drophammer template apply mirror.yaml\n\n{EXIT_CODES}"
    ))]
    Template(crate::server_commands::templates::TemplateOptions),
    /// List, show and change the sizes of a server.
    #[command(after_help = format!(
        "Examples: list the sizes; create or update one from a file\n  \
        drophammer size list\n  \
        drophammer size apply c1-small.yaml\n\n{EXIT_CODES}"
    ))]
    Size(crate::server_commands::sizes::SizeOptions),
    /// Add, list, change and delete users of a server, and their tokens.
    #[command(after_help = format!(
        "Examples: add an operator for the machines of one project; create a token and log in with it; revoke the token\n  \
        drophammer user add ann --role operator --project blue\n  \
        drophammer user token create ann laptop --expires 30d | drophammer login http://10.0.0.1:8080\n  \
        drophammer user token revoke ann laptop\n\n{EXIT_CODES}"
    ))]
    User(crate::server_commands::users::UserOptions),
    /// Print the user, the role and the projects of the token that commands use.
    #[command(after_help = format!("Example:\n  drophammer whoami\n\n{EXIT_CODES}"))]
    Whoami(crate::server_commands::users::WhoamiOptions),
    /// Print the audit log of a server: who has requested which change, from where, and with which result.
    #[command(after_help = format!(
        "Examples: the changes of one machine; all entries from now on as JSON lines\n  \
        drophammer audit --machine storage-7\n  \
        drophammer audit --follow --output json\n\n{EXIT_CODES}"
    ))]
    Audit(crate::server_commands::audit::AuditOptions),
    /// Store all documents of a directory, or none if one of them is invalid, in the database that several servers
    /// share.
    #[command(after_help = format!(
        "Examples: print what would change; store the documents, and delete those that the directory does not contain\n  \
        drophammer apply -f /srv/rack --dry-run\n  \
        drophammer apply -f /srv/rack --prune\n\n{EXIT_CODES}\n\
        With --detailed-exitcode: 0 nothing changes, 3 documents are deleted, 4 documents change."
    ))]
    Apply(crate::server_commands::apply_and_export::ApplyOptions),
    /// Write all documents of a server to a directory, exactly as they are stored.
    #[command(after_help = format!("Example:\n  drophammer export /srv/rack\n\n{EXIT_CODES}"))]
    Export(crate::server_commands::apply_and_export::ExportOptions),
    /// Move the records of a server to another database.
    Store(crate::local_commands::store_migration::StoreArgs),
    /// List and check the files of a server's directory, plan all its machines, or store its documents in the database
    /// that the servers share.
    Site(crate::local_commands::site::SiteArgs),
    /// Print what an installation would do, disk by disk, and show which stages run before the first write to a disk.
    /// Nothing is changed.
    #[command(after_help = format!(
        "Examples: plan for a machine in a rack from its inventory; or from what its server has stored\n  \
        drophammer plan --layout storage.yaml --inventory storage-7.json --reinstall\n  \
        drophammer plan --machine storage-7 --server http://10.0.0.1:8080\n\n{EXIT_CODES}\n\
        With --detailed-exitcode: 0 nothing changes, 3 data would be lost, 4 the machine changes without loss."
    ))]
    Plan(crate::local_commands::plan::PlanArgs),
    /// Show how a change of image, layout or files would affect each machine in a server's directory, and approve the
    /// plans.
    #[command(hide = true, after_help = crate::local_commands::site_plan::EXIT_CODES)]
    Rack(crate::local_commands::site_plan::SitePlanArgs),
    /// Check layouts, machine files, images, sizes, deploy templates, volumes, the other files of a server's
    /// directory, or the whole directory: list all problems of each file, and report layouts that match the same size
    /// and image.
    #[command(after_help = format!(
        "Examples: check a set; select the layout for a size and an image; print the canonical spelling\n  \
        drophammer check layouts/\n  \
        drophammer check layouts/ --select c1-large-x86 debian-12.0.20261101\n  \
        drophammer check default.yaml --fix\n\n{EXIT_CODES}"
    ))]
    Check(crate::local_commands::check::CheckOptions),
    /// Draw a layout: disks, partitions, arrays, volume groups, logical volumes, filesystems, mount points.
    #[command(after_help = format!("Example: a diagram for the runbook\n  drophammer tree storage.yaml --svg=storage.svg\n\n{EXIT_CODES}"))]
    Tree(crate::local_commands::tree::TreeOptions),
    /// Print the meaning, the causes and the remedies of an error code, or list all codes.
    #[command(after_help = format!(
        "Examples: explain the code at the end of a message; search the list\n  \
        drophammer explain DH-310\n  \
        drophammer explain | grep -i marker\n\n{EXIT_CODES}"
    ))]
    Explain(crate::local_commands::explain::ExplainOptions),
    /// Print the JSON Schema of layouts, allocations, machine files, image files, manifests or templates, for
    /// completion and checks in editors.
    #[command(after_help = "Example:\n  drophammer schema layout > layout.schema.json")]
    Schema(crate::local_commands::schema::SchemaOptions),
    /// Print the completion script for a shell. The script also completes the names of machines, images and layouts
    /// of the server.
    #[command(after_help = "Examples:\n  \
        drophammer completion bash > /etc/bash_completion.d/drophammer\n  \
        drophammer completion zsh > /usr/local/share/zsh/site-functions/_drophammer\n  \
        drophammer completion fish > /etc/fish/completions/drophammer.fish")]
    Completion { shell: CompletionShell },
    /// Print the names that complete a command line. The completion scripts run this command.
    #[command(hide = true)]
    Complete { line: String },
    /// Write a manual page for each command, and for layouts, machine files and image files, to a directory.
    ///
    /// Pages of section 5 are written to a directory `man5` next to a directory `man1`, and otherwise to the same
    /// directory.
    #[command(after_help = "Example:\n  drophammer man /usr/local/share/man/man1")]
    Man {
        /// Directory to which the pages are written.
        folder: std::path::PathBuf,
    },
}

/// Shells for which a completion script can be generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum CompletionShell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, clap::Args)]
pub struct ImageArgs {
    #[command(subcommand)]
    pub command: ImageCommand,
}

#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// List the images of a server.
    #[command(visible_alias = "ls", after_help = format!(
        "Example:\n  drophammer image list --all --server http://10.0.0.1:8080\n\n{EXIT_CODES}"
    ))]
    List(crate::server_commands::ListImagesOptions),
    /// Print an image of a server as YAML.
    #[command(after_help = format!("Example:\n  drophammer image show debian-12.0.20261101\n\n{EXIT_CODES}"))]
    Show(crate::server_commands::ShowImageOptions),
    /// Download or copy an image into a server's directory, verify its digest and format, and write its image file.
    ///
    /// The manifest, the digest and the signatures next to the image are also copied. A running server lists the image
    /// only when all its files are complete.
    #[command(visible_alias = "create", after_help = format!(
        "Examples: an image on a web server, whose digest is next to it; a file\n  \
        drophammer image add https://mirror.example.org/debian-12.tar.zst /srv/drophammer --id debian-12.0.20261101\n  \
        drophammer image add debian-12.tar.zst /srv/drophammer --id debian-12.0.20261101\n\n{EXIT_CODES}"
    ))]
    Add(crate::local_commands::image_add::AddImageOptions),
    /// Create or update the image file of an image of a server. The image itself is not uploaded.
    #[command(after_help = format!(
        "Example:\n  drophammer image apply debian-12.yaml\n\n{EXIT_CODES}"
    ))]
    Apply(crate::server_commands::ApplyImageOptions),
    /// Set or clear the hidden and blacklisted flags of an image of a server.
    #[command(after_help = format!(
        "Example: prevent new installations with this image; machines that run this image can still be reinstalled \
        with it\n  \
        drophammer image modify debian-11.0.20240101 --blacklisted true\n\n{EXIT_CODES}"
    ))]
    Modify(crate::server_commands::ModifyImageOptions),
    /// Delete the image file of an image that no machine uses. The image itself stays in `images/`.
    #[command(visible_alias = "rm", after_help = format!(
        "Example:\n  drophammer image delete debian-11.0.20240101\n\n{EXIT_CODES}"
    ))]
    Delete(crate::server_commands::DeleteImageOptions),
    /// Stream an image into a directory or to a disk exactly as an installation does, and report the throughput and
    /// the bottleneck.
    ///
    /// Existing files in the directory are preserved, but a file that the image also contains is replaced, as with tar.
    /// Whiteouts of OCI image layers remove only files that this command has written. If the command fails, the files
    /// written so far remain.
    #[command(after_help = format!(
        "Example:\n  \
        drophammer image burn http://10.0.0.1/debian-12.tar.zst /mnt --digest sha256:HEX\n  \
        drophammer image burn http://10.0.0.1/debian-12.raw.zst /dev/sdb --overwrite\n\n{EXIT_CODES}"
    ))]
    Burn(agent::image_burn_command::BurnOptions),
    /// Pack a directory or a disk image as an image, with its manifest and, if a key is specified, its signatures. The
    /// output is reproducible.
    ///
    /// SOURCE_DATE_EPOCH, if set, is the latest timestamp in the image.
    #[command(after_help = format!(
        "Examples: a directory made by debootstrap, signed; the disk of a virtual machine\n  \
        drophammer image pack rootfs/ -o debian-12.tar.zst --key release.key --id debian-12.0.20261101\n  \
        drophammer image pack appliance.qcow2 -o appliance.raw.zst\n\n{EXIT_CODES}"
    ))]
    Pack(image::pack::PackOptions),
}

#[cfg(test)]
mod tests;
