//! GPT partition tables. This module reads either copy of a table, and writes both copies.
//!
//! A table is stored as the bytes that were read from the disk, so that the entries in an image keep their attributes
//! and unknown fields. Entry N is in slot N-1, even if earlier slots are free.

pub(crate) mod edit;

use flate2::Crc;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use uuid::Uuid;

/// Logical sector sizes that can hold a GPT.
pub const SECTORS_BYTES: [u64; 2] = [512, 4096];

/// Number of entries in a table: the minimum that UEFI requires, which all tools use.
pub(crate) const ENTRIES: u32 = 128;
const ENTRY_BYTES: u32 = 128;

/// Maximum length of a partition name, in UTF-16 code units.
pub(crate) const NAME_UNITS: usize = 36;

/// MBR partition type that marks a protective MBR.
pub const PROTECTIVE: u8 = 0xee;

/// Magic bytes at the start of a GPT header.
const SIGNATURE: &[u8] = b"EFI PART";

/// Size of a header as defined by UEFI; the rest of its sector is zero.
const HEADER_BYTES: u32 = 92;

// Offsets in the header (UEFI specification 5.3.2).
const REVISION: usize = 8;
const HEADER_SIZE: usize = 12;
const HEADER_CRC: usize = 16;
const OWN_LBA: usize = 24;
const BACKUP_LBA: usize = 32;
const FIRST_USABLE: usize = 40;
const LAST_USABLE: usize = 48;
const DISK_GUID: usize = 56;
const ENTRIES_LBA: usize = 72;
const ENTRY_COUNT: usize = 80;
const ENTRY_SIZE: usize = 84;
const ENTRIES_CRC: usize = 88;

// Offsets in an entry (UEFI specification 5.3.3).
const PARTITION_GUID: usize = 16;
const FIRST_LBA: usize = 32;
const LAST_LBA: usize = 40;
#[cfg(test)]
const ATTRIBUTES: usize = 48;
const NAME: usize = 56;

/// Function that fills a buffer with the bytes at an offset of a disk, or of a copy of a disk's contents.
pub type ReadAt<'a> = &'a dyn Fn(&mut [u8], u64) -> io::Result<()>;

/// A copy of the partition table: primary or backup.
#[derive(Clone, PartialEq, Eq)]
pub struct Gpt {
    sector: u64,
    /// Header of the table, padded to a whole sector.
    header: Vec<u8>,
    entries: Vec<u8>,
}

/// Partition entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GptEntry {
    pub number: u32,
    pub kind: Uuid,
    pub guid: Uuid,
    /// Range of sectors recorded in the partition entry. The range may be outside the disk.
    pub sectors: Range<u64>,
}

/// Returns whether a sector starts with the magic bytes of a header.
pub(crate) fn is_header(sector: &[u8]) -> bool {
    sector.starts_with(SIGNATURE)
}

/// Returns the size, in bytes, of the disk for which this GPT was created, according to the unverified header. Returns
/// `None` if `head`, the first bytes of the disk, does not contain a header for this sector size.
pub fn read_claimed_disk_size(head: &[u8], sector: u64) -> Option<u64> {
    let header = head.get(sector as usize..2 * sector as usize)?;
    is_header(header).then(|| read_u64(header, BACKUP_LBA).saturating_add(1).saturating_mul(sector))
}

