//! Contents of disks with mutated GPTs, with GPTs written by this program, and with obsolete tables.

use super::super::simulated_machine::FakeMachine;
use super::*;
use crate::gpt::tests::mutated_tables::{Mutated, mutated};
use crate::gpt::{Gpt, GptEntry, protective_mbr};
use model::layout::PartitionType;
use std::os::unix::fs::FileExt;
use uuid::Uuid;

#[test]
fn mutated_gpts_yield_neither_outside_partitions_nor_blank_disks() {
    let tree = FakeMachine::new();
    let roots = tree.roots();
    let users = DeviceUsers::read(&roots).unwrap();
    std::fs::create_dir_all(roots.sys.join("block/sda")).unwrap();
    let (mut read, mut partitions, mut doubts) = (0, 0, 0);
    for Mutated { name, sector, disk } in mutated() {
        tree.write("dev/sda", &disk);
        let size_bytes = disk.len() as u64;
        let target = ProbeTarget {
            name: &"sda".into(),
            device: &"/dev/sda".into(),
            sector_bytes: sector,
            size_bytes,
            may_be_cut_off: false,
        };
        let contents = super::read_contents(&target, &roots, &users).unwrap();
        assert!(!contents.blank, "{name}: a disk with contents is considered blank");
        doubts += u32::from(contents.unreadable.is_some());
        for part in contents.table.iter().flat_map(|table| &table.partitions) {
            let end = part.start_bytes.checked_add(part.size_bytes);
            let lies = part.size_bytes > 0 && end.is_some_and(|end| end <= size_bytes);
            assert!(lies, "{name}: {} begins at {} and has {}", part.device, part.start_bytes, part.size_bytes);
            partitions += 1;
        }
        read += 1;
    }
    println!(
        "{read} mutated GPTs: {partitions} partitions, all within their disks; {doubts} reported as partly unreadable"
    );
    assert!(read == 300 && partitions > 500 && doubts > 0, "{read} {partitions} {doubts}");
}

/// libblkid reads a table written by this program correctly.
#[test]
fn libblkid_reads_written_tables_correctly() {
    let tree = FakeMachine::new();
    let roots = tree.roots();
    let users = DeviceUsers::read(&roots).unwrap();
    std::fs::create_dir_all(roots.sys.join("block/sda")).unwrap();
    for sector in [512, 4096] {
        let (id, sectors) = (Uuid::from_u128(7), 4096);
        let mut gpt = Gpt::new(sector, sectors, id).unwrap();
        let [root, efi] = [(15, 300..401), (2, gpt.first_usable()..300)].map(|(number, sectors)| GptEntry {
            number,
            kind: PartitionType::Boot.guid(),
            guid: Uuid::from_u128(number.into()),
            sectors,
        });
        gpt.set_partition(&root, "Ä root");
        gpt.set_partition(&efi, &"e".repeat(36));
        tree.write("dev/sda", vec![0; (sectors * sector) as usize]);
        let disk = std::fs::File::options().read(true).write(true).open(tree.path("dev/sda")).unwrap();
        gpt.write(&disk).unwrap();
        disk.write_all_at(&protective_mbr(sectors - 1), 0).unwrap();
        let size_bytes = sectors * sector;
        let target = ProbeTarget {
            name: &"sda".into(),
            device: &"/dev/sda".into(),
            sector_bytes: sector as u32,
            size_bytes,
            may_be_cut_off: false,
        };
        let table = super::read_contents(&target, &roots, &users).unwrap().table.unwrap();
        assert_eq!((table.kind.as_str(), table.guid), ("gpt", Some(id)));
        let found =
            table.partitions.iter().map(|part| (part.number, part.start_bytes, part.size_bytes, part.label.as_str()));
        let first = efi.sectors.start;
        let long = "e".repeat(36);
        let meant =
            [(2, first * sector, (300 - first) * sector, long.as_str()), (15, 300 * sector, 101 * sector, "Ä root")];
        assert_eq!(found.collect::<Vec<_>>(), meant);
        for (part, entry) in table.partitions.iter().zip([efi, root]) {
            assert_eq!((part.kind.clone(), part.guid), (entry.kind.to_string(), Some(entry.guid)));
        }
    }
}

/// Writes an Atari AHDI root sector with one partition to the disk. Random bytes in the first sector may look like such
/// a root sector.
fn with_atari_table(mut disk: Vec<u8>) -> Vec<u8> {
    let sectors = u32::try_from(disk.len() / 512).unwrap();
    disk[0x1c2..0x1c6].copy_from_slice(&sectors.to_be_bytes());
    disk[0x1c6..0x1ca].copy_from_slice(b"\x01LNX");
    disk[0x1ca..0x1ce].copy_from_slice(&2_u32.to_be_bytes());
    disk[0x1ce..0x1d2].copy_from_slice(&1000_u32.to_be_bytes());
    disk
}

#[test]
fn obsolete_table_before_a_filesystem_is_ignored() {
    let tree = FakeMachine::new();
    let roots = tree.roots();
    std::fs::create_dir_all(roots.sys.join("block/sda/sda1")).unwrap();
    for (file, text) in [("partition", "1"), ("start", "2"), ("size", "1000")] {
        tree.write(&format!("sys/block/sda/sda1/{file}"), text);
    }
    let users = DeviceUsers::read(&roots).unwrap();
    let read = |disk: &[u8]| {
        tree.write("dev/sda", disk);
        let size_bytes = disk.len() as u64;
        let target = ProbeTarget {
            name: &"sda".into(),
            device: &"/dev/sda".into(),
            sector_bytes: 512,
            size_bytes,
            may_be_cut_off: false,
        };
        super::read_contents(&target, &roots, &users).unwrap()
    };
    let alone = read(&with_atari_table(vec![0; 8 << 20]));
    assert_eq!(alone.table.map(|table| (table.kind, table.partitions.len())), Some(("atari".to_owned(), 1)));
    tree.write("dev/sda", vec![0; 8 << 20]);
    crate::process::ToolCommand::new("mkfs.ext4").args(["-q", "-F"]).arg(tree.path("dev/sda")).run().unwrap();
    let found = read(&with_atari_table(std::fs::read(tree.path("dev/sda")).unwrap()));
    let kinds: Vec<&str> = found.signatures.iter().map(|signature| signature.kind.as_str()).collect();
    assert_eq!((found.table, &kinds[..], found.blank), (None, &["ext4"][..], false));
    assert_eq!((found.uses, found.unreadable), (vec![], None));
}
