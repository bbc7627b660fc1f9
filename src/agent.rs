//! Complete installation, top to bottom. Failures are handled in `ending`.
//!
//! A failure before the plan's point of no return leaves every disk unchanged. After a later failure, the executor ensures that a partial
//! installation is not bootable.

mod approval;
mod ending;
mod moving;
mod pool;

use crate::allocation::{Allocation, Machine, Order, SecretPurpose};
use crate::assigned::{correct_begun, request, unbelieved};
use crate::carried::Part;
use crate::console::{self, say};
use crate::control::{Control, FileControl, HttpControl, MetalControl};
use crate::error::{Context, Error, Phase, Result};
use crate::facts::EventName;
use crate::image::{self, Keys, Minimum};
use crate::inventory::Inventory;
use crate::inventory::lldp::Heard;
pub use crate::ironic::Next;
use crate::moving::whole::Incoming;
use crate::plan::pool_disks::ConnectedDisk;
use crate::plan::{self, Memory, Plan, StageName};
use crate::ready::{self, asked, file_order, marked, opened, remembered};
use crate::report::Reporter;
use crate::session::{self, Session, Trust};
use crate::settings::{InCharge, Settings};
use crate::survey::{self, Depth};
use crate::text::{CONSOLE_COLUMNS, folded};
use crate::{ironic, problem};
use ending::Failure;
pub(crate) use pool::with_leaves;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Length of a long poll for the allocation. Proxies cut connections that are silent for longer.
const WAIT: Duration = Duration::from_secs(60);

/// Waiting time after which a refusal may mean that the token has expired.
const TOKEN_IS_OLD: Duration = Duration::from_secs(60 * 60);

/// Outcome of a failure after which the machine reboots immediately.
#[derive(Debug)]
pub struct BootAgain;

/// Installs this machine as its control plane specifies, and boots the result. Does not return on success, or if a failed reinstall boots
/// the installed system.
///
/// # Errors
/// Fails if the installation failed and the machine must wait at its console. The failure was reported if the control plane was reachable.
pub fn run() -> Result<Next> {
    console::begin();
    let settings = Settings::from_cmdline(
        &std::fs::read_to_string("/proc/cmdline").context(Phase::Settings, || "read /proc/cmdline")?,
    )?;
    let inventory = survey::read(Depth::Deep)?;
    if let InCharge::Conductor(conductor) = &settings.control {
        return ironic::run(conductor, &settings, &inventory);
    }
    let machine = machine_id(&settings, &inventory)?;
    let control = control(&settings, &machine, &inventory)?;
    let reporter = Arc::new(Reporter::new(control.clone()));
    let mut agent = Agent { settings, machine, reporter, control, leaves: Vec::new(), erased: None };
    agent.reporter.phase(EventName::Preparing, concat!("drophammer ", env!("CARGO_PKG_VERSION")));

    let failure = match agent.prepare(inventory) {
        Ok(Some(ready)) => agent.install(ready),
        Ok(None) => return Ok(Next::BootAgain),
        Err(failure) => *failure,
    };
    agent.end(failure).map(|BootAgain| Next::BootAgain)
}

/// Returns the configured control plane.
fn control(settings: &Settings, machine: &str, inventory: &Inventory) -> Result<Arc<dyn Control>> {
    match &settings.control {
        InCharge::Server { url, token } => Ok(Arc::new(HttpControl::new(url, token, machine)?)),
        InCharge::File { file, report } => {
            let keys = Keys::read(&settings.keys, Path::new(image::KEY_DIRECTORY))?;
            Ok(Arc::new(FileControl::new(file, report.as_deref(), keys, machine, inventory)?))
        }
        InCharge::MetalStack { pixie } => Ok(Arc::new(MetalControl::new(pixie, machine)?)),
        InCharge::Conductor(_) => {
            Err(Error::new(Phase::Settings, "a conductor is not a control plane that the agent can query"))
        }
    }
}

fn machine_id(settings: &Settings, inventory: &Inventory) -> Result<String> {
    settings.machine.as_ref().or(inventory.system.uuid.as_ref()).cloned().ok_or_else(|| {
        let message = "this machine has no unique SMBIOS UUID: it reports none, or a default of its vendor; set drophammer.machine= on the \
             kernel command line";
        Error::new(Phase::Settings, message)
    })
}

struct Agent {
    settings: Settings,
    machine: String,
    control: Arc<dyn Control>,
    reporter: Arc<Reporter>,
    /// LLDP neighbours of the network interfaces, if the control plane requires them.
    leaves: Vec<Heard>,
    /// Disks that this boot has erased, for the next owner of a pool machine.
    erased: Option<Vec<ConnectedDisk>>,
}

