//! Writes a GPT exactly as planned, proves it by reading it back, and tells the kernel.
//!
//! Only the `gpt` crate's low-level parts are used: its `GptDisk` writes the n-th entry in use to the n-th slot, so
//! partitions 1, 2 and 15 would become 1, 2 and 3. Here entry N is in slot N-1.

use super::{identify, kernel, wipe};
use crate::error::{Context, Error, Phase, Result};
use crate::plan::{NewPartition, PartitionTable};
use gpt::disk::LogicalBlockSize;
use gpt::header::{Header, HeaderBuilder};
use gpt::mbr::ProtectiveMBR;
use gpt::partition::{Partition, file_read_partitions};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::{Duration, Instant};

/// UEFI's minimum, and what every tool writes.
const ENTRIES: u32 = 128;
const ENTRY_BYTES: u32 = 128;
const NAME_UNITS: usize = 36;

/// devtmpfs makes a node before BLKPG returns; this is for a machine that is very slow.
const NODE_PATIENCE: Duration = Duration::from_secs(10);

/// Writes protective MBR, both headers and both arrays of entries, reads them back, and waits for the partitions'
/// device nodes.
///
/// # Errors
/// The disk is in use, its sector size or size is not the planned one, a write fails, what is read back or what the
/// kernel shows differs from the plan, or a node does not appear.
pub fn write(table: &PartitionTable) -> Result<()> {
    let device = &table.device;
    let disk = wipe::open_exclusive(device)?;
    identify::prove(&disk, &table.identity)?;
    // Programs that honour systemd's BLOCK_DEVICE_LOCKING keep off while the table is half written.
    let lock = || {
        let disk = disk.try_clone().map_err(|error| kernel::errno(&error))?;
        Flock::lock(disk, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error)
    };
    let mut disk = kernel::patiently(Errno::EWOULDBLOCK, lock)
        .context(Phase::Storage, || format!("lock {device} against other tools"))?;
    let sectors = check_sectors(&disk, table)?;
    wipe::forget_partitions(&disk, device)?;
    let expected = Expected::of(table, sectors).context(Phase::Storage, || format!("partition table of {device}"))?;
    expected.write(&mut disk).context(Phase::Storage, || format!("write the partition table of {device}"))?;
    disk.sync_all().context(Phase::Storage, || format!("flush the partition table to {device}"))?;
    kernel::flush_buffers(&disk).context(Phase::Storage, || format!("drop the page cache of {device}"))?;
    expected.compare(&mut disk).context(Phase::Storage, || format!("read back the partition table of {device}"))?;
    add_to_kernel(&disk, table)?;
    compare_with_kernel(table)?;
    table.partitions.iter().try_for_each(|partition| wait_for_node(&table.device, partition.number, &partition.device))
}

/// Size of the disk in its sectors.
fn check_sectors(disk: &File, table: &PartitionTable) -> Result<u64> {
    let device = &table.device;
    let sector_bytes = kernel::sector_bytes(disk).context(Phase::Storage, || format!("sector size of {device}"))?;
    if sector_bytes != table.sector_bytes {
        let planned = table.sector_bytes;
        let what = format!("{device} has sectors of {sector_bytes} bytes, the plan was made for {planned}");
        return Err(Error::new(Phase::Storage, what));
    }
    let size_bytes = kernel::size_bytes(disk).context(Phase::Storage, || format!("size of {device}"))?;
    Ok(size_bytes / u64::from(sector_bytes))
}

/// All that is to be on the disk.
struct Expected {
    block: LogicalBlockSize,
    mbr: [u8; 512],
    primary: Header,
    backup: Header,
    /// By number.
    entries: BTreeMap<u32, Partition>,
}

impl Expected {
    fn of(table: &PartitionTable, sectors: u64) -> io::Result<Expected> {
        let block = match table.sector_bytes {
            512 => LogicalBlockSize::Lb512,
            4096 => LogicalBlockSize::Lb4096,
            other => return Err(io::Error::other(format!("sectors of {other} bytes cannot be partitioned"))),
        };
        let last_lba = sectors.saturating_sub(1);
        let mut builder = HeaderBuilder::new();
        builder.disk_guid(table.guid).backup_lba(last_lba).num_parts(ENTRIES).part_size(ENTRY_BYTES);
        let primary = builder.build(block).map_err(io::Error::other)?;
        let backup = HeaderBuilder::from_header(&primary).primary(false).build(block).map_err(io::Error::other)?;
        check_partitions(&table.partitions, &primary)?;
        // UEFI 5.2.3: the protective partition covers the disk from LBA 1, and 0xFFFFFFFF stands for "more".
        let mbr = ProtectiveMBR::with_lb_size(u32::try_from(last_lba).unwrap_or(u32::MAX)).to_bytes();
        let entries = table.partitions.iter().map(|partition| (partition.number, entry(partition))).collect();
        Ok(Expected { block, mbr, primary, backup, entries })
    }

