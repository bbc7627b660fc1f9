//! A block device whose content lives in memory: a loop device over a file without a name. Both are gone when nobody
//! has the device open any more.

use super::loops::LoopDevice;
use crate::error::{Context, Phase, Result};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;

/// The device. It takes memory for what is written to it, and never more than this size.
///
/// # Errors
/// There are no loop devices, or no memory.
pub fn device(size_bytes: u64) -> Result<LoopDevice> {
    let what = || "make a block device in memory".to_owned();
    let content = File::from(memfd_create(c"drophammer", MFdFlags::MFD_CLOEXEC).context(Phase::Storage, what)?);
    content.set_len(size_bytes).context(Phase::Storage, what)?;
    LoopDevice::over(&content, 512).context(Phase::Storage, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::kernel;
    use nix::errno::Errno;
    use std::fs;
    use std::os::unix::fs::FileExt;

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_a_device_in_memory_keeps_what_is_written_and_leaves_no_trace() {
        let LoopDevice { file: device, path } = device(8 << 20).unwrap();
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
