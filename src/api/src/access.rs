//! Authorization of users. `table` contains the access that each route requires, and [`authorize_request`] is the only
//! place that decides. Handlers find the [`Identity`] of the user in the
//! extensions of the request, and see the machines of other
//! projects as if these machines did not exist: within a request, [`AppState::directory`] returns the snapshot of the
//! user.

pub mod hidden_values;
pub mod login_sessions;
pub mod project_snapshots;
pub mod table;

use crate::AppState;
use crate::bearer_token::bearer_hash;
use axum::http::{HeaderMap, StatusCode, header};
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;
use store::token::{self, TokenHash};
use store::user_tokens::TokenVerdict;
pub use store::users::{Identity, IdentitySource, UserRole};
use table::{RouteAccess, RouteRule, RouteScope};

/// Header in which OpenStack clients send a token.
const OPENSTACK_TOKEN: &str = "x-auth-token";

/// Text that replaces the id and the name of a machine that the current user may not see.
pub const UNSEEN_MACHINE: &str = "a machine that you may not see";

tokio::task_local! {
    static ACTOR: RequestActor;
}

/// User of the current request, and the entry of the request in the audit log.
#[derive(Debug, Clone, Default)]
pub struct RequestActor {
    pub identity: Option<Identity>,
    pub audit_entry: Option<i64>,
}

impl RequestActor {
    /// Runs the handler of a request as this user.
    pub async fn run<T>(self, answer: impl Future<Output = T>) -> T {
        ACTOR.scope(self, answer).await
    }

    /// Runs a part of a response that is created after the handler has returned.
    pub fn run_blocking<T>(self, create: impl FnOnce() -> T) -> T {
        ACTOR.sync_scope(self, create)
    }
}

/// Returns the part of a machine's message that the current user may read. A viewer may not read the output of programs,
/// which a message can quote.
pub fn visible_message(message: &str) -> &str {
    let is_viewer = |actor: &RequestActor| actor.identity.as_ref().is_some_and(|user| user.role == UserRole::Viewer);
    match ACTOR.try_with(is_viewer) {
        Ok(true) => linux::process::without_program_output(message),
        _ => message,
    }
}

/// Returns the part of a text with several messages that the current user may read, with one message per line.
pub fn visible_lines(text: &str) -> String {
    text.lines().map(visible_message).collect::<Vec<_>>().join("\n")
}

/// Returns the id of the current request's entry in the audit log.
pub fn current_audit_entry() -> Option<i64> {
    ACTOR.try_with(|actor| actor.audit_entry).ok().flatten()
}

/// Returns the name of the current user; `server` for changes that no request has caused.
pub(crate) fn current_user() -> String {
    let name = ACTOR.try_with(|actor| actor.identity.as_ref().map(|identity| identity.user.clone()));
    name.ok().flatten().unwrap_or_else(|| "server".to_owned())
}

/// Returns the projects of the current user; `None` if the user may access all machines, and outside of requests of
/// users.
pub(crate) fn current_projects() -> Option<Vec<String>> {
    let projects = ACTOR.try_with(|actor| actor.identity.as_ref().map(|identity| identity.projects.clone()));
    projects.ok().flatten().filter(|projects| !projects.is_empty())
}

/// Checks that the current user may give a machine this project.
///
/// # Errors
/// Returns an error if the user is restricted to other projects.
pub fn check_new_project(project: Option<&str>) -> Result<(), ApiError> {
    match current_projects() {
        Some(own) if !project.is_some_and(|project| own.iter().any(|one| one == project)) => {
            let why = format!(
                "project: cannot be changed to {}: your projects are {}",
                project.map_or("none".to_owned(), |project| format!("{project:?}")),
                own.join(", ")
            );
            Err(ApiError::new(StatusCode::FORBIDDEN, why).with_error_code(ErrorCode::AccessDenied))
        }
        _ => Ok(()),
    }
}

/// Refused request of a user or of an unauthenticated client.
#[derive(Debug)]
pub struct AccessRefusal {
    pub error: ApiError,
    /// Reason for the audit log, which the response does not contain.
    pub reason: String,
    /// User and token name, if they are known although the request is refused.
    pub actor: Option<(String, String)>,
    pub identity: Option<Identity>,
}

/// Decision about a request.
#[derive(Debug)]
pub enum AccessDecision {
    /// The request is passed to its handler, with the authenticated user. Without a user, handlers that require one
    /// refuse the request.
    Passed(Option<Identity>),
    Refused(Box<AccessRefusal>),
}

/// Returns the error for a request without a valid token.
pub(crate) fn unauthenticated_error() -> ApiError {
    let why = format!(
        "this request requires the operator's token, which is in {} in the server's directory, or the token of a user",
        token::OPERATOR_FILE
    );
    ApiError::new(StatusCode::UNAUTHORIZED, why)
}

/// Returns the hash of the request's token for this route: the bearer token, or the token of an OpenStack client.
fn request_token(headers: &HeaderMap, route: &str) -> Option<TokenHash> {
    let openstack = || headers.get(OPENSTACK_TOKEN)?.to_str().ok().map(token::hash_token);
    bearer_hash(headers).or_else(|| route.starts_with("/v1/deploy").then(openstack).flatten())
}

