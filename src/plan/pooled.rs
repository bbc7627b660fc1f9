//! Which machine of a pool is made empty before somebody gets it: its next owner must find nothing of the last one's, on no disk.
//!
//! Nobody has ordered it for this machine, and nothing on the disks is asked for. So what speaks against it is looked for first.
//!
//! | who has the machine | the disks have | |
//! |---|---|---|
//! | somebody, for a reinstall | anything | nothing is erased here: the plan of the reinstall decides |
//! | somebody, for an installation | the marker of this very allocation | nothing is erased: it is installed, and is booted |
//! | somebody, who has it installed by the control plane's word | no marker of this allocation | refused: another agent has installed it, or the disk with the marker is gone |
//! | somebody or nobody | the marker of another machine | refused: the disk was put in here, or the machine's id has changed and somebody has it under the old one |
//! | somebody, for an installation | anything else, and a disk of an earlier boot is not seen | refused: it may hold the marker |
//! | somebody, for an installation | anything else | every disk is erased, and then the installation is made |
//! | nobody | anything else | every disk is erased; a disk of an earlier boot that is not seen is reported |

use super::pool_disks::KnownDisk;
use super::{OfRun, Operation, Plan, Refusal, Subject, erasing};
use crate::inventory::Inventory;
use crate::marker::Marker;
use crate::problem::Problem;
use crate::steps::Erase;

/// By the control plane's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner<'a> {
    Nobody,
    /// `installed`: the control plane has heard that the allocation was installed. One that cannot tell says no.
    Somebody {
        allocation: &'a str,
        reinstall: bool,
        installed: bool,
    },
}

/// The plan that erases every disk with proof; none where nothing is to be erased. Removable disks are left as they are.
///
/// `missing` are disks of earlier boots that are not there.
///
/// # Errors
/// A disk must not or cannot be erased. All reasons at once; nothing was written.
pub fn empty(
    inventory: &Inventory,
    owner: Owner,
    missing: &[KnownDisk],
    subject: Subject,
) -> Result<Option<Plan>, Box<Refusal>> {
    if let Owner::Somebody { allocation, reinstall, .. } = owner
        && (reinstall || is_installed(inventory, &subject.machine, allocation))
    {
        return Ok(None);
    }
    let unseen = unseen(owner, missing);
    if unseen.is_empty() && inventory.disks.iter().all(|disk| disk.removable) {
        return Ok(None);
    }
    let against: Vec<Problem> = foreign(inventory, &subject.machine).chain(installed(owner)).chain(unseen).collect();
    match erasing::erase(inventory, Erase::Secure, &[], subject) {
        Ok(mut plan) if against.is_empty() => {
            plan.warnings.extend(missing.iter().map(|disk| {
                format!("{disk} was in this machine at an earlier boot and is not found: it is not erased")
            }));
            Ok(Some(announced(plan, owner)))
        }
        Ok(Plan { mode, subject, layout, disks, opaque, .. }) => {
            Err(Box::new(Refusal { mode, subject, layout, disks, opaque, problems: against }))
        }
        Err(mut refusal) => {
            refusal.problems.splice(0..0, against);
            Err(refusal)
        }
    }
}

/// Right before the first write the control plane is asked whether that owner has the machine still.
fn announced(mut plan: Plan, owner: Owner) -> Plan {
    let Owner::Somebody { allocation: id, .. } = owner else { return plan };
    for operation in plan.stages.iter_mut().flat_map(|stage| &mut stage.operations) {
        if let Operation::Run(OfRun::TellPointOfNoReturn { allocation, .. }) = operation {
            id.clone_into(allocation);
        }
    }
    plan
}

/// Does a disk of the machine say that this allocation was installed?
pub fn is_installed(inventory: &Inventory, machine: &str, allocation: &str) -> bool {
    let mut markers = inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
    markers.any(|marker| !allocation.is_empty() && is_of(marker, machine) && marker.allocation == allocation)
}

fn is_of(marker: &Marker, machine: &str) -> bool {
    marker.machine.eq_ignore_ascii_case(machine)
}

fn foreign<'a>(inventory: &'a Inventory, machine: &'a str) -> impl Iterator<Item = Problem> + 'a {
    let marked = inventory.filesystems.iter().filter_map(|filesystem| Some((filesystem, filesystem.marker.as_ref()?)));
    marked.filter(move |(_, marker)| !is_of(marker, machine)).map(move |(filesystem, marker)| {
        let message = format!(
            "holds the installation of machine {} (allocation {}), and this is machine {machine}: a disk of that machine was put in here, \
             or the id of this machine has changed, and somebody has it under the old one. If nobody needs what is there, erase it: \
             wipefs -a in the rescue shell",
            marker.machine, marker.allocation
        );
        Problem::new(filesystem.device.to_string(), message)
    })
}

