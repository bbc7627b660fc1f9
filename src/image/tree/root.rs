//! One directory, out of which no path, symlink or hard link leads: every parent is resolved as if it were the root.

use super::acl;
use super::fresh::Fresh;
use super::names::Names;
use super::place::Place;
use super::space::Space;
use super::sweep::{Entry, has_something, identity, names};
use super::walk::{Here, is_merged, make_directory, walk};
use crate::jail::{self, Way};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Directories whose way is remembered; more, and all are forgotten.
const MOST_KNOWN: usize = 64;

/// The directory that nothing leaves.
pub struct Root {
    fd: OwnedFd,
    /// Where kept filesystems are mounted that the image is merged into.
    merged: Vec<PathBuf>,
    /// Directories by the way that led there. A way leads over names that exist, so what is made cannot change it, only
    /// what is removed: then all are forgotten.
    known: RefCell<HashMap<OsString, Rc<Directory>>>,
    space: RefCell<Space>,
    /// Beside making members, in blocks of headers that would cost as much.
    worked: Cell<u64>,
    /// What this burn has brought, where everything else below the root is somebody's.
    ours: Option<RefCell<Names>>,
}

/// A directory at the end of a way.
pub(super) struct Directory {
    pub fd: OwnedFd,
    pub identity: (u64, u64),
    /// On a kept filesystem.
    pub merged: bool,
    /// What is made here inherits ACLs that it is not to have: on a kept filesystem its owner wants it so.
    pub leaves_acls: bool,
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
        let fd = nix::fcntl::open(path, readable(), Mode::empty())?;
        let mut space = Space::default();
        space.see(&fd, &fstat(&fd)?)?;
        Ok(Root { fd, merged, known: RefCell::default(), space: RefCell::new(space), worked: Cell::new(0), ours: None })
    }

    pub(super) fn brings(&self, directory: (u64, u64), name: &OsStr) -> io::Result<()> {
        let Some(ours) = &self.ours else { return Ok(()) };
        ours.borrow_mut().insert((directory, &CString::new(name.as_bytes())?))
    }

    /// Nothing is there but what a new filesystem has.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn is_empty(&self) -> io::Result<bool> {
        let own = c"lost+found";
        let listed = names(openat(&self.fd, ".", readable(), Mode::empty())?)?;
        Ok(listed.iter().all(|name| name.as_c_str() == own) && (listed.is_empty() || !has_something(&self.fd, own)?))
    }

    /// A file that nobody else can open and that goes with its descriptor, on the root's filesystem.
    ///
    /// # Errors
    /// The filesystem is full or read-only.
    pub fn nameless_file(&self) -> io::Result<File> {
        let (flags, mode) = (OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::S_IRUSR | Mode::S_IWUSR);
        match openat(&self.fd, ".", flags | OFlag::O_TMPFILE, mode) {
            // Not every filesystem has files without a name: NFS.
            Err(Errno::EOPNOTSUPP) => {
                let name = format!(".drophammer-{}", std::process::id());
                let file = openat(&self.fd, name.as_str(), flags | OFlag::O_CREAT | OFlag::O_EXCL, mode)?;
                unlinkat(&self.fd, name.as_str(), UnlinkatFlags::NoRemoveDir)?;
                Ok(file.into())
            }
            file => Ok(file?.into()),
        }
    }

    /// What is below it already is somebody's: no whiteout removes it.
    pub fn among_others(self) -> Root {
        Root { ours: Some(RefCell::default()), ..self }
    }

    /// Somebody has put it there, and not this burn.
    pub fn is_others(&self, entry: Entry) -> bool {
        self.ours.as_ref().is_some_and(|ours| !ours.borrow().contains(entry))
    }

    /// Work that members have made beside themselves: parents that they did not bring, and what stays where a whiteout looked.
    pub fn worked(&self) -> u64 {
        self.worked.get()
    }

    fn work(&self, blocks: u64) {
        self.worked.set(self.worked.get() + blocks);
    }

    /// To look at a name costs less than to make one, and a directory of somebody's can have many.
    pub(super) fn looked_at(&self, names: u64) {
        self.work(names / 4);
    }

    /// How long a tar can be whose files are to have room here.
    pub fn longest_tar(&self) -> u64 {
        self.space.borrow().longest_tar()
    }

    /// Where `path` (from [`inside`]) is, with missing parents made 0755.
    ///
    /// # Errors
    /// A parent is no directory.
    pub fn place(&self, path: &Path) -> io::Result<Place<'_>> {
        Ok(Place { root: self, directory: self.directory(parent(path), true)?, name: name(path)? })
    }

    /// Where `path` is, without making anything.
    ///
    /// # Errors
    /// A parent is missing or no directory.
    pub fn existing_place(&self, path: &Path) -> io::Result<Place<'_>> {
        Ok(Place { root: self, directory: self.directory(parent(path), false)?, name: name(path)? })
    }

    /// The directory at `path` as a file to set attributes on; `None` when something else or nothing is there.
    ///
    /// # Errors
    /// Its parent is missing, on a kept filesystem; out of file descriptors.
    pub fn open_directory(&self, path: &Path) -> io::Result<Option<File>> {
        if path == Path::new("") {
            return Ok(Some(self.fd.try_clone()?.into()));
        }
        if !self.merged.is_empty() {
            return self.existing_place(path)?.open_directory();
        }
        no_directory_is_none(self.open_inside(path, OFlag::O_RDONLY | OFlag::O_NOFOLLOW))
    }

    fn directory(&self, path: &Path, make: bool) -> io::Result<Rc<Directory>> {
        if let Some(known) = self.known.borrow().get(path.as_os_str()) {
            return Ok(known.clone());
        }
        let (fd, merged) = if self.merged.is_empty() {
            (if make { self.make_directories(path)? } else { self.resolve(path)? }, false)
        } else {
            // It may remove something that stands in the way.
            self.forget();
            let Here { fd, path: real } = walk(&self.fd, &self.merged, path, make)?;
            (fd, is_merged(&real, &self.merged))
        };
        let stat = fstat(&fd)?;
        self.space.borrow_mut().see(&fd, &stat)?;
        let leaves_acls = !merged && acl::is_left(&fd)?;
        let directory = Rc::new(Directory { fd, identity: identity(&stat), merged, leaves_acls });
        let mut known = self.known.borrow_mut();
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(path.as_os_str().to_owned(), directory.clone());
        Ok(directory)
    }

    /// The directories of kept filesystems that are mounted here.
    pub(super) fn merged_identities(&self) -> io::Result<Vec<(u64, u64)>> {
        let mut identities = Vec::new();
        for path in &self.merged {
            match walk(&self.fd, &self.merged, path, false) {
                Ok(here) => identities.push(identity(&fstat(&here.fd)?)),
                Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(identities)
    }

    /// Something was removed, or a directory leaves ACLs now to what is made in it.
    pub fn forget(&self) {
        self.known.borrow_mut().clear();
    }

    fn make_directories(&self, path: &Path) -> io::Result<OwnedFd> {
        match self.resolve(path) {
            Err(Errno::ENOENT) if path != Path::new("") => {
                // Deep down it takes longer to get there.
                self.work(1 + path.as_os_str().len() as u64 / 64);
                let above = self.make_directories(parent(path))?;
                make_directory(&above, &name(path)?)?;
                self.brings(identity(&fstat(&above)?), &name(path)?)?;
                acl::disinherit(&above, &name(path)?)?;
                Ok(self.resolve(path)?)
            }
            other => Ok(other?),
        }
    }

    fn resolve(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.open_inside(if path == Path::new("") { Path::new(".") } else { path }, OFlag::O_PATH)
    }

    fn open_inside(&self, path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
        jail::open(&self.fd, path, flags | OFlag::O_DIRECTORY, Way::AsRoot)
    }

    /// The root, and the filesystems of this run that are mounted at `mount_points`, before the image comes.
    ///
    /// # Errors
    /// One cannot be read, or is a part of a kept filesystem; a kept one is a part of the root's.
    pub fn fresh(&self, mount_points: &[PathBuf]) -> io::Result<Vec<Fresh>> {
        let kept = self.merged_identities()?;
        let own = fstat(&self.fd)?.st_dev;
        if kept.iter().any(|(device, _)| *device == own) {
            return Err(io::Error::other("a directory in it is merged into, and is no filesystem of its own"));
        }
        let mut fresh = vec![Fresh::look(openat(&self.fd, ".", readable(), Mode::empty())?)?];
        for path in mount_points {
            let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
            let directory = jail::open(&self.fd, path, readable(), Way::Plain).map_err(|error| named(error.into()))?;
            let device = fstat(&directory)?.st_dev;
            if kept.iter().any(|(kept, _)| *kept == device) {
                return Err(named(io::Error::other("it is on a kept filesystem, and not one of its own")));
            }
            fresh.push(Fresh::look(directory).map_err(named)?);
        }
        Ok(fresh)
    }

    /// Back to what was there before the image came.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub fn clear(&self, fresh: &[Fresh]) -> io::Result<()> {
        self.forget();
        fresh.iter().try_for_each(Fresh::restore)
    }
}

/// A directory.
pub(super) fn readable() -> OFlag {
    OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC
}

pub(super) fn no_directory_is_none(opened: Result<OwnedFd, Errno>) -> io::Result<Option<File>> {
    match opened {
        Ok(directory) => Ok(Some(directory.into())),
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

fn name(path: &Path) -> io::Result<OsString> {
    let name = path.file_name().map(OsStr::to_owned);
    name.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "only a directory can be the root itself"))
}
