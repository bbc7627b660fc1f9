//! Archives that lie about sizes, or are made to fill whatever they are unpacked to.

use super::*;
use nix::mount::{MsFlags, mount};

fn refused(tar: &[u8], root: &Path) -> String {
    unpack_into(root, tar, 1 << 16, false).unwrap_err().to_string()
}

#[test]
fn sizes_that_cannot_be_are_one_clear_error_each() {
    let sized = |size: u64| Tar::new().raw("big", b'0', b"", move |header| header.set_size(size));
    let sparse = |records: &[&[u8]]| Tar::new().pax(b'x', records).file("sparse", b"data");
    let version: [&[u8]; 2] = [b"GNU.sparse.major=0", b"GNU.sparse.minor=1"];
    let with = |more: [&'static [u8]; 2]| sparse(&[&version[..], &more].concat());
    let cases: Vec<(Tar, &str)> = vec![
        (sized(1 << 63), "big: the tar is malformed before byte 512: its size is beyond any file"),
        (sized(u64::MAX), "beyond any file"),
        (sized(i64::MAX as u64), "big: it has 9223372036854775807 bytes, and its filesystem has room for "),
        (sized(1 << 50), "big: it has 1125899906842624 bytes, and its filesystem has room for "),
        (Tar::new().pax(b'x', &[b"size=9223372036854775808"]).file("big", b""), "beyond any file"),
        (Tar::new().pax(b'x', &[b"size=1125899906842624"]).file("big", b""), "its filesystem has room for "),
        (with([b"GNU.sparse.realsize=9223372036854775807", b"GNU.sparse.map=0,4"]), "sparse: write: "),
        (with([b"GNU.sparse.realsize=9223372036854775808", b"GNU.sparse.map=0,4"]), "too long for any filesystem"),
        (with([b"GNU.sparse.realsize=3", b"GNU.sparse.map=0,4"]), "outside the file"),
        (with([b"GNU.sparse.realsize=100", b"GNU.sparse.map=0,5"]), "5 bytes of data and the archive 4"),
        (with([b"GNU.sparse.realsize=100", b"GNU.sparse.map=50,2,0,2"]), "overlap"),
        (with([b"GNU.sparse.realsize=100", b"GNU.sparse.map=18446744073709551614,4"]), "outside the file"),
        (Tar::new().pax(b'x', &[&[b"path=".to_vec(), vec![b'p'; 900_000]].concat()]).file("a", b""), "name too long"),
        (Tar::new().pax(b'x', &[&[b"path=".to_vec(), b"p/".repeat(5000)].concat()]).file("a", b""), "name too long"),
        (Tar::new().pax(b'x', &[&[b"SCHILY.xattr.user.a=".to_vec(), vec![0; 900_000]].concat()]).file("a", b""), "a: "),
        (Tar::new().pax(b'x', &[&[b"a=".to_vec(), vec![0; 1 << 20]].concat()]).file("a", b""), "up to 1 MiB is taken"),
        (Tar::new().raw("a", b'3', b"", |header| header.set_device_major(u32::MAX).unwrap()), ""),
        (Tar::new().symlink("a", ""), "a: No such file"),
        (Tar::new().hard_link("a", ""), "only a directory can be the root itself"),
        (Tar::new().hard_link("a", "."), "only a directory can be the root itself"),
        (Tar::new().directory("d").hard_link("a", "d"), "hard link to d: "),
    ];
    for (number, (tar, says)) in cases.into_iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        fs::create_dir(&root).unwrap();
        let error = refused(&tar.end(), &root);
        assert!(
            error.contains(says) && !error.contains('\n') && error.len() < 2_000_000,
            "case {number}: {error:.300}"
        );
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        let bytes: u64 =
            look(&root, false).values().filter_map(|seen| seen.content.as_ref()).map(|c| c.len() as u64).sum();
        assert!(bytes <= 4, "case {number}: {bytes} bytes were written");
    }
}

/// A filesystem of 4 MiB in memory, and the archive unpacked to it.
fn in_little_room(tar: &[u8], flags: MsFlags) -> (String, u64) {
    let directory = tempfile::tempdir().unwrap();
    mount(Some("tmpfs"), directory.path(), Some("tmpfs"), flags, Some("size=4m")).unwrap();
    let error =
        unpack_into(directory.path(), tar, 1 << 16, false).map_or_else(|error| error.to_string(), |_| String::new());
    let used = nix::sys::statfs::statfs(directory.path()).map(|all| all.blocks() - all.blocks_free()).unwrap();
    unmount(directory.path()).unwrap();
    (error, used)
}

#[test]
#[ignore = "needs root"]
fn root_an_archive_is_bounded_by_what_it_is_unpacked_to() {
    let mib = noise(1 << 20);
    let several = |count: usize, same: bool| {
        (0..count).fold(Tar::new(), |tar, number| tar.file(&format!("file{}", if same { 0 } else { number }), &mib))
    };
    assert_eq!(in_little_room(&several(3, false).end(), MsFlags::empty()).0, "");
    // Refused before anything of it is written.
    let (error, used) = in_little_room(&Tar::new().file("big", &noise(5 << 20)).end(), MsFlags::empty());
    assert_eq!((error.as_str(), used), ("big: it has 5242880 bytes, and its filesystem has room for 4194304", 0));
    let (error, _) = in_little_room(&several(5, false).end(), MsFlags::empty());
    assert!(error.starts_with("file4: it has 1048576 bytes, and its filesystem has room for 0"), "{error}");
    let small = (0..5000).fold(Tar::new(), |tar, number| tar.file(&format!("small{number}"), &mib[..1000]));
    let (error, _) = in_little_room(&small.end(), MsFlags::empty());
    assert!(error.contains("No space left on device"), "{error}");
    // One file again and again fits each time; 72 MiB are twice the filesystem and what headers may take.
    assert_eq!(in_little_room(&several(60, true).end(), MsFlags::empty()).0, "");
    let bound = "the tar has more than 75497472 bytes, twice what its filesystems can hold";
    let padded = [several(1, true).end(), vec![0; 73 << 20]].concat();
    let globals = (0..80_000).fold(Tar::new(), |tar, _| tar.pax(b'g', &[b"comment=x"]));
    for tar in [several(75, true).end(), padded, globals.end()] {
        let (error, _) = in_little_room(&tar, MsFlags::empty());
        assert!(error.ends_with(bound), "{error}");
    }
}

#[test]
#[ignore = "needs root"]
fn root_devices_are_refused_where_the_layout_says_nodev() {
    for kind in [b'3', b'4'] {
        let tar = || {
            Tar::new().file("before", b"x").raw("dev/null", kind, b"", |header| {
                header.set_device_major(1).unwrap();
                header.set_device_minor(3).unwrap();
            })
        };
        let (error, _) = in_little_room(&tar().end(), MsFlags::MS_NODEV);
        assert_eq!(error, "dev/null: a device is refused here: the filesystem is mounted with nodev");
        assert_eq!(in_little_room(&tar().end(), MsFlags::empty()).0, "");
    }
}

#[test]
fn what_a_writer_cannot_set_is_named() {
    let root = tempfile::tempdir().unwrap();
    let tar = Tar::new().pax(b'x', &[b"SCHILY.xattr.nonsense=1"]).file("etc/bad", b"x");
    let tar = (0..2000).fold(tar, |tar, number| tar.file(&format!("after{number}"), b"x"));
    let error = refused(&tar.end(), root.path());
    assert!(error.starts_with("etc/bad: set its nonsense: "), "{error}");
}
