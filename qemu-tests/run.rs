//! What happens in a scenario, top to bottom: disks, server, PXE boot, power cycle, neutral look, verdict.

use crate::check::{self, Seen};
use crate::disks;
use crate::facts::Facts;
use crate::host::{Context, Result, write};
use crate::image::{self, TINY};
use crate::looker;
use crate::machine::{Boot, Chassis, Vm, in_order};
use crate::proxy::Proxy;
use crate::scenario::{Act, Event, Firmware, Moment, Outcome, Run, Scenario};
use crate::server::{self, Server};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use uuid::Uuid;

const POLL: Duration = Duration::from_millis(200);
/// What OVMF says when no disk can be booted, without and with its shell.
const NOTHING_TO_BOOT: [&str; 2] = ["No bootable option", "UEFI Interactive Shell"];
/// What the ramdisk says when the agent has ended, and how long a report may take from there to here.
const GAVE_UP: &str = "the agent ended without booting the machine";
const REPORT_PATIENCE: Duration = Duration::from_secs(10);

/// Runs a scenario below `work` with what was built in `artifacts`.
///
/// # Errors
/// Everything that is not as expected, and where the logs are.
pub fn run(scenario: &Scenario, artifacts: &Path, work: &Path) -> Result<()> {
    let needed = [
        ("ramdisk/vmlinuz", "build-ramdisk"),
        ("ramdisk/initrd", "build-ramdisk"),
        ("ramdisk/inspect", "build-ramdisk"),
        (TINY, "build-tiny"),
    ];
    for (file, script) in needed {
        let path = artifacts.join(file);
        if !path.exists() {
            return Err(format!("{} is missing: run scripts/{script}", path.display()));
        }
    }
    let folder = work.join(&scenario.name);
    // What an earlier failure left; usually there is nothing.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).context(folder.display())?;
    let result = all_runs(scenario, artifacts, &folder);
    let keep = std::env::var_os("DROPHAMMER_KEEP").is_some();
    if result.is_ok() && !keep {
        return fs::remove_dir_all(&folder).context(folder.display());
    }
    let about = &scenario.machine.about;
    result.map_err(|failures| format!("{about}\n{failures}\ndisks and logs are kept in {}", folder.display()))
}

fn all_runs(scenario: &Scenario, artifacts: &Path, folder: &Path) -> Result<()> {
    for disk in &scenario.machine.disks {
        disks::make(folder, disk).context(format!("disk {}", disk.name))?;
    }
    let uuid = Uuid::new_v4();
    let [a, b, c, ..] = *uuid.as_bytes();
    let mac = format!("52:54:00:{a:02x}:{b:02x}:{c:02x}");
    let disks = in_order(&scenario.machine.disks, &[]);
    let mut chassis = Chassis { machine: &scenario.machine, uuid: uuid.to_string(), mac, folder, disks };
    if let Some(script) = &scenario.machine.prepare {
        looker::prepare(&chassis, artifacts, script)?;
    }
    let mut allocation = String::new();
    for (index, run) in scenario.runs.iter().enumerate() {
        if !run.same_allocation || allocation.is_empty() {
            allocation = Uuid::new_v4().to_string();
        }
        chassis.disks = in_order(&scenario.machine.disks, &run.disks_order);
        let label = format!("run{}", index + 1);
        let stage = Stage { scenario, run, artifacts, chassis: &chassis, allocation: &allocation, label };
        let failures = stage.play().unwrap_or_else(|failure| vec![failure]);
        if !failures.is_empty() {
            let list: Vec<String> = failures.iter().map(|failure| format!("  - {failure}")).collect();
            return Err(format!("run {} of {}:\n{}", index + 1, scenario.runs.len(), list.join("\n")));
        }
    }
    Ok(())
}

/// One run and all that it needs.
struct Stage<'a> {
    scenario: &'a Scenario,
    run: &'a Run,
    artifacts: &'a Path,
    chassis: &'a Chassis<'a>,
    allocation: &'a str,
    label: String,
}

