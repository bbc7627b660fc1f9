//! Processes restricted to a few capabilities. A process started by root changes to an unprivileged user. A process
//! started by any other user keeps its user, and must already have the capabilities that it retains.

use super::privilege_drop::{describe_failure, drop_user};
use nix::errno::Errno;
use nix::libc;
use nix::unistd::geteuid;
use std::io;

/// Capability, numbered as in linux/capability.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    NetBindService = 10,
    NetAdmin = 12,
    NetRaw = 13,
}

/// Header for capset(2): version 3 of the interface, in which each capability set consists of two 32-bit words.
const CAPSET_HEADER: [u32; 2] = [0x2008_0522, 0];

/// Returns whether this process has all of these capabilities.
pub fn has_capabilities(capabilities: &[Capability]) -> bool {
    read_own_sets()
        .is_ok_and(|[_, permitted, ..]| permitted & capability_bits(capabilities) == capability_bits(capabilities))
}

/// Returns the effective, permitted and inheritable capability sets: first the low 32 bits of each of the three sets,
/// then the high 32 bits of each set.
fn read_own_sets() -> Result<[u32; 6], Errno> {
    let mut sets = [0; 6];
    // SAFETY: both arguments have the layout of linux/capability.h, and live until the call returns.
    let status = unsafe { libc::syscall(libc::SYS_capget, CAPSET_HEADER.as_ptr(), sets.as_mut_ptr()) };
    Errno::result(status).map(|_| sets)
}

fn capability_bits(capabilities: &[Capability]) -> u32 {
    capabilities.iter().fold(0, |bits, one| bits | 1 << *one as u32)
}

/// Drops all capabilities except these from this process and from the program that it executes. The kernel terminates
/// the process when the thread that started the process ends.
///
/// Called between fork and exec, where only system calls are safe.
///
/// # Errors
/// Returns an error if the kernel refuses the change. In this case, the program must not be started.
pub(crate) fn keep_only_capabilities(capabilities: &[Capability]) -> io::Result<()> {
    let prctl = |what, number: libc::c_ulong, more: libc::c_ulong| {
        // SAFETY: prctl is only called with options that take numbers.
        Errno::result(unsafe { libc::prctl(what, number, more, 0, 0) }).map(drop)
    };
    if geteuid().is_root() {
        prctl(libc::PR_SET_KEEPCAPS, 1, 0).map_err(|error| describe_failure("keep capabilities", error))?;
        drop_user()?;
    }
    let bits = capability_bits(capabilities);
    let sets = [bits, bits, bits, 0, 0, 0];
    // capset(2) is called only if necessary, because a systemd unit that grants exactly these capabilities may forbid
    // this call.
    if read_own_sets() != Ok(sets) {
        // SAFETY: both arguments have the layout of linux/capability.h, and live until the call returns.
        let set = unsafe { libc::syscall(libc::SYS_capset, CAPSET_HEADER.as_ptr(), sets.as_ptr()) };
        Errno::result(set).map_err(|error| describe_failure("drop all other capabilities", error))?;
    }
    for one in capabilities {
        prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE as libc::c_ulong, *one as libc::c_ulong)
            .map_err(|error| describe_failure("pass on capabilities", error))?;
    }
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0).map_err(|error| describe_failure("set no_new_privs", error))?;
    prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM as libc::c_ulong, 0)
        .map_err(|error| describe_failure("request SIGTERM when the parent process ends", error))
}
