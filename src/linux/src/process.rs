//! Starts and supervises external programs. All other modules start processes through this module. A process is started
//! without a shell, with stdin from /dev/null and with a time limit. Errors quote the output of the tool.

mod background_process;
pub mod capabilities;
mod chroot_confinement;
pub mod filter_process;
mod output_lines;
pub mod privilege_drop;
pub(crate) mod program_sandbox;
pub mod worker_process;
pub mod worker_sandbox;

use crate::kernel_log::KernelLog;
pub use background_process::BackgroundProcess;

use chroot_confinement::Confinement;
use output_lines::{CapturedText, LineWatcher, read_lines};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fmt, thread};

/// Default time limit. It is sufficient for tools that access only metadata; callers set a longer limit for formatters
/// and installers.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(120);

/// Maximum size of the output that is kept, in bytes. Output beyond this limit is passed to the callback `watch` but
/// not stored, because the output of an installer may be endless.
const OUTPUT_BYTES: usize = 1 << 20;

/// Serializes the start of processes: see [`ToolCommand::check_before_start`].
static PROCESS_START_LOCK: Mutex<()> = Mutex::new(());

type StartCheck = Box<dyn Fn() -> std::io::Result<()>>;

/// Command line and restrictions of a program to run.
pub struct ToolCommand {
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    /// True if the variables in `env` replace the inherited environment. If false, the variables are added to the
    /// inherited environment.
    only_env: bool,
    input: Vec<u8>,
    confined: Option<Confinement>,
    only: Option<&'static [capabilities::Capability]>,
    before: Option<StartCheck>,
    deadline: Duration,
    whole: Option<usize>,
}

/// Text that separates, in a message, the description of a failed `verify` program from the program's output.
pub(crate) const OUTPUT_SEPARATOR: &str = ", saying: ";

/// Output of a tool that succeeded.
#[derive(Debug)]
pub struct ToolOutput {
    /// The first MiB of the output, or the complete output if [`ToolCommand::require_complete_output`] was called.
    pub stdout: String,
}

/// Failure of a tool: the command line, the way in which the process ended, and the last lines of its output.
#[derive(Debug)]
pub struct CommandError {
    pub argv: String,
    pub end: ProcessFailure,
    /// Last lines of stdout and stderr, in the order in which they arrived.
    pub tail: Vec<String>,
}

/// Reason for the failure of a process.
#[derive(Debug)]
pub enum ProcessFailure {
    NotStarted(std::io::Error),
    Exited(i32),
    Killed(i32),
    /// The process exceeded its time limit. Kernel warnings that were logged while the process ran may explain the
    /// reason, for example a disk that does not respond.
    Deadline {
        limit: Duration,
        warnings: Vec<String>,
    },
    /// The tool succeeded, but its output exceeds this many bytes, or a descendant still holds the pipe open.
    NotWhole(usize),
}

