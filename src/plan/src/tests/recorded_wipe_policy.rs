//! Wipe policies: the recorded policy of a disk applies until the operator changes it.

use super::installation_identity::{claim, forget_marker, install, marked, reinstall};
use super::*;
use model::install_marker::{InstallMarker, WipePolicy};
use model::inventory::FilesystemContents;
use operations::{AnnouncePointOfNoReturn, Operation, SessionOp, StageName, WriteMarker};

/// Returns an installed machine with a marker of the current version.
fn installed_now() -> Inventory {
    let mut machine = machine();
    for (disk, serial) in machine.disks.iter_mut().zip(["A0", "B0", "C0"]) {
        disk.serial = serial.to_owned();
    }
    let plan = install(&layout(), &machine, claim()).unwrap();
    let mut inventory = after(&plan, machine);
    let [Operation::Run(SessionOp::WriteMarker(WriteMarker(marker)))] =
        super::arrays_and_groups::operations(&plan, StageName::TargetMarker)
    else {
        panic!("{plan}")
    };
    let device = "/dev/sda2".into();
    inventory.filesystems.push(FilesystemContents {
        device,
        marker: Some(marker.clone()),
        ..FilesystemContents::default()
    });
    inventory
}

/// Returns an edited layout, as if the database with the installed layout had been lost.
fn edited() -> Layout {
    let mut layout = layout();
    layout.disks[1].wipeonreinstall = true;
    layout
}

#[test]
fn marker_records_the_wipe_policy_of_each_disk() {
    let inventory = installed_now();
    let marker = inventory.filesystems[0].marker.as_ref().unwrap();
    let promises: Vec<Option<WipePolicy>> = marker.disks.iter().map(|disk| disk.promise).collect();
    assert_eq!(promises, [Some(WipePolicy::Wiped), Some(WipePolicy::Kept)]);
    assert_eq!(marker.layout_digest, Some(model::layout::compute_digest(&layout())));
    let json = serde_json::to_value(marker).unwrap();
    assert_eq!((&json["disks"][1]["promise"], &json["disks"][1]["sector_bytes"]), (&"kept".into(), &512.into()));
    assert_eq!(serde_json::from_value::<InstallMarker>(json).unwrap(), *marker);
    let plan = reinstall(&layout(), &inventory, claim()).unwrap();
    assert_eq!(plan.warnings, [""; 0]);
}

#[test]
fn refuses_to_wipe_disk_recorded_as_preserved() {
    let digests = (model::layout::compute_digest(&layout()), model::layout::compute_digest(&edited()));
    let expected = format!(
        "disks[1].wipeonreinstall: /dev/sdb would be wiped according to the layout data ({}), but must be kept according to the layout data ({}), with which the machine was installed; correct the layout, or, to accept the change, order the reinstall again with --change-promise",
        digests.1, digests.0
    );
    assert_eq!(reasons(reinstall(&edited(), &installed_now(), claim())), [expected.as_str()]);
    // The disk with the marker is absent, but the control plane has the record.
    for waiver in [MarkerWaiver::Operator, MarkerWaiver::Begun] {
        let (mut inventory, mut claim) = (installed_now(), claim());
        forget_marker(&mut inventory, &mut claim);
        claim.waiver = Some(waiver);
        assert_eq!(reasons(reinstall(&edited(), &inventory, claim)), [expected.as_str()]);
    }
    // An offline plan is refused as well.
    assert_eq!(reasons(make(&edited(), &installed_now(), InstallMode::Reinstall)), [expected.as_str()]);
}

#[test]
fn change_promise_permits_another_wipe_policy() {
    let claim = InstallClaim { change_promise: true, ..claim() };
    let plan = reinstall(&edited(), &installed_now(), claim).unwrap();
    assert_eq!(plan.disks[1].verdict, DiskVerdict::Wipe);
    assert!(plan.to_string().contains(": the wipe policy will be changed, as requested by the operator\n"), "{plan}");
    let [Operation::Run(SessionOp::WriteMarker(WriteMarker(marker)))] =
        super::arrays_and_groups::operations(&plan, StageName::TargetMarker)
    else {
        panic!("{plan}")
    };
    assert_eq!(marker.disks[1].promise, Some(WipePolicy::Wiped));
}

