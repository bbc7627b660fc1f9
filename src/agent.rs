//! The whole install, top to bottom. What happens when it fails is in `ending`.
//!
//! Before the plan's point of no return a failure leaves every disk as it was. After it, the executor makes sure that
//! nothing half-written can boot.

mod ending;
mod still;

use crate::allocation::{Allocation, Machine, Order};
use crate::assigned::{correct_begun, request, unbelieved};
use crate::control::wire::{EventName, Register};
use crate::control::{Control, HttpControl};
use crate::error::{Context, Error, Phase, Result};
use crate::execute::{self, Installation};
use crate::image::{self, Keys, Minimum};
use crate::inventory::{self, Inventory};
use crate::layout::Layout;
use crate::plan::{self, Plan, StepName};
use crate::report::Reporter;
use crate::settings::Settings;
use crate::storage::{self, assemble};
use crate::text::{CONSOLE_COLUMNS, folded};
use crate::{command, problem};
use ending::Failure;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use still::Stillness;
use uuid::Uuid;

/// One long poll for the allocation. Proxies cut connections that are silent for longer.
const WAIT: Duration = Duration::from_secs(60);

/// A boot that waits for longer than this has a token that may have ended by its age.
const TOKEN_IS_OLD: Duration = Duration::from_secs(60 * 60);

/// Why this program returns at all: the machine is to boot again at once, over PXE first.
#[derive(Debug)]
pub struct BootAgain;

/// Installs this machine by what its control plane says, and boots the result. Success does not return, and neither does a
/// failed reinstall that leads back into the installed system.
///
/// # Errors
/// The installation failed, and the control plane was told so if it could be: the machine waits for a person.
pub fn run() -> Result<BootAgain> {
    let settings = Settings::from_cmdline(
        &std::fs::read_to_string("/proc/cmdline").context(Phase::Settings, || "read /proc/cmdline")?,
    )?;
    let inventory = inventory::read()?;
    let machine = machine_id(&settings, &inventory)?;
    let control: Arc<dyn Control> = Arc::new(HttpControl::new(&settings, &machine)?);
    let agent = Agent { settings, machine, reporter: Reporter::new(control.clone()), control };
    agent.reporter.phase(EventName::Preparing, concat!("drophammer ", env!("CARGO_PKG_VERSION")));

    let failure = match agent.prepare(inventory) {
        Ok(ready) => agent.install(ready),
        Err(failure) => *failure,
    };
    agent.end(failure)
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
    keys: Keys,
    minimum: Minimum,
}

impl Agent {
    /// Register, wait, fetch, plan: nothing is written here.
    fn prepare(&self, inventory: Inventory) -> Result<Ready, Box<Failure>> {
        let at = |step: &'static str| move |error| Box::new(Failure::before_the_plan(step, error));
        self.reporter.phase(EventName::Registering, &self.machine);
        let register = Register::new(self.machine.clone(), inventory);
        self.control.register(&register).map_err(at("control.register"))?;
        self.reporter.phase(EventName::Waiting, "for an allocation");
        let waiting = Instant::now();
        let (machine, mut allocation) = self.await_allocation().map_err(|error| {
            let has_ended = error.is_refusal() && waiting.elapsed() > TOKEN_IS_OLD;
            at(if has_ended { ending::TOKEN_HAS_ENDED } else { "control.wait" })(error)
        })?;
        self.reporter.phase(EventName::Installing, &purpose(&allocation));
        match self.look(&machine, &mut allocation) {
            Ok(((keys, minimum), inventory, plan)) => {
                let text = plan.to_string();
                println!("\n{}", folded(&text, CONSOLE_COLUMNS));
                Ok(Ready { allocation, inventory, plan, text, keys, minimum })
            }
            Err(failure) => Err(Box::new(Failure { allocation, ..*failure })),
        }
    }

