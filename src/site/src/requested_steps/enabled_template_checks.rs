//! Templates that the traits of a machine enable. A machine file is invalid if the machine cannot run one of these
//! templates. This also applies to templates that the allocation does not request, since a later allocation may
//! request them.

use super::{RequestedArrays, RequestedTemplate, find_arrays, out_of_band_templates};
use crate::effective_allocation::with_effective_allocation;
use crate::operator_files::{MachineSpec, format_at};
use crate::site_objects::SiteObjects;
use common::diagnostic::Diagnostic;
use model::deploy_steps::{CATALOG, StepList, merge_templates};
use store::InstallState;

/// Checks that every template that the machine's traits enable can run on the machine.
///
/// # Errors
/// Returns all problems, one line each, with their positions in the machine file.
pub fn check_enabled_templates(
    machine: &MachineSpec,
    install_state: &InstallState,
    known: &SiteObjects,
) -> Result<(), String> {
    let mut problems = find_enabled_problems(&with_effective_allocation(machine, install_state), known);
    problems.extend(install_state.unsupported.iter().cloned());
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

/// Returns those problems of the enabled templates that do not depend on the machine's hardware, with positions in
/// the machine file and in the template's file. Omits requested templates, since their problems are reported when the
/// templates are merged.
fn find_enabled_problems(machine: &MachineSpec, known: &SiteObjects) -> Vec<String> {
    let problems =
        find_unrequested(machine, known).into_iter().filter_map(|enabled| check_template(machine, &enabled).err());
    problems.flatten().map(|why| add_reason(&why)).collect()
}

/// Returns the arrays of the enabled templates. Requested templates and invalid templates are omitted.
pub(super) fn find_enabled_arrays(machine: &MachineSpec, known: &SiteObjects) -> Vec<RequestedArrays> {
    let valid =
        find_unrequested(machine, known).into_iter().filter_map(|enabled| check_template(machine, &enabled).ok());
    valid.flatten().collect()
}

/// Extends each problem with the reason why the template affects the machine, and with the remedy.
pub(super) fn add_reason(problems: &str) -> String {
    let lines = problems.lines().map(|line| {
        format!(
            "{line}; the machine's trait enables this template even if the allocation does not request the trait: \
            correct the template, or remove the trait"
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the templates that the machine's traits enable, but its allocation does not request.
pub(super) fn find_unrequested(machine: &MachineSpec, known: &SiteObjects) -> Vec<RequestedTemplate> {
    let requested = machine.allocation.iter().flat_map(|allocation| &allocation.requested_traits);
    let requested: Vec<&str> = requested.map(|name| name.as_str()).collect();
    let unrequested = machine.traits.iter().filter(|name| !requested.contains(&name.as_str()));
    let enabled = unrequested
        .filter_map(|by| Some(RequestedTemplate { by: by.clone(), stored: known.templates.find_by_name(by)?.clone() }));
    enabled.collect()
}

/// Merges the template with the default steps, and returns its arrays.
///
/// # Errors
/// Returns all problems of the template.
fn check_template(machine: &MachineSpec, enabled: &RequestedTemplate) -> Result<Option<RequestedArrays>, Vec<String>> {
    let defaults = StepList::default().list().to_vec();
    let steps = merge_templates(&CATALOG, defaults, &[enabled.stored.template.template_steps()]);
    let steps = steps.map_err(|wrong| {
        let problems = wrong.into_iter().map(|wrong| Diagnostic::new(wrong.problem_path(), wrong.message));
        problems.map(|problem| enabled.format_problem(problem)).collect::<Vec<_>>()
    })?;
    let (remote, steps): (Vec<_>, Vec<_>) = steps.into_iter().partition(|step| step.entry.out_of_band);
    let mut problems = Vec::new();
    out_of_band_templates::convert_steps(machine, &remote, std::slice::from_ref(enabled), &mut problems);
    let arrays = find_arrays(&steps, std::slice::from_ref(enabled), &mut problems);
    let name = &enabled.stored.template.name;
    let missing = plan::without_steps(&StepList::from(steps)).into_iter();
    problems
        .extend(missing.map(|problem| format_at(&enabled.by, &format!("the template {name}: {}", problem.message))));
    if problems.is_empty() { Ok(arrays) } else { Err(problems) }
}
