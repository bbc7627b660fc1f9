//! Machine that is switched on repeatedly with the same saved disks, until a system is running, and the check of this
//! system. The server decides whether the machine boots over the network or from disk. The power cuts and the crash
//! states use this module.

use crate::guest_facts::Facts;
use crate::host_tools::{Context, Result, run_tool};
use crate::network_boot::AGENT_EXITED;
use crate::proxy::Proxy;
use crate::qemu_machine::{BootMethod, Chassis, FAST_BOOT, Vm, quick_ramdisk};
use crate::reinstall;
use crate::reinstall_order_options::ReinstallOrderOptions;
use crate::scenario::Scenario;
use crate::scenario_run::RunContext;
use crate::server::{self, Server};
use crate::survival_checks::{CutVerdict, SurvivalGuarantees};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Interval at which the state of the machine is polled. Some steps take only a few milliseconds.
const STATE_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Interval at which the console is read, which takes longer than a poll and is less urgent.
const CONSOLE_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum number of boots after a power cut: the attempts, and the final boot from disk.
const MAX_FURTHER_BOOTS: usize = 4;

/// Saved state from which all boots start.
pub struct SavedMachine<'a> {
    pub artifacts: &'a Path,
    pub chassis: &'a Chassis<'a>,
    /// Folder of the server, which contains the reinstall order.
    pub state: PathBuf,
    pub cmdline: String,
    pub guarantees: SurvivalGuarantees,
}

/// Function that decides whether the power must be cut now, from the messages that the server has sent since power-on.
/// If so, it returns a description of the moment.
pub type CutTrigger<'a> = &'a mut dyn FnMut(&[Value]) -> Option<String>;

/// Event after which the machine is no longer running.
enum PowerOnEnd {
    /// Power cut, with a description of the moment.
    Cut(String),
    Up(Facts),
    /// End of QEMU, as after a reboot.
    Off,
    /// Exit of the agent. The machine then waits for the operator, who power-cycles it.
    AgentExited,
}

impl<'a> SavedMachine<'a> {
    /// Installs the machine, prepares its disks with `prepare`, and orders the reinstall.
    ///
    /// # Errors
    /// Fails if the installation fails, or the order is refused.
    pub fn install_and_order(
        scenario: &'a Scenario,
        artifacts: &'a Path,
        chassis: &'a Chassis<'a>,
        prepare: impl FnOnce(&str) -> Result<String>,
    ) -> Result<SavedMachine<'a>> {
        let [install, order] = &scenario.runs[..] else { return Err("two runs are required".to_owned()) };
        let allocation = Uuid::new_v4().to_string();
        let stage = |run, label: &str| RunContext {
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
        let failures = first.run_once()?.failures;
        if !failures.is_empty() {
            return Err(format!("the first installation: {}", failures.join("\n")));
        }
        let output = prepare(order.prepare.as_deref().unwrap_or_default())?;
        let second = stage(order, "run2");
        let state = chassis.folder.join("serve");
        let (mut server, proxy) = second.start_server(&state)?;
        reinstall::order_reinstall(
            &mut server,
            &proxy,
            &state,
            &chassis.uuid,
            &second.image_id(),
            &ReinstallOrderOptions::default(),
        )?;
        server.kill();
        let guarantees = SurvivalGuarantees::read(&output, first.image_id(), second.image_id())?;
        let cmdline = format!("{FAST_BOOT} {}", scenario.machine.kernel_arguments).trim().to_owned();
        Ok(SavedMachine { artifacts, chassis, state, cmdline, guarantees })
    }

    /// Runs the machine on overlays in this folder, and switches it on repeatedly until a system is running, which is
    /// then checked. The power can be cut only in the first boot.
    ///
    /// # Errors
    /// Fails if no system starts, or the witness finds violations.
    pub fn boot_until_up(&self, folder: &Path, cut: CutTrigger, verdict: &mut CutVerdict) -> Result<()> {
        let chassis = self.create_overlays(folder)?;
        let (state, server, proxy) = self.start_server(folder)?;
        let mut facts = None;
        for number in 1..=1 + MAX_FURTHER_BOOTS {
            let next = server::next_boot(proxy.port, &chassis.uuid, &chassis.mac)?;
            let how = if next.is_some() { "agent" } else { "disk" };
            let cut: CutTrigger = if number == 1 { &mut *cut } else { &mut |_| None };
            let (end, violations) =
                self.run_boot(&chassis, &server, &proxy, &format!("boot{number}"), next.as_deref(), cut)?;
            if !violations.is_empty() {
                return Err(violations.join("; "));
            }
            match end {
                PowerOnEnd::Cut(moment) => {
                    verdict.was_cut = true;
                    verdict.boots.push(format!("cut {moment}"));
                }
                PowerOnEnd::AgentExited => verdict.boots.push(format!("{how}, agent exited")),
                PowerOnEnd::Off => verdict.boots.push(format!("{how}, rebooted")),
                PowerOnEnd::Up(found) => {
                    verdict.boots.push(how.to_owned());
                    facts = Some(found);
                    break;
                }
            }
        }
        let touched = self.guarantees.find_touched_regions(&chassis)?;
        let Some(facts) = facts else {
            verdict.words.extend(touched);
            return Err(format!("no system came up in {} boots", 1 + MAX_FURTHER_BOOTS));
        };
        let order_is_open = server::order_is_open(&state, &chassis.uuid)?;
        self.guarantees.check_survival(&facts, touched, order_is_open, verdict);
        Ok(())
    }

