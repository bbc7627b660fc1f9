//! Changes requested by the operator. They are serialized, and each is based on the version in effect when its turn comes.

use crate::serve::App;
use crate::serve::api::bodies::read;
use crate::serve::api_error::ApiError;
use crate::serve::directory::Directory;
use crate::serve::operator::Operator;
use crate::serve::peers::Peer;
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use tokio::sync::OwnedMutexGuard;

/// The operator's turn, without a document. No other request changes anything until it is dropped.
pub struct Turn {
    pub app: Arc<App>,
    pub peer: Peer,
    pub headers: HeaderMap,
    pub directory: Arc<Directory>,
    _turn: OwnedMutexGuard<()>,
}

/// The operator's turn with a document of at most `BYTES` bytes. The document is read first, so that a slow sender does not block others.
pub struct Change<T, const BYTES: usize> {
    pub asked: T,
    pub turn: Turn,
}

impl Turn {
    async fn take(app: &Arc<App>, peer: Peer, headers: HeaderMap) -> Turn {
        let turn = app.templates.turn().await;
        Turn { app: app.clone(), peer, headers, directory: app.directory(), _turn: turn }
    }
}

impl FromRequestParts<Arc<App>> for Turn {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Turn, ApiError> {
        Operator::from_request_parts(parts, app).await?;
        let peer = Peer::from_request_parts(parts, app).await?;
        Ok(Turn::take(app, peer, parts.headers.clone()).await)
    }
}

impl<T: DeserializeOwned + Send, const BYTES: usize> FromRequest<Arc<App>> for Change<T, BYTES> {
    type Rejection = ApiError;

    async fn from_request(request: Request<Body>, app: &Arc<App>) -> Result<Self, ApiError> {
        let (mut parts, body) = request.into_parts();
        Operator::from_request_parts(&mut parts, app).await?;
        let peer = Peer::from_request_parts(&mut parts, app).await?;
        let asked = read(app, peer, body, BYTES).await?;
        Ok(Change { asked, turn: Turn::take(app, peer, parts.headers).await })
    }
}
