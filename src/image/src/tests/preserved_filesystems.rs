//! Preserved filesystems below the root: an image is merged into them, and a restart of the burn deletes nothing on
//! them.

use super::*;
use crate::tree::tests::{FileState, mounted, preserved_tree, text};
use linux::storage::test_loop_device::TestLoopDevice;

#[test]
fn counts_of_hidden_files_are_reported() {
    let image = compress("zstd", &Tar::new().file("var/lib/a", b"1").file("srv/b", b"2").end());
    let server = Server::start(image.clone(), |_| ResponseBehavior::default());
    let source = ImageSource {
        url: server.url("img"),
        digest: Some(digest(DigestKind::Sha256, &image)),
        ..ImageSource::default()
    };
    let reached = fetch::resolve_image(&http::new_client().unwrap(), &source, &pace()).unwrap();
    let (root, hidden) = (tempfile::tempdir().unwrap(), ["/var/lib".to_owned()]);
    let beneath = MountsBelow { hidden: &hidden, merged: &["/srv".to_owned()], fresh: &[] };
    let burned =
        IncomingImage::start(reached, PayloadKind::Tar).unwrap().burn_to_root(root.path(), &beneath, &|_| ()).unwrap();
    assert_eq!(burned.hidden, [HiddenFiles { path: "/var/lib".to_owned(), files: 1 }]);
    assert_eq!((burned.entries, burned.conflicts.files), (2, 0));
}

/// Returns a server that first sends a part of `bad`, and then responds to the request for the rest with `good`. The
/// part is longer than the data that a decoder buffers.
fn changing(bad: Vec<u8>, good: &[u8]) -> Server {
    let good = good.to_vec();
    Server::start(bad, move |request| match (request.method.as_str(), request.nth) {
        ("HEAD", _) => ResponseBehavior::default(),
        ("GET", 0) if request.path == "/img" => ResponseBehavior::cut_after(10 << 20),
        _ => ResponseBehavior {
            ranges: false,
            etag: Some("\"two\"".into()),
            body: Some(good.clone()),
            ..ResponseBehavior::default()
        },
    })
}

