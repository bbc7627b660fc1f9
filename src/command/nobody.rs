//! A process that is nobody: another user than all others, without capabilities, and none of that comes back.

use nix::errno::Errno;
use nix::libc;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use std::io;

/// A user and a group that nobody else is: Debian reserves the number, and no system gives it away.
pub const NOBODY_ELSE: u32 = 65_432;

/// Only root can.
///
/// # Errors
/// The kernel refuses: the process must not go on then.
pub fn become_nobody() -> io::Result<()> {
    setgroups(&[]).map_err(|error| failed("leave the groups of root", error))?;
    let (uid, gid) = (Uid::from_raw(NOBODY_ELSE), Gid::from_raw(NOBODY_ELSE));
    setresgid(gid, gid, gid).map_err(|error| failed("be another group", error))?;
    setresuid(uid, uid, uid).map_err(|error| failed("be another user than root", error))
}

/// Those that it has, and those that a program could bring it.
///
/// # Errors
/// As [`become_nobody`].
pub fn give_up_capabilities() -> io::Result<()> {
    drop_capabilities().map_err(|error| failed("drop all capabilities", error))?;
    // SAFETY: PR_SET_NO_NEW_PRIVS takes a number.
    let no_more = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    Errno::result(no_more).map_err(|error| failed("forbid new privileges", error)).map(drop)
}

/// Closes all but the standard three: what the program before has left open by mistake.
///
/// # Errors
/// The kernel's own.
pub fn close_others() -> io::Result<()> {
    // SAFETY: nothing of this process has a file open yet but the standard three.
    Errno::result(unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) })?;
    Ok(())
}

/// See capset(2): the third version has two words of 32 bits each.
fn drop_capabilities() -> Result<(), Errno> {
    let header: [u32; 2] = [0x2008_0522, 0];
    let none = [0_u32; 6];
    // SAFETY: both have the layout of linux/capability.h, and live until it returns.
    Errno::result(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) }).map(drop)
}

pub fn failed(what: &str, error: Errno) -> io::Error {
    io::Error::other(format!("{what}: {error}"))
}
