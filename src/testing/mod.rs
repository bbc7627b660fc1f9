//! Test doubles for the control plane and HTTP servers.

#[cfg(feature = "agent")]
pub mod control;
#[cfg(any(feature = "agent", feature = "serve"))]
pub mod http;
