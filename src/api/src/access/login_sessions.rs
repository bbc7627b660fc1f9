//! Login sessions of the web page. A session is a random number in a cookie. The server stores only the hash of this
//! number. With a SQLite file, it stores the hash only in memory, so all sessions end when the server exits. Servers
//! that share a database store sessions there, and their tables in memory contain the sessions that they have read. A
//! session is bound to the token with which it was started: it ends when this token expires or is revoked, or when
//! its user is disabled.

use crate::AppState;
use axum::http::{HeaderMap, header};
use common::sync::lock_mutex;
use http_server::client_address::ClientAddress;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use store::ServerState;
use store::login_sessions::{SessionLimits, SharedSession};
use store::token_hash::{self, TokenHash};
use store::user_tokens::TokenVerdict;

/// Name of the cookie.
pub const COOKIE: &str = "drophammer";
/// Maximum interval between two checks of the session to which an open stream of live updates belongs.
pub const VERIFY_INTERVAL: Duration = Duration::from_secs(30);
/// Duration after which a session ends.
pub const SESSION_LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// Maximum number of sessions per user. A further login ends the session of this user that has not been used for the
/// longest time.
const PER_USER: usize = 8;
/// Maximum number of sessions of all users. A further login ends the least recently used session of the user with the
/// most sessions, so that a user with many sessions cannot end the only session of another user.
const MAXIMUM_SESSIONS: usize = 512;
/// Maximum number of wrong tokens per address and minute. The limit keeps the log readable. It is not needed against
/// guessing, since the token is long and random.
const MAXIMUM_WRONG_TOKENS: u32 = 10;
/// Maximum number of logins per user and minute. Each login is an entry of the audit log, whose number of entries is
/// limited, so a user must not displace other entries with logins.
const MAXIMUM_LOGINS: u32 = 30;
/// Period after which the counts of wrong tokens and of logins start again.
const COUNT_WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of addresses for which wrong tokens are counted.
const MAXIMUM_WRONG_TOKEN_ADDRESSES: usize = 1024;

/// All sessions. Cheap to clone.
#[derive(Clone, Default)]
pub struct LoginSessions {
    table: Arc<Mutex<SessionTable>>,
    /// Database that several servers share; `None` if the sessions are only in memory.
    shared: Option<ServerState>,
}

#[derive(Default)]
struct SessionTable {
    sessions: HashMap<TokenHash, LoginSession>,
    wrong: HashMap<IpAddr, (u32, Instant)>,
    /// Number of logins of each user, and the time of the first of them.
    logins: HashMap<String, (u32, Instant)>,
}

struct LoginSession {
    /// Form token (protection against CSRF), which every form of this session contains. Other sites cannot obtain it.
    form: String,
    /// User, and the hash of the token with which the user has logged in.
    user: String,
    token: TokenHash,
    created: Instant,
    used: Instant,
}

impl SessionTable {
    /// Adds a session. `age` is the time since its login.
    fn add_session(&mut self, hash: TokenHash, SharedSession { user, token, form }: SharedSession, age: Duration) {
        self.end_excess_session(&user);
        let used = Instant::now();
        let created = used.checked_sub(age).unwrap_or(used);
        self.sessions.insert(hash, LoginSession { form, user, token, created, used });
    }

    /// If the user, or all users together, have reached the maximum number of sessions, ends one session to make room
    /// for a new one.
    fn end_excess_session(&mut self, user: &str) {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        self.sessions.values().for_each(|session| *counts.entry(&session.user).or_default() += 1);
        let own = counts.get(user).copied().unwrap_or_default();
        let most = counts.values().copied().max().unwrap_or_default();
        let is_candidate = |session: &LoginSession| match own >= PER_USER {
            true => session.user == user,
            false => self.sessions.len() >= MAXIMUM_SESSIONS && counts.get(session.user.as_str()) == Some(&most),
        };
        let candidates = self.sessions.iter().filter(|(_, session)| is_candidate(session));
        if let Some(oldest) = candidates.min_by_key(|(_, session)| session.used).map(|(hash, _)| *hash) {
            self.sessions.remove(&oldest);
        }
    }
}

impl LoginSessions {
    /// Creates an empty table. If several servers share the database, their sessions are in the database.
    pub fn new(state: &ServerState) -> LoginSessions {
        LoginSessions { shared: state.is_shared().then(|| state.clone()), ..LoginSessions::default() }
    }

