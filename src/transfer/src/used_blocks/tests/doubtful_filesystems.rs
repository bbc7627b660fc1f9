//! Filesystems with unknown features, overflowing numbers or damaged metadata.

use super::*;

/// Unknown feature bits.
#[test]
fn unknown_xfs_features_mark_the_whole_disk_as_used() {
    let dir = tempfile::tempdir().unwrap();
    let image = empty(dir.path(), "disk", 320 * MIB);
    run("mkfs.xfs", &["-q", "-f", image.to_str().unwrap()]);
    let file = File::options().write(true).open(&image).unwrap();
    for (at, word, what) in [
        (212, 0xf_u32, "xfs"),
        (212, 0x10, "xfs (the whole disk)"),
        (212, 0x8000_000f, "xfs (the whole disk)"),
        (212, 0x5, "xfs"),
        (216, 0x10, "xfs (the whole disk)"),
    ] {
        file.write_all_at(&word.to_be_bytes(), at).unwrap();
        assert_eq!(used_of(&image).what, what, "{word:#x} at {at}");
    }
}

/// Numbers so large that their sums and products overflow.
#[test]
fn overflowing_numbers_mark_the_whole_disk_as_used() {
    let dir = tempfile::tempdir().unwrap();
    let with = |mkfs: &[&str], at: u64, bytes: &[u8]| {
        let image = empty(dir.path(), "disk", 320 * MIB);
        run(mkfs[0], &[&mkfs[1..], &[image.to_str().unwrap()]].concat());
        File::options().write(true).open(&image).unwrap().write_all_at(bytes, at).unwrap();
        used_of(&image).what
    };
    let (most, ext4, xfs) = ([0xff; 4], &["mkfs.ext4", "-q", "-F", "-b", "4096"][..], &["mkfs.xfs", "-q", "-f"][..]);
    // The low and high halves of the locations of block bitmap, inode bitmap and inode table.
    for place in [0, 4, 8] {
        let both = [&most[..], &[0; 28], &most].concat();
        assert_eq!(with(ext4, 4096 + place, &most), "ext4 (the whole disk)", "{place}");
        assert_eq!(with(ext4, 4096 + place, &both), "ext4 (the whole disk)", "{place}");
    }
    for (at, bytes) in [(48, &[0xff; 8][..]), (48, &[0x7f; 8]), (124, &[0]), (96, &most), (84, &most)] {
        assert_eq!(with(xfs, at, bytes), "xfs (the whole disk)", "{at}");
    }
    assert_eq!(with(xfs, 48, &[&[0xff; 8][..], &[0; 68], &[0]].concat()), "xfs (the whole disk)");
}

/// Randomly changed bytes: the ranges remain valid, and the readers do not panic.
#[test]
fn garbled_filesystems_yield_valid_ranges() {
    let dir = tempfile::tempdir().unwrap();
    for mkfs in [&["mkfs.ext4", "-q", "-F"][..], &["mkfs.xfs", "-q", "-f"], &["mkfs.btrfs", "-q", "-f"], &["mkfs.vfat"]]
    {
        let image = empty(dir.path(), "disk", 320 * MIB);
        run(mkfs[0], &[&mkfs[1..], &[image.to_str().unwrap()]].concat());
        let file = File::open(&image).unwrap();
        let good = bytes(&used_of(&image));
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..400 {
            let (at, value) = (random.u64(0..1 << 20), random.u8(..));
            let garbled = used_with(&file, 320 * MIB, at, |_| value);
            assert!(garbled.ranges.iter().all(|range| range.start < range.end && range.end <= 320 * MIB));
            assert!(bytes(&garbled) <= 320 * MIB && good > 0);
        }
    }
}
