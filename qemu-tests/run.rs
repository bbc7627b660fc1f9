//! What happens in a scenario, top to bottom: disks, server, PXE boot, power cycle, neutral look, verdict.

use crate::check::{self, Seen};
use crate::disks;
use crate::drama::{self, Drama};
use crate::earlier::{self, Memory};
use crate::expect::{Expect, Outcome};
use crate::facts::Facts;
use crate::host::{Context, Result, write};
use crate::image;
use crate::looker;
use crate::machine::{Boot, Chassis, POLL, SPARED, Vm, in_order, quick_ramdisk};
use crate::proxy::Proxy;
use crate::ramdisk;
use crate::registry::Registry;
use crate::reinstall;
use crate::scenario::{Act, BootFrom, Firmware, Run, Scenario};
use crate::served::System;
use crate::server::{self, Server};
use crate::times;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// What OVMF says when no disk can be booted, without and with its shell.
const NOTHING_TO_BOOT: [&str; 2] = ["No bootable option", "UEFI Interactive Shell"];

/// Runs a scenario below `work` with what was built in `artifacts`.
///
/// # Errors
/// Everything that is not as expected, and where the logs are.
pub fn run(scenario: &Scenario, artifacts: &Path, work: &Path) -> Result<()> {
    need(artifacts)?;
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

/// What the scripts have built is there.
///
/// # Errors
/// Which script is to be run.
pub fn need(artifacts: &Path) -> Result<()> {
    let needed = [
        ("ramdisk/vmlinuz".to_owned(), "build-ramdisk"),
        ("ramdisk/initrd".to_owned(), "build-ramdisk"),
        ("ramdisk/vmlinux".to_owned(), "build-ramdisk"),
        ("ramdisk/quick".to_owned(), "build-ramdisk"),
        ("ramdisk/inspect".to_owned(), "build-ramdisk"),
        (image::of(System::Tiny), "build-tiny"),
    ];
    for (file, script) in &needed {
        let path = artifacts.join(file);
        if !path.exists() {
            return Err(format!("{} is missing: run scripts/{script}", path.display()));
        }
    }
    Ok(())
}

/// A new machine of the scenario, with its disks as they are before the first run.
///
/// # Errors
/// A disk cannot be made.
pub fn assemble<'a>(scenario: &'a Scenario, artifacts: &Path, folder: &'a Path) -> Result<Chassis<'a>> {
    for disk in &scenario.machine.disks {
        disks::make(folder, disk).context(format!("disk {}", disk.name))?;
    }
    let uuid = Uuid::new_v4();
    let [a, b, c, ..] = *uuid.as_bytes();
    let mac = format!("52:54:00:{a:02x}:{b:02x}:{c:02x}");
    // The server's file is written of what the machine is at first.
    let first = scenario.runs.first();
    let chassis = Chassis {
        uuid: first.and_then(|run| run.uuid.clone()).unwrap_or(uuid.to_string()),
        mac: first.and_then(|run| run.macs.first().cloned()).unwrap_or(mac),
        ..Chassis::new(&scenario.machine, folder)
    };
    if let Some(script) = &scenario.machine.prepare {
        looker::prepare(&chassis, artifacts, "prepare", script)?;
    }
    Ok(chassis)
}

fn all_runs(scenario: &Scenario, artifacts: &Path, folder: &Path) -> Result<()> {
    let mut chassis = assemble(scenario, artifacts, folder)?;
    let mut allocation = String::new();
    let mut installed = None;
    let mut earlier = Vec::new();
    for (index, run) in scenario.runs.iter().enumerate() {
        let goes_on = run.same_allocation || run.reinstall.is_some();
        if !goes_on || allocation.is_empty() {
            allocation = Uuid::new_v4().to_string();
        }
        let label = format!("run{}", index + 1);
        plug(&mut chassis, run)?;
        if let Some(script) = &run.prepare {
            looker::prepare(&chassis, artifacts, &format!("{label}-prepare"), script)?;
        }
        let stage = Stage {
            scenario,
            run,
            artifacts,
            chassis: &chassis,
            allocation: &allocation,
            label,
            installed: &installed,
            earlier: &earlier,
        };
        let Played { outcome, failures, memory } = stage.play().unwrap_or_else(Played::broken);
        let image = stage.image();
        if !failures.is_empty() {
            let list: Vec<String> = failures.iter().map(|failure| format!("  - {failure}")).collect();
            return Err(format!("run {} of {}:\n{}", index + 1, scenario.runs.len(), list.join("\n")));
        }
        if outcome == Outcome::Installed {
            installed = Some(image);
        }
        earlier.push(memory);
    }
    Ok(())
}

/// The disks of this run: who is there, where, and who is new.
fn plug(chassis: &mut Chassis, run: &Run) -> Result<()> {
    chassis.disks = in_order(&chassis.machine.disks, &run.disks_order);
    chassis.absent.clone_from(&run.absent);
    chassis.hotplug = run.events.iter().any(|event| event.act == Act::Replug);
    if run.uuid.is_some() {
        chassis.shown_uuid.clone_from(&run.uuid);
    }
    if !run.macs.is_empty() {
        chassis.shown_macs.clone_from(&run.macs);
    }
    for disk in chassis.machine.disks.iter().filter(|disk| run.replaced.contains(&disk.name)) {
        disks::make_empty(chassis.folder, disk)?;
        *chassis.replaced.entry(disk.name.clone()).or_default() += 1;
    }
    Ok(())
}

/// One run and all that it needs.
pub struct Stage<'a> {
    pub scenario: &'a Scenario,
    pub run: &'a Run,
    pub artifacts: &'a Path,
    pub chassis: &'a Chassis<'a>,
    pub allocation: &'a str,
    pub label: String,
    /// The image of the last run that installed one.
    pub installed: &'a Option<String>,
    /// What the runs before have left, the first one first.
    pub earlier: &'a [Memory],
}

