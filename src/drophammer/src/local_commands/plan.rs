//! `drophammer plan`: prints what an installation would do.

#[cfg(test)]
mod tests;

use super::plan_templates::NamedTemplates;
use super::{problem_lines, read_layout, read_text, saved_plan};
use crate::server_commands::machine_plan::{self, RegisteredPlan};
use crate::server_commands::{ReinstallOverrideOptions, ServerOptions};
use crate::terminal_output::{print_for_terminal, wants_color};
use clap::Args;
use common::command_outcome::{CommandOutcome, report_refusal};
use common::error::{Context, Error, Phase, Result};
use common::error_code::{self, ErrorCode};
use common::format::metal_api_phrase_replacement::reword_metal_phrases;
use common::output::{print_error, to_json};
use common::type_errors::locate_json_error;
use model::deploy_steps::{EraseMode, StepList};
use model::device_name::DevicePath;
use model::install_marker::InstallMarker;
use model::inventory::Inventory;
use model::layout::ParsedLayout;
use operations::PlanAssignment;
use plan::request_from_allocation::preview::{placeholder_uuids, remove_temporary_uses};
use plan::{InstallClaim, InstallMode, MarkerWaiver, PlanRequest, PlanSubject};
use serde_json::json;
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// Options of `drophammer plan`.
#[derive(Debug, Default, Args)]
pub struct PlanArgs {
    /// Print this plan, which was saved with --out.
    #[arg(value_name = "PLAN", conflicts_with_all = ["layout", "machine", "template", "inventory"])]
    pub saved: Option<PathBuf>,
    /// The layout, in YAML or JSON; - is standard input.
    #[arg(long, value_name = "FILE", required_unless_present_any = ["machine", "template", "saved"])]
    pub layout: Option<PathBuf>,
    /// Machine of a server, by its id or name. The plan uses the allocation that the server would now send to the
    /// machine, and the inventory with which the machine registered. --layout replaces this allocation, and --inventory
    /// replaces this inventory.
    #[arg(long, value_name = "ID")]
    pub machine: Option<String>,
    #[command(flatten)]
    pub of: ServerOptions,
    /// The machine's allocation: the machine file from a server's machines/, or the document that the machine's agent
    /// receives. The network, `finish` and the kernel arguments are checked as the agent checks them.
    #[arg(long, value_name = "FILE", conflicts_with = "machine")]
    pub allocation: Option<PathBuf>,
    /// Output of `drophammer inventory`; by default, the inventory of this machine.
    #[arg(long, value_name = "FILE")]
    pub inventory: Option<PathBuf>,
    /// Method of erasing disks before new contents are written to them. With --machine, this option is ignored: the
    /// value comes from the server.
    #[arg(long, value_enum, default_value_t)]
    pub erase: EraseMode,
    /// A deploy template. The output lists the merged steps, each with the template that contains it. The option may be
    /// used several times; the order of the templates matters. A template that defines RAID arrays also generates the
    /// layout.
    #[arg(long, value_name = "FILE")]
    pub template: Vec<PathBuf>,
    /// Preview a reinstall: disks without wipeonreinstall are preserved, and their contents are shown.
    #[arg(long)]
    pub reinstall: bool,
    /// Preview a reinstall with this image.
    #[arg(long, value_name = "ID", requires = "machine")]
    pub image: Option<String>,
    /// Overrides of `machine plan`.
    #[arg(skip)]
    pub overrides: ReinstallOverrideOptions,
    /// Save the plan of the reinstall in this file. `drophammer machine reinstall --plan FILE` orders exactly this
    /// plan.
    #[arg(long, value_name = "FILE", requires = "machine", conflicts_with_all = ["layout", "template"])]
    pub out: Option<PathBuf>,
    /// With --out, overwrite a file that is not a plan of this machine.
    #[arg(long, requires = "out")]
    pub force: bool,
    /// Plan as if the machine had rebooted into the agent: mounts and swap in the inventory are ignored. A reinstall
    /// is always planned this way.
    #[arg(long)]
    pub at_rest: bool,
    /// Preview a reinstall that is ordered with --without-marker.
    #[arg(long, requires = "reinstall")]
    pub without_marker: bool,
    /// Print the plan as JSON.
    #[arg(long)]
    pub json: bool,
    /// Let the exit status report the effect: 0 if nothing changes, 3 if data would be lost, 4 if the machine changes
    /// without loss. With this option, a machine that is installed and has no reinstall order is reported as unchanged
    /// (0), not as refused (2).
    #[arg(long)]
    pub detailed_exitcode: bool,
}

