//! The whole install, top to bottom, and what happens when it fails.
//!
//! Before the plan's point of no return a failure leaves every disk as it was. After it, the executor makes sure that
//! nothing half-written can boot. In both cases the failure is reported, and the ramdisk's init takes over: it offers a
//! shell and reboots after a bounded time.

use crate::allocation::{Allocation, Machine};
use crate::control::wire::{EventName, Register, Report, StepTime};
use crate::control::{Control, HttpControl};
use crate::error::{Context, Error, Phase, Result};
use crate::execute::{self, Installation};
use crate::inventory::{self, Inventory};
use crate::layout::Layout;
use crate::plan::{self, Mode, Plan, Request, StepName, Subject};
use crate::report::Reporter;
use crate::settings::Settings;
use crate::storage::{self, assemble};
use crate::{command, problem};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// One long poll for the allocation. Proxies cut connections that are silent for longer.
const WAIT: Duration = Duration::from_secs(60);

/// Disks behind slow controllers spin up late; a layout that names one is given this long.
const LATE_DISKS: Duration = Duration::from_secs(30);

/// Installs this machine by what its control plane says, and boots the result.
///
/// # Errors
/// The installation failed, and the control plane was told so if it could be. Success does not return.
pub fn run() -> Result<()> {
    let settings = Settings::from_cmdline(
        &std::fs::read_to_string("/proc/cmdline").context(Phase::Settings, || "read /proc/cmdline")?,
    )?;
    let inventory = inventory::read()?;
    let machine = machine_id(&settings, &inventory)?;
    let control: Arc<dyn Control> = Arc::new(HttpControl::new(&settings, &machine)?);
    let agent = Agent { settings, machine, reporter: Reporter::new(control.clone()), control };
    agent.reporter.phase(EventName::Preparing, concat!("drophammer ", env!("CARGO_PKG_VERSION")));

    let failure = match agent.prepare(inventory) {
        Ok(ready) => agent.install(&ready),
        Err(failure) => failure,
    };
    agent.tell(&failure);
    Err(failure.error)
}

fn machine_id(settings: &Settings, inventory: &Inventory) -> Result<String> {
    let id = settings.machine.clone().unwrap_or_else(|| inventory.system.uuid.clone());
    if id.is_empty() {
        let message = "this machine has no SMBIOS UUID; name it with drophammer.machine= on the kernel command line";
        return Err(Error::new(Phase::Settings, message));
    }
    Ok(id)
}

struct Agent {
    settings: Settings,
    machine: String,
    control: Arc<dyn Control>,
    reporter: Reporter,
}

/// All that is known before the first step runs.
struct Ready {
    allocation: Allocation,
    inventory: Inventory,
    plan: Plan,
    text: String,
}

/// Where the installation ended.
struct Failure {
    step: String,
    error: Error,
    allocation: String,
    plan: String,
}

