//! The target, which is the system being installed: its files, boot configuration, fstab and install marker.

pub mod chroot;
pub mod create;
pub mod crypttab;
mod devices;
pub mod files;
pub mod finish;
pub mod fstab;
pub mod inject;
pub mod installer;
pub mod marker;
mod root;
#[cfg(test)]
mod testing;
pub mod volumes;

pub use root::Root;
