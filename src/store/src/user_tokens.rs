//! Tokens of users. A token has 256 random bits and a recognizable prefix. Only its hash is stored.

use crate::sql::{self, Connection, OptionalExtension, Row, Transaction, params};
use crate::token_hash::{TokenHash, hash_token, hashes_equal, random_bytes};
use crate::users::{
    Identity, IdentitySource, UserOutcome, accepts_token_file, check_name, explain_last_admin, find_user,
};
use crate::{ServerState, now};
use common::encoding::encode_hex;
use common::error::Result;
use serde::{Deserialize, Serialize};
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};

/// Prefix of all user tokens, which lets secret scanners recognize them.
pub const TOKEN_PREFIX: &str = "dh_";
/// Default validity of a token, in days.
pub const DEFAULT_DAYS: u32 = 90;
/// Maximum validity of a token in days, unless it never expires.
pub const MAXIMUM_DAYS: u32 = 3650;
/// Maximum number of tokens per user.
const TOKENS: i64 = 100;
/// Resolution of the time of the last use. A higher resolution would cause a write for each request.
const LAST_USED_RESOLUTION: Duration = Duration::minutes(10);

/// Properties of a user's token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct UserToken {
    pub name: String,
    /// Time of the creation, as RFC 3339 in UTC, like all times of this record.
    pub created: String,
    /// Time at which the token expires; absent if it never expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    /// Time of the last use, with a resolution of ten minutes; absent if the token was never used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<String>,
}

/// Result of the authentication with a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenVerdict {
    Valid(Identity),
    /// The token belongs to this user and has this name, but cannot be used for this reason.
    Refused {
        user: String,
        token: String,
        reason: &'static str,
    },
    Unknown,
}

pub(crate) fn format_time(time: OffsetDateTime) -> String {
    time.format(&Rfc3339).unwrap_or_default()
}

fn read_token(row: &Row) -> sql::Result<UserToken> {
    Ok(UserToken {
        name: row.get(0)?,
        created: row.get(1)?,
        expires: row.get(2)?,
        last_used: row.get(3)?,
        revoked: row.get(4)?,
    })
}

/// Returns whether the timestamp lies in the past. Returns true for an invalid timestamp.
fn is_past(time: &str) -> bool {
    OffsetDateTime::parse(time, &Rfc3339).map_or(true, |time| time <= OffsetDateTime::now_utc())
}

/// Token with its user, as found by its hash.
struct FoundToken {
    user: String,
    token: UserToken,
    hash: String,
}

fn find_token(connection: &Connection, hash: &str) -> sql::Result<Option<FoundToken>> {
    let select = "SELECT name, created, expires, last_used, revoked, user_name, hash FROM user_tokens WHERE hash = ?1";
    let read = |row: &Row| Ok(FoundToken { token: read_token(row)?, user: row.get(5)?, hash: row.get(6)? });
    connection.query_row(select, [hash], read).optional()
}

fn authenticate_token(connection: &Connection, found: &FoundToken) -> sql::Result<TokenVerdict> {
    let FoundToken { user, token, .. } = found;
    let refuse = |reason| Ok(TokenVerdict::Refused { user: user.clone(), token: token.name.clone(), reason });
    let Some(record) = find_user(connection, user)? else { return Ok(TokenVerdict::Unknown) };
    if token.revoked.is_some() {
        return refuse("the token was revoked");
    }
    if token.expires.as_deref().is_some_and(is_past) {
        return refuse("the token has expired");
    }
    if record.disabled {
        return refuse("the user is disabled");
    }
    Ok(TokenVerdict::Valid(Identity {
        user: record.name,
        token: token.name.clone(),
        role: record.role,
        projects: record.projects,
        source: record.source,
    }))
}

/// Determines the user of the operator's token file.
fn authenticate_file_token(connection: &Connection) -> sql::Result<TokenVerdict> {
    if accepts_token_file(connection)? {
        return Ok(TokenVerdict::Valid(Identity::from_token_file()));
    }
    let Identity { user, token, .. } = Identity::from_token_file();
    Ok(TokenVerdict::Refused { user, token, reason: "the user is disabled" })
}

/// Determines the user of a token by its hash. Also returns the hash if the token is valid and its use must be
/// recorded, because no use within the last ten minutes is on record.
fn authenticate_token_hash(connection: &Connection, hash: String) -> sql::Result<(TokenVerdict, Option<String>)> {
    // An attacker cannot choose the hash of a token, so the time of the lookup reveals nothing about stored hashes.
    let Some(found) = find_token(connection, &hash)?.filter(|found| found.hash == hash) else {
        return Ok((TokenVerdict::Unknown, None));
    };
    let verdict = authenticate_token(connection, &found)?;
    let since = format_time(OffsetDateTime::now_utc() - LAST_USED_RESOLUTION);
    let is_recorded = found.token.last_used.is_some_and(|used| used > since);
    let unrecorded = (matches!(verdict, TokenVerdict::Valid(_)) && !is_recorded).then_some(hash);
    Ok((verdict, unrecorded))
}

