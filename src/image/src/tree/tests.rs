//! Unpacks valid and invalid tars to a root.

use super::{
    FileConflicts, HiddenFileCounter, MountsBelow, UnpackResult, UnpackRoot, members_of, relative_paths, untar,
};
use crate::pipeline::{DownloadState, StageClocks};
use crate::testing::{Tar, noise, reader};
use linux::storage::mount::unmount_strictly;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

mod acls;
mod disagreements;
mod escapes;
mod faulty_archives;
mod fuzz;
mod fuzz_structure;
mod preserved_files;
mod random_trees;
mod reference_readers;
mod tree_state;
mod whiteouts;

pub(crate) use preserved_files::{mounted, preserved_tree, text};
pub(crate) use tree_state::{FileState, assert_same, look};

/// Unpacks a tar that is received in buffers of `cut` bytes.
fn unpack_into(root: &Path, tar: &[u8], cut: usize, layered: bool) -> std::io::Result<UnpackResult> {
    let mut counter = HiddenFileCounter::new(MountsBelow::default());
    untar(
        members_of(reader(tar, cut)),
        &UnpackRoot::open(root, Vec::new())?,
        &mut counter,
        layered,
        &DownloadState::default(),
        &StageClocks::start(),
    )
}

/// Returns all paths below a root, without the root itself.
pub(crate) fn names(root: &Path) -> Vec<PathBuf> {
    look(root, false).into_keys().filter(|path| path != Path::new("")).collect()
}

#[test]
fn marker_of_another_machine_is_not_unpacked() {
    let root = tempfile::tempdir().unwrap();
    let tar = Tar::new().file("etc/metal/drophammer.json", b"{}").file("./etc/metal/drophammer.json", b"{}");
    unpack_into(root.path(), &tar.file("etc/metal/image.yaml", b"x").end(), 700, false).unwrap();
    let paths: Vec<_> = look(root.path(), false).into_keys().collect();
    assert_eq!(paths, ["", "etc", "etc/metal", "etc/metal/image.yaml"].map(PathBuf::from));
}

#[test]
#[ignore = "needs root"]
fn root_restart_does_not_enter_mount_points() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    let preserved = directory.path().join("kept");
    fs::create_dir_all(root.join("var/lib/kept")).unwrap();
    fs::create_dir_all(&preserved).unwrap();
    fs::write(preserved.join("precious"), "precious").unwrap();
    // A bind mount has the same device number as the directory around it, so the mount point cannot be recognized by
    // its device number.
    let bind = nix::mount::MsFlags::MS_BIND;
    nix::mount::mount(Some(&preserved), &root.join("var/lib/kept"), None::<&str>, bind, None::<&str>).unwrap();
    let below = UnpackRoot::open(&root, Vec::new()).unwrap();
    let fresh = below.record_snapshots(&[]).unwrap();
    fs::create_dir_all(root.join("var/log/old")).unwrap();
    fs::write(root.join("var/lib/stale"), "stale").unwrap();
    let cleared = below.restore_snapshots(&fresh);
    let listing = look(&root, false);
    unmount_strictly(&root.join("var/lib/kept")).unwrap();
    cleared.unwrap();
    let paths: Vec<_> = listing.keys().map(|path| path.to_str().unwrap()).collect();
    assert_eq!(paths, ["", "var", "var/lib", "var/lib/kept", "var/lib/kept/precious"]);
    assert_eq!(fs::read_to_string(preserved.join("precious")).unwrap(), "precious");
}
