//! Stacking of block devices, and the mapping between the devices of a layout and those of a machine.
//!
//! The graph of a layout is in [`crate::layout::tree`], that of a machine is here.

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
