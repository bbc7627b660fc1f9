//! Output formats of the log: JSON, plain lines, or redrawn lines on a terminal.

use super::progress_bars::MachineBars;
use super::{AnsweredRequest, LogLine, LogMessage, MachineNames, MachineOrigin};
use common::format::terminal_escaping::{TextStyle, escape_json, escape_line, render_styles};
use common::format::{self, replace_hidden, untrusted_text_limits};
use common::timestamp::now;
use control::agent_api_types::InstallReport;
use indicatif::ProgressStyle;
use model::install_report::{ErasedDisk, ProgressEvent, StageTime};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::Write;
use std::time::{Duration, Instant};
use time::macros::format_description;
use time::{OffsetDateTime, UtcOffset};

/// Minimum interval between two plain lines about the progress of a machine.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// Maximum number of machines whose last progress is stored. When this number is reached, machines without recent
/// progress are removed.
const PROGRESSING: usize = 4096;

pub trait LogOutput: Send {
    fn show(&mut self, line: LogLine) -> std::io::Result<()>;
    fn end(&mut self) {}
}

pub struct JsonOutput<W> {
    pub out: W,
}

impl<W: Write + Send> LogOutput for JsonOutput<W> {
    fn show(&mut self, LogLine { request, message }: LogLine) -> std::io::Result<()> {
        let mut value = match message {
            LogMessage::Listening(url) => json!({ "listening": url }),
            LogMessage::Note(text) => json!({ "time": now(), "note": text }),
            LogMessage::Problem(text) => json!({ "time": now(), "problem": text }),
            LogMessage::Event(MachineOrigin { machine, name, from }, event) => {
                with_event(json!({ "time": now(), "machine": machine, "name": name, "from": from }), &event)
            }
            LogMessage::Report(MachineOrigin { machine, name, from }, report) => {
                json!({ "time": now(), "machine": machine, "name": name, "from": from, "report": report })
            }
            LogMessage::Reinstall(MachineOrigin { machine, name, from }, text) => {
                json!({ "time": now(), "machine": machine, "name": name, "from": from, "reinstall": text })
            }
            LogMessage::Answered(AnsweredRequest { from, method, path, status, took }) => {
                let (method, path, seconds) =
                    (method.as_str(), untrusted_text_limits::sanitize_line(&path), took.as_secs_f64());
                json!({ "time": now(), "from": from, "method": method, "path": path, "status": status.as_u16(), "seconds": seconds })
            }
        };
        if let Some(request) = request {
            value["request"] = json!(request);
        }
        writeln!(self.out, "{}", escape_json(&value.to_string()))?;
        self.out.flush()
    }
}

fn with_event(mut line: Value, event: &ProgressEvent) -> Value {
    if let (Some(line), Ok(Value::Object(event))) = (line.as_object_mut(), serde_json::to_value(event)) {
        line.extend(event);
    }
    line
}

pub struct PlainOutput<W> {
    pub out: W,
    pub offset: UtcOffset,
    pub names: MachineNames,
    pub last_progress: HashMap<String, Instant>,
}

impl<W: Write + Send> LogOutput for PlainOutput<W> {
    fn show(&mut self, LogLine { message, .. }: LogLine) -> std::io::Result<()> {
        let time = format_clock(self.offset);
        let mut write = |line: &str| writeln!(self.out, "{}", escape_line(line));
        match message {
            LogMessage::Listening(url) => write(&format!("listening on {url}"))?,
            LogMessage::Note(text) => write(&format!("{time} {}", self.names.insert_names(&text)))?,
            LogMessage::Problem(text) => {
                let text = self.names.insert_names(&text);
                text.lines().try_for_each(|line| write(&format!("{time} {}", replace_hidden(line))))?;
            }
            LogMessage::Event(who, event) => {
                if event.progress.is_some() {
                    let last = self.last_progress.get(&who.machine);
                    if last.is_some_and(|last| last.elapsed() < PROGRESS_INTERVAL) {
                        return Ok(());
                    }
                    if self.last_progress.len() >= PROGRESSING {
                        self.last_progress.retain(|_, last| last.elapsed() < PROGRESS_INTERVAL);
                    }
                    self.last_progress.insert(who.machine.clone(), Instant::now());
                }
                write(&format!("{time} {who}  {}", event_line(&event)))?;
            }
            LogMessage::Report(who, report) => {
                self.last_progress.remove(&who.machine);
                for line in report_lines(&report) {
                    write(&format!("{time} {who}  {line}"))?;
                }
            }
            LogMessage::Reinstall(who, text) => write(&format!("{time} {who}  reinstall {text}"))?,
            LogMessage::Answered(_) => {}
        }
        self.out.flush()
    }
}

