//! File access within the target's root. The image may contain any symlink: `/etc/metal -> /dev`, for example, must
//! lead to the target's `/dev`, not to the `/dev` of the ramdisk.

use crate::replaced_attributes::{LABEL, ReplacedAttributes};
use common::error::{Context, Phase, Result};
use linux::safe_open::{self, PathRestriction};
use nix::errno::Errno;
use nix::fcntl::{OFlag, RenameFlags, openat, renameat2};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use xattr::FileExt;

/// Maximum size of a text file that is read from the target.
const READ_LIMIT_BYTES: u64 = 1024 * 1024;

/// Root directory of the target. Paths are absolute in the target: `/etc/fstab`.
#[derive(Debug)]
pub struct NewRoot {
    dir: OwnedFd,
    path: PathBuf,
}

impl NewRoot {
    /// Opens the root directory.
    ///
    /// # Errors
    /// Returns an error if the directory does not exist.
    pub fn open(path: &Path) -> Result<NewRoot> {
        let dir = File::open(path)
            .context(Phase::Target, || format!("open the target at {folder}", folder = path.display()))?;
        Ok(NewRoot { dir: dir.into(), path: path.to_owned() })
    }

    /// Returns the path at which the target's root is mounted in the ramdisk.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the open root directory.
    pub(crate) fn fd(&self) -> impl AsFd + '_ {
        &self.dir
    }

    /// Writes a new file, replacing any existing file, and creates missing directories.
    ///
    /// # Errors
    /// Returns an error if a component of the path is not a directory, or the write fails.
    pub fn write_file(&self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.write_file_from(path, mode, &mut &*content)
    }

    /// Writes a file like [`NewRoot::write_file`], with content from a reader.
    ///
    /// # Errors
    /// As for [`NewRoot::write_file`]. Also returns an error if the content cannot be read.
    pub(crate) fn write_file_from(&self, path: &str, mode: u32, content: &mut dyn Read) -> Result<()> {
        self.replace_file(path, mode, content).context(Phase::Target, || format!("write {path} to the target"))
    }

    fn replace_file(&self, path: &str, mode: u32, content: &mut dyn Read) -> io::Result<()> {
        let (parent, name) = split_path(path)?;
        let parent = self.open_or_create_directory(parent)?;
        let attributes = ReplacedAttributes::read(&parent, name)?;
        unlink_in(&parent, name)?;
        // With O_EXCL, no existing symlink of the image is followed, and no existing FIFO or device is written.
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut file = File::from(openat(&parent, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
        attributes.set_on_file(&file)?;
        // The mode is set explicitly, because the umask may have cleared bits of the mode. The mode also limits the
        // rights that an ACL grants.
        fchmod(&file, Mode::from_bits_truncate(mode))?;
        io::copy(content, &mut file)?;
        file.sync_all()
    }

    /// Creates a new file and missing directories.
    ///
    /// # Errors
    /// Returns an error if the file already exists, or a component of the path is not a directory.
    pub(crate) fn create_new_file(&self, path: &str, mode: u32) -> io::Result<File> {
        let (parent, name) = split_path(path)?;
        let parent = self.open_or_create_directory(parent)?;
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = File::from(openat(&parent, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
        ReplacedAttributes::read(&parent, name)?.set_on_file(&file)?;
        fchmod(&file, Mode::from_bits_truncate(mode))?;
        Ok(file)
    }

    /// Renames a file within its directory.
    ///
    /// # Errors
    /// Returns an error if a file with the new name already exists, or the file to rename does not exist.
    pub(crate) fn rename_new_file(&self, path: &str, name: &str) -> io::Result<()> {
        let (parent, now) = split_path(path)?;
        let parent = self.open_or_create_directory(parent)?;
        Ok(renameat2(&parent, now, &parent, name, RenameFlags::RENAME_NOREPLACE)?)
    }

    /// Creates a symlink, replacing any existing file, and creates missing directories.
    ///
    /// # Errors
    /// As for [`NewRoot::write_file`].
    pub(crate) fn create_symlink(&self, path: &str, to: &str) -> Result<()> {
        let link = || {
            let (parent, name) = split_path(path)?;
            let parent = self.open_or_create_directory(parent)?;
            let attributes = ReplacedAttributes::read(&parent, name)?;
            unlink_in(&parent, name)?;
            symlinkat(to, &parent, name)?;
            attributes.set_by_name(&parent, name)
        };
        let linked: io::Result<()> = link();
        linked.context(Phase::Target, || format!("create the symlink {path} in the target"))
    }

    /// Returns the path at which an open file of the target is visible in the ramdisk, for tools that require a path.
    ///
    /// # Errors
    /// Returns an error if the file is not below the target's root.
    pub(crate) fn real_path(&self, file: &File) -> io::Result<PathBuf> {
        let real = |fd: &dyn AsRawFd| std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let (path, root) = (real(file)?, real(&self.dir)?);
        if path.starts_with(&root) { Ok(path) } else { Err(io::Error::other("the file is outside the target")) }
    }

    /// Replaces a file and preserves its owner and mode. If no such file exists, creates a file that belongs to root
    /// and has the mode `mode`.
    ///
    /// # Errors
    /// As for [`NewRoot::write_file`].
    pub(crate) fn rewrite_file(&self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        let was = self.open_file(path).and_then(|file| file.metadata()).ok();
        self.write_file(path, mode, content)?;
        match was {
            Some(was) => self.change_owner(path, (was.uid(), was.gid()), was.mode() & 0o7777),
            None => Ok(()),
        }
    }

    /// Changes owner, group and mode of a file or directory.
    ///
    /// # Errors
    /// Returns an error if the file or directory does not exist, or the filesystem refuses the change.
    pub(crate) fn change_owner(&self, path: &str, (user, group): (u32, u32), mode: u32) -> Result<()> {
        let give = || {
            let file = File::from(self.open_resolved(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK)?);
            std::os::unix::fs::fchown(&file, Some(user), Some(group))?;
            // The mode is set last, because chown(2) clears set-user-ID bits.
            Ok(fchmod(&file, Mode::from_bits_truncate(mode))?)
        };
        let given: io::Result<()> = give();
        given.context(Phase::Target, || format!("change the owner and mode of {path} in the target"))
    }

    /// Returns whether the path itself is a symlink. Symlinks in its directory are resolved within the target.
    pub(crate) fn is_symlink(&self, path: &str) -> bool {
        let parent = split_path(path)
            .and_then(|(parent, name)| Ok((self.open_resolved(parent, OFlag::O_PATH | OFlag::O_DIRECTORY)?, name)));
        parent.is_ok_and(|(parent, name)| nix::fcntl::readlinkat(&parent, name).is_ok())
    }

    /// Returns whether the path exists. Symlinks are resolved within the target.
    pub fn path_exists(&self, path: &str) -> bool {
        self.open_resolved(path, OFlag::O_PATH).is_ok()
    }

    /// Opens a regular file for reading; symlinks are resolved within the target.
    ///
    /// # Errors
    /// Returns an error if the file does not exist or is not regular.
    pub(crate) fn open_file(&self, path: &str) -> io::Result<File> {
        // Without O_NONBLOCK, opening a FIFO would block. For regular files, the flag has no effect.
        let file = File::from(self.open_resolved(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK)?);
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("the path is not a regular file")) }
    }

    /// Reads the SELinux label of a directory; `None` if the directory has no label.
    ///
    /// # Errors
    /// Returns an error if the directory does not exist, or its filesystem does not store labels.
    pub(crate) fn read_label(&self, path: &str) -> io::Result<Option<Vec<u8>>> {
        File::from(self.open_resolved(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?).get_xattr(LABEL)
    }

    /// Reads a small text file.
    ///
    /// # Errors
    /// Returns an error if the file is missing, larger than 1 MiB, or not valid UTF-8.
    pub(crate) fn read_text(&self, path: &str) -> io::Result<String> {
        let mut text = String::new();
        self.open_file(path)?.take(READ_LIMIT_BYTES + 1).read_to_string(&mut text)?;
        if text.len() as u64 > READ_LIMIT_BYTES {
            Err(io::Error::other("the file is larger than 1 MiB"))
        } else {
            Ok(text)
        }
    }

    /// Returns the sorted names in a directory without `.` and `..`.
    ///
    /// # Errors
    /// Returns an error if the directory does not exist.
    pub(crate) fn list_names(&self, path: &str) -> io::Result<Vec<String>> {
        let mut dir = nix::dir::Dir::from_fd(self.open_resolved(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?)?;
        let names = dir.iter().map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let mut names = names.collect::<io::Result<Vec<String>>>()?;
        names.retain(|name| name != "." && name != "..");
        names.sort();
        Ok(names)
    }

    /// Waits until the entries of this directory are on the disk. This call is necessary after [`NewRoot::write_file`],
    /// which waits only for the content of the file.
    ///
    /// # Errors
    /// Returns an error if the directory does not exist, or the disk fails.
    pub(crate) fn sync_dir(&self, path: &str) -> Result<()> {
        let sync = || File::from(self.open_resolved(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?).sync_all();
        sync().context(Phase::Target, || format!("sync the directory {path} in the target"))
    }

    /// Removes a file, if it exists.
    ///
    /// # Errors
    /// Returns an error if the file cannot be removed.
    pub(crate) fn remove(&self, path: &str) -> Result<()> {
        let remove = || {
            let (parent, name) = split_path(path)?;
            match self.open_resolved(parent, OFlag::O_PATH | OFlag::O_DIRECTORY) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                parent => unlink_in(&parent?, name),
            }
        };
        remove().context(Phase::Target, || format!("remove {path} from the target"))
    }

    /// Creates a directory with missing parents; symlinks are resolved within the target.
    ///
    /// # Errors
    /// Returns an error if a component of the path is not a directory, or a directory cannot be created.
    pub(crate) fn make_directory(&self, path: &str) -> Result<()> {
        let made = self.open_or_create_directory(path).map(drop);
        made.context(Phase::Target, || format!("create the directory {path} in the target"))
    }

    fn open_or_create_directory(&self, path: &str) -> io::Result<OwnedFd> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
        let mut dir = self.open_resolved("/", flags)?;
        let mut sofar = PathBuf::from("/");
        for name in path.split('/').filter(|name| !name.is_empty()) {
            sofar.push(name);
            // The path is resolved from the root each time, because symlinks are relative to the root.
            let resolved = match self.open_resolved(&sofar, flags) {
                Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => {
                    let attributes = ReplacedAttributes::read(&dir, name)?;
                    mkdirat(&dir, name, Mode::from_bits_truncate(0o755))?;
                    attributes.set_by_name(&dir, name)?;
                    self.open_resolved(&sofar, flags)
                }
                resolved => resolved,
            };
            dir = resolved?;
        }
        Ok(dir)
    }

    fn open_resolved(&self, path: impl AsRef<Path>, flags: OFlag) -> io::Result<OwnedFd> {
        Ok(safe_open::open_beneath(&self.dir, path.as_ref(), flags, PathRestriction::AsRoot)?)
    }
}

/// Splits a path into directory and name.
fn split_path(path: &str) -> io::Result<(&str, &str)> {
    match path.rsplit_once('/') {
        None | Some((_, "")) => Err(io::Error::other("the path is not the absolute path of a file")),
        Some(("", name)) => Ok(("/", name)),
        Some(split) => Ok(split),
    }
}

fn unlink_in(parent: &OwnedFd, name: &str) -> io::Result<()> {
    match unlinkat(parent, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use tempfile::TempDir;

    /// Returns a target, and a directory outside it that must not be accessed.
    fn target() -> (TempDir, NewRoot, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let (inside, outside) = (dir.path().join("target"), dir.path().join("outside"));
        fs::create_dir(&inside).unwrap();
        fs::create_dir(&outside).unwrap();
        let root = NewRoot::open(&inside).unwrap();
        (dir, root, outside)
    }

    #[test]
    fn files_are_created_with_directories_and_mode() {
        let (_dir, root, _) = target();
        root.write_file("/etc/metal/install.yaml", 0o600, b"one").unwrap();
        root.write_file("/etc/metal/install.yaml", 0o644, b"two").unwrap();
        let path = root.path().join("etc/metal/install.yaml");
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o644);
        assert_eq!(root.read_text("/etc/metal/install.yaml").unwrap(), "two");
        root.remove("/etc/metal/install.yaml").unwrap();
        root.remove("/none/metal/install.yaml").unwrap();
        root.sync_dir("/etc/metal").unwrap();
        root.sync_dir("/none").unwrap_err();
        assert_eq!(root.read_text("/etc/metal/install.yaml").unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn symlinks_in_the_target_do_not_leave_the_target() {
        let (_dir, root, outside) = target();
        let inside = root.path().to_owned();
        let secret = outside.join("secret");
        fs::write(&secret, "ours").unwrap();
        // An absolute link to a directory that exists in the ramdisk but not in the target.
        symlink(&outside, inside.join("etc")).unwrap();
        root.write_file("/etc/metal/install.yaml", 0o600, b"x").unwrap_err();
        // A path that leads upwards ends at the target's root.
        symlink("../../../../outside", inside.join("up")).unwrap();
        fs::create_dir(inside.join("outside")).unwrap();
        root.write_file("/up/file", 0o600, b"x").unwrap();
        assert!(inside.join("outside/file").exists());
        // A link with the name of the file is replaced, and its target is not changed.
        symlink(&secret, inside.join("fstab")).unwrap();
        root.write_file("/fstab", 0o644, b"x").unwrap();
        assert_eq!(fs::read(inside.join("fstab")).unwrap(), b"x");
        // Reading also does not leave the target's root.
        symlink(&secret, inside.join("kernel")).unwrap();
        assert!(root.open_file("/kernel").is_err());
        symlink("/boot/vmlinuz-6.1", inside.join("vmlinuz")).unwrap();
        root.write_file("/boot/vmlinuz-6.1", 0o644, b"kernel").unwrap();
        assert_eq!(root.read_text("/vmlinuz").unwrap(), "kernel");

        assert_eq!(fs::read(&secret).unwrap(), b"ours");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    }

    #[test]
    fn link_to_a_directory_is_followed_within_the_target() {
        let (_dir, root, outside) = target();
        fs::create_dir_all(root.path().join("data/metal")).unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        symlink("/data/metal", root.path().join("etc/metal")).unwrap();
        root.write_file("/etc/metal/userdata", 0o600, b"x").unwrap();
        assert!(root.path().join("data/metal/userdata").exists());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }

    #[test]
    fn fifos_and_directories_are_not_read() {
        let (_dir, root, _) = target();
        nix::unistd::mkfifo(&root.path().join("fifo"), Mode::S_IRWXU).unwrap();
        fs::create_dir(root.path().join("dir")).unwrap();
        for path in ["/fifo", "/dir", "/", "/none"] {
            assert!(root.read_text(path).is_err(), "{path}");
        }
        for path in ["", "file", "/dir/", "/dir"] {
            assert!(root.write_file(path, 0o600, b"").is_err(), "{path}");
        }
        root.write_file("/fifo", 0o600, b"now a file").unwrap();
        assert_eq!(root.read_text("/fifo").unwrap(), "now a file");
    }
    #[test]
    fn rewritten_file_keeps_its_mode() {
        let (_dir, root, _) = target();
        let mode = |path: &str| fs::metadata(root.path().join(path)).unwrap().permissions().mode() & 0o7777;
        root.rewrite_file("/shadow", 0o600, b"new").unwrap();
        assert_eq!(mode("shadow"), 0o600);
        fs::set_permissions(root.path().join("shadow"), PermissionsExt::from_mode(0o640)).unwrap();
        root.rewrite_file("/shadow", 0o600, b"again").unwrap();
        assert_eq!((mode("shadow"), root.read_text("/shadow").unwrap().as_str()), (0o640, "again"));
        assert!(root.path_exists("/shadow") && !root.path_exists("/none"));
        root.change_owner("/none", (0, 0), 0o600).unwrap_err();
    }
}