impl Gpt {
    /// Creates a primary copy without partitions, for a disk of `sectors` sectors.
    ///
    /// # Errors
    /// Returns an error if the sector size is not supported, or the disk is too small.
    pub fn new(sector: u64, sectors: u64, guid: Uuid) -> io::Result<Gpt> {
        if !SECTORS_BYTES.contains(&sector) {
            return Err(io::Error::other(format!("cannot create a GPT: sector size {sector} is not supported")));
        }
        let entries = vec![0; (ENTRIES * ENTRY_BYTES) as usize];
        let mut gpt = Gpt { sector, header: vec![0; sector as usize], entries };
        write_bytes(&mut gpt.header, 0, SIGNATURE);
        // Revision number of a GPT header: 1.0.
        for (at, word) in
            [(REVISION, 0x1_0000), (HEADER_SIZE, HEADER_BYTES), (ENTRY_COUNT, ENTRIES), (ENTRY_SIZE, ENTRY_BYTES)]
        {
            write_bytes(&mut gpt.header, at, &word.to_le_bytes());
        }
        write_bytes(&mut gpt.header, DISK_GUID, &guid.to_bytes_le());
        let first_usable = 2 + gpt.entries_sectors();
        gpt.write_header_fields(&[(OWN_LBA, 1), (ENTRIES_LBA, 2), (FIRST_USABLE, first_usable)]);
        gpt.resize(sectors);
        if gpt.last_usable() < first_usable {
            return Err(io::Error::other(format!("cannot create a GPT: a disk of {sectors} sectors is too small")));
        }
        Ok(gpt)
    }

    /// Reads the copy of the table with its header at sector `lba`; returns `None` if this sector does not contain a
    /// header.
    ///
    /// # Errors
    /// Returns an error if the copy cannot be read, or is damaged.
    pub fn read(read_at: ReadAt, sector: u64, lba: u64) -> io::Result<Option<Gpt>> {
        let mut header = vec![0; sector as usize];
        read_at(&mut header, lba * sector)?;
        if !is_header(&header) {
            return Ok(None);
        }
        let damaged = |what: &str| Err(io::Error::other(format!("the GPT at sector {lba} is damaged: {what}")));
        let mut gpt = Gpt { sector, header, entries: Vec::new() };
        let size = gpt.header_u32(HEADER_SIZE);
        if !(HEADER_BYTES..=sector as u32).contains(&size) || gpt.header_crc() != gpt.header_u32(HEADER_CRC) {
            return damaged("the header's checksum does not match");
        }
        if !gpt.has_supported_sizes() {
            let (count, entry_bytes) = (gpt.header_u32(ENTRY_COUNT), gpt.header_u32(ENTRY_SIZE));
            return damaged(&format!("{count} entries of {entry_bytes} bytes are not supported"));
        }
        if gpt.header_u64(OWN_LBA) != lba {
            return damaged("the header contains the number of another sector");
        }
        gpt.entries = vec![0; gpt.entries_bytes()];
        let at = gpt.entries_lba().checked_mul(sector).ok_or(io::ErrorKind::InvalidData)?;
        read_at(&mut gpt.entries, at)?;
        if compute_crc(&gpt.entries) != gpt.header_u32(ENTRIES_CRC) {
            return damaged("the checksum of the partition entries does not match");
        }
        Ok(Some(gpt))
    }

    pub(crate) fn guid(&self) -> Uuid {
        read_guid(&self.header, DISK_GUID)
    }

    /// Returns the sector that contains the header of the other copy. For a primary copy, the other copy is the backup
    /// copy; for a backup copy, it is the primary copy.
    pub(crate) fn backup_lba(&self) -> u64 {
        self.header_u64(BACKUP_LBA)
    }

    pub(crate) fn first_usable(&self) -> u64 {
        self.header_u64(FIRST_USABLE)
    }

    pub(crate) fn last_usable(&self) -> u64 {
        self.header_u64(LAST_USABLE)
    }

    pub(crate) fn entries_lba(&self) -> u64 {
        self.header_u64(ENTRIES_LBA)
    }

    pub(crate) fn entries_sectors(&self) -> u64 {
        (self.entries.len() as u64).div_ceil(self.sector)
    }

    /// Returns whether the number and size of the entries are supported. Real tables have at most a few hundred
    /// entries; a forged number must not exhaust memory.
    fn has_supported_sizes(&self) -> bool {
        let bytes = self.entry_bytes();
        (1..=4096).contains(&self.header_u32(ENTRY_COUNT)) && (128..=4096).contains(&bytes) && bytes.is_power_of_two()
    }

