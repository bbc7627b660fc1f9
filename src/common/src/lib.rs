//! Errors, exit codes, diagnostics, output for people, and YAML within bounds: what every other crate uses.
//!
//! The crate performs no I/O except output on standard streams, and has no knowledge of machines. Start with [`error`]
//! and [`diagnostic`].

pub mod diagnostic;
pub mod error;
pub mod exit_code;
pub mod format;
pub mod json_schema;
pub mod output;
pub mod serde_empty;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod yaml;