pub struct TerminalOutput {
    pub bars: MachineBars,
    pub offset: UtcOffset,
    pub names: MachineNames,
}

impl LogOutput for TerminalOutput {
    fn show(&mut self, LogLine { message, .. }: LogLine) -> std::io::Result<()> {
        let time = format_clock(self.offset);
        match message {
            LogMessage::Listening(url) => self.bars.print_line(&format!("listening on {url}")),
            LogMessage::Note(text) => {
                self.bars.print_line(&format!("{time} {}", replace_hidden(&self.names.insert_names(&text))))
            }
            LogMessage::Problem(text) => {
                self.names.insert_names(&text).lines().try_for_each(|line| {
                    self.bars.lines.println(paint_red(&format!("{time} {}", replace_hidden(line))))
                })
            }
            LogMessage::Event(who, event) => {
                let bar = self.bars.machine_bar(&who);
                let total =
                    event.progress.and_then(|progress| progress.total_bytes.map(|total| (progress.bytes, total)));
                bar.set_style(bar_style(total.is_some()));
                let (bytes, total) = total.unwrap_or((0, 1));
                bar.set_length(total);
                bar.set_position(bytes);
                bar.set_message(escape_line(&event_line(&event)).into_owned());
                Ok(())
            }
            LogMessage::Report(who, report) => {
                let bar = self.bars.machine_bar(&who);
                bar.set_style(bar_style(false));
                let lines = report_lines(&report);
                let first = lines.first().map(String::as_str).unwrap_or_default();
                bar.set_message(escape_line(&format!("{time}  {first}")).into_owned());
                lines.iter().try_for_each(|line| self.bars.print_line(&format!("{time} {who}  {line}")))
            }
            LogMessage::Reinstall(who, text) => self.bars.print_line(&format!("{time} {who}  reinstall {text}")),
            LogMessage::Answered(_) => Ok(()),
        }
    }

    fn end(&mut self) {
        self.bars.end();
    }
}

fn bar_style(with_bar: bool) -> ProgressStyle {
    let template = if with_bar { "{prefix:32} {bar:16} {wide_msg}" } else { "{prefix:32} {wide_msg}" };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Colors a line red, for a terminal.
fn paint_red(line: &str) -> String {
    render_styles(&TextStyle::Red.paint_text(line))
}

fn format_clock(offset: UtcOffset) -> String {
    let now = OffsetDateTime::now_utc().to_offset(offset);
    now.format(format_description!("[hour]:[minute]:[second]")).unwrap_or_default()
}

/// Formats an event, such as `Installing  image.burn  120 MB of 207 MB, 31.0 MB/s, 3 s left`.
fn event_line(event: &ProgressEvent) -> String {
    let mut parts = vec![event.event.to_string()];
    parts.extend(event.stage.as_deref().map(replace_hidden));
    match &event.progress {
        Some(progress) => parts.push(progress.to_string()),
        None => parts.extend(Some(replace_hidden(&event.message)).filter(|text| !text.is_empty())),
    }
    parts.join("  ")
}

/// Formats the result of an installation, the durations of its stages, and the erased disks.
fn report_lines(report: &InstallReport) -> Vec<String> {
    let step = report.step.as_deref().map(|step| format!(" at {}", replace_hidden(step))).unwrap_or_default();
    let head = if report.success { "installed".to_owned() } else { format!("FAILED{step}") };
    let mut message = report.reason().lines().map(replace_hidden);
    let mut lines = vec![format!("{head}: {}", message.next().unwrap_or_default())];
    lines.extend(message.map(|line| format!("    {line}")));
    if !report.timings.is_empty() {
        lines.extend(
            StageTime::format_table(&report.timings).lines().map(|line| format!("    {}", replace_hidden(line))),
        );
    }
    lines.extend(report.erased.iter().map(|disk| {
        let ErasedDisk { device, serial, proof, seconds, .. } = disk;
        replace_hidden(&format!(
            "    {device} {serial} erased in {duration}: {proof}",
            duration = format::format_seconds(*seconds)
        ))
    }));
    lines.extend(report.burn.as_ref().map(|burn| replace_hidden(&format!("    image: {burn}"))));
    lines.extend(
        report
            .peak_rss_bytes
            .map(|bytes| format!("    peak memory of the agent: {memory}", memory = format::format_bytes(bytes))),
    );
    lines
}
