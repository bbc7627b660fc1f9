//! Tests with install markers that were written by commit 7cf8cba (`testdata/recorded`). Every field is parsed to the
//! expected value, and serialized without changes.

use super::*;
use serde_json::Value;

const DIGEST: &str = "sha256:84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f788";

fn recorded(name: &str) -> (Value, InstallMarker) {
    let documents: Value = serde_json::from_str(include_str!("../../../../testdata/recorded/agent.json")).unwrap();
    let written = documents["markers"][name].clone();
    let marker = serde_json::from_value(written.clone()).unwrap();
    (written, marker)
}

/// Returns the record of a disk as written at the start of an attempt.
fn started_disk() -> RecordedDisk {
    let create = |on: &str, uuid: Option<&str>| PendingCreation {
        on: on.to_owned(),
        uuid: uuid.map(str::to_owned),
        was_empty: false,
        contents: Vec::new(),
    };
    RecordedDisk {
        device: "/dev/sda".to_owned(),
        serial: "QM00001".to_owned(),
        wwn: "0x5000c500a0000001".to_owned(),
        size_bytes: 21_474_836_480,
        sector_bytes: 512,
        model: "QEMU HARDDISK".to_owned(),
        by_path: "/dev/disk/by-path/pci-0000:00:1f.2-ata-1".to_owned(),
        guid: Some("0d5f2b5c-4d2e-4c9b-8d26-6a3f3b3d0001".to_owned()),
        guid_before: Some("0d5f2b5c-4d2e-4c9b-8d26-6a3f3b3d0002".to_owned()),
        promise: Some(WipePolicy::Wiped),
        preserved: Vec::new(),
        making: vec![
            create("disk", None),
            create("partition 0d5f2b5c-4d2e-4c9b-8d26-6a3f3b3d0003", Some("0d5f2b5c-4d2e-4c9b-8d26-6a3f3b3d0004")),
        ],
    }
}

fn preserved_disk() -> RecordedDisk {
    RecordedDisk {
        device: "/dev/sdb".to_owned(),
        serial: "QM00002".to_owned(),
        size_bytes: 42_949_672_960,
        promise: Some(WipePolicy::Kept),
        ..RecordedDisk::default()
    }
}

fn least() -> InstallMarker {
    let [machine, allocation, image, layout] = ["m", "a", "i", "l"].map(str::to_owned);
    InstallMarker { machine, allocation, image, layout, ..InstallMarker::default() }
}

fn full() -> InstallMarker {
    let finished = RecordedDisk { guid_before: None, making: Vec::new(), ..started_disk() };
    InstallMarker {
        machine: "4c4c4544-0051-3010-8052-b4c04f4d0001".to_owned(),
        allocation: "a-installed".to_owned(),
        project: "p1".to_owned(),
        order: Some("7f9619ff-8b86-4d01-b42d-00cf4fc964ff".to_owned()),
        image: "debian-12.0.20251101".to_owned(),
        layout: "default".to_owned(),
        layout_digest: Some(format!("{DIGEST}2")),
        time: "2026-01-15T10:00:00Z".to_owned(),
        disks: vec![finished, preserved_disk()],
        received_from: Some(format!("{DIGEST}3")),
        ..InstallMarker::default()
    }
}

#[test]
fn recorded_markers_are_parsed_and_serialized_without_loss() {
    let bare = RecordedDisk { device: "/dev/sdb".to_owned(), size_bytes: 1, ..RecordedDisk::default() };
    let disks = vec![started_disk(), bare, preserved_disk()];
    let first = InstallMarker { project: String::new(), order: None, received_from: None, ..full() };
    for (name, expected) in
        [("least", least()), ("first", first), ("full", full()), ("begun", InstallMarker { disks, ..least() })]
    {
        let (written, marker) = recorded(name);
        assert_eq!(marker, expected, "{name}");
        assert_eq!(serde_json::to_value(&marker).unwrap(), written, "{name}");
    }
}

/// A marker without the fields of later versions has neither a secret nor lists of replaced installations and volumes.
#[test]
fn marker_without_later_fields_proves_nothing_about_them() {
    let (_, marker) = recorded("full");
    assert_eq!((&marker.fencing, &marker.secret, &marker.volumes), (&None, &None, &None));
    assert_eq!(marker.definition, None);
    let attempt = AttemptRecord { secret_digest: DIGEST.to_owned() + "2", image: None };
    assert_eq!(marker.check_attempt(&attempt, &[]), Err(attempt_proof::MarkerMismatch::Secret));
    let (_, least) = recorded("least");
    assert!(!marker.has_superseded(&least) && lineage::find_newest(&[&marker, &least]).is_none());
    assert_eq!(lineage::collect_superseded([&marker].into_iter()), [marker.digest()]);
    let same = marker.disks[0].explain_same_disk(&started_disk());
    assert_eq!(same.as_deref(), Some("wwn 0x5000c500a0000001"));
    assert!(marker.disks[0].is_different_disk(&marker.disks[1]));
    assert!(!marker.disks.iter().flat_map(|disk| &disk.making).any(|creation| creation.was_empty));
}
