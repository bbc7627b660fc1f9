//! Contents of mounted filesystems: used space and install markers.

use super::device_users::DeviceUsers;
use crate::safe_open::{self, PathRestriction};
use common::bounded_read::read_whole;
use model::device_name::DevicePath;
use model::install_marker::{self, InstallMarker};
use model::inventory::{DeviceUse, FilesystemContents, Inventory, MARKER_BYTES, SparseFile};
use model::{k8s_volume, storage_graph};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{SFlag, fstatat};
use std::fs::File;
use std::io;
use std::path::Path;
use uuid::Uuid;

/// Maximum number of entries that are read from a directory. A Kubernetes node has only a few volumes.
const MAXIMUM_DIRECTORY_ENTRIES: usize = 4096;
/// Maximum size of an fstab that is read, in bytes.
const FSTAB_BYTES: u64 = 16 << 10;

/// Returns the contents of every mounted filesystem whose root directory is visible at a mount point.
pub(super) fn read_filesystems(users: &DeviceUsers, inventory: &Inventory) -> Vec<FilesystemContents> {
    let mut found = Vec::new();
    for (device, unit) in storage_graph::all_units(inventory) {
        let points = unit.uses().iter().filter_map(|usage| match usage {
            DeviceUse::Mounted(path) if users.shows_root(path) => Some(path),
            _ => None,
        });
        // Only the first mount point is read, because all mounts of a filesystem show the same content.
        let Some(point) = points.into_iter().next() else { continue };
        match read_filesystem(device, Path::new(point)) {
            Ok(filesystem) => found.push(filesystem),
            Err(error) => tracing::warn!(%device, "cannot inspect the filesystem mounted at {point}: {error}"),
        }
    }
    found
}

/// Returns the contents of the filesystem mounted at `point`.
///
/// # Errors
/// Returns an error if the mount point cannot be opened, or the filesystem does not respond.
pub(crate) fn read_filesystem(device: &DevicePath, point: &Path) -> io::Result<FilesystemContents> {
    let root = File::open(point)?;
    let space = nix::sys::statvfs::fstatvfs(&root)?;
    let bytes = |blocks: u64| blocks.saturating_mul(space.fragment_size());
    let (marker, unreadable_marker) = match read_marker(&root) {
        Ok(marker) => (marker, None),
        Err(error) => {
            tracing::warn!(%device, "cannot read {}: {error}", install_marker::PATH);
            (None, Some(error.to_string()))
        }
    };
    Ok(FilesystemContents {
        device: device.clone(),
        size_bytes: bytes(space.blocks()),
        used_bytes: bytes(space.blocks().saturating_sub(space.blocks_free())),
        marker,
        unreadable_marker,
        fstab: read_fstab(&root),
        sparse: find_sparse_files(&root),
    })
}

/// Returns the files of sparse volumes. The installed system may mount this filesystem at `/`, or at any other
/// directory in the path of the sparse volumes, such as `/var`. Therefore the function searches each path at which the
/// volumes' directory may be in the filesystem. Symlinks are not followed.
fn find_sparse_files(root: &File) -> Vec<SparseFile> {
    let folders =
        std::iter::successors(Some(k8s_volume::SPARSE.trim_start_matches('/')), |path| match path.split_once('/') {
            Some((_, rest)) => Some(rest),
            None => (!path.is_empty() && *path != ".").then_some("."),
        });
    folders.flat_map(|folder| list_sparse_files(root, folder).unwrap_or_default()).collect()
}

fn list_sparse_files(root: &File, folder: &str) -> nix::Result<Vec<SparseFile>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NONBLOCK;
    let mut folder = Dir::from_fd(safe_open::open_beneath(root, folder, flags, PathRestriction::SameFilesystem)?)?;
    let names: Vec<String> = folder
        .iter()
        .take(MAXIMUM_DIRECTORY_ENTRIES)
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str().ok()?.to_owned()))
        .collect();
    let file = |name: String| {
        let uid = Uuid::try_parse(&name).ok().filter(|uid| uid.to_string() == name)?;
        let stat = fstatat(&folder, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
        let is_file = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG;
        Some(SparseFile { uid, size_bytes: u64::try_from(stat.st_size).ok().filter(|_| is_file)? })
    };
    Ok(names.into_iter().filter_map(file).collect())
}