    /// Backup before primary: a cut in between leaves the old primary or none, never a primary without its entries.
    fn write(&self, disk: &mut File) -> io::Result<()> {
        for header in [&self.backup, &self.primary] {
            let start = header.part_start;
            Partition::write_zero_entries_to_device(disk, 0, ENTRIES.into(), start, self.block, ENTRY_BYTES)?;
            for (number, entry) in &self.entries {
                entry.write_to_device(disk, u64::from(number - 1), start, self.block, ENTRY_BYTES)?;
            }
        }
        // These compute the checksums from the entries on the disk.
        self.backup.clone().write_backup(disk, self.block).map_err(io::Error::other)?;
        self.primary.clone().write_primary(disk, self.block).map_err(io::Error::other)?;
        std::os::unix::fs::FileExt::write_all_at(disk, &self.mbr, 0)
    }

    fn compare(&self, disk: &mut File) -> io::Result<()> {
        let mut mbr = [0; 512];
        std::os::unix::fs::FileExt::read_exact_at(disk, &mut mbr, 0)?;
        if mbr != self.mbr {
            return Err(io::Error::other("the protective MBR is not what was written"));
        }
        let found = gpt::GptConfig::new()
            .logical_block_size(self.block)
            .only_valid_headers(true)
            .open_from_device(&mut *disk)
            .map_err(io::Error::other)?;
        let headers = [
            ("primary", &self.primary, found.primary_header().cloned()),
            ("backup", &self.backup, found.backup_header().cloned()),
        ];
        drop(found);
        for (name, expected, found) in headers {
            let found = found.map_err(io::Error::other)?;
            // The table on the disk has checksums, the plan has none.
            let expected = Header { crc32: found.crc32, crc32_parts: found.crc32_parts, ..expected.clone() };
            if found != expected {
                return Err(io::Error::other(format!("{name} header: wrote {expected:?}, found {found:?}")));
            }
            let entries = file_read_partitions(disk, &found, self.block)?;
            if entries != self.entries {
                let wrote = &self.entries;
                return Err(io::Error::other(format!("{name} entries: wrote {wrote:?}, found {entries:?}")));
            }
        }
        Ok(())
    }
}

/// The crate cuts long names, and takes any range of sectors.
fn check_partitions(partitions: &[NewPartition], header: &Header) -> io::Result<()> {
    let mut by_place: Vec<&NewPartition> = partitions.iter().collect();
    by_place.sort_by_key(|partition| partition.first_lba);
    let mut free = header.first_usable;
    for partition in by_place {
        let NewPartition { number, first_lba, last_lba, name, .. } = partition;
        let fail = |why: String| Err(io::Error::other(format!("partition {number}: {why}")));
        if !(1..=ENTRIES).contains(number) || partitions.iter().filter(|other| other.number == *number).count() > 1 {
            return fail(format!("numbers go from 1 to {ENTRIES}, each once"));
        }
        if *first_lba < free || last_lba < first_lba || *last_lba > header.last_usable {
            let last = header.last_usable;
            return fail(format!("sectors {first_lba} to {last_lba} are not within the free {free} to {last}"));
        }
        if name.encode_utf16().count() > NAME_UNITS {
            return fail(format!("the name {name:?} has more than {NAME_UNITS} UTF-16 units"));
        }
        free = last_lba + 1;
    }
    Ok(())
}

fn entry(partition: &NewPartition) -> Partition {
    Partition {
        part_type_guid: partition.kind.into(),
        part_guid: partition.guid,
        first_lba: partition.first_lba,
        last_lba: partition.last_lba,
        flags: 0,
        name: partition.name.clone(),
    }
}

/// BLKPG and not BLKRRPART: it works on every disk, also where the kernel has no parser for GPT or does not scan, and
/// an error is about one partition.
fn add_to_kernel(disk: &File, table: &PartitionTable) -> Result<()> {
    for partition in &table.partitions {
        let (start, length) = place(table, partition);
        kernel::add_partition(disk, partition.number, start, length)
            .context(Phase::Storage, || format!("make {} known to the kernel", partition.device))?;
    }
    Ok(())
}

