//! Archives with wrong sizes, and archives crafted to fill the filesystem.

use super::*;
use linux::process::ToolCommand;
use linux::storage::test_loop_device::TestLoopDevice;
use linux::storage::vm_test_disks::TestDisks;
use nix::mount::{MsFlags, mount};

fn refused(tar: &[u8], root: &Path) -> String {
    unpack_into(root, tar, 1 << 16, false).unwrap_err().to_string()
}

#[test]
fn impossible_sizes_are_each_one_error() {
    let sized = |size: u64| Tar::new().raw("big", b'0', b"", move |header| header.set_size(size));
    let sparse = |records: &[&[u8]]| Tar::new().pax(b'x', records).file("sparse", b"data");
    let version: [&[u8]; 2] = [b"comment=a", b"atime=5"];
    let with = |more: [&'static [u8]; 2]| sparse(&[&version[..], &more].concat());
    let cases: Vec<(Tar, &str)> = vec![
        (
            sized(1 << 63),
            "big: the tar archive is malformed before byte 512: the member's size exceeds the maximum size of a file",
        ),
        (sized(u64::MAX), "exceeds the maximum size of a file"),
        (sized(i64::MAX as u64), "big: the file is 9223372036854775807 bytes, but its filesystem has only "),
        (sized(1 << 50), "big: the file is 1125899906842624 bytes, but its filesystem has only "),
        (Tar::new().pax(b'x', &[b"size=9223372036854775808"]).file("big", b""), "exceeds the maximum size of a file"),
        (Tar::new().pax(b'x', &[b"size=1125899906842624"]).file("big", b""), "its filesystem has only "),
        (
            with([b"GNU.sparse.size=9223372036854775807", b"GNU.sparse.map=0,4,9223372036854775807,0"]),
            "sparse: write: ",
        ),
        (with([b"GNU.sparse.size=9223372036854775808", b"GNU.sparse.map=0,4"]), "too long for any filesystem"),
        (with([b"GNU.sparse.size=3", b"GNU.sparse.map=0,4"]), "outside the file"),
        (with([b"GNU.sparse.size=100", b"GNU.sparse.map=0,5"]), "5 bytes of data, but the archive contains 4"),
        (with([b"GNU.sparse.size=100", b"GNU.sparse.map=50,2,0,2"]), "overlap"),
        (with([b"GNU.sparse.size=100", b"GNU.sparse.map=18446744073709551614,4"]), "outside the file"),
        (Tar::new().pax(b'x', &[&[b"path=".to_vec(), vec![b'p'; 900_000]].concat()]).file("a", b""), "name too long"),
        (Tar::new().pax(b'x', &[&[b"path=".to_vec(), b"/p".repeat(5000)].concat()]).file("a", b""), "name too long"),
        (Tar::new().pax(b'x', &[&[b"SCHILY.xattr.user.a=".to_vec(), vec![0; 900_000]].concat()]).file("a", b""), "a: "),
        (
            Tar::new().pax(b'x', &[&[b"a=".to_vec(), vec![0; 1 << 20]].concat()]).file("a", b""),
            "at most 1 MiB is supported",
        ),
        (Tar::new().raw("a", b'3', b"", |header| header.set_device_major(u32::MAX).unwrap()), ""),
        (Tar::new().symlink("a", ""), "a: No such file"),
        (Tar::new().hard_link("a", ""), "the path is the root itself, which is always a directory"),
        (Tar::new().hard_link("a", "."), "the path is the root itself, which is always a directory"),
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

/// Unpacks the archive to a tmpfs of 4 MiB. Returns the error message and the number of used blocks.
fn in_little_room(tar: &[u8], flags: MsFlags) -> (String, u64) {
    let directory = tempfile::tempdir().unwrap();
    mount(Some("tmpfs"), directory.path(), Some("tmpfs"), flags, Some("size=4m")).unwrap();
    let error =
        unpack_into(directory.path(), tar, 1 << 16, false).map_or_else(|error| error.to_string(), |_| String::new());
    let used = nix::sys::statfs::statfs(directory.path()).map(|all| all.blocks() - all.blocks_free()).unwrap();
    unmount_strictly(directory.path()).unwrap();
    (error, used)
}

#[test]
#[ignore = "needs root"]
fn root_archive_is_limited_by_the_free_space() {
    let mib = noise(1 << 20);
    let several = |count: usize, same: bool| {
        (0..count).fold(Tar::new(), |tar, number| tar.file(&format!("file{}", if same { 0 } else { number }), &mib))
    };
    assert_eq!(in_little_room(&several(3, false).end(), MsFlags::empty()).0, "");
    // The file is refused before any of it is written.
    let (error, used) = in_little_room(&Tar::new().file("big", &noise(5 << 20)).end(), MsFlags::empty());
    assert_eq!(
        (error.as_str(), used),
        ("big: the file is 5242880 bytes, but its filesystem has only 4194304 bytes free", 0)
    );
    let (error, _) = in_little_room(&several(5, false).end(), MsFlags::empty());
    assert!(error.starts_with("file4: the file is 1048576 bytes, but its filesystem has only 0 bytes free"), "{error}");
    let small = (0..5000).fold(Tar::new(), |tar, number| tar.file(&format!("small{number}"), &mib[..1000]));
    let (error, _) = in_little_room(&small.end(), MsFlags::empty());
    assert!(error.contains("No space left on device"), "{error}");
    // Copies of one file that replace each other fit. The limit of 72 MiB is twice the size of the filesystem, plus the
    // margin for headers.
    assert_eq!(in_little_room(&several(60, true).end(), MsFlags::empty()).0, "");
    let bound =
        "the tar archive has more than 75497472 bytes, which exceeds the limit for target filesystems of this size";
    let padded = [several(1, true).end(), vec![0; 73 << 20]].concat();
    let globals = (0..80_000).fold(Tar::new(), |tar, _| tar.pax(b'g', &[b"comment=x"]));
    for tar in [several(75, true).end(), padded, globals.end()] {
        let (error, _) = in_little_room(&tar, MsFlags::empty());
        assert!(error.ends_with(bound), "{error}");
    }
}

#[test]
#[ignore = "needs root"]
fn root_devices_are_refused_on_filesystems_with_nodev() {
    for kind in [b'3', b'4'] {
        let tar = || {
            Tar::new().file("before", b"x").raw("dev/null", kind, b"", |header| {
                header.set_device_major(1).unwrap();
                header.set_device_minor(3).unwrap();
            })
        };
        let (error, _) = in_little_room(&tar().end(), MsFlags::MS_NODEV);
        assert_eq!(error, "dev/null: device nodes are not allowed at this path: the filesystem is mounted with nodev");
        assert_eq!(in_little_room(&tar().end(), MsFlags::empty()).0, "");
    }
}

#[test]
fn failed_attribute_is_named() {
    let root = tempfile::tempdir().unwrap();
    let tar = Tar::new().pax(b'x', &[b"SCHILY.xattr.nonsense=1"]).file("etc/bad", b"x");
    let tar = (0..2000).fold(tar, |tar, number| tar.file(&format!("after{number}"), b"x"));
    let error = refused(&tar.end(), root.path());
    assert!(error.starts_with("etc/bad: cannot set the file's nonsense: "), "{error}");
}

/// Unpacks to a tmpfs of 4 MiB, with another filesystem mounted at `srv`. Calls `look` with the root, and then unmounts
/// both filesystems. Returns the error message and the result of `look`.
fn beside_another<T>(mount_srv: impl Fn(&Path), tar: Tar, look: impl Fn(&Path) -> T) -> (String, T) {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    mount(Some("tmpfs"), root, Some("tmpfs"), MsFlags::empty(), Some("size=4m")).unwrap();
    fs::create_dir(root.join("srv")).unwrap();
    mount_srv(&root.join("srv"));
    let error = unpack_into(root, &tar.end(), 1 << 16, false).map_or_else(|error| error.to_string(), |_| String::new());
    let seen = look(root);
    [root.join("srv"), root.to_owned()].iter().for_each(|path| unmount_strictly(path).unwrap());
    (error, seen)
}

#[test]
#[ignore = "needs root"]
fn root_hard_links_copied_across_filesystems_count_as_data() {
    let memory = |size: &'static str| {
        move |path: &Path| mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), Some(size)).unwrap()
    };
    let links = |size: usize, count: usize| {
        let tar = Tar::new().file("big", &noise(size)).directory("srv");
        (0..count).fold(tar, |tar, _| tar.hard_link("srv/x", "big"))
    };
    let length = |root: &Path| fs::metadata(root.join("srv/x")).map_or(0, |metadata| metadata.len());
    // The limit of 80 MiB is twice the size of both filesystems together, plus the margin for headers.
    assert_eq!(beside_another(memory("size=4m"), links(2 << 20, 30), length), (String::new(), 2 << 20));
    let (error, _) = beside_another(memory("size=4m"), links(2 << 20, 40), length);
    let text = "srv/x: hard link to big: the tar archive is longer than";
    assert_eq!(
        error,
        format!(
            "{text} 83886080 bytes, the limit for target filesystems of this size (copies that replace hard links across filesystems are \
             included)"
        )
    );
    // The members after the copies also count toward the length.
    let more = noise(1 << 20);
    let last = links(2 << 20, 38).file("more", &more).file("more", &more).file("last", b"");
    let (error, _) = beside_another(memory("size=4m"), last, length);
    assert!(error.starts_with("last: the tar archive is longer than"), "{error}");
    // The copy is refused before any of it is written.
    let (error, seen) = beside_another(memory("size=1m"), links(2 << 20, 1), length);
    let text = "srv/x: hard link to big: the file is 2097152 bytes, but its filesystem has only 1048576 bytes free";
    assert_eq!((error.as_str(), seen), (text, 0));
}

