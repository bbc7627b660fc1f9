//! Resolution of an allocation to its image, layout and steps. Before the first installation, the machine file
//! determines image, layout and steps. Afterwards, the installed system or the reinstall order does.

mod installed_system_differences;
mod layout_changes;

pub(crate) use installed_system_differences::explain_layout_contradiction;
pub use installed_system_differences::find_differences;
pub use layout_changes::{explain_layout_change, layout_digest};

use crate::approved_input_digests::check_inputs;
use crate::effective_allocation::{EffectiveAllocation, effective_allocation};
use crate::ganeti_os_definition_state::DefinitionState;
use crate::operator_files::{AllocationSpec, ImageLocation, ImageSpec, MachineSpec, format_at};
use crate::requested_steps::{self, AllocationSteps, check_enabled_templates};
use crate::site_objects::SiteObjects;
use common::error_code::ErrorCode;
use layout_changes::check_ordered_layout;
use model::allocation::ApprovedPlan;
use model::deploy_steps::{OutOfBandStep, TemplateStep};
use model::ganeti_os_definition::OsSelector;
use model::layout::Layout;
use serde_json::Value;
use store::{InstallState, marker_layout_comparison, restore_confirmation};

/// Allocation together with the image, layout, steps and approval that apply to it.
#[derive(Debug, Clone)]
pub struct ResolvedAllocation {
    pub allocation: AllocationSpec,
    pub image: ImageSpec,
    pub layout_id: String,
    /// Layout as JSON, with the field names of metal-api.
    pub layout: Value,
    /// Steps that the agent runs; empty if no template changes the default steps.
    pub steps: Vec<TemplateStep>,
    /// Steps that the server runs, in this order, through the management controller before it serves the installation
    /// to the machine.
    pub out_of_band: Vec<OutOfBandStep>,
    /// True if the next boot will install the machine, because the allocation was never installed or a reinstall is
    /// ordered. Otherwise, the agent only boots the installed system.
    pub installs: bool,
    /// Approval of the machine's plan, if one is in force. The agent refuses to carry out any other plan.
    pub approved: Option<ApprovedPlan>,
}

/// Resolves the machine's allocation, and adds the approval of its plan. Templates that the machine's traits enable are
/// checked even if the machine has no allocation. Returns `None` if the machine has no allocation, or must wait for the
/// digest of its image, for the verification of its OS definition, or for the inventory on which its layout depends.
///
/// # Errors
/// Returns everything that prevents the resolution, one line each, with its position in the machine file.
pub fn resolve_allocation(
    machine: &MachineSpec,
    install_state: &InstallState,
    known: &SiteObjects,
) -> Result<Option<ResolvedAllocation>, String> {
    let resolved = resolve_with_approval(machine, install_state, known, |installs| {
        match known.approvals.approval_for_agent(&machine.id, install_state) {
            Ok(approved) => Ok(approved.filter(|_| installs)),
            Err(why) if installs => Err(why),
            Err(_) => Ok(None),
        }
    })?;
    if let Some(resolved) = resolved.as_ref().filter(|resolved| resolved.approved.is_some()) {
        let approval = install_state.approved.as_ref().and_then(|approval| approval.as_ref().ok());
        let checked = check_inputs(&machine.id, approval.map(|approval| approval.inputs()), resolved);
        checked.map_err(|why| format_at(&resolved.allocation.id, &why))?;
    }
    Ok(resolved)
}

/// Resolves the machine's allocation and ignores approvals. Used for a plan that the operator has not approved yet.
///
/// # Errors
/// Fails as [`resolve_allocation`] does.
pub fn resolve_before_approval(
    machine: &MachineSpec,
    install_state: &InstallState,
    known: &SiteObjects,
) -> Result<Option<ResolvedAllocation>, String> {
    resolve_with_approval(machine, install_state, known, |_| Ok(None))
}

