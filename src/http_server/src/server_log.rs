//! Log of the server. On a terminal, one line per machine is redrawn; with `--json`, each line is a JSON object;
//! otherwise the lines are plain text.
//!
//! A separate thread writes the log, so that a paused terminal or a full pipe never delays a machine.

mod line_queue;
mod output_formats;
mod progress_bars;

use crate::client_address::ClientAddress;
use crate::live_machine_states::LiveMachineStates;
use crate::request_context;
use axum::http::{Method, StatusCode};
use common::error_code::ErrorCode;
use common::format::machine_ids_as_names::replace_machine_ids;
use common::format::os_error_messages::without_os_error_numbers;
use common::format::replace_hidden;
use control::agent_api_types::InstallReport;
use indicatif::{MultiProgress, ProgressDrawTarget};
use line_queue::LineSender;
use model::install_report::ProgressEvent;
use output_formats::{JsonOutput, LogOutput, PlainOutput, TerminalOutput};
use progress_bars::MachineBars;
use std::collections::HashMap;
use std::io::IsTerminal;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use time::UtcOffset;

#[derive(Debug)]
enum LogMessage {
    Listening(String),
    Note(String),
    Problem(String),
    Event(MachineOrigin, ProgressEvent),
    Report(MachineOrigin, Box<InstallReport>),
    Reinstall(MachineOrigin, String),
    Answered(AnsweredRequest),
}

/// Message for the log, and the id of the request that caused it.
#[derive(Debug)]
struct LogLine {
    request: Option<String>,
    message: LogMessage,
}

/// Request and its response, logged only with `--json`.
#[derive(Debug)]
pub struct AnsweredRequest {
    pub from: IpAddr,
    pub method: Method,
    pub path: String,
    pub status: StatusCode,
    pub took: Duration,
}

/// Machine that a message is about, and the client address that caused the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineOrigin {
    machine: String,
    name: String,
    from: String,
}

impl MachineOrigin {
    pub fn new(machine: &str, name: &str, from: ClientAddress) -> MachineOrigin {
        MachineOrigin { machine: machine.to_owned(), name: replace_hidden(name), from: from.to_string() }
    }
}

/// Formats the machine's name and the client's address, such as `storage-7 10.0.0.7`.
impl std::fmt::Display for MachineOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.name, self.from)
    }
}

/// Function that returns the name of the machine with an id.
type NameLookup = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Names of machines for log lines in plain text. JSON lines contain the ids.
#[derive(Clone, Default)]
pub struct MachineNames(Arc<OnceLock<NameLookup>>);

impl MachineNames {
    /// Replaces the ids of machines in a message by their names, once the function that looks them up is set.
    fn insert_names(&self, text: &str) -> String {
        match self.0.get() {
            Some(name_of) => replace_machine_ids(text, name_of),
            None => text.to_owned(),
        }
    }
}

/// Sender of log messages to the writing thread. Cheap to clone.
#[derive(Clone)]
pub struct ServerLog {
    lines: LineSender,
    names: MachineNames,
    /// Sender of live updates for the web page.
    pub live: LiveMachineStates,
}

/// Handle of the writing thread. [`LogWriter::finish`] waits until the thread has written its last line.
pub struct LogWriter {
    done: Receiver<()>,
}

