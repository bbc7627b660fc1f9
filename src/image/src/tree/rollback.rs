//! Rollback after the unpacking of an image has failed or must start over. The unpacked files were not completely
//! verified, so none of them may remain on the filesystems that this installation has created.

use super::tree_removal::{TreeRemoval, inode_identity, list_names};
use linux::safe_open::{self, PathRestriction};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{FileStat, Mode, fchmod, fstat, fstatat};
use nix::unistd::{Gid, Uid, fchown};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use xattr::FileExt;

/// State of a directory before the image is unpacked. The directory is the root of a filesystem, its `lost+found`, or
/// the parent of a mount point. The directory is held open, so that its inode number is not reused.
pub(crate) struct DirectorySnapshot {
    directory: File,
    was: FileStat,
    xattrs: XattrMap,
    within: BTreeMap<CString, DirectorySnapshot>,
}

type XattrMap = BTreeMap<OsString, Vec<u8>>;

impl DirectorySnapshot {
    /// Records the directory and its subdirectories, without entering mount points.
    ///
    /// # Errors
    /// Returns an error if one of the directories cannot be read.
    pub(crate) fn record_directory(directory: OwnedFd) -> io::Result<DirectorySnapshot> {
        let mut within = BTreeMap::new();
        for name in list_names(&directory)? {
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
            match safe_open::open_beneath(&directory, name.as_c_str(), flags, PathRestriction::SameFilesystem) {
                Ok(below) => drop(within.insert(name, DirectorySnapshot::record_directory(below)?)),
                Err(Errno::EXDEV | Errno::ENOTDIR | Errno::ELOOP) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let directory = File::from(directory);
        Ok(DirectorySnapshot { was: fstat(&directory)?, xattrs: read_xattrs(&directory)?, directory, within })
    }

    /// Removes everything except the recorded directories, and restores the attributes of these directories. Files are
    /// removed even if they existed before. Mount points are not entered, because preserved filesystems may be mounted
    /// there.
    ///
    /// # Errors
    /// Returns an error if an entry cannot be removed or an attribute cannot be set.
    pub(crate) fn restore(&self) -> io::Result<()> {
        self.restore_attributes()?;
        for name in list_names(&self.directory)? {
            match self.within.get(&name) {
                Some(fresh) if fresh.is_unreplaced(&self.directory, &name)? => fresh.restore()?,
                _ => {
                    let mut sweep = TreeRemoval { stays: &|_| false, closed: &[], closed_met: 0, stayed: 0 };
                    sweep.remove_entry(&self.directory, inode_identity(&self.was), &name)?;
                }
            }
        }
        Ok(())
    }

    fn is_unreplaced(&self, directory: &File, name: &CStr) -> Result<bool, Errno> {
        let there = fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        Ok(inode_identity(&there) == inode_identity(&self.was))
    }

    /// Restores owner, xattrs and mode, in an order in which no step undoes an earlier one. On filesystems that do not
    /// support an attribute, such as FAT, there is nothing to restore.
    fn restore_attributes(&self) -> io::Result<()> {
        let (directory, was) = (&self.directory, &self.was);
        let is = fstat(directory)?;
        if (is.st_uid, is.st_gid) != (was.st_uid, was.st_gid) {
            fchown(directory, Some(Uid::from_raw(was.st_uid)), Some(Gid::from_raw(was.st_gid)))?;
        }
        let now = read_xattrs(directory)?;
        for name in now.keys().filter(|name| !self.xattrs.contains_key(*name)) {
            directory.remove_xattr(name)?;
        }
        for (name, value) in self.xattrs.iter().filter(|(name, value)| now.get(*name) != Some(value)) {
            directory.set_xattr(name, value)?;
        }
        // The mode is read again, because the removal of an ACL may have changed it.
        let mode = fstat(directory)?.st_mode;
        if mode != was.st_mode {
            fchmod(directory, Mode::from_bits_truncate(was.st_mode & 0o7777))?;
        }
        Ok(())
    }
}

fn read_xattrs(directory: &File) -> io::Result<XattrMap> {
    let listed = match directory.list_xattr() {
        Err(error) if error.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) => return Ok(XattrMap::new()),
        listed => listed?,
    };
    let mut found = XattrMap::new();
    for name in listed {
        let value = directory.get_xattr(&name)?.unwrap_or_default();
        found.insert(name, value);
    }
    Ok(found)
}
