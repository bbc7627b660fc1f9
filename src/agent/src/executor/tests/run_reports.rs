//! Tests of the reports of a run, and of its undo list.

use super::*;
use model::allocation::Allocation;
use model::machine_migration::{MigrationOffer, MigrationPeer, MigrationSide, MigrationStatus};
use operations::{CheckMigrationCanceled, DeviceOp, FindPrograms};

#[test]
fn final_report_contains_boot_info_and_must_be_acknowledged() {
    let boot = BootInfo {
        kernel: "/vmlinuz".into(),
        initrd: "/initrd".into(),
        cmdline: "ro".into(),
        bootloader_id: "metal-debian".into(),
    };
    let bench = Bench::new();
    let closing = FinalReport { allocation: "a-1".into(), order: Some("o-1".into()), ..FinalReport::default() };
    assert!(bench.session().report_success(&closing).is_err());
    let (hidden, preserved) = (HiddenFiles { path: "/var/lib".into(), files: 7 }, PreservationProof::default());
    let marker = Some(InstallMarker { order: Some("o-1".into()), ..InstallMarker::default() });
    let booted = || PlanExecutor {
        printed: "the plan".into(),
        facts: RunFacts { boot: Some(boot.clone()), ..RunFacts::default() },
        ..bench.session()
    };
    let mut session = booted();
    let done = DiskChanges { hidden: vec![hidden], kept: vec![preserved], ..DiskChanges::default() };
    session.facts.done = done.clone();
    session.facts.marker = marker.clone();
    session.report_success(&closing).unwrap();
    let reports = bench.control.ended.lock().unwrap();
    let [ended] = reports.as_slice() else { panic!("{reports:?}") };
    assert_eq!(ended.outcome, InstallOutcome::Succeeded { boot: boot.clone(), marker });
    assert_eq!(
        (ended.allocation.as_str(), ended.order.as_deref(), ended.plan.as_str()),
        ("a-1", Some("o-1"), "the plan")
    );
    assert!(ended.peak_rss_bytes.unwrap() > 1 << 20);
    assert_eq!(ended.done, done);
    drop(reports);

    bench.control.refuses.store(true, Ordering::Relaxed);
    assert!(booted().report_success(&closing).is_err());

    bench.control.refuses.store(false, Ordering::Relaxed);
    let already = Some(InstallMarker { image: "debian-12".into(), ..InstallMarker::default() });
    let closing = FinalReport { message: "installed already".into(), already: already.clone(), ..closing };
    booted().report_success(&closing).unwrap();
    let ended = bench.control.ended.lock().unwrap().pop().unwrap();
    assert_eq!(ended.message, "installed already");
    assert_eq!(ended.outcome, InstallOutcome::Succeeded { boot: boot.clone(), marker: already });
}

#[test]
fn marker_is_written_only_while_the_migration_is_valid() {
    let plan = plan(vec![(
        StageName::TargetMarker,
        vec![Operation::Run(SessionOp::CheckMigrationCanceled(CheckMigrationCanceled { order: "o-7".into() }))],
    )]);
    for (newest, stands) in [
        (None, true),
        (Some(("o-7", "copying")), true),
        (Some(("o-7", "booting")), true),
        (Some(("o-7", "cancelled")), false),
        (Some(("o-7", "refused")), false),
        (Some(("o-8", "ordered")), false),
    ] {
        let newest_move =
            newest.map(|(order, state)| MigrationStatus { order: order.to_owned(), state: state.to_owned() });
        let control = Arc::new(FakeControl { newest_move, ..FakeControl::default() });
        let bench = Bench { reporter: Arc::new(ProgressReporter::new(control.clone())), control };
        match bench.run(&plan) {
            Ok(_) => assert!(stands, "{newest:?}"),
            Err(failure) => {
                assert!(!stands && failure.leaves.is_incomplete(), "{newest:?}: {failure:?}");
                assert!(failure.error.to_string().contains("must not be booted"), "{failure:?}");
            }
        }
    }
}

/// After a reboot, the source machine's system may have written to its disks.
#[test]
fn marker_is_withheld_if_the_source_machine_has_rebooted() {
    let stands = SessionOp::CheckMigrationCanceled(CheckMigrationCanceled { order: "o-7".into() });
    let peer = |certificate: &str| MigrationPeer {
        certificate: certificate.to_owned(),
        address: String::new(),
        approved: true,
    };
    for (peer, stands_still) in [(None, true), (Some(peer("one")), true), (Some(peer("two")), false)] {
        let moving = MigrationOffer {
            order: "o-7".into(),
            part: MigrationSide::Target,
            started: true,
            awaits_approval: false,
            peer,
            carried: None,
            disks: vec![],
        };
        let newest_move = Some(MigrationStatus { order: "o-7".to_owned(), state: "copying".to_owned() });
        let allocation = Some(Allocation { moving: Some(moving), ..Allocation::default() });
        let control = Arc::new(FakeControl { allocation, newest_move, ..FakeControl::default() });
        let bench = Bench { reporter: Arc::new(ProgressReporter::new(control.clone())), control };
        let received_from = Some(model::machine_migration::certificate_digest("one"));
        let mut session = PlanExecutor { received_from, ..bench.session() };
        match session.run_session_op(&stands) {
            Ok(()) => assert!(stands_still),
            Err(error) => {
                assert!(!stands_still && !error.is_denial(), "the receipt is retried: {error}");
                assert!(error.to_string().contains("has rebooted since"), "{error}");
            }
        }
    }
}

