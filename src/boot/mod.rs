//! From the installed tree into the installed system.

pub mod efi;
mod info;
pub mod kexec;

pub use info::BootInfo;
