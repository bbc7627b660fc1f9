//! One reinstall over kept data, whole, with all that is needed to rebuild its disks as they were at any moment: the disks before, the
//! log of each disk's writes, and how long the logs were when which step ran and what the server would have answered then.
//!
//! It is kept as files, so that a record can be judged again without a machine.

use crate::drama::GAVE_UP;
use crate::host::{Context, Result, write};
use crate::lives::{self, Start};
use crate::looker;
use crate::machine::{Chassis, Vm};
use crate::proxy::Proxy;
use crate::server::{self, Server};
use crate::witness_judge::State;
use crate::witness_log;
use drophammer::allocation::Machine;
use drophammer::inventory::Inventory;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A flush and what follows it are milliseconds apart.
const POLL: Duration = Duration::from_millis(10);

/// Names the logs of the machine's writes.
const LABEL: &str = "record";

/// What the server knows of the reinstall.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// It is ordered.
    Ordered,
    /// An attempt has announced that it begins.
    Begun,
    /// The machine has reported success.
    Done,
}

impl Phase {
    /// The server's folder as it was then.
    pub fn folder(self, folder: &Path) -> PathBuf {
        folder.join(match self {
            Phase::Ordered => "server-ordered",
            Phase::Begun => "server-begun",
            Phase::Done => "server-done",
        })
    }
}

/// How long the logs were. The server was asked before and after they were counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// The step that the console showed last; empty before the first.
    pub step: String,
    pub phases: [Phase; 2],
    /// By disk, in the order of [`Record::disks`].
    pub counts: Vec<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Record {
    pub uuid: String,
    pub mac: String,
    pub disks: Vec<String>,
    /// What was on the machine before, with all assembled and looked into that the agent assembles and looks into.
    pub inventory: Inventory,
    /// What the script said that prepared the disks.
    pub prepared: String,
    /// Ids of the images: the one that was installed, and the one that was ordered.
    pub images: [String; 2],
    /// What the agent said at its point of no return.
    pub announced: Value,
    /// What the server answered to the agent's question for its allocation.
    pub answers: BTreeMap<Phase, Machine>,
    /// Growing.
    pub moments: Vec<Moment>,
}

impl Record {
    fn path(folder: &Path) -> PathBuf {
        folder.join("record.json")
    }

    /// What [`record`] has kept in this folder.
    ///
    /// # Errors
    /// It is not there, or not whole.
    pub fn read(folder: &Path) -> Result<Record> {
        let path = Record::path(folder);
        let text = fs::read(&path).context(path.display())?;
        serde_json::from_slice(&text).context(path.display())
    }

    pub fn base(folder: &Path, disk: &str) -> PathBuf {
        folder.join(format!("{disk}.raw"))
    }

    pub fn log(folder: &Path, disk: &str) -> PathBuf {
        folder.join("run").join(format!("{LABEL}-{disk}.writes"))
    }

    /// What was on that disk when the record ended.
    pub fn end(folder: &Path, disk: &str) -> PathBuf {
        folder.join("run").join(format!("{disk}.qcow2"))
    }
}

/// Runs the script that prepares the disks in the neutral ramdisk, which gets the agent's programs for it: the script asks
/// `drophammer` for the inventory.
///
/// # Errors
/// The script fails.
pub fn prepare(chassis: &Chassis, artifacts: &Path, script: &str) -> Result<String> {
    let built = artifacts.join("ramdisk");
    let both = chassis.folder.join("looker");
    let folder = both.join("ramdisk");
    fs::create_dir_all(&folder).context(folder.display())?;
    let mut ramdisk = fs::read(built.join("quick")).context(built.join("quick").display())?;
    // The kernel unpacks one archive after the other, each from a multiple of four on.
    ramdisk.resize(ramdisk.len().next_multiple_of(4), 0);
    ramdisk.extend(fs::read(built.join("inspect")).context(built.join("inspect").display())?);
    write(&folder.join("inspect"), ramdisk)?;
    fs::copy(built.join("vmlinux"), folder.join("vmlinux")).context(built.join("vmlinux").display())?;
    let said = looker::prepare(chassis, &both, "run2-prepare", script)?;
    fs::remove_dir_all(&both).context(both.display())?;
    Ok(said)
}

/// The inventory that the script has sent to the second serial port.
///
/// # Errors
/// It has not.
pub fn inventory(folder: &Path) -> Result<Inventory> {
    let path = folder.join("run2-prepare.facts.log");
    let text = fs::read_to_string(&path).context(path.display())?;
    let whole = text.find('{').zip(text.rfind('}')).and_then(|(start, end)| text.get(start..=end));
    serde_json::from_str(whole.ok_or("the script that prepares the disks told no inventory")?).context(path.display())
}

