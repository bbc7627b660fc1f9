//! Execution of the image's programs in a chroot of the target with /proc, /sys, a restricted /dev and, on UEFI
//! machines, efivarfs.

use super::{NewRoot, restricted_dev};
use common::error::Result;
use linux::process::{CommandError, ToolCommand, ToolOutput};
use linux::storage::boot_loader_area::{self, BiosBootLoader};
use linux::storage::busy_device_users;
use linux::storage::mount::{self, MountStack};
use model::device_name::DevicePath;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use sys_mount::MountFlags;

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runner of the target's programs. Tests replace the runner with a mock.
pub(crate) trait TargetRunner {
    /// Runs a program of the target system.
    ///
    /// # Errors
    /// Returns an error if the program is missing, fails, or exceeds its deadline.
    fn run_program(&self, program: &str, args: &[&str], deadline: Duration) -> Result<ToolOutput, CommandError>;

    /// Writes a boot loader for BIOS to a disk. Does not run programs of the target, because the target has no device
    /// node for a disk with preserved partitions.
    ///
    /// # Errors
    /// Returns the errors of [`boot_loader_area::write_boot_loader`].
    fn write_bios_boot_loader(&self, disk: &DevicePath, loader: BiosBootLoader) -> common::error::Result<()> {
        boot_loader_area::write_boot_loader(disk, loader)
    }
}

/// Target in which special filesystems are mounted until [`Chroot::close`].
pub(crate) struct Chroot<'a> {
    root: &'a NewRoot,
    special: MountStack,
    /// Mount points that existed below the root before [`Chroot::open`].
    before: Vec<PathBuf>,
    /// Mount points on which device nodes cannot be used.
    no_devices: Vec<PathBuf>,
    /// Environment variables that programs receive in addition to the default variables. A variable in this list
    /// overrides the default variable of the same name.
    environment: BTreeMap<String, String>,
    say: &'a (dyn Fn(&str) + Sync),
}

impl<'a> Chroot<'a> {
    /// Opens the chroot, whose `/dev` contains the nodes of these devices and of their partitions. `say` receives each
    /// line that a program prints.
    ///
    /// # Errors
    /// Returns an error if a device is missing, or a filesystem cannot be mounted.
    pub fn open(root: &'a NewRoot, devices: &[DevicePath], say: &'a (dyn Fn(&str) + Sync)) -> Result<Chroot<'a>> {
        let mut special = MountStack::new(root.path());
        let before = busy_device_users::list_mounts_below(root.path());
        mount_special(&mut special, devices, say)?;
        let no_devices =
            restricted_dev::mounts_without_devices(busy_device_users::list_mounts_below(root.path()), root.path());
        Ok(Chroot { root, special, before, no_devices, environment: BTreeMap::new(), say })
    }

    /// Sets environment variables that programs receive in addition to the default variables.
    pub(crate) fn with_environment(mut self, environment: &BTreeMap<String, String>) -> Self {
        self.environment.clone_from(environment);
        self
    }

    /// Runs a program in this directory. The environment of the program consists only of the variables that were set
    /// with [`Chroot::with_environment`].
    ///
    /// # Errors
    /// As for [`TargetRunner::run_program`].
    pub(crate) fn run_with_environment(
        &self,
        program: &str,
        folder: &str,
        deadline: Duration,
    ) -> Result<ToolOutput, CommandError> {
        let command = ToolCommand::new(program).confined(self.root.path(), self.no_devices.clone()).current_dir(folder);
        run_and_report_lines(command.only_env(&self.environment).deadline(deadline), self.say)
    }

    /// Kills processes left by programs, and unmounts everything that was mounted since [`Chroot::open`].
    ///
    /// # Errors
    /// Returns an error if a filesystem stays mounted.
    pub(crate) fn close(self) -> Result<()> {
        let Chroot { root, mut special, before, say, .. } = self;
        kill_processes(root.path(), say);
        unmount_leftovers(root.path(), &before, &special).and_then(|()| special.unmount_all())
    }
}

impl TargetRunner for Chroot<'_> {
    fn run_program(&self, program: &str, args: &[&str], deadline: Duration) -> Result<ToolOutput, CommandError> {
        let command = ToolCommand::new(program).args(args).confined(self.root.path(), self.no_devices.clone());
        let command = command.env("PATH", PATH).env("HOME", "/root");
        let command = self.environment.iter().fold(command, |command, (name, value)| command.env(name, value));
        run_and_report_lines(command.deadline(deadline), self.say)
    }
}

fn mount_special(special: &mut MountStack, devices: &[DevicePath], say: &dyn Fn(&str)) -> Result<()> {
    let none = MountFlags::empty();
    special.mount_at("proc", "/proc", "proc", none, "")?;
    special.mount_at("sysfs", "/sys", "sysfs", none, "")?;
    restricted_dev::mount_restricted_dev(special, devices)?;
    special.mount_at("tmpfs", "/run", "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, "mode=0755")?;
    if Path::new("/sys/firmware/efi/efivars").is_dir()
        && let Err(error) = special.mount_at("efivarfs", "/sys/firmware/efi/efivars", "efivarfs", none, "")
    {
        // A failure to mount efivarfs is only logged, because firmware still boots the fallback path of the ESP if its
        // variables cannot be written.
        say(&format!("EFI variables are not available in the chroot: {error}"));
    }
    Ok(())
}

/// Runs a command and reports its output lines. Separate threads read the output and send the lines through a channel,
/// so that this call returns even if a daemon keeps the pipe open. The threads then outlive the call.
fn run_and_report_lines(command: ToolCommand, say: &(dyn Fn(&str) + Sync)) -> Result<ToolOutput, CommandError> {
    let (sender, lines) = mpsc::channel::<Option<String>>();
    let end = sender.clone();
    thread::scope(|scope| {
        scope.spawn(move || {
            while let Ok(Some(line)) = lines.recv() {
                say(&line);
            }
        });
        let ran = command.run_watched(move |line| {
            // An error is ignored: sending fails only after this function has returned, for lines of processes that
            // have outlived the program.
            let _ = sender.send(Some(line.to_owned()));
        });
        let _ = end.send(None);
        ran
    })
}

/// Kills daemons started by programs of the image (a package's service, gpg-agent), which would keep the target busy.
pub fn kill_processes(root: &Path, say: &dyn Fn(&str)) {
    let end = Instant::now() + Duration::from_secs(5);
    let mut said = Vec::new();
    loop {
        let left = busy_device_users::find_processes_rooted_in(root);
        if left.is_empty() || Instant::now() > end {
            return;
        }
        for process in left {
            if !said.contains(&process.id) {
                say(&format!("killing {process}, which was left running by a program from the image"));
                said.push(process.id);
            }
            // An error is ignored: killing fails if the process has already exited.
            let _ = kill(Pid::from_raw(process.id), Signal::SIGKILL);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Unmounts filesystems that programs of the image left mounted, most recent first.
fn unmount_leftovers(root: &Path, before: &[std::path::PathBuf], special: &MountStack) -> Result<()> {
    let ours = |path: &Path| before.iter().any(|mount| mount == path) || special.contains(path);
    busy_device_users::list_mounts_below(root)
        .iter()
        .rev()
        .filter(|path| !ours(path))
        .try_for_each(|path| mount::unmount_strictly(path))
}
