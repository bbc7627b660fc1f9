//! Reads the output of a process line by line, as it arrives.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Number of trailing lines that an error quotes.
pub(crate) const TAIL_LINES: usize = 20;

/// Maximum length of a line, in bytes.
const LINE_BYTES: u64 = 4096;

pub(crate) type LineWatcher = Arc<dyn Fn(&str) + Send + Sync>;

/// Output that was read from a pipe.
#[derive(Default)]
pub(crate) struct CapturedText {
    pub text: String,
    /// True if the pipe was read to its end and nothing was dropped.
    pub whole: bool,
}

pub(crate) struct LineReader {
    handle: thread::JoinHandle<()>,
    text: Arc<Mutex<CapturedText>>,
}

impl LineReader {
    pub fn finish(self, patience: Duration) -> CapturedText {
        let end = Instant::now() + patience;
        while !self.handle.is_finished() && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
        self.text.lock().map(|mut text| std::mem::take(&mut *text)).unwrap_or_default()
    }
}

pub(crate) fn read_lines(
    pipe: impl Read + Send + 'static,
    limit: usize,
    watch: LineWatcher,
    tail: Arc<Mutex<VecDeque<String>>>,
) -> LineReader {
    let text = Arc::new(Mutex::new(CapturedText::default()));
    let collected = text.clone();
    let handle = thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        let mut dropped = false;
        loop {
            line.clear();
            match pipe.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line) {
                Ok(0) => {
                    if let Ok(mut text) = collected.lock() {
                        text.whole = !dropped;
                    }
                    return;
                }
                Err(_) => return,
                Ok(_) => {}
            }
            let raw = String::from_utf8_lossy(&line);
            if let Ok(mut collected) = collected.lock() {
                // If a line would make the text longer than the limit, this line and all later lines are dropped:
                // dropping only this line would leave an unnoticed gap in the text.
                dropped |= collected.text.len() + raw.len() > limit;
                if !dropped {
                    collected.text.push_str(&raw);
                }
            }
            let shown = raw.trim_end();
            if shown.trim().is_empty() {
                continue;
            }
            watch(shown);
            if let Ok(mut tail) = tail.lock() {
                if tail.len() == TAIL_LINES {
                    tail.pop_front();
                }
                tail.push_back(shown.to_owned());
            }
        }
    });
    LineReader { handle, text }
}
