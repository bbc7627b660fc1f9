//! Drops the privileges of sandboxed workers: user, capabilities, and system calls. Open files and allocated memory
//! stay usable. None of the dropped privileges can be regained.

use super::privilege_drop::{self, describe_failure};
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

/// Access rights of linux/landlock.h that each ABI version can restrict. Each entry contains the version, and bit masks
/// for filesystem, network and scopes.
const LANDLOCK: [(i64, [u64; 3]); 6] = [
    (1, [(1 << 13) - 1, 0, 0]),
    (2, [(1 << 14) - 1, 0, 0]),
    (3, [(1 << 15) - 1, 0, 0]),
    (4, [(1 << 15) - 1, 3, 0]),
    (5, [(1 << 16) - 1, 3, 0]),
    (6, [(1 << 16) - 1, 3, 3]),
];

/// Optional restrictions that the kernel supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SandboxSupport {
    /// True if Landlock denies access to files. Without Landlock, only the system call filter denies such access.
    pub landlock: bool,
}

/// Drops all privileges of this process, which must be single-threaded. Open descriptors stay usable, and the process
/// can allocate at most `data_bytes` bytes of memory.
///
/// # Errors
/// Returns an error if the kernel does not support system call filters, or refuses one of the restrictions. In this
/// case, the process must not continue.
pub fn drop_privileges(data_bytes: u64) -> io::Result<SandboxSupport> {
    let filter = build_seccomp_filter()?;
    for (resource, most) in
        [(Resource::RLIMIT_DATA, data_bytes), (Resource::RLIMIT_FSIZE, 0), (Resource::RLIMIT_CORE, 0)]
    {
        setrlimit(resource, most, most)?;
    }
    if geteuid().is_root() {
        privilege_drop::drop_user()?;
    }
    privilege_drop::drop_all_capabilities()?;
    let landlock = apply_landlock().map_err(|error| describe_failure("deny access to all files", error))?;
    // Open descriptors stay open; new descriptors cannot be allocated.
    setrlimit(Resource::RLIMIT_NOFILE, 0, 0)?;
    apply_filter_all_threads(&filter).map_err(|error| {
        io::Error::other(format!("this kernel does not support system call filters (CONFIG_SECCOMP_FILTER): {error}"))
    })?;
    Ok(SandboxSupport { landlock })
}

/// Applies a ruleset that allows nothing. Returns `false` if the kernel does not support Landlock.
fn apply_landlock() -> Result<bool, Errno> {
    let nothing = std::ptr::null::<u64>();
    // SAFETY: without attributes, the call returns the ABI version.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0_usize, 1_u32) };
    let Some((_, handled)) = LANDLOCK.iter().rev().find(|(since, _)| *since <= version) else { return Ok(false) };
    // An ABI version accepts only the attributes that it defines.
    let known = 8 * handled.iter().filter(|bits| **bits != 0).count();
    // SAFETY: the size matches the attributes.
    let rules = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, handled.as_ptr(), known, 0_u32) };
    let rules = i32::try_from(Errno::result(rules)?).map_err(|_| Errno::EBADF)?;
    // SAFETY: the descriptor was just created.
    let rules = unsafe { OwnedFd::from_raw_fd(rules) };
    // SAFETY: the call takes two numbers.
    Errno::result(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0_u32) })?;
    Ok(true)
}

/// System call with which the C library implements poll(3). arm64 has only ppoll(2).
#[cfg(target_arch = "x86_64")]
const POLL: libc::c_long = libc::SYS_poll;
#[cfg(not(target_arch = "x86_64"))]
const POLL: libc::c_long = libc::SYS_ppoll;

/// System calls that are needed for threads, memory management and open descriptors. All others fail with ENOSYS, which
/// the C library handles.
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
    POLL,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

fn build_seccomp_filter() -> io::Result<BpfProgram> {
    let wrong =
        |error: seccompiler::BackendError| io::Error::other(format!("cannot build the system call filter: {error}"));
    let masked = |argument, mask: libc::c_int, value: libc::c_int| {
        let (mask, value) = (u64::from(mask.cast_unsigned()), u64::from(value.cast_unsigned()));
        let is = SeccompCmpOp::MaskedEq(mask);
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, is, value).and_then(|is| SeccompRule::new(vec![is]))
    };
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.into_iter().map(|call| (call, Vec::new())).collect();
    // mmap(2) and mprotect(2) are denied if they request executable memory.
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![masked(2, libc::PROT_EXEC, 0).map_err(wrong)?]);
    }
    // Threads may be created, but not processes. Seccomp cannot inspect the arguments of clone3(2): it returns ENOSYS,
    // and the C library falls back to clone(2).
    rules.insert(libc::SYS_clone, vec![masked(0, libc::CLONE_THREAD, libc::CLONE_THREAD).map_err(wrong)?]);
    let (missing, allowed) = (SeccompAction::Errno(libc::ENOSYS.cast_unsigned()), SeccompAction::Allow);
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(wrong)?;
    SeccompFilter::new(rules, missing, allowed, arch).and_then(BpfProgram::try_from).map_err(wrong)
}

#[cfg(test)]
mod tests;
