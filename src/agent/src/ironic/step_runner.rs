//! Execution of steps. When a step is ordered, its plan is made from the step's arguments, and printed. A step that
//! cannot be carried out is refused with all reasons before its first write. All steps of a deploy belong to one plan.

use super::commands::IronicStepKind;
use super::deploy_args::{self, IronicNode, RequestedMode};
use super::log_collection::StepLog;
use super::machine_actions::MachineActions;
use super::skipped_disks;
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use common::format::{CONSOLE_COLUMNS, fold_lines};
use common::sync::lock_mutex;
use common::{diagnostic, output};
use independent_steps::WrittenImage;
use install_mode_decision::decide_install_mode;
use model::allocation::{Allocation, AssignedMachine};
use model::deploy_steps::{self, EraseMode, OfferedStep, StepKind};
use model::device_name::KernelName;
use model::install_report::DiskChanges;
use model::inventory::Inventory;
use model::ironic_raid::RaidConfig;
use model::layout::Layout;
use plan::{DiskPlan, DiskVerdict, Plan, PlanRefusal, request_from_allocation};
use serde_json::{Map, Value, json};
use std::sync::{Arc, Mutex};
use uuid::Uuid;

mod independent_steps;
mod install_mode_decision;

/// Placeholder for an image that a later step specifies.
const LATER_IMAGE_PLACEHOLDER: &str = "the image that burn_image specifies";

pub(crate) struct StepRunner {
    actions: Arc<dyn MachineActions>,
    journal: Arc<StepLog>,
    consoles: Vec<String>,
    started: Mutex<Option<StartedDeploy>>,
    written: Mutex<Option<WrittenImage>>,
}

/// Inputs from which the plan for a deploy is computed.
struct DeployInput {
    layout: Layout,
    inventory: Inventory,
    /// Disks that must not be written.
    skipped: Vec<KernelName>,
    allocation: Allocation,
    node_name: String,
    machine: String,
    /// Ids that were generated for the plan, in order. The ids are needed to recreate the same plan.
    ids: Vec<Uuid>,
}

/// Deploy whose first steps are complete.
struct StartedDeploy {
    deploy: DeployInput,
    plan: Plan,
    /// Number of completed core steps of the deploy.
    done: usize,
}

impl StepRunner {
    pub(crate) fn new(actions: Arc<dyn MachineActions>, journal: Arc<StepLog>, consoles: &[String]) -> StepRunner {
        StepRunner { actions, journal, consoles: consoles.into(), started: Mutex::default(), written: Mutex::default() }
    }

    /// Executes a step. Returns its result.
    ///
    /// # Errors
    /// Fails if the plan is refused, in which case nothing was written, or if a stage fails.
    pub(crate) fn run_step(&self, offer: &OfferedStep, node: &IronicNode, args: &Map<String, Value>) -> Result<Value> {
        match (offer.interface, offer.step) {
            ("raid", step) => self.run_raid_step(step, node, args),
            (_, step) => self.run_deploy_step(step, node, args),
        }
    }

    fn run_deploy_step(&self, step: &str, node: &IronicNode, args: &Map<String, Value>) -> Result<Value> {
        match step {
            "install" => self.begin_deploy(node, args, core_step_count()),
            "apply_layout" => self.begin_deploy(node, args, 1),
            "create_configuration" => {
                self.create_arrays(node, &deploy_args::parse_arrays("raid.create_configuration", args)?)?;
                Ok(json!({ "logical_disks": args.get("logical_disks") }))
            }
            "burn_image" => {
                let alone = deploy_args::parse_flag(args, "alone")?;
                self.burn_image(node, args, if alone { 2 } else { core_step_count() })
            }
            "write_image" => self.write_image(node, args),
            "write_files" => self.continue_deploy(2, 3),
            "run_installer" => self.continue_deploy(3, 4),
            "prepare_boot" => self.continue_deploy(4, 5),
            "finish" => self.continue_deploy(5, 6),
            "inject_files" => self.inject_files(node, args),
            "erase_devices_metadata" => self.erase_disks(node, EraseMode::None, |_, _| true),
            "erase_devices" => self.erase_disks(node, EraseMode::Secure, |_, _| true),
            other => Err(unimplemented_step(other)),
        }
    }

