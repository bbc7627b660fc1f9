//! Adapts the partition table of a raw image to the disk: moves the backup GPT to the end of the disk, grows a
//! partition if requested, and updates the kernel's partition list.
//!
//! The image's entries are preserved byte for byte, with their numbers, attributes and GUIDs. Partition tables other
//! than GPT are not changed.

use super::{block_device, partition_table, signature_wipe};
use crate::gpt::{ENTRIES, Gpt, GptEntry, is_header, resize_protective_mbr};
use crate::probe;
use common::error::{Context, Phase, Result};
use model::device_name::DevicePath;
use model::inventory::{DiskPartition, DiskTable};
use model::layout::PartitionType;
use operations::AddedPartition;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Alignment of partition ends, as in layouts.
const MIB: u64 = 1 << 20;

/// Types of extended partitions in libblkid's notation.
const EXTENDED: [&str; 3] = ["0x5", "0xf", "0x85"];

/// Size of the kernel's device for an extended partition, in bytes. This device covers only the space for a boot loader
/// (block/partitions/msdos.c).
const EXTENDED_BYTES: u64 = 1024;

/// Adapts the partition table, registers all partitions with the kernel, and returns the resulting table. `grow` is the
/// number of a partition that is enlarged as far as possible. `added` is a new partition at the end of the disk.
///
/// # Errors
/// Returns an error if the disk is in use or cannot be written, or if the GPT is damaged or does not fit. Also returns
/// an error if the partition to grow does not exist or is followed by another partition, or if there is no space for
/// the added partition.
pub fn fit_image_table(
    device: &DevicePath,
    grow: Option<u32>,
    added: Option<&AddedPartition>,
) -> Result<Option<DiskTable>> {
    let disk = signature_wipe::open_exclusive(device)?;
    let sector_bytes = block_device::read_sector_bytes(&disk)
        .context(Phase::Storage, || format!("read the sector size of {device}"))?;
    let size_bytes =
        block_device::read_size_bytes(&disk).context(Phase::Storage, || format!("read the size of {device}"))?;
    // The page cache of the disk is dropped, because it may be outdated: the image was written with direct I/O.
    block_device::flush_buffers(&disk).context(Phase::Storage, || format!("drop the page cache of {device}"))?;
    signature_wipe::unregister_partitions(&disk, device)?;
    let fitted = fit_on_disk(&disk, u64::from(sector_bytes), size_bytes, grow, added);
    fitted.context(Phase::Storage, || format!("adapt the image's partition table to {device}"))?;
    block_device::flush_buffers(&disk).context(Phase::Storage, || format!("drop the page cache of {device}"))?;
    let Some(table) = probe::read_table(device, sector_bytes, size_bytes)? else { return Ok(None) };
    for partition in &table.partitions {
        let is_extended = EXTENDED.contains(&partition.kind.as_str());
        let length = if is_extended { EXTENDED_BYTES.min(partition.size_bytes) } else { partition.size_bytes };
        block_device::add_partition(&disk, partition.number, partition.start_bytes, length)
            .context(Phase::Storage, || format!("register {device} with the kernel", device = partition.device))?;
        partition_table::wait_for_node(device, partition.number, &partition.device)?;
    }
    Ok(Some(table))
}

/// Checks, before anything is written, whether [`fit_image_table`] would refuse the GPT in the first bytes of an image.
/// Returns the numbers and GUIDs of the partitions, or `None` if those bytes do not contain the whole table.
///
/// # Errors
/// The same errors as for [`fit_image_table`].
pub fn check_image_table(
    head: &[u8],
    sector_bytes: u32,
    size_bytes: u64,
    grow: Option<u32>,
    added: Option<&AddedPartition>,
) -> io::Result<Option<DiskTable>> {
    let sector = u64::from(sector_bytes);
    let read_at = |bytes: &mut [u8], at: u64| {
        let found = usize::try_from(at).ok().and_then(|at| head.get(at..)?.get(..bytes.len()));
        bytes.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    };
    let found = match Gpt::read(&read_at, sector, 1) {
        // The entries may be at any position on the disk, so they need not be within the first bytes of the image.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
        found => found?,
    };
    let Some(found) = found else { return Ok(None) };
    compute_fitted_table(&found, size_bytes / sector, grow, added)?;
    let partitions = found.entries().map(|GptEntry { number, guid, .. }| DiskPartition {
        number,
        guid: Some(guid),
        ..DiskPartition::default()
    });
    Ok(Some(DiskTable { kind: "gpt".to_owned(), guid: Some(found.guid()), partitions: partitions.collect() }))
}

/// Returns the error that is reported if a partition must be enlarged in a partition table other than GPT.
pub fn cannot_grow_without_gpt(number: u32) -> String {
    format!("partition {number} cannot grow: the image does not contain a GPT")
}

/// Returns the error that is reported if a partition must be added to a partition table other than GPT.
pub fn cannot_add_without_gpt(added: &AddedPartition) -> String {
    format!("cannot add partition {name}: the image does not contain a GPT", name = added.name)
}

