//! Real filesystems: what the kernel has written into them is whole where only the used blocks were copied.

mod attacks;
mod built;
mod fuzz;
mod stale;

use super::disk_view::ReadIntegers;
use super::ranges::set_bits;
use super::*;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

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

fn bytes(used: &UsedBlocks) -> u64 {
    used.ranges.iter().map(|range| range.end - range.start).sum()
}

/// Another disk, full of something else, onto which only the used blocks were copied.
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

/// Sectors of another size are refused for a disk with a table, and not for the code of a boot loader before a filesystem.
#[test]
fn the_code_of_a_boot_loader_is_no_table() {
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
        ("nothing known with a loader", &[][..], &[signed, code].concat()[..], true),
        ("nothing", &[][..], &[][..], false),
    ] {
        assert_eq!(with(mkfs, 16 * MIB, more), has_table, "{name}");
    }
}

/// Mounted until it is dropped.
struct Mounted(PathBuf, String);

impl Mounted {
    fn new(image: &Path, options: &str) -> Mounted {
        let point = image.with_extension("mnt");
        fs::create_dir_all(&point).unwrap();
        run("mount", &["-o", options, image.to_str().unwrap(), point.to_str().unwrap()]);
        Mounted(point, image.to_str().unwrap().to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let end = Instant::now() + Duration::from_secs(120);
        let pause = || std::thread::sleep(Duration::from_millis(50));
        // A process that another test starts has the files that are open here until it is another program.
        loop {
            let output = Command::new("umount").arg(&self.0).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            if output.status.success() {
                break;
            }
            assert!(said.contains("busy") && Instant::now() < end, "umount: {said}");
            pause();
        }
        // Who has a mount namespace of its own has it mounted a moment longer, and then it is not clean.
        while !run("losetup", &["-j", &self.1]).is_empty() {
            assert!(Instant::now() < end, "{} stays mounted somewhere", self.1);
            pause();
        }
    }
}

/// Files of all sizes, some of them deleted again, so that what is free lies everywhere.
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

/// Made, filled by the kernel, unmounted, read, copied, checked and mounted again.
fn moves(name: &str, size: u64, mkfs: &[&str], check: &[&str], most_used: u64) {
    let dir = tempfile::tempdir().unwrap();
    let image = empty(dir.path(), "disk", size);
    let (made, mkfs_args) = (image.to_str().unwrap(), &mkfs[1..]);
    run(mkfs[0], &[mkfs_args, &[made]].concat());
    let before = {
        let mounted = Mounted::new(&image, "loop");
        fill(&mounted.0);
        contents(&mounted.0)
    };
    let used = used_of(&image);
    assert_eq!(used.what, name, "{mkfs:?}");
    assert!(bytes(&used) < most_used, "{name}: {} of {size} bytes are used", bytes(&used));
    let copy = copied(&image, &used);
    run(check[0], &[&check[1..], &[copy.to_str().unwrap()]].concat());
    fs::rename(&copy, &image).unwrap();
    let mounted = Mounted::new(&image, "loop,ro");
    let after = contents(&mounted.0);
    assert_eq!(before.len(), after.len());
    assert!(before == after, "{mkfs:?}: files have changed");
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_the_used_blocks_of_ext4_are_all_of_it() {
    let check = ["e2fsck", "-f", "-n"];
    for options in [
        &["mkfs.ext4", "-q", "-F"][..],
        &["mkfs.ext4", "-q", "-F", "-b", "1024"],
        &["mkfs.ext4", "-q", "-F", "-O", "^flex_bg,^64bit,^metadata_csum"],
        &["mkfs.ext4", "-q", "-F", "-O", "^metadata_csum,uninit_bg,^resize_inode"],
        &["mkfs.ext3", "-q", "-F"],
        &["mkfs.ext2", "-q", "-F"],
    ] {
        moves("ext4", 512 * MIB, options, &check, 160 * MIB);
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_the_used_blocks_of_xfs_are_all_of_it() {
    let check = ["xfs_repair", "-n", "-f"];
    for options in [
        &["mkfs.xfs", "-q", "-f"][..],
        &["mkfs.xfs", "-q", "-f", "-b", "size=1024"],
        &["mkfs.xfs", "-q", "-f", "-m", "rmapbt=0,reflink=0", "-d", "agcount=9"],
    ] {
        moves("xfs", 600 * MIB, options, &check, 250 * MIB);
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_the_used_blocks_of_btrfs_are_all_of_it() {
    for options in [
        &["mkfs.btrfs", "-q", "-f"][..],
        &["mkfs.btrfs", "-q", "-f", "--mixed"],
        &["mkfs.btrfs", "-q", "-f", "-m", "single"],
    ] {
        moves("btrfs", 1024 * MIB, options, &["btrfs", "check", "--readonly", "--check-data-csum"], 100 * MIB);
    }
}

/// As mkfs fills it from a folder: without a kernel.
fn btrfs_of_folder(dir: &Path, options: &[&str]) -> PathBuf {
    let (image, tree) = (empty(dir, "disk", 1024 * MIB), dir.join("tree"));
    fs::create_dir_all(&tree).unwrap();
    fill(&tree);
    run(
        "mkfs.btrfs",
        &[&["-q", "-f", "--rootdir", tree.to_str().unwrap()], options, &[image.to_str().unwrap()]].concat(),
    );
    image
}

#[test]
fn the_extents_of_btrfs_are_all_of_it() {
    for options in [
        &[][..],
        &["-m", "single", "-n", "4096"],
        &["-O", "^skinny-metadata"],
        &["-O", "^no-holes", "-R", "^free-space-tree"],
    ] {
        let dir = tempfile::tempdir().unwrap();
        let image = btrfs_of_folder(dir.path(), options);
        let used = used_of(&image);
        assert_eq!(used.what, "btrfs", "{options:?}");
        assert!(bytes(&used) < 60 * MIB, "{options:?}: {} bytes are used", bytes(&used));
        let copy = copied(&image, &used);
        run("btrfs", &["check", "--readonly", "--check-data-csum", copy.to_str().unwrap()]);
        let restored = dir.path().join("restored");
        fs::create_dir(&restored).unwrap();
        run("btrfs", &["restore", copy.to_str().unwrap(), restored.to_str().unwrap()]);
        let names = |of: &Path| -> Vec<(PathBuf, Vec<u8>)> {
            let found = contents(of).into_iter();
            found.map(|(path, content)| (path.strip_prefix(of).unwrap().to_owned(), content)).collect()
        };
        assert!(names(&restored) == names(&dir.path().join("tree")), "{options:?}: files have changed");
    }
}

/// Its chunks are used whole where the tree of extents is not to be believed, or is not all.
#[test]
fn extents_of_btrfs_that_contradict_something_are_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let image = btrfs_of_folder(dir.path(), &[]);
    let file = File::open(&image).unwrap();
    let with = |at: u64, change: u8| {
        of(
            &|bytes, from| {
                file.read_exact_at(bytes, from)?;
                if let Some(byte) = at.checked_sub(from).and_then(|place| bytes.get_mut(place as usize)) {
                    *byte ^= change;
                }
                Ok(())
            },
            1024 * MIB,
            512,
        )
    };
    let good = used_of(&image);
    assert_eq!(with(0, 0), good);
    const SUPERBLOCK: u64 = 64 << 10;
    for (what, at) in [
        ("another count of bytes", SUPERBLOCK + 0x78),
        ("a log of what was synchronised", SUPERBLOCK + 0x60),
        ("a feature that nobody knows", SUPERBLOCK + 0xb4 + 1),
        ("another tree of roots", SUPERBLOCK + 0x50 + 1),
    ] {
        let garbled = with(at, 0x40);
        assert_eq!(garbled.what, "btrfs (whole chunks)", "{what}");
        let holds = |range: &Range<u64>| garbled.ranges.iter().any(|is| is.start <= range.start && range.end <= is.end);
        assert!(good.ranges.iter().all(holds), "{what}");
    }
    // An older node in the place of one: what is above it says another transaction.
    let used = |at: u64| with(at, 1).what;
    let dump = run("btrfs", &["inspect-internal", "dump-tree", "-t", "extent", image.to_str().unwrap()]);
    let node = dump.lines().find_map(|line| line.strip_prefix("leaf ")).unwrap();
    let logical: u64 = node.split(' ').next().unwrap().parse().unwrap();
    let mapped = run("btrfs-map-logical", &["-l", &logical.to_string(), image.to_str().unwrap()]);
    let place = mapped.lines().find_map(|line| line.split("physical ").nth(1)?.split(' ').next()?.parse::<u64>().ok());
    let place = place.unwrap();
    for at in [place + 48, place + 80 + 6, place + 88, place + 100, place + 101 + 1] {
        assert_eq!(used(at), "btrfs (whole chunks)", "{}", at - place);
    }
    // Of two devices each has its own part: a mirror on both, and stripes with the whole of their chunks.
    for (kinds, what) in
        [(["raid1", "raid1"], "btrfs"), (["raid0", "raid1"], "btrfs"), (["raid0", "raid0"], "btrfs (all of it)")]
    {
        let both = [empty(dir.path(), "one", 1024 * MIB), empty(dir.path(), "two", 1024 * MIB)];
        let [one, two] = both.each_ref().map(|path| path.to_str().unwrap());
        run("mkfs.btrfs", &["-q", "-f", "-d", kinds[0], "-m", kinds[1], one, two]);
        for path in &both {
            let used = used_of(path);
            let most = if what == "btrfs" { 600 * MIB } else { 1024 * MIB };
            assert!(used.what == what && bytes(&used) <= most, "{kinds:?}: {} {}", used.what, bytes(&used));
        }
    }
}

/// Not every kernel has vfat; mtools writes into an image by itself.
#[test]
fn the_used_clusters_of_vfat_are_all_of_it() {
    for (size, bits, most_used) in
        [(512 * MIB, "32", 60 * MIB), (256 * MIB, "16", 60 * MIB), (60 * MIB, "12", 60 * MIB)]
    {
        let dir = tempfile::tempdir().unwrap();
        let (image, tree) = (empty(dir.path(), "disk", size), dir.path().join("tree"));
        let disk = image.to_str().unwrap();
        run("mkfs.vfat", &["-F", bits, disk]);
        fill(&tree);
        for folder in 0..7 {
            run("mcopy", &["-s", "-i", disk, tree.join(folder.to_string()).to_str().unwrap(), "::"]);
        }
        // So that what is free lies between what is not.
        run("mdel", &["-i", disk, "::1/*", "::4/*"]);
        fs::remove_dir_all(tree.join("1")).unwrap();
        fs::remove_dir_all(tree.join("4")).unwrap();
        let used = used_of(&image);
        assert_eq!(used.what, "vfat");
        assert!(bytes(&used) < most_used || bits == "12", "FAT{bits}: {} of {size} bytes are used", bytes(&used));
        let copy = copied(&image, &used);
        let copy = copy.to_str().unwrap();
        run("fsck.vfat", &["-n", copy]);
        let back = dir.path().join("back");
        fs::create_dir(&back).unwrap();
        run("mcopy", &["-s", "-n", "-i", copy, "::*", back.to_str().unwrap()]);
        let relative = |root: &Path| {
            let found = contents(root).into_iter();
            found.map(|(path, content)| (path.strip_prefix(root).unwrap().to_owned(), content)).collect::<Vec<_>>()
        };
        assert!(relative(&tree) == relative(&back), "FAT{bits}: files have changed");
    }
}

/// Linux asks for the size of the FAT alone (fs/fat/inode.c), and a FAT32 may have few clusters.
#[test]
fn a_fat32_of_few_clusters_is_none_of_16_bits() {
    const SECTOR: u64 = 4096;
    let dir = tempfile::tempdir().unwrap();
    let image = empty(dir.path(), "disk", 100 * MIB);
    run("mkfs.vfat", &["-F", "32", "-S", "4096", "-s", "1", image.to_str().unwrap()]);
    let file = File::options().read(true).write(true).open(&image).unwrap();
    let mut boot = [0; 512];
    file.read_exact_at(&mut boot, 0).unwrap();
    let (reserved, copies) = (u64::from(boot[..].le16(14)), u64::from(boot[16]));
    let table_sectors = u64::from(boot[..].le32(36));
    assert_eq!((boot[..].le16(22), boot[..].le16(11), boot[13]), (0, 4096, 1));
    let chain = 7700..15400_u64;
    for copy in 0..copies {
        let table = (reserved + copy * table_sectors) * SECTOR;
        for cluster in chain.clone() {
            let next = if cluster + 1 == chain.end { 0x0fff_ffff } else { cluster as u32 + 1 };
            file.write_all_at(&next.to_le_bytes(), table + cluster * 4).unwrap();
        }
    }
    let used = used_of(&image);
    assert_eq!(used.what, "vfat");
    let place = |cluster: u64| (reserved + copies * table_sectors + cluster - 2) * SECTOR;
    let file_is = place(chain.start)..place(chain.end);
    assert!(used.ranges.iter().any(|is| is.start <= file_is.start && file_is.end <= is.end), "{:?}", used.ranges);
    assert!(bytes(&used) < 40 * MIB, "{}", bytes(&used));
    // More clusters than 16 bits can count, where the table is said to have them.
    file.write_all_at(&(table_sectors as u16).to_le_bytes(), 22).unwrap();
    assert_eq!(used_of(&image).what, "vfat");
    file.write_all_at(&[0, 2], 11).unwrap();
    file.write_all_at(&(100 * MIB as u32 / 512).to_le_bytes(), 32).unwrap();
    assert_eq!(used_of(&image).what, "vfat (all of it)");
}

/// The number of a feature that nobody knows yet.
#[test]
fn features_of_xfs_that_are_not_known_make_it_doubtful() {
    let dir = tempfile::tempdir().unwrap();
    let image = empty(dir.path(), "disk", 320 * MIB);
    run("mkfs.xfs", &["-q", "-f", image.to_str().unwrap()]);
    let file = File::options().write(true).open(&image).unwrap();
    for (at, word, what) in [
        (212, 0xf_u32, "xfs"),
        (212, 0x10, "xfs (all of it)"),
        (212, 0x8000_000f, "xfs (all of it)"),
        (212, 0x5, "xfs"),
        (216, 0x10, "xfs (all of it)"),
    ] {
        file.write_all_at(&word.to_be_bytes(), at).unwrap();
        assert_eq!(used_of(&image).what, what, "{word:#x} at {at}");
    }
}

/// Numbers so large that their sums and products are none any more.
#[test]
fn numbers_that_overflow_make_a_filesystem_doubtful() {
    let dir = tempfile::tempdir().unwrap();
    let with = |mkfs: &[&str], at: u64, bytes: &[u8]| {
        let image = empty(dir.path(), "disk", 320 * MIB);
        run(mkfs[0], &[&mkfs[1..], &[image.to_str().unwrap()]].concat());
        File::options().write(true).open(&image).unwrap().write_all_at(bytes, at).unwrap();
        used_of(&image).what
    };
    let (most, ext4, xfs) = ([0xff; 4], &["mkfs.ext4", "-q", "-F", "-b", "4096"][..], &["mkfs.xfs", "-q", "-f"][..]);
    // The low and the high half of where a bitmap, the other one and the inodes are.
    for place in [0, 4, 8] {
        let both = [&most[..], &[0; 28], &most].concat();
        assert_eq!(with(ext4, 4096 + place, &most), "ext4 (all of it)", "{place}");
        assert_eq!(with(ext4, 4096 + place, &both), "ext4 (all of it)", "{place}");
    }
    for (at, bytes) in [(48, &[0xff; 8][..]), (48, &[0x7f; 8]), (124, &[0]), (96, &most), (84, &most)] {
        assert_eq!(with(xfs, at, bytes), "xfs (all of it)", "{at}");
    }
    assert_eq!(with(xfs, 48, &[&[0xff; 8][..], &[0; 68], &[0]].concat()), "xfs (all of it)");
}

/// Kernels do not mount these any more.
#[test]
fn xfs_of_version_4_is_read_too() {
    let dir = tempfile::tempdir().unwrap();
    let image = empty(dir.path(), "disk", 320 * MIB);
    run("mkfs.xfs", &["-q", "-f", "-m", "crc=0", image.to_str().unwrap()]);
    let used = used_of(&image);
    assert_eq!(used.what, "xfs");
    // Most of that is its log.
    assert!(bytes(&used) < 90 * MIB, "{}", bytes(&used));
    run("xfs_repair", &["-n", "-f", copied(&image, &used).to_str().unwrap()]);
}

/// The journal has what the maps have not yet.
#[test]
#[ignore = "needs root and loop devices"]
fn loop_what_was_not_unmounted_is_used_whole() {
    for mkfs in [&["mkfs.ext4", "-q", "-F"][..], &["mkfs.xfs", "-q", "-f"]] {
        let dir = tempfile::tempdir().unwrap();
        let image = empty(dir.path(), "disk", 600 * MIB);
        run(mkfs[0], &[&mkfs[1..], &[image.to_str().unwrap()]].concat());
        assert!(bytes(&used_of(&image)) < 300 * MIB);
        let mounted = Mounted::new(&image, "loop");
        fill(&mounted.0);
        run("sync", &[]);
        // As a power cut leaves it.
        let cut = dir.path().join("cut");
        fs::copy(&image, &cut).unwrap();
        let used = used_of(&cut);
        assert!(used.what.ends_with("(all of it)"), "{mkfs:?}: {}", used.what);
        assert_eq!(used.ranges, std::iter::once(0..600 * MIB).collect::<Vec<_>>());
        drop(mounted);
        assert!(bytes(&used_of(&image)) < 300 * MIB, "{mkfs:?}");
    }
}

#[test]
fn swap_has_nothing_that_is_kept_unless_a_system_sleeps_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let image = empty(dir.path(), "swap", 64 * MIB);
    run("mkswap", &["-q", image.to_str().unwrap()]);
    let used = used_of(&image);
    assert_eq!((&*used.what, bytes(&used)), ("swap", 2 * MIB));
    File::options().write(true).open(&image).unwrap().write_all_at(b"S1SUSPEND\0", 4096 - 10).unwrap();
    assert_eq!(used_of(&image).what, "swap (all of it)");
}

#[test]
fn a_disk_of_nobody_is_used_whole() {
    let dir = tempfile::tempdir().unwrap();
    let image = empty(dir.path(), "disk", 8 * MIB);
    assert_eq!(used_of(&image), mark_all_used(8 * MIB));
    // Two signatures.
    run("mkswap", &["-q", image.to_str().unwrap()]);
    run("mkfs.ext4", &["-q", "-F", image.to_str().unwrap()]);
    let file = File::options().write(true).open(&image).unwrap();
    file.write_all_at(b"SWAPSPACE2", 4096 - 10).unwrap();
    assert_eq!(used_of(&image).what, "two filesystems (all of it)");
}

/// What contradicts itself is used whole, and nothing of it makes the reader fail.
#[test]
fn garbled_filesystems_are_used_whole_or_more() {
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
            let garbled = of(
                &|bytes, from| {
                    file.read_exact_at(bytes, from)?;
                    if let Some(byte) = at.checked_sub(from).and_then(|place| bytes.get_mut(place as usize)) {
                        *byte = value;
                    }
                    Ok(())
                },
                320 * MIB,
                512,
            );
            assert!(garbled.ranges.iter().all(|range| range.start < range.end && range.end <= 320 * MIB));
            assert!(bytes(&garbled) <= 320 * MIB && good > 0);
        }
    }
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
    // What lies outside is nowhere.
    assert_eq!(of(&[(20 * MIB, 30 * MIB)], 10 * MIB), [first, last]);
}

#[test]
fn bits_are_ranges() {
    let set = |bitmap: &[u8], count| {
        let mut ranges = Vec::new();
        set_bits(bitmap, count, |range| ranges.push(range));
        ranges
    };
    assert_eq!(set(&[0b0000_0111, 0b1000_0001], 16), [0..3, 8..9, 15..16]);
    assert_eq!(set(&[0xff, 0xff], 12), std::iter::once(0..12).collect::<Vec<_>>());
    assert_eq!(set(&[0b1000_0000, 0xff, 0b11, 0], 32), std::iter::once(7..18).collect::<Vec<_>>());
    assert_eq!(set(&[0xff], 3), std::iter::once(0..3).collect::<Vec<_>>());
    // What is not there is used.
    assert_eq!(set(&[0], 10), std::iter::once(8..10).collect::<Vec<_>>());
}
