//! The GPT, the partition table of UEFI: its bytes are known here alone. Reads one of its two copies, and writes both.
//!
//! A table that was read stays as its bytes: the entries of an image keep their attributes, and what we do not know. Entry N is
//! in slot N-1, whatever slots are free before it.

use flate2::Crc;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use uuid::Uuid;

/// Sizes of sector that GPTs are made for.
pub const SECTORS_BYTES: [u64; 2] = [512, 4096];

/// UEFI's minimum, and what every tool writes.
pub const ENTRIES: u32 = 128;
const ENTRY_BYTES: u32 = 128;

/// UTF-16 units of a partition's name.
pub const NAME_UNITS: usize = 36;

/// The type of the partition that stands for a GPT in the protective MBR.
pub const PROTECTIVE: u8 = 0xee;

/// How a header begins.
const SIGNATURE: &[u8] = b"EFI PART";

/// UEFI's header; what comes behind it in its sector is zero.
const HEADER_BYTES: u32 = 92;

/// Offsets in the header (UEFI specification 5.3.2).
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

/// Offsets in an entry (UEFI specification 5.3.3).
const PARTITION_GUID: usize = 16;
const FIRST_LBA: usize = 32;
const LAST_LBA: usize = 40;
const NAME: usize = 56;

/// Reads a disk, or what is known of it: so many bytes from that offset.
pub type ReadAt<'a> = &'a dyn Fn(&mut [u8], u64) -> io::Result<()>;

/// One copy of the table.
#[derive(Clone, PartialEq, Eq)]
pub struct Gpt {
    sector: u64,
    /// A whole sector.
    header: Vec<u8>,
    entries: Vec<u8>,
}

/// A partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub number: u32,
    pub kind: Uuid,
    pub guid: Uuid,
    /// As the table has them: they may lie anywhere.
    pub sectors: Range<u64>,
}

/// Does this sector begin as a header does?
pub fn is_header(sector: &[u8]) -> bool {
    sector.starts_with(SIGNATURE)
}

/// Where the disk ends that this GPT was made for, by the word of a header that nobody has checked. `None` where the bytes, which
/// begin as the disk does, have no header for such sectors.
pub fn claimed_end(head: &[u8], sector: u64) -> Option<u64> {
    let header = head.get(sector as usize..2 * sector as usize)?;
    is_header(header).then(|| number_at(header, BACKUP_LBA).saturating_add(1).saturating_mul(sector))
}

impl Gpt {
    /// A primary copy without partitions, for a disk of so many sectors.
    ///
    /// # Errors
    /// No GPT is made for such sectors, or there are too few of them.
    pub fn new(sector: u64, sectors: u64, guid: Uuid) -> io::Result<Gpt> {
        if !SECTORS_BYTES.contains(&sector) {
            return Err(io::Error::other(format!("sectors of {sector} bytes cannot be partitioned")));
        }
        let entries = vec![0; (ENTRIES * ENTRY_BYTES) as usize];
        let mut gpt = Gpt { sector, header: vec![0; sector as usize], entries };
        put(&mut gpt.header, 0, SIGNATURE);
        // Version 1.0.
        for (at, word) in
            [(REVISION, 0x1_0000), (HEADER_SIZE, HEADER_BYTES), (ENTRY_COUNT, ENTRIES), (ENTRY_SIZE, ENTRY_BYTES)]
        {
            put(&mut gpt.header, at, &word.to_le_bytes());
        }
        put(&mut gpt.header, DISK_GUID, &guid.to_bytes_le());
        let first_usable = 2 + gpt.entries_sectors();
        gpt.put_numbers(&[(OWN_LBA, 1), (ENTRIES_LBA, 2), (FIRST_USABLE, first_usable)]);
        gpt.resize(sectors);
        if gpt.last_usable() < first_usable {
            return Err(io::Error::other(format!("{sectors} sectors are too few for a partition table")));
        }
        Ok(gpt)
    }

