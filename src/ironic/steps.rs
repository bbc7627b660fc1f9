//! Execution of steps. Each step is planned when it is ordered, prints its plan, and refuses with all reasons before its first write. The
//! steps of a deploy are parts of one plan, which is recreated with the arguments of each step.

use super::commands::StepsOf;
use super::disks;
use super::hands::Hands;
use super::logs::Journal;
use super::order::{self, Node, Wish};
use crate::allocation::{Allocation, Machine};
use crate::assigned;
use crate::device::KernelName;
use crate::error::{Error, Phase, Result};
use crate::facts::Done;
use crate::inventory::Inventory;
use crate::layout::Layout;
use crate::order::Gather;
use crate::plan::{self, DiskPlan, Plan, Subject, Verdict};
use crate::problem;
use crate::raid::Config;
use crate::stdout;
use crate::steps::{self, Erase, Kind, Offer};
use crate::text::{CONSOLE_COLUMNS, folded};
use decide::decide;
use serde_json::{Map, Value, json};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uuid::Uuid;

mod alone;
mod decide;

/// Placeholder for an image that a later step specifies.
const LATER: &str = "the image of burn_image";

pub struct Steps {
    hands: Arc<dyn Hands>,
    journal: Arc<Journal>,
    consoles: Vec<String>,
    begun: Mutex<Option<Begun>>,
    written: Mutex<Option<Written>>,
}

/// Input of a deploy's plan.
struct Deploy {
    layout: Layout,
    inventory: Inventory,
    /// Disks that must not be touched.
    skipped: Vec<KernelName>,
    allocation: Allocation,
    node_name: String,
    machine: String,
    /// Generated ids, in order. Reusing them recreates the same plan.
    ids: Vec<Uuid>,
}

/// Whole-disk image that was written.
#[derive(Clone)]
struct Written {
    disk: KernelName,
    subject: Subject,
}

/// Deploy of which some steps are complete.
struct Begun {
    deploy: Deploy,
    plan: Plan,
    /// Number of completed core steps.
    done: usize,
}

impl Steps {
    pub fn new(hands: Arc<dyn Hands>, journal: Arc<Journal>, consoles: &[String]) -> Steps {
        Steps { hands, journal, consoles: consoles.to_vec(), begun: Mutex::default(), written: Mutex::default() }
    }

    /// Executes a step. Returns its result.
    ///
    /// # Errors
    /// Refuses the plan without writing anything, or fails if a stage fails.
    pub fn run(&self, offer: &Offer, node: &Node, args: &Map<String, Value>) -> Result<Value> {
        match (offer.interface, offer.step) {
            ("raid", step) => self.raid(step, node, args),
            (_, step) => self.deploy(step, node, args),
        }
    }

    fn deploy(&self, step: &str, node: &Node, args: &Map<String, Value>) -> Result<Value> {
        match step {
            "install" => self.begin(node, args, whole()),
            "apply_layout" => self.begin(node, args, 1),
            "create_configuration" => {
                self.arrays(node, &order::arrays("raid.create_configuration", args)?)?;
                Ok(json!({ "logical_disks": args.get("logical_disks") }))
            }
            "burn_image" => {
                let alone = order::flag(args, "alone")?;
                self.burn(node, args, if alone { 2 } else { whole() })
            }
            "write_image" => self.write(node, args),
            "write_files" => self.go_on(2, 3),
            "run_installer" => self.go_on(3, 4),
            "prepare_boot" => self.go_on(4, 5),
            "finish" => self.go_on(5, 6),
            "inject_files" => self.inject(node, args),
            "erase_devices_metadata" => self.erase(node, Erase::None, |_, _| true),
            "erase_devices" => self.erase(node, Erase::Secure, |_, _| true),
            other => Err(nobody_does(other)),
        }
    }

    /// Executes a step that manages arrays. Its result is what a conductor stores, in Ironic's format.
    fn raid(&self, step: &str, node: &Node, args: &Map<String, Value>) -> Result<Value> {
        match step {
            "apply_configuration" => {
                self.arrays(node, &order::arrays("raid.apply_configuration", args)?)?;
                Ok(args.get("raid_config").cloned().unwrap_or_default())
            }
            "create_configuration" => {
                let target = node.target_raid_config()?;
                let config = json!({ "raid_config": target });
                self.arrays(node, &order::arrays("raid.apply_configuration", config.as_object().unwrap_or(args))?)?;
                // No deploy continues from here.
                self.hands.leave(true);
                *self.begun() = None;
                Ok(target.clone())
            }
            "delete_configuration" => self.erase(node, Erase::None, disks::is_below_an_array),
            other => Err(nobody_does(other)),
        }
    }