/// Result of the preparation, before the first stage.
struct Ready {
    allocation: Allocation,
    plan: Plan,
    text: String,
    trust: Trust,
    /// Receiving end of a migration.
    incoming: Option<Incoming>,
}

impl Agent {
    /// Registers, waits for the allocation, fetches it and makes the plan. Writes no disk, except that it erases those of an unallocated
    /// pool machine. Returns `None` after the machine has sent its disks in a migration.
    fn prepare(&mut self, inventory: Inventory) -> Result<Option<Ready>, Box<Failure>> {
        let at = |step: &'static str| move |error| Box::new(Failure::before_the_plan(step, error));
        let (control, began) = (self.control.clone(), Instant::now());
        let (mut inventory, mut missing) = (inventory, Vec::new());
        if let Some(pool) = control.pool() {
            self.leaves = self.listen(&inventory).map_err(at("control.register"))?;
            (inventory, missing) = self.await_known_disks(pool, began).map_err(at("plan"))?;
        }
        self.reporter.phase(EventName::Registering, &self.machine);
        self.control.register(&with_leaves(inventory, &self.leaves)).map_err(at("control.register"))?;
        if let Some(pool) = control.pool() {
            self.make_empty(pool, &missing)?;
        }
        self.reporter.phase(EventName::Waiting, &pool::purpose_of_waiting(&missing));
        let waiting = Instant::now();
        let (machine, mut allocation) = self.await_allocation().map_err(|error| {
            let has_ended = error.is_refusal() && waiting.elapsed() > TOKEN_IS_OLD;
            if has_ended { Box::new(Failure::token_has_ended(error)) } else { at("control.wait")(error) }
        })?;
        if let Some(moving) = allocation.moving.clone().filter(|moving| moving.part == Part::Send) {
            let given = self.give(&machine, &allocation, &moving);
            return given.map(|()| None).map_err(|failure| Box::new(Failure { allocation, ..*failure }));
        }
        self.reporter.phase(EventName::Installing, &purpose(&allocation));
        match self.look(&machine, &mut allocation) {
            Ok((trust, incoming, plan)) => {
                let text = plan.to_string();
                say(&format!("\n{}", folded(&text, CONSOLE_COLUMNS)));
                Ok(Some(Ready { allocation, plan, text, trust, incoming }))
            }
            Err(failure) => Err(Box::new(Failure { allocation, ..*failure })),
        }
    }

