//! Kept filesystems below the root: what the image may do on one that it is merged into, what it must leave alone, and
//! that starting over deletes nothing on any of them.

use super::seen::Seen;
use super::*;
use crate::image::untar::Unpacked;
use crate::plan::{MakeFilesystem, MountFilesystem};
use crate::storage::loopdev::LoopDevice;
use crate::storage::mount::Mounts;
use std::os::unix::fs::{PermissionsExt, symlink};

fn unpack(tar: Tar, root: &Path, hidden: &[&str], merged: &[&str]) -> (std::io::Result<Unpacked>, Vec<Hidden>) {
    let owned = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
    let (hidden, merged) = (owned(hidden), owned(merged));
    let mut counter = Counter::new(Beneath { hidden: &hidden, merged: &merged, fresh: &[] });
    let root = Root::open(root, beneath::relative(&merged)).unwrap();
    let unpacked = untar(reader(&tar.end(), 700), &root, &mut counter, false, &Told::default(), &Stages::start());
    (unpacked, counter.finish())
}

/// A root with a kept filesystem at `/var/lib`, and a place beside the root that symlinks point to.
fn kept(directory: &Path) -> PathBuf {
    let root = directory.join("root");
    let lib = root.join("var/lib");
    for path in ["root/var/lib/dpkg", "root/var/lib/docker/volumes", "root/var/lib/empty", "outside"] {
        fs::create_dir_all(directory.join(path)).unwrap();
    }
    for (path, content) in [
        ("dpkg/status", "old status"),
        ("dpkg/local", "mine"),
        ("docker/volumes/data", "precious"),
        ("was-file", "a file"),
        ("linked", "linked"),
    ] {
        fs::write(lib.join(path), content).unwrap();
    }
    fs::hard_link(lib.join("linked"), lib.join("other-name")).unwrap();
    fs::write(directory.join("outside/secret"), "secret").unwrap();
    symlink(directory.join("outside"), lib.join("away")).unwrap();
    symlink("../../outside/secret", lib.join("secret-link")).unwrap();
    symlink("docker", lib.join("near")).unwrap();
    root
}

fn text(path: PathBuf) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn the_images_files_win_and_the_rest_stays() {
    let directory = tempfile::tempdir().unwrap();
    let root = kept(directory.path());
    let lib = root.join("var/lib");
    let tar = Tar::new()
        .directory("var/lib")
        .raw("var/lib/dpkg", b'5', b"", |header| header.set_mode(0o711))
        .file("var/lib/dpkg/status", b"new status")
        .file("var/lib/linked", b"the image's")
        .file("var/lib/secret-link", b"a file now")
        .file("var/lib/new/file", b"new")
        .directory("var/lib/was-file")
        .symlink("var/lib/was-file/link", "/etc")
        .hard_link("var/lib/second", "var/lib/new/file");
    let unpacked = unpack(tar, &root, &["/srv"], &["/var/lib"]).0.unwrap();
    assert_eq!((unpacked.entries, unpacked.conflicts), (9, Conflicts::default()));
    assert_eq!(text(lib.join("dpkg/status")), "new status");
    assert_eq!(lib.join("dpkg").metadata().unwrap().permissions().mode() & 0o7777, 0o711);
    assert_eq!(text(lib.join("secret-link")), "a file now");
    assert_eq!(text(lib.join("second")), "new");
    assert_eq!(fs::read_link(lib.join("was-file/link")).unwrap(), Path::new("/etc"));
    // Never through a hard link or a symlink.
    assert_eq!([text(lib.join("linked")), text(lib.join("other-name"))], ["the image's", "linked"]);
    assert_eq!(text(directory.path().join("outside/secret")), "secret");
    // What the image does not name.
    assert_eq!([text(lib.join("dpkg/local")), text(lib.join("docker/volumes/data"))], ["mine", "precious"]);
    assert!(lib.join("empty").is_dir() && lib.join("away").is_symlink());
}

