//! Changes single GPT entries on a disk whose other partitions are preserved and may be in use.

use super::block_device::{self, KernelPartition};
use super::direct_io::{self, read_direct};
use super::{disk_identity, partition_table, signature_wipe};
use crate::gpt::edit::{TableWrites, compute_table_writes};
use common::error::{Context, Error, Phase, Result};
use model::device_name::DevicePath;
use nix::libc::O_DIRECT;
use operations::TableEdit;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;

/// Result of an edit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableEditOutcome {
    /// An earlier attempt had already completed the edit, so nothing was written.
    Unchanged,
    /// The table was changed.
    Written { sectors: usize },
}

/// Removes and adds entries of the disk's GPT, and preserves all other entries byte for byte. Reads both copies back,
/// and registers only the changed partitions with the kernel. The MBR is not changed.
///
/// The disk is accessed with O_DIRECT: the page cache of the disk is not coherent with the page caches of its
/// partitions, and a page at the edge of the table may contain sectors of a partition in use.
///
/// # Errors
/// Returns an error, before anything is written, if the disk is not the planned one, its table does not allow the edit
/// (see [`compute_table_writes`]), or a removed partition is in use. Also returns an error if a write fails, or if the
/// table on the disk, or the partitions registered with the kernel, differ from the plan.
pub fn edit_partition_table(edit: &TableEdit) -> Result<TableEditOutcome> {
    let device = &edit.device;
    let opened = OpenOptions::new().read(true).write(true).custom_flags(O_DIRECT).open(device);
    let disk = opened.context(Phase::Storage, || format!("open {device} for writing"))?;
    disk_identity::verify_identity(&disk, &edit.identity)?;
    let disk = partition_table::lock_disk(&disk, device)?;
    let (writes, stale) = prepare_edit(&disk, edit)?;
    stale.iter().try_for_each(|partition| check_unused(device, partition))?;
    stale.iter().try_for_each(|partition| signature_wipe::unregister_partition(&disk, partition))?;
    write_sectors(&disk, &writes).context(Phase::Storage, || format!("write the partition table of {device}"))?;
    verify_written(&disk, edit).context(Phase::Storage, || format!("read back the partition table of {device}"))?;
    register_changed_partitions(&disk, edit)?;
    Ok(match writes.count_sectors() {
        0 => TableEditOutcome::Unchanged,
        sectors => TableEditOutcome::Written { sectors },
    })
}

/// Checks that the table of the disk allows the edit. The disk is only read.
///
/// # Errors
/// Returns the errors of [`edit_partition_table`] that precede its first write, except those about partitions in use.
pub fn check_table_edit(edit: &TableEdit) -> Result<()> {
    let device = &edit.device;
    let opened = OpenOptions::new().read(true).custom_flags(O_DIRECT).open(device);
    let disk = opened.context(Phase::Storage, || format!("open {device}"))?;
    disk_identity::verify_identity(&disk, &edit.identity)?;
    prepare_edit(&disk, edit).map(drop)
}

/// Returns the sectors to write, and the partitions that the kernel must forget. Nothing is written.
fn prepare_edit(disk: &File, edit: &TableEdit) -> Result<(TableWrites, Vec<KernelPartition>)> {
    let device = &edit.device;
    partition_table::check_sectors(disk, device, edit.sector_bytes)?;
    let writes = compute_writes(disk, edit)
        .context(Phase::Storage, || format!("edit the partition table of {device} (nothing was written)"))?;
    let stale = find_stale_partitions(edit, writes.count_sectors() > 0)?;
    Ok((writes, stale))
}

fn compute_writes(disk: &File, edit: &TableEdit) -> io::Result<TableWrites> {
    let sector = u64::from(edit.sector_bytes);
    let read_at = |bytes: &mut [u8], offset: u64| read_direct(disk, bytes, offset, sector);
    let sectors = block_device::read_size_bytes(disk)? / sector.max(1);
    compute_table_writes(&read_at, sectors, edit)
}

/// Returns the planned partitions with their starts and lengths in bytes, by number.
fn list_planned_ranges(edit: &TableEdit) -> BTreeMap<u32, (u64, u64)> {
    let sector = u64::from(edit.sector_bytes);
    let preserved = edit
        .preserved
        .iter()
        .map(|entry| (entry.number, (entry.first_lba * sector, (entry.last_lba - entry.first_lba + 1) * sector)));
    let added = edit.added.iter().map(|new| (new.number, partition_table::byte_range(edit.sector_bytes, new)));
    preserved.chain(added).collect()
}

/// Finds the partitions that the kernel must forget. If the edit changes the table, a partition that is removed and
/// added again must also be forgotten, even if its location stays the same.
///
/// # Errors
/// Returns an error if a preserved partition has another location in the kernel, or the kernel has a partition that is
/// not part of the plan.
fn find_stale_partitions(edit: &TableEdit, is_table_changed: bool) -> Result<Vec<KernelPartition>> {
    let planned = list_planned_ranges(edit);
    let mut stale = Vec::new();
    for partition in block_device::read_partitions(&edit.device)? {
        let number = partition.number;
        let is_planned = planned.get(&number) == Some(&(partition.start_bytes, partition.size_bytes));
        if edit.removed.contains(&number) && (is_table_changed || !is_planned) {
            stale.push(partition);
        } else if !is_planned {
            let what = format!(
                "{node} is registered with the kernel at byte {start} with {size} bytes, which is not in the plan; \
                 nothing was written; plan again",
                node = partition.name.device_path(),
                start = partition.start_bytes,
                size = partition.size_bytes
            );
            return Err(Error::new(Phase::Storage, what));
        }
    }
    Ok(stale)
}

/// Checks that a partition that will be removed is not in use.
fn check_unused(device: &DevicePath, partition: &KernelPartition) -> Result<()> {
    let number = partition.number;
    signature_wipe::open_exclusive(&partition.name.device_path())
        .map(drop)
        .context(Phase::Storage, || format!("remove partition {number} of {device} (nothing was written)"))
}

fn write_sectors(disk: &File, writes: &TableWrites) -> io::Result<()> {
    for copy in &writes.copies {
        for write in copy {
            direct_io::write_aligned(disk, &write.bytes, write.offset)?;
        }
        disk.sync_all()?;
    }
    Ok(())
}

fn verify_written(disk: &File, edit: &TableEdit) -> io::Result<()> {
    match compute_writes(disk, edit)?.count_sectors() {
        0 => Ok(()),
        differing => {
            Err(io::Error::other(format!("{differing} sectors that were read back differ from the written sectors")))
        }
    }
}

/// Registers the planned partitions that are not registered with the kernel yet, and waits for the device nodes of the
/// added partitions.
fn register_changed_partitions(disk: &File, edit: &TableEdit) -> Result<()> {
    let planned = list_planned_ranges(edit);
    let known: Vec<u32> =
        block_device::read_partitions(&edit.device)?.into_iter().map(|partition| partition.number).collect();
    for (number, (start, length)) in planned.iter().filter(|(number, _)| !known.contains(number)) {
        partition_table::register_partition(disk, &edit.device, *number, *start, *length)?;
    }
    partition_table::verify_kernel_partitions(&edit.device, &planned)?;
    edit.added.iter().try_for_each(|new| partition_table::wait_for_node(&edit.device, new.number, &new.device))
}

#[cfg(test)]
mod tests;
