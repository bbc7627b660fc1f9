//! Creates hard links. Creates a copy instead if a hard link is not possible: across filesystems, on FAT, or if the
//! file already has the maximum number of links.

use super::attributes::{is_fat, set_by_name, set_on_file};
use super::root_entry::RootEntry;
use super::tar_member::MemberAttributes;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use xattr::FileExt;

/// Creates a hard link at `place` to `source`. Returns `false` if the filesystem of `place` cannot contain the link;
/// the caller must then create a copy.
///
/// # Errors
/// Returns the error of the filesystem, or an error if the source is missing or the kernel does not allow a hard link
/// to the source.
pub(crate) fn try_hard_link(source: &RootEntry, place: &RootEntry) -> io::Result<bool> {
    let Err(error) = place.make_hard_link(source) else { return Ok(true) };
    match error.raw_os_error().map(Errno::from_raw) {
        // These errors mean that the source is on another filesystem, or has the maximum number of links (65,000 on
        // ext4).
        Some(Errno::EXDEV | Errno::EMLINK) => Ok(false),
        // On FAT, EPERM means that the filesystem does not support hard links. On other filesystems, EPERM is an error
        // about the source.
        Some(Errno::EPERM) if is_fat(place.parent())? => Ok(false),
        _ => Err(error),
    }
}

/// Copies `source`, which must have been written completely. `allowed` is called with the new file and the length of
/// the source before the first byte is written.
///
/// # Errors
/// Returns an error if the source cannot be copied, the error of `allowed`, or the error of the filesystem.
pub(crate) fn copy_source(
    source: &RootEntry,
    place: &RootEntry,
    allowed: impl FnOnce(&File, u64) -> io::Result<()>,
) -> io::Result<()> {
    let stat = source.stat()?;
    match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => {
            let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let mut from = File::from(openat(source.parent(), source.name.as_os_str(), flags, Mode::empty())?);
            let mut to = place.make_file(Mode::S_IRUSR | Mode::S_IWUSR)?;
            allowed(&to, stat.st_size.unsigned_abs())?;
            io::copy(&mut from, &mut to)?;
            let xattrs: io::Result<Vec<_>> =
                from.list_xattr()?.map(|name| Ok((name.clone(), from.get_xattr(name)?.unwrap_or_default()))).collect();
            set_on_file(&to, &attributes_of(&stat, xattrs?))
        }
        SFlag::S_IFLNK => {
            let target = readlinkat(source.parent(), source.name.as_os_str())?;
            place.make_symlink(target.as_bytes())?;
            set_by_name(place, &attributes_of(&stat, Vec::new()), true)
        }
        _ => Err(io::Error::other(
            "a hard link cannot be created at this path, and the target of the link cannot be copied instead, because the target is neither a regular file nor a symlink",
        )),
    }
}

fn attributes_of(stat: &FileStat, xattrs: Vec<(std::ffi::OsString, Vec<u8>)>) -> MemberAttributes {
    MemberAttributes {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or_default()),
        xattrs,
    }
}
