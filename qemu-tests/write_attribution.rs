//! Assignment of each write to the stages that may have made it, by the console output before and after the write, and
//! check that these stages may write to the range.

use crate::write_log::LoggedWrite;
use serde_json::Value;

/// State of the agent, as its console output shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentState {
    /// True if the agent runs.
    pub started: bool,
    /// True if a script that may write has run before the agent.
    pub prepared: bool,
    /// Stage that has started last.
    pub stage: Option<String>,
    /// True if this stage has failed. No further stage starts then.
    pub failed: bool,
    /// True if the agent starts another kernel.
    pub starts_other_kernel: bool,
    /// True if another kernel runs.
    pub other_kernel_runs: bool,
}

impl AgentState {
    /// Processes a line of the console. A kernel message may precede the agent's output on the same line.
    pub fn process_line(&mut self, line: &str) {
        let event_text = |event: &str| {
            let (_, rest) = line.split_once(&format!("{event:<18}  "))?;
            Some(rest.trim_end().to_owned())
        };
        self.prepared |= !self.started && line.contains("drophammer: before-agent: status");
        self.started |= event_text("Preparing").is_some_and(|rest| rest.starts_with("drophammer "));
        if !self.started {
            return;
        }
        self.other_kernel_runs |= line.contains("Linux version ");
        self.starts_other_kernel |= event_text("Booting New Kernel").or(event_text("Planned Reboot")).is_some();
        match event_text("Installing").as_deref().map(|rest| rest.split(' ').collect::<Vec<_>>()).as_deref() {
            Some([stage]) if stage.contains('.') => {
                self.stage = Some((*stage).to_owned());
                self.starts_other_kernel |= *stage == "boot.kexec";
            }
            Some([stage, "failed", "after", ..]) => self.failed |= self.stage.as_deref() == Some(*stage),
            _ => {}
        }
    }
}

/// State of the agent before and after the lengths of all logs were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsoleSample {
    pub before: AgentState,
    pub counts: Vec<u64>,
    pub after: AgentState,
}

/// Disk of the machine with all identifiers by which a plan may refer to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskIdentity {
    pub name: String,
    pub serial: String,
    /// Names of the other paths to the disk.
    pub paths: Vec<String>,
}

impl DiskIdentity {
    fn is_called(&self, device: &Value) -> bool {
        let mut names = std::iter::once(&self.name).chain(&self.paths);
        names.any(|name| *device == format!("/dev/{name}"))
    }
}

/// Permitted writes: the extents of the plan by stage, which are `extents` in `drophammer plan --json`.
pub struct WritePolicy<'a> {
    /// Names of the stages in their order, each with the disks to which it may write.
    stages: Vec<(&'a str, &'a [Value])>,
    disks: &'a [DiskIdentity],
    /// True if the kernel names of the disks are those in the scenario.
    named_as_listed: bool,
}

