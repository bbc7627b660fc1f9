//! Permits for requests that change files. Only one request holds a permit at a time. This request bases its changes on
//! the file versions that are in effect when the permit is granted.

use crate::AppState;
use crate::operator_api::OperatorAuth;
use crate::request_body::read_operator_document;
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use serde::de::DeserializeOwned;
use site::snapshot::SiteSnapshot;
use std::sync::Arc;
use tokio::sync::OwnedRwLockWriteGuard;

/// Exclusive permission to change files, held until this value is dropped. Extractor for operators' requests without
/// a body.
pub struct EditPermit {
    pub app: Arc<AppState>,
    pub peer: ClientAddress,
    pub headers: HeaderMap,
    pub directory: Arc<SiteSnapshot>,
    _lock: OwnedRwLockWriteGuard<()>,
}

/// Extractor like [`EditPermit`] for requests with a document of at most `BYTES` bytes. The document is read before
/// the permit is acquired, so that a slow client does not block other requests.
pub struct EditRequest<T, const BYTES: usize> {
    pub document: T,
    pub permit: EditPermit,
}

impl EditPermit {
    /// Waits for the permit. The caller must have checked the authorization of the request.
    pub async fn wait_for_permit(app: &Arc<AppState>, peer: ClientAddress, headers: HeaderMap) -> EditPermit {
        let permit = app.templates.lock_changes().await;
        EditPermit { app: app.clone(), peer, headers, directory: app.directory(), _lock: permit }
    }
}

impl FromRequestParts<Arc<AppState>> for EditPermit {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<AppState>) -> Result<EditPermit, ApiError> {
        OperatorAuth::from_request_parts(parts, app).await?;
        let peer = ClientAddress::from_request_parts(parts, app).await?;
        Ok(EditPermit::wait_for_permit(app, peer, parts.headers.clone()).await)
    }
}

impl<T: DeserializeOwned + Send, const BYTES: usize> FromRequest<Arc<AppState>> for EditRequest<T, BYTES> {
    type Rejection = ApiError;

    async fn from_request(request: Request<Body>, app: &Arc<AppState>) -> Result<Self, ApiError> {
        let (mut parts, body) = request.into_parts();
        OperatorAuth::from_request_parts(&mut parts, app).await?;
        let peer = ClientAddress::from_request_parts(&mut parts, app).await?;
        let document = read_operator_document(app, peer, body, BYTES).await?;
        Ok(EditRequest { document, permit: EditPermit::wait_for_permit(app, peer, parts.headers).await })
    }
}
