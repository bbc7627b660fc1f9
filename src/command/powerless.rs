//! This program once more, as a process that will have no power (`power`): it gets one socket, and what comes through that.

use super::STARTING;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

/// Subcommands of the sandboxed processes.
pub const WORKER: &str = "image-worker";
pub const USED_BLOCKS_WORKER: &str = "used-blocks-worker";

/// The same program, also where its file has been replaced meanwhile.
const PROGRAM: &str = "/proc/self/exe";

/// Purpose of a sandboxed process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    /// Decodes an image.
    Image,
    /// Reads which blocks the filesystems of a disk use.
    UsedBlocks,
}

impl Job {
    #[cfg(not(test))]
    fn arguments(self) -> Vec<&'static str> {
        match self {
            Job::Image => vec![WORKER],
            Job::UsedBlocks => vec![USED_BLOCKS_WORKER],
        }
    }

    /// A test in place of `main`.
    #[cfg(test)]
    fn arguments(self) -> Vec<&'static str> {
        let test = match self {
            Job::Image => "image::worker::tests::worker",
            Job::UsedBlocks => "moving::used::worker::tests::worker",
        };
        vec!["--exact", test, "--ignored", "--test-threads=1", "--nocapture"]
    }
}

/// It closes its socket a moment before it ends.
const LAST_MOMENT: Duration = Duration::from_secs(2);

const LAST_WORDS_BYTES: u64 = 2000;

/// Ends with this.
pub struct Powerless(Child);

impl Powerless {
    /// `socket` is its standard input. Its last words are kept; it has no other output.
    ///
    /// # Errors
    /// There is no /proc, or no room for one more process.
    pub fn start(job: Job, socket: OwnedFd) -> io::Result<Powerless> {
        let mut command = Command::new(PROGRAM);
        command.args(job.arguments()).env_clear().current_dir("/");
        command.stdin(socket).stdout(Stdio::null()).stderr(Stdio::piped());
        // What a person types at the terminal is for this process.
        command.process_group(0);
        let _alone = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        command.spawn().map(Powerless)
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// How it has ended. It was not to do so yet.
    pub fn end(&mut self) -> String {
        let patience = Instant::now() + LAST_MOMENT;
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < patience {
            thread::sleep(Duration::from_millis(5));
        }
        // Gone already is as good as killed.
        let hangs = matches!(self.0.try_wait(), Ok(None)) && self.0.kill().is_ok();
        let end = match self.0.wait() {
            _ if hangs => "it said nothing more".to_owned(),
            Ok(status) => in_words(status),
            Err(error) => error.to_string(),
        };
        let mut words = Vec::new();
        if let Some(stderr) = &mut self.0.stderr {
            // What cannot be read was not said.
            let _ = stderr.take(LAST_WORDS_BYTES).read_to_end(&mut words);
        }
        let words = String::from_utf8_lossy(&words);
        if words.trim().is_empty() { end } else { format!("{end}, saying: {}", words.trim()) }
    }
}

impl Drop for Powerless {
    fn drop(&mut self) {
        // Gone already is as good as killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it exited with {code}"),
        (None, signal) => format!("it was killed by signal {}", signal.unwrap_or_default()),
    }
}
