//! Whiteouts of OCI image layers: files whose names specify what is removed from the layers below.
//!
//! <https://github.com/opencontainers/image-spec/blob/main/layer.md#whiteouts>

use super::names::Names;
use super::place::Place;
use super::root::Root;
use super::sweep::Entry;
use nix::errno::Errno;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const PREFIX: &[u8] = b".wh.";

/// Effect of a whiteout.
#[derive(Debug, PartialEq, Eq)]
pub enum Whiteout {
    /// Removes this name from its directory.
    Name(OsString),
    /// Removes everything from its directory.
    Opaque,
    /// Metadata of the tool that made the layer, without effect.
    Nothing,
}

impl Whiteout {
    /// Parses the name of a member; `None` if it is not a whiteout.
    ///
    /// # Errors
    /// Returns an error if it has the form of a whiteout, but with an invalid name.
    pub fn of(path: &Path) -> io::Result<Option<Whiteout>> {
        let name = path.file_name().unwrap_or_default().as_bytes();
        match name.strip_prefix(PREFIX) {
            None => Ok(None),
            Some(b"" | b"." | b"..") => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a whiteout with an empty name, `.` or `..` is \
                                                                 refused",
            )),
            Some(b".wh..opq") => Ok(Some(Whiteout::Opaque)),
            Some(of_the_tool) if of_the_tool.starts_with(PREFIX) => Ok(Some(Whiteout::Nothing)),
            Some(name) => Ok(Some(Whiteout::Name(OsStr::from_bytes(name).to_owned()))),
        }
    }
}

/// Names created by one layer. Its whiteouts only affect the layers below, regardless of their position in the tar.
#[derive(Default)]
pub struct Layer {
    brought: Names,
}

impl Layer {
    /// Records a name of this layer.
    ///
    /// # Errors
    /// Returns an error if there are too many.
    pub fn brings(&mut self, place: &Place) -> io::Result<()> {
        let name = CString::new(place.name.as_bytes())?;
        self.brought.insert((place.parent_identity(), &name))
    }

    /// Removes a directory with its content, so that the layer can replace it by another file.
    ///
    /// # Errors
    /// Returns an error if something cannot be removed.
    pub fn make_room(&self, place: &Place) -> io::Result<()> {
        match place.is_directory() {
            Ok(true) => {}
            Ok(false) | Err(Errno::ENOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let name = CString::new(place.name.as_bytes())?;
        let own: Entry = (place.parent_identity(), &name);
        let root = place.root();
        place.sweep(&place.name, &|entry| root.is_others(entry) || entry != own && self.brought.contains(entry))?;
        Ok(())
    }

    /// Applies the whiteout at `path`. Returns `false` if a part of a preserved filesystem or a mount point is in the
    /// way, which is not removed.
    ///
    /// # Errors
    /// Returns an error if something cannot be removed.
    pub fn remove(&self, root: &Root, path: &Path, whiteout: &Whiteout) -> io::Result<bool> {
        let place = match root.existing_place(path) {
            // There is nothing to remove.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(true);
            }
            other => other?,
        };
        // `lost+found` belongs to the filesystem.
        let of_root = path.parent() == Some(Path::new(""));
        let lost_found: Entry = (place.parent_identity(), c"lost+found");
        let of_the_filesystem = |entry: Entry| of_root && entry == lost_found;
        let stays = |entry: Entry| root.is_others(entry) || self.brought.contains(entry) || of_the_filesystem(entry);
        let in_the_way = match whiteout {
            Whiteout::Nothing => 0,
            Whiteout::Name(name) if place.is_merged() => u64::from(place.has_beside(name)?),
            Whiteout::Opaque if place.is_merged() => 1,
            Whiteout::Name(name) => place.sweep(name, &stays)?,
            Whiteout::Opaque => place.sweep_all(&stays)?,
        };
        Ok(in_the_way == 0)
    }
}
