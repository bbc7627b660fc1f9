//! Boot of the installed system.

pub mod boot_info;
pub mod boot_parameter_discovery;
pub mod efi;
mod fstab_device_lookup;
pub mod installed_system;
pub mod kexec;
pub mod network_shutdown;

use model::install_report::BootInfo;
