//! Stacking of block devices, and the mapping between the devices of a layout and the devices of a machine.
//!
//! The graph of a machine is in this module, and the graph of a layout is in [`crate::layout::graph`].

pub(crate) mod computation_step_budget;
mod device_name_index;
pub mod device_references;
mod device_stack;
pub mod disk_lookup;
pub mod layer_graph;
mod layout_device_match;
pub mod multipath;

pub use device_stack::{CombinedValues, DeviceStack, StackUnit, all_units};
pub use layout_device_match::{LayoutMatch, find_arrays_on, find_groups_on, find_mapping_on};
