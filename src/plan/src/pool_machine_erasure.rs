//! Decides whether a machine of a pool is erased before it is allocated. The next owner must not find data of the
//! previous owner on any disk.
//!
//! No order requests this erasure, and no layout specifies the expected content of the disks. Therefore all reasons
//! that forbid the erasure are checked first.
//!
//! | allocation of the machine | content of the disks | result |
//! |---|---|---|
//! | allocated, for a reinstall | any content | nothing is erased by this plan: the plan of the reinstall decides |
//! | allocated, for an installation | the marker of this allocation | nothing is erased: the allocation is installed, and the installed system is booted |
//! | allocated, and installed according to the control plane | no marker of this allocation | refused: another agent has installed the allocation, or the disk with the marker is missing |
//! | allocated or not | anything, and a disk that is attached by USB is not blank | refused: the disk may not belong to the machine, so it is neither erased nor left to the next owner |
//! | allocated or not | the marker of another machine | refused: the disk comes from that machine, or the id of this machine has changed and the allocation belongs to the former id |
//! | allocated, for an installation | any other content, and a recorded disk is absent | refused: the absent disk may contain the marker |
//! | allocated, for an installation | any other content | every disk is erased, and then the installation proceeds |
//! | not allocated | any other content | every disk is erased; a recorded disk that is absent is reported |

use super::{Plan, PlanRefusal, PlanSubject, erase_plan};
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::deploy_steps::EraseMode;
use model::install_marker::InstallMarker;
use model::inventory::{Inventory, InventoryDisk};
use model::layout::root_device_hints;
use model::pool_machine_disks::KnownDisk;
use operations::{AnnouncePointOfNoReturn, Operation, SessionOp};

/// Owner of a pool machine, according to the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolAllocation<'a> {
    Unallocated,
    /// The machine is allocated. `installed` is true if the control plane has recorded a report of success for an
    /// installation of the allocation.
    Allocated {
        allocation: &'a str,
        reinstall: bool,
        installed: bool,
    },
}

/// Returns the plan that erases every disk and verifies the erasure. Returns `None` if nothing needs to be erased.
/// Disks that are removable or attached by USB are not erased.
///
/// `missing` contains the disks that earlier boots have recorded and that are now absent.
///
/// # Errors
/// Returns all reasons why a disk must not or cannot be erased. Nothing was written.
pub fn plan_emptying(
    inventory: &Inventory,
    owner: PoolAllocation,
    missing: &[KnownDisk],
    subject: PlanSubject,
) -> Result<Option<Plan>, Box<PlanRefusal>> {
    if let PoolAllocation::Allocated { allocation, reinstall, .. } = owner
        && (reinstall || is_installed(inventory, &subject.machine, allocation))
    {
        return Ok(None);
    }
    let unerased: Vec<Diagnostic> = refuse_unseen(owner, missing).into_iter().chain(refuse_usb(inventory)).collect();
    if unerased.is_empty() && inventory.disks.iter().all(root_device_hints::is_portable) {
        return Ok(None);
    }
    let against: Vec<Diagnostic> =
        refuse_foreign(inventory, &subject.machine).chain(refuse_installed(owner)).chain(unerased).collect();
    match erase_plan::plan_erasure(inventory, EraseMode::Secure, &[], &[], subject) {
        Ok(mut plan) if against.is_empty() => {
            plan.warnings.extend(missing.iter().map(|disk| {
                format!("{disk} was present during an earlier boot but is absent now, so this plan does not erase it")
            }));
            Ok(Some(announce_allocation(plan, owner)))
        }
        Ok(Plan { mode, subject, layout, disks, opaque, .. }) => {
            Err(Box::new(PlanRefusal { mode, subject, layout, disks, opaque, problems: against }))
        }
        Err(mut refusal) => {
            refusal.problems.splice(0..0, against);
            Err(refusal)
        }
    }
}

/// Adds the allocation to the announcement that is sent before the first write, so that the control plane can reject
/// the erasure if the owner of the machine has changed.
fn announce_allocation(mut plan: Plan, owner: PoolAllocation) -> Plan {
    let PoolAllocation::Allocated { allocation: id, .. } = owner else { return plan };
    for operation in plan.stages.iter_mut().flat_map(|stage| &mut stage.operations) {
        if let Operation::Run(SessionOp::AnnouncePointOfNoReturn(AnnouncePointOfNoReturn { allocation, .. })) =
            operation
        {
            id.clone_into(allocation);
        }
    }
    plan
}

/// Returns whether a marker on the disks proves that this allocation was installed on this machine.
pub fn is_installed(inventory: &Inventory, machine: &str, allocation: &str) -> bool {
    let mut markers = inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
    markers.any(|marker| !allocation.is_empty() && is_of_machine(marker, machine) && marker.allocation == allocation)
}