impl Agent {
    /// Register, wait, fetch, plan: nothing is written here.
    fn prepare(&self, inventory: Inventory) -> Result<Ready, Failure> {
        let at = |step: &'static str| {
            move |error| Failure { step: step.to_owned(), error, allocation: String::new(), plan: String::new() }
        };
        require_tools().map_err(at("tools"))?;
        self.reporter.phase(EventName::Registering, &self.machine);
        let register = Register::new(self.machine.clone(), inventory);
        self.control.register(&register).map_err(at("control.register"))?;
        self.reporter.phase(EventName::Waiting, "for an allocation");
        let (machine, allocation) = self.await_allocation().map_err(at("control.wait"))?;
        self.reporter.phase(EventName::Installing, &format!("{} as {}", allocation.image.id, allocation.hostname));
        let planned = |error| Failure { allocation: allocation.id.clone(), ..at("plan")(error) };
        let (inventory, plan) = self.plan(&machine, &allocation).map_err(planned)?;
        let text = plan.to_string();
        println!("\n{text}");
        Ok(Ready { allocation, inventory, plan, text })
    }

    fn await_allocation(&self) -> Result<(Machine, Allocation)> {
        loop {
            if !self.control.wait(WAIT)? {
                continue;
            }
            let machine = self.control.machine()?;
            if let Some(allocation) = machine.allocation.clone() {
                return Ok((machine, allocation));
            }
        }
    }

    fn plan(&self, machine: &Machine, allocation: &Allocation) -> Result<(Inventory, Plan)> {
        if allocation.reinstall {
            let message = "reinstall is not built yet: nothing was touched; boot the machine from its disk";
            return Err(Error::new(Phase::Plan, message));
        }
        let parsed = allocation.layout().map_err(|problems| {
            let message = format!("the layout cannot be used, nothing was written:\n{}", problem::lines(&problems));
            Error::new(Phase::Layout, message)
        })?;
        for note in &parsed.notes {
            tracing::info!("layout: {note}");
        }
        let inventory = inventory_with(&parsed.layout)?;
        let subject = Subject {
            machine: self.machine.clone(),
            name: machine.name.clone(),
            image: allocation.image.id.clone(),
            url: allocation.image.url.clone(),
        };
        let request = Request { mode: Mode::Install, erase: allocation.erase, subject, claim: None };
        let plan = plan::make(&parsed.layout, &inventory, request, &mut Uuid::new_v4);
        let plan = plan.map_err(|refusal| Error::new(Phase::Plan, refusal.to_string()))?;
        Ok((inventory, plan))
    }

    fn install(&self, ready: &Ready) -> Failure {
        let installation = Installation {
            plan: &ready.plan,
            plan_text: &ready.text,
            allocation: &ready.allocation,
            machine: &self.machine,
            inventory: &ready.inventory,
            consoles: &self.settings.consoles,
            reporter: &self.reporter,
            control: &*self.control,
        };
        let (step, error) = match execute::execute(&installation) {
            Err(failure) if failure.past_point_of_no_return => (failure.step, failure.error),
            Err(execute::Failure { step, error, .. }) => (
                step,
                Error::new(error.phase, format!("{error} (before the point of no return: every disk is as it was)")),
            ),
            Ok(()) => {
                (StepName::BootKexec, Error::new(Phase::Boot, "the plan has ended, and this is still the ramdisk"))
            }
        };
        Failure { step: step.to_string(), error, allocation: ready.allocation.id.clone(), plan: ready.text.clone() }
    }

    /// Tells people and the control plane. That it cannot be told changes nothing for the machine.
    fn tell(&self, failure: &Failure) {
        let message = format!("{}: {}", failure.step, failure.error);
        let timings = self.reporter.timings();
        println!("\n{}", StepTime::table(&timings));
        self.reporter.phase(EventName::Crashed, &message);
        let report = Report {
            success: false,
            message,
            allocationuuid: failure.allocation.clone(),
            step: Some(failure.step.clone()),
            timings,
            plan: failure.plan.clone(),
            ..Report::default()
        };
        if let Err(error) = self.control.report(&report) {
            println!("the failure could not be reported: {error}");
        }
    }
}

/// A tool that is missing is named before anything happens, not in the middle of an install.
fn require_tools() -> Result<()> {
    let missing = command::missing(&storage::tools());
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!("the ramdisk has no {}: build it again with initramfs/build", missing.join(", "));
    Err(Error::new(Phase::Settings, message))
}

/// The inventory, with everything assembled that the disks hold: what lies in an array is only seen when it runs.
fn inventory_with(layout: &Layout) -> Result<Inventory> {
    let disks: Vec<String> = late_disks(layout)?.disks.into_iter().map(|disk| disk.device).collect();
    let mut assembled = assemble::assemble(&disks)?;
    // Before it is read: a disk that this program has locked would pass for a write-protected one.
    assembled.unlock()?;
    let mut inventory = inventory::read()?;
    assembled.mark(&mut inventory);
    assembled.look(&mut inventory)?;
    Ok(inventory)
}

/// The inventory, read again until the layout's disks are there or have had their time.
fn late_disks(layout: &Layout) -> Result<Inventory> {
    let end = Instant::now() + LATE_DISKS;
    loop {
        let inventory = inventory::read()?;
        let complete = layout.disks.iter().all(|disk| plan::find::disk(disk, &inventory).is_ok());
        if complete || Instant::now() >= end {
            return Ok(inventory);
        }
        thread::sleep(Duration::from_secs(1));
    }
}