#[test]
fn failure_contains_the_completed_changes() {
    let bench = Bench::new();
    let mut session = bench.session();
    let done = DiskChanges { kept: vec![PreservationProof::default()], ..DiskChanges::default() };
    session.facts.done = done.clone();
    // The report fails, because no kernel was loaded.
    let plan = plan(vec![(StageName::ReportFinal, vec![Operation::Run(SessionOp::Report(FinalReport::default()))])]);
    assert_eq!(*session.run_plan(&plan).unwrap_err().done, done);
}

/// Operations are undone from the newest to the oldest. An operation that a later operation has already reversed is not
/// undone.
#[test]
fn undo_log_is_in_reverse_order() {
    let array = |device: &str| {
        DeviceOp::AssembleArray(AssembleArray { device: device.into(), uuid: uuid::Uuid::nil(), members: vec![] })
    };
    let stop = |device: &str| DeviceOp::StopArray(StopArray { device: device.into() });
    let mut session = Bench::new().session();
    session.undo.push(UndoOperation::WipeUnfinishedDisk("/dev/sda".into()));
    session_cleanup::mark_wipes_complete(&mut session.undo);
    [array("/dev/md1"), array("/dev/md2"), stop("/dev/md1")]
        .map(Operation::Device)
        .iter()
        .for_each(|operation| session.record_undo(operation));
    session.undo.extend([UndoOperation::Unmount, UndoOperation::EndProcesses, UndoOperation::Unlock]);
    session.unmount_target().unwrap();
    session.flush_disks(&FlushDisks { disks: Vec::new(), keep_locks: true }).unwrap();
    assert!(session.undo.contains(&UndoOperation::Unlock));
    session.flush_disks(&FlushDisks { disks: Vec::new(), keep_locks: false }).unwrap();
    assert_eq!(
        session.undo,
        [
            UndoOperation::WipeBootCode("/dev/sda".into()),
            UndoOperation::StopArray(StopArray { device: "/dev/md2".into() })
        ]
    );
}

/// The marker is on the root filesystem. The control plane trusts a marker, so the marker is removed before anything
/// that is needed to boot the system.
#[test]
fn root_is_erased_before_everything_else() {
    let erase = |device: &str| UndoOperation::WipeDeviceEnds(device.into());
    let stop = || UndoOperation::StopArray(StopArray { device: "/dev/md0".into() });
    let mut log = vec![
        UndoOperation::WipeBootCode("/dev/sda".into()),
        stop(),
        erase("/dev/md0"),
        erase("/dev/sda1"),
        UndoOperation::Unmount,
    ];
    session_cleanup::erase_root_first(&mut log, &erase("/dev/md0"));
    let root_last = [
        UndoOperation::WipeBootCode("/dev/sda".into()),
        stop(),
        erase("/dev/sda1"),
        erase("/dev/md0"),
        UndoOperation::Unmount,
    ];
    assert_eq!(log, root_last);
    session_cleanup::erase_root_first(&mut log, &erase("/dev/absent"));
    assert_eq!(log, root_last);
}

#[test]
fn nothing_else_is_erased_if_the_marker_remains() {
    let stop = UndoOperation::StopArray(StopArray { device: "/dev/md0".into() });
    let log = vec![stop.clone(), UndoOperation::WipeDeviceEnds("/dev/sda1".into())];
    for (marker, remaining) in [(None, log.clone()), (Some(InstallMarker::default()), vec![stop])] {
        let mut session = Bench::new().session();
        session.facts.marker = marker;
        session.undo = log.clone();
        session.keep_marked_system(&Error::new(Phase::Storage, "/dev/md0 MAY STILL BE BOOTABLE"));
        assert_eq!(session.undo, remaining);
    }
}

#[test]
fn required_programs_are_checked_before_writing() {
    let bench = Bench::new();
    let find = |programs: &[&str]| {
        SessionOp::FindPrograms(FindPrograms {
            os: "raw".to_owned(),
            programs: programs.iter().map(|program| (*program).to_owned()).collect(),
        })
    };
    let mut session = bench.session();
    session.run_session_op(&find(&["/bin/sh", "cat"])).unwrap();
    let error = session.run_session_op(&find(&["cat", "no-such-program", "/no/such/shell"])).unwrap_err();
    assert!(error.is_refusal());
    let needs =
        "the create program of raw requires programs that are not in this ramdisk: no-such-program, /no/such/shell";
    assert!(error.to_string().ends_with(needs), "{error}");
    // The output of `create` is not signed, so a ramdisk that requires signatures does not run the program.
    let key = include_str!("../../../../../testdata/trust/one.pub").parse().unwrap();
    session.trust.keys = image::SignatureKeys(vec![key]);
    let error = session.run_session_op(&find(&[])).unwrap_err();
    assert!(
        error.is_refusal()
            && error
                .to_string()
                .contains("the create program of raw cannot be run: this ramdisk installs only images that are signed"),
        "{error}"
    );
}
