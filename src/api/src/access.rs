//! Authorization of users. `route_access` specifies the access that each route requires, and only [`authorize_request`]
//! decides about requests. Handlers read the [`Identity`] of the user from the extensions of the request. Handlers
//! cannot see machines of projects that are not accessible to the user: within a request, [`AppState::directory`]
//! returns only accessible machines.

pub mod login_sessions;
pub mod project_snapshots;
pub mod route_access;
pub mod secret_masking;

use crate::AppState;
use crate::bearer_token::bearer_hash;
use axum::http::{HeaderMap, StatusCode, header};
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;
use route_access::{RouteAccess, RouteRule, RouteScope};
use std::sync::{Arc, OnceLock};
use store::token_hash::{self, TokenHash};
use store::user_tokens::TokenVerdict;
pub use store::users::{Identity, IdentitySource, UserRole};

/// Header in which OpenStack clients send a token.
const OPENSTACK_TOKEN: &str = "x-auth-token";

/// Text that replaces the id and the name of a machine that the current user is not allowed to see.
pub const HIDDEN_MACHINE_TEXT: &str = "a machine of another project";

tokio::task_local! {
    static CURRENT_ACTOR: RequestActor;
}

/// User of the current request, and the entry of the request in the audit log.
#[derive(Debug, Clone, Default)]
pub struct RequestActor {
    pub identity: Option<Identity>,
    pub audit_entry: Option<i64>,
    /// Object that the request reads or changes, for the audit log. The handler sets this field if the path of the
    /// request does not contain the object.
    pub object: Arc<OnceLock<String>>,
}

impl RequestActor {
    /// Runs the handler of a request as this user.
    pub async fn run<T>(self, answer: impl Future<Output = T>) -> T {
        CURRENT_ACTOR.scope(self, answer).await
    }

    /// Runs `create` as this user. Used for a part of a response that is created after the handler has returned.
    pub fn run_blocking<T>(self, create: impl FnOnce() -> T) -> T {
        CURRENT_ACTOR.sync_scope(self, create)
    }
}

/// Returns the part of a machine's message that the current user may read. A message can quote the output of programs,
/// and a viewer must not read this output.
pub fn visible_message(message: &str) -> &str {
    if is_viewer() { linux::process::without_program_output(message) } else { message }
}

/// Returns whether a viewer has sent the current request.
pub(crate) fn is_viewer() -> bool {
    let is_viewer = |actor: &RequestActor| actor.identity.as_ref().is_some_and(|user| user.role == UserRole::Viewer);
    CURRENT_ACTOR.try_with(is_viewer).unwrap_or(false)
}

/// Returns the error of a file in the server's directory, without its reasons if the current user must not read them.
pub fn visible_file_error(error: &str) -> String {
    if is_viewer() { secret_masking::hide_problem_reasons(error) } else { error.to_owned() }
}

/// Returns the parts of a text that the current user may read. The text consists of messages, one per line.
pub fn visible_lines(text: &str) -> String {
    text.lines().map(visible_message).collect::<Vec<_>>().join("\n")
}

/// Sets the object of the current request in the audit log. Handlers of requests whose paths do not contain the object
/// call this function as soon as the object is known; further calls have no effect.
pub fn set_audited_object(object: &str) {
    let _ = CURRENT_ACTOR.try_with(|actor| actor.object.set(object.to_owned()));
}

/// Returns the id of the current request's entry in the audit log.
pub fn current_audit_entry() -> Option<i64> {
    CURRENT_ACTOR.try_with(|actor| actor.audit_entry).ok().flatten()
}

/// Returns the name of the current user, or `the server` outside of requests of users.
pub fn current_user() -> String {
    let user = CURRENT_ACTOR.try_with(|actor| actor.identity.as_ref().map(|identity| identity.user.clone()));
    user.ok().flatten().unwrap_or_else(|| "the server".to_owned())
}

/// Returns the projects of the current user; `None` if the user may access all machines, or if the code does not run
/// within a request of a user.
pub(crate) fn current_projects() -> Option<Vec<String>> {
    let projects = CURRENT_ACTOR.try_with(|actor| actor.identity.as_ref().map(|identity| identity.projects.clone()));
    projects.ok().flatten().filter(|projects| !projects.is_empty())
}

