//! Login at the web page with OpenID Connect: authorization code flow with PKCE. A short-lived cookie binds the login
//! to the browser that has started it.

use super::page_frame;
use super::session::{is_secure, set_cookie};
use api::AppState;
use api::access::login_sessions::SESSION_LIFETIME;
use api::base_url::BaseUrls;
use api::oidc_login::{LoginFailure, log_in, mark_refused, require_provider, too_many_logins};
use axum::Extension;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Query, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use http_server::api_error::ApiError;
use http_server::client_address::{ClientAddress, ConnectionInfo};
use oidc::login_cookie::{self, LoginCookie};
use oidc::provider::{CallbackQuery, OidcProvider};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use store::oidc_users::LoginToken;
use store::token_hash::generate_token;

/// Prefix of the names of tokens that belong to web sessions.
pub(crate) const TOKEN_PREFIX: &str = "page@";
/// Path of all requests of a login. Browsers send the cookie of the login only to this path.
const PATH: &str = "/oidc";

/// URL to which the identity provider returns the browser.
pub(crate) struct CallbackUrl(String);

impl FromRequestParts<Arc<AppState>> for CallbackUrl {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<AppState>) -> Result<CallbackUrl, ApiError> {
        match app.oidc.as_ref().and_then(|provider| provider.settings().redirect_url.clone()) {
            Some(url) => Ok(CallbackUrl(url)),
            None => Ok(CallbackUrl(format!("{}/oidc/callback", BaseUrls::from_request_parts(parts, app).await?.calls))),
        }
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Returns the header that sets the cookie of a login. The cookie cannot be `SameSite=Strict`, because the identity
/// provider returns the browser with a cross-site request.
fn set_login_cookie(value: &str, seconds: u64, is_secure: bool) -> [(header::HeaderName, String); 1] {
    let secure = if is_secure { "; Secure" } else { "" };
    let name = login_cookie::NAME;
    [(header::SET_COOKIE, format!("{name}={value}; Path={PATH}; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}"))]
}

fn read_login_cookie(headers: &HeaderMap) -> Option<LoginCookie> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut pairs = all.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == login_cookie::NAME).and_then(|(_, value)| LoginCookie::parse_value(value, now()))
}

/// `GET /oidc/login`: sends the browser to the identity provider.
pub(crate) async fn get_login(
    State(app): State<Arc<AppState>>,
    Extension(connected): Extension<ConnectionInfo>,
    callback: CallbackUrl,
) -> Response {
    match start_login(&app, &callback).await {
        Ok((url, cookie)) => {
            let cookie = set_login_cookie(&cookie.to_value(), login_cookie::SECONDS, is_secure(&app, connected));
            page_frame::with_headers((cookie, Redirect::to(&url)).into_response())
        }
        Err(failure) => page_frame::render_error(&app, None, failure.error),
    }
}

async fn start_login(app: &AppState, callback: &CallbackUrl) -> Result<(String, LoginCookie), LoginFailure> {
    let provider = require_provider(app)?;
    let (_, random) = generate_token().map_err(ApiError::from)?;
    let cookie = LoginCookie::new(now(), random);
    Ok((provider.authorization_url(&callback.0, &cookie).await?, cookie))
}

/// `GET /oidc/callback`: completes the login, and starts a session.
pub(crate) async fn get_callback(
    State(app): State<Arc<AppState>>,
    Extension(connected): Extension<ConnectionInfo>,
    callback: CallbackUrl,
    peer: ClientAddress,
    headers: HeaderMap,
    query: Result<Query<CallbackQuery>, QueryRejection>,
) -> Response {
    let is_secure = is_secure(&app, connected);
    let Query(query) = query.unwrap_or_default();
    let login = read_login_cookie(&headers);
    // The cookie is valid for one callback, whether the login succeeds or not.
    let mut response = match complete_login(&app, peer, login, &query, &callback).await {
        Ok((token, session)) => {
            let cookie = [(header::SET_COOKIE, set_cookie(&session, SESSION_LIFETIME.as_secs(), is_secure))];
            let page = page_frame::render_logged_in(&token.identity.user);
            // The user is attached to the response as an extension, from which the audit log reads it.
            (cookie, Extension(token.identity), page).into_response()
        }
        Err(failure) => {
            if failure.error.status() == StatusCode::FORBIDDEN {
                app.sessions.count_wrong_token(peer);
            }
            mark_refused(failure.user, page_frame::render_error(&app, None, failure.error))
        }
    };
    let [(name, cookie)] = set_login_cookie("", 0, is_secure);
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().append(name, cookie);
    }
    response
}

async fn complete_login(
    app: &AppState,
    peer: ClientAddress,
    login: Option<LoginCookie>,
    query: &CallbackQuery,
    callback: &CallbackUrl,
) -> Result<(LoginToken, String), LoginFailure> {
    let provider: &OidcProvider = require_provider(app)?;
    if !app.sessions.may_try(peer) {
        return Err(too_many_logins().into());
    }
    let Some(login) = login else {
        let why = "no login was started in this browser within the last 10 minutes; log in again";
        return Err(ApiError::new(StatusCode::FORBIDDEN, why)
            .with_error_code(common::error_code::ErrorCode::OidcLogin)
            .into());
    };
    let verified = provider.complete_login(query, &login, &callback.0).await?;
    let (suffix, _) = generate_token().map_err(ApiError::from)?;
    let token = log_in(app, provider, verified, format!("{TOKEN_PREFIX}{}", &suffix[..8])).await?;
    let session = app.sessions.start_session(&token.identity.user, token.hash).await.map_err(ApiError::from)?;
    Ok((token, session))
}
