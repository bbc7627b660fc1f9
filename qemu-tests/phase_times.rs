//! Measurement of times in scenarios: the phases of each machine, derived from its console, and the time of the harness
//! itself. If `DROPHAMMER_TIMES=1` is set, the table is printed at the end.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval at which console files are read while times are measured.
const CONSOLE_INTERVAL: Duration = Duration::from_millis(20);

/// Phases of a boot in their order, each with the text that ends it. If this text does not appear, the phase is
/// skipped, and its time is part of the next phase.
pub const NETWORK: &[(&str, &str)] = &[
    ("firmware", "iPXE"),
    ("iPXE, loading kernel and ramdisk", "Linux version"),
    ("kernel of the ramdisk", "Run /init as init process"),
    ("ramdisk: hardware", "drophammer: hardware is up"),
    ("ramdisk: network", "drophammer: ready after"),
    ("agent: registration, inventory, plan", "report.final"),
    ("agent: installs (by stage below), kexec", "Linux version"),
    ("kernel of the installed system", "Run /init as init process"),
    ("installed system until it is up", "drophammer-facts: tiny"),
];
pub const DISK: &[(&str, &str)] = &[
    ("disk boot: firmware, GRUB", "Linux version"),
    ("disk boot: kernel", "Run /init as init process"),
    ("disk boot: system until it is up", "drophammer-facts: tiny"),
];
pub const DIRECT: &[(&str, &str)] = &[
    ("inspection: until the kernel runs", "Linux version"),
    ("inspection: kernel", "Run /init as init process"),
    ("inspection: ramdisk", "drophammer-facts: inspect"),
];

/// Total seconds and number of occurrences, by phase.
static PARTS: Mutex<BTreeMap<String, (f64, u32)>> = Mutex::new(BTreeMap::new());

fn is_wanted() -> bool {
    std::env::var_os("DROPHAMMER_TIMES").is_some()
}

/// Adds the duration of a phase.
pub fn record_duration(part: &str, seconds: f64) {
    if is_wanted() {
        let mut parts = PARTS.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = parts.entry(part.to_owned()).or_default();
        entry.0 += seconds;
        entry.1 += 1;
    }
}

/// Runs a function, and adds its duration to a phase.
pub fn measure_phase<T>(part: &str, work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = work();
    record_duration(part, began.elapsed().as_secs_f64());
    result
}

/// Adds the stages of an installation from its report.
pub fn record_stages(report: &serde_json::Value) {
    for time in report["timings"].as_array().into_iter().flatten() {
        if let (Some(step), Some(seconds)) = (time["step"].as_str(), time["seconds"].as_f64()) {
            record_duration(&format!("stage {step}"), seconds);
        }
    }
}

/// Prints all phases, longest first.
pub fn print_phases() {
    if !is_wanted() {
        return;
    }
    let parts = PARTS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut rows: Vec<_> = parts.iter().collect();
    rows.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
    println!("{:48} {:>8} {:>6} {:>8}", "phase", "seconds", "times", "each");
    for (part, (seconds, times)) in rows {
        println!("{part:48} {seconds:8.1} {times:6} {:8.2}", seconds / f64::from(*times));
    }
}

/// Watch of a console. It ends when this value is dropped.
pub struct ConsoleWatch {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Starts to record the times at which the console shows the ends of phases. Returns `None` if times are not measured.
pub fn watch_console(console: &Path, parts: &'static [(&'static str, &'static str)]) -> Option<ConsoleWatch> {
    if !is_wanted() {
        return None;
    }
    let ended = Arc::new(AtomicBool::new(false));
    let (console, stop) = (console.to_owned(), Arc::clone(&ended));
    let thread = std::thread::spawn(move || follow_console(console, parts, &stop));
    Some(ConsoleWatch { ended, thread: Some(thread) })
}

impl Drop for ConsoleWatch {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of this thread is ignored, because the thread only reads.
            let _ = thread.join();
        }
    }
}

fn follow_console(console: PathBuf, parts: &[(&str, &str)], stop: &AtomicBool) {
    let Ok(mut file) = File::open(console) else { return };
    let (mut text, mut parts, mut began) = (String::new(), parts, Instant::now());
    let mut bytes = Vec::new();
    while !parts.is_empty() && !stop.load(Ordering::Relaxed) {
        bytes.clear();
        if file.read_to_end(&mut bytes).is_err() {
            return;
        }
        text.push_str(&String::from_utf8_lossy(&bytes));
        while let Some((index, end)) = find_phase_end(parts, &text) {
            record_duration(parts[index].0, began.elapsed().as_secs_f64());
            began = Instant::now();
            text.drain(..end);
            parts = &parts[index + 1..];
        }
        std::thread::sleep(CONSOLE_INTERVAL);
    }
}

/// Returns the offset after the first text that ends a phase, and the index of this phase.
fn find_phase_end(parts: &[(&str, &str)], text: &str) -> Option<(usize, usize)> {
    let seen = parts.iter().enumerate().filter_map(|(index, (_, end))| Some((text.find(end)? + end.len(), index)));
    seen.min().map(|(end, index)| (index, end))
}

/// Tests that phases are recognized in order, and that a missing phase is skipped.
pub fn self_test() {
    let parts = [("a", "one"), ("b", "two"), ("c", "one")];
    assert_eq!(find_phase_end(&parts, "x one two"), Some((0, 5)));
    assert_eq!(find_phase_end(&parts[1..], " two one"), Some((0, 4)));
    assert_eq!(find_phase_end(&parts[1..], "one"), Some((1, 3)));
    assert_eq!(find_phase_end(&parts, "nothing"), None);
}