/// Checks that the current user may assign this project to a machine.
///
/// # Errors
/// Returns an error if the user is restricted to other projects.
pub fn check_new_project(project: Option<&str>) -> Result<(), ApiError> {
    match current_projects() {
        Some(own) if !project.is_some_and(|project| own.iter().any(|one| one == project)) => {
            let why = format!(
                "project: a user with the projects {own_projects} cannot set the project {project}",
                project = project.map_or("none".to_owned(), |project| format!("{project:?}")),
                own_projects = own.join(", ")
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
    /// User and token name, if known; may be set even if the request is refused.
    pub actor: Option<(String, String)>,
    pub identity: Option<Identity>,
}

/// Decision whether a request may access its route.
#[derive(Debug)]
pub enum AccessDecision {
    /// The request is passed to its handler. Contains the authenticated user; `None` if no user was authenticated. If
    /// the value is `None`, handlers that require a user refuse the request.
    Passed(Option<Identity>),
    Refused(Box<AccessRefusal>),
}

/// Returns the error for a request without a valid token.
pub(crate) fn unauthenticated_error() -> ApiError {
    let why = format!(
        "this request requires a token of a user, or the operator's token, which is in {file} in the server's directory",
        file = token_hash::OPERATOR_FILE
    );
    ApiError::new(StatusCode::UNAUTHORIZED, why)
}

/// Returns the hash of the request's token for this route: the bearer token, or the token of an OpenStack client.
fn request_token(headers: &HeaderMap, route: &str) -> Option<TokenHash> {
    let openstack = || headers.get(OPENSTACK_TOKEN)?.to_str().ok().map(token_hash::hash_token);
    bearer_hash(headers).or_else(|| route.starts_with("/v1/deploy").then(openstack).flatten())
}

/// Decides whether a request may access a route. `machine` is the value of `{id}` in the path.
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
    let rule = route_access::find_rule(method, route);
    if rule.is_none() && !route_access::is_known_route(route) {
        let error =
            ApiError::new(StatusCode::FORBIDDEN, format!("{method} {route}: none of the roles permits this request"));
        return Ok(refuse(error, "the route has no access rule", None));
    }
    // The table contains the route, but not with this method. The request is passed on: either the router refuses the
    // method, or the handler distinguishes methods itself.
    let unknown: RouteRule = ("", "", RouteAccess::User(UserRole::Admin), RouteScope::Whole);
    let (_, _, access, scope) = rule.unwrap_or(&unknown);
    let verdict = match access {
        RouteAccess::Public | RouteAccess::Machine => return Ok(AccessDecision::Passed(None)),
        // The token for metrics is checked without the database, so that metrics can also be read while the database is
        // unavailable.
        RouteAccess::MetricsOrUser(_) if has_metrics_token(app, headers) => return Ok(AccessDecision::Passed(None)),
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

/// Returns whether the request carries the token in `metrics.token`.
pub(crate) fn has_metrics_token(app: &AppState, headers: &HeaderMap) -> bool {
    bearer_hash(headers).is_some_and(|given| token_hash::hashes_equal(&given, &app.metrics))
}

/// Refuses a request without a valid user token. Passes the request to its handler if the handler accepts other tokens,
/// or refuses unauthenticated requests in a format of its own.
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
    let denied =
        |message: String| ApiError::new(StatusCode::FORBIDDEN, message).with_error_code(ErrorCode::AccessDenied);
    // A user with projects receives the same response for a machine of another project as for an unknown machine.
    if let (RouteScope::Machine, true, Some(id)) = (scope, identity.is_restricted(), machine)
        && !app
            .directory
            .borrow()
            .find_machine(&id.to_lowercase())
            .is_some_and(|machine| identity.may_access_project(machine.project.as_deref()))
    {
        let message = format!("machines/ contains no machine {id}", id = id.to_lowercase());
        let reason = "the machine does not exist, or belongs to another project";
        return refuse_user(ApiError::not_found(message), reason, identity);
    }
    if identity.role < role {
        let message = format!(
            "user {user}: this request requires the role {role}, not {own_role}",
            user = identity.user,
            own_role = identity.role
        );
        return refuse_user(denied(message), "insufficient role", identity);
    }
    if scope == RouteScope::Whole && identity.is_restricted() {
        let message =
            format!("user {user}: this request requires access to the machines of all projects", user = identity.user);
        return refuse_user(denied(message), "restricted to projects", identity);
    }
    AccessDecision::Passed(Some(identity))
}

/// Refuses the request of an authenticated user.
fn refuse_user(error: ApiError, reason: &str, identity: Identity) -> AccessDecision {
    let actor = Some((identity.user.clone(), identity.token.clone()));
    let reason = reason.to_owned();
    AccessDecision::Refused(Box::new(AccessRefusal { error, reason, actor, identity: Some(identity) }))
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
