//! URLs at which a client reaches this server.

use super::AppState;
use axum::extract::FromRequestParts;
use axum::http::header;
use axum::http::request::Parts;
use common::error_code::ErrorCode;
use common::url_host::{extract_host, strip_port};
use http_server::api_error::ApiError;
use http_server::client_address::ConnectionInfo;
use site::boot_value_validation;
use std::net::IpAddr;
use std::sync::Arc;

/// Base URLs for the agent and for firmware, without a trailing slash. The two URLs differ if the agent must use TLS,
/// because firmware uses plain HTTP.
pub struct BaseUrls {
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
        boot_value_validation::validate_host(host)
            .map_err(|why| ApiError::bad_request(format!("Host header: {why}")))?;
        let Some(https) = in_plain else {
            let url = format!("{}://{host}", if over_tls { "https" } else { "http" });
            return Ok(BaseUrls { calls: url.clone(), files: url });
        };
        let calls = match &app.url {
            Some(url) => url.clone(),
            None => {
                if !https.tls.covers_host(host) {
                    app.log_rate_limited(ErrorCode::Tls.annotate(format!(
                        "machines send requests to {host:?}, which the server's certificate does not cover: set --url to a URL with a name in the certificate"
                    )));
                }
                format!("https://{}:{}", strip_port(host), https.port)
            }
        };
        Ok(BaseUrls { calls, files: format!("http://{host}") })
    }
}

/// Checks that machines can resolve the host of `--url`: iPXE and the ramdisk use DNS only. `without_dns` is true if
/// this server assigns addresses over DHCP without announcing a DNS server.
///
/// # Errors
/// Returns the reason why machines cannot reach the host.
pub fn check_url_host(url: &str, without_dns: bool) -> Result<(), String> {
    let host = extract_host(url);
    let name = host.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase();
    let why = match name.parse::<IpAddr>() {
        Ok(address) if address.is_loopback() || address.is_unspecified() => {
            "is a loopback or wildcard address: specify the address at which machines reach this host"
        }
        Ok(_) => return Ok(()),
        Err(_) if name == "localhost" || name.ends_with(".localhost") => {
            "is a loopback name: specify the address at which machines reach this host"
        }
        Err(_) if name.ends_with(".local") => {
            "is a multicast DNS name, which neither iPXE nor the ramdisk supports: specify an address, or a name in DNS"
        }
        Err(_) if without_dns => {
            "cannot be resolved by machines, because --range assigns addresses without a DNS server: specify an address, or announce a DNS server with --dhcp-option dns-server,ADDRESS"
        }
        Err(_) => return Ok(()),
    };
    Err(format!("--url {url}: {host} {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_machines_cannot_resolve_is_refused() {
        for (url, without_dns, expected) in [
            ("http://10.0.0.1:8080", true, None),
            ("http://install.rack:8080/base", false, None),
            ("https://[2001:db8::1]:8443", true, None),
            ("http://localhost.rack", false, None),
            ("http://install:8080", false, None),
            ("http://install.rack:8080", true, Some("install.rack cannot be resolved by machines, because --range")),
            ("http://install:8080", true, Some("announce a DNS server with --dhcp-option")),
            ("http://localhost:8080", false, Some("localhost is a loopback name")),
            ("http://LocalHost.:8080", false, Some("is a loopback name")),
            ("http://a.localhost", false, Some("is a loopback name")),
            ("http://install.local:8080", false, Some("multicast DNS")),
            ("http://install.LOCAL./", false, Some("multicast DNS")),
            ("http://127.0.0.1:8080", false, Some("is a loopback or wildcard address")),
            ("http://127.0.1.1", false, Some("is a loopback or wildcard address")),
            ("http://0.0.0.0:8080", false, Some("is a loopback or wildcard address")),
            ("https://[::1]:8443", false, Some("[::1] is a loopback or wildcard address")),
        ] {
            let checked = check_url_host(url, without_dns);
            match expected {
                Some(words) => {
                    let why = checked.unwrap_err();
                    assert!(why.starts_with(&format!("--url {url}: ")) && why.contains(words), "{why}");
                }
                None => assert_eq!(checked, Ok(()), "{url}"),
            }
        }
    }
}
