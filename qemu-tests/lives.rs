//! A machine that is switched on again and again from the same saved disks, over the network or from disk as the server says,
//! until a system is up; and what must have become of it. Used by the power cuts and by the crash states.

use crate::drama::GAVE_UP;
use crate::facts::Facts;
use crate::host::{Context, Result, tool};
use crate::machine::{Boot, Chassis, SPARED, Vm, quick_ramdisk};
use crate::proxy::Proxy;
use crate::reinstall;
use crate::run::Stage;
use crate::scenario::{Reinstall, Scenario};
use crate::server::{self, Server};
use crate::survivors::{Promise, Verdict};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// A step may last a few milliseconds; to look at the machine's own words takes longer and is not urgent.
const POLL: Duration = Duration::from_millis(10);
const LOOK: Duration = Duration::from_millis(200);
/// After a cut: attempts, and the boot from disk at the end.
const LIVES: usize = 4;

/// What is the same for all that begins from the saved disks.
pub struct Start<'a> {
    pub artifacts: &'a Path,
    pub chassis: &'a Chassis<'a>,
    /// The server's folder with the order in it.
    pub state: PathBuf,
    pub cmdline: String,
    pub promise: Promise,
}

/// Looks at what the server has heard in this life, and says where the power is to go when that moment has come.
pub type Cut<'a> = &'a mut dyn FnMut(&[Value]) -> Option<String>;

/// How a life of the machine ended.
enum End {
    /// At the cut, and where that was.
    Cut(String),
    Up(Facts),
    /// By itself: a reboot.
    Off,
    /// The agent has ended and waits for a person, who switches the machine off and on.
    GaveUp,
}

impl<'a> Start<'a> {
    /// The first installation, what `prepare` puts on the disks when it is given the script, and the button.
    ///
    /// # Errors
    /// The installation fails, or the order is refused.
    pub fn install_and_order(
        scenario: &'a Scenario,
        artifacts: &'a Path,
        chassis: &'a Chassis<'a>,
        prepare: impl FnOnce(&str) -> Result<String>,
    ) -> Result<Start<'a>> {
        let [install, order] = &scenario.runs[..] else { return Err("two runs are wanted".to_owned()) };
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
        let said = prepare(order.prepare.as_deref().unwrap_or_default())?;
        let second = stage(order, "run2");
        let state = chassis.folder.join("serve");
        let (mut server, proxy) = second.serve(&state)?;
        reinstall::press(&mut server, &proxy, &state, &chassis.uuid, &second.image(), &Reinstall::default())?;
        server.kill();
        let promise = Promise::read(&said, first.image(), second.image())?;
        let cmdline = format!("{SPARED} {}", scenario.machine.kernel_arguments).trim().to_owned();
        Ok(Start { artifacts, chassis, state, cmdline, promise })
    }

    /// Lives on overlays in this folder until a system is up, the first one until the cut at most, and judges what came up.
    ///
    /// # Errors
    /// No system comes up, or the witness has something against a life.
    pub fn lives(&self, folder: &Path, cut: Cut, verdict: &mut Verdict) -> Result<()> {
        let chassis = self.overlays(folder)?;
        let (state, server, proxy) = self.serve(folder)?;
        let mut facts = None;
        for life in 1..=1 + LIVES {
            let next = server::next_boot(proxy.port, &chassis.uuid, &chassis.mac)?;
            let how = if next.is_some() { "agent" } else { "disk" };
            let cut: Cut = if life == 1 { &mut *cut } else { &mut |_| None };
            let (end, broken) = self.live(&chassis, &server, &proxy, &format!("life{life}"), next.as_deref(), cut)?;
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

    /// A server on a copy of the saved folder, and the wire to it.
    ///
    /// # Errors
    /// It does not start.
    pub fn serve(&self, folder: &Path) -> Result<(PathBuf, Server, Proxy)> {
        let state = folder.join("serve");
        copy(&self.state, &state)?;
        let proxy = Proxy::start(&[])?;
        let server = Server::start(&state, &self.artifacts.join("ramdisk"), &self.cmdline, None)?;
        server.connect(&proxy)?;
        Ok((state, server, proxy))
    }

    /// A machine on the saved disks. What it writes goes elsewhere.
    ///
    /// # Errors
    /// A file cannot be made.
    pub fn overlays<'b>(&'b self, folder: &'b Path) -> Result<Chassis<'b>> {
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

    /// Switches the machine on: the agent if there is a command line for it, else the disk.
    ///
    /// # Errors
    /// QEMU does not start.
    pub fn switch_on(&self, chassis: &Chassis, label: &str, cmdline: Option<&str>) -> Result<Vm> {
        let (kernel, initrd) = quick_ramdisk(&self.artifacts.join("ramdisk"), chassis.machine);
        let boot = match cmdline {
            Some(cmdline) => Boot::Direct { kernel: &kernel, initrd: &initrd, cmdline, on_copy: false, network: true },
            None => Boot::Disk,
        };
        Vm::start(chassis, label, &boot)
    }

    /// One life, and what the witness has against it.
    fn live(
        &self,
        chassis: &Chassis,
        server: &Server,
        proxy: &Proxy,
        label: &str,
        cmdline: Option<&str>,
        cut: Cut,
    ) -> Result<(End, Vec<String>)> {
        let (heard, announced) = (server.said().len(), proxy.announced().len());
        let mut vm = self.switch_on(chassis, label, cmdline)?;
        let end = watch(&mut vm, server, heard, cut)?;
        let announced = proxy.announced().split_off(announced);
        let broken = vm.testify(announced.last().map(|notice| &notice["extents"]), !announced.is_empty())?;
        Ok((end, broken))
    }
}

/// A folder with all that is in it.
///
/// # Errors
/// `cp` fails.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    tool(&["cp", "-a", &from.to_string_lossy(), &to.to_string_lossy()], Stdio::null()).map(drop)
}

/// Waits for the cut, a system, or the machine's own end. `heard` is how much the server had said before.
fn watch(vm: &mut Vm, server: &Server, heard: usize, cut: Cut) -> Result<End> {
    let mut looked = Instant::now();
    loop {
        let said = server.said();
        if let Some(place) = cut(&said[heard..]) {
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
