//! A name in a directory below the root of a burn, and all that is made, replaced or removed there. The name itself is never followed.

use super::acl;
use super::root::{Directory, Root, no_directory_is_none, readable};
use super::sweep::{Entry, Sweep, identity};
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

/// A name in a directory; something may stand there or not.
pub struct Place<'r> {
    pub(super) root: &'r Root,
    pub(super) directory: Rc<Directory>,
    pub name: OsString,
}

impl Place<'_> {
    pub fn parent(&self) -> &OwnedFd {
        &self.directory.fd
    }

    /// Device and inode number of the directory.
    pub fn parent_identity(&self) -> (u64, u64) {
        self.directory.identity
    }

    /// On a kept filesystem.
    pub fn is_merged(&self) -> bool {
        self.directory.merged
    }

    /// The directory that nothing leaves.
    pub fn root(&self) -> &Root {
        self.root
    }

    /// The burn is about to put something here. A directory that is there already stays its owner's.
    ///
    /// # Errors
    /// It brings more than can be remembered.
    pub fn is_brought(&self, as_directory: bool) -> io::Result<()> {
        match as_directory && self.is_directory().unwrap_or(false) {
            true => Ok(()),
            false => self.root.brings(self.parent_identity(), &self.name),
        }
    }

    /// A new file, open for writing. Of its mode the umask and an ACL of the directory may take something away.
    ///
    /// # Errors
    /// As of the other `make_` functions: no space, no permission, or a directory with content stands in the way.
    pub fn make_file(&self, mode: Mode) -> io::Result<File> {
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = self.replacing(|| openat(self.parent(), self.name.as_os_str(), flags, mode))?;
        self.disinherit()?;
        Ok(file.into())
    }

    /// A directory that its owner at least can enter; one that is there already stays as it is.
    pub fn make_directory(&self, mode: Mode) -> io::Result<()> {
        let make = || mkdirat(self.parent(), self.name.as_os_str(), mode | Mode::S_IRWXU);
        match make() {
            Err(Errno::EEXIST) if self.is_directory()? => return Ok(()),
            Err(_) => self.replacing(make)?,
            Ok(()) => {}
        }
        Ok(self.disinherit()?)
    }

    pub fn make_symlink(&self, target: &[u8]) -> io::Result<()> {
        self.replacing(|| symlinkat(OsStr::from_bytes(target), self.parent(), self.name.as_os_str()))
    }

    /// Another name for what is at `source`, be it a symlink itself.
    pub fn make_hard_link(&self, source: &Place) -> io::Result<()> {
        let link = || {
            let (from, to) = (source.name.as_os_str(), self.name.as_os_str());
            linkat(source.parent(), from, self.parent(), to, AtFlags::empty())
        };
        match link() {
            // To replace the source by a link to itself would lose it.
            Err(Errno::EEXIST) if same_file(&self.stat()?, &source.stat()?) => Ok(()),
            _ => self.replacing(link),
        }
    }

    /// A device or a FIFO.
    pub fn make_node(&self, kind: SFlag, major: u32, minor: u32) -> io::Result<()> {
        let device = makedev(major.into(), minor.into());
        self.replacing(|| mknodat(self.parent(), self.name.as_os_str(), kind, Mode::S_IRUSR, device))?;
        Ok(self.disinherit()?)
    }

    fn disinherit(&self) -> Result<(), Errno> {
        if self.directory.leaves_acls { acl::disinherit(self.parent(), &self.name) } else { Ok(()) }
    }

    /// The directory here; `None` when something else or nothing is.
    pub fn open_directory(&self) -> io::Result<Option<File>> {
        let flags = readable() | OFlag::O_NOFOLLOW;
        no_directory_is_none(openat(self.parent(), self.name.as_os_str(), flags, Mode::empty()))
    }

    /// A directory of a kept filesystem is here: it is not the image's to remove, be it empty.
    ///
    /// # Errors
    /// The filesystem's own.
    pub fn is_kept_directory(&self) -> io::Result<bool> {
        if !self.is_merged() {
            return Ok(false);
        }
        match self.is_directory() {
            Err(Errno::ENOENT) => Ok(false),
            other => Ok(other?),
        }
    }

    /// Removes another name of this directory with all that is in it, except what `stays`. Returns how many mount points
    /// with something in them are in the way.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub fn sweep(&self, name: &OsStr, stays: &dyn Fn(Entry) -> bool) -> io::Result<u64> {
        self.root.forget();
        let mut sweep = Sweep { stays, closed: &self.root.merged_identities()?, closed_met: 0, stayed: 0 };
        sweep.remove(self.parent(), self.parent_identity(), &CString::new(name.as_bytes())?)?;
        self.root.looked_at(sweep.stayed);
        Ok(sweep.closed_met)
    }

    /// As [`Place::sweep`], of all names of this directory.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub fn sweep_all(&self, stays: &dyn Fn(Entry) -> bool) -> io::Result<u64> {
        self.root.forget();
        let mut sweep = Sweep { stays, closed: &self.root.merged_identities()?, closed_met: 0, stayed: 0 };
        sweep.empty(&openat(self.parent(), ".", readable(), Mode::empty())?)?;
        self.root.looked_at(sweep.stayed);
        Ok(sweep.closed_met)
    }

    /// Whether the directory has this name too.
    ///
    /// # Errors
    /// The filesystem's own.
    pub fn has_beside(&self, name: &OsStr) -> io::Result<bool> {
        match fstatat(self.parent(), name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes what must not exist yet, removing what stands there: a later member replaces an earlier one.
    fn replacing<T>(&self, make: impl Fn() -> Result<T, Errno>) -> io::Result<T> {
        match make() {
            Err(Errno::EEXIST) => {}
            other => return Ok(other?),
        }
        match unlinkat(self.parent(), self.name.as_os_str(), UnlinkatFlags::NoRemoveDir) {
            Err(Errno::EISDIR) => match unlinkat(self.parent(), self.name.as_os_str(), UnlinkatFlags::RemoveDir) {
                Err(Errno::ENOTEMPTY) => {
                    return Err(io::Error::other("a directory with content is there already"));
                }
                Err(Errno::EBUSY) => return Err(io::Error::other("a mount point is there")),
                other => other?,
            },
            other => other?,
        }
        self.root.forget();
        Ok(make()?)
    }

    /// Of what is here itself, be it a symlink.
    pub fn stat(&self) -> Result<FileStat, Errno> {
        fstatat(self.parent(), self.name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW)
    }

    pub fn is_directory(&self) -> Result<bool, Errno> {
        Ok(SFlag::from_bits_truncate(self.stat()?.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR)
    }
}

fn same_file(one: &FileStat, other: &FileStat) -> bool {
    identity(one) == identity(other)
}
