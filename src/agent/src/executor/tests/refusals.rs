//! Tests of plans that fail or are refused before the first write, and of changed disk identities.

use super::*;

#[test]
fn failure_before_the_first_write_is_marked_as_such() {
    let bench = Bench::new();
    let lock = Operation::Run(SessionOp::LockDisk(LockDisk { device: "/dev/no-such-disk".into(), untouched: vec![] }));
    let plan = plan(vec![
        (StageName::StorageLock, vec![lock]),
        (StageName::StorageWipe, vec![wipe_operation("/dev/no-such-disk".into(), vec![])]),
    ]);
    let failure = bench.run(&plan).unwrap_err();
    assert_eq!((failure.stage, failure.past_point_of_no_return), (StageName::StorageLock, false));
    assert_eq!(bench.reporter.stage_times().len(), 1);
}

#[test]
fn unbootable_tree_is_refused_before_the_first_write() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, path) = ([0; 1024], dir.path().join("tree.tar"));
    fs::write(&path, tree).unwrap();
    let manifest = image::ImageManifest::compute(&tree[..], 1024).unwrap();
    let digest = Some(manifest.digest.to_string());
    let contents = Some(BootContents { init: Some("/sbin/init".to_owned()), ..BootContents::default() });
    let manifest = image::ImageManifest { contents, ..manifest };
    fs::write(dir.path().join("tree.tar.manifest"), serde_json::to_vec(&manifest).unwrap()).unwrap();

    let allocation = Allocation { finish: Some(FinisherChoice::Builtin), ..Allocation::default() };
    let (steps, assigned) = (StepList::default(), PlanAssignment { allocation, consoles: vec![] });
    let request =
        PlanRequest { mode: InstallMode::Install, steps, subject: PlanSubject::default(), assigned, claim: None };
    let needs = plan::image_bootability::determine_needs(&Layout::default(), &Inventory::default(), &request);
    let url = format!("file://{}", path.display());
    let image =
        Box::new(allocation::AllocatedImage { id: "os-1".into(), url: url.clone(), digest, ..Default::default() });
    let reach = SessionOp::ResolveImage(ResolveImage { name: "os-1".into(), url, image, onto: None, needs });
    let plan = plan(vec![
        (StageName::ImageReach, vec![Operation::Run(reach)]),
        (StageName::StorageWipe, vec![wipe_operation("/dev/no-such-disk".into(), vec![])]),
    ]);
    let failure = Bench::new().run(&plan).unwrap_err();
    assert_eq!((failure.stage, failure.past_point_of_no_return), (StageName::ImageReach, false));
    let text = failure.error.to_string();
    assert!(text.contains("according to its manifest, the image has no kernel in /boot"), "{text}");
    assert!(text.contains("no GRUB for BIOS") && !text.contains("no init"), "{text}");
}

#[test]
fn refused_announcement_prevents_the_wipe() {
    let bench = Bench::new();
    let disks = vec![RecordedDisk { device: "os".into(), serial: "A0".into(), ..RecordedDisk::default() }];
    let extents = vec![StageExtents { stages: vec![StageName::StorageWipe], disks: vec![] }];
    let (allocation, order) = ("a-1".to_owned(), Some("o-1".to_owned()));
    let announce = SessionOp::AnnouncePointOfNoReturn(AnnouncePointOfNoReturn {
        allocation,
        order,
        disks: disks.clone(),
        extents: extents.clone(),
        approved: None,
        secret_digest: None,
    });
    let plan = plan(vec![
        (StageName::ReportBegin, vec![Operation::Run(announce)]),
        (StageName::StorageWipe, vec![wipe_operation("/dev/no-such-disk".into(), vec![])]),
    ]);
    for (refuses, failed) in [(true, StageName::ReportBegin), (false, StageName::StorageWipe)] {
        bench.control.refuses.store(refuses, Ordering::Relaxed);
        let failure = bench.run(&plan).unwrap_err();
        assert_eq!((failure.stage, failure.past_point_of_no_return), (failed, !refuses));
    }
    let expected = ("a-1".to_owned(), Some("o-1".to_owned()), disks, extents);
    assert_eq!(*bench.control.started.lock().unwrap(), [expected.clone(), expected]);
}

#[test]
fn changed_preserved_object_fails_the_installation() {
    let identity = BTreeMap::from([("guid".to_owned(), "c0ffee".to_owned())]);
    let gone = PreservedObject { object: ObjectLocator::Disk("no-such-disk".into()), identity };
    let marker = Operation::Run(SessionOp::WriteMarker(WriteMarker(InstallMarker::default())));
    let plan = plan(vec![
        (StageName::StorageWipe, vec![]),
        (StageName::StorageProvePreserved, vec![Operation::Run(SessionOp::ProvePreserved(ProvePreserved(vec![gone])))]),
        (StageName::TargetMarker, vec![marker]),
    ]);
    let bench = Bench::new();
    let failure = bench.run(&plan).unwrap_err();
    assert_eq!((failure.stage, failure.past_point_of_no_return), (StageName::StorageProvePreserved, true));
    let text = failure.error.to_string();
    assert!(text.contains("HAVE CHANGED: ") && text.contains("no-such-disk"), "{text}");
}
