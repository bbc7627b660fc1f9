//! Root directory to which an image is unpacked. No path, symlink or hard link leads out of this directory, because
//! every path is resolved as if the directory was the root of the filesystem, as with chroot(2).

use super::acl;
use super::capacity_limit::TargetCapacity;
use super::name_set::NameSet;
use super::parent_resolution::{WalkedDirectory, is_merged, make_directory, walk_to_directory};
use super::rollback::DirectorySnapshot;
use super::root_entry::RootEntry;
use super::tree_removal::{DirectoryEntry, has_content, inode_identity, list_names};
use linux::safe_open::{self, PathRestriction};
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

/// Maximum number of cached directories. When this number is reached, the cache is cleared.
const MAXIMUM_CACHED_DIRECTORIES: usize = 64;

/// Root directory to which an image is unpacked.
pub(crate) struct UnpackRoot {
    fd: OwnedFd,
    /// Mount points of preserved filesystems into which the image is merged.
    merged: Vec<PathBuf>,
    /// Cache of open directories by path. The directory at a path does not change when files are created. The directory
    /// may change when files are removed; the cache is then cleared.
    known: RefCell<HashMap<OsString, Rc<ResolvedDirectory>>>,
    space: RefCell<TargetCapacity>,
    /// Cost of all operations except the creation of members. The unit is the cost of one header block.
    worked: Cell<u64>,
    /// Names created by unpacking this image, if all other files below the root belong to another owner.
    ours: Option<RefCell<NameSet>>,
}

/// Open directory that was resolved from a path.
pub(super) struct ResolvedDirectory {
    pub fd: OwnedFd,
    pub identity: (u64, u64),
    /// Whether the directory is on a preserved filesystem.
    pub merged: bool,
    /// Whether new files in the directory inherit ACLs that must be removed. On a preserved filesystem, inherited ACLs
    /// are not removed, because the owner has set the default ACL on purpose.
    pub leaves_acls: bool,
}

/// Returns the path of a member below the root, without leading `/` and `.`; empty for the root itself.
///
/// # Errors
/// Returns an error if the path contains `..` or a zero byte. Such paths are rejected instead of corrected, because
/// well-formed archives do not contain them.
pub(crate) fn relative_inside(path: &[u8]) -> io::Result<PathBuf> {
    let mut inside = PathBuf::new();
    for component in path.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path contains `..`")),
            name if name.contains(&0) => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path contains a zero byte"));
            }
            name => inside.push(OsStr::from_bytes(name)),
        }
    }
    Ok(inside)
}

impl UnpackRoot {
    /// Opens the root. `merged` contains the mount points of preserved filesystems into which the image is merged,
    /// without leading `/`.
    ///
    /// # Errors
    /// Returns an error if the path is not a directory, or the directory cannot be opened.
    pub fn open(path: &Path, merged: Vec<PathBuf>) -> io::Result<UnpackRoot> {
        let fd = nix::fcntl::open(path, directory_flags(), Mode::empty())?;
        let mut space = TargetCapacity::default();
        space.add_filesystem(&fd, &fstat(&fd)?)?;
        Ok(UnpackRoot {
            fd,
            merged,
            known: RefCell::default(),
            space: RefCell::new(space),
            worked: Cell::new(0),
            ours: None,
        })
    }

    pub(super) fn record_created(&self, directory: (u64, u64), name: &OsStr) -> io::Result<()> {
        let Some(ours) = &self.ours else { return Ok(()) };
        ours.borrow_mut().insert((directory, &CString::new(name.as_bytes())?))
    }

    /// Returns whether the root is empty or contains only an empty `lost+found`, as on a new filesystem.
    ///
    /// # Errors
    /// Returns an error if the root cannot be read.
    pub(crate) fn is_empty(&self) -> io::Result<bool> {
        let own = c"lost+found";
        let listed = list_names(openat(&self.fd, ".", directory_flags(), Mode::empty())?)?;
        Ok(listed.iter().all(|name| name.as_c_str() == own) && (listed.is_empty() || !has_content(&self.fd, own)?))
    }

