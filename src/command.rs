//! The only place that starts a process: argv (never a shell), stdin null, a deadline, and the tool's own words
//! in the error.

#[cfg(feature = "serve")]
pub mod capable;
mod confined;
#[cfg(feature = "agent")]
pub mod filter;
mod lines;
#[cfg(any(feature = "agent", feature = "serve"))]
pub mod nobody;
#[cfg(feature = "agent")]
pub mod power;
#[cfg(feature = "agent")]
pub mod powerless;
#[cfg(feature = "serve")]
mod running;
#[cfg(any(feature = "agent", feature = "serve"))]
pub mod sandbox;

use crate::kmsg::KernelLog;
#[cfg(feature = "serve")]
pub use running::Running;

use confined::Confined;
use lines::{Text, Watch, read_lines};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// For tools that touch metadata only. Formatting and installers set their own.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(120);

/// Output beyond this is watched, not kept: an installer may talk for ever.
const OUTPUT_BYTES: usize = 1 << 20;

/// One process is started at a time: see [`Command::before`].
static STARTING: Mutex<()> = Mutex::new(());

type Before = Box<dyn Fn() -> std::io::Result<()>>;

/// A process to run.
pub struct Command {
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    /// Nothing of our own environment.
    only_env: bool,
    input: Vec<u8>,
    confined: Option<Confined>,
    #[cfg(feature = "serve")]
    only: Option<&'static [capable::Capability]>,
    before: Option<Before>,
    deadline: Duration,
    whole: Option<usize>,
}

/// What a tool said when it succeeded.
#[derive(Debug)]
pub struct Output {
    /// The first MiB of it, or all of it with [`Command::whole`].
    pub stdout: String,
}

/// Why a tool did not succeed: its argv, its end, its last words.
#[derive(Debug)]
pub struct CommandError {
    pub argv: String,
    pub end: End,
    /// The last lines of stdout and stderr, in the order in which they came.
    pub tail: Vec<String>,
}

#[derive(Debug)]
pub enum End {
    NotStarted(std::io::Error),
    Exited(i32),
    Killed(i32),
    /// What the kernel warned of meanwhile may be why: a disk that does not answer, for example.
    Deadline {
        limit: Duration,
        warnings: Vec<String>,
    },
    /// It ended well, but what it said is longer than this, or goes on after its end.
    NotWhole(usize),
}

