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
    /// Statement that PostgreSQL has refused.
    Postgres(tokio_postgres::Error),
    /// Reason why PostgreSQL cannot be used now. Nothing was changed.
    Unavailable(String),
    /// Reason why the result of a commit did not arrive. The transaction may or may not be committed.
    UnknownOutcome(String),
    /// Reason why the database is not the one that was used before. The server must stop.
    Replaced(String),
    /// Reason why the database or its address can never be used.
    Unsuitable(String),
    /// The query returned no row.
    NoRows,
    /// A column has a value of another type than expected.
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

    /// Returns whether the database cannot be used now, so that the caller should try again later: PostgreSQL is
    /// unreachable, or the disk of either engine is full.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Error::Unavailable(_) | Error::UnknownOutcome(_) => true,
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
            Error::Sqlite(error) => error.fmt(formatter),
            Error::Postgres(error) => match error.as_db_error() {
                Some(refused) => write!(formatter, "{} ({})", refused.message(), refused.code().code()),
                None => error.fmt(formatter),
            },
            Error::Unavailable(why) => write!(formatter, "PostgreSQL is unavailable: {why}"),
            Error::UnknownOutcome(why) => write!(
                formatter,
                "the connection to PostgreSQL was lost during a commit, so the change may or may not be stored: {why}; \
                read the current state before the change is repeated"
            ),
            Error::Replaced(why) | Error::Unsuitable(why) => formatter.write_str(why),
            Error::NoRows => formatter.write_str("the query returned no row"),
            Error::Conversion { column, source } => write!(formatter, "column {column}: {source}"),
        }
    }
}

impl StdError for Error {}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Error {
        Error::Sqlite(error)
    }
}

/// Converts an error of the database to the error of the request. A database that cannot be used now has its own code.
pub(crate) fn convert_error(error: Error, what: &str) -> common::error::Error {
    let code = match &error {
        Error::Unsuitable(_) | Error::Replaced(_) => Some(ErrorCode::DatabaseAddress),
        error => error.is_unavailable().then_some(ErrorCode::DatabaseUnavailable),
    };
    let error = common::error::Error::with_source(Phase::Serve, what, error);
    match code {
        Some(code) => error.with_code(code),
        None => error,
    }
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
