//! Turns of requests that change files: only one request at a time makes its changes. The changes are based on the file
//! versions in effect when the turn of the request starts.

use crate::AppState;
use crate::agent_api::request_body::read_operator_document;
use crate::operator::OperatorAuth;
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use http_server::api_error::ApiError;
use http_server::quotas::ClientAddress;
use serde::de::DeserializeOwned;
use site::snapshot::SiteSnapshot;
use std::sync::Arc;
use tokio::sync::OwnedRwLockWriteGuard;

/// Exclusive right of one operator request to make changes, until this value is dropped. Extractor for requests without a body.
pub struct EditTurn {
    pub app: Arc<AppState>,
    pub peer: ClientAddress,
    pub headers: HeaderMap,
    pub directory: Arc<SiteSnapshot>,
    _turn: OwnedRwLockWriteGuard<()>,
}

/// Like [`EditTurn`], but for requests with a document of at most `BYTES` bytes. The document is read before the turn
/// starts, so that a slow client does not block other requests.
pub struct EditRequest<T, const BYTES: usize> {
    pub asked: T,
    pub turn: EditTurn,
}

impl EditTurn {
    /// Waits for the turn of a request whose authorization was checked.
    pub async fn wait_for_turn(app: &Arc<AppState>, peer: ClientAddress, headers: HeaderMap) -> EditTurn {
        let turn = app.templates.lock_changes().await;
        EditTurn { app: app.clone(), peer, headers, directory: app.directory(), _turn: turn }
    }
}

impl FromRequestParts<Arc<AppState>> for EditTurn {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<AppState>) -> Result<EditTurn, ApiError> {
        OperatorAuth::from_request_parts(parts, app).await?;
        let peer = ClientAddress::from_request_parts(parts, app).await?;
        Ok(EditTurn::wait_for_turn(app, peer, parts.headers.clone()).await)
    }
}

impl<T: DeserializeOwned + Send, const BYTES: usize> FromRequest<Arc<AppState>> for EditRequest<T, BYTES> {
    type Rejection = ApiError;

    async fn from_request(request: Request<Body>, app: &Arc<AppState>) -> Result<Self, ApiError> {
        let (mut parts, body) = request.into_parts();
        OperatorAuth::from_request_parts(&mut parts, app).await?;
        let peer = ClientAddress::from_request_parts(&mut parts, app).await?;
        let asked = read_operator_document(app, peer, body, BYTES).await?;
        Ok(EditRequest { asked, turn: EditTurn::wait_for_turn(app, peer, parts.headers).await })
    }
}
