//! A program that turns one stream into another: what is written into it comes out of it changed.

use super::STARTING;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::PoisonError;

/// Ends with this.
pub struct Filter {
    child: Child,
    name: String,
}

impl Filter {
    /// What it takes, and what comes out of it. Its words go where ours go.
    ///
    /// # Errors
    /// There is no such program.
    pub fn start(argv: &[&str]) -> io::Result<(Filter, ChildStdin, ChildStdout)> {
        let (program, args) = argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        // What a person types at the terminal is for this process.
        command.process_group(0);
        let started = {
            let _alone = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
            command.spawn()
        };
        let mut child = started.map_err(|error| io::Error::new(error.kind(), format!("start {program}: {error}")))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
        Ok((Filter { child, name: (*program).to_owned() }, input, output))
    }

    /// Waits for its end: both its pipes are closed, so it comes.
    ///
    /// # Errors
    /// It says that something was wrong.
    pub fn finish(mut self) -> io::Result<()> {
        let status = self.child.wait()?;
        match status.success() {
            true => Ok(()),
            false => Err(io::Error::other(format!("{} ended with {status}", self.name))),
        }
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        // Gone already is as good as killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
