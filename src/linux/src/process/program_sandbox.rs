//! Sandbox for OS definitions' programs: separate namespaces, an unprivileged user, no capabilities, and a system
//! call filter. The process sees a few files and the programs of this system, and cannot write, use the network, or
//! inspect other processes.
//!
//! Unlike workers (`worker_sandbox`), the sandboxed process may start other programs.

use super::privilege_drop::{self, SANDBOX_ID, describe_failure};
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

/// Mount point of the new root while the sandbox is set up. Every system has this directory, and the sandbox does not
/// need the host's /proc afterwards.
const BUILT_AT: &str = "/proc";

/// Directories of programs and their libraries. The last directory is needed to resolve Debian's alternatives.
const PROGRAMS: [&str; 7] = ["bin", "sbin", "lib", "lib32", "lib64", "usr", "etc/alternatives"];
/// Device nodes of the host that the sandbox contains.
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];

/// Options of the root's tmpfs, sized for files of a few hundred KiB.
const ROOT_OPTIONS: &str = "mode=0755,size=8m,nr_inodes=1k";

/// Resource limits, sufficient for a script.
const LIMITS: [(Resource, u64); 4] = [
    (Resource::RLIMIT_AS, 512 << 20),
    (Resource::RLIMIT_NPROC, 256),
    (Resource::RLIMIT_CORE, 0),
    (Resource::RLIMIT_FSIZE, 0),
];

// Constants of linux/mount.h.
const MOUNT_ATTR_RDONLY: u64 = 1;
const MOUNT_ATTR_NOSUID: u64 = 2;
const MOUNT_ATTR_NODEV: u64 = 4;
const AT_RECURSIVE: libc::c_uint = 0x8000;

/// System calls that are forbidden, because text processing does not need them, or because attackers used them to
/// escape from namespaces.
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

type SeccompRules = BTreeMap<i64, Vec<SeccompRule>>;

/// File visible inside the sandbox.
pub(crate) struct SandboxFile<'a> {
    /// Absolute path of the file in the sandbox.
    pub path: PathBuf,
    pub executable: bool,
    pub content: &'a [u8],
}

/// Enters a sandbox with these files. The function returns only in a new process, which is the first process in the
/// sandbox. The calling process waits for this process, and exits with the same status. When the first process exits,
/// the kernel terminates all other processes in the sandbox. The caller must be single-threaded.
///
/// # Errors
/// Returns an error if the kernel refuses a step. In this case, the process must not continue.
pub(crate) fn enter_sandbox(files: &[SandboxFile]) -> io::Result<()> {
    let filters = build_seccomp_filters()?;
    privilege_drop::close_inherited_files()?;
    let apart = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWPID;
    let is_root = getuid().is_root();
    if is_root {
        unshare(apart).map_err(|error| describe_failure("create namespaces", error))?;
    } else {
        enter_user_namespace(apart)?;
    }
    build_root(files)?;
    // SAFETY: the process is single-threaded.
    match unsafe { fork() }? {
        ForkResult::Child => {}
        ForkResult::Parent { child } => match waitpid(child, None)? {
            WaitStatus::Exited(_, code) => process::exit(code),
            // If a signal has killed the process, the exit code is 128 plus the number of the signal, as in shells.
            WaitStatus::Signaled(_, signal, _) => process::exit(128 + signal as i32),
            _ => process::exit(1),
        },
    }
    for (resource, most) in LIMITS {
        setrlimit(resource, most, most)?;
    }
    if is_root {
        privilege_drop::drop_user()?;
    }
    privilege_drop::drop_all_capabilities()?;
    // SAFETY: the call takes two numbers. If the waiting parent ends, this process is killed; this setting stays in
    // effect as long as the user does not change.
    Errno::result(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
    filters.iter().try_for_each(|filter| {
        apply_filter(filter).map_err(|error| {
            io::Error::other(format!(
                "this kernel does not support system call filters (CONFIG_SECCOMP_FILTER): {error}"
            ))
        })
    })
}

/// Enters new namespaces as an unprivileged user, with all capabilities in the new user namespace. The system must
/// permit unprivileged user namespaces.
fn enter_user_namespace(apart: CloneFlags) -> io::Result<()> {
    let (uid, gid) = (getuid(), getgid());
    unshare(CloneFlags::CLONE_NEWUSER | apart)
        .map_err(|error| describe_failure("create namespaces as an unprivileged user", error))?;
    // A group can be mapped only after setgroups(2) is disabled (user_namespaces(7)).
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{SANDBOX_ID} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{SANDBOX_ID} {gid} 1"))
}

/// Builds the new root and changes into it.
fn build_root(files: &[SandboxFile]) -> io::Result<()> {
    let none = None::<&str>;
    let root = Path::new(BUILT_AT);
    umask(Mode::empty());
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some("tmpfs"), root, Some("tmpfs"), MsFlags::MS_NOSUID, Some(ROOT_OPTIONS))
        .map_err(|error| describe_failure("mount a tmpfs", error))?;
    PROGRAMS.iter().try_for_each(|folder| bind_programs(root, folder))?;
    fs::create_dir(root.join("dev"))?;
    for name in DEVICES {
        let (there, here) = (Path::new("/dev").join(name), root.join("dev").join(name));
        fs::write(&here, "")?;
        bind_mount(&there, &here)?;
    }
    files.iter().try_for_each(|file| write_sandbox_file(root, file))?;
    set_mount_attributes(root, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID)?;
    // A service may lack the permission for this call. The failure is ignored, because the host name is not a secret.
    let _ = nix::unistd::sethostname("sandbox");
    nix::unistd::chdir(root)?;
    mount(Some("."), "/", none, MsFlags::MS_MOVE, none)
        .map_err(|error| describe_failure("move the mount of the new root to /", error))?;
    nix::unistd::chroot(".")?;
    Ok(nix::unistd::chdir("/")?)
}