impl<'a> WritePolicy<'a> {
    /// Parses the extents of a plan. Without extents, no stage may write.
    pub fn new(extents: Option<&'a Value>, disks: &'a [DiskIdentity], named_as_listed: bool) -> WritePolicy<'a> {
        let groups = extents.and_then(Value::as_array).into_iter().flatten();
        let stages = groups.flat_map(|group| {
            let disks = group["disks"].as_array().map(Vec::as_slice).unwrap_or_default();
            let names = group["steps"].as_array().into_iter().flatten();
            names.filter_map(move |name| Some((name.as_str()?, disks)))
        });
        WritePolicy { stages: stages.collect(), disks, named_as_listed }
    }

    /// Returns the stages that have run between two samples. The next stage is included, because the console output is
    /// delayed.
    fn stages_between(&self, earlier: &AgentState, later: &AgentState) -> &[(&'a str, &'a [Value])] {
        let place = |state: &AgentState| {
            let stage = state.stage.as_deref()?;
            self.stages.iter().position(|(name, _)| *name == stage)
        };
        let last = match place(later) {
            Some(place) if !later.failed => place + 2,
            Some(place) => place + 1,
            None => return &[],
        };
        let first = place(earlier).unwrap_or_default();
        self.stages.get(first..last.min(self.stages.len())).unwrap_or_default()
    }

    /// Returns whether the plan refers to this disk, by its serial number, or by its name if no serial number is
    /// unique.
    fn refers_to(&self, planned: &Value, disk: &DiskIdentity) -> bool {
        let (device, serial) = (&planned["device"], planned["serial"].as_str().unwrap_or_default());
        let with_serial: Vec<&DiskIdentity> = self.disks.iter().filter(|known| known.serial == serial).collect();
        match with_serial.as_slice() {
            [one] if !serial.is_empty() => one.name == disk.name,
            _ if self.named_as_listed => disk.is_called(device),
            [] => true,
            _ => disk.serial == serial,
        }
    }

    /// Returns the ranges of the disk to which these stages may write.
    fn allowed_ranges(&self, stages: &[(&str, &[Value])], disk: &DiskIdentity) -> Vec<(u64, u64)> {
        let planned = stages.iter().flat_map(|(_, disks)| disks.iter()).filter(|planned| self.refers_to(planned, disk));
        let ranges = planned.flat_map(|planned| planned["ranges"].as_array().into_iter().flatten());
        let ranges = ranges.filter_map(|range| {
            let start = range["start"].as_u64()?;
            Some((start, start + range["length"].as_u64()?))
        });
        let mut ranges: Vec<(u64, u64)> = ranges.collect();
        ranges.sort_unstable();
        ranges.dedup();
        ranges
    }

    /// Returns the reason why the observations are not sufficient: the agent has `acted`, but the console shows none of
    /// its stages, or all logs are empty after a complete installation.
    pub fn find_missing_observations(&self, acted: bool, samples: &[ConsoleSample]) -> Option<String> {
        if acted && !samples.iter().any(|sample| sample.after.started) {
            return Some(
                "the witness: the agent has acted, but the console does not show its start, so no writes were checked"
                    .to_owned(),
            );
        }
        let may_write = self.stages.iter().any(|(_, disks)| !disks.is_empty());
        let wrote = may_write && samples.iter().any(|sample| sample.after.starts_other_kernel);
        let counted = samples.iter().flat_map(|sample| &sample.counts).any(|count| *count > 0);
        (wrote && !counted).then(|| {
            "the witness: the agent has installed, but the logs contain no writes, so no writes were checked".to_owned()
        })
    }

    /// Returns messages about the writes to a disk that no stage may have made. `number` is the index of the disk in
    /// the counts of the samples. Writes before the start of the agent are included only if `from_the_start` is true.
    pub fn find_violations(
        &self,
        number: usize,
        disk: &DiskIdentity,
        writes: &[LoggedWrite],
        samples: &[ConsoleSample],
        from_the_start: bool,
    ) -> Vec<String> {
        let nothing =
            ConsoleSample { before: AgentState::default(), counts: vec![0; number + 1], after: AgentState::default() };
        let starts = samples.iter().any(|sample| sample.after.started);
        let prepared = samples.iter().any(|sample| sample.after.prepared);
        let mut violations = Vec::new();
        for pair in std::iter::once(&nothing).chain(samples).collect::<Vec<_>>().windows(2) {
            let [earlier, later] = pair else { continue };
            let is_before = !earlier.before.started;
            if !starts
                || earlier.before.starts_other_kernel
                || later.after.other_kernel_runs
                || (is_before && (prepared || !from_the_start))
            {
                continue;
            }
            let ranges = self.allowed_ranges(self.stages_between(&earlier.before, &later.after), disk);
            let is_within =
                |write: &&LoggedWrite| (earlier.counts[number]..later.counts[number]).contains(&write.number);
            let may = |write: &&LoggedWrite| {
                !ranges.iter().any(|(start, end)| *start <= write.start && write.start + write.length <= *end)
            };
            let outside: Vec<&LoggedWrite> = writes.iter().filter(is_within).filter(may).collect();
            violations.extend(describe_writes(disk, &outside, &earlier.before, &later.after));
        }
        violations
    }
}

