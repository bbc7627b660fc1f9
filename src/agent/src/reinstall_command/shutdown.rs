//! Clean stop of the running system, by systemd or, without systemd, directly. Data that is not on disk when the next
//! kernel starts is lost.

use common::error::{Context, Phase, Result};
use common::output;
use linux::probe::proc_mounts::{parse_mounts, parse_swaps};
use linux::process::ToolCommand;
use newroot::boot::kexec;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

/// Time that processes have to exit after SIGTERM.
const SIGTERM_TIMEOUT: Duration = Duration::from_secs(15);
const SIGKILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Time to wait for an emergency remount, since the kernel does not report when the remount is complete.
const REMOUNT_DELAY: Duration = Duration::from_secs(3);

/// Types of kernel filesystems that have no data to write back. Some of these filesystems are needed until the system
/// has stopped.
const VIRTUAL: [&str; 21] = [
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "ramfs",
    "securityfs",
    "sysfs",
    "tmpfs",
    "tracefs",
];

/// System that starts after this one has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextKernel {
    /// The kernel that kexec has loaded.
    Loaded,
    Firmware,
}

/// Mechanism that stops the system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StopMethod {
    Systemd,
    ByHand,
}

impl StopMethod {
    /// Returns the mechanism for this system. Detects systemd as sd_booted(3) does.
    pub(crate) fn detect() -> StopMethod {
        if Path::new("/run/systemd/system").is_dir() { StopMethod::Systemd } else { StopMethod::ByHand }
    }

    pub(crate) fn describe(&self, next: NextKernel) -> String {
        match (self, next) {
            (StopMethod::Systemd, next) => format!("`systemctl {verb}` stops this system", verb = systemctl_verb(next)),
            (StopMethod::ByHand, NextKernel::Loaded) => {
                format!("{MANUAL_REBOOT_REMEDY}; then the loaded kernel starts")
            }
            (StopMethod::ByHand, NextKernel::Firmware) => format!("{MANUAL_REBOOT_REMEDY}; then the machine reboots"),
        }
    }

    /// Stops the system. Returns as soon as systemd has started the shutdown. Without systemd, does not return.
    ///
    /// # Errors
    /// Fails if systemd or the kernel refuses to stop the system.
    pub(crate) fn stop(&self, next: NextKernel) -> Result<()> {
        match self {
            StopMethod::Systemd => {
                let stop = ToolCommand::new("systemctl").arg(systemctl_verb(next)).run();
                stop.map(drop).context(Phase::Boot, || "stop by systemd")
            }
            StopMethod::ByHand => stop_directly(next),
        }
    }
}

const MANUAL_REBOOT_REMEDY: &str =
    "without systemctl, all processes are terminated, and all filesystems are unmounted or remounted read-only";

fn systemctl_verb(next: NextKernel) -> &'static str {
    match next {
        // `systemctl kexec` boots a kernel that is already loaded (load_kexec_kernel in its source).
        NextKernel::Loaded => "kexec",
        NextKernel::Firmware => "reboot",
    }
}

fn stop_directly(next: NextKernel) -> Result<()> {
    // These signals are ignored, because the terminal and the process that reads this program's output are terminated
    // below. Otherwise, the resulting signals would end this program.
    for ignored in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGPIPE] {
        // SAFETY: no signal handler is installed.
        let _ = unsafe { signal(ignored, SigHandler::SigIgn) };
    }
    terminate_processes();
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    for area in parse_swaps(&read("/proc/swaps")) {
        let off = CString::new(area.as_str()).map_err(io::Error::other).and_then(|path| {
            // SAFETY: the path is NUL-terminated.
            let off = unsafe { nix::libc::swapoff(path.as_ptr()) };
            Ok(nix::errno::Errno::result(off).map(drop)?)
        });
        print_failure("swapoff", &area, off);
    }
    nix::unistd::sync();
    let mut busy = false;
    for path in unmount_order(&read("/proc/self/mountinfo")) {
        // Unmounting is tried again for every remaining filesystem, since the unmounting of another filesystem may have
        // released it.
        if path == "/" || umount2(path.as_str(), MntFlags::UMOUNT_NOFOLLOW).is_err() {
            let flags = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
            let remounted = mount(None::<&str>, path.as_str(), None::<&str>, flags, None::<&str>);
            busy |= remounted.is_err();
            print_failure("make read-only", &path, remounted);
        }
    }
    if busy {
        // This write makes the kernel remount every filesystem read-only, even with open files (proc(5),
        // /proc/sysrq-trigger).
        print_failure("make read-only", "remaining filesystems", fs::write("/proc/sysrq-trigger", "u"));
        thread::sleep(REMOUNT_DELAY);
    }
    match next {
        NextKernel::Loaded => match kexec::boot_loaded_kernel()? {},
        NextKernel::Firmware => {
            nix::unistd::sync();
            match reboot(RebootMode::RB_AUTOBOOT).context(Phase::Boot, || "reboot")? {}
        }
    }
}

