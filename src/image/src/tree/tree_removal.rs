//! Removes directory contents recursively. Mount points are skipped, because preserved filesystems may be mounted
//! there.

use linux::safe_open::{self, PathRestriction};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

/// Directory entry, identified independently of its path: device and inode number of the directory, and the name.
pub(crate) type DirectoryEntry<'a> = ((u64, u64), &'a CStr);

/// Rules and counters of one removal.
pub(crate) struct TreeRemoval<'a> {
    /// Function that returns `true` for entries that must not be removed. If such an entry is a directory, the function
    /// is called for each entry in this directory, and only entries for which it returns `false` are removed.
    pub stays: &'a dyn Fn(DirectoryEntry) -> bool,
    /// Device and inode numbers of directories that are not entered, even if they are not mount points.
    pub closed: &'a [(u64, u64)],
    /// Number of non-empty directories that were not entered, because they are mount points or listed in `closed`.
    pub closed_met: u64,
    /// Number of names that were examined, but not removed.
    pub stayed: u64,
}

impl TreeRemoval<'_> {
    /// Removes the contents of a directory. Returns whether the directory is empty afterwards.
    ///
    /// # Errors
    /// Returns an error if something cannot be removed.
    pub(crate) fn empty_directory(&mut self, directory: &OwnedFd) -> Result<bool, Errno> {
        let here = inode_identity(&fstat(directory)?);
        let mut empty = true;
        for name in list_names(directory)? {
            let gone = self.remove_entry(directory, here, &name)?;
            self.stayed += u64::from(!gone);
            empty &= gone;
        }
        Ok(empty)
    }

    /// Removes one entry of a directory, with its content. `within` is device and inode number of the directory.
    /// Returns whether the entry no longer exists.
    ///
    /// # Errors
    /// Returns the same errors as [`TreeRemoval::empty_directory`].
    pub(crate) fn remove_entry(
        &mut self,
        directory: impl AsFd,
        within: (u64, u64),
        name: &CStr,
    ) -> Result<bool, Errno> {
        let stays = (self.stays)((within, name));
        let removed = match safe_open::open_beneath(&directory, name, open_flags(), PathRestriction::SameFilesystem) {
            Ok(below) if self.closed.contains(&inode_identity(&fstat(&below)?)) => Err(Errno::EBUSY),
            Ok(below) => match self.empty_directory(&below)? && !stays {
                true => unlinkat(&directory, name, UnlinkatFlags::RemoveDir),
                false => return Ok(false),
            },
            Err(Errno::ENOENT) => return Ok(true),
            Err(Errno::EXDEV) => Err(Errno::EBUSY),
            Err(Errno::ENOTDIR | Errno::ELOOP) if stays => return Ok(false),
            Err(Errno::ENOTDIR | Errno::ELOOP) => unlinkat(&directory, name, UnlinkatFlags::NoRemoveDir),
            Err(error) => return Err(error),
        };
        match removed {
            Ok(()) => Ok(true),
            // EBUSY means that the entry is a mount point, possibly a file with a bind mount.
            Err(Errno::EBUSY) => {
                self.closed_met += u64::from(has_content(&directory, name)?);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns device and inode number of a file.
pub(crate) fn inode_identity(stat: &FileStat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Returns `false` if the entry is a directory that is empty or contains only `lost+found`; `true` for all other
/// entries.
///
/// # Errors
/// Returns an error if the entry cannot be read.
pub(crate) fn has_content(directory: impl AsFd, name: &CStr) -> Result<bool, Errno> {
    match openat(&directory, name, open_flags(), Mode::empty()) {
        Ok(below) => Ok(list_names(&below)?.iter().any(|name| name.as_c_str() != c"lost+found")),
        Err(Errno::ENOTDIR | Errno::ELOOP) => fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW).map(|_| true),
        Err(error) => Err(error),
    }
}

/// Returns all names in a directory. The names are collected before any is removed, because removing files while a
/// directory is read can skip entries.
pub(crate) fn list_names(directory: impl AsFd) -> Result<Vec<CString>, Errno> {
    let own = directory.as_fd().try_clone_to_owned().map_err(|_| Errno::EMFILE)?;
    let mut names = Vec::new();
    for entry in Dir::from_fd(own)?.iter() {
        let name = entry?.file_name().to_owned();
        if name.as_c_str() != c"." && name.as_c_str() != c".." {
            names.push(name);
        }
    }
    Ok(names)
}

fn open_flags() -> OFlag {
    OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC
}
