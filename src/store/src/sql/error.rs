//! Errors of both engines.

use super::value::ValueKind;
use common::error::Phase;
use common::error_code::ErrorCode;
use std::error::Error as StdError;
use std::fmt;

/// Result of an access to the database.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Failed access to the database.
#[derive(Debug)]
pub enum Error {
    Sqlite(rusqlite::Error),
    /// PostgreSQL has refused a statement.
    Postgres(tokio_postgres::Error),
    /// PostgreSQL cannot be used now. Nothing was changed. Contains the reason.
    Unavailable(String),
    /// PostgreSQL cannot store more data. Nothing was changed. Contains the reason.
    OutOfSpace(String),
    /// The result of a commit did not arrive, so the transaction may or may not be committed. Contains the reason.
    UnknownOutcome(String),
    /// The database is no longer the one that was used before, so the server must stop. Contains the reason.
    Replaced(String),
    /// The database or its address can never be used. Contains the reason.
    Unsuitable(String),
    /// A server of a newer version has upgraded the schema of the database, so a server of this version must stop.
    NewerSchema {
        version: i64,
        /// Newest version that this program supports.
        supported: i64,
    },
    /// The query returned no row.
    NoRows,
    /// The type of a value in a column differs from the expected type.
    Conversion {
        column: usize,
        source: Box<dyn StdError + Send + Sync>,
    },
}

impl Error {
    /// Returns an error about the value of a column.
    pub fn conversion(column: usize, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        Error::Conversion { column, source: source.into() }
    }

    pub(crate) fn unexpected_type(column: usize, expected: ValueKind) -> Error {
        Error::conversion(column, format!("the value is not of type {expected:?}"))
    }

    /// Returns whether the database cannot be used now, and the caller should try again later: PostgreSQL is
    /// unreachable, or the disk of either engine is full.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Error::Unavailable(_) | Error::OutOfSpace(_) | Error::UnknownOutcome(_) => true,
            Error::Sqlite(error) => {
                use rusqlite::ErrorCode::{DatabaseBusy, DiskFull, SystemIoFailure};
                matches!(error.sqlite_error_code(), Some(DatabaseBusy | DiskFull | SystemIoFailure))
            }
            _ => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Sqlite(error) => write!(formatter, "{error}{}", sqlite_remedy(error)),
            Error::Postgres(error) => match error.as_db_error() {
                Some(refused) => write!(formatter, "{} ({})", refused.message(), refused.code().code()),
                None => error.fmt(formatter),
            },
            Error::Unavailable(why) => write!(
                formatter,
                "PostgreSQL is unavailable: {why}; check that PostgreSQL runs, and accepts connections from this host"
            ),
            Error::OutOfSpace(why) => write!(
                formatter,
                "PostgreSQL lacks free space: {why}; free space on the filesystem of its data, or of the tablespace"
            ),
            Error::UnknownOutcome(why) => write!(
                formatter,
                "the connection to PostgreSQL was lost during a commit, so the change may or may not be stored: {why}; \
                read the current state before the change is repeated"
            ),
            Error::Replaced(why) | Error::Unsuitable(why) => formatter.write_str(why),
            Error::NewerSchema { version, supported } => write!(
                formatter,
                "the database has schema version {version}, but this program supports versions up to {supported}: \
                 install the newer version of drophammer"
            ),
            Error::NoRows => formatter.write_str("the query returned no row"),
            Error::Conversion { column, source } => write!(formatter, "column {column}: {source}"),
        }
    }
}

/// Remedy for a damaged database file, as an appendix to the error message.
pub(crate) const RESTORE_REMEDY: &str = "; restore an undamaged backup with `drophammer serve restore`";

/// Returns the remedy for a database file that is damaged or cannot be used now, as an appendix to the error message;
/// empty for other errors.
fn sqlite_remedy(error: &rusqlite::Error) -> &'static str {
    use rusqlite::ErrorCode::{DatabaseBusy, DatabaseCorrupt, DiskFull, NotADatabase, SystemIoFailure};
    match error.sqlite_error_code() {
        Some(DiskFull) => "; free space on the filesystem of the server's directory",
        Some(SystemIoFailure) => "; check the free space (`df`) and the disk (`dmesg`) of the server's directory",
        Some(DatabaseBusy) => "; stop the other program that uses the database file",
        Some(DatabaseCorrupt | NotADatabase) => RESTORE_REMEDY,
        _ => "",
    }
}

impl StdError for Error {}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Error {
        Error::Sqlite(error)
    }
}

/// Converts a database error to the error of the request. A database that is temporarily unavailable has its own code.
pub(crate) fn convert_error(error: Error, what: &str) -> common::error::Error {
    let code = match &error {
        Error::Unsuitable(_) | Error::Replaced(_) | Error::NewerSchema { .. } => Some(ErrorCode::DatabaseAddress),
        error => error.is_unavailable().then_some(ErrorCode::DatabaseUnavailable),
    };
    let error = common::error::Error::with_source(Phase::Serve, what, error);
    match code {
        Some(code) => error.with_code(code),
        None => error,
    }
}

/// Returns whether a full filesystem can be the cause of the error: the filesystem reports that it is full, or SQLite
/// cannot write its files. On a full filesystem, SQLite often reports only `disk I/O error`.
pub fn may_lack_space(error: &common::error::Error) -> bool {
    use rusqlite::ErrorCode::{DiskFull, SystemIoFailure};
    let mut next: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = next {
        let is_full = error.downcast_ref::<std::io::Error>().is_some_and(|error| {
            matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
        });
        let sqlite = error.downcast_ref::<rusqlite::Error>().or_else(|| match error.downcast_ref::<Error>() {
            Some(Error::Sqlite(error)) => Some(error),
            _ => None,
        });
        if is_full || matches!(sqlite.and_then(rusqlite::Error::sqlite_error_code), Some(DiskFull | SystemIoFailure)) {
            return true;
        }
        next = error.source();
    }
    false
}

/// Conversion of [`Error::NoRows`] into `None`.
pub trait OptionalExtension<T> {
    /// Returns `None` if the query returned no row.
    ///
    /// # Errors
    /// Returns all other errors.
    fn optional(self) -> Result<Option<T>>;
}

impl<T> OptionalExtension<T> for Result<T> {
    fn optional(self) -> Result<Option<T>> {
        match self {
            Ok(value) => Ok(Some(value)),
            Err(Error::NoRows) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_about_an_unavailable_database_contains_a_remedy() {
        let full = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
        let full = Error::Sqlite(rusqlite::Error::SqliteFailure(full, None));
        for (error, remedy) in [
            (Error::Unavailable("no route to host".to_owned()), "check that PostgreSQL runs"),
            (Error::OutOfSpace("disk full".to_owned()), "free space"),
            (Error::UnknownOutcome("closed".to_owned()), "read the current state"),
            (full, "free space on the filesystem of the server's directory"),
        ] {
            let text = convert_error(error, "read the orders").to_coded_text();
            assert!(text.contains(remedy) && text.ends_with(" (DH-720)"), "{text}");
        }
    }

    #[test]
    fn a_message_about_a_damaged_database_contains_a_remedy() {
        for code in [rusqlite::ffi::SQLITE_CORRUPT, rusqlite::ffi::SQLITE_NOTADB] {
            let damaged = rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
            let text = convert_error(Error::Sqlite(damaged), "read the orders").to_coded_text();
            assert!(text.contains("; restore an undamaged backup with `drophammer serve restore`"), "{text}");
        }
    }
}
