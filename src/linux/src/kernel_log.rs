//! Kernel log messages that explain a failure.
//!
//! mount(2) and similar system calls return only an error number, and a tool that waits for a disk prints nothing. In
//! both cases, the kernel log contains the cause.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

/// Prefix of kernel messages that are appended to an error message.
pub(crate) const EXCERPT_PREFIX: &str = "kernel log: ";

/// Maximum number of log lines that are reported.
const LINES: usize = 5;

/// Log level of warnings; see syslog(2).
const WARNING: u32 = 4;

/// Upper bound for the size of a log record, in bytes (Documentation/ABI/testing/dev-kmsg).
const RECORD_BYTES: usize = 8192;

/// Messages of the kernel log since [`KernelLog::from_now`] was called.
#[derive(Debug)]
pub(crate) struct KernelLog(Option<File>);

impl KernelLog {
    /// Starts reading at the current end of the kernel log. If /dev/kmsg cannot be opened, the other functions of this
    /// type return no messages.
    pub(crate) fn from_now() -> KernelLog {
        let log = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open("/dev/kmsg");
        KernelLog(log.ok().and_then(|mut log| log.seek(SeekFrom::End(0)).map(|_| log).ok()))
    }

    /// Returns the last messages since [`KernelLog::from_now`] that contain one of these words, in upper or lower case.
    pub(crate) fn messages_matching(self, words: &[&str]) -> Vec<String> {
        let words: Vec<String> = words.iter().map(|word| word.to_lowercase()).filter(|word| !word.is_empty()).collect();
        self.take_last_messages(|line| words.iter().any(|word| line.text.to_lowercase().contains(word)))
    }

    /// Returns the last warnings and errors since [`KernelLog::from_now`].
    pub(crate) fn recent_warnings(self) -> Vec<String> {
        self.take_last_messages(|line| line.level <= WARNING)
    }

    fn take_last_messages(mut self, counts: impl Fn(&KernelMessage) -> bool) -> Vec<String> {
        last_matching(std::iter::from_fn(|| self.read_message()), counts)
    }

    fn read_message(&mut self) -> Option<KernelMessage> {
        let mut record = [0; RECORD_BYTES];
        loop {
            match self.0.as_mut()?.read(&mut record) {
                Ok(0) => return None,
                Ok(length) => {
                    let line = parse_record(&String::from_utf8_lossy(&record[..length]));
                    if line.is_some() {
                        return line;
                    }
                }
                // EPIPE means that a record was overwritten before it was read. The next read returns the next record.
                Err(error) if error.raw_os_error() == Some(nix::libc::EPIPE) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }

    /// Formats the last messages that contain one of these words as a suffix of an error message; returns an empty
    /// string if there are no such messages.
    pub(crate) fn describe_matching(self, words: &[&str]) -> String {
        let said = self.messages_matching(words);
        if said.is_empty() { String::new() } else { format!("; {EXCERPT_PREFIX}{}", said.join(" | ")) }
    }
}

fn last_matching(lines: impl Iterator<Item = KernelMessage>, counts: impl Fn(&KernelMessage) -> bool) -> Vec<String> {
    let mut said = VecDeque::new();
    for line in lines.filter(counts) {
        said.push_back(line.text);
        said.drain(..said.len().saturating_sub(LINES));
    }
    said.into()
}

struct KernelMessage {
    /// Severity, from 0 (highest) to 7; see syslog(2).
    level: u32,
    text: String,
}

/// Parses a record such as `6,339,5140900,-;EXT4-fs (sda1): mounted filesystem`. Continuation lines, which begin with a
/// space, are ignored. The first number in a record is eight times the facility, plus the level.
fn parse_record(record: &str) -> Option<KernelMessage> {
    let (head, text) = record.lines().next()?.split_once(';')?;
    let level = head.split(',').next()?.parse::<u32>().ok()? % 8;
    Some(KernelMessage { level, text: text.trim().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_log_message_follows_the_semicolon() {
        let line = parse_record("30,339,51,-;EXT4-fs (sda1): a; b\n SUBSYSTEM=block\n").unwrap();
        assert_eq!((line.level, line.text.as_str()), (6, "EXT4-fs (sda1): a; b"));
        assert!(parse_record("no record").is_none() && parse_record("x,1;no level").is_none());
    }

    #[test]
    fn last_matching_records_are_returned_in_order() {
        let records = (0..9u32).map(|level| format!("{},1,1,-;line {level}", 8 + level % 8));
        let told = last_matching(records.filter_map(|record| parse_record(&record)), |line| line.level <= WARNING);
        assert_eq!(told, ["line 1", "line 2", "line 3", "line 4", "line 8"]);
    }

    #[test]
    #[ignore = "needs root"]
    fn root_only_later_messages_that_match_are_returned() {
        let say = |text: &str| std::fs::write("/dev/kmsg", text).unwrap();
        say("drophammer-test-A before");
        let log = KernelLog::from_now();
        (0..7).for_each(|number| say(&format!("drophammer-test-A line {number}")));
        say("drophammer-test-B");
        let said = log.messages_matching(&["DROPHAMMER-test-a", ""]);
        assert_eq!(said.len(), LINES, "{said:?}");
        assert!(said[4].ends_with("line 6") && said[0].ends_with("line 2"), "{said:?}");
        assert_eq!(KernelLog::from_now().describe_matching(&["drophammer-test"]), "");
    }
}