#[test]
fn a_kept_directory_stays_where_the_image_has_something_else() {
    let directory = tempfile::tempdir().unwrap();
    let root = kept(directory.path());
    let tar = Tar::new()
        .file("var/lib/docker", b"a file")
        .symlink("var/lib/empty", "/srv")
        .raw("var/lib/dpkg", b'6', b"", |_| ())
        .file("var/lib/after", b"the next member is read right")
        .hard_link("var/lib/again", "var/lib/docker")
        .hard_link("var/lib/dpkg", "var/lib/after");
    let conflicts = unpack(tar, &root, &[], &["/var/lib"]).0.unwrap().conflicts;
    let first = ["docker", "empty", "dpkg", "again", "dpkg"].map(|name| format!("/var/lib/{name}"));
    assert_eq!(conflicts, Conflicts { files: 5, first: first.into() });
    assert_eq!(text(root.join("var/lib/docker/volumes/data")), "precious");
    assert_eq!(text(root.join("var/lib/dpkg/status")), "old status");
    assert_eq!(text(root.join("var/lib/after")), "the next member is read right");
    assert!(root.join("var/lib/empty").is_dir() && !root.join("var/lib/again").exists());
    // Only there: on what is made, a later file replaces an empty directory.
    let tar = Tar::new().directory("srv/a").file("srv/a", b"x");
    assert_eq!(unpack(tar, &root, &[], &["/var/lib"]).0.unwrap().conflicts.files, 0);
}

#[test]
fn symlinks_of_a_kept_filesystem_lead_the_image_nowhere() {
    let directory = tempfile::tempdir().unwrap();
    let root = kept(directory.path());
    let lib = root.join("var/lib");
    // The image's own symlinks are followed, to the kept filesystem too.
    let tar = Tar::new()
        .symlink("data", "/var/lib")
        .file("var/lib/away/escaped", b"1")
        .file("data/near/escaped", b"2")
        .directory("data/secret-link")
        .file("data/dpkg/status", b"3");
    unpack(tar, &root, &[], &["/var/lib"]).0.unwrap();
    assert_eq!([text(lib.join("away/escaped")), text(lib.join("near/escaped"))], ["1", "2"]);
    assert_eq!(text(lib.join("dpkg/status")), "3");
    for path in ["away", "near", "secret-link"] {
        assert!(lib.join(path).symlink_metadata().unwrap().is_dir(), "{path}");
    }
    let names = |path: PathBuf| fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    assert_eq!(names(directory.path().join("outside")), ["secret"]);
    assert_eq!(names(lib.join("docker")), ["volumes"]);
    assert_eq!(text(directory.path().join("outside/secret")), "secret");
    for path in ["../outside/x", "var/lib/../../../outside/x"] {
        let error = unpack(Tar::new().file(path, b"x"), &root, &[], &["/var/lib"]).0.unwrap_err().to_string();
        assert!(error.contains("`..` is refused"), "{error}");
    }
}

#[test]
fn files_beneath_a_later_mount_are_counted() {
    let root = tempfile::tempdir().unwrap();
    let tar = Tar::new()
        .directory("var/lib")
        .file("var/lib/a", b"")
        .directory("var/lib/b")
        .symlink("var/lib/b/c", "x")
        .hard_link("var/lib/d", "var/lib/a")
        .file("./var/lib//e", b"")
        .file("var/library", b"");
    let hidden = unpack(tar, root.path(), &["/var/lib", "/data"], &[]).1;
    let counts = [("/var/lib", 4), ("/data", 0)].map(|(path, files)| Hidden { path: path.to_owned(), files });
    assert_eq!(hidden, counts);
}

#[test]
fn the_count_is_in_what_is_burned() {
    let image = compress("zstd", &Tar::new().file("var/lib/a", b"1").file("srv/b", b"2").end());
    let server = Server::start(image.clone(), |_| Act::default());
    let source = Source { url: server.url("img"), digest: Some(digest(Kind::Sha256, &image)), ..Source::default() };
    let reached = reach::reach(&http::client().unwrap(), &source, &pace()).unwrap();
    let (root, hidden) = (tempfile::tempdir().unwrap(), ["/var/lib".to_owned()]);
    let beneath = Beneath { hidden: &hidden, merged: &["/srv".to_owned()], fresh: &[] };
    let burned = Incoming::start(reached, Plain::Tar).unwrap().burn(root.path(), &beneath, &|_| ()).unwrap();
    assert_eq!(burned.hidden, [Hidden { path: "/var/lib".to_owned(), files: 1 }]);
    assert_eq!((burned.entries, burned.conflicts.files), (2, 0));
}

