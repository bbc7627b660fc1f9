//! Layers of OCI images: files that whiteouts remove, and files that whiteouts must not remove.

use super::*;
use std::os::unix::fs::symlink;

/// Burns all layers in order, and returns the conflicts of the last one.
fn layers(root: &Path, merged: &[&str], layers: Vec<Tar>) -> std::io::Result<FileConflicts> {
    let merged: Vec<PathBuf> = merged.iter().map(PathBuf::from).collect();
    layers_onto(UnpackRoot::open(root, merged)?, layers)
}

fn layers_onto(below: UnpackRoot, layers: Vec<Tar>) -> std::io::Result<FileConflicts> {
    let mut conflicts = FileConflicts::default();
    for tar in layers {
        let mut counter = HiddenFileCounter::new(MountsBelow::default());
        conflicts = untar(
            members_of(reader(&tar.end(), 700)),
            &below,
            &mut counter,
            true,
            &DownloadState::default(),
            &StageClocks::start(),
        )?
        .conflicts;
    }
    Ok(conflicts)
}

/// Returns all paths, with the content of files.
fn listing(root: &Path) -> String {
    let lines = look(root, false).into_iter().filter(|(path, _)| path != Path::new("")).map(|(path, seen)| {
        let content = seen.content.map(|content| format!("={}", String::from_utf8_lossy(&content)));
        format!("{}{}", path.display(), content.unwrap_or_default())
    });
    lines.collect::<Vec<_>>().join(" ")
}

fn base() -> Tar {
    Tar::new()
        .file("etc/a", b"1")
        .file("etc/b", b"1")
        .file("etc/d/x", b"1")
        .file("etc/d/sub/y", b"1")
        .symlink("lib", "etc")
        .symlink("dangling", "nowhere")
}

#[test]
fn whiteouts_remove_files_of_earlier_layers() {
    let all = "dangling etc etc/a=1 etc/b=1 etc/d etc/d/sub etc/d/sub/y=1 etc/d/x=1 lib";
    let cases: Vec<(Tar, &str)> = vec![
        (Tar::new().file("etc/.wh.a", b""), "dangling etc etc/b=1 etc/d etc/d/sub etc/d/sub/y=1 etc/d/x=1 lib"),
        (Tar::new().file("etc/.wh.d", b""), "dangling etc etc/a=1 etc/b=1 lib"),
        (Tar::new().file(".wh.lib", b""), "dangling etc etc/a=1 etc/b=1 etc/d etc/d/sub etc/d/sub/y=1 etc/d/x=1"),
        (Tar::new().file("./.wh.dangling", b""), &all["dangling ".len()..]),
        // The path leads through a symlink of the image, which is resolved as in the installed system.
        (Tar::new().file("lib/.wh.d", b""), "dangling etc etc/a=1 etc/b=1 lib"),
        (Tar::new().file("etc/d/.wh..wh..opq", b""), "dangling etc etc/a=1 etc/b=1 etc/d lib"),
        (Tar::new().file(".wh..wh..opq", b"").file("new", b"2"), "new=2"),
        (Tar::new().file("new", b"2").file(".wh..wh..opq", b""), "new=2"),
        // Files of the same layer are not removed, whether they precede or follow the whiteout.
        (
            Tar::new().file("etc/d/new", b"2").file("etc/d/sub/z", b"2").file("etc/d/.wh..wh..opq", b""),
            "dangling etc etc/a=1 etc/b=1 etc/d etc/d/new=2 etc/d/sub etc/d/sub/z=2 lib",
        ),
        (
            Tar::new().directory("etc/d/sub").file("etc/d/.wh..wh..opq", b"").file("etc/d/x", b"2"),
            "dangling etc etc/a=1 etc/b=1 etc/d etc/d/sub etc/d/x=2 lib",
        ),
        (Tar::new().file("etc/d/x", b"2").file("etc/.wh.d", b""), "dangling etc etc/a=1 etc/b=1 etc/d etc/d/x=2 lib"),
        (Tar::new().file("etc/a", b"2").file("etc/.wh.a", b""), &all.replace("etc/a=1", "etc/a=2")),
        (Tar::new().file("etc/.wh.a", b"").file("etc/a", b"2"), &all.replace("etc/a=1", "etc/a=2")),
        // Whiteouts of files that do not exist neither remove nor create anything.
        (Tar::new().file("etc/.wh.missing", b"").file("no/such/.wh.x", b"").file("etc/a/.wh.x", b""), all),
        (Tar::new().directory(".wh..wh.plnk").file("etc/.wh..wh.aufs", b"x"), all),
        // A file replaces a directory, and a directory replaces a file.
        (Tar::new().file("etc/d", b"2").directory("etc/a"), "dangling etc etc/a etc/b=1 etc/d=2 lib"),
        (Tar::new().symlink("etc/d", "b"), "dangling etc etc/a=1 etc/b=1 etc/d lib"),
    ]
    .into_iter()
    .map(|(tar, left)| (tar, Box::leak(left.to_owned().into_boxed_str()) as &str))
    .collect();
    for (number, (tar, left)) in cases.into_iter().enumerate() {
        let root = tempfile::tempdir().unwrap();
        let conflicts = layers(root.path(), &[], vec![base(), tar]).unwrap();
        assert_eq!((listing(root.path()).as_str(), conflicts.files), (left, 0), "case {number}");
    }
}

