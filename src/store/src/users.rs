//! Users and their roles. A user of the database authenticates with tokens (`user_tokens`). The token in the
//! operator's file authenticates the built-in administrator [`OPERATOR_TOKEN_USER`], which has no row in the database
//! unless it was disabled.
//!
//! No change may leave the server without a usable administrator. If the built-in administrator is disabled, and the
//! last token of all other administrators expires, the built-in administrator is accepted again.

use crate::json_columns::{parse_column, to_json_column};
use crate::oidc_users::ProviderIdentity;
use crate::sql::{self, Connection, OptionalExtension, Row, Transaction, params};
use crate::{ServerState, now};
use common::error::Result;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Name of the administrator whose token is in the operator's file.
pub const OPERATOR_TOKEN_USER: &str = "operator";
/// Maximum number of users.
const USERS: i64 = 1000;

/// Role of a user. Each role includes the permissions of the previous one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum UserRole {
    /// Reads machines and the objects of the server, without secrets.
    Viewer,
    /// Orders installations, changes machine files, and switches machines.
    Operator,
    /// Manages users, and changes objects that affect all machines.
    Admin,
}

impl UserRole {
    /// Returns the name of the role in requests, responses and options.
    pub fn as_str(self) -> &'static str {
        match self {
            UserRole::Viewer => "viewer",
            UserRole::Operator => "operator",
            UserRole::Admin => "admin",
        }
    }

    /// Returns the role with this name.
    pub fn parse(text: &str) -> Option<UserRole> {
        [UserRole::Viewer, UserRole::Operator, UserRole::Admin].into_iter().find(|role| role.as_str() == text)
    }
}

impl fmt::Display for UserRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Origin of an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IdentitySource {
    /// The file with the operator's token.
    TokenFile,
    /// A token of a user in the database.
    Token,
    /// A login at the identity provider (OpenID Connect).
    Oidc,
}

/// User that a request has authenticated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Identity {
    pub user: String,
    /// Name of the token with which the user has authenticated.
    pub token: String,
    pub role: UserRole,
    /// Projects whose machines the user may access. An empty list permits access to all machines.
    pub projects: Vec<String>,
    pub source: IdentitySource,
}

impl Identity {
    /// Returns the identity of the operator's token file.
    pub fn from_token_file() -> Identity {
        Identity {
            user: OPERATOR_TOKEN_USER.to_owned(),
            token: crate::token_hash::OPERATOR_FILE.to_owned(),
            role: UserRole::Admin,
            projects: Vec::new(),
            source: IdentitySource::TokenFile,
        }
    }

    /// Returns whether the user may access only the machines of some projects.
    pub fn is_restricted(&self) -> bool {
        !self.projects.is_empty()
    }

    /// Returns whether the user may access a machine of this project.
    pub fn may_access_project(&self, project: Option<&str>) -> bool {
        !self.is_restricted() || project.is_some_and(|project| self.projects.iter().any(|own| own == project))
    }
}

/// User of the database, or the built-in administrator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct UserRecord {
    pub name: String,
    pub role: UserRole,
    /// Projects whose machines the user may access. An empty list permits access to all machines.
    pub projects: Vec<String>,
    pub disabled: bool,
    /// Time at which the user was added, as RFC 3339 in UTC; empty for the built-in administrator.
    pub created: String,
    pub source: IdentitySource,
    /// Identity at the identity provider; absent for users that an administrator has added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_identity: Option<ProviderIdentity>,
}

/// Values of a new user, or changed values of a user. Absent values are not changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UserChange {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<UserRole>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub projects: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled: Option<bool>,
}

/// Result of a change of users or tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserOutcome<T> {
    Done(T),
    NotFound,
    /// The change is refused for this reason.
    Refused(String),
}

/// Checks the name of a user, a token or a project.
///
/// # Errors
/// Returns the rule that the name violates.
pub fn check_name(name: &str) -> std::result::Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
    let starts_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    match starts_well && name.len() <= 64 && name.bytes().all(plain) {
        true => Ok(()),
        false => Err(format!(
            "{name:?} is not a valid name: up to 64 letters, digits, dots, _, - and @ are allowed, beginning with a letter or digit"
        )),
    }
}

fn check_values(role: UserRole, projects: &[String]) -> std::result::Result<(), String> {
    projects.iter().try_for_each(|project| check_name(project))?;
    match role == UserRole::Admin && !projects.is_empty() {
        true => Err("an admin cannot be restricted to projects: choose the role operator or viewer".to_owned()),
        false => Ok(()),
    }
}

