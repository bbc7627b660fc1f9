//! A hard link where there can be none: between filesystems the second name becomes a copy.

use super::attributes::{set_by_name, set_on_file};
use super::members::Attributes;
use super::place::Place;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use xattr::FileExt;

/// Another name for what is at `source`, or a copy of it when `place` is on another filesystem. `settle` makes sure that
/// the source is whole, before it is copied.
///
/// # Errors
/// The source is missing, or something that cannot be copied; the filesystem's own.
pub fn link_or_copy(source: &Place, place: &Place, settle: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    match place.make_hard_link(source) {
        Err(error) if error.raw_os_error() == Some(Errno::EXDEV as i32) => {
            settle()?;
            copy(source, place)
        }
        other => other,
    }
}

fn copy(source: &Place, place: &Place) -> io::Result<()> {
    let stat = source.stat()?;
    match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => {
            let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let mut from = File::from(openat(source.parent(), source.name.as_os_str(), flags, Mode::empty())?);
            let mut to = place.make_file(Mode::S_IRUSR | Mode::S_IWUSR)?;
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
        _ => Err(io::Error::other("it is on another filesystem, and no file or symlink that could be copied")),
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
