//! `drophammer site`: checks and plans a server's directory.

use super::rack::{self, RackArgs, RackCommand};
use clap::{Args, Subcommand};
use common::error::Result;
use common::exit_status::CommandOutcome;
use server::{ServeArgs, ServeOptions};

#[derive(Debug, Args)]
pub struct SiteArgs {
    #[command(subcommand)]
    pub command: SiteCommand,
}

#[derive(Debug, Subcommand)]
pub enum SiteCommand {
    /// Print all problems of a server's directory. A server may be running in the directory.
    ///
    /// The options are those of `drophammer serve`. With the options of the running server, its certificate, its key and its URL are
    /// checked too.
    #[command(after_help = format!(
        "Example:\n  drophammer site check /srv/drophammer\n\n{}", agent::cli::EXIT_CODES
    ))]
    Check(Box<ServeOptions>),
    #[command(flatten)]
    Rack(RackCommand),
}

/// Checks or plans a server's directory.
///
/// # Errors
/// Returns an error if the directory cannot be read.
pub fn run_site(options: SiteArgs) -> Result<CommandOutcome> {
    match options.command {
        SiteCommand::Check(serve) => {
            server::run_serve(ServeArgs { command: None, options: Some(ServeOptions { check: true, ..*serve }) })
        }
        SiteCommand::Rack(command) => rack::run_rack(&RackArgs { command }),
    }
}
