//! Sources from which a machine boots.

use crate::phase_times;
use std::path::Path;

/// Source from which a machine boots.
pub enum BootMethod<'a> {
    /// Boots over PXE from this TFTP folder.
    Network(&'a Path),
    /// Boots from the disks, without a NIC.
    Disk,
    /// Boots from the disks, with NICs. The installed system runs this script when it is up.
    DiskThen(&'a Path),
    /// Boots from the disks except this one. Writes are discarded, because the removed disk would not receive them.
    DiskWithout(&'a str),
    /// Starts a kernel and a ramdisk that QEMU loads. If `on_copy` is true, no writes reach the disks.
    Direct { kernel: &'a Path, initrd: &'a Path, cmdline: &'a str, on_copy: bool, network: bool },
}

impl BootMethod<'_> {
    /// Returns whether the machine starts the inspection ramdisk, which needs only the disks.
    pub fn is_inspection(&self) -> bool {
        matches!(self, BootMethod::Direct { network: false, .. })
    }

    /// Returns the phases of this boot whose times are measured.
    pub fn phases(&self) -> &'static [(&'static str, &'static str)] {
        match self {
            BootMethod::Network(_) | BootMethod::Direct { network: true, .. } => phase_times::NETWORK,
            BootMethod::Disk | BootMethod::DiskThen(_) | BootMethod::DiskWithout(_) => phase_times::DISK,
            BootMethod::Direct { .. } => phase_times::DIRECT,
        }
    }
}
