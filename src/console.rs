//! What people read on the console. Each line is printed at once, and the last of them are kept for a control plane that shows them where
//! nobody stands before the machine.

#[cfg(feature = "agent")]
pub mod ask;

use crate::text::terminal::escape;
use crate::text::{cut, terminal, without_secrets};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is kept, in bytes; an installation says some 20 kB.
const KEPT: usize = 256 << 10;

/// What the ramdisk has said before the agent began.
const BEFORE: &str = "/run/ramdisk.log";

/// What this process has said.
pub static SAID: Said = Said::new();

/// Prints a line, or several.
pub fn say(text: &str) {
    let text = escape(text);
    // A console that cannot be written does not end an installation.
    let _ = io::stdout().write_all(format!("{text}\n").as_bytes());
    SAID.note(&text);
}

/// Begins with what the ramdisk has said, where it kept that.
pub fn begin() {
    // A ramdisk of another kind keeps nothing.
    if let Ok(text) = std::fs::read(Path::new(BEFORE)) {
        SAID.note(cut(String::from_utf8_lossy(&text).trim_end(), KEPT / 2));
    }
}

/// The end of what was said, and how much came before it.
pub struct Said(Mutex<Tail>);

struct Tail {
    text: String,
    /// Bytes that were said before `text` and are not kept any more.
    gone: u64,
}

impl Said {
    pub(crate) const fn new() -> Said {
        Said(Mutex::new(Tail { text: String::new(), gone: 0 }))
    }

    fn tail(&self) -> MutexGuard<'_, Tail> {
        // A panic while the lock was held leaves nothing half-done here.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a line, or several.
    pub fn note(&self, text: &str) {
        let mut tail = self.tail();
        tail.text.push_str(text);
        tail.text.push('\n');
        if tail.text.len() > KEPT {
            // A half at once, so that long logs are not moved by every line.
            let from = tail.text.len() - KEPT / 2;
            let from =
                tail.text.as_bytes()[from..].iter().position(|byte| *byte == b'\n').map_or(from, |at| from + at + 1);
            let from = (from..tail.text.len()).find(|at| tail.text.is_char_boundary(*at)).unwrap_or(tail.text.len());
            tail.text.drain(..from);
            tail.gone += from as u64;
        }
    }

    /// What was said after the first `start` bytes, at most so many bytes of it, and where that begins: later than `start` where what came
    /// first is not kept any more.
    pub fn since(&self, start: u64, most: usize) -> (u64, String) {
        let tail = self.tail();
        let start = start.max(tail.gone);
        let rest = usize::try_from(start - tail.gone).ok().and_then(|from| tail.text.get(from..)).unwrap_or_default();
        let part = cut(rest, most);
        // Whole lines, where one fits.
        let end = if part.len() < rest.len() { part.rfind('\n').map_or(part.len(), |at| at + 1) } else { part.len() };
        (start, part[..end].to_owned())
    }
}

/// Standard error for log lines, which are [`without_secrets`] and contain nothing that controls a terminal.
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
