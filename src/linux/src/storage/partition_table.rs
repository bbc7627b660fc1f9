//! Writes GPTs according to the plan, verifies them by reading, and registers the partitions with the kernel.

use super::{block_device, disk_identity, signature_wipe};
use crate::gpt::{ENTRIES, Gpt, GptEntry, NAME_UNITS, protective_mbr};
use common::error::{Context, Error, Phase, Result};
use model::device_name::DevicePath;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use operations::{NewPartition, PartitionTable};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};
use std::{io, thread};

/// Timeout for device nodes. On all but very slow machines, devtmpfs creates the device nodes before BLKPG returns.
const NODE_TIMEOUT: Duration = Duration::from_secs(10);

/// Writes and verifies the protective MBR, both headers and both arrays of entries. Then waits for the device nodes of
/// the partitions.
///
/// # Errors
/// Returns an error if the disk is in use, its size or sector size differs from the plan, a write fails, or a device
/// node does not appear. Also returns an error if the table on the disk, or the partitions registered with the kernel,
/// differ from the plan.
pub fn write_partition_table(table: &PartitionTable) -> Result<()> {
    let device = &table.device;
    let disk = signature_wipe::open_exclusive(device)?;
    disk_identity::verify_identity(&disk, &table.identity)?;
    let disk = lock_disk(&disk, device)?;
    let sectors = check_sectors(&disk, device, table.sector_bytes)?;
    signature_wipe::unregister_partitions(&disk, device)?;
    let planned =
        build_planned_gpt(table, sectors).context(Phase::Storage, || format!("partition table of {device}"))?;
    write_gpt_and_mbr(&planned, &disk).context(Phase::Storage, || format!("write the partition table of {device}"))?;
    block_device::flush_buffers(&disk).context(Phase::Storage, || format!("drop the page cache of {device}"))?;
    verify_gpt_and_mbr(&planned, &disk)
        .context(Phase::Storage, || format!("read back the partition table of {device}"))?;
    let planned = table.partitions.iter();
    let planned: BTreeMap<_, _> =
        planned.map(|partition| (partition.number, byte_range(table.sector_bytes, partition))).collect();
    for (number, (start, length)) in &planned {
        register_partition(&disk, device, *number, *start, *length)?;
    }
    verify_kernel_partitions(device, &planned)?;
    table.partitions.iter().try_for_each(|partition| wait_for_node(&table.device, partition.number, &partition.device))
}

/// Locks the disk. Programs that honor systemd's BLOCK_DEVICE_LOCKING ignore the disk while the table is incomplete.
pub(super) fn lock_disk(disk: &File, device: &DevicePath) -> Result<Flock<File>> {
    let lock = || {
        let disk = disk.try_clone().map_err(|error| block_device::to_errno(&error))?;
        Flock::lock(disk, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error)
    };
    block_device::retry_while_busy(Errno::EWOULDBLOCK, lock).context(Phase::Storage, || format!("lock {device}"))
}

/// Checks the sector size of the disk, and returns the size of the disk in sectors.
pub(super) fn check_sectors(disk: &File, device: &DevicePath, planned: u32) -> Result<u64> {
    let sector_bytes = block_device::read_sector_bytes(disk)
        .context(Phase::Storage, || format!("read the sector size of {device}"))?;
    if sector_bytes != planned {
        let what =
            format!("{device}: the sector size is {sector_bytes} bytes, but the plan was made for {planned} bytes");
        return Err(Error::new(Phase::Storage, what));
    }
    let size_bytes =
        block_device::read_size_bytes(disk).context(Phase::Storage, || format!("read the size of {device}"))?;
    Ok(size_bytes / u64::from(sector_bytes))
}

/// Returns the GPT that the plan specifies.
fn build_planned_gpt(table: &PartitionTable, sectors: u64) -> io::Result<Gpt> {
    let mut gpt = Gpt::new(table.sector_bytes.into(), sectors, table.guid)?;
    check_partitions(&table.partitions, &gpt)?;
    for NewPartition { number, first_lba, last_lba, kind, guid, name, .. } in &table.partitions {
        gpt.set_partition(
            &GptEntry { number: *number, kind: *kind, guid: *guid, sectors: *first_lba..last_lba + 1 },
            name,
        );
    }
    Ok(gpt)
}

/// Writes the GPT, then the protective MBR, so that the table is not found before it is complete.
fn write_gpt_and_mbr(gpt: &Gpt, disk: &File) -> io::Result<()> {
    gpt.write(disk)?;
    disk.write_all_at(&protective_mbr(gpt.backup_lba()), 0)?;
    disk.sync_all()
}

fn verify_gpt_and_mbr(gpt: &Gpt, disk: &File) -> io::Result<()> {
    let mut mbr = [0; 512];
    disk.read_exact_at(&mut mbr, 0)?;
    if mbr != protective_mbr(gpt.backup_lba()) {
        return Err(io::Error::other("the protective MBR that was read back differs from the written MBR"));
    }
    gpt.verify(disk)
}

