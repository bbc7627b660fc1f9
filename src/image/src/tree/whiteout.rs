//! Whiteouts of OCI image layers: members whose names specify which files of lower layers are removed.
//!
//! <https://github.com/opencontainers/image-spec/blob/main/layer.md#whiteouts>

use super::name_set::NameSet;
use super::root_entry::RootEntry;
use super::tree_removal::DirectoryEntry;
use super::unpack_root::UnpackRoot;
use nix::errno::Errno;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const PREFIX: &[u8] = b".wh.";

/// Effect of a whiteout.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Whiteout {
    /// Removal of this name from the directory that contains the whiteout.
    Name(OsString),
    /// Removal of all files of lower layers from the directory that contains the whiteout.
    Opaque,
    /// Metadata of the tool that created the layer; this whiteout has no effect.
    Metadata,
}

impl Whiteout {
    /// Parses the name of a member; returns `None` if the member is not a whiteout.
    ///
    /// # Errors
    /// Returns an error if the member is a whiteout for an invalid name.
    pub(crate) fn parse(path: &Path) -> io::Result<Option<Whiteout>> {
        let name = path.file_name().unwrap_or_default().as_bytes();
        match name.strip_prefix(PREFIX) {
            None => Ok(None),
            Some(b"" | b"." | b"..") => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the whiteout has an empty name, or the name `.` or \
                                                                 `..`",
            )),
            Some(b".wh..opq") => Ok(Some(Whiteout::Opaque)),
            Some(of_the_tool) if of_the_tool.starts_with(PREFIX) => Ok(Some(Whiteout::Metadata)),
            Some(name) => Ok(Some(Whiteout::Name(OsStr::from_bytes(name).to_owned()))),
        }
    }
}

/// Names that one layer has created. The whiteouts of this layer do not remove these names, regardless of the order in
/// the tar.
#[derive(Default)]
pub(crate) struct LayerNames {
    brought: NameSet,
}

impl LayerNames {
    /// Records that this layer has created a name.
    ///
    /// # Errors
    /// Returns an error if the layer creates too many entries.
    pub(crate) fn record_name(&mut self, place: &RootEntry) -> io::Result<()> {
        let name = CString::new(place.name.as_bytes())?;
        self.brought.insert((place.parent_identity(), &name))
    }

    /// If there is a directory at `place`, removes the directory, so that a file of this layer can replace it. The
    /// content of the directory is also removed. If the content includes entries of this layer or of other owners,
    /// these entries and the directory remain.
    ///
    /// # Errors
    /// Returns an error if something cannot be removed.
    pub(crate) fn remove_directory_at(&self, place: &RootEntry) -> io::Result<()> {
        match place.is_directory() {
            Ok(true) => {}
            Ok(false) | Err(Errno::ENOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let name = CString::new(place.name.as_bytes())?;
        let own: DirectoryEntry = (place.parent_identity(), &name);
        let root = place.root();
        place.sweep_sibling(&place.name, &|entry| {
            root.belongs_to_others(entry) || entry != own && self.brought.contains(entry)
        })?;
        Ok(())
    }

    /// Applies the whiteout at `path`. Returns `false` if files were not removed because they are on a preserved
    /// filesystem or contain a mount point.
    ///
    /// # Errors
    /// Returns an error if something cannot be removed.
    pub(crate) fn apply(&self, root: &UnpackRoot, path: &Path, whiteout: &Whiteout) -> io::Result<bool> {
        let place = match root.resolve_existing(path) {
            // The directory of the whiteout does not exist, so there is nothing to remove.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(true);
            }
            other => other?,
        };
        // `lost+found` in the root directory is not removed, because it belongs to the filesystem.
        let of_root = path.parent() == Some(Path::new(""));
        let lost_found: DirectoryEntry = (place.parent_identity(), c"lost+found");
        let of_the_filesystem = |entry: DirectoryEntry| of_root && entry == lost_found;
        let stays = |entry: DirectoryEntry| {
            root.belongs_to_others(entry) || self.brought.contains(entry) || of_the_filesystem(entry)
        };
        let in_the_way = match whiteout {
            Whiteout::Metadata => 0,
            Whiteout::Name(name) if place.is_merged() => u64::from(place.has_sibling(name)?),
            Whiteout::Opaque if place.is_merged() => 1,
            Whiteout::Name(name) => place.sweep_sibling(name, &stays)?,
            Whiteout::Opaque => place.sweep_all(&stays)?,
        };
        Ok(in_the_way == 0)
    }
}
