//! Sandboxed workers. A worker is another process of this program that runs without privileges (`worker_sandbox`) and
//! communicates over one socket.

use super::PROCESS_START_LOCK;
use common::sync::lock_mutex;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Subcommands of the sandboxed processes.
pub const WORKER: &str = "image-worker";
pub const USED_BLOCKS_WORKER: &str = "used-blocks-worker";

/// Path of this program. The path is valid even if the program file was replaced after the start. Test programs also
/// run as workers, through `testing::workers!`.
const PROGRAM: &str = "/proc/self/exe";

/// Purpose of a sandboxed process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerJob {
    /// Decodes an image.
    Image,
    /// Determines which blocks of a disk are used by the filesystems on it.
    UsedBlocks,
}

impl WorkerJob {
    /// Returns the subcommand.
    fn argument(self) -> &'static str {
        match self {
            WorkerJob::Image => WORKER,
            WorkerJob::UsedBlocks => USED_BLOCKS_WORKER,
        }
    }
}

/// Time within which a worker must exit after its socket was closed.
const LAST_MOMENT: Duration = Duration::from_secs(2);

const MAXIMUM_STDERR_BYTES: u64 = 2000;

/// Sandboxed worker process, which is killed when this value is dropped.
pub struct WorkerProcess(Child);

impl WorkerProcess {
    /// Starts the worker with `socket` as its standard input. Its stderr is captured; stdout is discarded.
    ///
    /// # Errors
    /// Returns an error if /proc is not mounted, or the process limit is reached.
    pub fn start(job: WorkerJob, socket: OwnedFd) -> io::Result<WorkerProcess> {
        let mut command = Command::new(PROGRAM);
        command.arg(job.argument()).env_clear().current_dir("/");
        command.stdin(socket).stdout(Stdio::null()).stderr(Stdio::piped());
        // The worker gets its own process group, because signals from the terminal are meant for the parent only.
        command.process_group(0);
        let _alone = lock_mutex(&PROCESS_START_LOCK);
        command.spawn().map(WorkerProcess)
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Describes how the worker exited unexpectedly. Kills a worker that is still running.
    pub fn describe_end(&mut self) -> String {
        let patience = Instant::now() + LAST_MOMENT;
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < patience {
            thread::sleep(Duration::from_millis(5));
        }
        // If killing fails, the process exited before it could be killed, so it was not hanging.
        let hangs = matches!(self.0.try_wait(), Ok(None)) && self.0.kill().is_ok();
        let end = match self.0.wait() {
            _ if hangs => "it stopped responding".to_owned(),
            Ok(status) => describe_exit_status(status),
            Err(error) => error.to_string(),
        };
        let mut words = Vec::new();
        if let Some(stderr) = &mut self.0.stderr {
            // If the output of the worker cannot be read, it counts as empty.
            let _ = stderr.take(MAXIMUM_STDERR_BYTES).read_to_end(&mut words);
        }
        let words = String::from_utf8_lossy(&words);
        if words.trim().is_empty() { end } else { format!("{end}: {}", words.trim()) }
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // An error is ignored: killing fails only if the process has already exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn describe_exit_status(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("the process exited with {code}"),
        (None, signal) => format!("the process was killed by signal {signal}", signal = signal.unwrap_or_default()),
    }
}
