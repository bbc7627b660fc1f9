//! Runs the `create` script of an OS definition. The script creates the system on the disks without using an image. The
//! script has access to the files of the definition, the programs of this ramdisk, the network, and the disks that the
//! plan assigns to it. Its `/dev` never contains preserved disks.

use super::chroot::Chroot;
use super::{NewRoot, restricted_dev};
use common::error::{Context, Phase, Result};
use linux::storage::mount::MountStack;
use nix::mount::{MsFlags, mount};
use operations::CreateSystem;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;
use sys_mount::MountFlags;

/// Deadline of the script, which may download a whole system.
pub const SCRIPT_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// Mount point of the script's root.
const SCRIPT_ROOT: &str = "/run/drophammer/create";

/// Directory of the definition in the script's root.
const DEFINITION_DIRECTORY: &str = "/definition";

/// Directories of the ramdisk that the script can read. In `var/cache`, Debian's `debootstrap` finds cached systems,
/// which it would otherwise download.
const READABLE_DIRECTORIES: [&str; 8] = ["bin", "sbin", "lib", "lib32", "lib64", "usr", "etc", "var/cache"];

/// Runs the script, and waits until it ends.
///
/// # Errors
/// Returns an error if the script fails (the error includes the last lines of its output), or exceeds its deadline.
pub fn run_create(create: &CreateSystem, deadline: Duration, say: &(dyn Fn(&str) + Sync)) -> Result<()> {
    run_create_at(Path::new(SCRIPT_ROOT), create, deadline, say)
}

fn run_create_at(place: &Path, create: &CreateSystem, deadline: Duration, say: &(dyn Fn(&str) + Sync)) -> Result<()> {
    let mut mounts = MountStack::new(place);
    mounts.mount_at("tmpfs", "/", "tmpfs", MountFlags::NOSUID, "mode=0755")?;
    let root = NewRoot::open(place)?;
    READABLE_DIRECTORIES.iter().try_for_each(|folder| bind_read_only(&mut mounts, folder))?;
    ["tmp", "var/tmp"].iter().try_for_each(|folder| create_scratch_directory(&place.join(folder)))?;
    for (path, file) in &create.chosen.files {
        let mode = if file.executable { 0o755 } else { 0o644 };
        root.write_file(&format!("{DEFINITION_DIRECTORY}/{path}"), mode, file.text.as_bytes())?;
    }
    let chroot = Chroot::open(&root, &create.disks, say)?.with_environment(&create.environment);
    let program = format!("{DEFINITION_DIRECTORY}/create");
    let run = || chroot.run_with_environment(&program, DEFINITION_DIRECTORY, deadline);
    let ran = restricted_dev::run_with_partition_nodes(&place.join("dev"), &create.disks, run);
    let left = chroot.close();
    drop(root);
    // If the script and the cleanup both fail, the error of the script is returned: it is more informative than an
    // error about a mount that the script left busy.
    ran.context(Phase::Target, || format!("run `create` of {}", create.os))?;
    left?;
    mounts.unmount_all()
}

/// Bind-mounts a directory of the ramdisk read-only. If the path is a symlink in the ramdisk, creates the same symlink.
fn bind_read_only(mounts: &mut MountStack, folder: &str) -> Result<()> {
    let (there, here) = (Path::new("/").join(folder), mounts.root().join(folder));
    let Ok(is) = there.symlink_metadata() else { return Ok(()) };
    let what = || format!("bind-mount {folder} for `create`", folder = there.display());
    if is.is_symlink() {
        return fs::read_link(&there).and_then(|to| symlink(to, &here)).context(Phase::Target, what);
    }
    mounts.mount_at(&format!("/{folder}"), &format!("/{folder}"), "none", MountFlags::BIND, "")?;
    // A bind mount ignores flags, so they are set by a remount.
    let read_only = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(None::<&str>, &here, None::<&str>, read_only, None::<&str>).context(Phase::Target, what)
}

fn create_scratch_directory(folder: &Path) -> Result<()> {
    let what = || format!("create {}", folder.display());
    fs::create_dir_all(folder).context(Phase::Target, what)?;
    fs::set_permissions(folder, Permissions::from_mode(0o1777)).context(Phase::Target, what)
}

#[cfg(test)]
mod tests;
