//! Plans a reinstall with a discovered layout, and reports the reasons that prevent a reinstall.

use crate::DiscoveredLayout;
use crate::planned_erasure::{DeviceFate, PlannedErasure};
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::inventory::Inventory;
use model::layout::{Layout, canonical_yaml, read_yaml};
use plan::request_from_allocation::preview::{placeholder_uuids, remove_temporary_uses};
use plan::{InstallClaim, InstallMode, MarkerWaiver, Plan, PlanRequest, PlanSubject};
use std::fmt;

/// Effect of a reinstall with a discovered layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReinstallAssessment {
    /// Reasons why a reinstall would be refused, or would not preserve all data.
    pub obstacles: Vec<String>,
    /// Number of contents that are preserved.
    pub preserved: usize,
}

impl ReinstallAssessment {
    /// Returns whether a reinstall renews the system and preserves everything else.
    pub fn is_safe(&self) -> bool {
        self.obstacles.is_empty()
    }
}

impl fmt::Display for ReinstallAssessment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.obstacles.as_slice(), self.preserved) {
            ([], 0) => f.write_str("Reinstall: the system is renewed; no data outside the system was found."),
            ([], count) => write!(f, "Reinstall: the system is renewed, everything else is preserved ({count} found)."),
            (all, _) => write!(f, "Reinstall: refused: {}", all.join("; ")),
        }
    }
}

/// Plans a reinstall of the machine with the discovered layout.
pub fn assess_reinstall(found: &DiscoveredLayout, inventory: &Inventory) -> ReinstallAssessment {
    let mut obstacles: Vec<String> =
        found.notes.iter().filter(|note| note.is_obstacle).map(|note| note.text.clone()).collect();
    obstacles.extend(find_plan_obstacles(found, inventory));
    ReinstallAssessment { obstacles, preserved: found.data.len() }
}

fn find_plan_obstacles(found: &DiscoveredLayout, inventory: &Inventory) -> Vec<String> {
    let claim = InstallClaim {
        machine: inventory.system.uuid.clone().unwrap_or_default(),
        // The marker is waived, because the machine does not have an install marker yet.
        waiver: Some(MarkerWaiver::Operator),
        ..InstallClaim::default()
    };
    let planned = parse_discovered(found).and_then(|layout| plan_reinstall(&layout, inventory, claim, ""));
    planned.map_or_else(|obstacles| obstacles, |plan| find_erased_contents(found, inventory, &plan))
}

/// Parses the discovered layout in the same way as a server that receives it.
///
/// # Errors
/// Returns the problems of the layout.
pub(crate) fn parse_discovered(found: &DiscoveredLayout) -> Result<Layout, Vec<String>> {
    let parsed = read_yaml(&canonical_yaml(&found.layout)).map_err(|problems| {
        let format = |mut problem: Diagnostic| {
            // The positions in the problems are removed: they refer to the layout without comments, which the operator
            // does not see.
            (problem.line, problem.column) = (None, None);
            problem.to_coded_text()
        };
        problems.into_iter().map(format).collect::<Vec<_>>()
    })?;
    Ok(parsed.layout)
}

/// Plans a reinstall of the machine with the layout, for the installation in `claim`. `image` is the id of the image
/// in the install marker.
///
/// # Errors
/// Returns the reasons why the planner refuses the reinstall.
pub(crate) fn plan_reinstall(
    layout: &Layout,
    inventory: &Inventory,
    claim: InstallClaim,
    image: &str,
) -> Result<Plan, Vec<String>> {
    let mut inventory = inventory.clone();
    remove_temporary_uses(&mut inventory);
    let subject = PlanSubject { machine: claim.machine.clone(), image: image.to_owned(), ..PlanSubject::default() };
    let request = PlanRequest {
        mode: InstallMode::Reinstall,
        steps: Default::default(),
        subject,
        assigned: Default::default(),
        claim: Some(claim),
    };
    plan::make_plan(layout, &inventory, request, &mut placeholder_uuids())
        .map_err(|refusal| refusal.problems.iter().map(|problem| problem.to_coded_text()).collect())
}

/// Returns the contents that the plan would erase although a reinstall must preserve them, or although the operator
/// must request their erasure. This check does not rely on the decisions of the planner.
fn find_erased_contents(found: &DiscoveredLayout, inventory: &Inventory, plan: &Plan) -> Vec<String> {
    let erasure = PlannedErasure::new(plan, inventory);
    let data = found.data_devices.iter().zip(&found.data);
    let data = data.filter_map(|(device, description)| match erasure.find_fate(device) {
        DeviceFate::Preserved => None,
        DeviceFate::Erased => Some(format!(
            "a reinstall would erase data: {description}; set `preserve: true` on its filesystem, or on a device below"
        )),
        DeviceFate::Unknown => Some(format!(
            "a reinstall might erase data: {description}, because the inventory does not contain its disks; connect the \
             disks, and read the inventory again"
        )),
    });
    let unproven = found.unproven.iter().filter(|content| !found.data_devices.contains(&content.name));
    let unproven = unproven.filter(|content| erasure.find_fate(&content.name) != DeviceFate::Preserved);
    let unproven = unproven.map(|content| {
        let (device, content) = (&content.device, &content.content);
        format!(
            "a reinstall would erase {device} ({content}), although neither fstab nor a mount shows that it belongs to the \
             system; mount it, preserve it in the layout, or discard its content with --give-up {device}"
        )
    });
    data.chain(unproven).map(|why| ErrorCode::PreservedDataLoss.annotate(why)).collect()
}
