//! Driver of the fuzz tests. A monitored thread first checks the inputs that failed in previous runs, and then
//! generated inputs.

use fastrand::Rng;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, thread};

pub struct Fuzz {
    /// Directory with the inputs that failed in previous runs. Each run checks these inputs first.
    pub folder: PathBuf,
    /// Number of generated inputs if DROPHAMMER_FUZZ_SECONDS is not set. Such a run always generates the same inputs.
    pub few: u64,
    /// Time after which an input counts as hanging, long enough for a busy host.
    pub hangs: Duration,
    pub corpus: Vec<Vec<u8>>,
    /// Function that generates an input from the corpus.
    pub mutated: fn(&[Vec<u8>], &mut Rng) -> Vec<u8>,
    /// Function that checks an input. It returns whether the input was valid, and panics if a requirement is violated.
    pub check_input: fn(&[u8], &mut Rng) -> bool,
}

type Current = Arc<Mutex<(Vec<u8>, Instant)>>;

/// Returns the path of `name` below `testdata/fuzz`.
pub fn folder(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/fuzz").join(name)
}

impl Fuzz {
    /// Runs the test. `DROPHAMMER_FUZZ_SECONDS` sets the duration of the run, and `DROPHAMMER_FUZZ_SEED` repeats a
    /// previous run (scripts/fuzz). Returns whether the duration was set.
    pub fn run(self) -> bool {
        let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
        let seconds = number("DROPHAMMER_FUZZ_SECONDS");
        let any = || if seconds.is_some() { fastrand::u64(..) } else { 1 };
        let seed = number("DROPHAMMER_FUZZ_SEED").unwrap_or_else(any);
        println!("DROPHAMMER_FUZZ_SEED={seed}");
        let (folder, hangs) = (self.folder.clone(), self.hangs);
        let current: Current = Arc::new(Mutex::new((Vec::new(), Instant::now())));
        let (end, ended) = mpsc::channel::<()>();
        let worker = {
            let current = current.clone();
            thread::spawn(move || {
                let _end = end;
                self.all(seed, seconds.map(Duration::from_secs), &current)
            })
        };
        while ended.recv_timeout(Duration::from_millis(250)) == Err(RecvTimeoutError::Timeout) {
            let (input, began) = &*current.lock().unwrap_or_else(PoisonError::into_inner);
            assert!(
                began.elapsed() < hangs,
                "the tested function does not return for the input in {}",
                keep(&folder, input).display()
            );
        }
        match worker.join() {
            Ok((inputs, good)) => println!("{inputs} inputs, of which {good} were accepted completely"),
            Err(panic) => std::panic::resume_unwind(panic),
        }
        seconds.is_some()
    }

    /// Checks all inputs. Returns the number of inputs, and the number of valid inputs.
    fn all(&self, seed: u64, time: Option<Duration>, current: &Current) -> (u64, u64) {
        let mut random = Rng::with_seed(seed);
        let began = Instant::now();
        let goes_on = |number| time.map_or(number < self.few, |time| began.elapsed() < time);
        let (mut number, mut good) = (0, 0);
        let mut kept = kept(&self.folder).into_iter();
        while let Some(input) =
            kept.next().or_else(|| goes_on(number).then(|| (self.mutated)(&self.corpus, &mut random)))
        {
            *current.lock().unwrap() = (input.clone(), Instant::now());
            // The random decisions of the check are derived from the input, so that a stored input leads to the same
            // decisions in the next run.
            let mut own = Rng::with_seed(hash(&input));
            let judged = catch_unwind(AssertUnwindSafe(|| (self.check_input)(&input, &mut own)));
            good += u64::from(judged.unwrap_or_else(|_| panic!("see above: {}", keep(&self.folder, &input).display())));
            number += 1;
        }
        (number, good)
    }
}

fn kept(folder: &Path) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

fn keep(folder: &Path, input: &[u8]) -> PathBuf {
    fs::create_dir_all(folder).unwrap();
    let file = folder.join(format!("{:016x}", hash(input)));
    fs::write(&file, input).unwrap();
    file
}

/// Returns the FNV-1a hash of the bytes.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[test]
fn failing_input_is_stored_and_replayed_first() {
    let directory = tempfile::tempdir().unwrap();
    let fuzz = |few: u64, check_input: fn(&[u8], &mut Rng) -> bool| Fuzz {
        folder: directory.path().join("kept"),
        few,
        hangs: Duration::from_secs(600),
        corpus: vec![b"corpus".to_vec()],
        mutated: |corpus, random| [&corpus[0][..], &[random.u8(..)]].concat(),
        check_input,
    };
    let words = |fuzz: Fuzz| *catch_unwind(AssertUnwindSafe(|| fuzz.run())).unwrap_err().downcast::<String>().unwrap();
    fuzz(50, |_, _| true).run();
    assert!(kept(&directory.path().join("kept")).is_empty());
    let first = words(fuzz(50, |input, random| panic!("{input:?} {}", random.u64(..))));
    // In the second run, the stored input fails first. Therefore no input is generated, and the stored input is not
    // stored again.
    let again = words(fuzz(0, |input, _| panic!("{input:?}")));
    assert_eq!((first, kept(&directory.path().join("kept")).len()), (again, 1));
}