/// Carries the order out and keeps what was written and when.
///
/// # Errors
/// The reinstall fails.
pub fn record(start: &Start, prepared: String) -> Result<Record> {
    let folder = start.chassis.folder;
    let run = folder.join("run");
    let chassis = start.overlays(&run)?;
    let disks: Vec<String> = chassis.disks.iter().map(|disk| disk.name.clone()).collect();
    let (state, server, proxy) = start.serve(&run)?;
    let cmdline = server::next_boot(proxy.port, &chassis.uuid, &chassis.mac)?.ok_or("the server has no order")?;
    let keeper = Keeper { folder, state: &state, uuid: &chassis.uuid, server: &server, proxy: &proxy };
    keeper.keep(Phase::Ordered)?;
    let mut vm = start.switch_on(&chassis, LABEL, Some(&cmdline))?;
    let logs: Vec<PathBuf> = disks.iter().map(|disk| Record::log(folder, disk)).collect();
    let ended = AtomicBool::new(false);
    let (moments, answers) = std::thread::scope(|scope| {
        // Not part of the moments, because keeping the server's folder takes longer than a step.
        let answers = scope.spawn(|| keeper.keep_when_begun(&ended));
        let moments = keeper.watch(&mut vm, &logs);
        ended.store(true, Ordering::Relaxed);
        (moments, answers.join())
    });
    let moments = moments?;
    let mut answers = answers.map_err(|_| "the thread that keeps the server's folder panicked")??;
    vm.quit()?;
    answers.insert(Phase::Done, keeper.keep(Phase::Done)?);
    let announced = proxy.announced().pop().ok_or("the agent has not announced anything")?;
    let record = Record {
        uuid: chassis.uuid.clone(),
        mac: chassis.mac.clone(),
        disks,
        inventory: inventory(folder)?,
        prepared,
        images: start.promise.images(),
        announced,
        answers,
        moments,
    };
    write(&Record::path(folder), serde_json::to_vec(&record).context("the record")?)?;
    Ok(record)
}

/// The server while the reinstall goes on.
struct Keeper<'a> {
    folder: &'a Path,
    state: &'a Path,
    uuid: &'a str,
    server: &'a Server,
    proxy: &'a Proxy,
}

impl Keeper<'_> {
    fn phase(&self) -> Phase {
        if self.server.said().iter().any(|line| line["report"]["success"] == true) {
            return Phase::Done;
        }
        if self.proxy.announced().is_empty() { Phase::Ordered } else { Phase::Begun }
    }

    /// What the server has for the agent now. The operator is told it too, before the agent registers and after its report.
    fn answer(&self) -> Result<Machine> {
        let port = self.server.port().ok_or("drophammer serve does not say its port")?;
        let mut preview = server::preview(port, self.state, self.uuid)?;
        serde_json::from_value(preview["machine"].take()).context("the server's answer")
    }

    /// The answer, and the server's folder as a crash of the server would leave it.
    fn keep(&self, phase: Phase) -> Result<Machine> {
        let answer = self.answer()?;
        self.server.freeze(true)?;
        let copied = lives::copy(self.state, &phase.folder(self.folder));
        self.server.freeze(false)?;
        copied.map(|()| answer)
    }

    /// What the server answers while it is ordered, from the machine's registration on, and when it has begun.
    fn keep_when_begun(&self, ended: &AtomicBool) -> Result<BTreeMap<Phase, Machine>> {
        let mut answers = BTreeMap::new();
        while !ended.load(Ordering::Relaxed) {
            let answer = self.answer()?;
            let order = answer.allocation.as_ref().and_then(|allocation| allocation.order.as_ref());
            match order.map(|order| order.begun) {
                Some(false) => drop(answers.insert(Phase::Ordered, answer)),
                Some(true) => {
                    answers.insert(Phase::Begun, self.keep(Phase::Begun)?);
                    return Ok(answers);
                }
                None => {}
            }
            std::thread::sleep(POLL);
        }
        Err("the server did not hear that the reinstall begins".to_owned())
    }

    /// Until another kernel runs.
    fn watch(&self, vm: &mut Vm, logs: &[PathBuf]) -> Result<Vec<Moment>> {
        let mut moments: Vec<Moment> = Vec::new();
        let (mut state, mut heard) = (State::default(), 0);
        loop {
            let before = self.phase();
            let console = vm.console();
            let whole = console.rfind('\n').map_or(0, |end| end + 1);
            console.get(heard..whole).unwrap_or_default().lines().for_each(|line| state.hear(line));
            heard = whole;
            let counts = logs.iter().map(|log| witness_log::count(log)).collect::<Result<Vec<u64>>>()?;
            let moment =
                Moment { step: state.step.clone().unwrap_or_default(), phases: [before, self.phase()], counts };
            if state.gone {
                return Ok(moments);
            }
            if moments.last() != Some(&moment) {
                moments.push(moment);
            }
            if console.contains(GAVE_UP) {
                return Err(format!("the recorded reinstall failed{}", vm.last_lines()));
            }
            vm.check_alive()?;
            std::thread::sleep(POLL);
        }
    }
}
