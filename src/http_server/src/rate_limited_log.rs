//! Rate limit for log lines that any client on the network can trigger. Equal lines are printed only once per minute.
//! Each address has a quota, so that lines of one address do not suppress lines of another. When an address exceeds its
//! quota, one line announces that further lines are dropped. At the end of the minute, another line reports the number
//! of dropped lines.

use crate::request_context;
use crate::server_log::ServerLog;
use common::format::untrusted_text_limits;
use common::sync::lock_mutex;
use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const LIMIT_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of lines per address and minute.
const MAXIMUM_ADDRESS_LINES: u32 = 16;
/// Maximum total number of lines per minute from the server itself and dnsmasq.
const MAXIMUM_SERVER_LINES: u32 = 256;
/// Maximum number of lines of all addresses per minute.
const MAXIMUM_TOTAL_LINES: u32 = 1024;
/// Number of lines per minute that are printed about each address even if the limit [`MAXIMUM_TOTAL_LINES`] is reached.
const GUARANTEED_ADDRESS_LINES: u32 = 2;
/// Maximum number of addresses counted per minute. Lines of further addresses are dropped.
const MAXIMUM_COUNTED_ADDRESSES: usize = 4096;
/// Maximum number of addresses listed in the line that reports dropped lines.
const MAXIMUM_LISTED_ADDRESSES: usize = 4;

/// Rate-limited log. Cheap to clone.
#[derive(Clone)]
pub struct RateLimitedLog {
    watch: ServerLog,
    minute: Arc<Mutex<MinuteQuota>>,
}

/// Counters of the lines in the current minute.
struct MinuteQuota {
    began: Instant,
    /// Hashes of the lines that were printed in this minute.
    printed: HashSet<u64>,
    hasher: RandomState,
    sources: HashMap<Option<IpAddr>, LineCounts>,
    /// Number of lines printed so far, summed over all addresses.
    total: u32,
    /// Number of dropped lines of addresses beyond [`MAXIMUM_COUNTED_ADDRESSES`].
    dropped: u64,
}

#[derive(Default)]
struct LineCounts {
    printed: u32,
    dropped: u64,
}

/// Decision whether a log line is printed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum LineVerdict {
    Print,
    /// Drop the line, and print this announcement instead. Used for the first line that is dropped.
    Announce(String),
    Drop,
}

impl RateLimitedLog {
    pub fn new(watch: ServerLog) -> RateLimitedLog {
        RateLimitedLog { watch, minute: Arc::new(Mutex::new(MinuteQuota::new())) }
    }

    /// Logs a problem that requires attention by the operator.
    pub fn log_problem(&self, text: String) {
        self.print_line(request_context::current_client(), text, ServerLog::log_problem);
    }

    /// Logs a problem with a connection from `address` on which no request was received yet, such as a failed TLS
    /// handshake.
    pub fn log_problem_of(&self, address: IpAddr, text: String) {
        self.print_line(Some(address), text, ServerLog::log_problem);
    }

    /// Logs an informational line.
    pub fn log_note(&self, text: String) {
        self.print_line(request_context::current_client(), text, ServerLog::log_note);
    }

    fn print_line(&self, address: Option<IpAddr>, text: String, print: fn(&ServerLog, String)) {
        let text = untrusted_text_limits::sanitize_message(&text);
        let (dropped, verdict) = {
            let mut minute = lock_mutex(&self.minute);
            let dropped = if minute.began.elapsed() >= LIMIT_INTERVAL { minute.start_next_minute() } else { None };
            (dropped, minute.check_line_limit(address, &text))
        };
        dropped.into_iter().for_each(|line| self.watch.log_problem(line));
        match verdict {
            LineVerdict::Print => print(&self.watch, text),
            LineVerdict::Announce(announcement) => self.watch.log_problem(announcement),
            LineVerdict::Drop => {}
        }
    }
}

impl MinuteQuota {
    fn new() -> MinuteQuota {
        MinuteQuota {
            began: Instant::now(),
            printed: HashSet::new(),
            hasher: RandomState::new(),
            sources: HashMap::new(),
            total: 0,
            dropped: 0,
        }
    }

    /// Starts the next minute. Returns a line that reports how many lines were dropped in the previous minute, or
    /// `None` if no lines were dropped.
    fn start_next_minute(&mut self) -> Option<String> {
        let ended = std::mem::replace(self, MinuteQuota::new());
        let mut sources: Vec<_> = ended.sources.into_iter().filter(|(_, lines)| lines.dropped > 0).collect();
        sources.sort_unstable_by_key(|(source, lines)| (std::cmp::Reverse(lines.dropped), *source));
        let dropped = ended.dropped + sources.iter().map(|(_, lines)| lines.dropped).sum::<u64>();
        let named = sources
            .iter()
            .take(MAXIMUM_LISTED_ADDRESSES)
            .map(|(source, lines)| format!("{} of {}", lines.dropped, format_source(*source)));
        let named: Vec<_> = named.collect();
        (dropped > 0).then(|| match named.is_empty() {
            true => format!("{dropped} log lines were dropped within a minute"),
            false => format!("{dropped} log lines were dropped within a minute: {counts}", counts = named.join(", ")),
        })
    }