    /// Executes a step that manages arrays. Returns the result in the format in which Ironic stores it in the node.
    fn run_raid_step(&self, step: &str, node: &IronicNode, args: &Map<String, Value>) -> Result<Value> {
        match step {
            "apply_configuration" => {
                self.create_arrays(node, &deploy_args::parse_arrays("raid.apply_configuration", args)?)?;
                Ok(args.get("raid_config").cloned().unwrap_or_default())
            }
            "create_configuration" => {
                let target = node.target_raid_config()?;
                let config = json!({ "raid_config": target });
                self.create_arrays(
                    node,
                    &deploy_args::parse_arrays("raid.apply_configuration", config.as_object().unwrap_or(args))?,
                )?;
                // This step ends a started deploy, because everything that the deploy has mounted or activated is
                // released.
                self.actions.release_all(true);
                *lock_mutex(&self.started) = None;
                Ok(target.clone())
            }
            "delete_configuration" => self.erase_disks(node, EraseMode::None, skipped_disks::is_below_an_array),
            other => Err(unimplemented_step(other)),
        }
    }

    /// Drops the state of previous steps.
    fn drop_state(&self) {
        *lock_mutex(&self.started) = None;
        *lock_mutex(&self.written) = None;
    }

    /// Returns the UUIDs of the filesystems mounted at `/` and `/boot/efi`.
    pub(crate) fn root_and_esp_uuids(&self) -> Option<(String, Option<String>)> {
        let started = lock_mutex(&self.started);
        let plan = &started.as_ref()?.plan;
        let esp = plan.fstab.iter().find(|entry| entry.path == "/boot/efi");
        let esp = esp.and_then(|entry| entry.source.strip_prefix("UUID=")).map(str::to_owned);
        Some((plan.root_uuid.clone(), esp))
    }

    /// Returns false if the machine has a partial installation, and true if either all steps of the deploy are complete
    /// or none was started.
    pub(crate) fn is_complete_or_unstarted(&self) -> bool {
        lock_mutex(&self.started).as_ref().is_none_or(|started| started.done == core_step_count())
    }

    /// Unmounts and stops everything that the steps have left active, before the power is switched off.
    pub(crate) fn release_all(&self) {
        self.actions.release_all(self.is_complete_or_unstarted());
        self.drop_state();
    }

    /// Plans a deploy, and runs its first `until` core steps.
    fn begin_deploy(&self, node: &IronicNode, args: &Map<String, Value>, until: usize) -> Result<Value> {
        self.drop_state();
        let layout = deploy_args::parse_layout(args)?;
        let wish = deploy_args::parse_mode(args)?;
        let mut allocation = deploy_args::build_allocation(node, args)?;
        if until > 1 && allocation.image.url.is_empty() {
            return Err(step_refusal(IMAGE_NOT_SPECIFIED));
        }
        if allocation.image.url.is_empty() {
            allocation.image.id = LATER_IMAGE_PLACEHOLDER.to_owned();
        }
        // `reinstall` is set before the installation to replace is known, because `begin_step` unlocks preserved
        // volumes only for a reinstall.
        allocation.reinstall = matches!(wish, RequestedMode::Reinstall { .. });
        let inventory = self.actions.begin_step(Some((&layout, &mut allocation)))?;
        self.plan_and_run(node, layout, wish, inventory, allocation, until)
    }

    /// Creates the arrays that the node requests. Derives a layout from these arrays, and runs the same step as for a
    /// layout that the operator has specified.
    fn create_arrays(&self, node: &IronicNode, config: &RaidConfig) -> Result<Value> {
        self.drop_state();
        let mut allocation = deploy_args::build_allocation(node, &Map::new())?;
        if allocation.image.url.is_empty() {
            allocation.image.id = LATER_IMAGE_PLACEHOLDER.to_owned();
        }
        let inventory = self.actions.begin_step(None)?;
        let skipped = skipped_disks::find_skipped_disks(node, &inventory)?;
        let mut free = inventory.clone();
        free.disks.retain(|disk| !skipped.contains(&disk.name));
        let layout = config.build_layout("the arrays of the node", &free).map_err(|problems| {
            let reasons = diagnostic::summarize_problems(&problems);
            let message =
                format!("the arrays cannot be created on the disks of this machine: {reasons}; nothing was written");
            self.log_text(&message);
            Error::refusal(Phase::Plan, message).with_code(ErrorCode::DeployArguments)
        })?;
        self.plan_and_run(node, layout, RequestedMode::Install, inventory, allocation, 1)
    }

