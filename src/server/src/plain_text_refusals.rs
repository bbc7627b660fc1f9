//! Conversion of plain-text refusals, such as those of invalid paths and queries, to the format of all other errors.

use axum::body::to_bytes;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use http_server::api_error::ApiError;

/// Maximum size of a plain-text refusal, in bytes.
const REFUSAL_BYTES: usize = 64 << 10;

/// Converts a refusal in plain text to JSON. Other responses are returned unchanged.
pub(crate) async fn convert_to_json(response: Response) -> Response {
    let status = response.status();
    let content_type = response.headers().get(header::CONTENT_TYPE);
    let is_text = content_type.is_some_and(|given| given.as_bytes().starts_with(b"text/plain"));
    if !is_text || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let text = to_bytes(response.into_body(), REFUSAL_BYTES).await.unwrap_or_default();
    ApiError::new(status, String::from_utf8_lossy(&text)).into_response()
}