fn compare_with_kernel(table: &PartitionTable) -> Result<()> {
    let planned = table.partitions.iter().map(|partition| (partition.number, place(table, partition)));
    let planned: BTreeMap<_, _> = planned.collect();
    let known = kernel::partitions(&table.device)?;
    let known: BTreeMap<_, _> =
        known.iter().map(|known| (known.number, (known.start_bytes, known.size_bytes))).collect();
    if known == planned {
        return Ok(());
    }
    let what = format!(
        "the kernel shows other partitions on {} than were written (number: (start, size) in bytes): {known:?}, not {planned:?}",
        table.device
    );
    Err(Error::new(Phase::Storage, what))
}

/// Start and length in bytes.
fn place(table: &PartitionTable, partition: &NewPartition) -> (u64, u64) {
    let sector = u64::from(table.sector_bytes);
    (partition.first_lba * sector, (partition.last_lba - partition.first_lba + 1) * sector)
}

/// Waits until the node at this path is this partition.
pub(super) fn wait_for_node(disk: &str, number: u32, path: &str) -> Result<()> {
    let known = kernel::partitions(disk)?.into_iter().find(|known| known.number == number);
    let name = known.map(|known| known.name).unwrap_or_default();
    let end = Instant::now() + NODE_PATIENCE;
    loop {
        let number = fs::read_to_string(format!("/sys/class/block/{name}/dev")).unwrap_or_default();
        let node = fs::metadata(path);
        if node.as_ref().is_ok_and(|node| crate::survey::number_text(node.rdev()) == number.trim()) {
            return Ok(());
        }
        if Instant::now() > end {
            let seconds = NODE_PATIENCE.as_secs();
            let what = format!("{path} did not become the node of {name} within {seconds} s");
            return Err(Error::new(Phase::Storage, what));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Command;
    use crate::storage::loopdev::LoopDevice;
    use std::os::unix::fs::FileExt;
    use uuid::Uuid;

    fn partition(number: u32, first_lba: u64, last_lba: u64, name: &str) -> NewPartition {
        let kind = crate::layout::PartitionKind::Boot.guid();
        let device = format!("/dev/x{number}");
        NewPartition {
            number,
            device,
            first_lba,
            last_lba,
            kind,
            guid: Uuid::from_u128(number.into()),
            name: name.into(),
        }
    }

    fn table(sector_bytes: u32, partitions: Vec<NewPartition>) -> PartitionTable {
        let (device, identity) = ("/dev/x".into(), crate::plan::DiskIdentity::default());
        PartitionTable { device, identity, guid: Uuid::from_u128(7), sector_bytes, partitions }
    }

    #[test]
    fn the_bytes_are_where_uefi_wants_them() {
        for (sector_bytes, first_usable) in [(512_u32, 34_u64), (4096, 6)] {
            let sectors = 4096;
            let mut file = tempfile::tempfile().unwrap();
            file.set_len(sectors * u64::from(sector_bytes)).unwrap();
            let table = table(sector_bytes, vec![partition(15, 300, 400, "Ä"), partition(2, first_usable, 299, "efi")]);
            let expected = Expected::of(&table, sectors).unwrap();
            expected.write(&mut file).unwrap();
            expected.compare(&mut file).unwrap();
            let at = |offset: u64, length| {
                let mut bytes = vec![0; length];
                file.read_exact_at(&mut bytes, offset).unwrap();
                bytes
            };
            let sector = u64::from(sector_bytes);
            assert_eq!(at(446 + 4, 1), [0xee]);
            assert_eq!(at(446 + 12, 4), 4095_u32.to_le_bytes());
            assert_eq!(at(510, 2), [0x55, 0xaa]);
            assert_eq!((at(sector, 8), at(4095 * sector, 8)), (b"EFI PART".to_vec(), b"EFI PART".to_vec()));
            let slot = |number: u64| at(2 * sector + (number - 1) * 128, 128);
            assert_eq!(slot(15)[32..40], 300_u64.to_le_bytes());
            assert_eq!(slot(15)[56..60], [0xc4, 0, 0, 0]);
            assert_eq!(slot(2)[32..48], [first_usable.to_le_bytes(), 299_u64.to_le_bytes()].concat());
            assert_eq!(slot(1), [0; 128]);
        }
    }

    #[test]
    fn what_was_changed_behind_our_back_is_noticed() {
        // Sector 0: MBR; 1: primary header; 2-33: entries; last 33: backup entries and header.
        for (offset, expected) in [
            (450_u64, "protective MBR"),
            (512 + 56, "CRC32"),
            (1024, "CRC"),
            ((4096 - 33) * 512, "CRC"),
            (4095 * 512 + 56, "CRC32"),
        ] {
            let mut file = tempfile::tempfile().unwrap();
            file.set_len(4096 * 512).unwrap();
            let planned = Expected::of(&table(512, vec![partition(1, 34, 99, "a")]), 4096).unwrap();
            planned.write(&mut file).unwrap();
            file.write_all_at(&[0x77], offset).unwrap();
            let error = planned.compare(&mut file).unwrap_err().to_string();
            assert!(error.contains(expected), "{offset}: {error}");
        }
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(4096 * 512).unwrap();
        Expected::of(&table(512, vec![partition(1, 34, 99, "a")]), 4096).unwrap().write(&mut file).unwrap();
        let other = Expected::of(&table(512, vec![partition(1, 34, 98, "a")]), 4096).unwrap();
        assert!(other.compare(&mut file).unwrap_err().to_string().contains("primary entries"));
    }

    #[test]
    fn tables_that_cannot_be_are_refused() {
        let cases = [
            (vec![partition(0, 34, 99, "")], "numbers go from 1"),
            (vec![partition(129, 34, 99, "")], "numbers go from 1"),
            (vec![partition(1, 34, 99, ""), partition(1, 100, 199, "")], "each once"),
            (
                vec![partition(1, 34, 99, ""), partition(2, 99, 199, "")],
                "partition 2: sectors 99 to 199 are not within",
            ),
            (vec![partition(1, 33, 99, "")], "within the free 34 to 4062"),
            (vec![partition(1, 34, 4063, "")], "within the free 34 to 4062"),
            (vec![partition(1, 99, 98, "")], "sectors 99 to 98"),
            (vec![partition(1, 34, 99, &"x".repeat(37))], "36 UTF-16 units"),
        ];
        for (partitions, expected) in cases {
            let error = Expected::of(&table(512, partitions), 4096).err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(Expected::of(&table(512, vec![partition(1, 34, 4062, &"😀".repeat(18))]), 4096).is_ok());
        assert!(Expected::of(&table(520, vec![]), 4096).is_err());
        assert!(Expected::of(&table(512, vec![]), 40).is_err());
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_sparse_numbers_stay_and_other_tools_agree() {
        for (sector_bytes, first) in [(512, 2048), (4096, 256)] {
            let disk = LoopDevice::new(64 << 20, sector_bytes);
            let table = disk.table(
                sector_bytes,
                &[(1, first, 2 * first - 1), (2, 2 * first, 3 * first), (15, 4 * first, 5 * first)],
            );
            write(&table).unwrap();
            // Again, over itself, with the kernel's partitions still there.
            write(&table).unwrap();
            let check = Command::new("sgdisk").args(["-v", disk.path()]).run().unwrap().stdout;
            assert!(check.contains("No problems found"), "{check}");
            let json = Command::new("sfdisk").args(["--json", disk.path()]).run().unwrap().stdout;
            let json: serde_json::Value = serde_json::from_str(&json).unwrap();
            let json = &json["partitiontable"];
            assert_eq!(json["id"].as_str().unwrap().to_lowercase(), table.guid.to_string());
            assert_eq!(json["sectorsize"], sector_bytes);
            let found = json["partitions"].as_array().unwrap();
            assert_eq!(found.len(), 3);
            for (found, planned) in found.iter().zip(&table.partitions) {
                assert_eq!(found["node"], planned.device.as_str());
                assert_eq!(found["start"], planned.first_lba);
                assert_eq!(found["size"], planned.last_lba - planned.first_lba + 1);
                assert_eq!(found["uuid"].as_str().unwrap().to_lowercase(), planned.guid.to_string());
                assert_eq!(found["name"], planned.name.as_str());
                assert!(fs::metadata(&planned.device).is_ok());
            }
        }
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_another_sector_size_or_a_partition_in_use_is_refused() {
        let disk = LoopDevice::new(64 << 20, 4096);
        let error = write(&disk.table(512, &[])).unwrap_err().to_string();
        assert!(error.contains("has sectors of 4096 bytes, the plan was made for 512"), "{error}");

        let table = disk.table(4096, &[(1, 256, 8191)]);
        write(&table).unwrap();
        let _open = fs::File::open(disk.partition(1)).unwrap();
        let error = write(&table).unwrap_err().to_string();
        assert!(error.contains(&format!("make the kernel forget {}, used by: process", disk.partition(1))), "{error}");
    }
}