impl Stage<'_> {
    /// The whole run; what is not as expected.
    fn play(&self) -> Result<Vec<String>> {
        let before = self.fingerprints()?;
        let mut seen = self.network_boot()?;
        let after = self.fingerprints()?;
        let names = self.scenario.machine.disks.iter().map(|disk| disk.name.clone());
        let changed = names.zip(before.iter().zip(&after)).filter(|(_, (before, after))| before != after);
        seen.changed_disks = changed.map(|(name, _)| name).collect();
        for (name, text) in &self.run.expect.no_trace_of {
            if disks::holds(&self.chassis.folder.join(format!("{name}.raw")), text)? {
                seen.traces.push(name.clone());
            }
        }
        if self.run.expect.outcome == Outcome::Installed {
            seen.from_disk = Some(self.disk_boot("disk", &Boot::Disk)?);
        }
        for name in &self.run.expect.boots_without {
            let facts = self.disk_boot(&format!("without-{name}"), &Boot::DiskWithout(name));
            seen.without.push((name.clone(), facts.context(format!("without {name}"))?));
        }
        if self.run.expect.nothing_bootable {
            self.nothing_boots()?;
        }
        if !self.run.expect.inspect.asks_nothing() {
            let label = format!("{}-inspect", self.label);
            seen.inspect = Some(looker::look(self.chassis, self.artifacts, &label, &self.run.expect.inspect)?);
        }
        Ok(check::failures(&self.scenario.machine, &self.run.expect, &seen))
    }

    fn fingerprints(&self) -> Result<Vec<String>> {
        let disks = self.scenario.machine.disks.iter();
        disks.map(|disk| disks::fingerprint(&disks::path(self.chassis.folder, disk))).collect()
    }

    /// Fills the server's folder. Its database stays there from run to run.
    fn write_state(&self, state: &Path, base: &str) -> Result<()> {
        let layout = match (&self.run.layout, &self.run.layout_file) {
            (Some(text), _) => text.clone(),
            (None, Some(file)) => {
                let path = self.find(file, Path::new(env!("CARGO_MANIFEST_DIR")));
                fs::read_to_string(&path).context(path.display())?
            }
            (None, None) => String::new(),
        };
        let id = layout.lines().find_map(|line| line.strip_prefix("id:")).unwrap_or("nameless");
        let id = id.split('#').next().unwrap_or_default().trim().trim_matches(['"', '\'']);
        server::put(state, "layouts", id, &layout)?;
        let image = format!("tiny-1.0.{}", self.label);
        let original = match &self.run.image.file {
            Some(file) => self.find(file, self.artifacts),
            None => self.artifacts.join(TINY),
        };
        image::offer(&self.run.image, &original, &image, state, base)?;
        let mut allocation = json!({
            "id": self.allocation, "hostname": "machine", "project": "scenarios", "image": image, "filesystemlayout": id,
            "ssh_pub_keys": [], "user_data": "",
        });
        for (key, value) in &self.run.allocation {
            allocation[key] = value.clone();
        }
        let machine = json!({
            "id": self.chassis.uuid, "name": self.scenario.name, "macs": [self.chassis.mac], "size": "c1-large-x86",
            "allocation": allocation,
        });
        // JSON is YAML too.
        server::put(state, "machines", "machine", format!("{machine:#}\n"))
    }

    /// Beside the scenario, else in `or`.
    fn find(&self, file: &Path, or: &Path) -> PathBuf {
        let beside = self.scenario.folder.join(file);
        if beside.exists() { beside } else { or.join(file) }
    }

    /// Power on with the network, until the outcome shows.
    fn network_boot(&self) -> Result<Seen> {
        let proxy = Proxy::start(&self.run.image.cut_connection_at)?;
        let state = self.chassis.folder.join("serve");
        fs::create_dir_all(&state).context(state.display())?;
        self.write_state(&state, &format!("http://10.0.2.2:{}", proxy.port))?;
        // On a busy host an emulated timer can be too late for the kernel, which panics then.
        let cmdline = format!("no_timer_check {}", self.scenario.machine.kernel_arguments);
        let server = Server::start(&state, &self.artifacts.join("ramdisk"), cmdline.trim())?;
        proxy.set_server(server.port().ok_or("drophammer serve does not say its port")?);
        let tftp = self.chassis.folder.join("tftp");
        fs::create_dir_all(&tftp).context(tftp.display())?;
        write(&tftp.join("start.ipxe"), server::start_script(proxy.port)?)?;
        let vm = Vm::start(self.chassis, &format!("{}-network", self.label), &Boot::Network(&tftp))?;
        let pending = self.run.events.clone();
        let mut drama = Drama { stage: self, server, proxy, tftp, vm, pending, repairs: vec![], gave_up: None };
        let over_network = drama.watch()?;
        let said = drama.server.said();
        Ok(Seen {
            report: said.iter().rev().find(|line| line["report"].is_object()).map(|line| line["report"].clone()),
            events: said.iter().filter_map(|line| line["event"].as_str().map(str::to_owned)).collect(),
            console: drama.vm.console(),
            requests: drama.proxy.requests(),
            problems: said.iter().filter_map(|line| line["problem"].as_str().map(str::to_owned)).collect(),
            over_network,
            ..Seen::default()
        })
    }

    /// After a power cut, without any network card: the installed system must come up by itself.
    fn disk_boot(&self, label: &str, boot: &Boot) -> Result<Facts> {
        let mut vm = Vm::start(self.chassis, &format!("{}-{label}", self.label), boot)?;
        loop {
            if let Some(facts) = vm.facts("tiny") {
                return Ok(facts);
            }
            vm.check_alive().context("boot from disk")?;
            std::thread::sleep(POLL);
        }
    }

    /// After a failure the firmware must not find half a system. A BIOS does not say so: it runs whatever is in a disk's
    /// first sector, so nothing may be there.
    fn nothing_boots(&self) -> Result<()> {
        if self.scenario.machine.firmware == Firmware::Uefi {
            return self.futile_boot();
        }
        for disk in &self.scenario.machine.disks {
            if disks::has_boot_code(&disks::path(self.chassis.folder, disk))? {
                return Err(format!("disk {} has boot code in its first sector after a failed install", disk.name));
            }
        }
        Ok(())
    }

    fn futile_boot(&self) -> Result<()> {
        let mut vm = Vm::start(self.chassis, &format!("{}-futile", self.label), &Boot::Disk)?;
        loop {
            let console = vm.console();
            if NOTHING_TO_BOOT.iter().any(|text| console.contains(text)) {
                return Ok(());
            }
            if console.contains("Linux version") || console.contains("GRUB") {
                return Err(format!("the disk boots after a failed install{}", vm.last_lines()));
            }
            vm.check_alive().context("boot from a disk that must not boot")?;
            std::thread::sleep(POLL);
        }
    }
}