fn read_row(row: &Row) -> sql::Result<UserRecord> {
    let role: String = row.get(1)?;
    let name: String = row.get(0)?;
    let provider_identity = match row.get::<_, Option<String>>(5)? {
        Some(issuer) => Some(ProviderIdentity { issuer, subject: row.get(6)?, last_login: row.get(7)? }),
        None => None,
    };
    let source = match (&provider_identity, name == OPERATOR_TOKEN_USER) {
        (Some(_), _) => IdentitySource::Oidc,
        (None, true) => IdentitySource::TokenFile,
        (None, false) => IdentitySource::Token,
    };
    Ok(UserRecord {
        name,
        // A role that only a later version of drophammer defines is treated as the role with the fewest permissions.
        role: UserRole::parse(&role).unwrap_or(UserRole::Viewer),
        projects: parse_column(row, 2)?.unwrap_or_default(),
        disabled: row.get(3)?,
        created: row.get(4)?,
        source,
        provider_identity,
    })
}

const COLUMNS: &str = "SELECT name, role, projects, disabled, created, issuer, subject, last_login
    FROM users LEFT JOIN oidc_identities ON user_name = name";

/// Returns the user with this name. The built-in administrator exists even without a row.
pub(crate) fn find_user(connection: &Connection, name: &str) -> sql::Result<Option<UserRecord>> {
    let select = format!("{COLUMNS} WHERE name = ?1");
    let found = connection.query_row(&select, [name], read_row).optional()?;
    Ok(found.or_else(|| (name == OPERATOR_TOKEN_USER).then(file_user)))
}

fn file_user() -> UserRecord {
    UserRecord {
        name: OPERATOR_TOKEN_USER.to_owned(),
        role: UserRole::Admin,
        projects: Vec::new(),
        disabled: false,
        created: String::new(),
        source: IdentitySource::TokenFile,
        provider_identity: None,
    }
}

/// Stores a new user. Returns the reason if there are too many users.
pub(crate) fn store_new_user(
    transaction: &Transaction,
    user: &UserRecord,
) -> sql::Result<std::result::Result<(), String>> {
    let count: i64 = transaction.query_row("SELECT COUNT(*) FROM users", [], |row| row.get(0))?;
    if count >= USERS {
        return Ok(Err(format!("the limit of {USERS} users is reached: remove a user first")));
    }
    store_user(transaction, user).map(Ok)
}

fn store_user(transaction: &Transaction, user: &UserRecord) -> sql::Result<()> {
    transaction.execute(
        "INSERT INTO users (name, role, projects, disabled, created) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (name) DO UPDATE SET role = ?2, projects = ?3, disabled = ?4",
        params![user.name, user.role.as_str(), to_json_column(&user.projects)?, user.disabled, user.created],
    )?;
    Ok(())
}

/// Returns whether an enabled administrator has a valid token. If `without_token` is `None`, ignores all tokens of the
/// user `without`; otherwise, ignores only this token of that user.
fn has_named_admin(connection: &Connection, without: &str, without_token: Option<&str>) -> sql::Result<bool> {
    let select = "SELECT COUNT(*) FROM users JOIN user_tokens ON user_tokens.user_name = users.name
         WHERE users.role = 'admin' AND users.disabled = 0 AND user_tokens.revoked IS NULL
         AND (user_tokens.expires IS NULL OR user_tokens.expires > ?1)
         AND (users.name <> ?2 OR (?3 IS NOT NULL AND user_tokens.name <> ?3))";
    let count: i64 = connection.query_row(select, params![now(), without, without_token], |row| row.get(0))?;
    Ok(count > 0)
}

/// Returns whether the operator's token file is accepted: its user is enabled, or no other administrator can log in.
pub(crate) fn accepts_token_file(connection: &Connection) -> sql::Result<bool> {
    let is_disabled = find_user(connection, OPERATOR_TOKEN_USER)?.is_some_and(|user| user.disabled);
    Ok(!is_disabled || !has_named_admin(connection, "", None)?)
}

/// Returns the reason why the user must not lose its permissions or, if `token` is specified, why this token of the
/// user must not be revoked: no usable administrator would remain. Returns `None` if an administrator would remain.
pub(crate) fn explain_last_admin(
    connection: &Connection,
    user: &str,
    token: Option<&str>,
) -> sql::Result<Option<String>> {
    let uses_file = !find_user(connection, OPERATOR_TOKEN_USER)?.is_some_and(|user| user.disabled);
    if (uses_file && user != OPERATOR_TOKEN_USER) || has_named_admin(connection, user, token)? {
        return Ok(None);
    }
    Ok(Some(format!(
        "{user} is the last administrator with a valid token: create a token for another administrator first"
    )))
}

