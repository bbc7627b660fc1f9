//! Writable overlays over devices that must not change. The overlays are device-mapper snapshots that keep changes in
//! memory.

use super::{block_device, memory_device, teardown};
use crate::process::ToolCommand;
use common::error::{Context, Error, Phase, Result};
use model::device_name::DevicePath;
use model::inventory::OVERLAY;
use std::fs::{self, File};

/// Size of a chunk, in units of 512 bytes. A chunk is copied to memory when it is written for the first time. Sectors
/// of disks are never larger than a chunk.
const CHUNK: u64 = 8;

/// Returns the maximum memory, in bytes, for a set of overlays that are used together: half of the available memory.
pub(crate) fn available_memory_bytes() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = available.and_then(|text| text.trim().split(' ').next()?.parse::<u64>().ok());
    kib.unwrap_or_default() * 1024 / 2
}

/// Creates an overlay over a disk, partition or array, and returns the path of the overlay. The changes in the overlay
/// take at most `memory_bytes` bytes of memory.
///
/// # Errors
/// Returns an error if the device is in use, or the kernel does not support loop devices or snapshots.
pub(crate) fn create_overlay(device: &DevicePath, memory_bytes: u64) -> Result<DevicePath> {
    let what = || format!("create an in-memory snapshot of {device}");
    let sysfs = block_device::sysfs_path(device)?;
    let name = format!("{OVERLAY}{}", sysfs.file_name().unwrap_or_default().to_string_lossy());
    let size =
        File::open(device).and_then(|file| Ok(block_device::read_size_bytes(&file)?)).context(Phase::Storage, what)?;
    let chunk_bytes = CHUNK * block_device::SYSFS_SECTOR_BYTES;
    // The memory device has at least 16 chunks, because the kernel uses the first chunks for metadata.
    let changes = memory_device::create_memory_device((memory_bytes / chunk_bytes).max(16) * chunk_bytes)?;
    let table = format!("0 {} snapshot {device} {} N {CHUNK}", size / block_device::SYSFS_SECTOR_BYTES, changes.path);
    let create =
        ToolCommand::new("dmsetup").args(["create", "--noudevsync", "--uuid", &name, "--table", &table, &name]);
    create.env("DM_DISABLE_UDEV", "1").run().context(Phase::Storage, what)?;
    // The memory device need not be kept open here any longer, because the overlay now holds it open.
    drop(changes);
    Ok(format!("/dev/mapper/{name}").into())
}

/// Removes an overlay and discards all changes in it.
///
/// # Errors
/// Returns an error if the overlay is in use (the error lists the users).
pub(crate) fn remove_overlay(overlay: &DevicePath) -> Result<()> {
    teardown::remove_mapping(overlay)
}

/// Memory usage of an overlay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OverlayUsage {
    Bytes(u64),
    /// The changes in the overlay have exceeded the maximum memory, so the overlay can no longer be read.
    Exhausted,
}

/// Returns the memory usage of an overlay.
///
/// # Errors
/// Returns an error if the overlay does not exist.
pub(crate) fn read_usage(overlay: &DevicePath) -> Result<OverlayUsage> {
    let status = ToolCommand::new("dmsetup").arg("status").arg(overlay).env("DM_DISABLE_UDEV", "1").run();
    let status = status.context(Phase::Storage, || format!("read the usage of the snapshot {overlay}"))?.stdout;
    parse_status(&status)
        .ok_or_else(|| Error::new(Phase::Storage, format!("{overlay}: cannot parse the snapshot status: {status:?}")))
}

/// Parses the status of a snapshot, such as `0 131072 snapshot 24/20480 16`, in which 24 of 20480 sectors are used.
fn parse_status(status: &str) -> Option<OverlayUsage> {
    let last = status.split_whitespace().nth(3)?;
    match last.split_once('/') {
        Some((used, _)) => Some(OverlayUsage::Bytes(used.parse::<u64>().ok()? * block_device::SYSFS_SECTOR_BYTES)),
        None => matches!(last, "Invalid" | "Overflow").then_some(OverlayUsage::Exhausted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::vm_test_disks::{TestDisks, fingerprints};
    use nix::errno::Errno;
    use std::os::unix::fs::FileExt;

    #[test]
    fn snapshot_status_yields_its_usage() {
        assert_eq!(parse_status("0 131072 snapshot 24/20480 16\n"), Some(OverlayUsage::Bytes(12288)));
        assert_eq!(parse_status("0 131072 snapshot Invalid\n"), Some(OverlayUsage::Exhausted));
        assert_eq!(parse_status("0 131072 snapshot Overflow\n"), Some(OverlayUsage::Exhausted));
        assert_eq!(parse_status("0 131072 linear\n"), None);
        assert_eq!(parse_status(""), None);
    }

    #[test]
    #[ignore = "needs the device mapper: scripts/test vm runs it in a machine"]
    fn vm_overlay_writes_remain_in_memory_and_are_limited() {
        let disks = TestDisks::take("vda");
        let disk = &disks.all()[0];
        let before = fingerprints(disks.all());
        block_device::set_read_only(&File::open(disk).unwrap(), true).unwrap();
        let overlay = create_overlay(disk, 4 << 20).unwrap();
        let file = fs::OpenOptions::new().read(true).write(true).open(&overlay).unwrap();
        assert_eq!(block_device::read_size_bytes(&file), Ok(1 << 30));
        file.write_all_at(&[7; 1 << 20], 0).unwrap();
        file.sync_all().unwrap();
        block_device::flush_buffers(&file).unwrap();
        let mut found = [0; 3];
        file.read_exact_at(&mut found, 4096).unwrap();
        assert_eq!(found, [7; 3]);
        let OverlayUsage::Bytes(bytes) = read_usage(&overlay).unwrap() else { panic!("over") };
        assert!((1 << 20..2 << 20).contains(&bytes), "{bytes}");
        let more = file.write_all_at(&[7; 16 << 20], 1 << 20).and_then(|()| file.sync_all());
        assert!(more.is_err());
        assert_eq!(read_usage(&overlay).unwrap(), OverlayUsage::Exhausted);
        drop(file);
        remove_overlay(&overlay).unwrap();
        block_device::set_read_only(&File::open(disk).unwrap(), false).unwrap();
        assert_eq!(fingerprints(disks.all()), before);
        let loops =
            || fs::read_dir("/sys/block").unwrap().flatten().any(|it| it.path().join("loop/backing_file").exists());
        block_device::retry_while_busy(Errno::EBUSY, || if loops() { Err(Errno::EBUSY) } else { Ok(()) }).unwrap();
    }
}
