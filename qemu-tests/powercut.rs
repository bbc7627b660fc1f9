//! Cuts the power in a reinstall, again and again from the same saved state, and looks after each cut whether the kept
//! data are as they were, and whether the lives that follow end in the old system or the new one.
//!
//! Every test run takes a sample; all of it with `DROPHAMMER_FULL=1`. `DROPHAMMER_SEED` chooses another sample.

use crate::drama::GAVE_UP;
use crate::host::{Context, Result, tool};
use crate::looker;
use crate::machine::{Boot, Chassis, SPARED, Vm, quick_ramdisk};
use crate::proxy::Proxy;
use crate::reinstall;
use crate::run::{self, Stage};
use crate::scenario::{Reinstall, Scenario};
use crate::server::{self, Server};
use crate::survivors::{self, Promise, Verdict};
use serde_json::Value;
use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// A step may last a few milliseconds; to look at the machine's own words takes longer and is not urgent.
const POLL: Duration = Duration::from_millis(10);
const LOOK: Duration = Duration::from_millis(200);
/// After a cut: attempts, and the boot from disk at the end.
const LIVES: usize = 4;
const SEED: u64 = 4;
/// In a sample, and in all of it.
const STEPS_IN_SAMPLE: usize = 2;
const MOMENTS_IN_SAMPLE: usize = 2;
const MOMENTS: usize = 20;
/// More steps than any plan has: a cut that never comes has to end.
const MOST_STEPS: usize = 60;

/// How much is wanted.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    pub full: bool,
    pub machines: usize,
}

/// When the power goes.
#[derive(Debug, Clone, PartialEq)]
enum Cut {
    /// The server has heard so many steps end.
    AfterSteps(usize),
    /// This step has been running for so long.
    Within(String, Duration),
}

/// What is the same for all cuts.
struct Start<'a> {
    artifacts: &'a Path,
    chassis: &'a Chassis<'a>,
    /// The server's folder with the order in it.
    state: PathBuf,
    cmdline: String,
    promise: Promise,
}

/// How a life of the machine ended.
enum End {
    /// At the cut, and where that was.
    Cut(String),
    Up(crate::facts::Facts),
    /// By itself: a reboot.
    Off,
    /// The agent has ended and waits for a person, who switches the machine off and on.
    GaveUp,
}

/// Installs, saves, cuts; prints a line a cut and the tally.
///
/// # Errors
/// The cuts after which something was not as promised.
pub fn run(artifacts: &Path, work: &Path, extent: Extent) -> Result<()> {
    run::need(artifacts)?;
    let text = include_str!("powercut.yaml");
    let scenario = crate::reader::parse(text, "powercut".to_owned(), work.to_owned())?;
    let folder = work.join("powercut");
    // What an earlier failure left; usually there is nothing.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).context(folder.display())?;
    let result = all_cuts(&scenario, artifacts, &folder, extent);
    if result.is_ok() && std::env::var_os("DROPHAMMER_KEEP").is_none() {
        return fs::remove_dir_all(&folder).context(folder.display());
    }
    result.map_err(|failures| format!("{failures}\ndisks and logs are kept in {}", folder.display()))
}

