//! Loop devices over files, with a specified sector size. The kernel detaches a loop device when it is no longer open.

use model::device_name::DevicePath;
use nix::errno::Errno;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;

/// Request codes and structures of linux/loop.h.
mod ioctl {
    pub(crate) const AUTOCLEAR: u32 = 4;

    /// `struct loop_info64`, in which the fields not used here are combined.
    #[repr(C)]
    pub(crate) struct LoopInfo {
        pub combined_fields: [u64; 5],
        pub number_and_keys: [u32; 3],
        pub flags: u32,
        pub names: [u8; 160],
        pub init: [u64; 2],
    }

    /// `struct loop_config`.
    #[repr(C)]
    pub(crate) struct LoopConfig {
        pub fd: u32,
        pub block_bytes: u32,
        pub info: LoopInfo,
        pub reserved: [u64; 8],
    }

    nix::ioctl_none_bad!(get_free, 0x4C82);
    nix::ioctl_write_ptr_bad!(configure, 0x4C0A, LoopConfig);
}

/// Loop device that is detached when this value is dropped.
pub(crate) struct LoopDevice {
    /// Open descriptor, which keeps the loop device attached.
    #[allow(dead_code, reason = "the file is only kept open; no code except tests reads the field")]
    pub file: File,
    /// Path of the loop device, such as `/dev/loop0`.
    pub path: DevicePath,
}

impl LoopDevice {
    /// Creates a loop device over `backing`.
    ///
    /// # Errors
    /// Returns an error if the kernel does not support loop devices or this sector size.
    pub(crate) fn create_over(backing: &File, sector_bytes: u32) -> io::Result<LoopDevice> {
        let control = File::open("/dev/loop-control")?;
        loop {
            // SAFETY: LOOP_CTL_GET_FREE takes no argument.
            let number = unsafe { ioctl::get_free(control.as_raw_fd()) }?;
            let path = DevicePath::from(format!("/dev/loop{number}"));
            let file = fs::OpenOptions::new().read(true).write(true).open(&path)?;
            match configure_loop(&file, backing, sector_bytes) {
                // Another process has taken this loop device in the meantime, so another free one is requested.
                Err(Errno::EBUSY) => continue,
                result => result?,
            }
            // A detached loop device keeps its read-only flag, so the device may still have the flag of an earlier
            // user.
            super::block_device::set_read_only(&file, false)?;
            return Ok(LoopDevice { file, path });
        }
    }
}

fn configure_loop(device: &File, backing: &File, sector_bytes: u32) -> nix::Result<()> {
    let fd = u32::try_from(backing.as_raw_fd()).map_err(|_| Errno::EBADF)?;
    let info = ioctl::LoopInfo {
        combined_fields: [0; 5],
        number_and_keys: [0; 3],
        flags: ioctl::AUTOCLEAR,
        names: [0; 160],
        init: [0; 2],
    };
    let config = ioctl::LoopConfig { fd, block_bytes: sector_bytes, info, reserved: [0; 8] };
    // SAFETY: LOOP_CONFIGURE reads one `struct loop_config` from the address that it gets.
    unsafe { ioctl::configure(device.as_raw_fd(), &config) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_size_of_the_kernel_structures() {
        assert_eq!((size_of::<ioctl::LoopInfo>(), size_of::<ioctl::LoopConfig>()), (232, 304));
    }
}
