//! Fits the partition table of a raw image to its disk: the backup GPT goes to the disk's end, a partition may take the
//! room behind it, and the kernel is told.
//!
//! The image's entries are kept byte for byte, with their numbers, attributes and GUIDs; the `gpt` crate would write some
//! of them anew. Other tables than GPTs are left as they are.

use super::{gpt, kernel, wipe};
use crate::error::{Context, Phase, Result};
use crate::inventory::{Partition, Table};
use crate::survey;
use flate2::Crc;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use uuid::Uuid;

/// Partitions end where this is whole, as those of a layout do.
const MIB: u64 = 1 << 20;

/// UEFI's header; what comes behind it in its sector is zero.
const HEADER_BYTES: usize = 92;

/// The type of the partition that stands for a GPT in the protective MBR.
const PROTECTIVE: u8 = 0xee;

/// Types of extended partitions, as libblkid writes them.
const EXTENDED: [&str; 3] = ["0x5", "0xf", "0x85"];

/// What the kernel makes of an extended partition: room for a boot loader (block/partitions/msdos.c).
const EXTENDED_BYTES: u64 = 1024;

/// Fits the table and makes all partitions known to the kernel; returns what is on the disk then. `grow` is the number of a
/// partition that becomes as large as it can.
///
/// # Errors
/// The disk is in use or cannot be written; the GPT is damaged or does not fit; the partition is not there, or another one
/// lies behind it.
pub fn fit(device: &str, grow: Option<u32>) -> Result<Option<Table>> {
    let disk = wipe::open_exclusive(device)?;
    let sector_bytes = kernel::sector_bytes(&disk).context(Phase::Storage, || format!("sector size of {device}"))?;
    let size_bytes = kernel::size_bytes(&disk).context(Phase::Storage, || format!("size of {device}"))?;
    // The image went past the page cache.
    kernel::flush_buffers(&disk).context(Phase::Storage, || format!("drop the page cache of {device}"))?;
    wipe::forget_partitions(&disk, device)?;
    let fitted = fit_table(&disk, u64::from(sector_bytes), size_bytes, grow);
    fitted.context(Phase::Storage, || format!("fit the image's partition table to {device}"))?;
    kernel::flush_buffers(&disk).context(Phase::Storage, || format!("drop the page cache of {device}"))?;
    let Some(table) = survey::table(device, sector_bytes, size_bytes)? else { return Ok(None) };
    for partition in &table.partitions {
        let is_extended = EXTENDED.contains(&partition.kind.as_str());
        let length = if is_extended { EXTENDED_BYTES.min(partition.size_bytes) } else { partition.size_bytes };
        kernel::add_partition(&disk, partition.number, partition.start_bytes, length)
            .context(Phase::Storage, || format!("make {} known to the kernel", partition.device))?;
        gpt::wait_for_node(device, partition.number, &partition.device)?;
    }
    Ok(Some(table))
}

/// Refuses a GPT that [`fit`] would refuse, by the first bytes of its image, before anything is written. Returns the
/// numbers and GUIDs of the partitions, without their content; `None` if the table is not in those bytes.
///
/// # Errors
/// As [`fit`].
pub fn check(head: &[u8], sector_bytes: u32, size_bytes: u64, grow: Option<u32>) -> io::Result<Option<Table>> {
    let sector = u64::from(sector_bytes);
    let read_at = |bytes: &mut [u8], at: u64| {
        let found = usize::try_from(at).ok().and_then(|at| head.get(at..)?.get(..bytes.len()));
        bytes.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    };
    let found = match Gpt::read(&read_at, sector, 1) {
        // The entries may lie anywhere on the disk.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
        found => found?,
    };
    let Some(found) = found else { return Ok(None) };
    found.fitted(size_bytes / sector, grow)?;
    let partitions = found.entries().map(|Entry { number, guid, .. }| Partition {
        number,
        guid: Some(guid),
        ..Partition::default()
    });
    let guid = Some(guid_at(&found.header, DISK_GUID));
    Ok(Some(Table { kind: "gpt".to_owned(), guid, partitions: partitions.collect() }))
}

/// The error when a partition of another kind of table is to grow.
pub fn only_gpt_grows(number: u32) -> String {
    format!("partition {number} cannot grow: the image has no GPT")
}

/// The same as [`fit`], without the kernel.
fn fit_table(disk: &File, sector: u64, size_bytes: u64, grow: Option<u32>) -> io::Result<()> {
    let read_at = |bytes: &mut [u8], at: u64| disk.read_exact_at(bytes, at);
    let Some(found) = Gpt::read(&read_at, sector, 1)? else {
        return match grow {
            Some(number) => Err(io::Error::other(only_gpt_grows(number))),
            None => Ok(()),
        };
    };
    let fitted = found.fitted(size_bytes / sector, grow)?;
    fitted.write(disk)?;
    forget_old_backup(disk, &found, &fitted)?;
    disk.sync_all()?;
    fix_protective_mbr(disk, fitted.number(BACKUP_LBA))?;
    disk.sync_all()?;
    for lba in [1, fitted.number(BACKUP_LBA)] {
        let read = Gpt::read(&read_at, sector, lba)?;
        if read.is_none_or(|read| read.entries != fitted.entries) {
            return Err(io::Error::other(format!("the table at sector {lba} is not what was written")));
        }
    }
    Ok(())
}

