//! The whole pipeline: from a server in the test to the files, and what every kind of bad image gets.

use super::digest::{Digesting, Kind};
use super::testing::{Act, Server, Tar, compress, noise, pace, reader};
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Mutex;
use tempfile::TempDir;

mod acls;
mod bad;
mod fuzz;
mod merge;

mod sources;
mod trees;
mod whiteouts;

/// Unpacks bytes that come in buffers of `cut` bytes.
fn unpack_into(root: &Path, tar: &[u8], cut: usize, layered: bool) -> std::io::Result<Unpacked> {
    let mut counter = Counter::new(Beneath::default());
    untar(reader(tar, cut), &Root::open(root, Vec::new())?, &mut counter, layered, &Stages::start())
}

fn digest(kind: Kind, bytes: &[u8]) -> String {
    let mut digesting = Digesting::new(bytes, kind);
    std::io::copy(&mut digesting, &mut std::io::sink()).unwrap();
    digesting.finish().to_string()
}

/// Burns from a server; with the digest of `promised`.
fn burn_from(server: &Server, promised: &[u8], root: &Path) -> Result<Burned> {
    let source =
        Source { url: server.url("img.tar.zst"), digest: Some(digest(Kind::Sha256, promised)), ..Source::default() };
    let reached = reach::reach(&http::client()?, &source, &pace())?;
    Incoming::at_pace(reached, Plain::Tar, pace())?.burn(root, &Beneath::default(), &|_| ())
}

fn small_tar() -> Vec<u8> {
    Tar::new().file("etc/hostname", b"server").file("data", &noise(200_000)).symlink("link", "data").end()
}

#[test]
fn an_image_in_each_format_arrives_and_is_counted() {
    for format in ["zstd", "lz4", "gzip", "xz", "plain"] {
        let image = compress(format, &small_tar());
        let (size, total) = (image.len() as u64, small_tar().len() as u64);
        let server = Server::start(image.clone(), |_| Act::default());
        let root = tempfile::tempdir().unwrap();
        let told = Mutex::new(Vec::new());
        for kind in [Kind::Sha256, Kind::Sha512, Kind::Md5] {
            let part = Part {
                url: server.url("x"),
                size_bytes: Some(size),
                etag: Some("\"one\"".into()),
                digest: digest(kind, &image),
                ..Part::default()
            };
            let incoming = Incoming::start(Reached { parts: vec![part], ..Reached::default() }, Plain::Tar).unwrap();
            let watch = |progress| told.lock().unwrap().push(progress);
            let burned = incoming.burn(root.path(), &Beneath::default(), &watch).unwrap();
            let stages: Vec<_> = burned.shares.iter().map(|share| share.stage.as_str()).collect();
            assert_eq!(stages, ["network", "digest", "decode", "untar", "write"]);
            let expected = Burned { bytes: size, tar_bytes: total, entries: 3, ..Burned::default() };
            assert_eq!(Burned { shares: Vec::new(), ..burned }, expected, "{format}");
        }
        assert_eq!(fs::read_to_string(root.path().join("etc/hostname")).unwrap(), "server");
        assert!(fs::read(root.path().join("link")).unwrap() == noise(200_000));
        let last = told.lock().unwrap().last().cloned().unwrap();
        assert_eq!((last.bytes, last.total_bytes, last.seconds_left), (size, Some(size), Some(0)));
    }
}

