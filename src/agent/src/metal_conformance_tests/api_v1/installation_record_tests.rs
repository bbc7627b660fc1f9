//! Tests of metal-api's records. The record of an installation survives an accidental PXE boot and a failed reinstall.
//! Each registration overwrites the record of the disks, so the machine stores its own list of disks.

use super::*;
use model::install_marker::InstallMarker;
use model::pool_machine_disks::KnownDisk;

/// Tests two events after an installation by metal-hammer: an accidental PXE boot, and a reinstall that is refused
/// because the disks contain no marker. Neither event changes the installation or its record.
#[test]
#[ignore = "scripts/metal"]
fn judge_first_installed_by_another_agent() {
    let first = First::start();
    first.rack.steer("allocate", &installed());
    let (control, _) = first.boots();
    assert!(control.machine_pool().unwrap().is_allocated(true).unwrap());
    let found = control.fetch_machine().unwrap().allocation.unwrap();
    let owner = PoolAllocation::Allocated { allocation: &found.id, reinstall: false, installed: found.succeeded };
    let subject = PlanSubject { machine: MACHINE_ID.into(), image: "nothing".into(), ..PlanSubject::default() };
    let refusal = plan::plan_emptying(&machine(), owner, &[], subject).unwrap_err().to_string();
    println!("{refusal}");
    assert!(refusal.contains("another agent has installed it"), "{refusal}");
    let marker = InstallMarker { machine: MACHINE_ID.into(), allocation: ONE.into(), ..InstallMarker::default() };
    let filesystem = model::inventory::FilesystemContents { marker: Some(marker), ..Default::default() };
    let ours = Inventory { filesystems: vec![filesystem], ..machine() };
    assert_eq!(erasure(&ours, Some(&found)), None);
    // After an accidental PXE boot, the installed machine must not report again, because a report would replace the
    // console password.
    control.report_result(&InstallResult { allocation: ONE.into(), ..ended() }).unwrap();
    assert!(!first.calls().contains(&"Report".to_owned()));
    // A reinstall is canceled because no marker exists. The machine then remains recorded as installed with its old
    // image.
    first.rack.steer("reinstall", &json!({"image": {"id": "debian-12.0.20261101"}}));
    let (control, _) = first.boots();
    assert!(control.wait_for_allocation(PATIENCE).unwrap());
    let allocation = control.fetch_machine().unwrap().allocation.unwrap();
    assert_eq!(
        (allocation.reinstall, allocation.succeeded, erasure(&machine(), Some(&allocation))),
        (true, true, None)
    );
    let lacks_record = FailureSummary { lacks_record: true, ..FailureSummary::default() };
    let failed =
        InstallResult { outcome: InstallOutcome::FailedUntouched(lacks_record), allocation: ONE.into(), ..ended() };
    assert!(!control.report_result(&failed).unwrap().retry);
    let allocation = first.rack.log()["allocation"].clone();
    assert_eq!((&allocation["reinstall"], &allocation["image"]["id"]), (&json!(false), &json!("debian-11.0.20251101")));
    let (control, _) = first.boots();
    assert!(control.machine_pool().unwrap().is_allocated(true).unwrap());
    assert!(control.fetch_machine().unwrap().allocation.unwrap().succeeded);
}

/// Tests that the machine stores its own list of all disks that were present in any boot. Each registration overwrites
/// the list of the control plane.
#[test]
#[ignore = "scripts/metal"]
fn judge_first_disks_of_earlier_boots() {
    let first = First::start();
    let (control, _) = first.boots();
    assert!(control.machine_pool().unwrap().known_disks().unwrap().is_empty(), "a machine that has never registered");
    control.register_machine(&machine()).unwrap();
    let sizes = |known: Vec<KnownDisk>| known.iter().map(|disk| disk.size_bytes).collect::<Vec<_>>();
    let (control, _) = first.boots();
    assert_eq!(
        sizes(control.machine_pool().unwrap().known_disks().unwrap()),
        [6 << 30],
        "as registered by another agent"
    );
    let both = [6 << 30, 9 << 30].map(|size_bytes| KnownDisk { size_bytes, ..KnownDisk::default() });
    control.machine_pool().unwrap().remember_disks(&both).unwrap();
    control.register_machine(&machine()).unwrap();
    let (control, _) = first.boots();
    assert_eq!(control.machine_pool().unwrap().known_disks().unwrap(), both);
    first.calls();
}
