//! Changes single entries of a GPT on a disk of which other partitions are preserved and may be in use.

use super::block_device::{self, KernelPartition};
use super::{disk_identity, partition_table, signature_wipe};
use crate::gpt::edit::{TableWrites, compute_table_writes};
use common::error::{Context, Error, Phase, Result};
use model::device_name::DevicePath;
use nix::libc::O_DIRECT;
use operations::TableEdit;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

/// Alignment of buffers for O_DIRECT, sufficient for sectors of any size.
const ALIGNMENT: usize = 4096;

/// Result of an edit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableEditOutcome {
    /// The table was already the edited one, so nothing was written.
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
    let sectors = partition_table::check_sectors(&disk, device, edit.sector_bytes)?;
    let read_at = |bytes: &mut [u8], offset: u64| read_direct(&disk, bytes, offset, u64::from(edit.sector_bytes));
    let what = || format!("edit the partition table of {device} (nothing was written)");
    let writes = compute_table_writes(&read_at, sectors, edit).context(Phase::Storage, what)?;
    let stale = find_stale_partitions(edit, writes.count_sectors() > 0)?;
    stale.iter().try_for_each(|partition| check_unused(device, partition))?;
    stale.iter().try_for_each(|partition| signature_wipe::unregister_partition(&disk, partition))?;
    write_sectors(&disk, &writes).context(Phase::Storage, || format!("write the partition table of {device}"))?;
    verify_written(&read_at, sectors, edit)
        .context(Phase::Storage, || format!("read back the partition table of {device}"))?;
    register_changed_partitions(&disk, edit)?;
    Ok(match writes.count_sectors() {
        0 => TableEditOutcome::Unchanged,
        sectors => TableEditOutcome::Written { sectors },
    })
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

/// Finds the partitions that the kernel must forget. A recreated partition is one of them, even if its location is the
/// same, unless the table is already the edited one.
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
            let mut buffer = AlignedBuffer::new(write.bytes.len());
            buffer.as_mut_slice().copy_from_slice(&write.bytes);
            disk.write_all_at(buffer.as_mut_slice(), write.offset)?;
        }
        disk.sync_all()?;
    }
    Ok(())
}

fn verify_written(read_at: crate::gpt::ReadAt, sectors: u64, edit: &TableEdit) -> io::Result<()> {
    match compute_table_writes(read_at, sectors, edit)?.count_sectors() {
        0 => Ok(()),
        differing => Err(io::Error::other(format!("{differing} sectors differ from those written"))),
    }
}

/// Registers the partitions that the kernel does not know, and waits for the device nodes of the added ones.
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

/// Reads a range that need not be aligned to sectors.
fn read_direct(disk: &File, bytes: &mut [u8], offset: u64, sector: u64) -> io::Result<()> {
    let start = offset / sector * sector;
    let end = offset.checked_add(bytes.len() as u64).ok_or(io::ErrorKind::InvalidInput)?.next_multiple_of(sector);
    let mut buffer = AlignedBuffer::new((end - start) as usize);
    disk.read_exact_at(buffer.as_mut_slice(), start)?;
    let skipped = (offset - start) as usize;
    bytes.copy_from_slice(&buffer.as_mut_slice()[skipped..skipped + bytes.len()]);
    Ok(())
}

/// Zeroed buffer for O_DIRECT.
struct AlignedBuffer {
    memory: Vec<u8>,
    length: usize,
}

impl AlignedBuffer {
    fn new(length: usize) -> AlignedBuffer {
        AlignedBuffer { memory: vec![0; length + ALIGNMENT], length }
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        let first = self.memory.as_ptr().align_offset(ALIGNMENT);
        &mut self.memory[first..first + self.length]
    }
}

#[cfg(test)]
mod tests;
