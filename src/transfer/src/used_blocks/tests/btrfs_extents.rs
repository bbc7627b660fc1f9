//! Extents of btrfs: filesystems that `mkfs.btrfs` creates from a directory, and inconsistent extent trees.

use super::*;

/// Creates a btrfs filesystem from a directory with mkfs, without mounting it.
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
fn used_extents_of_btrfs_contain_all_its_files() {
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
        let tree = dir.path().join("tree");
        assert!(contents_below(&restored) == contents_below(&tree), "{options:?}: files have changed");
    }
}

/// If the extent tree is inconsistent or incomplete, whole chunks are treated as used.
#[test]
fn inconsistent_btrfs_extents_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let image = btrfs_of_folder(dir.path(), &[]);
    let file = File::open(&image).unwrap();
    let with = |at: u64, change: u8| used_with(&file, 1024 * MIB, at, |byte| byte ^ change);
    let good = used_of(&image);
    assert_eq!(with(0, 0), good);
    const SUPERBLOCK: u64 = 64 << 10;
    for (what, at) in [
        ("another number of bytes", SUPERBLOCK + 0x78),
        ("a log tree", SUPERBLOCK + 0x60),
        ("an unknown feature", SUPERBLOCK + 0xb4 + 1),
        ("another tree of roots", SUPERBLOCK + 0x50 + 1),
    ] {
        let garbled = with(at, 0x40);
        assert_eq!(garbled.what, "btrfs (whole chunks)", "{what}");
        let holds = |range: &Range<u64>| garbled.ranges.iter().any(|is| is.start <= range.start && range.end <= is.end);
        assert!(good.ranges.iter().all(holds), "{what}");
    }
    // One byte in a leaf of the extent tree is changed: in its address, generation, owner, level, or first key.
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
    // Each of two devices contains all extents of mirrored chunks. Striped chunks are treated as used entirely.
    for (kinds, what) in
        [(["raid1", "raid1"], "btrfs"), (["raid0", "raid1"], "btrfs"), (["raid0", "raid0"], "btrfs (the whole disk)")]
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