/// Prints what an installation would do.
///
/// # Errors
/// Returns an error if a file cannot be read, or the inventory is invalid.
pub fn run_plan(options: &PlanArgs) -> Result<CommandOutcome> {
    report_refusal(plan_output(options).and_then(|(text, outcome)| print_for_terminal(&text).map(|()| outcome)))
}

/// Inputs of the planner, and additions to the printed plan.
pub(crate) struct PlanInputs {
    pub parsed: ParsedLayout,
    pub inventory: Inventory,
    pub request: PlanRequest,
    /// Notes to print in addition to the plan.
    pub notes: Vec<String>,
    /// Deploy templates that were merged into the steps of the plan.
    pub templates: NamedTemplates,
}

/// Reason why no plan is made.
pub(crate) enum MissingPlan {
    /// The files that the options name have these problems.
    Invalid(String),
    /// Nothing would be installed on the machine. The text is the reason.
    Unchanged(String),
}

impl From<String> for MissingPlan {
    fn from(problems: String) -> MissingPlan {
        MissingPlan::Invalid(problems)
    }
}

/// Computes the plan. Returns the output and the outcome.
pub fn plan_output(options: &PlanArgs) -> Result<(String, CommandOutcome)> {
    if let Some(file) = &options.saved {
        return saved_plan::show_plan(options, file);
    }
    if let (Some(machine), Some(out)) = (&options.machine, &options.out) {
        return saved_plan::save_plan(options, machine, out);
    }
    let plan_inputs = match &options.machine {
        None => collect_inputs(options)?,
        Some(machine) => match machine_plan::collect_inputs(options, machine)? {
            RegisteredPlan::Forecast(text, outcome) => return Ok((text, outcome)),
            RegisteredPlan::Inputs(plan_inputs) => plan_inputs,
        },
    };
    match plan_inputs {
        Ok(plan_inputs) => make_plan(options, plan_inputs),
        Err(MissingPlan::Invalid(problems)) => {
            let text = if options.json { problems_to_json(&problems)? } else { problems };
            Ok((text, CommandOutcome::Refused))
        }
        Err(MissingPlan::Unchanged(why)) if options.detailed_exitcode => {
            let text = if options.json { to_json(&json!({ "unchanged": why }))? } else { why };
            Ok((text + "\n", CommandOutcome::Good))
        }
        Err(MissingPlan::Unchanged(why)) => Err(Error::refusal(Phase::Plan, why)),
    }
}

/// Converts problems of the inputs, one per line, to JSON. Each problem has its message and its code.
fn problems_to_json(lines: &str) -> Result<String> {
    let problem = |line: &str| {
        let code = error_code::find_in_parentheses(line).map(|code| code.trim_matches(['(', ')']));
        json!({ "message": line, "code": code })
    };
    let problems: Vec<serde_json::Value> = lines.lines().map(problem).collect();
    Ok(to_json(&json!({ "problems": problems }))? + "\n")
}

/// Collects the inputs of a plan. The inner error is the reason why no plan is made.
fn collect_inputs(options: &PlanArgs) -> Result<std::result::Result<PlanInputs, MissingPlan>> {
    let inventory = match &options.inventory {
        Some(path) => read_inventory(path)?,
        None => linux::probe::read_inventory(linux::probe::ProbeDepth::Deep)?,
    };
    inputs_from_files(options, inventory).map(|inputs| inputs.map_err(MissingPlan::from))
}

