//! Disk operations, with one file for each kernel interface or tool. Each function takes an operation of the plan and
//! returns a typed result; all decisions are made by the planner.

pub mod activation_rehearsal;
pub mod aligned_buffer;
pub mod block_device;
pub mod boot_loader_area;
mod btrfs_scan;
pub mod busy_device_users;
pub mod creation_trial;
mod direct_io;
pub mod disk_erase;
pub mod disk_identity;
mod external_ext_journal;
pub mod filesystem_features;
pub mod filesystem_growth;
pub mod image_table_adaptation;
pub mod interrupted_gpt_edit;
pub mod k8s_volume_preparation;
mod loop_device;
pub mod luks;
pub mod lvm;
pub mod mdadm;
pub(crate) mod memory_device;
pub mod mkfs;
pub mod mount;
pub(crate) mod overlay;
pub mod partition_table;
pub mod partition_table_edit;
pub mod range_clearing;
pub mod read_only_assembly;
mod scratch_disk;
pub mod signature_wipe;
pub mod teardown;
pub mod unmounted_filesystem_inspection;
pub mod write_protection;
pub mod writeback;
pub mod zero_verification;

#[cfg(test)]
mod kernel_filesystem_tests;
#[cfg(any(test, feature = "testing"))]
pub mod test_loop_device;
#[cfg(any(test, feature = "testing"))]
pub mod vm_test_disks;

/// Returns the tools that an installation requires. hdparm is optional: without it, ATA security erase is not used.
pub fn required_tools() -> Vec<&'static str> {
    [mkfs::TOOLS, mdadm::TOOLS, lvm::TOOLS, teardown::TOOLS].concat()
}
