//! Stacking of block devices, and the mapping between the devices of a layout and those of a machine.
//!
//! The graph of a layout is in [`crate::layout::graph`], that of a machine is here.

mod device_index;
mod device_match;
pub mod device_names;
mod device_stack;
pub mod graph;
pub mod lookup;
pub mod multipath;
pub(crate) mod step_budget;

pub use device_match::{LayoutMatch, find_arrays_on, find_groups_on, find_mapping_on};
pub use device_stack::{CombinedValues, DeviceStack, StackUnit, all_units};
