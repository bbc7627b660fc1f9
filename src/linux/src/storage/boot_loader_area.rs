//! Writes a boot loader for BIOS to the areas of a disk that are outside of its partitions.

use super::signature_wipe::BOOT_CODE_BYTES;
use super::{block_device, direct_io};
use common::error::{Context, Error, Phase, Result};
use model::device_name::DevicePath;
use nix::libc::O_DIRECT;
use operations::ByteRange;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;

/// Sector size of the disks from which a BIOS boots, in bytes.
const SECTOR: usize = 512;

/// Boot loader for BIOS: boot code for the first sector, and a core image that the boot code starts.
#[derive(Debug, Clone, Copy)]
pub struct BiosBootLoader<'a> {
    pub boot_code: &'a [u8; BOOT_CODE_BYTES],
    /// Whole sectors of 512 bytes.
    pub core: &'a [u8],
    /// Space between the partition table and the first partition. The core image is written to the start of this space.
    pub gap: ByteRange,
}

/// Writes the boot loader to a disk whose partitions may be in use, and reads it back. The disk signature and the
/// partition table in the first sector are preserved. The boot code is written last, because it starts the core image.
///
/// # Errors
/// Returns an error, before anything is written, if the core image is larger than the gap, or a partition registered
/// with the kernel overlaps the gap. Also returns an error if the disk cannot be opened or written, or afterwards
/// returns bytes other than the written ones.
pub fn write_boot_loader(device: &DevicePath, loader: BiosBootLoader) -> Result<()> {
    let what = || format!("write the boot loader to {device}");
    check_gap(device, loader)?;
    // The disk is opened without O_EXCL, which would fail because partitions of the disk are mounted, and with
    // O_DIRECT, because the page cache of the disk may contain old sectors of the partition table.
    let opened = OpenOptions::new().read(true).write(true).custom_flags(O_DIRECT).open(device);
    let disk = opened.context(Phase::Target, what)?;
    let write = || {
        write_verified(&disk, loader.core, loader.gap.start)?;
        let mut sector = [0; SECTOR];
        direct_io::read_direct(&disk, &mut sector, 0, SECTOR as u64)?;
        sector[..BOOT_CODE_BYTES].copy_from_slice(loader.boot_code);
        write_verified(&disk, &sector, 0)
    };
    write().context(Phase::Target, what)
}

fn write_verified(disk: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    direct_io::write_aligned(disk, bytes, offset)?;
    disk.sync_all()?;
    let mut found = vec![0; bytes.len()];
    direct_io::read_direct(disk, &mut found, offset, SECTOR as u64)?;
    if found == bytes {
        Ok(())
    } else {
        Err(io::Error::other("the disk returns bytes that differ from the written ones"))
    }
}

fn check_gap(device: &DevicePath, loader: BiosBootLoader) -> Result<()> {
    let ByteRange { start, length } = loader.gap;
    if loader.core.len() as u64 > length {
        let wanted = loader.core.len();
        let text = format!(
            "the core image is {wanted} bytes, but only {length} are available before the first partition of {device}"
        );
        return Err(Error::new(Phase::Target, text));
    }
    let end = start.saturating_add(length);
    let overlaps = |partition: &block_device::KernelPartition| {
        partition.start_bytes < end && start < partition.start_bytes.saturating_add(partition.size_bytes)
    };
    match block_device::read_partitions(device)?.iter().find(|partition| overlaps(partition)) {
        None => Ok(()),
        Some(partition) => {
            let text = format!(
                "the boot loader would overwrite {partition} (nothing was written)",
                partition = partition.name
            );
            Err(Error::new(Phase::Target, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::partition_table::write_partition_table;
    use crate::storage::test_loop_device::TestLoopDevice;

    const BOOT_CODE: [u8; BOOT_CODE_BYTES] = [0x90; BOOT_CODE_BYTES];

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_boot_loader_is_written_only_outside_partitions() {
        let disk = TestLoopDevice::new(16 << 20, 512);
        std::fs::write(disk.image(), vec![0xa5; 16 << 20]).unwrap();
        let core = vec![0x77; 4096];
        let gap = ByteRange { start: 34 * 512, length: 8192 };
        write_boot_loader(disk.path(), BiosBootLoader { boot_code: &BOOT_CODE, core: &core, gap }).unwrap();
        let image = std::fs::read(disk.image()).unwrap();
        assert!(image[..440] == BOOT_CODE && image[34 * 512..34 * 512 + 4096] == core[..]);
        assert!(image[440..34 * 512].iter().chain(&image[34 * 512 + 4096..]).all(|byte| *byte == 0xa5));

        let small = ByteRange { length: 2048, ..gap };
        let error = write_boot_loader(disk.path(), BiosBootLoader { boot_code: &BOOT_CODE, core: &core, gap: small });
        assert!(error.unwrap_err().to_string().contains("is 4096 bytes, but only 2048 are available"));
        assert_eq!(std::fs::read(disk.image()).unwrap(), image);
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_boot_loader_never_overwrites_a_partition() {
        let disk = TestLoopDevice::new(16 << 20, 512);
        write_partition_table(&disk.table(512, &[(1, 64, 8191)])).unwrap();
        let before = std::fs::read(disk.image()).unwrap();
        let gap = ByteRange { start: 34 * 512, length: 31 * 512 };
        let error = write_boot_loader(disk.path(), BiosBootLoader { boot_code: &BOOT_CODE, core: &[0x77; 512], gap });
        assert!(error.unwrap_err().to_string().contains("would overwrite"));
        assert_eq!(std::fs::read(disk.image()).unwrap(), before);
        let gap = ByteRange { length: 30 * 512, ..gap };
        write_boot_loader(disk.path(), BiosBootLoader { boot_code: &BOOT_CODE, core: &[0x77; 512], gap }).unwrap();
    }
}
