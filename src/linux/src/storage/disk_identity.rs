//! Verifies that a device is still the disk for which the plan was made. Device names are not stable: if a disk
//! responds late, another disk may become `/dev/sdb`.

use super::block_device;
use crate::probe;
use common::empty_string_as_none;
use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use model::device_name::DevicePath;
use model::inventory::OVERLAY;
use model::storage_graph::layer_graph::traversal;
use operations::DiskIdentity;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Opens the disk, and compares its identity with the identity in the plan.
///
/// # Errors
/// Returns an error if the device is missing, or is not the planned disk; the error lists all differences.
pub(crate) fn open_identified_disk(identity: &DiskIdentity) -> Result<File> {
    let device = &identity.device;
    let what = || format!("find the disk {device} of the plan (nothing was written)");
    // sysfs is queried first, so that only block devices are opened.
    block_device::sysfs_path(device).context(Phase::Storage, what)?;
    let disk = File::open(device).context(Phase::Storage, what)?;
    compare_identity(&disk, identity, "nothing was written").map(|()| disk)
}

/// Verifies the identity of an open disk before it is written. After the verification, the descriptor refers to this
/// disk even if the path of the disk changes.
///
/// # Errors
/// Returns an error if the open disk is not the planned disk. In this case, the disk was not written.
pub fn verify_identity(disk: &File, identity: &DiskIdentity) -> Result<()> {
    compare_identity(disk, identity, "the disk was not changed")
}

fn compare_identity(disk: &File, identity: &DiskIdentity, consequence: &str) -> Result<()> {
    let device = &identity.device;
    let differences = list_differences(identity, &read_identity(disk, device)?);
    if differences.is_empty() {
        return Ok(());
    }
    let differences = differences.join(", ");
    let what = format!("{device} is not the disk for which the plan was made: {differences}; {consequence}");
    Err(Error::new(Phase::Storage, what).with_code(ErrorCode::DiskIdentity))
}

/// Reads the identity of an open disk.
///
/// # Errors
/// Returns an error if the file is not a block device, or its properties cannot be read.
pub fn read_identity(disk: &File, device: &DevicePath) -> Result<DiskIdentity> {
    let (serial, wwn) = probe::read_serial_and_wwn(&block_device::sysfs_path_of_open(disk, device)?);
    let size_bytes =
        block_device::read_size_bytes(disk).context(Phase::Storage, || format!("read the size of {device}"))?;
    let diskseq =
        block_device::read_diskseq(disk).context(Phase::Storage, || format!("read the sequence number of {device}"))?;
    let (device, serial, wwn) =
        (device.clone(), empty_string_as_none::non_empty(serial), empty_string_as_none::non_empty(wwn));
    Ok(DiskIdentity { device, size_bytes, serial, wwn, diskseq })
}

/// Returns each difference between the planned and the current identity. Properties that the plan does not contain are
/// not compared.
fn list_differences(plan: &DiskIdentity, now: &DiskIdentity) -> Vec<String> {
    let mut differences = Vec::new();
    for (what, planned, found) in [("serial", &plan.serial, &now.serial), ("wwn", &plan.wwn, &now.wwn)] {
        if let Some(planned) = planned.as_deref().filter(|planned| found.as_deref() != Some(*planned)) {
            differences.push(format!(
                "the {what} was {planned} when the plan was made, and is {actual} now",
                actual = found.as_deref().unwrap_or("unknown")
            ));
        }
    }
    if plan.size_bytes != now.size_bytes {
        differences.push(format!("{} bytes are now {}", plan.size_bytes, now.size_bytes));
    }
    if let (Some(planned), Some(found)) = (plan.diskseq, now.diskseq)
        && planned != found
    {
        differences.push(format!(
            "the disk's sequence number (diskseq) was {planned} when the plan was made, and is {found} now"
        ));
    }
    differences
}

/// Disks of a plan, which stay open while the plan is executed. The kernel does not assign the name of an open disk to
/// another disk.
#[derive(Debug, Default)]
pub struct HeldDisks(Vec<(DiskIdentity, File)>);

impl HeldDisks {
    /// Opens a disk and keeps it open.
    ///
    /// # Errors
    /// The same errors as for [`open_identified_disk`].
    pub fn hold_disk(&mut self, identity: &DiskIdentity) -> Result<()> {
        self.0.push((identity.clone(), open_identified_disk(identity)?));
        Ok(())
    }

    /// Verifies a device that will be written by its path: all disks beneath the device must be in the plan, and must
    /// still have the planned identity.
    ///
    /// # Errors
    /// Returns an error if the device is on a disk that is not part of the plan, or on a disk that was replaced. In
    /// this case, the device was not written.
    pub fn verify_underlying_disks(&self, device: &DevicePath) -> Result<()> {
        for bottom in find_underlying_disks(&block_device::sysfs_path(device)?) {
            let is_it = |disk: &File| block_device::sysfs_path_of_open(disk, device).is_ok_and(|held| held == bottom);
            let Some((identity, disk)) = self.0.iter().find(|(_, disk)| is_it(disk)) else {
                let name = bottom.file_name().unwrap_or_default().to_string_lossy();
                let what =
                    format!("{device} is on {name}, which is not a disk of the plan; the device was not changed");
                return Err(Error::new(Phase::Storage, what).with_code(ErrorCode::DiskIdentity));
            };
            verify_identity(disk, identity)?;
        }
        Ok(())
    }
}

/// Returns the sysfs directories of the disks beneath a block device.
fn find_underlying_disks(device: &Path) -> BTreeSet<PathBuf> {
    let mut bottoms = traversal::find_ends([device.to_owned()], |device| {
        if device.join("partition").exists() {
            return device.parent().map(Path::to_owned).into_iter().collect();
        }
        let slaves = fs::read_dir(device.join("slaves")).into_iter().flatten().flatten();
        // Below overlays of this program there are also loop devices that hold changes in memory. These loop devices
        // are omitted, because they are not disks.
        let is_overlay = fs::read_to_string(device.join("dm/name")).is_ok_and(|name| name.starts_with(OVERLAY));
        let slaves = slaves.filter(|slave| !is_overlay || !slave.file_name().to_string_lossy().starts_with("loop"));
        slaves.filter_map(|slave| fs::canonicalize(slave.path()).ok()).collect()
    });
    // Mappings without underlying devices are omitted, because they are not disks. LVM uses such mappings in place of
    // the missing data of a volume.
    bottoms.retain(|bottom| !["dm", "md"].iter().any(|kind| bottom.join(kind).exists()));
    bottoms
}

#[cfg(test)]
mod tests;
