//! From the installed tree into the installed system.

pub mod back;
mod info;
pub mod kexec;
mod source;

pub use info::BootInfo;
