//! Login and logout. [`LoginSessions`] contains the sessions. The server's authorization layer determines the user of
//! a session before a handler runs.

use super::submitted_forms::{ChangeForm, SubmittedForm};
use super::{oidc_login, page_frame};
use api::AppState;
use api::access::login_sessions::{COOKIE, SESSION_LIFETIME, session_cookie};
use api::access::{Identity, IdentitySource, UserRole};
use axum::Extension;
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;
use http_server::client_address::{ClientAddress, ConnectionInfo};
use std::sync::Arc;
use store::token_hash::{self, TokenHash};
use store::user_tokens::TokenVerdict;

/// Extractor that proves that the client is logged in. A handler with this extractor may show all data that the user
/// may read. Before a change, the handler must also check the form token.
#[derive(Clone)]
pub(crate) struct LoggedIn {
    pub session: TokenHash,
    pub form: String,
    pub identity: Identity,
}

impl LoggedIn {
    /// Returns whether the user may order installations and change machine files.
    pub(crate) fn is_operator(&self) -> bool {
        self.identity.role >= UserRole::Operator
    }
}

impl FromRequestParts<Arc<AppState>> for LoggedIn {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<AppState>) -> Result<LoggedIn, Response> {
        let identity = parts.extensions.get::<Identity>().cloned();
        let session = session_cookie(&parts.headers);
        let found = session.zip(identity).and_then(|(session, identity)| {
            Some(LoggedIn { session, form: app.sessions.find_session(session)?, identity })
        });
        found.ok_or_else(|| match (&parts.method, parts.uri.path()) {
            (&Method::GET, path) if path != "/events" => match page_frame::is_for_browser(&parts.headers) {
                true => Redirect::to("/login").into_response(),
                // Only browsers, which accept HTML, are redirected to the login page.
                false => ApiError::not_found("no such endpoint").with_error_code(ErrorCode::ServerUrl).into_response(),
            },
            _ => {
                let why = "you are not logged in, or the server was restarted: log in";
                page_frame::render_error(app, None, ApiError::new(StatusCode::UNAUTHORIZED, why))
            }
        })
    }
}

/// Returns the response to a request for a web page if the authorization layer has refused the request.
pub fn render_refusal(app: &AppState, headers: &HeaderMap, identity: Option<Identity>, error: ApiError) -> Response {
    let person = session_cookie(headers).zip(identity).and_then(|(session, identity)| {
        Some(LoggedIn { session, form: app.sessions.find_session(session)?, identity })
    });
    page_frame::render_error(app, person.as_ref(), error)
}

/// Returns whether another site has sent the request, according to the browser. Over HTTPS, browsers send
/// `Sec-Fetch-Site`, which is valid even if a proxy has changed the `Host` header. Over HTTP, `Origin` is compared
/// with `Host`. If the browser sends neither `Sec-Fetch-Site` nor `Origin`, only the form token protects against
/// forms of other sites.
pub(crate) fn is_cross_site(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text("host").unwrap_or_default();
    let other = |origin: &str| origin.split_once("://").is_none_or(|(_, from)| from != host);
    match text("sec-fetch-site") {
        Some(site) => !matches!(site, "same-origin" | "none"),
        None => text("origin").is_some_and(other),
    }
}

/// `GET /login`: shows the login form.
pub(crate) async fn get_login(State(app): State<Arc<AppState>>) -> Response {
    page_frame::render_login(&app, None)
}

