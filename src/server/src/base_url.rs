//! URLs at which a client reaches this server.

use super::AppState;
use super::api_error::ApiError;
use super::quotas::ConnectionInfo;
use super::tls::strip_port;
use axum::extract::FromRequestParts;
use axum::http::header;
use axum::http::request::Parts;
use site::boot_values;
use std::sync::Arc;

/// Base URLs, without a trailing slash. The two differ if the agent must use TLS, while firmware uses plain HTTP.
pub(crate) struct BaseUrls {
    /// Base URL of API calls and images.
    pub calls: String,
    /// Base URL of files that firmware loads.
    pub files: String,
}

impl FromRequestParts<Arc<AppState>> for BaseUrls {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<AppState>) -> Result<BaseUrls, ApiError> {
        let over_tls = parts.extensions.get::<ConnectionInfo>().is_some_and(|connected| connected.over_tls);
        let in_plain = app.https.as_ref().filter(|_| !over_tls);
        if let (Some(url), None) = (&app.url, in_plain) {
            return Ok(BaseUrls { calls: url.clone(), files: url.clone() });
        }
        let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        boot_values::validate_host(host).map_err(|why| ApiError::bad_request(format!("Host header: {why}")))?;
        let Some(https) = in_plain else {
            let url = format!("{}://{host}", if over_tls { "https" } else { "http" });
            return Ok(BaseUrls { calls: url.clone(), files: url });
        };
        let calls = match &app.url {
            Some(url) => url.clone(),
            None => {
                if !https.tls.covers_host(host) {
                    app.log_rate_limited(format!(
                        "machines send requests to {host:?}, which the server's certificate does not cover: set --url to a URL with a name in the certificate"
                    ));
                }
                format!("https://{}:{}", strip_port(host), https.port)
            }
        };
        Ok(BaseUrls { calls, files: format!("http://{host}") })
    }
}
