//! The image's own installer, which adapts the image to this machine and installs the boot loader.

use super::NewRoot;
use super::chroot::TargetRunner;
use common::error::{Context, Phase, Result};
use std::time::Duration;

/// Deadline of the installer, which installs GRUB and builds an initramfs. Under emulation this takes minutes.
pub const INSTALLER_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// Paths of the installer in metal-stack's images, in order of preference.
pub(crate) const INSTALLERS: [&str; 2] = ["/install-go", "/install.sh"];

/// Returns the path of the image's installer.
pub(crate) fn find_installer(root: &NewRoot) -> Option<&'static str> {
    INSTALLERS.into_iter().find(|installer| root.open_file(installer).is_ok())
}

/// Runs the installer in the target, and removes the installer if it succeeds.
///
/// # Errors
/// Returns an error if the installer fails (the error includes the last lines of its output), or exceeds its deadline.
pub(crate) fn run_installer(root: &NewRoot, installer: &str, deadline: Duration, run: &dyn TargetRunner) -> Result<()> {
    let ran = run.run_program(installer, &[], deadline);
    ran.context(Phase::Target, || format!("run the image's installer {installer}"))?;
    INSTALLERS.into_iter().try_for_each(|installer| root.remove(installer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chroot::Chroot;
    use crate::testing;
    use linux::storage::busy_device_users;
    use std::fs;
    use std::sync::Mutex;
    use tempfile::TempDir;

    /// Returns a target with busybox and this installer.
    fn target(name: &str, script: &str) -> (TempDir, NewRoot) {
        let (dir, root) = testing::busybox();
        testing::script(&root, name, script);
        (dir, root)
    }

    fn run_here(root: &NewRoot, deadline: Duration) -> (Result<()>, Vec<String>) {
        let lines = Mutex::new(Vec::new());
        let say = |line: &str| lines.lock().unwrap().push(line.to_owned());
        let chroot = Chroot::open(root, &[], &say).unwrap();
        let ran = run_installer(root, find_installer(root).unwrap(), deadline, &chroot);
        let result = ran.and(chroot.close());
        (result, lines.into_inner().unwrap())
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_installer_runs_in_its_root_and_is_removed() {
        let script = "set -e\ntest -e /proc/self/mounts\ntest -c /dev/null\ntest -d /sys/class/block\n\
                      echo path=$PATH pwd=$(pwd)\ntouch /done\nls /";
        let (_dir, root) = target("install.sh", script);
        let (result, lines) = run_here(&root, MINUTE);
        result.unwrap();
        assert_eq!(lines[0], "path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin pwd=/");
        assert!(root.path().join("done").exists());
        assert!(!root.path().join("install.sh").exists());
        assert_eq!(busy_device_users::list_mounts_below(root.path()), Vec::<std::path::PathBuf>::new());
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_install_go_takes_precedence_over_install_sh() {
        let (_dir, root) = target("install-go", "echo go");
        fs::write(root.path().join("install.sh"), "#!/bin/sh\necho sh\n").unwrap();
        let (result, lines) = run_here(&root, MINUTE);
        result.unwrap();
        assert_eq!(lines, ["go"]);
        assert!(!root.path().join("install.sh").exists());
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_output_of_a_failed_installer_is_quoted() {
        let (_dir, root) = target("install.sh", "seq 1 9\necho grub-install: no ESP >&2\nexit 7");
        let error = run_here(&root, MINUTE).0.unwrap_err().to_string();
        assert!(error.starts_with("run the image's installer /install.sh: `/install.sh` exited with 7: "), "{error}");
        assert!(error.contains("grub-install: no ESP") && error.contains("8 | 9"), "{error}");
        assert_eq!(busy_device_users::list_mounts_below(root.path()), Vec::<std::path::PathBuf>::new());
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_hanging_installer_is_killed_with_its_children() {
        let (_dir, root) = target("install.sh", "echo started\nsleep 600 &\nsleep 600");
        let (result, lines) = run_here(&root, Duration::from_secs(3));
        let error = result.unwrap_err().to_string();
        assert!(error.contains("did not end within 3 s and was killed: started"), "{error}");
        assert_eq!(lines[0], "started");
        assert!(busy_device_users::find_processes_rooted_in(root.path()).is_empty());
        assert_eq!(busy_device_users::list_mounts_below(root.path()), Vec::<std::path::PathBuf>::new());
    }

    /// sshd, for example, changes its root directory to /var/empty.
    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_daemons_with_another_root_directory_are_removed() {
        let script = "/bin/busybox mkdir -p /var/empty\n/bin/busybox cp /bin/busybox /var/empty/busybox\n\
                      for libraries in /lib /lib64 /usr; do\n\
                      [ ! -d $libraries ] || /bin/busybox cp -a $libraries /var/empty/\ndone\n\
                      /bin/busybox setsid /bin/busybox chroot /var/empty /busybox sleep 600 >/dev/null 2>&1 </dev/null &\n\
                      sleep 1\nexit 0";
        let (_dir, root) = target("install.sh", script);
        let (result, lines) = run_here(&root, MINUTE);
        result.unwrap();
        assert!(lines.iter().any(|line| line.starts_with("killing process ")), "{lines:?}");
        let empty = root.path().join("var/empty");
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let left =
            processes.filter(|process| std::fs::read_link(process.path().join("root")).is_ok_and(|at| at == empty));
        assert_eq!(left.count(), 0);
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_remaining_daemons_and_mounts_are_removed() {
        let script = "mount -t tmpfs none /mnt\n/bin/busybox setsid sleep 600 >/dev/null 2>&1 </dev/null &\nexit 0";
        let (_dir, root) = target("install.sh", script);
        let (result, _) = run_here(&root, MINUTE);
        result.unwrap();
        assert!(busy_device_users::find_processes_rooted_in(root.path()).is_empty());
        assert_eq!(busy_device_users::list_mounts_below(root.path()), Vec::<std::path::PathBuf>::new());
    }
}