/// How a run went.
pub struct Played {
    /// One of the two, where the scenario leaves it open.
    pub outcome: Outcome,
    /// What is not as expected.
    pub failures: Vec<String>,
    pub memory: Memory,
}

impl Played {
    fn broken(failure: String) -> Played {
        Played { outcome: Outcome::Failed, failures: vec![failure], memory: Memory::default() }
    }
}

impl Stage<'_> {
    /// The whole run.
    ///
    /// # Errors
    /// It cannot go on.
    pub fn play(&self) -> Result<Played> {
        let before = self.fingerprints()?;
        let mut seen = self.network_boot()?;
        let after = self.fingerprints()?;
        let names = self.scenario.machine.disks.iter().map(|disk| disk.name.clone());
        let changed = names.zip(before.iter().zip(&after)).filter(|(_, (before, after))| before != after);
        seen.changed_disks = changed.map(|(name, _)| name).collect();
        let expect = self.run.expect.settled(seen.over_network.is_some());
        seen.named_as_listed = self.run.disks_order.is_empty() && self.run.absent.is_empty();
        for (name, text) in &expect.no_trace_of {
            if disks::holds(&self.chassis.folder.join(format!("{name}.raw")), text)? {
                seen.traces.push(name.clone());
            }
        }
        if expect.outcome.comes_up() && expect.outcome != Outcome::Local {
            seen.from_disk = Some(self.disk_boot("disk", &Boot::Disk)?);
        }
        for name in &expect.boots_without {
            let facts = self.disk_boot(&format!("without-{name}"), &Boot::DiskWithout(name));
            seen.without.push((name.clone(), facts.context(format!("without {name}"))?));
        }
        if expect.nothing_bootable {
            self.nothing_boots()?;
        }
        if !expect.inspect.asks_nothing() || earlier::needs_look(&self.scenario.runs, self.earlier.len() + 1) {
            let label = format!("{}-inspect", self.label);
            seen.inspect = Some(looker::look(self.chassis, self.artifacts, &label, &expect.inspect)?);
        }
        self.judge(&expect, &seen)
    }

    fn judge(&self, expect: &Expect, seen: &Seen) -> Result<Played> {
        let memory = Memory::take(self.chassis, &self.scenario.runs, seen.inspect.as_ref())?;
        let mut failures = check::failures(&self.scenario.machine, expect, seen);
        failures.extend(earlier::failures(expect, &memory, self.earlier));
        Ok(Played { outcome: expect.outcome, failures, memory })
    }

    fn fingerprints(&self) -> Result<Vec<String>> {
        let disks = self.scenario.machine.disks.iter();
        times::timed("harness: digests of the disks", || {
            disks.map(|disk| disks::fingerprint(&self.chassis.file(disk))).collect()
        })
    }

    /// Id of the image that this run offers.
    pub fn image(&self) -> String {
        format!("tiny-1.0.{}", self.label)
    }

    /// Fills the server's folder, and the registry if the image is in one. The server's database stays there from run to run. A reinstall leaves the machine's file alone:
    /// its image is in the order.
    fn write_state(&self, state: &Path, base: &str) -> Result<Option<Registry>> {
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
        let image = self.image();
        let original = match &self.run.image.file {
            Some(file) => self.find(file, self.artifacts),
            None => self.artifacts.join(image::of(self.run.image.system)),
        };
        let registry = image::offer(&self.run.image, &original, &image, state, base)?;
        if self.run.reinstall.is_some() {
            self.change_machine_file(state)?;
            return Ok(registry);
        }
        let mut allocation = json!({
            "id": self.allocation, "hostname": "machine", "project": "scenarios", "image": image, "filesystemlayout": id,
            "ssh_pub_keys": [], "user_data": "",
        });
        for (key, value) in &self.run.allocation {
            allocation[key] = value.clone();
        }
        let macs = self.scenario.runs.first().map(|run| run.macs.clone()).filter(|macs| !macs.is_empty());
        let mut machine = json!({
            "id": self.chassis.uuid, "name": self.scenario.name, "macs": macs.unwrap_or(vec![self.chassis.mac.clone()]),
            "size": "c1-large-x86", "allocation": allocation,
        });
        for (key, value) in &self.run.machine_file {
            machine[key] = value.clone();
        }
        // JSON is YAML too.
        server::put(state, "machines", "machine", format!("{machine:#}\n"))?;
        Ok(registry)
    }

    /// What the operator changes in the machine's file beside an order: nothing but what the run says.
    fn change_machine_file(&self, state: &Path) -> Result<()> {
        if self.run.machine_file.is_empty() {
            return Ok(());
        }
        let path = state.join("machines/machine.yaml");
        let text = fs::read_to_string(&path).context(path.display())?;
        let mut machine: Value = serde_json::from_str(&text).context(path.display())?;
        for (key, value) in &self.run.machine_file {
            machine[key] = value.clone();
        }
        server::put(state, "machines", "machine", format!("{machine:#}\n"))
    }

    /// What the server calls the machine.
    fn machine_id(&self) -> &str {
        self.run.machine_file.get("id").and_then(Value::as_str).unwrap_or(&self.chassis.uuid)
    }

    /// Where kernel and ramdisk lie that this run boots.
    fn boot_files(&self) -> PathBuf {
        match self.run.before_agent {
            None => self.artifacts.join("ramdisk"),
            Some(_) => self.chassis.folder.join(format!("{}-boot", self.label)),
        }
    }

    /// The same, made where the ramdisk has a script of this run in it.
    fn boot_folder(&self) -> Result<PathBuf> {
        let folder = self.boot_files();
        let Some(script) = &self.run.before_agent else { return Ok(folder) };
        let built = self.artifacts.join("ramdisk");
        fs::create_dir_all(&folder).context(folder.display())?;
        for name in ["vmlinuz", "vmlinux", "drophammer"] {
            let from = built.join(name);
            fs::copy(&from, folder.join(name)).context(from.display())?;
        }
        let files = [("before-agent", script.clone())];
        for name in ["initrd", "quick"] {
            let whole = ramdisk::with_files(self.chassis.folder, &built.join(name), &files)?;
            write(&folder.join(name), whole)?;
        }
        Ok(folder)
    }

    /// Beside the scenario, else in `or`.
    fn find(&self, file: &Path, or: &Path) -> PathBuf {
        let beside = self.scenario.folder.join(file);
        if beside.exists() { beside } else { or.join(file) }
    }

    /// The server with all that this run gives it, and the wire to it.
    ///
    /// # Errors
    /// It does not start.
    pub fn serve(&self, state: &Path) -> Result<(Server, Proxy)> {
        let proxy = Proxy::start(&self.run.image.cut_connection_at)?;
        proxy.set_lie(self.run.image.lie, self.run.image.cut_for_ever);
        fs::create_dir_all(state).context(state.display())?;
        if self.run.forget {
            server::forget(state)?;
        }
        if let Some(registry) = self.write_state(state, &format!("http://10.0.2.2:{}", proxy.port))? {
            proxy.set_registry(registry);
        }
        let cmdline = format!("{SPARED} {}", self.scenario.machine.kernel_arguments);
        let server = Server::start(state, &self.boot_folder()?, cmdline.trim())?;
        server.connect(&proxy)?;
        Ok((server, proxy))
    }

    /// The button if it is to be pressed, power on, and what happens until the outcome shows.
    fn network_boot(&self) -> Result<Seen> {
        let state = self.chassis.folder.join("serve");
        let (mut server, proxy) = times::timed("harness: image, server", || self.serve(&state))?;
        proxy.set_traps(drama::traps(&self.run.events));
        proxy.set_holds(drama::holds(&self.run.events));
        let tftp = self.chassis.folder.join("tftp");
        fs::create_dir_all(&tftp).context(tftp.display())?;
        write(&tftp.join("start.ipxe"), server::start_script(proxy.port)?)?;
        let pressed = match &self.run.reinstall {
            None => Ok(()),
            Some(button) => {
                reinstall::press(&mut server, &proxy, &state, self.machine_id(), &self.image(), button.without_marker)
            }
        };
        if self.run.expect.outcome == Outcome::Denied {
            return Ok(Seen { denied: Some(pressed.err().unwrap_or_default()), ..Seen::default() });
        }
        pressed?;
        let label = format!("{}-network", self.label);
        let vm = match self.run.boot {
            BootFrom::Pxe | BootFrom::Direct => self.over_network(&label, &tftp, proxy.port)?,
            BootFrom::Kexec => {
                let script = self.chassis.folder.join("script");
                write(&script, reinstall::script(proxy.port))?;
                Vm::start(self.chassis, &label, &Boot::DiskThen(&script))?
            }
        };
        let mut drama = Drama::new(self, server, proxy, tftp.clone(), vm);
        let over_network = drama.watch()?;
        let mut seen = drama.seen()?;
        seen.report.iter().for_each(times::stages);
        if seen.report.is_none() && self.run.expect.outcome == Outcome::Installed {
            seen.report = server::kept_report(&state, self.machine_id())?;
        }
        seen.over_network = over_network;
        if reinstall::asks_for_order(self.run) {
            seen.order_is_open = Some(server::order_is_open(&state, self.machine_id())?);
        }
        seen.image = reinstall::expected_image(self.run, &self.image(), self.installed.as_deref());
        Ok(seen)
    }

    /// Switches the machine on, to boot over the network: through firmware and iPXE, or with the harness in their place.
    ///
    /// # Errors
    /// QEMU does not start; the server has no boot script.
    pub fn over_network(&self, label: &str, tftp: &Path, port: u16) -> Result<Vm> {
        if self.run.boot != BootFrom::Direct {
            return Vm::start(self.chassis, label, &Boot::Network(tftp));
        }
        let (kernel, initrd) = quick_ramdisk(&self.boot_files(), self.chassis.machine.firmware);
        // The firmware says what the machine shows, whatever the server's file has.
        let uuid = self.chassis.shown_uuid.as_ref().unwrap_or(&self.chassis.uuid);
        let mac = self.chassis.shown_macs.first().unwrap_or(&self.chassis.mac);
        let script = server::boot_script(port, uuid, mac)?;
        let boot = match &script {
            Some(cmdline) => Boot::Direct { kernel: &kernel, initrd: &initrd, cmdline, on_copy: false, network: true },
            None => Boot::Disk,
        };
        Vm::start(self.chassis, label, &boot)
    }

    /// After a power cut, without any network card: the installed system must come up by itself.
    ///
    /// # Errors
    /// It does not.
    pub fn disk_boot(&self, label: &str, boot: &Boot) -> Result<Facts> {
        let mut vm = Vm::start(self.chassis, &format!("{}-{label}", self.label), boot)?;
        loop {
            if let Some(facts) = vm.facts(self.run.image.system.name()) {
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
            if disks::has_boot_code(&self.chassis.file(disk))? {
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
