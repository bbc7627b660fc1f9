use super::*;
use crate::gpt::{ATTRIBUTES, GptEntry, SECTORS_BYTES, compute_crc};
use operations::{ByteRange, DiskIdentity, ExpectedEntry, NewPartition};
use uuid::Uuid;

mod interruptions;

const SECTORS: u64 = 400;

fn linux() -> Uuid {
    model::layout::PartitionType::Linux.guid()
}

fn read_from(disk: &[u8]) -> impl Fn(&mut [u8], u64) -> io::Result<()> {
    |bytes, at| {
        let found = usize::try_from(at).ok().and_then(|at| disk.get(at..)?.get(..bytes.len()));
        bytes.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

fn entry(number: u32, first_lba: u64, last_lba: u64) -> ExpectedEntry {
    let (kind, guid, name) = (linux(), Uuid::from_u128(number.into()), format!("Ä {number}"));
    ExpectedEntry { number, first_lba, last_lba, kind, guid, name }
}

fn new(number: u32, first_lba: u64, last_lba: u64) -> NewPartition {
    let (device, kind, guid) = (format!("/dev/x{number}").into(), linux(), Uuid::from_u128(u128::from(number) << 64));
    NewPartition { number, device, first_lba, last_lba, kind, guid, name: format!("new {number}") }
}

fn edit(sector: u64, preserved: Vec<ExpectedEntry>, removed: &[u32], added: Vec<NewPartition>) -> TableEdit {
    TableEdit {
        device: "/dev/x".into(),
        identity: DiskIdentity::default(),
        guid: Uuid::from_u128(7),
        sector_bytes: sector as u32,
        preserved,
        removed: removed.to_vec(),
        added,
        boot_gap: None,
    }
}

/// Creates a disk with these partitions. Each entry has attributes, and the MBR has boot code.
fn disk(sector: u64, entries: &[ExpectedEntry]) -> Vec<u8> {
    let mut gpt = Gpt::new(sector, SECTORS, Uuid::from_u128(7)).unwrap();
    for entry in entries {
        let sectors = entry.first_lba..entry.last_lba + 1;
        gpt.set_partition(&GptEntry { number: entry.number, kind: entry.kind, guid: entry.guid, sectors }, &entry.name);
        write_bytes(gpt.entry_slot_mut(entry.number).unwrap(), ATTRIBUTES, &(1_u64 << 60 | 4).to_le_bytes());
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![0x5a; (SECTORS * sector) as usize]).unwrap();
    gpt.write(&std::fs::File::options().write(true).open(file.path()).unwrap()).unwrap();
    std::fs::read(file.path()).unwrap()
}

fn apply(disk: &mut [u8], writes: &TableWrites) {
    for write in writes.copies.iter().flatten() {
        write_bytes(disk, write.offset as usize, &write.bytes);
    }
}

/// Returns the offset of the entry with this number in the primary copy and in the backup copy.
fn slots(sector: u64, number: u64) -> [usize; 2] {
    let backup = SECTORS - 1 - 16384 / sector;
    [2, backup].map(|lba| (lba * sector + (number - 1) * 128) as usize)
}

/// Writes correct checksums into both headers.
fn seal(disk: &mut [u8], sector: u64) {
    for lba in [1, SECTORS - 1] {
        let at = (lba * sector) as usize;
        let start = (read_u64(disk, at + ENTRIES_LBA) * sector) as usize;
        let sum = compute_crc(&disk[start..start + 16384]);
        write_bytes(disk, at + ENTRIES_CRC, &sum.to_le_bytes());
        write_bytes(disk, at + HEADER_CRC, &[0; 4]);
        let sum = compute_crc(&disk[at..at + 92]);
        write_bytes(disk, at + HEADER_CRC, &sum.to_le_bytes());
    }
}

fn refuse(disk: &[u8], edit: &TableEdit) -> String {
    compute_table_writes(&read_from(disk), SECTORS, edit).unwrap_err().to_string()
}

#[test]
fn only_the_sectors_of_changed_entries_and_headers_are_written() {
    for sector in SECTORS_BYTES {
        let (first, last) = (2 + 16384 / sector, SECTORS - 2 - 16384 / sector);
        let (preserved, gone) = (entry(1, first, 99), entry(2, 100, 199));
        let before = disk(sector, &[preserved.clone(), gone, entry(7, last, last)]);
        let edit =
            edit(sector, vec![preserved, entry(7, last, last)], &[2], vec![new(2, 150, 300), new(128, 301, last - 1)]);
        let writes = compute_table_writes(&read_from(&before), SECTORS, &edit).unwrap();
        let mut after = before.clone();
        apply(&mut after, &writes);
        // The writes to each copy: the two sectors with the entries 2 and 128, and the header.
        assert_eq!(writes.copies.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3]);
        let offsets = [SECTORS - 1, 1].map(|lba| lba * sector);
        assert_eq!(writes.copies.iter().map(|copy| copy.last().unwrap().offset).collect::<Vec<_>>(), offsets);
        for number in [1, 7] {
            for at in slots(sector, number) {
                assert_eq!(after[at..at + 128], before[at..at + 128], "entry {number}");
            }
        }
        // Sectors outside the table have not changed, including the MBR and the sectors adjacent to the table.
        let length = |lba: u64| (lba * sector) as usize;
        assert_eq!(after[..length(1)], before[..length(1)]);
        assert_eq!(after[length(first)..length(last + 1)], before[length(first)..length(last + 1)]);
        let tables = [1, SECTORS - 1].map(|lba| Gpt::read(&read_from(&after), sector, lba).unwrap().unwrap());
        assert!(tables[0].entries().eq(tables[1].entries()));
        assert_eq!(tables[0].entries().map(|entry| entry.number).collect::<Vec<_>>(), [1, 2, 7, 128]);
        assert_eq!(tables.each_ref().map(Gpt::guid), [edit.guid; 2]);
        // Repeating the edit writes nothing.
        let again = compute_table_writes(&read_from(&after), SECTORS, &edit).unwrap();
        assert_eq!(again, TableWrites::default());
    }
}

#[test]
fn edit_without_changes_writes_nothing() {
    let entries = [entry(1, 34, 99), entry(3, 100, 199)];
    let before = disk(512, &entries);
    let writes = compute_table_writes(&read_from(&before), SECTORS, &edit(512, entries.to_vec(), &[], vec![]));
    assert_eq!(writes.unwrap(), TableWrites::default());
}

#[test]
fn refuses_edit_of_another_table_with_all_reasons() {
    let before = disk(512, &[entry(1, 34, 99), entry(2, 100, 199), entry(3, 200, 299)]);
    let one = || vec![entry(1, 34, 99), entry(2, 100, 199)];
    let with = |change: fn(&mut ExpectedEntry)| {
        let mut entries = one();
        change(&mut entries[0]);
        entries
    };
    let guid = |guid| NewPartition { guid, ..new(4, 300, 349) };
    let cases = [
        (edit(512, with(|entry| entry.last_lba = 98), &[3], vec![]), "its sectors are 34 to 99 instead of 34 to 98"),
        (edit(512, with(|entry| entry.kind = entry.guid), &[3], vec![]), "its type is 0fc63daf-"),
        (edit(512, with(|entry| entry.guid = entry.kind), &[3], vec![]), "its GUID is 00000000-"),
        (edit(512, with(|entry| entry.name.clear()), &[3], vec![]), "its name is \"Ä 1\" instead of \"\""),
        (
            edit(512, with(|entry| entry.number = 5), &[3], vec![]),
            "partition 5 is preserved, but is not in the partition table",
        ),
        (edit(512, [one(), one()].concat(), &[3], vec![]), "partition 1 is listed twice as preserved"),
        (edit(512, one(), &[1, 3], vec![]), "partition 1 is preserved, so it cannot be removed"),
        (edit(512, one(), &[3], vec![new(1, 300, 349)]), "partition 1 is preserved, so it cannot be"),
        (edit(512, one(), &[3, 9], vec![]), "partition 9 cannot be removed: it is not in the partition table"),
        (edit(512, one(), &[], vec![]), "partition 3 in the partition table is not part of the plan"),
        (
            edit(512, one(), &[], vec![new(3, 300, 349)]),
            "partition 3 cannot be added: it is already in the partition table",
        ),
        (edit(512, one(), &[3], vec![new(4, 300, 349), new(4, 350, 359)]), "another partition has the same number"),
        (edit(512, one(), &[3], vec![new(129, 300, 349)]), "partition numbers in this table must be 1 to 128"),
        (edit(512, one(), &[3], vec![new(0, 300, 349)]), "partition numbers in this table must be 1 to 128"),
        (edit(512, one(), &[3], vec![new(4, 199, 349)]), "the partitions 2 and 4 overlap"),
        (edit(512, one(), &[3], vec![new(4, 40, 50)]), "the partitions 1 and 4 overlap"),
        (edit(512, one(), &[3], vec![new(4, 200, 300), new(5, 300, 360)]), "the partitions 4 and 5 overlap"),
        (
            edit(512, one(), &[3], vec![new(4, 300, 367)]),
            "the sectors 300 to 367 are not within the usable sectors 34 to 366",
        ),
        (edit(512, one(), &[3], vec![new(4, 33, 33)]), "the sectors 33 to 33 are not within"),
        (edit(512, one(), &[3], vec![new(4, 349, 300)]), "the sectors 349 to 300 are not within"),
        (edit(512, one(), &[3], vec![new(4, 300, u64::MAX)]), "are not within the usable sectors 34 to 366"),
        (edit(512, one(), &[3], vec![guid(Uuid::nil())]), "the partition type or the partition GUID is zero"),
        (edit(512, one(), &[3], vec![guid(Uuid::from_u128(1))]), "a preserved partition has the same GUID"),
        (edit(512, one(), &[3], vec![NewPartition { name: "x".repeat(37), ..new(4, 300, 349) }]), "36 UTF-16"),
        (TableEdit { guid: Uuid::nil(), ..edit(512, one(), &[3], vec![]) }, "the disk's GUID is 00000000-"),
        (edit(4096, one(), &[3], vec![]), "sector 1 does not contain a GPT header (the disk has the sectors 0 to 399)"),
    ];
    for (edit, expected) in cases {
        let error = refuse(&before, &edit);
        assert!(error.contains(expected) && error.contains("plan again"), "{expected}: {error}");
    }
    let error = refuse(&before, &edit(512, with(|entry| entry.last_lba = 9), &[9], vec![new(4, 1, 1)]));
    assert_eq!(error.matches("; ").count(), 4, "{error}");
}

/// Function that damages the image of a disk.
type Damage = fn(&mut Vec<u8>);

#[test]
fn refuses_table_copies_that_disagree_or_are_damaged() {
    let preserved = vec![entry(1, 34, 99)];
    let good = disk(512, &[entry(1, 34, 99), entry(2, 100, 199)]);
    let edit = edit(512, preserved, &[2], vec![]);
    let cases: [(&str, Damage); 10] = [
        ("sector 1 does not contain a GPT header", |disk| disk[512] = 0),
        ("sector 399 does not contain a GPT header", |disk| disk[399 * 512] = 0),
        ("the GPT at sector 1 is damaged: the header's checksum does not match", |disk| disk[512 + 56] ^= 1),
        ("describe different partition tables; the GPT at sector 399 is damaged", |disk| disk[399 * 512 + 40] ^= 1),
        ("the headers at the sectors 1 and 399 describe different partition tables; ", |disk| {
            disk[399 * 512 + 56] ^= 1;
            seal(disk, 512);
        }),
        ("sector 5000 does not contain", |disk| {
            write_bytes(disk, 512 + BACKUP_LBA, &5000_u64.to_le_bytes());
            seal(disk, 512);
        }),
        ("differ in the partitions 1; repair the partition table", |disk| disk[slots(512, 1)[1] + ATTRIBUTES] ^= 1),
        ("differ in the partitions 1; repair the partition table", |disk| {
            disk[slots(512, 1)[0] + ATTRIBUTES] ^= 1;
            seal(disk, 512);
        }),
        ("differ in the partitions 9; repair the partition table", |disk| {
            disk[slots(512, 9)[1]] = 1;
            seal(disk, 512);
        }),
        ("both copies of the partition table are damaged: the GPT at sector 1 is", |disk| {
            slots(512, 9).into_iter().for_each(|at| disk[at] = 1);
        }),
    ];
    for (expected, damage) in cases {
        let mut disk = good.clone();
        damage(&mut disk);
        let error = refuse(&disk, &edit);
        assert!(error.contains(expected) && error.contains("repair the partition table"), "{expected}: {error}");
    }
}

/// The entries of a table within the sectors for partitions would overwrite a partition.
#[test]
fn refuses_table_within_the_sectors_for_partitions() {
    let mut disk = disk(512, &[entry(1, 34, 99)]);
    for header in [512, 399 * 512] {
        write_bytes(&mut disk, header + crate::gpt::FIRST_USABLE, &20_u64.to_le_bytes());
    }
    seal(&mut disk, 512);
    let error = refuse(&disk, &edit(512, vec![entry(1, 34, 99)], &[], vec![]));
    assert!(error.contains("the partition table overlaps the sectors 20 to 366"), "{error}");
}

/// The space for the boot loader of a BIOS machine follows a table of 128 entries. A larger table overlaps it.
#[test]
fn refuses_table_that_overlaps_the_boot_gap() {
    let disk = disk(512, &[entry(1, 100, 199)]);
    let with = |start: u64| {
        let boot_gap = Some(ByteRange { start: start * 512, length: 20 * 512 });
        TableEdit { boot_gap, ..edit(512, vec![entry(1, 100, 199)], &[], vec![]) }
    };
    assert!(compute_table_writes(&read_from(&disk), disk.len() as u64 / 512, &with(34)).is_ok());
    let error = refuse(&disk, &with(33));
    assert!(error.contains("the boot loader requires the sectors 33 to 52"), "{error}");
}

/// Mutated tables are refused, or the edit preserves their entries.
#[test]
fn edits_of_mutated_tables_preserve_entries_or_are_refused() {
    let (mut edited, mut refused) = (0, 0);
    for crate::gpt::tests::mutated_tables::Mutated { name, sector, disk } in
        crate::gpt::tests::mutated_tables::mutated()
    {
        let sectors = disk.len() as u64 / u64::from(sector);
        let Ok(Some(gpt)) = Gpt::read(&read_from(&disk), sector.into(), 1) else { continue };
        let preserved =
            gpt.entries().filter_map(|entry| super::target_entries::find_expected_entry(&gpt, entry.number));
        let edit = TableEdit {
            guid: gpt.guid(),
            ..edit(
                sector.into(),
                preserved.collect(),
                &[],
                vec![new(100, gpt.first_usable() + 20, gpt.first_usable() + 20)],
            )
        };
        let Ok(writes) = compute_table_writes(&read_from(&disk), sectors, &edit) else {
            refused += 1;
            continue;
        };
        let mut after = disk.clone();
        apply(&mut after, &writes);
        for lba in [1, gpt.backup_lba()] {
            let found = Gpt::read(&read_from(&after), sector.into(), lba).unwrap().unwrap();
            assert!(gpt.entries().all(|entry| found.entries().any(|other| other == entry)), "{name}");
        }
        edited += 1;
    }
    println!("mutated tables: {edited} edited, {refused} refused");
    assert!(edited > 0 && refused > 100, "{edited} {refused}");
}
