//! `drophammer user` and `drophammer whoami`: manage the users of a server, with their roles, projects and tokens.

mod user_details;

use super::connection::ServerOptions;
use super::watched_output::{WatchedListOptions, print_watched_list};
use super::{OperatorClient, OperatorResponse, encode_segment, print_json, print_refusal};
use crate::object_list::{
    ListColumn, ObjectList, RecordOptions, SingleObjectOptions, print_single_object, print_value,
};
use ::api::access::{Identity, IdentitySource, UserRole};
use ::api::user_management::{CreatedToken, NewToken, NewUser, UserChange, UserDetails, UserRecord, UserToken};
use clap::builder::FalseyValueParser;
use clap::{Args, Subcommand};
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::format::terminal_escaping::escape_line;
use common::output::print_text;
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

#[derive(Debug, Args)]
pub struct UserOptions {
    #[command(subcommand)]
    pub command: UserCommand,
    #[command(flatten)]
    pub of: ServerOptions,
    /// Print the server's response as JSON.
    #[arg(long, global = true, env = "DROPHAMMER_JSON", value_parser = FalseyValueParser::new())]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct WhoamiOptions {
    #[command(flatten)]
    pub of: ServerOptions,
    #[command(flatten)]
    pub format: SingleObjectOptions,
    /// Print the server's response as JSON.
    #[arg(long, env = "DROPHAMMER_JSON", value_parser = FalseyValueParser::new())]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum UserCommand {
    /// Add a user or a service account, without a token.
    #[command(visible_alias = "create")]
    Add {
        /// Name of the user.
        #[arg(value_name = "NAME")]
        name: String,
        /// Role of the user: a viewer can only read; an operator can also change machines and order installations; an
        /// admin can also manage users, and objects that concern all machines.
        #[arg(long, value_name = "ROLE", value_parser = parse_role)]
        role: UserRole,
        /// Restrict the user to the machines of this project; can be specified several times. An admin cannot be
        /// restricted.
        #[arg(long = "project", value_name = "PROJECT")]
        projects: Vec<String>,
    },
    /// List the users: name, role, projects, origin, and whether they are disabled.
    #[command(visible_alias = "ls")]
    List(WatchedListOptions),
    /// Print a user, and list the user's tokens.
    Show {
        /// Name of the user.
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        format: RecordOptions,
    },
    /// Change the role or the projects of a user.
    Modify {
        /// Name of the user.
        #[arg(value_name = "NAME")]
        name: String,
        /// New role of the user.
        #[arg(long, value_name = "ROLE", value_parser = parse_role)]
        role: Option<UserRole>,
        /// Projects of the user instead of the current ones; can be specified several times.
        #[arg(long = "project", value_name = "PROJECT", conflicts_with = "all_projects")]
        projects: Vec<String>,
        /// Permit access to all machines.
        #[arg(long)]
        all_projects: bool,
    },
    /// Refuse all tokens of a user, and end the user's sessions, until the user is enabled.
    Disable {
        /// Name of the user.
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Accept the tokens of a disabled user again.
    Enable {
        /// Name of the user.
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Delete a user with all tokens.
    #[command(visible_alias = "rm", alias = "remove")]
    Delete {
        /// Name of the user.
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Create, list and revoke tokens of users.
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
}

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a token, and print it. The token cannot be printed again.
    Create {
        /// Name of the user.
        #[arg(value_name = "USER")]
        user: String,
        /// Name of the token, such as the name of the host or program that uses it.
        #[arg(value_name = "NAME")]
        name: String,
        /// Validity in days, or `never`.
        #[arg(long, value_name = "DAYS", default_value = "90d", value_parser = parse_validity)]
        expires: u32,
    },
    /// List the tokens of a user: name, creation, expiry, last use, revocation.
    #[command(visible_alias = "ls")]
    List {
        /// Name of the user.
        #[arg(value_name = "USER")]
        user: String,
        #[command(flatten)]
        list: WatchedListOptions,
    },
    /// Revoke a token, and end the sessions of its user.
    Revoke {
        /// Name of the user.
        #[arg(value_name = "USER")]
        user: String,
        /// Name of the token.
        #[arg(value_name = "NAME")]
        name: String,
    },
}

fn parse_role(text: &str) -> std::result::Result<UserRole, String> {
    UserRole::parse(text).ok_or_else(|| "the roles are viewer, operator and admin".to_owned())
}

/// Parses the validity of a token in days: `30d` or `30`. Returns 0 for `never`.
fn parse_validity(text: &str) -> std::result::Result<u32, String> {
    if text == "never" {
        return Ok(0);
    }
    let days = text.strip_suffix('d').unwrap_or(text).parse().ok().filter(|days| *days > 0);
    days.ok_or_else(|| "must be a number of days, such as 30d, or never".to_owned())
}

/// Sends a request, and prints the response as JSON, or as the text that `describe` returns.
fn perform<T: DeserializeOwned + Serialize>(
    server: &OperatorClient,
    request: reqwest::blocking::RequestBuilder,
    json: bool,
    describe: impl FnOnce(&T) -> String,
) -> Result<CommandOutcome> {
    match server.send_json::<T>(request)? {
        OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
        OperatorResponse::Good(value) if json => print_json(&value),
        OperatorResponse::Good(value) => print_text(&describe(&value)).map(|()| CommandOutcome::Good),
    }
}

/// Lists and changes users.
///
/// # Errors
/// Fails as [`super::run_machine_command`] does.
pub fn run_user_command(options: &UserOptions) -> Result<CommandOutcome> {
    let (server, json) = (OperatorClient::new(&options.of)?, options.json);
    let at = |name: &str| format!("/v1/users{}", encode_segment(name));
    let change = |name: &str, change: UserChange| {
        perform(&server, server.request(Method::POST, &at(name)).json(&change), json, describe_user)
    };
    let disable = |name: &str, is: bool| change(name, UserChange { disabled: Some(is), ..UserChange::default() });
    match &options.command {
        UserCommand::Add { name, role, projects } => {
            let user = NewUser { name: name.clone(), role: *role, projects: projects.clone() };
            perform(&server, server.request(Method::PUT, "/v1/users").json(&user), json, |user: &UserRecord| {
                let name = escape_line(&user.name);
                describe_user(user) + &format!("Create a token with `drophammer user token create {name} NAME`.\n")
            })
        }
        UserCommand::List(list) => print_watched_list(&user_columns(), list, json, || {
            server.send_json(server.request(Method::GET, "/v1/users"))
        }),
        UserCommand::Show { name, format } => {
            match server.send_json::<UserDetails>(server.request(Method::GET, &at(name)))? {
                OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
                OperatorResponse::Good(user) => {
                    print_value(&user, format.show_format(json)?, user_details::format_user_details)
                }
            }
        }
        UserCommand::Modify { name, role, projects, all_projects } => {
            let projects = (*all_projects || !projects.is_empty()).then(|| projects.clone());
            change(name, UserChange { role: *role, projects, disabled: None })
        }
        UserCommand::Disable { name } => disable(name, true),
        UserCommand::Enable { name } => disable(name, false),
        UserCommand::Delete { name } => {
            perform(&server, server.request(Method::DELETE, &at(name)), json, |user: &UserRecord| {
                format!("User {} was deleted.\n", escape_line(&user.name))
            })
        }
        UserCommand::Token { command } => run_token_command(&server, command, json),
    }
}

fn run_token_command(server: &OperatorClient, command: &TokenCommand, json: bool) -> Result<CommandOutcome> {
    let at = |user: &str| format!("/v1/users{}/tokens", encode_segment(user));
    match command {
        TokenCommand::Create { user, name, expires } => {
            let new_token = NewToken { name: name.clone(), days: Some(*expires) };
            let request = server.request(Method::POST, &at(user)).json(&new_token);
            // Only the token is printed, so that the output can be piped into `drophammer login` or a file.
            perform(server, request, json, |created: &CreatedToken| format!("{}\n", escape_line(&created.token)))
        }
        TokenCommand::List { user, list } => print_watched_list(&token_columns(), list, json, || {
            server.send_json(server.request(Method::GET, &at(user)))
        }),
        TokenCommand::Revoke { user, name } => {
            let path = at(user) + &encode_segment(name);
            perform(server, server.request(Method::DELETE, &path), json, |token: &UserToken| {
                format!(
                    "Token {token} of user {user} is revoked.\n",
                    token = escape_line(&token.name),
                    user = escape_line(user)
                )
            })
        }
    }
}

/// Prints the user of the token that the command uses.
///
/// # Errors
/// Fails as [`super::run_machine_command`] does.
pub fn run_whoami(options: &WhoamiOptions) -> Result<CommandOutcome> {
    let server = OperatorClient::new(&options.of)?;
    match server.send_json::<Identity>(server.request(Method::GET, "/v1/whoami"))? {
        OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
        OperatorResponse::Good(identity) => {
            print_single_object(&identity_columns(), identity, &options.format, options.json)
        }
    }
}

fn identity_columns() -> ObjectList<'static, Identity> {
    let columns = vec![
        ListColumn::new("user", |identity: &Identity| identity.user.clone()),
        ListColumn::new("role", |identity: &Identity| identity.role.to_string()),
        ListColumn::new("projects", |identity: &Identity| list_projects(&identity.projects)),
        ListColumn::new("token", |identity: &Identity| identity.token.clone()),
        ListColumn::new("origin", |identity: &Identity| describe_origin(identity.source).to_owned()).only_wide(),
    ];
    ObjectList { command: "whoami", noun: "users", name: |identity| identity.user.clone(), columns }
}

/// Returns the projects for lists. A user without projects may access all machines.
fn list_projects(projects: &[String]) -> String {
    if projects.is_empty() { "all".to_owned() } else { projects.join(", ") }
}

fn describe_projects(projects: &[String]) -> String {
    match projects {
        [] => "all machines".to_owned(),
        projects => format!("machines of {}", escape_line(&projects.join(", "))),
    }
}

fn describe_user(user: &UserRecord) -> String {
    let disabled = if user.disabled { ", disabled" } else { "" };
    format!("{}: {}, {}{disabled}\n", escape_line(&user.name), user.role, describe_projects(&user.projects))
}

pub(super) fn user_columns() -> ObjectList<'static, UserRecord> {
    let columns = vec![
        ListColumn::new("name", |user: &UserRecord| user.name.clone()),
        ListColumn::new("role", |user: &UserRecord| user.role.to_string()),
        ListColumn::new("projects", |user: &UserRecord| list_projects(&user.projects)),
        ListColumn::new("origin", |user: &UserRecord| describe_origin(user.source).to_owned()),
        ListColumn::new("disabled", |user: &UserRecord| if user.disabled { "yes" } else { "" }),
        ListColumn::new_time("created", |user: &UserRecord| user.created.clone()).only_wide(),
    ];
    ObjectList { command: "user", noun: "users", name: |user| user.name.clone(), columns }
}

