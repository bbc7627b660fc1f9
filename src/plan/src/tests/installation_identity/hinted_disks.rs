//! Disks that the layout selects by hints.

use super::*;

#[test]
fn disk_selected_by_hints_may_have_any_name() {
    let (mut layout, mut inventory) = (layout(), marked());
    layout.disks[0].hints = [("serial".to_owned(), "A0".to_owned())].into();
    layout.disks[1].hints = [("serial".to_owned(), "B0".to_owned())].into();
    // The names in the layout differ from the kernel names, as if the disks had been sdb and sda at the installation.
    layout.disks.iter_mut().zip(["os", "data"]).for_each(|(disk, name)| disk.device = name.into());
    for filesystem in &mut layout.filesystems {
        filesystem.device = filesystem.device.as_str().replace("/dev/sda", "os").replace("/dev/sdb", "data").into();
    }
    let recorded = &mut inventory.filesystems[0].marker.as_mut().unwrap().disks;
    recorded.iter_mut().zip(["os", "data"]).for_each(|(disk, name)| disk.device = name.to_owned());
    let plan = reinstall(&layout, &inventory, claim()).unwrap();
    assert_eq!(plan.warnings, [""; 0]);
}

/// Returns a machine and a layout with scratch space on the smallest rotational disk, which is sdc at first. The
/// larger disk sdd is unlisted.
fn hinted() -> (Layout, Inventory) {
    let mut layout = layout();
    layout.disks.push(DiskSpec {
        device: "scratch".into(),
        hints: [("rotational".to_owned(), "true".to_owned()), ("size".to_owned(), "smallest".to_owned())].into(),
        partitions: Vec::new(),
        wipeonreinstall: true,
        image: false,
    });
    layout.filesystems.push(filesystem("/scratch", "scratch", FilesystemFormat::Xfs, "scratch"));
    let mut machine = machine();
    machine.disks.push(disk("sdd", 16_000));
    machine.disks[2..].iter_mut().for_each(|disk| disk.rotational = true);
    let mut inventory = after(&make(&layout, &machine, InstallMode::Install).unwrap(), machine);
    for (disk, serial) in inventory.disks.iter_mut().zip(["A0", "B0", "C0", "D0"]) {
        disk.serial = serial.to_owned();
    }
    let (kind, label, uuid) = ("xfs".to_owned(), "archive".to_owned(), "a-9".to_owned());
    let archive = DeviceSignature { kind, label, uuid, ..DeviceSignature::default() };
    inventory.disks[3].signatures.push(archive);
    let mut marker = marker(&inventory);
    marker.disks.truncate(3);
    marker.disks[2].device = "scratch".to_owned();
    let device = "/dev/sda2".into();
    inventory.filesystems.push(FilesystemContents { device, marker: Some(marker), ..FilesystemContents::default() });
    (layout, inventory)
}

const ANOTHER: &str = "/dev/sdd (selected by the hints of scratch) is the disk with serial D0 (16.8 GB), but when the machine was installed it was the disk with serial C0 (9.44 GB), which is now absent";

/// The scratch disk has failed, so the unlisted archive disk is now the smallest rotational disk.
#[test]
fn another_disk_that_matches_the_hints_is_not_wiped() {
    let (layout, inventory) = hinted();
    assert_eq!(reinstall(&layout, &inventory, claim()).unwrap().disks[3].verdict, DiskVerdict::NotOurs);
    for waiver in [None, Some(MarkerWaiver::Operator), Some(MarkerWaiver::Begun)] {
        let mut inventory = inventory.clone();
        unplug(&mut inventory, "sdc");
        let reasons = reasons(reinstall(&layout, &inventory, InstallClaim { waiver, ..claim() }));
        let expected = format!(
            "disks[2].device: {ANOTHER}; /dev/sdd will be wiped and is not blank: it contains xfs \"archive\". Attach the old disk, erase the new disk, or discard its data with --give-up D0 (recorded: serial C0, wwn none, GPT none, 9437184000 bytes; found: serial D0, wwn none, GPT none, 16777216000 bytes with sectors of 512)"
        );
        assert_eq!(reasons, [expected], "{waiver:?}");
        empty(&mut inventory.disks[2], "D0");
        inventory.disks[2].signatures.clear();
        let plan = reinstall(&layout, &inventory, InstallClaim { waiver, ..claim() }).unwrap();
        assert_eq!(plan.warnings, [ANOTHER], "{waiver:?}");
    }
}

#[test]
fn refuses_hints_that_select_another_disk_than_recorded() {
    let cases: [Case; 3] = [
        (
            "a smaller one was added",
            |inventory, _| {
                let mut new = disk("sde", 3000);
                (new.rotational, new.blank, new.serial) = (true, true, "E0".to_owned());
                inventory.disks.push(new);
            },
            "disks[2].device: /dev/sde (selected by the hints of scratch) is the disk with serial E0 (3.15 GB) now. When the machine was installed, scratch was the disk with serial C0 (9.44 GB), which is /dev/sdc now. The hints in the layout no longer match the same disks. Restore the previous set of disks, or remove the disk that was added",
        ),
        (
            "the recorded one rotates no more, behind another controller",
            |inventory, _| inventory.disks[2].rotational = false,
            "disks[2].device: /dev/sdd (selected by the hints of scratch) is the disk with serial D0 (16.8 GB) now. When the machine was installed, scratch was the disk with serial C0 (9.44 GB), which is /dev/sdc now. The hints in the layout no longer match the same disks. Restore the previous set of disks, or remove the disk that was added",
        ),
        (
            "no disk rotates",
            |inventory, _| inventory.disks[2..].iter_mut().for_each(|disk| disk.rotational = false),
            "disks[2].device: scratch is absent now. When the machine was installed, scratch was the disk with serial C0 (9.44 GB), which is /dev/sdc now. The hints in the layout no longer match the same disks. Restore the previous set of disks, or remove the disk that was added",
        ),
    ];
    for (name, change, expected) in cases {
        for keep in [false, true] {
            let (mut layout, mut inventory) = hinted();
            layout.disks[2].wipeonreinstall = !keep;
            change(&mut inventory, &mut claim());
            let reasons = reasons(reinstall(&layout, &inventory, claim()));
            assert!(reasons.iter().any(|reason| reason == expected), "{name}, kept: {keep}: {reasons:#?}");
        }
    }
}

/// If the hints of a preserved disk now select another disk, the plan only warns, because the disk is not wiped. The
/// content of the disk must match the layout.
#[test]
fn warns_about_another_disk_for_preserved_hints() {
    let (mut layout, mut inventory) = hinted();
    layout.disks[2].wipeonreinstall = false;
    unplug(&mut inventory, "sdc");
    let reasons = reasons(reinstall(&layout, &inventory, claim()));
    assert!(reasons[0].contains("must be preserved, and must contain xfs \"scratch\""), "{reasons:?}");
    inventory.disks[2].signatures[0].label = "scratch".to_owned();
    let plan = reinstall(&layout, &inventory, claim()).unwrap();
    assert_eq!((plan.warnings.as_slice(), plan.disks[2].verdict), (&[ANOTHER.to_owned()][..], DiskVerdict::Keep));
}
