//! A block device whose content lives in memory: a loop device over a file without a name. Both are gone as soon as nobody
//! has it open any more.

use crate::error::{Context, Phase, Result};
use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::{self, File};
use std::os::fd::AsRawFd;

/// Numbers and structures from linux/loop.h.
mod ioctl {
    pub const AUTOCLEAR: u32 = 4;

    /// `struct loop_info64`; only what is set here has a name.
    #[repr(C)]
    pub struct Info {
        pub places: [u64; 5],
        pub number_and_keys: [u32; 3],
        pub flags: u32,
        pub names: [u8; 160],
        pub init: [u64; 2],
    }

    /// `struct loop_config`.
    #[repr(C)]
    pub struct Config {
        pub fd: u32,
        pub block_bytes: u32,
        pub info: Info,
        pub reserved: [u64; 8],
    }

    nix::ioctl_none_bad!(get_free, 0x4C82);
    nix::ioctl_write_ptr_bad!(configure, 0x4C0A, Config);
}

/// The device, and its path. It takes memory for what is written to it, and never more than this size.
///
/// # Errors
/// There are no loop devices, or no memory.
pub fn device(size_bytes: u64) -> Result<(File, String)> {
    let what = || "make a block device in memory".to_owned();
    let content = File::from(memfd_create(c"drophammer", MFdFlags::MFD_CLOEXEC).context(Phase::Storage, what)?);
    content.set_len(size_bytes).context(Phase::Storage, what)?;
    let control = File::open("/dev/loop-control").context(Phase::Storage, what)?;
    loop {
        // SAFETY: LOOP_CTL_GET_FREE takes no argument.
        let number = unsafe { ioctl::get_free(control.as_raw_fd()) }.context(Phase::Storage, what)?;
        let path = format!("/dev/loop{number}");
        let device = fs::OpenOptions::new().read(true).write(true).open(&path).context(Phase::Storage, what)?;
        match configure(&device, &content) {
            // Somebody else was faster.
            Err(Errno::EBUSY) => continue,
            result => result.context(Phase::Storage, what)?,
        }
        return Ok((device, path));
    }
}

fn configure(device: &File, content: &File) -> nix::Result<()> {
    let fd = u32::try_from(content.as_raw_fd()).map_err(|_| Errno::EBADF)?;
    let info =
        ioctl::Info { places: [0; 5], number_and_keys: [0; 3], flags: ioctl::AUTOCLEAR, names: [0; 160], init: [0; 2] };
    let config = ioctl::Config { fd, block_bytes: 0, info, reserved: [0; 8] };
    // SAFETY: LOOP_CONFIGURE reads one `struct loop_config` where the pointer says.
    unsafe { ioctl::configure(device.as_raw_fd(), &config) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::kernel;
    use std::os::unix::fs::FileExt;

    #[test]
    fn the_structures_have_the_size_that_the_kernel_wants() {
        assert_eq!((size_of::<ioctl::Info>(), size_of::<ioctl::Config>()), (232, 304));
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_a_device_in_memory_keeps_what_is_written_and_leaves_no_trace() {
        let (device, path) = device(8 << 20).unwrap();
        assert_eq!(kernel::size_bytes(&device), Ok(8 << 20));
        device.write_all_at(b"content", 4096).unwrap();
        kernel::flush_buffers(&device).unwrap();
        let mut found = [0; 7];
        device.read_exact_at(&mut found, 4096).unwrap();
        assert_eq!(&found, b"content");
        drop(device);
        let backing = format!("/sys/block/{}/loop/backing_file", path.trim_start_matches("/dev/"));
        let gone = || if fs::metadata(&backing).is_ok() { Err(Errno::EBUSY) } else { Ok(()) };
        kernel::patiently(Errno::EBUSY, gone).unwrap();
    }
}