/// Creates a filesystem on this disk and mounts it.
fn new_filesystem(kind: &str, options: &[&str], disk: &str, path: &Path) {
    ToolCommand::new(format!("mkfs.{kind}")).args(options).arg(disk).run().unwrap();
    mount(Some(disk), path, Some(kind), MsFlags::empty(), None::<&str>).unwrap();
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_hard_link_becomes_a_copy_at_the_link_limit() {
    let disk = TestLoopDevice::new(64 << 20, 512);
    let ext4 = |path: &Path| new_filesystem("ext4", &["-q", "-F"], disk.path().as_str(), path);
    // ext4 allows 65,000 names per file.
    let first = Tar::new().file("srv/a", b"content");
    let tar = (1..65_000).fold(first, |tar, number| tar.hard_link(&format!("srv/d/{number}"), "srv/a"));
    let names =
        |root: &Path| ["a", "b"].map(|name| fs::metadata(root.join("srv").join(name)).map_or(0, |is| is.nlink()));
    assert_eq!(beside_another(ext4, tar.hard_link("srv/b", "srv/a"), names), (String::new(), [65_000, 1]));
    // A link that is refused for another reason is not replaced by a copy.
    let (error, there) = beside_another(ext4, Tar::new().directory("srv/a").hard_link("srv/b", "srv/a"), names);
    assert_eq!((error.as_str(), there[1]), ("srv/b: hard link to srv/a: Operation not permitted (os error 1)", 0));
}

#[test]
#[ignore = "needs a kernel of its own: scripts/test vm runs it in a machine"]
fn vm_image_hard_link_becomes_a_copy_on_fat() {
    let disks = TestDisks::take("vda");
    let fat = |path: &Path| new_filesystem("vfat", &[], disks.all()[0].as_str(), path);
    let tar = Tar::new().file("srv/a", b"content").hard_link("srv/b", "srv/a").hard_link("srv/b", "srv/a");
    let read = |root: &Path| ["a", "b"].map(|name| fs::read_to_string(root.join("srv").join(name)).unwrap_or_default());
    assert_eq!(beside_another(fat, tar, read), (String::new(), ["content", "content"].map(str::to_owned)));
    let tar = Tar::new().directory("srv/a").hard_link("srv/b", "srv/a");
    let error = "srv/b: hard link to srv/a: a hard link cannot be created at this path, and the target of the link cannot be copied instead, because the target is neither a regular file nor a symlink";
    assert_eq!(beside_another(fat, tar, |_| ()).0, error);
}