#[test]
fn refuses_change_of_recorded_policy_from_wiped_to_kept() {
    let (mut inventory, mut wiped) = (installed_now(), layout());
    inventory.filesystems[0].marker.as_mut().unwrap().disks[1].promise = Some(WipePolicy::Wiped);
    let reasons = reasons(reinstall(&wiped, &inventory, claim()));
    assert!(reasons[0].contains("/dev/sdb would be kept according to the layout"), "{reasons:?}");
    wiped.disks[1].wipeonreinstall = true;
    reinstall(&wiped, &inventory, claim()).unwrap();
}

#[test]
fn warns_about_another_layout_with_the_same_policies() {
    let mut other = layout();
    other.filesystems[0].mountoptions.push("noatime".to_owned());
    let plan = reinstall(&other, &installed_now(), claim()).unwrap();
    assert_eq!(plan.warnings.len(), 1);
    assert!(plan.warnings[0].contains("differs from the layout with which the machine was installed"), "{plan}");
}

#[test]
fn marker_without_recorded_policies_permits_the_wipe() {
    let plan = reinstall(&edited(), &marked(), claim()).unwrap();
    assert_eq!(plan.disks[1].verdict, DiskVerdict::Wipe);
    let old =
        r#"{"machine":"m","allocation":"a","image":"i","layout":"l","disks":[{"device":"/dev/sda","size_bytes":7}]}"#;
    let old: InstallMarker = serde_json::from_str(old).unwrap();
    assert_eq!((old.disks[0].promise, old.layout_digest.as_deref()), (None, None));
}

/// No policy is recorded for a disk that was added to the layout after the installation.
#[test]
fn refuses_to_wipe_nonblank_disk_added_after_installation() {
    let mut more = layout();
    more.disks.push(DiskSpec {
        device: "/dev/sdc".into(),
        wipeonreinstall: true,
        partitions: vec![],
        ..more.disks[1].clone()
    });
    let mut inventory = installed_now();
    inventory.disks[2].signatures.push(DeviceSignature {
        kind: "xfs".into(),
        usage: "filesystem".into(),
        ..DeviceSignature::default()
    });
    let refused = reasons(reinstall(&more, &inventory, claim()));
    let expected = "disks[2].device: /dev/sdc is the disk with serial C0 (9.44 GB), but no disk with that name was recorded when the machine was installed; /dev/sdc will be wiped and is not blank: it contains xfs. Correct the layout, erase the new disk, or discard its data with --give-up C0";
    assert_eq!(refused, [expected]);
    for claim in
        [InstallClaim { change_promise: true, ..claim() }, InstallClaim { give_up: vec!["C0".to_owned()], ..claim() }]
    {
        assert_eq!(reinstall(&more, &inventory, claim).unwrap().disks[2].verdict, DiskVerdict::Wipe);
    }
    inventory.disks[2].signatures.clear();
    inventory.disks[2].blank = true;
    reinstall(&more, &inventory, claim()).unwrap();
}

#[test]
fn refuses_recorded_preserved_disk_that_reads_as_blank() {
    let blanked = |serial: &str| {
        let mut inventory = installed_now();
        super::installation_identity::empty(&mut inventory.disks[1], serial);
        inventory
    };
    let expected = "disks[1].device: /dev/sdb is the disk with serial B0 (8.39 GB), which was recorded when the machine was installed; this disk must be preserved, but reads as blank. Check whether the disk was erased or its controller is failing; if the data on the disk is lost, order the reinstall again with --give-up B0";
    assert_eq!(reasons(reinstall(&layout(), &blanked("B0"), claim())), [expected]);
    let given = InstallClaim { give_up: vec!["B0".to_owned()], ..claim() };
    let plan = reinstall(&layout(), &blanked("B0"), given).unwrap();
    assert_eq!(plan.disks[1].verdict, DiskVerdict::Make);
    assert!(plan.to_string().contains("its data will be discarded, as requested by the operator"), "{plan}");
    // A replaced disk is recreated, even if an earlier attempt was interrupted while it recreated the disk.
    let inventory = blanked("Z9");
    let plan = reinstall(&layout(), &inventory, claim()).unwrap();
    assert_eq!(plan.disks[1].verdict, DiskVerdict::Make);
    let [Operation::Run(SessionOp::AnnouncePointOfNoReturn(AnnouncePointOfNoReturn { disks, .. }))] =
        super::arrays_and_groups::operations(&plan, StageName::ReportBegin)
    else {
        panic!("{plan}")
    };
    let again = InstallClaim { begun_on: disks.clone(), waiver: Some(MarkerWaiver::Begun), ..claim() };
    assert_eq!(reinstall(&layout(), &inventory, again).unwrap().disks[1].verdict, DiskVerdict::Make);
}

