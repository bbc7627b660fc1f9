//! Reads request bodies within size and time limits, and shortens and sanitizes the strings in them.

use crate::AppState;
use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::http::StatusCode;
use common::type_errors::locate_json_error;
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use http_server::client_quotas::LARGE_BODY_BYTES;
use http_server::request_context;
use serde::de::DeserializeOwned;
use std::time::Duration;
use store::json_sanitizer::{DocumentAuthor, sanitize_json};

/// Time limit for receiving a request body. A machine that takes longer is assumed to be switched off.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of an event or another short document, in bytes.
pub const EVENT_BYTES: usize = 64 << 10;

/// Reads a document sent by the operator.
pub(crate) async fn read_operator_document<T: DeserializeOwned>(
    app: &AppState,
    peer: ClientAddress,
    body: Body,
    limit: usize,
) -> Result<T, ApiError> {
    parse_document(&read_body(app, peer, body, limit).await?, DocumentAuthor::Operator)
}

/// Reads a document sent by a machine. Each string is shortened to the limit of its field.
pub(crate) async fn read_machine_document<T: DeserializeOwned>(
    app: &AppState,
    peer: ClientAddress,
    body: Body,
    limit: usize,
) -> Result<T, ApiError> {
    parse_document(&read_body(app, peer, body, limit).await?, DocumentAuthor::Machine)
}

fn parse_document<T: DeserializeOwned>(json: &[u8], author: DocumentAuthor) -> Result<T, ApiError> {
    let wrong =
        |error: serde_json::Error| ApiError::bad_request(format!("request body: {}", locate_json_error(&error)));
    let json = sanitize_json(json, author).map_err(wrong)?;
    serde_json::from_slice(&json).map_err(wrong)
}

/// Reads a request body unchanged, within the quotas. The memory of the body counts towards the client's quota until
/// the response is sent. The number of large bodies that are handled at the same time is limited, since parsing needs
/// many times the memory of the body.
pub async fn read_body(app: &AppState, peer: ClientAddress, body: Body, limit: usize) -> Result<Bytes, ApiError> {
    let length = body.size_hint().upper().unwrap_or(limit as u64);
    if length > limit as u64 {
        let message = format!("the request body is {length} bytes; at most {limit} are allowed");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message));
    }
    let room = app.client_quotas.reserve_body(peer, length).ok_or_else(|| {
        ApiError::new(
            StatusCode::TOO_MANY_REQUESTS,
            format!("too many request bodies are being received from {peer}, or in total; retry later"),
        )
    })?;
    request_context::hold_permit(room);
    let bytes = request_context::yield_permit(tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, limit))).await;
    let bytes =
        bytes.map_err(|_| ApiError::new(StatusCode::REQUEST_TIMEOUT, "the request body did not arrive in time"))?;
    let bytes = bytes.map_err(|error| {
        let message = format!("the request body is incomplete or exceeds {limit} bytes: {error}");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    })?;
    if bytes.len() > LARGE_BODY_BYTES {
        request_context::hold_permit(
            request_context::yield_permit(app.client_quotas.large_bodies.clone().acquire_owned()).await,
        );
    }
    Ok(bytes)
}
