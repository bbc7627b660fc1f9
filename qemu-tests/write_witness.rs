//! Witness of the writes to a machine's disks. All writes that occur while the agent is running are compared with the
//! extents that the plan permits for each stage.
//!
//! QEMU logs the writes (`write_log`). A thread reads the lengths of the logs whenever the console shows another stage.
//! At the end, each write is compared with the extents of the stages that may have made it (`write_attribution`).

use crate::host_tools::{Context, Result, write};
use crate::qemu_machine::{BootMethod, Chassis};
use crate::scenario::Disk;
use crate::write_attribution::{AgentState, ConsoleSample, DiskIdentity, WritePolicy};
use crate::{qemu_disks, write_log};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval at which the console is read.
const CONSOLE_INTERVAL: Duration = Duration::from_millis(20);

/// Witness of the writes of a machine since power-on.
pub struct WriteWitness {
    logs: Vec<PathLog>,
    all: Vec<DiskIdentity>,
    named_as_listed: bool,
    /// True if writes before the start of the agent are checked too, because only the agent's ramdisk may have made
    /// them.
    from_the_start: bool,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Vec<ConsoleSample>>>>,
}

/// Log of the writes through one path to a disk.
struct PathLog {
    /// Name of the path. If there is only one path, it is the name of the disk.
    path: String,
    disk: DiskIdentity,
    log: PathBuf,
}

impl WriteWitness {
    /// Creates the logs, which QEMU then opens, and starts the watch. Returns `None` for a boot without the agent.
    ///
    /// # Errors
    /// Fails if a file cannot be created.
    pub fn start(chassis: &Chassis, label: &str, boot: &BootMethod, console: &Path) -> Result<Option<WriteWitness>> {
        let from_the_start = match boot {
            BootMethod::Network(_) | BootMethod::Direct { network: true, .. } => true,
            BootMethod::DiskThen(_) => false,
            BootMethod::Disk | BootMethod::DiskWithout(_) | BootMethod::Direct { .. } => return Ok(None),
        };
        let plugged = chassis.disks.iter().filter(|disk| !chassis.absent.contains(&disk.name));
        // Write-protected disks need no log.
        let writable = plugged.clone().filter(|disk| !disk.read_only);
        let logged = writable.map(|disk| PathLog {
            path: disk.name.clone(),
            disk: identify_disk(chassis, disk),
            log: chassis.folder.join(format!("{label}-{}.writes", disk.name)),
        });
        let logged: Vec<PathLog> = logged.collect();
        let logs: Vec<PathBuf> = logged.iter().map(|logged| logged.log.clone()).collect();
        for log in &logs {
            write(log, "")?;
        }
        let mut all: Vec<DiskIdentity> = Vec::new();
        for disk in plugged.map(|disk| identify_disk(chassis, disk)) {
            if !all.contains(&disk) {
                all.push(disk);
            }
        }
        let ended = Arc::new(AtomicBool::new(false));
        let console = ConsoleReader {
            file: File::open(console).context(console.display())?,
            rest: Vec::new(),
            state: AgentState::default(),
        };
        let stop = Arc::clone(&ended);
        let thread = std::thread::spawn(move || collect_samples(console, logs, &stop));
        Ok(Some(WriteWitness {
            logs: logged,
            all,
            named_as_listed: chassis.is_as_listed(),
            from_the_start,
            ended,
            thread: Some(thread),
        }))
    }

    /// Returns the write log of the path with this name. If a disk has only one path, its name is that of the disk.
    pub fn find_log(&self, path: &str) -> Option<&Path> {
        self.logs.iter().find(|logged| logged.path == path).map(|logged| logged.log.as_path())
    }

    /// Ends the watch. Returns the writes so far that violate the plan. `extents` are the extents that the agent has
    /// announced, if any. `acted` is true if the agent has sent an announcement or a report. Logs without violations
    /// are removed.
    ///
    /// # Errors
    /// Fails if a log cannot be read.
    pub fn finish_watch(&mut self, extents: Option<&Value>, acted: bool) -> Result<Vec<String>> {
        self.ended.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return Ok(Vec::new()) };
        let samples = thread.join().map_err(|_| "the witness panicked")??;
        let policy = WritePolicy::new(extents, &self.all, self.named_as_listed);
        let mut violations: Vec<String> = policy.find_missing_observations(acted, &samples).into_iter().collect();
        for (number, PathLog { path, disk, log }) in self.logs.iter().enumerate() {
            let writes = write_log::read_writes(log)?;
            let outside = policy.find_violations(number, disk, &writes, &samples, self.from_the_start).into_iter();
            violations.extend(outside.map(|words| match *path == disk.name {
                true => words,
                false => format!("{words} (over its path {path})"),
            }));
        }
        if violations.is_empty() && std::env::var_os("DROPHAMMER_KEEP").is_none() {
            self.logs.iter().try_for_each(|PathLog { log, .. }| std::fs::remove_file(log).context(log.display()))?;
        }
        Ok(violations)
    }
}

impl Drop for WriteWitness {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread only reads, and its result is no longer needed.
            let _ = thread.join();
        }
    }
}

/// Returns the disk to which a path leads. Writes through all paths to a disk are compared with the extents of the
/// disk.
fn identify_disk(chassis: &Chassis, disk: &Disk) -> DiskIdentity {
    let real = qemu_disks::find_disk(chassis, disk);
    let paths = chassis.machine.disks.iter().filter(|other| other.path_of.as_ref() == Some(&real.name));
    DiskIdentity {
        name: real.name.clone(),
        serial: qemu_disks::shown_serial(chassis, real),
        paths: paths.map(|path| path.name.clone()).collect(),
    }
}