/// The boot over the network while it goes on, with all that can happen to it.
struct Drama<'a> {
    stage: &'a Stage<'a>,
    server: Server,
    proxy: Proxy,
    tftp: PathBuf,
    vm: Vm,
    pending: Vec<Event>,
    /// What is broken now and when it gets well.
    repairs: Vec<(Instant, Act)>,
    /// When the agent was seen to have ended.
    gave_up: Option<Instant>,
}

impl Drama<'_> {
    /// Until the outcome shows; the facts of the installed system when it has come up.
    fn watch(&mut self) -> Result<Option<Facts>> {
        let outcome = self.stage.run.expect.outcome;
        let fails = matches!(outcome, Outcome::Failed | Outcome::Refused);
        loop {
            let said = self.server.said();
            if outcome == Outcome::Waiting && said.iter().any(|line| line["event"] == "Waiting") {
                return Ok(None);
            }
            if let Some(report) = said.iter().map(|line| &line["report"]).find(|report| report["success"] == false) {
                if fails {
                    return Ok(None);
                }
                let (step, message) = (&report["step"], report["message"].as_str().unwrap_or_default());
                return Err(format!("the install failed in step {step}: {message}{}", self.vm.last_lines()));
            }
            if let Some(facts) = self.vm.facts("tiny") {
                return if fails { Err("it installed and booted".to_owned()) } else { Ok(Some(facts)) };
            }
            self.vm.check_alive()?;
            self.check_agent()?;
            self.fire(&said)?;
            self.repair()?;
            std::thread::sleep(POLL);
        }
    }

    /// An agent that ends without a report would otherwise cost the whole deadline.
    fn check_agent(&mut self) -> Result<()> {
        if self.gave_up.is_none() && self.vm.console().contains(GAVE_UP) {
            self.gave_up = Some(Instant::now());
        }
        if self.gave_up.is_some_and(|since| since.elapsed() > REPORT_PATIENCE) {
            return Err(format!("the agent ended and no report of a failure came{}", self.vm.last_lines()));
        }
        Ok(())
    }

    fn fire(&mut self, said: &[Value]) -> Result<()> {
        let console = self.vm.console();
        let has = |field: &str, wanted: &str| said.iter().any(|line| line[field] == wanted);
        let is_now = |event: &Event| match &event.at {
            Moment::Step(step) => has("step", step),
            Moment::Event(name) => has("event", name),
            Moment::Console(text) => console.contains(text),
            Moment::ProgressBytes(bytes) => said.iter().any(|line| line["progress"]["bytes"].as_u64() >= Some(*bytes)),
        };
        let (now, later) = std::mem::take(&mut self.pending).into_iter().partition(is_now);
        self.pending = later;
        for event in now {
            self.act(&event)?;
        }
        Ok(())
    }

    fn act(&mut self, event: &Event) -> Result<()> {
        let time = Duration::from_secs(event.seconds);
        match event.act {
            Act::PowerCut => {
                let label = format!("{}-network-again", self.stage.label);
                self.gave_up = None;
                self.vm.power_cycle(self.stage.chassis, &label, &Boot::Network(&self.tftp))?;
            }
            Act::LinkDown => self.vm.link(false)?,
            Act::ServerStop => self.server.freeze(true)?,
            Act::ServerKill => self.server.kill(),
            Act::ServerErrors => self.proxy.break_for(time),
        }
        self.repairs.push((Instant::now() + time, event.act));
        Ok(())
    }

    fn repair(&mut self) -> Result<()> {
        let (due, later) = self.repairs.drain(..).partition(|(when, _)| *when <= Instant::now());
        self.repairs = later;
        let due: Vec<(Instant, Act)> = due;
        for (_, act) in due {
            match act {
                Act::LinkDown => self.vm.link(true)?,
                Act::ServerStop => self.server.freeze(false)?,
                Act::ServerKill => {
                    self.server.restart()?;
                    self.proxy.set_server(self.server.port().ok_or("drophammer serve does not say its port")?);
                }
                Act::PowerCut | Act::ServerErrors => {}
            }
        }
        Ok(())
    }
}
