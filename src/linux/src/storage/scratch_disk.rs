//! Scratch disks, which are sparse files in memory. Such a file may have any size, but uses at most the specified
//! amount of memory.

use super::loop_device::LoopDevice;
use super::mount::MountStack;
use common::error::{Context, Phase, Result};
use nix::sys::statvfs::statvfs;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use sys_mount::MountFlags;

/// Parent directory; each scratch file has its own subdirectory.
const PARENT: &str = "/run/drophammer";

/// Free space of the tmpfs, in bytes. If less space is free, a failed command is assumed to have failed for lack of
/// memory.
const FULL_BYTES: u64 = 1 << 20;

/// File in a separate tmpfs. The file and the tmpfs are removed when this value is dropped.
pub(crate) struct ScratchDisk {
    mounts: MountStack,
    file: PathBuf,
}

impl ScratchDisk {
    /// Creates a file of `size_bytes` bytes, which takes at most `memory_bytes` bytes of memory.
    ///
    /// # Errors
    /// Returns an error if the tmpfs cannot be mounted.
    pub fn new(size_bytes: u64, memory_bytes: u64) -> Result<ScratchDisk> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("scratch-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let root = Path::new(PARENT).join(name);
        let mut mounts = MountStack::new(&root);
        let options = format!("mode=0700,size={memory_bytes}");
        mounts.mount_at("tmpfs", "/", "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, &options)?;
        let file = root.join("disk");
        let scratch = ScratchDisk { mounts, file };
        let sized = File::create(&scratch.file).and_then(|file| file.set_len(size_bytes));
        sized.context(Phase::Storage, || format!("create {}", scratch.file.display()))?;
        Ok(scratch)
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the path at which a filesystem on the scratch disk can be mounted.
    pub(crate) fn mount_point(&self) -> PathBuf {
        self.mounts.root().join("mnt")
    }

    /// Returns whether the memory reserved for the scratch disk is nearly exhausted.
    pub(crate) fn is_full(&self) -> bool {
        let left = statvfs(self.mounts.root()).map(|is| is.blocks_available().saturating_mul(is.fragment_size()));
        left.is_ok_and(|left| left < FULL_BYTES)
    }

    /// Creates a loop device over the file, with sectors of this size.
    ///
    /// # Errors
    /// Returns an error if the kernel does not support loop devices.
    pub(crate) fn attach_loop_device(&self, sector_bytes: u32) -> Result<LoopDevice> {
        let what = || format!("create a loop device for {file}", file = self.file.display());
        let backing = File::options().read(true).write(true).open(&self.file).context(Phase::Storage, what)?;
        LoopDevice::create_over(&backing, sector_bytes).context(Phase::Storage, what)
    }
}

impl Drop for ScratchDisk {
    fn drop(&mut self) {
        for error in self.mounts.unmount_best_effort() {
            tracing::warn!("{error}");
        }
        // The directory is empty and below /run, so it disappears with the next boot in any case.
        let _ = fs::remove_dir(self.mounts.root());
    }
}