#[test]
fn every_bad_image_is_named_by_the_check_that_failed() {
    let tar = small_tar();
    let good = compress("zstd", &tar);
    let cut_tar = &tar[..tar.len() - 1024];
    let half_tar = &tar[..tar.len() / 2 / 512 * 512];
    let mut flipped = good.clone();
    flipped[100_000] ^= 1;
    let disk = compress("zstd", &[vec![0; 450], vec![0x83], vec![0; 59], vec![0x55, 0xaa], vec![0; 512]].concat());
    let cases: Vec<(Vec<u8>, Vec<u8>, &str)> = vec![
        (good.clone(), b"another".to_vec(), "digest of"),
        (good[..good.len() / 2].to_vec(), good[..good.len() / 2].to_vec(), "zstd stream ends in the middle of a frame"),
        (flipped.clone(), flipped, "zstd stream is damaged near byte"),
        ([&good[..], b"garbage"].concat(), good.clone(), "something follows the end of the zstd stream"),
        (compress("zstd", cut_tar), compress("zstd", cut_tar), "the tar ends after byte"),
        (compress("lz4", half_tar), compress("lz4", half_tar), "the tar ends after byte"),
        (compress("gzip", &tar[..1000]), compress("gzip", &tar[..1000]), "the tar ends after byte"),
        (compress("zstd", &[&tar[..], b"x"].concat()), good.clone(), "something follows the end of the archive"),
        (compress("zstd", b"not a tar"), good.clone(), "the tar ends after byte 9 "),
        (compress("zstd", &noise(4096)), good.clone(), "wrong checksum"),
        (half_tar.to_vec(), half_tar.to_vec(), "the tar ends after byte"),
        (tar[1..].to_vec(), tar[1..].to_vec(), "unknown compression: the image begins with 74 63 2f"),
        (b"<!DOCTYPE html>".to_vec(), good.clone(), "unknown compression"),
        (Vec::new(), good.clone(), "the image is empty"),
        (disk.clone(), disk, "it is a raw disk image: that needs a layout with image: true"),
    ];
    for (served, promised, says) in cases {
        let server = Server::start(served, |_| Act::default());
        let root = tempfile::tempdir().unwrap();
        let error = burn_from(&server, &promised, root.path()).unwrap_err();
        assert!(error.to_string().contains(says), "{says}: {error}");
        assert!(error.to_string().contains("/img.tar.zst"), "{error}");
        assert_eq!(error.phase, Phase::Image);
    }
}

#[test]
fn a_wrong_digest_says_both() {
    let image = compress("zstd", &small_tar());
    let server = Server::start(image.clone(), |_| Act::default());
    let root = tempfile::tempdir().unwrap();
    let error = burn_from(&server, b"x", root.path()).unwrap_err().to_string();
    assert!(error.contains(&digest(Kind::Sha256, b"x")), "{error}");
    assert!(error.contains(&format!("{} came", digest(Kind::Sha256, &image))), "{error}");
}

#[test]
fn an_image_that_is_gone_or_a_server_in_trouble_is_named() {
    for (status, says) in [(404, "404 Not Found"), (500, "500 Internal Server Error (4 attempts")] {
        let server = Server::start(compress("zstd", &small_tar()), move |request| match request.method.as_str() {
            "HEAD" => Act::default(),
            _ => Act::status(status),
        });
        let root = tempfile::tempdir().unwrap();
        let error = burn_from(&server, b"", root.path()).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn a_drop_is_resumed_and_counted() {
    let image = compress("zstd", &small_tar());
    let server = Server::start(image.clone(), |request| match (request.method.as_str(), request.nth) {
        ("GET", 0) => Act::cut_after(70_000),
        ("GET", 1) => Act::status(502),
        _ => Act::default(),
    });
    let root = tempfile::tempdir().unwrap();
    let burned = burn_from(&server, &image, root.path()).unwrap();
    assert_eq!((burned.resumed, burned.bytes), (2, image.len() as u64));
}

#[test]
fn an_image_that_changes_starts_over_in_a_clean_root() {
    let old = compress("zstd", &Tar::new().file("old/file", b"old").file("data", &noise(200_000)).end());
    let new = compress("zstd", &Tar::new().file("new", b"new").file("data", &noise(150_000)).end());
    let (promised, changed) = (new.clone(), new);
    let server = Server::start(old, move |request| match (request.method.as_str(), request.nth) {
        ("HEAD", _) => Act::default(),
        ("GET", 0) => Act::cut_after(100_000),
        _ => Act { etag: Some("\"two\"".into()), body: Some(changed.clone()), ..Act::default() },
    });
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("lost+found")).unwrap();
    let burned = burn_from(&server, &promised, root.path()).unwrap();
    assert_eq!((burned.resumed, burned.bytes), (2, promised.len() as u64));
    let mut names: Vec<_> = fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["data", "lost+found", "new"]);
}

#[test]
fn starting_over_ends() {
    let image = compress("zstd", &small_tar());
    let server = Server::start(image.clone(), |request| match request.method.as_str() {
        "HEAD" => Act::default(),
        _ => Act { ranges: false, ..Act::cut_after(100_000) },
    });
    let root = tempfile::tempdir().unwrap();
    let error = burn_from(&server, &image, root.path()).unwrap_err().to_string();
    assert!(error.contains("changed or could not be resumed in 3 starts: "), "{error}");
}

