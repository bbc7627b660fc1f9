//! Filesystems crafted to cause much work: the work is bounded by the size of the filesystem, which is treated as used
//! entirely.

use super::built_filesystems::{Image, Meaning, Reads, btrfs, ext, xfs};
use super::*;
use crate::used_blocks::bounded_disk_reads::ReadIntegers;
use fastrand::Rng;

/// Reads an image. Returns its description, and the numbers of reads, bytes and nodes.
fn cost(image: &Image) -> (String, [u64; 3]) {
    let (work, reads) = (WorkLimits::default(), Reads::default());
    let used = read_used_blocks(&|bytes, at| reads.read(image, bytes, at), image.size, 512, &work);
    println!("{}: [reads, bytes, nodes] = {:?}", used.what, work.counts());
    assert!(reads.most_of_one_place() <= 16);
    (used.what, work.counts())
}

/// Returns the image of the first seed for which `fits` returns `true`.
fn first(build: fn(&mut Rng) -> Image, fits: impl Fn(&Image) -> bool) -> Image {
    (0..1000).map(|seed| build(&mut Rng::with_seed(seed))).find(fits).unwrap()
}

/// Returns the offsets of the tree blocks of an XFS on this level.
fn blocks_of_level(image: &Image, level: u16) -> Vec<u64> {
    let is_it = |at: &&u64| {
        let mut head = [0; 16];
        image.read(&mut head, **at).unwrap();
        head.be16(4) == level
    };
    image.nodes.iter().filter(is_it).copied().collect()
}

/// Writes records of zero blocks to a leaf.
fn with_empty_records(image: &mut Image, leaf: u64, records: u64) {
    for index in 0..8 {
        image.write(leaf + records + index * 8, &[0, 0, 1, 0, 0, 0, 0, 0]);
    }
    image.write(leaf + 6, &8_u16.to_be_bytes());
}

#[test]
fn xfs_with_cyclic_siblings_is_read_once() {
    let image = first(xfs::build, |image| blocks_of_level(image, 0).len() > 2 && blocks_of_level(image, 1).len() == 1);
    let leaves = blocks_of_level(&image, 0);
    let records = if image.starts_with(leaves[0], b"AB3B") { 56 } else { 16 };
    let number = |leaf: u64| ((leaf / image.node_bytes) as u32).to_be_bytes();
    let (mut own, mut circle, mut empty) = (image.clone(), image.clone(), image.clone());
    for (at, sibling) in [(8, leaves[0]), (12, leaves[0])] {
        own.write(leaves[0] + at, &number(sibling));
        empty.write(leaves[0] + at, &number(sibling));
    }
    circle.write(leaves[1] + 12, &number(leaves[0]));
    with_empty_records(&mut empty, leaves[0], records);
    // The pointer to the left sibling is correct, so that the check of this pointer does not end the traversal.
    let mut unchecked = empty.clone();
    unchecked.write(leaves[0] + 8, &u32::MAX.to_be_bytes());
    for image in [own, circle, empty, unchecked] {
        let (what, [reads, _, nodes]) = cost(&image);
        assert_eq!(what, "xfs (the whole disk)");
        assert!(reads < 200 && nodes < 50, "{reads} reads, {nodes} nodes");
    }
}

#[test]
fn btrfs_with_repeated_children_is_read_once() {
    for fill in [2, 16, 100] {
        let mut image = btrfs::build(&mut Rng::with_seed(fill));
        btrfs::with_one_child_many_times(&mut image, fill);
        let (what, [reads, _, nodes]) = cost(&image);
        assert_eq!(what, "btrfs (whole chunks)");
        assert!(nodes == 11 && reads < 200, "{reads} reads, {nodes} nodes");
    }
}

#[test]
fn btrfs_with_nested_copies_is_used_completely() {
    for (copies, is_used_whole) in [(1, false), (2, false), (3, true), (64, true), (400, true)] {
        let mut image = first(btrfs::build, |image| image.node_bytes == 16384 && image.used.len() > 60);
        btrfs::with_copies_of_copies(&mut image, copies);
        let (what, [reads, ..]) = cost(&image);
        assert_eq!(what, if is_used_whole { "btrfs (the whole disk)" } else { "btrfs" }, "{copies}");
        assert!(reads < 200, "{reads}");
    }
}

#[test]
fn ext4_with_shared_bitmaps_is_read_once() {
    let image = first(ext::build, |image| image.nodes.len() > 20);
    let mut shared = image.clone();
    let bitmaps = image.fields.iter().filter(|field| field.meaning == Meaning::Pointer).step_by(3);
    bitmaps.for_each(|field| shared.set(field, image.nodes[0] / image.node_bytes));
    let (what, [_, _, nodes]) = cost(&shared);
    assert_eq!((&*what, nodes), ("ext4 (the whole disk)", 2));
}

/// The superblock declares as many groups as there are blocks.
#[test]
fn xfs_with_single_block_groups_is_used_completely() {
    let mut image = xfs::build(&mut Rng::with_seed(1));
    let blocks = image.size / image.node_bytes;
    for (at, value) in [(84, 1), (88, blocks), (8, blocks)] {
        let field = image.fields.iter().find(|field| field.at == at).unwrap().clone();
        image.set(&field, value);
    }
    let (what, [reads, ..]) = cost(&image);
    assert!(what == "xfs (the whole disk)" && reads < 200, "{reads}");
}
