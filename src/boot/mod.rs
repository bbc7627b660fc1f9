//! Boot of the installed system.

pub mod back;
pub mod efi;
pub mod found;
mod info;
pub mod kexec;
pub mod net;
mod source;

use crate::facts::BootInfo;