/// Decides about a request for a route. `machine` is the value of `{id}` in the path.
///
/// # Errors
/// Returns an error if the database cannot be read.
pub async fn authorize_request(
    app: &AppState,
    method: &str,
    route: &str,
    machine: Option<&str>,
    headers: &HeaderMap,
) -> Result<AccessDecision, ApiError> {
    let rule = table::find_rule(method, route);
    if rule.is_none() && !table::is_known_route(route) {
        let error = ApiError::new(StatusCode::FORBIDDEN, format!("{method} {route}: no role permits this request"));
        return Ok(refuse(error, "the route has no access rule", None));
    }
    // The router refuses methods that a known route does not have, except for routes that dispatch on the method.
    let unknown: RouteRule = ("", "", RouteAccess::User(UserRole::Admin), RouteScope::Whole);
    let (_, _, access, scope) = rule.unwrap_or(&unknown);
    let verdict = match access {
        RouteAccess::Public | RouteAccess::Machine => return Ok(AccessDecision::Passed(None)),
        RouteAccess::Page(_) => app.sessions.authenticate(app, headers).await?,
        _ => match request_token(headers, route) {
            Some(given) => app.state.verify_user_token(given, app.operator).await?,
            None => TokenVerdict::Unknown,
        },
    };
    let identity = match verdict {
        TokenVerdict::Valid(identity) => identity,
        verdict => return Ok(refuse_unauthenticated(*access, rule.is_some(), route, verdict)),
    };
    Ok(check_permissions(app, (*access, *scope), identity, machine))
}

/// Decides about a request without a valid token. Some handlers respond in their own format, or accept other tokens.
fn refuse_unauthenticated(access: RouteAccess, is_known: bool, route: &str, verdict: TokenVerdict) -> AccessDecision {
    let (actor, reason) = match verdict {
        TokenVerdict::Refused { user, token, reason } => (Some((user, token)), reason),
        _ => (None, "no valid token"),
    };
    let is_own_format = route.starts_with("/v1/deploy") || !is_known;
    match access {
        RouteAccess::User(_) if !is_own_format => refuse(unauthenticated_error(), reason, actor),
        _ => AccessDecision::Passed(None),
    }
}

fn check_permissions(
    app: &AppState,
    (access, scope): (RouteAccess, RouteScope),
    identity: Identity,
    machine: Option<&str>,
) -> AccessDecision {
    let role = match access {
        RouteAccess::User(role)
        | RouteAccess::Page(role)
        | RouteAccess::MachineOrUser(role)
        | RouteAccess::MetricsOrUser(role) => role,
        RouteAccess::Public | RouteAccess::Machine => UserRole::Admin,
    };
    let refuse_user = |status, message: String, reason: &str, identity: Identity| {
        let error = ApiError::new(status, message).with_error_code(ErrorCode::AccessDenied);
        let actor = Some((identity.user.clone(), identity.token.clone()));
        AccessDecision::Refused(Box::new(AccessRefusal {
            error,
            reason: reason.to_owned(),
            actor,
            identity: Some(identity),
        }))
    };
    // For a user with projects, a machine of another project is refused like a machine that does not exist.
    if let (RouteScope::Machine, true, Some(id)) = (scope, identity.is_restricted(), machine)
        && !app
            .directory
            .borrow()
            .find_machine(&id.to_lowercase())
            .is_some_and(|machine| identity.may_access_project(machine.project.as_deref()))
    {
        let message = format!("machines/ contains no machine {}", id.to_lowercase());
        let error = ApiError::not_found(message);
        let actor = Some((identity.user.clone(), identity.token.clone()));
        let reason = "the machine does not exist, or belongs to another project".to_owned();
        return AccessDecision::Refused(Box::new(AccessRefusal { error, reason, actor, identity: Some(identity) }));
    }
    if identity.role < role {
        let message = format!("user {}: this request requires the role {role}, not {}", identity.user, identity.role);
        return refuse_user(StatusCode::FORBIDDEN, message, "insufficient role", identity);
    }
    if scope == RouteScope::Whole && identity.is_restricted() {
        let message = format!("user {}: this request requires access to the machines of all projects", identity.user);
        return refuse_user(StatusCode::FORBIDDEN, message, "restricted to projects", identity);
    }
    AccessDecision::Passed(Some(identity))
}

fn refuse(error: ApiError, reason: &str, actor: Option<(String, String)>) -> AccessDecision {
    AccessDecision::Refused(Box::new(AccessRefusal { error, reason: reason.to_owned(), actor, identity: None }))
}

/// Returns whether a request carries a token, or the cookie of a session.
pub fn has_credentials(headers: &HeaderMap) -> bool {
    [header::AUTHORIZATION.as_str(), header::COOKIE.as_str(), OPENSTACK_TOKEN]
        .iter()
        .any(|name| headers.contains_key(*name))
}
