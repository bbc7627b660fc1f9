//! Authorization of requests before their handlers run, and the audit log. [`api::access`] decides whether a request is
//! permitted.

use api::AppState;
use api::access::route_access::{self, RouteAccess};
use api::access::secret_masking::{hide_program_output, hide_secrets};
use api::access::{self, AccessDecision, AccessRefusal, Identity, RequestActor, UserRole};
use api::audit_log::{self, AuditedRequest, ObjectState};
use api::oidc_login::RefusedLogin;
use axum::body::{Body, to_bytes};
use axum::extract::{FromRequestParts, MatchedPath, Path, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use http_server::request_context;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use tokio::task::JoinError;

/// Names of the path parameters that identify the object of a request.
const OBJECTS: [&str; 3] = ["id", "name", "path"];

/// Maximum size of a JSON response to a viewer, in bytes. The response is buffered so that its secrets can be replaced.
const RESPONSE_BYTES: usize = 256 << 20;

/// Authorizes a request, passes it to its handler, and records it in the audit log.
pub(crate) async fn authorize(State(app): State<Arc<AppState>>, request: Request, next: Next) -> Response {
    let Some(route) = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned()) else {
        return next.run(request).await;
    };
    let (mut parts, body) = request.into_parts();
    let audited = describe_request(&app, &mut parts, route).await;
    let rule = route_access::find_rule(&audited.method, &audited.route);
    let machine = (!audited.object.is_empty()).then_some(audited.object.as_str());
    let decision = access::authorize_request(&app, &audited.method, &audited.route, machine, &parts.headers).await;
    let identity = match decision {
        Ok(AccessDecision::Passed(identity)) => identity,
        Ok(AccessDecision::Refused(refusal)) => {
            let is_page = rule.is_some_and(|(_, _, access, _)| matches!(access, RouteAccess::Page(_)));
            return refuse(&app, &audited, *refusal, is_page.then_some(&parts.headers)).await;
        }
        Err(error) => return error.into_response(),
    };
    let Some(identity) = identity else {
        let has_credentials = access::has_credentials(&parts.headers);
        let response = next.run(Request::from_parts(parts, body)).await;
        let is_agents = rule
            .is_some_and(|(_, _, access, _)| matches!(access, RouteAccess::Machine | RouteAccess::MachineOrUser(_)));
        if !is_agents {
            let outcome = audit_log::response_outcome(&response);
            // A refused login has a user name, but no token name.
            let actor = response.extensions().get::<RefusedLogin>().map(|refused| (refused.0.clone(), String::new()));
            let identity = response.extensions().get::<Identity>().cloned();
            record_unauthenticated(&app, &audited, has_credentials, outcome, (identity, actor)).await;
        }
        return response;
    };
    parts.extensions.insert(identity.clone());
    // The response of `/v1/whoami` contains the name of the user's token, but no secret.
    let is_viewer = identity.role == UserRole::Viewer && audited.route != "/v1/whoami";
    let response = run_as_user(app, audited, identity, Request::from_parts(parts, body), next).await;
    if is_viewer { hide_in_response(response).await } else { response }
}

async fn describe_request(
    app: &Arc<AppState>,
    parts: &mut axum::http::request::Parts,
    route: String,
) -> AuditedRequest {
    let parameters = Path::<HashMap<String, String>>::from_request_parts(parts, app).await;
    let object =
        parameters.ok().and_then(|Path(parameters)| OBJECTS.iter().find_map(|name| parameters.get(*name).cloned()));
    let client = ClientAddress::from_request_parts(parts, app).await;
    AuditedRequest {
        method: parts.method.to_string(),
        route,
        path: parts.uri.path().to_owned(),
        object: object.unwrap_or_default(),
        address: client.map_or(IpAddr::from(Ipv4Addr::UNSPECIFIED), |ClientAddress(address)| address),
    }
}

/// Route whose requests are recorded when the response is ready. A refused logout must count towards the rate limit of
/// refusals, because viewers may send it.
const LOGOUT: &str = "/logout";