    /// The copy whose header is at this sector; `None` where there is none.
    ///
    /// # Errors
    /// It cannot be read, or it is damaged.
    pub fn read(read_at: ReadAt, sector: u64, lba: u64) -> io::Result<Option<Gpt>> {
        let mut header = vec![0; sector as usize];
        read_at(&mut header, lba * sector)?;
        if !is_header(&header) {
            return Ok(None);
        }
        let damaged = |what: &str| Err(io::Error::other(format!("the GPT at sector {lba} is damaged: {what}")));
        let mut gpt = Gpt { sector, header, entries: Vec::new() };
        let size = gpt.word(HEADER_SIZE);
        if !(HEADER_BYTES..=sector as u32).contains(&size) || gpt.header_crc() != gpt.word(HEADER_CRC) {
            return damaged("the header's checksum is wrong");
        }
        let (count, entry_bytes) = (gpt.word(ENTRY_COUNT) as usize, gpt.word(ENTRY_SIZE) as usize);
        // Nobody has more than a few; a size that lies must not cost memory.
        if !(1..=4096).contains(&count) || !(128..=4096).contains(&entry_bytes) || !entry_bytes.is_power_of_two() {
            return damaged(&format!("{count} entries of {entry_bytes} bytes"));
        }
        if gpt.number(OWN_LBA) != lba {
            return damaged("the header is meant for another place");
        }
        gpt.entries = vec![0; count * entry_bytes];
        let at = gpt.entries_lba().checked_mul(sector).ok_or(io::ErrorKind::InvalidData)?;
        read_at(&mut gpt.entries, at)?;
        if crc(&gpt.entries) != gpt.word(ENTRIES_CRC) {
            return damaged("the checksum of its entries is wrong");
        }
        Ok(Some(gpt))
    }

    pub fn guid(&self) -> Uuid {
        guid_at(&self.header, DISK_GUID)
    }

    /// The sector of the other copy's header.
    pub fn backup_lba(&self) -> u64 {
        self.number(BACKUP_LBA)
    }

    pub fn first_usable(&self) -> u64 {
        self.number(FIRST_USABLE)
    }

    pub fn last_usable(&self) -> u64 {
        self.number(LAST_USABLE)
    }

    pub fn entries_lba(&self) -> u64 {
        self.number(ENTRIES_LBA)
    }

    pub fn entries_sectors(&self) -> u64 {
        (self.entries.len() as u64).div_ceil(self.sector)
    }

    pub fn sector_bytes(&self) -> u64 {
        self.sector
    }

