//! Safe opening of files beneath an untrusted directory: an unpacked image, or a filesystem of the previous owner. The
//! kernel resolves the path, and no symlink can lead out of the directory (openat2(2)).

use nix::NixPath;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use std::os::fd::{AsFd, OwnedFd};

/// Restrictions on path resolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathRestriction {
    /// Symlinks are resolved as if the directory were the root.
    AsRoot,
    /// Symlinks are rejected.
    Plain,
    /// Symlinks and mount points are rejected.
    SameFilesystem,
}

/// Opens `path` beneath `directory` with O_CLOEXEC.
///
/// # Errors
/// Returns ELOOP if the path contains a symlink that is not allowed, and EXDEV if the path escapes from the directory
/// or crosses into another filesystem.
pub fn open_beneath<P: ?Sized + NixPath>(
    directory: impl AsFd,
    path: &P,
    flags: OFlag,
    way: PathRestriction,
) -> Result<OwnedFd, Errno> {
    let resolve = match way {
        PathRestriction::AsRoot => ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS,
        PathRestriction::Plain => ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS,
        PathRestriction::SameFilesystem => {
            ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV
        }
    };
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(resolve);
    loop {
        // EAGAIN: a rename happened somewhere in the system while `..` was resolved; openat2(2) recommends a retry.
        match openat2(&directory, path, how) {
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::io::Read;
    use std::os::unix::fs::symlink;

    /// Opens paths that lead out of the directory, with each restriction.
    #[test]
    fn no_path_leads_out_of_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let prison = dir.path().join("prison");
        fs::create_dir_all(prison.join("etc")).unwrap();
        fs::write(dir.path().join("secret"), "outside").unwrap();
        fs::write(prison.join("secret"), "inside").unwrap();
        symlink("../../../secret", prison.join("etc/relative")).unwrap();
        symlink("/secret", prison.join("absolute")).unwrap();
        symlink(dir.path(), prison.join("upwards")).unwrap();
        let prison = File::open(&prison).unwrap();
        let found = |path: &str, way| -> Result<String, Errno> {
            let mut text = String::new();
            let file = open_beneath(&prison, path, OFlag::O_RDONLY, way);
            file.map(|file| File::from(file).read_to_string(&mut text).unwrap())?;
            Ok(text)
        };
        let inside = Ok("inside".to_owned());
        for (path, as_root, plain) in [
            ("secret", inside.clone(), inside.clone()),
            ("etc/relative", inside.clone(), Err(Errno::ELOOP)),
            ("absolute", inside.clone(), Err(Errno::ELOOP)),
            ("upwards/secret", Err(Errno::ENOENT), Err(Errno::ELOOP)),
            ("../secret", inside.clone(), Err(Errno::EXDEV)),
            ("etc/../../secret", inside.clone(), Err(Errno::EXDEV)),
            ("/secret", inside.clone(), Err(Errno::EXDEV)),
        ] {
            assert_eq!(found(path, PathRestriction::AsRoot), as_root, "{path}");
            assert_eq!(found(path, PathRestriction::Plain), plain, "{path}");
            assert_eq!(found(path, PathRestriction::SameFilesystem), plain, "{path}");
        }
    }

    #[test]
    fn refuses_another_filesystem_if_restricted() {
        let root = File::open("/").unwrap();
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
        assert!(open_beneath(&root, "proc/self", flags, PathRestriction::Plain).is_err(), "proc/self is a symlink");
        open_beneath(&root, "proc/sys", flags, PathRestriction::Plain).unwrap();
        assert_eq!(open_beneath(&root, "proc/sys", flags, PathRestriction::SameFilesystem).unwrap_err(), Errno::EXDEV);
    }
}
