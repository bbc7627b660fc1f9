//! What happens in a scenario, top to bottom: disks, server, PXE boot, power cycle, neutral look, verdict.

use crate::check::{self, Seen};
use crate::disks;
use crate::drama::{self, Drama};
use crate::expect::Outcome;
use crate::facts::Facts;
use crate::host::{Context, Result, write};
use crate::image;
use crate::looker;
use crate::machine::{Boot, Chassis, POLL, SPARED, Vm, in_order, quick_ramdisk};
use crate::proxy::Proxy;
use crate::registry::Registry;
use crate::reinstall;
use crate::scenario::{BootFrom, Firmware, Run, Scenario, System};
use crate::server::{self, Server};
use crate::times;
use serde_json::json;
use std::collections::BTreeMap;
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
    let chassis = Chassis {
        machine: &scenario.machine,
        uuid: uuid.to_string(),
        mac: format!("52:54:00:{a:02x}:{b:02x}:{c:02x}"),
        folder,
        disks: in_order(&scenario.machine.disks, &[]),
        absent: vec![],
        replaced: BTreeMap::new(),
        overlays: false,
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
        };
        let failures = stage.play().unwrap_or_else(|failure| vec![failure]);
        let image = stage.image();
        if !failures.is_empty() {
            let list: Vec<String> = failures.iter().map(|failure| format!("  - {failure}")).collect();
            return Err(format!("run {} of {}:\n{}", index + 1, scenario.runs.len(), list.join("\n")));
        }
        if run.expect.outcome == Outcome::Installed {
            installed = Some(image);
        }
    }
    Ok(())
}

/// The disks of this run: who is there, where, and who is new.
fn plug(chassis: &mut Chassis, run: &Run) -> Result<()> {
    chassis.disks = in_order(&chassis.machine.disks, &run.disks_order);
    chassis.absent.clone_from(&run.absent);
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
}

impl Stage<'_> {
    /// The whole run; what is not as expected.
    ///
    /// # Errors
    /// It cannot go on.
    pub fn play(&self) -> Result<Vec<String>> {
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
        if self.run.expect.outcome.comes_up() && self.run.expect.outcome != Outcome::Local {
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
        times::timed("harness: digests of the disks", || disks.map(|disk| disks::fingerprint(&self.chassis.file(disk))).collect())
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
            return Ok(registry);
        }
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
        server::put(state, "machines", "machine", format!("{machine:#}\n"))?;
        Ok(registry)
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
        fs::create_dir_all(state).context(state.display())?;
        if self.run.forget {
            server::forget(state)?;
        }
        if let Some(registry) = self.write_state(state, &format!("http://10.0.2.2:{}", proxy.port))? {
            proxy.set_registry(registry);
        }
        let cmdline = format!("{SPARED} {}", self.scenario.machine.kernel_arguments);
        let server = Server::start(state, &self.artifacts.join("ramdisk"), cmdline.trim())?;
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
                reinstall::press(&mut server, &proxy, &state, &self.chassis.uuid, &self.image(), button.without_marker)
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
        let mut seen = drama.seen();
        seen.report.iter().for_each(times::stages);
        if seen.report.is_none() && self.run.expect.outcome == Outcome::Installed {
            seen.report = server::kept_report(&state, &self.chassis.uuid)?;
        }
        seen.over_network = over_network;
        if reinstall::asks_for_order(self.run) {
            seen.order_is_open = Some(server::order_is_open(&state, &self.chassis.uuid)?);
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
        let (kernel, initrd) = quick_ramdisk(self.artifacts, self.chassis.machine.firmware);
        let script = server::boot_script(port, &self.chassis.uuid, &self.chassis.mac)?;
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
