//! Places below one directory, out of which no path, symlink or hard link leads. The kernel resolves every parent
//! with RESOLVE_IN_ROOT, and the last component is never followed.

use super::walk::{Here, is_merged, make_directory, walk};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat, makedev, mkdirat, mknodat};
use nix::unistd::{UnlinkatFlags, linkat, symlinkat, unlinkat};
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The directory that nothing leaves.
pub struct Root {
    fd: OwnedFd,
    /// Where kept filesystems are mounted that the image is merged into.
    merged: Vec<PathBuf>,
}

/// A name in a directory; something may stand there or not.
pub struct Place {
    pub parent: OwnedFd,
    pub name: OsString,
    /// On a kept filesystem.
    merged: bool,
}

/// The path of a member below the root: without leading `/` and `.`. Empty for the root itself.
///
/// # Errors
/// It has `..` or a zero byte. Honest archives have neither, so this is refused, not repaired.
pub fn inside(path: &[u8]) -> io::Result<PathBuf> {
    let mut inside = PathBuf::new();
    for component in path.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => return Err(io::Error::new(io::ErrorKind::InvalidInput, "a path with `..` is refused")),
            name if name.contains(&0) => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "a path with a zero byte is refused"));
            }
            name => inside.push(OsStr::from_bytes(name)),
        }
    }
    Ok(inside)
}

impl Root {
    /// Kept filesystems that the image is merged into are mounted at `merged`, given without leading `/`.
    ///
    /// # Errors
    /// It is no directory that can be opened.
    pub fn open(path: &Path, merged: Vec<PathBuf>) -> io::Result<Root> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        Ok(Root { fd: nix::fcntl::open(path, flags, Mode::empty())?, merged })
    }

    /// Where `path` (from [`inside`]) is, with missing parents made 0755.
    ///
    /// # Errors
    /// A parent is no directory.
    pub fn place(&self, path: &Path) -> io::Result<Place> {
        if !self.merged.is_empty() {
            return self.walk_to(path, true);
        }
        let parent = self.make_directories(parent(path))?;
        Ok(Place { parent, name: name(path)?, merged: false })
    }

    /// Where `path` is, without making anything.
    ///
    /// # Errors
    /// A parent is missing or no directory.
    pub fn existing_place(&self, path: &Path) -> io::Result<Place> {
        if !self.merged.is_empty() {
            return self.walk_to(path, false);
        }
        Ok(Place { parent: self.resolve(parent(path))?, name: name(path)?, merged: false })
    }

    fn walk_to(&self, path: &Path, make: bool) -> io::Result<Place> {
        let Here { fd, path: real } = walk(&self.fd, &self.merged, parent(path), make)?;
        Ok(Place { parent: fd, name: name(path)?, merged: is_merged(&real, &self.merged) })
    }

    /// The root itself, as a file to set attributes on.
    ///
    /// # Errors
    /// Out of file descriptors.
    pub fn itself(&self) -> io::Result<File> {
        Ok(self.fd.try_clone()?.into())
    }

    fn make_directories(&self, path: &Path) -> io::Result<OwnedFd> {
        match self.resolve(path) {
            Err(Errno::ENOENT) if path != Path::new("") => {
                let above = self.make_directories(parent(path))?;
                make_directory(&above, &name(path)?)?;
                Ok(self.resolve(path)?)
            }
            other => Ok(other?),
        }
    }

    fn resolve(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let path = if path == Path::new("") { Path::new(".") } else { path };
        loop {
            // EAGAIN: something was renamed anywhere while `..` in a symlink was resolved; openat2(2) says try again.
            match openat2(&self.fd, path, how) {
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                other => return other,
            }
        }
    }

    /// Removes everything below, but enters no mount point: what is mounted there may be somebody's to keep.
    /// `lost+found` stays.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub fn clear(&self) -> io::Result<()> {
        clear_directory(&self.fd, &[c"lost+found".into()])?;
        Ok(())
    }
}

