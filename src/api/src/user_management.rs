//! Management of users and their tokens, and `GET /v1/whoami`.

use crate::AppState;
use crate::access::{Identity, UserRole, set_audited_object};
use crate::operator_api::OperatorAuth;
use crate::request_body::{EVENT_BYTES, read_operator_document};
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
pub use store::user_tokens::{DEFAULT_DAYS, MAXIMUM_DAYS, UserToken};
use store::users::UserOutcome;
pub use store::users::{UserChange, UserRecord};

/// Request body: a new user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewUser {
    pub name: String,
    pub role: UserRole,
    /// Projects to which the user is restricted; empty for access to all machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub projects: Vec<String>,
}

/// Request body: a new token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    pub name: String,
    /// Validity in days, 90 if absent. With 0, the token never expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub days: Option<u32>,
}

/// New token. The server does not store the token itself, so it cannot be retrieved later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CreatedToken {
    pub token: String,
    #[serde(flatten)]
    pub record: UserToken,
}

/// User, and the tokens of this user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct UserDetails {
    #[serde(flatten)]
    pub user: UserRecord,
    pub tokens: Vec<UserToken>,
}

type JsonResult<T> = Result<Json<T>, ApiError>;

fn require_done<T>(outcome: UserOutcome<T>, missing: impl FnOnce() -> String) -> Result<T, ApiError> {
    match outcome {
        UserOutcome::Done(value) => Ok(value),
        UserOutcome::NotFound => Err(ApiError::not_found(missing())),
        UserOutcome::Refused(why) => {
            Err(ApiError::new(StatusCode::CONFLICT, why).with_error_code(ErrorCode::AccessDenied))
        }
    }
}

fn unknown_user(name: &str) -> String {
    format!("no user has the name {name:?}; `drophammer user list` lists the users")
}

/// `GET /v1/whoami`: returns the user of the request.
pub(crate) async fn get_whoami(Extension(identity): Extension<Identity>) -> Json<Identity> {
    Json(identity)
}

/// `GET /v1/users`: lists the users, sorted by name.
pub(crate) async fn list_users(State(app): State<Arc<AppState>>, _: OperatorAuth) -> JsonResult<Vec<UserRecord>> {
    Ok(Json(app.state.list_users().await?))
}

/// `PUT /v1/users`: adds a user.
pub(crate) async fn add_user(
    State(app): State<Arc<AppState>>,
    _: OperatorAuth,
    peer: ClientAddress,
    body: Body,
) -> Result<(StatusCode, Json<UserRecord>), ApiError> {
    let new_user: NewUser = read_operator_document(&app, peer, body, EVENT_BYTES).await?;
    set_audited_object(&new_user.name);
    let outcome = app.state.add_user(&new_user.name, new_user.role, new_user.projects).await?;
    Ok((StatusCode::CREATED, Json(require_done(outcome, || unknown_user(&new_user.name))?)))
}

/// `GET /v1/users/{name}`: returns a user with the tokens of the user.
pub(crate) async fn get_user(
    State(app): State<Arc<AppState>>,
    Path(name): Path<String>,
    _: OperatorAuth,
) -> JsonResult<UserDetails> {
    let user = app.state.find_user(&name).await?.ok_or_else(|| ApiError::not_found(unknown_user(&name)))?;
    Ok(Json(UserDetails { tokens: app.state.list_user_tokens(&name).await?, user }))
}

/// `POST /v1/users/{name}`: changes the role or the projects of a user, or disables or enables the user.
pub(crate) async fn change_user(
    State(app): State<Arc<AppState>>,
    Path(name): Path<String>,
    _: OperatorAuth,
    peer: ClientAddress,
    body: Body,
) -> JsonResult<UserRecord> {
    let user_change: UserChange = read_operator_document(&app, peer, body, EVENT_BYTES).await?;
    let user = require_done(app.state.change_user(&name, user_change).await?, || unknown_user(&name))?;
    app.sessions.end_sessions_of(&name).await?;
    Ok(Json(user))
}

/// `DELETE /v1/users/{name}`: removes a user with all tokens.
pub(crate) async fn remove_user(
    State(app): State<Arc<AppState>>,
    Path(name): Path<String>,
    _: OperatorAuth,
) -> JsonResult<UserRecord> {
    let user = require_done(app.state.remove_user(&name).await?, || unknown_user(&name))?;
    app.sessions.end_sessions_of(&name).await?;
    Ok(Json(user))
}

/// `GET /v1/users/{name}/tokens`: lists the records of a user's tokens, such as name and expiry. The secret tokens are
/// not stored.
pub(crate) async fn list_tokens(
    State(app): State<Arc<AppState>>,
    Path(name): Path<String>,
    authorized: OperatorAuth,
) -> JsonResult<Vec<UserToken>> {
    let Json(details) = get_user(State(app), Path(name), authorized).await?;
    Ok(Json(details.tokens))
}

/// `POST /v1/users/{name}/tokens`: creates a token.
pub(crate) async fn create_token(
    State(app): State<Arc<AppState>>,
    Path(name): Path<String>,
    _: OperatorAuth,
    peer: ClientAddress,
    body: Body,
) -> Result<(StatusCode, Json<CreatedToken>), ApiError> {
    let new_token: NewToken = read_operator_document(&app, peer, body, EVENT_BYTES).await?;
    let days = Some(new_token.days.unwrap_or(DEFAULT_DAYS)).filter(|days| *days > 0);
    let outcome = app.state.create_user_token(&name, &new_token.name, days).await?;
    let (token, record) = require_done(outcome, || unknown_user(&name))?;
    Ok((StatusCode::CREATED, Json(CreatedToken { token, record })))
}

/// `DELETE /v1/users/{name}/tokens/{token}`: revokes a token.
pub(crate) async fn revoke_token(
    State(app): State<Arc<AppState>>,
    Path((name, token)): Path<(String, String)>,
    _: OperatorAuth,
) -> JsonResult<UserToken> {
    let missing =
        || format!("user {name:?} has no valid token {token:?}; `drophammer user token list {name}` lists the tokens");
    let token = require_done(app.state.revoke_user_token(&name, &token).await?, missing)?;
    app.sessions.end_sessions_of(&name).await?;
    Ok(Json(token))
}
