//! Computes the writes that change single entries of a GPT.
//!
//! The order of the writes ensures that at any time, at least one copy is valid and contains all preserved entries.
//! Copies are written one after the other, with a flush of the disk's cache in between. The backup copy is written
//! first. Firmware, kernel and tools use the primary copy if it is valid, and otherwise the backup copy. They therefore
//! use the old table until the first write to the primary copy, the new backup copy while the primary copy is
//! incomplete, and the new primary copy afterwards. If an earlier edit was interrupted in one of the copies, this
//! damaged copy is written first, because the other copy is the only valid one.
//!
//! Within a copy, the order does not matter: the checksums in the header match either the old or the new entries.

mod target_entries;

use super::{
    BACKUP_LBA, ENTRIES_CRC, ENTRIES_LBA, Gpt, HEADER_CRC, OWN_LBA, ReadAt, is_header, read_guid, read_u64, write_bytes,
};
use operations::TableEdit;
use std::io;
use target_entries::build_target_entries;

/// Remedy for tables that another program has damaged.
const REMEDY: &str = "repair the partition table with gdisk or sgdisk, and plan again";

/// Writes of an edit.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TableWrites {
    /// For each copy of the table that changes: the writes to this copy. The copies are in the order in which they must
    /// be written, and the disk's cache must be flushed after each copy.
    pub copies: Vec<Vec<SectorWrite>>,
}

/// Sector of a table with its new content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SectorWrite {
    pub offset: u64,
    pub bytes: Vec<u8>,
}

impl TableWrites {
    /// Returns the number of sectors to write.
    pub(crate) fn count_sectors(&self) -> usize {
        self.copies.iter().map(Vec::len).sum()
    }
}

/// Copy of a table as it is on the disk.
struct TableCopy {
    lba: u64,
    table: Gpt,
    /// Whole sectors that contain the entries.
    entry_sectors: Vec<u8>,
    /// Reason why the copy is invalid.
    damage: Option<io::Error>,
}

/// Computes the writes for an edit of a disk with this number of sectors. The result is empty if the table on the disk
/// is already the edited one.
///
/// # Errors
/// Returns an error if a copy cannot be read, or if the copies disagree or are damaged in a way other than by an
/// interrupted edit. Also returns an error if the disk has another GUID, a preserved entry differs from the expected
/// one, the table has an entry that is not part of the edit, or an added entry does not fit. The error lists all
/// problems.
pub(crate) fn compute_table_writes(read_at: ReadAt, sectors: u64, edit: &TableEdit) -> io::Result<TableWrites> {
    let sector = u64::from(edit.sector_bytes);
    let primary = read_copy(read_at, sector, 1, sectors)?;
    let backup = read_copy(read_at, sector, primary.table.backup_lba(), sectors)?;
    check_headers_agree(&primary, &backup)?;
    let (base, other) = match (&primary.damage, &backup.damage) {
        (None, _) => (&primary, &backup),
        (Some(_), None) => (&backup, &primary),
        (Some(first), Some(second)) => {
            return Err(io::Error::other(format!(
                "both copies of the partition table are damaged: {first}; {second}; {REMEDY}"
            )));
        }
    };
    check_placement(&primary.table, &backup.table)?;
    check_boot_gap(&primary.table, edit)?;
    let target = build_target_entries(&base.table, edit)?;
    check_entries_agree(base, other, edit)?;
    let order = if primary.damage.is_some() { [&primary, &backup] } else { [&backup, &primary] };
    let copies = order.into_iter().map(|copy| copy.list_writes(&target)).filter(|writes| !writes.is_empty());
    Ok(TableWrites { copies: copies.collect() })
}

/// Reads a copy of the table. A copy with wrong checksums is also read, if its header is plausible.
fn read_copy(read_at: ReadAt, sector: u64, lba: u64, sectors: u64) -> io::Result<TableCopy> {
    let missing = || {
        let last = sectors.saturating_sub(1);
        io::Error::other(format!(
            "sector {lba} does not contain a GPT header (the disk has the sectors 0 to {last}); {REMEDY}"
        ))
    };
    if lba >= sectors {
        return Err(missing());
    }
    let (table, damage) = match Gpt::read(read_at, sector, lba) {
        Ok(table) => (table.ok_or_else(missing)?, None),
        Err(damage) => (read_unverified(read_at, sector, lba, sectors)?, Some(damage)),
    };
    let mut entry_sectors = vec![0; (table.entries_sectors() * sector) as usize];
    let start = table.entries_lba().checked_mul(sector).ok_or(io::ErrorKind::InvalidData)?;
    read_at(&mut entry_sectors, start)?;
    Ok(TableCopy { lba, table, entry_sectors, damage })
}

/// Reads a copy without comparing its checksums.
fn read_unverified(read_at: ReadAt, sector: u64, lba: u64, sectors: u64) -> io::Result<Gpt> {
    let mut header = vec![0; sector as usize];
    read_at(&mut header, lba * sector)?;
    let mut table = Gpt { sector, header, entries: Vec::new() };
    let is_plausible = is_header(&table.header) && table.has_supported_sizes();
    let start = table.entries_lba();
    let length = table.entries_bytes();
    if !is_plausible || start.saturating_add((length as u64).div_ceil(sector)) > sectors {
        return Err(io::Error::other(format!("the GPT header at sector {lba} is damaged; {REMEDY}")));
    }
    table.entries = vec![0; length];
    read_at(&mut table.entries, start * sector)?;
    Ok(table)
}