/// Collects the inputs of a plan from the files that the options name.
pub(crate) fn inputs_from_files(
    options: &PlanArgs,
    mut inventory: Inventory,
) -> Result<std::result::Result<PlanInputs, String>> {
    let templates = match NamedTemplates::read(&options.template)? {
        Ok(templates) => templates,
        Err(problems) => return Ok(Err(problems)),
    };
    let merged = match templates.merge(StepList::with_erase_mode(options.erase).list()) {
        Ok(merged) => merged,
        Err(problems) => return Ok(Err(problems)),
    };
    let parsed = match choose_layout(options.layout.as_deref(), templates.generate_layout(&merged, &inventory))? {
        Ok(parsed) => parsed,
        Err(problems) => return Ok(Err(problems)),
    };
    let assigned = match read_assignment(options, &inventory)? {
        Ok(assigned) => assigned,
        Err(problems) => return Ok(Err(problems)),
    };
    let mode = if options.reinstall { InstallMode::Reinstall } else { InstallMode::Install };
    if mode == InstallMode::Reinstall || options.at_rest {
        remove_temporary_uses(&mut inventory);
    }
    let image = Some(assigned.allocation.image.id.clone()).filter(|id| !id.is_empty());
    let subject = PlanSubject {
        machine: inventory.system.uuid.clone().unwrap_or_default(),
        image: image.unwrap_or_else(|| "the image".to_owned()),
        url: "the image's server".to_owned(),
        ..PlanSubject::default()
    };
    let claim = options.without_marker.then(|| build_waived_claim(&inventory));
    let notes = describe_installations(mode, &inventory);
    Ok(Ok(PlanInputs {
        parsed,
        inventory,
        request: PlanRequest { mode, steps: merged.steps.into(), subject, assigned, claim },
        notes,
        templates,
    }))
}

/// Returns the layout in the file, or the layout that a template generates. The inner error lists all problems of the
/// layout.
fn choose_layout(
    file: Option<&Path>,
    generated: Option<std::result::Result<ParsedLayout, String>>,
) -> Result<std::result::Result<ParsedLayout, String>> {
    match (file, generated) {
        (Some(_), Some(_)) => {
            Err(Error::refusal(Phase::Layout, "a template generates the layout: omit either --layout or that template"))
        }
        (None, None) => Err(Error::refusal(Phase::Layout, "the layout is missing: specify --layout FILE")),
        (None, Some(made)) => Ok(made),
        (Some(path), None) => Ok(read_layout(path)?.map_err(|problems| problem_lines(path, &problems))),
    }
}

/// Returns the allocation in the file of `--allocation`, or an empty allocation without this option. The inner error
/// lists all problems of the file.
fn read_assignment(options: &PlanArgs, inventory: &Inventory) -> Result<std::result::Result<PlanAssignment, String>> {
    let Some(path) = &options.allocation else { return Ok(Ok(PlanAssignment::default())) };
    let allocation = match super::allocation_reader::read_allocation(&read_text(path)?, Some(&inventory.nics)) {
        Ok(allocation) => allocation.unwrap_or_default(),
        Err(problems) => {
            let problems = super::check::with_default_codes(problems, ErrorCode::AllocationValue);
            return Ok(Err(problem_lines(path, &problems)));
        }
    };
    Ok(Ok(PlanAssignment { allocation, ..PlanAssignment::default() }))
}

