//! File with the plan of a reinstall: `plan --out FILE` saves the plan, `plan FILE` prints it, and `machine reinstall
//! --plan FILE` orders it. The file contains all inputs of the plan, so that later changes of the inputs are detected.

mod input_changes;

use super::plan::{PlanArgs, choose_outcome, colorize, read_inventory, refuse_impossible};
use super::read_text;
use crate::server_commands::OperatorClient;
use crate::server_commands::machine_plan::{fetch_machine_preview, plan_refusal, require_registered};
use crate::server_commands::machine_plan_forecast::{ForecastSubject, format_forecast};
use api::operator_api::reinstalls::ReinstallRequest;
use api::plan_input::{PlanInput, RegisteredInventory};
use common::command_outcome::CommandOutcome;
use common::error::{Context, Error, Phase, Result};
use common::format::metal_api_phrase_replacement::reword_metal_phrases;
use common::output::to_json;
use common::type_errors::locate_json_error;
use linux::atomic_file;
use model::allocation::{ApprovedPlan, AssignedMachine};
use model::inventory::Inventory;
use plan::approval_comparison::parse_approval;
use plan::request_from_allocation::preview::{PreviewPlan, PreviewRefusal, preview_plan};
use serde::{Deserialize, Serialize};
use site::approved_input_digests::{describe_changed_input, list_changed_inputs};
use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Version of the file format.
const VERSION: u32 = 1;

/// Content of the file with a saved plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedPlan {
    version: u32,
    /// Request for the reinstall that the plan describes.
    request: ReinstallRequest,
    /// Verdicts of the plan and their hash, in the form of an approval.
    approval: ApprovedPlan,
    /// Machine and allocation for which the plan was made, without secrets.
    machine: AssignedMachine,
    registered: RegisteredInventory,
    /// True if the inventory is from a file, and is therefore not compared with the registered one.
    inventory_from_file: bool,
}

impl SavedPlan {
    /// Reads the file, and checks that the plan in it results from the inputs in it.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or was changed after the plan was saved.
    pub(crate) fn read_file(path: &Path) -> Result<SavedPlan> {
        let text = read_text(path)?;
        let invalid = |why: &str| {
            Error::refusal(
                Phase::Plan,
                format!("{file}: {why}; save the plan again with `--out`", file = path.display()),
            )
        };
        let document: serde_json::Value =
            serde_json::from_str(&text).map_err(|_| invalid("the file was not written by `drophammer plan --out`"))?;
        if document["version"] != VERSION {
            return Err(invalid(&format!(
                "the version of the plan is {version}, but must be {VERSION}",
                version = document["version"]
            )));
        }
        let saved: SavedPlan = serde_json::from_value(document).map_err(|error| {
            let why = locate_json_error(&error);
            invalid(&format!("the file was not written by `drophammer plan --out`: {why}"))
        })?;
        parse_approval(&saved.approval.verdicts, &saved.approval.sha256).map_err(|why| invalid(&why))?;
        let planned = saved.make_plan().map_err(|refusal| invalid(&refusal.reasons()).with_code(refusal.code()))?;
        match planned.verdicts.is_some_and(|verdicts| verdicts.digest() == saved.approval.sha256) {
            true => Ok(saved),
            false => Err(invalid(
                "the plan cannot be reproduced from the inputs in the file: the file was changed, or another version of drophammer wrote it",
            )),
        }
    }

    pub(crate) fn request(&self) -> &ReinstallRequest {
        &self.request
    }

    pub(crate) fn approval(&self) -> &ApprovedPlan {
        &self.approval
    }

    fn make_plan(&self) -> std::result::Result<PreviewPlan, PreviewRefusal> {
        let RegisteredInventory { inventory, outdated, .. } = self.registered.clone();
        preview_plan(&self.machine, self.machine.allocation.clone().unwrap_or_default(), inventory, outdated)
    }

    /// Returns a line for each input of the saved plan that differs from the current input.
    pub(crate) fn find_changes(&self, present: &PlanInput) -> Vec<String> {
        let mut changes = input_changes::compare_machines(&self.machine, present);
        let image = self.request.imageid.as_str();
        let changed = list_changed_inputs(&self.approval.inputs, &present.inputs).into_iter();
        let described = changed.map(|name| describe_changed_input(&name, image));
        let unreported: Vec<String> = described.filter(|change| !changes.contains(change)).collect();
        changes.extend(unreported);
        if !self.inventory_from_file {
            changes.extend(input_changes::compare_inventories(&self.registered, present.registered.as_ref()));
        }
        changes
    }

    /// Writes the file with permissions for its owner only, because an allocation may contain confidential data.
    fn write_file(&self, path: &Path) -> Result<()> {
        let text = to_json(self)? + "\n";
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(format!(".{}", std::process::id()));
        atomic_file::replace_file(path, temporary.as_ref(), text.as_bytes(), Permissions::from_mode(0o600))
            .context(Phase::Plan, || format!("write the plan to {file}", file = path.display()))
    }