    fn plan_and_run(
        &self,
        node: &IronicNode,
        mut layout: Layout,
        wish: RequestedMode,
        inventory: Inventory,
        mut allocation: Allocation,
        until: usize,
    ) -> Result<Value> {
        let skipped = skipped_disks::find_skipped_disks(node, &inventory)?;
        skipped_disks::preserve_skipped_disks(&mut layout, &inventory, &skipped);
        decide_install_mode(node.uuid(), wish, &layout, &inventory, &mut allocation)?;
        let (node_name, machine) = (node.name().to_owned(), node.uuid().to_owned());
        let mut deploy = DeployInput { layout, inventory, skipped, allocation, node_name, machine, ids: Vec::new() };
        let plan = self.make_plan(&mut deploy)?;
        self.run_part(StartedDeploy { deploy, plan, done: 0 }, until)
    }

    fn burn_image(&self, node: &IronicNode, args: &Map<String, Value>, until: usize) -> Result<Value> {
        let image = deploy_args::choose_image(node, args).map_err(|problem| step_refusal(&problem.to_string()))?;
        let mut started = self.take_started(1)?;
        let Some(image) = image else { return self.restore_started(started, step_refusal(IMAGE_NOT_SPECIFIED)) };
        started.deploy.allocation.image = image;
        match self.make_plan(&mut started.deploy) {
            Ok(plan)
                if plan.select_steps(&core_step_names(0..1)).stages
                    == started.plan.select_steps(&core_step_names(0..1)).stages =>
            {
                started.plan = plan;
                self.run_part(started, until)
            }
            Ok(_) => self.restore_started(
                started,
                step_refusal(
                    "the step `apply_layout` prepared the disks for another image, and this image requires \
                    different disk contents; set this image as the node's `image_source`, and deploy again",
                ),
            ),
            Err(error) => self.restore_started(started, error),
        }
    }

    fn continue_deploy(&self, from: usize, until: usize) -> Result<Value> {
        let started = self.take_started(from)?;
        self.run_part(started, until)
    }

    /// Runs the core steps from the first incomplete step to step `until` (exclusive) as one part of the plan.
    fn run_part(&self, mut started: StartedDeploy, until: usize) -> Result<Value> {
        let part = started.plan.select_steps(&core_step_names(started.done..until));
        self.log_text(&part.to_string());
        let done = match self.actions.run_part(&part) {
            Ok(done) => done,
            Err(error) => {
                // After an error, all mounts and devices were released, so the deploy must restart from the beginning.
                self.log_text(&error.to_string());
                return Err(error);
            }
        };
        started.done = until;
        let result = step_result(&started, &done);
        if started.done == core_step_count() {
            self.actions.release_all(true);
        }
        *lock_mutex(&self.started) = Some(started);
        Ok(result)
    }

    /// Removes the started deploy from the state and returns it, if exactly `done` of its steps are complete.
    fn take_started(&self, done: usize) -> Result<StartedDeploy> {
        let mut slot = lock_mutex(&self.started);
        match slot.take() {
            Some(started) if started.done == done => Ok(started),
            other => {
                let before = core_step_names(done - 1..done)[0];
                let last =
                    other.as_ref().map_or("nothing", |started| core_step_names(started.done - 1..started.done)[0]);
                let message = format!(
                    "this step must follow the step {before}, but the last completed step of this boot is {last}"
                );
                *slot = other;
                Err(step_refusal(&message))
            }
        }
    }

    /// Restores the state of the deploy after a step was refused. The refused step has not changed anything, and can be
    /// ordered again.
    fn restore_started(&self, started: StartedDeploy, why: Error) -> Result<Value> {
        *lock_mutex(&self.started) = Some(started);
        Err(why)
    }

