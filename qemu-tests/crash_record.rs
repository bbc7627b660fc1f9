//! Record of one complete reinstall with preserved data. It contains everything that is needed to reconstruct the disks
//! at any moment: the disks before the reinstall, the write log of each disk, and the lengths of the logs at each step
//! and at each response of the server.
//!
//! It is stored in files, so that it can be checked again without a machine.

use crate::host_tools::{Context, Result, write};
use crate::network_boot::AGENT_EXITED;
use crate::proxy::Proxy;
use crate::qemu_machine::{Chassis, Vm};
use crate::saved_machine::{self, SavedMachine};
use crate::scenario::Firmware;
use crate::server::{self, Server};
use crate::write_attribution::AgentState;
use crate::{inspection_ramdisk, write_log};
use model::allocation::AssignedMachine;
use model::inventory::{FirmwareType, FirmwareVariables, Inventory};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Polling interval. It is short, because only milliseconds pass between a flush and the next writes.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Label of the machine's write logs.
const LABEL: &str = "record";

/// Phase of the reinstall according to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReinstallPhase {
    /// The reinstall is ordered.
    Ordered,
    /// An attempt has announced that it passes its point of no return.
    Begun,
    /// The machine has reported success.
    Done,
}

impl ReinstallPhase {
    /// Returns the saved folder of the server in this phase.
    pub fn server_folder(self, folder: &Path) -> PathBuf {
        folder.join(match self {
            ReinstallPhase::Ordered => "server-ordered",
            ReinstallPhase::Begun => "server-begun",
            ReinstallPhase::Done => "server-done",
        })
    }
}

/// Lengths of the logs at one moment. The phase was requested from the server both before and after the lengths were
/// read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedMoment {
    /// Last step that the console has shown; empty before the first step.
    pub step: String,
    pub phases: [ReinstallPhase; 2],
    /// Numbers of entries in the logs, by disk, in the order of [`ReinstallRecord::disks`].
    pub counts: Vec<u64>,
}

/// Record of one reinstall: the inventory before it, its moments, and the responses of the server.
#[derive(Debug, Serialize, Deserialize)]
pub struct ReinstallRecord {
    pub uuid: String,
    pub mac: String,
    pub disks: Vec<String>,
    /// Inventory before the reinstall, after arrays and volumes were assembled and filesystems were inspected, as the
    /// agent does.
    pub inventory: Inventory,
    /// Output of the script that has prepared the disks.
    pub prepared: String,
    /// Ids of two images: the installed image, and the ordered image.
    pub images: [String; 2],
    /// Announcement that the agent has sent at its point of no return.
    pub announced: Value,
    /// Responses of the server to the agent's request for its allocation, by phase.
    pub answers: BTreeMap<ReinstallPhase, AssignedMachine>,
    /// Moments, ordered by increasing lengths of the logs.
    pub moments: Vec<RecordedMoment>,
}

impl ReinstallRecord {
    fn record_path(folder: &Path) -> PathBuf {
        folder.join("record.json")
    }

    /// Reads a record that [`record_reinstall`] has stored in this folder.
    ///
    /// # Errors
    /// Fails if the record is missing or incomplete.
    pub fn read(folder: &Path) -> Result<ReinstallRecord> {
        let path = ReinstallRecord::record_path(folder);
        let text = fs::read(&path).context(path.display())?;
        serde_json::from_slice(&text).context(path.display())
    }

    pub fn base_path(folder: &Path, disk: &str) -> PathBuf {
        folder.join(format!("{disk}.raw"))
    }

    pub fn log_path(folder: &Path, disk: &str) -> PathBuf {
        folder.join("run").join(format!("{LABEL}-{disk}.writes"))
    }

    /// Returns the path of the disk as it is at the end of the record.
    pub fn end_path(folder: &Path, disk: &str) -> PathBuf {
        folder.join("run").join(format!("{disk}.qcow2"))
    }
}

