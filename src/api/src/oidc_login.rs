//! Logins with OpenID Connect: `GET /v1/oidc` describes the identity provider to `drophammer login`, and `POST
//! /v1/oidc/token` exchanges an ID token for a token of this server. The web page calls [`log_in`] directly.

use crate::AppState;
use crate::access::Identity;
use crate::request_body::{EVENT_BYTES, read_operator_document};
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use oidc::id_token::{TokenExpectation, VerifiedIdentity};
use oidc::provider::{OidcProvider, ProviderFault};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use store::oidc_users::{LoginOutcome, LoginToken, ProviderLogin};

/// Maximum length of the host's name in the name of a token.
const HOST_BYTES: usize = 48;

/// Identity provider for `drophammer login`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct OidcLoginInfo {
    /// True if users can log in with OpenID Connect. The other fields are absent otherwise.
    pub available: bool,
    /// Name of the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// Scopes of the request, separated by spaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// Absent if the provider does not support the device flow (RFC 8628).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_authorization_endpoint: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_endpoint: Option<String>,
}

/// Request body: an ID token of the identity provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IdTokenExchange {
    pub id_token: String,
    /// Name of the client's host, which becomes part of the name of the token.
    pub host: String,
}

/// Token of this server for a user of the identity provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ExchangedToken {
    pub token: String,
    pub expires: String,
    pub identity: Identity,
}

/// Name of a user whose login was refused. Attached to the response, for the audit log.
#[derive(Debug, Clone)]
pub struct RefusedLogin(pub String);

/// Failure of a login. The response contains the reason.
#[derive(Debug)]
pub struct LoginFailure {
    pub error: ApiError,
    /// Name of the user, if it is known.
    pub user: Option<String>,
}

impl From<ProviderFault> for LoginFailure {
    fn from(fault: ProviderFault) -> LoginFailure {
        let (status, code) = match fault {
            ProviderFault::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::OidcProvider),
            ProviderFault::Refused(_) => (StatusCode::FORBIDDEN, ErrorCode::OidcLogin),
        };
        let why = match &fault {
            ProviderFault::Unavailable(why) => format!("the identity provider cannot be used: {why}"),
            ProviderFault::Refused(why) => why.clone(),
        };
        LoginFailure { error: ApiError::new(status, why).with_error_code(code), user: None }
    }
}

impl From<ApiError> for LoginFailure {
    fn from(error: ApiError) -> LoginFailure {
        LoginFailure { error, user: None }
    }
}

/// Returns the identity provider of this server.
///
/// # Errors
/// Returns an error if the server's directory does not contain `oidc.yaml`.
pub fn require_provider(app: &AppState) -> Result<&OidcProvider, ApiError> {
    app.oidc.as_deref().ok_or_else(|| {
        let why = "this server does not support logins with OpenID Connect: its directory does not contain oidc.yaml";
        ApiError::new(StatusCode::CONFLICT, why).with_error_code(ErrorCode::OidcSettings)
    })
}

/// Logs in the user of a verified ID token, and creates a token with the name `token_name`.
///
/// # Errors
/// Returns an error if the user is refused, or the database cannot be written.
pub async fn log_in(
    app: &AppState,
    provider: &OidcProvider,
    verified: VerifiedIdentity,
    token_name: String,
) -> Result<LoginToken, LoginFailure> {
    let login = ProviderLogin {
        access: provider.settings().assign_role(&verified.groups),
        issuer: verified.issuer,
        subject: verified.subject,
        name: verified.name,
        token_name,
        validity: provider.settings().validity,
        marks: verified.marks,
        expires: verified.expires,
    };
    match app.state.log_in_provider_user(login).await.map_err(ApiError::from)? {
        LoginOutcome::LoggedIn(token) => Ok(*token),
        LoginOutcome::Refused { user, reason } => {
            let who = user.as_deref().map_or_else(|| "the user".to_owned(), |user| format!("user {user}"));
            let why = format!("{who} cannot log in: {reason}");
            let error = ApiError::new(StatusCode::FORBIDDEN, why).with_error_code(ErrorCode::OidcLogin);
            Err(LoginFailure { error, user })
        }
    }
}

/// `GET /v1/oidc`: describes the identity provider.
pub(crate) async fn get_info(State(app): State<Arc<AppState>>) -> Result<Json<OidcLoginInfo>, ApiError> {
    let Some(provider) = &app.oidc else { return Ok(Json(OidcLoginInfo::default())) };
    let metadata = provider.fetch_metadata().await.map_err(|fault| LoginFailure::from(fault).error)?;
    let settings = provider.settings();
    Ok(Json(OidcLoginInfo {
        available: true,
        name: Some(settings.label.clone()),
        issuer: Some(settings.issuer.clone()),
        client_id: Some(settings.cli_client_id.clone()),
        scope: Some(settings.scope()),
        device_authorization_endpoint: metadata.device_authorization_endpoint.clone(),
        token_endpoint: Some(metadata.token_endpoint.clone()),
    }))
}

/// `POST /v1/oidc/token`: exchanges an ID token for a token of this server.
pub(crate) async fn exchange_token(State(app): State<Arc<AppState>>, peer: ClientAddress, body: Body) -> Response {
    match exchange(&app, peer, body).await {
        Ok(token) => {
            let identity = token.identity.clone();
            // The user is attached to the response as an extension, from which the audit log reads it.
            (StatusCode::CREATED, Extension(identity), Json(token)).into_response()
        }
        Err(failure) => {
            if failure.error.status() == StatusCode::FORBIDDEN {
                app.sessions.count_wrong_token(peer);
            }
            mark_refused(failure.user, failure.error.into_response())
        }
    }
}

/// Attaches the user of a refused login to the response, for the audit log.
pub fn mark_refused(user: Option<String>, mut response: Response) -> Response {
    if let Some(user) = user {
        response.extensions_mut().insert(RefusedLogin(user));
    }
    response
}

/// Returns the error for an address with too many refused logins.
pub fn too_many_logins() -> ApiError {
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too many refused logins: wait a minute")
}

async fn exchange(app: &AppState, peer: ClientAddress, body: Body) -> Result<ExchangedToken, LoginFailure> {
    let provider = require_provider(app)?;
    if !app.sessions.may_try(peer) {
        return Err(too_many_logins().into());
    }
    let request: IdTokenExchange = read_operator_document(app, peer, body, EVENT_BYTES).await?;
    let client = provider.settings().cli_client_id.as_str();
    let verified = provider.verify_token(&request.id_token, TokenExpectation { client, nonce: None }).await?;
    let LoginToken { secret, record, identity, .. } =
        log_in(app, provider, verified, name_token(&request.host)).await?;
    Ok(ExchangedToken { token: secret, expires: record.expires.unwrap_or_default(), identity })
}

/// Returns the name of a token for the commands on a host.
fn name_token(host: &str) -> String {
    let is_permitted = |c: &char| c.is_ascii_alphanumeric() || "._-".contains(*c);
    let host: String = host.chars().filter(is_permitted).take(HOST_BYTES).collect();
    format!("cli@{}", if host.is_empty() { "unknown" } else { &host })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_named_after_the_host() {
        for (host, expected) in
            [("laptop.example.org", "cli@laptop.example.org"), ("", "cli@unknown"), ("a b/ü\n", "cli@ab")]
        {
            assert_eq!(name_token(host), expected);
        }
        let long = name_token(&"x".repeat(500));
        assert!(long.len() <= 64 && store::users::check_name(&long).is_ok());
    }
}
