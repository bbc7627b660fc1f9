//! The system in the making: files in its tree, its installer, its fstab, its marker.

mod devices;
pub mod files;
pub mod finish;
pub mod fstab;
pub mod installer;
pub mod marker;
mod root;

pub use root::Root;