    /// Returns the size of one entry according to the header.
    fn entry_bytes(&self) -> usize {
        self.header_u32(ENTRY_SIZE) as usize
    }

    /// Returns the size of all entries according to the header.
    fn entries_bytes(&self) -> usize {
        self.header_u32(ENTRY_COUNT) as usize * self.entry_bytes()
    }

    pub fn sector_bytes(&self) -> u64 {
        self.sector
    }

    /// Returns the partitions, which are the entries in use.
    pub fn entries(&self) -> impl Iterator<Item = GptEntry> {
        let entries = self.entry_slots().zip(1..);
        entries.filter(|(entry, _)| entry[..PARTITION_GUID] != [0; PARTITION_GUID]).map(|(entry, number)| GptEntry {
            number,
            kind: read_guid(entry, 0),
            guid: read_guid(entry, PARTITION_GUID),
            sectors: read_u64(entry, FIRST_LBA)..read_u64(entry, LAST_LBA).saturating_add(1),
        })
    }

    /// Adapts a primary copy to a disk of `sectors` sectors, and sets the location of the backup copy to the end of
    /// that disk.
    pub(crate) fn resize(&mut self, sectors: u64) {
        let last = sectors.saturating_sub(1);
        let last_usable = last.saturating_sub(self.entries_sectors() + 1);
        self.write_header_fields(&[(BACKUP_LBA, last), (LAST_USABLE, last_usable)]);
    }

    /// Stores a partition without attributes in the slot that corresponds to the partition's number. A name that is too
    /// long will be truncated.
    pub(crate) fn set_partition(&mut self, entry: &GptEntry, name: &str) {
        let Some(slot) = self.entry_slot_mut(entry.number) else { return };
        slot.fill(0);
        write_bytes(slot, 0, &entry.kind.to_bytes_le());
        write_bytes(slot, PARTITION_GUID, &entry.guid.to_bytes_le());
        write_bytes(slot, FIRST_LBA, &entry.sectors.start.to_le_bytes());
        write_bytes(slot, LAST_LBA, &entry.sectors.end.saturating_sub(1).to_le_bytes());
        for (at, unit) in slot[NAME..NAME + 2 * NAME_UNITS].chunks_exact_mut(2).zip(name.encode_utf16()) {
            at.copy_from_slice(&unit.to_le_bytes());
        }
    }

    /// Changes the end of a partition, and preserves its other fields.
    pub(crate) fn set_partition_end(&mut self, number: u32, end: u64) {
        if let Some(slot) = self.entry_slot_mut(number) {
            write_bytes(slot, LAST_LBA, &end.saturating_sub(1).to_le_bytes());
        }
    }

    /// Writes the backup copy and then this primary copy to the disk, so that one copy is intact if writing is
    /// interrupted.
    ///
    /// # Errors
    /// Returns an error if a write fails.
    pub fn write(&self, disk: &File) -> io::Result<()> {
        for copy in self.build_copies() {
            disk.write_all_at(&copy.entries, copy.entries_lba() * copy.sector)?;
            disk.write_all_at(&copy.header, copy.header_u64(OWN_LBA) * copy.sector)?;
            disk.sync_all()?;
        }
        Ok(())
    }

    /// Reads both copies from the disk and compares them with the copies that [`Self::write`] wrote.
    ///
    /// # Errors
    /// Returns an error if a copy differs or cannot be read.
    pub(crate) fn verify(&self, disk: &File) -> io::Result<()> {
        for copy in self.build_copies() {
            let lba = copy.header_u64(OWN_LBA);
            let read_at = |bytes: &mut [u8], at: u64| disk.read_exact_at(bytes, at);
            if Gpt::read(&read_at, self.sector, lba)?.as_ref() != Some(&copy) {
                return Err(io::Error::other(format!(
                    "the GPT that was read back from sector {lba} differs from the written GPT"
                )));
            }
        }
        Ok(())
    }

