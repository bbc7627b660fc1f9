//! How a process gives up all power that it has: its user, its capabilities, what it may ask of the kernel. What it holds already
//! stays usable: open files, memory. Nothing comes back.

use super::nobody::{self, failed};
use crate::order::Gather;
use nix::errno::Errno;
use nix::libc;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::geteuid;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter_all_threads,
};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The numbers of linux/landlock.h: what a version of it can forbid at all, of files, of the network and between processes.
const LANDLOCK: [(i64, [u64; 3]); 6] = [
    (1, [(1 << 13) - 1, 0, 0]),
    (2, [(1 << 14) - 1, 0, 0]),
    (3, [(1 << 15) - 1, 0, 0]),
    (4, [(1 << 15) - 1, 3, 0]),
    (5, [(1 << 16) - 1, 3, 0]),
    (6, [(1 << 16) - 1, 3, 3]),
];

/// What of it the kernel did not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GivenUp {
    /// Files are out of reach by Landlock too. Without it the filter of system calls alone keeps them.
    pub landlock: bool,
}

/// Drops all privileges of this process, which has one thread so far. Open descriptors and `data_bytes` of memory remain.
///
/// # Errors
/// The kernel has no filter for system calls, or refuses: the process must not go on then.
pub fn give_up(data_bytes: u64) -> io::Result<GivenUp> {
    let filter = filter()?;
    for (resource, most) in
        [(Resource::RLIMIT_DATA, data_bytes), (Resource::RLIMIT_FSIZE, 0), (Resource::RLIMIT_CORE, 0)]
    {
        setrlimit(resource, most, most)?;
    }
    if geteuid().is_root() {
        nobody::become_nobody()?;
    }
    nobody::give_up_capabilities()?;
    let landlock = landlock().map_err(|error| failed("forbid all files", error))?;
    // What is open stays open, and there is no number left for anything else.
    setrlimit(Resource::RLIMIT_NOFILE, 0, 0)?;
    apply_filter_all_threads(&filter).map_err(|error| {
        io::Error::other(format!("this kernel does not filter system calls (CONFIG_SECCOMP_FILTER): {error}"))
    })?;
    Ok(GivenUp { landlock })
}

/// A set of rules without one that allows anything. `false` where the kernel has no Landlock.
fn landlock() -> Result<bool, Errno> {
    let nothing = std::ptr::null::<u64>();
    // SAFETY: without attributes it says its version.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0_usize, 1_u32) };
    let Some((_, handled)) = LANDLOCK.iter().rev().find(|(since, _)| *since <= version) else { return Ok(false) };
    // A version knows no more of the attributes than it can forbid.
    let known = 8 * handled.iter().filter(|bits| **bits != 0).count();
    // SAFETY: the attributes are as long as it is told.
    let rules = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, handled.as_ptr(), known, 0_u32) };
    let rules = i32::try_from(Errno::result(rules)?).map_err(|_| Errno::EBADF)?;
    // SAFETY: it was just made.
    let rules = unsafe { OwnedFd::from_raw_fd(rules) };
    // SAFETY: it takes two numbers.
    Errno::result(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0_u32) })?;
    Ok(true)
}

/// What threads, memory and open descriptors need. Everything else is answered as by a kernel that does not have it, which the C
/// library can live with.
const ALLOWED: [libc::c_long; 36] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_futex,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_poll,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

fn filter() -> io::Result<BpfProgram> {
    let wrong = |error: seccompiler::BackendError| io::Error::other(format!("the filter of system calls: {error}"));
    let masked = |argument, mask: libc::c_int, value: libc::c_int| {
        let (mask, value) = (u64::from(mask.cast_unsigned()), u64::from(value.cast_unsigned()));
        let is = SeccompCmpOp::MaskedEq(mask);
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, is, value).and_then(|is| SeccompRule::new(vec![is]))
    };
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.into_iter().map(|call| (call, Vec::new())).gather();
    // Memory that is run as code is never made.
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![masked(2, libc::PROT_EXEC, 0).map_err(wrong)?]);
    }
    // Threads, and no processes. What clone3(2) is asked for cannot be seen here: it is not there, and clone(2) is tried.
    rules.insert(libc::SYS_clone, vec![masked(0, libc::CLONE_THREAD, libc::CLONE_THREAD).map_err(wrong)?]);
    let (missing, allowed) = (SeccompAction::Errno(libc::ENOSYS.cast_unsigned()), SeccompAction::Allow);
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(wrong)?;
    SeccompFilter::new(rules, missing, allowed, arch).and_then(BpfProgram::try_from).map_err(wrong)
}

#[cfg(test)]
mod tests;
