//! Request handlers. There is a single one for each form, because whether and how a request is refused depends on version, method and path
//! together.

use super::answer::{Answered, Refused};
use super::list::list;
use super::shown::{Form, fields, shown};
use super::{Stored, changing, versions};
use crate::serve::App;
use crate::serve::api::bodies::bytes;
use crate::serve::api_error::ApiError;
use crate::serve::base::Base;
use crate::serve::operator::Operator;
use crate::serve::peers::Peer;
use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Query, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::sync::Arc;

/// Limit of a template. It may contain a layout; a large one has some ten thousand bytes.
const TEMPLATE_BYTES: usize = 1 << 20;
/// Header in which OpenStack clients send a token.
const TOKEN: &str = "x-auth-token";

/// Request without its body.
pub struct Asked {
    method: Method,
    /// Path below the collection: a template, and a field of it.
    path: Vec<String>,
    query: Vec<(String, String)>,
    headers: HeaderMap,
    base: String,
    peer: Peer,
}

impl FromRequestParts<Arc<App>> for Asked {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Asked, ApiError> {
        let bad = |error: &dyn std::fmt::Display| ApiError::bad(error.to_string());
        let path = Option::<Path<String>>::from_request_parts(parts, app).await.map_err(|error| bad(&error))?;
        let path = path.map(|Path(path)| path).unwrap_or_default();
        let Query(query) = Query::from_request_parts(parts, app).await.map_err(|error| bad(&error))?;
        Ok(Asked {
            method: parts.method.clone(),
            path: path.split('/').filter(|step| !step.is_empty()).map(str::to_owned).collect(),
            query,
            headers: parts.headers.clone(),
            base: Base::from_request_parts(parts, app).await?.calls,
            peer: Peer::from_request_parts(parts, app).await?,
        })
    }
}

/// Handles `/v1/deploy_templates` and everything below.
pub async fn ironic(State(app): State<Arc<App>>, asked: Asked, body: Body) -> Response {
    let minor = versions::of(&asked.headers);
    let told = minor.as_ref().ok().copied();
    let answered = match minor.and_then(|minor| allowed(&asked.method, minor)) {
        Ok(()) => answer(&app, Form::Ironic, &asked, body).await,
        Err(refused) => Err(refused),
    };
    let mut response = answered.unwrap_or_else(IntoResponse::into_response);
    versions::tell(&mut response, told);
    response
}

/// Handles `/v1/deploy-templates` and everything below.
pub async fn proposed(State(app): State<Arc<App>>, asked: Asked, body: Body) -> Response {
    answer(&app, Form::Proposed, &asked, body).await.unwrap_or_else(IntoResponse::into_response)
}

/// Handles `/`: returns the supported versions, which clients request first.
pub async fn root(headers: HeaderMap, base: Base) -> Response {
    let version = version(&base.calls);
    discovered(
        &headers,
        json!({"name": "drophammer", "description": "Deploy templates, as OpenStack Ironic has them.",
        "default_version": version, "versions": [version]}),
    )
}

/// Handles `/v1`: returns its resources.
pub async fn version_one(headers: HeaderMap, base: Base) -> Response {
    let base = base.calls;
    let link = |path: &str, rel: &str| json!({"href": format!("{base}{path}"), "rel": rel});
    let templates = [link("/v1/deploy_templates/", "self"), link("/deploy_templates/", "bookmark")];
    let answer = json!({"id": "v1", "links": [link("/v1/", "self")], "version": version(&base), "deploy_templates": templates,
        "media_types": {"base": "application/json", "type": "application/vnd.openstack.ironic.v1+json"}});
    discovered(&headers, answer)
}

fn version(base: &str) -> Value {
    json!({"id": "v1", "status": "CURRENT", "min_version": versions::LOWEST, "version": versions::HIGHEST,
        "links": [{"href": format!("{base}/v1/"), "rel": "self"}]})
}

fn discovered(headers: &HeaderMap, answer: Value) -> Response {
    let minor = versions::of(headers);
    let told = minor.as_ref().ok().copied();
    let mut response = match minor {
        Ok(_) => Json(answer).into_response(),
        Err(refused) => refused.into_response(),
    };
    versions::tell(&mut response, told);
    response
}

