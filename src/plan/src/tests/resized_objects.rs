//! Changes by administrators after the installation: enlarged logical volumes, volume groups and virtual disks.

use super::*;

fn grown_layout() -> Layout {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/resized/layout.yaml");
    layout_of(&std::fs::read_to_string(path).unwrap())
}

fn reinstall_after(change: impl Fn(&mut Inventory)) -> Result<Plan, Box<PlanRefusal>> {
    let mut inventory = recorded_inventory("resized/as-installed.json");
    change(&mut inventory);
    make(&grown_layout(), &inventory, InstallMode::Reinstall)
}

#[test]
fn extended_volume_is_preserved_and_its_size_reported() {
    let with_mib = |mib: u64| reinstall_after(move |inventory| inventory.groups[0].volumes[0].size_bytes = mib * MIB);
    let is_about_size = |warning: &&String| warning.contains("/dev/data/db has");
    let plan = with_mib(102_400).unwrap();
    assert_eq!(plan.warnings.iter().filter(is_about_size).count(), 0, "{:?}", plan.warnings);
    for mib in [102_404, 204_800] {
        let plan = with_mib(mib).unwrap();
        let expected = format!("/dev/data/db has {mib} MiB instead of 102400 MiB; it is preserved, and not resized");
        assert!(plan.warnings.contains(&expected), "{:?}", plan.warnings);
        assert_eq!(verdicts(&plan)[1..], [DiskVerdict::Keep; 2]);
    }
    let refused = reasons(with_mib(102_396));
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(
        refused[0].ends_with("must be preserved, and must be linear 102400 MiB, but is linear 102396 MiB"),
        "{refused:?}"
    );
    let other_type = reinstall_after(|inventory| {
        inventory.groups[0].volumes[0].size_bytes *= 2;
        inventory.groups[0].volumes[0].kind = "thin".to_owned();
    });
    assert!(reasons(other_type)[0].contains("but is thin 204800 MiB"));
}

#[test]
fn refuses_extended_group_with_the_remedy() {
    let inventory = recorded_inventory("resized/vgextended.json");
    let refused = reasons(make(&grown_layout(), &inventory, InstallMode::Reinstall));
    let remedy = "; the group was extended: add /dev/sdd to the devices of the group in the layout, on disks without wipeonreinstall, or remove /dev/sdd from the group with pvmove and vgreduce in the installed system";
    assert_eq!(
        refused,
        [format!(
            "volumegroups[0]: vg:data must be preserved on /dev/sdc, but there is vg:data on /dev/sdc, /dev/sdd (volumes: db){remedy}"
        )]
    );
    // A changed name or a missing physical volume is not an extension of the group.
    let mut renamed = inventory.clone();
    renamed.groups[0].name = "other".to_owned();
    let mut incomplete = inventory;
    incomplete.groups[0].physical.push(Default::default());
    for inventory in [renamed, incomplete] {
        let refused = reasons(make(&grown_layout(), &inventory, InstallMode::Reinstall));
        assert!(refused.iter().all(|reason| !reason.contains("was extended")), "{refused:?}");
    }
    // The recommended change of the layout solves the problem.
    let mut layout = grown_layout();
    layout.disks.push(DiskSpec { wipeonreinstall: false, ..arrays_and_groups::whole("/dev/sdd") });
    layout.volumegroups[0].devices.push("/dev/sdd".into());
    let plan = make(&layout, &recorded_inventory("resized/vgextended.json"), InstallMode::Reinstall);
    assert_eq!(verdicts(&plan.unwrap_or_else(|refusal| panic!("{refusal}")))[2..], [DiskVerdict::Keep; 2]);
}

#[test]
fn enlarged_virtual_disk_is_not_reported_as_another_disk() {
    let said = |index: usize, change: fn(&mut inventory::InventoryDisk)| {
        let plan = reinstall_after(|inventory| change(&mut inventory.disks[index])).unwrap();
        let warnings = plan.warnings.into_iter().filter(|warning| warning.contains("when the machine was installed"));
        warnings.collect::<Vec<_>>()
    };
    assert_eq!(said(1, |_| {}), [""; 0]);
    for (index, name) in [(0, "sda"), (1, "sdb")] {
        let larger = said(index, |disk| disk.size_bytes *= 2);
        let [warning] = &larger[..] else { panic!("{larger:?}") };
        assert!(warning.starts_with(&format!("/dev/{name} is the disk with serial V{index} (")), "{warning}");
        assert!(warning.contains(", the same as when the machine was installed, but its size has changed from "));
        assert!(!warning.contains("absent"), "{warning}");
    }
    let other = said(1, |disk| {
        disk.size_bytes *= 2;
        disk.model = "another".to_owned();
    });
    assert!(other.len() == 1 && !other[0].contains("its size has changed"), "{other:?}");
}
