//! Long-running processes, which are watched while they run, and stopped when they are no longer needed.

use super::output_lines::{LineReader, LineWatcher, read_lines};
use super::{CommandError, OUTPUT_BYTES, ProcessFailure, ToolCommand, kill_group, wait_with_timeout};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::VecDeque;
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Running process. When this value is dropped, the process and all its descendants are killed.
pub struct BackgroundProcess {
    child: Child,
    argv: String,
    readers: Vec<LineReader>,
    tail: Arc<Mutex<VecDeque<String>>>,
}

impl ToolCommand {
    /// Starts the process without a deadline, and passes each line of output to `watch` as it arrives.
    ///
    /// # Errors
    /// Returns an error if the program is missing or cannot be started with these restrictions.
    pub fn start_in_background(
        self,
        watch: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<BackgroundProcess, CommandError> {
        let argv = self.format_argv();
        tracing::debug!(%argv, "start");
        let not_started =
            |error| CommandError { argv: argv.clone(), end: ProcessFailure::NotStarted(error), tail: Vec::new() };
        let mut child = self.spawn().map_err(not_started)?;
        let (watch, tail): (LineWatcher, _) = (Arc::new(watch), Arc::new(Mutex::new(VecDeque::new())));
        let stdout = child.stdout.take().map(|pipe| read_lines(pipe, OUTPUT_BYTES, watch.clone(), tail.clone()));
        let stderr = child.stderr.take().map(|pipe| read_lines(pipe, OUTPUT_BYTES, watch, tail.clone()));
        let readers = stdout.into_iter().chain(stderr).collect();
        Ok(BackgroundProcess { child, argv, readers, tail })
    }
}

impl BackgroundProcess {
    /// Returns the exit status of the process; `None` while the process runs.
    pub fn poll_exit(&mut self) -> Option<CommandError> {
        let status = self.child.try_wait().ok().flatten()?;
        // The process has exited, but its last lines of output might not have been read yet, so the readers are given
        // time to finish.
        for reader in self.readers.drain(..) {
            reader.finish(Duration::from_secs(2));
        }
        let tail = self.tail.lock().map(|lines| lines.iter().cloned().collect()).unwrap_or_default();
        Some(CommandError { argv: self.argv.clone(), end: ProcessFailure::from_exit_status(status), tail })
    }

    /// Sends SIGTERM to the process, and SIGKILL if the process has not exited after `patience`.
    pub fn terminate(mut self, patience: Duration) {
        if let Ok(id) = i32::try_from(self.child.id())
            && kill(Pid::from_raw(id), Signal::SIGTERM).is_ok()
        {
            wait_with_timeout(&mut self.child, patience);
        }
    }
}

impl Drop for BackgroundProcess {
    fn drop(&mut self) {
        // A process that has ended must not be killed: its PID may have been reused.
        if matches!(self.child.try_wait(), Ok(None)) {
            kill_group(&mut self.child);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn shell(script: &str) -> (BackgroundProcess, mpsc::Receiver<String>) {
        let (say, said) = mpsc::channel();
        let running = ToolCommand::new("sh").args(["-c", script]);
        (running.start_in_background(move |line| drop(say.send(line.to_owned()))).unwrap(), said)
    }

    #[test]
    fn output_is_watched_and_exit_reported_with_last_lines() {
        // All lines are written to one stream, because lines in two streams have no defined order.
        let (mut running, said) = shell("echo one >&2; read line; echo two >&2; exit 3");
        assert_eq!(said.iter().collect::<Vec<_>>(), ["one", "two"]);
        let error = loop {
            match running.poll_exit() {
                Some(error) => break error.to_string(),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        assert!(error.ends_with("exited with 3: one | two"), "{error}");
    }

    #[test]
    fn process_runs_until_terminated() {
        let (mut running, said) = shell("trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.05; done");
        assert_eq!(said.recv().as_deref(), Ok("ready"));
        assert!(running.poll_exit().is_none());
        running.terminate(Duration::from_secs(60));
        assert_eq!(said.iter().collect::<Vec<_>>(), ["asked"]);
    }

    #[test]
    fn process_that_ignores_sigterm_is_killed() {
        let (running, said) = shell("trap '' TERM; echo ready; while :; do sleep 0.05; done");
        assert_eq!(said.recv().as_deref(), Ok("ready"));
        running.terminate(Duration::from_millis(100));
        assert_eq!(said.iter().count(), 0);
        assert!(ToolCommand::new("no-such-tool").start_in_background(|_| {}).is_err());
    }
}
