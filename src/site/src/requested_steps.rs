//! Steps of an allocation: the default steps, merged with the deploy templates that the requested traits name.
//! Conflicts between templates are reported before the machine boots.

mod enabled_template_checks;
mod out_of_band_templates;

pub use enabled_template_checks::check_enabled_templates;
pub use out_of_band_templates::{OutOfBandTemplate, find_out_of_band_templates};

use super::deploy_templates::{DeployTemplates, StoredTemplate};
use crate::effective_allocation::with_effective_allocation;
use crate::operator_files::{AllocationSpec, MachineSpec, format_at};
use crate::site_objects::SiteObjects;
use common::diagnostic::Diagnostic;
use marked_yaml::Spanned;
use model::deploy_steps::{
    CATALOG, LAYOUT_DEFINITION_STEPS, OutOfBandStep, PlannedStep, StepList, TemplateStep, merge_templates,
};
use model::inventory::Inventory;
use model::ironic_raid::{self, RaidConfig};
use model::layout::Layout;
use std::sync::Arc;
use store::{InstallState, ServerState};

/// Result of merging the templates of an allocation.
#[derive(Debug, Default)]
pub(crate) struct AllocationSteps {
    /// Steps that the agent runs; empty if no template is requested.
    pub steps: Vec<TemplateStep>,
    /// RAID arrays from which the layout is generated; `None` if no template requests arrays.
    pub arrays: Option<RequestedArrays>,
    /// Steps that the server runs, in this order, through the management controller before the installation.
    pub out_of_band: Vec<OutOfBandStep>,
}

/// RAID arrays that a template requests. The layout is generated from these arrays.
#[derive(Debug)]
pub struct RequestedArrays {
    config: RaidConfig,
    template: RequestedTemplate,
    /// Path of the step's arguments within the template.
    place: String,
}

/// Deploy template, with the trait in the machine file that requests or enables the template.
#[derive(Debug, Clone)]
struct RequestedTemplate {
    by: Spanned<String>,
    stored: Arc<StoredTemplate>,
}

impl RequestedTemplate {
    /// Formats a problem of the template, with the positions in the machine file and in the template's file.
    fn format_problem(&self, problem: Diagnostic) -> String {
        let StoredTemplate { path, template, .. } = &*self.stored;
        let located = template.add_location(problem);
        let place = located.line.zip(located.column).map(|(line, column)| format!(":{line}:{column}"));
        let file = path.file_name().unwrap_or_default().display();
        let file = format!("{}/{file}{}", super::deploy_templates::FOLDER, place.unwrap_or_default());
        format_at(&self.by, &format!("the template {} ({file}): {}", template.name, located.message))
    }
}

impl RequestedArrays {
    /// Generates the layout for a machine with this inventory.
    ///
    /// # Errors
    /// Returns an error if the arrays are not possible on the machine's disks.
    pub fn generate_layout(&self, inventory: &Inventory) -> Result<Layout, String> {
        let made = self.config.build_layout(&self.template.stored.template.name, inventory);
        made.map_err(|problems| {
            let said = problems.into_iter().map(|problem| {
                let message = format!(
                    "the arrays cannot be created on the disks that the machine has registered: {reason}",
                    reason = problem.message
                );
                self.template.format_problem(Diagnostic::new(format!("{}.{}", self.place, problem.place), message))
            });
            said.collect::<Vec<_>>().join("\n")
        })
    }
}

/// Returns the templates that the allocation requests, in the order of the requested traits.
fn find_templates(allocation: &AllocationSpec, known: &SiteObjects) -> Vec<RequestedTemplate> {
    let of = |by: &Spanned<String>| {
        Some(RequestedTemplate { by: by.clone(), stored: known.templates.find_by_name(by)?.clone() })
    };
    allocation.requested_traits.iter().filter_map(of).collect()
}

/// Returns whether a requested template generates the layout from the machine's registered hardware.
fn needs_inventory(allocation: &AllocationSpec, known: &SiteObjects) -> bool {
    let named = |wanted: &TemplateStep| {
        LAYOUT_DEFINITION_STEPS.contains(&format!("{}.{}", wanted.interface, wanted.step).as_str())
    };
    find_templates(allocation, known)
        .iter()
        .any(|requested_template| requested_template.stored.template.template_steps().iter().any(named))
}

/// RAID arrays that a machine's templates define. Layouts with these arrays are generated for the registered hardware
/// of the machine.
pub struct MachineArrays {
    /// Arrays of the template that the allocation requests.
    requested: Option<RequestedArrays>,
    /// Arrays of templates that the machine's traits enable, but its allocation does not request.
    enabled: Vec<RequestedArrays>,
}

impl MachineArrays {
    /// Returns the arrays of the machine's templates; `None` if no layout is generated from a template.
    pub fn find(machine: &MachineSpec, known: &SiteObjects) -> Option<MachineArrays> {
        let requested =
            machine.allocation.as_ref().and_then(|allocation| find_requested_arrays(machine, allocation, known));
        let enabled = enabled_template_checks::find_enabled_arrays(machine, known);
        (requested.is_some() || !enabled.is_empty()).then_some(MachineArrays { requested, enabled })
    }

    /// Generates the layouts for a machine with this inventory. Adds to the state of the allocation the layout of the
    /// requested template, and the problems of the enabled templates.
    pub fn add_results(&self, inventory: &Inventory, install_state: InstallState) -> InstallState {
        let generated = self.requested.as_ref().map(|arrays| arrays.generate_layout(inventory));
        let unsupported = self.enabled.iter().filter_map(|arrays| arrays.generate_layout(inventory).err());
        let unsupported = unsupported.map(|why| enabled_template_checks::add_reason(&why)).collect();
        InstallState { generated, unsupported, ..install_state }
    }
}