    fn lock_table(&self) -> MutexGuard<'_, SessionTable> {
        let mut known = lock_mutex(&self.table);
        known.sessions.retain(|_, session| session.created.elapsed() < SESSION_LIFETIME);
        known.wrong.retain(|_, (_, since)| since.elapsed() < COUNT_WINDOW);
        known.logins.retain(|_, (_, since)| since.elapsed() < COUNT_WINDOW);
        known
    }

    /// Determines the user of the request's session. A session whose token is no longer valid ends.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn authenticate(&self, app: &AppState, headers: &HeaderMap) -> common::error::Result<TokenVerdict> {
        match session_cookie(headers) {
            Some(session) => self.verify_session(app, session).await,
            None => Ok(TokenVerdict::Unknown),
        }
    }

    /// Reads a session from the shared database, because another server may have started or ended it.
    async fn refresh_session(&self, session: TokenHash) -> common::error::Result<()> {
        let Some(shared) = &self.shared else { return Ok(()) };
        let stored = shared.find_login_session(session, SESSION_LIFETIME).await?;
        let mut known = self.lock_table();
        match stored {
            None => drop(known.sessions.remove(&session)),
            Some(_) if known.sessions.contains_key(&session) => {}
            Some((stored, age)) => known.add_session(session, stored, age),
        }
        Ok(())
    }

    /// Determines the user of a session. A session whose token is no longer valid ends.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn verify_session(&self, app: &AppState, session: TokenHash) -> common::error::Result<TokenVerdict> {
        self.refresh_session(session).await?;
        let Some(token) = self.lock_table().sessions.get(&session).map(|session| session.token) else {
            return Ok(TokenVerdict::Unknown);
        };
        let verdict = app.state.verify_user_token(token, app.operator).await?;
        if !matches!(verdict, TokenVerdict::Valid(_)) {
            // The session remains in a shared database until it expires, because the file with the operator's token may
            // differ between the servers.
            self.lock_table().sessions.remove(&session);
        }
        Ok(verdict)
    }

    /// Returns the form token of a session, and records that the session was used now.
    pub fn find_session(&self, session: TokenHash) -> Option<String> {
        let mut known = self.lock_table();
        let found = known.sessions.get_mut(&session)?;
        found.used = Instant::now();
        Some(found.form.clone())
    }

    /// Returns whether the session is known, and has not expired.
    pub fn is_valid(&self, session: &TokenHash) -> bool {
        self.lock_table().sessions.contains_key(session)
    }

    /// Starts a session for a user who has authenticated with a token, and returns the value of its cookie.
    ///
    /// # Errors
    /// Returns an error if the operating system provides no random bytes, or the shared database cannot be written.
    pub async fn start_session(&self, user: &str, token: TokenHash) -> common::error::Result<String> {
        let ((cookie, hash), (form, _)) = (token_hash::generate_token()?, token_hash::generate_token()?);
        let session = SharedSession { user: user.to_owned(), token, form };
        if let Some(shared) = &self.shared {
            let limits = SessionLimits { per_user: PER_USER, lifetime: SESSION_LIFETIME };
            shared.store_login_session(hash, session.clone(), limits).await?;
        }
        self.lock_table().add_session(hash, session, Duration::ZERO);
        Ok(cookie)
    }

    /// Returns the hash of the token with which a session was started.
    pub fn session_token(&self, session: &TokenHash) -> Option<TokenHash> {
        self.lock_table().sessions.get(session).map(|session| session.token)
    }

    /// Ends one session.
    ///
    /// # Errors
    /// Returns an error if the shared database cannot be written.
    pub async fn end_session(&self, session: &TokenHash) -> common::error::Result<()> {
        if let Some(shared) = &self.shared {
            shared.delete_login_session(*session).await?;
        }
        self.lock_table().sessions.remove(session);
        Ok(())
    }

    /// Ends all sessions of a user. Called when the permissions of the user have changed.
    ///
    /// # Errors
    /// Returns an error if the shared database cannot be written.
    pub async fn end_sessions_of(&self, user: &str) -> common::error::Result<()> {
        self.lock_table().sessions.retain(|_, session| session.user != user);
        match &self.shared {
            Some(shared) => shared.delete_login_sessions_of(user).await,
            None => Ok(()),
        }
    }

    /// Returns whether a client at this address may try a token.
    pub fn may_try(&self, ClientAddress(address): ClientAddress) -> bool {
        let known = self.lock_table();
        known.wrong.get(&address).is_none_or(|(times, _)| *times < MAXIMUM_WRONG_TOKENS)
    }

    /// Counts a login of a user who has authenticated. Returns whether the user may log in.
    pub fn count_login(&self, user: &str) -> bool {
        let mut known = self.lock_table();
        let (logins, _) = known.logins.entry(user.to_owned()).or_insert((0, Instant::now()));
        *logins += 1;
        *logins <= MAXIMUM_LOGINS
    }

    /// Counts a wrong token of an address. If the table of addresses is full, its oldest entry is removed first, so
    /// that a full table does not lock out further addresses.
    pub fn count_wrong_token(&self, ClientAddress(address): ClientAddress) {
        let mut known = self.lock_table();
        if known.wrong.len() >= MAXIMUM_WRONG_TOKEN_ADDRESSES
            && !known.wrong.contains_key(&address)
            && let Some(oldest) = known.wrong.iter().min_by_key(|(_, (_, since))| *since).map(|(address, _)| *address)
        {
            known.wrong.remove(&oldest);
        }
        known.wrong.entry(address).or_insert((0, Instant::now())).0 += 1;
    }
}

