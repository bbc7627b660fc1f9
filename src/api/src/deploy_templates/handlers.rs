//! Request handlers for `/v1/deploy_templates` and `/v1/deploy-templates`. Both handlers check first the token, and
//! then the method and the path; before these checks, the handler of `/v1/deploy_templates` checks the API version. The
//! first check that fails determines the error response.

use super::ironic_response::{IronicRefusal, TemplateResult};
use super::listing::list_templates;
use super::representation::{TemplateForm, parse_fields, render_template};
use super::{changes, microversions};
use crate::AppState;
use crate::base_url::BaseUrls;
use crate::operator_api::OperatorAuth;
use crate::request_body::read_body;
use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Query, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use common::type_errors::locate_json_error;
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use serde_json::{Value, json};
use site::deploy_templates::StoredTemplate;
use std::sync::Arc;

/// Maximum size of a template, in bytes. A template may contain a layout, and a large layout has a size of a few tens
/// of kilobytes.
const TEMPLATE_BYTES: usize = 1 << 20;

/// Request without its body. The handler reads the body after it has checked the token.
pub(crate) struct TemplateRequest {
    method: Method,
    /// Segments of the path below the collection: at most a template and one field of the template.
    path: Vec<String>,
    query: Vec<(String, String)>,
    headers: HeaderMap,
    /// True if a user was authorized for the request.
    is_authorized: bool,
    base: String,
    peer: ClientAddress,
}

impl FromRequestParts<Arc<AppState>> for TemplateRequest {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<AppState>) -> Result<TemplateRequest, ApiError> {
        let bad = |error: &dyn std::fmt::Display| ApiError::bad_request(error.to_string());
        let path = Option::<Path<String>>::from_request_parts(parts, app).await.map_err(|error| bad(&error))?;
        let path = path.map(|Path(path)| path).unwrap_or_default();
        let Query(query) = Query::from_request_parts(parts, app).await.map_err(|error| bad(&error))?;
        Ok(TemplateRequest {
            method: parts.method.clone(),
            path: path.split('/').filter(|step| !step.is_empty()).map(str::to_owned).collect(),
            query,
            headers: parts.headers.clone(),
            is_authorized: OperatorAuth::is_authorized(&parts.extensions),
            base: BaseUrls::from_request_parts(parts, app).await?.calls,
            peer: ClientAddress::from_request_parts(parts, app).await?,
        })
    }
}

/// Handles `/v1/deploy_templates` and all paths below it.
pub(crate) async fn handle_ironic(
    State(app): State<Arc<AppState>>,
    template_request: TemplateRequest,
    body: Body,
) -> Response {
    let minor = microversions::requested_version(&template_request.headers);
    let told = minor.as_ref().ok().copied();
    let answered = match minor.and_then(|minor| check_version(&template_request.method, minor)) {
        Ok(()) => handle_request(&app, TemplateForm::Ironic, &template_request, body).await,
        Err(refused) => Err(refused),
    };
    let mut response = answered.unwrap_or_else(IntoResponse::into_response);
    microversions::add_version_headers(&mut response, told);
    response
}

/// Handles `/v1/deploy-templates` and all paths below it.
pub(crate) async fn handle_proposed(
    State(app): State<Arc<AppState>>,
    template_request: TemplateRequest,
    body: Body,
) -> Response {
    handle_request(&app, TemplateForm::Proposed, &template_request, body)
        .await
        .unwrap_or_else(IntoResponse::into_response)
}

/// Handles `/`: returns the supported API versions. OpenStack clients request this path first.
pub async fn show_root(headers: HeaderMap, base: BaseUrls) -> Response {
    let version = describe_version(&base.calls);
    discovery_response(
        &headers,
        json!({"name": "drophammer", "description": "Deploy templates, compatible with OpenStack Ironic.",
        "default_version": version, "versions": [version]}),
    )
}

/// Handles `/v1`: returns the resources of the API.
pub async fn show_version_one(headers: HeaderMap, base: BaseUrls) -> Response {
    let base = base.calls;
    let link = |path: &str, rel: &str| json!({"href": format!("{base}{path}"), "rel": rel});
    let templates = [link("/v1/deploy_templates/", "self"), link("/deploy_templates/", "bookmark")];
    let answer = json!({"id": "v1", "links": [link("/v1/", "self")], "version": describe_version(&base), "deploy_templates": templates,
        "media_types": {"base": "application/json", "type": "application/vnd.openstack.ironic.v1+json"}});
    discovery_response(&headers, answer)
}

fn describe_version(base: &str) -> Value {
    json!({"id": "v1", "status": "CURRENT", "min_version": microversions::LOWEST, "version": microversions::HIGHEST,
        "links": [{"href": format!("{base}/v1/"), "rel": "self"}]})
}