/// That this machine has no marker of it is known by now.
fn installed(owner: Owner) -> Option<Problem> {
    let Owner::Somebody { allocation, installed: true, .. } = owner else { return None };
    let message = "is installed, the control plane says, and no disk has the marker of it: another agent has installed it, or the disk with the \
                   marker is gone. It is not erased for that. Boot it from its disk; or, where nobody needs what is there, free the machine";
    Some(Problem::new(format!("allocation {allocation}"), message))
}

/// Returns a problem for each missing disk of an allocated machine: it may hold the marker of the owner's installation. A disk that was
/// written off belongs to an earlier owner.
fn unseen(owner: Owner, missing: &[KnownDisk]) -> Vec<Problem> {
    let Owner::Somebody { allocation, .. } = owner else { return Vec::new() };
    let missing = missing.iter().filter(|disk| !disk.written_off).map(|disk| {
        let message = format!(
            "was in this machine at an earlier boot and is not found, and may hold the installation of allocation {allocation}: \
             no disk is erased. Connect it and reboot; if it was removed for good, free the machine and allocate it again"
        );
        Problem::new(disk.to_string(), message)
    });
    missing.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{Disk, Filesystem};
    use crate::plan::{OnDevice, StageName, Verdict};
    use proptest::prelude::*;

    const ME: &str = "4c4c4544-0051-3010-8052-b4c04f4e4232";
    const INSTALL: Owner<'static> = Owner::Somebody { allocation: "a-1", reinstall: false, installed: false };
    const INSTALLED: Owner<'static> = Owner::Somebody { allocation: "a-1", reinstall: false, installed: true };
    const REINSTALL: Owner<'static> = Owner::Somebody { allocation: "a-1", reinstall: true, installed: true };

    fn machine(name: &str) -> Inventory {
        let text = std::fs::read_to_string(format!("testdata/inventories/{name}.json")).unwrap();
        let inventory: Inventory = serde_json::from_str(&text).unwrap();
        Inventory { filesystems: vec![], ..inventory }
    }

    fn subject() -> Subject {
        Subject { machine: ME.into(), image: "nothing".into(), ..Subject::default() }
    }

    fn marked(inventory: &Inventory, markers: &[(&str, &str)]) -> Inventory {
        let filesystem = |(machine, allocation): &(&str, &str)| Filesystem {
            device: "/dev/sda2".into(),
            marker: Some(Marker { machine: (*machine).into(), allocation: (*allocation).into(), ..Marker::default() }),
            ..Filesystem::default()
        };
        Inventory { filesystems: markers.iter().map(filesystem).collect(), ..inventory.clone() }
    }

    fn erased(plan: &Plan) -> Vec<&str> {
        let operations = plan.stages.iter().flat_map(|stage| &stage.operations);
        let wiped = operations.filter_map(|operation| match operation {
            Operation::Device(OnDevice::WipeDisk(wipe)) => {
                assert!(wipe.strict, "an erasure that may leave something behind: {wipe:?}");
                Some(wipe.device.as_str())
            }
            _ => None,
        });
        wiped.collect()
    }

    #[test]
    fn the_table_holds() {
        let inventory = machine("five-sata");
        let upper = ME.to_uppercase();
        for (owner, markers, erases) in [
            (Owner::Nobody, vec![], Some(true)),
            (Owner::Nobody, vec![(ME, "a-0")], Some(true)),
            (Owner::Nobody, vec![(ME, "")], Some(true)),
            (INSTALL, vec![], Some(true)),
            (INSTALL, vec![(ME, "a-0")], Some(true)),
            (INSTALL, vec![(ME, "a-0"), (ME, "a-1")], Some(false)),
            (INSTALL, vec![(upper.as_str(), "a-1")], Some(false)),
            (Owner::Somebody { allocation: "", reinstall: false, installed: false }, vec![(ME, "")], Some(true)),
            (INSTALLED, vec![(ME, "a-1")], Some(false)),
            (INSTALLED, vec![(ME, "a-0"), (ME, "a-1")], Some(false)),
            (REINSTALL, vec![], Some(false)),
            (REINSTALL, vec![("other", "a-1")], Some(false)),
            (Owner::Nobody, vec![("other", "a-1")], None),
            (INSTALL, vec![("other", "a-1")], None),
            (INSTALL, vec![(ME, "a-0"), ("other", "a-0")], None),
        ] {
            let found = empty(&marked(&inventory, &markers), owner, &[], subject());
            match erases {
                None => {
                    let refusal = found.unwrap_err().to_string();
                    assert!(refusal.contains("installation of machine other") && refusal.contains(ME), "{refusal}");
                }
                Some(erases) => assert_eq!(found.unwrap().is_some(), erases, "{owner:?} {markers:?}"),
            }
        }
    }

    /// By metal-hammer, say, which leaves no marker.
    #[test]
    fn what_another_agent_has_installed_is_not_erased() {
        for markers in [vec![], vec![(ME, "a-0")], vec![(ME, "")]] {
            let refusal =
                empty(&marked(&machine("five-sata"), &markers), INSTALLED, &[], subject()).unwrap_err().to_string();
            assert!(
                refusal.contains("allocation a-1") && refusal.contains("another agent has installed it"),
                "{refusal}"
            );
            assert!(refusal.contains("Nothing was written"), "{refusal}");
        }
        let both = marked(&machine("five-sata"), &[("other", "a-9")]);
        let refusal = empty(&both, INSTALLED, &[], subject()).unwrap_err().to_string();
        assert!(refusal.contains("installation of machine other") && refusal.contains("another agent"), "{refusal}");
    }

    #[test]
    fn every_disk_is_erased_with_proof_and_nothing_else_is_done() {
        for name in ["raid-lvm", "five-sata", "nvme-sata", "installed-default", "twin-groups"] {
            let inventory = machine(name);
            let plan = empty(&inventory, Owner::Nobody, &[], subject()).unwrap().unwrap();
            let all: Vec<&str> = inventory.disks.iter().map(|disk| disk.device.as_str()).collect();
            assert_eq!(erased(&plan), all, "{name}");
            assert!(plan.disks.iter().all(|disk| disk.verdict == Verdict::Wipe), "{name}");
            assert_eq!(plan.stages.last().map(|stage| stage.name), Some(StageName::StorageWipe), "{name}");
            assert!(plan.to_string().contains("point of no return"), "{plan}");
        }
    }

    #[test]
    fn the_owner_is_asked_for_right_before_the_first_write() {
        for (owner, asked) in [(Owner::Nobody, ""), (INSTALL, "a-1")] {
            let plan = empty(&machine("five-sata"), owner, &[], subject()).unwrap().unwrap();
            let before = &plan.stages[plan.point_of_no_return - 1];
            let [Operation::Run(OfRun::TellPointOfNoReturn { allocation, .. })] = &before.operations[..] else {
                panic!("{plan}");
            };
            assert_eq!(allocation, asked);
        }
    }

    /// The root disk may be behind a slow controller.
    #[test]
    fn an_allocated_machine_is_not_erased_while_a_disk_of_an_earlier_boot_is_missing() {
        let lost = KnownDisk { serial: "S9".into(), size_bytes: 4 << 40, ..KnownDisk::default() };
        let written_off = KnownDisk { written_off: true, ..lost.clone() };
        let (inventory, none) = (machine("five-sata"), Inventory::default());
        for (there, owner, missing, erases) in [
            (&inventory, INSTALL, &lost, None),
            (&none, INSTALL, &lost, None),
            (&inventory, INSTALL, &written_off, Some(true)),
            (&inventory, Owner::Nobody, &lost, Some(true)),
            (&inventory, Owner::Nobody, &written_off, Some(true)),
            (&none, Owner::Nobody, &lost, Some(false)),
            (&inventory, REINSTALL, &lost, Some(false)),
            (&marked(&inventory, &[(ME, "a-1")]), INSTALL, &lost, Some(false)),
        ] {
            let planned = empty(there, owner, std::slice::from_ref(missing), subject());
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
    fn all_that_speaks_against_it_is_told_at_once() {
        let mut inventory = marked(&machine("five-sata"), &[("other", "a-9")]);
        inventory.disks[1].read_only = true;
        let refusal = empty(&inventory, Owner::Nobody, &[], subject()).unwrap_err().to_string();
        assert!(refusal.contains("installation of machine other") && refusal.contains("write-protected"), "{refusal}");
        assert!(refusal.contains("Nothing was written"), "{refusal}");
    }

    #[test]
    fn a_machine_without_disks_has_nothing_to_erase() {
        let stick = Disk { removable: true, ..machine("five-sata").disks[0].clone() };
        for disks in [vec![], vec![stick]] {
            let inventory = Inventory { disks, ..Inventory::default() };
            assert_eq!(empty(&inventory, Owner::Nobody, &[], subject()).unwrap(), None);
        }
    }

    proptest! {
        /// Whatever else is on the disks.
        #[test]
        fn what_is_installed_is_never_erased(
            others in prop::collection::vec((prop::sample::select(vec![ME, "other", ""]), prop::sample::select(vec!["a-0", "a-1", ""])), 0..4),
            at in 0_usize..5,
        ) {
            let mut markers = others.clone();
            markers.insert(at.min(others.len()), (ME, "a-1"));
            let inventory = marked(&machine("five-sata"), &markers);
            prop_assert_eq!(empty(&inventory, INSTALL, &[], subject()).unwrap(), None);
            prop_assert_eq!(empty(&inventory, INSTALLED, &[], subject()).unwrap(), None);
            // Whatever the markers are: what the control plane says is installed is never erased.
            prop_assert!(!matches!(empty(&marked(&machine("five-sata"), &others), INSTALLED, &[], subject()), Ok(Some(_))));
        }
    }
}
