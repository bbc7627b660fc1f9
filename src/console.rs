//! Console output for operators. Lines are printed immediately, and the most recent ones are kept for a control plane
//! that displays them remotely.

#[cfg(feature = "agent")]
pub mod ask;

use crate::text::terminal::escape;
use crate::text::{cut, terminal, without_secrets};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum size of the kept output, in bytes; an installation prints about 20 kB.
const KEPT: usize = 256 << 10;

/// Output of the ramdisk before the agent started.
const BEFORE: &str = "/run/ramdisk.log";

/// Console output of this process.
pub static SAID: Said = Said::new();

/// Prints one or more lines.
pub fn say(text: &str) {
    let text = escape(text);
    // An unwritable console does not fail an installation.
    let _ = io::stdout().write_all(format!("{text}\n").as_bytes());
    SAID.note(&text);
}

/// Starts the log with the ramdisk's own output, if it recorded any.
pub fn begin() {
    // Other ramdisks do not record their output.
    if let Ok(text) = std::fs::read(Path::new(BEFORE)) {
        SAID.note(cut(String::from_utf8_lossy(&text).trim_end(), KEPT / 2));
    }
}

/// Most recent output, and the amount that preceded it.
pub struct Said(Mutex<Tail>);

struct Tail {
    text: String,
    /// Bytes printed before `text` that are no longer kept.
    gone: u64,
}

impl Said {
    pub(crate) const fn new() -> Said {
        Said(Mutex::new(Tail { text: String::new(), gone: 0 }))
    }

    fn tail(&self) -> MutexGuard<'_, Tail> {
        // A panic while the lock was held leaves the text consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records one or more lines.
    pub fn note(&self, text: &str) {
        let mut tail = self.tail();
        tail.text.push_str(text);
        tail.text.push('\n');
        if tail.text.len() > KEPT {
            // Drop half at once, so that not every line moves a long log.
            let from = tail.text.len() - KEPT / 2;
            let from =
                tail.text.as_bytes()[from..].iter().position(|byte| *byte == b'\n').map_or(from, |at| from + at + 1);
            let from = (from..tail.text.len()).find(|at| tail.text.is_char_boundary(*at)).unwrap_or(tail.text.len());
            tail.text.drain(..from);
            tail.gone += from as u64;
        }
    }

    /// Returns the output after the first `start` bytes, at most `most` bytes of it, and its offset, which is higher
    /// than `start` if the beginning is no longer kept.
    pub fn since(&self, start: u64, most: usize) -> (u64, String) {
        let tail = self.tail();
        let start = start.max(tail.gone);
        let rest = usize::try_from(start - tail.gone).ok().and_then(|from| tail.text.get(from..)).unwrap_or_default();
        let part = cut(rest, most);
        // Cut at a line end if at least one line fits.
        let end = if part.len() < rest.len() { part.rfind('\n').map_or(part.len(), |at| at + 1) } else { part.len() };
        (start, part[..end].to_owned())
    }
}

/// Writer of log lines to standard error, without secrets ([`without_secrets`]) and terminal control characters.
pub struct Discreet;

impl Write for Discreet {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = terminal::message(&without_secrets(&String::from_utf8_lossy(line)));
        SAID.note(&text);
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
    fn what_was_said_is_given_in_whole_lines_and_once() {
        let said = Said::new();
        assert_eq!(said.since(0, 100), (0, String::new()));
        ["one", "zwei\ndrei ä", ""].iter().for_each(|line| said.note(line));
        assert_eq!(said.since(0, 100), (0, "one\nzwei\ndrei ä\n\n".to_owned()));
        assert_eq!(said.since(0, 6), (0, "one\n".to_owned()));
        assert_eq!(said.since(4, 6), (4, "zwei\n".to_owned()));
        // No line fits: then a part of one, and never half a character.
        assert_eq!(said.since(9, 6), (9, "drei ".to_owned()));
        assert_eq!(said.since(18, 100), (18, String::new()));
        assert_eq!(said.since(1000, 100), (1000, String::new()), "nobody has said that much");
    }

    #[test]
    fn only_the_end_is_kept() {
        let said = Said::new();
        let line = "ä".repeat(50);
        (0..10_000).for_each(|_| said.note(&line));
        let (start, text) = said.since(0, usize::MAX);
        assert!(start > 0 && text.len() <= KEPT && text.len() >= KEPT / 2 - 101, "{start}: {}", text.len());
        assert_eq!(start + text.len() as u64, 10_000 * 101);
        assert!(text.lines().all(|kept| kept == line));
        // A line that is longer than all that is kept.
        said.note(&"ä".repeat(KEPT));
        let (start, text) = said.since(0, usize::MAX);
        assert_eq!(start + text.len() as u64, 10_000 * 101 + 2 * KEPT as u64 + 1);
        assert!(text.len() <= KEPT);
    }
}
