//! Console output for operators. Lines are printed immediately, and the most recent lines are kept in memory for a
//! control plane that displays them remotely.

pub mod hidden_input;

use common::format::os_error_messages::without_os_error_numbers;
use common::format::terminal_escaping::escape_hidden;
use common::format::{terminal_escaping, truncate_bytes, without_secrets};
use common::sync::lock_mutex;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

/// Maximum size of the output that is kept in memory, in bytes. An installation prints about 20 kB.
const MAXIMUM_BUFFERED_BYTES: usize = 256 << 10;

/// File with the output that the ramdisk printed before the agent started.
const RAMDISK_LOG_PATH: &str = "/run/ramdisk.log";

/// Log of the console output of this process.
pub static CONSOLE_LOG: ConsoleLog = ConsoleLog::new();

/// Prints one or more lines.
pub fn print_line(text: &str) {
    let text = without_os_error_numbers(text);
    let text = escape_hidden(&text);
    // Errors are ignored, because an unwritable console must not make an installation fail.
    let _ = io::stdout().write_all(format!("{text}\n").as_bytes());
    CONSOLE_LOG.append(&text);
}

/// Starts the log with the output that the ramdisk recorded before the agent started. That output may be empty.
pub fn load_ramdisk_log() {
    // The file exists only in drophammer's own ramdisk, so a missing file is not an error.
    if let Ok(text) = std::fs::read(Path::new(RAMDISK_LOG_PATH)) {
        CONSOLE_LOG.append(truncate_bytes(String::from_utf8_lossy(&text).trim_end(), MAXIMUM_BUFFERED_BYTES / 2));
    }
}

/// Most recent console output, and the number of bytes that were printed before this output.
pub struct ConsoleLog(Mutex<ConsoleTail>);

struct ConsoleTail {
    text: String,
    /// Number of older bytes that were printed before `text` and have been dropped.
    gone: u64,
}

impl Default for ConsoleLog {
    fn default() -> ConsoleLog {
        ConsoleLog::new()
    }
}

impl ConsoleLog {
    pub const fn new() -> ConsoleLog {
        ConsoleLog(Mutex::new(ConsoleTail { text: String::new(), gone: 0 }))
    }

    fn lock_tail(&self) -> MutexGuard<'_, ConsoleTail> {
        // A poisoned lock is ignored, because the text is consistent even after a panic of the lock's holder.
        lock_mutex(&self.0)
    }

    /// Records one or more lines.
    pub fn append(&self, text: &str) {
        let mut tail = self.lock_tail();
        tail.text.push_str(text);
        tail.text.push('\n');
        if tail.text.len() > MAXIMUM_BUFFERED_BYTES {
            // Drop half of the log at once: dropping one line at a time would move the rest of the log for every new
            // line.
            let from = tail.text.len() - MAXIMUM_BUFFERED_BYTES / 2;
            let from =
                tail.text.as_bytes()[from..].iter().position(|byte| *byte == b'\n').map_or(from, |at| from + at + 1);
            let from = (from..tail.text.len()).find(|at| tail.text.is_char_boundary(*at)).unwrap_or(tail.text.len());
            tail.text.drain(..from);
            tail.gone += from as u64;
        }
    }

    /// Returns at most `most` bytes of the output from offset `start` onwards, together with the actual offset of the
    /// returned bytes. This offset is higher than `start` if the output at `start` has been dropped.
    pub fn read_since(&self, start: u64, most: usize) -> (u64, String) {
        let tail = self.lock_tail();
        let start = start.max(tail.gone);
        let rest = usize::try_from(start - tail.gone).ok().and_then(|from| tail.text.get(from..)).unwrap_or_default();
        let part = truncate_bytes(rest, most);
        // Cut at a line end if at least one line fits.
        let end = if part.len() < rest.len() { part.rfind('\n').map_or(part.len(), |at| at + 1) } else { part.len() };
        (start, part[..end].to_owned())
    }
}

/// Writes log lines to standard error, after removing secrets ([`without_secrets`]) and terminal control characters.
pub struct SanitizedStderr;

impl Write for SanitizedStderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let text = terminal_escaping::escape_message(&without_secrets(&without_os_error_numbers(&text)));
        CONSOLE_LOG.append(&text);
        io::stderr().write_all(format!("{text}\n").as_bytes()).map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_is_returned_once_in_complete_lines() {
        let said = ConsoleLog::new();
        assert_eq!(said.read_since(0, 100), (0, String::new()));
        ["one", "zwei\ndrei ä", ""].iter().for_each(|line| said.append(line));
        assert_eq!(said.read_since(0, 100), (0, "one\nzwei\ndrei ä\n\n".to_owned()));
        assert_eq!(said.read_since(0, 6), (0, "one\n".to_owned()));
        assert_eq!(said.read_since(4, 6), (4, "zwei\n".to_owned()));
        // If no line fits, a part of a line is returned, cut at a character boundary.
        assert_eq!(said.read_since(9, 6), (9, "drei ".to_owned()));
        assert_eq!(said.read_since(18, 100), (18, String::new()));
        assert_eq!(said.read_since(1000, 100), (1000, String::new()), "the offset is beyond the output");
    }

    #[test]
    fn only_the_end_of_the_log_is_kept() {
        let said = ConsoleLog::new();
        let line = "ä".repeat(50);
        (0..10_000).for_each(|_| said.append(&line));
        let (start, text) = said.read_since(0, usize::MAX);
        assert!(
            start > 0 && text.len() <= MAXIMUM_BUFFERED_BYTES && text.len() >= MAXIMUM_BUFFERED_BYTES / 2 - 101,
            "{start}: {}",
            text.len()
        );
        assert_eq!(start + text.len() as u64, 10_000 * 101);
        assert!(text.lines().all(|kept| kept == line));
        // A line that is longer than the maximum size of the log.
        said.append(&"ä".repeat(MAXIMUM_BUFFERED_BYTES));
        let (start, text) = said.read_since(0, usize::MAX);
        assert_eq!(start + text.len() as u64, 10_000 * 101 + 2 * MAXIMUM_BUFFERED_BYTES as u64 + 1);
        assert!(text.len() <= MAXIMUM_BUFFERED_BYTES);
    }
}
