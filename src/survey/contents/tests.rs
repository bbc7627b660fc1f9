//! Partition tables that nobody would write, as the survey reads them.

use super::super::fake::Tree;
use super::*;
use crate::storage::fit::tests::mutated::{Mutated, mutated};

#[test]
fn of_mutated_gpts_no_partition_lies_outside_the_disk_and_no_disk_passes_for_blank() {
    let tree = Tree::new();
    let roots = tree.roots();
    let users = Users::read(&roots).unwrap();
    std::fs::create_dir_all(roots.sys.join("block/sda")).unwrap();
    let (mut read, mut partitions, mut doubts) = (0, 0, 0);
    for Mutated { name, sector, disk } in mutated() {
        tree.write("dev/sda", &disk);
        let size_bytes = disk.len() as u64;
        let target = Target { name: &"sda".into(), device: &"/dev/sda".into(), sector_bytes: sector, size_bytes };
        let contents = super::read(&target, &roots, &users).unwrap();
        assert!(!contents.blank, "{name}: a disk with something on it passes for blank");
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
        "{read} mutated GPTs: {partitions} partitions, all on their disks; {doubts} not all readable, and said so"
    );
    assert!(read == 300 && partitions > 500 && doubts > 0, "{read} {partitions} {doubts}");
}