    fn make_plan(&self, deploy: &mut DeployInput) -> Result<Plan> {
        let machine = AssignedMachine { name: deploy.node_name.clone(), ..AssignedMachine::default() };
        let request =
            request_from_allocation::build_request(&machine, &deploy.machine, &deploy.allocation, &self.consoles);
        let mut given = deploy.ids.clone().into_iter();
        let mut ids = Vec::new();
        let made = plan::make_plan(&deploy.layout, &deploy.inventory, request, &mut || {
            let id = given.next().unwrap_or_else(Uuid::new_v4);
            ids.push(id);
            id
        });
        deploy.ids = ids;
        let plan = made.map_err(|refusal| self.log_refusal(&refusal))?;
        let changes =
            |disk: &&DiskPlan| matches!(disk.verdict, DiskVerdict::Wipe | DiskVerdict::Make | DiskVerdict::PartlyKept);
        let lost = plan.disks.iter().filter(changes).filter(|disk| deploy.skipped.contains(&disk.name));
        let lost: Vec<&str> = lost.map(|disk| disk.device.as_str()).collect();
        if !lost.is_empty() {
            let message = format!(
                "the node's skip_block_devices lists {}, which this step would recreate; remove these disks from the layout, \
                 or use `mode: reinstall`, which preserves them",
                lost.join(", ")
            );
            return Err(step_refusal(&message));
        }
        Ok(plan)
    }

    /// Logs a refusal with its plan, and returns the reasons as an error.
    fn log_refusal(&self, refusal: &PlanRefusal) -> Error {
        let text = refusal.to_string();
        self.log_text(&text);
        Error::refusal(Phase::Plan, format!("{}; nothing was written", refusal.reasons())).with_code(refusal.code())
    }

    fn log_text(&self, text: &str) {
        output::print_line(&format!("\n{}", fold_lines(text, CONSOLE_COLUMNS)));
        self.journal.append_text(text);
    }
}

const IMAGE_NOT_SPECIFIED: &str = "neither the argument `image` nor the node's `image_source` specifies an image";

fn unimplemented_step(step: &str) -> Error {
    Error::refusal(Phase::Plan, format!("internal error: the step {step} is listed, but not implemented"))
}

fn step_refusal(why: &str) -> Error {
    Error::refusal(Phase::Plan, format!("{why}; nothing was written"))
}

/// Returns the names of the core steps in this range.
fn core_step_names(range: std::ops::Range<usize>) -> Vec<&'static str> {
    deploy_steps::core_steps().skip(range.start).take(range.len()).collect()
}

/// Returns the number of core steps of a deploy.
fn core_step_count() -> usize {
    deploy_steps::core_steps().count()
}

fn step_result(started: &StartedDeploy, done: &DiskChanges) -> Value {
    json!({
        "steps": core_step_names(0..started.done),
        "image": started.deploy.allocation.image.id,
        "root_uuid": started.plan.root_uuid,
        "erased": done.erased,
        "kept": done.kept,
        "burned": done.burn,
    })
}

/// Returns the list of steps for the conductor.
pub(crate) fn list_steps(of: IronicStepKind) -> Value {
    let kind = step_kind(of);
    let steps = deploy_steps::steps_for_kind(kind).map(|offer| {
        let argsinfo: Map<String, Value> = offer
            .arguments
            .iter()
            .map(|taken| (taken.name.to_owned(), json!({ "description": taken.about, "required": taken.required })))
            .collect();
        let mut step = json!({
            "interface": offer.interface,
            "step": offer.step,
            "priority": if kind == StepKind::Clean { offer.clean_priority } else { 0 },
            "reboot_requested": false,
            "argsinfo": argsinfo,
        });
        if kind == StepKind::Clean {
            step["abortable"] = json!(offer.abortable);
        }
        step
    });
    Value::Array(steps.collect())
}

pub(crate) fn step_kind(of: IronicStepKind) -> StepKind {
    match of {
        IronicStepKind::Clean => StepKind::Clean,
        IronicStepKind::Deploy => StepKind::Deploy,
        IronicStepKind::Service => StepKind::Service,
    }
}

#[cfg(test)]
pub(crate) mod tests;