/// Checks that both headers describe the same table. An interrupted edit changes only the checksums in a header.
fn check_headers_agree(primary: &TableCopy, backup: &TableCopy) -> io::Result<()> {
    let [first, second] = [primary, backup].map(|copy| {
        let mut header = copy.table.header.clone();
        for (at, length) in [(HEADER_CRC, 4), (OWN_LBA, 8), (BACKUP_LBA, 8), (ENTRIES_LBA, 8), (ENTRIES_CRC, 4)] {
            header[at..at + length].fill(0);
        }
        header
    });
    let own_lba = |copy: &TableCopy| read_u64(&copy.table.header, OWN_LBA);
    let are_linked = own_lba(primary) == 1
        && own_lba(backup) == backup.lba
        && primary.table.backup_lba() == backup.lba
        && backup.table.backup_lba() == 1;
    if first == second && are_linked {
        return Ok(());
    }
    let damage = [primary, backup].map(|copy| copy.damage.as_ref().map(|damage| format!("; {damage}")));
    let [first, second] = damage.map(Option::unwrap_or_default);
    Err(io::Error::other(format!(
        "the headers at the sectors 1 and {} describe different partition tables{first}{second}; {REMEDY}",
        backup.lba
    )))
}

/// Checks that the entries of both copies are outside the sectors for partitions.
fn check_placement(primary: &Gpt, backup: &Gpt) -> io::Result<()> {
    let (first, last) = (primary.first_usable(), primary.last_usable());
    let end = |table: &Gpt| table.entries_lba().saturating_add(table.entries_sectors());
    let is_sound = primary.entries_lba() >= 2
        && end(primary) <= first
        && first <= last
        && backup.entries_lba() > last
        && end(backup) <= read_u64(&backup.header, OWN_LBA);
    if is_sound {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "the partition table overlaps the sectors {first} to {last}, in which its partitions may be; repartition the \
        disk"
    )))
}

/// Checks that the primary copy is outside the space for the boot loader of a BIOS machine.
fn check_boot_gap(primary: &Gpt, edit: &TableEdit) -> io::Result<()> {
    let Some(gap) = edit.boot_gap else { return Ok(()) };
    let sector = u64::from(edit.sector_bytes.max(1));
    let (first, end) = (gap.start / sector, gap.start.saturating_add(gap.length) / sector);
    let (entries, entries_end) =
        (primary.entries_lba(), primary.entries_lba().saturating_add(primary.entries_sectors()));
    if entries_end <= first || end <= entries {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "the boot loader requires the sectors {first} to {last}, but the partition table occupies the sectors {entries} to {table_last}; \
        boot the machine with UEFI, or repartition the disk",
        last = end.saturating_sub(1),
        table_last = entries_end.saturating_sub(1)
    )))
}

/// Checks that the copies differ only in entries that the edit changes. If the copy `other` is damaged, only the
/// preserved entries are compared, because the edit that was interrupted may have changed any of the other entries.
fn check_entries_agree(base: &TableCopy, other: &TableCopy, edit: &TableEdit) -> io::Result<()> {
    let is_preserved = |number: u32| edit.preserved.iter().any(|entry| entry.number == number);
    let is_changed = |number: u32| edit.removed.contains(&number) || edit.added.iter().any(|new| new.number == number);
    let is_compared = |number: u32| is_preserved(number) || (other.damage.is_none() && !is_changed(number));
    let pairs = base.table.entry_slots().zip(other.table.entry_slots()).zip(1..);
    let differs = |first: &[u8], second: &[u8]| first != second && (is_in_use(first) || is_in_use(second));
    let differing: Vec<String> = pairs
        .filter(|((first, second), number)| is_compared(*number) && differs(first, second))
        .map(|(_, number)| number.to_string())
        .collect();
    if differing.is_empty() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "the copies of the partition table at the sectors {} and {} differ in the partitions {}; {REMEDY}",
        base.lba,
        other.lba,
        differing.join(", ")
    )))
}

fn is_in_use(slot: &[u8]) -> bool {
    !read_guid(slot, 0).is_nil()
}

impl TableCopy {
    /// Lists the sectors of this copy that must be written so that it contains these entries.
    fn list_writes(&self, entries: &[u8]) -> Vec<SectorWrite> {
        let mut target = self.table.clone();
        target.entries = entries.to_vec();
        target.update_checksums();
        // Only the entries are replaced in the sectors that contain them, because the last of these sectors may also
        // contain other bytes.
        let mut entry_sectors = self.entry_sectors.clone();
        write_bytes(&mut entry_sectors, 0, entries);
        let start = self.table.entries_lba();
        let entry_writes = list_differing_sectors(&self.entry_sectors, &entry_sectors, self.table.sector, start);
        entry_writes
            .chain(list_differing_sectors(&self.table.header, &target.header, self.table.sector, self.lba))
            .collect()
    }
}

fn list_differing_sectors<'a>(
    actual: &'a [u8],
    target: &'a [u8],
    sector: u64,
    start: u64,
) -> impl Iterator<Item = SectorWrite> + 'a {
    let pairs = actual.chunks(sector as usize).zip(target.chunks(sector as usize)).zip(start..);
    pairs
        .filter(|((actual, target), _)| actual != target)
        .map(move |((_, target), lba)| SectorWrite { offset: lba * sector, bytes: target.to_vec() })
}

#[cfg(test)]
mod tests;
