//! Kubernetes volumes that are marked for deletion.

use super::*;
use operations::{Operation, SessionOp};

/// Marks the volume for deletion.
fn marked(mut volume: Value) -> Value {
    volume["metadata"]["deletionTimestamp"] = json!("2026-11-24T12:00:00Z");
    volume
}

/// Returns all operations on devices, and those for volumes in the installed system.
fn writes(plan: &Plan) -> Vec<&Operation> {
    let operations = plan.stages.iter().flat_map(|stage| &stage.operations);
    let is = |operation: &&Operation| {
        matches!(
            operation,
            Operation::Device(_) | Operation::Run(SessionOp::UnlockDisk(_) | SessionOp::WriteK8sVolumeFiles(_))
        )
    };
    operations.filter(is).collect()
}

#[test]
fn volume_marked_for_deletion_is_not_prepared() {
    let volumes: Vec<Value> = four().into_iter().map(marked).chain([marked(discover("any", 5, json!({})))]).collect();
    let plan = planned(&layout(), &machine(), InstallMode::Install, &volumes).unwrap();
    assert_eq!(
        format_volumes(&plan),
        [
            "data /dev/sdc leave ",
            "block /dev/sdd leave ",
            "web /dev/csi/web leave ",
            "small /var/lib/metalk8s/storage/sparse/9474cda7-0dbe-40fc-9842-3cb0404a7204 leave ",
            "any  leave ",
        ]
    );
    // The plan differs from the plan without volumes only in the list of volumes.
    let bare = planned(&layout(), &machine(), InstallMode::Install, &[]).unwrap();
    assert_eq!((writes(&plan), &plan.disks, &plan.verdicts), (writes(&bare), &bare.disks, &bare.verdicts));
    assert!(plan.to_string().contains("leave    none: marked for deletion"), "{plan}");
    // In a reinstall, no preserved group is extended, and no file is added to a preserved filesystem.
    let inventory = installed(&[]);
    let again = planned(&layout(), &inventory, InstallMode::Reinstall, &volumes).unwrap();
    assert!(format_volumes(&again).iter().all(|line| line.ends_with(" leave ")), "{again}");
    let bare = planned(&layout(), &inventory, InstallMode::Reinstall, &[]).unwrap();
    assert_eq!(writes(&again), writes(&bare));
    // A disk with other content is not refused, because the plan does not write to it.
    let mut taken = machine();
    taken.disks[2].blank = false;
    assert!(planned(&layout(), &taken, InstallMode::Install, &volumes).is_ok());
}

#[test]
fn existing_volume_marked_for_deletion_is_preserved() {
    let inventory = installed(&four());
    let plain = planned(&layout(), &inventory, InstallMode::Reinstall, &four()).unwrap();
    let volumes: Vec<Value> = four().into_iter().map(marked).collect();
    let plan = planned(&layout(), &inventory, InstallMode::Reinstall, &volumes).unwrap();
    assert_eq!(format_volumes(&plan), format_volumes(&plain));
    assert!(format_volumes(&plan).iter().all(|line| line.contains(" keep ")), "{plan}");
    assert_eq!(prepares(&plan), [""; 0]);
    assert_eq!((plan.disks.clone(), plan.summary.clone()), (plain.disks, plain.summary));
    assert_sound(&plan, &inventory);
    // The installed system attaches the file while it exists.
    let written = plan.stages.iter().flat_map(|stage| &stage.operations).find_map(|operation| match operation {
        Operation::Run(SessionOp::WriteK8sVolumeFiles(write)) => Some(write),
        _ => None,
    });
    let written = written.unwrap();
    assert_eq!((written.sparse.len(), written.sparse[0].make.is_none(), written.volumes.len()), (1, true, 4));
    // The size of a terminating volume is not checked: the volume is preserved even if its size differs from the list.
    let mut larger = volumes;
    larger[2]["spec"]["lvmLogicalVolume"]["size"] = json!("2Gi");
    larger[3]["spec"]["sparseLoopDevice"]["size"] = json!("20Mi");
    let plan = planned(&layout(), &inventory, InstallMode::Reinstall, &larger).unwrap();
    assert_eq!(
        format_volumes(&plan),
        format_volumes(&planned(&layout(), &inventory, InstallMode::Reinstall, &four()).unwrap())
    );
}