/// Describes the first of these writes, and states their number.
fn describe_writes(
    disk: &DiskIdentity,
    outside: &[&LoggedWrite],
    earlier: &AgentState,
    later: &AgentState,
) -> Option<String> {
    let first = outside.first()?;
    let (sector, length) = (first.start / 512, first.length);
    let what = if first.discard { "discarded" } else { "written" };
    let when = match (&earlier.stage, &later.stage) {
        (_, None) => "before the plan's first step".to_owned(),
        (None, Some(stage)) => format!("before or in step {stage}"),
        (Some(one), Some(other)) if one == other => format!("in step {one}"),
        (Some(one), Some(other)) => format!("between the start of {one} and the start of {other}"),
    };
    let more = match outside.len() - 1 {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    Some(format!(
        "the witness: {length} bytes of disk {} were {what} at sector {sector} {when}, outside of the extents of the plan{more}",
        disk.name
    ))
}

fn state_after(lines: &[&str]) -> AgentState {
    let mut state = AgentState::default();
    lines.iter().for_each(|line| state.process_line(line));
    state
}

const FIRST_CONSOLE_LINE: &str = "Preparing           drophammer 0.1.0";

/// Tests that console output is parsed, that writes are assigned to stages, and that disks are distinguished.
pub fn self_test() {
    test_console_marks();
    test_write_checks();
    test_missed_output();
    test_disk_identification();
}

fn test_console_marks() {
    assert_eq!(state_after(&["Installing          storage.wipe"]), AgentState::default());
    assert!(state_after(&["drophammer: before-agent: status 0", FIRST_CONSOLE_LINE]).prepared);
    let stage = |lines: &[&str]| state_after(&[&[FIRST_CONSOLE_LINE][..], lines].concat()).stage;
    assert_eq!(stage(&["[    1.2] md: x Installing          storage.wipe"]), Some("storage.wipe".to_owned()));
    for other in
        ["Installing          tiny-1.0.run1 as machine", "    4  storage.wipe       sda", "storage.wipe   1.2 s"]
    {
        assert_eq!(stage(&["Installing          image.reach", other]), Some("image.reach".to_owned()), "{other}");
    }
    let took = "Installing          storage.wipe took 1.2 s";
    let failed = "Installing          storage.wipe failed after 1.2 s";
    let started = [FIRST_CONSOLE_LINE, "Installing          storage.wipe"];
    assert!(
        !state_after(&[&started[..], &[took][..]].concat()).failed
            && state_after(&[&started[..], &[failed][..]].concat()).failed
    );
    assert!(state_after(&[FIRST_CONSOLE_LINE, "Booting New Kernel  leaving the ramdisk"]).starts_other_kernel);
    assert!(state_after(&[FIRST_CONSOLE_LINE, "Installing          boot.kexec"]).starts_other_kernel);
    assert!(!state_after(&[FIRST_CONSOLE_LINE, "Installing          report.final"]).starts_other_kernel);
    assert!(
        state_after(&[FIRST_CONSOLE_LINE, "Planned Reboot      back into the installed system"]).starts_other_kernel
    );
    assert!(state_after(&[FIRST_CONSOLE_LINE, "[    0.0] Linux version 6.1"]).other_kernel_runs);
    assert!(!state_after(&["[    0.0] Linux version 6.1", FIRST_CONSOLE_LINE]).other_kernel_runs);
}

/// Returns the extents of a plan in which wiping and burning may write the first MiB of sda.
fn plan_extents() -> Value {
    let wiped = serde_json::json!({"device": "/dev/sda", "serial": "A", "ranges": [{"start": 0, "length": 1 << 20}]});
    serde_json::json!([
        {"steps": ["storage.lock", "report.begin"], "disks": []},
        {"steps": ["storage.wipe", "image.burn"], "disks": [wiped]},
        {"steps": ["report.final", "boot.kexec"], "disks": []},
    ])
}

fn identify_disk(name: &str, serial: &str) -> DiskIdentity {
    DiskIdentity { name: name.to_owned(), serial: serial.to_owned(), paths: vec![] }
}

fn sample_at(stage: &str, count: u64) -> ConsoleSample {
    let mark = format!("Installing          {stage}");
    let state =
        if stage.is_empty() { state_after(&[FIRST_CONSOLE_LINE]) } else { state_after(&[FIRST_CONSOLE_LINE, &mark]) };
    ConsoleSample { before: state.clone(), counts: vec![count], after: state }
}

fn test_write_checks() {
    let (extents, disks) = (plan_extents(), [identify_disk("sda", "A"), identify_disk("sdb", "B")]);
    let policy = WritePolicy::new(Some(&extents), &disks, true);
    let write = |number, start| [LoggedWrite { number, start, length: 4096, discard: false }];
    let samples = [
        sample_at("", 1),
        sample_at("storage.lock", 2),
        sample_at("report.begin", 3),
        sample_at("storage.wipe", 4),
        sample_at("image.burn", 5),
    ];
    let more = [sample_at("report.final", 6), sample_at("boot.kexec", 7)];
    let samples: Vec<ConsoleSample> = samples.into_iter().chain(more).collect();
    let violations =
        |entry: &[LoggedWrite], disk: usize| policy.find_violations(0, &disks[disk], entry, &samples, true);
    // The permitted writes belong to the stage that the console shows, the previous stage, or the next stage.
    for (number, may) in [(0, false), (1, false), (2, true), (3, true), (4, true), (5, true), (6, false), (7, true)] {
        assert_eq!(violations(&write(number, 0), 0).is_empty(), may, "{number}");
        // Writes after the last sample are not checked.
        assert_eq!(violations(&write(number, 0), 1).is_empty(), number == 7, "{number}");
    }
    let words = violations(&write(3, (1 << 20) - 512), 0);
    let expected = "the witness: 4096 bytes of disk sda were written at sector 2047 between the start of report.begin and the start of storage.wipe, outside of the extents of the plan";
    assert_eq!(words, [expected]);
    // A refusal has no plan. Writes of the agent are distinguished from those of programs before and after it.
    let refused = WritePolicy::new(None, &disks, true);
    let count_violations = |samples: &[ConsoleSample], from_the_start| {
        refused.find_violations(0, &disks[0], &write(0, 0), samples, from_the_start).len()
    };
    assert_eq!((count_violations(&[sample_at("", 1)], true), count_violations(&[sample_at("", 1)], false)), (1, 0));
    assert_eq!(count_violations(&[sample_at("", 0), sample_at("storage.lock", 1)], false), 1);
    let mut other_kernel = sample_at("boot.kexec", 1);
    other_kernel.after.other_kernel_runs = true;
    assert_eq!(count_violations(&[sample_at("", 0), other_kernel], true), 0);
    let mut leaving = sample_at("boot.kexec", 0);
    leaving.before.starts_other_kernel = true;
    assert_eq!(count_violations(&[leaving, sample_at("boot.kexec", 1)], true), 0);
    let silent = ConsoleSample { before: AgentState::default(), counts: vec![1], after: AgentState::default() };
    assert_eq!(count_violations(&[silent], true), 0);
    // After a failure, the agent starts no further stage.
    let mut failed = sample_at("report.begin", 3);
    failed.after.failed = true;
    assert_eq!(
        policy.find_violations(0, &disks[0], &write(2, 0), &[sample_at("storage.lock", 2), failed], true).len(),
        1
    );
}

fn test_missed_output() {
    let (extents, disks) = (plan_extents(), [identify_disk("sda", "A")]);
    let (policy, refused) = (WritePolicy::new(Some(&extents), &disks, true), WritePolicy::new(None, &disks, true));
    let silent = ConsoleSample { before: AgentState::default(), counts: vec![1], after: AgentState::default() };
    let words = |policy: &WritePolicy, acted, sample: &ConsoleSample| {
        policy.find_missing_observations(acted, std::slice::from_ref(sample)).unwrap_or_default()
    };
    // The machine has gone off before its agent has started.
    assert_eq!(words(&policy, false, &silent), "");
    assert!(words(&policy, true, &silent).contains("does not show its start"));
    assert_eq!(words(&policy, true, &sample_at("storage.lock", 0)), "");
    assert!(words(&policy, true, &sample_at("boot.kexec", 0)).contains("the logs contain no writes"));
    assert_eq!(words(&policy, true, &sample_at("boot.kexec", 1)), "");
    assert_eq!(words(&refused, true, &sample_at("boot.kexec", 0)), "");
}

fn test_disk_identification() {
    let planned = |device: &str, serial: &str| serde_json::json!({"device": device, "serial": serial, "ranges": []});
    let disks = [
        identify_disk("sda", "A"),
        identify_disk("sdb", "B"),
        identify_disk("sdc", ""),
        identify_disk("sdd", ""),
        identify_disk("sde", "B"),
    ];
    let meant = |planned: &Value, as_listed| -> Vec<&str> {
        let policy = WritePolicy::new(None, &disks, as_listed);
        disks.iter().filter(|disk| policy.refers_to(planned, disk)).map(|disk| disk.name.as_str()).collect()
    };
    assert_eq!(meant(&planned("/dev/sdb", "A"), true), ["sda"]);
    assert_eq!(meant(&planned("/dev/sdd", ""), true), ["sdd"]);
    assert_eq!(meant(&planned("/dev/sde", "B"), true), ["sde"]);
    assert_eq!(meant(&planned("/dev/sde", "B"), false), ["sdb", "sde"]);
    assert_eq!(meant(&planned("/dev/sda", ""), false), ["sdc", "sdd"]);
    assert_eq!(meant(&planned("/dev/sdb", "X"), true), ["sdb"]);
    assert_eq!(meant(&planned("/dev/sdb", "X"), false).len(), 5);
    let two_paths =
        [DiskIdentity { paths: vec!["sdb".to_owned()], ..identify_disk("sda", "") }, identify_disk("sdc", "")];
    let policy = WritePolicy::new(None, &two_paths, true);
    for (device, is_meant) in [("/dev/sda", true), ("/dev/sdb", true), ("/dev/sdc", false)] {
        assert_eq!(policy.refers_to(&planned(device, ""), &two_paths[0]), is_meant, "{device}");
    }
}