impl ServerLog {
    /// Starts the thread that writes to standard output. Must be called before other threads are started, because the
    /// local time zone can be read only while the process has a single thread.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn start_writer(as_json: bool) -> std::io::Result<(ServerLog, LogWriter)> {
        let stdout = std::io::stdout();
        if as_json {
            return ServerLog::with_output(JsonOutput { out: stdout });
        }
        let offset = UtcOffset::current_local_offset().unwrap_or(UtcOffset::UTC);
        let names = MachineNames::default();
        let (mut log, writer) = match stdout.is_terminal() {
            true => {
                let lines = MultiProgress::with_draw_target(ProgressDrawTarget::stdout());
                let bars = MachineBars::new(lines);
                ServerLog::with_output(TerminalOutput { bars, offset, names: names.clone() })?
            }
            false => {
                let last_progress = HashMap::new();
                ServerLog::with_output(PlainOutput { out: stdout, offset, names: names.clone(), last_progress })?
            }
        };
        log.names = names;
        Ok((log, writer))
    }

    /// Sets the function that returns the name of the machine with an id. Lines in plain text then contain names
    /// instead of ids. A second call has no effect.
    pub fn set_machine_names(&self, name_of: impl Fn(&str) -> Option<String> + Send + Sync + 'static) {
        let _ = self.names.0.set(Box::new(name_of));
    }

    /// Starts a log in the format of `--json` that is written to `out` instead of standard output.
    ///
    /// # Panics
    /// Panics if the thread that writes the log cannot be started.
    #[cfg(any(test, feature = "testing"))]
    #[expect(clippy::unwrap_used, reason = "only tests call this function")]
    pub fn json_into(out: impl std::io::Write + Send + 'static) -> ServerLog {
        ServerLog::with_output(JsonOutput { out }).unwrap().0
    }

    fn with_output(mut show: impl LogOutput + 'static) -> std::io::Result<(ServerLog, LogWriter)> {
        let (lines, mut received) = line_queue::open_queue();
        let (finished, done) = mpsc::channel();
        std::thread::Builder::new().name("watch".to_owned()).spawn(move || {
            while let Some(line) = received.next_line() {
                // Errors are ignored, because the server must continue even if the output is closed or the line cannot
                // be drawn.
                let _ = catch_unwind(AssertUnwindSafe(|| show.show(line)));
            }
            show.end();
            let _ = finished.send(());
        })?;
        Ok((
            ServerLog { lines, names: MachineNames::default(), live: LiveMachineStates::default() },
            LogWriter { done },
        ))
    }

    fn send_message(&self, message: LogMessage) {
        self.lines.send_line(LogLine { request: request_context::current_id(), message });
    }

    /// Logs the URL at which the server listens. This is the first line of the log.
    pub fn log_listening(&self, url: String) {
        self.send_message(LogMessage::Listening(url));
    }

    /// Logs a request and its response, if the format is `--json`. Other formats show only the effects of requests.
    pub fn log_request(&self, answered: AnsweredRequest) {
        self.send_message(LogMessage::Answered(answered));
    }

    /// Logs an informational message.
    pub fn log_note(&self, text: String) {
        self.send_message(LogMessage::Note(without_os_error_numbers(&text).into_owned()));
    }

    /// Logs a problem that requires attention by the operator. A message without an error code gets the general code
    /// for problems of the server.
    pub fn log_problem(&self, text: String) {
        let text = without_os_error_numbers(&text).into_owned();
        self.send_message(LogMessage::Problem(ErrorCode::ServerProblem.annotate_uncoded(text)));
    }

    pub fn log_event(&self, who: MachineOrigin, event: ProgressEvent) {
        self.live.record_event(&who.machine, &event);
        self.send_message(LogMessage::Event(who, event));
    }

    /// Logs an event of a boot that has already reported the end of its installation. The event does not change the
    /// state of the machine.
    pub fn log_late_event(&self, who: MachineOrigin, event: ProgressEvent) {
        self.live.record_change(&who.machine);
        self.send_message(LogMessage::Event(who, event));
    }

    /// Logs a change of a reinstall order.
    pub fn log_reinstall(&self, who: MachineOrigin, text: impl Into<String>) {
        self.live.record_change(&who.machine);
        self.send_message(LogMessage::Reinstall(who, replace_hidden(&text.into())));
    }

    /// Logs the end of an installation.
    pub fn log_report(&self, who: MachineOrigin, report: &InstallReport) {
        self.live.record_change(&who.machine);
        self.send_message(LogMessage::Report(who, Box::new(report.clone())));
    }
}

