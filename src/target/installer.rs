//! Runs the image's own installer in a chroot: it makes the image fit this machine and its boot loader.

use super::{Root, devices};
use crate::command::{Command, CommandError};
use crate::device::DevicePath;
use crate::error::{Context, Error, Phase, Result};
use crate::storage::busy;
use crate::storage::mount::{self, Mounts};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use sys_mount::MountFlags;

/// Installs GRUB and writes an initramfs; under emulation that takes minutes.
pub const DEADLINE: Duration = Duration::from_secs(15 * 60);

/// In this order of preference, as metal-stack's images have them.
const INSTALLERS: [&str; 2] = ["/install-go", "/install.sh"];

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs it with proc, sys, a `/dev` with these devices alone and, under UEFI, efivarfs; hands each line of its output to
/// `say`; removes it.
///
/// # Errors
/// The image has no installer, it fails (its last lines are in the error) or does not end in time, or what it left
/// behind cannot be cleaned up.
pub fn run(root: &Root, devices: &[DevicePath], deadline: Duration, say: &(dyn Fn(&str) + Sync)) -> Result<()> {
    let Some(installer) = find(root) else {
        let what = format!("the image has no installer: neither {} is in it", INSTALLERS.join(" nor "));
        return Err(Error::new(Phase::Target, what));
    };
    let mut special = Mounts::new(root.path());
    let before = busy::mounts_below(root.path());
    mount_special(&mut special, devices, say)?;
    let no_devices = devices::without_devices(busy::mounts_below(root.path()), root.path());
    let command = Command::new(installer).confined(root.path(), no_devices).deadline(deadline);
    let ran = run_watched(command, say).context(Phase::Target, || format!("the image's installer {installer}"));
    end_processes(root.path(), say);
    // The installer's own error says more than that of a mount which it left busy.
    let cleaned = unmount_leftovers(root.path(), &before, &special).and_then(|()| special.finish());
    ran.and(cleaned)?;
    INSTALLERS.into_iter().try_for_each(|installer| root.remove(installer))
}

/// Does the image have an installer at all?
pub fn is_in(root: &Root) -> bool {
    find(root).is_some()
}

fn find(root: &Root) -> Option<&'static str> {
    INSTALLERS.into_iter().find(|installer| root.open_file(installer).is_ok())
}

