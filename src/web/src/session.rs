//! Login sessions of operators. A session is a random number in a cookie. The server stores only the hash of this
//! number, and only in memory, so all sessions end when the server exits.

use super::form::{ChangeForm, SubmittedForm};
use super::page_frame;
use api::AppState;
use axum::Extension;
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use common::sync::lock_mutex;
use http_server::api_error::ApiError;
use http_server::quotas::{ClientAddress, ConnectionInfo};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use store::token::{self, TokenHash};

const COOKIE: &str = "drophammer";
const LASTS: Duration = Duration::from_secs(12 * 3600);
/// Maximum number of sessions. A further login ends the session that has not been used for the longest time.
const MOST: usize = 64;
/// Maximum number of wrong tokens per address and minute. The limit keeps the log readable. The limit is not needed to
/// prevent guessing, since the token is long and random.
const WRONG: u32 = 10;
const WRONG_WITHIN: Duration = Duration::from_secs(60);
/// Maximum number of addresses for which wrong tokens are counted.
const ADDRESSES: usize = 1024;

/// All sessions. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct LoginSessions(Arc<Mutex<SessionTable>>);

#[derive(Default)]
struct SessionTable {
    sessions: HashMap<TokenHash, LoginSession>,
    wrong: HashMap<IpAddr, (u32, Instant)>,
}

struct LoginSession {
    /// Form token, which every form of this session contains. Other sites cannot obtain this token.
    form: String,
    begun: Instant,
    used: Instant,
}

/// Proof that the client is logged in. A handler with this extractor may show all data. A handler that makes a change
/// must also check the form token.
#[derive(Clone)]
pub(crate) struct LoggedIn {
    pub session: TokenHash,
    pub form: String,
}

impl LoginSessions {
    fn lock_table(&self) -> MutexGuard<'_, SessionTable> {
        let mut known = lock_mutex(&self.0);
        known.sessions.retain(|_, session| session.begun.elapsed() < LASTS);
        known.wrong.retain(|_, (_, since)| since.elapsed() < WRONG_WITHIN);
        known
    }

    fn find_session(&self, session: TokenHash) -> Option<LoggedIn> {
        let mut known = self.lock_table();
        let found = known.sessions.get_mut(&session)?;
        found.used = Instant::now();
        Some(LoggedIn { session, form: found.form.clone() })
    }

    /// Returns whether the session is known, and has not expired.
    pub(crate) fn is_valid(&self, session: &TokenHash) -> bool {
        self.lock_table().sessions.contains_key(session)
    }

    /// Starts a session and returns the value of its cookie.
    fn start_session(&self) -> common::error::Result<String> {
        let ((cookie, session), (form, _)) = (token::generate_token()?, token::generate_token()?);
        let mut known = self.lock_table();
        if known.sessions.len() >= MOST
            && let Some(oldest) = known.sessions.iter().min_by_key(|(_, session)| session.used).map(|(hash, _)| *hash)
        {
            known.sessions.remove(&oldest);
        }
        let now = Instant::now();
        known.sessions.insert(session, LoginSession { form, begun: now, used: now });
        Ok(cookie)
    }

    fn end_session(&self, session: &TokenHash) {
        self.lock_table().sessions.remove(session);
    }

    fn may_try(&self, ClientAddress(address): ClientAddress) -> bool {
        let known = self.lock_table();
        known.wrong.get(&address).is_none_or(|(times, _)| *times < WRONG)
    }

    /// Counts a wrong token of an address. If the table of addresses is full, its oldest entry is removed first, so
    /// that a full table does not lock out further addresses.
    fn count_wrong_token(&self, ClientAddress(address): ClientAddress) {
        let mut known = self.lock_table();
        if known.wrong.len() >= ADDRESSES
            && !known.wrong.contains_key(&address)
            && let Some(oldest) = known.wrong.iter().min_by_key(|(_, (_, since))| *since).map(|(address, _)| *address)
        {
            known.wrong.remove(&oldest);
        }
        known.wrong.entry(address).or_insert((0, Instant::now())).0 += 1;
    }
}

impl FromRequestParts<Arc<AppState>> for LoggedIn {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<AppState>) -> Result<LoggedIn, Response> {
        let sessions = parts.extensions.get::<LoginSessions>().cloned().unwrap_or_default();
        let found = session_cookie(&parts.headers).and_then(|session| sessions.find_session(session));
        found.ok_or_else(|| match (&parts.method, parts.uri.path()) {
            (&Method::GET, path) if path != "/events" => match page_frame::is_for_browser(&parts.headers) {
                true => Redirect::to("/login").into_response(),
                // Clients that are not browsers do not get the login page.
                false => ApiError::not_found("no such endpoint").into_response(),
            },
            _ => refuse_login(
                app,
                StatusCode::UNAUTHORIZED,
                "you are not logged in, or the server was restarted: log in",
            ),
        })
    }
}

