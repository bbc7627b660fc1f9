//! Check that the image's kernel can mount the filesystems of the layout.

use super::boot_kernel::MODULES;
use crate::NewRoot;
use common::error::{Error, Phase, Result};
use linux::storage::filesystem_features::{SUPERBLOCK_AREA, explain_unsupported, is_checked};
use model::boot_contents::parse_linux_version;
use model::device::KernelName;
use operations::FstabEntry;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Checks the filesystems that are mounted below the root against the newest kernel that has modules in the image. If
/// the image contains no kernel modules, the version of its kernel is unknown, and nothing is checked.
///
/// # Errors
/// Returns an error if the kernel does not support a feature of a filesystem. A filesystem whose superblock cannot be read is not checked.
pub(super) fn require_kernel_support(root: &NewRoot, fstab: &[FstabEntry]) -> Result<()> {
    let all = MODULES.iter().flat_map(|dir| root.list_names(dir).unwrap_or_default());
    let Some((_, kernel)) = all.filter_map(|name| Some((parse_linux_version(&name)?, name))).max() else {
        return Ok(());
    };
    for entry in fstab {
        if !is_checked(entry.format) || !entry.path.starts_with('/') {
            continue;
        }
        // A filesystem that cannot be examined does not fail the installation.
        let superblock = match read_superblock(root, &entry.path) {
            Ok(superblock) => superblock,
            Err(error) => {
                tracing::warn!("{}: features of the filesystem are unknown: {error}", entry.path);
                continue;
            }
        };
        if let Some(why) = explain_unsupported(&superblock, entry.format, &entry.path, &kernel) {
            return Err(Error::new(Phase::Target, why));
        }
    }
    Ok(())
}

/// Reads the superblock of the filesystem that is mounted at this path of the target.
fn read_superblock(root: &NewRoot, path: &str) -> io::Result<[u8; SUPERBLOCK_AREA]> {
    let device = root.device_number(path)?;
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    let entry = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}"))?;
    let name = KernelName::from(entry.file_name().unwrap_or_default().to_string_lossy().into_owned());
    let mut area = [0; SUPERBLOCK_AREA];
    File::open(name.device_path())?.read_exact_at(&mut area, 0)?;
    Ok(area)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system_setup::testing::tree;
    use model::layout::FilesystemFormat;

    #[test]
    fn without_modules_or_checked_filesystems_nothing_is_read() {
        let tmpfs = FstabEntry {
            source: "tmpfs".into(),
            path: "/tmp".into(),
            format: FilesystemFormat::Tmpfs,
            options: Vec::new(),
            pass: 0,
        };
        let root_entry = FstabEntry { path: "/".into(), format: FilesystemFormat::Ext4, ..tmpfs.clone() };
        let (_dir, bare) = tree(&[("etc/os-release", "ID=x\n")]);
        require_kernel_support(&bare, &[root_entry]).unwrap();
        let (_dir, old) = tree(&[("lib/modules/3.10.0/modules.dep", "")]);
        require_kernel_support(&old, &[tmpfs]).unwrap();
    }
}