fn reached(server: &Server, good: &[u8]) -> ResolvedImage {
    let digest = Some(digest(DigestKind::Sha256, good));
    let source = ImageSource { url: server.url("img"), digest, ..ImageSource::default() };
    fetch::resolve_image(&http::new_client().unwrap(), &source, &pace()).unwrap()
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_restart_removes_all_unverified_files() {
    let disks = ["/", "/var", "/home", "/srv/kept"].map(|path| (TestLoopDevice::new(64 << 20, 512), path));
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    let mut mounts = mounted(&root, &disks);
    // The preserved filesystem is mounted below a directory of a new filesystem.
    fs::write(root.join("srv/kept/precious"), "precious").unwrap();
    let before = look(&root, false);

    // The bad image sets dangerous modes and owners on each filesystem and its root.
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
    // In the bad image, `lost+found` is a file, which replaces the directory of this name.
    bad = bad.file("home/lost+found", b"mine").file("data", &noise(12 << 20));
    let plain = |header: &mut tar::Header| header.set_mode(0o644);
    let good = compress("zstd", &Tar::new().raw("new", b'0', b"new", plain).file("home/a", b"a").end());
    let server = changing(compress("zstd", &bad.end()), &good);
    let fresh = ["/var".to_owned(), "/home".to_owned()];
    let beneath = MountsBelow { fresh: &fresh, ..MountsBelow::default() };
    let incoming = IncomingImage::start_at_pace(reached(&server, &good), PayloadKind::Tar, pace()).unwrap();
    let burned = incoming.burn_to_root(&root, &beneath, &|_| ());
    let mut after = look(&root, false);
    mounts.unmount_all().unwrap();

    assert_eq!(burned.unwrap().resumed, 2);
    for new in ["new", "home/a"] {
        assert!(after.remove(Path::new(new)).is_some(), "{new}");
    }
    // Modification times are not compared, because the burn changes those of directories.
    let timeless = |seen: BTreeMap<PathBuf, FileState>| -> BTreeMap<_, _> {
        let inodes =
            |(path, seen): (PathBuf, FileState)| (path, FileState { mtime: (0, 0), same_as: PathBuf::new(), ..seen });
        seen.into_iter().map(inodes).filter(|(path, _)| path != Path::new("home/lost+found")).collect()
    };
    assert_same(&timeless(before), &timeless(after), "start over");
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_wrong_digest_leaves_a_merged_filesystem_unchanged() {
    let disks = ["/", "/var/lib"].map(|path| (TestLoopDevice::new(64 << 20, 512), path));
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    let mut mounts = mounted(&root, &disks);
    fs::write(root.join("var/lib/status"), "old").unwrap();
    let before = look(&root, false);
    let image = compress("zstd", &Tar::new().file("var/lib/status", b"evil").file("etc/x", b"x").end());
    let server = Server::start(image, |_| ResponseBehavior::default());
    let merged = ["/var/lib".to_owned()];
    let beneath = MountsBelow { merged: &merged, ..MountsBelow::default() };
    let incoming = IncomingImage::start_at_pace(reached(&server, b"another"), PayloadKind::Tar, pace()).unwrap();
    let error = incoming.burn_to_root(&root, &beneath, &|_| ()).unwrap_err().to_string();
    let after = look(&root, false);
    mounts.unmount_all().unwrap();
    assert!(error.ends_with("nothing was unpacked"), "{error}");
    assert_same(&before, &after, "a wrong digest");
}

#[test]
fn refuses_merge_into_a_directory_without_its_own_filesystem() {
    let directory = tempfile::tempdir().unwrap();
    let root = preserved_tree(directory.path());
    let image = compress("zstd", &Tar::new().file("var/lib/dpkg/status", b"new").end());
    let server = Server::start(image.clone(), |_| ResponseBehavior::default());
    let merged = ["/var/lib".to_owned()];
    let beneath = MountsBelow { merged: &merged, ..MountsBelow::default() };
    let before = look(&root, false);
    let incoming = IncomingImage::start_at_pace(reached(&server, &image), PayloadKind::Tar, pace()).unwrap();
    let error = incoming.burn_to_root(&root, &beneath, &|_| ()).unwrap_err().to_string();
    assert!(error.contains("is not the mount point of a filesystem"), "{error}");
    assert_same(&before, &look(&root, false), "refused");
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_unverified_data_never_reach_a_merged_filesystem() {
    let bad = Tar::new().file("var/old", b"old").file("var/lib/first", b"f").file("data", &noise(12 << 20));
    let good = Tar::new().file("new", b"new").file("var/lib/status", b"new").hard_link("copy", "var/lib/status");
    let good = compress("zstd", &good.file("data", &noise(12 << 20)).end());
    let bad = compress("zstd", &bad.end());
    for verified in [false, true] {
        let disks = ["/", "/var/lib"].map(|path| (TestLoopDevice::new(64 << 20, 512), path));
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        let mut mounts = mounted(&root, &disks);
        fs::create_dir(root.join("var/lib/deep")).unwrap();
        fs::write(root.join("var/lib/deep/precious"), "precious").unwrap();
        fs::write(root.join("var/lib/status"), "old").unwrap();
        let server = if verified { changing(good.clone(), &good) } else { changing(bad.clone(), &good) };
        let mut reached = reached(&server, &good);
        if verified {
            reached.parts[0].manifest = Some(Arc::new(ImageManifest::compute(&good[..], good.len() as u64).unwrap()));
        }
        let merged = ["/var/lib".to_owned()];
        let beneath = MountsBelow { merged: &merged, ..MountsBelow::default() };
        let burned = IncomingImage::start_at_pace(reached, PayloadKind::Tar, pace()).unwrap().burn_to_root(
            &root,
            &beneath,
            &|_| (),
        );
        let listing: Vec<_> = look(&root, false).into_keys().map(|path| path.to_str().unwrap().to_owned()).collect();
        let texts = ["var/lib/status", "var/lib/deep/precious"].map(|path| text(root.join(path)));
        mounts.unmount_all().unwrap();
        burned.unwrap();
        assert_eq!(texts, ["new", "precious"]);
        // No file of the bad image remains.
        let expected = "|copy|data|lost+found|new|var|var/lib|var/lib/deep|var/lib/deep/precious|var/lib/lost+found|\
                        var/lib/status";
        assert_eq!(listing.join("|"), expected);
    }
}
