//! Options that select the database of the server.

use clap::Args;
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use std::path::{Path, PathBuf};
use store::store_address::PostgresAddress;

/// Variable with the URL of the PostgreSQL database. Unlike an option, it is not visible in the list of processes.
pub const STORE_VARIABLE: &str = "DROPHAMMER_STORE";

/// Database that replaces the SQLite file in the server's directory.
#[derive(Debug, Clone, Default, Args)]
pub struct StoreOptions {
    /// PostgreSQL database that contains the server's records, postgres://USER@HOST/DATABASE, instead of a SQLite file
    /// in the directory. A URL with a password must be in --store-file or in the variable DROPHAMMER_STORE.
    #[arg(long, value_name = "URL", conflicts_with = "store_file")]
    pub store: Option<String>,
    /// Read the URL of the PostgreSQL database from this file.
    #[arg(long, value_name = "FILE")]
    pub store_file: Option<PathBuf>,
}

impl StoreOptions {
    /// Returns the address of the PostgreSQL database, or `None` if the SQLite file is used.
    ///
    /// # Errors
    /// Returns an error if the address is invalid, or its file cannot be read.
    pub fn read_address(&self) -> Result<Option<PostgresAddress>> {
        if let Some(file) = &self.store_file {
            return PostgresAddress::read_file(file).map(Some);
        }
        if let Some(url) = &self.store {
            return parse_visible_url(url, "--store").map(Some);
        }
        let url = std::env::var(STORE_VARIABLE).unwrap_or_default();
        if url.is_empty() { Ok(None) } else { PostgresAddress::parse(&url).map(Some) }
    }
}

/// Parses the value of an option, which must not contain a password.
///
/// # Errors
/// Returns an error if the URL is invalid or contains a password. The error does not contain the URL.
pub fn parse_visible_url(url: &str, option: &str) -> Result<PostgresAddress> {
    let address = PostgresAddress::parse(url)?;
    if address.has_password() {
        let message = format!(
            "{option}: cannot use a URL with a password: every user can read it in the list of processes; specify the \
             URL in {option}-file or in the variable {STORE_VARIABLE}"
        );
        return Err(Error::refusal(Phase::Serve, message).with_code(ErrorCode::DatabaseAddress));
    }
    Ok(address)
}

/// Moves the SQLite database of a directory to the PostgreSQL database that one of the options or the variable
/// specifies.
///
/// # Errors
/// Returns an error if no database is specified, or the records cannot be moved.
pub fn migrate_store(from: &Path, to: Option<&str>, to_file: Option<&Path>) -> Result<()> {
    let variable = std::env::var(STORE_VARIABLE).unwrap_or_default();
    let address = match (to, to_file) {
        (Some(url), _) => parse_visible_url(url, "--to")?,
        (None, Some(file)) => PostgresAddress::read_file(file)?,
        (None, None) if !variable.is_empty() => PostgresAddress::parse(&variable)?,
        (None, None) => {
            let message = format!("the target is missing: specify --to, --to-file or the variable {STORE_VARIABLE}");
            return Err(Error::refusal(Phase::Settings, message).with_code(ErrorCode::DatabaseAddress));
        }
    };
    store::store_transfer::move_to_postgres(from, &address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn database_password_is_accepted_only_from_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("url");
        let url = "postgres://me:geheim@db.example/desk";
        std::fs::write(&file, format!("{url}\n")).unwrap();
        let options = StoreOptions { store: Some(url.to_owned()), store_file: None };
        let refused = options.read_address().unwrap_err().to_string();
        assert!(refused.contains("--store-file") && !refused.contains("geheim"), "{refused}");
        let options = StoreOptions { store: None, store_file: Some(file.clone()) };
        let address = options.read_address().unwrap().unwrap();
        assert!(address.has_password() && !address.to_string().contains("geheim"));
        std::fs::write(&file, "postgres://me:geheim@db.example").unwrap();
        let refused = options.read_address().unwrap_err().to_string();
        assert!(
            refused.contains("does not contain the name of a database") && !refused.contains("geheim"),
            "{refused}"
        );
        assert!(StoreOptions::default().read_address().unwrap().is_none());
    }
}