impl ToolCommand {
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        ToolCommand {
            program: program.as_ref().to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            only_env: false,
            input: Vec::new(),
            confined: None,
            only: None,
            before: None,
            deadline: DEFAULT_DEADLINE,
            whole: None,
        }
    }

    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Replaces the inherited environment by these variables.
    pub fn only_env(mut self, all: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>) -> Self {
        self.only_env = true;
        self.env = all.into_iter().map(|(name, value)| (name.as_ref().to_owned(), value.as_ref().to_owned())).collect();
        self
    }

    /// Sets the data written to stdin. If this function is not called, stdin is /dev/null.
    pub(crate) fn input(mut self, input: Vec<u8>) -> Self {
        self.input = input;
        self
    }

    /// Runs the program with this directory as its root, in its own mount namespace, so that its mounts are invisible
    /// to other processes. The program cannot create device nodes, cannot use device nodes on the mount points
    /// `no_devices`, and cannot trace more privileged processes, whose `/proc/PID/root` would lead out of the root.
    pub fn confined(mut self, root: impl AsRef<Path>, no_devices: Vec<PathBuf>) -> Self {
        self.confined = Some(Confinement { root: root.as_ref().to_owned(), no_devices, folder: "/".into() });
        self
    }

    /// Sets the working directory of a confined command, as a path inside the root of the command.
    pub fn current_dir(mut self, folder: impl AsRef<Path>) -> Self {
        if let Some(confined) = &mut self.confined {
            confined.folder = folder.as_ref().to_owned();
        }
        self
    }

    /// Restricts the process to these capabilities; it has no other privileges. See
    /// [`capabilities::keep_only_capabilities`].
    pub fn restrict_capabilities(mut self, capabilities: &'static [capabilities::Capability]) -> Self {
        self.only = Some(capabilities);
        self
    }

    /// Runs `check` immediately before the start, while no other thread starts a process.
    ///
    /// A child process holds copies of all open files of this process until exec(2). If this process has several
    /// threads, a device that was opened exclusively may therefore stay busy for a moment after it was closed. mkfs
    /// fails immediately if the device is busy. If `check` can open the device exclusively, no child holds a copy of
    /// the device's descriptor, and no new copy can appear before mkfs runs.
    pub(crate) fn check_before_start(mut self, check: impl Fn() -> std::io::Result<()> + 'static) -> Self {
        self.before = Some(Box::new(check));
        self
    }

    /// Sets the time limit after which the process and all its descendants are killed.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Requires the complete output, of at most `limit` bytes, because a truncated list cannot be distinguished from a
    /// complete list.
    pub(crate) fn require_complete_output(mut self, limit: usize) -> Self {
        self.whole = Some(limit);
        self
    }

    /// Runs the process to its end.
    ///
    /// # Errors
    /// Returns an error if the program is missing, exits with a nonzero code, is killed, exceeds its deadline, or
    /// prints more than allowed.
    pub fn run(self) -> Result<ToolOutput, CommandError> {
        self.run_watched(|_| {})
    }

    /// Runs the process like [`ToolCommand::run`], and passes each line of output to `watch` as it arrives.
    ///
    /// # Errors
    /// The same errors as for [`ToolCommand::run`].
    pub fn run_watched(self, watch: impl Fn(&str) + Send + Sync + 'static) -> Result<ToolOutput, CommandError> {
        let argv = self.format_argv();
        tracing::debug!(%argv, "run");
        let fail = |end, tail| CommandError { argv: argv.clone(), end, tail };
        let kernel = KernelLog::from_now();
        let mut child = self.spawn().map_err(|error| fail(ProcessFailure::NotStarted(error), Vec::new()))?;

        if let Some(mut stdin) = child.stdin.take() {
            let input = self.input.clone();
            // A write error is ignored, because a program need not read all of its input.
            thread::spawn(move || stdin.write_all(&input));
        }
        let watch: LineWatcher = Arc::new(watch);
        let tail = Arc::new(Mutex::new(VecDeque::new()));
        let limit = self.whole.unwrap_or(OUTPUT_BYTES);
        let stdout = child.stdout.take().map(|pipe| read_lines(pipe, limit, watch.clone(), tail.clone()));
        let stderr = child.stderr.take().map(|pipe| read_lines(pipe, OUTPUT_BYTES, watch, tail.clone()));
        let ended = wait_with_timeout(&mut child, self.deadline);
        if ended.is_none() {
            kill_group(&mut child);
        }
        // A daemon left behind by the tool may keep the pipes open, so the wait for the readers is limited.
        let CapturedText { text, whole } =
            stdout.map(|reader| reader.finish(Duration::from_secs(2))).unwrap_or_default();
        if let Some(reader) = stderr {
            reader.finish(Duration::from_secs(2));
        }
        let tail = || tail.lock().map(|lines| lines.iter().cloned().collect()).unwrap_or_default();
        match ended {
            None => {
                Err(fail(ProcessFailure::Deadline { limit: self.deadline, warnings: kernel.recent_warnings() }, tail()))
            }
            Some(status) if status.success() => match self.whole {
                Some(limit) if !whole => Err(fail(ProcessFailure::NotWhole(limit), Vec::new())),
                _ => Ok(ToolOutput { stdout: text }),
            },
            Some(status) => Err(fail(ProcessFailure::from_exit_status(status), tail())),
        }
    }

    fn format_argv(&self) -> String {
        let words = std::iter::once(&self.program).chain(&self.args);
        words.map(|word| quote_shell_word(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
    }

    fn spawn(&self) -> std::io::Result<Child> {
        let mut command = std::process::Command::new(&self.program);
        command.args(&self.args);
        match self.only_env {
            true => command.env_clear(),
            // With this locale, programs do not translate their messages: operators search for the messages, and output
            // is parsed.
            false => command.env("LC_ALL", "C"),
        };
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        let stdin = if self.input.is_empty() { Stdio::null() } else { Stdio::piped() };
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The process gets its own process group, so that its children are killed with it at the deadline.
        command.process_group(0);
        if let Some(confined) = &self.confined {
            command.current_dir("/");
            let confine = confined.prepare_child_setup()?;
            // SAFETY: between fork and exec, the function makes only async-signal-safe system calls; all memory was
            // allocated before the fork.
            unsafe { command.pre_exec(confine) };
        }
        if let Some(capabilities) = self.only {
            // SAFETY: as above.
            unsafe { command.pre_exec(|| capabilities::keep_only_capabilities(capabilities)) };
        }
        let _alone = PROCESS_START_LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(check) = &self.before {
            check()?;
        }
        command.spawn()
    }
}

impl ProcessFailure {
    fn from_exit_status(status: ExitStatus) -> ProcessFailure {
        match (status.code(), status.signal()) {
            (Some(code), _) => ProcessFailure::Exited(code),
            (None, signal) => ProcessFailure::Killed(signal.unwrap_or_default()),
        }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.end {
            ProcessFailure::NotStarted(error) => {
                write!(f, "`{command}` could not be started: {error}", command = self.argv)?
            }
            ProcessFailure::Exited(code) => write!(f, "`{}` exited with {code}", self.argv)?,
            ProcessFailure::Killed(signal) => {
                write!(f, "`{command}` was killed by signal {signal}", command = self.argv)?
            }
            ProcessFailure::Deadline { limit, .. } => {
                write!(
                    f,
                    "`{command}` did not end within {seconds} s and was killed",
                    command = self.argv,
                    seconds = limit.as_secs_f32()
                )?;
            }
            ProcessFailure::NotWhole(limit) => {
                write!(
                    f,
                    "`{command}` printed more than {limit} bytes, or left behind a process that keeps its output pipe open",
                    command = self.argv
                )?;
            }
        }
        if !self.tail.is_empty() {
            write!(f, ": {}", self.tail.join(" | "))?;
        }
        if let ProcessFailure::Deadline { warnings, .. } = &self.end
            && !warnings.is_empty()
        {
            write!(f, "; kernel warnings in the meantime: {warnings}", warnings = warnings.join(" | "))?;
        }
        Ok(())
    }
}

impl std::error::Error for CommandError {}

/// Returns the first line of an error message without the program output that the message quotes, because programs of
/// an image may print passwords. The output follows the description of a [`CommandError`], or [`OUTPUT_SEPARATOR`].
pub fn without_program_output(message: &str) -> &str {
    let line = message.lines().next().unwrap_or_default();
    let line = line.split_once(OUTPUT_SEPARATOR).map_or(line, |(description, _)| description);
    let ends = ["` exited with ", "` was killed by signal ", " s and was killed", "keeps its output pipe open"];
    let end = ends.iter().filter_map(|words| line.find(words).map(|at| at + words.len())).min();
    let Some(end) = end else { return line };
    let number = line[end..].find(|c: char| !(c.is_ascii_digit() || c == '-')).unwrap_or(line.len() - end);
    &line[..end + number]
}

/// Returns the tools that are not in `PATH`. The caller checks this at startup, so that installations do not fail
/// halfway because of missing tools.
pub fn find_missing_tools<'a>(tools: &[&'a str]) -> Vec<&'a str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = |tool: &&&str| std::env::split_paths(&path).any(|dir| dir.join(tool).is_file());
    tools.iter().filter(|tool| !there(tool)).copied().collect()
}

fn quote_shell_word(word: &str) -> String {
    if !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || "'\"\\$`".contains(c)) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

fn wait_with_timeout(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_millis(1);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < end => {}
            // try_wait fails only if other code has reaped the child, which does not happen in this program.
            Ok(None) | Err(_) => return None,
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

fn kill_group(child: &mut Child) {
    use nix::sys::signal::{Signal, killpg};
    if let Ok(id) = i32::try_from(child.id()) {
        // An error is ignored: killing fails only if the process has already exited.
        let _ = killpg(nix::unistd::Pid::from_raw(id), Signal::SIGKILL);
    }
    // The wait is limited, because a process in uninterruptible sleep survives SIGKILL until its I/O ends.
    let end = Instant::now() + Duration::from_secs(2);
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < end {
        thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests;
