//! Sets owner, xattrs, mode and mtime of a new file, in an order in which no step undoes an earlier one.

use super::root_entry::RootEntry;
use super::tar_member::MemberAttributes;
use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{FchmodatFlags, Mode, UtimensatFlags, fchmod, fchmodat, fstat, futimens, utimensat};
use nix::sys::statfs::{MSDOS_SUPER_MAGIC, fstatfs};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, fchown, fchownat};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use xattr::FileExt;

/// Sets the attributes of an open file or directory, whose content must already have been written completely.
///
/// # Errors
/// Returns an error with the name of the attribute.
pub(crate) fn set_on_file(file: &File, attributes: &MemberAttributes) -> io::Result<()> {
    // Most files have the right attributes already. Checking costs less than setting, which changes the inode each
    // time.
    let is = fstat(file)?;
    // The owner is set first, because chown(2) clears the setuid bit and the file capabilities. The xattrs come before
    // the mode, which may revoke write permission from an owner who is not root.
    let owned = (is.st_uid, is.st_gid) == (attributes.uid, attributes.gid);
    if !owned {
        let (uid, gid) = owner_ids(attributes);
        ignore_on_fat(file, "owner", fchown(file, Some(uid), Some(gid)))?;
    }
    set_xattrs(file, attributes)?;
    // The mode may have changed since it was read: a change of the owner clears bits of the mode, and an ACL among the
    // xattrs changes permission bits.
    let untouched = attributes.xattrs.is_empty() && (owned || is.st_mode & 0o6000 == 0);
    if !untouched || is.st_mode & 0o7777 != attributes.mode {
        ignore_on_fat(file, "mode", fchmod(file, mode_bits(attributes)))?;
    }
    let (atime, mtime) = file_times(attributes);
    ignore_on_fat(file, "mtime", futimens(file, &atime, &mtime))
}

/// Sets the xattrs of an open file or directory.
///
/// # Errors
/// Returns an error with the name of the attribute.
pub(crate) fn set_xattrs(file: &File, attributes: &MemberAttributes) -> io::Result<()> {
    for (name, value) in &attributes.xattrs {
        ignore_on_fat(file, &name.to_string_lossy(), file.set_xattr(name, value))?;
    }
    Ok(())
}

/// Returns the mode with which a file or directory is created. Without xattrs, the permissions are final and need not
/// be set again; with xattrs, the mode is 0600, because setting xattrs requires write permission. Bits that writing or
/// a change of owner would clear are set later.
pub(crate) fn creation_mode(attributes: &MemberAttributes) -> Mode {
    let bits = if attributes.xattrs.is_empty() { attributes.mode & 0o777 } else { 0o600 };
    Mode::from_bits_truncate(bits)
}

/// Sets the attributes of a symlink, device or FIFO by its name, because such a file cannot be opened for this purpose.
///
/// # Errors
/// Returns the same errors as [`set_on_file`].
pub(crate) fn set_by_name(place: &RootEntry, attributes: &MemberAttributes, is_symlink: bool) -> io::Result<()> {
    let (parent, name) = (place.parent(), place.name.as_os_str());
    let is = place.stat()?;
    if (is.st_uid, is.st_gid) != (attributes.uid, attributes.gid) {
        let (uid, gid) = owner_ids(attributes);
        ignore_on_fat(parent, "owner", fchownat(parent, name, Some(uid), Some(gid), AtFlags::AT_SYMLINK_NOFOLLOW))?;
    }
    // The path leads through a magic link in /proc, which refers to exactly this directory. Such a path is needed,
    // because Linux before 6.13 does not have setxattrat(2).
    let path = PathBuf::from(format!("/proc/self/fd/{}", parent.as_raw_fd())).join(name);
    for (xattr, value) in &attributes.xattrs {
        ignore_on_fat(parent, &xattr.to_string_lossy(), xattr::set(&path, xattr, value))?;
    }
    if !is_symlink {
        // This call would follow a symlink. The file cannot be a symlink, because mknod(2) has just created the file
        // and fails if the name exists.
        ignore_on_fat(parent, "mode", fchmodat(parent, name, mode_bits(attributes), FchmodatFlags::FollowSymlink))?;
    }
    let (atime, mtime) = file_times(attributes);
    ignore_on_fat(parent, "mtime", utimensat(parent, name, &atime, &mtime, UtimensatFlags::NoFollowSymlink))
}

/// Ignores errors of unsupported attributes on FAT, the filesystem of an EFI system partition. FAT does not support
/// owners, modes and xattrs.
fn ignore_on_fat<E: Into<io::Error>>(near: impl AsFd, what: &str, result: Result<(), E>) -> io::Result<()> {
    let Err(error) = result.map_err(Into::into) else { return Ok(()) };
    let cannot = [Errno::EPERM, Errno::EOPNOTSUPP].map(|errno| Some(errno as i32));
    if cannot.contains(&error.raw_os_error()) && is_fat(near)? {
        return Ok(());
    }
    Err(io::Error::new(error.kind(), format!("cannot set the file's {what}: {error}")))
}

/// Returns whether an open file is on a FAT filesystem.
///
/// # Errors
/// Returns the error of the filesystem.
pub(crate) fn is_fat(near: impl AsFd) -> io::Result<bool> {
    Ok(fstatfs(near)?.filesystem_type() == MSDOS_SUPER_MAGIC)
}

fn owner_ids(attributes: &MemberAttributes) -> (Uid, Gid) {
    (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid))
}

fn mode_bits(attributes: &MemberAttributes) -> Mode {
    Mode::from_bits_truncate(attributes.mode)
}

/// Returns the access time and the modification time to set on a file. The access time is the current time.
fn file_times(attributes: &MemberAttributes) -> (TimeSpec, TimeSpec) {
    let (seconds, nanoseconds) = attributes.mtime;
    (TimeSpec::new(0, nix::libc::UTIME_NOW), TimeSpec::new(seconds, nanoseconds.into()))
}
