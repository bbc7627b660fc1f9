//! Stop of the server after its database was lost or replaced.

use crate::sql::{self, convert_error};
use common::error::{Error, Phase, Result};
use tokio::sync::watch;

/// Stops the server, and returns the error for the current request.
pub(crate) fn stop_server(why: String, gone: &watch::Sender<Option<String>>) -> Error {
    let message = format!(
        "{why}. Reports and orders can no longer be stored, so the server stops. Restore the database \
        (`drophammer serve restore`), and start the server again"
    );
    gone.send_replace(Some(message.clone()));
    Error::new(Phase::Serve, message)
}

/// Stops the server if the error shows that the database was replaced. Converts the error to the error of the request.
pub(crate) fn stop_or_convert<T>(result: sql::Result<T>, gone: &watch::Sender<Option<String>>) -> Result<T> {
    result.map_err(|error| match error {
        sql::Error::Replaced(why) => stop_server(why, gone),
        error => convert_error(error, "the database"),
    })
}