fn mount_special(special: &mut Mounts, devices: &[DevicePath], say: &dyn Fn(&str)) -> Result<()> {
    let none = MountFlags::empty();
    special.mount_at("proc", "/proc", "proc", none, "")?;
    special.mount_at("sysfs", "/sys", "sysfs", none, "")?;
    devices::mount(special, devices)?;
    special.mount_at("tmpfs", "/run", "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, "mode=0755")?;
    if Path::new("/sys/firmware/efi/efivars").is_dir()
        && let Err(error) = special.mount_at("efivarfs", "/sys/firmware/efi/efivars", "efivarfs", none, "")
    {
        // A firmware without runtime services still boots the fallback path of the ESP.
        say(&format!("no EFI variables for the installer: {error}"));
    }
    Ok(())
}

/// Lines go through a channel: the reader's threads may outlive this call when a daemon keeps the pipe open.
fn run_watched(command: Command, say: &(dyn Fn(&str) + Sync)) -> Result<(), CommandError> {
    let (sender, lines) = mpsc::channel::<Option<String>>();
    let end = sender.clone();
    thread::scope(|scope| {
        scope.spawn(move || {
            while let Ok(Some(line)) = lines.recv() {
                say(&line);
            }
        });
        let ran = command.env("PATH", PATH).env("HOME", "/root").run_watched(move |line| {
            // Nobody listens any more: the line came from a leftover of the installer.
            let _ = sender.send(Some(line.to_owned()));
        });
        let _ = end.send(None);
        ran.map(drop)
    })
}

/// Daemons that the installer started (a package's service, gpg-agent) would keep the target busy.
pub fn end_processes(root: &Path, say: &dyn Fn(&str)) {
    let end = Instant::now() + Duration::from_secs(5);
    let mut said = Vec::new();
    loop {
        let left = busy::rooted_at(root);
        if left.is_empty() || Instant::now() > end {
            return;
        }
        for process in left {
            if !said.contains(&process.id) {
                say(&format!("ending {process}, which the installer left running"));
                said.push(process.id);
            }
            // Gone already is as good as killed.
            let _ = kill(Pid::from_raw(process.id), Signal::SIGKILL);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// What the installer mounted and did not unmount, youngest first.
fn unmount_leftovers(root: &Path, before: &[std::path::PathBuf], special: &Mounts) -> Result<()> {
    let ours = |path: &Path| before.iter().any(|mount| mount == path) || special.contains(path);
    busy::mounts_below(root).iter().rev().filter(|path| !ours(path)).try_for_each(|path| mount::unmount(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Mutex;
    use tempfile::TempDir;

    /// A target with a busybox in it, and this installer.
    fn target(name: &str, script: &str) -> (TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for sub in ["bin", "lib", "lib64", "proc", "sys", "dev", "run", "mnt"] {
            fs::create_dir(root.join(sub)).unwrap();
        }
        let busybox = crate::command::Command::new("sh").args(["-c", "command -v busybox"]).run().unwrap().stdout;
        let busybox = busybox.trim();
        fs::copy(busybox, root.join("bin/busybox")).unwrap();
        for library in crate::command::Command::new("ldd")
            .arg(busybox)
            .run()
            .map(|out| out.stdout)
            .unwrap_or_default()
            .split_whitespace()
        {
            if library.starts_with('/') {
                let target = root.join(library.trim_start_matches('/'));
                fs::create_dir_all(target.parent().unwrap()).unwrap();
                fs::copy(library, target).unwrap();
            }
        }
        for applet in ["sh", "echo", "sleep", "mount", "cat", "ls", "test", "seq", "touch", "env"] {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(applet)).unwrap();
        }
        fs::write(root.join(name), format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        let root = Root::open(&root).unwrap();
        (dir, root)
    }

    fn run_here(root: &Root, deadline: Duration) -> (Result<()>, Vec<String>) {
        let lines = Mutex::new(Vec::new());
        let result = run(root, &[], deadline, &|line| lines.lock().unwrap().push(line.to_owned()));
        (result, lines.into_inner().unwrap())
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_the_installer_runs_in_its_root_with_the_special_mounts_and_is_removed() {
        let script = "set -e\ntest -e /proc/self/mounts\ntest -c /dev/null\ntest -d /sys/class/block\n\
                      echo path=$PATH pwd=$(pwd)\ntouch /done\nls /";
        let (_dir, root) = target("install.sh", script);
        let (result, lines) = run_here(&root, MINUTE);
        result.unwrap();
        assert_eq!(lines[0], format!("path={PATH} pwd=/"));
        assert!(root.path().join("done").exists());
        assert!(!root.path().join("install.sh").exists());
        assert_eq!(busy::mounts_below(root.path()), Vec::<std::path::PathBuf>::new());
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_install_go_goes_before_install_sh() {
        let (_dir, root) = target("install-go", "echo go");
        fs::write(root.path().join("install.sh"), "#!/bin/sh\necho sh\n").unwrap();
        let (result, lines) = run_here(&root, MINUTE);
        result.unwrap();
        assert_eq!(lines, ["go"]);
        assert!(!root.path().join("install.sh").exists());
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_a_failing_installer_is_quoted() {
        let (_dir, root) = target("install.sh", "seq 1 9\necho grub-install: no ESP >&2\nexit 7");
        let error = run_here(&root, MINUTE).0.unwrap_err().to_string();
        assert!(
            error.starts_with("the image's installer /install.sh: `/install.sh` exited with 7, saying: "),
            "{error}"
        );
        assert!(error.contains("grub-install: no ESP") && error.contains("8 | 9"), "{error}");
        assert_eq!(busy::mounts_below(root.path()), Vec::<std::path::PathBuf>::new());
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_a_hanging_installer_is_ended_with_all_it_started() {
        let (_dir, root) = target("install.sh", "echo started\nsleep 600 &\nsleep 600");
        let (result, lines) = run_here(&root, Duration::from_secs(3));
        let error = result.unwrap_err().to_string();
        assert!(error.contains("did not end within 3 s and was killed, saying: started"), "{error}");
        assert_eq!(lines[0], "started");
        assert!(busy::rooted_at(root.path()).is_empty());
        assert_eq!(busy::mounts_below(root.path()), Vec::<std::path::PathBuf>::new());
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_daemons_and_mounts_left_behind_do_not_keep_the_target_busy() {
        let script = "mount -t tmpfs none /mnt\n/bin/busybox setsid sleep 600 >/dev/null 2>&1 </dev/null &\nexit 0";
        let (_dir, root) = target("install.sh", script);
        let (result, _) = run_here(&root, MINUTE);
        result.unwrap();
        assert!(busy::rooted_at(root.path()).is_empty());
        assert_eq!(busy::mounts_below(root.path()), Vec::<std::path::PathBuf>::new());
    }

    #[test]
    fn an_image_without_an_installer_is_told_so() {
        let dir = tempfile::tempdir().unwrap();
        let error = run_here(&Root::open(dir.path()).unwrap(), MINUTE).0.unwrap_err().to_string();
        assert_eq!(error, "the image has no installer: neither /install-go nor /install.sh is in it");
    }
}
