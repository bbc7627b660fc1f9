//! Output formats of the log: JSON, plain lines, or redrawn lines on a terminal.

use super::bars::Bars;
use super::{Answered, Line, Said, Who};
use crate::control::wire::Report;
use crate::facts::{Erased, Event, StageTime};
use crate::serve::state::now;
use crate::text::terminal::{Style, escape_json, escape_line, styled};
use crate::text::{self, clean, limits};
use indicatif::ProgressStyle;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::Write;
use std::time::{Duration, Instant};
use time::macros::format_description;
use time::{OffsetDateTime, UtcOffset};

/// Minimum interval between plain lines of progress of a machine.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// Number of machines whose last progress is remembered, unless more machines are progressing concurrently.
const PROGRESSING: usize = 4096;

pub trait Show: Send {
    fn show(&mut self, line: Line) -> std::io::Result<()>;
    fn end(&mut self) {}
}

pub struct Json<W> {
    pub out: W,
}

impl<W: Write + Send> Show for Json<W> {
    fn show(&mut self, Line { request, said }: Line) -> std::io::Result<()> {
        let mut value = match said {
            Said::Listening(url) => json!({ "listening": url }),
            Said::Note(text) => json!({ "time": now(), "note": text }),
            Said::Problem(text) => json!({ "time": now(), "problem": text }),
            Said::Event(Who { machine, name, from }, event) => {
                with_event(json!({ "time": now(), "machine": machine, "name": name, "from": from }), &event)
            }
            Said::Report(Who { machine, name, from }, report) => {
                json!({ "time": now(), "machine": machine, "name": name, "from": from, "report": report })
            }
            Said::Reinstall(Who { machine, name, from }, text) => {
                json!({ "time": now(), "machine": machine, "name": name, "from": from, "reinstall": text })
            }
            Said::Answered(Answered { from, method, path, status, took }) => {
                let (method, path, seconds) = (method.as_str(), limits::line(&path), took.as_secs_f64());
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

fn with_event(mut line: Value, event: &Event) -> Value {
    if let (Some(line), Ok(Value::Object(event))) = (line.as_object_mut(), serde_json::to_value(event)) {
        line.extend(event);
    }
    line
}

pub struct Plain<W> {
    pub out: W,
    pub offset: UtcOffset,
    pub last_progress: HashMap<String, Instant>,
}

impl<W: Write + Send> Show for Plain<W> {
    fn show(&mut self, Line { said, .. }: Line) -> std::io::Result<()> {
        let time = clock(self.offset);
        let mut write = |line: &str| writeln!(self.out, "{}", escape_line(line));
        match said {
            Said::Listening(url) => write(&format!("listening on {url}"))?,
            Said::Note(text) => write(&format!("{time} {text}"))?,
            Said::Problem(text) => {
                text.lines().try_for_each(|line| write(&format!("{time} {}", clean(line))))?;
            }
            Said::Event(who, event) => {
                if event.progress.is_some() {
                    let last = self.last_progress.get(&who.machine);
                    if last.is_some_and(|last| last.elapsed() < PROGRESS_EVERY) {
                        return Ok(());
                    }
                    if self.last_progress.len() >= PROGRESSING {
                        self.last_progress.retain(|_, last| last.elapsed() < PROGRESS_EVERY);
                    }
                    self.last_progress.insert(who.machine.clone(), Instant::now());
                }
                write(&format!("{time} {who}  {}", event_line(&event)))?;
            }
            Said::Report(who, report) => {
                self.last_progress.remove(&who.machine);
                for line in report_lines(&report) {
                    write(&format!("{time} {who}  {line}"))?;
                }
            }
            Said::Reinstall(who, text) => write(&format!("{time} {who}  reinstall {text}"))?,
            Said::Answered(_) => {}
        }
        self.out.flush()
    }
}

pub struct Terminal {
    pub bars: Bars,
    pub offset: UtcOffset,
}

impl Show for Terminal {
    fn show(&mut self, Line { said, .. }: Line) -> std::io::Result<()> {
        let time = clock(self.offset);
        match said {
            Said::Listening(url) => self.bars.println(&format!("listening on {url}")),
            Said::Note(text) => self.bars.println(&format!("{time} {}", clean(&text))),
            Said::Problem(text) => {
                text.lines().try_for_each(|line| self.bars.lines.println(red(&format!("{time} {}", clean(line)))))
            }
            Said::Event(who, event) => {
                let bar = self.bars.bar(&who);
                let total =
                    event.progress.and_then(|progress| progress.total_bytes.map(|total| (progress.bytes, total)));
                bar.set_style(style(total.is_some()));
                let (bytes, total) = total.unwrap_or((0, 1));
                bar.set_length(total);
                bar.set_position(bytes);
                bar.set_message(escape_line(&event_line(&event)).into_owned());
                Ok(())
            }
            Said::Report(who, report) => {
                let bar = self.bars.bar(&who);
                bar.set_style(style(false));
                let lines = report_lines(&report);
                let first = lines.first().map(String::as_str).unwrap_or_default();
                bar.set_message(escape_line(&format!("{time}  {first}")).into_owned());
                lines.iter().try_for_each(|line| self.bars.println(&format!("{time} {who}  {line}")))
            }
            Said::Reinstall(who, text) => self.bars.println(&format!("{time} {who}  reinstall {text}")),
            Said::Answered(_) => Ok(()),
        }
    }

    fn end(&mut self) {
        self.bars.end();
    }
}

fn style(with_bar: bool) -> ProgressStyle {
    let template = if with_bar { "{prefix:32} {bar:16} {wide_msg}" } else { "{prefix:32} {wide_msg}" };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Colours a line red, for a terminal.
fn red(line: &str) -> String {
    styled(&Style::Red.paint(line))
}

fn clock(offset: UtcOffset) -> String {
    let now = OffsetDateTime::now_utc().to_offset(offset);
    now.format(format_description!("[hour]:[minute]:[second]")).unwrap_or_default()
}

/// Formats an event, such as `Installing  image.burn  120 MB of 207 MB, 31.0 MB/s, 3 s left`.
fn event_line(event: &Event) -> String {
    let mut parts = vec![event.event.to_string()];
    parts.extend(event.stage.as_deref().map(clean));
    match &event.progress {
        Some(progress) => parts.push(progress.to_string()),
        None => parts.extend(Some(clean(&event.message)).filter(|text| !text.is_empty())),
    }
    parts.join("  ")
}

/// Formats the result of an installation, and the durations by step.
fn report_lines(report: &Report) -> Vec<String> {
    let step = report.step.as_deref().map(|step| format!(" at {}", clean(step))).unwrap_or_default();
    let head = if report.success { "installed".to_owned() } else { format!("FAILED{step}") };
    let mut message = report.message.lines().map(clean);
    let mut lines = vec![format!("{head}: {}", message.next().unwrap_or_default())];
    lines.extend(message.map(|line| format!("    {line}")));
    if !report.timings.is_empty() {
        lines.extend(StageTime::table(&report.timings).lines().map(|line| format!("    {}", clean(line))));
    }
    lines.extend(report.erased.iter().map(|disk| {
        let Erased { device, serial, proof, seconds, .. } = disk;
        clean(&format!("    {device} {serial} erased in {}: {proof}", text::seconds(*seconds)))
    }));
    lines.extend(report.burn.as_ref().map(|burn| clean(&format!("    image: {burn}"))));
    lines.extend(report.peak_rss_bytes.map(|bytes| format!("    peak memory of the agent: {}", text::bytes(bytes))));
    lines
}
