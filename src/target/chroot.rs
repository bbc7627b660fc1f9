//! Programs of the image, run in its tree: with proc, sys, a `/dev` with some devices alone and, under UEFI, efivarfs.

use super::{Root, devices};
use crate::command::{Command, CommandError, Output};
use crate::device::DevicePath;
use crate::error::Result;
use crate::storage::busy;
use crate::storage::mount::{self, Mounts};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use sys_mount::MountFlags;

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs a program of the tree.
pub trait InTree {
    /// # Errors
    /// The program is missing, fails, or does not end in time.
    fn run(&self, program: &str, args: &[&str], deadline: Duration) -> Result<Output, CommandError>;
}

/// The tree with its special mounts, until [`Chroot::finish`].
pub struct Chroot<'a> {
    root: &'a Root,
    special: Mounts,
    /// What was mounted below the root already.
    before: Vec<PathBuf>,
    /// Mount points on which device nodes are nothing.
    no_devices: Vec<PathBuf>,
    /// What programs are told beside the usual, which it goes before.
    environment: BTreeMap<String, String>,
    say: &'a (dyn Fn(&str) + Sync),
}

impl<'a> Chroot<'a> {
    /// With the nodes of these devices and of their partitions. Each line that a program says is handed to `say`.
    ///
    /// # Errors
    /// A device is not there, or something cannot be mounted.
    pub fn open(root: &'a Root, devices: &[DevicePath], say: &'a (dyn Fn(&str) + Sync)) -> Result<Chroot<'a>> {
        let mut special = Mounts::new(root.path());
        let before = busy::mounts_below(root.path());
        mount_special(&mut special, devices, say)?;
        let no_devices = devices::without_devices(busy::mounts_below(root.path()), root.path());
        Ok(Chroot { root, special, before, no_devices, environment: BTreeMap::new(), say })
    }

    /// Programs are told this too.
    pub fn telling(mut self, environment: &BTreeMap<String, String>) -> Self {
        self.environment.clone_from(environment);
        self
    }

    /// Runs a program in this folder that is told what [`Chroot::telling`] says, and nothing else.
    ///
    /// # Errors
    /// As [`InTree::run`].
    pub fn run_as_told(&self, program: &str, folder: &str, deadline: Duration) -> Result<Output, CommandError> {
        let command = Command::new(program).confined(self.root.path(), self.no_devices.clone()).beginning_in(folder);
        run_watched(command.only_env(&self.environment).deadline(deadline), self.say)
    }

    /// Ends what the programs have left running, and unmounts all that was mounted since [`Chroot::open`].
    ///
    /// # Errors
    /// Something stays mounted.
    pub fn finish(self) -> Result<()> {
        let Chroot { root, mut special, before, say, .. } = self;
        end_processes(root.path(), say);
        unmount_leftovers(root.path(), &before, &special).and_then(|()| special.finish())
    }
}

impl InTree for Chroot<'_> {
    fn run(&self, program: &str, args: &[&str], deadline: Duration) -> Result<Output, CommandError> {
        let command = Command::new(program).args(args).confined(self.root.path(), self.no_devices.clone());
        let command = command.env("PATH", PATH).env("HOME", "/root");
        let command = self.environment.iter().fold(command, |command, (name, value)| command.env(name, value));
        run_watched(command.deadline(deadline), self.say)
    }
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
        say(&format!("no EFI variables in the chroot: {error}"));
    }
    Ok(())
}

/// Lines go through a channel: the reader's threads may outlive this call when a daemon keeps the pipe open.
fn run_watched(command: Command, say: &(dyn Fn(&str) + Sync)) -> Result<Output, CommandError> {
    let (sender, lines) = mpsc::channel::<Option<String>>();
    let end = sender.clone();
    thread::scope(|scope| {
        scope.spawn(move || {
            while let Ok(Some(line)) = lines.recv() {
                say(&line);
            }
        });
        let ran = command.run_watched(move |line| {
            // Nobody listens any more: the line came from a leftover of the installer.
            let _ = sender.send(Some(line.to_owned()));
        });
        let _ = end.send(None);
        ran
    })
}

/// Daemons that a program of the image has started (a package's service, gpg-agent) would keep the target busy.
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
                say(&format!("ending {process}, which the image left running"));
                said.push(process.id);
            }
            // Gone already is as good as killed.
            let _ = kill(Pid::from_raw(process.id), Signal::SIGKILL);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// What a program of the image mounted and did not unmount, youngest first.
fn unmount_leftovers(root: &Path, before: &[std::path::PathBuf], special: &Mounts) -> Result<()> {
    let ours = |path: &Path| before.iter().any(|mount| mount == path) || special.contains(path);
    busy::mounts_below(root).iter().rev().filter(|path| !ours(path)).try_for_each(|path| mount::unmount(path))
}