    fn check_line_limit(&mut self, source: Option<IpAddr>, text: &str) -> LineVerdict {
        let hash = self.hasher.hash_one(text);
        if self.printed.contains(&hash) {
            return LineVerdict::Drop;
        }
        if source.is_some() && self.sources.len() >= MAXIMUM_COUNTED_ADDRESSES && !self.sources.contains_key(&source) {
            self.dropped += 1;
            let announcement = format!(
                "more than {MAXIMUM_COUNTED_ADDRESSES} client addresses cause log lines: the log lines of further addresses are dropped for up to a minute"
            );
            return if self.dropped == 1 { LineVerdict::Announce(announcement) } else { LineVerdict::Drop };
        }
        let most = match source {
            None => MAXIMUM_SERVER_LINES,
            Some(_) if self.total < MAXIMUM_TOTAL_LINES => MAXIMUM_ADDRESS_LINES,
            Some(_) => GUARANTEED_ADDRESS_LINES,
        };
        let lines = self.sources.entry(source).or_default();
        if lines.printed >= most {
            lines.dropped += 1;
            let announcement = format!(
                "{source} causes more than {limit} different log lines a minute: further lines are dropped for up to a minute",
                source = format_source(source),
                limit = lines.printed
            );
            return if lines.dropped == 1 { LineVerdict::Announce(announcement) } else { LineVerdict::Drop };
        }
        lines.printed += 1;
        self.total += u32::from(source.is_some());
        self.printed.insert(hash);
        LineVerdict::Print
    }
}

fn format_source(source: Option<IpAddr>) -> String {
    source.map_or_else(|| "this server".to_owned(), |address| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> Option<IpAddr> {
        Some(std::net::Ipv4Addr::from(0x0a00_0000 + number).into())
    }

    fn printed(minute: &mut MinuteQuota, address: Option<IpAddr>, lines: u32) -> u32 {
        let lines = (0..lines).map(|number| format!("{address:?} {number}"));
        u32::try_from(lines.filter(|line| minute.check_line_limit(address, line) == LineVerdict::Print).count())
            .unwrap()
    }

    #[test]
    fn one_address_suppresses_its_own_lines_only() {
        let mut minute = MinuteQuota::new();
        assert_eq!(printed(&mut minute, address(1), 1000), MAXIMUM_ADDRESS_LINES);
        assert_eq!(printed(&mut minute, address(2), 3), 3);
        assert_eq!(
            printed(&mut minute, None, MAXIMUM_SERVER_LINES),
            MAXIMUM_SERVER_LINES,
            "lines of the server itself"
        );
        assert_eq!(minute.check_line_limit(address(2), "a line"), LineVerdict::Print);
        assert_eq!(minute.check_line_limit(address(3), "a line"), LineVerdict::Drop, "the same line");
        let dropped = 1000 - MAXIMUM_ADDRESS_LINES;
        let expected = format!("{dropped} log lines were dropped within a minute: {dropped} of 10.0.0.1");
        assert_eq!(minute.start_next_minute(), Some(expected));
        assert_eq!(minute.check_line_limit(address(1), "Some(10.0.0.1) 0"), LineVerdict::Print, "another minute");
        assert_eq!(minute.start_next_minute(), None);
    }

    #[test]
    fn the_first_dropped_line_is_announced() {
        let mut minute = MinuteQuota::new();
        printed(&mut minute, address(1), MAXIMUM_ADDRESS_LINES);
        let LineVerdict::Announce(line) = minute.check_line_limit(address(1), "one more") else {
            panic!("it is not announced")
        };
        assert!(line.starts_with("10.0.0.1 causes more than 16 different log lines a minute"), "{line}");
        assert_eq!(minute.check_line_limit(address(1), "two more"), LineVerdict::Drop);
    }

    #[test]
    fn log_lines_are_bounded_but_each_address_has_one() {
        let mut minute = MinuteQuota::new();
        let all: u32 = (0..2000).map(|number| printed(&mut minute, address(number), 100)).sum();
        assert!(
            (MAXIMUM_TOTAL_LINES..=MAXIMUM_TOTAL_LINES + MAXIMUM_ADDRESS_LINES + 2000 * GUARANTEED_ADDRESS_LINES)
                .contains(&all),
            "{all}"
        );
        assert_eq!(printed(&mut minute, address(3000), 5), GUARANTEED_ADDRESS_LINES);
        let further: u32 = (4000..20_000).map(|number| printed(&mut minute, address(number), 1)).sum();
        assert!(further < MAXIMUM_COUNTED_ADDRESSES as u32, "{further}");
        assert_eq!(minute.sources.len(), MAXIMUM_COUNTED_ADDRESSES);
        assert!(
            minute.printed.len() <= 2 * MAXIMUM_COUNTED_ADDRESSES + 2 * MAXIMUM_TOTAL_LINES as usize,
            "{}",
            minute.printed.len()
        );
    }
}