/// Returns whether the directory is empty now.
fn clear_directory(directory: &OwnedFd, keep: &[CString]) -> Result<bool, Errno> {
    let mut names = Vec::new();
    for entry in Dir::from_fd(directory.try_clone().map_err(|_| Errno::EMFILE)?)?.iter() {
        let name = entry?.file_name().to_owned();
        if name.as_c_str() != c"." && name.as_c_str() != c".." {
            names.push(name);
        }
    }
    let mut empty = true;
    for name in names {
        if keep.contains(&name) {
            empty = false;
            continue;
        }
        let how = OpenHow::new()
            .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_NO_XDEV);
        match openat2(directory, name.as_c_str(), how) {
            Ok(below) if clear_directory(&below, &[])? => {
                unlinkat(directory, name.as_c_str(), UnlinkatFlags::RemoveDir)?;
            }
            // EXDEV: a mount point, of another filesystem or of a part of this one.
            Ok(_) | Err(Errno::EXDEV) => empty = false,
            Err(Errno::ENOTDIR | Errno::ELOOP) => {
                match unlinkat(directory, name.as_c_str(), UnlinkatFlags::NoRemoveDir) {
                    // A file that something is mounted on.
                    Err(Errno::EBUSY) => empty = false,
                    other => other?,
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(empty)
}

impl Place {
    /// A new file, open for writing, that only its owner can touch.
    ///
    /// # Errors
    /// As of the other `make_` functions: no space, no permission, or a directory with content stands in the way.
    pub fn make_file(&self) -> io::Result<File> {
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        self.replacing(|| openat(&self.parent, self.name.as_os_str(), flags, mode)).map(File::from)
    }

    /// A directory that only its owner can enter; one that is there already stays as it is.
    pub fn make_directory(&self) -> io::Result<()> {
        let make = || mkdirat(&self.parent, self.name.as_os_str(), Mode::S_IRWXU);
        match make() {
            Err(Errno::EEXIST) if self.is_directory()? => Ok(()),
            _ => self.replacing(make),
        }
    }

    pub fn make_symlink(&self, target: &[u8]) -> io::Result<()> {
        self.replacing(|| symlinkat(OsStr::from_bytes(target), &self.parent, self.name.as_os_str()))
    }

    /// Another name for what is at `source`, be it a symlink itself.
    pub fn make_hard_link(&self, source: &Place) -> io::Result<()> {
        let link = || {
            let (from, to) = (source.name.as_os_str(), self.name.as_os_str());
            linkat(&source.parent, from, &self.parent, to, AtFlags::empty())
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
        self.replacing(|| mknodat(&self.parent, self.name.as_os_str(), kind, Mode::S_IRUSR, device))
    }

    /// The directory here; `None` when something else or nothing is.
    pub fn open_directory(&self) -> io::Result<Option<File>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        match openat(&self.parent, self.name.as_os_str(), flags, Mode::empty()) {
            Ok(directory) => Ok(Some(directory.into())),
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A directory of a kept filesystem is here: it is not the image's to remove, be it empty.
    ///
    /// # Errors
    /// The filesystem's own.
    pub fn is_kept_directory(&self) -> io::Result<bool> {
        if !self.merged {
            return Ok(false);
        }
        match self.is_directory() {
            Err(Errno::ENOENT) => Ok(false),
            other => Ok(other?),
        }
    }

    /// Makes what must not exist yet, removing what stands there: a later member replaces an earlier one.
    fn replacing<T>(&self, make: impl Fn() -> Result<T, Errno>) -> io::Result<T> {
        match make() {
            Err(Errno::EEXIST) => {}
            other => return Ok(other?),
        }
        match unlinkat(&self.parent, self.name.as_os_str(), UnlinkatFlags::NoRemoveDir) {
            Err(Errno::EISDIR) => match unlinkat(&self.parent, self.name.as_os_str(), UnlinkatFlags::RemoveDir) {
                Err(Errno::ENOTEMPTY) => {
                    return Err(io::Error::other("a directory with content is there already"));
                }
                Err(Errno::EBUSY) => return Err(io::Error::other("a mount point is there")),
                other => other?,
            },
            other => other?,
        }
        Ok(make()?)
    }

    /// Of what is here itself, be it a symlink.
    pub fn stat(&self) -> Result<FileStat, Errno> {
        fstatat(&self.parent, self.name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW)
    }

    fn is_directory(&self) -> Result<bool, Errno> {
        Ok(SFlag::from_bits_truncate(self.stat()?.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR)
    }
}

fn same_file(one: &FileStat, other: &FileStat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

fn name(path: &Path) -> io::Result<OsString> {
    let name = path.file_name().map(OsStr::to_owned);
    name.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "only a directory can be the root itself"))
}
