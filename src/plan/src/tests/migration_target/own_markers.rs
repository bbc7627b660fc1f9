//! Markers of a target machine on its own disks.

use super::*;

/// The target writes its own marker last. If the marker exists, all data was received, and only the report was lost.
#[test]
fn own_marker_is_trusted_after_the_point_of_no_return() {
    let (layout, other, moving, plan) = planned();
    let [Operation::Run(SessionOp::AnnouncePointOfNoReturn(AnnouncePointOfNoReturn { disks, .. }))] =
        operations(&plan, StageName::ReportBegin)
    else {
        panic!("{plan}")
    };
    let [_, Operation::Run(SessionOp::WriteMarker(WriteMarker(marker)))] = operations(&plan, StageName::TargetMarker)
    else {
        panic!("{plan}")
    };
    let mut after = after(&plan, other);
    let root =
        after.stacked.iter().find(|is| is.signatures.iter().any(|signature| signature.uuid == plan.root_uuid)).unwrap();
    let device = root.device.clone();
    after.filesystems =
        vec![FilesystemContents { device, marker: Some(marker.clone()), ..FilesystemContents::default() }];
    let started = InstallClaim { begun_on: disks.clone(), attempt: record_of(marker), ..of_other() };
    let again = receive(&layout, &after, moving.clone(), started.clone()).unwrap();
    assert_eq!(again.already.as_ref(), Some(marker));
    // The control plane accepts a success only from a boot that has announced the attempt, with the same tables.
    assert_eq!((again.stages[0].name, again.point_of_no_return), (StageName::ReportBegin, again.stages.len()));
    let [
        Operation::Run(SessionOp::AnnouncePointOfNoReturn(AnnouncePointOfNoReturn {
            allocation,
            disks: told,
            secret_digest,
            ..
        })),
    ] = &again.stages[0].operations[..]
    else {
        panic!("{again}")
    };
    assert_eq!((allocation.as_str(), told), ("a-1", disks));
    assert_eq!(
        secret_digest.as_ref(),
        record_of(marker).map(|record| record.secret_digest).as_ref(),
        "the same attempt"
    );
    assert!(again.to_string().contains("records that this machine has received all data"), "{again}");
    properties::assert_sound(&again, &after);
    // A marker of an earlier migration is not accepted, because the tables differ.
    let older =
        |record: RecordedDisk| RecordedDisk { guid: Some("00000000-0000-0000-0000-000000000009".to_owned()), ..record };
    let claim = InstallClaim { begun_on: started.begun_on.iter().cloned().map(older).collect(), ..started.clone() };
    assert_eq!(receive(&layout, &after, moving.clone(), claim).map(|plan| plan.already).unwrap_or_default(), None);
    // A marker with another secret is also not accepted: the source machine, or an earlier system, wrote it.
    for attempt in [None, record_of(&InstallMarker { secret: Some(secret()), ..InstallMarker::default() })] {
        let claim = InstallClaim { attempt, ..started.clone() };
        assert_eq!(receive(&layout, &after, moving.clone(), claim).unwrap().already, None);
    }
    // Without a started attempt, the installation may be newer than the received one.
    let unknown = receive(&layout, &after, moving, of_other()).unwrap_err().to_string();
    assert!(unknown.contains("does not list this installation as replaced"), "{unknown}");
}

/// If the source has booted since the transfer, its system may have newer data: everything is received again.
#[test]
fn a_marker_of_its_own_is_not_believed_once_the_other_machine_has_booted_again() {
    let (layout, other, moving, plan) = planned();
    let [Operation::Run(SessionOp::AnnouncePointOfNoReturn(AnnouncePointOfNoReturn { disks, .. }))] =
        operations(&plan, StageName::ReportBegin)
    else {
        panic!("{plan}")
    };
    let [_, Operation::Run(SessionOp::WriteMarker(WriteMarker(own)))] = operations(&plan, StageName::TargetMarker)
    else {
        panic!("{plan}")
    };
    let mut now = after(&plan, other);
    let root =
        now.stacked.iter().find(|is| is.signatures.iter().any(|signature| signature.uuid == plan.root_uuid)).unwrap();
    let claim = InstallClaim { begun_on: disks.clone(), attempt: record_of(own), ..of_other() };
    let device = root.device.clone();
    let peer = |certificate: &str| {
        Some(MigrationPeer { certificate: certificate.to_owned(), address: String::new(), approved: true })
    };
    for (received_from, peer, is_booted) in [
        (None, None, true),
        (Some("one"), None, true),
        (Some("one"), peer("one"), true),
        (Some("one"), peer("two"), false),
        (None, peer("one"), false),
    ] {
        let received_from = received_from.map(certificate_digest);
        let marker = Some(InstallMarker { received_from: received_from.clone(), ..own.clone() });
        now.filesystems = vec![FilesystemContents { device: device.clone(), marker, ..FilesystemContents::default() }];
        let moving = MigrationOffer { peer: peer.clone(), ..moving.clone() };
        let plan = receive(&layout, &now, moving, claim.clone()).unwrap_or_else(|refusal| panic!("{refusal}"));
        assert_eq!(plan.already.is_some(), is_booted, "{received_from:?} {peer:?}");
        let receives = all(&plan).any(|operation| matches!(operation, Operation::Run(SessionOp::Receive(_))));
        assert_eq!(receives, !is_booted, "{plan}");
    }
}