fn discovery_response(headers: &HeaderMap, answer: Value) -> Response {
    let minor = microversions::requested_version(headers);
    let told = minor.as_ref().ok().copied();
    let mut response = match minor {
        Ok(_) => Json(answer).into_response(),
        Err(refused) => refused.into_response(),
    };
    microversions::add_version_headers(&mut response, told);
    response
}

fn check_version(method: &Method, minor: u32) -> TemplateResult<()> {
    let why = "this version of the API does not support deploy templates, which were added in 1.55";
    match (minor >= microversions::FIRST_TEMPLATES_VERSION, method) {
        (true, _) => Ok(()),
        (false, &Method::GET) => Err(IronicRefusal::from_router(StatusCode::NOT_FOUND, why)),
        (false, _) => Err(IronicRefusal::from_router(StatusCode::METHOD_NOT_ALLOWED, why)),
    }
}

/// Refuses the request if no user was authorized for it.
fn check_token(template_request: &TemplateRequest) -> TemplateResult<()> {
    match template_request.is_authorized {
        true => Ok(()),
        false => {
            let why = "this request requires the operator's token, as Authorization: Bearer or as X-Auth-Token";
            Err(IronicRefusal::new(StatusCode::UNAUTHORIZED, why))
        }
    }
}

async fn handle_request(
    app: &AppState,
    form: TemplateForm,
    template_request: &TemplateRequest,
    body: Body,
) -> TemplateResult {
    check_token(template_request)?;
    let whole = |stored: &StoredTemplate| render_template(stored, &template_request.base, form, None);
    let no_template = || IronicRefusal::bad_request("specify a template, by uuid or by name");
    match (template_request.method.as_str(), &template_request.path[..]) {
        ("GET", []) => {
            let directory = app.directory();
            Ok(Json(list_templates(&directory.known.templates, &template_request.query, &template_request.base, form)?)
                .into_response())
        }
        ("GET", [ident]) => show_template(app, form, template_request, ident, None),
        ("GET", [ident, field]) => show_template(app, form, template_request, ident, Some(field)),
        ("POST", []) => {
            let stored = changes::create_template(app, &parse_body(app, template_request.peer, body).await?).await?;
            let mut response = (StatusCode::CREATED, Json(whole(&stored))).into_response();
            let location = format!("{}/v1/{}/{}", template_request.base, form.path(), stored.uuid);
            if let Ok(location) = HeaderValue::from_str(&location) {
                response.headers_mut().insert(header::LOCATION, location);
            }
            Ok(response)
        }
        ("POST", _) => Err(IronicRefusal::bad_request(
            "a POST request must not contain a template's name in its path: to create a template, send POST to /v1/deploy_templates",
        )),
        ("PATCH" | "DELETE", []) => Err(no_template()),
        ("PATCH", [ident]) => {
            let patch = parse_body(app, template_request.peer, body).await?;
            let stored = changes::change_template(app, ident, &patch).await?;
            Ok(Json(whole(&stored)).into_response())
        }
        ("DELETE", [ident]) => {
            changes::delete_template(app, ident).await?;
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        ("GET" | "PATCH" | "DELETE", _) => Err(IronicRefusal::from_router(StatusCode::NOT_FOUND, "")),
        _ => Err(IronicRefusal::from_router(StatusCode::METHOD_NOT_ALLOWED, "")),
    }
}

fn show_template(
    app: &AppState,
    form: TemplateForm,
    template_request: &TemplateRequest,
    ident: &str,
    field: Option<&str>,
) -> TemplateResult {
    let mut only = field.map(parse_fields).transpose()?;
    for (name, value) in &template_request.query {
        match name.as_str() {
            "fields" => only = Some(parse_fields(value)?),
            other => return Err(IronicRefusal::bad_request(format!("unknown argument {other:?}"))),
        }
    }
    let directory = app.directory();
    let stored = changes::find_template(&directory.known.templates, ident)?;
    Ok(Json(render_template(stored, &template_request.base, form, only.as_deref())).into_response())
}

/// Parses the body. An empty body is treated as an empty object.
async fn parse_body(app: &AppState, peer: ClientAddress, body: Body) -> TemplateResult<Value> {
    let bytes = read_body(app, peer, body, TEMPLATE_BYTES).await?;
    match bytes.is_empty() {
        true => Ok(json!({})),
        false => serde_json::from_slice(&bytes).map_err(|error| {
            IronicRefusal::bad_request(format!("the body is not JSON: {}", locate_json_error(&error)))
        }),
    }
}
