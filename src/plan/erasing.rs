//! Plan that erases every disk, before the machine gets its next owner.

use super::verdict::{self, Decided};
use super::{FirmwarePlan, Mode, Plan, Refusal, Request, Subject, Torn, opaque, stages};
use crate::device::KernelName;
use crate::inventory::{Disk, Inventory};
use crate::layout::{self, Layout};
use crate::problem::Problem;
use crate::steps::{Erase, Steps};
use uuid::Uuid;

/// Makes the plan. Removable disks are not erased, because they do not belong to the machine; disks in `skipped` are not erased either.
///
/// # Errors Returns all reasons why a disk cannot be written, or why its holders cannot be released. Nothing was written.
pub fn erase(
    inventory: &Inventory,
    erase: Erase,
    skipped: &[KernelName],
    subject: Subject,
) -> Result<Plan, Box<Refusal>> {
    let disks = || inventory.disks.iter().filter(|disk| !disk.removable && !skipped.contains(&disk.name));
    let layout = Layout {
        id: "every disk is erased".to_owned(),
        disks: disks().map(listed).collect(),
        cleanfirmware: true,
        ..Layout::default()
    };
    let request = Request {
        mode: Mode::Install,
        steps: Steps::erasing(erase),
        subject,
        assigned: Default::default(),
        claim: None,
    };
    let mut decided = decide(&layout, inventory, &request, skipped);
    if disks().count() == 0 && skipped.is_empty() {
        decided.problems.push(Problem::new("disks", "no erasable disk was found"));
    }
    Ok(arrange(&layout, inventory, request, decided)?.part(&["deploy.apply_layout"]))
}

/// Decides on the disks of a layout that lists only whole disks.
pub(super) fn decide(layout: &Layout, inventory: &Inventory, request: &Request, skipped: &[KernelName]) -> Decided {
    // No UUID is requested.
    let mut decided = verdict::decide(layout, inventory, request, &Default::default(), &mut Uuid::new_v4);
    let is_listed = |disk: &&Disk| layout.disks.iter().any(|listed| *listed.device.as_str() == *disk.device.as_str());
    let read_only = inventory.disks.iter().filter(is_listed).filter(|disk| disk.read_only).map(|disk| {
        Problem::new(disk.device.to_string(), "the disk is write-protected and cannot be erased".to_owned())
    });
    let missing = |problem: &Problem| !decided.problems.contains(problem);
    let read_only: Vec<Problem> = read_only.filter(missing).collect();
    decided.problems.extend(read_only);
    let torn = decided.torn.iter().filter(|torn| torn.stays_on.iter().any(|disk| skipped.contains(disk)));
    let torn = torn.map(|Torn { name, wiped, stays_on, .. }| {
        let (wiped, stays_on) = (wiped.join(", "), stays_on.join(", "));
        Problem::new("disks", format!("{name} is on {wiped}, which will be erased, and on {stays_on}, which is skipped; skip all of its disks, or none"))
    });
    let torn: Vec<Problem> = torn.collect();
    decided.problems.extend(torn);
    decided
}

pub(super) fn arrange(
    layout: &Layout,
    inventory: &Inventory,
    request: Request,
    decided: Decided,
) -> Result<Plan, Box<Refusal>> {
    if !decided.problems.is_empty() {
        let Request { mode, subject, .. } = request;
        let (disks, problems) = (decided.disks, decided.problems);
        let opaque = opaque::listed(inventory);
        return Err(Box::new(Refusal { mode, subject, layout: layout.id.clone(), disks, opaque, problems }));
    }
    // Other warnings are about a system that would boot from the disks.
    let mut warnings = decided.warnings.clone();
    let plan = stages::arrange(layout, inventory, request, decided);
    warnings.extend(plan.firmware.iter().flat_map(FirmwarePlan::warnings));
    Ok(Plan { warnings, ..plan })
}

pub(super) fn listed(disk: &Disk) -> layout::Disk {
    layout::Disk {
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
    use crate::plan::{OnDevice, Operation, StageName, Verdict};

    fn machine(name: &str) -> Inventory {
        let text = std::fs::read_to_string(format!("testdata/inventories/{name}.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn every_disk_is_wiped_and_nothing_is_made() {
        for name in ["raid-lvm", "five-sata", "nvme-sata", "installed-default", "twin-groups"] {
            for how in [Erase::None, Erase::Secure] {
                let inventory = machine(name);
                let plan =
                    erase(&inventory, how, &[], Subject::default()).unwrap_or_else(|why| panic!("{name}: {why}"));
                let wiped: Vec<&str> = plan
                    .stages
                    .iter()
                    .flat_map(|stage| &stage.operations)
                    .filter_map(|operation| match operation {
                        Operation::Device(OnDevice::WipeDisk(wipe)) => Some(wipe.device.as_str()),
                        _ => None,
                    })
                    .collect();
                let all: Vec<&str> = inventory.disks.iter().map(|disk| disk.device.as_str()).collect();
                assert_eq!(wiped, all, "{name}");
                assert!(plan.disks.iter().all(|disk| disk.verdict == Verdict::Wipe), "{name}");
                let last = plan.stages.last().map(|stage| stage.name);
                assert_eq!(last, Some(StageName::StorageWipe), "{name}");
                assert_eq!(plan.stages[plan.point_of_no_return].name, StageName::StorageWipe);
                assert!(plan.warnings.iter().all(|warning| !warning.contains("cannot boot")), "{plan}");
            }
        }
    }

    /// Also one below an array with a disk that is to be erased: taking the one would damage the other.
    #[test]
    fn what_is_to_be_left_alone_is_not_touched() {
        let inventory = machine("five-sata");
        let skipped = [inventory.disks[0].name.clone(), inventory.disks[3].name.clone()];
        let plan = erase(&inventory, Erase::Secure, &skipped, Subject::default()).unwrap();
        let wiped = plan.disks.iter().filter(|disk| disk.verdict == Verdict::Wipe);
        assert!(wiped.clone().count() == 3 && wiped.clone().all(|disk| !skipped.contains(&disk.name)));
        let all: Vec<KernelName> = inventory.disks.iter().map(|disk| disk.name.clone()).collect();
        // They are locked, and nothing else happens.
        let plan = erase(&inventory, Erase::None, &all, Subject::default()).unwrap();
        assert!(plan.stages.iter().all(|stage| stage.name == StageName::StorageLock), "{plan}");
        let inventory = machine("raid-lvm");
        let one = [inventory.disks[0].name.clone()];
        let refusal = erase(&inventory, Erase::None, &one, Subject::default()).unwrap_err().to_string();
        assert!(refusal.contains("skip all of its disks, or none"), "{refusal}");
    }

    #[test]
    fn what_cannot_be_erased_is_refused_and_what_is_plugged_in_is_left() {
        let mut inventory = machine("five-sata");
        inventory.disks[0].removable = true;
        let plan = erase(&inventory, Erase::None, &[], Subject::default()).unwrap();
        assert_eq!(plan.disks.iter().filter(|disk| disk.verdict == Verdict::Wipe).count(), 4);
        inventory.disks[1].read_only = true;
        let refusal = erase(&inventory, Erase::None, &[], Subject::default()).unwrap_err().to_string();
        assert!(
            refusal.contains(inventory.disks[1].device.as_str()) && refusal.contains("Nothing was written"),
            "{refusal}"
        );
        let refusal = erase(&Inventory::default(), Erase::None, &[], Subject::default()).unwrap_err();
        assert!(refusal.to_string().contains("no erasable disk was found"), "{refusal}");
    }
}
