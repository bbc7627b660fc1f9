//! Errors, exit codes, diagnostics, output for people, text encodings, and YAML within bounds: what every other crate uses.
//!
//! The crate opens no files and no connections: it writes to standard streams, and reads from readers that it is passed. It has no
//! knowledge of machines. Start with [`error`]
//! and [`diagnostic`].

pub mod bounded_read;
pub mod command_outcome;
pub mod diagnostic;
pub mod encoding;
pub mod error;
pub mod format;
pub mod json_schema;
pub mod output;
pub mod serde_empty;
pub mod spelling;
pub mod sync;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod yaml;
