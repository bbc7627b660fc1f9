//! Check that a request comes from a privileged process of the machine: only privileged processes can bind source
//! ports below 1024. Without the check, unprivileged users of an installed system, or attackers who use server-side
//! request forgery, could register as the machine.

use super::AppState;
use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;
use http_server::client_address::{ClientAddress, ClientOrigin};
use std::sync::Arc;

/// First port that unprivileged processes may bind: the default of Linux for `ip_unprivileged_port_start`.
pub const FIRST_UNPRIVILEGED_PORT: u16 = 1024;

/// Source ports from which machines may register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourcePorts {
    /// Machines may register only from ports below this number.
    Below(u16),
    /// Machines may register from all ports. The operator permits this if NAT or a proxy hides the source ports of the
    /// machines.
    Any,
}

/// Source port of a request; `None` if a proxy hides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SourcePort(Option<u16>);

impl FromRequestParts<Arc<AppState>> for SourcePort {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<AppState>) -> Result<SourcePort, ApiError> {
        ClientOrigin::from_request(parts).map(|origin| SourcePort(origin.port))
    }
}

/// Refuses a request that an unprivileged process may have sent. `action` completes the message "cannot …".
///
/// # Errors
/// Returns an error if the source port is not privileged, or a proxy hides it.
pub(crate) fn require_privileged(
    app: &AppState,
    source: SourcePort,
    ClientAddress(address): ClientAddress,
    id: &str,
    action: &str,
) -> Result<(), ApiError> {
    let Some(reason) = refusal_reason(app.source_ports, source) else { return Ok(()) };
    let message = format!("machine {id}: cannot {action} from {address}: {reason}");
    app.log_rate_limited(ErrorCode::BootToken.annotate(message.clone()));
    Err(ApiError::new(StatusCode::FORBIDDEN, message).with_error_code(ErrorCode::BootToken))
}

/// Returns the reason why a request from this source port may come from an unprivileged process, with remedies.
fn refusal_reason(ports: SourcePorts, SourcePort(port): SourcePort) -> Option<String> {
    const ANY_PORT_REMEDY: &str = "or start the server with --any-source-port (see docs/boot.md)";
    match (ports, port) {
        (SourcePorts::Any, _) => None,
        (SourcePorts::Below(first), Some(port)) if port < first => None,
        (SourcePorts::Below(first), Some(port)) => Some(format!(
            "source port {port} does not prove that a privileged process sent the request: such a process sends from a port below {first}; boot a ramdisk of this version; if \
             NAT changes the source ports, give the machines a route without NAT, {ANY_PORT_REMEDY}"
        )),
        (SourcePorts::Below(_), None) => Some(format!(
            "the proxy does not forward the source port; configure the proxy to send `X-Forwarded-For: [ADDRESS]:PORT`, {ANY_PORT_REMEDY}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ports_that_unprivileged_processes_cannot_bind_prove_privileges() {
        let below = SourcePorts::Below(FIRST_UNPRIVILEGED_PORT);
        for (ports, port, refused) in [
            (below, Some(1), None),
            (below, Some(1023), None),
            (below, Some(1024), Some("source port 1024 does not prove")),
            (below, Some(65535), Some("below 1024")),
            (below, None, Some("the proxy does not forward the source port")),
            (SourcePorts::Any, Some(1024), None),
            (SourcePorts::Any, None, None),
        ] {
            let reason = refusal_reason(ports, SourcePort(port));
            assert_eq!(reason.is_some(), refused.is_some(), "{port:?}");
            assert!(reason.unwrap_or_default().contains(refused.unwrap_or_default()), "{port:?}");
        }
    }
}