fn all_cuts(scenario: &Scenario, artifacts: &Path, folder: &Path, extent: Extent) -> Result<()> {
    let chassis = run::assemble(scenario, artifacts, folder)?;
    let start = install_and_order(scenario, artifacts, &chassis)?;
    let seed = std::env::var("DROPHAMMER_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(SEED);
    let mut random = fastrand::Rng::with_seed(seed);
    println!("powercut: seed {seed}");
    let timings = timings(&start.state.join("serve.log"))?;
    // The first installation makes the group that the reinstall keeps.
    let timings: Vec<_> = timings.into_iter().filter(|(step, _)| step != "storage.lvm").collect();
    let mut cuts = if extent.full { moments(&timings, MOMENTS, &mut random) } else { sample(&timings, &mut random) };
    if extent.full {
        cuts.splice(0..0, (1..=MOST_STEPS).map(Cut::AfterSteps));
    }
    let verdicts = start.all(cuts, extent.machines);
    let count = |good: fn(&Verdict) -> bool| verdicts.iter().filter(|verdict| good(verdict)).count();
    let (intact, converged) = (count(|verdict| verdict.intact), count(|verdict| verdict.converged));
    println!("cuts: {}, kept data intact: {intact}, converged: {converged}", verdicts.len());
    let bad: Vec<String> = verdicts.iter().filter(|verdict| !verdict.is_good()).map(Verdict::line).collect();
    if bad.is_empty() { Ok(()) } else { Err(bad.join("\n")) }
}

/// The first installation, data and other people's things on the kept disks, and the button.
fn install_and_order<'a>(scenario: &'a Scenario, artifacts: &'a Path, chassis: &'a Chassis<'a>) -> Result<Start<'a>> {
    let [install, order] = &scenario.runs[..] else { return Err("powercut.yaml has two runs".to_owned()) };
    let allocation = Uuid::new_v4().to_string();
    let stage = |run, label: &str| Stage {
        scenario,
        run,
        artifacts,
        chassis,
        allocation: &allocation,
        label: label.to_owned(),
        installed: &None,
        earlier: &[],
    };
    let first = stage(install, "run1");
    let failures = first.play()?.failures;
    if !failures.is_empty() {
        return Err(format!("the first installation: {}", failures.join("\n")));
    }
    let script = order.prepare.as_deref().unwrap_or_default();
    let said = looker::prepare(chassis, artifacts, "run2-prepare", script)?;
    let second = stage(order, "run2");
    let state = chassis.folder.join("serve");
    let (mut server, proxy) = second.serve(&state)?;
    reinstall::press(&mut server, &proxy, &state, &chassis.uuid, &second.image(), &Reinstall::default())?;
    server.kill();
    let promise = Promise::read(&said, first.image(), second.image())?;
    let cmdline = format!("{SPARED} {}", scenario.machine.kernel_arguments).trim().to_owned();
    Ok(Start { artifacts, chassis, state, cmdline, promise })
}

impl Start<'_> {
    /// All cuts, on so many machines at once. Cuts after more steps than there are come to nothing and do not count.
    fn all(&self, cuts: Vec<Cut>, machines: usize) -> Vec<Verdict> {
        let queue = Mutex::new(cuts.into_iter().zip(1..).collect::<VecDeque<_>>());
        let verdicts = Mutex::new(Vec::new());
        let worker = || {
            // Taken before the cut, not while it goes on: the queue is for all.
            let next = || lock(&queue).pop_front();
            while let Some((cut, number)) = next() {
                let verdict = self.cut(number, &cut);
                let is_past_the_end = !verdict.was_cut && matches!(cut, Cut::AfterSteps(_));
                if is_past_the_end {
                    lock(&queue).retain(|(cut, _)| matches!(cut, Cut::Within(..)));
                }
                if !is_past_the_end || !verdict.is_good() {
                    lock(&verdicts).push(verdict);
                }
            }
        };
        std::thread::scope(|scope| (0..machines).for_each(|_| drop(scope.spawn(worker))));
        verdicts.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// One cut and all that follows, with its line printed.
    fn cut(&self, number: usize, cut: &Cut) -> Verdict {
        let folder = self.chassis.folder.join(format!("cut{number}"));
        let began = Instant::now();
        let mut verdict = Verdict { number, planned: format!("{cut:?}"), ..Verdict::default() };
        if let Err(words) = self.lives(&folder, cut, &mut verdict) {
            verdict.words.push(words);
        }
        verdict.seconds = began.elapsed().as_secs();
        println!("{}", verdict.line());
        if verdict.is_good() {
            // What stays behind is only in the way.
            let _ = fs::remove_dir_all(&folder);
        }
        verdict
    }

    fn lives(&self, folder: &Path, cut: &Cut, verdict: &mut Verdict) -> Result<()> {
        let chassis = self.overlays(folder)?;
        let state = folder.join("serve");
        tool(&["cp", "-a", &self.state.to_string_lossy(), &state.to_string_lossy()], Stdio::null())?;
        let proxy = Proxy::start(&[])?;
        let server = Server::start(&state, &self.artifacts.join("ramdisk"), &self.cmdline)?;
        server.connect(&proxy)?;
        let mut facts = None;
        for life in 1..=1 + LIVES {
            let next = server::next_boot(proxy.port, &chassis.uuid, &chassis.mac)?;
            let planned = Some(cut).filter(|_| life == 1);
            let how = if next.is_some() { "agent" } else { "disk" };
            let (end, broken) =
                self.live(&chassis, &server, &proxy, &format!("life{life}"), next.as_deref(), planned)?;
            if !broken.is_empty() {
                return Err(broken.join("; "));
            }
            match end {
                End::Cut(place) => {
                    verdict.was_cut = true;
                    verdict.lives.push(format!("cut {place}"));
                }
                End::GaveUp => verdict.lives.push(format!("{how}, gave up")),
                End::Off => verdict.lives.push(format!("{how}, rebooted")),
                End::Up(found) => {
                    verdict.lives.push(how.to_owned());
                    facts = Some(found);
                    break;
                }
            }
        }
        let touched = self.promise.touched(&chassis)?;
        let Some(facts) = facts else {
            verdict.words.extend(touched);
            return Err(format!("no system came up in {} lives", 1 + LIVES));
        };
        let order_is_open = server::order_is_open(&state, &chassis.uuid)?;
        self.promise.judge(&facts, touched, order_is_open, verdict);
        Ok(())
    }

    /// The saved disks once more, and what is written goes elsewhere.
    fn overlays<'b>(&'b self, folder: &'b Path) -> Result<Chassis<'b>> {
        // What an earlier cut of that number left.
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder).context(folder.display())?;
        let chassis = Chassis {
            uuid: self.chassis.uuid.clone(),
            mac: self.chassis.mac.clone(),
            overlays: true,
            ..Chassis::new(self.chassis.machine, folder)
        };
        for disk in &chassis.disks {
            let (base, overlay) = (self.chassis.file(disk), chassis.file(disk));
            let (base, overlay) = (base.to_string_lossy(), overlay.to_string_lossy());
            let argv = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", &base, &overlay];
            tool(&argv, Stdio::null())?;
        }
        Ok(chassis)
    }

    /// One life: the agent if the server has an order, else the disk; and what the witness has against it.
    fn live(
        &self,
        chassis: &Chassis,
        server: &Server,
        proxy: &Proxy,
        label: &str,
        cmdline: Option<&str>,
        cut: Option<&Cut>,
    ) -> Result<(End, Vec<String>)> {
        let (kernel, initrd) = quick_ramdisk(&self.artifacts.join("ramdisk"), chassis.machine.firmware);
        let boot = match cmdline {
            Some(cmdline) => Boot::Direct { kernel: &kernel, initrd: &initrd, cmdline, on_copy: false, network: true },
            None => Boot::Disk,
        };
        let (heard, announced) = (server.said().len(), proxy.announced().len());
        let mut vm = Vm::start(chassis, label, &boot)?;
        let end = watch(&mut vm, server, heard, cut)?;
        let announced = proxy.announced().split_off(announced);
        let broken = vm.testify(announced.last().map(|notice| &notice["extents"]), !announced.is_empty())?;
        Ok((end, broken))
    }
}