fn is_of_machine(marker: &InstallMarker, machine: &str) -> bool {
    marker.machine.eq_ignore_ascii_case(machine)
}

fn refuse_foreign<'a>(inventory: &'a Inventory, machine: &'a str) -> impl Iterator<Item = Diagnostic> + 'a {
    let marked = inventory.filesystems.iter().filter_map(|filesystem| Some((filesystem, filesystem.marker.as_ref()?)));
    marked.filter(move |(_, marker)| !is_of_machine(marker, machine)).map(move |(filesystem, marker)| {
        let message = format!(
            "contains the installation of machine {} (allocation {}), but this is machine {machine}: a disk of that machine was inserted, \
             or the id of this machine has changed and the machine is still allocated under its old id. If that installation is not needed, erase it \
             (wipefs -a in the rescue shell)",
            marker.machine, marker.allocation
        );
        Diagnostic::new(filesystem.device.to_string(), message).with_code(ErrorCode::PoolErasure)
    })
}

/// Returns a problem if the control plane reports the allocation as installed. Callers have already checked that no
/// disk contains the marker of the allocation.
fn refuse_installed(owner: PoolAllocation) -> Option<Diagnostic> {
    let PoolAllocation::Allocated { allocation, installed: true, .. } = owner else { return None };
    let message = "is installed according to the control plane, but no disk has its marker: another agent has installed it, or the disk with the \
                   marker is absent. Therefore no disk is erased. Boot the machine from its disk; or, if you do not need its data, free the machine";
    Some(Diagnostic::new(format!("allocation {allocation}"), message).with_code(ErrorCode::PoolErasure))
}

/// Returns a problem for each missing disk of an allocated machine, because it may contain the marker of the owner's
/// installation. A disk that is marked as written off is ignored: the other disks were erased after it had disappeared,
/// so it does not contain the marker of the current owner.
fn refuse_unseen(owner: PoolAllocation, missing: &[KnownDisk]) -> Vec<Diagnostic> {
    let PoolAllocation::Allocated { allocation, .. } = owner else { return Vec::new() };
    let missing = missing.iter().filter(|disk| !disk.written_off).map(|disk| {
        let message = format!(
            "was present during an earlier boot but is absent now, and may contain the installation of allocation {allocation}: \
             no disk is erased. Connect the missing disk and reboot; if the disk was removed permanently, free the machine and allocate it again"
        );
        Diagnostic::new(disk.to_string(), message).with_code(ErrorCode::PoolErasure)
    });
    missing.collect()
}

