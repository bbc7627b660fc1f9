//! From the installed tree into the installed system.

mod info;
pub mod kexec;

pub use info::BootInfo;
