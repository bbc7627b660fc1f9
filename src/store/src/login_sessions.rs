//! Login sessions of the web page, for servers that share a database: a user who has logged in at one server is also
//! logged in at the others. Only the hashes of the cookies are stored. A server with a SQLite file keeps its sessions
//! in memory.

use crate::ServerState;
use crate::sql::{OptionalExtension, params};
use crate::token_hash::TokenHash;
use common::error::Result;
use std::time::Duration;

pub(crate) const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS login_sessions (
        hash BLOB PRIMARY KEY, user_name TEXT NOT NULL, token BLOB NOT NULL, form TEXT NOT NULL,
        created INTEGER NOT NULL) STRICT;
    CREATE INDEX IF NOT EXISTS login_sessions_of_user ON login_sessions (user_name);
";

/// Login session of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedSession {
    pub user: String,
    /// Hash of the token with which the user has logged in.
    pub token: TokenHash,
    /// Form token, which every form of this session contains.
    pub form: String,
}

/// Limits of login sessions.
#[derive(Debug, Clone, Copy)]
pub struct SessionLimits {
    /// Maximum number of sessions per user. A further login ends the oldest session of the user.
    pub per_user: usize,
    pub lifetime: Duration,
}

fn to_seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

impl ServerState {
    /// Stores a session that starts now, and deletes expired sessions. A crash of the database may undo this: the user
    /// then logs in again.
    ///
    /// # Errors
    /// Returns an error if the database cannot be written.
    pub async fn store_login_session(
        &self,
        hash: TokenHash,
        session: SharedSession,
        limits: SessionLimits,
    ) -> Result<()> {
        let now = self.shared_time().unix_timestamp();
        let others = i64::try_from(limits.per_user).unwrap_or(i64::MAX).saturating_sub(1);
        self.run_deferred(move |transaction| {
            let expired = now.saturating_sub(to_seconds(limits.lifetime));
            transaction.execute("DELETE FROM login_sessions WHERE created <= ?1", [expired])?;
            let delete = "DELETE FROM login_sessions WHERE user_name = ?1 AND hash NOT IN
                (SELECT hash FROM login_sessions WHERE user_name = ?1 ORDER BY created DESC, hash LIMIT ?2)";
            transaction.execute(delete, params![session.user, others])?;
            let insert =
                "INSERT INTO login_sessions (hash, user_name, token, form, created) VALUES (?1, ?2, ?3, ?4, ?5)";
            transaction.execute(insert, params![hash, session.user, session.token, session.form, now]).map(drop)
        })
        .await
    }

    /// Returns a session and the time since its start; `None` if the session does not exist, or has expired.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn find_login_session(
        &self,
        hash: TokenHash,
        lifetime: Duration,
    ) -> Result<Option<(SharedSession, Duration)>> {
        let now = self.shared_time().unix_timestamp();
        self.read_committed(move |connection| {
            let select = "SELECT user_name, token, form, created FROM login_sessions WHERE hash = ?1 AND created > ?2";
            let oldest = now.saturating_sub(to_seconds(lifetime));
            let found = connection.query_row(select, params![hash, oldest], |row| {
                let session = SharedSession { user: row.get(0)?, token: row.get(1)?, form: row.get(2)? };
                let age = u64::try_from(now.saturating_sub(row.get::<_, i64>(3)?)).unwrap_or_default();
                Ok((session, Duration::from_secs(age)))
            });
            found.optional()
        })
        .await
    }

    /// Deletes a session whose user has logged out.
    ///
    /// # Errors
    /// Returns an error if the database cannot be written.
    pub async fn delete_login_session(&self, hash: TokenHash) -> Result<()> {
        let delete = "DELETE FROM login_sessions WHERE hash = ?1";
        self.run_durably(move |transaction| transaction.execute(delete, [hash]).map(drop)).await
    }

    /// Deletes all sessions of a user.
    ///
    /// # Errors
    /// Returns an error if the database cannot be written.
    pub async fn delete_login_sessions_of(&self, user: &str) -> Result<()> {
        let (delete, user) = ("DELETE FROM login_sessions WHERE user_name = ?1", user.to_owned());
        self.run_durably(move |transaction| transaction.execute(delete, [user]).map(drop)).await
    }
}
