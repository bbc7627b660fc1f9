//! Mounts filesystems below the target's root. An unmount is complete only after all data is written, because kexec
//! would lose unwritten data.

use super::{block_device, busy_device_users};
use crate::kernel_log::KernelLog;
use crate::safe_open::{self, PathRestriction};
use common::error::{Context, Error, Phase, Result};
use model::device_name::DevicePath;
use model::layout::FilesystemFormat;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::mount::MntFlags;
use nix::sys::stat::{Mode, mkdirat};
use operations::MountFilesystem;
use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf};
use sys_mount::MountFlags;

/// Mount flags for untrusted filesystems that are only read or tested: no device nodes, no set-user-ID bits, no
/// executables.
pub const INERT: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// Stack of mounts below one directory.
#[derive(Debug)]
pub struct MountStack {
    root: PathBuf,
    /// Mount points, oldest first.
    mounted: Vec<PathBuf>,
}

impl MountStack {
    /// Creates an empty stack; `root` need not exist.
    pub fn new(root: impl Into<PathBuf>) -> MountStack {
        MountStack { root: root.into(), mounted: Vec::new() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns whether this path is one of the mount points.
    pub fn contains(&self, path: &Path) -> bool {
        self.mounted.iter().any(|mounted| mounted == path)
    }

    /// Mounts a filesystem of the plan.
    ///
    /// # Errors
    /// Returns an error if the path contains a symlink or a file, or the mount fails.
    pub fn mount_filesystem(&mut self, filesystem: &MountFilesystem) -> Result<()> {
        self.mount_with(filesystem, MountFlags::empty())
    }

    /// Mounts a filesystem like [`MountStack::mount_filesystem`], but without device nodes, set-user-ID bits and
    /// executables, to verify that mounting works.
    ///
    /// # Errors
    /// The same errors as for [`MountStack::mount_filesystem`].
    pub(crate) fn mount_inert(&mut self, filesystem: &MountFilesystem) -> Result<()> {
        self.mount_with(filesystem, INERT)
    }

    /// Mounts a filesystem like [`MountStack::mount_inert`], but read-only. A read-only mount does not prevent a replay
    /// of the journal; this requires an additional mount option, such as `noload`.
    ///
    /// # Errors
    /// The same errors as for [`MountStack::mount_filesystem`]; in addition, returns an error if the mount point does
    /// not exist.
    pub fn mount_read_only(&mut self, filesystem: &MountFilesystem) -> Result<()> {
        self.mount_with(filesystem, MountFlags::RDONLY | INERT)
    }

    fn mount_with(&mut self, filesystem: &MountFilesystem, more: MountFlags) -> Result<()> {
        let MountFilesystem { device, path, format, options, .. } = filesystem;
        let content = match format {
            FilesystemFormat::Swap => "swap space",
            FilesystemFormat::None => "a device without a filesystem",
            _ => "",
        };
        if !content.is_empty() {
            return Err(Error::new(Phase::Storage, format!("{device}: {content} cannot be mounted at {path}")));
        }
        let (flags, data) = split_mount_options(options);
        self.mount_at(device.as_str(), path, format.name(), flags | more, &data)
    }

    /// Mounts `source` at `path` in the target, creating the directory if it is missing.
    ///
    /// # Errors
    /// The same errors as for [`MountStack::mount_filesystem`].
    pub fn mount_at(&mut self, source: &str, path: &str, fstype: &str, flags: MountFlags, data: &str) -> Result<()> {
        let what = || format!("mount {source} at {path} of the target");
        let point = self.create_mount_point(path).context(Phase::Storage, what)?;
        mount_device(source, &point, fstype, flags, data)
            .map_err(|why| Error::with_source(Phase::Storage, what(), why))?;
        self.mounted.push(point);
        Ok(())
    }

    /// Creates the directories up to `path`. Rejects symlinks, because an image or an old disk may contain a symlink
    /// that leads to any path.
    fn create_mount_point(&self, path: &str) -> io::Result<PathBuf> {
        fs::create_dir_all(&self.root)?;
        let mut point = self.root.clone();
        let mut parent = std::os::fd::OwnedFd::from(File::open(&self.root)?);
        for component in Path::new(path).components() {
            let name = match component {
                Component::RootDir | Component::CurDir => continue,
                Component::Normal(name) => name,
                Component::ParentDir | Component::Prefix(_) => return Err(io::Error::other("the path contains `..`")),
            };
            point.push(name);
            match mkdirat(&parent, name, Mode::from_bits_truncate(0o755)) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(error) => return Err(error.into()),
            }
            let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
            parent =
                safe_open::open_beneath(&parent, name, flags, PathRestriction::Plain).map_err(|error| match error {
                    Errno::ELOOP => io::Error::other(format!("{} is a symlink", point.display())),
                    Errno::ENOTDIR => io::Error::other(format!("{} is not a directory", point.display())),
                    other => other.into(),
                })?;
        }
        Ok(point)
    }

    /// Writes back all data and empties journals, so that the filesystems can be read without a replay. The filesystems
    /// stay mounted.
    ///
    /// # Errors
    /// Returns an error if data could not be written.
    pub fn write_back(&self) -> Result<()> {
        self.mounted.iter().rev().try_for_each(|point| {
            sync_filesystem(point)?;
            let settled = File::open(point).and_then(|dir| Ok(block_device::flush_journal(&dir)?));
            settled.context(Phase::Storage, || {
                format!("flush the journal of the filesystem at {path}", path = point.display())
            })
        })
    }

    /// Writes back dirty data early, so that less data must be written at the end.
    ///
    /// # Errors
    /// Returns an error if data could not be written. The kernel reports each write error only once, so the error must
    /// not be ignored.
    pub fn write_back_early(&self) -> Result<()> {
        self.mounted.iter().try_for_each(|point| sync_filesystem(point))
    }

    /// Writes back all data and unmounts all filesystems, newest mount first.
    ///
    /// # Errors
    /// Returns an error if data could not be written, or a mount stays busy (the error lists the users). The failed
    /// mount and all older mounts stay mounted.
    pub fn unmount_all(&mut self) -> Result<()> {
        while let Some(point) = self.mounted.last() {
            sync_filesystem(point)?;
            unmount_strictly(point)?;
            self.mounted.pop();
        }
        Ok(())
    }

    /// Unmounts as many mounts as possible after a failure, and returns the errors.
    pub fn unmount_best_effort(&mut self) -> Vec<Error> {
        self.mounted.drain(..).rev().filter_map(|point| unmount_strictly(&point).err()).collect()
    }
}

/// Unmounts the mounts that remain after an error has ended the installation. If unmounting fails, the failure is only
/// logged.
impl Drop for MountStack {
    fn drop(&mut self) {
        for error in self.unmount_best_effort() {
            tracing::warn!("{error}");
        }
    }
}

/// Writes back a filesystem with syncfs(2), which reports write errors since Linux 5.8; umount(2) does not report them.
fn sync_filesystem(point: &Path) -> Result<()> {
    let what = || format!("write back the filesystem at {path}", path = point.display());
    let dir = File::open(point).context(Phase::Storage, what)?;
    nix::unistd::syncfs(&dir).context(Phase::Storage, what)
}

/// Mounts a device. Errors include messages of the kernel log, because mount(2) returns only EINVAL for an unknown
/// option, and the kernel logs the reason.
fn mount_device(source: &str, point: &Path, fstype: &str, flags: MountFlags, data: &str) -> Result<(), String> {
    let log = KernelLog::from_now();
    let mount = sys_mount::Mount::builder().fstype(fstype).flags(flags).data(data).mount(source, point);
    mount.map(drop).map_err(|error| {
        let read_only = if flags.contains(MountFlags::RDONLY) { " read-only" } else { "" };
        let options = if data.is_empty() { "no options".to_owned() } else { format!("options {data}") };
        let name = fs::canonicalize(source).unwrap_or_default();
        let name = name.file_name().unwrap_or_default().to_string_lossy();
        // The `v` of vfat is removed for the search, because the kernel logs messages about vfat with the prefix
        // FAT-fs.
        let kind = fstype.trim_start_matches('v');
        format!(
            "{error} (mounted as {fstype}{read_only}, with {options}){kernel_log}",
            kernel_log = log.describe_matching(&[&name, kind])
        )
    })
}

/// Unmounts a filesystem without the flags MNT_DETACH and MNT_FORCE, with which umount2(2) would return before all data
/// is written.
///
/// # Errors
/// Returns an error if the mount stays busy (the error lists the users).
pub fn unmount_strictly(point: &Path) -> Result<()> {
    block_device::retry_while_busy(Errno::EBUSY, || nix::mount::umount2(point, MntFlags::UMOUNT_NOFOLLOW)).map_err(
        |error| {
            let users = busy_device_users::format_users(&busy_device_users::list_mount_users(point));
            Error::with_source(Phase::Storage, format!("unmount {}{users}", point.display()), error)
        },
    )
}

/// Flushes the disk's write cache, and drops the kernel's page cache for the disk.
///
/// # Errors
/// Returns an error if data could not be written.
pub fn flush_disk(device: &DevicePath) -> Result<()> {
    let what = || format!("flush {device}");
    let disk = File::open(device).context(Phase::Storage, what)?;
    disk.sync_all().context(Phase::Storage, what)?;
    block_device::flush_buffers(&disk).context(Phase::Storage, what)
}

/// Returns whether a mount with these options is read-only.
pub(super) fn has_read_only_option(options: &[String]) -> bool {
    split_mount_options(options).0.contains(MountFlags::RDONLY)
}

/// Splits fstab options into mount(2)'s flags and data. Options that only user-space tools interpret are omitted
/// (mount(8), "FILESYSTEM-INDEPENDENT MOUNT OPTIONS").
fn split_mount_options(options: &[String]) -> (MountFlags, String) {
    let mut flags = MountFlags::empty();
    let mut data = Vec::new();
    for option in options.iter().flat_map(|option| option.split(',')).map(str::trim) {
        let name = option.split('=').next().unwrap_or_default();
        match name {
            "" | "defaults" | "auto" | "noauto" | "nofail" | "user" | "nouser" | "users" | "group" | "owner"
            | "_netdev" | "comment" | "loud" | "loop" | "offset" | "sizelimit" | "helper" => {}
            "private" | "rprivate" | "shared" | "rshared" | "slave" | "rslave" | "unbindable" | "runbindable" => {}
            _ if name.starts_with("x-") || name.starts_with("X-") => {}
            "ro" => flags.insert(MountFlags::RDONLY),
            "rw" => flags.remove(MountFlags::RDONLY),
            "suid" => flags.remove(MountFlags::NOSUID),
            "nosuid" => flags.insert(MountFlags::NOSUID),
            "dev" => flags.remove(MountFlags::NODEV),
            "nodev" => flags.insert(MountFlags::NODEV),
            "exec" => flags.remove(MountFlags::NOEXEC),
            "noexec" => flags.insert(MountFlags::NOEXEC),
            "async" => flags.remove(MountFlags::SYNCHRONOUS),
            "sync" => flags.insert(MountFlags::SYNCHRONOUS),
            "dirsync" => flags.insert(MountFlags::DIRSYNC),
            "atime" => flags.remove(MountFlags::NOATIME),
            "noatime" => flags.insert(MountFlags::NOATIME),
            "diratime" => flags.remove(MountFlags::NODIRATIME),
            "nodiratime" => flags.insert(MountFlags::NODIRATIME),
            "relatime" => flags.insert(MountFlags::RELATIME),
            "norelatime" => flags.remove(MountFlags::RELATIME),
            "strictatime" => flags.insert(MountFlags::STRICTATIME),
            "nostrictatime" => flags.remove(MountFlags::STRICTATIME),
            "silent" => flags.insert(MountFlags::SILENT),
            _ => data.push(option),
        }
    }
    (flags, data.join(","))
}

#[cfg(test)]
pub(super) mod tests;
