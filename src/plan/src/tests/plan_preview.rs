//! Plans as they are printed for an operator before a run is ordered.

use super::arrays_and_groups::{five, group, volume};
use super::*;
use model::inventory::{FilesystemContents as Inside, LvmLogicalVolume, LvmPhysicalVolume};
use model::layout::{LvmType, OnReinstall};

/// Layout with root on sda, and /var/lib in a group on two whole disks. On the machine, the group also contains a
/// foreign volume, a preserved disk has an unlisted partition, and another disk is foreign.
fn storage() -> Layout {
    let mut layout = layout();
    layout.id = "storage".to_owned();
    layout.disks.extend(["/dev/sdc", "/dev/sdd"].map(super::arrays_and_groups::whole));
    layout.volumegroups = vec![group("csi-lvm", &["/dev/sdc", "/dev/sdd"])];
    layout.logicalvolumes = vec![volume("varlib", "csi-lvm", 4000, LvmType::Linear)];
    let varlib = filesystem("/var/lib", "/dev/csi-lvm/varlib", FilesystemFormat::Ext4, "varlib");
    layout.filesystems.push(FilesystemSpec { reinstall: OnReinstall::Merge, ..varlib });
    layout
}

fn machine() -> Inventory {
    let mut machine = after(&make(&storage(), &five(), InstallMode::Install).unwrap(), five());
    let parts = &mut machine.disks[1].table.as_mut().unwrap().partitions;
    let signature =
        DeviceSignature { kind: "xfs".into(), usage: "filesystem".into(), label: "old".into(), uuid: "0b2d".into() };
    parts.push(inventory::DiskPartition {
        number: 5,
        device: "/dev/sdb5".into(),
        size_bytes: 700 * MIB,
        label: "theirs".into(),
        signatures: vec![signature],
        ..Default::default()
    });
    let group = &mut machine.groups[0];
    group.uuid = "kZ3Wud-group".into();
    group.volumes[0].uuid = "kZ3Wud-varlib".into();
    for (physical, uuid) in group.physical.iter_mut().zip(["pv-c", "pv-d"]) {
        *physical = LvmPhysicalVolume { uuid: uuid.into(), ..physical.clone() };
    }
    let theirs = LvmLogicalVolume {
        name: "pvc-1".into(),
        uuid: "kZ3Wud-pvc".into(),
        size_bytes: 800 * MIB,
        kind: "linear".into(),
        ..Default::default()
    };
    group.volumes.push(theirs);
    let inside = |device: &str, used: u64, size: u64| Inside {
        device: device.into(),
        size_bytes: size * MIB,
        used_bytes: used * MIB,
        marker: None,
        unreadable_marker: None,
        sparse: Vec::new(),
        fstab: None,
    };
    machine.filesystems = vec![inside("/dev/sdb1", 1200, 7900), inside("/dev/mapper/csi--lvm-varlib", 310, 3900)];
    let serials = ["S45NNE0M01", "ZA1B2C3D", "9150A0AA", "9150A0AB", "", "WD-7"];
    machine.disks.iter_mut().zip(serials).for_each(|(disk, serial)| disk.serial = serial.into());
    machine
}

/// Returns the request for a reinstall whose marker the operator has waived, because the inventory of this test has no
/// marker.
fn reinstall_without_marker() -> PlanRequest {
    let claim = InstallClaim { waiver: Some(MarkerWaiver::Operator), ..InstallClaim::default() };
    PlanRequest {
        mode: InstallMode::Reinstall,
        steps: StepList::default(),
        subject: subject(),
        assigned: Default::default(),
        claim: Some(claim),
    }
}

#[test]
fn preview_shows_content_and_mount_points_of_preserved_disks() {
    let plan = super::super::make_plan(&storage(), &machine(), reinstall_without_marker(), &mut counting()).unwrap();
    let plan = Plan { warnings: Vec::new(), ..plan };
    assert_printed("preview", &plan);
    let text = plan.to_string();
    for words in [
        "mounted at /srv",
        "1.26 GB of 8.28 GB used",
        "\"theirs\": 734 MB · not in the layout",
        "csi-lvm/pvc-1 linear: 839 MB · not in the layout",
        "mounted at /var/lib, merge",
        "UUID kZ3Wud-group",
        "never written",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn plan_ends_with_counts_of_wiped_and_preserved_disks() {
    let plan = super::super::make_plan(&storage(), &machine(), reinstall_without_marker(), &mut counting()).unwrap();
    let end = "\n1 disk wiped (up to 21.0 GB of data is lost): sda\n3 disks kept: sdb, sdc, sdd\n2 disks not touched: sde, sdf\n";
    assert!(plan.to_string().ends_with(end), "{plan}");
    assert_eq!(serde_json::to_value(&plan).unwrap()["summary"]["lost_bytes"], 20_000 * MIB);
    let mut blank = five();
    blank.disks.iter_mut().for_each(|disk| disk.blank = true);
    let plan = make(&layout(), &blank, InstallMode::Install).unwrap();
    assert!(plan.to_string().contains("\n2 disks wiped (nothing is lost): sda, sdb\n"), "{plan}");
}

#[test]
fn wiped_disks_are_colored_on_a_terminal() {
    let plan = make(&layout(), &installed(), InstallMode::Reinstall).unwrap();
    let colored = common::format::terminal_escaping::render_styles(&format!("{plan:#}"));
    assert_eq!(colored.matches("\x1b[1;31mWIPE\x1b[0m").count(), 1, "{colored}");
    assert_eq!(colored.replace("\x1b[1;31m", "").replace("\x1b[0m", ""), plan.to_string());
}

#[test]
fn warnings_are_printed_and_in_the_json() {
    let plan = make(&layout(), &installed(), InstallMode::Reinstall).unwrap();
    let plan = Plan { warnings: vec!["/dev/md/data has lost a member".to_owned()], ..plan };
    assert!(plan.to_string().contains("\n\nWARNING: /dev/md/data has lost a member\n\n 1  image.reach"), "{plan}");
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["warnings"][0], "/dev/md/data has lost a member");
    assert_eq!(json["disks"][1]["verdict"], "keep");
}
