//! The stored console log of a machine, as plain text.

use super::page_frame;
use super::session::LoggedIn;
use api::AppState;
use api::console_log::format_log;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use http_server::api_error::ApiError;
use std::sync::Arc;

/// `GET /machines/{id}/log`: returns the whole stored log of a machine.
pub(crate) async fn show_log(
    State(app): State<Arc<AppState>>,
    person: LoggedIn,
    Path(id): Path<String>,
) -> Result<Response, Response> {
    let refused = |error: ApiError| page_frame::render_error(&app, Some(&person), error);
    let log = app.state.read_log(&id.to_lowercase()).await.map_err(|error| refused(error.into()))?;
    let types = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    Ok(page_frame::with_headers((types, format_log(&log)).into_response()))
}
