//! Early write-back while the image is downloaded. With the kernel's defaults, a machine with a lot of memory would
//! cache the whole image and write it only at the end.

use common::error::{Context, Phase, Result};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Amount of dirty data, in bytes, above which the kernel writes in the background (`vm.dirty_background_bytes`).
const BEGIN_BYTES: u64 = 64 << 20;

/// Amount of dirty data, in bytes, above which the kernel blocks writers (`vm.dirty_bytes`).
const MAXIMUM_DIRTY_BYTES: u64 = 1 << 30;

/// Minimum pause between two rounds of [`PeriodicWriteback`].
const ROUND_INTERVAL: Duration = Duration::from_millis(300);

/// Applies the limits to the whole machine. This is allowed only in the ramdisk, because the kernel of the ramdisk
/// serves no other system. A failure is logged and only makes the installation slower.
pub fn limit_dirty_memory(memory_bytes: u64) {
    let (begin, most) = compute_limits(memory_bytes);
    if let Err(error) = write_limits(Path::new("/proc/sys/vm"), begin, most) {
        tracing::warn!("cannot start write-back early: {error}");
    }
}

/// Returns `dirty_background_bytes` and `dirty_bytes`. `dirty_bytes` is at most a quarter of the memory, and
/// `dirty_background_bytes` at most half of `dirty_bytes`.
fn compute_limits(memory_bytes: u64) -> (u64, u64) {
    let most = (memory_bytes / 4).min(MAXIMUM_DIRTY_BYTES);
    (BEGIN_BYTES.min(most / 2), most)
}

fn write_limits(vm: &Path, begin: u64, most: u64) -> Result<()> {
    // The limits are written in this order, because the kernel requires the first one to be smaller.
    for (name, bytes) in [("dirty_background_bytes", begin), ("dirty_bytes", most)] {
        let file = vm.join(name);
        fs::write(&file, bytes.to_string())
            .context(Phase::Storage, || format!("write {bytes} to {}", file.display()))?;
    }
    Ok(())
}

/// Periodic write-back of filesystems, for machines whose kernel settings must not be changed.
pub struct PeriodicWriteback {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<Result<()>>,
    points: Vec<PathBuf>,
}

impl PeriodicWriteback {
    /// Starts the write-back thread. `points` contains one directory on each filesystem.
    pub fn start(points: Vec<PathBuf>) -> PeriodicWriteback {
        let (stop, stopped) = mpsc::channel();
        let often = points.clone();
        let thread = thread::spawn(move || {
            let mut pause = ROUND_INTERVAL;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let began = Instant::now();
                sync_filesystems(&often)?;
                // Processes that create files are blocked during the write-back of the journal. The write-back is
                // therefore limited to a third of the time.
                pause = ROUND_INTERVAL.max(2 * began.elapsed());
            }
            Ok(())
        });
        PeriodicWriteback { stop, thread, points }
    }

    /// Stops the write-back thread, and writes back all filesystems a last time.
    ///
    /// # Errors
    /// Returns an error if data could not be written, either now or in an earlier round. The kernel reports each write
    /// error only once.
    pub fn finish(self) -> Result<()> {
        // An error is ignored: sending fails only if the thread has already ended after an error of its own.
        let _ = self.stop.send(());
        let earlier = self.thread.join().unwrap_or(Ok(()));
        earlier.and(sync_filesystems(&self.points))
    }
}

fn sync_filesystems(points: &[PathBuf]) -> Result<()> {
    points.iter().try_for_each(|point| {
        let what = || format!("write back the filesystem at {path}", path = point.display());
        let directory = File::open(point).context(Phase::Storage, what)?;
        nix::unistd::syncfs(&directory).context(Phase::Storage, what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writeback_limits_are_lower_on_small_machines() {
        const MIB: u64 = 1 << 20;
        let cases =
            [(256 << 30, (64 * MIB, 1024 * MIB)), (512 * MIB, (64 * MIB, 128 * MIB)), (64 * MIB, (8 * MIB, 16 * MIB))];
        for (memory, expected) in cases {
            assert_eq!(compute_limits(memory), expected);
        }
    }

    #[test]
    fn both_limits_are_written_and_failures_name_the_file() {
        let vm = tempfile::tempdir().unwrap();
        write_limits(vm.path(), 1, 2).unwrap();
        assert_eq!(fs::read_to_string(vm.path().join("dirty_background_bytes")).unwrap(), "1");
        assert_eq!(fs::read_to_string(vm.path().join("dirty_bytes")).unwrap(), "2");
        let error = write_limits(&vm.path().join("none"), 1, 2).unwrap_err().to_string();
        assert!(error.contains("write 1 to") && error.contains("none/dirty_background_bytes"), "{error}");
    }

    #[test]
    fn failed_writeback_is_reported_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        PeriodicWriteback::start(vec![directory.path().to_owned()]).finish().unwrap();
        let missing = directory.path().join("missing");
        let error = PeriodicWriteback::start(vec![missing]).finish().unwrap_err().to_string();
        assert!(error.contains("write back the filesystem at") && error.contains("missing"), "{error}");
    }
}