/// Zeros the image's backup header, so that no tool finds it when it looks for lost tables. The image may say anything
/// about where that is. So the sector must really be a header, and lie neither in a partition nor in one of the fitted
/// tables.
fn forget_old_backup(disk: &File, found: &Gpt, fitted: &Gpt) -> io::Result<()> {
    let (old, entries) = (found.number(BACKUP_LBA), fitted.number(ENTRIES_LBA));
    let is_primary = old <= 1 || (entries..entries + fitted.entries_sectors()).contains(&old);
    let is_backup = old > fitted.number(LAST_USABLE);
    if is_primary || is_backup || found.entries().any(|entry| entry.sectors.contains(&old)) {
        return Ok(());
    }
    let mut sector = vec![0; fitted.sector as usize];
    disk.read_exact_at(&mut sector, old * fitted.sector)?;
    if sector.starts_with(SIGNATURE) {
        sector.fill(0);
        disk.write_all_at(&sector, old * fitted.sector)?;
    }
    Ok(())
}

/// UEFI 5.2.3: it covers the disk from LBA 1, and 0xFFFFFFFF stands for "more". Other entries of a hybrid MBR stay.
fn fix_protective_mbr(disk: &File, last_lba: u64) -> io::Result<()> {
    let mut mbr = [0; 512];
    disk.read_exact_at(&mut mbr, 0)?;
    for entry in mbr[446..510].chunks_exact_mut(16) {
        let is_only_first = entry[4] == PROTECTIVE && entry[8..12] == 1_u32.to_le_bytes();
        if is_only_first {
            entry[12..].copy_from_slice(&u32::try_from(last_lba).unwrap_or(u32::MAX).to_le_bytes());
        }
    }
    disk.write_all_at(&mbr, 0)
}

/// How a header begins.
const SIGNATURE: &[u8] = b"EFI PART";

/// Offsets in the header (UEFI specification 5.3.2).
const HEADER_SIZE: usize = 12;
const HEADER_CRC: usize = 16;
const OWN_LBA: usize = 24;
const BACKUP_LBA: usize = 32;
const LAST_USABLE: usize = 48;
const DISK_GUID: usize = 56;
const ENTRIES_LBA: usize = 72;
const ENTRY_COUNT: usize = 80;
const ENTRY_SIZE: usize = 84;
const ENTRIES_CRC: usize = 88;

/// Offsets in an entry (UEFI specification 5.3.3).
const PARTITION_GUID: usize = 16;
const FIRST_LBA: usize = 32;
const LAST_LBA: usize = 40;

/// One of the two tables, as its bytes.
#[derive(Clone)]
struct Gpt {
    sector: u64,
    /// A whole sector.
    header: Vec<u8>,
    entries: Vec<u8>,
}

/// Reads a disk, or what is known of it.
type ReadAt<'a> = &'a dyn Fn(&mut [u8], u64) -> io::Result<()>;

struct Entry {
    number: u32,
    guid: Uuid,
    sectors: Range<u64>,
}

impl Gpt {
    /// The table whose header is at this sector; `None` where there is none.
    fn read(read_at: ReadAt, sector: u64, lba: u64) -> io::Result<Option<Gpt>> {
        let mut header = vec![0; sector as usize];
        read_at(&mut header, lba * sector)?;
        if !header.starts_with(SIGNATURE) {
            return Ok(None);
        }
        let damaged = |what: &str| Err(io::Error::other(format!("the GPT at sector {lba} is damaged: {what}")));
        let mut gpt = Gpt { sector, header, entries: Vec::new() };
        let size = gpt.word(HEADER_SIZE) as usize;
        if !(HEADER_BYTES..=gpt.header.len()).contains(&size) || gpt.header_crc(size) != gpt.word(HEADER_CRC) {
            return damaged("the header's checksum is wrong");
        }
        let (count, entry_bytes) = (gpt.word(ENTRY_COUNT) as usize, gpt.word(ENTRY_SIZE) as usize);
        // No table has more than a few entries. A header that lies about the size must not cost memory.
        if !(1..=4096).contains(&count) || !(128..=4096).contains(&entry_bytes) || !entry_bytes.is_power_of_two() {
            return damaged(&format!("{count} entries of {entry_bytes} bytes"));
        }
        if gpt.number(OWN_LBA) != lba {
            return damaged("the header is meant for another place");
        }
        gpt.entries = vec![0; count * entry_bytes];
        let at = gpt.number(ENTRIES_LBA).checked_mul(sector).ok_or(io::ErrorKind::InvalidData)?;
        read_at(&mut gpt.entries, at)?;
        if crc(&gpt.entries) != gpt.word(ENTRIES_CRC) {
            return damaged("the checksum of its entries is wrong");
        }
        Ok(Some(gpt))
    }

