//! Boot of the installed system.

pub mod boot_discovery;
pub mod boot_info;
pub mod efi;
mod fstab_device_lookup;
pub mod installed_system;
pub mod kexec;
pub mod network_down;

use model::install_report::BootInfo;
