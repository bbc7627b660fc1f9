//! Whiteouts of OCI image layers: files whose names say what of the layers below is to go.
//!
//! <https://github.com/opencontainers/image-spec/blob/main/layer.md#whiteouts>

use super::place::{Place, Root};
use super::sweep::Entry;
use nix::errno::Errno;
use std::collections::HashSet;
use std::ffi::{CString, OsStr, OsString};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const PREFIX: &[u8] = b".wh.";

/// What one layer brings is remembered up to here, about 1.8 million names. The table is a power of two and at most seven
/// eighths full: with these it takes 19 MiB, and 28 while it grows to that. The next name would make it 38 MiB, and 57.
const MOST_BROUGHT: usize = (2 << 20) / 8 * 7;

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
    /// Of directory (device and inode number) and name; eight bytes each, as there may be a million. The key is random:
    /// nobody can make two that are the same.
    brought: HashSet<u64>,
    key: RandomState,
}

impl Layer {
    /// # Errors
    /// It brings more than can be remembered.
    pub fn brings(&mut self, place: &Place) -> io::Result<()> {
        let name = CString::new(place.name.as_bytes())?;
        self.remember(self.key.hash_one((place.parent_identity(), name.as_c_str())))
    }

    fn remember(&mut self, entry: u64) -> io::Result<()> {
        if self.brought.len() < MOST_BROUGHT {
            self.brought.insert(entry);
            return Ok(());
        }
        // To insert it again would make room for one more first.
        if self.brought.contains(&entry) {
            return Ok(());
        }
        let text = format!("to remember more than {MOST_BROUGHT} names of one layer takes more than 32 MiB");
        Err(io::Error::new(io::ErrorKind::InvalidData, format!("{text}: cut it into several layers")))
    }

    fn has_brought(&self, entry: Entry) -> bool {
        self.brought.contains(&self.key.hash_one(entry))
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
        place.sweep(&place.name, &|entry| entry != own && self.has_brought(entry))?;
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
        let stays = |entry: Entry| self.has_brought(entry) || of_root && entry == lost_found;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_layer_brings_takes_so_much_memory_and_no_more() {
        let mut layer = Layer::default();
        for entry in 0..MOST_BROUGHT as u64 {
            layer.remember(entry).unwrap();
        }
        // The same one again takes no more.
        layer.remember(7).unwrap();
        let error = layer.remember(u64::MAX).unwrap_err().to_string();
        let text =
            "to remember more than 1835008 names of one layer takes more than 32 MiB: cut it into several layers";
        assert_eq!((error.as_str(), layer.brought.len()), (text, MOST_BROUGHT));
        // Eight bytes, and one of the table's own.
        assert!(layer.brought.capacity() * 8 / 7 * 9 <= 20 << 20, "{}", layer.brought.capacity());
    }
}
