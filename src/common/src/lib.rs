//! Modules that all other crates use: errors, exit codes, diagnostics, output on terminals, text encodings, and parsing
//! of untrusted YAML within size and depth limits.
//!
//! The crate opens neither files nor connections. It writes only to the standard streams, and reads only from readers
//! that its callers pass. It does not contain any code about machines or disks. Start with [`error`] and
//! [`diagnostic`].

pub mod bounded_read;
pub mod command_outcome;
pub mod diagnostic;
pub mod empty_string_as_none;
pub mod encoding;
pub mod error;
pub mod error_code;
pub mod format;
pub mod json_schema_cleanup;
pub mod output;
#[cfg(any(test, feature = "testing"))]
pub mod output_capture;
pub mod spelling_suggestions;
pub mod sync;
pub mod timestamp;
pub mod type_errors;
pub mod url_host;
pub mod yaml;
