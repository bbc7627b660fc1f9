//! The witness: every write of a machine's disks while the agent runs, held against what the plan lets each step write.
//!
//! QEMU logs the writes (`witness_log`). A thread counts them whenever the console shows another step, and in the end each is
//! judged by the steps that ran when it came (`witness_judge`).

use crate::host::{Context, Result, write};
use crate::machine::{Boot, Chassis};
use crate::plugs;
use crate::scenario::Disk;
use crate::witness_judge::{Known, Law, Sample, State};
use crate::witness_log;
use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The console is read so often.
const LOOK: Duration = Duration::from_millis(20);

/// Watches a machine from the moment it is switched on.
pub struct Witness {
    /// Those that are logged.
    disks: Vec<(Known, PathBuf)>,
    all: Vec<Known>,
    named_as_listed: bool,
    /// Nobody but the agent's ramdisk may have written.
    from_the_start: bool,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Vec<Sample>>>>,
}

impl Witness {
    /// Makes the logs, which QEMU opens next, and starts to watch. None where the agent does not run.
    ///
    /// # Errors
    /// A file cannot be made.
    pub fn start(chassis: &Chassis, label: &str, boot: &Boot, console: &Path) -> Result<Option<Witness>> {
        let from_the_start = match boot {
            Boot::Network(_) | Boot::Direct { network: true, .. } => true,
            Boot::DiskThen(_) => false,
            Boot::Disk | Boot::DiskWithout(_) | Boot::Direct { .. } => return Ok(None),
        };
        let known = |disk: &Disk| Known { name: disk.name.clone(), serial: plugs::shown_serial(chassis, disk) };
        let plugged = chassis.disks.iter().filter(|disk| !chassis.absent.contains(&disk.name));
        let logged = plugged.clone().filter(|disk| is_logged(chassis, disk));
        let disks: Vec<_> =
            logged.map(|disk| (known(disk), chassis.folder.join(format!("{label}-{}.writes", disk.name)))).collect();
        for (_, log) in &disks {
            write(log, "")?;
        }
        let ended = Arc::new(AtomicBool::new(false));
        let logs = disks.iter().map(|(_, log)| log.clone()).collect();
        let console = Console {
            file: File::open(console).context(console.display())?,
            rest: Vec::new(),
            state: State::default(),
        };
        let stop = Arc::clone(&ended);
        let thread = std::thread::spawn(move || watch(console, logs, &stop));
        Ok(Some(Witness {
            disks,
            all: plugged.map(|disk| known(disk)).collect(),
            named_as_listed: chassis.is_as_listed(),
            from_the_start,
            ended,
            thread: Some(thread),
        }))
    }

    /// Where the writes of that disk are logged.
    pub fn log(&self, disk: &str) -> Option<&Path> {
        self.disks.iter().find(|(known, _)| known.name == disk).map(|(_, log)| log.as_path())
    }

    /// Ends the watch, and returns what was written so far and should not have been. `extents` are those that the agent
    /// has announced, if it came so far; it has `acted` if it did that or reported anything. Logs that say nothing are
    /// removed.
    ///
    /// # Errors
    /// A log cannot be read.
    pub fn testify(&mut self, extents: Option<&Value>, acted: bool) -> Result<Vec<String>> {
        self.ended.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return Ok(Vec::new()) };
        let samples = thread.join().map_err(|_| "the witness panicked")??;
        let law = Law::new(extents, &self.all, self.named_as_listed);
        let mut broken: Vec<String> = law.is_blind(acted, &samples).into_iter().collect();
        for (number, (disk, log)) in self.disks.iter().enumerate() {
            let writes = witness_log::writes(log)?;
            broken.extend(law.broken_by(number, disk, &writes, &samples, self.from_the_start));
        }
        if broken.is_empty() && std::env::var_os("DROPHAMMER_KEEP").is_none() {
            self.disks.iter().try_for_each(|(_, log)| std::fs::remove_file(log).context(log.display()))?;
        }
        Ok(broken)
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread only reads, and nobody wants what it has seen any more.
            let _ = thread.join();
        }
    }
}

/// Nobody can write a write-protected disk, and two paths would need two logs for one disk.
fn is_logged(chassis: &Chassis, disk: &Disk) -> bool {
    !disk.read_only && !plugs::has_two_paths(chassis, disk)
}

/// The end of the console, as it grows.
struct Console {
    file: File,
    /// A line that has not ended yet.
    rest: Vec<u8>,
    state: State,
}

impl Console {
    fn look(&mut self) -> Result<State> {
        self.file.read_to_end(&mut self.rest).context("the console")?;
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            self.state.hear(String::from_utf8_lossy(&line).trim_end());
        }
        Ok(self.state.clone())
    }
}

/// A sample each time the console shows something new, and one at the end.
fn watch(mut console: Console, logs: Vec<PathBuf>, stop: &AtomicBool) -> Result<Vec<Sample>> {
    let mut samples: Vec<Sample> = Vec::new();
    loop {
        let is_last = stop.load(Ordering::Relaxed);
        let before = console.look()?;
        let counts = logs.iter().map(|log| witness_log::count(log)).collect::<Result<_>>()?;
        let sample = Sample { before, counts, after: console.look()? };
        let is_new = samples.last().is_none_or(|last| (&last.before, &last.after) != (&sample.before, &sample.after));
        if is_new || is_last {
            samples.push(sample);
        }
        if is_last {
            return Ok(samples);
        }
        std::thread::sleep(LOOK);
    }
}

/// A console that grows and a log that grows with it.
pub fn self_test() {
    let folder = witness_log::test_folder("witness");
    let (console, log) = (folder.join("console"), folder.join("disk.writes"));
    write(&console, "Preparing           drophammer 0.1.0\r\nInstalling          stor").expect("written");
    witness_log::write_log(&log, 1, &[(0, 8, 0)]);
    let file = File::open(&console).expect("a file");
    let mut seen = Console { file, rest: Vec::new(), state: State::default() };
    assert_eq!(seen.look().map(|state| (state.started, state.step)), Ok((true, None)));
    let mut more = File::options().append(true).open(&console).expect("a file");
    std::io::Write::write_all(&mut more, b"age.lock\r\n").expect("written");
    assert_eq!(seen.look().map(|state| state.step), Ok(Some("storage.lock".to_owned())));
    let samples = watch(seen, vec![log.clone()], &AtomicBool::new(true)).expect("samples");
    assert_eq!(samples.iter().map(|sample| sample.counts.clone()).collect::<Vec<_>>(), [[1]]);
    let disk = Known { name: "sda".to_owned(), serial: "A".to_owned() };
    let mut witness = Witness {
        disks: vec![(disk.clone(), log.clone())],
        all: vec![disk],
        named_as_listed: true,
        from_the_start: true,
        ended: Arc::default(),
        thread: Some(std::thread::spawn(|| Ok(samples))),
    };
    let broken = witness.testify(None, true).expect("a testimony");
    assert!(broken.len() == 1 && broken[0].contains("4096 bytes of disk sda were written at sector 0"), "{broken:?}");
    assert!(log.exists());
    std::fs::remove_dir_all(&folder).expect("removed");
}
