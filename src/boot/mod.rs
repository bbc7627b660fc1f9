//! Boot of the installed system.

pub mod boot_discovery;
mod boot_info;
pub mod efi;
mod fstab_source;
pub mod installed_system;
pub mod kexec;
pub mod network_down;

use crate::install_report::BootInfo;