fn session_cookie(headers: &HeaderMap) -> Option<TokenHash> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut pairs = all.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, value)| token::hash_token(value))
}

fn refuse_login(app: &AppState, status: StatusCode, why: &str) -> Response {
    page_frame::render_error(app, None, ApiError::new(status, why))
}

/// Returns whether the browser reports that another site sent the request. Over https, browsers send `Sec-Fetch-Site`,
/// which is valid even if a proxy has changed the `Host` header. Over http, `Origin` is compared with `Host`. If the
/// browser sends neither header, only the form token protects against forms of other sites.
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
pub(crate) async fn get_login() -> Response {
    page_frame::render_login(StatusCode::OK, None)
}

/// `POST /login`: checks the operator's token as the API does, and starts a session.
pub(crate) async fn post_login(
    State(app): State<Arc<AppState>>,
    Extension(connected): Extension<ConnectionInfo>,
    Extension(sessions): Extension<LoginSessions>,
    peer: ClientAddress,
    headers: HeaderMap,
    body: axum::body::Body,
) -> Response {
    if is_cross_site(&headers) {
        return refuse_login(&app, StatusCode::FORBIDDEN, "this form was sent by another site");
    }
    if !sessions.may_try(peer) {
        return page_frame::render_login(StatusCode::TOO_MANY_REQUESTS, Some("too many wrong tokens: wait a minute"));
    }
    let form = match SubmittedForm::read_body(&app, peer, body).await {
        Ok(form) => form,
        Err(error) => return page_frame::render_error(&app, None, error),
    };
    if !token::hashes_equal(&token::hash_token(form.get("token").trim()), &app.operator) {
        sessions.count_wrong_token(peer);
        app.log_rate_limited(format!("{peer} entered a wrong token on the login page"));
        return page_frame::render_login(StatusCode::UNAUTHORIZED, Some("wrong token"));
    }
    let cookie = match sessions.start_session() {
        Ok(cookie) => cookie,
        Err(error) => return page_frame::render_error(&app, None, error.into()),
    };
    // If a reverse proxy terminates TLS, --url begins with https.
    let is_secure = connected.over_tls || app.url.as_ref().is_some_and(|url| url.starts_with("https://"));
    ([(header::SET_COOKIE, set_cookie(&cookie, LASTS.as_secs(), is_secure))], Redirect::to("/")).into_response()
}

fn set_cookie(value: &str, seconds: u64, is_secure: bool) -> String {
    let secure = if is_secure { "; Secure" } else { "" };
    format!("{COOKIE}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
}

/// `POST /logout`: ends the session.
pub(crate) async fn post_logout(Extension(sessions): Extension<LoginSessions>, change: ChangeForm) -> Response {
    sessions.end_session(&change.person.session);
    ([(header::SET_COOKIE, set_cookie("", 0, false))], Redirect::to("/login")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_bounded_and_end() {
        let sessions = LoginSessions::default();
        let cookies: Vec<_> = (0..MOST + 3).map(|_| token::hash_token(&sessions.start_session().unwrap())).collect();
        assert_eq!(sessions.lock_table().sessions.len(), MOST);
        let last = cookies[MOST + 2];
        let person = sessions.find_session(last).unwrap();
        assert!(sessions.is_valid(&last) && person.form.len() == 64);
        sessions.end_session(&last);
        assert!(!sessions.is_valid(&last) && sessions.find_session(last).is_none());
    }

    #[test]
    fn wrong_tokens_are_counted_by_address() {
        let sessions = LoginSessions::default();
        let [one, other] = ["10.0.0.1", "10.0.0.2"].map(|text| ClientAddress(text.parse().unwrap()));
        for _ in 0..WRONG {
            assert!(sessions.may_try(one));
            sessions.count_wrong_token(one);
        }
        assert!(!sessions.may_try(one) && sessions.may_try(other));
    }

    #[test]
    fn many_addresses_with_wrong_tokens_lock_nobody_out() {
        let sessions = LoginSessions::default();
        for address in 0..5000u32 {
            sessions.count_wrong_token(ClientAddress(std::net::Ipv4Addr::from(0x0a00_0000 + address).into()));
        }
        let operator = ClientAddress("192.0.2.1".parse().unwrap());
        assert!(sessions.may_try(operator), "5000 addresses lock the operator out");
        assert!(sessions.lock_table().wrong.len() <= ADDRESSES);
        for _ in 0..WRONG {
            sessions.count_wrong_token(operator);
        }
        assert!(!sessions.may_try(operator));
    }

    #[test]
    fn what_another_site_has_sent_is_known_by_the_browsers_words() {
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
