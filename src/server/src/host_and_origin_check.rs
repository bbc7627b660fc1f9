//! Checks of request heads that apply to every path, before all other processing: the host that the request
//! addresses, and whether a browser sends the request for another site. This module also adds the response headers
//! that prevent caching.

use super::plain_text_refusals;
use api::AppState;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use common::error_code::ErrorCode;
use common::format::truncate_bytes;
use http_server::api_error::ApiError;
use http_server::client_address::ConnectionInfo;
use site::boot_value_validation;
use std::sync::Arc;

/// Paths for the probes of load balancers and Kubernetes. These requests may use any host name, because the responses
/// contain no data about machines.
const PROBES: [&str; 2] = ["/livez", "/readyz"];

/// Paths at which a GET request changes state: the server issues a token, and may count an attempt for an order.
const STATE_CHANGING: [&str; 2] = ["/boot.ipxe", "/boot.json"];

/// Path prefixes of files that clients may cache. A client revalidates a cached file by its ETag.
const FILES: [&str; 3] = ["/boot/", "/images/", "/ipxe/"];

/// Maximum length of a host name in a message, in bytes. DNS names are at most 253 bytes long.
const HOST_BYTES: usize = 253;

/// Checks the head of a request. Passes the request to its handler, or rejects it.
pub(crate) async fn guard_request(State(app): State<Arc<AppState>>, request: Request, next: Next) -> Response {
    let is_file = FILES.iter().any(|prefix| request.uri().path().starts_with(prefix));
    let mut response = match find_rejection(&app, &request) {
        Some(error) => error.into_response(),
        None => {
            let is_call = request.uri().path().starts_with("/v1/");
            let response = next.run(request).await;
            if is_call { plain_text_refusals::convert_to_json(response).await } else { response }
        }
    };
    add_headers(response.headers_mut(), is_file);
    response
}

fn find_rejection(app: &AppState, request: &Request) -> Option<ApiError> {
    let path = request.uri().path();
    if !PROBES.contains(&path)
        && let Err(error) = check_host(app, request)
    {
        return Some(error);
    }
    let cause = site_rejection(request.method(), path, request.headers())?;
    let error = ApiError::new(StatusCode::FORBIDDEN, format!("{path}: {cause}"));
    Some(error.with_error_code(ErrorCode::ControlPlane))
}

/// Checks that the request addresses this server.
///
/// # Errors
/// Returns an error if the host is not a name or an address of this server.
fn check_host(app: &AppState, request: &Request) -> Result<(), ApiError> {
    let named = request.headers().get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or_default());
    // If the request target is an absolute URL, its host takes precedence over the Host header (RFC 9112, 3.2.2).
    // Therefore both hosts are checked.
    let named: Vec<&str> = named.chain(request.uri().host()).collect();
    if named.is_empty() {
        let why = "the Host header is missing; send a Host header with a name or an address of this server";
        return Err(ApiError::new(StatusCode::MISDIRECTED_REQUEST, why).with_error_code(ErrorCode::UnknownServerName));
    }
    for host in named {
        boot_value_validation::validate_host(host)
            .map_err(|why| ApiError::bad_request(format!("the request's Host header: {why}")))?;
        if !app.hosts.accepts_host(host) {
            return Err(reject_misdirected(
                app,
                request,
                truncate_bytes(common::url_host::strip_port(host), HOST_BYTES),
            ));
        }
    }
    Ok(())
}

fn reject_misdirected(app: &AppState, request: &Request, name: &str) -> ApiError {
    let why = format!(
        "{name} is not a name of this server; use the server's address, or start the server with `drophammer serve --host {name}` if {name} is a name of the server's host"
    );
    if let Some(ConnectionInfo { address, .. }) = request.extensions().get() {
        app.log_rate_limited(
            ErrorCode::UnknownServerName.annotate(format!("a request from {address} was rejected: {why}")),
        );
    }
    ApiError::new(StatusCode::MISDIRECTED_REQUEST, why)
}

