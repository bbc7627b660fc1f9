//! Steps of templates that run through the management controller of the machine. If the controller does not support
//! Redfish, a template with such steps is reported as a problem before the machine boots.

use super::enabled_template_checks::find_unrequested;
use super::{RequestedTemplate, find_templates};
use crate::operator_files::MachineSpec;
use crate::site_objects::SiteObjects;
use common::diagnostic::Diagnostic;
use model::bmc::{Bmc, BmcAddress};
use model::deploy_steps::{OutOfBandStep, PlannedStep, TemplateStep, find_misplaced_step};

/// Template with steps that run through the management controller of a machine.
#[derive(Debug)]
pub struct OutOfBandTemplate {
    template: RequestedTemplate,
    /// Steps in the order of their priorities.
    pub steps: Vec<OutOfBandStep>,
}

impl OutOfBandTemplate {
    /// Formats a problem of the template with the positions in the machine file and in the template's file.
    pub fn format_problem(&self, message: &str) -> String {
        self.template.format_problem(Diagnostic::new("steps", message))
    }
}

/// Returns the requested and enabled templates of the machine that contain steps for the management controller.
/// Templates whose steps are invalid are omitted.
pub fn find_out_of_band_templates(machine: &MachineSpec, known: &SiteObjects) -> Vec<OutOfBandTemplate> {
    let requested = machine.allocation.iter().flat_map(|allocation| find_templates(allocation, known));
    let all = requested.chain(find_unrequested(machine, known));
    let with_steps = all.filter_map(|template| {
        let mut steps = template.stored.template.template_steps();
        steps.retain(|step| step.priority != Some(0));
        steps.sort_by_key(|step| std::cmp::Reverse(step.priority));
        let parse =
            |step: &TemplateStep| OutOfBandStep::parse(&format!("{}.{}", step.interface, step.step), &step.args).ok();
        let steps: Vec<OutOfBandStep> = steps.iter().filter_map(parse).collect();
        (!steps.is_empty()).then_some(OutOfBandTemplate { template, steps })
    });
    with_steps.collect()
}

/// Converts the merged steps that run through the management controller. Adds a problem if the machine's controller
/// cannot run the steps, or if their order is impossible.
pub(super) fn convert_steps(
    machine: &MachineSpec,
    steps: &[PlannedStep],
    requested_templates: &[RequestedTemplate],
    problems: &mut Vec<String>,
) -> Vec<OutOfBandStep> {
    let Some(first) = steps.first() else { return Vec::new() };
    if let Some(why) = explain_unsupported_controller(machine.bmc.as_ref()) {
        problems.extend(format_step_problem(first, requested_templates, &format!("{}: {why}", first.entry.name)));
    }
    // Invalid steps are skipped, because their arguments were already checked, and reported, when the templates were
    // merged.
    let converted = steps.iter().filter_map(|step| OutOfBandStep::parse(step.entry.name, &step.arguments).ok());
    let converted: Vec<OutOfBandStep> = converted.collect();
    if let Some((index, why)) = find_misplaced_step(&converted) {
        problems.extend(steps.get(index).and_then(|step| format_step_problem(step, requested_templates, &why)));
    }
    converted
}

/// Returns the reason why no step can run through this controller, or `None` if the controller supports Redfish.
fn explain_unsupported_controller(bmc: Option<&Bmc>) -> Option<&'static str> {
    match bmc.map(|bmc| &bmc.at) {
        Some(BmcAddress::Redfish { .. }) => None,
        Some(BmcAddress::Ipmi { .. }) => Some(
            "this step requires Redfish, but the management controller of the machine is addressed over IPMI: specify the controller's https:// address in `bmc:`",
        ),
        None => Some(
            "this step requires Redfish, but the machine file has no management controller: add `bmc:` with the controller's https:// address",
        ),
    }
}

fn format_step_problem(step: &PlannedStep, requested_templates: &[RequestedTemplate], message: &str) -> Option<String> {
    let template = requested_templates.get(*step.from.first()?)?;
    let wanted = step.as_template_step();
    let is_this = |other: &TemplateStep| other.interface == wanted.interface && other.step == wanted.step;
    let index = template.stored.template.template_steps().iter().position(is_this)?;
    Some(template.format_problem(Diagnostic::new(format!("steps[{index}]"), message)))
}