/// Runs the script that prepares the disks, in the inspection ramdisk. The agent's programs are added to the ramdisk,
/// because the script collects the inventory with `drophammer`.
///
/// # Errors
/// Fails if the script fails.
pub fn prepare_disks(chassis: &Chassis, artifacts: &Path, script: &str) -> Result<String> {
    let built = artifacts.join("ramdisk");
    let both = chassis.folder.join("looker");
    let folder = both.join("ramdisk");
    fs::create_dir_all(&folder).context(folder.display())?;
    let mut ramdisk = fs::read(built.join("quick")).context(built.join("quick").display())?;
    // The kernel unpacks consecutive archives, each of which must start at a multiple of four bytes.
    ramdisk.resize(ramdisk.len().next_multiple_of(4), 0);
    ramdisk.extend(fs::read(built.join("inspect")).context(built.join("inspect").display())?);
    write(&folder.join("inspect"), ramdisk)?;
    fs::copy(built.join("vmlinux"), folder.join("vmlinux")).context(built.join("vmlinux").display())?;
    let output = inspection_ramdisk::prepare_disks(chassis, &both, "run2-prepare", script)?;
    fs::remove_dir_all(&both).context(both.display())?;
    Ok(output)
}

/// Returns the inventory that the script has written to the second serial port.
///
/// # Errors
/// Fails if the script has written no inventory.
pub fn read_inventory(folder: &Path) -> Result<Inventory> {
    let path = folder.join("run2-prepare.facts.log");
    let text = fs::read_to_string(&path).context(path.display())?;
    let whole = text.find('{').zip(text.rfind('}')).and_then(|(start, end)| text.get(start..=end));
    serde_json::from_str(whole.ok_or("the script that prepares the disks printed no inventory")?)
        .context(path.display())
}

/// Returns the inventory with the firmware of the machine. The ramdisk that has read the inventory was booted by a
/// BIOS.
fn with_firmware(mut inventory: Inventory, firmware: Firmware) -> Inventory {
    let is_uefi = firmware == Firmware::Uefi;
    inventory.system.firmware = if is_uefi { FirmwareType::Uefi } else { FirmwareType::Bios };
    inventory.firmware_variables = is_uefi.then(FirmwareVariables::default);
    inventory
}

/// Carries out the reinstall order, and records the writes and the moments of the reinstall.
///
/// # Errors
/// Fails if the reinstall fails.
pub fn record_reinstall(start: &SavedMachine, prepared: String) -> Result<ReinstallRecord> {
    let folder = start.chassis.folder;
    let run = folder.join("run");
    let chassis = start.create_overlays(&run)?;
    let disks: Vec<String> = chassis.disks.iter().map(|disk| disk.name.clone()).collect();
    let (state, server, proxy) = start.start_server(&run)?;
    let cmdline = server::next_boot(proxy.port, &chassis.uuid, &chassis.mac)?.ok_or("the server has no order")?;
    let recorder = ReinstallRecorder { folder, state: &state, uuid: &chassis.uuid, server: &server, proxy: &proxy };
    recorder.save_server_state(ReinstallPhase::Ordered)?;
    let mut vm = start.switch_on(&chassis, LABEL, Some(&cmdline))?;
    let logs: Vec<PathBuf> = disks.iter().map(|disk| ReinstallRecord::log_path(folder, disk)).collect();
    let ended = AtomicBool::new(false);
    let (moments, answers) = std::thread::scope(|scope| {
        // A separate thread saves the responses, because saving the server's folder takes longer than a step.
        let answers = scope.spawn(|| recorder.save_responses(&ended));
        let moments = recorder.record_moments(&mut vm, &logs);
        ended.store(true, Ordering::Relaxed);
        (moments, answers.join())
    });
    let moments = moments?;
    let mut answers = answers.map_err(|_| "the thread that keeps the server's folder panicked")??;
    vm.shut_down()?;
    answers.insert(ReinstallPhase::Done, recorder.save_server_state(ReinstallPhase::Done)?);
    let announced = proxy.announced().pop().ok_or("the agent has not announced anything")?;
    let record = ReinstallRecord {
        uuid: chassis.uuid.clone(),
        mac: chassis.mac.clone(),
        disks,
        inventory: with_firmware(read_inventory(folder)?, chassis.machine.firmware),
        prepared,
        images: start.guarantees.allowed_images(),
        announced,
        answers,
        moments,
    };
    write(&ReinstallRecord::record_path(folder), serde_json::to_vec(&record).context("the record")?)?;
    Ok(record)
}

