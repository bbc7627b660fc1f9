//! Stop of the server if its database can no longer be used.

use crate::sql::{self, convert_error};
use common::error::{Error, Phase, Result};
use rusqlite::ffi;
use tokio::sync::watch;

/// Stops the server after its database was lost or replaced, and returns the error for the current request.
pub(crate) fn stop_server(why: String, gone: &watch::Sender<Option<String>>) -> Error {
    stop_with_remedy(&why, "Restore the database (`drophammer serve restore`), and start the server again", gone)
}

/// Stops the server, and returns the error for the current request.
pub(crate) fn stop_with_remedy(why: &str, remedy: &str, gone: &watch::Sender<Option<String>>) -> Error {
    let message = format!("{why}. Reports and orders can no longer be stored, so the server stops. {remedy}");
    gone.send_replace(Some(message.clone()));
    Error::new(Phase::Serve, message)
}

/// Converts a database error to the error of the request. If the database was replaced, was upgraded by a newer
/// version, or could not be synced, stops the server.
pub(crate) fn stop_or_convert<T>(result: sql::Result<T>, gone: &watch::Sender<Option<String>>) -> Result<T> {
    result.map_err(|error| match error {
        sql::Error::Replaced(why) => stop_server(why, gone),
        sql::Error::NewerSchema { version, supported } => stop_with_remedy(
            &format!(
                "a newer version of drophammer has upgraded the database to schema version {version}, but this server \
                 supports versions up to {supported}"
            ),
            "Install the newer version of drophammer, and start the server again",
            gone,
        ),
        error if is_failed_sync(&error) => stop_with_remedy(
            &format!(
                "the database could not be synced to the disk, and a sync that has failed cannot be repeated safely, \
                 because the operating system may have discarded the changes: {error}"
            ),
            "Start the server again: it checks the database",
            gone,
        ),
        error => convert_error(error, "the database"),
    })
}

/// Returns whether the operating system has reported that written data could not be synced (fsync(2)).
fn is_failed_sync(error: &sql::Error) -> bool {
    let sql::Error::Sqlite(error) = error else { return false };
    let code = error.sqlite_error().map(|error| error.extended_code);
    code.is_some_and(|code| [ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_IOERR_DIR_FSYNC].contains(&code))
}
