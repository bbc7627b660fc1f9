//! Test doubles, fuzzing, and access to documentation and sources, for the tests of the other crates.

pub mod docs;
pub mod executables;
pub mod filled_byte_check;
pub mod fuzz_driver;
pub mod http;
pub mod images;
pub mod postgres;
pub mod reference_implementation;
mod sandboxed_workers;
pub mod sources;
pub mod test_engine;