    /// Drops the state of previous steps.
    fn forget(&self) {
        *self.begun() = None;
        *self.written() = None;
    }

    /// Returns the UUIDs of the filesystems mounted at `/` and `/boot/efi`.
    pub fn made(&self) -> Option<(String, Option<String>)> {
        let begun = self.begun();
        let plan = &begun.as_ref()?.plan;
        let esp = plan.fstab.iter().find(|entry| entry.path == "/boot/efi");
        let esp = esp.and_then(|entry| entry.source.strip_prefix("UUID=")).map(str::to_owned);
        Some((plan.root_uuid.clone(), esp))
    }

    /// Returns whether the installation is complete, or none was started.
    pub fn is_whole(&self) -> bool {
        self.begun().as_ref().is_none_or(|begun| begun.done == whole())
    }

    /// Releases everything before the power is switched off.
    pub fn leave(&self) {
        self.hands.leave(self.is_whole());
        self.forget();
    }

    /// Plans a deploy and runs its core steps before `until`.
    fn begin(&self, node: &Node, args: &Map<String, Value>, until: usize) -> Result<Value> {
        self.forget();
        let layout = order::layout(args)?;
        let wish = order::wish(args)?;
        let mut allocation = order::allocation(node, args)?;
        if until > 1 && allocation.image.url.is_empty() {
            return Err(refused(NO_IMAGE));
        }
        if allocation.image.url.is_empty() {
            allocation.image.id = LATER.to_owned();
        }
        // Preserved volumes are unlocked before the installation to reinstall is known.
        allocation.reinstall = matches!(wish, Wish::Reinstall { .. });
        let inventory = self.hands.begin(Some((&layout, &mut allocation)))?;
        self.make(node, layout, wish, inventory, allocation, until)
    }

    /// Creates arrays by the same steps as the layout that they imply.
    fn arrays(&self, node: &Node, config: &Config) -> Result<Value> {
        self.forget();
        let mut allocation = order::allocation(node, &Map::new())?;
        if allocation.image.url.is_empty() {
            allocation.image.id = LATER.to_owned();
        }
        let inventory = self.hands.begin(None)?;
        let skipped = disks::skipped(node, &inventory)?;
        let mut free = inventory.clone();
        free.disks.retain(|disk| !skipped.contains(&disk.name));
        let layout = config.layout("the arrays of the node", &free).map_err(|problems| {
            let lines = problem::lines(&problems);
            self.told(&format!(
                "the arrays cannot be created on the disks of this machine; nothing was written:\n{lines}"
            ))
        })?;
        self.make(node, layout, Wish::Install, inventory, allocation, 1)
    }

    fn make(
        &self,
        node: &Node,
        mut layout: Layout,
        wish: Wish,
        inventory: Inventory,
        mut allocation: Allocation,
        until: usize,
    ) -> Result<Value> {
        let skipped = disks::skipped(node, &inventory)?;
        disks::keep(&mut layout, &inventory, &skipped);
        decide(node.uuid(), wish, &layout, &inventory, &mut allocation)?;
        let (node_name, machine) = (node.name().to_owned(), node.uuid().to_owned());
        let mut deploy = Deploy { layout, inventory, skipped, allocation, node_name, machine, ids: Vec::new() };
        let plan = self.plan(&mut deploy)?;
        self.parts(Begun { deploy, plan, done: 0 }, until)
    }

    fn burn(&self, node: &Node, args: &Map<String, Value>, until: usize) -> Result<Value> {
        let image = order::image(node, args).map_err(|problem| refused(&problem.to_string()))?;
        let mut begun = self.at(1)?;
        let Some(image) = image else { return self.back(begun, refused(NO_IMAGE)) };
        begun.deploy.allocation.image = image;
        match self.plan(&mut begun.deploy) {
            Ok(plan) if plan.part(&names(0..1)).stages == begun.plan.part(&names(0..1)).stages => {
                begun.plan = plan;
                self.parts(begun, until)
            }
            Ok(_) => self.back(begun, refused("this image requires other disks than apply_layout created")),
            Err(error) => self.back(begun, error),
        }
    }

    fn go_on(&self, from: usize, until: usize) -> Result<Value> {
        let begun = self.at(from)?;
        self.parts(begun, until)
    }

    /// Runs all incomplete steps before `until`, as one part of the plan.
    fn parts(&self, mut begun: Begun, until: usize) -> Result<Value> {
        let part = begun.plan.part(&names(begun.done..until));
        self.say(&part.to_string());
        let done = match self.hands.run(&part) {
            Ok(done) => done,
            Err(error) => {
                // Everything was released: the deploy must restart from the beginning.
                self.say(&error.to_string());
                return Err(error);
            }
        };
        begun.done = until;
        let result = result(&begun, &done);
        if begun.done == whole() {
            self.hands.leave(true);
        }
        *self.begun() = Some(begun);
        Ok(result)
    }

