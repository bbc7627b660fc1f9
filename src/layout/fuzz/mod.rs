//! Fuzzing: documents and constraints that nobody would write, made from those in `testdata`.
//!
//! An input that breaks something is made shorter and kept in `testdata/fuzz`, which every run begins with.

mod mutate;

use super::constraints::{Accepted, Version, Written, tests::kept};
use super::set::Set;
use super::{Layout, canonical_yaml, read_all, read_json, read_yaml, respelt, validate};
use crate::desk::check::Checked;
use crate::problem::{Problem, lines};
use mutate::{Mutator, Random};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// Inputs of a run without DROPHAMMER_FUZZ_SECONDS, always the same ones.
const FEW: u64 = 600;
/// More processor time for one input is no matter of a slow host: without optimisation, the largest ones take a second on a
/// usual one.
const SLOW: Duration = Duration::from_secs(60);
/// An input that takes so long never comes to an end, however busy the host is.
const HANGS: Duration = Duration::from_secs(240);

/// `DROPHAMMER_FUZZ_SECONDS` says how long, `DROPHAMMER_FUZZ_SEED` repeats a run (scripts/fuzz).
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
        assert!(began.elapsed() < HANGS, "input {number} hangs: {}", keep(input).display());
    }
    let (inputs, accepted) = worker.join().unwrap();
    println!("{inputs} documents, {accepted} of them accepted");
}

/// Checks input after input; gives their number, and how many documents were accepted.
fn run(seed: u64, time: Option<Duration>, current: &Mutex<(u64, String, Instant)>) -> (u64, u64) {
    let corpus = corpus();
    let mut random = Random(seed);
    let began = Instant::now();
    let goes_on = |number| time.map_or(number < FEW, |time| began.elapsed() < time);
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/fuzz");
    let mut inputs = texts(&fuzz).into_iter();
    let (mut number, mut accepted) = (0, 0);
    while goes_on(number) {
        let input = inputs.next().unwrap_or_else(|| Mutator { random: &mut random, corpus: &corpus }.document());
        *current.lock().unwrap() = (number, input.clone(), Instant::now());
        accepted += u64::from(judge(&input));
        check_constraint(&Mutator { random: &mut random, corpus: &corpus }.constraint());
        if number % 16 == 0 {
            check_command(&Mutator { random: &mut random, corpus: &corpus }.bytes(&input));
        }
        number += 1;
    }
    (number, accepted)
}

/// Every document in `testdata/layouts`; the good ones several times, or most of what comes of it would be bad.
fn corpus() -> Vec<String> {
    let layouts = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/layouts");
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

/// Was the input accepted? Fails with it, made as short as it can be, when it panics or takes too long.
fn judge(input: &str) -> bool {
    let began = processor_time();
    let Ok(accepted) = catch_unwind(|| check_document(input)) else {
        panic!("a panic, see above: {}", keep(&shortened(input)).display());
    };
    let took = processor_time() - began;
    assert!(took < SLOW, "it takes {took:?}: {}", keep(input).display());
    accepted
}

/// Without the lines that the panic does not need.
fn shortened(input: &str) -> String {
    let mut lines: Vec<&str> = input.lines().collect();
    let began = Instant::now();
    let mut at = lines.len();
    while at > 0 && began.elapsed() < HANGS / 2 {
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

/// Of this thread: what the machine does besides does not count.
fn processor_time() -> Duration {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(statistics.split(' ').next().unwrap().parse().unwrap())
}

fn keep(input: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/fuzz");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join(format!("{}.yaml", uuid::Uuid::new_v4().simple()));
    std::fs::write(&file, input).unwrap();
    file
}

/// Was it accepted?
fn check_document(text: &str) -> bool {
    let read = read_yaml(text);
    match &read {
        Ok(parsed) => {
            notes_are_fit_to_print(&parsed.notes);
            notes_are_fit_to_print(&parsed.advice());
            check_layout(&parsed.layout);
            // What comes is the same layout, or nothing.
            let _ = respelt(text, &[parsed]);
        }
        Err(problems) => {
            assert!(!problems.is_empty(), "refused without a reason");
            notes_are_fit_to_print(problems);
        }
    }
    assert!(!read_all(text).is_empty(), "nothing is said of it");
    if let Ok(value) = serde_json::from_str(text) {
        let _ = read_json(&value);
    }
    read.is_ok()
}

fn notes_are_fit_to_print(problems: &[Problem]) {
    for problem in problems {
        let text = problem.to_string();
        assert!(!problem.message.is_empty() && text.len() < 10_000 && !text.contains(char::is_control), "{text:?}");
    }
}

/// What holds for a layout that was accepted.
fn check_layout(layout: &Layout) {
    assert_eq!(validate(layout), [], "accepted though it is not valid");
    let canonical = canonical_yaml(layout);
    let again = read_yaml(&canonical).unwrap_or_else(|problems| panic!("{}\n{canonical}", lines(&problems)));
    assert_eq!((&again.layout, &again.notes[..]), (layout, &[][..]), "{canonical}");
    let wire = serde_json::to_value(layout).unwrap();
    let again = read_json(&wire).unwrap_or_else(|problems| panic!("{}\n{wire}", lines(&problems)));
    assert_eq!(&again.layout, layout);
    let other = Layout { id: format!("{}-2", layout.id), ..layout.clone() };
    let set = Set::new([(Path::new("1"), layout), (Path::new("2"), &other)]);
    for collision in set.collisions() {
        assert!(set.select(&collision.size, &collision.example).is_err(), "{collision}");
    }
}

/// The set of versions and the rules are two ways to say the same.
fn check_constraint(text: &str) {
    let accepted = Accepted::by(text);
    let (operator, version) = text.split_once(' ').unwrap_or(("=", text));
    let (Ok(accepted), Some(written)) = (&accepted, Written::parse(version)) else {
        assert!(accepted.is_err_and(|why| !why.is_empty()) || text.trim() == "*", "{text:?}");
        return;
    };
    let Version { major, minor, patch } = written.version;
    let near = |number: u64| [0, number.wrapping_sub(1), number, number.wrapping_add(1), u64::MAX];
    for major in near(major) {
        for minor in near(minor) {
            for patch in near(patch) {
                let version = Version::new(major, minor, patch);
                assert_eq!(accepted.contains(version), kept(operator, &written, version), "{text:?} {version}");
            }
        }
    }
    let common = accepted.common(accepted);
    assert!(common.is_none_or(|version| accepted.contains(version)), "{text:?} {common:?}");
}

/// What `drophammer check` makes of such a file beside a good one.
fn check_command(bytes: &[u8]) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.yaml"), include_str!("../../../testdata/layouts/default.yaml")).unwrap();
    std::fs::write(dir.path().join("b.json"), bytes).unwrap();
    std::fs::write(dir.path().join("c.yaml"), bytes).unwrap();
    let said = Checked::read(&[dir.path().to_owned()]).map(|checked| checked.to_string());
    let said = said.unwrap_or_else(|error| panic!("{error}: {bytes:?}"));
    assert!(said.contains("a.yaml: good") && said.lines().last().unwrap().contains(" layouts, "), "{said}");
}