/// Resolves the machine's allocation. `find_approval` is called with `true` if the allocation will be installed. It
/// is called before image and layout are resolved. An invalid approval is therefore reported even while the machine
/// waits for its image or layout.
fn resolve_with_approval(
    machine: &MachineSpec,
    install_state: &InstallState,
    known: &SiteObjects,
    find_approval: impl FnOnce(bool) -> Result<Option<ApprovedPlan>, String>,
) -> Result<Option<ResolvedAllocation>, String> {
    let Some(in_file) = &machine.allocation else {
        return check_enabled_templates(machine, install_state, known).map(|()| None);
    };
    let EffectiveAllocation { allocation, problem } = effective_allocation(in_file, install_state);
    let installs = install_state.will_install();
    if let Some(why) = explain_refusal(machine, &allocation, install_state, known, problem.filter(|_| installs)) {
        return Err(why);
    }
    // An installed system boots even if its definition is unusable or not verified yet.
    if installs && matches!(allocation.definition, DefinitionState::Verifying) {
        return Ok(None);
    }
    let approved = find_approval(installs)?;
    let Some(parts) = resolve_parts(machine, &allocation, install_state, known, installs)? else { return Ok(None) };
    let AllocationParts { image, layout: (layout_id, layout), steps: AllocationSteps { steps, out_of_band, .. } } =
        parts;
    Ok(Some(ResolvedAllocation { allocation, image, layout_id, layout, steps, out_of_band, installs, approved }))
}

/// Returns the reason why the allocation must not be used although all its references are valid, or `None` if it may
/// be used. A reason that the caller has already found is passed as `problem`.
fn explain_refusal(
    machine: &MachineSpec,
    allocation: &AllocationSpec,
    install_state: &InstallState,
    known: &SiteObjects,
    problem: Option<String>,
) -> Option<String> {
    let installs = install_state.will_install();
    let blocked = || known.states.installation_blocked(allocation, install_state);
    let unconfirmed = || {
        let is_unconfirmed = install_state.unconfirmed && installs;
        is_unconfirmed.then(|| format_at(&allocation.id, &restore_confirmation::explain_confirmation(&machine.id)))
    };
    let definition = || match &allocation.definition {
        DefinitionState::Unusable(why) if installs => Some(why.clone()),
        _ => None,
    };
    explain_other_owner(machine, allocation, install_state)
        .or_else(blocked)
        .or_else(|| problem.map(|why| format_at(&allocation.id, &why)))
        .or_else(unconfirmed)
        .or_else(definition)
}

/// Objects that an allocation refers to.
struct AllocationParts {
    image: ImageSpec,
    /// Id of the layout, and the layout itself.
    layout: (String, Value),
    /// Steps of the installation; empty if nothing will be installed.
    steps: AllocationSteps,
}

/// Resolves image, layout and steps, and reports all problems together. Returns `None` if the image or the layout is
/// not known yet.
fn resolve_parts(
    machine: &MachineSpec,
    allocation: &AllocationSpec,
    install_state: &InstallState,
    known: &SiteObjects,
    installs: bool,
) -> Result<Option<AllocationParts>, String> {
    let (merged, unmerged) = match requested_steps::merge_allocation_steps(machine, allocation, known) {
        Ok(merged) => (merged, None),
        Err(why) => (AllocationSteps::default(), Some(why)),
    };
    // An installation that has started continues, even if its allocation has become invalid.
    let is_started = install_state.order.as_ref().map_or(install_state.first.is_some(), |order| order.started);
    let enabled = match installs && !is_started {
        true => check_enabled_templates(machine, install_state, known),
        false => Ok(()),
    };
    // If the templates cannot be merged, the layout is not resolved, because a template may determine it.
    let layout = match unmerged.filter(|_| installs) {
        None => resolve_layout(machine, allocation, install_state, known, &merged),
        Some(why) => Err(why),
    };
    let image = resolve_image(machine, allocation, install_state, known);
    let problems = [enabled.err(), image.as_ref().err().cloned(), layout.as_ref().err().cloned()];
    let problems: Vec<String> = problems.into_iter().flatten().collect();
    match (image, layout) {
        _ if !problems.is_empty() => Err(problems.join("\n")),
        (Ok(Some(image)), Ok(Some(layout))) => {
            let steps = if installs { merged } else { AllocationSteps::default() };
            Ok(Some(AllocationParts { image, layout, steps }))
        }
        _ => Ok(None),
    }
}