#[test]
fn what_was_there_before_is_not_cleared() {
    let image = compress("zstd", &small_tar());
    let server = Server::start(image.clone(), |request| match request.method.as_str() {
        "HEAD" => Act::default(),
        _ => Act { ranges: false, ..Act::cut_after(100_000) },
    });
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("mine"), "content").unwrap();
    let source = Source { url: server.url("image"), digest: Some(digest(Kind::Sha256, &image)), ..Source::default() };
    let reached = reach::reach(&http::client().unwrap(), &source, &testing::pace()).unwrap();
    let incoming = Incoming::at_pace(reached, Plain::Tar, testing::pace()).unwrap().among_others();
    let error = incoming.burn(root.path(), &Beneath::default(), &|_| ()).unwrap_err().to_string();
    assert!(error.contains("changed or could not be resumed: "), "{error}");
    assert_eq!(fs::read_to_string(root.path().join("mine")).unwrap(), "content");
}

#[test]
fn a_root_that_is_none_is_named() {
    let part = Part { url: "http://127.0.0.1:1/".into(), digest: digest(Kind::Md5, b""), ..Part::default() };
    let incoming = Incoming::start(Reached { parts: vec![part], ..Reached::default() }, Plain::Tar).unwrap();
    let error = incoming.burn(Path::new("/no/such/root"), &Beneath::default(), &|_| ()).unwrap_err().to_string();
    assert!(error.contains("open /no/such/root"), "{error}");
}

/// Everything that stat(2) and getxattr(2) see, by path; hard links as the first path of the same file.
#[derive(Debug, PartialEq)]
pub(crate) struct Seen {
    mode: u32,
    owner: (u32, u32),
    device: u64,
    size: u64,
    mtime: (i64, i64),
    links: u64,
    same_as: PathBuf,
    content: Option<Vec<u8>>,
    target: Option<PathBuf>,
    xattrs: BTreeMap<std::ffi::OsString, Vec<u8>>,
}

pub(crate) fn look(root: &Path, with_nanoseconds: bool) -> BTreeMap<PathBuf, Seen> {
    let mut todo = vec![PathBuf::new()];
    let mut paths = Vec::new();
    while let Some(path) = todo.pop() {
        if fs::symlink_metadata(root.join(&path)).unwrap().is_dir() {
            todo.extend(fs::read_dir(root.join(&path)).unwrap().map(|entry| path.join(entry.unwrap().file_name())));
        }
        paths.push(path);
    }
    paths.sort();
    let mut first = BTreeMap::new();
    let mut seen = BTreeMap::new();
    for path in paths {
        let full = root.join(&path);
        let metadata = fs::symlink_metadata(&full).unwrap();
        let xattrs = xattr::list(&full).unwrap();
        let has = Seen {
            mode: metadata.mode(),
            owner: (metadata.uid(), metadata.gid()),
            device: metadata.rdev(),
            size: if metadata.is_dir() { 0 } else { metadata.size() },
            mtime: (metadata.mtime(), if with_nanoseconds { metadata.mtime_nsec() } else { 0 }),
            links: if metadata.is_dir() { 0 } else { metadata.nlink() },
            same_as: first.entry(metadata.ino()).or_insert(path.clone()).clone(),
            content: metadata.is_file().then(|| fs::read(&full).unwrap()),
            target: metadata.is_symlink().then(|| fs::read_link(&full).unwrap()),
            xattrs: xattrs.map(|name| (name.clone(), xattr::get(&full, &name).unwrap().unwrap())).collect(),
        };
        assert!(!metadata.file_type().is_socket());
        seen.insert(path, has);
    }
    seen
}

pub(crate) fn assert_same(one: &BTreeMap<PathBuf, Seen>, other: &BTreeMap<PathBuf, Seen>, what: &str) {
    let paths = |seen: &BTreeMap<PathBuf, Seen>| seen.keys().cloned().collect::<Vec<_>>();
    assert_eq!(paths(one), paths(other), "{what}");
    for (path, was) in one {
        let is = &other[path];
        // Without the contents, which are long.
        let short = |seen: &Seen| {
            format!(
                "{:?}",
                Seen {
                    content: None,
                    xattrs: seen.xattrs.clone(),
                    same_as: seen.same_as.clone(),
                    target: seen.target.clone(),
                    ..*seen
                }
            )
        };
        assert!(was == is, "{what}: {}: {} became {}", path.display(), short(was), short(is));
    }
}

fn burn_tar(tar: &[u8], format: &str) -> TempDir {
    let image = compress(format, tar);
    let server = Server::start(image.clone(), |_| Act::default());
    let root = tempfile::tempdir().unwrap();
    burn_from(&server, &image, root.path()).unwrap();
    root
}

