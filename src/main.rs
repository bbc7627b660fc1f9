//! Command line entry point: one line per subcommand.

use clap::Parser;
use drophammer::cli::{Cli, Command};
#[cfg(any(feature = "agent", feature = "serve"))]
use drophammer::cli::{Image, ImageCommand};
#[cfg(feature = "desk")]
use drophammer::desk;
#[cfg(feature = "agent")]
use drophammer::error::Context;
use drophammer::error::Result;
use drophammer::exit::Exit;
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
        .with_writer(|| drophammer::console::Discreet)
        .init();
    match run(cli.command) {
        Ok(Exit::Good) => ExitCode::SUCCESS,
        Ok(Exit::Refused) => ExitCode::from(2),
        Ok(Exit::Erases) => ExitCode::from(3),
        // EX_TEMPFAIL of sysexits.h.
        Ok(Exit::BootAgain) => ExitCode::from(75),
        Ok(Exit::Rescue) => ExitCode::from(76),
        Err(error) => {
            drophammer::stdout::complain(&error);
            ExitCode::FAILURE
        }
    }
}

/// Prints help or a usage error. A wrong command line may contain foreign file names, expanded from the shell's patterns, so control
/// characters are escaped.
fn print_usage(error: &clap::Error) {
    let text = error.render().to_string();
    if drophammer::text::terminal::escape(&text) == text {
        // A closed pipe is not an error.
        let _ = error.print();
    } else {
        drophammer::stdout::explain(&text);
    }
}

fn run(command: Command) -> Result<Exit> {
    match command {
        #[cfg(feature = "agent")]
        Command::Agent => drophammer::agent::run().map(|next| match next {
            drophammer::agent::Next::BootAgain => Exit::BootAgain,
            drophammer::agent::Next::Rescue => Exit::Rescue,
        }),
        #[cfg(feature = "agent")]
        Command::Reinstall(options) => drophammer::reinstall::run(&options),
        #[cfg(feature = "agent")]
        Command::Image(Image { command: ImageCommand::Burn(options) }) => drophammer::burn::run(&options),
        #[cfg(feature = "agent")]
        Command::Move(options) => drophammer::moving::run(&options),
        #[cfg(feature = "agent")]
        Command::Uplink => drophammer::uplink::run(),
        #[cfg(feature = "agent")]
        Command::ImageWorker => drophammer::image::worker::run()
            .map(|()| Exit::Good)
            .context(drophammer::error::Phase::Image, || "work for another drophammer".to_owned()),
        #[cfg(feature = "agent")]
        Command::UsedBlocksWorker => drophammer::moving::run_used_blocks_worker()
            .map(|()| Exit::Good)
            .context(drophammer::error::Phase::Move, || "work for another drophammer".to_owned()),
        #[cfg(any(feature = "agent", feature = "serve"))]
        Command::VerifyWorker => drophammer::verify::worker::run(),
        #[cfg(all(feature = "agent", feature = "desk"))]
        Command::Image(Image { command: ImageCommand::Pack(options) }) => drophammer::pack::pack(&options),
        #[cfg(feature = "serve")]
        Command::Serve(serve) => drophammer::serve::command(*serve),
        #[cfg(feature = "serve")]
        Command::Machine(options) => drophammer::operator::run(&options),
        #[cfg(feature = "serve")]
        Command::Layout(options) => drophammer::operator::layouts::run(&options),
        #[cfg(feature = "serve")]
        Command::Volume(options) => drophammer::operator::volumes::run(&options),
        #[cfg(feature = "serve")]
        Command::Image(Image { command: ImageCommand::List(options) }) => drophammer::operator::images::list(&options),
        #[cfg(feature = "serve")]
        Command::Image(Image { command: ImageCommand::Modify(options) }) => {
            drophammer::operator::images::modify(&options)
        }
        #[cfg(feature = "survey")]
        Command::Inventory(options) => drophammer::look::inventory(&options),
        #[cfg(feature = "desk")]
        Command::Plan(options) => desk::plan(&options),
        #[cfg(all(feature = "desk", feature = "serve"))]
        Command::Rack(options) => desk::rack(&options),
        #[cfg(feature = "desk")]
        Command::Check(options) => desk::check(&options),
        #[cfg(feature = "desk")]
        Command::Tree(options) => desk::tree(&options),
        #[cfg(feature = "desk")]
        Command::Schema(options) => desk::schema(&options),
        #[cfg(feature = "shell")]
        Command::Completion { shell } => drophammer::shell::completion(shell),
        #[cfg(feature = "shell")]
        Command::Man { folder } => drophammer::shell::man(&folder),
    }
}
