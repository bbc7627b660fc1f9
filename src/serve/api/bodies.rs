//! Bodies of requests: each is read within bounds, and what it says is made harmless.

use crate::serve::api_error::ApiError;
use crate::serve::peers::Peer;
use crate::serve::{App, tidy};
use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::http::StatusCode;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// A machine that takes longer to say what it has to say is gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// Of an event, and of all else that is short.
pub const EVENT_BYTES: usize = 64 << 10;

/// Reads a body, and makes what it says harmless.
pub async fn read<T: DeserializeOwned>(app: &App, peer: Peer, body: Body, limit: usize) -> Result<T, ApiError> {
    let bytes = bytes(app, peer, body, limit).await?;
    let wrong = |error: serde_json::Error| ApiError::bad(format!("the body: {error}"));
    let mut value = serde_json::from_slice(&bytes).map_err(wrong)?;
    tidy::tidy(&mut value);
    serde_json::from_value(value).map_err(wrong)
}

/// A body as it came, when there is room for it: its memory is counted as that of whoever sends it.
pub async fn bytes(app: &App, peer: Peer, body: Body, limit: usize) -> Result<Bytes, ApiError> {
    let length = body.size_hint().upper().unwrap_or(limit as u64);
    if length > limit as u64 {
        let message = format!("the body has {length} bytes, more than {limit}");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message));
    }
    let _room = app.peers.body(peer, length).ok_or_else(|| {
        ApiError::new(
            StatusCode::TOO_MANY_REQUESTS,
            format!("too many bodies are on their way from {peer}, or from all"),
        )
    })?;
    let bytes = tokio::time::timeout(PATIENCE, to_bytes(body, limit)).await;
    let bytes = bytes.map_err(|_| ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"))?;
    bytes.map_err(|error| {
        let message = format!("the body did not arrive, or has more than {limit} bytes: {error}");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    })
}