/// Mounts new filesystems at these places below the root.
pub(super) fn mounted(root: &Path, disks: &[(LoopDevice, &str)]) -> Mounts {
    let mut mounts = Mounts::new(root);
    for (disk, path) in disks {
        let uuid = uuid::Uuid::new_v4().to_string();
        let (device, format) = (disk.path().to_owned(), crate::layout::Format::Ext4);
        let make =
            MakeFilesystem { device: device.clone(), format, label: None, uuid: uuid.clone(), createoptions: vec![] };
        crate::storage::filesystem::make(&make).unwrap();
        fs::remove_file(Path::new("/dev/disk/by-uuid").join(uuid)).unwrap();
        mounts.mount(&MountFilesystem { device, path: (*path).into(), format, options: vec![] }).unwrap();
    }
    mounts
}

/// A server that sends a part of `bad`, and the image `good` when it is asked for the rest. More than any decoder keeps to
/// itself is to come first.
fn changing(bad: Vec<u8>, good: &[u8]) -> Server {
    let good = good.to_vec();
    Server::start(bad, move |request| match (request.method.as_str(), request.nth) {
        ("HEAD", _) => Act::default(),
        ("GET", 0) if request.path == "/img" => Act::cut_after(10 << 20),
        _ => Act { ranges: false, etag: Some("\"two\"".into()), body: Some(good.clone()), ..Act::default() },
    })
}

