//! The system in the making: files in its tree, its installer, its fstab.

pub mod files;
pub mod fstab;
pub mod installer;
mod root;

pub use root::Root;
