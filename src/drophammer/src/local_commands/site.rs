//! `drophammer site`: lists, checks and plans a server's directory, and stores its documents in a database.

use super::site_files::{ListSiteOptions, list_site_files};
use super::site_plan::{self, RackCommand, SitePlanArgs};
use crate::server_commands::apply_and_export::{ApplyOptions, ExportOptions, run_apply, run_export};
use clap::{Args, Parser, Subcommand};
use common::command_outcome::CommandOutcome;
use common::error::{Context, Phase, Result};
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
    /// The options are those of `drophammer serve`. With the options of the running server, its certificate, its key
    /// and its URL are also checked.
    #[command(after_help = format!(
        "Example:\n  drophammer site check /srv/drophammer\n\n{}", agent::cli::EXIT_CODES
    ))]
    Check(Box<ServeOptions>),
    #[command(flatten)]
    Rack(RackCommand),
    /// List the files of a server's directory: type, name, and number of problems. Each file is checked by itself.
    #[command(visible_alias = "ls", after_help = format!(
        "Example:\n  drophammer site list /srv/drophammer --filter problems=1*\n\n{}", agent::cli::EXIT_CODES
    ))]
    List(ListSiteOptions),
    /// Store the documents of a directory in the database that the servers share; the same as `drophammer apply`.
    #[command(after_help = format!("Example:\n  drophammer site apply -f /srv/rack --dry-run\n\n{}", agent::cli::EXIT_CODES))]
    Apply(ApplyOptions),
    /// Write all documents of a server to a directory; the same as `drophammer export`.
    #[command(after_help = format!("Example:\n  drophammer site export /srv/rack\n\n{}", agent::cli::EXIT_CODES))]
    Export(ExportOptions),
}

/// Directory to check, and the options of `drophammer serve`.
#[derive(Debug, Parser)]
struct DirectoryCheck {
    #[command(flatten)]
    serve: ServeOptions,
}

/// Checks a server's directory, with the default options of `drophammer serve`.
///
/// # Errors
/// Returns an error if the directory cannot be read.
pub(crate) fn check_directory(dir: &Path, json: bool) -> Result<CommandOutcome> {
    let arguments = [OsStr::new("check"), OsStr::new("--"), dir.as_os_str()];
    let options =
        DirectoryCheck::try_parse_from(arguments).context(Phase::Settings, || format!("check {}", dir.display()))?;
    check_site(ServeOptions { json, ..options.serve })
}

fn check_site(options: ServeOptions) -> Result<CommandOutcome> {
    server::run_serve(ServeArgs { command: None, options: Some(ServeOptions { check: true, ..options }) })
}

/// Lists, checks or plans a server's directory, or stores its documents.
///
/// # Errors
/// Returns an error if the directory cannot be read.
pub fn run_site(options: SiteArgs) -> Result<CommandOutcome> {
    match options.command {
        SiteCommand::Check(serve) => check_site(*serve),
        SiteCommand::Rack(command) => site_plan::run_rack(&SitePlanArgs { command }),
        SiteCommand::List(options) => list_site_files(&options),
        SiteCommand::Apply(options) => run_apply(&options),
        SiteCommand::Export(options) => run_export(&options),
    }
}
