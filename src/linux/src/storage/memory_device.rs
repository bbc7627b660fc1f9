//! Block devices in memory: loop devices over anonymous files. The device and its file are removed when the device is
//! no longer open.

use super::loop_device::LoopDevice;
use common::error::{Context, Phase, Result};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;

/// Creates a device of this size. The device uses memory only for data that is written to it.
///
/// # Errors
/// Returns an error if the kernel does not support loop devices, or memory is exhausted.
pub(crate) fn create_memory_device(size_bytes: u64) -> Result<LoopDevice> {
    let what = || "create a block device in memory".to_owned();
    let content = File::from(memfd_create(c"drophammer", MFdFlags::MFD_CLOEXEC).context(Phase::Storage, what)?);
    content.set_len(size_bytes).context(Phase::Storage, what)?;
    LoopDevice::create_over(&content, 512).context(Phase::Storage, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::block_device;
    use nix::errno::Errno;
    use std::fs;
    use std::os::unix::fs::FileExt;

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_memory_device_stores_data_and_leaves_no_trace() {
        let LoopDevice { file: device, path } = create_memory_device(8 << 20).unwrap();
        assert_eq!(block_device::read_size_bytes(&device), Ok(8 << 20));
        device.write_all_at(b"content", 4096).unwrap();
        block_device::flush_buffers(&device).unwrap();
        let mut found = [0; 7];
        device.read_exact_at(&mut found, 4096).unwrap();
        assert_eq!(&found, b"content");
        drop(device);
        let backing = format!("/sys/block/{}/loop/backing_file", path.kernel_name());
        let gone = || if fs::metadata(&backing).is_ok() { Err(Errno::EBUSY) } else { Ok(()) };
        block_device::retry_while_busy(Errno::EBUSY, gone).unwrap();
    }
}
