//! Fuzz tests with mutated layouts and version constraints of `testdata`.
//!
//! A failing input is minimized and stored in `testdata/fuzz`. Every run starts with the inputs that are stored there.

mod mutator;

use super::image_version_constraints::{ImageVersion, VersionPattern, VersionSet, tests::kept};
use super::layout_set::LayoutSet;
use super::{Layout, canonical_yaml, read_all_layouts, read_json, read_yaml, respell_canonically, validate_layout};
use common::diagnostic::{Diagnostic, join_problems};
use mutator::{Mutator, Random};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// Number of inputs if DROPHAMMER_FUZZ_SECONDS is not set. In this case, the test always uses the same inputs.
const DEFAULT_INPUT_COUNT: u64 = 600;
/// Maximum CPU time for an input. In a build without optimization, the largest inputs need one second on a usual host.
const MAXIMUM_CPU_TIME: Duration = Duration::from_secs(60);
/// Elapsed time after which an input is considered to hang, even if the host is busy.
const HANG_TIMEOUT: Duration = Duration::from_secs(240);

/// `DROPHAMMER_FUZZ_SECONDS` sets the duration of a run; `DROPHAMMER_FUZZ_SEED` repeats an earlier run (scripts/fuzz).
#[test]
fn fuzz_layouts_and_constraints() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seconds = number("DROPHAMMER_FUZZ_SECONDS");
    let now = || std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = number("DROPHAMMER_FUZZ_SEED").unwrap_or_else(|| if seconds.is_some() { now() } else { 1 });
    println!("DROPHAMMER_FUZZ_SEED={seed}");
    let current = Arc::new(Mutex::new((0, String::new(), Instant::now())));
    let (end, ended) = mpsc::channel();
    let worker = {
        let current = current.clone();
        std::thread::spawn(move || {
            let counts = run(seed, seconds.map(Duration::from_secs), &current);
            let _ = end.send(());
            counts
        })
    };
    while ended.recv_timeout(Duration::from_millis(250)) == Err(mpsc::RecvTimeoutError::Timeout) {
        let (number, input, began) = &*current.lock().unwrap();
        assert!(began.elapsed() < HANG_TIMEOUT, "input {number} hangs: {}", keep(input).display());
    }
    let (inputs, accepted) = worker.join().unwrap();
    println!("{inputs} documents, {accepted} of them accepted");
}

/// Checks inputs and returns their number, and the number of accepted documents.
fn run(seed: u64, time: Option<Duration>, current: &Mutex<(u64, String, Instant)>) -> (u64, u64) {
    let corpus = corpus();
    let mut random = Random(seed);
    let began = Instant::now();
    let goes_on = |number| time.map_or(number < DEFAULT_INPUT_COUNT, |time| began.elapsed() < time);
    let fuzz = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/fuzz");
    let mut inputs = texts(&fuzz).into_iter();
    let (mut number, mut accepted) = (0, 0);
    while goes_on(number) {
        let input = inputs.next().unwrap_or_else(|| Mutator { random: &mut random, corpus: &corpus }.document());
        *current.lock().unwrap() = (number, input.clone(), Instant::now());
        accepted += u64::from(check_input(&input));
        check_constraint(&Mutator { random: &mut random, corpus: &corpus }.constraint());
        number += 1;
    }
    (number, accepted)
}

/// Returns all documents of `testdata/layouts`. Valid ones are repeated, because most of their mutations are invalid.
fn corpus() -> Vec<String> {
    let layouts = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/layouts");
    let good = ["", "good"].map(|folder| texts(&layouts.join(folder))).concat();
    let times = std::iter::repeat_n(good, 10).flatten();
    times.chain(texts(&layouts.join("bad"))).collect()
}

fn texts(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "yaml" || end == "json"));
    files.sort();
    files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect()
}

/// Returns whether the input is accepted. Fails with a minimized input if the parser panics or takes too long.
fn check_input(input: &str) -> bool {
    let began = processor_time();
    let Ok(accepted) = catch_unwind(|| check_document(input)) else {
        panic!("a panic, see above: {}", keep(&shortened(input)).display());
    };
    let took = processor_time() - began;
    assert!(took < MAXIMUM_CPU_TIME, "it takes {took:?}: {}", keep(input).display());
    accepted
}