/// The control plane may have lost its records. The marker lists the installations that it replaced, and this list
/// determines which installation is newer, independent of the clocks of the machines.
#[test]
fn newer_migration_of_this_machine_is_not_overwritten() {
    let (layout, other, moving, plan) = planned();
    let [Operation::Run(SessionOp::AnnouncePointOfNoReturn(AnnouncePointOfNoReturn { disks, .. }))] =
        operations(&plan, StageName::ReportBegin)
    else {
        panic!("{plan}")
    };
    let [_, Operation::Run(SessionOp::WriteMarker(WriteMarker(own)))] = operations(&plan, StageName::TargetMarker)
    else {
        panic!("{plan}")
    };
    let here = after(&plan, other);
    let root =
        here.stacked.iter().find(|is| is.signatures.iter().any(|signature| signature.uuid == plan.root_uuid)).unwrap();
    let (began, before, later) = (&disks[..], "2026-10-31T23:59:59Z", "2026-11-02T00:00:00Z");
    let other_tables: Vec<RecordedDisk> = began
        .iter()
        .map(|disk| {
            let guid = disk.guid.as_ref().map(|_| "00000000-0000-0000-0000-000000000009".to_owned());
            RecordedDisk { guid, guid_before: disk.guid.clone(), ..disk.clone() }
        })
        .collect();
    for (name, machine, time, begun_on, is_replaced, is_refused) in [
        ("finished, and the database is older", "m-2", later, &[][..], false, true),
        ("finished by a machine whose clock has no battery", "m-2", "1970-01-01T00:00:07Z", &[][..], false, true),
        ("with the same clock", "m-2", "2026-11-01T00:00:00Z", &[][..], false, true),
        ("migrated away and back", "m-2", before, &[][..], true, false),
        ("migrated away and back, with a clock that is ahead", "m-2", "2099-01-01T00:00:00Z", &[][..], true, false),
        ("interrupted before the database was restored", "m-1", "2026-11-01T00:00:00Z", &[][..], false, false),
        ("interrupted after it wrote the partition tables", "m-1", "2026-11-01T00:00:00Z", began, false, false),
        (
            "started again, and interrupted before it wrote the partition tables",
            "m-2",
            later,
            &other_tables[..],
            false,
            false,
        ),
    ] {
        let (mut now, mut moving) = (here.clone(), moving.clone());
        let (machine, time) = (machine.to_owned(), time.to_owned());
        let marker = InstallMarker { machine, time, ..own.clone() };
        if is_replaced {
            let migrated_machine = &mut moving.carried.as_mut().unwrap().marker;
            migrated_machine.supersedes = lineage::collect_superseded(std::iter::once(&marker));
        }
        let filesystem =
            FilesystemContents { device: root.device.clone(), marker: Some(marker), ..FilesystemContents::default() };
        now.filesystems = vec![filesystem];
        let attempt = record_of(own).filter(|_| !begun_on.is_empty());
        let claim = InstallClaim { begun_on: begun_on.to_vec(), attempt, ..of_other() };
        let made = receive(&layout, &now, moving, claim);
        let reasons = made.map(|_| ()).err().map(|refusal| refusal.to_string()).unwrap_or_default();
        assert_eq!(!reasons.is_empty(), is_refused, "{name}: {reasons}");
        for words in
            ["of machine m-2, allocation a-1, dated ", "does not list this installation as replaced", "wipefs -a"]
        {
            assert!(!is_refused || reasons.contains(words), "{name}: {reasons}");
        }
    }
    // An installation that is recognized by the tables of the attempt is booted.
    let mut now = here.clone();
    let marker = Some(InstallMarker { time: later.to_owned(), ..own.clone() });
    now.filesystems = vec![FilesystemContents { device: root.device.clone(), marker, ..FilesystemContents::default() }];
    let claim = InstallClaim { begun_on: disks.clone(), attempt: record_of(own), ..of_other() };
    assert!(receive(&layout, &now, moving, claim).unwrap().already.is_some());
}
