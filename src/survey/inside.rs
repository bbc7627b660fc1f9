//! What the inside of mounted filesystems tells: how full they are, and whether the root of an installation lies there.

use super::holders::Users;
use crate::inventory::{Filesystem, Inventory, Table, Use};
use crate::jail::{self, Way};
use crate::marker::{self, Marker};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// No marker is larger.
const MARKER_LIMIT_BYTES: u64 = 256 << 10;

/// Every filesystem that is mounted and whose own root can be seen.
pub(super) fn read(users: &Users, inventory: &Inventory) -> Vec<Filesystem> {
    let mut found = Vec::new();
    for (device, uses) in units(inventory) {
        let points = uses.iter().filter_map(|usage| match usage {
            Use::Mounted(path) if users.shows_root(path) => Some(path),
            _ => None,
        });
        // All mounts of a filesystem show the same.
        let Some(point) = points.into_iter().next() else { continue };
        match filesystem(device, Path::new(point)) {
            Ok(filesystem) => found.push(filesystem),
            Err(error) => tracing::warn!(device, "what is mounted at {point} cannot be looked into: {error}"),
        }
    }
    found
}

/// All disks, partitions and stacked devices, and who uses them.
fn units(inventory: &Inventory) -> impl Iterator<Item = (&str, &[Use])> {
    let disks = inventory.disks.iter().map(|disk| (disk.device.as_str(), disk.uses.as_slice(), &disk.table));
    let stacked = inventory.stacked.iter().map(|it| (it.device.as_str(), it.uses.as_slice(), &it.table));
    disks.chain(stacked).flat_map(|(device, uses, table)| {
        let partitions = table.iter().flat_map(|table: &Table| &table.partitions);
        std::iter::once((device, uses)).chain(partitions.map(|part| (part.device.as_str(), part.uses.as_slice())))
    })
}

/// What the filesystem of that device tells that is mounted there.
///
/// # Errors
/// The mount point cannot be opened, or the filesystem does not answer.
pub fn filesystem(device: &str, point: &Path) -> io::Result<Filesystem> {
    let root = File::open(point)?;
    let space = nix::sys::statvfs::fstatvfs(&root)?;
    let bytes = |blocks: u64| blocks.saturating_mul(space.fragment_size());
    let marker = marker(&root).unwrap_or_else(|error| {
        tracing::warn!(device, "{} in it is taken for none: {error}", marker::PATH);
        None
    });
    Ok(Filesystem {
        device: device.to_owned(),
        size_bytes: bytes(space.blocks()),
        used_bytes: bytes(space.blocks().saturating_sub(space.blocks_free())),
        marker,
    })
}

/// A previous owner may have written all of this. So no link leads out of the filesystem, and nothing is waited for.
fn marker(root: &File) -> io::Result<Option<Marker>> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = match jail::open(root, marker::PATH.trim_start_matches('/'), flags, Way::SameFilesystem) {
        Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
        file => File::from(file?),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = Vec::new();
    file.take(MARKER_LIMIT_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MARKER_LIMIT_BYTES {
        return Err(io::Error::other("it is larger than 256 KiB"));
    }
    Ok(Some(serde_json::from_slice(&text)?))
}

#[cfg(test)]
mod tests {
    use super::super::fake::Tree;
    use super::super::{Depth, read_at};
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn written() -> Marker {
        Marker { machine: "m".into(), allocation: "a".into(), image: "debian".into(), ..Marker::default() }
    }

    /// A directory with that file at the marker's place.
    fn tree(content: &[u8]) -> Tree {
        let tree = Tree::new();
        tree.write("root/etc/metal/drophammer.json", content);
        tree
    }

    fn found(tree: &Tree) -> Option<Marker> {
        filesystem("/dev/sda2", &tree.path("root")).unwrap().marker
    }

    #[test]
    fn space_and_marker_are_read() {
        let tree = tree(&serde_json::to_vec(&written()).unwrap());
        let found = filesystem("/dev/sda2", &tree.path("root")).unwrap();
        assert_eq!((found.device.as_str(), found.marker), ("/dev/sda2", Some(written())));
        assert!(found.size_bytes > 0 && found.used_bytes <= found.size_bytes);
        assert!(filesystem("/dev/sda2", &tree.path("nowhere")).is_err());
    }

    #[test]
    fn what_is_no_marker_is_none() {
        let whole = serde_json::to_vec(&written()).unwrap();
        let long = [whole.clone(), vec![b' '; 300 << 10]].concat();
        for content in [&b""[..], b"{}", b"no JSON", b"\xff\xfe", b"[]", &whole[..whole.len() - 1], &long] {
            assert_eq!(found(&tree(content)), None, "{}", String::from_utf8_lossy(&content[..content.len().min(40)]));
        }
        let nothing = Tree::new();
        nothing.write("root/etc/fstab", "");
        assert_eq!(found(&nothing), None);
        nothing.write("root/etc/metal", "a file");
        assert_eq!(found(&nothing), None);
    }

    #[test]
    fn nothing_leads_elsewhere_or_makes_us_wait() {
        let outside = tree(&serde_json::to_vec(&written()).unwrap());
        let file = outside.path("root/etc/metal/drophammer.json");
        let cases: [(&str, std::path::PathBuf); 4] = [
            ("root/etc/metal/drophammer.json", file),
            ("root/etc/metal/drophammer.json", "other.json".into()),
            ("root/etc/metal", outside.path("root/etc/metal")),
            ("root/etc", "../../../../etc".into()),
        ];
        for (link, target) in cases {
            let tree = Tree::new();
            tree.write("root/etc2/metal/other.json", serde_json::to_vec(&written()).unwrap());
            tree.link(link, &target);
            assert_eq!(found(&tree), None, "{link} -> {}", target.display());
        }
        let tree = Tree::new();
        tree.write("root/etc/metal/x", "");
        nix::unistd::mkfifo(&tree.path("root/etc/metal/drophammer.json"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert_eq!(found(&tree), None);
        fs::remove_file(tree.path("root/etc/metal/drophammer.json")).unwrap();
        symlink("/dev/zero", tree.path("root/etc/metal/drophammer.json")).unwrap();
        assert_eq!(found(&tree), None);
    }

    #[test]
    fn only_mounts_that_show_the_root_are_looked_into() {
        let tree = tree(&serde_json::to_vec(&written()).unwrap());
        tree.disk("sda", "x", 16 << 20);
        let root = tree.path("root");
        let root = root.display();
        let found = |mountinfo: String| {
            tree.write("proc/self/mountinfo", mountinfo);
            read_at(&tree.roots(), Depth::Deep).unwrap().filesystems
        };
        let [filesystem] = &found(format!("28 1 8:0 / {root} rw - ext4 /dev/sda rw\n"))[..] else { panic!() };
        assert_eq!((filesystem.device.as_str(), filesystem.marker.as_ref()), ("/dev/sda", Some(&written())));
        assert_eq!(found(format!("28 1 8:0 /some/dir {root} rw - ext4 /dev/sda rw\n")), []);
        let over = format!("28 1 8:0 / {root} rw - ext4 /dev/sda rw\n29 1 0:9 / {root} rw - tmpfs none rw\n");
        assert_eq!(found(over), [], "something else lies over it");
        assert_eq!(found("28 1 8:0 / /no/such/place rw - ext4 /dev/sda rw\n".into()), []);
    }
}
