//! Power cuts during edits of random tables.

use super::*;
use proptest::prelude::*;

/// Table on a disk, and an edit of this table.
#[derive(Debug, Clone)]
struct Case {
    sector: u64,
    before: Vec<ExpectedEntry>,
    edit: TableEdit,
}

/// Generates tables of up to 12 partitions in ascending order. Some partitions are preserved, and the others are
/// removed. New partitions use the space of the removed partitions and some of the free space. Some of them reuse the
/// numbers of removed partitions.
fn cases() -> impl Strategy<Value = Case> {
    let partition = (any::<bool>(), any::<bool>(), 1..20_u64, 0..3_u64, 1..=128_u32);
    (prop::sample::select(&SECTORS_BYTES[..]), prop::collection::vec(partition, 1..12))
        .prop_map(|(sector, partitions)| build_case(sector, partitions))
}

/// Builds a case from partitions. Each tuple contains whether the partition is preserved, whether it is recreated if it
/// is not preserved, its length and the gap before it in sectors, and its number.
fn build_case(sector: u64, partitions: Vec<(bool, bool, u64, u64, u32)>) -> Case {
    let mut start = 34;
    let (mut before, mut preserved, mut removed, mut added) = (vec![], vec![], vec![], vec![]);
    for (is_preserved, is_recreated, length, gap, number) in partitions {
        if before.iter().any(|entry: &ExpectedEntry| entry.number == number) {
            continue;
        }
        let old = entry(number, start + gap, start + gap + length);
        start = old.last_lba + 1;
        if is_preserved {
            preserved.push(old.clone());
        } else {
            removed.push(number);
            added.extend(is_recreated.then(|| new(number, old.first_lba - gap, old.last_lba)));
        }
        before.push(old);
    }
    let free = (1..=128).find(|number| before.iter().all(|entry| entry.number != *number));
    added.extend(free.map(|number| new(number, start, start + 9)));
    Case { sector, edit: edit(sector, preserved, &removed, added), before }
}

/// Returns the disk after a power failure during the writes to this copy. All earlier copies are complete. In this
/// copy, only a subset of the sectors is written, and some of these sectors are torn. `choices` selects the subset and
/// the torn sectors.
fn interrupt(before: &[u8], writes: &TableWrites, copy: usize, choices: u64) -> Vec<u8> {
    let mut disk = before.to_vec();
    for write in writes.copies[..copy].iter().flatten() {
        write_bytes(&mut disk, write.offset as usize, &write.bytes);
    }
    for (index, write) in writes.copies[copy].iter().enumerate() {
        let is_written = choices >> index & 1 == 1;
        let is_torn = choices >> (index + 20) & 3 == 3;
        let whole = write.bytes.len();
        let length = if is_torn { (choices >> 40) as usize % (whole + 1) } else { whole };
        // A torn sector starts with the new content or ends with it.
        let range = if choices >> 63 == 1 { 0..length } else { whole - length..whole };
        if is_written {
            write_bytes(&mut disk, write.offset as usize + range.start, &write.bytes[range]);
        }
    }
    disk
}

/// Returns the table that tools use: the primary copy, or the backup copy if the primary one is damaged.
fn read_effective(disk: &[u8], sector: u64) -> Gpt {
    let read = |lba| Gpt::read(&read_from(disk), sector, lba).ok().flatten();
    read(1).or_else(|| read(SECTORS - 1)).expect("no valid copy")
}

fn assert_preserved(case: &Case, before: &[u8], disk: &[u8]) {
    let table = read_effective(disk, case.sector);
    for entry in &case.edit.preserved {
        let at = slots(case.sector, entry.number.into())[0];
        let slot = table.entry_slots().nth(entry.number as usize - 1).unwrap();
        assert_eq!(slot, &before[at..at + 128], "entry {}", entry.number);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// After a power failure at any write, the table that tools use contains all preserved entries, and a repetition of
    /// the edit leads to the same disk contents as an uninterrupted edit.
    #[test]
    fn power_failure_at_any_write_loses_no_preserved_entry(case in cases(), choices in any::<[u64; 12]>()) {
        let before = disk(case.sector, &case.before);
        let writes = compute_table_writes(&read_from(&before), SECTORS, &case.edit).unwrap();
        let mut after = before.clone();
        apply(&mut after, &writes);
        for copy in 0..writes.copies.len() {
            let prefixes = (0..=writes.copies[copy].len()).map(|length| (1_u64 << length) - 1);
            for choices in prefixes.chain(choices) {
                let mut cut = interrupt(&before, &writes, copy, choices);
                assert_preserved(&case, &before, &cut);
                let again = compute_table_writes(&read_from(&cut), SECTORS, &case.edit).unwrap();
                // A second cut, during the repair.
                for copy in 0..again.copies.len() {
                    assert_preserved(&case, &before, &interrupt(&cut, &again, copy, choices.rotate_left(7)));
                }
                apply(&mut cut, &again);
                prop_assert!(cut == after);
            }
        }
    }
}
