//! Login sessions of operators. A session is a random number in a cookie; only its hash is kept, in memory, so that all sessions end with
//! the server.

use super::form::Form;
use super::shell;
use crate::serve::App;
use crate::serve::api_error::ApiError;
use crate::serve::peers::{Connected, Peer};
use crate::serve::token::{self, Hash};
use axum::Extension;
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const COOKIE: &str = "drophammer";
const LASTS: Duration = Duration::from_secs(12 * 3600);
/// Maximum number of sessions; a further login ends the one that was unused longest.
const MOST: usize = 64;
/// Maximum number of wrong tokens per address and minute. The token is random and cannot be guessed; the limit keeps the operator's log
/// readable.
const WRONG: u32 = 10;
const WRONG_WITHIN: Duration = Duration::from_secs(60);
/// Maximum number of addresses that are counted.
const ADDRESSES: usize = 1024;

/// All sessions. Cheap to clone.
#[derive(Clone, Default)]
pub struct Sessions(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    sessions: HashMap<Hash, Session>,
    wrong: HashMap<IpAddr, (u32, Instant)>,
}

struct Session {
    /// Form token: every form contains it, and other sites cannot know it.
    form: String,
    begun: Instant,
    used: Instant,
}

/// Proof that the client is logged in. A handler with this extractor may show everything; handlers that change something also require the
/// form token.
#[derive(Clone)]
pub struct Person {
    pub session: Hash,
    pub form: String,
}

impl Sessions {
    fn known(&self) -> MutexGuard<'_, Known> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.sessions.retain(|_, session| session.begun.elapsed() < LASTS);
        known.wrong.retain(|_, (_, since)| since.elapsed() < WRONG_WITHIN);
        known
    }

    fn find(&self, session: Hash) -> Option<Person> {
        let mut known = self.known();
        let found = known.sessions.get_mut(&session)?;
        found.used = Instant::now();
        Some(Person { session, form: found.form.clone() })
    }

    /// Returns whether the session has neither expired nor been ended.
    pub fn lasts(&self, session: &Hash) -> bool {
        self.known().sessions.contains_key(session)
    }

    /// Starts a session and returns the value of its cookie.
    fn begin(&self) -> crate::error::Result<String> {
        let ((cookie, session), (form, _)) = (token::fresh()?, token::fresh()?);
        let mut known = self.known();
        if known.sessions.len() >= MOST
            && let Some(oldest) = known.sessions.iter().min_by_key(|(_, session)| session.used).map(|(hash, _)| *hash)
        {
            known.sessions.remove(&oldest);
        }
        let now = Instant::now();
        known.sessions.insert(session, Session { form, begun: now, used: now });
        Ok(cookie)
    }

    fn end(&self, session: &Hash) {
        self.known().sessions.remove(session);
    }

    fn may_try(&self, Peer(address): Peer) -> bool {
        let known = self.known();
        known.wrong.get(&address).is_none_or(|(times, _)| *times < WRONG)
    }

    /// Counts a wrong token. If too many addresses are counted, the oldest one is dropped: tokens cannot be guessed anyway, and no other
    /// address is locked out.
    fn was_wrong(&self, Peer(address): Peer) {
        let mut known = self.known();
        if known.wrong.len() >= ADDRESSES
            && !known.wrong.contains_key(&address)
            && let Some(oldest) = known.wrong.iter().min_by_key(|(_, (_, since))| *since).map(|(address, _)| *address)
        {
            known.wrong.remove(&oldest);
        }
        known.wrong.entry(address).or_insert((0, Instant::now())).0 += 1;
    }
}

impl FromRequestParts<Arc<App>> for Person {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Person, Response> {
        let found = cookie(&parts.headers).and_then(|session| app.page.sessions.find(session));
        found.ok_or_else(|| match (&parts.method, parts.uri.path()) {
            (&Method::GET, path) if path != "/events" => match shell::is_for_browser(&parts.headers) {
                true => Redirect::to("/login").into_response(),
                // Programs do not get the login page.
                false => ApiError::not_found("no such endpoint").into_response(),
            },
            _ => refused(app, StatusCode::UNAUTHORIZED, "you are not logged in, or the server was restarted: log in"),
        })
    }
}

fn cookie(headers: &HeaderMap) -> Option<Hash> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut pairs = all.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, value)| token::hash(value))
}

fn refused(app: &App, status: StatusCode, why: &str) -> Response {
    shell::refused(app, None, ApiError::new(status, why))
}

