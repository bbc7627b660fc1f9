//! Preserved filesystems below the root: changes that a merged tar may make, and files that it must not change.

use super::*;
use linux::storage::mount::MountStack;
use linux::storage::test_loop_device::TestLoopDevice;
use model::install_report::HiddenFiles;
use operations::{MakeFilesystem, MountFilesystem};
use std::os::unix::fs::{PermissionsExt, symlink};

fn unpack(
    tar: Tar,
    root: &Path,
    hidden: &[&str],
    merged: &[&str],
) -> (std::io::Result<UnpackResult>, Vec<HiddenFiles>) {
    let owned = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
    let (hidden, merged) = (owned(hidden), owned(merged));
    let mut counter = HiddenFileCounter::new(MountsBelow { hidden: &hidden, merged: &merged, fresh: &[] });
    let root = UnpackRoot::open(root, relative_paths(&merged)).unwrap();
    let unpacked = untar(
        members_of(reader(&tar.end(), 700)),
        &root,
        &mut counter,
        false,
        &DownloadState::default(),
        &StageClocks::start(),
    );
    (unpacked, counter.finish())
}

/// Creates a root with a preserved filesystem at `/var/lib`, and a directory outside of the root. Symlinks on the
/// preserved filesystem point to the directory outside.
pub(crate) fn preserved_tree(directory: &Path) -> PathBuf {
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

pub(crate) fn text(path: PathBuf) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn image_files_replace_existing_ones_and_others_remain() {
    let directory = tempfile::tempdir().unwrap();
    let root = preserved_tree(directory.path());
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
    assert_eq!((unpacked.entries, unpacked.conflicts), (9, FileConflicts::default()));
    assert_eq!(text(lib.join("dpkg/status")), "new status");
    assert_eq!(lib.join("dpkg").metadata().unwrap().permissions().mode() & 0o7777, 0o711);
    assert_eq!(text(lib.join("secret-link")), "a file now");
    assert_eq!(text(lib.join("second")), "new");
    assert_eq!(fs::read_link(lib.join("was-file/link")).unwrap(), Path::new("/etc"));
    // Files are never written through a hard link or a symlink.
    assert_eq!([text(lib.join("linked")), text(lib.join("other-name"))], ["the image's", "linked"]);
    assert_eq!(text(directory.path().join("outside/secret")), "secret");
    // Files that the image does not contain are unchanged.
    assert_eq!([text(lib.join("dpkg/local")), text(lib.join("docker/volumes/data"))], ["mine", "precious"]);
    assert!(lib.join("empty").is_dir() && lib.join("away").is_symlink());
}

#[test]
fn preserved_directory_is_not_replaced_by_other_types() {
    let directory = tempfile::tempdir().unwrap();
    let root = preserved_tree(directory.path());
    let tar = Tar::new()
        .file("var/lib/docker", b"a file")
        .symlink("var/lib/empty", "/srv")
        .raw("var/lib/dpkg", b'6', b"", |_| ())
        .file("var/lib/after", b"the next member is read correctly")
        .hard_link("var/lib/again", "var/lib/docker")
        .hard_link("var/lib/dpkg", "var/lib/after");
    let conflicts = unpack(tar, &root, &[], &["/var/lib"]).0.unwrap().conflicts;
    let first = ["docker", "empty", "dpkg", "again", "dpkg"].map(|name| format!("/var/lib/{name}"));
    assert_eq!(conflicts, FileConflicts { files: 5, first: first.into() });
    assert_eq!(text(root.join("var/lib/docker/volumes/data")), "precious");
    assert_eq!(text(root.join("var/lib/dpkg/status")), "old status");
    assert_eq!(text(root.join("var/lib/after")), "the next member is read correctly");
    assert!(root.join("var/lib/empty").is_dir() && !root.join("var/lib/again").exists());
    // On other filesystems, a later file replaces an empty directory.
    let tar = Tar::new().directory("srv/a").file("srv/a", b"x");
    assert_eq!(unpack(tar, &root, &[], &["/var/lib"]).0.unwrap().conflicts.files, 0);
}

#[test]
fn symlinks_of_a_preserved_filesystem_are_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let root = preserved_tree(directory.path());
    let lib = root.join("var/lib");
    // Symlinks of the image are followed, even to the preserved filesystem.
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
        assert!(error.contains("the path contains `..`"), "{error}");
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
    let counts = [("/var/lib", 4), ("/data", 0)].map(|(path, files)| HiddenFiles { path: path.to_owned(), files });
    assert_eq!(hidden, counts);
}

/// Mounts new filesystems at these mount points below the root.
pub(crate) fn mounted(root: &Path, disks: &[(TestLoopDevice, &str)]) -> MountStack {
    let mut mounts = MountStack::new(root);
    for (disk, path) in disks {
        let uuid = uuid::Uuid::new_v4().to_string();
        let (device, format) = (disk.path().to_owned(), model::layout::FilesystemFormat::Ext4);
        let make =
            MakeFilesystem { device: device.clone(), format, label: None, uuid: uuid.clone(), createoptions: vec![] };
        linux::storage::mkfs::make_filesystem(&make).unwrap();
        fs::remove_file(Path::new("/dev/disk/by-uuid").join(uuid)).unwrap();
        mounts
            .mount_filesystem(&MountFilesystem {
                device,
                path: (*path).into(),
                format,
                options: vec![],
                others: vec![],
            })
            .unwrap();
    }
    mounts
}
