//! Filter programs, which transform the data written to their stdin and write the result to stdout.

use super::PROCESS_START_LOCK;
use common::sync::lock_mutex;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Filter process, which is killed when this value is dropped.
pub struct FilterProcess {
    child: Child,
    name: String,
}

impl FilterProcess {
    /// Starts the program and returns it with its stdin and stdout. Its stderr is inherited.
    ///
    /// # Errors
    /// Returns an error if the program cannot be started.
    pub fn start(argv: &[&str]) -> io::Result<(FilterProcess, ChildStdin, ChildStdout)> {
        let (program, args) = argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        // The program gets its own process group, because signals from the terminal are meant for the parent only.
        command.process_group(0);
        let started = {
            let _alone = lock_mutex(&PROCESS_START_LOCK);
            command.spawn()
        };
        let mut child = started.map_err(|error| io::Error::new(error.kind(), format!("start {program}: {error}")))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
        Ok((FilterProcess { child, name: (*program).to_owned() }, input, output))
    }

    /// Waits until the process exits. The caller must have closed both pipes, or the process may never exit.
    ///
    /// # Errors
    /// Returns an error if the process exited with a nonzero code or was killed.
    pub fn finish(mut self) -> io::Result<()> {
        let status = self.child.wait()?;
        match status.success() {
            true => Ok(()),
            false => Err(io::Error::other(format!("{} ended with {status}", self.name))),
        }
    }
}

impl Drop for FilterProcess {
    fn drop(&mut self) {
        // An error is ignored: killing fails only if the process has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
