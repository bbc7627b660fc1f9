//! What lies on what, and which device of a machine is which of a layout.
//!
//! The graph of a layout is made where layouts are ([`crate::layout::tree`]), that of a machine here.

pub mod find;
pub mod graph;
mod index;
mod matching;
pub mod multipath;
pub mod names;
mod stack;
pub mod steps;

pub use matching::{Match, arrays_on, groups_on, opened_on};
pub use stack::{Combined, Stack, Unit, units};
