//! The planner: a pure function of layout, inventory and request, without I/O, clock or randomness. docs/glossary.md
//! explains the terms.

pub mod approval_comparison;
pub mod approval_summary;
mod arrays;
mod assembly_graph;
mod attempt_record;
mod attempt_retry;
mod bios_boot_gap;
mod boot_entry_operations;
mod content_descriptions;
mod creation_trials;
mod discarded_disks;
pub mod disk_capacity;
mod disk_descriptions;
mod disk_erasure_plan;
mod disks;
mod display;
mod duplicate_uuids;
mod earlier_attempt;
mod encrypted_groups;
mod erase_plan;
mod existing_filesystem_injection;
mod existing_system_boot;
mod external_filesystem_devices;
mod filesystem_fate;
mod filesystems;
mod first_install_protection;
mod ganeti_os_definition;
mod guard_ranges;
mod hibernation_images;
mod holder_teardown;
mod image_boot_setup;
pub mod image_bootability;
mod image_stages;
mod install_marker;
mod installation_identity;
mod installed_disk_identity;
mod intact_installation;
mod k8s_volumes;
mod locked_containers;
pub mod luks;
mod lvm;
mod migration_source;
mod migration_target;
mod missing_component_protection;
mod missing_disks;
mod non_destructive_plan;
mod nonblank_disk_protection;
mod opaque_objects;
mod operation_args;
mod order_age;
mod orphan_members;
mod partition_gap_placement;
mod partition_placement;
mod partly_kept_disks;
mod plan_decisions;
mod planned_device_capacity;
mod planned_devices;
mod planner;
mod planner_state;
mod pool_machine_erasure;
pub mod preservation_proof;
mod preserved_activation;
mod raw_image_boot;
mod raw_image_write;
mod recorded_disk;
mod recorded_disk_match;
mod recorded_wipe_policy;
mod renewed_volumes;
pub mod request_from_allocation;
mod signature_ranges;
mod spanning_objects;
mod stages;
pub(crate) mod stale_boot_variables;
mod step_selection;
mod system_source;
mod types;
mod unrecorded_disks;
mod unusual_disks;
mod uuids_in_use;
mod writable_extents;
mod write_activation;
mod zero_proofs;

pub use erase_plan::plan_erasure;
pub use existing_filesystem_injection::plan_injection;
pub use existing_system_boot::is_carried_out;
use filesystem_fate::FilesystemFate;
pub use first_install_protection::{EndangeredData, find_endangered_data, has_contents, has_preserved_objects};
pub(crate) use intact_installation::is_intact;
pub use migration_source::check_migration;
pub use pool_machine_erasure::{PoolAllocation, is_installed, plan_emptying};
pub use raw_image_boot::plan_boot_entry;
pub use raw_image_write::plan_raw_image;
pub use step_selection::missing_steps as without_steps;
pub use types::*;

use common::error_code::ErrorCode;
use model::install_marker::AttemptSecret;
use model::inventory::Inventory;
use model::layout::Layout;
use model::storage_graph::LayoutMatch;
use plan_decisions::PlanDecisions;
use uuid::Uuid;

/// Decides the fate of every disk of the machine. `ids` supplies the UUIDs of new objects, so that the plan contains
/// them before the objects exist.
///
/// The layout must be valid ([`model::layout::validate_layout`]).
///
/// # Errors
/// Returns every reason why the layout does not fit this machine.
pub fn make_plan(
    layout: &Layout,
    inventory: &Inventory,
    mut request: PlanRequest,
    ids: &mut dyn FnMut() -> Uuid,
) -> Result<Plan, Box<PlanRefusal>> {
    let meant = request.source().adapt_layout(layout, inventory);
    let layout = &*meant;
    if let Some(marked) = existing_system_boot::find_installation(layout, inventory, &request) {
        return existing_system_boot::plan_boot(layout, inventory, request, &marked);
    }
    intact_installation::drop_announced_attempt(layout, inventory, &mut request);
    let mut decided = decide_with_retry(layout, inventory, &request, ids);
    // Disks of another machine are already protected, and the remedy for them is different.
    if !decided.problems.iter().any(|problem| problem.code == Some(ErrorCode::ForeignDisks)) {
        decided.problems.extend(first_install_protection::refuse_erasing_data(layout, inventory, &request));
    }
    decided.secret = Some(AttemptSecret::generate(ids));
    let verdicts =
        decided.problems.is_empty().then(|| approval_summary::summarize_plan(layout, inventory, &request, &decided));
    // If the plan is refused for other reasons, the comparison with the approval is omitted.
    decided
        .problems
        .extend(verdicts.iter().flat_map(|verdicts| approval_comparison::compare_with_approval(&request, verdicts)));
    if !decided.problems.is_empty() {
        let PlanRequest { mode, subject, .. } = request;
        return Err(Box::new(PlanRefusal {
            mode,
            subject,
            layout: layout.id.clone(),
            disks: decided.disks,
            opaque: opaque_objects::listed_objects(inventory),
            problems: decided.problems.into_iter().map(|problem| problem.with_default_code(ErrorCode::Plan)).collect(),
        }));
    }
    Ok(Plan { verdicts, ..stages::arrange_stages(layout, inventory, request, decided) })
}

/// Makes all decisions on the objects of the layout. If an earlier attempt was interrupted, the objects that it has
/// completed are preserved, and only incomplete objects are recreated.
fn decide_with_retry(
    layout: &Layout,
    inventory: &Inventory,
    request: &PlanRequest,
    ids: &mut dyn FnMut() -> Uuid,
) -> PlanDecisions {
    let mut decided = planner::decide_plan(layout, inventory, request, &Default::default(), ids);
    let remade = attempt_retry::disks_to_remake(layout, inventory, request, &decided.problems);
    if !remade.is_empty() {
        let again = planner::decide_plan(layout, inventory, request, &remade, ids);
        let is_better = again.problems.is_empty()
            && attempt_retry::changes_only(&LayoutMatch::new(layout, inventory), &remade, &decided, &again);
        decided = if is_better { again } else { decided };
    }
    decided.problems.extend(step_selection::missing_steps(&request.steps));
    decided.problems.extend(request.source().find_problems(layout, inventory, &decided));
    decided.problems.extend(stale_boot_variables::refuse_cleaning(layout, inventory));
    decided.problems.extend(nonblank_disk_protection::refuse_wiping(request, inventory, &decided.disks));
    decided
}

#[cfg(any(test, feature = "testing"))]
pub mod simulator;
#[cfg(test)]
mod tests;
