//! A process that sees some files, the programs of this system and nothing else, and cannot write, talk or look around: namespaces of
//! its own, nobody's user, no capabilities, a filter of system calls.
//!
//! For a program that somebody has written for this: unlike what `power` leaves over, it can start other programs.

use super::nobody::{self, NOBODY_ELSE, failed};
use crate::order::Gather;
use nix::errno::Errno;
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::stat::{Mode, umask};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork, getgid, getuid};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter,
};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process;

/// Where the new root is built: a directory that every system has, and that nothing needs afterwards.
const BUILT_AT: &str = "/proc";

/// Programs and their libraries. What Debian's alternatives lead to is found through the last one.
const PROGRAMS: [&str; 7] = ["bin", "sbin", "lib", "lib32", "lib64", "usr", "etc/alternatives"];
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];

/// For files of a few hundred KiB.
const ROOT_OPTIONS: &str = "mode=0755,size=8m,nr_inodes=1k";

/// Enough for a script.
const LIMITS: [(Resource, u64); 4] = [
    (Resource::RLIMIT_AS, 512 << 20),
    (Resource::RLIMIT_NPROC, 256),
    (Resource::RLIMIT_CORE, 0),
    (Resource::RLIMIT_FSIZE, 0),
];

/// The numbers of linux/mount.h.
const MOUNT_ATTR_RDONLY: u64 = 1;
const MOUNT_ATTR_NOSUID: u64 = 2;
const MOUNT_ATTR_NODEV: u64 = 4;
const AT_RECURSIVE: libc::c_uint = 0x8000;

/// What nobody needs to look at text, and what has let programs out of namespaces before.
const FORBIDDEN: [libc::c_long; 32] = [
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_mount_setattr,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_setsid,
];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// A file that the process sees.
pub struct Seen<'a> {
    /// Absolute.
    pub path: PathBuf,
    pub executable: bool,
    pub content: &'a [u8],
}

/// Goes into a sandbox with these files. What returns is its first process: all others there end with that one, and this process ends
/// as it does. This process has one thread.
///
/// # Errors
/// The kernel refuses. The process must not go on then.
pub fn enter(files: &[Seen]) -> io::Result<()> {
    let filters = filters()?;
    nobody::close_others()?;
    let apart = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWPID;
    let is_root = getuid().is_root();
    if is_root {
        unshare(apart).map_err(|error| failed("make namespaces", error))?;
    } else {
        in_user_namespace(apart)?;
    }
    build(files)?;
    // SAFETY: there is one thread.
    match unsafe { fork() }? {
        ForkResult::Child => {}
        ForkResult::Parent { child } => match waitpid(child, None)? {
            WaitStatus::Exited(_, code) => process::exit(code),
            // As a shell says it.
            WaitStatus::Signaled(_, signal, _) => process::exit(128 + signal as i32),
            _ => process::exit(1),
        },
    }
    for (resource, most) in LIMITS {
        setrlimit(resource, most, most)?;
    }
    if is_root {
        nobody::become_nobody()?;
    }
    nobody::give_up_capabilities()?;
    // SAFETY: it takes two numbers. Who ends the one that waits ends this one; it lasts while the user stays the same.
    Errno::result(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
    filters.iter().try_for_each(|filter| {
        apply_filter(filter).map_err(|error| {
            io::Error::other(format!("this kernel does not filter system calls (CONFIG_SECCOMP_FILTER): {error}"))
        })
    })
}

/// Where this process is not root it can be so in a namespace, which root has to allow.
fn in_user_namespace(apart: CloneFlags) -> io::Result<()> {
    let (uid, gid) = (getuid(), getgid());
    unshare(CloneFlags::CLONE_NEWUSER | apart)
        .map_err(|error| failed("make namespaces as a user that is not root", error))?;
    // A group can be mapped when no more can be left (user_namespaces(7)).
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{NOBODY_ELSE} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{NOBODY_ELSE} {gid} 1"))
}

/// Makes the root, and goes into it.
fn build(files: &[Seen]) -> io::Result<()> {
    let none = None::<&str>;
    let root = Path::new(BUILT_AT);
    umask(Mode::empty());
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some("tmpfs"), root, Some("tmpfs"), MsFlags::MS_NOSUID, Some(ROOT_OPTIONS))
        .map_err(|error| failed("mount a tmpfs", error))?;
    PROGRAMS.iter().try_for_each(|folder| show_programs(root, folder))?;
    fs::create_dir(root.join("dev"))?;
    for name in DEVICES {
        let (there, here) = (Path::new("/dev").join(name), root.join("dev").join(name));
        fs::write(&here, "")?;
        bind(&there, &here)?;
    }
    files.iter().try_for_each(|file| show(root, file))?;
    set_attributes(root, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID)?;
    // Where a service may not do it, the machine's name is no secret.
    let _ = nix::unistd::sethostname("sandbox");
    nix::unistd::chdir(root)?;
    mount(Some("."), "/", none, MsFlags::MS_MOVE, none).map_err(|error| failed("make it the root", error))?;
    nix::unistd::chroot(".")?;
    Ok(nix::unistd::chdir("/")?)
}

