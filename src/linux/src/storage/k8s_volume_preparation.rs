//! Prepares Kubernetes volumes. The content of a volume is identified by the volume's UUID.

use super::{block_device, disk_identity, lvm, mkfs, partition_table, signature_wipe};
use crate::gpt::{Gpt, GptEntry, protective_mbr};
use crate::probe;
use common::error::{Context, Error, Phase, Result};
use model::device_name::DevicePath;
use model::layout::PartitionType;
use operations::{CreateK8sVolume, InitialVolumeContent, NewPartition, PartitionTable, VolumePath};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;
use uuid::Uuid;

const MIB: u64 = 1 << 20;

/// Time limit for mkfs on a sparse file, to which mkfs writes only metadata.
const MKFS_DEADLINE: Duration = Duration::from_secs(600);

/// Creates the logical volume if the plan contains one, and then the filesystem or partition of the Kubernetes volume.
///
/// # Errors
/// Returns an error if the device is no longer blank or is in use, or a tool fails.
pub fn prepare_volume(volume: &CreateK8sVolume) -> Result<()> {
    let CreateK8sVolume { name, uid, device, create, must_be_blank, filling } = volume;
    let what = || format!("prepare volume {name}");
    if let Some(create) = create {
        lvm::create_volume(create).context(Phase::Storage, what)?;
    }
    if *must_be_blank {
        require_blank(device).context(Phase::Storage, what)?;
    }
    match filling {
        InitialVolumeContent::Filesystem(make) => mkfs::make_filesystem(make),
        InitialVolumeContent::Partition { guid } => create_partition(device, *guid, *uid, name),
        InitialVolumeContent::Nothing => Ok(()),
    }
    .context(Phase::Storage, what)
}

/// Checks again that the device is blank, because the plan may be an hour old and the device may have changed since
/// then.
fn require_blank(device: &DevicePath) -> Result<()> {
    let is_blank = probe::is_blank(device.as_ref()).context(Phase::Storage, || format!("read {device}"))?;
    match is_blank {
        true => Ok(()),
        false => Err(Error::new(Phase::Storage, format!("{device} is no longer blank: the device was not changed"))),
    }
}

fn create_partition(device: &DevicePath, guid: Uuid, uid: Uuid, name: &str) -> Result<()> {
    // The path is resolved, because it may be a link such as `/dev/md/data` for an array, but the names of the array's
    // partitions are derived from its kernel name.
    let device = &fs::canonicalize(device).context(Phase::Storage, || format!("find {device}"))?;
    let device = &DevicePath::from(device.to_string_lossy().into_owned());
    // If an interrupted attempt has left a partition table on the device, this table is wiped first.
    signature_wipe::wipe_signatures(device)?;
    let disk = File::open(device).context(Phase::Storage, || format!("open {device}"))?;
    let identity = disk_identity::read_identity(&disk, device)?;
    let sector_bytes = block_device::read_sector_bytes(&disk)
        .context(Phase::Storage, || format!("read the sector size of {device}"))?;
    let (first_lba, last_lba) = whole_disk_range(identity.size_bytes, sector_bytes.into());
    let (kind, partition) = (PartitionType::Linux.guid(), device.partition_path(1));
    let new =
        NewPartition { number: 1, device: partition, first_lba, last_lba, kind, guid: uid, name: name.to_owned() };
    partition_table::write_partition_table(&PartitionTable {
        device: device.clone(),
        identity,
        guid,
        sector_bytes,
        partitions: vec![new],
    })
}

/// Returns the first and last sector of a partition that covers the device. At least one MiB at each end of the device
/// is left for the partition tables. The partition starts and ends at whole MiB.
fn whole_disk_range(size_bytes: u64, sector_bytes: u64) -> (u64, u64) {
    let end = (size_bytes / MIB).saturating_sub(1) * MIB;
    (MIB / sector_bytes, (end / sector_bytes).saturating_sub(1))
}

/// Creates the filesystem or partition table in the new sparse file `path`.
///
/// # Errors
/// Returns an error if the tool fails, or the file cannot be written.
pub fn fill_sparse_file(path: &Path, filling: &InitialVolumeContent, uid: Uuid, name: &str) -> Result<()> {
    let what = || format!("prepare the backing file of volume {name}");
    match filling {
        InitialVolumeContent::Filesystem(make) => {
            let device = DevicePath::from(path.to_string_lossy().into_owned());
            let make = operations::MakeFilesystem { device, ..make.clone() };
            let made = mkfs::run_mkfs(&make, MKFS_DEADLINE).context(Phase::Storage, what)?;
            made.context(Phase::Storage, what)?;
            mkfs::verify_uuid(&make)
        }
        InitialVolumeContent::Partition { guid } => {
            partition_sparse_file(path, *guid, uid, name).context(Phase::Storage, what)
        }
        InitialVolumeContent::Nothing => Ok(()),
    }
}

/// Creates the partition table of a sparse file. The table is for sectors of 512 bytes, because losetup presents the
/// file with this sector size.
fn partition_sparse_file(path: &Path, guid: Uuid, uid: Uuid, name: &str) -> io::Result<()> {
    const SECTOR: u64 = 512;
    let file = File::options().read(true).write(true).open(path)?;
    let size_bytes = file.metadata()?.len();
    let mut gpt = Gpt::new(SECTOR, size_bytes / SECTOR, guid)?;
    let (first, last) = whole_disk_range(size_bytes, SECTOR);
    gpt.set_partition(
        &GptEntry { number: 1, kind: PartitionType::Linux.guid(), guid: uid, sectors: first..last + 1 },
        name,
    );
    gpt.write(&file)?;
    file.write_all_at(&protective_mbr(gpt.backup_lba()), 0)?;
    file.sync_all()
}

/// Returns the device path from which Kubernetes mounts the volume.
///
/// # Errors
/// Returns an error if LVM fails.
pub fn persistent_path(persistent: &VolumePath) -> Result<String> {
    match persistent {
        VolumePath::Known(path) => Ok(path.clone()),
        VolumePath::NewVolume(create) => {
            let (group, volume) = lvm::read_uuids(create)?;
            Ok(operations::logical_volume_link(&group, &volume))
        }
    }
}

/// Returns the size of a block device.
///
/// # Errors
/// Returns an error if the device is missing.
pub fn read_device_size(device: &DevicePath) -> Result<u64> {
    let size = File::open(device).and_then(|file| Ok(block_device::read_size_bytes(&file)?));
    size.context(Phase::Storage, || format!("read the size of {device}"))
}

#[cfg(test)]
mod tests;
