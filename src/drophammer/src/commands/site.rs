//! `drophammer site`: checks and plans a server's directory.

use super::rack::{self, RackArgs, RackCommand};
use clap::{Args, Parser, Subcommand};
use common::error::{Context, Phase, Result};
use common::exit_status::CommandOutcome;
use server::{ServeArgs, ServeOptions};
use std::ffi::OsStr;
use std::path::Path;

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

/// Directory to check, and the options of `drophammer serve`.
#[derive(Debug, Parser)]
struct DirectoryCheck {
    #[command(flatten)]
    serve: ServeOptions,
}

/// Checks a server's directory with the default options of `drophammer serve`.
///
/// # Errors
/// Returns an error if the directory cannot be read.
pub(super) fn check_directory(dir: &Path, json: bool) -> Result<CommandOutcome> {
    let arguments = [OsStr::new("check"), OsStr::new("--"), dir.as_os_str()];
    let options =
        DirectoryCheck::try_parse_from(arguments).context(Phase::Settings, || format!("check {}", dir.display()))?;
    check_site(ServeOptions { json, ..options.serve })
}

fn check_site(options: ServeOptions) -> Result<CommandOutcome> {
    server::run_serve(ServeArgs { command: None, options: Some(ServeOptions { check: true, ..options }) })
}

/// Checks or plans a server's directory.
///
/// # Errors
/// Returns an error if the directory cannot be read.
pub fn run_site(options: SiteArgs) -> Result<CommandOutcome> {
    match options.command {
        SiteCommand::Check(serve) => check_site(*serve),
        SiteCommand::Rack(command) => rack::run_rack(&RackArgs { command }),
    }
}