fn allowed(method: &Method, minor: u32) -> Answered<()> {
    let why = "this version of the API does not support deploy templates, which were added in 1.55";
    match (minor >= versions::WITH_TEMPLATES, method) {
        (true, _) => Ok(()),
        (false, &Method::GET) => Err(Refused::router(StatusCode::NOT_FOUND, why)),
        (false, _) => Err(Refused::router(StatusCode::METHOD_NOT_ALLOWED, why)),
    }
}

/// Checks the operator's token, as it is sent by this program or by OpenStack clients.
fn authorised(app: &App, headers: &HeaderMap) -> Answered<()> {
    let as_bearer = headers.get(TOKEN).and_then(|token| token.to_str().ok()).and_then(|token| {
        let value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
        Some(HeaderMap::from_iter([(header::AUTHORIZATION, value)]))
    });
    match Operator::is_asking(app, headers) || as_bearer.is_some_and(|headers| Operator::is_asking(app, &headers)) {
        true => Ok(()),
        false => {
            let why = "this request requires the operator's token, as Authorization: Bearer or as X-Auth-Token";
            Err(Refused::new(StatusCode::UNAUTHORIZED, why))
        }
    }
}

async fn answer(app: &App, form: Form, asked: &Asked, body: Body) -> Answered {
    authorised(app, &asked.headers)?;
    let whole = |stored: &Stored| shown(stored, &asked.base, form, None);
    let no_template = || Refused::bad("specify a template, by uuid or by name");
    match (asked.method.as_str(), &asked.path[..]) {
        ("GET", []) => {
            let directory = app.directory();
            Ok(Json(list(&directory.known.templates, &asked.query, &asked.base, form)?).into_response())
        }
        ("GET", [ident]) => show(app, form, asked, ident, None),
        ("GET", [ident, field]) => show(app, form, asked, ident, Some(field)),
        ("POST", []) => {
            let stored = changing::create(app, &document(app, asked.peer, body).await?).await?;
            let mut response = (StatusCode::CREATED, Json(whole(&stored))).into_response();
            let location = format!("{}/v1/{}/{}", asked.base, form.path(), stored.uuid);
            if let Ok(location) = HeaderValue::from_str(&location) {
                response.headers_mut().insert(header::LOCATION, location);
            }
            Ok(response)
        }
        ("POST", _) => Err(Refused::bad("a template is created by a POST to the collection, not to its name")),
        ("PATCH" | "DELETE", []) => Err(no_template()),
        ("PATCH", [ident]) => {
            let patch = document(app, asked.peer, body).await?;
            let stored = changing::change(app, ident, &patch).await?;
            Ok(Json(whole(&stored)).into_response())
        }
        ("DELETE", [ident]) => {
            changing::delete(app, ident).await?;
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        ("GET" | "PATCH" | "DELETE", _) => Err(Refused::router(StatusCode::NOT_FOUND, "")),
        _ => Err(Refused::router(StatusCode::METHOD_NOT_ALLOWED, "")),
    }
}

fn show(app: &App, form: Form, asked: &Asked, ident: &str, field: Option<&str>) -> Answered {
    let mut only = field.map(fields).transpose()?;
    for (name, value) in &asked.query {
        match name.as_str() {
            "fields" => only = Some(fields(value)?),
            other => return Err(Refused::bad(format!("unknown argument {other:?}"))),
        }
    }
    let directory = app.directory();
    let stored = changing::find(&directory.known.templates, ident)?;
    Ok(Json(shown(stored, &asked.base, form, only.as_deref())).into_response())
}

/// Parses the body. An empty body is an empty object.
async fn document(app: &App, peer: Peer, body: Body) -> Answered<Value> {
    let bytes = bytes(app, peer, body, TEMPLATE_BYTES).await?;
    match bytes.is_empty() {
        true => Ok(json!({})),
        false => serde_json::from_slice(&bytes).map_err(|error| Refused::bad(format!("the body is not JSON: {error}"))),
    }
}
