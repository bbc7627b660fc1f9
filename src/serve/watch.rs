//! Log of the server: on a terminal one redrawn line per machine; otherwise plain lines; with `--json` one object per line.
//!
//! A separate thread writes, so that a paused terminal or a full pipe never delays a machine.

mod bars;
mod shown;

use super::page::live::Live;
use super::peers::Peer;
use super::requests;
use crate::control::wire::Report;
use crate::facts::Event;
use crate::text::clean;
use axum::http::{Method, StatusCode};
use bars::Bars;
use indicatif::{MultiProgress, ProgressDrawTarget};
use shown::{Json, Plain, Show, Terminal};
use std::collections::HashMap;
use std::io::IsTerminal;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::Duration;
use time::UtcOffset;

/// Maximum number of pending messages. If the reader is too slow, further messages are dropped.
const BACKLOG: usize = 4096;

#[derive(Debug)]
enum Said {
    Listening(String),
    Note(String),
    Problem(String),
    Event(Who, Event),
    Report(Who, Box<Report>),
    Reinstall(Who, String),
    Answered(Answered),
}

/// A message with the id of the request that caused it.
#[derive(Debug)]
struct Line {
    request: Option<String>,
    said: Said,
}

/// A request and its response, for machine-readable logs.
#[derive(Debug)]
pub struct Answered {
    pub from: IpAddr,
    pub method: Method,
    pub path: String,
    pub status: StatusCode,
    pub took: Duration,
}

/// Machine that a message is about, and the address that caused it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    machine: String,
    name: String,
    from: String,
}

impl Who {
    pub fn new(machine: &str, name: &str, from: Peer) -> Who {
        Who { machine: machine.to_owned(), name: clean(name), from: from.to_string() }
    }
}

/// Formats name and address, such as `storage-7 10.0.0.7`.
impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.name, self.from)
    }
}

/// Sender of log messages. Cheap to clone.
#[derive(Clone)]
pub struct Watch {
    said: SyncSender<Line>,
    /// Sender of live updates for the web page.
    pub live: Live,
}

/// The writing thread. [`Writer::finish`] waits for its last line.
pub struct Writer {
    done: Receiver<()>,
}

impl Watch {
    /// Starts the thread that writes to standard output. Call it before other threads are started, so that the local time zone can be read.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(as_json: bool) -> std::io::Result<(Watch, Writer)> {
        let stdout = std::io::stdout();
        if as_json {
            return Watch::with(Json { out: stdout });
        }
        let offset = UtcOffset::current_local_offset().unwrap_or(UtcOffset::UTC);
        if stdout.is_terminal() {
            let lines = MultiProgress::with_draw_target(ProgressDrawTarget::stdout());
            return Watch::with(Terminal { bars: Bars::new(lines), offset });
        }
        Watch::with(Plain { out: stdout, offset, last_progress: HashMap::new() })
    }

    /// Writes JSON as with `--json`, but to another destination.
    #[cfg(test)]
    pub fn json_into(out: impl std::io::Write + Send + 'static) -> Watch {
        Watch::with(Json { out }).unwrap().0
    }

    fn with(mut show: impl Show + 'static) -> std::io::Result<(Watch, Writer)> {
        let (said, heard) = mpsc::sync_channel(BACKLOG);
        let (finished, done) = mpsc::channel();
        std::thread::Builder::new().name("watch".to_owned()).spawn(move || {
            for one in heard {
                // The output is closed, or this line cannot be drawn: the server must continue regardless.
                let _ = catch_unwind(AssertUnwindSafe(|| show.show(one)));
            }
            show.end();
            let _ = finished.send(());
        })?;
        Ok((Watch { said, live: Live::default() }, Writer { done }))
    }

    fn say(&self, said: Said) {
        let _ = self.said.try_send(Line { request: requests::current(), said });
    }

    /// Prints the first line, with the server's URL.
    pub fn listening(&self, url: String) {
        self.say(Said::Listening(url));
    }

    /// Logs a response, only in JSON: for people, its effects suffice.
    pub fn answered(&self, answered: Answered) {
        self.say(Said::Answered(answered));
    }

    /// Logs an informational message.
    pub fn note(&self, text: String) {
        self.say(Said::Note(text));
    }

    /// Logs a problem that requires attention by the operator.
    pub fn problem(&self, text: String) {
        self.say(Said::Problem(text));
    }

    pub fn event(&self, who: Who, event: Event) {
        self.live.event(&who.machine, &event);
        self.say(Said::Event(who, event));
    }

    /// Logs a change of an order to reinstall.
    pub fn reinstall(&self, who: Who, text: impl Into<String>) {
        self.live.changed(&who.machine);
        self.say(Said::Reinstall(who, clean(&text.into())));
    }

    /// Logs the end of an installation.
    pub fn report(&self, who: Who, report: &Report) {
        self.live.changed(&who.machine);
        self.say(Said::Report(who, Box::new(report.clone())));
    }
}