impl Command {
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Command {
            program: program.as_ref().to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            only_env: false,
            input: Vec::new(),
            confined: None,
            #[cfg(feature = "serve")]
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

    /// It is told this and nothing else.
    pub fn only_env(mut self, all: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>) -> Self {
        self.only_env = true;
        self.env = all.into_iter().map(|(name, value)| (name.as_ref().to_owned(), value.as_ref().to_owned())).collect();
        self
    }

    /// What it can read. Without it there is nothing.
    pub fn input(mut self, input: Vec<u8>) -> Self {
        self.input = input;
        self
    }

    /// Runs the program with this directory as its root, in a mount namespace of its own: what it mounts is seen by nobody
    /// else. It can make no device nodes, those on `no_devices` (mount points) are nothing to it, and it cannot look into
    /// processes that may do more, whose `/proc/PID/root` would lead out.
    pub fn confined(mut self, root: impl AsRef<Path>, no_devices: Vec<PathBuf>) -> Self {
        self.confined = Some(Confined { root: root.as_ref().to_owned(), no_devices, folder: "/".into() });
        self
    }

    /// In that root it begins in this folder. It must be confined.
    pub fn beginning_in(mut self, folder: impl AsRef<Path>) -> Self {
        if let Some(confined) = &mut self.confined {
            confined.folder = folder.as_ref().to_owned();
        }
        self
    }

    /// With these capabilities and no other power: see [`capable::keep_only`].
    #[cfg(feature = "serve")]
    pub fn with_only(mut self, capabilities: &'static [capable::Capability]) -> Self {
        self.only = Some(capabilities);
        self
    }

    /// Runs this right before the start, while no other thread starts a process.
    ///
    /// A process has copies of all our open files until its exec(2). Where threads work side by side, a device that one has
    /// had open exclusively may so stay busy for a moment after it was closed, and a mkfs that finds it busy gives up at
    /// once. Opening and closing it here proves that no copy is left, and none can come before mkfs is on its own.
    pub fn before(mut self, check: impl Fn() -> std::io::Result<()> + 'static) -> Self {
        self.before = Some(Box::new(check));
        self
    }

    /// After this long the process and all it started are killed.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// All of its output is needed, and it is not longer than this: a part of a list looks like a list.
    pub fn whole(mut self, limit: usize) -> Self {
        self.whole = Some(limit);
        self
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// The program is missing, exits with another code than 0, is killed, does not end in time, or says more than it may.
    pub fn run(self) -> Result<Output, CommandError> {
        self.run_watched(|_| {})
    }

    /// As [`Command::run`], and hands every line of output over as it comes.
    ///
    /// # Errors
    /// As [`Command::run`].
    pub fn run_watched(self, watch: impl Fn(&str) + Send + Sync + 'static) -> Result<Output, CommandError> {
        let argv = self.argv();
        tracing::debug!(%argv, "run");
        let fail = |end, tail| CommandError { argv: argv.clone(), end, tail };
        let kernel = KernelLog::from_now();
        let mut child = self.spawn().map_err(|error| fail(End::NotStarted(error), Vec::new()))?;

        if let Some(mut stdin) = child.stdin.take() {
            let input = self.input.clone();
            // Who does not read it to its end does not want it.
            thread::spawn(move || stdin.write_all(&input));
        }
        let watch: Watch = Arc::new(watch);
        let tail = Arc::new(Mutex::new(VecDeque::new()));
        let limit = self.whole.unwrap_or(OUTPUT_BYTES);
        let stdout = child.stdout.take().map(|pipe| read_lines(pipe, limit, watch.clone(), tail.clone()));
        let stderr = child.stderr.take().map(|pipe| read_lines(pipe, OUTPUT_BYTES, watch, tail.clone()));
        let ended = wait(&mut child, self.deadline);
        if ended.is_none() {
            kill_group(&mut child);
        }
        // A daemon that the tool left behind may hold the pipes open: give the readers a moment, not for ever.
        let Text { text, whole } = stdout.map(|reader| reader.finish(Duration::from_secs(2))).unwrap_or_default();
        if let Some(reader) = stderr {
            reader.finish(Duration::from_secs(2));
        }
        let tail = || tail.lock().map(|lines| lines.iter().cloned().collect()).unwrap_or_default();
        match ended {
            None => Err(fail(End::Deadline { limit: self.deadline, warnings: kernel.warnings() }, tail())),
            Some(status) if status.success() => match self.whole {
                Some(limit) if !whole => Err(fail(End::NotWhole(limit), Vec::new())),
                _ => Ok(Output { stdout: text }),
            },
            Some(status) => Err(fail(End::of(status), tail())),
        }
    }

    fn argv(&self) -> String {
        let words = std::iter::once(&self.program).chain(&self.args);
        words.map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
    }

    fn spawn(&self) -> std::io::Result<Child> {
        let mut command = std::process::Command::new(&self.program);
        command.args(&self.args);
        match self.only_env {
            true => command.env_clear(),
            // No translations: errors are read by people who search for them, and output is parsed.
            false => command.env("LC_ALL", "C"),
        };
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        let stdin = if self.input.is_empty() { Stdio::null() } else { Stdio::piped() };
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Its own group, so that a deadline ends its children too.
        command.process_group(0);
        if let Some(confined) = &self.confined {
            command.current_dir("/");
            let confine = confined.prepare()?;
            // SAFETY: between fork and exec it only makes system calls, which are async-signal-safe; all memory was
            // allocated before the fork.
            unsafe { command.pre_exec(confine) };
        }
        #[cfg(feature = "serve")]
        if let Some(capabilities) = self.only {
            // SAFETY: as above.
            unsafe { command.pre_exec(|| capable::keep_only(capabilities)) };
        }
        let _alone = STARTING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(check) = &self.before {
            check()?;
        }
        command.spawn()
    }
}

impl End {
    fn of(status: ExitStatus) -> End {
        match (status.code(), status.signal()) {
            (Some(code), _) => End::Exited(code),
            (None, signal) => End::Killed(signal.unwrap_or_default()),
        }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.end {
            End::NotStarted(error) => write!(f, "`{}` could not be started: {error}", self.argv)?,
            End::Exited(code) => write!(f, "`{}` exited with {code}", self.argv)?,
            End::Killed(signal) => write!(f, "`{}` was killed by signal {signal}", self.argv)?,
            End::Deadline { limit, .. } => {
                write!(f, "`{}` did not end within {} s and was killed", self.argv, limit.as_secs_f32())?;
            }
            End::NotWhole(limit) => {
                write!(
                    f,
                    "`{}` said more than the {limit} bytes that are read of it, or left somebody who goes on",
                    self.argv
                )?;
            }
        }
        if !self.tail.is_empty() {
            write!(f, ", saying: {}", self.tail.join(" | "))?;
        }
        if let End::Deadline { warnings, .. } = &self.end
            && !warnings.is_empty()
        {
            write!(f, "; meanwhile the kernel warned: {}", warnings.join(" | "))?;
        }
        Ok(())
    }
}

impl std::error::Error for CommandError {}

/// Names of the tools that `PATH` does not have. Asked at start, so that none is missed in the middle of an install.
pub fn missing<'a>(tools: &[&'a str]) -> Vec<&'a str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = |tool: &&&str| std::env::split_paths(&path).any(|dir| dir.join(tool).is_file());
    tools.iter().filter(|tool| !there(tool)).copied().collect()
}

