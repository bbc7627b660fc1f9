//! Addresses of clients: the remote address of a connection, and the address that a proxy reports.

use crate::api_error::ApiError;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use std::net::{IpAddr, SocketAddr};

/// Remote address of a connection, attached to each of its requests.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionInfo {
    pub address: IpAddr,
    pub port: u16,
    pub over_tls: bool,
}

/// Client of a request: the remote address of the connection or, if that address is a proxy named with `--proxy`, the
/// address that the proxy reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientAddress(pub IpAddr);

impl std::fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for ClientAddress {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<ClientAddress, ApiError> {
        ClientOrigin::from_request(parts).map(|origin| ClientAddress(origin.address))
    }
}

/// Client of a request: address and source port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientOrigin {
    pub address: IpAddr,
    /// Source port; `None` if a proxy does not report it.
    pub port: Option<u16>,
}

impl ClientOrigin {
    /// Returns the client of the request, which
    /// [`ClientQuotas::find_origin`](crate::client_quotas::ClientQuotas::find_origin) determined when the request
    /// arrived.
    ///
    /// # Errors
    /// Returns an error if the request did not arrive over a connection.
    pub fn from_request(parts: &Parts) -> Result<ClientOrigin, ApiError> {
        let unknown = || ApiError::bad_request("the source address of the request is unknown");
        parts.extensions.get::<ClientOrigin>().copied().ok_or_else(unknown)
    }

    /// Parses `ADDRESS`, `ADDRESS:PORT` and `[ADDRESS]:PORT`.
    pub(crate) fn parse_forwarded(element: &str) -> Option<ClientOrigin> {
        let origin = |address: IpAddr, port| ClientOrigin { address: address.to_canonical(), port };
        if let Ok(address) = element.parse() {
            return Some(origin(address, None));
        }
        if let Ok(socket) = element.parse::<SocketAddr>() {
            return Some(origin(socket.ip(), Some(socket.port())));
        }
        let (address, port) = element.strip_prefix('[')?.split_once("]:")?;
        Some(origin(address.parse().ok()?, Some(port.parse().ok()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_declares_an_address_with_or_without_a_port() {
        for (element, expected) in [
            ("10.0.0.7", Some(("10.0.0.7", None))),
            ("::ffff:10.0.0.7", Some(("10.0.0.7", None))),
            ("10.0.0.7:700", Some(("10.0.0.7", Some(700)))),
            ("[10.0.0.7]:700", Some(("10.0.0.7", Some(700)))),
            ("fe80::7", Some(("fe80::7", None))),
            ("[fe80::7]:700", Some(("fe80::7", Some(700)))),
            ("", None),
            ("unknown", None),
            ("10.0.0.7:70000", None),
            ("[fe80::7]", None),
        ] {
            let expected = expected.map(|(address, port)| ClientOrigin { address: address.parse().unwrap(), port });
            assert_eq!(ClientOrigin::parse_forwarded(element), expected, "{element}");
        }
    }
}
