//! Resolves the path of a member's parent directory one component at a time, if preserved filesystems are mounted below
//! the root. Symlinks of the image are followed within the root. Symlinks on a preserved filesystem are never followed,
//! because otherwise files of the image could be written to a target that another owner has chosen.

use super::acl;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// Maximum number of symlinks that are followed for one path, equal to the kernel's MAXSYMLINKS.
const MAXIMUM_SYMLINKS: u32 = 40;

/// Open directory, and its path below the root without symlinks.
pub(crate) struct WalkedDirectory {
    pub fd: OwnedFd,
    pub path: PathBuf,
}

/// Returns whether a path is at or below one of the mount points `merged`: those of preserved filesystems into which
/// the image is merged. The path must not contain symlinks.
pub(crate) fn is_merged(path: &Path, merged: &[PathBuf]) -> bool {
    merged.iter().any(|mount_point| path.starts_with(mount_point))
}

/// Opens the directory at `path`. If `make` is set, missing directories are created with mode 0755, and a component of
/// `path` that is a file or symlink on a preserved filesystem is replaced by a directory.
///
/// # Errors
/// Returns an error if a component is missing or not a directory.
pub(crate) fn walk_to_directory(
    root: &OwnedFd,
    merged: &[PathBuf],
    path: &Path,
    make: bool,
) -> Result<WalkedDirectory, Errno> {
    let top = || Ok(WalkedDirectory { fd: openat(root, ".", open_flags(), Mode::empty())?, path: PathBuf::new() });
    let mut way = vec![top()?];
    let (mut todo, mut symlinks): (VecDeque<OsString>, u32) = (path_components(path).collect(), 0);
    while let Some(name) = todo.pop_front() {
        if name == ".." {
            // The parent of the root is the root.
            way.truncate(way.len().saturating_sub(1).max(1));
            continue;
        }
        let here = way.last().ok_or(Errno::ENOENT)?;
        match openat(&here.fd, name.as_os_str(), open_flags(), Mode::empty()) {
            Ok(fd) => way.push(WalkedDirectory { fd, path: here.path.join(&name) }),
            Err(Errno::ENOENT) if make => {
                make_directory(&here.fd, &name)?;
                if !is_merged(&here.path, merged) {
                    acl::remove_inherited(&here.fd, &name)?;
                }
                todo.push_front(name);
            }
            Err(Errno::ENOTDIR | Errno::ELOOP) if is_merged(&here.path, merged) && !make => {
                return Err(Errno::ENOTDIR);
            }
            Err(Errno::ENOTDIR | Errno::ELOOP) if is_merged(&here.path, merged) => {
                unlinkat(&here.fd, name.as_os_str(), UnlinkatFlags::NoRemoveDir)?;
                make_directory(&here.fd, &name)?;
                todo.push_front(name);
            }
            Err(Errno::ENOTDIR | Errno::ELOOP) => {
                let target = read_symlink(&here.fd, &name)?;
                symlinks += 1;
                if symlinks > MAXIMUM_SYMLINKS {
                    return Err(Errno::ELOOP);
                }
                if Path::new(&target).is_absolute() {
                    way.truncate(1);
                }
                let parts: Vec<OsString> = path_components(Path::new(&target)).collect();
                parts.into_iter().rev().for_each(|part| todo.push_front(part));
            }
            Err(error) => return Err(error),
        }
    }
    way.pop().ok_or(Errno::ENOENT)
}

/// Returns flags that make open(2) fail with ENOTDIR for anything except a directory, even for a symlink (see O_PATH).
fn open_flags() -> OFlag {
    OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC
}

/// Returns the target of a symlink; fails with ENOTDIR for any other file.
fn read_symlink(parent: &OwnedFd, name: &OsStr) -> Result<OsString, Errno> {
    readlinkat(parent, name).map_err(|error| match error {
        Errno::EINVAL => Errno::ENOTDIR,
        other => other,
    })
}

fn path_components(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

/// Creates a directory with mode 0755. The mode is set separately, because mkdir(2) applies the umask.
pub(crate) fn make_directory(parent: impl AsFd, name: &OsStr) -> Result<(), Errno> {
    mkdirat(&parent, name, Mode::S_IRWXU)?;
    fchmodat(&parent, name, Mode::from_bits_truncate(0o755), FchmodatFlags::FollowSymlink)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn symlinks_are_followed_within_the_root_except_preserved_ones() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        fs::create_dir_all(root.join("var/lib/real")).unwrap();
        fs::create_dir_all(directory.path().join("srv")).unwrap();
        for (target, link) in [
            ("/var/lib", "abs"),
            ("../../..", "up"),
            ("up/abs/real", "three"),
            ("loop", "loop"),
            ("/srv", "var/lib/docker"),
            ("real", "var/lib/near"),
        ] {
            symlink(target, root.join(link)).unwrap();
        }
        fs::write(root.join("file"), "").unwrap();
        fs::write(root.join("var/lib/file"), "").unwrap();
        let fd = OwnedFd::from(fs::File::open(&root).unwrap());
        let merged = [PathBuf::from("var/lib")];
        let to = |path: &str, make| walk_to_directory(&fd, &merged, Path::new(path), make).map(|here| here.path);
        for (path, is) in [("", ""), ("abs/real", "var/lib/real"), ("up/var", "var"), ("three", "var/lib/real")] {
            assert_eq!(to(path, false), Ok(is.into()), "{path}");
        }
        for (path, error) in [
            ("loop", Errno::ELOOP),
            ("file/x", Errno::ENOTDIR),
            ("missing", Errno::ENOENT),
            ("abs/docker", Errno::ENOTDIR),
            ("var/lib/near", Errno::ENOTDIR),
            ("var/lib/file", Errno::ENOTDIR),
        ] {
            assert_eq!(to(path, false), Err(error), "{path}");
        }
        assert!(root.join("var/lib/docker").is_symlink());
        assert_eq!(to("file/x", true), Err(Errno::ENOTDIR));
        for path in ["abs/docker/x", "var/lib/near", "var/lib/file/y", "new/directories"] {
            let is = path.replace("abs", "var/lib");
            assert_eq!(to(path, true), Ok(is.clone().into()), "{path}");
            assert!(root.join(is).symlink_metadata().unwrap().is_dir());
        }
        assert_eq!(fs::read_dir(directory.path().join("srv")).unwrap().count(), 0);
        assert!(!root.join("srv").exists() && fs::read_dir(root.join("var/lib/real")).unwrap().count() == 0);
    }
}
