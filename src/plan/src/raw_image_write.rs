//! Plan that writes an unmodified image to a disk without inspecting the image, as Ironic's agent does in its step
//! `write_image`.

use super::{Plan, PlanRefusal, PlanRequest, erase_plan};
use model::device_name::KernelName;
use model::inventory::{Inventory, InventoryDisk};
use model::layout::{self, Layout};
use operations::{AddedPartition, Operation, ResolveImage, SessionOp, StageName};

/// Makes a plan that writes the image of the request to this disk, and then adds the partition `added` to the disk.
/// Disks in `skipped` are ignored.
///
/// # Errors
/// Returns all reasons why the disk cannot be written, or why holders of the disk cannot be released. Nothing was
/// written.
pub fn plan_raw_image(
    inventory: &Inventory,
    disk: &InventoryDisk,
    skipped: &[KernelName],
    request: PlanRequest,
    added: Option<AddedPartition>,
) -> Result<Plan, Box<PlanRefusal>> {
    let disks = vec![layout::DiskSpec { image: true, ..erase_plan::list_whole_disk(disk) }];
    let layout = Layout { id: "the unmodified image".to_owned(), disks, ..Layout::default() };
    let decided = erase_plan::decide_erasure(&layout, inventory, &request, skipped);
    let whole = erase_plan::arrange_erasure(&layout, inventory, request, decided)?;
    let mut plan = whole.select_steps(&["deploy.apply_layout", "deploy.burn_image"]);
    let is_last = |name| matches!(name, StageName::StorageUnmount | StageName::StorageDeactivate);
    plan.stages.extend(whole.stages.into_iter().filter(|stage| is_last(stage.name)));
    for operation in plan.stages.iter_mut().flat_map(|stage| &mut stage.operations) {
        if let Operation::Run(
            SessionOp::ResolveImage(ResolveImage { onto: Some(burn), .. }) | SessionOp::BurnDisk(burn),
        ) = operation
        {
            burn.added.clone_from(&added);
        }
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DiskVerdict, InstallMode, PlanSubject};
    use model::deploy_steps::StepList;
    use operations::DeviceOp;

    fn machine(name: &str) -> Inventory {
        let text = std::fs::read_to_string(format!(
            "{}/testdata/inventories/{name}.json",
            concat!(env!("CARGO_MANIFEST_DIR"), "/../..")
        ))
        .unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn request() -> PlanRequest {
        let (mode, steps, subject) = (InstallMode::Install, StepList::default(), PlanSubject::default());
        PlanRequest { mode, steps, subject, assigned: Default::default(), claim: None }
    }

    #[test]
    fn writes_image_to_one_disk_without_inspecting_its_content() {
        let inventory = machine("five-sata");
        let added = AddedPartition { name: "config-2".into(), guid: uuid::Uuid::nil(), content: vec![1; 4096] };
        let plan = plan_raw_image(&inventory, &inventory.disks[1], &[], request(), Some(added.clone())).unwrap();
        let names: Vec<StageName> = plan.stages.iter().map(|stage| stage.name).collect();
        let last = [StageName::ImageBurn, StageName::StorageUnmount];
        assert_eq!((names[0], &names[names.len() - 2..]), (StageName::ImageReach, &last[..]));
        for stage in
            [StageName::StorageMount, StageName::TargetInstaller, StageName::TargetMarker, StageName::BootKexec]
        {
            assert!(!names.contains(&stage), "{stage}");
        }
        let operations = || plan.stages.iter().flat_map(|stage| &stage.operations);
        let wiped = operations().filter_map(|operation| match operation {
            Operation::Device(DeviceOp::WipeDisk(wipe)) => Some(wipe.device.as_str()),
            _ => None,
        });
        assert_eq!(wiped.collect::<Vec<_>>(), [inventory.disks[1].device.as_str()]);
        let burned = operations().filter_map(|operation| match operation {
            Operation::Run(
                SessionOp::ResolveImage(ResolveImage { onto: Some(burn), .. }) | SessionOp::BurnDisk(burn),
            ) => burn.added.clone(),
            _ => None,
        });
        assert_eq!(burned.collect::<Vec<_>>(), [added.clone(), added]);
        assert!(plan.to_string().contains("partition config-2 with 4.10 kB at the end of the disk"), "{plan}");
        let others = plan.disks.iter().filter(|disk| disk.name != inventory.disks[1].name);
        assert!(others.clone().count() == 4 && others.clone().all(|disk| disk.verdict == DiskVerdict::NotOurs));
    }

    #[test]
    fn refuses_read_only_disk_and_arrays_with_skipped_disks() {
        let mut inventory = machine("five-sata");
        inventory.disks[0].read_only = true;
        let refusal = plan_raw_image(&inventory, &inventory.disks[0], &[], request(), None).unwrap_err().to_string();
        assert!(refusal.contains("Nothing was written"), "{refusal}");
        let inventory = machine("raid-lvm");
        let skipped = [inventory.disks[0].name.clone()];
        let refusal =
            plan_raw_image(&inventory, &inventory.disks[1], &skipped, request(), None).unwrap_err().to_string();
        assert!(refusal.contains("; skip either all disks of"), "{refusal}");
    }
}