#[test]
fn whiteouts_do_not_leave_the_root() {
    let directory = tempfile::tempdir().unwrap();
    let (root, outside) = (directory.path().join("root"), directory.path().join("outside"));
    for path in [&root, &outside] {
        fs::create_dir_all(path.join("deep")).unwrap();
        fs::write(path.join("deep/secret"), "secret").unwrap();
    }
    symlink(&outside, root.join("out")).unwrap();
    symlink("../outside", root.join("up")).unwrap();
    for path in ["out/.wh.deep", "out/.wh..wh..opq", "up/.wh.deep", "up/.wh..wh..opq", "/out/deep/.wh.secret"] {
        layers(&root, &[], vec![Tar::new().file(path, b"").file("a", b"")]).unwrap();
    }
    // The symlink is removed, but not its target.
    layers(&root, &[], vec![Tar::new().file(".wh.out", b"")]).unwrap();
    assert_eq!(listing(&root), "a= deep deep/secret=secret up");
    assert_eq!(listing(&outside), "deep deep/secret=secret");
    for path in ["deep/.wh.", "deep/.wh..", "deep/.wh...", ".wh...", "deep/../.wh.deep", "../.wh.outside"] {
        let error = layers(&root, &[], vec![Tar::new().file(path, b"")]).unwrap_err().to_string();
        assert!(error.contains("`..`"), "{path}: {error}");
    }
    assert_eq!(listing(directory.path()).matches("secret=secret").count(), 2);
}

#[test]
fn preserved_filesystem_loses_nothing_to_a_whiteout() {
    for (path, conflicts) in [
        ("var/lib/.wh.dpkg", 1),
        ("var/lib/.wh..wh..opq", 1),
        ("var/lib/dpkg/.wh.status", 1),
        ("var/.wh.lib", 1),
        (".wh.var", 1),
        (".wh..wh..opq", 1),
        ("var/lib/.wh.missing", 0),
        ("var/lib/away/.wh.secret", 0),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        fs::create_dir_all(root.join("var/lib/dpkg")).unwrap();
        fs::create_dir_all(root.join("var/log")).unwrap();
        fs::write(root.join("var/lib/dpkg/status"), "mine").unwrap();
        fs::write(directory.path().join("secret"), "secret").unwrap();
        symlink(directory.path(), root.join("var/lib/away")).unwrap();
        let tar = Tar::new().file(path, b"").file("after", b"");
        let counted = layers(&root, &["var/lib"], vec![tar]).unwrap();
        assert_eq!(counted.files, conflicts, "{path}");
        let listing = listing(directory.path());
        assert!(listing.contains("root/var/lib/away root/var/lib/dpkg root/var/lib/dpkg/status=mine"), "{listing}");
        assert!(listing.contains("root/after=") && listing.ends_with("secret=secret"), "{listing}");
    }
}