    /// Starts a server on a copy of the saved folder, and a proxy for it.
    ///
    /// # Errors
    /// Fails if the server does not start.
    pub fn start_server(&self, folder: &Path) -> Result<(PathBuf, Server, Proxy)> {
        let state = folder.join("serve");
        copy_folder(&self.state, &state)?;
        let proxy = Proxy::start(&[])?;
        let server = Server::start(&state, &self.artifacts.join("ramdisk"), &self.cmdline, None)?;
        server.connect_proxy(&proxy)?;
        Ok((state, server, proxy))
    }

    /// Returns a machine with overlays on the saved disks.
    ///
    /// # Errors
    /// Fails if a file cannot be created.
    pub fn create_overlays<'b>(&'b self, folder: &'b Path) -> Result<Chassis<'b>> {
        // The folder may contain the files of an earlier run.
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder).context(folder.display())?;
        let chassis = Chassis {
            uuid: self.chassis.uuid.clone(),
            mac: self.chassis.mac.clone(),
            overlays: true,
            ..Chassis::new(self.chassis.machine, folder)
        };
        for disk in &chassis.disks {
            let (base, overlay) = (self.chassis.disk_file(disk), chassis.disk_file(disk));
            let (base, overlay) = (base.to_string_lossy(), overlay.to_string_lossy());
            let argv = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", &base, &overlay];
            run_tool(&argv, Stdio::null())?;
        }
        Ok(chassis)
    }

    /// Switches the machine on. With a command line it boots the agent's ramdisk, and otherwise from disk.
    ///
    /// # Errors
    /// Fails if QEMU does not start.
    pub fn switch_on(&self, chassis: &Chassis, label: &str, cmdline: Option<&str>) -> Result<Vm> {
        let (kernel, initrd) = quick_ramdisk(&self.artifacts.join("ramdisk"), chassis.machine);
        let boot = match cmdline {
            Some(cmdline) => {
                BootMethod::Direct { kernel: &kernel, initrd: &initrd, cmdline, on_copy: false, network: true }
            }
            None => BootMethod::Disk,
        };
        Vm::start(chassis, label, &boot)
    }

    /// Switches the machine on, and waits for the end of the boot. Returns the event that has ended the boot, and the
    /// violations that the witness has found.
    fn run_boot(
        &self,
        chassis: &Chassis,
        server: &Server,
        proxy: &Proxy,
        label: &str,
        cmdline: Option<&str>,
        cut: CutTrigger,
    ) -> Result<(PowerOnEnd, Vec<String>)> {
        let (earlier, announced) = (server.all_messages().len(), proxy.announced().len());
        let mut vm = self.switch_on(chassis, label, cmdline)?;
        let end = wait_for_end(&mut vm, server, earlier, cut)?;
        let announced = proxy.announced().split_off(announced);
        let violations = vm.finish_witness(announced.last().map(|notice| &notice["extents"]), !announced.is_empty())?;
        Ok((end, violations))
    }
}

/// Copies a folder recursively.
///
/// # Errors
/// Fails if `cp` fails.
pub fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    run_tool(&["cp", "-a", &from.to_string_lossy(), &to.to_string_lossy()], Stdio::null()).map(drop)
}

/// Waits until the power must be cut, a system is running, or the machine is off. `earlier` is the number of messages
/// that the server had sent before power-on.
fn wait_for_end(vm: &mut Vm, server: &Server, earlier: usize, cut: CutTrigger) -> Result<PowerOnEnd> {
    let mut last_look = Instant::now();
    loop {
        let messages = server.all_messages();
        if let Some(moment) = cut(&messages[earlier..]) {
            vm.cut_power();
            return Ok(PowerOnEnd::Cut(moment));
        }
        std::thread::sleep(STATE_POLL_INTERVAL);
        if last_look.elapsed() < CONSOLE_INTERVAL {
            continue;
        }
        last_look = Instant::now();
        if let Some(facts) = vm.facts("tiny") {
            vm.shut_down()?;
            return Ok(PowerOnEnd::Up(facts));
        }
        if vm.is_off()? {
            return Ok(PowerOnEnd::Off);
        }
        if vm.console().contains(AGENT_EXITED) {
            return Ok(PowerOnEnd::AgentExited);
        }
        vm.check_alive()?;
    }
}