/// Makes room for a new token: deletes a revoked or expired token of the user with this name. Returns the reason if the
/// user cannot get a token with this name.
fn free_token_name(transaction: &Transaction, user: &str, name: &str) -> sql::Result<Option<String>> {
    let select = "SELECT name, created, expires, last_used, revoked FROM user_tokens
        WHERE user_name = ?1 AND name = ?2";
    let former = transaction.query_row(select, [user, name], read_token).optional()?;
    let is_valid = |token: &UserToken| token.revoked.is_none() && !token.expires.as_deref().is_some_and(is_past);
    if former.as_ref().is_some_and(is_valid) {
        let why = format!("user {user} already has a token {name}: revoke it first, or choose another name");
        return Ok(Some(why));
    }
    transaction.execute("DELETE FROM user_tokens WHERE user_name = ?1 AND name = ?2", [user, name])?;
    let count = "SELECT COUNT(*) FROM user_tokens WHERE user_name = ?1";
    let is_full = transaction.query_row(count, [user], |row| row.get::<_, i64>(0))? >= TOKENS;
    Ok(is_full.then(|| {
        format!("user {user} has {TOKENS} tokens already: remove the user, or reuse the name of a revoked token")
    }))
}

impl ServerState {
    /// Determines the user of a token. `file` is the hash of the token in the operator's token file. Records the use of
    /// the token, unless a use within the last ten minutes is on record. Does not wait for the jobs that machines have
    /// queued, and respects revocations that are not synced yet.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn verify_user_token(&self, given: TokenHash, file: TokenHash) -> Result<TokenVerdict> {
        let is_file = hashes_equal(&given, &file);
        let (verdict, unrecorded) = self
            .read_committed(move |connection| {
                if is_file {
                    Ok((authenticate_file_token(connection)?, None))
                } else {
                    authenticate_token_hash(connection, encode_hex(given))
                }
            })
            .await?;
        if let Some(hash) = unrecorded {
            let update = "UPDATE user_tokens SET last_used = ?2 WHERE hash = ?1";
            // A valid token is accepted even if its use cannot be recorded, for example because the disk is full.
            let _ = self.run_deferred(move |transaction| transaction.execute(update, params![hash, now()])).await;
        }
        Ok(verdict)
    }

    /// Creates a token for a user, and returns it. It cannot be retrieved later. `days` is the validity of the token;
    /// `None` if it never expires. Replaces a revoked or expired token with the same name.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn create_user_token(
        &self,
        user: &str,
        name: &str,
        days: Option<u32>,
    ) -> Result<UserOutcome<(String, UserToken)>> {
        if let Err(why) = check_name(name) {
            return Ok(UserOutcome::Refused(why));
        }
        if days.is_some_and(|days| !(1..=MAXIMUM_DAYS).contains(&days)) {
            let why = format!("a token is valid for 1 to {MAXIMUM_DAYS} days, or never expires");
            return Ok(UserOutcome::Refused(why));
        }
        let secret = format!("{TOKEN_PREFIX}{}", encode_hex(random_bytes::<32>()?));
        let expires = days.map(|days| format_time(OffsetDateTime::now_utc() + Duration::days(days.into())));
        let (user, hash) = (user.to_owned(), encode_hex(hash_token(&secret)));
        let token = UserToken { name: name.to_owned(), created: now(), expires, last_used: None, revoked: None };
        self.run_durably(move |transaction| {
            let Some(record) = find_user(transaction, &user)? else { return Ok(UserOutcome::NotFound) };
            let refusal = match record.source {
                IdentitySource::TokenFile => {
                    Some(format!(
                        "user {user} has only the token in operator.token, so no tokens can be added: add a named admin instead"
                    ))
                }
                IdentitySource::Oidc => {
                    let why = "gets tokens only by logging in at the identity provider: add a user for a program";
                    Some(format!("user {user} {why}"))
                }
                IdentitySource::Token => free_token_name(transaction, &user, &token.name)?,
            };
            if let Some(why) = refusal {
                return Ok(UserOutcome::Refused(why));
            }
            transaction.execute(
                "INSERT INTO user_tokens (hash, user_name, name, created, expires) VALUES (?1, ?2, ?3, ?4, ?5)",
                params![hash, user, token.name, token.created, token.expires],
            )?;
            Ok(UserOutcome::Done((secret, token)))
        })
        .await
    }

    /// Returns the tokens of a user, sorted by name, including revoked and expired ones.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn list_user_tokens(&self, user: &str) -> Result<Vec<UserToken>> {
        let user = user.to_owned();
        self.run_job(move |connection| {
            let select = "SELECT name, created, expires, last_used, revoked FROM user_tokens
                WHERE user_name = ?1 ORDER BY name";
            connection.prepare_cached(select)?.query_map([user], read_token)?.collect()
        })
        .await
    }

    /// Revokes a token of a user. A revoked token cannot be restored.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn revoke_user_token(&self, user: &str, name: &str) -> Result<UserOutcome<UserToken>> {
        let key = [user.to_owned(), name.to_owned()];
        self.run_durably(move |transaction| {
            let select = "SELECT name, created, expires, last_used, revoked FROM user_tokens
                WHERE user_name = ?1 AND name = ?2";
            let found = transaction.query_row(select, [&key[0], &key[1]], read_token).optional()?;
            let Some(mut token) = found.filter(|token| token.revoked.is_none()) else {
                return Ok(UserOutcome::NotFound);
            };
            let is_admin = find_user(transaction, &key[0])?
                .is_some_and(|user| user.role == crate::users::UserRole::Admin && !user.disabled);
            let last = if is_admin { explain_last_admin(transaction, &key[0], Some(&key[1]))? } else { None };
            if let Some(why) = last {
                return Ok(UserOutcome::Refused(why));
            }
            token.revoked = Some(now());
            let update = "UPDATE user_tokens SET revoked = ?3 WHERE user_name = ?1 AND name = ?2";
            transaction.execute(update, params![key[0], key[1], token.revoked])?;
            Ok(UserOutcome::Done(token))
        })
        .await
    }
}