/// A folder of this system, or the link to another one that it is.
fn show_programs(root: &Path, folder: &str) -> io::Result<()> {
    let (there, here) = (Path::new("/").join(folder), root.join(folder));
    let Ok(is) = there.symlink_metadata() else { return Ok(()) };
    if is.is_symlink() {
        return symlink(fs::read_link(there)?, here);
    }
    fs::create_dir_all(&here)?;
    bind(&there, &here)?;
    set_attributes(&here, MOUNT_ATTR_NODEV)
}

/// With all that is mounted below: a part alone cannot be shown where it was mounted by somebody with more power.
fn bind(there: &Path, here: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(there), here, None::<&str>, flags, None::<&str>)
        .map_err(|error| failed(&format!("show {}", there.display()), error))
}

fn show(root: &Path, file: &Seen) -> io::Result<()> {
    let path = root.join(file.path.strip_prefix("/").unwrap_or(&file.path));
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mode = if file.executable { 0o555 } else { 0o444 };
    let mut open = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    open.write_all(file.content)?;
    fs::set_permissions(&path, Permissions::from_mode(mode))
}

/// Of a mount and of all below it; the kernel can that since 5.12.
fn set_attributes(mount_point: &Path, attributes: u64) -> io::Result<()> {
    // What is set, what is cleared, how mounts are passed on, of which user namespace.
    let wanted = [attributes, 0, 0, 0];
    let path = std::ffi::CString::new(mount_point.as_os_str().as_encoded_bytes())?;
    let size = size_of_val(&wanted);
    // SAFETY: path and attributes live until it returns, and the attributes are as long as it is told.
    let set = unsafe {
        libc::syscall(libc::SYS_mount_setattr, libc::AT_FDCWD, path.as_ptr(), AT_RECURSIVE, wanted.as_ptr(), size)
    };
    Errno::result(set).map_err(|error| failed("make what is shown read-only", error)).map(drop)
}

fn filters() -> io::Result<[BpfProgram; 2]> {
    let wrong = |error: seccompiler::BackendError| io::Error::other(format!("the filter of system calls: {error}"));
    let argument = |is: SeccompCmpOp, value: libc::c_int| {
        let value = u64::from(value.cast_unsigned());
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, is, value).and_then(|is| SeccompRule::new(vec![is]))
    };
    let mut refused: Rules = FORBIDDEN.into_iter().map(|call| (call, Vec::new())).gather();
    // Processes, and no namespaces of users.
    let user = SeccompCmpOp::MaskedEq(u64::from(libc::CLONE_NEWUSER.cast_unsigned()));
    refused.insert(libc::SYS_clone, vec![argument(user, libc::CLONE_NEWUSER).map_err(wrong)?]);
    // It ends with whoever waits for it.
    let ends = argument(SeccompCmpOp::Eq, libc::PR_SET_PDEATHSIG).map_err(wrong)?;
    refused.insert(libc::SYS_prctl, vec![ends]);
    // What clone3(2) is asked for cannot be seen here: it is not there, and clone(2) is tried.
    let missing: Rules = [(libc::SYS_clone3, Vec::new())].into();
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(wrong)?;
    let filter = |rules: Rules, errno: libc::c_int| {
        let action = SeccompAction::Errno(errno.cast_unsigned());
        SeccompFilter::new(rules, SeccompAction::Allow, action, arch).and_then(BpfProgram::try_from).map_err(wrong)
    };
    Ok([filter(refused, libc::EPERM)?, filter(missing, libc::ENOSYS)?])
}