/// Returns a problem for each disk that is attached by USB, is not removable, and may contain data of the previous
/// owner.
fn refuse_usb(inventory: &Inventory) -> impl Iterator<Item = Diagnostic> {
    let is_left = |disk: &&InventoryDisk| root_device_hints::is_portable(disk) && !disk.removable && !disk.blank;
    inventory.disks.iter().filter(is_left).map(|disk| {
        let device = &disk.device;
        let message = format!(
            "is attached by USB, so it may not belong to the machine and is not erased, but it is not blank, and the next owner could read its \
             data. Disconnect the disk, or overwrite it in the rescue shell: dd if=/dev/zero of={device} bs=1M"
        );
        Diagnostic::new(device.to_string(), message).with_code(ErrorCode::PoolErasure)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DiskVerdict;
    use model::inventory::FilesystemContents;
    use operations::{DeviceOp, StageName};
    use proptest::prelude::*;

    const ME: &str = "4c4c4544-0051-3010-8052-b4c04f4e4232";
    const INSTALL: PoolAllocation<'static> =
        PoolAllocation::Allocated { allocation: "a-1", reinstall: false, installed: false };
    const INSTALLED: PoolAllocation<'static> =
        PoolAllocation::Allocated { allocation: "a-1", reinstall: false, installed: true };
    const REINSTALL: PoolAllocation<'static> =
        PoolAllocation::Allocated { allocation: "a-1", reinstall: true, installed: true };

    fn machine(name: &str) -> Inventory {
        let text = std::fs::read_to_string(format!(
            "{}/testdata/inventories/{name}.json",
            concat!(env!("CARGO_MANIFEST_DIR"), "/../..")
        ))
        .unwrap();
        let inventory: Inventory = serde_json::from_str(&text).unwrap();
        Inventory { filesystems: vec![], ..inventory }
    }

    fn subject() -> PlanSubject {
        PlanSubject { machine: ME.into(), image: "nothing".into(), ..PlanSubject::default() }
    }

    fn marked(inventory: &Inventory, markers: &[(&str, &str)]) -> Inventory {
        let filesystem = |(machine, allocation): &(&str, &str)| FilesystemContents {
            device: "/dev/sda2".into(),
            marker: Some(InstallMarker {
                machine: (*machine).into(),
                allocation: (*allocation).into(),
                ..InstallMarker::default()
            }),
            ..FilesystemContents::default()
        };
        Inventory { filesystems: markers.iter().map(filesystem).collect(), ..inventory.clone() }
    }

    fn erased(plan: &Plan) -> Vec<&str> {
        let operations = plan.stages.iter().flat_map(|stage| &stage.operations);
        let wiped = operations.filter_map(|operation| match operation {
            Operation::Device(DeviceOp::WipeDisk(wipe)) => {
                assert!(wipe.strict, "an erasure that may leave something behind: {wipe:?}");
                Some(wipe.device.as_str())
            }
            _ => None,
        });
        wiped.collect()
    }

    #[test]
    fn erasure_depends_on_allocation_and_markers() {
        let inventory = machine("five-sata");
        let upper = ME.to_uppercase();
        for (owner, markers, erases) in [
            (PoolAllocation::Unallocated, vec![], Some(true)),
            (PoolAllocation::Unallocated, vec![(ME, "a-0")], Some(true)),
            (PoolAllocation::Unallocated, vec![(ME, "")], Some(true)),
            (INSTALL, vec![], Some(true)),
            (INSTALL, vec![(ME, "a-0")], Some(true)),
            (INSTALL, vec![(ME, "a-0"), (ME, "a-1")], Some(false)),
            (INSTALL, vec![(upper.as_str(), "a-1")], Some(false)),
            (
                PoolAllocation::Allocated { allocation: "", reinstall: false, installed: false },
                vec![(ME, "")],
                Some(true),
            ),
            (INSTALLED, vec![(ME, "a-1")], Some(false)),
            (INSTALLED, vec![(ME, "a-0"), (ME, "a-1")], Some(false)),
            (REINSTALL, vec![], Some(false)),
            (REINSTALL, vec![("other", "a-1")], Some(false)),
            (PoolAllocation::Unallocated, vec![("other", "a-1")], None),
            (INSTALL, vec![("other", "a-1")], None),
            (INSTALL, vec![(ME, "a-0"), ("other", "a-0")], None),
        ] {
            let found = plan_emptying(&marked(&inventory, &markers), owner, &[], subject());
            match erases {
                None => {
                    let refusal = found.unwrap_err().to_string();
                    assert!(refusal.contains("installation of machine other") && refusal.contains(ME), "{refusal}");
                }
                Some(erases) => assert_eq!(found.unwrap().is_some(), erases, "{owner:?} {markers:?}"),
            }
        }
    }

    /// Another agent, such as metal-hammer, installs machines without a marker.
    #[test]
    fn refuses_to_erase_installation_of_another_agent() {
        for markers in [vec![], vec![(ME, "a-0")], vec![(ME, "")]] {
            let refusal = plan_emptying(&marked(&machine("five-sata"), &markers), INSTALLED, &[], subject())
                .unwrap_err()
                .to_string();
            assert!(
                refusal.contains("allocation a-1") && refusal.contains("another agent has installed it"),
                "{refusal}"
            );
            assert!(refusal.contains("Nothing was written"), "{refusal}");
        }
        let both = marked(&machine("five-sata"), &[("other", "a-9")]);
        let refusal = plan_emptying(&both, INSTALLED, &[], subject()).unwrap_err().to_string();
        assert!(refusal.contains("installation of machine other") && refusal.contains("another agent"), "{refusal}");
    }

    #[test]
    fn emptying_plan_only_wipes_every_disk() {
        for name in ["raid-lvm", "five-sata", "nvme-sata", "installed-default", "twin-groups"] {
            let inventory = machine(name);
            let plan = plan_emptying(&inventory, PoolAllocation::Unallocated, &[], subject()).unwrap().unwrap();
            let all: Vec<&str> = inventory.disks.iter().map(|disk| disk.device.as_str()).collect();
            assert_eq!(erased(&plan), all, "{name}");
            assert!(plan.disks.iter().all(|disk| disk.verdict == DiskVerdict::Wipe), "{name}");
            assert_eq!(plan.stages.last().map(|stage| stage.name), Some(StageName::StorageWipe), "{name}");
            assert!(plan.to_string().contains("point of no return"), "{plan}");
        }
    }

    #[test]
    fn queries_allocation_immediately_before_the_first_write() {
        for (owner, requested) in [(PoolAllocation::Unallocated, ""), (INSTALL, "a-1")] {
            let plan = plan_emptying(&machine("five-sata"), owner, &[], subject()).unwrap().unwrap();
            let before = &plan.stages[plan.point_of_no_return - 1];
            let [Operation::Run(SessionOp::AnnouncePointOfNoReturn(AnnouncePointOfNoReturn { allocation, .. }))] =
                &before.operations[..]
            else {
                panic!("{plan}");
            };
            assert_eq!(allocation, requested);
        }
    }

    /// The missing disk may be the root disk, detected late because of a slow controller.
    #[test]
    fn allocated_machine_with_missing_disk_is_not_erased() {
        let lost = KnownDisk { serial: "S9".into(), size_bytes: 4 << 40, ..KnownDisk::default() };
        let written_off = KnownDisk { written_off: true, ..lost.clone() };
        let (inventory, none) = (machine("five-sata"), Inventory::default());
        for (there, owner, missing, erases) in [
            (&inventory, INSTALL, &lost, None),
            (&none, INSTALL, &lost, None),
            (&inventory, INSTALL, &written_off, Some(true)),
            (&inventory, PoolAllocation::Unallocated, &lost, Some(true)),
            (&inventory, PoolAllocation::Unallocated, &written_off, Some(true)),
            (&none, PoolAllocation::Unallocated, &lost, Some(false)),
            (&inventory, REINSTALL, &lost, Some(false)),
            (&marked(&inventory, &[(ME, "a-1")]), INSTALL, &lost, Some(false)),
        ] {
            let planned = plan_emptying(there, owner, std::slice::from_ref(missing), subject());
            let Some(erases) = erases else {
                let refusal = planned.unwrap_err().to_string();
                assert!(refusal.contains("serial number S9") && refusal.contains("free the machine"), "{refusal}");
                continue;
            };
            let planned = planned.unwrap_or_else(|refusal| panic!("{owner:?}: {refusal}"));
            assert_eq!(planned.is_some(), erases, "{owner:?}");
            if let Some(plan) = planned {
                assert!(plan.to_string().contains("serial number S9"), "{plan}");
            }
        }
    }

    #[test]
    fn reports_every_reason_against_erasure() {
        let mut inventory = marked(&machine("five-sata"), &[("other", "a-9")]);
        inventory.disks[1].read_only = true;
        let refusal = plan_emptying(&inventory, PoolAllocation::Unallocated, &[], subject()).unwrap_err().to_string();
        assert!(refusal.contains("installation of machine other") && refusal.contains("write-protected"), "{refusal}");
        assert!(refusal.contains("Nothing was written"), "{refusal}");
    }

    #[test]
    fn machine_without_disks_needs_no_erasure() {
        let stick = InventoryDisk { removable: true, ..machine("five-sata").disks[0].clone() };
        for disks in [vec![], vec![stick]] {
            let inventory = Inventory { disks, ..Inventory::default() };
            assert_eq!(plan_emptying(&inventory, PoolAllocation::Unallocated, &[], subject()).unwrap(), None);
        }
    }

    /// A disk that is attached by USB may be a backup of the operator, so it is not erased.
    #[test]
    fn usb_disk_with_data_is_refused_by_name() {
        let mut inventory = machine("five-sata");
        inventory.disks[1].transport = "usb".to_owned();
        for owner in [PoolAllocation::Unallocated, INSTALL] {
            let refusal = plan_emptying(&inventory, owner, &[], subject()).unwrap_err().to_string();
            assert!(refusal.contains("/dev/sdb: is attached by USB"), "{refusal}");
        }
        assert_eq!(plan_emptying(&inventory, REINSTALL, &[], subject()).unwrap(), None);
        let only = Inventory { disks: vec![inventory.disks[1].clone()], ..inventory.clone() };
        plan_emptying(&only, PoolAllocation::Unallocated, &[], subject()).unwrap_err();
        // A blank disk has no data.
        inventory.disks[1].blank = true;
        let plan = plan_emptying(&inventory, PoolAllocation::Unallocated, &[], subject()).unwrap().unwrap();
        assert_eq!(erased(&plan), ["/dev/sda", "/dev/sdc", "/dev/sdd", "/dev/sde"]);
    }

    proptest! {
        /// A machine with the marker of its allocation is never erased, even if its disks contain other markers.
        #[test]
        fn installed_machine_is_never_erased(
            others in prop::collection::vec((prop::sample::select(vec![ME, "other", ""]), prop::sample::select(vec!["a-0", "a-1", ""])), 0..4),
            at in 0_usize..5,
        ) {
            let mut markers = others.clone();
            markers.insert(at.min(others.len()), (ME, "a-1"));
            let inventory = marked(&machine("five-sata"), &markers);
            prop_assert_eq!(plan_emptying(&inventory, INSTALL, &[], subject()).unwrap(), None);
            prop_assert_eq!(plan_emptying(&inventory, INSTALLED, &[], subject()).unwrap(), None);
            // A machine that is installed according to the control plane is also never erased.
            prop_assert!(!matches!(plan_emptying(&marked(&machine("five-sata"), &others), INSTALLED, &[], subject()), Ok(Some(_))));
        }
    }
}