/// Runs the handler on behalf of a user. A request that may change something runs to its end even if the client
/// disconnects, so that neither the change nor its entry in the audit log remains incomplete. A query is recorded only
/// if it is refused: the number of entries is limited, so viewers could displace all entries with queries.
async fn run_as_user(
    app: Arc<AppState>,
    audited: AuditedRequest,
    identity: Identity,
    request: Request,
    next: Next,
) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        let actor = RequestActor { identity: Some(identity), ..RequestActor::default() };
        return actor.run(next.run(request)).await;
    }
    let task = request_context::spawn_in_context(run_and_record(app, audited, identity, request, next));
    match task.await.map_err(JoinError::try_into_panic) {
        Ok(response) => response,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(error)) => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}

/// Runs the handler of a request, and records the request in the audit log. A request that may change something is
/// recorded before the handler runs, and its entry is completed afterwards. A logout and a refused query are recorded
/// afterwards. A successful query is not recorded.
async fn run_and_record(
    app: Arc<AppState>,
    audited: AuditedRequest,
    identity: Identity,
    request: Request,
    next: Next,
) -> Response {
    let may_change = !route_access::is_query(&audited.method, &audited.route) && audited.route != LOGOUT;
    let begun = match may_change {
        true => {
            let entry = match audit_log::begin_entry(&app, &audited, &identity).await {
                Ok(entry) => entry,
                Err(error) => return ApiError::from(error).into_response(),
            };
            Some((entry, ObjectState::read(&app, &audited.route, &audited.object).await))
        }
        false => None,
    };
    let audit_entry = begun.as_ref().map(|(entry, _)| *entry);
    let actor = RequestActor { identity: Some(identity.clone()), audit_entry, ..RequestActor::default() };
    let object = actor.object.clone();
    let response = actor.run(next.run(request)).await;
    let (status, reason) = audit_log::response_outcome(&response);
    if let Some((entry, before)) = begun {
        let after = ObjectState::read(&app, &audited.route, &audited.object).await;
        let object = object.get().cloned().unwrap_or_default();
        audit_log::complete_entry(&app, (entry, object), (status, reason), before.changes_until(&after)).await;
    } else if status >= 400 || audited.route == LOGOUT {
        audit_log::record_request(&app, &audited, Some(&identity), None, (status, &reason)).await;
    }
    response
}

async fn refuse(
    app: &AppState,
    audited: &AuditedRequest,
    refusal: AccessRefusal,
    page: Option<&HeaderMap>,
) -> Response {
    let AccessRefusal { error, reason, actor, identity } = refusal;
    let response = match page {
        Some(headers) => web::render_refusal(app, headers, identity.clone(), error),
        None => error.into_response(),
    };
    let status = response.status().as_u16();
    audit_log::record_request(app, audited, identity.as_ref(), actor.as_ref(), (status, &reason)).await;
    response
}

/// Records logins, refused logins, and refused requests of clients without a valid token. Read requests without
/// credentials are not recorded.
async fn record_unauthenticated(
    app: &AppState,
    audited: &AuditedRequest,
    has_credentials: bool,
    (status, reason): (u16, String),
    (identity, actor): (Option<Identity>, Option<(String, String)>),
) {
    // The callback of an identity provider is a GET request, but logs in a user, and is therefore recorded.
    let is_read = matches!(audited.method.as_str(), "GET" | "HEAD") && identity.is_none();
    if is_read && !(matches!(status, 401 | 403) && has_credentials) {
        return;
    }
    audit_log::record_request(app, audited, identity.as_ref(), actor.as_ref(), (status, &reason)).await;
}

/// Replaces the secrets in a JSON response to a viewer, and removes the output of programs from its messages.
async fn hide_in_response(response: Response) -> Response {
    let is_json = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|given| given.as_bytes().starts_with(b"application/json"));
    if !is_json {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let hidden = match to_bytes(body, RESPONSE_BYTES).await {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match hidden {
        Ok(mut document) => {
            hide_secrets(&mut document);
            // Only successful responses contain messages of machines, whose program output must be hidden. Error
            // messages are written by this server, and may have several lines.
            if parts.status.is_success() {
                hide_program_output(&mut document);
            }
            parts.headers.remove(header::CONTENT_LENGTH);
            Response::from_parts(parts, Body::from(document.to_string()))
        }
        Err(error) => {
            let why = format!("cannot replace the secrets in the response: {error}");
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, why).into_response()
        }
    }
}