/// One of everything that an image can hold.
pub(crate) fn make_zoo(root: &Path) {
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
fn root_what_gnu_tar_and_bsdtar_pack_arrives_as_it_left() {
    let zoo = tempfile::tempdir().unwrap();
    make_zoo(zoo.path());
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

#[test]
#[ignore = "needs root"]
fn root_starting_over_enters_no_mount_point() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    let kept = directory.path().join("kept");
    fs::create_dir_all(root.join("var/lib/kept")).unwrap();
    fs::create_dir_all(&kept).unwrap();
    fs::write(kept.join("precious"), "precious").unwrap();
    // A bind mount has the same device number, which is the harder case.
    let bind = nix::mount::MsFlags::MS_BIND;
    nix::mount::mount(Some(&kept), &root.join("var/lib/kept"), None::<&str>, bind, None::<&str>).unwrap();
    let below = Root::open(&root, Vec::new()).unwrap();
    let fresh = below.fresh(&[]).unwrap();
    fs::create_dir_all(root.join("var/log/old")).unwrap();
    fs::write(root.join("var/lib/stale"), "stale").unwrap();
    let cleared = below.clear(&fresh);
    let listing = look(&root, false);
    nix::mount::umount(&root.join("var/lib/kept")).unwrap();
    cleared.unwrap();
    let paths: Vec<_> = listing.keys().map(|path| path.to_str().unwrap()).collect();
    assert_eq!(paths, ["", "var", "var/lib", "var/lib/kept", "var/lib/kept/precious"]);
    assert_eq!(fs::read_to_string(kept.join("precious")).unwrap(), "precious");
}

/// What a generated tree is made of.
#[derive(Debug, Clone)]
enum Node {
    File(Vec<u8>, u32),
    Symlink(String),
    Directory(u32),
}

fn nodes() -> impl Strategy<Value = BTreeMap<String, Node>> {
    let node = prop_oneof![
        (proptest::collection::vec(any::<u8>(), 0..3000), 0o400..0o1000_u32).prop_map(|(c, m)| Node::File(c, m)),
        "[a-z./]{1,150}".prop_map(Node::Symlink),
        (0o700..0o1000_u32).prop_map(Node::Directory),
    ];
    let path = "[a-c]{1,2}(/[a-c]{1,2}){0,3}|[a-c]{90,120}(/[a-c]{100,150}){0,2}";
    proptest::collection::btree_map(path, node, 1..25)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_tree_that_the_tar_crate_packs_arrives_as_it_was(nodes in nodes(), mtime in 0..2_000_000_000_u64) {
        let mut builder = tar::Builder::new(Vec::new());
        let header = |kind, mode: u32, size: usize| {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_mode(mode);
            header.set_mtime(mtime);
            header.set_uid(nix::unistd::getuid().as_raw().into());
            header.set_gid(nix::unistd::getgid().as_raw().into());
            header.set_size(size as u64);
            header
        };
        let mut expected = BTreeMap::new();
        let mut directories = std::collections::BTreeSet::new();
        for (path, node) in &nodes {
            // Parents of what came before are directories already, and nothing goes below a file or a symlink.
            let above_a_file = Path::new(path).ancestors().skip(1).any(|parent| expected.contains_key(parent));
            if above_a_file || directories.contains(Path::new(path)) {
                continue;
            }
            match node {
                Node::File(content, mode) => {
                    builder.append_data(&mut header(tar::EntryType::Regular, *mode, content.len()), path, &content[..])?;
                }
                Node::Symlink(target) => {
                    builder.append_link(&mut header(tar::EntryType::Symlink, 0o777, 0), path, target)?;
                }
                Node::Directory(mode) => {
                    builder.append_data(&mut header(tar::EntryType::Directory, *mode, 0), path, &b""[..])?;
                    directories.insert(PathBuf::from(path));
                }
            }
            directories.extend(Path::new(path).ancestors().skip(1).map(Path::to_owned));
            if !matches!(node, Node::Directory(_)) {
                expected.insert(PathBuf::from(path), node.clone());
            }
        }
        let root = burn_tar(&builder.into_inner()?, "zstd");
        let seen = look(root.path(), true);
        for (path, node) in &expected {
            let is = &seen[path];
            prop_assert_eq!(is.mtime, (mtime as i64, 0));
            match node {
                Node::File(content, mode) => {
                    prop_assert_eq!(is.content.as_ref(), Some(content));
                    prop_assert_eq!(is.mode & 0o7777, *mode);
                }
                Node::Symlink(target) => prop_assert_eq!(is.target.as_deref(), Some(Path::new(target))),
                Node::Directory(_) => {}
            }
        }
        let files = seen.values().filter(|seen| seen.content.is_some() || seen.target.is_some()).count();
        prop_assert_eq!(files, expected.len());
    }
}
