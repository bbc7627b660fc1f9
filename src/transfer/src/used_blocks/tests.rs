//! Filesystems created by the usual tools: a copy of only the used blocks must contain all files.

mod btrfs_extents;
mod built_filesystems;
mod crafted_filesystems;
mod doubtful_filesystems;
mod fuzz;
mod mounted_filesystems;
mod stale_signatures;
mod vfat_clusters;

use super::bounded_disk_reads::ReadIntegers;
use super::used_ranges::set_bits;
use super::*;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;

fn of(read_at: ReadAt, size: u64, sector: u64) -> UsedBlocks {
    read_used_blocks(read_at, size, sector, &WorkLimits::default())
}

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{program} {args:?}: {said}");
    said
}

fn empty(dir: &Path, name: &str, size: u64) -> PathBuf {
    let path = dir.join(name);
    File::create(&path).unwrap().set_len(size).unwrap();
    path
}

fn used_of(path: &Path) -> UsedBlocks {
    let file = File::open(path).unwrap();
    let size = file.metadata().unwrap().len();
    of(&|bytes, at| file.read_exact_at(bytes, at), size, 512)
}

/// Returns the used blocks of a file in which the byte at offset `place` is changed.
fn used_with(file: &File, size: u64, place: u64, change: impl Fn(u8) -> u8) -> UsedBlocks {
    let read_at = |bytes: &mut [u8], at: u64| {
        file.read_exact_at(bytes, at)?;
        if let Some(byte) = place.checked_sub(at).and_then(|offset| bytes.get_mut(offset as usize)) {
            *byte = change(*byte);
        }
        Ok(())
    };
    of(&read_at, size, 512)
}

fn bytes(used: &UsedBlocks) -> u64 {
    used.ranges.iter().map(|range| range.end - range.start).sum()
}

/// Copies only the used blocks to another disk, which is filled with other data. Returns its path.
fn copied(path: &Path, used: &UsedBlocks) -> PathBuf {
    let copy = path.with_extension("copy");
    let size = fs::metadata(path).unwrap().len();
    let (from, onto) = (File::open(path).unwrap(), File::create(&copy).unwrap());
    for start in (0..size).step_by(MIB as usize) {
        onto.write_all_at(&vec![0xa5; MIB.min(size - start) as usize], start).unwrap();
    }
    for range in &used.ranges {
        let mut block = vec![0; (range.end - range.start) as usize];
        from.read_exact_at(&mut block, range.start).unwrap();
        onto.write_all_at(&block, range.start).unwrap();
    }
    copy
}

/// A disk with a partition table requires the same sector size at the destination. A boot loader before a filesystem is
/// not a partition table.
#[test]
fn boot_loader_code_is_not_a_partition_table() {
    let dir = tempfile::tempdir().unwrap();
    let with = |mkfs: &[&str], size: u64, sector: &[(usize, u8)]| {
        let image = empty(dir.path(), "disk", size);
        if let [program, args @ ..] = mkfs {
            run(program, &[args, &[image.to_str().unwrap()]].concat());
        }
        let file = File::options().write(true).open(&image).unwrap();
        for (at, byte) in sector {
            file.write_all_at(&[*byte], *at as u64).unwrap();
        }
        used_of(&image).has_table
    };
    let (ext4, vfat) = (&["mkfs.ext4", "-q", "-F"][..], &["mkfs.vfat"][..]);
    let (signed, code) = ([(510, 0x55), (511, 0xaa)], [(446, 0xeb), (450, 0x90)]);
    let entry = [(446, 0x80), (450, 0x83)];
    for (name, mkfs, more, has_table) in [
        ("ext4", ext4, &[][..], false),
        ("ext4 with an empty loader", ext4, &signed[..], false),
        ("ext4 with a loader", ext4, &[signed, code].concat()[..], false),
        ("ext4 under a table", ext4, &[signed, entry].concat()[..], true),
        ("vfat", vfat, &[][..], true),
        ("unrecognized contents with a boot loader", &[][..], &[signed, code].concat()[..], true),
        ("nothing", &[][..], &[][..], false),
    ] {
        assert_eq!(with(mkfs, 16 * MIB, more), has_table, "{name}");
    }
}

/// Creates files of various sizes, and deletes some of them, so that free space is fragmented.
fn fill(point: &Path) {
    for number in 0..160_u32 {
        let length = [10, 3000, 70_000, 400_000][number as usize % 4];
        let content: Vec<u8> =
            (0..length).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 11 ^ number) as u8).collect();
        let folder = point.join(format!("{}", number % 7));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("{number}")), content).unwrap();
    }
    for number in (0..160).step_by(3) {
        fs::remove_file(point.join(format!("{}/{number}", number % 7))).unwrap();
    }
}