    /// What is wrong with the ramdisk is found here and not earlier: of a reinstall that it fails, the order must be known.
    fn look(
        &self,
        machine: &Machine,
        allocation: &mut Allocation,
    ) -> Result<((Keys, Minimum), Inventory, Plan), Box<Failure>> {
        let at = |step: &'static str| move |error| Box::new(Failure::before_the_plan(step, error));
        let keys = Keys::read(&self.settings.keys, Path::new(image::KEY_DIRECTORY)).map_err(at("keys"))?;
        let minimum = Minimum::read(&self.settings.minimum, Path::new(image::MINIMUM_FILE), &keys);
        let minimum = minimum.map_err(at("keys"))?;
        require_tools().map_err(at("tools"))?;
        let (inventory, plan) = self.plan(machine, allocation)?;
        Ok(((keys, minimum), inventory, plan))
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

    fn plan(&self, machine: &Machine, allocation: &mut Allocation) -> Result<(Inventory, Plan), Box<Failure>> {
        let failure = |error| Box::new(Failure::before_the_plan("plan", error));
        let parsed = allocation.layout().map_err(|problems| {
            let message = format!("the layout cannot be used, nothing was written:\n{}", problem::lines(&problems));
            failure(Error::new(Phase::Layout, message))
        })?;
        for note in &parsed.notes {
            tracing::info!("layout: {note}");
        }
        late_disks(&parsed.layout).map_err(failure)?;
        let inventory = assembled_inventory().map_err(failure)?;
        if correct_begun(&self.machine, allocation, &parsed.layout, &inventory) {
            println!("an earlier attempt was to begin, and has written nothing: the installed system is whole");
        }
        let request = request(machine, &self.machine, allocation);
        let unbelieved = unbelieved(&request, &inventory).cloned();
        let plan = plan::make(&parsed.layout, &inventory, request, &mut Uuid::new_v4);
        let plan = plan.map_err(|refusal| {
            let failure = failure(Error::new(Phase::Plan, refusal.to_string()));
            Box::new(Failure { marker: unbelieved, ..*failure })
        })?;
        Ok((inventory, plan))
    }

    fn install(&self, ready: Ready) -> Failure {
        let Ready { allocation, inventory, plan, text, keys, minimum } = ready;
        let installation = Installation {
            plan: &plan,
            plan_text: &text,
            allocation: &allocation,
            machine: &self.machine,
            inventory: &inventory,
            consoles: &self.settings.consoles,
            keys: &keys,
            minimum: &minimum,
            reporter: &self.reporter,
            control: &*self.control,
        };
        let failure = execute::execute(&installation).err().unwrap_or_else(|| execute::Failure {
            step: StepName::BootKexec,
            past_point_of_no_return: true,
            error: Error::new(Phase::Boot, "the plan has ended, and this is still the ramdisk"),
        });
        Failure::of_the_plan(failure, allocation, text)
    }
}

/// What the allocation asks for, for a person.
fn purpose(allocation: &Allocation) -> String {
    let install = format!("{} as {}", allocation.image.id, allocation.hostname);
    match &allocation.order {
        Some(Order { attempt, attempts, .. }) if allocation.reinstall => {
            format!("{install}: reinstall, attempt {attempt} of {attempts}")
        }
        _ if allocation.reinstall => format!("{install}: reinstall"),
        _ => install,
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

/// Waits until the layout's disks are there and no other one comes, or until all have had their time.
fn late_disks(layout: &Layout) -> Result<()> {
    let began = Instant::now();
    let mut still = Stillness::default();
    loop {
        let inventory = inventory::read()?;
        let complete = layout.disks.iter().all(|disk| plan::find::disk(disk, &inventory).is_ok());
        if still.is_over(&inventory.disks, complete, began.elapsed()) {
            return Ok(());
        }
        thread::sleep(Duration::from_secs(1));
    }
}

/// The inventory, with everything assembled that the disks hold: what lies in an array is only seen when it runs.
fn assembled_inventory() -> Result<Inventory> {
    let disks: Vec<String> = inventory::read()?.disks.into_iter().map(|disk| disk.device).collect();
    let mut assembled = assemble::assemble(&disks)?;
    // Before it is read: a disk that this program has locked would pass for a write-protected one.
    assembled.unlock()?;
    let mut inventory = inventory::read()?;
    assembled.mark(&mut inventory);
    assembled.look(&mut inventory)?;
    Ok(inventory)
}

#[cfg(test)]
mod tests;