    /// Those in use.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        let entries = self.entries.chunks_exact(self.word(ENTRY_SIZE) as usize).zip(1..);
        entries.filter(|(entry, _)| entry[..PARTITION_GUID] != [0; PARTITION_GUID]).map(|(entry, number)| Entry {
            number,
            kind: guid_at(entry, 0),
            guid: guid_at(entry, PARTITION_GUID),
            sectors: number_at(entry, FIRST_LBA)..number_at(entry, LAST_LBA).saturating_add(1),
        })
    }

    /// A primary copy for a disk of so many sectors: the backup lies at its end.
    pub fn resize(&mut self, sectors: u64) {
        let last = sectors.saturating_sub(1);
        let last_usable = last.saturating_sub(self.entries_sectors() + 1);
        self.put_numbers(&[(BACKUP_LBA, last), (LAST_USABLE, last_usable)]);
    }

    /// The partition takes its slot, with no attributes. Of the name there is as much as fits.
    pub fn put(&mut self, entry: &Entry, name: &str) {
        let Some(slot) = self.slot(entry.number) else { return };
        slot.fill(0);
        put(slot, 0, &entry.kind.to_bytes_le());
        put(slot, PARTITION_GUID, &entry.guid.to_bytes_le());
        put(slot, FIRST_LBA, &entry.sectors.start.to_le_bytes());
        put(slot, LAST_LBA, &entry.sectors.end.saturating_sub(1).to_le_bytes());
        for (at, unit) in slot[NAME..NAME + 2 * NAME_UNITS].chunks_exact_mut(2).zip(name.encode_utf16()) {
            at.copy_from_slice(&unit.to_le_bytes());
        }
    }

    /// The partition ends before that sector; all else of it stays.
    pub fn put_end(&mut self, number: u32, end: u64) {
        if let Some(slot) = self.slot(number) {
            put(slot, LAST_LBA, &end.saturating_sub(1).to_le_bytes());
        }
    }

    /// Writes both copies of this primary one, the backup first: after a cut in between one of them is whole.
    ///
    /// # Errors
    /// A write error.
    pub fn write(&self, disk: &File) -> io::Result<()> {
        for copy in self.copies() {
            disk.write_all_at(&copy.entries, copy.entries_lba() * copy.sector)?;
            disk.write_all_at(&copy.header, copy.number(OWN_LBA) * copy.sector)?;
            disk.sync_all()?;
        }
        Ok(())
    }

    /// Are both copies on the disk as [`Self::write`] has written them?
    ///
    /// # Errors
    /// They are not, or cannot be read.
    pub fn prove(&self, disk: &File) -> io::Result<()> {
        for copy in self.copies() {
            let lba = copy.number(OWN_LBA);
            let read_at = |bytes: &mut [u8], at: u64| disk.read_exact_at(bytes, at);
            if Gpt::read(&read_at, self.sector, lba)?.as_ref() != Some(&copy) {
                return Err(io::Error::other(format!("the table at sector {lba} is not what was written")));
            }
        }
        Ok(())
    }

    /// Backup and primary, with their checksums.
    fn copies(&self) -> [Gpt; 2] {
        let (last, mut backup, mut primary) = (self.backup_lba(), self.clone(), self.clone());
        let entries = last.saturating_sub(self.entries_sectors());
        backup.put_numbers(&[(OWN_LBA, last), (BACKUP_LBA, 1), (ENTRIES_LBA, entries)]);
        backup.seal();
        primary.seal();
        [backup, primary]
    }

    fn seal(&mut self) {
        let sum = crc(&self.entries);
        put(&mut self.header, ENTRIES_CRC, &sum.to_le_bytes());
        let sum = self.header_crc();
        put(&mut self.header, HEADER_CRC, &sum.to_le_bytes());
    }

    /// Of the header with zeros in the checksum's place.
    fn header_crc(&self) -> u32 {
        let mut header = self.header[..self.word(HEADER_SIZE) as usize].to_vec();
        header[HEADER_CRC..HEADER_CRC + 4].fill(0);
        crc(&header)
    }

    fn slot(&mut self, number: u32) -> Option<&mut [u8]> {
        let bytes = self.word(ENTRY_SIZE) as usize;
        self.entries.chunks_exact_mut(bytes).nth((number as usize).checked_sub(1)?)
    }

    fn number(&self, at: usize) -> u64 {
        number_at(&self.header, at)
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes([self.header[at], self.header[at + 1], self.header[at + 2], self.header[at + 3]])
    }

    fn put_numbers(&mut self, numbers: &[(usize, u64)]) {
        numbers.iter().for_each(|(at, number)| put(&mut self.header, *at, &number.to_le_bytes()));
    }
}

/// The MBR of a disk with a GPT (UEFI specification 5.2.3): one partition, which covers the disk.
pub fn protective_mbr(last_lba: u64) -> [u8; 512] {
    let mut mbr = [0; 512];
    put(&mut mbr, 446, &[0, 0, 2, 0, PROTECTIVE, 0xff, 0xff, 0xff, 1, 0, 0, 0]);
    put(&mut mbr, 510, &[0x55, 0xaa]);
    fit_protective_mbr(&mut mbr, last_lba);
    mbr
}

/// It covers the disk from LBA 1, and 0xFFFFFFFF stands for "more". Other entries of a hybrid MBR stay.
pub fn fit_protective_mbr(mbr: &mut [u8; 512], last_lba: u64) {
    for entry in mbr[446..510].chunks_exact_mut(16) {
        if entry[4] == PROTECTIVE && entry[8..12] == 1_u32.to_le_bytes() {
            put(entry, 12, &u32::try_from(last_lba).unwrap_or(u32::MAX).to_le_bytes());
        }
    }
}

fn put(bytes: &mut [u8], at: usize, what: &[u8]) {
    bytes[at..at + what.len()].copy_from_slice(what);
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
