//! Install markers that prove a completed installation: every combination of the records of the control plane, the
//! content of the marker, and the content of the disks.

use super::installation_identity::{claim, marked, planned};
use super::*;
use model::install_marker::RecordedDisk;
use operations::{AnnouncePointOfNoReturn, Operation, SessionOp, WriteMarker};

const OTHER_GUID: &str = "00000000-0000-4000-8000-0000000000ff";

/// Circumstances that decide whether a marker of this machine and allocation on the disks is trusted.
#[derive(Debug, Clone, Copy)]
struct Case {
    mode: InstallMode,
    /// True if the control plane has the record of a started attempt.
    has_begun: bool,
    secret: Secret,
    is_image_right: bool,
    /// True if the marker contains the GUIDs of the tables that the attempt created.
    is_marker_right: bool,
    /// True if those tables are on the disks.
    are_disks_right: bool,
    /// True if the image contains its own table. The attempt then announces no GUID.
    has_own_table: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Secret {
    OfTheAttempt,
    OfAnother,
    Absent,
}

const BOTH: [bool; 2] = [false, true];

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for mode in [InstallMode::Install, InstallMode::Reinstall] {
        for secret in [Secret::OfTheAttempt, Secret::OfAnother, Secret::Absent] {
            for has_begun in BOTH {
                for is_image_right in BOTH {
                    for is_marker_right in BOTH {
                        for are_disks_right in BOTH {
                            for has_own_table in BOTH {
                                cases.push(Case {
                                    mode,
                                    has_begun,
                                    secret,
                                    is_image_right,
                                    is_marker_right,
                                    are_disks_right,
                                    has_own_table,
                                });
                            }
                        }
                    }
                }
            }
        }
    }
    cases
}

impl Case {
    fn is_proven(self) -> bool {
        let tables = self.has_own_table || (self.is_marker_right && self.are_disks_right);
        self.has_begun && self.secret == Secret::OfTheAttempt && self.is_image_right && tables
    }

    fn machine(self) -> (Inventory, InstallClaim) {
        let mut inventory = marked();
        let another = AttemptSecret::generate(&mut counting_from(0xbad));
        let digest = secret().digest().unwrap();
        let found = inventory.filesystems[0].marker.as_mut().unwrap();
        let announced = found.disks.iter().map(|disk| RecordedDisk {
            guid: disk.guid.clone().filter(|_| !self.has_own_table),
            guid_before: None,
            ..disk.clone()
        });
        let begun_on: Vec<RecordedDisk> = announced.collect();
        found.order = (self.mode == InstallMode::Reinstall).then(|| "o-1".to_owned());
        found.image = if self.is_image_right { "i" } else { "j" }.to_owned();
        found.secret = match self.secret {
            Secret::OfTheAttempt => Some(secret()),
            Secret::OfAnother => Some(another),
            Secret::Absent => None,
        };
        if !self.is_marker_right {
            found.disks[0].guid = Some(OTHER_GUID.to_owned());
        }
        if !self.are_disks_right {
            inventory.disks[0].table.as_mut().unwrap().guid = Some(OTHER_GUID.parse().unwrap());
        }
        let record = AttemptRecord { secret_digest: digest, image: Some("i".to_owned()) };
        let claim = InstallClaim {
            order: (self.mode == InstallMode::Reinstall).then(|| "o-1".to_owned()),
            waiver: (self.mode == InstallMode::Reinstall && self.has_begun).then_some(MarkerWaiver::Begun),
            begun_on: if self.has_begun { begun_on } else { Vec::new() },
            attempt: self.has_begun.then_some(record),
            ..claim()
        };
        (inventory, claim)
    }
}

/// The old system of the machine can write anything into its marker except the secret of a later attempt.
#[test]
fn marker_proves_installation_only_by_secret_image_and_tables() {
    let (mut booted, mut carried_out, mut refused) = (0, 0, 0);
    for case in cases() {
        let (inventory, claim) = case.machine();
        match planned(&layout(), &inventory, case.mode, claim) {
            Ok(plan) => {
                assert_eq!(plan.already.is_some(), case.is_proven(), "{case:?}");
                // A first installation over an unproven marker of its allocation is never accepted.
                assert!(case.mode == InstallMode::Reinstall || case.is_proven(), "{case:?}");
                booted += u32::from(case.is_proven());
                carried_out += u32::from(!case.is_proven());
            }
            Err(refusal) => {
                assert!(!case.is_proven(), "{case:?}: {refusal}");
                // A reinstall is refused only by other rules, because the tables contradict all records.
                let is_consistent = case.is_marker_right && case.are_disks_right;
                assert!(case.mode == InstallMode::Install || !is_consistent, "{case:?}: {refusal}");
                refused += 1;
            }
        }
    }
    assert!(booted >= 10 && carried_out >= 20 && refused >= 80, "{booted} {carried_out} {refused}");
}

/// Attack: the root user of the old system reads the id of the order, writes it into the marker of the old system,
/// and boots over PXE.
#[test]
fn forged_order_id_does_not_prevent_the_reinstall() {
    let mut inventory = marked();
    let marker = inventory.filesystems[0].marker.as_mut().unwrap();
    (marker.order, marker.image, marker.secret) = (claim().order, subject().image, Some(secret()));
    for attempt in [
        None,
        record_of(&InstallMarker {
            secret: Some(AttemptSecret::generate(&mut counting())),
            ..InstallMarker::default()
        }),
    ] {
        let claim = InstallClaim { attempt, ..claim() };
        let plan = planned(&layout(), &inventory, InstallMode::Reinstall, claim).unwrap();
        assert_eq!((plan.already.is_none(), plan.disks[0].verdict), (true, DiskVerdict::Wipe), "{plan}");
    }
}

/// Two attempts have different secrets, and each announcement contains the digest of the secret in the marker of its
/// attempt.
#[test]
fn announced_digest_matches_the_secret_in_the_marker() {
    let (first, second) = (announced_and_written(0), announced_and_written(0x100));
    assert_eq!((&first.0, &second.0), (&first.1, &second.1));
    assert_ne!(first.0, second.0);
}

fn announced_and_written(ids: u128) -> (String, String) {
    let request = PlanRequest {
        mode: InstallMode::Install,
        steps: StepList::default(),
        subject: subject(),
        assigned: Default::default(),
        claim: Some(InstallClaim { order: None, ..claim() }),
    };
    let plan = super::super::make_plan(&layout(), &machine(), request, &mut counting_from(ids)).unwrap();
    let (mut announced, mut written) = (None, None);
    for operation in plan.stages.iter().flat_map(|stage| &stage.operations) {
        match operation {
            Operation::Run(SessionOp::AnnouncePointOfNoReturn(AnnouncePointOfNoReturn { secret_digest, .. })) => {
                announced.clone_from(secret_digest)
            }
            Operation::Run(SessionOp::WriteMarker(WriteMarker(marker))) => {
                written = record_of(marker).map(|record| record.secret_digest)
            }
            _ => {}
        }
    }
    let json = serde_json::to_string(&plan).unwrap();
    assert!(!json.contains("secret"), "a reader of the plan does not see it");
    (announced.unwrap(), written.unwrap())
}