/// Until the cut, a system, or the machine's own end. `heard` is how much the server had said before.
fn watch(vm: &mut Vm, server: &Server, heard: usize, cut: Option<&Cut>) -> Result<End> {
    let (mut since, mut looked) = (None, Instant::now());
    loop {
        let said = server.said();
        if let Some(place) = cut.and_then(|cut| is_now(cut, &said[heard..], &mut since)) {
            vm.end();
            return Ok(End::Cut(place));
        }
        std::thread::sleep(POLL);
        if looked.elapsed() < LOOK {
            continue;
        }
        looked = Instant::now();
        if let Some(facts) = vm.facts("tiny") {
            vm.quit()?;
            return Ok(End::Up(facts));
        }
        if vm.is_off()? {
            return Ok(End::Off);
        }
        if vm.console().contains(GAVE_UP) {
            return Ok(End::GaveUp);
        }
        vm.check_alive()?;
    }
}

/// The place of the cut in words, when its moment has come. `since` is when the step was heard to begin.
fn is_now(cut: &Cut, said: &[Value], since: &mut Option<Instant>) -> Option<String> {
    let ended = |line: &&Value| line["step"].is_string() && line["seconds"].is_number();
    match cut {
        Cut::AfterSteps(count) => {
            let line = said.iter().filter(ended).nth(count - 1)?;
            Some(format!("after {}", line["step"].as_str()?))
        }
        Cut::Within(step, time) => {
            let of_step = |line: &&Value| line["step"] == step.as_str();
            said.iter().find(of_step)?;
            if said.iter().filter(of_step).any(|line| ended(&line)) {
                return Some(format!("after {step}, which was too short"));
            }
            let place = || format!("{:.2} s into {step}", time.as_secs_f64());
            (since.get_or_insert_with(Instant::now).elapsed() >= *time).then(place)
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Seconds by step of the last installation in a server's log.
fn timings(log: &Path) -> Result<Vec<(String, f64)>> {
    let text = fs::read_to_string(log).context(log.display())?;
    let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let report = lines.rfind(|line| line["report"]["success"] == true).ok_or("no report of the installation")?;
    let steps = report["report"]["timings"].as_array().cloned().unwrap_or_default();
    Ok(steps.iter().filter_map(|step| Some((step["step"].as_str()?.to_owned(), step["seconds"].as_f64()?))).collect())
}

/// Steps that can be cut in the middle, the longer ones more often.
fn moments(timings: &[(String, f64)], count: usize, random: &mut fastrand::Rng) -> Vec<Cut> {
    let is_long = |name: &str| name.starts_with("storage.") || name == "image.burn" || name == "target.installer";
    let long: Vec<&(String, f64)> = timings.iter().filter(|(name, _)| is_long(name)).collect();
    // The burn is nearly all of the time; a root is taken so that the others get their share of the cuts.
    let weight = |seconds: f64| seconds.max(0.01).sqrt();
    let whole: f64 = long.iter().map(|(_, seconds)| weight(*seconds)).sum();
    let moment = |_| {
        let mut place = random.f64() * whole;
        let fits = |(_, seconds): &&&(String, f64)| {
            place -= weight(*seconds);
            place < 0.0
        };
        let (step, seconds) = long.iter().find(fits).or(long.last())?;
        Some(Cut::Within(step.clone(), Duration::from_secs_f64(random.f64() * seconds)))
    };
    (0..count).filter_map(moment).collect()
}

/// A few of all: steps, and moments in different steps.
fn sample(timings: &[(String, f64)], random: &mut fastrand::Rng) -> Vec<Cut> {
    let mut steps: Vec<usize> = (1..=timings.len().max(STEPS_IN_SAMPLE)).collect();
    random.shuffle(&mut steps);
    let mut cuts: Vec<Cut> = steps.into_iter().take(STEPS_IN_SAMPLE).map(Cut::AfterSteps).collect();
    let mut others: Vec<Cut> = Vec::new();
    for moment in moments(timings, MOMENTS, random) {
        let is_same = |other: &Cut| matches!((other, &moment), (Cut::Within(a, _), Cut::Within(b, _)) if a == b);
        if !others.iter().any(is_same) && others.len() < MOMENTS_IN_SAMPLE {
            others.push(moment);
        }
    }
    cuts.extend(others);
    cuts
}

/// Moments are chosen from the steps there are, the same ones for the same seed; a cut comes when it is due, not before.
pub fn self_test() {
    survivors::self_test();
    let scenario = crate::reader::parse(include_str!("powercut.yaml"), "x".into(), ".".into()).expect("a scenario");
    assert!(scenario.runs[0].reinstall.is_none() && scenario.runs[1].reinstall.is_some());

    let timings = [("storage.wipe", 1.0), ("image.burn", 20.0), ("report.final", 9.0)];
    let timings: Vec<(String, f64)> = timings.iter().map(|(step, seconds)| ((*step).to_owned(), *seconds)).collect();
    let chosen = moments(&timings, MOMENTS, &mut fastrand::Rng::with_seed(1));
    assert_eq!(chosen, moments(&timings, MOMENTS, &mut fastrand::Rng::with_seed(1)));
    assert_eq!(chosen.len(), MOMENTS);
    for step in ["storage.wipe", "image.burn"] {
        assert!(chosen.iter().any(|cut| matches!(cut, Cut::Within(name, _) if name == step)), "{step}: {chosen:?}");
    }
    assert!(!chosen.iter().any(|cut| matches!(cut, Cut::Within(name, _) if name == "report.final")));
    assert_eq!(sample(&timings, &mut fastrand::Rng::with_seed(1)).len(), STEPS_IN_SAMPLE + MOMENTS_IN_SAMPLE);

    let line =
        |step: &str, seconds: Value| serde_json::json!({"event": "Installing", "step": step, "seconds": seconds});
    let said = [line("a", Value::Null), line("a", 0.5.into()), line("b", Value::Null), line("b", 0.1.into())];
    let now = |cut: Cut, said: &[Value]| is_now(&cut, said, &mut None);
    assert_eq!(now(Cut::AfterSteps(2), &said[..3]), None);
    assert_eq!(now(Cut::AfterSteps(2), &said).as_deref(), Some("after b"));
    let within = |step: &str, seconds| Cut::Within(step.to_owned(), Duration::from_secs(seconds));
    assert_eq!(now(within("b", 0), &said[..2]), None);
    assert_eq!(now(within("b", 60), &said[..3]), None);
    assert_eq!(now(within("b", 0), &said[..3]).as_deref(), Some("0.00 s into b"));
    assert_eq!(now(within("b", 60), &said).as_deref(), Some("after b, which was too short"));
}