/// Returns the hash of the session in the request's cookie.
pub fn session_cookie(headers: &HeaderMap) -> Option<TokenHash> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut pairs = all.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, value)| token_hash::hash_token(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn start(sessions: &LoginSessions, user: &str) -> TokenHash {
        token_hash::hash_token(&sessions.start_session(user, [7; 32]).await.unwrap())
    }

    #[tokio::test]
    async fn session_limits_do_not_end_sessions_of_other_users() {
        let sessions = LoginSessions::default();
        let admin = start(&sessions, "ann").await;
        for _ in 0..1000 {
            start(&sessions, "vic").await;
        }
        assert!(sessions.is_valid(&admin));
        // The limit on the sessions of all users also applies: a user with several sessions loses one of them.
        for user in 0..MAXIMUM_SESSIONS / PER_USER {
            for _ in 0..PER_USER {
                start(&sessions, &format!("user{user}")).await;
            }
        }
        assert!(sessions.lock_table().sessions.len() <= MAXIMUM_SESSIONS);
        assert!(sessions.is_valid(&admin));
    }

    #[tokio::test]
    async fn sessions_per_user_are_bounded_and_can_be_ended() {
        let sessions = LoginSessions::default();
        let mut cookies = Vec::new();
        for _ in 0..PER_USER + 3 {
            cookies.push(start(&sessions, "ann").await);
        }
        assert_eq!(sessions.lock_table().sessions.len(), PER_USER);
        assert!(!sessions.is_valid(&cookies[2]) && sessions.is_valid(&cookies[3]), "the oldest session ends first");
        let last = cookies[PER_USER + 2];
        let form = sessions.find_session(last).unwrap();
        assert!(sessions.is_valid(&last) && form.len() == 64);
        sessions.end_session(&last).await.unwrap();
        assert!(!sessions.is_valid(&last) && sessions.find_session(last).is_none());
        sessions.end_sessions_of("bob").await.unwrap();
        assert!(sessions.is_valid(&cookies[PER_USER + 1]));
        sessions.end_sessions_of("ann").await.unwrap();
        assert!(!sessions.is_valid(&cookies[PER_USER + 1]));
    }

    #[test]
    fn wrong_tokens_are_counted_by_address() {
        let sessions = LoginSessions::default();
        let [one, other] = ["10.0.0.1", "10.0.0.2"].map(|text| ClientAddress(text.parse().unwrap()));
        for _ in 0..MAXIMUM_WRONG_TOKENS {
            assert!(sessions.may_try(one));
            sessions.count_wrong_token(one);
        }
        assert!(!sessions.may_try(one) && sessions.may_try(other));
    }

    #[test]
    fn wrong_tokens_of_many_addresses_never_block_the_operator() {
        let sessions = LoginSessions::default();
        for address in 0..5000u32 {
            sessions.count_wrong_token(ClientAddress(std::net::Ipv4Addr::from(0x0a00_0000 + address).into()));
        }
        let operator = ClientAddress("192.0.2.1".parse().unwrap());
        assert!(sessions.may_try(operator), "5000 addresses lock the operator out");
        assert!(sessions.lock_table().wrong.len() <= MAXIMUM_WRONG_TOKEN_ADDRESSES);
        for _ in 0..MAXIMUM_WRONG_TOKENS {
            sessions.count_wrong_token(operator);
        }
        assert!(!sessions.may_try(operator));
    }
}
