//! Tests that only an order changes an existing installation.

use super::installation_identity::{claim, install, marked, marker, planned};
use super::*;
use model::install_marker::InstallMarker;
use operations::{AnnouncePointOfNoReturn, Operation, SessionOp, StageName};

/// Records of the control plane, content of the disks, and the requested plan.
#[derive(Debug, Clone, Copy)]
struct Case {
    succeeded: bool,
    remembers: bool,
    ordered: bool,
    mode: InstallMode,
    found_marker: FoundMarker,
    waiver: Option<MarkerWaiver>,
    started: StartedAttempt,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum FoundMarker {
    Nothing,
    Ours,
    FormerName,
    OtherAllocation,
    OtherMachine,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum StartedAttempt {
    Never,
    OnTheseDisks,
    OnOthers,
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (succeeded, remembers) in [(false, false), (true, false), (false, true), (true, true)] {
        for (ordered, mode) in [
            (false, InstallMode::Install),
            (true, InstallMode::Install),
            (false, InstallMode::Reinstall),
            (true, InstallMode::Reinstall),
        ] {
            for found_marker in [
                FoundMarker::Nothing,
                FoundMarker::Ours,
                FoundMarker::FormerName,
                FoundMarker::OtherAllocation,
                FoundMarker::OtherMachine,
            ] {
                for waiver in [None, Some(MarkerWaiver::Operator), Some(MarkerWaiver::Begun)] {
                    for started in [StartedAttempt::Never, StartedAttempt::OnTheseDisks, StartedAttempt::OnOthers] {
                        cases.push(Case { succeeded, remembers, ordered, mode, found_marker, waiver, started });
                    }
                }
            }
        }
    }
    cases
}

impl Case {
    fn machine(self) -> (Inventory, InstallClaim) {
        let mut inventory = marked();
        let ours = inventory.filesystems.pop().unwrap();
        let recorded = InstallMarker { secret: Some(secret()), ..ours.marker.clone().unwrap() };
        let attempt = record_of(&recorded).filter(|_| self.started != StartedAttempt::Never);
        let found = match self.found_marker {
            FoundMarker::Nothing => None,
            FoundMarker::Ours => Some(recorded.clone()),
            FoundMarker::FormerName => Some(InstallMarker { machine: "m-0".to_owned(), ..recorded.clone() }),
            FoundMarker::OtherAllocation => Some(InstallMarker { allocation: "a-0".to_owned(), ..recorded.clone() }),
            FoundMarker::OtherMachine => Some(InstallMarker { machine: "m-9".to_owned(), ..recorded.clone() }),
        };
        inventory.filesystems.push(inventory::FilesystemContents { marker: found, ..ours });
        let mut begun_on = marker(&inventory).disks;
        match self.started {
            StartedAttempt::Never => begun_on.clear(),
            StartedAttempt::OnTheseDisks => {}
            StartedAttempt::OnOthers => begun_on[0].serial = "Z9".to_owned(),
        }
        let claim = InstallClaim {
            order: self.ordered.then(|| "o-1".to_owned()),
            succeeded: self.succeeded,
            installed: self.remembers.then_some(recorded),
            former_machines: vec!["m-0".to_owned()],
            waiver: self.waiver,
            begun_on,
            attempt,
            ..claim()
        };
        (inventory, claim)
    }
}

/// The data disk must be preserved in all cases. In an earlier version, the cancellation of an order caused a first
/// installation, which would have erased the data disk.
#[test]
fn no_plan_destroys_preserved_disks_of_an_installed_allocation() {
    let (mut judged, mut planned_for) = (0, 0);
    for case in cases() {
        let (inventory, claim) = case.machine();
        let is_installed =
            claim.is_installed() || claim.is_ours(&inventory.filesystems[0].marker.clone().unwrap_or_default());
        if !is_installed {
            continue;
        }
        judged += 1;
        let Ok(plan) = planned(&layout(), &inventory, case.mode, claim) else { continue };
        planned_for += 1;
        assert_eq!(plan.disks[1].verdict, DiskVerdict::Keep, "{case:?}");
        let after = after(&plan, inventory.clone());
        assert_eq!(after.disks[1], inventory.disks[1], "{case:?}");
        assert!(case.mode == InstallMode::Reinstall || plan.already.is_some(), "{case:?}");
        assert!(plan.already.is_some() || case.found_marker != FoundMarker::OtherMachine, "{case:?}");
    }
    assert!(judged > 600 && planned_for > 150, "{judged} judged, {planned_for} of them planned");
}

#[test]
fn unrecorded_allocation_is_installed_booted_or_refused() {
    let (mut made, mut booted, mut refused) = (0, 0, 0);
    for case in cases().into_iter().filter(|case| {
        case.mode == InstallMode::Install
            && !case.ordered
            && !case.succeeded
            && !case.remembers
            && case.waiver.is_none()
    }) {
        let (inventory, claim) = case.machine();
        let plan = planned(&layout(), &inventory, case.mode, claim);
        let is_marked = matches!(case.found_marker, FoundMarker::Ours | FoundMarker::FormerName);
        let is_booted = is_marked && case.started != StartedAttempt::Never;
        // Without a marker, the preserved data disk may belong to an installation that was not recorded.
        let is_unmarked = case.found_marker == FoundMarker::Nothing && case.started == StartedAttempt::Never;
        let is_refused = case.found_marker == FoundMarker::OtherMachine
            || case.started == StartedAttempt::OnOthers
            || is_unmarked
            || (is_marked && !is_booted);
        match plan {
            Ok(plan) => {
                assert!(is_booted || !is_refused, "{case:?}");
                assert_eq!(plan.already.is_some(), is_booted, "{case:?}");
                booted += u32::from(is_booted);
                made += u32::from(!is_booted);
            }
            Err(refusal) => {
                assert!(is_refused && !is_booted, "{case:?}: {refusal}");
                refused += 1;
            }
        }
    }
    assert!(made > 0 && booted > 0 && refused > 0, "{made} made, {booted} booted, {refused} refused");
}

#[test]
fn refusal_lists_the_remedies() {
    let mut inventory = marked();
    inventory.filesystems.clear();
    let claim = InstallClaim { succeeded: true, ..claim() };
    let reasons = reasons(install(&layout(), &inventory, claim));
    let expected = "disks: allocation a-1 is installed on this machine according to the control plane, but no filesystem has its marker (/etc/metal/drophammer.json): no filesystem of the machine contains a marker. An installation would wipe every listed disk, including those that a reinstall keeps. Attach the disk with the installation; or order a reinstall, with --without-marker if that disk was replaced; or, to discard all data of the machine, assign a new id to the allocation";
    assert_eq!(reasons, [expected]);
}

/// The machine has a new allocation, and its disks contain the marker of the previous allocation.
#[test]
fn installs_a_new_allocation_of_the_same_machine() {
    let inventory = marked();
    let remembered = inventory.filesystems[0].marker.clone();
    let claim = InstallClaim { allocation: "a-2".to_owned(), installed: remembered, ..claim() };
    let plan = install(&layout(), &inventory, claim).unwrap();
    assert_eq!(verdicts(&plan), [DiskVerdict::Wipe, DiskVerdict::Wipe, DiskVerdict::NotOurs]);
}

#[test]
fn first_installation_is_announced() {
    let plan = install(&layout(), &machine(), claim()).unwrap();
    let begin = plan.stages.iter().position(|stage| stage.name == StageName::ReportBegin).unwrap();
    assert_eq!(begin + 1, plan.point_of_no_return);
    let [Operation::Run(SessionOp::AnnouncePointOfNoReturn(AnnouncePointOfNoReturn { disks, .. }))] =
        plan.stages[begin].operations.as_slice()
    else {
        panic!("{plan}")
    };
    assert_eq!(disks.iter().map(|disk| disk.device.as_str()).collect::<Vec<_>>(), ["/dev/sda", "/dev/sdb"]);
}