    /// Returns the backup and the primary copy, with their checksums.
    fn build_copies(&self) -> [Gpt; 2] {
        let (last, mut backup, mut primary) = (self.backup_lba(), self.clone(), self.clone());
        let entries = last.saturating_sub(self.entries_sectors());
        backup.write_header_fields(&[(OWN_LBA, last), (BACKUP_LBA, 1), (ENTRIES_LBA, entries)]);
        backup.update_checksums();
        primary.update_checksums();
        [backup, primary]
    }

    fn update_checksums(&mut self) {
        let sum = compute_crc(&self.entries);
        write_bytes(&mut self.header, ENTRIES_CRC, &sum.to_le_bytes());
        let sum = self.header_crc();
        write_bytes(&mut self.header, HEADER_CRC, &sum.to_le_bytes());
    }

    /// Computes the header's checksum, with the checksum field zeroed.
    fn header_crc(&self) -> u32 {
        let mut header = self.header[..self.header_u32(HEADER_SIZE) as usize].to_vec();
        header[HEADER_CRC..HEADER_CRC + 4].fill(0);
        compute_crc(&header)
    }

    /// Returns the slots of the entries, used or not, in the order of their numbers.
    fn entry_slots(&self) -> impl Iterator<Item = &[u8]> {
        self.entries.chunks_exact(self.entry_bytes())
    }

    fn entry_slot_mut(&mut self, number: u32) -> Option<&mut [u8]> {
        let bytes = self.entry_bytes();
        self.entries.chunks_exact_mut(bytes).nth((number as usize).checked_sub(1)?)
    }

    fn header_u64(&self, at: usize) -> u64 {
        read_u64(&self.header, at)
    }

    fn header_u32(&self, at: usize) -> u32 {
        u32::from_le_bytes([self.header[at], self.header[at + 1], self.header[at + 2], self.header[at + 3]])
    }

    fn write_header_fields(&mut self, numbers: &[(usize, u64)]) {
        numbers.iter().for_each(|(at, number)| write_bytes(&mut self.header, *at, &number.to_le_bytes()));
    }
}

/// Returns a protective MBR (UEFI specification 5.2.3): one partition, which covers the disk.
pub(crate) fn protective_mbr(last_lba: u64) -> [u8; 512] {
    let mut mbr = [0; 512];
    write_bytes(&mut mbr, 446, &[0, 0, 2, 0, PROTECTIVE, 0xff, 0xff, 0xff, 1, 0, 0, 0]);
    write_bytes(&mut mbr, 510, &[0x55, 0xaa]);
    resize_protective_mbr(&mut mbr, last_lba);
    mbr
}

/// Resizes the protective partition to cover the disk from LBA 1; the size 0xFFFFFFFF means "this many sectors or
/// more". If the MBR has other entries (hybrid MBR), it is not changed.
pub(crate) fn resize_protective_mbr(mbr: &mut [u8; 512], last_lba: u64) {
    // In a hybrid MBR, other entries follow the protective entry, which must not overlap them.
    if mbr[446..510].chunks_exact(16).filter(|entry| entry[4] != 0).count() != 1 {
        return;
    }
    for entry in mbr[446..510].chunks_exact_mut(16) {
        if entry[4] == PROTECTIVE && entry[8..12] == 1_u32.to_le_bytes() {
            write_bytes(entry, 12, &u32::try_from(last_lba).unwrap_or(u32::MAX).to_le_bytes());
        }
    }
}

fn write_bytes(bytes: &mut [u8], at: usize, what: &[u8]) {
    bytes[at..at + what.len()].copy_from_slice(what);
}

fn read_u64(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map(u64::from_le_bytes).unwrap_or_default()
}

fn read_guid(bytes: &[u8], at: usize) -> Uuid {
    bytes[at..at + 16].try_into().map(Uuid::from_bytes_le).unwrap_or_default()
}

fn compute_crc(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
pub(crate) mod tests;