#[test]
fn refuses_reinstall_that_erases_a_volume_marked_for_deletion() {
    let mut layout = layout();
    layout.disks.push(DiskSpec { wipeonreinstall: true, ..whole("/dev/sdc") });
    let volumes = [raw("data", 1, "Filesystem", "/dev/sdc")];
    let first = planned(&layout, &machine(), InstallMode::Install, &volumes).unwrap();
    let inventory = after(&first, machine());
    let [data] = volumes;
    let expected = "volumes[data]: volume data is marked for deletion, and its data is on /dev/sdc, which this reinstall recreates; remove the volume from the list once the volume is no longer used";
    assert_eq!(refused(&layout, &inventory, InstallMode::Reinstall, &[marked(data)]), [expected]);
    // A volume that was never on the disk does not prevent the layout from using it.
    let other = marked(raw("other", 2, "Filesystem", "/dev/sdc"));
    let plan = planned(&layout, &inventory, InstallMode::Reinstall, &[other]).unwrap();
    assert_eq!(format_volumes(&plan), ["other /dev/sdc leave "]);
    // A deleted volume in a group that is wiped is refused as well.
    let mut wiped = self::layout();
    wiped.disks[1].wipeonreinstall = true;
    let web = in_group("web", 3, "Block", "csi", "1Gi");
    let inventory =
        after(&planned(&wiped, &machine(), InstallMode::Install, std::slice::from_ref(&web)).unwrap(), machine());
    let said = refused(&wiped, &inventory, InstallMode::Reinstall, &[marked(web)]);
    assert!(said[0].contains("its data is on /dev/csi/web, which this reinstall recreates"), "{said:?}");
}

/// An encrypted object that will be recreated is not opened for inspection, so its content is unknown.
#[test]
fn refuses_to_erase_uninspected_volume_marked_for_deletion() {
    let mut layout = layout();
    layout.disks[1].wipeonreinstall = true;
    layout.volumegroups[0].encrypted = Some(EncryptionSpec { key: KeySource::Tpm2 });
    layout.logicalvolumes.push(logical("bare", "csi", 100, LvmType::Linear));
    let volumes = [
        in_group("web", 3, "Filesystem", "csi", "1Gi"),
        in_group("block", 2, "Block", "csi", "1Gi"),
        raw("lv", 1, "Block", "/dev/csi/bare"),
        raw("fs", 5, "Filesystem", "/dev/csi/bare"),
        sparse("small", 4, "Block", "10Mi"),
    ];
    let mut inventory = after(&planned(&layout, &machine(), InstallMode::Install, &[]).unwrap(), machine());
    mark(&mut inventory);
    inventory.groups.clear();
    inventory.stacked.clear();
    inventory.disks[1].uses.clear();
    for volume in volumes.map(marked) {
        let said = refused(&layout, &inventory, InstallMode::Reinstall, std::slice::from_ref(&volume));
        let words = "is marked for deletion, and its data may be in vg:csi, which is encrypted";
        assert!(said.len() == 1 && said[0].contains(words), "{said:?}");
        assert!(
            planned(&layout, &machine(), InstallMode::Install, &[volume]).is_ok(),
            "an installation recreates all volumes"
        );
    }
    assert!(planned(&layout, &inventory, InstallMode::Reinstall, &[]).is_ok());
    let mut layout = self::layout();
    layout.disks[1].wipeonreinstall = true;
    layout.filesystems[0].encrypted = Some(EncryptionSpec { key: KeySource::Tpm2 });
    let mut inventory = after(&planned(&layout, &machine(), InstallMode::Install, &[]).unwrap(), machine());
    mark(&mut inventory);
    let said = refused(&layout, &inventory, InstallMode::Reinstall, &[marked(sparse("small", 4, "Block", "10Mi"))]);
    assert!(said[0].contains("be in the filesystem at /var/lib, which is encrypted"), "{said:?}");
}

/// Volumes on devices of the layout: a partition is recognized by its UUID, and a logical volume by its name.
#[test]
fn volume_marked_for_deletion_is_preserved_on_layout_devices() {
    let mut layout = layout();
    layout.disks.push(DiskSpec { partitions: vec![partition(1, "a", 0, PartitionType::Linux)], ..whole("/dev/sdc") });
    layout.logicalvolumes.push(logical("bare", "csi", 100, LvmType::Linear));
    let volumes = [raw("part", 2, "Block", "/dev/sdc1"), raw("lv", 3, "Block", "/dev/csi/bare")];
    let inventory = after(&planned(&layout, &machine(), InstallMode::Install, &volumes).unwrap(), machine());
    let plan = planned(&layout, &inventory, InstallMode::Reinstall, &volumes.clone().map(marked)).unwrap();
    assert_eq!(format_volumes(&plan)[0], "part /dev/sdc1 keep sdc");
    assert!(format_volumes(&plan)[1].starts_with("lv /dev/csi/bare keep "), "{plan}");
    assert_sound(&plan, &inventory);
    // A first installation creates both devices for the layout, without the UUID of a volume.
    let plan = planned(&layout, &machine(), InstallMode::Install, &volumes.map(marked)).unwrap();
    assert_eq!(format_volumes(&plan), ["part /dev/sdc1 leave ", "lv /dev/csi/bare leave "]);
    let bare = planned(&layout, &machine(), InstallMode::Install, &[]).unwrap();
    assert_eq!(writes(&plan), writes(&bare));
}