/// `POST /login`: checks the token as the API does, and starts a session.
pub(crate) async fn post_login(
    State(app): State<Arc<AppState>>,
    Extension(connected): Extension<ConnectionInfo>,
    peer: ClientAddress,
    headers: HeaderMap,
    body: axum::body::Body,
) -> Response {
    if is_cross_site(&headers) {
        let error = ApiError::new(StatusCode::FORBIDDEN, "this form was sent by another site");
        return page_frame::render_error(&app, None, error.with_error_code(ErrorCode::ControlPlane));
    }
    if !app.sessions.may_try(peer) {
        let why = "too many wrong tokens: wait a minute";
        return page_frame::render_login(&app, Some(ApiError::new(StatusCode::TOO_MANY_REQUESTS, why)));
    }
    let form = match SubmittedForm::read_body(&app, peer, body).await {
        Ok(form) => form,
        Err(error) => return page_frame::render_error(&app, None, error),
    };
    let hash = token_hash::hash_token(form.get("token").trim());
    let identity = match app.state.verify_user_token(hash, app.operator).await {
        Ok(TokenVerdict::Valid(identity)) => identity,
        Ok(verdict) => {
            app.sessions.count_wrong_token(peer);
            app.log_rate_limited(format!("{peer} entered a wrong token on the login page"));
            let why = match verdict {
                TokenVerdict::Refused { reason, .. } => reason,
                _ => "wrong token",
            };
            return page_frame::render_login(&app, Some(ApiError::new(StatusCode::UNAUTHORIZED, why)));
        }
        Err(error) => return page_frame::render_error(&app, None, error.into()),
    };
    if !app.sessions.count_login(&identity.user) {
        let why = "too many logins of this user: wait a minute";
        return page_frame::render_login(&app, Some(ApiError::new(StatusCode::TOO_MANY_REQUESTS, why)));
    }
    let cookie = match app.sessions.start_session(&identity.user, hash).await {
        Ok(cookie) => cookie,
        Err(error) => return page_frame::render_error(&app, None, error.into()),
    };
    let cookie = [(header::SET_COOKIE, set_cookie(&cookie, SESSION_LIFETIME.as_secs(), is_secure(&app, connected)))];
    // The user is attached to the response as an extension, from which the audit log reads it.
    (cookie, Extension(identity), Redirect::to("/")).into_response()
}

/// Returns whether cookies must be sent only over TLS. If a reverse proxy terminates TLS, `--url` begins with https.
pub(crate) fn is_secure(app: &AppState, connected: ConnectionInfo) -> bool {
    connected.over_tls || app.url.as_ref().is_some_and(|url| url.starts_with("https://"))
}

pub(crate) fn set_cookie(value: &str, seconds: u64, is_secure: bool) -> String {
    let secure = if is_secure { "; Secure" } else { "" };
    format!("{COOKIE}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
}

/// `POST /logout`: ends the session.
pub(crate) async fn post_logout(State(app): State<Arc<AppState>>, change: ChangeForm) -> Response {
    let session = &change.person.session;
    // The token of a login with OpenID Connect is used only by this session, so it is deleted.
    if change.person.identity.source == IdentitySource::Oidc
        && let Some(token) = app.sessions.session_token(session)
        && change.person.identity.token.starts_with(oidc_login::TOKEN_PREFIX)
        && let Err(error) = app.state.end_provider_login(token).await
    {
        return change.show_error(error.into());
    }
    if let Err(error) = app.sessions.end_session(session).await {
        return change.show_error(error.into());
    }
    ([(header::SET_COOKIE, set_cookie("", 0, false))], Redirect::to("/login")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cross_site_requests_are_detected_by_headers() {
        let headers = |pairs: &[(&'static str, &'static str)]| {
            let pairs = pairs.iter().map(|(name, value)| ((*name).parse().unwrap(), value.parse().unwrap()));
            pairs.collect::<HeaderMap>()
        };
        for (pairs, is) in [
            (&[("host", "d:1")][..], false),
            (&[("host", "d:1"), ("origin", "http://d:1")], false),
            (&[("host", "behind:1"), ("origin", "https://proxy"), ("sec-fetch-site", "same-origin")], false),
            (&[("host", "d:1"), ("origin", "http://d:2")], true),
            (&[("host", "d:1"), ("origin", "http://evil")], true),
            (&[("host", "d:1"), ("origin", "null")], true),
            (&[("host", "d:1"), ("sec-fetch-site", "cross-site")], true),
            (&[("host", "d:1"), ("sec-fetch-site", "same-site")], true),
        ] {
            assert_eq!(is_cross_site(&headers(pairs)), is, "{pairs:?}");
        }
    }
}