    /// Creates an unnamed file on the root's filesystem. No other process can open the file. Closing the file frees its
    /// space.
    ///
    /// # Errors
    /// Returns an error if the filesystem is full or read-only.
    pub(crate) fn nameless_file(&self) -> io::Result<File> {
        let (flags, mode) = (OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::S_IRUSR | Mode::S_IWUSR);
        match openat(&self.fd, ".", flags | OFlag::O_TMPFILE, mode) {
            // On a filesystem without support for O_TMPFILE, such as NFS, a file with a name is created, and the name
            // is removed.
            Err(Errno::EOPNOTSUPP) => {
                let name = format!(".drophammer-{}", std::process::id());
                let file = openat(&self.fd, name.as_str(), flags | OFlag::O_CREAT | OFlag::O_EXCL, mode)?;
                unlinkat(&self.fd, name.as_str(), UnlinkatFlags::NoRemoveDir)?;
                Ok(file.into())
            }
            file => Ok(file?.into()),
        }
    }

    /// Marks the existing content as belonging to another owner. Whiteouts do not remove such content.
    pub fn among_others(self) -> UnpackRoot {
        UnpackRoot { ours: Some(RefCell::default()), ..self }
    }

    /// Returns whether an entry belongs to another owner: [`Self::among_others`] was called, and the entry was not
    /// created by unpacking this image.
    pub(crate) fn belongs_to_others(&self, entry: DirectoryEntry) -> bool {
        self.ours.as_ref().is_some_and(|ours| !ours.borrow().contains(entry))
    }

    /// Returns the cost of operations other than creating members, in header blocks: creating parents that are not
    /// members, and examining names that a whiteout does not remove.
    pub(crate) fn worked(&self) -> u64 {
        self.worked.get()
    }

    fn add_work(&self, blocks: u64) {
        self.worked.set(self.worked.get() + blocks);
    }

    /// Adds the cost of directory entries that were only examined. Examining an entry costs only a fraction of creating
    /// one, but must be counted, because an existing directory can contain many entries.
    pub(super) fn add_looked_at(&self, names: u64) {
        self.add_work(names / 4);
    }

    /// Returns the maximum length of a tar, in bytes, given the filesystems found so far below the root.
    pub(crate) fn longest_tar(&self) -> u64 {
        self.space.borrow().max_tar_bytes()
    }

