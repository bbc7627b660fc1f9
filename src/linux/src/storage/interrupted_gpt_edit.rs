//! Registers the partitions of a disk after an edit of its GPT was interrupted.
//!
//! An edit writes the backup copy first. If the power fails while the primary copy is written, only the backup copy is
//! valid. The kernel reads the backup copy only if its command line contains `gpt`. Otherwise it registers no partition
//! of such a disk, and the preserved partitions would seem to be missing. The next edit repairs the primary copy.

use super::block_device;
use crate::gpt::{Gpt, PROTECTIVE};
use common::error::{Context, Phase, Result};
use model::device_name::DevicePath;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Registers the partitions of the backup copy with the kernel, if the primary copy is damaged and the kernel has not
/// registered any partition of the disk. Returns the numbers of the registered partitions. The disk is not written.
///
/// # Errors
/// Returns an error if the disk cannot be opened or examined, or if the kernel refuses a partition.
pub fn register_backup_partitions(disk: &DevicePath) -> Result<Vec<u32>> {
    let what = || format!("read the partition table of {disk}");
    if !block_device::read_partitions(disk)?.is_empty() {
        return Ok(Vec::new());
    }
    let file = File::open(disk).context(Phase::Storage, what)?;
    let sector = u64::from(block_device::read_sector_bytes(&file).context(Phase::Storage, what)?);
    let sectors = block_device::read_size_bytes(&file).context(Phase::Storage, what)? / sector.max(1);
    let Some(table) = read_only_valid_copy(&file, sector, sectors) else { return Ok(Vec::new()) };
    let mut registered = Vec::new();
    for entry in table.entries() {
        let (start, end) = (entry.sectors.start, entry.sectors.end);
        if start < table.first_usable() || end <= start || end - 1 > table.last_usable() {
            continue;
        }
        block_device::add_partition(&file, entry.number, start * sector, (end - start) * sector)
            .context(Phase::Storage, || format!("register {} with the kernel", disk.partition_path(entry.number)))?;
        registered.push(entry.number);
    }
    Ok(registered)
}

/// Returns the backup copy if it is valid and the primary copy is damaged; otherwise `None`. If a disk lacks a
/// protective MBR or the primary header, the result is also `None`, because the disk does not have a GPT.
fn read_only_valid_copy(file: &File, sector: u64, sectors: u64) -> Option<Gpt> {
    let read_at = |bytes: &mut [u8], offset: u64| file.read_exact_at(bytes, offset);
    let mut mbr = [0; 512];
    file.read_exact_at(&mut mbr, 0).ok()?;
    let is_protective =
        mbr[510..] == [0x55, 0xaa] && mbr[446..510].chunks_exact(16).any(|entry| entry[4] == PROTECTIVE);
    if !is_protective || Gpt::read(&read_at, sector, 1).is_ok() {
        return None;
    }
    let backup = Gpt::read(&read_at, sector, sectors.checked_sub(1)?).ok().flatten()?;
    (backup.backup_lba() == 1 && backup.last_usable() < sectors).then_some(backup)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::partition_table;
    use crate::storage::test_loop_device::TestLoopDevice;
    use operations::PartitionTable;
    use std::fs::OpenOptions;

    /// Returns a disk with two partitions, neither of which is registered with the kernel, as after a boot.
    fn rebooted(sector_bytes: u32, damaged: &[u64]) -> (TestLoopDevice, PartitionTable) {
        let disk = TestLoopDevice::new(16 << 20, sector_bytes);
        let mib = (1 << 20) / u64::from(sector_bytes);
        let table = disk.table(sector_bytes, &[(1, mib, 5 * mib), (3, 6 * mib, 9 * mib)]);
        partition_table::write_partition_table(&table).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(disk.path()).unwrap();
        [1, 3].iter().for_each(|number| block_device::delete_partition(&file, *number).unwrap());
        for offset in damaged {
            let mut byte = [0];
            file.read_exact_at(&mut byte, *offset).unwrap();
            file.write_all_at(&[byte[0] ^ 1], *offset).unwrap();
        }
        file.sync_all().unwrap();
        (disk, table)
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_partitions_of_the_backup_copy_are_registered_after_an_interrupted_edit() {
        for sector_bytes in [512, 4096] {
            let entries = 2 * u64::from(sector_bytes);
            let (disk, table) = rebooted(sector_bytes, &[entries + 60]);
            let before = std::fs::read(disk.image()).unwrap();
            assert_eq!(register_backup_partitions(disk.path()).unwrap(), [1, 3]);
            let known = block_device::read_partitions(disk.path()).unwrap();
            let known: Vec<_> = known.iter().map(|known| (known.number, known.start_bytes, known.size_bytes)).collect();
            let planned = table.partitions.iter().map(|new| {
                let (start, length) = partition_table::byte_range(sector_bytes, new);
                (new.number, start, length)
            });
            assert_eq!(known, planned.collect::<Vec<_>>());
            assert!(std::fs::read(disk.image()).unwrap() == before, "the disk was written");
            assert_eq!(register_backup_partitions(disk.path()).unwrap(), [0; 0], "they are registered already");
        }
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_no_partitions_are_registered_of_an_intact_table_or_of_two_damaged_copies_or_of_no_table() {
        let size = 16 << 20;
        for (name, damaged) in [
            ("intact", vec![]),
            ("both copies are damaged", vec![1024 + 60, size - 33 * 512 + 60]),
            ("the primary header is missing", vec![512]),
            ("the MBR is not protective", vec![446 + 4, 1024 + 60]),
            ("the backup header is damaged too", vec![1024 + 60, size - 512 + 20]),
        ] {
            let (disk, _) = rebooted(512, &damaged);
            assert_eq!(register_backup_partitions(disk.path()).unwrap(), [0; 0], "{name}");
            assert_eq!(block_device::read_partitions(disk.path()).unwrap(), [], "{name}");
        }
    }
}