    /// Checks the ramdisk, then makes the plan. These checks are not done earlier since the report of a failure must contain the order.
    fn look(
        &self,
        machine: &Machine,
        allocation: &mut Allocation,
    ) -> Result<(Trust, Option<Incoming>, Plan), Box<Failure>> {
        let at = |step: &'static str| move |error| Box::new(Failure::before_the_plan(step, error));
        let keys = Keys::read(&self.settings.keys, Path::new(image::KEY_DIRECTORY)).map_err(at("keys"))?;
        let minimum = Minimum::read(&self.settings.minimum, Path::new(image::MINIMUM_FILE), &keys);
        let minimum = minimum.map_err(at("keys"))?;
        ready::require_tools().map_err(at("tools"))?;
        let incoming = self.stand(allocation).map_err(at("control.move"))?;
        let plan = self.plan(machine, allocation)?;
        Ok((Trust { keys, minimum }, incoming, plan))
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

    fn plan(&self, machine: &Machine, allocation: &mut Allocation) -> Result<Plan, Box<Failure>> {
        let failure = |error| Box::new(Failure::before_the_plan("plan", error));
        let parsed = allocation.layout().map_err(|problems| {
            let message = format!("invalid layout; nothing was written:\n{}", problem::lines(&problems));
            failure(Error::new(Phase::Layout, message))
        })?;
        for note in &parsed.notes {
            tracing::info!("layout: {note}");
        }
        ready::late_disks(&parsed.layout).map_err(failure)?;
        self.erase_newcomers(allocation)?;
        opened::read_key(&parsed.layout, allocation).map_err(failure)?;
        self.fetch_disk_key(opened::needs_disk_key(&parsed.layout), allocation).map_err(failure)?;
        let mut ask = |question: &str, until| self.ask(question, until);
        let mut open = |inventory: &Inventory| opened::open(&parsed.layout, inventory, allocation, &mut ask);
        let open: Option<&mut ready::Open> = if opened::wants(&parsed.layout) { Some(&mut open) } else { None };
        let mut inventory = with_leaves(ready::assembled_and(open).map_err(failure)?, &self.leaves);
        let adopted = marked::adopt(&self.machine, allocation, &mut inventory).map_err(failure)?;
        adopted.iter().for_each(|said| say(said));
        if !self.control.remembers() {
            self.complete_by_disks(allocation, &inventory).map_err(failure)?;
        }
        allocation.unremembered |= self.control.memory() == Memory::DisksOnly;
        if correct_begun(&self.machine, allocation, &parsed.layout, &inventory) {
            say("an earlier attempt was announced but has written nothing; the installed system is intact");
        }
        let asked_for = |allocation: &Allocation| request(machine, &self.machine, allocation, &self.settings.consoles);
        let request = asked_for(allocation);
        if !self.control.remembers() {
            remembered::nothing_is_orphaned(&parsed.layout, &inventory, &request).map_err(failure)?;
        }
        let unbelieved = unbelieved(&request, &inventory).cloned();
        let make = |request| {
            plan::make(&parsed.layout, &inventory, request, &mut Uuid::new_v4).map_err(|refusal| {
                let failure = failure(Error::new(Phase::Plan, refusal.to_string()));
                Box::new(Failure { marker: unbelieved.clone(), ..*failure })
            })
        };
        let plan = make(request)?;
        if !plan::luks::asks(&plan) {
            return Ok(plan);
        }
        let typed =
            asked::new_passphrase(&asked::purpose(&parsed.layout), &mut |question, until| self.ask(question, until));
        allocation.prompt_key = typed.map_err(failure)?;
        make(asked_for(allocation))
    }

    /// Fetches the key of encrypted filesystems if the control plane releases it separately.
    fn fetch_disk_key(&self, is_needed: bool, allocation: &mut Allocation) -> Result<()> {
        let released = if is_needed { self.control.secrets(SecretPurpose::DiskKey)? } else { None };
        if let Some(released) = released {
            allocation.disk_key = released.disk_key;
        }
        Ok(())
    }

    /// Completes the allocation from the disks, if the control plane does not record installations.
    fn complete_by_disks(&self, allocation: &mut Allocation, inventory: &Inventory) -> Result<()> {
        let is_ordered_by_file = allocation.reinstall && self.control.memory() == Memory::DisksOnly;
        if !is_ordered_by_file {
            return remembered::by_disks(&self.machine, allocation, inventory);
        }
        let said = file_order::compare(&self.machine, allocation, inventory)?;
        said.iter().for_each(|said| say(said));
        Ok(())
    }

    /// Asks at the console, and reports to the control plane that someone must go there.
    fn ask(&self, question: &str, until: Instant) -> Result<Option<String>> {
        self.reporter.phase(EventName::Installing, "waiting for a passphrase at the console");
        let line = console::ask::hidden_line(Path::new(console::ask::CONSOLE), question, until);
        line.context(Phase::Settings, || format!("ask at {}", console::ask::CONSOLE))
    }

    fn install(&self, ready: Ready) -> Failure {
        let Ready { allocation, plan, text, trust, incoming } = ready;
        if let Some(incoming) = &incoming
            && let Err(failure) = self.await_approval(&allocation, incoming)
        {
            return Failure { allocation, plan: text, ..*failure };
        }
        let mut session = Session::new(self.reporter.clone(), self.control.clone(), trust);
        incoming.into_iter().for_each(|incoming| session.awaits(incoming));
        let failure = match session.run(&plan) {
            Err(failure) => failure,
            Ok(facts) => session::Failure {
                stage: StageName::BootKexec,
                leaves: StageName::BootKexec.leaves(),
                past_point_of_no_return: true,
                error: Error::new(Phase::Boot, "the plan has ended, but the ramdisk is still running"),
                done: Box::new(facts.done),
            },
        };
        Failure::of_the_plan(failure, allocation, text)
    }
}

/// Describes the requested operation for operators.
fn purpose(allocation: &Allocation) -> String {
    let install = format!("{} as {}", allocation.image.id, allocation.hostname);
    if allocation.moving.is_some() {
        return format!("{}, migrated from another machine", allocation.hostname);
    }
    match &allocation.order {
        Some(Order { attempt, attempts, .. }) if allocation.reinstall => {
            format!("{install}: reinstall, attempt {attempt} of {attempts}")
        }
        _ if allocation.reinstall => format!("{install}: reinstall"),
        _ => install,
    }
}

#[cfg(test)]
mod tests;