/// Returns whether the browser reports that another site sent the request: by `Sec-Fetch-Site` over https, where a proxy may have changed
/// the host, or by `Origin` over http. Forms also require the form token, in case the browser sends neither.
pub fn is_from_elsewhere(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text("host").unwrap_or_default();
    let other = |origin: &str| origin.split_once("://").is_none_or(|(_, from)| from != host);
    match text("sec-fetch-site") {
        Some(site) => !matches!(site, "same-origin" | "none"),
        None => text("origin").is_some_and(other),
    }
}

/// `GET /login`.
pub async fn ask() -> Response {
    shell::login(StatusCode::OK, None)
}

/// `POST /login`: checks the operator's token, as the API does.
pub async fn login(
    State(app): State<Arc<App>>,
    Extension(connected): Extension<Connected>,
    peer: Peer,
    headers: HeaderMap,
    body: axum::body::Body,
) -> Response {
    let sessions = &app.page.sessions;
    if is_from_elsewhere(&headers) {
        return refused(&app, StatusCode::FORBIDDEN, "this form was sent by another site");
    }
    if !sessions.may_try(peer) {
        return shell::login(StatusCode::TOO_MANY_REQUESTS, Some("too many wrong tokens: wait a minute"));
    }
    let form = match Form::read(&app, peer, body).await {
        Ok(form) => form,
        Err(error) => return shell::refused(&app, None, error),
    };
    if !token::same(&token::hash(form.get("token").trim()), &app.operator) {
        sessions.was_wrong(peer);
        app.alarm(format!("{peer} entered a wrong token on the login page"));
        return shell::login(StatusCode::UNAUTHORIZED, Some("wrong token"));
    }
    let cookie = match sessions.begin() {
        Ok(cookie) => cookie,
        Err(error) => return shell::refused(&app, None, error.into()),
    };
    // A reverse proxy that terminates TLS is recognized by --url.
    let is_secure = connected.over_tls || app.url.as_ref().is_some_and(|url| url.starts_with("https://"));
    ([(header::SET_COOKIE, set_cookie(&cookie, LASTS.as_secs(), is_secure))], Redirect::to("/")).into_response()
}

fn set_cookie(value: &str, seconds: u64, is_secure: bool) -> String {
    let secure = if is_secure { "; Secure" } else { "" };
    format!("{COOKIE}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
}

/// `POST /logout`.
pub async fn logout(
    State(app): State<Arc<App>>,
    person: Person,
    peer: Peer,
    headers: HeaderMap,
    body: axum::body::Body,
) -> Response {
    if let Err(error) = Form::of(&app, &person, peer, &headers, body).await {
        return shell::refused(&app, Some(&person), error);
    }
    app.page.sessions.end(&person.session);
    ([(header::SET_COOKIE, set_cookie("", 0, false))], Redirect::to("/login")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_bounded_and_end() {
        let sessions = Sessions::default();
        let cookies: Vec<_> = (0..MOST + 3).map(|_| token::hash(&sessions.begin().unwrap())).collect();
        assert_eq!(sessions.known().sessions.len(), MOST);
        let last = cookies[MOST + 2];
        let person = sessions.find(last).unwrap();
        assert!(sessions.lasts(&last) && person.form.len() == 64);
        sessions.end(&last);
        assert!(!sessions.lasts(&last) && sessions.find(last).is_none());
    }

    #[test]
    fn wrong_tokens_are_counted_by_address() {
        let sessions = Sessions::default();
        let [one, other] = ["10.0.0.1", "10.0.0.2"].map(|text| Peer(text.parse().unwrap()));
        for _ in 0..WRONG {
            assert!(sessions.may_try(one));
            sessions.was_wrong(one);
        }
        assert!(!sessions.may_try(one) && sessions.may_try(other));
    }

    #[test]
    fn many_addresses_with_wrong_tokens_lock_nobody_out() {
        let sessions = Sessions::default();
        for address in 0..5000u32 {
            sessions.was_wrong(Peer(std::net::Ipv4Addr::from(0x0a00_0000 + address).into()));
        }
        let operator = Peer("192.0.2.1".parse().unwrap());
        assert!(sessions.may_try(operator), "5000 addresses lock the operator out");
        assert!(sessions.known().wrong.len() <= ADDRESSES);
        for _ in 0..WRONG {
            sessions.was_wrong(operator);
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
            assert_eq!(is_from_elsewhere(&headers(pairs)), is, "{pairs:?}");
        }
    }
}