/// Terminates all processes except init and this process. Kernel threads ignore signals.
fn terminate_processes() {
    for (with, patience) in [(Signal::SIGTERM, SIGTERM_TIMEOUT), (Signal::SIGKILL, SIGKILL_TIMEOUT)] {
        // With the PID -1, Linux sends the signal to all processes except the caller and init (kill(2)).
        if kill(Pid::from_raw(-1), with).is_err() {
            return;
        }
        let end = Instant::now() + patience;
        while other_processes_run() && Instant::now() < end {
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Returns whether other processes run. Kernel threads and zombies have no executable.
fn other_processes_run() -> bool {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter(|id| *id != 1 && *id != own).any(|id| fs::read_link(format!("/proc/{id}/exe")).is_ok())
}

/// Prints a failure. Does not panic even if standard error is closed.
fn print_failure<E: std::fmt::Display>(what: &str, on: &str, result: std::result::Result<(), E>) {
    if let Err(error) = result {
        output::print_error(&format!("{what} {on}: {error}"));
    }
}

/// Returns the mount points in the order of unmounting: the deepest mount points first and, among mount points of equal
/// depth, the last mounted one first. The root comes last.
fn unmount_order(mountinfo: &str) -> Vec<String> {
    let mounts = parse_mounts(mountinfo);
    let parents: BTreeMap<u64, u64> = mounts.iter().map(|mount| (mount.id, mount.parent)).collect();
    let depth = |id: u64| {
        let up = |id: &u64| parents.get(id).copied().filter(|parent| parent != id);
        // If the chain of parent mounts is longer than the number of mounts, it contains a cycle.
        std::iter::successors(Some(id), up).take(parents.len()).count()
    };
    let real = mounts.iter().rev().filter(|mount| !VIRTUAL.contains(&mount.format.as_str()));
    let mut real: Vec<_> =
        real.map(|mount| (mount.path == "/", std::cmp::Reverse(depth(mount.id)), &mount.path)).collect();
    // The sort is stable, so the last mounted of several equally deep mounts stays first.
    real.sort_by_key(|(is_root, depth, _)| (*is_root, *depth));
    let mut order: Vec<String> = real.into_iter().map(|(.., path)| path.clone()).collect();
    order.dedup_by(|one, other| one == "/" && other == "/");
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deepest_and_newest_mounts_are_unmounted_first() {
        // The mounts are listed in the order of mounting. `/data` was mounted before `/srv`, and then moved below
        // `/srv`. `/mnt` is mounted twice.
        let mountinfo = "\
21 1 0:2 / / rw - rootfs rootfs rw
22 21 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw
23 22 0:21 / /proc rw shared:2 - proc proc rw
24 22 0:25 / /run rw - tmpfs tmpfs rw
25 40 9:127 / /srv/data rw - xfs /dev/md127 rw
30 22 8:1 / /boot rw - ext4 /dev/sda1 rw
31 30 8:3 / /boot/efi rw master:3 - vfat /dev/sda3 rw
32 22 253:0 / /mnt rw - ext4 /dev/dm-0 rw
33 32 253:1 / /mnt rw - ext4 /dev/dm-1 rw
34 24 0:50 / /run/user/0 rw - tmpfs tmpfs rw
35 22 0:51 / /with\\040space ro - nfs4 10.0.0.1:/x rw
40 22 253:2 / /srv rw - xfs /dev/dm-2 rw
broken line
41 22
";
        let expected = ["/mnt", "/boot/efi", "/srv/data", "/srv", "/with space", "/mnt", "/boot", "/"];
        assert_eq!(unmount_order(mountinfo), expected);
        assert!(unmount_order("").is_empty());
        // A cycle of mounts does not cause an endless loop.
        assert_eq!(unmount_order("1 2 8:1 / /a rw - ext4 a rw\n2 1 8:1 / /b rw - ext4 b rw\n"), ["/b", "/a"]);
    }

    #[test]
    fn each_stop_method_is_described() {
        assert_eq!(StopMethod::Systemd.describe(NextKernel::Loaded), "`systemctl kexec` stops this system");
        assert_eq!(StopMethod::Systemd.describe(NextKernel::Firmware), "`systemctl reboot` stops this system");
        assert!(StopMethod::ByHand.describe(NextKernel::Firmware).ends_with("then the machine reboots"));
    }

    #[test]
    fn processes_with_a_program_are_detected() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(other_processes_run());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