/// Reader of a growing console file.
struct ConsoleReader {
    file: File,
    /// Last line, which is incomplete.
    rest: Vec<u8>,
    state: AgentState,
}

impl ConsoleReader {
    fn read_state(&mut self) -> Result<AgentState> {
        self.file.read_to_end(&mut self.rest).context("the console")?;
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            self.state.process_line(String::from_utf8_lossy(&line).trim_end());
        }
        Ok(self.state.clone())
    }
}

/// Takes a sample whenever the console has shown new output, and a last sample at the end.
fn collect_samples(mut console: ConsoleReader, logs: Vec<PathBuf>, stop: &AtomicBool) -> Result<Vec<ConsoleSample>> {
    let mut samples: Vec<ConsoleSample> = Vec::new();
    loop {
        let is_last = stop.load(Ordering::Relaxed);
        let before = console.read_state()?;
        let counts = logs.iter().map(|log| write_log::count_entries(log)).collect::<Result<_>>()?;
        let sample = ConsoleSample { before, counts, after: console.read_state()? };
        let is_new = samples.last().is_none_or(|last| (&last.before, &last.after) != (&sample.before, &sample.after));
        if is_new || is_last {
            samples.push(sample);
        }
        if is_last {
            return Ok(samples);
        }
        std::thread::sleep(CONSOLE_INTERVAL);
    }
}

/// Tests a growing console and a growing log.
pub fn self_test() {
    let folder = write_log::test_folder("witness");
    let (console, log) = (folder.join("console"), folder.join("disk.writes"));
    write(&console, "Preparing           drophammer 0.1.0\r\nInstalling          stor").expect("written");
    write_log::write_log(&log, 1, &[(0, 8, 0)]);
    let file = File::open(&console).expect("a file");
    let mut seen = ConsoleReader { file, rest: Vec::new(), state: AgentState::default() };
    assert_eq!(seen.read_state().map(|state| (state.started, state.stage)), Ok((true, None)));
    let mut more = File::options().append(true).open(&console).expect("a file");
    std::io::Write::write_all(&mut more, b"age.lock\r\n").expect("written");
    assert_eq!(seen.read_state().map(|state| state.stage), Ok(Some("storage.lock".to_owned())));
    let samples = collect_samples(seen, vec![log.clone()], &AtomicBool::new(true)).expect("samples");
    assert_eq!(samples.iter().map(|sample| sample.counts.clone()).collect::<Vec<_>>(), [[1]]);
    let disk = DiskIdentity { name: "sda".to_owned(), serial: "A".to_owned(), paths: vec![] };
    let mut witness = WriteWitness {
        logs: vec![PathLog { path: "sda".to_owned(), disk: disk.clone(), log: log.clone() }],
        all: vec![disk],
        named_as_listed: true,
        from_the_start: true,
        ended: Arc::default(),
        thread: Some(std::thread::spawn(|| Ok(samples))),
    };
    let violations = witness.finish_watch(None, true).expect("readable logs");
    assert!(
        violations.len() == 1 && violations[0].contains("4096 bytes of disk sda were written at sector 0"),
        "{violations:?}"
    );
    assert!(log.exists());
    test_paths_of_one_disk(&folder);
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// Tests that writes through both paths to a disk are compared with the plan, whichever name or serial number the plan
/// contains.
fn test_paths_of_one_disk(folder: &Path) {
    let console = folder.join("two.console");
    for (serial, named) in [("S", "sda"), ("", "sda"), ("", "sdb")] {
        for (path, sector, expected) in
            [("sda", 0, ""), ("sdb", 0, ""), ("sda", 4096, "sda"), ("sdb", 4096, "over its path sdb")]
        {
            let disks = format!(
                "- {{name: sda, bus: scsi, size_mib: 9, serial: '{serial}'}}\n- {{name: sdb, bus: scsi, path_of: sda}}\n"
            );
            let text = format!("about: x\nfirmware: bios\nlayout: x\nexpect: {{}}\ndisks:\n{disks}");
            let scenario = crate::scenario_parser::parse(&text, "x".into(), ".".into()).expect("a scenario");
            let chassis = Chassis::new(&scenario.machine, folder);
            write(&console, "").expect("written");
            let witness = WriteWitness::start(&chassis, "two", &BootMethod::Network(folder), &console);
            let mut witness = witness.expect("a witness").expect("a watched boot");
            let log = |path: &str| witness.find_log(path).expect("a log").to_owned();
            let (one, other) = (log("sda"), log("sdb"));
            assert_ne!(one, other);
            write(&console, "Preparing           drophammer 0.1.0\r\nInstalling          storage.wipe\r\n")
                .expect("written");
            write_log::write_log(&log(path), 1, &[(sector, 8, 0)]);
            let ranges = json!([{"start": 0, "length": 1 << 20}]);
            let disk = json!({"device": format!("/dev/{named}"), "serial": serial, "ranges": ranges});
            let extents = json!([{"steps": ["storage.wipe"], "disks": [disk]}]);
            let violations = witness.finish_watch(Some(&extents), true).expect("readable logs");
            let is_reported =
                |words: &[String]| words.len() == 1 && words[0].contains("of disk sda ") && words[0].contains(expected);
            assert!(
                if expected.is_empty() { violations.is_empty() } else { is_reported(&violations) },
                "{path} {named}: {violations:?}"
            );
        }
    }
}
