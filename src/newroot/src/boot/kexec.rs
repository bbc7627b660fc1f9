//! Boot of a kernel with kexec_file_load(2). The running kernel reads the new kernel and initrd from open files, while
//! the target is still mounted.

use super::{BootInfo, network_shutdown};
use crate::NewRoot;
use common::error::{Context, Error, Phase, Result};
use nix::errno::Errno;
use nix::libc;
use nix::sys::reboot::{RebootMode, reboot};
use std::convert::Infallible;
use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;

/// Loads kernel, initrd and command line into memory. The target may be unmounted afterwards.
///
/// # Errors
/// Fails if a file is missing, or if the running kernel refuses the files; the error explains why.
pub fn load_from_root(root: &NewRoot, boot: &BootInfo) -> Result<()> {
    let open = |path: &str| {
        root.open_file(path)
            .context(Phase::Boot, || format!("open {path}, which boot-info.yaml specifies, in the target"))
    };
    let kernel = open(&boot.kernel)?;
    let initrd = if boot.initrd.is_empty() { None } else { Some(open(&boot.initrd)?) };
    nix::unistd::syncfs(root.fd())
        .context(Phase::Boot, || "flush the target's filesystems before loading its kernel")?;
    load_kernel_files(&boot.kernel, &kernel, initrd.as_ref(), &boot.cmdline)
}

/// Loads kernel and initrd into memory; the files may be closed afterwards. `name` is the name of the kernel in errors.
///
/// # Errors
/// Fails if the running kernel refuses the files; the error explains why.
pub fn load_kernel_files(name: &str, kernel: &File, initrd: Option<&File>, cmdline: &str) -> Result<()> {
    let cmdline = CString::new(cmdline).context(Phase::Boot, || format!("pass the command line to {name}"))?;
    drop_page_cache();
    kexec_file_load(kernel, initrd, &cmdline).map_err(|error| {
        let what = format!("load {name} for kexec: {reason}", reason = explain_error(error));
        Error::with_source(Phase::Boot, what, error)
    })
}

/// Unloads the loaded kernel, if there is one.
pub fn unload_kernel() {
    if let Err(error) = try_unload() {
        tracing::debug!("unload the kexec kernel: {error}");
    }
}

/// Returns whether the running kernel has the system call kexec_file_load(2). Debian's kernels for arm64 are built
/// without it. A kernel that is already loaded is unloaded.
pub fn is_supported() -> bool {
    try_unload() != Err(Errno::ENOSYS)
}

fn try_unload() -> nix::Result<()> {
    let flags = libc::c_ulong::from(libc::KEXEC_FILE_UNLOAD.unsigned_abs());
    // SAFETY: with KEXEC_FILE_UNLOAD the other arguments are ignored.
    let result =
        unsafe { libc::syscall(libc::SYS_kexec_file_load, -1, -1, 0_usize, std::ptr::null::<libc::c_char>(), flags) };
    Errno::result(result).map(drop)
}

/// Boots the loaded kernel. Does not return on success.
///
/// # Errors
/// Fails if no kernel is loaded, or if the running kernel refuses to boot the loaded kernel.
pub fn boot_loaded_kernel() -> Result<Infallible> {
    nix::unistd::sync();
    network_shutdown::take_interfaces_down();
    reboot(RebootMode::RB_KEXEC).context(Phase::Boot, || "start the loaded kernel")
}

/// Frees the page cache, which fills the memory after an image was written. kexec requires free pages at certain
/// addresses; with a full page cache, loading took 50 s instead of 2 s.
fn drop_page_cache() {
    if let Err(error) = fs::write("/proc/sys/vm/drop_caches", "3") {
        tracing::warn!("drop the page cache: {error}");
    }
}

fn kexec_file_load(kernel: &File, initrd: Option<&File>, cmdline: &CString) -> nix::Result<()> {
    let cmdline = cmdline.as_bytes_with_nul();
    let (initrd, flags) = match initrd {
        Some(initrd) => (initrd.as_raw_fd(), 0),
        None => (-1, libc::KEXEC_FILE_NO_INITRAMFS),
    };
    // SAFETY: the descriptors are open, and the command line is NUL-terminated with its length including the NUL.
    let result = unsafe {
        libc::syscall(
            libc::SYS_kexec_file_load,
            kernel.as_raw_fd(),
            initrd,
            cmdline.len(),
            cmdline.as_ptr(),
            libc::c_ulong::from(flags.unsigned_abs()),
        )
    };
    Errno::result(result).map(drop)
}

/// Returns the probable cause of an error. The causes are taken from the section ERRORS of kexec_file_load(2) and from
/// experience.
fn explain_error(error: Errno) -> &'static str {
    match error {
        Errno::EPERM => {
            "not permitted: kernel lockdown (Secure Boot) is active, kexec_load_disabled is set, or the process does not run as root"
        }
        Errno::ENOEXEC => "the file is damaged, or is not a kernel for the architecture of this machine",
        Errno::ENOSYS => "this kernel lacks CONFIG_KEXEC_FILE",
        Errno::EBUSY => "another kexec is in progress",
        Errno::ENOMEM => "not enough memory for kernel and initrd",
        Errno::EKEYREJECTED | Errno::ENOKEY | Errno::ENODATA | Errno::ENOPKG => {
            "the running kernel requires a trusted signature, but the signature of the new kernel is missing or not trusted"
        }
        Errno::EINVAL => {
            "the running kernel refuses the new kernel, its initrd or its command line; the command line may be too long"
        }
        _ => "the kernel refused the system call",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot(kernel: &str, initrd: &str) -> BootInfo {
        let (cmdline, bootloader_id) = (String::new(), String::new());
        BootInfo { kernel: kernel.into(), initrd: initrd.into(), cmdline, bootloader_id }
    }

    #[test]
    fn missing_boot_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("kernel"), "").unwrap();
        let root = NewRoot::open(dir.path()).unwrap();
        let error = load_from_root(&root, &boot("/boot/vmlinuz", "")).unwrap_err().to_string();
        assert!(
            error.starts_with("open /boot/vmlinuz, which boot-info.yaml specifies, in the target: No such file"),
            "{error}"
        );
        let error = load_from_root(&root, &boot("/kernel", "/initrd")).unwrap_err().to_string();
        assert!(error.starts_with("open /initrd"), "{error}");
        let nul = BootInfo { cmdline: "a\0b".into(), ..boot("/kernel", "") };
        assert!(load_from_root(&root, &nul).unwrap_err().to_string().contains("command line"));
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_invalid_kernel_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("kernel"), vec![b'x'; 4096]).unwrap();
        let error = load_from_root(&NewRoot::open(dir.path()).unwrap(), &boot("/kernel", "")).unwrap_err().to_string();
        assert!(error.starts_with("load /kernel for kexec: "), "{error}");
    }
}
