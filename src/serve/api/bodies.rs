//! Bodies of requests: each is read within bounds, and its texts are bounded and made harmless.

use crate::serve::api_error::ApiError;
use crate::serve::peers::{LARGE_BODY_BYTES, Peer};
use crate::serve::tidy::{Author, tidied};
use crate::serve::{App, requests};
use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::http::StatusCode;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// A machine that takes longer to say what it has to say is gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// Longest body of an event, and of every other short document.
pub const EVENT_BYTES: usize = 64 << 10;

/// Reads a document of the operator.
pub async fn read<T: DeserializeOwned>(app: &App, peer: Peer, body: Body, limit: usize) -> Result<T, ApiError> {
    parse(&bytes(app, peer, body, limit).await?, Author::Operator)
}

/// Reads a document of a machine: each text is shortened to the length of its kind.
pub async fn read_of_machine<T: DeserializeOwned>(
    app: &App,
    peer: Peer,
    body: Body,
    limit: usize,
) -> Result<T, ApiError> {
    parse(&bytes(app, peer, body, limit).await?, Author::Machine)
}

fn parse<T: DeserializeOwned>(json: &[u8], author: Author) -> Result<T, ApiError> {
    let wrong = |error: serde_json::Error| ApiError::bad(format!("the body: {error}"));
    let json = tidied(json, author).map_err(wrong)?;
    serde_json::from_slice(&json).map_err(wrong)
}

/// Reads a body as it came, if there is room for it. Its memory is accounted to the client until the request is answered, and few large
/// bodies are handled at the same time: what is parsed from a body takes many times its size.
pub async fn bytes(app: &App, peer: Peer, body: Body, limit: usize) -> Result<Bytes, ApiError> {
    let length = body.size_hint().upper().unwrap_or(limit as u64);
    if length > limit as u64 {
        let message = format!("the body has {length} bytes, more than {limit}");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message));
    }
    let room = app.peers.body(peer, length).ok_or_else(|| {
        ApiError::new(
            StatusCode::TOO_MANY_REQUESTS,
            format!("too many bodies are on their way from {peer}, or from all"),
        )
    })?;
    requests::hold(room);
    let bytes = requests::resting(tokio::time::timeout(PATIENCE, to_bytes(body, limit))).await;
    let bytes = bytes.map_err(|_| ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"))?;
    let bytes = bytes.map_err(|error| {
        let message = format!("the body did not arrive, or has more than {limit} bytes: {error}");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    })?;
    if bytes.len() > LARGE_BODY_BYTES {
        requests::hold(requests::resting(app.peers.large_bodies.clone().acquire_owned()).await);
    }
    Ok(bytes)
}
