//! Drops privileges: the process gets a user ID that no other user has, loses all capabilities, and cannot regain
//! privileges.

use nix::errno::Errno;
use nix::libc;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use std::io;

/// User and group ID of unprivileged processes. Debian reserves this number, so no other user has this ID.
pub const SANDBOX_ID: u32 = 65_432;

/// Switches to the unprivileged user and group. Only root can do this.
///
/// # Errors
/// Returns an error if the kernel refuses the change. In this case, the process must not continue.
pub(crate) fn drop_user() -> io::Result<()> {
    setgroups(&[]).map_err(|error| describe_failure("drop the supplementary groups", error))?;
    let (uid, gid) = (Uid::from_raw(SANDBOX_ID), Gid::from_raw(SANDBOX_ID));
    setresgid(gid, gid, gid).map_err(|error| describe_failure("change the group ID", error))?;
    setresuid(uid, uid, uid).map_err(|error| describe_failure("change the user ID", error))
}

/// Drops all capabilities, and prevents the process from regaining any of them through exec.
///
/// # Errors
/// The same errors as for [`drop_user`].
pub(crate) fn drop_all_capabilities() -> io::Result<()> {
    clear_capability_sets().map_err(|error| describe_failure("drop all capabilities", error))?;
    // SAFETY: PR_SET_NO_NEW_PRIVS takes a number.
    let no_more = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    Errno::result(no_more).map_err(|error| describe_failure("set no_new_privs", error)).map(drop)
}

/// Closes all file descriptors except standard input, output and error, because the parent may have leaked descriptors.
///
/// # Errors
/// Returns an error if the kernel refuses to close a descriptor.
pub fn close_inherited_files() -> io::Result<()> {
    // SAFETY: this process has not opened any files yet, except the three standard ones.
    Errno::result(unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) })?;
    Ok(())
}

/// Drops all capabilities. Each set has two 32-bit words in version 3 of the interface (capset(2)).
fn clear_capability_sets() -> Result<(), Errno> {
    let header: [u32; 2] = [0x2008_0522, 0];
    let none = [0_u32; 6];
    // SAFETY: both arguments have the layout of linux/capability.h, and live until the call returns.
    Errno::result(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) }).map(drop)
}

pub(crate) fn describe_failure(what: &str, error: Errno) -> io::Error {
    io::Error::other(format!("{what}: {error}"))
}
