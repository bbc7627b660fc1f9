//! Unpacks images with other tools.

use super::*;

fn run(program: &str, args: &[&str], directory: &Path) -> process::Output {
    let output = process::Command::new(program).args(args).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
#[ignore = "needs root"]
fn root_packed_image_is_readable_by_gnu_tar_and_bsdtar() {
    let (zoo, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    create_all_file_types(zoo.path());
    let _socket = std::os::unix::net::UnixListener::bind(zoo.path().join("socket")).unwrap();
    let image = out.path().join("image.tar.zst");
    pack_image(&with_key(options(zoo.path(), &image), "one.key")).unwrap();
    fs::remove_file(zoo.path().join("socket")).unwrap();
    // The root directory is not compared, because removing the socket has changed the mtime of this directory.
    let was = look(zoo.path(), true);
    let seen_without_root_time = |root: &Path| {
        let mut seen = look(root, true);
        let top = seen.remove(Path::new(""));
        assert!(top.is_some());
        seen
    };
    let was_below: std::collections::BTreeMap<_, _> =
        was.into_iter().filter(|(path, _)| path != Path::new("")).collect();
    run("zstd", &["-q", "-d", "image.tar.zst"], out.path());
    for extract in [
        &["tar", "-x", "--xattrs", "--xattrs-include=*", "--numeric-owner", "--same-owner", "-p", "-f"][..],
        &["bsdtar", "-x", "--xattrs", "--numeric-owner", "--same-owner", "-p", "-f"],
    ] {
        let root = tempfile::tempdir().unwrap();
        let tar = out.path().join("image.tar");
        run(extract[0], &[&extract[1..], &[tar.to_str().unwrap()]].concat(), root.path());
        assert_same(&was_below, &seen_without_root_time(root.path()), extract[0]);
    }
    let root = tempfile::tempdir().unwrap();
    burn(&serve(out.path()), "one.pub", root.path()).unwrap();
    assert_same(&was_below, &seen_without_root_time(root.path()), "burn");
    for path in ["hole-first", "hole-last", "all-hole", "many"] {
        let blocks = |root: &Path| {
            std::os::unix::fs::MetadataExt::blocks(&fs::metadata(root.join("sparse").join(path)).unwrap())
        };
        assert!(blocks(root.path()) <= blocks(zoo.path()) + 8, "{path} has lost its holes");
    }
    run("sha256sum", &["-c", "image.tar.zst.sha256"], out.path());
    for suffix in [".manifest", ".sha256"] {
        let key = Path::new(TRUSTED_KEYS_DIRECTORY).join("one.pub");
        run("minisign", &["-V", "-p", key.to_str().unwrap(), "-m", &format!("image.tar.zst{suffix}")], out.path());
    }
}

#[test]
#[ignore = "needs root"]
fn root_mounted_filesystem_is_refused_in_an_image() {
    let (tree, out) = (small_tree(&NAMES), tempfile::tempdir().unwrap());
    let mounted = tree.path().join("usr/share");
    let none = None::<&str>;
    nix::mount::mount(Some("none"), &mounted, Some("tmpfs"), nix::mount::MsFlags::empty(), none).unwrap();
    let result = pack_image(&options(tree.path(), &out.path().join("image")));
    linux::storage::mount::unmount_strictly(&mounted).unwrap();
    let error = result.unwrap_err().to_string();
    assert!(error.contains("usr/share: another filesystem is mounted at this path"), "{error}");
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
}

/// Named `root_` because only `scripts/test loop` provides the tools that this test runs.
#[test]
#[ignore = "needs root"]
fn root_qcow2_is_packed_as_its_raw_disk() {
    let directory = tempfile::tempdir().unwrap();
    let raw = directory.path().join("disk.raw");
    let file = File::create(&raw).unwrap();
    file.write_all_at(&noise(100_000), 3 << 20).unwrap();
    file.set_len(10 << 20).unwrap();
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", "disk.raw", "disk.qcow2"], directory.path());
    run(
        "qemu-img",
        &["create", "-q", "-f", "qcow2", "-b", "disk.qcow2", "-F", "qcow2", "over.qcow2"],
        directory.path(),
    );
    let out = tempfile::tempdir().unwrap();
    let image = out.path().join("disk.raw.zst");
    pack_image(&options(&directory.path().join("disk.qcow2"), &image)).unwrap();
    assert!(zstd::decode_all(File::open(&image).unwrap()).unwrap() == fs::read(&raw).unwrap());
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 3);
    let error = pack_image(&options(&directory.path().join("over.qcow2"), &image)).unwrap_err().to_string();
    assert!(error.contains("depends on another file"), "{error}");
}
