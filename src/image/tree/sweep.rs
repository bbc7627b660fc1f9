//! Removes what is in a directory, and enters no mount point: what is mounted there may be somebody's to keep.

use crate::jail::{self, Way};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

/// A name in a directory, whatever way led there: device and inode number of the directory, and the name.
pub type Entry<'a> = ((u64, u64), &'a CStr);

/// One removal.
pub struct Sweep<'a> {
    /// What stays. Of a directory that stays the content goes all the same.
    pub stays: &'a dyn Fn(Entry) -> bool,
    /// Not entered either, mounted or not.
    pub closed: &'a [(u64, u64)],
    /// Mount points and closed directories with something in them.
    pub closed_met: u64,
    /// Names that were looked at and are there still.
    pub stayed: u64,
}

impl Sweep<'_> {
    /// Everything in the directory. Returns whether it is empty now.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub fn empty(&mut self, directory: &OwnedFd) -> Result<bool, Errno> {
        let here = identity(&fstat(directory)?);
        let mut empty = true;
        for name in names(directory)? {
            let gone = self.remove(directory, here, &name)?;
            self.stayed += u64::from(!gone);
            empty &= gone;
        }
        Ok(empty)
    }

    /// One name of a directory. Returns whether it is gone.
    ///
    /// # Errors
    /// As [`Sweep::empty`].
    pub fn remove(&mut self, directory: impl AsFd, within: (u64, u64), name: &CStr) -> Result<bool, Errno> {
        let stays = (self.stays)((within, name));
        let removed = match jail::open(&directory, name, flags(), Way::SameFilesystem) {
            Ok(below) if self.closed.contains(&identity(&fstat(&below)?)) => Err(Errno::EBUSY),
            Ok(below) => match self.empty(&below)? && !stays {
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
            // A mount point, of another filesystem or of a part of this one; be it a file that something is mounted on.
            Err(Errno::EBUSY) => {
                self.closed_met += u64::from(has_something(&directory, name)?);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// Device and inode number.
pub fn identity(stat: &FileStat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// A file, or a directory with something in it.
///
/// # Errors
/// It cannot be read.
pub fn has_something(directory: impl AsFd, name: &CStr) -> Result<bool, Errno> {
    match openat(&directory, name, flags(), Mode::empty()) {
        Ok(below) => Ok(names(&below)?.iter().any(|name| name.as_c_str() != c"lost+found")),
        Err(Errno::ENOTDIR | Errno::ELOOP) => fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW).map(|_| true),
        Err(error) => Err(error),
    }
}

/// All first: what is removed while a directory is read may make it skip something.
pub fn names(directory: impl AsFd) -> Result<Vec<CString>, Errno> {
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

fn flags() -> OFlag {
    OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC
}
