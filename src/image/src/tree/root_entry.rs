//! Directory entries in the tree to which an image is unpacked, each identified by an open directory and a name.
//! Entries can be created, replaced and removed. Symlinks are never followed.

use super::acl;
use super::tree_removal::{DirectoryEntry, TreeRemoval, inode_identity};
use super::unpack_root::{ResolvedDirectory, UnpackRoot, directory_flags, not_a_directory_as_none};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat, makedev, mkdirat, mknodat};
use nix::unistd::{UnlinkatFlags, linkat, symlinkat, unlinkat};
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

/// Name in an open directory. A file with this name may or may not exist.
pub(crate) struct RootEntry<'r> {
    pub(super) root: &'r UnpackRoot,
    pub(super) directory: Rc<ResolvedDirectory>,
    pub name: OsString,
}

impl RootEntry<'_> {
    pub(crate) fn parent(&self) -> &OwnedFd {
        &self.directory.fd
    }

    /// Returns device and inode number of the directory that contains the name.
    pub(crate) fn parent_identity(&self) -> (u64, u64) {
        self.directory.identity
    }

    /// Returns whether the directory that contains the name is on a preserved filesystem.
    pub(crate) fn is_merged(&self) -> bool {
        self.directory.merged
    }

    /// Returns the root directory to which the image is unpacked.
    pub(crate) fn root(&self) -> &UnpackRoot {
        self.root
    }

    /// Records that this name is created by unpacking the image. If `as_directory` is set and the directory already
    /// exists, does nothing, because an existing directory is not created again.
    ///
    /// # Errors
    /// Returns an error if the layer creates too many entries.
    pub(crate) fn record_created(&self, as_directory: bool) -> io::Result<()> {
        match as_directory && self.is_directory().unwrap_or(false) {
            true => Ok(()),
            false => self.root.record_created(self.parent_identity(), &self.name),
        }
    }

    /// Creates a regular file and opens it for writing, replacing an existing file. The umask and a default ACL of the
    /// directory may clear bits of the new file's mode.
    ///
    /// # Errors
    /// Like all `make_` functions, returns an error if space or permission is missing, or if a non-empty directory or
    /// mount point has this name.
    pub(crate) fn make_file(&self, mode: Mode) -> io::Result<File> {
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = self.replace_with(|| openat(self.parent(), self.name.as_os_str(), flags, mode))?;
        self.remove_inherited_acls()?;
        Ok(file.into())
    }

    /// Creates a directory whose owner can at least read, write and enter it. An existing directory is not changed.
    pub(crate) fn make_directory(&self, mode: Mode) -> io::Result<()> {
        let make = || mkdirat(self.parent(), self.name.as_os_str(), mode | Mode::S_IRWXU);
        match make() {
            Err(Errno::EEXIST) if self.is_directory()? => return Ok(()),
            Err(_) => self.replace_with(make)?,
            Ok(()) => {}
        }
        Ok(self.remove_inherited_acls()?)
    }

    pub(crate) fn make_symlink(&self, target: &[u8]) -> io::Result<()> {
        self.replace_with(|| symlinkat(OsStr::from_bytes(target), self.parent(), self.name.as_os_str()))
    }

    /// Creates a hard link to `source`. If `source` is a symlink, the hard link refers to the symlink itself.
    pub(crate) fn make_hard_link(&self, source: &RootEntry) -> io::Result<()> {
        let link = || {
            let (from, to) = (source.name.as_os_str(), self.name.as_os_str());
            linkat(source.parent(), from, self.parent(), to, AtFlags::empty())
        };
        match link() {
            // If `source` and this entry are the same file, nothing is done: replacing the file would delete it before
            // it could be linked.
            Err(Errno::EEXIST) if is_same_file(&self.stat()?, &source.stat()?) => Ok(()),
            _ => self.replace_with(link),
        }
    }

    /// Creates a device or FIFO.
    pub(crate) fn make_node(&self, kind: SFlag, major: u32, minor: u32) -> io::Result<()> {
        let device = makedev(major.into(), minor.into());
        self.replace_with(|| mknodat(self.parent(), self.name.as_os_str(), kind, Mode::S_IRUSR, device))?;
        Ok(self.remove_inherited_acls()?)
    }

    fn remove_inherited_acls(&self) -> Result<(), Errno> {
        if self.directory.leaves_acls { acl::remove_inherited(self.parent(), &self.name) } else { Ok(()) }
    }

    /// Opens the directory with this name; returns `None` if the name does not exist or is not a directory.
    pub(crate) fn open_directory(&self) -> io::Result<Option<File>> {
        let flags = directory_flags() | OFlag::O_NOFOLLOW;
        not_a_directory_as_none(openat(self.parent(), self.name.as_os_str(), flags, Mode::empty()))
    }

    /// Returns whether the name is a directory of a preserved filesystem. The image must not remove such a directory,
    /// even if it is empty.
    ///
    /// # Errors
    /// Returns the error of the filesystem.
    pub(crate) fn is_kept_directory(&self) -> io::Result<bool> {
        if !self.is_merged() {
            return Ok(false);
        }
        match self.is_directory() {
            Err(Errno::ENOENT) => Ok(false),
            other => Ok(other?),
        }
    }

    /// Removes `name`, with its content, from the directory that contains this entry. Entries for which `stays` returns
    /// `true` are not removed. Returns the number of non-empty mount points, which are not removed.
    ///
    /// # Errors
    /// Returns an error if something cannot be removed.
    pub(crate) fn sweep_sibling(&self, name: &OsStr, stays: &dyn Fn(DirectoryEntry) -> bool) -> io::Result<u64> {
        self.root.clear_cache();
        let mut sweep = TreeRemoval { stays, closed: &self.root.merged_identities()?, closed_met: 0, stayed: 0 };
        sweep.remove_entry(self.parent(), self.parent_identity(), &CString::new(name.as_bytes())?)?;
        self.root.add_looked_at(sweep.stayed);
        Ok(sweep.closed_met)
    }

    /// Removes all entries of the directory that contains this entry, each like [`RootEntry::sweep_sibling`].
    ///
    /// # Errors
    /// Returns an error if something cannot be removed.
    pub(crate) fn sweep_all(&self, stays: &dyn Fn(DirectoryEntry) -> bool) -> io::Result<u64> {
        self.root.clear_cache();
        let mut sweep = TreeRemoval { stays, closed: &self.root.merged_identities()?, closed_met: 0, stayed: 0 };
        sweep.empty_directory(&openat(self.parent(), ".", directory_flags(), Mode::empty())?)?;
        self.root.add_looked_at(sweep.stayed);
        Ok(sweep.closed_met)
    }

    /// Returns whether `name` exists in the directory that contains this entry.
    ///
    /// # Errors
    /// Returns the error of the filesystem.
    pub(crate) fn has_sibling(&self, name: &OsStr) -> io::Result<bool> {
        match fstatat(self.parent(), name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Calls `make`, which creates the name and fails if the name exists. In that case, removes the existing file or
    /// empty directory and calls `make` again, since a later member replaces an earlier one.
    fn replace_with<T>(&self, make: impl Fn() -> Result<T, Errno>) -> io::Result<T> {
        match make() {
            Err(Errno::EEXIST) => {}
            other => return Ok(other?),
        }
        match unlinkat(self.parent(), self.name.as_os_str(), UnlinkatFlags::NoRemoveDir) {
            Err(Errno::EISDIR) => match unlinkat(self.parent(), self.name.as_os_str(), UnlinkatFlags::RemoveDir) {
                Err(Errno::ENOTEMPTY) => {
                    return Err(io::Error::other("a non-empty directory exists at this path"));
                }
                Err(Errno::EBUSY) => return Err(io::Error::other("a mount point exists at this path")),
                other => other?,
            },
            other => other?,
        }
        self.root.clear_cache();
        Ok(make()?)
    }

    /// Returns the attributes of the file with this name; for a symlink, those of the symlink itself.
    pub(crate) fn stat(&self) -> Result<FileStat, Errno> {
        fstatat(self.parent(), self.name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW)
    }

    pub(crate) fn is_directory(&self) -> Result<bool, Errno> {
        Ok(SFlag::from_bits_truncate(self.stat()?.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR)
    }
}

fn is_same_file(one: &FileStat, other: &FileStat) -> bool {
    inode_identity(one) == inode_identity(other)
}
