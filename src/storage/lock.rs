//! The second lock on disks that are not to be written: read-only at the block layer (BLKROSET).

use super::kernel;
use crate::error::{Context, Phase, Result};
use std::fs::File;
use std::path::Path;

/// Devices that this run has made read-only.
#[derive(Debug, Default)]
pub struct Locks(Vec<String>);

impl Locks {
    /// Makes a disk and its partitions read-only.
    ///
    /// # Errors
    /// The disk is not there or refuses.
    pub fn lock(&mut self, disk: &str) -> Result<()> {
        set(disk, true)?;
        self.0.push(disk.to_owned());
        // A partition has a flag of its own, which Linux before 5.11 does not take over from its disk.
        for partition in kernel::partitions(disk)? {
            let device = format!("/dev/{}", partition.name);
            set(&device, true)?;
            self.0.push(device);
        }
        Ok(())
    }

    /// Makes one disk writable again, its partitions first.
    ///
    /// # Errors
    /// A device refuses.
    pub fn unlock_disk(&mut self, disk: &str) -> Result<()> {
        let partitions: Vec<String> =
            kernel::partitions(disk)?.into_iter().map(|partition| format!("/dev/{}", partition.name)).collect();
        let (mine, others) = self.0.drain(..).partition(|device| device == disk || partitions.contains(device));
        self.0 = others;
        Locks(mine).unlock()
    }

    /// Makes everything writable again that this run has locked, partitions first. A disk that was unplugged has taken its lock
    /// along.
    ///
    /// # Errors
    /// The first device that refuses; the others are unlocked all the same.
    pub fn unlock(&mut self) -> Result<()> {
        let unlock =
            |device: String| set(&device, false).or_else(|error| if is_gone(&device) { Ok(()) } else { Err(error) });
        let results: Vec<_> = self.0.drain(..).rev().map(unlock).collect();
        results.into_iter().collect()
    }
}

fn set(device: &str, read_only: bool) -> Result<()> {
    let what = || format!("make {device} {}", if read_only { "read-only" } else { "writable" });
    let file = File::open(device).context(Phase::Storage, what)?;
    kernel::set_read_only(&file, read_only).context(Phase::Storage, what)
}

fn is_gone(device: &str) -> bool {
    !Path::new(device).exists()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::loopdev::LoopDevice;
    use crate::storage::{gpt, wipe};

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_a_locked_disk_and_its_partitions_refuse_writes_until_unlocked() {
        let disk = LoopDevice::new(16 << 20, 512);
        gpt::write(&disk.table(512, &[(3, 2048, 4095)])).unwrap();
        let mut locks = Locks::default();
        locks.lock(disk.path()).unwrap();
        for device in [disk.path(), &disk.partition(3)] {
            let error = wipe::wipe_ends(device).unwrap_err().to_string();
            assert!(error.contains(&format!("zeros at byte 0 of {device}: Operation not permitted")), "{error}");
        }
        locks.unlock().unwrap();
        wipe::wipe_ends(&disk.partition(3)).unwrap();
        wipe::wipe_ends(disk.path()).unwrap();
    }

    #[test]
    fn a_disk_that_was_unplugged_is_no_trouble_and_one_that_refuses_is() {
        Locks(vec!["/dev/no-such-disk".to_owned()]).unlock().unwrap();
        let mut locks = Locks(vec!["/dev/null".to_owned(), "/dev/no-such-disk".to_owned()]);
        let error = locks.unlock().unwrap_err().to_string();
        assert!(error.starts_with("make /dev/null writable: "), "{error}");
        assert!(locks.0.is_empty());
    }

    #[test]
    fn a_disk_that_is_not_there_cannot_be_locked() {
        let error = Locks::default().lock("/dev/no-such-disk").unwrap_err().to_string();
        assert!(error.starts_with("make /dev/no-such-disk read-only: "), "{error}");
    }
}
