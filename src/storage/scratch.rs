//! A sparse file in memory that stands for a disk: of any size, and with so much memory behind it and no more.

use super::mount::Mounts;
use crate::error::{Context, Error, Phase, Result};
use nix::errno::Errno;
use nix::sys::statvfs::statvfs;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use sys_mount::MountFlags;

/// Below it each has a directory of its own.
const PARENT: &str = "/run/drophammer";

/// With less than this left, what failed may have failed for want of it.
const FULL_BYTES: u64 = 1 << 20;

/// The file in its own tmpfs; both are gone when dropped.
pub struct Scratch {
    mounts: Mounts,
    file: PathBuf,
}

impl Scratch {
    /// # Errors
    /// The kernel refuses the tmpfs.
    pub fn new(size_bytes: u64, memory_bytes: u64) -> Result<Scratch> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("scratch-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let root = Path::new(PARENT).join(name);
        let mut mounts = Mounts::new(&root);
        let options = format!("mode=0700,size={memory_bytes}");
        mounts.mount_at("tmpfs", "/", "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, &options)?;
        let file = root.join("disk");
        let scratch = Scratch { mounts, file };
        let sized = File::create(&scratch.file).and_then(|file| file.set_len(size_bytes));
        sized.context(Phase::Storage, || format!("make {}", scratch.file.display()))?;
        Ok(scratch)
    }

    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Where something can be mounted.
    pub fn mount_point(&self) -> PathBuf {
        self.mounts.root().join("mnt")
    }

    /// Is all of its memory used?
    pub fn is_full(&self) -> bool {
        let left = statvfs(self.mounts.root()).map(|is| is.blocks_available().saturating_mul(is.fragment_size()));
        left.is_ok_and(|left| left < FULL_BYTES)
    }

    /// A block device with sectors of this size that has the file's content.
    ///
    /// # Errors
    /// The kernel has no loop devices.
    pub fn attach(&self, sector_bytes: u32) -> Result<LoopDevice> {
        LoopDevice::attach(&self.file, sector_bytes)
            .context(Phase::Storage, || format!("a loop device for {}", self.file.display()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for error in self.mounts.abandon() {
            tracing::warn!("{error}");
        }
        // It is empty, and below /run: gone at the next start in any case.
        let _ = fs::remove_dir(self.mounts.root());
    }
}

/// Numbers and structures from linux/loop.h.
mod ioctl {
    pub const LO_FLAGS_AUTOCLEAR: u32 = 4;

    /// `struct loop_info64`; only what is set here has a name.
    #[repr(C)]
    pub struct LoopInfo {
        pub devices_and_limits: [u64; 5],
        pub number_and_encryption: [u32; 3],
        pub flags: u32,
        pub names_and_key: [u8; 160],
        pub init: [u64; 2],
    }

    /// `struct loop_config`.
    #[repr(C)]
    pub struct LoopConfig {
        pub fd: u32,
        pub block_size: u32,
        pub info: LoopInfo,
        pub reserved: [u64; 8],
    }

    nix::ioctl_none_bad!(loop_ctl_get_free, 0x4C82);
    nix::ioctl_write_ptr_bad!(loop_configure, 0x4C0A, LoopConfig);
}

/// It goes when this is dropped and nobody else has it open.
pub struct LoopDevice {
    path: PathBuf,
    _open: File,
}

impl LoopDevice {
    fn attach(file: &Path, sector_bytes: u32) -> io::Result<LoopDevice> {
        let backing = OpenOptions::new().read(true).write(true).open(file)?;
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
        loop {
            // SAFETY: LOOP_CTL_GET_FREE takes no argument.
            let number = unsafe { ioctl::loop_ctl_get_free(control.as_raw_fd()) }?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let open = OpenOptions::new().read(true).write(true).open(&path)?;
            let config = ioctl::LoopConfig {
                fd: u32::try_from(backing.as_raw_fd()).map_err(io::Error::other)?,
                block_size: sector_bytes,
                info: ioctl::LoopInfo {
                    devices_and_limits: [0; 5],
                    number_and_encryption: [0; 3],
                    flags: ioctl::LO_FLAGS_AUTOCLEAR,
                    names_and_key: [0; 160],
                    init: [0; 2],
                },
                reserved: [0; 8],
            };
            // SAFETY: LOOP_CONFIGURE reads one `loop_config` where the pointer says.
            match unsafe { ioctl::loop_configure(open.as_raw_fd(), &config) } {
                // The kernel keeps this flag when a loop device is detached.
                Ok(_) => {
                    super::kernel::set_read_only(&open, false)?;
                    return Ok(LoopDevice { path, _open: open });
                }
                // Somebody else was faster.
                Err(Errno::EBUSY) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// # Errors
    /// Its path is not UTF-8, which it always is.
    pub fn path(&self) -> Result<&str> {
        self.path.to_str().ok_or_else(|| Error::new(Phase::Storage, "the path of a loop device is not UTF-8"))
    }
}