/// Returns the input without the lines that are not needed to cause the panic.
fn shortened(input: &str) -> String {
    let mut lines: Vec<&str> = input.lines().collect();
    let began = Instant::now();
    let mut at = lines.len();
    while at > 0 && began.elapsed() < HANG_TIMEOUT / 2 {
        at -= 1;
        let line = lines.remove(at);
        if !panics(&lines.join("\n")) {
            lines.insert(at, line);
        }
    }
    let short = lines.join("\n");
    if panics(&short) { short } else { input.to_owned() }
}

fn panics(input: &str) -> bool {
    catch_unwind(|| check_document(input)).is_err()
}

/// Returns the CPU time that this thread has used.
fn processor_time() -> Duration {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(statistics.split(' ').next().unwrap().parse().unwrap())
}

fn keep(input: &str) -> PathBuf {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/fuzz");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join(format!("{}.yaml", uuid::Uuid::new_v4().simple()));
    std::fs::write(&file, input).unwrap();
    file
}

/// Checks a document, and returns whether it is accepted.
fn check_document(text: &str) -> bool {
    let read = read_yaml(text);
    match &read {
        Ok(parsed) => {
            notes_are_fit_to_print(&parsed.notes);
            notes_are_fit_to_print(&parsed.collect_advice());
            check_layout(&parsed.layout);
            // The result is not checked here, because `respell_canonically` itself checks that the new text describes
            // an equal layout.
            let _ = respell_canonically(text, &[parsed]);
        }
        Err(problems) => {
            assert!(!problems.is_empty(), "refused without a reason");
            notes_are_fit_to_print(problems);
        }
    }
    assert!(!read_all_layouts(text).is_empty(), "the parser returned neither a layout nor a problem");
    if let Ok(value) = serde_json::from_str(text) {
        let _ = read_json(&value);
    }
    read.is_ok()
}

fn notes_are_fit_to_print(problems: &[Diagnostic]) {
    for problem in problems {
        let text = problem.to_string();
        assert!(!problem.message.is_empty() && text.len() < 10_000 && !text.contains(char::is_control), "{text:?}");
    }
}

/// Asserts properties that every accepted layout must have.
fn check_layout(layout: &Layout) {
    assert_eq!(validate_layout(layout), [], "the parser accepted an invalid layout");
    let canonical = canonical_yaml(layout);
    let again = read_yaml(&canonical).unwrap_or_else(|problems| panic!("{}\n{canonical}", join_problems(&problems)));
    assert_eq!((&again.layout, &again.notes[..]), (layout, &[][..]), "{canonical}");
    let wire = serde_json::to_value(layout).unwrap();
    let again = read_json(&wire).unwrap_or_else(|problems| panic!("{}\n{wire}", join_problems(&problems)));
    assert_eq!(&again.layout, layout);
    let other = Layout { id: format!("{}-2", layout.id), ..layout.clone() };
    let set = LayoutSet::new([(Path::new("1"), layout), (Path::new("2"), &other)]);
    for collision in set.find_collisions() {
        assert!(set.select(&collision.size, &collision.example).is_err(), "{collision}");
    }
}

/// Asserts that the set of versions that a constraint accepts agrees with the rules of metal-api for single versions.
fn check_constraint(text: &str) {
    let accepted = VersionSet::from_constraint(text);
    let (operator, version) = text.split_once(' ').unwrap_or(("=", text));
    let (Ok(accepted), Some(written)) = (&accepted, VersionPattern::parse(version)) else {
        assert!(accepted.is_err_and(|why| !why.is_empty()) || text.trim() == "*", "{text:?}");
        return;
    };
    let ImageVersion { major, minor, patch } = written.version;
    let near = |number: u64| [0, number.wrapping_sub(1), number, number.wrapping_add(1), u64::MAX];
    for major in near(major) {
        for minor in near(minor) {
            for patch in near(patch) {
                let version = ImageVersion::new(major, minor, patch);
                assert_eq!(accepted.contains(version), kept(operator, &written, version), "{text:?} {version}");
            }
        }
    }
    let common = accepted.find_common(accepted);
    assert!(common.is_none_or(|version| accepted.contains(version)), "{text:?} {common:?}");
}