impl Writer {
    /// Waits briefly until everything is written. All [`Watch`]es must have been dropped.
    pub fn finish(self) {
        let _ = self.done.recv_timeout(Duration::from_millis(300));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{BurnFigures, Erased, EventName, Progress, Share, StageTime};
    use serde_json::{Value, json};

    fn event() -> Event {
        Event {
            event: EventName::Installing,
            message: String::new(),
            stage: Some("image.burn".to_owned()),
            seconds: None,
            progress: Some(Progress {
                bytes: 120_400_000,
                total_bytes: Some(207_000_000),
                bytes_per_second: 31_000_000,
                seconds_left: Some(3),
            }),
        }
    }

    fn who(name: &str) -> Who {
        Who::new("m", name, Peer("10.0.0.7".parse().unwrap()))
    }

    fn said(event: Event) -> Said {
        Said::Event(who("storage-7"), event)
    }

    fn line(said: Said) -> Line {
        Line { request: None, said }
    }

    fn failed() -> Report {
        Report {
            success: false,
            message: "mkfs.ext4 failed\n\u{1b}[2Jdisk on fire".to_owned(),
            step: Some("storage.format".to_owned()),
            timings: vec![
                StageTime { stage: "storage.wipe".to_owned(), seconds: 1.25 },
                StageTime { stage: "storage.format".to_owned(), seconds: 20.0 },
            ],
            erased: vec![Erased {
                device: "/dev/sda".to_owned(),
                serial: "S45N".to_owned(),
                method: crate::inventory::EraseMethod::Discard,
                proof: "both ends read back as zero".to_owned(),
                seconds: 1.0,
            }],
            burn: Some(BurnFigures {
                bytes: 207_000_000,
                seconds: 1.8,
                shares: vec![Share { stage: "de\u{1b}code".to_owned(), percent: 97 }],
            }),
            ..Report::default()
        }
    }

    #[test]
    fn plain_lines() {
        let mut plain = Plain { out: Vec::new(), offset: UtcOffset::UTC, last_progress: HashMap::new() };
        plain.show(line(Said::Listening("http://127.0.0.1:1".to_owned()))).unwrap();
        plain.show(line(said(event()))).unwrap();
        plain.show(line(said(event()))).unwrap();
        let message = "a\u{1b}[2Jb".to_owned();
        plain.show(line(said(Event { message, progress: None, seconds: Some(0.25), ..event() }))).unwrap();
        let report = Box::new(failed());
        plain.show(line(Said::Report(who("storage-7"), report))).unwrap();
        plain.show(line(Said::Reinstall(who("storage-7"), "ordered: image i".to_owned()))).unwrap();
        let text = String::from_utf8(plain.out).unwrap();
        let lines: Vec<&str> = text.lines().map(|line| line.get(9..).unwrap()).collect();
        assert_eq!(
            lines,
            [
                " on http://127.0.0.1:1",
                "storage-7 10.0.0.7  Installing  image.burn  120 MB of 207 MB, 31.0 MB/s, 3 s left",
                "storage-7 10.0.0.7  Installing  image.burn  a [2Jb",
                "storage-7 10.0.0.7  FAILED at storage.format: mkfs.ext4 failed",
                "storage-7 10.0.0.7       [2Jdisk on fire",
                "storage-7 10.0.0.7      storage.wipe        1.2 s",
                "storage-7 10.0.0.7      storage.format     20.0 s",
                "storage-7 10.0.0.7      total              21.2 s",
                "storage-7 10.0.0.7      /dev/sda S45N erased in 1.0 s: both ends read back as zero",
                "storage-7 10.0.0.7      image: 207 MB in 1.8 s, 115 MB/s: de code 97 % (the bottleneck)",
                "storage-7 10.0.0.7  reinstall ordered: image i",
            ]
        );
        assert!(text.starts_with("listening on http://127.0.0.1:1\n"), "{text}");
    }

    #[test]
    fn json_lines() {
        let mut out = Json { out: Vec::new() };
        out.show(line(Said::Listening("http://127.0.0.1:1".to_owned()))).unwrap();
        out.show(line(said(event()))).unwrap();
        let report = Box::new(failed());
        out.show(line(Said::Report(who("n"), report))).unwrap();
        let (method, path, status) = (Method::PUT, "/v1/size".to_owned(), StatusCode::CONFLICT);
        let from = "10.0.0.7".parse().unwrap();
        let answered = Answered { from, method, path, status, took: Duration::from_millis(1500) };
        out.show(Line { request: Some("5f0c-1".to_owned()), said: Said::Answered(answered) }).unwrap();
        let text = String::from_utf8(out.out).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(text.lines().next(), Some("{\"listening\":\"http://127.0.0.1:1\"}"));
        assert_eq!(lines[1]["event"], "Installing");
        assert_eq!((&lines[1]["machine"], &lines[1]["name"]), (&json!("m"), &json!("storage-7")));
        assert_eq!(lines[2]["from"], "10.0.0.7", "every line about a machine has the address that it came from");
        assert_eq!(lines[1]["progress"]["bytes"], 120_400_000);
        assert!(lines[1]["time"].as_str().unwrap().ends_with('Z'));
        assert_eq!(lines[2]["report"]["step"], "storage.format");
        let mut answered = lines[3].clone();
        answered.as_object_mut().unwrap().remove("time");
        let expected = json!({"request": "5f0c-1", "from": "10.0.0.7", "method": "PUT", "path": "/v1/size", "status": 409, "seconds": 1.5});
        assert_eq!(answered, expected);
    }

    /// A reader that has gone, or never reads, costs the machines nothing.
    #[test]
    fn nobody_has_to_read() {
        struct Stuck(Receiver<()>);
        impl Show for Stuck {
            fn show(&mut self, _: Line) -> std::io::Result<()> {
                let _ = self.0.recv();
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
        }
        let (release, stuck) = mpsc::channel();
        let (watch, writer) = Watch::with(Stuck(stuck)).unwrap();
        for _ in 0..BACKLOG * 2 {
            watch.event(who("n"), event());
        }
        drop(release);
        drop(watch);
        writer.finish();
    }
}