fn make_plan(options: &PlanArgs, plan_inputs: PlanInputs) -> Result<(String, CommandOutcome)> {
    let PlanInputs { parsed, inventory, request, notes, templates } = plan_inputs;
    let steps = request.steps.list().to_vec();
    let with_steps = |said: String, as_json: Result<String>| -> Result<String> {
        match (templates.is_empty(), options.json) {
            (true, true) => as_json,
            (true, false) => Ok(said),
            (false, false) => Ok(templates.format_steps(&steps) + &said),
            (false, true) => {
                let what = || "add the steps to the plan".to_owned();
                let mut whole: serde_json::Value = serde_json::from_str(&as_json?).context(Phase::Plan, what)?;
                whole["deploy_steps"] = templates.steps_as_json(&steps);
                to_json(&whole)
            }
        }
    };
    match plan::make_plan(&parsed.layout, &inventory, request, &mut placeholder_uuids()) {
        Ok(mut plan) => {
            plan.warnings.extend(notes);
            let outcome = choose_outcome(options, plan.summary.lost_bytes);
            let text = with_steps(colorize(&plan), to_json(&plan))?;
            // The summary is printed at the top as well, because a plan may be longer than the terminal.
            let text =
                if options.json { text + "\n" } else { format!("{}\n{text}", plan.summary.to_string().trim_start()) };
            Ok((text, outcome))
        }
        Err(refusal) => {
            let refusal = refusal.located(|problem| parsed.locate_problem(problem));
            // The JSON of a refusal has no field for notes, so they are printed separately.
            for note in notes {
                print_error(&note);
            }
            Ok((
                with_steps(reword_metal_phrases(&colorize(&refusal)), to_json(&refusal))? + "\n",
                CommandOutcome::Refused,
            ))
        }
    }
}

/// Returns the outcome of a command that prints a plan or a forecast.
pub(crate) fn choose_outcome(options: &PlanArgs, lost_bytes: u64) -> CommandOutcome {
    match (options.detailed_exitcode, lost_bytes) {
        (false, _) => CommandOutcome::Good,
        (true, 0) => CommandOutcome::Changes,
        (true, _) => CommandOutcome::Erases,
    }
}

pub(crate) fn colorize(said: &impl Display) -> String {
    if wants_color() { format!("{said:#}") } else { said.to_string() }
}

/// Returns the state that a control plane would send after a reinstall was ordered with `--without-marker`. If the
/// inventory contains an install marker, the state refers to the machine and the allocation in this marker, so that it
/// does not contradict the marker.
fn build_waived_claim(inventory: &Inventory) -> InstallClaim {
    let marker = inventory.filesystems.iter().find_map(|filesystem| filesystem.marker.as_ref());
    InstallClaim {
        machine: marker.map(|marker| &marker.machine).or(inventory.system.uuid.as_ref()).cloned().unwrap_or_default(),
        allocation: marker.map(|marker| marker.allocation.clone()).unwrap_or_default(),
        waiver: Some(MarkerWaiver::Operator),
        ..InstallClaim::default()
    }
}

/// Returns a note about each existing installation in the inventory. Without a server, the allocation that the machine
/// would receive is unknown, so the note describes what happens if the machine receives the installed allocation.
fn describe_installations(mode: InstallMode, inventory: &Inventory) -> Vec<String> {
    let marked = inventory.filesystems.iter().filter(|_| mode == InstallMode::Install);
    let marked = marked.filter_map(|filesystem| Some((&filesystem.device, filesystem.marker.as_ref()?)));
    let said = |(device, marker): (&DevicePath, &InstallMarker)| {
        let (image, allocation) = (&marker.image, &marker.allocation);
        format!(
            "{device} contains the image {image}, installed for allocation {allocation}: a machine with that allocation boots the installed system instead of carrying out this plan"
        )
    };
    marked.map(said).collect()
}

pub(crate) fn read_inventory(path: &Path) -> Result<Inventory> {
    let text = read_text(path)?;
    let what = || format!("{file} is not an inventory as printed by `drophammer inventory`", file = path.display());
    let inventory: Inventory = serde_json::from_str(&text).map_err(|error| {
        Error::refusal(Phase::Inventory, format!("{}: {why}", what(), why = locate_json_error(&error)))
    })?;
    refuse_impossible(inventory, what)
}

/// Refuses an inventory with impossible values, from which the planner would draw wrong conclusions.
pub(crate) fn refuse_impossible(inventory: Inventory, what: impl FnOnce() -> String) -> Result<Inventory> {
    match inventory.find_impossible_property() {
        Some(why) => Err(Error::refusal(Phase::Inventory, format!("{}: {why}", what()))),
        None => Ok(inventory),
    }
}