/// Generates the layouts of the machine's templates for its registered hardware, and adds the results to the state of
/// its allocation. Blocks the calling thread.
///
/// # Errors
/// Returns an error if the database cannot be read or written.
pub fn add_results_blocking(
    state: &ServerState,
    machine: &MachineSpec,
    install_state: InstallState,
    known: &SiteObjects,
) -> common::error::Result<InstallState> {
    let effective = with_effective_allocation(machine, &install_state);
    let Some(arrays) = MachineArrays::find(&effective, known) else { return Ok(install_state) };
    Ok(match state.read_inventory_blocking(&machine.id)? {
        Some(inventory) => arrays.add_results(&inventory, install_state),
        None => install_state,
    })
}

fn find_requested_arrays(
    machine: &MachineSpec,
    allocation: &AllocationSpec,
    known: &SiteObjects,
) -> Option<RequestedArrays> {
    needs_inventory(allocation, known)
        .then(|| merge_allocation_steps(machine, allocation, known).ok()?.arrays)
        .flatten()
}

/// Merges the templates of the allocation with its default steps.
///
/// # Errors
/// Returns all problems, one per line, with their positions in the machine file and in the template's file.
pub(crate) fn merge_allocation_steps(
    machine: &MachineSpec,
    allocation: &AllocationSpec,
    known: &SiteObjects,
) -> Result<AllocationSteps, String> {
    let requested_templates = find_templates(allocation, known);
    if requested_templates.is_empty() {
        return Ok(AllocationSteps::default());
    }
    let templates: Vec<Vec<TemplateStep>> = requested_templates
        .iter()
        .map(|requested_template| requested_template.stored.template.template_steps())
        .collect();
    let defaults = StepList::with_erase_mode(allocation.erase).list().to_vec();
    let steps = merge_templates(&CATALOG, defaults, &templates).map_err(|wrong| {
        let said = wrong.into_iter().map(|wrong| {
            requested_templates[wrong.template].format_problem(Diagnostic::new(wrong.problem_path(), wrong.message))
        });
        said.collect::<Vec<_>>().join("\n")
    })?;
    let (remote, steps): (Vec<_>, Vec<_>) = steps.into_iter().partition(|step| step.entry.out_of_band);
    let mut problems = Vec::new();
    let out_of_band = out_of_band_templates::convert_steps(machine, &remote, &requested_templates, &mut problems);
    let arrays = find_arrays(&steps, &requested_templates, &mut problems);
    if let (Some(arrays), Some(layout)) = (&arrays, &allocation.filesystemlayout) {
        let name = &arrays.template.stored.template.name;
        problems.push(format_at(
            layout,
            &format!("the template {name} generates the layout: remove `filesystemlayout`, or do not request {name}"),
        ));
    }
    let list = steps.iter().map(PlannedStep::as_template_step).collect();
    let by = &requested_templates[0].by;
    problems
        .extend(plan::without_steps(&StepList::from(steps)).into_iter().map(|problem| format_at(by, &problem.message)));
    match problems.is_empty() {
        true => Ok(AllocationSteps { steps: list, arrays, out_of_band }),
        false => Err(problems.join("\n")),
    }
}

/// Returns the arrays of the step that generates the layout. Adds a problem if more than one step generates the layout.
fn find_arrays(
    steps: &[PlannedStep],
    requested_templates: &[RequestedTemplate],
    problems: &mut Vec<String>,
) -> Option<RequestedArrays> {
    let mut all = steps.iter().filter(|step| LAYOUT_DEFINITION_STEPS.contains(&step.entry.name)).filter_map(|step| {
        let requested_template = requested_templates.get(*step.from.first()?)?.clone();
        let wanted = step.as_template_step();
        let is_this = |other: &TemplateStep| other.interface == wanted.interface && other.step == wanted.step;
        let index = requested_template.stored.template.template_steps().iter().position(is_this)?;
        Some((step, requested_template, index))
    });
    let (step, requested_template, index) = all.next()?;
    for (other, again, index) in all {
        let message = format!(
            "both {first_step} and {second_step} generate the layout: only one step may generate the layout",
            first_step = other.entry.name,
            second_step = step.entry.name
        );
        problems.push(again.format_problem(Diagnostic::new(format!("steps[{index}]"), message)));
    }
    let place = format!("steps[{index}].args");
    match ironic_raid::read_step_arrays(step.entry.name, &step.arguments) {
        Ok(config) => Some(RequestedArrays { config, template: requested_template, place }),
        Err(wrong) => {
            let within = |problem: Diagnostic| {
                let message = format!("{}: {}", problem.place, problem.message);
                requested_template.format_problem(Diagnostic::new(format!("{place}.{}", problem.place), message))
            };
            problems.extend(wrong.into_iter().map(within));
            None
        }
    }
}

/// Returns remarks on templates with invalid steps, with the positions of the steps. Nothing is installed on machines
/// whose traits enable such a template. The templates themselves are accepted, since a conductor other than this
/// server may support their steps.
pub(crate) fn find_unusable_templates(templates: &DeployTemplates) -> Vec<String> {
    let mut said = Vec::new();
    for stored in templates.all() {
        let wrong =
            merge_templates(&CATALOG, StepList::default().list().to_vec(), &[stored.template.template_steps()]).err();
        for wrong in wrong.into_iter().flatten() {
            let problem = stored.template.add_location(Diagnostic::new(wrong.problem_path(), wrong.message));
            let why = format!(
                "{problem}; nothing is installed on machines with the trait {trait_name}",
                trait_name = stored.template.name
            );
            said.push(crate::yaml_folder::format_problem(&stored.path, &why, false));
        }
    }
    said
}