/// Returns the reason why this machine must not use the allocation, or `None` if it may. The reason is that a migration
/// has moved the allocation to another machine or overwritten it, or that the allocation is installed under another
/// machine id.
fn explain_other_owner(
    machine: &MachineSpec,
    allocation: &AllocationSpec,
    install_state: &InstallState,
) -> Option<String> {
    if install_state.barred {
        let message = format!(
            "allocation {} was migrated to another machine, or overwritten by a migration: machine {} must not boot this allocation from its disks; \
            give the machine a new allocation id",
            *allocation.id, machine.id
        );
        return Some(format_at(&allocation.id, &message));
    }
    if let Some(other) = &install_state.elsewhere {
        let message = format!(
            "allocation {} is installed under machine {other}, and cannot be used for another machine. If this is that machine with a new id, \
            use `drophammer machine rename {other} {}`; otherwise give this machine its own allocation id",
            *allocation.id, machine.id
        );
        return Some(format_at(&allocation.id, &message));
    }
    None
}

/// Returns the image that the next boot installs. If nothing will be installed, returns the installed image. Returns
/// `None` if the digest of the image is not known yet.
fn resolve_image(
    machine: &MachineSpec,
    allocation: &AllocationSpec,
    install_state: &InstallState,
    known: &SiteObjects,
) -> Result<Option<ImageSpec>, String> {
    match (install_state.is_installed(), &install_state.order, allocation.definition.created_os()) {
        (true, Some(order), Some(os)) => resolve_created_image(allocation, &os, &order.image).map(Some),
        (false, _, Some(os)) => resolve_created_image(allocation, &os, &allocation.image).map(Some),
        (true, Some(order), None) => known.images.get(&order.image).cloned().ok_or_else(|| {
            let gone = format!(
                "a reinstall with image {image:?} is ordered, but images/ no longer contains it: the machine waits", image = order.image);
            match order.started {
                true => format!("{gone}; put the image back, because the reinstall has already started"),
                false => format!(
                    "{gone}; put the image back, or order another image with `drophammer machine reinstall {machine} --image IMAGE`", machine = machine.id),
            }
        }),
        (true, None, _) => Ok(Some(installed_image(install_state, allocation))),
        (false, _, None) => known.images.get(allocation.image.as_str()).cloned().ok_or_else(|| {
            known.explain_absent_image(&allocation.image).format_at(&allocation.image)
        }),
    }
}

/// Returns the layout that applies to the allocation, and the id of this layout. An installation that has started
/// continues with its layout, since another layout might erase other disks. An installed machine keeps its layout,
/// unless the reinstall is ordered with `--change-promise`, which applies the layout of the machine file.
fn resolve_layout(
    machine: &MachineSpec,
    allocation: &AllocationSpec,
    install_state: &InstallState,
    known: &SiteObjects,
    merged: &AllocationSteps,
) -> Result<Option<(String, Value)>, String> {
    let by_the_operator = install_state.order.as_ref().is_some_and(|order| order.change_promise);
    let kept = install_state
        .pinned_layout()
        .or(install_state.layout.as_ref().filter(|_| install_state.succeeded && !by_the_operator));
    if let Some(kept) = kept {
        return Ok(Some((layout_id(kept), kept.clone())));
    }
    let layout = match (&merged.arrays, &install_state.generated) {
        (Some(_), Some(generated)) => generated.clone()?,
        (Some(_), None) => return Ok(None),
        (None, _) => find_layout(machine, allocation, install_state, known)?.clone(),
    };
    let json = serde_json::to_value(&layout).map_err(|error| error.to_string())?;
    check_ordered_layout(allocation, install_state, &json)?;
    match (&install_state.marker, &install_state.order) {
        (Some(marker), Some(order)) if !order.change_promise => {
            match marker_layout_comparison::find_contradiction(marker, &json) {
                Some(why) => Err(format_at(
                    &allocation.id,
                    &format!("{why}: {}", marker_layout_comparison::contradiction_remedy(&machine.id)),
                )),
                None => Ok(Some((layout.id, json))),
            }
        }
        _ => Ok(Some((layout.id, json))),
    }
}

