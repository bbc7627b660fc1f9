//! What stands in for the rest of the world in unit tests.

#[cfg(feature = "agent")]
pub mod control;
#[cfg(any(feature = "agent", feature = "serve"))]
pub mod http;