    /// The primary table for a disk of so many sectors.
    fn fitted(&self, sectors: u64, grow: Option<u32>) -> io::Result<Gpt> {
        let refuse = |why: String| Err(io::Error::other(why));
        let mut gpt = self.clone();
        let last = sectors.saturating_sub(1);
        let last_usable = last.saturating_sub(self.entries_sectors() + 1);
        let own = self.number(ENTRIES_LBA);
        if own < 2 || own + self.entries_sectors() > last_usable + 1 {
            return refuse(format!(
                "its entries begin at sector {own}, and there is no room for them: the last one is {last_usable}"
            ));
        }
        for Entry { number, sectors, .. } in self.entries() {
            let end = sectors.end.saturating_sub(1);
            if sectors.is_empty() {
                return refuse(format!("partition {number} ends at sector {end}, before it begins"));
            }
            if end > last_usable {
                return refuse(format!("partition {number} ends at sector {end}, the last one is {last_usable}"));
            }
        }
        if let Some(number) = grow {
            let Some(entry) = self.entries().find(|entry| entry.number == number) else {
                return refuse(format!("partition {number} cannot grow: there is none in the image"));
            };
            if let Some(behind) = self.entries().find(|other| other.sectors.start > entry.sectors.start) {
                return refuse(format!("partition {number} cannot grow: partition {} lies behind it", behind.number));
            }
            let end = (last_usable + 1) * self.sector / MIB * MIB / self.sector;
            let at = (number - 1) as usize * self.word(ENTRY_SIZE) as usize + LAST_LBA;
            gpt.entries[at..at + 8].copy_from_slice(&(end.max(entry.sectors.end) - 1).to_le_bytes());
        }
        gpt.put(BACKUP_LBA, last);
        gpt.put(LAST_USABLE, last_usable);
        Ok(gpt)
    }

    /// Backup before primary: a cut in between leaves one that is whole.
    fn write(&self, disk: &File) -> io::Result<()> {
        let last = self.number(BACKUP_LBA);
        let mut backup = self.clone();
        backup.put(OWN_LBA, last);
        backup.put(BACKUP_LBA, 1);
        backup.put(ENTRIES_LBA, last - self.entries_sectors());
        for mut gpt in [backup, self.clone()] {
            let own = gpt.number(OWN_LBA);
            gpt.seal();
            disk.write_all_at(&gpt.entries, gpt.number(ENTRIES_LBA) * gpt.sector)?;
            disk.write_all_at(&gpt.header, own * gpt.sector)?;
            disk.sync_all()?;
        }
        Ok(())
    }

    fn seal(&mut self) {
        let crc = crc(&self.entries);
        self.header[ENTRIES_CRC..ENTRIES_CRC + 4].copy_from_slice(&crc.to_le_bytes());
        let crc = self.header_crc(self.word(HEADER_SIZE) as usize);
        self.header[HEADER_CRC..HEADER_CRC + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// The checksum of the header, computed with zeros in its own place.
    fn header_crc(&self, size: usize) -> u32 {
        let mut header = self.header[..size].to_vec();
        header[HEADER_CRC..HEADER_CRC + 4].fill(0);
        crc(&header)
    }

    fn entries_sectors(&self) -> u64 {
        (self.entries.len() as u64).div_ceil(self.sector)
    }

    /// The entries that are in use.
    fn entries(&self) -> impl Iterator<Item = Entry> {
        let entries = self.entries.chunks_exact(self.word(ENTRY_SIZE) as usize).zip(1..);
        entries.filter(|(entry, _)| entry[..16] != [0; 16]).map(|(entry, number)| Entry {
            number,
            guid: guid_at(entry, PARTITION_GUID),
            sectors: number_at(entry, FIRST_LBA)..number_at(entry, LAST_LBA).saturating_add(1),
        })
    }

    fn number(&self, at: usize) -> u64 {
        number_at(&self.header, at)
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes([self.header[at], self.header[at + 1], self.header[at + 2], self.header[at + 3]])
    }

    fn put(&mut self, at: usize, number: u64) {
        self.header[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
}

fn number_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map(u64::from_le_bytes).unwrap_or_default()
}

fn guid_at(bytes: &[u8], at: usize) -> Uuid {
    bytes[at..at + 16].try_into().map(Uuid::from_bytes_le).unwrap_or_default()
}

fn crc(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

#[cfg(test)]
pub(crate) mod tests;
