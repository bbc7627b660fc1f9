//! The program in the ramdisk: the install agent, without the server and without the commands for workstations.

use agent::cli::{AgentCommand, EXIT_CODES};
use agent::image_burn_command::BurnOptions;
use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// Install agent for bare-metal servers.
#[derive(Debug, Parser)]
#[command(name = "drophammer-agent", version, after_help = EXIT_CODES)]
struct AgentCli {
    #[command(subcommand)]
    command: ProgramCommand,
}

#[derive(Debug, Subcommand)]
enum ProgramCommand {
    #[command(flatten)]
    Agent(AgentCommand),
    /// Write an image to a directory or a disk, outside of an installation.
    #[command(subcommand)]
    Image(ImageCommand),
}

#[derive(Debug, Subcommand)]
enum ImageCommand {
    /// Stream an image into a directory or to a disk exactly as an installation does.
    Burn(BurnOptions),
}

fn main() -> ExitCode {
    agent::cli::run_program(
        AgentCli::command(),
        |_, _| None,
        |cli: AgentCli| match cli.command {
            ProgramCommand::Agent(command) => agent::cli::run_agent_command(&command),
            ProgramCommand::Image(ImageCommand::Burn(options)) => agent::image_burn_command::run(&options),
        },
    )
}