fn quoted(word: &str) -> String {
    if !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || "'\"\\$`".contains(c)) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_millis(1);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < end => {}
            // try_wait fails only for a child that was reaped elsewhere, which nothing here does.
            Ok(None) | Err(_) => return None,
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

fn kill_group(child: &mut Child) {
    use nix::sys::signal::{Signal, killpg};
    if let Ok(id) = i32::try_from(child.id()) {
        // Gone already is as good as killed.
        let _ = killpg(nix::unistd::Pid::from_raw(id), Signal::SIGKILL);
    }
    // A process in uninterruptible sleep survives SIGKILL until its I/O ends: do not wait for that one.
    let end = Instant::now() + Duration::from_secs(2);
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < end {
        thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use super::lines::TAIL_LINES;
    use super::*;

    #[test]
    fn output_is_returned_and_watched() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let lines = seen.clone();
        let output = Command::new("printf")
            .arg("one\ntwo\n")
            .run_watched(move |line| lines.lock().unwrap().push(line.to_owned()))
            .unwrap();
        assert_eq!(output.stdout, "one\ntwo\n");
        assert_eq!(*seen.lock().unwrap(), ["one", "two"]);
    }

    #[test]
    fn the_error_has_argv_code_and_last_words() {
        let error = Command::new("sh").args(["-c", "echo 'disk is on fire' >&2; exit 3"]).run().unwrap_err();
        assert_eq!(
            error.to_string(),
            "`sh -c 'echo '\\''disk is on fire'\\'' >&2; exit 3'` exited with 3, saying: disk is on fire"
        );
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = Command::new("no-such-tool").run().unwrap_err();
        assert!(error.to_string().starts_with("`no-such-tool` could not be started"), "{error}");
        assert_eq!(missing(&["sh", "no-such-tool"]), ["no-such-tool"]);
    }

    #[test]
    fn a_check_before_the_start_can_forbid_it() {
        let run = |allowed: bool| {
            let check = move || if allowed { Ok(()) } else { Err(std::io::Error::other("still busy")) };
            Command::new("echo").arg("started").before(check).run()
        };
        assert_eq!(run(true).unwrap().stdout, "started\n");
        assert_eq!(run(false).unwrap_err().to_string(), "`echo started` could not be started: still busy");
    }

    #[test]
    fn the_deadline_ends_the_process_and_its_children() {
        let began = Instant::now();
        let error = Command::new("sh")
            .args(["-c", "echo waiting; sleep 60 & sleep 60"])
            .deadline(Duration::from_millis(300))
            .run()
            .unwrap_err();
        assert!(matches!(error.end, End::Deadline { .. }), "{error}");
        assert_eq!(error.tail, ["waiting"]);
        assert!(began.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn what_the_kernel_warned_of_stands_beside_the_deadline() {
        let warnings = vec!["nvme nvme1: I/O 684 QID 1 timeout, reset controller".to_owned()];
        let end = End::Deadline { limit: Duration::from_secs(120), warnings };
        let error = CommandError { argv: "lvm pvs".to_owned(), end, tail: vec!["one".to_owned()] };
        assert_eq!(
            error.to_string(),
            "`lvm pvs` did not end within 120 s and was killed, saying: one; meanwhile the kernel warned: \
             nvme nvme1: I/O 684 QID 1 timeout, reset controller"
        );
    }

    #[test]
    fn stdin_is_empty_so_a_prompt_cannot_wait() {
        assert_eq!(Command::new("cat").run().unwrap().stdout, "");
    }

    #[test]
    fn what_is_kept_of_the_output_is_bounded() {
        let output = Command::new("sh").args(["-c", "yes | head -c 4000000"]).run().unwrap();
        assert!((OUTPUT_BYTES - 4096..=OUTPUT_BYTES).contains(&output.stdout.len()), "{}", output.stdout.len());
    }

    #[test]
    fn what_must_be_whole_is_whole_or_an_error() {
        let said = |limit: usize| Command::new("sh").args(["-c", "yes | head -c 4000000"]).whole(limit).run();
        assert_eq!(said(4_000_000).unwrap().stdout.len(), 4_000_000);
        let error = said(3_999_999).unwrap_err();
        assert!(matches!(error.end, End::NotWhole(3_999_999)), "{error}");
        let expected = "` said more than the 3999999 bytes that are read of it, or left somebody who goes on";
        assert!(error.to_string().ends_with(expected), "{error}");
        // Somebody who is left behind and may go on.
        let error = Command::new("sh").args(["-c", "echo one; sleep 9 &"]).whole(100).run().unwrap_err();
        assert!(matches!(error.end, End::NotWhole(100)), "{error}");
    }

    #[test]
    fn only_the_last_lines_are_quoted() {
        let error = Command::new("sh").args(["-c", "seq 1 500 >&2; exit 1"]).run().unwrap_err();
        assert_eq!(error.tail.len(), TAIL_LINES);
        assert_eq!(error.tail.last().map(String::as_str), Some("500"));
    }
}
