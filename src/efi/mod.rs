//! Variables of UEFI firmware: efivarfs, load options and device paths. Section numbers are those of the UEFI specification.

pub mod load_option;
pub mod own;
mod print;
pub mod variables;

pub use load_option::{LoadOption, Node, PartitionLocation};
pub use print::{device_path_text, text_arguments};
pub use variables::{VARIABLES, Variables};