pub fn layout_id(layout: &Value) -> String {
    layout.get("id").and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Returns an image without a location, for a definition that creates the OS itself. The id of the image must be the
/// name of the definition.
///
/// # Errors
/// Returns an error if the id is not the name of the definition.
pub fn resolve_created_image(allocation: &AllocationSpec, os: &OsSelector, id: &str) -> Result<ImageSpec, String> {
    match os.to_string() == id {
        true => Ok(image_without_location(id.to_owned())),
        false => {
            let why = format!(
                "OS definition {os} creates the system itself and uses no image: specify {os} instead of {id} as the image"
            );
            Err(format_at(&allocation.image, &why))
        }
    }
}

/// Returns the installed image. Only its id is set, since the image is not fetched.
fn installed_image(install_state: &InstallState, allocation: &AllocationSpec) -> ImageSpec {
    image_without_location(install_state.image.clone().unwrap_or_else(|| allocation.image.to_string()))
}

/// Returns an image without a location. The agent cannot fetch such an image.
pub fn image_without_location(id: String) -> ImageSpec {
    ImageSpec {
        id,
        name: String::new(),
        description: String::new(),
        at: ImageLocation::Url(String::new()),
        mirrors: Vec::new(),
        digest: None,
        pull_secrets: Vec::new(),
        finish: None,
        architecture: None,
        contents: None,
    }
}

/// Returns the layout that the machine file specifies. If it specifies none, returns the layout whose id is stored for
/// an installed machine, since databases of earlier versions store only the id. If no id is stored, returns the layout
/// that the machine's size and image select.
fn find_layout<'a>(
    machine: &MachineSpec,
    allocation: &AllocationSpec,
    install_state: &InstallState,
    known: &'a SiteObjects,
) -> Result<&'a Layout, String> {
    if let Some(id) = &allocation.filesystemlayout {
        return known.layouts.get(id.as_str()).ok_or_else(|| known.explain_absent_layout(id).format_at(id));
    }
    if let Some(id) = install_state.layout_id.as_ref().filter(|_| install_state.succeeded) {
        return known.layouts.get(id).ok_or_else(|| {
            let message = match known.unusable_layouts.problem(id) {
                Some(problem) => {
                    format!("this allocation is installed with layout {id:?}, which cannot be used ({problem})")
                }
                None => format!("this allocation is installed with layout {id:?}, which no longer exists"),
            };
            format_at(
                &allocation.id,
                &format!("{message}: put the layout back, or specify another layout in `filesystemlayout`"),
            )
        });
    }
    let Some(size) = &machine.size else {
        let message = "the allocation does not specify a filesystemlayout, and the machine has no size that could select a layout: specify a filesystemlayout or a size";
        return Err(ErrorCode::NoMatchingLayout.annotate(format_at(&allocation.id, message)));
    };
    let chosen = known.set.select(size, &allocation.image).map_err(|why| {
        let why = format!("{why}{problems}", problems = known.unusable_layouts.list_problems());
        ErrorCode::NoMatchingLayout.annotate(format_at(&allocation.image, &why))
    })?;
    known
        .layouts
        .get(&chosen.id)
        .ok_or_else(|| format_at(&allocation.image, "the selected layout has been removed in the meantime"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator_files;

    #[test]
    fn every_missing_object_is_reported() {
        let text = "id: 4c4c4544-0051-3010-8031-b2c04f333633\nallocation:\n  id: a\n  hostname: h\n  image: debian-12\n  \
                    filesystemlayout: default\n";
        let machine = operator_files::parse_machine(text).unwrap();
        let why = resolve_allocation(&machine, &InstallState::default(), &SiteObjects::default()).unwrap_err();
        let lines: Vec<&str> = why.lines().collect();
        assert_eq!(lines.len(), 2, "{why}");
        assert!(lines[0].starts_with("5:10: image \"debian-12\" not found in images/"), "{why}");
        assert!(lines[1].starts_with("6:21: layout \"default\" not found in layouts/"), "{why}");
    }
}