/// Reads the fstab. Returns `None` if the file is missing, empty, larger than [`FSTAB_BYTES`], or not UTF-8 text.
fn read_fstab(root: &File) -> Option<String> {
    let file = open_regular_file(root, "etc/fstab").ok()??;
    let text = String::from_utf8(read_whole(file, FSTAB_BYTES).ok()??).ok()?;
    (!text.is_empty()).then_some(text)
}

/// Reads the install marker of a filesystem; `None` if it contains no marker.
fn read_marker(root: &File) -> io::Result<Option<InstallMarker>> {
    let Some(file) = open_regular_file(root, install_marker::PATH.trim_start_matches('/'))? else { return Ok(None) };
    let text = read_whole(file, MARKER_BYTES as u64)?
        .ok_or_else(|| io::Error::other("the install marker is larger than 2 MiB"))?;
    Ok(Some(serde_json::from_slice(&text)?))
}

/// Opens a file; `None` if it does not exist. The filesystem may be from a previous owner. Therefore a symlink must not
/// lead out of the filesystem, and opening a special file must not block.
fn open_regular_file(root: &File, path: &str) -> io::Result<Option<File>> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = match safe_open::open_beneath(root, path, flags, PathRestriction::SameFilesystem) {
        Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
        file => File::from(file?),
    };
    match file.metadata()?.is_file() {
        true => Ok(Some(file)),
        false => Err(io::Error::other(format!("/{path} is not a regular file"))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulated_machine::FakeMachine;
    use super::super::{ProbeDepth, read_inventory_at};
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn written() -> InstallMarker {
        InstallMarker {
            machine: "m".into(),
            allocation: "a".into(),
            image: "debian".into(),
            ..InstallMarker::default()
        }
    }

    /// Returns a machine with an install marker of this content.
    fn tree(content: &[u8]) -> FakeMachine {
        let tree = FakeMachine::new();
        tree.write("root/etc/metal/drophammer.json", content);
        tree
    }

    fn found(tree: &FakeMachine) -> Option<InstallMarker> {
        inside(tree).marker
    }

    fn inside(tree: &FakeMachine) -> FilesystemContents {
        read_filesystem(&"/dev/sda2".into(), &tree.path("root")).unwrap()
    }

    #[test]
    fn sizes_and_marker_are_read() {
        let tree = tree(&serde_json::to_vec(&written()).unwrap());
        let found = read_filesystem(&"/dev/sda2".into(), &tree.path("root")).unwrap();
        assert_eq!((found.device.as_str(), found.marker), ("/dev/sda2", Some(written())));
        assert!(found.size_bytes > 0 && found.used_bytes <= found.size_bytes);
        assert!(read_filesystem(&"/dev/sda2".into(), &tree.path("nowhere")).is_err());
    }

    #[test]
    fn invalid_marker_is_unreadable() {
        let whole = serde_json::to_vec(&written()).unwrap();
        let long = [whole.clone(), vec![b' '; MARKER_BYTES]].concat();
        for content in [&b""[..], b"{}", b"no JSON", b"\xff\xfe", b"[]", &whole[..whole.len() - 1], &long] {
            let inside = inside(&tree(content));
            let text = String::from_utf8_lossy(&content[..content.len().min(40)]).into_owned();
            // The file exists, so the filesystem may contain an installation.
            assert!(inside.marker.is_none() && inside.unreadable_marker.is_some(), "{text}: {inside:?}");
        }
        let nothing = FakeMachine::new();
        nothing.write("root/etc/fstab", "");
        assert_eq!((found(&nothing), inside(&nothing).unreadable_marker), (None, None));
        nothing.write("root/etc/metal", "a file");
        assert_eq!((found(&nothing), inside(&nothing).unreadable_marker), (None, None));
    }

    #[test]
    fn symlinks_and_special_files_are_not_followed() {
        let outside = tree(&serde_json::to_vec(&written()).unwrap());
        let file = outside.path("root/etc/metal/drophammer.json");
        let cases: [(&str, std::path::PathBuf); 4] = [
            ("root/etc/metal/drophammer.json", file),
            ("root/etc/metal/drophammer.json", "other.json".into()),
            ("root/etc/metal", outside.path("root/etc/metal")),
            ("root/etc", "../../../../etc".into()),
        ];
        for (link, target) in cases {
            let tree = FakeMachine::new();
            tree.write("root/etc2/metal/other.json", serde_json::to_vec(&written()).unwrap());
            tree.link(link, &target);
            assert_eq!(found(&tree), None, "{link} -> {}", target.display());
        }
        let tree = FakeMachine::new();
        tree.write("root/etc/metal/x", "");
        nix::unistd::mkfifo(&tree.path("root/etc/metal/drophammer.json"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert_eq!(found(&tree), None);
        fs::remove_file(tree.path("root/etc/metal/drophammer.json")).unwrap();
        symlink("/dev/zero", tree.path("root/etc/metal/drophammer.json")).unwrap();
        assert_eq!(found(&tree), None);
    }

    #[test]
    fn sparse_volume_files_are_found_at_every_mount_depth() {
        let uid = "9474cda7-0dbe-40fc-9842-3cb0404a725a";
        for folder in ["var/lib/metalk8s/storage/sparse", "metalk8s/storage/sparse", "storage/sparse", "sparse", "."] {
            let tree = FakeMachine::new();
            tree.write(&format!("root/{folder}/{uid}"), "twelve bytes");
            tree.write(&format!("root/{folder}/notes"), "no volume");
            tree.link(&format!("root/{folder}/1d78810a-3787-4ca4-b712-50a269e42560"), Path::new(uid));
            let found = read_filesystem(&"/dev/sda2".into(), &tree.path("root")).unwrap().sparse;
            let found: Vec<(String, u64)> = found.iter().map(|file| (file.uid.to_string(), file.size_bytes)).collect();
            assert_eq!(found, [(uid.to_owned(), 12)], "{folder}");
        }
    }

    #[test]
    fn only_mounts_of_the_filesystem_root_are_inspected() {
        let tree = tree(&serde_json::to_vec(&written()).unwrap());
        tree.disk("sda", "x", 16 << 20);
        let root = tree.path("root");
        let root = root.display();
        let found = |mountinfo: String| {
            tree.write("proc/self/mountinfo", mountinfo);
            read_inventory_at(&tree.roots(), ProbeDepth::Deep).unwrap().filesystems
        };
        let [filesystem] = &found(format!("28 1 8:0 / {root} rw - ext4 /dev/sda rw\n"))[..] else { panic!() };
        assert_eq!((filesystem.device.as_str(), filesystem.marker.as_ref()), ("/dev/sda", Some(&written())));
        assert_eq!(found(format!("28 1 8:0 /some/dir {root} rw - ext4 /dev/sda rw\n")), []);
        let over = format!("28 1 8:0 / {root} rw - ext4 /dev/sda rw\n29 1 0:9 / {root} rw - tmpfs none rw\n");
        assert_eq!(found(over), [], "another filesystem is mounted over it");
        assert_eq!(found("28 1 8:0 / /no/such/place rw - ext4 /dev/sda rw\n".into()), []);
    }

    #[test]
    fn fstab_is_read_unless_too_large_or_a_symlink() {
        let tree = FakeMachine::new();
        tree.write("root/etc/fstab", b"/dev/sda1 / ext4\n");
        assert_eq!(inside(&tree).fstab.as_deref(), Some("/dev/sda1 / ext4\n"));
        for content in [&vec![b'#'; FSTAB_BYTES as usize + 1][..], b"\xff"] {
            tree.write("root/etc/fstab", content);
            assert_eq!(inside(&tree).fstab, None);
        }
        fs::remove_file(tree.path("root/etc/fstab")).unwrap();
        symlink("/etc/hostname", tree.path("root/etc/fstab")).unwrap();
        assert_eq!(inside(&tree).fstab, None);
    }
}
