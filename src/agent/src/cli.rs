//! Commands and `main` function of the agent, which the programs `drophammer-agent` and `drophammer` share.

mod suggestions;

pub use suggestions::MissingCommandExplanation;

use clap::{FromArgMatches, Subcommand};
use common::command_outcome::CommandOutcome;
use common::error::{Context, Phase, Result};
use common::format::terminal_escaping::escape_hidden;
use std::process::ExitCode;

/// Description of the exit codes, for the `--help` of the commands.
pub const EXIT_CODES: &str = "\
Exit status: 0 done, 1 failed, 2 refused or not valid (nothing was written), 64 wrong usage.";

#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Carry out the installation that the control plane has ordered for this machine (runs in the ramdisk).
    ///
    /// Reads the kernel command line: drophammer.url= and drophammer.token=, or drophammer.file=;
    /// drophammer.machine=, drophammer.key=, console=.
    #[command(after_help = "Example: the kernel command line of the ramdisk\n  \
        drophammer.url=http://10.0.0.1:8080 drophammer.token=SECRET console=ttyS0,115200n8\n\n\
        Exit status: 0 done, 1 failed, 2 refused or not valid (nothing was written), 64 wrong usage,\n\
        75 failed, and the machine must reboot immediately.")]
    Agent,
    /// Carry out the reinstall that is ordered for this running machine: start the agent by kexec, bypassing the
    /// firmware.
    ///
    /// Does not ask for confirmation. If kexec is not possible, the machine reboots over PXE.
    #[command(after_help = format!(
        "Example: after `drophammer machine reinstall ID --image IMAGE`, on the machine\n  \
        drophammer reinstall --server http://10.0.0.1:8080\n\n{EXIT_CODES}"
    ))]
    Reinstall(crate::reinstall_command::ReinstallOptions),
    /// Send disks to another machine, or receive them, over mutually authenticated TLS. Compatible with Ganeti's
    /// `import-export`.
    ///
    /// To migrate a whole machine with the help of the server, use `drophammer machine move` instead.
    Move(transfer::move_options::TransferOptions),
    /// Print the inventory of this machine as JSON, and list on standard error the objects that cannot be read. Nothing
    /// is changed.
    #[command(after_help = "Example:\n  drophammer inventory > storage-7.json")]
    Inventory(crate::inventory_command::InventoryOptions),
    /// Print the commands that configure the ramdisk's network from drophammer.network= on the kernel command line.
    #[command(hide = true)]
    Uplink,
    /// Decode an image on behalf of the parent process.
    #[command(name = linux::process::worker_process::WORKER, hide = true)]
    ImageWorker,
    /// Read which blocks the filesystems of a disk use, on behalf of the parent process.
    #[command(name = linux::process::worker_process::USED_BLOCKS_WORKER, hide = true)]
    UsedBlocksWorker,
    /// Run the `verify` program of an OS definition in a sandbox, on behalf of the parent process.
    #[command(name = linux::verify_program::WORKER, hide = true)]
    VerifyWorker,
}

/// Runs a command of the agent.
///
/// # Errors
/// Returns the error of the command.
pub fn run_agent_command(command: &AgentCommand) -> Result<CommandOutcome> {
    let context = || "run a worker process of drophammer".to_owned();
    match command {
        AgentCommand::Agent => crate::run_agent().map(|next| match next {
            crate::IronicNextAction::BootAgain => CommandOutcome::BootAgain,
            crate::IronicNextAction::Rescue => CommandOutcome::Rescue,
        }),
        AgentCommand::Reinstall(options) => crate::reinstall_command::run_reinstall(options),
        AgentCommand::Move(options) => transfer::run_move(options),
        AgentCommand::Inventory(options) => crate::inventory_command::run_inventory(options),
        AgentCommand::Uplink => crate::uplink_command::run_uplink(),
        AgentCommand::ImageWorker => {
            image::worker::run_image_worker().map(|()| CommandOutcome::Good).context(Phase::Image, context)
        }
        AgentCommand::UsedBlocksWorker => {
            transfer::run_used_blocks_worker().map(|()| CommandOutcome::Good).context(Phase::Move, context)
        }
        AgentCommand::VerifyWorker => linux::verify_program::worker::run_verify_worker(),
    }
}

/// Parses the command line according to `command`, starts the log, runs the parsed command, and returns the exit code
/// of the program. `explain_missing` returns the replacement of a subcommand that does not exist.
pub fn run_program<C: FromArgMatches>(
    mut command: clap::Command,
    explain_missing: MissingCommandExplanation,
    run: impl Fn(C) -> Result<CommandOutcome>,
) -> ExitCode {
    let matches = command.clone().try_get_matches();
    let parse = |mut matches| C::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command));
    let cli = match matches.and_then(parse) {
        Ok(cli) => cli,
        Err(mut error) => {
            let arguments: Vec<String> = std::env::args_os().skip(1).map(|word| word.display().to_string()).collect();
            // Only a built command contains its global options and its help.
            command.build();
            suggestions::correct_suggestions(&mut error, &command, &arguments, explain_missing);
            let wrong = error.use_stderr();
            print_usage(&error);
            return if wrong { ExitCode::from(64) } else { ExitCode::SUCCESS };
        }
    };
    tracing_subscriber::fmt()
        .without_time()
        .with_target(false)
        .with_ansi(false)
        .with_writer(|| linux::console_log::SanitizedStderr)
        .init();
    match run(cli) {
        Ok(CommandOutcome::Good) => ExitCode::SUCCESS,
        Ok(CommandOutcome::Refused) => ExitCode::from(2),
        Ok(CommandOutcome::Erases) => ExitCode::from(3),
        Ok(CommandOutcome::Changes) => ExitCode::from(4),
        // The exit code 75 is EX_TEMPFAIL of sysexits.h.
        Ok(CommandOutcome::BootAgain) => ExitCode::from(75),
        Ok(CommandOutcome::Rescue) => ExitCode::from(76),
        Err(error) => {
            common::output::print_error(&error.to_coded_text());
            ExitCode::FAILURE
        }
    }
}

/// Prints help or a usage error, with control characters escaped. The error may contain file names that the shell
/// substituted for a glob pattern, and other users may have created these files.
fn print_usage(error: &clap::Error) {
    let text = error.render().to_string();
    if escape_hidden(&text) == text {
        // A failure to print, for example to a closed pipe, is ignored.
        let _ = error.print();
    } else {
        common::output::print_preformatted(&text);
    }
}
