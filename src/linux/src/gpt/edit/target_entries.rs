//! Entries of an edited table.

use crate::gpt::{Gpt, GptEntry, NAME, NAME_UNITS};
use operations::{ExpectedEntry, NewPartition, TableEdit};
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;

/// Applies the edit to the entries of a valid copy, and returns the resulting entries.
///
/// # Errors
/// Returns an error that lists all reasons why the edit does not fit this table.
pub(super) fn build_target_entries(base: &Gpt, edit: &TableEdit) -> io::Result<Vec<u8>> {
    let mut target = base.clone();
    for number in &edit.removed {
        if let Some(slot) = target.entry_slot_mut(*number) {
            slot.fill(0);
        }
    }
    for NewPartition { number, first_lba, last_lba, kind, guid, name, .. } in &edit.added {
        let sectors = *first_lba..last_lba.saturating_add(1);
        target.set_partition(&GptEntry { number: *number, kind: *kind, guid: *guid, sectors }, name);
    }
    let mut problems = list_disk_problems(base, edit);
    problems.extend(list_preserved_problems(base, edit));
    // The numbers are not checked if the edit is already complete: removed partitions are then absent, and added
    // partitions present.
    if target.entries != base.entries {
        problems.extend(list_number_problems(base, edit));
    }
    problems.extend(list_added_problems(base, edit));
    problems.extend(list_unknown_entries(base, edit));
    problems.extend(list_overlaps(&target, edit));
    match problems.is_empty() {
        true => Ok(target.entries),
        false => Err(io::Error::other(format!("{}; plan again", problems.join("; ")))),
    }
}

fn list_disk_problems(base: &Gpt, edit: &TableEdit) -> Vec<String> {
    let (actual, expected) = (base.guid(), edit.guid);
    if actual == expected {
        return Vec::new();
    }
    vec![format!("the disk's GUID is {actual}, but the plan was made for {expected}")]
}

fn list_preserved_problems(base: &Gpt, edit: &TableEdit) -> Vec<String> {
    let mut numbers = BTreeSet::new();
    let mut problems = Vec::new();
    for expected in &edit.preserved {
        let number = expected.number;
        if !numbers.insert(number) {
            problems.push(format!("partition {number} is listed twice as preserved"));
        }
        if edit.removed.contains(&number) || edit.added.iter().any(|new| new.number == number) {
            problems.push(format!("partition {number} is preserved, so it cannot be removed or recreated"));
        }
        match find_expected_entry(base, number) {
            None => problems.push(format!("partition {number} is preserved, but is not in the partition table")),
            Some(actual) if actual != *expected => problems.push(format!(
                "partition {number} is preserved, but {}",
                list_entry_differences(&actual, expected).join(", ")
            )),
            Some(_) => {}
        }
    }
    problems
}

fn list_entry_differences(actual: &ExpectedEntry, expected: &ExpectedEntry) -> Vec<String> {
    let sectors = |entry: &ExpectedEntry| format!("{} to {}", entry.first_lba, entry.last_lba);
    let fields = [
        ("sectors are", sectors(actual), sectors(expected)),
        ("type is", actual.kind.to_string(), expected.kind.to_string()),
        ("GUID is", actual.guid.to_string(), expected.guid.to_string()),
        ("name is", format!("{:?}", actual.name), format!("{:?}", expected.name)),
    ];
    let differing = fields.into_iter().filter(|(_, actual, expected)| actual != expected);
    differing.map(|(field, actual, expected)| format!("its {field} {actual} instead of {expected}")).collect()
}

/// Returns the entry with this number; `None` if the entry is not in use.
pub(super) fn find_expected_entry(base: &Gpt, number: u32) -> Option<ExpectedEntry> {
    let slot = base.entry_slots().nth((number as usize).checked_sub(1)?)?;
    let GptEntry { kind, guid, sectors, .. } = base.entries().find(|entry| entry.number == number)?;
    let units = slot[NAME..NAME + 2 * NAME_UNITS].chunks_exact(2).map(|unit| u16::from_le_bytes([unit[0], unit[1]]));
    let units: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
    let (first_lba, last_lba) = (sectors.start, sectors.end.saturating_sub(1));
    Some(ExpectedEntry { number, first_lba, last_lba, kind, guid, name: String::from_utf16_lossy(&units) })
}

