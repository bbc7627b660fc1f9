//! Default ACLs: what is made in a directory that has one inherits it, and the image may not have given it that.

use super::members::Attributes;
use nix::errno::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// Whether a directory with these attributes leaves ACLs to what is made in it.
pub fn has_default(attributes: &Attributes) -> bool {
    attributes.xattrs.iter().any(|(name, _)| name == DEFAULT)
}

/// Whether what is made in the directory inherits ACLs.
///
/// # Errors
/// The filesystem's own.
pub fn is_left(directory: impl AsFd) -> io::Result<bool> {
    match xattr::get(way(directory, OsStr::new(".")), DEFAULT) {
        Ok(acl) => Ok(acl.is_some()),
        Err(error) if is_none(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Takes from what was just made what it has inherited.
///
/// # Errors
/// The filesystem's own.
pub fn disinherit(directory: impl AsFd, name: &OsStr) -> Result<(), Errno> {
    let path = way(directory, name);
    [ACCESS, DEFAULT].into_iter().try_for_each(|acl| match xattr::remove(&path, acl) {
        Err(error) if !is_none(&error) => Err(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)),
        _ => Ok(()),
    })
}

/// There is no getxattrat(2) before Linux 6.13. The magic link is exactly this directory.
fn way(directory: impl AsFd, name: &OsStr) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd())).join(name)
}

/// There is no such ACL, or there are none at all.
fn is_none(error: &io::Error) -> bool {
    [Errno::ENODATA, Errno::EOPNOTSUPP].map(|errno| Some(errno as i32)).contains(&error.raw_os_error())
}