/// Returns the reason why a GET request of a browser is rejected, or `None` if it is accepted. Other methods need no
/// check here, because they require a secret that other sites do not have: the form token of the session, or the
/// operator's token.
fn site_rejection(method: &Method, path: &str, headers: &HeaderMap) -> Option<&'static str> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return None;
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_foreign = text("sec-fetch-site").is_some_and(|site| !matches!(site, "same-origin" | "none"));
    let changes_state = STATE_CHANGING.contains(&path);
    // Over plain HTTP, browsers do not send Sec-Fetch headers. Browsers are then recognized by the User-Agent, which
    // other sites cannot change.
    if changes_state && (is_foreign || text("user-agent").is_some_and(|agent| agent.starts_with("Mozilla/"))) {
        return Some("boot scripts are served to firmware and agents, not to browsers; use `curl` to view them");
    }
    let is_navigation = text("sec-fetch-mode") == Some("navigate") && text("sec-fetch-dest") == Some("document");
    (is_foreign && !is_navigation).then_some("another site has caused the browser to send this request")
}

fn add_headers(headers: &mut HeaderMap, is_file: bool) {
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if !is_file {
        headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| ((*name).parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn requests_of_other_sites_are_rejected() {
        let cross = ("sec-fetch-site", "cross-site");
        let navigate = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
        let browser = ("user-agent", "Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0");
        for (path, pairs) in [
            ("/boot.ipxe", vec![cross]),
            ("/boot.json", vec![cross, ("sec-fetch-mode", "no-cors")]),
            ("/boot.ipxe", vec![cross, navigate[0], navigate[1]]),
            ("/boot.ipxe", vec![("sec-fetch-site", "same-site")]),
            // Requests over plain HTTP.
            ("/boot.ipxe", vec![browser]),
            ("/boot.json", vec![browser]),
            ("/v1/machines", vec![cross]),
            ("/events", vec![cross, ("sec-fetch-mode", "cors")]),
            ("/machines/x", vec![cross, navigate[0], ("sec-fetch-dest", "iframe")]),
        ] {
            assert!(site_rejection(&Method::GET, path, &headers(&pairs)).is_some(), "{path} {pairs:?}");
        }
    }

    #[test]
    fn firmware_agents_programs_and_links_are_served() {
        let navigate =
            [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
        for (path, pairs) in [
            ("/boot.ipxe", vec![("user-agent", "iPXE/1.21.1")]),
            ("/boot.ipxe", vec![("user-agent", "UefiHttpBoot/1.0")]),
            ("/boot.json", vec![("user-agent", "drophammer/0.1.0")]),
            ("/boot.ipxe", vec![("user-agent", "curl/8.5.0")]),
            ("/boot.ipxe", vec![]),
            ("/start.ipxe", vec![]),
            ("/v1/machines", vec![]),
            ("/", navigate.to_vec()),
            ("/machines/x", navigate.to_vec()),
            ("/events", vec![("sec-fetch-site", "same-origin"), ("sec-fetch-mode", "cors")]),
            ("/", vec![("sec-fetch-site", "none"), ("user-agent", "Mozilla/5.0")]),
        ] {
            assert_eq!(site_rejection(&Method::GET, path, &headers(&pairs)), None, "{path} {pairs:?}");
        }
    }

    #[test]
    fn only_files_may_be_cached() {
        for (given, is_file, expected) in [
            (vec![], false, Some("no-store")),
            (vec![("cache-control", "max-age=60")], false, Some("max-age=60")),
            (vec![("etag", "\"1\"")], false, Some("no-store")),
            (vec![("etag", "\"1\"")], true, None),
        ] {
            let mut headers = headers(&given);
            add_headers(&mut headers, is_file);
            assert_eq!(headers.get("cache-control").and_then(|value| value.to_str().ok()), expected, "{given:?}");
            assert_eq!(headers["x-content-type-options"], "nosniff");
        }
    }
}
