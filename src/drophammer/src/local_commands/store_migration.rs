//! `drophammer store`: manages the database of a server.

use clap::{Args, Subcommand};
use common::command_outcome::CommandOutcome;
use common::error::Result;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct StoreArgs {
    #[command(subcommand)]
    pub command: StoreCommand,
}

#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Move the records of a server's directory from SQLite to an empty PostgreSQL database. The server must not be
    /// running.
    ///
    /// The number of rows and a digest of each table are compared before the move is completed. Afterwards, no server
    /// starts with the SQLite file.
    #[command(after_help = format!(
        "Example:\n  drophammer store migrate --from /srv/drophammer --to 'postgres:///drophammer?host=/run/postgresql'\n\n{}",
        agent::cli::EXIT_CODES
    ))]
    Migrate(MigrateOptions),
}

#[derive(Debug, Args)]
pub struct MigrateOptions {
    /// The server's directory.
    #[arg(long, value_name = "DIR")]
    pub from: PathBuf,
    /// The PostgreSQL database, postgres://USER@HOST/DATABASE. A URL with a password must be in --to-file or in the
    /// variable DROPHAMMER_STORE.
    #[arg(long, value_name = "URL", conflicts_with = "to_file")]
    pub to: Option<String>,
    /// Read the URL of the PostgreSQL database from this file.
    #[arg(long, value_name = "FILE")]
    pub to_file: Option<PathBuf>,
}

/// Runs `drophammer store`.
///
/// # Errors
/// Returns an error if the records cannot be moved.
pub fn run_store(options: &StoreArgs) -> Result<CommandOutcome> {
    let StoreCommand::Migrate(MigrateOptions { from, to, to_file }) = &options.command;
    server::store_options::migrate_store(from, to.as_deref(), to_file.as_deref())?;
    Ok(CommandOutcome::Good)
}