fn list_number_problems(base: &Gpt, edit: &TableEdit) -> Vec<String> {
    let is_used = |number: u32| base.entries().any(|entry| entry.number == number);
    let absent = edit.removed.iter().filter(|number| !is_used(**number));
    let absent = absent.map(|number| format!("partition {number} cannot be removed: it is not in the partition table"));
    let taken = edit.added.iter().filter(|new| is_used(new.number) && !edit.removed.contains(&new.number));
    let taken =
        taken.map(|new| format!("partition {} cannot be added: it is already in the partition table", new.number));
    absent.chain(taken).collect()
}

/// Lists the problems of added partitions, except overlaps. Names that are too long would be truncated, so they are
/// refused.
fn list_added_problems(base: &Gpt, edit: &TableEdit) -> Vec<String> {
    let count = base.entry_slots().count() as u64;
    let (first, last) = (base.first_usable(), base.last_usable());
    let mut problems = Vec::new();
    for NewPartition { number, first_lba, last_lba, kind, guid, name, .. } in &edit.added {
        let mut refuse = |why: String| problems.push(format!("partition {number} cannot be added: {why}"));
        if !(1..=count).contains(&u64::from(*number)) {
            refuse(format!("partition numbers in this table must be 1 to {count}"));
        }
        if edit.added.iter().filter(|other| other.number == *number).count() > 1 {
            refuse("another partition has the same number".to_owned());
        }
        if *first_lba < first || last_lba < first_lba || *last_lba > last {
            refuse(format!(
                "the sectors {first_lba} to {last_lba} are not within the usable sectors {first} to {last}"
            ));
        }
        if kind.is_nil() || guid.is_nil() {
            refuse("the partition type or the partition GUID is zero".to_owned());
        }
        if edit.preserved.iter().any(|entry| entry.guid == *guid) {
            refuse(format!("a preserved partition has the same GUID, {guid}"));
        }
        if name.encode_utf16().count() > NAME_UNITS {
            refuse(format!("the name {name:?} is longer than {NAME_UNITS} UTF-16 code units"));
        }
    }
    problems
}

/// Lists the entries of the table that are not part of the edit.
fn list_unknown_entries(base: &Gpt, edit: &TableEdit) -> Vec<String> {
    let is_known = |number: u32| {
        edit.removed.contains(&number)
            || edit.preserved.iter().any(|entry| entry.number == number)
            || edit.added.iter().any(|new| new.number == number)
    };
    let unknown = base.entries().filter(|entry| !is_known(entry.number));
    unknown.map(|entry| format!("partition {} in the partition table is not part of the plan", entry.number)).collect()
}

/// Lists pairs of partitions that overlap, and preserved partitions outside the usable sectors.
fn list_overlaps(target: &Gpt, edit: &TableEdit) -> Vec<String> {
    let usable = target.first_usable()..target.last_usable().saturating_add(1);
    let is_within = |sectors: &Range<u64>| {
        sectors.start >= usable.start && sectors.start < sectors.end && sectors.end <= usable.end
    };
    let mut entries: Vec<GptEntry> = target.entries().collect();
    entries.sort_by_key(|entry| entry.sectors.start);
    let is_added = |number: u32| edit.added.iter().any(|new| new.number == number);
    let outside = entries.iter().filter(|entry| !is_within(&entry.sectors) && !is_added(entry.number));
    let mut problems: Vec<String> =
        outside.map(|entry| format!("partition {} is not within the usable sectors", entry.number)).collect();
    for (index, entry) in entries.iter().enumerate() {
        let overlaps = entries[..index].iter().filter(|before| before.sectors.end > entry.sectors.start);
        problems
            .extend(overlaps.map(|before| format!("the partitions {} and {} overlap", before.number, entry.number)));
    }
    problems
}
