//! What will be done: a pure function of layout, inventory and mode.

mod types;

pub use types::*;