fn contents(point: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(point).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.push((path.clone(), fs::read(&path).unwrap()));
        }
    }
    found.sort();
    found
}

/// Like [`contents`], with paths below `root`.
fn contents_below(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let found = contents(root).into_iter();
    found.map(|(path, content)| (path.strip_prefix(root).unwrap().to_owned(), content)).collect()
}

/// Recent kernels no longer mount XFS of version 4.
#[test]
fn xfs_of_version_4_is_supported() {
    let dir = tempfile::tempdir().unwrap();
    let image = empty(dir.path(), "disk", 320 * MIB);
    run("mkfs.xfs", &["-q", "-f", "-m", "crc=0", image.to_str().unwrap()]);
    let used = used_of(&image);
    assert_eq!(used.what, "xfs");
    // Most of the used blocks are the log.
    assert!(bytes(&used) < 90 * MIB, "{}", bytes(&used));
    run("xfs_repair", &["-n", "-f", copied(&image, &used).to_str().unwrap()]);
}

#[test]
fn swap_has_no_used_blocks_unless_hibernated() {
    let dir = tempfile::tempdir().unwrap();
    let image = empty(dir.path(), "swap", 64 * MIB);
    run("mkswap", &["-q", image.to_str().unwrap()]);
    let used = used_of(&image);
    assert_eq!((&*used.what, bytes(&used)), ("swap", 2 * MIB));
    File::options().write(true).open(&image).unwrap().write_all_at(b"S1SUSPEND\0", 4096 - 10).unwrap();
    assert_eq!(used_of(&image).what, "swap (the whole disk)");
}

#[test]
fn unrecognized_disk_is_used_completely() {
    let dir = tempfile::tempdir().unwrap();
    let image = empty(dir.path(), "disk", 8 * MIB);
    assert_eq!(used_of(&image), mark_all_used(8 * MIB));
    // A disk with two signatures.
    run("mkswap", &["-q", image.to_str().unwrap()]);
    run("mkfs.ext4", &["-q", "-F", image.to_str().unwrap()]);
    let file = File::options().write(true).open(&image).unwrap();
    file.write_all_at(b"SWAPSPACE2", 4096 - 10).unwrap();
    assert_eq!(used_of(&image).what, "two filesystems (the whole disk)");
}

#[test]
fn ranges_are_rounded_outwards_and_small_gaps_are_used() {
    let of = |ranges: &[(u64, u64)], size| {
        let rounded = round_ranges(ranges.iter().map(|(start, end)| *start..*end).collect(), size);
        rounded.into_iter().map(|range| (range.start, range.end)).collect::<Vec<_>>()
    };
    let (first, last, at) = ((0, MIB), (9 * MIB, 10 * MIB), 4 * MIB);
    assert_eq!(of(&[], 10 * MIB), [first, last]);
    assert_eq!(of(&[], 1000), [(0, 1000)]);
    assert_eq!(of(&[(at + 1, at + 2)], 10 * MIB), [first, (at, at + GRANULE_BYTES), last]);
    let behind_a_small_gap = at + GRANULE_BYTES + GAP_BYTES - 1;
    assert_eq!(of(&[(at, at + 1), (behind_a_small_gap, at + MIB)], 10 * MIB), [first, (at, at + MIB), last]);
    // Ranges outside of the disk are dropped.
    assert_eq!(of(&[(20 * MIB, 30 * MIB)], 10 * MIB), [first, last]);
}

#[test]
fn set_bits_become_ranges() {
    let set = |bitmap: &[u8], count| {
        let mut ranges = Vec::new();
        set_bits(bitmap, count, |range| ranges.push(range));
        ranges
    };
    assert_eq!(set(&[0b0000_0111, 0b1000_0001], 16), [0..3, 8..9, 15..16]);
    assert_eq!(set(&[0xff, 0xff], 12), std::iter::once(0..12).collect::<Vec<_>>());
    assert_eq!(set(&[0b1000_0000, 0xff, 0b11, 0], 32), std::iter::once(7..18).collect::<Vec<_>>());
    assert_eq!(set(&[0xff], 3), std::iter::once(0..3).collect::<Vec<_>>());
    // Missing bits are treated as used.
    assert_eq!(set(&[0], 10), std::iter::once(8..10).collect::<Vec<_>>());
}