/// Bind-mounts a directory of this system in the new root. If the directory is a symlink in this system, recreates the
/// symlink.
fn bind_programs(root: &Path, folder: &str) -> io::Result<()> {
    let (there, here) = (Path::new("/").join(folder), root.join(folder));
    let Ok(is) = there.symlink_metadata() else { return Ok(()) };
    if is.is_symlink() {
        return symlink(fs::read_link(there)?, here);
    }
    fs::create_dir_all(&here)?;
    bind_mount(&there, &here)?;
    set_mount_attributes(&here, MOUNT_ATTR_NODEV)
}

/// Bind-mounts recursively, because the kernel refuses a bind mount that would uncover a directory over which a more
/// privileged process has mounted something.
fn bind_mount(there: &Path, here: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(there), here, None::<&str>, flags, None::<&str>)
        .map_err(|error| describe_failure(&format!("bind-mount {}", there.display()), error))
}

fn write_sandbox_file(root: &Path, file: &SandboxFile) -> io::Result<()> {
    let path = root.join(file.path.strip_prefix("/").unwrap_or(&file.path));
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mode = if file.executable { 0o555 } else { 0o444 };
    let mut open = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    open.write_all(file.content)?;
    fs::set_permissions(&path, Permissions::from_mode(mode))
}

/// Sets attributes of a mount and of all mounts below it, which requires Linux 5.12.
fn set_mount_attributes(mount_point: &Path, attributes: u64) -> io::Result<()> {
    // The four fields are the attributes to set, the attributes to clear, the propagation type, and a user namespace.
    let wanted = [attributes, 0, 0, 0];
    let path = std::ffi::CString::new(mount_point.as_os_str().as_encoded_bytes())?;
    let size = size_of_val(&wanted);
    // SAFETY: path and attributes outlive the call, and the size matches the attributes.
    let set = unsafe {
        libc::syscall(libc::SYS_mount_setattr, libc::AT_FDCWD, path.as_ptr(), AT_RECURSIVE, wanted.as_ptr(), size)
    };
    Errno::result(set).map_err(|error| describe_failure("set mount attributes", error)).map(drop)
}

fn build_seccomp_filters() -> io::Result<[BpfProgram; 2]> {
    let wrong =
        |error: seccompiler::BackendError| io::Error::other(format!("cannot build the system call filter: {error}"));
    let argument = |is: SeccompCmpOp, value: libc::c_int| {
        let value = u64::from(value.cast_unsigned());
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, is, value).and_then(|is| SeccompRule::new(vec![is]))
    };
    let mut refused: SeccompRules = FORBIDDEN.into_iter().map(|call| (call, Vec::new())).collect();
    // Processes may be created, but not user namespaces.
    let user = SeccompCmpOp::MaskedEq(u64::from(libc::CLONE_NEWUSER.cast_unsigned()));
    refused.insert(libc::SYS_clone, vec![argument(user, libc::CLONE_NEWUSER).map_err(wrong)?]);
    // Setting PR_SET_PDEATHSIG is refused, because the process could otherwise outlive the parent that waits for it.
    let ends = argument(SeccompCmpOp::Eq, libc::PR_SET_PDEATHSIG).map_err(wrong)?;
    refused.insert(libc::SYS_prctl, vec![ends]);
    // Seccomp cannot inspect the arguments of clone3(2): it returns ENOSYS, and the C library falls back to clone(2).
    let missing: SeccompRules = [(libc::SYS_clone3, Vec::new())].into();
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(wrong)?;
    let filter = |rules: SeccompRules, errno: libc::c_int| {
        let action = SeccompAction::Errno(errno.cast_unsigned());
        SeccompFilter::new(rules, SeccompAction::Allow, action, arch).and_then(BpfProgram::try_from).map_err(wrong)
    };
    Ok([filter(refused, libc::EPERM)?, filter(missing, libc::ENOSYS)?])
}
