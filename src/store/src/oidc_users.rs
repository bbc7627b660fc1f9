//! Users of an identity provider (OpenID Connect). Such a user is identified by issuer and subject, and receives a role
//! and projects at each login. A login creates a token that expires, for the web page or for the commands.

use crate::json_columns::to_json_column;
use crate::sql::{self, Connection, OptionalExtension, Transaction, params};
use crate::token_hash::{TokenHash, hash_token, random_bytes};
use crate::user_tokens::{TOKEN_PREFIX, UserToken, format_time};
use crate::users::{Identity, IdentitySource, UserRecord, UserRole, check_name, find_user, store_new_user};
use crate::{ServerState, now};
use common::encoding::encode_hex;
use common::error::Result;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use time::OffsetDateTime;

/// Tables of the identities, and of the hashes of used ID tokens. The hashes are stored until the tokens expire.
pub(crate) const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS oidc_identities (
        user_name TEXT PRIMARY KEY, issuer TEXT NOT NULL, subject TEXT NOT NULL, last_login TEXT NOT NULL,
        UNIQUE (issuer, subject)) STRICT;
    CREATE TABLE IF NOT EXISTS oidc_used (mark TEXT PRIMARY KEY, expires INTEGER NOT NULL) STRICT;
";

/// Maximum number of login tokens of a user. A further login revokes the oldest token.
const LOGIN_TOKENS: i64 = 16;

/// Identity of a user at the identity provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ProviderIdentity {
    pub issuer: String,
    pub subject: String,
    /// Time of the last login, as RFC 3339 in UTC.
    pub last_login: String,
}

/// Login of a user whose ID token was verified.
#[derive(Debug, Clone)]
pub struct ProviderLogin {
    pub issuer: String,
    pub subject: String,
    /// Name for a new user; `None` if the ID token contains no name.
    pub name: Option<String>,
    /// Role and projects; `None` if no group of the user has a role.
    pub access: Option<(UserRole, Vec<String>)>,
    /// Name of the new token.
    pub token_name: String,
    /// Validity of the new token.
    pub validity: Duration,
    /// Hashes that identify the ID token. The token expires at `expires`, in seconds since 1970.
    pub marks: Vec<String>,
    pub expires: u64,
}

/// Token that a login has created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginToken {
    /// The token itself, which is not stored.
    pub secret: String,
    pub hash: TokenHash,
    pub record: UserToken,
    pub identity: Identity,
}

/// Result of a login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoginOutcome {
    LoggedIn(Box<LoginToken>),
    /// The login is refused. `user` is the name of the user, if it is known.
    Refused {
        user: Option<String>,
        reason: String,
    },
}

fn refuse(user: Option<&str>, reason: impl Into<String>) -> LoginOutcome {
    LoginOutcome::Refused { user: user.map(str::to_owned), reason: reason.into() }
}

