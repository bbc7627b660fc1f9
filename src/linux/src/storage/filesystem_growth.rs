//! Grows mounted filesystems to the size of their device. Uses the same ioctls as resize2fs, xfs_growfs and btrfs, so
//! that the ramdisk does not need these tools.

use super::block_device;
use common::error::{Context, Error, Phase, Result};
use model::device_name::DevicePath;
use model::layout::FilesystemFormat;
use std::fs::File;
use std::path::Path;

/// Grows the filesystem mounted at `point` to the end of its device; returns the new size of the filesystem in bytes.
///
/// # Errors
/// Returns an error if the format does not support growing, or the kernel refuses to grow the filesystem while it is
/// mounted.
pub fn grow_filesystem(device: &DevicePath, format: FilesystemFormat, point: &Path) -> Result<u64> {
    let what = || format!("grow the {format} filesystem on {device} to the end of its partition");
    let root = File::open(point).context(Phase::Storage, what)?;
    let disk = File::open(device).context(Phase::Storage, what)?;
    let device_bytes = block_device::read_size_bytes(&disk).context(Phase::Storage, what)?;
    match format {
        FilesystemFormat::Ext3 | FilesystemFormat::Ext4 => {
            let space = nix::sys::statvfs::fstatvfs(&root).context(Phase::Storage, what)?;
            block_device::grow_ext4(&root, device_bytes / space.block_size())
        }
        FilesystemFormat::Xfs => block_device::grow_xfs(&root, device_bytes),
        FilesystemFormat::Btrfs => block_device::grow_btrfs(&root),
        FilesystemFormat::Vfat | FilesystemFormat::Swap | FilesystemFormat::Tmpfs | FilesystemFormat::None => {
            return Err(Error::new(
                Phase::Storage,
                format!("{device}: {format} filesystems cannot be grown", device = what()),
            ));
        }
    }
    .context(Phase::Storage, what)?;
    let space = nix::sys::statvfs::fstatvfs(&root).context(Phase::Storage, what)?;
    Ok(space.blocks() * space.fragment_size())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::ToolCommand;
    use crate::storage::block_device::read_size_bytes;
    use crate::storage::test_loop_device::TestLoopDevice;
    use crate::storage::vm_test_disks::TestDisks;
    use std::fs;
    use std::io::Write;

    const MIB: u64 = 1 << 20;

    /// Checks that a filesystem that is smaller than its device grows to the size of the device, and that a second call
    /// changes nothing.
    fn grows(device: &DevicePath, format: FilesystemFormat) {
        let argv = match format {
            FilesystemFormat::Ext3 => format!("mkfs.ext3 -q {device} 64M"),
            FilesystemFormat::Ext4 => format!("mkfs.ext4 -q {device} 64M"),
            FilesystemFormat::Xfs => format!("mkfs.xfs -f -q -d size=320m {device}"),
            _ => format!("mkfs.btrfs -q -b 200M {device}"),
        };
        let mut words = argv.split(' ');
        ToolCommand::new(words.next().unwrap()).args(words).run().unwrap();
        let point = tempfile::tempdir().unwrap();
        let mount = sys_mount::Mount::builder()
            .fstype(format.name())
            .mount_autodrop(device, point.path(), sys_mount::UnmountFlags::empty())
            .unwrap();
        fs::write(point.path().join("file"), "there").unwrap();
        let all = read_size_bytes(&File::open(device).unwrap()).unwrap();
        for _ in 0..2 {
            let bytes = grow_filesystem(device, format, point.path()).unwrap();
            // The reported size does not include the filesystem's own metadata.
            assert!(bytes > all * 8 / 10 && bytes <= all, "{format}: {bytes} of {all}");
        }
        assert_eq!(fs::read_to_string(point.path().join("file")).unwrap(), "there");
        drop(mount);
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_xfs_and_btrfs_grow_and_keep_their_content() {
        for format in [FilesystemFormat::Xfs, FilesystemFormat::Btrfs] {
            grows(TestLoopDevice::new(600 * MIB, 512).path(), format);
        }
    }

    /// Checks that a filesystem grows after it was copied to a larger device, as in the migration of a machine.
    fn grows_after_a_copy(small: &DevicePath, large: &DevicePath, format: FilesystemFormat) {
        let make = if format == FilesystemFormat::Ext4 {
            format!("mkfs.ext4 -q {small}")
        } else {
            format!("mkfs.{format} -f -q {small}")
        };
        let mut words = make.split(' ');
        ToolCommand::new(words.next().unwrap()).args(words).run().unwrap();
        let point = tempfile::tempdir().unwrap();
        let mount = |device: &DevicePath| {
            let builder = sys_mount::Mount::builder().fstype(format.name());
            builder.mount_autodrop(device, point.path(), sys_mount::UnmountFlags::empty()).unwrap()
        };
        let mounted = mount(small);
        fs::write(point.path().join("file"), "there").unwrap();
        drop(mounted);
        let before = read_size_bytes(&File::open(small).unwrap()).unwrap();
        ToolCommand::new("dd")
            .args([&format!("if={small}"), &format!("of={large}"), "bs=1M", "conv=fsync", "status=none"])
            .run()
            .unwrap();
        // The kernel could not distinguish two filesystems with the same UUID.
        fs::OpenOptions::new().write(true).open(small).unwrap().write_all(&[0; 256 << 10]).unwrap();
        let mounted = mount(large);
        let all = read_size_bytes(&File::open(large).unwrap()).unwrap();
        let bytes = grow_filesystem(large, format, point.path()).unwrap();
        assert!(bytes > before && bytes > all * 8 / 10 && bytes <= all, "{format}: {bytes} of {all}, {before} before");
        assert_eq!(fs::read_to_string(point.path().join("file")).unwrap(), "there");
        drop(mounted);
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_xfs_and_btrfs_grow_after_a_copy_to_a_larger_device() {
        for format in [FilesystemFormat::Xfs, FilesystemFormat::Btrfs] {
            let (small, large) = (TestLoopDevice::new(320 * MIB, 512), TestLoopDevice::new(600 * MIB, 512));
            grows_after_a_copy(small.path(), large.path(), format);
        }
    }

    #[test]
    #[ignore = "needs a kernel of its own: scripts/test vm runs it in a machine"]
    fn vm_grow_ext4_after_a_copy_to_a_larger_device() {
        let disks = TestDisks::take("vda");
        let [small, large] = &disks.partition(&[64, 200]).concat()[..] else { panic!("two partitions") };
        grows_after_a_copy(small, large, FilesystemFormat::Ext4);
    }

    /// Runs in a virtual machine, because a container may lack capabilities: ext4 requires CAP_SYS_RESOURCE.
    #[test]
    #[ignore = "needs a kernel of its own: scripts/test vm runs it in a machine"]
    fn vm_grow_every_filesystem_to_the_end_of_its_disk() {
        let disks = TestDisks::take("vda vdb vdc vdd");
        for (disk, format) in disks.all().iter().zip([
            FilesystemFormat::Ext3,
            FilesystemFormat::Ext4,
            FilesystemFormat::Xfs,
            FilesystemFormat::Btrfs,
        ]) {
            grows(disk, format);
        }
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_unsupported_growth_is_an_error() {
        let disk = TestLoopDevice::new(16 * MIB, 512);
        let point = tempfile::tempdir().unwrap();
        let error = grow_filesystem(disk.path(), FilesystemFormat::Vfat, point.path()).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "grow the vfat filesystem on {} to the end of its partition: vfat filesystems cannot be grown",
                disk.path()
            )
        );
        // The directory is on a filesystem of the host that is not btrfs, so the kernel refuses the ioctl.
        assert!(grow_filesystem(disk.path(), FilesystemFormat::Btrfs, point.path()).is_err());
    }
}