    /// Takes the started deploy if exactly `done` steps are complete.
    fn at(&self, done: usize) -> Result<Begun> {
        let mut slot = self.begun();
        match slot.take() {
            Some(begun) if begun.done == done => Ok(begun),
            other => {
                let before = names(done - 1..done)[0];
                let last = other.as_ref().map_or("nothing", |begun| names(begun.done - 1..begun.done)[0]);
                let message =
                    format!("this step must follow {before}, but the last completed step of this boot is {last}");
                *slot = other;
                Err(refused(&message))
            }
        }
    }

    /// Restores the deploy after a step was refused without a change, so that it can be ordered again.
    fn back(&self, begun: Begun, why: Error) -> Result<Value> {
        *self.begun() = Some(begun);
        Err(why)
    }

    fn plan(&self, deploy: &mut Deploy) -> Result<Plan> {
        let machine = Machine { name: deploy.node_name.clone(), ..Machine::default() };
        let request = assigned::request(&machine, &deploy.machine, &deploy.allocation, &self.consoles);
        let mut given = deploy.ids.clone().into_iter();
        let mut ids = Vec::new();
        let made = plan::make(&deploy.layout, &deploy.inventory, request, &mut || {
            let id = given.next().unwrap_or_else(Uuid::new_v4);
            ids.push(id);
            id
        });
        deploy.ids = ids;
        let plan = made.map_err(|refusal| self.told(&refusal.to_string()))?;
        let changes = |disk: &&DiskPlan| matches!(disk.verdict, Verdict::Wipe | Verdict::Make);
        let lost = plan.disks.iter().filter(changes).filter(|disk| deploy.skipped.contains(&disk.name));
        let lost: Vec<&str> = lost.map(|disk| disk.device.as_str()).collect();
        if !lost.is_empty() {
            let message = format!(
                "the node's skip_block_devices lists {}, which this step would recreate; remove it from the layout, or use mode: \
                 reinstall, which preserves it",
                lost.join(", ")
            );
            return Err(refused(&message));
        }
        Ok(plan)
    }

    /// Logs a refusal and returns it as an error.
    fn told(&self, refusal: &str) -> Error {
        self.say(refusal);
        Error::refusal(Phase::Plan, refusal)
    }

    fn say(&self, text: &str) {
        stdout::say(&format!("\n{}", folded(text, CONSOLE_COLUMNS)));
        self.journal.add(text);
    }

    fn begun(&self) -> MutexGuard<'_, Option<Begun>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn written(&self) -> MutexGuard<'_, Option<Written>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const NO_IMAGE: &str = "neither the argument image nor the node's image_source specifies an image";

fn nobody_does(step: &str) -> Error {
    Error::refusal(Phase::Plan, format!("{step} is listed but not implemented"))
}

fn refused(why: &str) -> Error {
    Error::refusal(Phase::Plan, format!("{why}; nothing was written"))
}

/// Returns a range of core steps of the catalogue.
fn names(range: std::ops::Range<usize>) -> Vec<&'static str> {
    steps::core().skip(range.start).take(range.len()).collect()
}

/// Returns the number of core steps.
fn whole() -> usize {
    steps::core().count()
}

fn result(begun: &Begun, done: &Done) -> Value {
    json!({
        "steps": names(0..begun.done),
        "image": begun.deploy.allocation.image.id,
        "root_uuid": begun.plan.root_uuid,
        "erased": done.erased,
        "kept": done.kept,
        "burned": done.burn,
    })
}

/// Returns the list of steps for the conductor.
pub fn offered(of: StepsOf) -> Value {
    let kind = kind(of);
    let steps = steps::offered(kind).map(|offer| {
        let argsinfo: Map<String, Value> = offer
            .arguments
            .iter()
            .map(|taken| (taken.name.to_owned(), json!({ "description": taken.about, "required": taken.required })))
            .gather();
        let mut step = json!({
            "interface": offer.interface,
            "step": offer.step,
            "priority": if kind == Kind::Clean { offer.clean_priority } else { 0 },
            "reboot_requested": false,
            "argsinfo": argsinfo,
        });
        if kind == Kind::Clean {
            step["abortable"] = json!(offer.abortable);
        }
        step
    });
    Value::Array(steps.collect())
}

pub fn kind(of: StepsOf) -> Kind {
    match of {
        StepsOf::Clean => Kind::Clean,
        StepsOf::Deploy => Kind::Deploy,
        StepsOf::Service => Kind::Service,
    }
}

#[cfg(test)]
pub mod tests;