impl ServerState {
    /// Returns whether the operator's token file is accepted.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn accepts_token_file(&self) -> Result<bool> {
        self.run_job(accepts_token_file).await
    }

    /// Returns all users, sorted by name, including the built-in administrator.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn list_users(&self) -> Result<Vec<UserRecord>> {
        self.run_job(|connection| {
            let select = connection.prepare_cached(&format!("{COLUMNS} ORDER BY name"))?;
            let mut users = select.query_map([], read_row)?.collect::<sql::Result<Vec<_>>>()?;
            if !users.iter().any(|user| user.name == OPERATOR_TOKEN_USER) {
                users.insert(0, file_user());
            }
            Ok(users)
        })
        .await
    }

    /// Returns the user with this name.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn find_user(&self, name: &str) -> Result<Option<UserRecord>> {
        let name = name.to_owned();
        self.run_job(move |connection| find_user(connection, &name)).await
    }

    /// Adds a user.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn add_user(&self, name: &str, role: UserRole, projects: Vec<String>) -> Result<UserOutcome<UserRecord>> {
        if let Err(why) = check_name(name).and_then(|()| check_values(role, &projects)) {
            return Ok(UserOutcome::Refused(why));
        }
        let user = UserRecord {
            name: name.to_owned(),
            role,
            projects,
            disabled: false,
            created: now(),
            source: IdentitySource::Token,
            provider_identity: None,
        };
        self.run_durably(move |transaction| {
            if find_user(transaction, &user.name)?.is_some() {
                return Ok(UserOutcome::Refused(format!("user {} exists already", user.name)));
            }
            Ok(match store_new_user(transaction, &user)? {
                Ok(()) => UserOutcome::Done(user),
                Err(why) => UserOutcome::Refused(why),
            })
        })
        .await
    }

    /// Changes a user. Tokens of a disabled user are refused until the user is enabled again.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn change_user(&self, name: &str, change: UserChange) -> Result<UserOutcome<UserRecord>> {
        let name = name.to_owned();
        self.run_durably(move |transaction| {
            let Some(before) = find_user(transaction, &name)? else { return Ok(UserOutcome::NotFound) };
            let user = UserRecord {
                role: change.role.unwrap_or(before.role),
                projects: change.projects.unwrap_or_else(|| before.projects.clone()),
                disabled: change.disabled.unwrap_or(before.disabled),
                ..before.clone()
            };
            let changes_access = (user.role, &user.projects) != (before.role, &before.projects);
            if user.source == IdentitySource::Oidc && changes_access {
                let why = "has the role of its groups at the identity provider: change the groups, or oidc.yaml";
                return Ok(UserOutcome::Refused(format!("user {name} {why}")));
            }
            if let Err(why) = check_values(user.role, &user.projects) {
                return Ok(UserOutcome::Refused(why));
            }
            if name == OPERATOR_TOKEN_USER && user.role != UserRole::Admin {
                return Ok(UserOutcome::Refused(format!(
                    "{OPERATOR_TOKEN_USER} is always an admin: disable the user instead"
                )));
            }
            let was_admin = before.role == UserRole::Admin && !before.disabled;
            let loses = was_admin && (user.role != UserRole::Admin || user.disabled);
            let last = if loses { explain_last_admin(transaction, &name, None)? } else { None };
            if let Some(why) = last {
                return Ok(UserOutcome::Refused(why));
            }
            store_user(transaction, &user)?;
            Ok(UserOutcome::Done(user))
        })
        .await
    }

    /// Removes a user with all tokens.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn remove_user(&self, name: &str) -> Result<UserOutcome<UserRecord>> {
        let name = name.to_owned();
        self.run_durably(move |transaction| {
            let Some(user) = find_user(transaction, &name)? else { return Ok(UserOutcome::NotFound) };
            if name == OPERATOR_TOKEN_USER {
                return Ok(UserOutcome::Refused(format!(
                    "{OPERATOR_TOKEN_USER} cannot be removed: disable the user instead"
                )));
            }
            let loses = user.role == UserRole::Admin && !user.disabled;
            let last = if loses { explain_last_admin(transaction, &name, None)? } else { None };
            if let Some(why) = last {
                return Ok(UserOutcome::Refused(why));
            }
            transaction.execute("DELETE FROM user_tokens WHERE user_name = ?1", [&name])?;
            transaction.execute("DELETE FROM oidc_identities WHERE user_name = ?1", [&name])?;
            transaction.execute("DELETE FROM users WHERE name = ?1", [&name])?;
            Ok(UserOutcome::Done(user))
        })
        .await
    }
}