/// Recorder of a reinstall, with access to the server.
struct ReinstallRecorder<'a> {
    folder: &'a Path,
    state: &'a Path,
    uuid: &'a str,
    server: &'a Server,
    proxy: &'a Proxy,
}

impl ReinstallRecorder<'_> {
    fn request_phase(&self) -> ReinstallPhase {
        if self.server.all_messages().iter().any(|line| line["report"]["success"] == true) {
            return ReinstallPhase::Done;
        }
        if self.proxy.announced().is_empty() { ReinstallPhase::Ordered } else { ReinstallPhase::Begun }
    }

    /// Returns the response that the server would send to the agent now. It is requested as the operator, and is
    /// therefore available even before the agent registers and after it has reported.
    fn request_machine(&self) -> Result<AssignedMachine> {
        let port = self.server.port().ok_or("drophammer serve did not print its port")?;
        let mut preview = server::preview_machine(port, self.state, self.uuid)?;
        serde_json::from_value(preview["machine"].take()).context("the server's answer")
    }

    /// Saves the response, and the server's folder as a crash of the server at this moment would leave it.
    fn save_server_state(&self, phase: ReinstallPhase) -> Result<AssignedMachine> {
        let answer = self.request_machine()?;
        self.server.set_frozen(true)?;
        let copied = saved_machine::copy_folder(self.state, &phase.server_folder(self.folder));
        self.server.set_frozen(false)?;
        copied.map(|()| answer)
    }

    /// Returns two responses of the server: the last one before the reinstall has passed its point of no return, and
    /// the first one afterwards. Also saves the server's folder after the point of no return.
    fn save_responses(&self, ended: &AtomicBool) -> Result<BTreeMap<ReinstallPhase, AssignedMachine>> {
        let mut answers = BTreeMap::new();
        while !ended.load(Ordering::Relaxed) {
            let answer = self.request_machine()?;
            let order = answer.allocation.as_ref().and_then(|allocation| allocation.order.as_ref());
            match order.map(|order| order.started) {
                Some(false) => drop(answers.insert(ReinstallPhase::Ordered, answer)),
                Some(true) => {
                    answers.insert(ReinstallPhase::Begun, self.save_server_state(ReinstallPhase::Begun)?);
                    return Ok(answers);
                }
                None => {}
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Err("the server was not notified that the reinstall began".to_owned())
    }

    /// Records moments until another kernel is running.
    fn record_moments(&self, vm: &mut Vm, logs: &[PathBuf]) -> Result<Vec<RecordedMoment>> {
        let mut moments: Vec<RecordedMoment> = Vec::new();
        let (mut state, mut processed) = (AgentState::default(), 0);
        loop {
            let before = self.request_phase();
            let console = vm.console();
            let whole = console.rfind('\n').map_or(0, |end| end + 1);
            console.get(processed..whole).unwrap_or_default().lines().for_each(|line| state.process_line(line));
            processed = whole;
            let counts = logs.iter().map(|log| write_log::count_entries(log)).collect::<Result<Vec<u64>>>()?;
            let moment = RecordedMoment {
                step: state.stage.clone().unwrap_or_default(),
                phases: [before, self.request_phase()],
                counts,
            };
            if state.other_kernel_runs {
                return Ok(moments);
            }
            if moments.last() != Some(&moment) {
                moments.push(moment);
            }
            if console.contains(AGENT_EXITED) {
                return Err(format!("the recorded reinstall failed{}", vm.last_lines()));
            }
            vm.check_alive()?;
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}
