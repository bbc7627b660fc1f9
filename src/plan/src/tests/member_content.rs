//! Signatures on members of arrays: the content of an array with metadata at the end is also visible on its
//! members.

use super::*;

const MEMBERS: [usize; 3] = [2, 3, 4];

const MIRROR: &str = r#"
id: mirror-1.0-group
constraints: {sizes: [], images: {}}
disks:
- device: /dev/sda
  wipeonreinstall: true
  partitions:
  - {number: 1, label: efi, size: 500, gpttype: ef00}
  - {number: 2, label: root, size: 20000, gpttype: "8300"}
- {device: /dev/sdb, partitions: [{number: 1, label: data, size: 0, gpttype: fd00}]}
- {device: /dev/sdc, partitions: [{number: 1, label: data, size: 0, gpttype: fd00}]}
raid: [{arrayname: /dev/md/data, level: "1", devices: [/dev/sdb1, /dev/sdc1], createoptions: ["--metadata=1.0"]}]
volumegroups: [{name: data, devices: [/dev/md/data]}]
logicalvolumes: [{name: db, volumegroup: data, size: 102400, lvmtype: linear}]
filesystems:
- {path: /boot/efi, device: /dev/sda1, format: vfat, createoptions: ["-F", "32"]}
- {path: /, device: /dev/sda2, format: ext4}
- {path: /srv, device: /dev/data/db, format: xfs, label: db}
"#;

/// Returns a preserved array with a group on it. The physical volume, with this UUID, is also visible on the members.
fn with_metadata(metadata: &str, on_members: Option<&str>) -> Inventory {
    let mut inventory = arrays_and_groups::installed();
    let array = inventory.arrays.iter_mut().find(|array| array.name == "data").unwrap();
    array.metadata = metadata.to_owned();
    let running = array.running.clone();
    let array = inventory.stacked.iter().find(|stacked| Some(&stacked.name) == running.as_ref()).unwrap();
    let [content] = &array.signatures[..] else { panic!("{array:?}") };
    let content =
        DeviceSignature { uuid: on_members.map_or_else(|| content.uuid.clone(), str::to_owned), ..content.clone() };
    for index in MEMBERS {
        inventory.disks[index].signatures.push(content.clone());
    }
    inventory
}

#[test]
fn array_content_on_members_is_no_second_signature() {
    for metadata in ["0.90", "1.0"] {
        let inventory = with_metadata(metadata, None);
        let plan = make(&arrays_and_groups::layout(), &inventory, InstallMode::Reinstall)
            .unwrap_or_else(|refusal| panic!("{refusal}"));
        let preserved: Vec<DiskVerdict> = MEMBERS.iter().map(|index| plan.disks[*index].verdict).collect();
        assert_eq!(preserved, [DiskVerdict::Keep; 3], "{metadata}");
    }
}

#[test]
fn refuses_other_second_signatures_on_members() {
    let refused = |inventory: &Inventory, what: &str| {
        let reasons = reasons(make(&arrays_and_groups::layout(), inventory, InstallMode::Reinstall));
        assert!(
            reasons.iter().any(|reason| reason.contains("found several signatures on one member")),
            "{what}: {reasons:#?}"
        );
    };
    // With metadata at the start, the content of the array is not visible on its members.
    refused(&with_metadata("1.2", None), "metadata 1.2");
    refused(&with_metadata("1.0", Some("another-uuid")), "another physical volume");
    let mut stopped = with_metadata("1.0", None);
    let array = stopped.arrays.iter_mut().find(|array| array.name == "data").unwrap();
    let running = array.running.take().unwrap();
    stopped.stacked.retain(|stacked| stacked.name != running);
    refused(&stopped, "an array that does not run");
    let mut twice = with_metadata("1.0", None);
    let raid = twice.disks[2].signatures[0].clone();
    assert_eq!(raid.kind, "linux_raid_member");
    twice.disks[2].signatures.push(DeviceSignature { uuid: "another-array".into(), ..raid });
    refused(&twice, "two arrays");
}

/// Inventory and layout of a real machine, with a group on a mirror with metadata 1.0.
#[test]
fn preserves_recorded_mirror_with_trailing_metadata_below_group() {
    let inventory = recorded_inventory("inventories/mirror-1.0-group.json");
    let plan =
        make(&layout_of(MIRROR), &inventory, InstallMode::Reinstall).unwrap_or_else(|refusal| panic!("{refusal}"));
    assert_eq!(verdicts(&plan), [DiskVerdict::Wipe, DiskVerdict::Keep, DiskVerdict::Keep]);
    assert!(plan.fstab.iter().any(|entry| entry.path == "/srv"), "{plan}");
}