/// Changes the table on the disk like [`fit_image_table`], without registering the partitions with the kernel.
fn fit_on_disk(
    disk: &File,
    sector: u64,
    size_bytes: u64,
    grow: Option<u32>,
    added: Option<&AddedPartition>,
) -> io::Result<()> {
    let read_at = |bytes: &mut [u8], at: u64| disk.read_exact_at(bytes, at);
    let Some(found) = Gpt::read(&read_at, sector, 1)? else {
        return match (grow, added) {
            (Some(number), _) => Err(io::Error::other(cannot_grow_without_gpt(number))),
            (None, Some(added)) => Err(io::Error::other(cannot_add_without_gpt(added))),
            (None, None) => Ok(()),
        };
    };
    let (fitted, place) = compute_fitted_table(&found, size_bytes / sector, grow, added)?;
    if let Some((added, place)) = added.zip(place) {
        // The content is written before the partition exists, so that an incomplete partition is never found.
        disk.write_all_at(&added.content, place.start * sector)?;
        disk.sync_all()?;
    }
    fitted.write(disk)?;
    zero_old_backup_header(disk, &found, &fitted)?;
    disk.sync_all()?;
    let mut mbr = [0; 512];
    disk.read_exact_at(&mut mbr, 0)?;
    resize_protective_mbr(&mut mbr, fitted.backup_lba());
    disk.write_all_at(&mbr, 0)?;
    disk.sync_all()?;
    fitted.verify(disk)
}

/// Zeroes the image's old backup header, so that recovery tools do not find it. The offset of the header is read from
/// the untrusted image. Therefore the sector is zeroed only if it contains a header, and belongs neither to a partition
/// nor to one of the new tables.
fn zero_old_backup_header(disk: &File, found: &Gpt, fitted: &Gpt) -> io::Result<()> {
    let (old, entries) = (found.backup_lba(), fitted.entries_lba());
    let is_primary = old <= 1 || (entries..entries + fitted.entries_sectors()).contains(&old);
    let is_backup = old > fitted.last_usable();
    if is_primary || is_backup || found.entries().any(|entry| entry.sectors.contains(&old)) {
        return Ok(());
    }
    let sector = fitted.sector_bytes();
    let mut header = vec![0; sector as usize];
    disk.read_exact_at(&mut header, old * sector)?;
    if is_header(&header) {
        header.fill(0);
        disk.write_all_at(&header, old * sector)?;
    }
    Ok(())
}

/// Checks that the entries and all partitions of a resized table end at or before the last usable sector of the table.
fn check_usable_sectors(gpt: &Gpt) -> io::Result<()> {
    let refuse = |why: String| Err(io::Error::other(why));
    let (own, last_usable) = (gpt.entries_lba(), gpt.last_usable());
    if own < 2 || own + gpt.entries_sectors() > last_usable + 1 {
        return refuse(format!(
            "the partition table at sector {own} does not fit on the disk: the last usable sector is {last_usable}"
        ));
    }
    for GptEntry { number, sectors, .. } in gpt.entries() {
        let end = sectors.end.saturating_sub(1);
        if sectors.is_empty() {
            return refuse(format!("partition {number} is invalid: it ends at sector {end}, before its first sector"));
        }
        if end > last_usable {
            return refuse(format!(
                "partition {number} ends at sector {end}, after the last usable sector {last_usable}"
            ));
        }
    }
    Ok(())
}

/// Returns the primary copy of the table for a disk of `sectors` sectors, and the location of the added partition.
fn compute_fitted_table(
    found: &Gpt,
    sectors: u64,
    grow: Option<u32>,
    added: Option<&AddedPartition>,
) -> io::Result<(Gpt, Option<Range<u64>>)> {
    let refuse = |why: String| Err(io::Error::other(why));
    let mut gpt = found.clone();
    gpt.resize(sectors);
    check_usable_sectors(&gpt)?;
    let sector = gpt.sector_bytes();
    let mut end = (gpt.last_usable() + 1) * sector / MIB * MIB / sector;
    let place = added.map(|added| {
        let bytes = (added.content.len() as u64).next_multiple_of(MIB).max(MIB);
        let place = end.saturating_sub(bytes / sector)..end;
        end = place.start;
        place
    });
    if let Some(number) = grow {
        let Some(entry) = found.entries().find(|entry| entry.number == number) else {
            return refuse(format!("partition {number} cannot grow: the image does not contain this partition"));
        };
        if let Some(behind) = found.entries().find(|other| other.sectors.start > entry.sectors.start) {
            return refuse(format!(
                "partition {number} cannot grow: partition {next} follows it",
                next = behind.number
            ));
        }
        gpt.set_partition_end(number, end.max(entry.sectors.end));
    }
    if let Some((AddedPartition { name, guid, .. }, place)) = added.zip(place.clone()) {
        let behind = found.entries().map(|entry| entry.sectors.end).max().unwrap_or(gpt.first_usable());
        let number = (1..=ENTRIES).find(|number| found.entries().all(|entry| entry.number != *number));
        if behind > place.start || gpt.first_usable() > place.start {
            return refuse(format!("cannot add partition {name}: not enough space after the image's partitions"));
        }
        let Some(number) = number else { return refuse(all_in_use(name)) };
        let entry = GptEntry { number, kind: PartitionType::Linux.guid(), guid: *guid, sectors: place };
        gpt.set_partition(&entry, name);
        if gpt.entries().all(|entry| entry.number != number) {
            return refuse(all_in_use(name));
        }
    }
    Ok((gpt, place))
}

fn all_in_use(name: &str) -> String {
    format!("cannot add partition {name}: all entries of the partition table are in use")
}

#[cfg(test)]
pub(crate) mod tests;
