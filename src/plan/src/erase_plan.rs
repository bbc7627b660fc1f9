//! Plan that erases every disk before the machine is allocated to its next owner.
use super::plan_decisions::PlanDecisions;
use super::planner::{self};
use super::{
    FirmwarePlan, InstallMode, Plan, PlanRefusal, PlanRequest, PlanSubject, TornObject, opaque_objects, stages,
};
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::deploy_steps::{EraseMode, StepList};
use model::device_name::KernelName;
use model::inventory::{Inventory, InventoryDisk};
use model::layout::{self, Layout, root_device_hints};
use uuid::Uuid;

/// Makes the plan. Disks in `skipped` are not erased. Disks that are removable or attached by USB need not belong to
/// the machine; they are erased only if they are in `owned`.
///
/// # Errors
/// Returns all reasons why a disk cannot be written, or why the holders of a disk cannot be released. Nothing was
/// written.
pub fn plan_erasure(
    inventory: &Inventory,
    erase: EraseMode,
    skipped: &[KernelName],
    owned: &[KernelName],
    subject: PlanSubject,
) -> Result<Plan, Box<PlanRefusal>> {
    let belongs = |disk: &InventoryDisk| !root_device_hints::is_portable(disk) || owned.contains(&disk.name);
    let disks = || inventory.disks.iter().filter(|disk| belongs(disk) && !skipped.contains(&disk.name));
    let layout = Layout {
        id: "every disk is erased".to_owned(),
        disks: disks().map(list_whole_disk).collect(),
        cleanfirmware: true,
        ..Layout::default()
    };
    let request = PlanRequest {
        mode: InstallMode::Install,
        steps: StepList::with_erase_mode(erase),
        subject,
        assigned: Default::default(),
        claim: None,
    };
    let mut decided = decide_erasure(&layout, inventory, &request, skipped);
    if disks().count() == 0 && skipped.is_empty() {
        decided.problems.push(Diagnostic::new("disks", "no erasable disk was found").with_code(ErrorCode::PoolErasure));
    }
    Ok(arrange_erasure(&layout, inventory, request, decided)?.select_steps(&["deploy.apply_layout"]))
}

/// Returns the decisions of a plan that erases the disks of the layout, which must list whole disks without partitions.
pub(super) fn decide_erasure(
    layout: &Layout,
    inventory: &Inventory,
    request: &PlanRequest,
    skipped: &[KernelName],
) -> PlanDecisions {
    // Any UUIDs can be supplied for new objects, because the plan does not create objects.
    let mut decided = planner::decide_plan(layout, inventory, request, &Default::default(), &mut Uuid::new_v4);
    let is_listed =
        |disk: &&InventoryDisk| layout.disks.iter().any(|listed| *listed.device.as_str() == *disk.device.as_str());
    let read_only = inventory.disks.iter().filter(is_listed).filter(|disk| disk.read_only).map(|disk| {
        Diagnostic::new(disk.device.to_string(), "the disk is write-protected and cannot be erased".to_owned())
            .with_code(ErrorCode::PoolErasure)
    });
    let missing = |problem: &Diagnostic| !decided.problems.contains(problem);
    let read_only: Vec<Diagnostic> = read_only.filter(missing).collect();
    decided.problems.extend(read_only);
    let dismantled =
        decided.dismantled.iter().filter(|dismantled| dismantled.stays_on.iter().any(|disk| skipped.contains(disk)));
    let dismantled = dismantled.map(|TornObject { name, wiped, stays_on, .. }| {
        let (wiped, stays_on) = (wiped.join(", "), stays_on.join(", "));
        Diagnostic::new("disks", format!("{name} spans {wiped}, which will be erased, and {stays_on}, which is skipped; skip either all disks of {name} or none")).with_code(ErrorCode::PoolErasure)
    });
    let dismantled: Vec<Diagnostic> = dismantled.collect();
    decided.problems.extend(dismantled);
    decided
}

pub(super) fn arrange_erasure(
    layout: &Layout,
    inventory: &Inventory,
    request: PlanRequest,
    decided: PlanDecisions,
) -> Result<Plan, Box<PlanRefusal>> {
    if !decided.problems.is_empty() {
        let PlanRequest { mode, subject, .. } = request;
        let coded = decided.problems.into_iter().map(|problem| problem.with_default_code(ErrorCode::Plan));
        let (disks, problems) = (decided.disks, coded.collect());
        let opaque = opaque_objects::listed_objects(inventory);
        return Err(Box::new(PlanRefusal { mode, subject, layout: layout.id.clone(), disks, opaque, problems }));
    }
    // The other warnings of a plan concern the boot of an installed system, and no such system remains.
    let mut warnings = decided.warnings.clone();
    let plan = stages::arrange_stages(layout, inventory, request, decided);
    warnings.extend(plan.firmware.iter().flat_map(FirmwarePlan::warnings));
    Ok(Plan { warnings, ..plan })
}