fn reached(server: &Server, good: &[u8]) -> Reached {
    let digest = Some(digest(Kind::Sha256, good));
    let source = Source { url: server.url("img"), digest, ..Source::default() };
    reach::reach(&http::client().unwrap(), &source, &pace()).unwrap()
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_starting_over_leaves_nothing_of_what_was_not_verified() {
    let disks = ["/", "/var", "/home", "/srv/kept"].map(|path| (LoopDevice::new(64 << 20, 512), path));
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    let mut mounts = mounted(&root, &disks);
    // Kept and not the image's: below a directory of a new filesystem.
    fs::write(root.join("srv/kept/precious"), "precious").unwrap();
    let before = look(&root, false);

    // A user of the bad image may do anything, on each filesystem and on its root.
    let evil = |header: &mut tar::Header| header.set_mode(0o6777);
    let mut bad = Tar::new();
    for path in ["", "var/", "home/", "srv/", "var/lost+found/", "lost+found/"] {
        bad = bad.pax(b'x', &[b"SCHILY.xattr.user.evil=1", b"uid=7", b"gid=8"]).raw(
            &format!("./{path}"),
            b'5',
            b"",
            evil,
        );
        bad = bad.file(&format!("{path}x/.ssh/authorized_keys"), b"mine");
    }
    // What stays by its name is a file now.
    bad = bad.file("home/lost+found", b"mine").file("data", &noise(12 << 20));
    let plain = |header: &mut tar::Header| header.set_mode(0o644);
    let good = compress("zstd", &Tar::new().raw("new", b'0', b"new", plain).file("home/a", b"a").end());
    let server = changing(compress("zstd", &bad.end()), &good);
    let fresh = ["/var".to_owned(), "/home".to_owned()];
    let beneath = Beneath { fresh: &fresh, ..Beneath::default() };
    let incoming = Incoming::at_pace(reached(&server, &good), Plain::Tar, pace()).unwrap();
    let burned = incoming.burn(&root, &beneath, &|_| ());
    let mut after = look(&root, false);
    mounts.finish().unwrap();

    assert_eq!(burned.unwrap().resumed, 2);
    for new in ["new", "home/a"] {
        assert!(after.remove(Path::new(new)).is_some(), "{new}");
    }
    // The times of directories are those of the burn.
    let timeless = |seen: BTreeMap<PathBuf, Seen>| -> BTreeMap<_, _> {
        let inodes = |(path, seen): (PathBuf, Seen)| (path, Seen { mtime: (0, 0), same_as: PathBuf::new(), ..seen });
        seen.into_iter().map(inodes).filter(|(path, _)| path != Path::new("home/lost+found")).collect()
    };
    assert_same(&timeless(before), &timeless(after), "start over");
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_what_has_another_digest_does_not_come_to_a_merged_filesystem() {
    let disks = ["/", "/var/lib"].map(|path| (LoopDevice::new(64 << 20, 512), path));
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    let mut mounts = mounted(&root, &disks);
    fs::write(root.join("var/lib/status"), "old").unwrap();
    let before = look(&root, false);
    let image = compress("zstd", &Tar::new().file("var/lib/status", b"evil").file("etc/x", b"x").end());
    let server = Server::start(image, |_| Act::default());
    let merged = ["/var/lib".to_owned()];
    let beneath = Beneath { merged: &merged, ..Beneath::default() };
    let incoming = Incoming::at_pace(reached(&server, b"another"), Plain::Tar, pace()).unwrap();
    let error = incoming.burn(&root, &beneath, &|_| ()).unwrap_err().to_string();
    let after = look(&root, false);
    mounts.finish().unwrap();
    assert!(error.ends_with("nothing of it was unpacked"), "{error}");
    assert_same(&before, &after, "a wrong digest");
}

#[test]
fn what_is_merged_into_and_is_no_filesystem_of_its_own_could_be_cleared_and_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let root = kept(directory.path());
    let image = compress("zstd", &Tar::new().file("var/lib/dpkg/status", b"new").end());
    let server = Server::start(image.clone(), |_| Act::default());
    let merged = ["/var/lib".to_owned()];
    let beneath = Beneath { merged: &merged, ..Beneath::default() };
    let before = look(&root, false);
    let incoming = Incoming::at_pace(reached(&server, &image), Plain::Tar, pace()).unwrap();
    let error = incoming.burn(&root, &beneath, &|_| ()).unwrap_err().to_string();
    assert!(error.contains("is merged into, and is no filesystem of its own"), "{error}");
    assert_same(&before, &look(&root, false), "refused");
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_nothing_unproven_comes_to_a_merged_filesystem_and_a_burn_starts_over_there() {
    let bad = Tar::new().file("var/old", b"old").file("var/lib/first", b"f").file("data", &noise(12 << 20));
    let good = Tar::new().file("new", b"new").file("var/lib/status", b"new").hard_link("copy", "var/lib/status");
    let good = compress("zstd", &good.file("data", &noise(12 << 20)).end());
    let bad = compress("zstd", &bad.end());
    for verified in [false, true] {
        let disks = ["/", "/var/lib"].map(|path| (LoopDevice::new(64 << 20, 512), path));
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        let mut mounts = mounted(&root, &disks);
        fs::create_dir(root.join("var/lib/deep")).unwrap();
        fs::write(root.join("var/lib/deep/precious"), "precious").unwrap();
        fs::write(root.join("var/lib/status"), "old").unwrap();
        let server = if verified { changing(good.clone(), &good) } else { changing(bad.clone(), &good) };
        let mut reached = reached(&server, &good);
        if verified {
            reached.parts[0].manifest = Some(std::sync::Arc::new(Manifest::of(&good[..], good.len() as u64).unwrap()));
        }
        let merged = ["/var/lib".to_owned()];
        let beneath = Beneath { merged: &merged, ..Beneath::default() };
        let burned = Incoming::at_pace(reached, Plain::Tar, pace()).unwrap().burn(&root, &beneath, &|_| ());
        let listing: Vec<_> = look(&root, false).into_keys().map(|path| path.to_str().unwrap().to_owned()).collect();
        let texts = ["var/lib/status", "var/lib/deep/precious"].map(|path| text(root.join(path)));
        mounts.finish().unwrap();
        burned.unwrap();
        assert_eq!(texts, ["new", "precious"]);
        // Of the bad image, which began to come, there is nothing.
        let expected = "|copy|data|lost+found|new|var|var/lib|var/lib/deep|var/lib/deep/precious|var/lib/lost+found|\
                        var/lib/status";
        assert_eq!(listing.join("|"), expected);
    }
}