/// Checks the numbers, sectors and names of the partitions, because [`Gpt::set_partition`] accepts overlapping sectors,
/// and truncates names that are too long.
fn check_partitions(partitions: &[NewPartition], gpt: &Gpt) -> io::Result<()> {
    let mut by_place: Vec<&NewPartition> = partitions.iter().collect();
    by_place.sort_by_key(|partition| partition.first_lba);
    let mut free = gpt.first_usable();
    for partition in by_place {
        let NewPartition { number, first_lba, last_lba, name, .. } = partition;
        let fail = |why: String| Err(io::Error::other(format!("partition {number}: {why}")));
        if !(1..=ENTRIES).contains(number) || partitions.iter().filter(|other| other.number == *number).count() > 1 {
            return fail(format!("partition numbers must be unique and from 1 to {ENTRIES}"));
        }
        if *first_lba < free || last_lba < first_lba || *last_lba > gpt.last_usable() {
            let last = gpt.last_usable();
            return fail(format!("sectors {first_lba} to {last_lba} are not within the free sectors {free} to {last}"));
        }
        if name.encode_utf16().count() > NAME_UNITS {
            return fail(format!("the name {name:?} is longer than {NAME_UNITS} UTF-16 code units"));
        }
        free = last_lba + 1;
    }
    Ok(())
}

/// Registers a partition with BLKPG. Unlike BLKRRPART, BLKPG works even if the kernel does not support GPT or does not
/// scan the disk for partitions, and an error of BLKPG affects only one partition.
pub(super) fn register_partition(disk: &File, device: &DevicePath, number: u32, start: u64, length: u64) -> Result<()> {
    block_device::add_partition(disk, number, start, length)
        .context(Phase::Storage, || format!("register {} with the kernel", device.partition_path(number)))
}

/// Checks that exactly the planned partitions are registered with the kernel. The map contains their numbers, starts
/// and lengths in bytes.
pub(super) fn verify_kernel_partitions(device: &DevicePath, planned: &BTreeMap<u32, (u64, u64)>) -> Result<()> {
    let known = block_device::read_partitions(device)?;
    let known: BTreeMap<_, _> =
        known.iter().map(|known| (known.number, (known.start_bytes, known.size_bytes))).collect();
    if known == *planned {
        return Ok(());
    }
    let what = format!(
        "the partitions of {device} in the kernel differ from the written partition table (number: (start, size) in bytes): \
         found {known:?}, expected {planned:?}"
    );
    Err(Error::new(Phase::Storage, what))
}

/// Returns the start and length in bytes.
pub(super) fn byte_range(sector_bytes: u32, partition: &NewPartition) -> (u64, u64) {
    let sector = u64::from(sector_bytes);
    (partition.first_lba * sector, (partition.last_lba - partition.first_lba + 1) * sector)
}