pub(super) fn list_whole_disk(disk: &InventoryDisk) -> layout::DiskSpec {
    layout::DiskSpec {
        device: disk.device.as_str().into(),
        hints: Default::default(),
        partitions: Vec::new(),
        wipeonreinstall: true,
        image: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DiskVerdict;
    use operations::{DeviceOp, Operation, StageName};

    fn machine(name: &str) -> Inventory {
        let text = std::fs::read_to_string(format!(
            "{}/testdata/inventories/{name}.json",
            concat!(env!("CARGO_MANIFEST_DIR"), "/../..")
        ))
        .unwrap();
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn erase_plan_wipes_every_disk_and_creates_nothing() {
        for name in ["raid-lvm", "five-sata", "nvme-sata", "installed-default", "twin-groups"] {
            for how in [EraseMode::None, EraseMode::Secure] {
                let inventory = machine(name);
                let plan = plan_erasure(&inventory, how, &[], &[], PlanSubject::default())
                    .unwrap_or_else(|why| panic!("{name}: {why}"));
                let wiped: Vec<&str> = plan
                    .stages
                    .iter()
                    .flat_map(|stage| &stage.operations)
                    .filter_map(|operation| match operation {
                        Operation::Device(DeviceOp::WipeDisk(wipe)) => Some(wipe.device.as_str()),
                        _ => None,
                    })
                    .collect();
                let all: Vec<&str> = inventory.disks.iter().map(|disk| disk.device.as_str()).collect();
                assert_eq!(wiped, all, "{name}");
                assert!(plan.disks.iter().all(|disk| disk.verdict == DiskVerdict::Wipe), "{name}");
                let last = plan.stages.last().map(|stage| stage.name);
                assert_eq!(last, Some(StageName::StorageWipe), "{name}");
                assert_eq!(plan.stages[plan.point_of_no_return].name, StageName::StorageWipe);
                assert!(plan.warnings.iter().all(|warning| !warning.contains("cannot boot")), "{plan}");
            }
        }
    }

    /// Skipped disks are not erased. The plan is refused if an array spans a skipped disk and an erased disk.
    #[test]
    fn erase_plan_leaves_skipped_disks_untouched() {
        let inventory = machine("five-sata");
        let skipped = [inventory.disks[0].name.clone(), inventory.disks[3].name.clone()];
        let plan = plan_erasure(&inventory, EraseMode::Secure, &skipped, &[], PlanSubject::default()).unwrap();
        let wiped = plan.disks.iter().filter(|disk| disk.verdict == DiskVerdict::Wipe);
        assert!(wiped.clone().count() == 3 && wiped.clone().all(|disk| !skipped.contains(&disk.name)));
        let all: Vec<KernelName> = inventory.disks.iter().map(|disk| disk.name.clone()).collect();
        // If all disks are skipped, the plan only locks them.
        let plan = plan_erasure(&inventory, EraseMode::None, &all, &[], PlanSubject::default()).unwrap();
        assert!(plan.stages.iter().all(|stage| stage.name == StageName::StorageLock), "{plan}");
        let inventory = machine("raid-lvm");
        let one = [inventory.disks[0].name.clone()];
        let refusal =
            plan_erasure(&inventory, EraseMode::None, &one, &[], PlanSubject::default()).unwrap_err().to_string();
        assert!(refusal.contains("; skip either all disks of"), "{refusal}");
    }

    #[test]
    fn refuses_read_only_disks_and_ignores_portable_disks() {
        let plan = |inventory: &Inventory, owned: &[KernelName]| {
            plan_erasure(inventory, EraseMode::None, &[], owned, PlanSubject::default())
        };
        let mut inventory = machine("five-sata");
        inventory.disks[0].removable = true;
        inventory.disks[2].transport = "usb".to_owned();
        let wiped = |owned: &[KernelName]| {
            let disks = plan(&inventory, owned).unwrap().disks.into_iter();
            disks.filter(|disk| disk.verdict == DiskVerdict::Wipe).map(|disk| disk.name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(wiped(&[]), ["sdb", "sdd", "sde"]);
        assert_eq!(wiped(&["sdc".into()]), ["sdb", "sdc", "sdd", "sde"]);
        inventory.disks[1].read_only = true;
        let refusal = plan(&inventory, &[]).unwrap_err().to_string();
        assert!(
            refusal.contains(inventory.disks[1].device.as_str()) && refusal.contains("Nothing was written"),
            "{refusal}"
        );
        let refusal = plan(&Inventory::default(), &[]).unwrap_err();
        assert!(refusal.to_string().contains("no erasable disk was found"), "{refusal}");
    }
}
