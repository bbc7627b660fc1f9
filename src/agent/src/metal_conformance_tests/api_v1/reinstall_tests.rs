//! Tests of reinstalls. metal-api requests a reinstall by a flag, and the machine counts the attempts.

use super::*;
use model::install_report::{FailureSummary, InstallOutcome, InstallResult};

/// Tests the reinstall flag, the attempts counted by the machine, cancellation, and completion.
#[test]
#[ignore = "scripts/metal"]
fn judge_first_reinstalls() {
    let first = First::start();
    first.rack.steer("allocate", &reinstall());
    let begin = |control: &MetalControlPlane| {
        control.announce_point_of_no_return(&AttemptNotice {
            allocation: ONE,
            order: Some("1"),
            disks: &[RecordedDisk::default()],
            ..AttemptNotice::default()
        })
    };
    let boots = || {
        let (control, _) = first.boots();
        assert!(control.wait_for_allocation(PATIENCE).unwrap());
        let allocation = control.fetch_machine().unwrap().allocation.unwrap();
        let order = allocation.order.clone().unwrap();
        println!("attempt {} of {}, begun: {}", order.attempt, order.attempts, order.started);
        (control, allocation, order)
    };
    // The reinstall erases no disk in advance, and a failure before its first write cancels the reinstall.
    let (control, allocated, order) = boots();
    assert_eq!(erasure(&machine(), Some(&allocated)), None);
    assert_eq!((order.attempt, order.started), (1, false));
    let answer = control.report_result(&failed(InstallOutcome::FailedUntouched)).unwrap();
    assert!(!answer.retry);
    let log = first.rack.log();
    assert_eq!((&log["aborted"], &log["allocation"]["reinstall"]), (&json!(false), &json!(false)));
    // The reinstall is ordered again; now three attempts start, and fail.
    first.rack.steer("allocate", &reinstall());
    for attempt in 1..=3 {
        let (control, _, order) = boots();
        assert_eq!((order.attempt, order.started), (attempt, attempt > 1), "{order:?}");
        begin(&control).unwrap();
        let answer = control.report_result(&failed(InstallOutcome::FailedBegun)).unwrap();
        assert_eq!(answer.retry, attempt < 3);
        let log = first.rack.log();
        assert_eq!((&log["aborted"], &log["allocation"]["reinstall"]), (&json!(true), &json!(true)));
    }
    // The operator has corrected the cause of the failures.
    let (control, _, order) = boots();
    assert_eq!((order.attempt, order.started, order.disks.len()), (4, true, 1));
    begin(&control).unwrap();
    control.report_result(&InstallResult { allocation: ONE.into(), order: Some("1".into()), ..ended() }).unwrap();
    assert_eq!(first.rack.log()["allocation"]["reinstall"], json!(false));
    first.rack.steer("allocate", &reinstall());
    assert_eq!(boots().2.attempt, 1, "a completed reinstall does not count as an attempt");
    // Preserved contents have changed, so no other attempt follows.
    let (control, ..) = boots();
    begin(&control).unwrap();
    let changed = FailureSummary { stage: "storage.prove_kept".into(), ..FailureSummary::default() };
    let answer = control
        .report_result(&InstallResult {
            outcome: InstallOutcome::FailedBegun(changed),
            allocation: ONE.into(),
            ..ended()
        })
        .unwrap();
    assert!(!answer.retry);
    assert_eq!(boots().2.attempt, 4);
    // The operator clears the reinstall flag while the plan is made.
    let (control, ..) = boots();
    first.rack.steer("allocate", &allocation(ONE, "default"));
    assert!(begin(&control).unwrap_err().is_refusal());
    first.calls();
}

/// An attempt has passed the point of no return and failed; then the operator orders another image. The attempt may
/// have erased the marker, so a failure without a marker must not cancel the reinstall.
#[test]
#[ignore = "scripts/metal"]
fn judge_first_reinstall_with_another_image() {
    let first = First::start();
    first.rack.steer("allocate", &reinstall());
    let boots = || {
        let (control, _) = first.boots();
        assert!(control.wait_for_allocation(PATIENCE).unwrap());
        let allocation = control.fetch_machine().unwrap().allocation.unwrap();
        (control, allocation.image.id.clone(), allocation.order.unwrap())
    };
    let notice = AttemptNotice {
        allocation: ONE,
        order: Some("1"),
        disks: &[RecordedDisk::default()],
        ..AttemptNotice::default()
    };
    let (control, ..) = boots();
    control.announce_point_of_no_return(&notice).unwrap();
    control.report_result(&failed(InstallOutcome::FailedBegun)).unwrap();
    first.rack.steer("reinstall", &json!({"image": {"id": "debian-13.0.20261101"}}));
    let (control, image, order) = boots();
    assert_eq!((image.as_str(), order.attempt, order.started), ("debian-13.0.20261101", 1, true));
    let lacks_record = FailureSummary { lacks_record: true, ..FailureSummary::default() };
    let outcome = InstallOutcome::FailedUntouched(lacks_record);
    control.report_result(&InstallResult { outcome, allocation: ONE.into(), ..ended() }).unwrap();
    let log = first.rack.log();
    assert_eq!((&log["aborted"], &log["allocation"]["reinstall"]), (&json!(true), &json!(true)));
    // The operator changes the image again while the plan is made. The next boot installs this image.
    let (control, ..) = boots();
    first.rack.steer("reinstall", &json!({"image": {"id": "debian-14.0.20261101"}}));
    assert!(control.announce_point_of_no_return(&notice).unwrap_err().is_refusal());
    assert!(control.report_result(&failed(InstallOutcome::FailedUntouched)).unwrap().retry);
    let (control, image, _) = boots();
    control.announce_point_of_no_return(&notice).unwrap();
    control.report_result(&InstallResult { allocation: ONE.into(), order: Some("1".into()), ..ended() }).unwrap();
    let log = first.rack.log();
    assert_eq!(
        (&log["report"]["boot_info"]["image_id"], &log["allocation"]["reinstall"]),
        (&json!(image), &json!(false))
    );
    assert_eq!(image, "debian-14.0.20261101");
    first.calls();
}
