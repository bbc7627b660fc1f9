//! Command line entry point: one line per subcommand.

use clap::Parser;
use drophammer::cli::{Cli, CliCommand};
#[cfg(any(feature = "agent", feature = "serve"))]
use drophammer::cli::{ImageArgs, ImageCommand};
#[cfg(feature = "desk")]
use drophammer::commands;
#[cfg(feature = "agent")]
use drophammer::error::Context;
use drophammer::error::Result;
use drophammer::exit_code::CommandOutcome;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let wrong = error.use_stderr();
            print_usage(&error);
            return if wrong { ExitCode::from(64) } else { ExitCode::SUCCESS };
        }
    };
    tracing_subscriber::fmt()
        .without_time()
        .with_target(false)
        .with_ansi(false)
        .with_writer(|| drophammer::console::SanitizedStderr)
        .init();
    match run_command(cli.command) {
        Ok(CommandOutcome::Good) => ExitCode::SUCCESS,
        Ok(CommandOutcome::Refused) => ExitCode::from(2),
        Ok(CommandOutcome::Erases) => ExitCode::from(3),
        // EX_TEMPFAIL of sysexits.h.
        Ok(CommandOutcome::BootAgain) => ExitCode::from(75),
        Ok(CommandOutcome::Rescue) => ExitCode::from(76),
        Err(error) => {
            drophammer::output::print_error(&error);
            ExitCode::FAILURE
        }
    }
}

/// Prints help or a usage error. A wrong command line may contain foreign file names, expanded from the shell's patterns, so control
/// characters are escaped.
fn print_usage(error: &clap::Error) {
    let text = error.render().to_string();
    if drophammer::format::terminal::escape_hidden(&text) == text {
        // A closed pipe is not an error.
        let _ = error.print();
    } else {
        drophammer::output::print_preformatted(&text);
    }
}

fn run_command(command: CliCommand) -> Result<CommandOutcome> {
    match command {
        #[cfg(feature = "agent")]
        CliCommand::Agent => drophammer::agent::run_agent().map(|next| match next {
            drophammer::agent::IronicNextAction::BootAgain => CommandOutcome::BootAgain,
            drophammer::agent::IronicNextAction::Rescue => CommandOutcome::Rescue,
        }),
        #[cfg(feature = "agent")]
        CliCommand::Reinstall(options) => drophammer::reinstall::run_reinstall(&options),
        #[cfg(feature = "agent")]
        CliCommand::Image(ImageArgs { command: ImageCommand::Burn(options) }) => drophammer::burn::run(&options),
        #[cfg(feature = "agent")]
        CliCommand::Move(options) => drophammer::transfer::run_move(&options),
        #[cfg(feature = "agent")]
        CliCommand::Uplink => drophammer::ramdisk_network::run_uplink(),
        #[cfg(feature = "agent")]
        CliCommand::ImageWorker => drophammer::image::worker::run_image_worker()
            .map(|()| CommandOutcome::Good)
            .context(drophammer::error::Phase::Image, || "work for another drophammer".to_owned()),
        #[cfg(feature = "agent")]
        CliCommand::UsedBlocksWorker => drophammer::transfer::run_used_blocks_worker()
            .map(|()| CommandOutcome::Good)
            .context(drophammer::error::Phase::Move, || "work for another drophammer".to_owned()),
        #[cfg(any(feature = "agent", feature = "serve"))]
        CliCommand::VerifyWorker => drophammer::verify::worker::run_verify_worker(),
        #[cfg(all(feature = "agent", feature = "desk"))]
        CliCommand::Image(ImageArgs { command: ImageCommand::Pack(options) }) => {
            drophammer::image_pack::run_pack(&options)
        }
        #[cfg(feature = "serve")]
        CliCommand::Serve(serve) => drophammer::server::run_serve(*serve),
        #[cfg(feature = "serve")]
        CliCommand::Machine(options) => drophammer::operator_client::run_machine_command(&options),
        #[cfg(feature = "serve")]
        CliCommand::Layout(options) => drophammer::operator_client::layouts::run_layout_command(&options),
        #[cfg(feature = "serve")]
        CliCommand::Volume(options) => drophammer::operator_client::volumes::run_volume_command(&options),
        #[cfg(feature = "serve")]
        CliCommand::Image(ImageArgs { command: ImageCommand::List(options) }) => {
            drophammer::operator_client::images::list_images(&options)
        }
        #[cfg(feature = "serve")]
        CliCommand::Image(ImageArgs { command: ImageCommand::Modify(options) }) => {
            drophammer::operator_client::images::modify_image(&options)
        }
        #[cfg(feature = "survey")]
        CliCommand::Inventory(options) => drophammer::inventory_command::run_inventory(&options),
        #[cfg(feature = "desk")]
        CliCommand::Plan(options) => commands::run_plan(&options),
        #[cfg(all(feature = "desk", feature = "serve"))]
        CliCommand::Rack(options) => commands::run_rack(&options),
        #[cfg(feature = "desk")]
        CliCommand::Check(options) => commands::run_check(&options),
        #[cfg(feature = "desk")]
        CliCommand::Tree(options) => commands::run_tree(&options),
        #[cfg(feature = "desk")]
        CliCommand::Schema(options) => commands::run_schema(&options),
        #[cfg(feature = "shell")]
        CliCommand::Completion { shell } => drophammer::completions::print_completion(shell),
        #[cfg(feature = "shell")]
        CliCommand::Man { folder } => drophammer::completions::write_man_pages(&folder),
    }
}