/// Returns a word for the source of a user, for lists.
fn describe_origin(source: IdentitySource) -> &'static str {
    match source {
        IdentitySource::TokenFile => "token file",
        IdentitySource::Token => "local",
        IdentitySource::Oidc => "oidc",
    }
}

fn token_columns() -> ObjectList<'static, UserToken> {
    let columns = vec![
        ListColumn::new("name", |token: &UserToken| token.name.clone()),
        ListColumn::new_time("created", |token: &UserToken| token.created.clone()).only_wide(),
        ListColumn::new_time("expires", |token: &UserToken| {
            token.expires.clone().unwrap_or_else(|| "never".to_owned())
        }),
        ListColumn::new_time("used", |token: &UserToken| token.last_used.clone().unwrap_or_default()),
        ListColumn::new_time("revoked", |token: &UserToken| token.revoked.clone().unwrap_or_default()),
    ];
    ObjectList { command: "user token", noun: "tokens", name: |token| token.name.clone(), columns }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_projects_may_access_all() {
        assert_eq!(list_projects(&[]), "all");
        assert_eq!(list_projects(&["blue".to_owned(), "red".to_owned()]), "blue, red");
        let identity = Identity::from_token_file();
        let text = crate::object_list::format_wide(&identity_columns(), &[identity]);
        assert!(text.starts_with("USER      ROLE   PROJECTS  TOKEN ") && text.contains("  admin  all  "), "{text}");
    }

    #[test]
    fn validities_and_roles_are_parsed() {
        for (text, expected) in [("30d", Some(30)), ("7", Some(7)), ("never", Some(0))] {
            assert_eq!(parse_validity(text).ok(), expected, "{text}");
        }
        for bad in ["", "0", "0d", "-1", "1h", "d", "1.5d", "forever"] {
            assert!(parse_validity(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_role("operator"), Ok(UserRole::Operator));
        assert!(parse_role("root").is_err() && parse_role("Admin").is_err());
    }
}
