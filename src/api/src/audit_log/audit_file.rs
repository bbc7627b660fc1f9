//! File to which the entries of the audit log are appended, as JSON lines. A separate thread writes the lines, so that
//! a slow filesystem does not delay requests. Lost lines are counted and reported; the database still contains the
//! entries of these lines.

use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use common::format::{format_count, format_seconds};
use common::sync::lock_mutex;
use http_server::rate_limited_log::RateLimitedLog;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// Maximum number of lines in the queue.
const QUEUE_LINES: usize = 4096;
/// Maximum size of all lines in the queue, in bytes.
const QUEUE_BYTES: usize = 16 << 20;
/// Time limit for the first opening of the file.
const OPEN_LIMIT: Duration = Duration::from_secs(10);
/// Duration of a write above which the file counts as unresponsive.
const SLOW_WRITE_DURATION: Duration = Duration::from_secs(10);
/// Time after the last loss of a line during which the loss is reported as a problem.
const LOSS_REPORT_DURATION: Duration = Duration::from_secs(3600);

/// File of the audit log, and the queue of its thread.
pub(super) struct AuditFile {
    path: PathBuf,
    queue: mpsc::SyncSender<AuditLine>,
    state: Arc<Mutex<QueueState>>,
    rate_limited_log: RateLimitedLog,
}

struct AuditLine {
    /// Id of the entry.
    entry: i64,
    text: String,
}

/// Numbers of queued and lost lines, and times of losses and writes.
#[derive(Default)]
struct QueueState {
    lines: usize,
    bytes: usize,
    lost: u64,
    last_loss: Option<Instant>,
    /// Time at which the current write to the file has started.
    write_began: Option<Instant>,
}

/// Opens a regular file for appending. Refuses other file types: a write to a FIFO or device can block, and its
/// reader may lose lines.
fn open_regular_file(path: &Path) -> std::io::Result<File> {
    let is_other = std::fs::metadata(path).is_ok_and(|known| !known.is_file());
    let wrong = || std::io::Error::other("is not a regular file");
    if is_other {
        return Err(wrong());
    }
    let mut options = OpenOptions::new();
    // The path may have become a FIFO since the check above, so the open must not block.
    options.create(true).append(true).mode(0o600).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(wrong()) }
}

impl AuditFile {
    /// Opens the file, and starts the thread that writes to the file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened, or is not a regular file.
    pub(super) fn start(path: PathBuf, rate_limited_log: RateLimitedLog) -> Result<AuditFile> {
        let (queue, lines) = mpsc::sync_channel(QUEUE_LINES);
        let (opened, first_open) = mpsc::channel();
        let state = Arc::<Mutex<QueueState>>::default();
        let file =
            AuditFile { path: path.clone(), queue, state: state.clone(), rate_limited_log: rate_limited_log.clone() };
        let write_all = move || {
            let _ = opened.send(open_regular_file(&path).map(drop));
            write_lines(&path, &lines, &state, &rate_limited_log);
        };
        let thread = std::thread::Builder::new().name("audit-file".to_owned());
        thread.spawn(write_all).context(Phase::Serve, || "start the thread that writes the file of --audit-log")?;
        let what = || format!("--audit-log: cannot open {file}", file = file.path.display());
        match first_open.recv_timeout(OPEN_LIMIT) {
            Ok(opened) => opened.context(Phase::Serve, what)?,
            Err(_) => {
                let limit = format_seconds(OPEN_LIMIT.as_secs_f64());
                return Err(Error::new(
                    Phase::Serve,
                    format!("{subject}: no response within {limit}", subject = what()),
                ));
            }
        }
        Ok(file)
    }

    /// Queues the line of an entry. If the queue is full, the line is lost.
    pub(super) fn append_line(&self, entry: i64, text: String) {
        let bytes = text.len();
        {
            let mut state = lock_mutex(&self.state);
            if state.bytes + bytes <= QUEUE_BYTES && self.queue.try_send(AuditLine { entry, text }).is_ok() {
                state.lines += 1;
                state.bytes += bytes;
                return;
            }
        }
        report_loss(
            &self.path,
            &self.state,
            &self.rate_limited_log,
            entry,
            "lines cannot be written to the file fast enough",
        );
    }

    /// Returns the number of lines that were lost since the start.
    pub(super) fn count_lost(&self) -> u64 {
        lock_mutex(&self.state).lost
    }

    /// Returns the number of lines that are not written yet.
    pub(super) fn count_pending(&self) -> usize {
        lock_mutex(&self.state).lines
    }

    /// Returns the reason why the file lacks entries, or may soon lack entries.
    pub(super) fn describe_problem(&self) -> Option<String> {
        let QueueState { lines, lost, last_loss, write_began, .. } = *lock_mutex(&self.state);
        let path = self.path.display();
        if last_loss.is_some_and(|at| at.elapsed() < LOSS_REPORT_DURATION) {
            let lost = format_count(usize::try_from(lost).unwrap_or(usize::MAX), "entry", "entries");
            return Some(format!(
                "--audit-log: {path} lacks {lost} of the database; `drophammer audit` prints all entries"
            ));
        }
        let is_slow = write_began.is_some_and(|began| began.elapsed() > SLOW_WRITE_DURATION);
        is_slow.then(|| {
            let waiting = format_count(lines, "entry waits", "entries wait");
            format!("--audit-log: {path} does not respond, and {waiting}: check the filesystem of the file")
        })
    }
}

