//! HTTP connections of `drophammer serve`: TLS, limits, error responses, and the log.
//!
//! Clients on the boot network are unauthenticated. Therefore each client address has quotas for connections, request
//! bodies, concurrent requests and log lines, and no client can prevent others from being served. The crate does not
//! define any endpoint: it serves the routers that the server passes. Start with [`connections`].
//!
//! * Connections: [`connections`] accepts connections within the limits, [`tls`] encrypts them, `write_timeout` ends
//!   connections to clients that do not read, `body_drain` discards unread request bodies, and [`fd_limit`] limits the
//!   open files. [`listen_address`] parses the addresses to listen on.
//! * Requests: [`client_address`] identifies clients, [`client_quotas`], [`request_permits`] and
//!   [`anonymous_event_limit`] limit clients, [`request_context`] assigns request ids, and [`api_error`] formats error
//!   responses.
//! * Log: [`server_log`] writes the log, [`rate_limited_log`] limits the log lines that clients can trigger,
//!   [`live_machine_states`] stores the states that pages watch, and [`server_health`] stores the problems of the
//!   server itself.

pub mod anonymous_event_limit;
pub mod api_error;
mod body_drain;
pub mod client_address;
pub mod client_quotas;
pub mod connections;
pub mod fd_limit;
pub mod listen_address;
pub mod live_machine_states;
pub mod rate_limited_log;
pub mod request_context;
pub mod request_permits;
pub mod server_health;
pub mod server_log;
pub mod tls;
mod write_timeout;