    /// Resolves `path`, which [`relative_inside`] has returned. Missing parents are created with mode 0755.
    ///
    /// # Errors
    /// Returns an error if a parent is not a directory.
    pub(crate) fn resolve_entry(&self, path: &Path) -> io::Result<RootEntry<'_>> {
        Ok(RootEntry { root: self, directory: self.resolve_parent(parent_of(path), true)?, name: name_of(path)? })
    }

    /// Resolves `path` without creating anything.
    ///
    /// # Errors
    /// Returns an error if a parent is missing or not a directory.
    pub(crate) fn resolve_existing(&self, path: &Path) -> io::Result<RootEntry<'_>> {
        Ok(RootEntry { root: self, directory: self.resolve_parent(parent_of(path), false)?, name: name_of(path)? })
    }

    /// Opens the directory at `path` to set its attributes; returns `None` if there is no directory at `path`.
    ///
    /// # Errors
    /// Returns an error if preserved filesystems are mounted below the root and the parent is missing, or if no file
    /// descriptors are left.
    pub(crate) fn open_directory(&self, path: &Path) -> io::Result<Option<File>> {
        if path == Path::new("") {
            return Ok(Some(self.fd.try_clone()?.into()));
        }
        if !self.merged.is_empty() {
            return self.resolve_existing(path)?.open_directory();
        }
        not_a_directory_as_none(self.open_inside(path, OFlag::O_RDONLY | OFlag::O_NOFOLLOW))
    }

    fn resolve_parent(&self, path: &Path, make: bool) -> io::Result<Rc<ResolvedDirectory>> {
        if let Some(known) = self.known.borrow().get(path.as_os_str()) {
            return Ok(known.clone());
        }
        let (fd, merged) = if self.merged.is_empty() {
            (if make { self.make_directories(path)? } else { self.open_path(path)? }, false)
        } else {
            // The cache is cleared, because resolving the path may have replaced a file with a directory.
            self.clear_cache();
            let WalkedDirectory { fd, path: real } = walk_to_directory(&self.fd, &self.merged, path, make)?;
            (fd, is_merged(&real, &self.merged))
        };
        let stat = fstat(&fd)?;
        self.space.borrow_mut().add_filesystem(&fd, &stat)?;
        let leaves_acls = !merged && acl::inherits_acl(&fd)?;
        let directory = Rc::new(ResolvedDirectory { fd, identity: inode_identity(&stat), merged, leaves_acls });
        let mut known = self.known.borrow_mut();
        if known.len() >= MAXIMUM_CACHED_DIRECTORIES {
            known.clear();
        }
        known.insert(path.as_os_str().to_owned(), directory.clone());
        Ok(directory)
    }

    /// Returns device and inode numbers of the merged mount points.
    pub(super) fn merged_identities(&self) -> io::Result<Vec<(u64, u64)>> {
        let mut identities = Vec::new();
        for path in &self.merged {
            match walk_to_directory(&self.fd, &self.merged, path, false) {
                Ok(here) => identities.push(inode_identity(&fstat(&here.fd)?)),
                Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(identities)
    }

    /// Clears the cache, after a file was removed or a directory got a default ACL.
    pub(crate) fn clear_cache(&self) {
        self.known.borrow_mut().clear();
    }

    fn make_directories(&self, path: &Path) -> io::Result<OwnedFd> {
        match self.open_path(path) {
            Err(Errno::ENOENT) if path != Path::new("") => {
                // The cost of creating a directory increases with the length of its path.
                self.add_work(1 + path.as_os_str().len() as u64 / 64);
                let above = self.make_directories(parent_of(path))?;
                make_directory(&above, &name_of(path)?)?;
                self.record_created(inode_identity(&fstat(&above)?), &name_of(path)?)?;
                acl::remove_inherited(&above, &name_of(path)?)?;
                Ok(self.open_path(path)?)
            }
            other => Ok(other?),
        }
    }

    fn open_path(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.open_inside(if path == Path::new("") { Path::new(".") } else { path }, OFlag::O_PATH)
    }

    fn open_inside(&self, path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
        safe_open::open_beneath(&self.fd, path, flags | OFlag::O_DIRECTORY, PathRestriction::AsRoot)
    }

    /// Records the directories of the root filesystem and of the filesystems mounted at `mount_points`, before the
    /// image is unpacked, for [`Self::restore_snapshots`]. `mount_points` lists only filesystems that this installation
    /// has created.
    ///
    /// # Errors
    /// Returns an error if a directory cannot be read, if a merged directory is on the root filesystem, or if a mount
    /// point is on a preserved filesystem.
    pub(crate) fn record_snapshots(&self, mount_points: &[PathBuf]) -> io::Result<Vec<DirectorySnapshot>> {
        let preserved = self.merged_identities()?;
        let own = fstat(&self.fd)?.st_dev;
        if preserved.iter().any(|(device, _)| *device == own) {
            return Err(io::Error::other(
                "the image cannot be merged into this directory, which is not the mount point of a filesystem",
            ));
        }
        let mut fresh =
            vec![DirectorySnapshot::record_directory(openat(&self.fd, ".", directory_flags(), Mode::empty())?)?];
        for path in mount_points {
            let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
            let directory = safe_open::open_beneath(&self.fd, path, directory_flags(), PathRestriction::Plain)
                .map_err(|error| named(error.into()))?;
            let device = fstat(&directory)?.st_dev;
            if preserved.iter().any(|(preserved, _)| *preserved == device) {
                return Err(named(io::Error::other(
                    "the directory is not the mount point of a new filesystem: it is on a preserved filesystem",
                )));
            }
            fresh.push(DirectorySnapshot::record_directory(directory).map_err(named)?);
        }
        Ok(fresh)
    }

    /// Restores the recorded directories to their state before the image was unpacked, and removes all other files.
    ///
    /// # Errors
    /// Returns an error if a file cannot be removed or an attribute cannot be set.
    pub(crate) fn restore_snapshots(&self, fresh: &[DirectorySnapshot]) -> io::Result<()> {
        self.clear_cache();
        fresh.iter().try_for_each(DirectorySnapshot::restore)
    }
}

/// Returns the flags with which a directory is opened for reading.
pub(super) fn directory_flags() -> OFlag {
    OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC
}

pub(super) fn not_a_directory_as_none(opened: Result<OwnedFd, Errno>) -> io::Result<Option<File>> {
    match opened {
        Ok(directory) => Ok(Some(directory.into())),
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn parent_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

fn name_of(path: &Path) -> io::Result<OsString> {
    let name = path.file_name().map(OsStr::to_owned);
    name.ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, "the path is the root itself, which is always a directory")
    })
}
