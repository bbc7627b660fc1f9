//! Bodies of requests: read within limits; their texts are shortened and sanitized.

use crate::serve::api_error::ApiError;
use crate::serve::peers::{LARGE_BODY_BYTES, Peer};
use crate::serve::tidy::{Author, tidied};
use crate::serve::{App, requests};
use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::http::StatusCode;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Time limit for a body. A machine that takes longer is assumed to be gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// Maximum size of an event or another short document, in bytes.
pub const EVENT_BYTES: usize = 64 << 10;

/// Reads a document sent by the operator.
pub async fn read<T: DeserializeOwned>(app: &App, peer: Peer, body: Body, limit: usize) -> Result<T, ApiError> {
    parse(&bytes(app, peer, body, limit).await?, Author::Operator)
}

/// Reads a document sent by a machine. Each text is shortened to the limit of its field.
pub async fn read_of_machine<T: DeserializeOwned>(
    app: &App,
    peer: Peer,
    body: Body,
    limit: usize,
) -> Result<T, ApiError> {
    parse(&bytes(app, peer, body, limit).await?, Author::Machine)
}

fn parse<T: DeserializeOwned>(json: &[u8], author: Author) -> Result<T, ApiError> {
    let wrong = |error: serde_json::Error| ApiError::bad(format!("request body: {error}"));
    let json = tidied(json, author).map_err(wrong)?;
    serde_json::from_slice(&json).map_err(wrong)
}

/// Reads a body unchanged, within the quotas. Its memory is accounted to the client until the response is sent. Few large bodies are
/// handled at the same time, as parsing takes many times their size.
pub async fn bytes(app: &App, peer: Peer, body: Body, limit: usize) -> Result<Bytes, ApiError> {
    let length = body.size_hint().upper().unwrap_or(limit as u64);
    if length > limit as u64 {
        let message = format!("the request body has {length} bytes; at most {limit} are allowed");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message));
    }
    let room = app.peers.body(peer, length).ok_or_else(|| {
        ApiError::new(
            StatusCode::TOO_MANY_REQUESTS,
            format!("too many request bodies from {peer} or in total are being received; retry later"),
        )
    })?;
    requests::hold(room);
    let bytes = requests::resting(tokio::time::timeout(PATIENCE, to_bytes(body, limit))).await;
    let bytes =
        bytes.map_err(|_| ApiError::new(StatusCode::REQUEST_TIMEOUT, "the request body did not arrive in time"))?;
    let bytes = bytes.map_err(|error| {
        let message = format!("the request body is incomplete or has more than {limit} bytes: {error}");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    })?;
    if bytes.len() > LARGE_BODY_BYTES {
        requests::hold(requests::resting(app.peers.large_bodies.clone().acquire_owned()).await);
    }
    Ok(bytes)
}