/// Waits until a device node with the number of this partition exists at `path`.
pub(super) fn wait_for_node(disk: &DevicePath, number: u32, path: &DevicePath) -> Result<()> {
    let known = block_device::read_partitions(disk)?.into_iter().find(|known| known.number == number);
    let name = known.map(|known| known.name).unwrap_or_default();
    let end = Instant::now() + NODE_TIMEOUT;
    loop {
        let number = fs::read_to_string(format!("/sys/class/block/{name}/dev")).unwrap_or_default();
        let node = fs::metadata(path);
        if node.as_ref().is_ok_and(|node| crate::probe::format_device_number(node.rdev()) == number.trim()) {
            return Ok(());
        }
        if Instant::now() > end {
            let seconds = NODE_TIMEOUT.as_secs();
            let what = format!("{path}: the device node of {name} did not appear within {seconds} s");
            return Err(Error::new(Phase::Storage, what));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::ToolCommand;
    use crate::storage::test_loop_device::TestLoopDevice;
    use uuid::Uuid;

    fn partition(number: u32, first_lba: u64, last_lba: u64, name: &str) -> NewPartition {
        let kind = model::layout::PartitionType::Boot.guid();
        let device = format!("/dev/x{number}").into();
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
        let (device, identity) = ("/dev/x".into(), operations::DiskIdentity::default());
        PartitionTable { device, identity, guid: Uuid::from_u128(7), sector_bytes, partitions }
    }

    #[test]
    fn gpt_bytes_are_at_their_uefi_offsets() {
        for (sector_bytes, first_usable) in [(512_u32, 34_u64), (4096, 6)] {
            let sectors = 4096;
            let file = tempfile::tempfile().unwrap();
            file.set_len(sectors * u64::from(sector_bytes)).unwrap();
            let table = table(sector_bytes, vec![partition(15, 300, 400, "Ä"), partition(2, first_usable, 299, "efi")]);
            let planned = build_planned_gpt(&table, sectors).unwrap();
            write_gpt_and_mbr(&planned, &file).unwrap();
            verify_gpt_and_mbr(&planned, &file).unwrap();
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
    fn verification_detects_changed_table_bytes() {
        // Sector 0: MBR; 1: primary header; 2-33: entries; last 33: backup entries and header.
        for (offset, expected) in [
            (450_u64, "the protective MBR that was read back differs from the written MBR"),
            (512, "the GPT that was read back from sector 1 differs"),
            (512 + 56, "sector 1 is damaged: the header's checksum"),
            (512 + 100, "the GPT that was read back from sector 1 differs"),
            (1024, "sector 1 is damaged: the checksum of the partition entries"),
            ((4096 - 33) * 512, "sector 4095 is damaged: the checksum of the partition entries"),
            (4095 * 512, "the GPT that was read back from sector 4095 differs"),
            (4095 * 512 + 56, "sector 4095 is damaged: the header's checksum"),
        ] {
            let file = tempfile::tempfile().unwrap();
            file.set_len(4096 * 512).unwrap();
            let planned = build_planned_gpt(&table(512, vec![partition(1, 34, 99, "a")]), 4096).unwrap();
            write_gpt_and_mbr(&planned, &file).unwrap();
            file.write_all_at(&[0x77], offset).unwrap();
            let error = verify_gpt_and_mbr(&planned, &file).unwrap_err().to_string();
            assert!(error.contains(expected), "{offset}: {error}");
        }
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096 * 512).unwrap();
        write_gpt_and_mbr(&build_planned_gpt(&table(512, vec![partition(1, 34, 99, "a")]), 4096).unwrap(), &file)
            .unwrap();
        let other = build_planned_gpt(&table(512, vec![partition(1, 34, 98, "a")]), 4096).unwrap();
        assert!(verify_gpt_and_mbr(&other, &file).unwrap_err().to_string().contains("differs from the written"));
    }

    #[test]
    fn refuses_impossible_partition_tables() {
        let cases = [
            (vec![partition(0, 34, 99, "")], "numbers must be unique and from 1"),
            (vec![partition(129, 34, 99, "")], "numbers must be unique and from 1"),
            (vec![partition(1, 34, 99, ""), partition(1, 100, 199, "")], "numbers must be unique"),
            (
                vec![partition(1, 34, 99, ""), partition(2, 99, 199, "")],
                "partition 2: sectors 99 to 199 are not within",
            ),
            (vec![partition(1, 33, 99, "")], "within the free sectors 34 to 4062"),
            (vec![partition(1, 34, 4063, "")], "within the free sectors 34 to 4062"),
            (vec![partition(1, 99, 98, "")], "sectors 99 to 98"),
            (vec![partition(1, 34, 99, &"x".repeat(37))], "36 UTF-16 code units"),
        ];
        for (partitions, expected) in cases {
            let error = build_planned_gpt(&table(512, partitions), 4096).err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(build_planned_gpt(&table(512, vec![partition(1, 34, 4062, &"😀".repeat(18))]), 4096).is_ok());
        assert!(build_planned_gpt(&table(520, vec![]), 4096).is_err());
        assert!(build_planned_gpt(&table(512, vec![]), 40).is_err());
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_sparse_numbers_are_preserved_and_other_tools_agree() {
        for (sector_bytes, first) in [(512, 2048), (4096, 256)] {
            let disk = TestLoopDevice::new(64 << 20, sector_bytes);
            let table = disk.table(
                sector_bytes,
                &[(1, first, 2 * first - 1), (2, 2 * first, 3 * first), (15, 4 * first, 5 * first)],
            );
            write_partition_table(&table).unwrap();
            // The same table can be written again while its partitions are registered with the kernel.
            write_partition_table(&table).unwrap();
            let check = ToolCommand::new("sgdisk").args(["-v", disk.path().as_str()]).run().unwrap().stdout;
            assert!(check.contains("No problems found"), "{check}");
            let json = ToolCommand::new("sfdisk").args(["--json", disk.path().as_str()]).run().unwrap().stdout;
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
    fn loop_refuses_other_sector_size_or_partition_in_use() {
        let disk = TestLoopDevice::new(64 << 20, 4096);
        let error = write_partition_table(&disk.table(512, &[])).unwrap_err().to_string();
        assert!(error.contains("sector size is 4096 bytes, but the plan was made for 512"), "{error}");

        let table = disk.table(4096, &[(1, 256, 8191)]);
        write_partition_table(&table).unwrap();
        let _open = fs::File::open(disk.partition(1)).unwrap();
        let error = write_partition_table(&table).unwrap_err().to_string();
        assert!(
            error.contains(&format!("unregister {} from the kernel, used by: process", disk.partition(1))),
            "{error}"
        );
    }
}
