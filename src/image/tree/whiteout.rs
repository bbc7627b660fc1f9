//! Whiteouts of OCI image layers: files whose names say what of the layers below is to go.
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

/// What a whiteout says.
#[derive(Debug, PartialEq, Eq)]
pub enum Whiteout {
    /// This name of its directory goes.
    Name(OsString),
    /// Everything in its directory goes.
    Opaque,
    /// Something of the tool that made the layer.
    Nothing,
}

impl Whiteout {
    /// `None` for all other members.
    ///
    /// # Errors
    /// It has the form of a whiteout, but what it names is no name.
    pub fn of(path: &Path) -> io::Result<Option<Whiteout>> {
        let name = path.file_name().unwrap_or_default().as_bytes();
        match name.strip_prefix(PREFIX) {
            None => Ok(None),
            Some(b"" | b"." | b"..") => {
                Err(io::Error::new(io::ErrorKind::InvalidInput, "a whiteout of no name, `.` or `..` is refused"))
            }
            Some(b".wh..opq") => Ok(Some(Whiteout::Opaque)),
            Some(of_the_tool) if of_the_tool.starts_with(PREFIX) => Ok(Some(Whiteout::Nothing)),
            Some(name) => Ok(Some(Whiteout::Name(OsStr::from_bytes(name).to_owned()))),
        }
    }
}

/// What one layer brings: its whiteouts are only for what lies below it, wherever they stand in the tar.
#[derive(Default)]
pub struct Layer {
    brought: Names,
}

impl Layer {
    /// # Errors
    /// It brings more than can be remembered.
    pub fn brings(&mut self, place: &Place) -> io::Result<()> {
        let name = CString::new(place.name.as_bytes())?;
        self.brought.insert((place.parent_identity(), &name))
    }

    /// In a layer something else may stand for a directory with its content.
    ///
    /// # Errors
    /// Something cannot be removed.
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

    /// Does what the whiteout at `path` says. `false` where something of a kept filesystem or behind a mount point is in
    /// the way, which stays.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub fn remove(&self, root: &Root, path: &Path, whiteout: &Whiteout) -> io::Result<bool> {
        let place = match root.existing_place(path) {
            // Nothing is there that could go.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(true);
            }
            other => other?,
        };
        // The filesystem's own.
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
