//! Variables of UEFI firmware: efivarfs, load options and device paths. Section numbers refer to the UEFI
//! specification.

mod boot_entry_text;
pub mod drophammer_variables;
pub mod load_option;
pub mod variables;

pub(crate) use boot_entry_text::{device_path_text, text_arguments};
pub use load_option::{DevicePathNode, LoadOption, PartitionLocation};
pub use variables::{BootVariables, VARIABLES};