/// Group in which a reinstall renews the root volume, and preserves the volumes that the layout does not list.
const UNLISTED: &str = "id: unlisted
constraints: {sizes: [], images: {}}
disks:
- device: /dev/sda
  wipeonreinstall: true
  partitions: [{number: 1, label: efi, size: 500, gpttype: ef00}, {number: 2, size: 0, gpttype: 8e00}]
volumegroups:
- {name: vg0, devices: [/dev/sda2], preserve: unlisted}
logicalvolumes:
- {name: root, volumegroup: vg0, size: 4000, lvmtype: linear}
filesystems:
- {path: /, device: /dev/vg0/root, format: ext4, label: root}
- {path: /boot/efi, device: /dev/sda1, format: vfat}
";

/// Returns a machine with the layout `UNLISTED` and its marker. An administrator has created the volume `vg0/images`.
fn with_images_volume() -> Inventory {
    let mut machine = super::partly_kept_disks::blank_machine();
    machine.disks[0].serial = "A0".to_owned();
    let layout = layout_of(UNLISTED);
    let plan = install(&layout, &machine, claim()).unwrap();
    let mut inventory = after(&plan, machine);
    let [Operation::Run(SessionOp::WriteMarker(WriteMarker(marker)))] =
        super::arrays_and_groups::operations(&plan, StageName::TargetMarker)
    else {
        panic!("{plan}")
    };
    let volume = &inventory.groups[0].volumes[0];
    let images = inventory::LvmLogicalVolume {
        name: "images".to_owned(),
        running: None,
        ranges: Vec::new(),
        size_bytes: 1000 * MIB,
        ..volume.clone()
    };
    inventory.groups[0].volumes.push(images);
    inventory.filesystems.push(FilesystemContents {
        device: "/dev/vg0/root".into(),
        marker: Some(marker.clone()),
        ..FilesystemContents::default()
    });
    let root =
        inventory.stacked.iter().find(|stacked| Some(&stacked.name) == inventory.groups[0].volumes[0].running.as_ref());
    inventory.filesystems[0].device = root.unwrap().device.clone();
    inventory
}

/// A preserved group retains the volumes that the installed layout did not list. An edited layout that lists one of
/// them without `preserve` would remove it.
#[test]
fn refuses_to_remove_volume_that_the_installed_layout_did_not_list() {
    let inventory = with_images_volume();
    let order = || InstallClaim { waiver: Some(MarkerWaiver::Operator), ..claim() };
    let plan = reinstall(&layout_of(UNLISTED), &inventory, order());
    plan.unwrap_or_else(|refusal| panic!("{refusal}"));
    let listed = UNLISTED
        .replace("filesystems:\n", "- {name: images, volumegroup: vg0, size: 500, lvmtype: linear}\nfilesystems:\n");
    let edited = layout_of(&listed);
    let refusal = reinstall(&edited, &inventory, order()).unwrap_err();
    assert_eq!(refusal.code(), ErrorCode::WipePolicyChanged, "{refusal}");
    let said = refusal.problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(said.contains("volume vg0/images exists") && !said.contains("vg0/root"), "{said}");
    let changed = InstallClaim { change_promise: true, ..order() };
    assert!(reinstall(&edited, &inventory, changed).is_ok());
    // The volume does not exist, or the layout preserves it.
    let mut without = inventory.clone();
    without.groups[0].volumes.truncate(1);
    assert!(reinstall(&edited, &without, order()).is_ok());
    // An older marker does not list the renewed volumes, so an edited layout may not remove any of them.
    let mut old = inventory;
    let marker = old.filesystems[0].marker.as_mut().unwrap();
    assert_eq!(marker.renewed, Some(vec!["vg0/root".to_owned()]));
    marker.renewed = None;
    assert!(reinstall(&layout_of(UNLISTED), &old, order()).is_ok());
    let said = reasons(reinstall(&edited, &old, order())).join("\n");
    assert!(said.contains("volume vg0/images exists") && said.contains("volume vg0/root exists"), "{said}");
}
