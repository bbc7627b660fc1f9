//! Hard links. Where there can be none, between filesystems and on FAT, the second name becomes a copy.

use super::attributes::{is_fat, set_by_name, set_on_file};
use super::member::Attributes;
use super::place::Place;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use xattr::FileExt;

/// Another name for what is at `source`; `false` where there can be none.
///
/// # Errors
/// The source is missing, or something that has no second name anywhere; the filesystem's own.
pub fn link(source: &Place, place: &Place) -> io::Result<bool> {
    let Err(error) = place.make_hard_link(source) else { return Ok(true) };
    match error.raw_os_error().map(Errno::from_raw) {
        // Two filesystems, or more names than one file can have: 65,000 on ext4.
        Some(Errno::EXDEV | Errno::EMLINK) => Ok(false),
        // FAT knows no second names. Elsewhere it is said of what must not have one.
        Some(Errno::EPERM) if is_fat(place.parent())? => Ok(false),
        _ => Err(error),
    }
}

/// A copy of what is at `source`, which must be whole. Before the first byte `allowed` is asked about the new file, and
/// how many are to come.
///
/// # Errors
/// The source cannot be copied; `allowed`'s and the filesystem's own.
pub fn copy(source: &Place, place: &Place, allowed: impl FnOnce(&File, u64) -> io::Result<()>) -> io::Result<()> {
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
            set_on_file(&to, &attributes(&stat, xattrs?))
        }
        SFlag::S_IFLNK => {
            let target = readlinkat(source.parent(), source.name.as_os_str())?;
            place.make_symlink(target.as_bytes())?;
            set_by_name(place, &attributes(&stat, Vec::new()), true)
        }
        _ => Err(io::Error::other("it cannot have this name too, and is no file or symlink that could be copied")),
    }
}

fn attributes(stat: &FileStat, xattrs: Vec<(std::ffi::OsString, Vec<u8>)>) -> Attributes {
    Attributes {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or_default()),
        xattrs,
    }
}
