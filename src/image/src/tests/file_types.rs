//! A tree with all types of files and attributes, packed by common programs.

use super::*;

/// Creates a tree with all types of files and attributes that an image can contain.
pub(crate) fn create_all_file_types(root: &Path) {
    use nix::sys::stat::{Mode, SFlag, UtimensatFlags, makedev, mknod, utimensat};
    use nix::sys::time::TimeSpec;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{FileExt, PermissionsExt, chown, lchown, symlink};
    let at = |path: &str| root.join(path);
    let file = |path: &str, content: &[u8], mode: u32, owner: (u32, u32)| {
        fs::create_dir_all(at(path).parent().unwrap()).unwrap();
        fs::write(at(path), content).unwrap();
        chown(at(path), Some(owner.0), Some(owner.1)).unwrap();
        fs::set_permissions(at(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    file("etc/shadow", b"root:*", 0o640, (0, 42));
    file("usr/bin/sudo", &noise(70_000), 0o4755, (0, 0));
    file("usr/bin/wall", b"", 0o2755, (0, 5));
    file("usr/bin/ping", &noise(1000), 0o755, (0, 0));
    // VFS_CAP_REVISION_2, effective, CAP_DAC_OVERRIDE and CAP_FOWNER: the byte 0x0a, a newline.
    let capability = [1, 0, 0, 2, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    xattr::set(at("usr/bin/ping"), "security.capability", &capability).unwrap();
    xattr::set(at("etc/shadow"), "user.note", b"two\nlines\n\n7 uid=1\n").unwrap();
    xattr::set(at("etc"), "trusted.on-a-directory", &noise(200)).unwrap();
    file("home/high/file", b"x", 0o000, (4_000_000_000, 3_000_000));
    fs::set_permissions(at("home/high"), fs::Permissions::from_mode(0o000)).unwrap();
    fs::create_dir(at("tmp")).unwrap();
    fs::set_permissions(at("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
    file(&format!("long/{}/{}/{}", "d".repeat(200), "e".repeat(200), "f".repeat(255)), b"deep", 0o600, (1, 2));
    file("odd/white space\nand newline=*?%25", b"odd", 0o600, (1, 2));
    fs::write(at("odd").join(std::ffi::OsStr::from_bytes(b"not-utf8-\xff\xfe")), "odd").unwrap();
    symlink("../../usr/bin/sudo", at("odd/link")).unwrap();
    symlink("x".repeat(300), at("odd/long-link")).unwrap();
    lchown(at("odd/link"), Some(7), Some(8)).unwrap();
    xattr::set(at("odd/link"), "trusted.on-a-symlink", b"1").unwrap();
    fs::hard_link(at("usr/bin/sudo"), at("odd/sudo")).unwrap();
    fs::hard_link(at("odd/link"), at("odd/link-of-link")).unwrap();
    for (path, kind, device) in [
        ("dev-null", SFlag::S_IFCHR, makedev(1, 3)),
        ("dev-high", SFlag::S_IFBLK, makedev(259, 300)),
        ("fifo", SFlag::S_IFIFO, 0),
    ] {
        mknod(&at(path), kind, Mode::from_bits_truncate(0o620), device).unwrap();
        chown(at(path), Some(0), Some(6)).unwrap();
    }
    for (path, pieces, size) in [
        ("sparse/hole-first", vec![1 << 20], (1 << 20) + 4096),
        ("sparse/hole-last", vec![0], 5 << 20),
        ("sparse/all-hole", vec![], 3 << 20),
        ("sparse/many", (0..100).map(|i| i * 65536).collect(), 7 << 20),
    ] {
        fs::create_dir_all(at("sparse")).unwrap();
        let file = fs::File::create(at(path)).unwrap();
        for offset in pieces {
            file.write_all_at(&noise(4096), offset).unwrap();
        }
        file.set_len(size).unwrap();
    }
    let times = [
        ("etc/shadow", 1_234_567_890, 123_456_789),
        ("odd/link", 5, 999_999_999),
        ("dev-null", 86400, 0),
        ("tmp", 99, 1),
        ("usr/bin/wall", -86400, 0),
    ];
    for (path, seconds, nanoseconds) in times {
        let time = TimeSpec::new(seconds, nanoseconds);
        utimensat(nix::fcntl::AT_FDCWD, &at(path), &time, &time, UtimensatFlags::NoFollowSymlink).unwrap();
    }
}

#[test]
#[ignore = "needs root"]
fn root_trees_of_gnu_tar_and_bsdtar_are_unpacked_unchanged() {
    let zoo = tempfile::tempdir().unwrap();
    create_all_file_types(zoo.path());
    let gnu = ["tar", "--xattrs", "--xattrs-include=*", "--sparse", "--numeric-owner"];
    let sparse = |version: &'static str| [&gnu[..], &["--format=posix", version]].concat();
    let producers = [
        (sparse("--sparse-version=1.0"), true, true),
        (sparse("--sparse-version=0.1"), true, true),
        (sparse("--sparse-version=0.0"), true, true),
        (vec!["tar", "--format=gnu", "--sparse", "--numeric-owner"], false, false),
        (vec!["bsdtar", "--format=pax", "--xattrs", "--numeric-owner"], true, true),
    ];
    for (number, (producer, nanoseconds, xattrs)) in producers.into_iter().enumerate() {
        let mut child = std::process::Command::new(producer[0])
            .args(&producer[1..])
            .args(["-cf", "-", "-C"])
            .arg(zoo.path())
            .arg(".")
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut tar = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut tar).unwrap();
        assert!(child.wait().unwrap().success());
        let root = burn_tar(&tar, ["zstd", "lz4", "gzip"][number % 3]);
        let mut was = look(zoo.path(), nanoseconds);
        if !xattrs {
            was.values_mut().for_each(|seen| seen.xattrs.clear());
        }
        assert_same(&was, &look(root.path(), nanoseconds), &format!("{producer:?}"));
        for path in ["hole-first", "hole-last", "all-hole", "many"] {
            let blocks = |root: &Path| fs::metadata(root.join("sparse").join(path)).unwrap().blocks();
            assert!(blocks(root.path()) <= blocks(zoo.path()) + 8, "{producer:?}: {path} has lost its holes");
        }
    }
}