#[test]
fn whiteout_removes_only_files_of_the_burn() {
    let first = || Tar::new().directory("etc").file("etc/ours", b"1").file("opt/ours/a", b"1").file("swap", b"1");
    let mine = "empty etc etc/mine=mine etc/swap etc/swap/mine=mine mine=mine";
    for (second, left) in [
        (Tar::new().file(".wh..wh..opq", b"").file("new", b"2"), format!("{mine} new=2")),
        (Tar::new().file("etc/.wh..wh..opq", b""), format!("{mine} opt opt/ours opt/ours/a=1 swap=1")),
        (Tar::new().file(".wh.etc", b""), format!("{mine} opt opt/ours opt/ours/a=1 swap=1")),
        (Tar::new().file(".wh.mine", b"").file(".wh.empty", b""), {
            let etc = "empty etc etc/mine=mine etc/ours=1 etc/swap etc/swap/mine=mine";
            format!("{etc} mine=mine opt opt/ours opt/ours/a=1 swap=1")
        }),
        // If an earlier layer of the burn has replaced another owner's file, the new file belongs to the burn.
        (Tar::new().file(".wh.swap", b"").file("etc/.wh.ours", b""), format!("{mine} opt opt/ours opt/ours/a=1")),
    ] {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("etc/swap")).unwrap();
        fs::create_dir(root.path().join("empty")).unwrap();
        for path in ["mine", "etc/mine", "etc/swap/mine", "swap"] {
            fs::write(root.path().join(path), "mine").unwrap();
        }
        let below = UnpackRoot::open(root.path(), Vec::new()).unwrap().among_others();
        layers_onto(below, vec![first(), second]).unwrap();
        assert_eq!(listing(root.path()), left);
    }
    // A file does not replace a directory that contains files of another owner.
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("etc/d")).unwrap();
    fs::write(root.path().join("etc/d/mine"), "mine").unwrap();
    let below = UnpackRoot::open(root.path(), Vec::new()).unwrap().among_others();
    let error = layers_onto(below, vec![Tar::new().file("etc/d", b"1")]).unwrap_err().to_string();
    assert!(error.contains("a non-empty directory exists at this path"), "{error}");
    assert_eq!(listing(root.path()), "etc etc/d etc/d/mine=mine");
}

#[test]
fn whiteout_is_a_file_without_layers() {
    let root = tempfile::tempdir().unwrap();
    let tar = Tar::new().file("a", b"1").file(".wh.a", b"2").file(".wh..wh..opq", b"").end();
    unpack_into(root.path(), &tar, 99, false).unwrap();
    assert_eq!(listing(root.path()), ".wh..wh..opq= .wh.a=2 a=1");
}

#[test]
#[ignore = "needs root"]
fn root_whiteouts_do_not_enter_mount_points() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    fs::create_dir_all(root.join("srv/data")).unwrap();
    fs::create_dir_all(root.join("boot/efi")).unwrap();
    fs::create_dir_all(root.join("lost+found")).unwrap();
    fs::create_dir_all(directory.path().join("kept")).unwrap();
    fs::create_dir_all(directory.path().join("empty/lost+found")).unwrap();
    fs::write(directory.path().join("kept/precious"), "precious").unwrap();
    fs::write(root.join("srv/stale"), "stale").unwrap();
    let mounts = [("kept", "srv/data"), ("empty", "boot/efi")];
    for (from, to) in mounts {
        let bind = nix::mount::MsFlags::MS_BIND;
        nix::mount::mount(Some(&directory.path().join(from)), &root.join(to), None::<&str>, bind, None::<&str>)
            .unwrap();
    }
    let conflicts = layers(&root, &[], vec![Tar::new().file(".wh..wh..opq", b"").file("new", b"")]);
    let left = listing(&root);
    mounts.iter().for_each(|(_, to)| unmount_strictly(&root.join(to)).unwrap());
    // An empty filesystem is not reported as a conflict.
    assert_eq!(conflicts.unwrap(), FileConflicts { files: 1, first: vec!["/.wh..wh..opq".into()] });
    assert_eq!(left, "boot boot/efi boot/efi/lost+found lost+found new= srv srv/data srv/data/precious=precious");
}