impl LogWriter {
    /// Waits briefly until all messages are written. All clones of [`ServerLog`] must have been dropped.
    pub fn finish(self) {
        let _ = self.done.recv_timeout(Duration::from_millis(300));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::install_report::{ErasedDisk, EventName, ImageTransferFigures, StageShare, StageTime, TransferProgress};
    use serde_json::{Value, json};

    fn event() -> ProgressEvent {
        ProgressEvent {
            event: EventName::Installing,
            message: String::new(),
            stage: Some("image.burn".to_owned()),
            seconds: None,
            progress: Some(TransferProgress {
                bytes: 120_400_000,
                total_bytes: Some(207_000_000),
                bytes_per_second: 31_000_000,
                seconds_left: Some(3),
            }),
        }
    }

    fn who(name: &str) -> MachineOrigin {
        MachineOrigin::new("m", name, ClientAddress("10.0.0.7".parse().unwrap()))
    }

    fn event_message(event: ProgressEvent) -> LogMessage {
        LogMessage::Event(who("storage-7"), event)
    }

    fn line(message: LogMessage) -> LogLine {
        LogLine { request: None, message }
    }

    fn failed() -> InstallReport {
        InstallReport {
            success: false,
            message: "storage.format: mkfs.ext4 failed\n\u{1b}[2Jdisk on fire".to_owned(),
            step: Some("storage.format".to_owned()),
            timings: vec![
                StageTime { stage: "storage.wipe".to_owned(), seconds: 1.25 },
                StageTime { stage: "storage.format".to_owned(), seconds: 20.0 },
            ],
            erased: vec![ErasedDisk {
                device: "/dev/sda".to_owned(),
                serial: "S45N".to_owned(),
                method: model::inventory::EraseMethod::Discard,
                proof: "both ends read back as zero".to_owned(),
                seconds: 1.0,
            }],
            burn: Some(ImageTransferFigures {
                bytes: 207_000_000,
                seconds: 1.8,
                shares: vec![StageShare { stage: "de\u{1b}code".to_owned(), percent: 97 }],
            }),
            ..InstallReport::default()
        }
    }

    fn plain_output(names: &MachineNames) -> PlainOutput<Vec<u8>> {
        PlainOutput { out: Vec::new(), offset: UtcOffset::UTC, names: names.clone(), last_progress: HashMap::new() }
    }

    #[test]
    fn plain_lines_name_machines_and_json_lines_contain_ids() {
        let id = "4c4c4544-0051-3010-8052-b4c04f4d3132";
        let names = MachineNames::default();
        let mut plain = plain_output(&names);
        let note = || line(LogMessage::Note(format!("the layout of machine {id} is invalid")));
        plain.show(note()).unwrap();
        assert!(
            names.0.set(Box::new(move |requested_id| (requested_id == id).then(|| "storage-7".to_owned()))).is_ok()
        );
        plain.show(note()).unwrap();
        plain.show(line(LogMessage::Problem(format!("machine {id}: no\nmore")))).unwrap();
        let text = String::from_utf8(plain.out).unwrap();
        let lines: Vec<&str> = text.lines().map(|line| line.get(9..).unwrap()).collect();
        let unnamed = format!("the layout of machine {id} is invalid");
        assert_eq!(lines, [&unnamed, "the layout of machine storage-7 is invalid", "machine storage-7: no", "more"]);
        let mut json = JsonOutput { out: Vec::new() };
        json.show(note()).unwrap();
        assert!(String::from_utf8(json.out).unwrap().contains(id));
    }

    #[test]
    fn plain_log_formats_events_and_reports() {
        let mut plain = plain_output(&MachineNames::default());
        plain.show(line(LogMessage::Listening("http://127.0.0.1:1".to_owned()))).unwrap();
        plain.show(line(event_message(event()))).unwrap();
        plain.show(line(event_message(event()))).unwrap();
        let message = "a\u{1b}[2Jb".to_owned();
        plain
            .show(line(event_message(ProgressEvent { message, progress: None, seconds: Some(0.25), ..event() })))
            .unwrap();
        let report = Box::new(failed());
        plain.show(line(LogMessage::Report(who("storage-7"), report))).unwrap();
        plain.show(line(LogMessage::Reinstall(who("storage-7"), "ordered: image i".to_owned()))).unwrap();
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
    fn json_log_contains_machine_address_and_request() {
        let mut out = JsonOutput { out: Vec::new() };
        out.show(line(LogMessage::Listening("http://127.0.0.1:1".to_owned()))).unwrap();
        out.show(line(event_message(event()))).unwrap();
        let report = Box::new(failed());
        out.show(line(LogMessage::Report(who("n"), report))).unwrap();
        let (method, path, status) = (Method::PUT, "/v1/size".to_owned(), StatusCode::CONFLICT);
        let from = "10.0.0.7".parse().unwrap();
        let answered = AnsweredRequest { from, method, path, status, took: Duration::from_millis(1500) };
        out.show(LogLine { request: Some("5f0c-1".to_owned()), message: LogMessage::Answered(answered) }).unwrap();
        let text = String::from_utf8(out.out).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(text.lines().next(), Some("{\"listening\":\"http://127.0.0.1:1\"}"));
        assert_eq!(lines[1]["event"], "Installing");
        assert_eq!((&lines[1]["machine"], &lines[1]["name"]), (&json!("m"), &json!("storage-7")));
        assert_eq!(lines[2]["from"], "10.0.0.7", "every line about a machine contains its address");
        assert_eq!(lines[1]["progress"]["bytes"], 120_400_000);
        assert!(lines[1]["time"].as_str().unwrap().ends_with('Z'));
        assert_eq!(lines[2]["report"]["step"], "storage.format");
        let mut answered = lines[3].clone();
        answered.as_object_mut().unwrap().remove("time");
        let expected = json!({"request": "5f0c-1", "from": "10.0.0.7", "method": "PUT", "path": "/v1/size", "status": 409, "seconds": 1.5});
        assert_eq!(answered, expected);
    }

    /// If the reader has closed the output or never reads, machines must not be delayed.
    #[test]
    fn stuck_log_reader_does_not_block_writers() {
        struct Stuck(Receiver<()>);
        impl LogOutput for Stuck {
            fn show(&mut self, _: LogLine) -> std::io::Result<()> {
                let _ = self.0.recv();
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
        }
        let (release, stuck) = mpsc::channel();
        let (watch, writer) = ServerLog::with_output(Stuck(stuck)).unwrap();
        for _ in 0..line_queue::MESSAGE_BACKLOG * 2 {
            watch.log_event(who("n"), event());
        }
        drop(release);
        drop(watch);
        writer.finish();
    }
}