    fn format_plan(&self, planned: &PreviewPlan, json: bool) -> Result<String> {
        let allocation = self.machine.allocation.clone().unwrap_or_default();
        match &planned.plan {
            Some(plan) if json => Ok(to_json(plan)? + "\n"),
            Some(plan) => Ok(format!("{}\n{}", plan.summary.to_string().trim_start(), colorize(plan))),
            None => {
                let name = if self.machine.name.is_empty() { &self.machine.id } else { &self.machine.name };
                let subject = ForecastSubject { name, image: &allocation.image.id, registered: &self.registered };
                format_forecast(&subject, allocation.reinstall, planned, json)
            }
        }
    }
}

/// Makes the plan of a reinstall and saves it. Returns the output and the outcome.
///
/// # Errors
/// Returns an error if the server cannot be reached, the machine cannot be reinstalled, or the file cannot be written.
pub(super) fn save_plan(options: &PlanArgs, machine: &str, file: &Path) -> Result<(String, CommandOutcome)> {
    let server = OperatorClient::new(&options.of)?;
    let (preview, request) = fetch_machine_preview(&server, options, machine)?;
    if !options.force {
        refuse_overwriting(file, &preview.machine.id)?;
    }
    let Some(request) = request else {
        return Err(plan_refusal("--out saves the plan of a reinstall: specify --image or --reinstall"));
    };
    if let Some(why) = &preview.withheld {
        return Err(plan_refusal(format!("machine {machine} cannot be reinstalled: {why}")));
    }
    let registered = match &options.inventory {
        Some(path) => RegisteredInventory { inventory: read_inventory(path)?, ..RegisteredInventory::default() },
        None => require_registered(machine, preview.registered.as_ref())?.clone(),
    };
    let inventory: Inventory = registered.inventory.clone();
    drop(refuse_impossible(inventory, || format!("the registered inventory of machine {machine} is invalid"))?);
    let mut saved = SavedPlan {
        version: VERSION,
        request,
        approval: ApprovedPlan { inputs: preview.inputs, ..ApprovedPlan::default() },
        machine: preview.machine,
        registered,
        inventory_from_file: options.inventory.is_some(),
    };
    let planned = match saved.make_plan() {
        Ok(planned) => planned,
        Err(refusal) => return Ok((reword_metal_phrases(&refusal.printed) + "\n", CommandOutcome::Refused)),
    };
    let Some(verdicts) = &planned.verdicts else {
        return Err(plan_refusal(format!(
            "the ordered installation is already on machine {machine}: nothing would be written"
        )));
    };
    let value = serde_json::to_value(verdicts).context(Phase::Plan, || "convert the plan to JSON")?;
    (saved.approval.sha256, saved.approval.verdicts) = (verdicts.digest(), value);
    saved.write_file(file)?;
    let (text, outcome) = print_planned(options, &saved, &planned)?;
    let next = format!(
        "\nThe plan is saved in {0}. To order exactly this plan, run:\n  drophammer machine reinstall --plan {0}\n",
        file.display()
    );
    Ok((if options.json { text } else { text + &next }, outcome))
}

/// Checks that the file does not exist, or contains a plan of the same machine.
///
/// # Errors
/// Returns an error if the file must not be overwritten.
fn refuse_overwriting(path: &Path, machine: &str) -> Result<()> {
    let found = match std::fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => error.to_string(),
        Ok(bytes) => match serde_json::from_slice::<SavedPlan>(&bytes) {
            Ok(saved) if saved.machine.id == machine => return Ok(()),
            Ok(saved) => format!("the file contains the plan of machine {machine}", machine = saved.machine.id),
            Err(_) => "the file exists and was not written by `drophammer plan --out`".to_owned(),
        },
    };
    Err(plan_refusal(format!(
        "{file}: cannot save the plan of machine {machine}: {found}; specify another file, or overwrite it with --force",
        file = path.display()
    )))
}

/// Returns the output of `drophammer plan FILE`.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub(super) fn show_plan(options: &PlanArgs, file: &Path) -> Result<(String, CommandOutcome)> {
    let saved = SavedPlan::read_file(file)?;
    match saved.make_plan() {
        Ok(planned) => print_planned(options, &saved, &planned),
        Err(refusal) => Ok((reword_metal_phrases(&refusal.printed) + "\n", CommandOutcome::Refused)),
    }
}

fn print_planned(options: &PlanArgs, saved: &SavedPlan, planned: &PreviewPlan) -> Result<(String, CommandOutcome)> {
    let lost_bytes = planned.disks.iter().fold(0, |sum: u64, disk| sum.saturating_add(disk.lost_bytes));
    Ok((saved.format_plan(planned, options.json)?, choose_outcome(options, lost_bytes)))
}