/// Writes the lines in the queue until the queue is closed. Opens the file for each line, so that other programs may
/// rotate the file.
fn write_lines(
    path: &Path,
    lines: &mpsc::Receiver<AuditLine>,
    state: &Mutex<QueueState>,
    rate_limited_log: &RateLimitedLog,
) {
    let mut is_torn = false;
    for AuditLine { entry, text } in lines {
        lock_mutex(state).write_began = Some(Instant::now());
        // A failed write may have written only a part of a line, so the next line begins with a line break.
        let start = if is_torn { "\n" } else { "" };
        let written =
            open_regular_file(path).and_then(|mut file| file.write_all(format!("{start}{text}\n").as_bytes()));
        is_torn = written.is_err();
        {
            let mut state = lock_mutex(state);
            state.write_began = None;
            state.lines -= 1;
            state.bytes -= text.len();
        }
        if let Err(error) = written {
            report_loss(path, state, rate_limited_log, entry, &error.to_string());
        }
    }
}

fn report_loss(path: &Path, state: &Mutex<QueueState>, rate_limited_log: &RateLimitedLog, entry: i64, why: &str) {
    {
        let mut state = lock_mutex(state);
        state.lost += 1;
        state.last_loss = Some(Instant::now());
    }
    let what = format!("--audit-log: cannot write entry {entry} to {path}", path = path.display());
    rate_limited_log
        .log_problem(ErrorCode::ServerProblem.annotate(format!("{what}: {why}; the entry is in the database")));
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_server::server_log::ServerLog;
    use std::os::unix::net::UnixListener;

    fn start(path: &Path) -> Result<AuditFile> {
        AuditFile::start(path.to_owned(), RateLimitedLog::new(ServerLog::json_into(std::io::sink())))
    }

    fn wait_until(is_so: impl Fn() -> bool) {
        while !is_so() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn only_regular_files_are_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let [fifo, socket, link, missing] = ["fifo", "socket", "link", "none/x"].map(|name| dir.path().join(name));
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let _listener = UnixListener::bind(&socket).unwrap();
        std::os::unix::fs::symlink(&fifo, &link).unwrap();
        for path in [&fifo, &socket, &link, dir.path(), Path::new("/dev/null")] {
            let error = start(path).err().unwrap().to_string();
            assert!(error.contains("--audit-log") && error.ends_with("is not a regular file"), "{error}");
        }
        assert!(start(&missing).is_err());
        let target = dir.path().join("target");
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        start(&link).unwrap();
        assert!(target.is_file());
    }

    #[test]
    fn lines_are_written_in_order_to_the_rotated_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        let file = start(&path).unwrap();
        (0..100).for_each(|number| file.append_line(number, number.to_string()));
        wait_until(|| file.count_pending() == 0);
        std::fs::rename(&path, dir.path().join("audit.1")).unwrap();
        file.append_line(100, "100".to_owned());
        wait_until(|| file.count_pending() == 0);
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        let expected: String = (0..100).map(|number| format!("{number}\n")).collect();
        assert_eq!((read("audit.1"), read("audit")), (expected, "100\n".to_owned()));
        assert_eq!((file.count_lost(), file.describe_problem()), (0, None));
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        let file = start(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        file.append_line(1, "one".to_owned());
        file.append_line(2, "two".to_owned());
        wait_until(|| file.count_pending() == 0 && file.count_lost() == 2);
        let problem = file.describe_problem().unwrap();
        assert!(problem.contains("lacks 2 entries"), "{problem}");
        std::fs::remove_file(&path).unwrap();
        file.append_line(3, "three".to_owned());
        wait_until(|| file.count_pending() == 0);
        // The part of a line that a failed write has written does not damage the next line.
        assert_eq!(std::fs::read_to_string(&path).unwrap().trim_start(), "three\n");
    }

    #[test]
    fn full_queue_drops_and_counts_lines_without_blocking() {
        let (queue, lines) = mpsc::sync_channel(QUEUE_LINES);
        let rate_limited_log = RateLimitedLog::new(ServerLog::json_into(std::io::sink()));
        let file = AuditFile { path: "audit".into(), queue, state: Arc::default(), rate_limited_log };
        (0..QUEUE_LINES as i64 + 5).for_each(|number| file.append_line(number, String::new()));
        assert_eq!((file.count_lost(), file.count_pending()), (5, QUEUE_LINES));
        drop(lines);
        let (queue, _lines) = mpsc::sync_channel(QUEUE_LINES);
        let file = AuditFile { queue, state: Arc::default(), ..file };
        file.append_line(1, "x".repeat(QUEUE_BYTES));
        file.append_line(2, "x".to_owned());
        assert_eq!((file.count_lost(), file.count_pending()), (1, 1), "the size of the queue is limited");
        let began = Instant::now().checked_sub(SLOW_WRITE_DURATION * 2);
        let state = Arc::new(Mutex::new(QueueState { lines: 3, write_began: began, ..QueueState::default() }));
        let problem = AuditFile { state, ..file }.describe_problem().unwrap();
        assert!(problem.contains("does not respond, and 3 entries wait"), "{problem}");
    }
}