/// Records that an ID token is used. Returns false if it was used before.
fn consume_marks(transaction: &Transaction, login: &ProviderLogin) -> sql::Result<bool> {
    let now = OffsetDateTime::now_utc().unix_timestamp();
    transaction.execute("DELETE FROM oidc_used WHERE expires < ?1", [now])?;
    let expires = i64::try_from(login.expires).unwrap_or(i64::MAX);
    let insert = "INSERT INTO oidc_used (mark, expires) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
    for mark in &login.marks {
        if transaction.execute(insert, params![mark, expires])? == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

fn find_identity(connection: &Connection, issuer: &str, subject: &str) -> sql::Result<Option<UserRecord>> {
    let select = "SELECT user_name FROM oidc_identities WHERE issuer = ?1 AND subject = ?2";
    match connection.query_row(select, [issuer, subject], |row| row.get::<_, String>(0)).optional()? {
        Some(name) => find_user(connection, &name),
        None => Ok(None),
    }
}

/// Adds the user at the first login. The inner error is the reason why the user cannot be added.
fn add_user(
    transaction: &Transaction,
    login: &ProviderLogin,
    (role, projects): (UserRole, Vec<String>),
) -> sql::Result<std::result::Result<UserRecord, String>> {
    let Some(name) = &login.name else {
        return Ok(Err("the ID token contains no name of the user; set user_claim in oidc.yaml".to_owned()));
    };
    if let Err(why) = check_name(name) {
        return Ok(Err(format!("{why}; set user_claim in oidc.yaml to a claim that contains valid user names")));
    }
    if find_user(transaction, name)?.is_some() {
        let why = "belongs to another user of this server; remove that user, or change the name at the identity \
                   provider";
        return Ok(Err(format!("the name {name} {why}")));
    }
    let identity = ProviderIdentity { issuer: login.issuer.clone(), subject: login.subject.clone(), last_login: now() };
    let user = UserRecord {
        name: name.clone(),
        role,
        projects,
        disabled: false,
        created: now(),
        source: IdentitySource::Oidc,
        provider_identity: Some(identity),
    };
    if let Err(why) = store_new_user(transaction, &user)? {
        return Ok(Err(why));
    }
    transaction.execute(
        "INSERT INTO oidc_identities (user_name, issuer, subject, last_login) VALUES (?1, ?2, ?3, ?4)",
        params![name, login.issuer, login.subject, now()],
    )?;
    Ok(Ok(user))
}

fn update_user(
    transaction: &Transaction,
    user: UserRecord,
    (role, projects): (UserRole, Vec<String>),
) -> sql::Result<UserRecord> {
    transaction.execute(
        "UPDATE users SET role = ?2, projects = ?3 WHERE name = ?1",
        params![user.name, role.as_str(), to_json_column(&projects)?],
    )?;
    transaction
        .execute("UPDATE oidc_identities SET last_login = ?2 WHERE user_name = ?1", params![user.name, now()])?;
    Ok(UserRecord { role, projects, ..user })
}

/// Stores the token of a login. First deletes the user's tokens that have this name or are expired, and the oldest
/// tokens above [`LOGIN_TOKENS`].
fn store_token(transaction: &Transaction, user: &str, hash: &TokenHash, token: &UserToken) -> sql::Result<()> {
    transaction.execute(
        "DELETE FROM user_tokens WHERE user_name = ?1 AND (name = ?2 OR expires <= ?3)",
        params![user, token.name, token.created],
    )?;
    transaction.execute(
        "DELETE FROM user_tokens WHERE hash IN
            (SELECT hash FROM user_tokens WHERE user_name = ?1 ORDER BY created DESC, hash LIMIT 1000 OFFSET ?2)",
        params![user, LOGIN_TOKENS - 1],
    )?;
    transaction.execute(
        "INSERT INTO user_tokens (hash, user_name, name, created, expires) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![encode_hex(hash), user, token.name, token.created, token.expires],
    )?;
    Ok(())
}

fn log_in(transaction: &Transaction, login: ProviderLogin, secret: String) -> sql::Result<LoginOutcome> {
    let known = find_identity(transaction, &login.issuer, &login.subject)?;
    let name = known.as_ref().map(|user| user.name.clone()).or_else(|| login.name.clone());
    let name = name.as_deref();
    if !consume_marks(transaction, &login)? {
        return Ok(refuse(name, "the ID token was used before; log in again"));
    }
    let Some(access) = login.access.clone() else {
        if let Some(user) = &known {
            // Without a role, the user also loses the tokens of earlier logins.
            transaction.execute("DELETE FROM user_tokens WHERE user_name = ?1", [&user.name])?;
        }
        return Ok(refuse(name, "no group of the user has a role in oidc.yaml"));
    };
    let user = match known {
        Some(user) if user.disabled => return Ok(refuse(name, "the user is disabled")),
        Some(user) => update_user(transaction, user, access)?,
        None => match add_user(transaction, &login, access)? {
            Ok(user) => user,
            Err(why) => return Ok(refuse(name, why)),
        },
    };
    let (hash, time) = (hash_token(&secret), OffsetDateTime::now_utc());
    let record = UserToken {
        name: login.token_name,
        created: format_time(time),
        expires: Some(format_time(time + login.validity)),
        last_used: None,
        revoked: None,
    };
    store_token(transaction, &user.name, &hash, &record)?;
    let identity = Identity {
        user: user.name,
        token: record.name.clone(),
        role: user.role,
        projects: user.projects,
        source: IdentitySource::Oidc,
    };
    Ok(LoginOutcome::LoggedIn(Box::new(LoginToken { secret, hash, record, identity })))
}

impl ServerState {
    /// Logs in a user of the identity provider: adds the user at the first login, updates role and projects, and
    /// creates a token. Each ID token is accepted only once.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn log_in_provider_user(&self, login: ProviderLogin) -> Result<LoginOutcome> {
        let secret = format!("{TOKEN_PREFIX}{}", encode_hex(random_bytes::<32>()?));
        self.run_durably(move |transaction| log_in(transaction, login, secret)).await
    }

    /// Deletes the token of a login that has ended because the user has logged out.
    ///
    /// # Errors
    /// Returns an error if the database cannot be written.
    pub async fn end_provider_login(&self, token: TokenHash) -> Result<()> {
        let delete = "DELETE FROM user_tokens WHERE hash = ?1 AND user_name IN (SELECT user_name FROM oidc_identities)";
        self.run_durably(move |transaction| transaction.execute(delete, [encode_hex(token)])).await.map(drop)
    }
}
