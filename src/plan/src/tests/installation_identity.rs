//! Identification of the installation on the disks, and of the disks of the installation.

use super::blank_and_failed_disks::unplug;
use super::*;
use model::install_marker::{InstallMarker, RecordedDisk};
use model::inventory::FilesystemContents;

mod hinted_disks;

pub(super) fn marker(inventory: &Inventory) -> InstallMarker {
    let disks = inventory.disks.iter().map(|disk| RecordedDisk {
        device: disk.device.to_string(),
        serial: disk.serial.clone(),
        wwn: disk.wwn.clone(),
        size_bytes: disk.size_bytes,
        guid: disk.table.as_ref().and_then(|table| table.guid).map(|guid| guid.to_string()),
        ..RecordedDisk::default()
    });
    InstallMarker {
        machine: "m-1".to_owned(),
        allocation: "a-1".to_owned(),
        time: "2026-11-01T00:00:00Z".to_owned(),
        disks: disks.collect(),
        ..InstallMarker::default()
    }
}

pub(super) fn claim() -> InstallClaim {
    InstallClaim {
        machine: "m-1".to_owned(),
        allocation: "a-1".to_owned(),
        order: Some("o-1".to_owned()),
        ..InstallClaim::default()
    }
}

pub(super) fn reinstall(layout: &Layout, inventory: &Inventory, claim: InstallClaim) -> Result<Plan, Box<PlanRefusal>> {
    planned(layout, inventory, InstallMode::Reinstall, claim)
}

/// Makes the plan of a first installation, which has no order.
pub(super) fn install(layout: &Layout, inventory: &Inventory, claim: InstallClaim) -> Result<Plan, Box<PlanRefusal>> {
    planned(layout, inventory, InstallMode::Install, InstallClaim { order: None, ..claim })
}

pub(super) fn planned(
    layout: &Layout,
    inventory: &Inventory,
    mode: InstallMode,
    claim: InstallClaim,
) -> Result<Plan, Box<PlanRefusal>> {
    let request = PlanRequest {
        mode,
        steps: StepList::default(),
        subject: subject(),
        assigned: Default::default(),
        claim: Some(claim),
    };
    super::super::make_plan(layout, inventory, request, &mut counting())
}

/// Returns a machine with the system and its marker on sda, and data on sdb. All disks have serial numbers.
pub(super) fn marked() -> Inventory {
    let mut inventory = installed();
    for (disk, serial) in inventory.disks.iter_mut().zip(["A0", "B0", "C0"]) {
        disk.serial = serial.to_owned();
    }
    let marker = Some(marker(&inventory));
    inventory.filesystems.push(FilesystemContents {
        device: "/dev/sda2".into(),
        marker,
        ..FilesystemContents::default()
    });
    inventory
}

/// Moves the marker from the inventory to the records of the control plane, as if the disk with the marker was lost.
pub(super) fn forget_marker(inventory: &mut Inventory, claim: &mut InstallClaim) {
    claim.installed = inventory.filesystems.pop().and_then(|filesystem| filesystem.marker);
}

pub(super) fn empty(disk: &mut inventory::InventoryDisk, serial: &str) {
    disk.serial = serial.to_owned();
    disk.table = None;
    disk.blank = true;
}

#[test]
fn missing_disk_is_described_by_its_record() {
    let (mut inventory, mut remembered) = (marked(), claim());
    unplug(&mut inventory, "sdb");
    let expected = "disks[1].device: device:/dev/sdb does not exist on given hardware: its disks are /dev/sda (21.0 GB), /dev/sdc (9.44 GB); at installation, this device was the disk with serial B0 (8.39 GB); no other device has a copy of the data on /dev/sdb1";
    assert_eq!(reasons(reinstall(&layout(), &inventory, claim())), [expected]);
    // The result is the same if the record is only in the control plane.
    forget_marker(&mut inventory, &mut remembered);
    remembered.waiver = Some(MarkerWaiver::Operator);
    assert_eq!(reasons(reinstall(&layout(), &inventory, remembered)), [expected]);
}

#[test]
fn refusal_ends_with_remedies_for_its_mode() {
    let mut inventory = marked();
    unplug(&mut inventory, "sda");
    let install = install(&layout(), &inventory, InstallClaim { allocation: "a-2".to_owned(), ..claim() }).unwrap_err();
    assert!(install.to_string().ends_with("Correct the layout, or the disks, and try again."), "{install}");
    let reinstall = reinstall(&layout(), &inventory, claim()).unwrap_err().to_string();
    let last = reinstall.lines().last().unwrap();
    assert!(last.contains("the layout that was stored when the machine was installed"), "{last}");
    assert!(last.contains("--change-promise") && !last.contains("Correct the layout, or"), "{last}");
}

type Case = (&'static str, fn(&mut Inventory, &mut InstallClaim), &'static str);

#[test]
fn refuses_reinstall_of_other_disks_and_reports_both_sides() {
    let cases: [Case; 11] = [
        (
            "no marker",
            forget_marker,
            "filesystems[3]: / will be recreated on sda, but no filesystem there has the marker of machine m-1, allocation a-1 (/etc/metal/drophammer.json): no filesystem of the machine contains a marker. Attach the disk with the installation; or, if that disk was replaced, order the reinstall again with --without-marker",
        ),
        (
            "marker on another disk",
            |inventory, _| inventory.filesystems[0].device = "/dev/sdb1".into(),
            "filesystems[3]: / will be recreated on sda, but this installation is on other disks of the machine: /dev/sdb1 on sdb. The names or hints in the layout now match other disks than at installation. Put the disks back in their slots, or reboot so that they get their names back",
        ),
        (
            "another allocation",
            |_, claim| claim.allocation = "a-2".to_owned(),
            "disks: /dev/sda2 on sda, which will be wiped, contains the installation of machine m-1, allocation a-1, \
            but this plan is for the reinstall of machine m-1, allocation a-2: attach the disks of this machine; if \
            that installation is not needed, erase it",
        ),
        (
            "another machine, and the marker waived",
            |_, claim| {
                claim.machine = "m-2".to_owned();
                claim.waiver = Some(MarkerWaiver::Operator);
            },
            "disks: /dev/sda2 on sda, which will be wiped, contains the installation of machine m-1, allocation a-1, \
            but this plan is for the reinstall of machine m-2, allocation a-1: attach the disks of this machine; if \
            that installation is not needed, erase it",
        ),
        (
            "names swapped",
            |inventory, _| {
                inventory.disks[0].serial = "B0".to_owned();
                inventory.disks[1].serial = "A0".to_owned();
            },
            "disks[0].device: /dev/sda is the disk with serial B0 (21.0 GB) now. When the machine was installed, that disk was /dev/sdb, and /dev/sda was the disk with serial A0 (21.0 GB), which is /dev/sdb now. The names in the layout no longer match the same disks. Put the disks back in their slots, or reboot so that they get their names back",
        ),
        (
            "names swapped, marker gone",
            |inventory, claim| {
                forget_marker(inventory, claim);
                claim.waiver = Some(MarkerWaiver::Begun);
                inventory.disks[0].serial = "C0".to_owned();
                inventory.disks[2].serial = "A0".to_owned();
            },
            "disks[0].device: /dev/sda is the disk with serial C0 (21.0 GB) now. When the machine was installed, that disk was /dev/sdc, and /dev/sda was the disk with serial A0 (21.0 GB), which is /dev/sdc now. The names in the layout no longer match the same disks. Put the disks back in their slots, or reboot so that they get their names back",
        ),
        (
            "the kept disk under another name",
            |inventory, _| {
                let gone = inventory.disks.remove(1);
                inventory.disks[1].serial = gone.serial;
            },
            "disks[1].device: /dev/sdb is absent now. When the machine was installed, /dev/sdb was the disk with serial B0 (8.39 GB), which is /dev/sdc now. The names in the layout no longer match the same disks. Put the disks back in their slots, or reboot so that they get their names back",
        ),
        (
            "another disk with data",
            |inventory, claim| {
                forget_marker(inventory, claim);
                claim.waiver = Some(MarkerWaiver::Operator);
                inventory.disks[0].serial = "Z9".to_owned();
            },
            "disks[0].device: /dev/sda is the disk with serial Z9 (21.0 GB), but when the machine was installed it was the disk with serial A0 (21.0 GB), which is now absent; /dev/sda will be wiped and is not blank: it contains GPT 3 partitions · vfat \"efi\" · ext4 \"root\" · swap. Attach the old disk, erase the new disk, or discard its data with --give-up Z9 (recorded: serial A0, wwn none, GPT 00000001-0000-0000-0000-000000000001, 20971520000 bytes; found: serial Z9, wwn none, GPT 00000001-0000-0000-0000-000000000001, 20971520000 bytes with sectors of 512)",
        ),
        (
            "another disk with data of no known kind",
            |inventory, claim| {
                forget_marker(inventory, claim);
                claim.waiver = Some(MarkerWaiver::Operator);
                empty(&mut inventory.disks[0], "Z9");
                inventory.disks[0].blank = false;
            },
            "disks[0].device: /dev/sda is the disk with serial Z9 (21.0 GB), but when the machine was installed it was the disk with serial A0 (21.0 GB), which is now absent; /dev/sda will be wiped and is not blank: it contains data of no known kind. Attach the old disk, erase the new disk, or discard its data with --give-up Z9 (recorded: serial A0, wwn none, GPT 00000001-0000-0000-0000-000000000001, 20971520000 bytes; found: serial Z9, wwn none, GPT none, 20971520000 bytes with sectors of 512)",
        ),
        (
            "another disk than the one that an earlier attempt has begun on",
            |inventory, claim| {
                forget_marker(inventory, claim);
                claim.waiver = Some(MarkerWaiver::Begun);
                claim.begun_on = marker(inventory).disks;
                inventory.disks[0].serial = "Z9".to_owned();
            },
            "disks[0].device: /dev/sda is the disk with serial Z9 (21.0 GB), but when the machine was installed it was the disk with serial A0 (21.0 GB), which is now absent; /dev/sda will be wiped and is not blank: it contains GPT 3 partitions · vfat \"efi\" · ext4 \"root\" · swap. Attach the old disk, erase the new disk, or discard its data with --give-up Z9 (recorded: serial A0, wwn none, GPT 00000001-0000-0000-0000-000000000001, 20971520000 bytes; found: serial Z9, wwn none, GPT 00000001-0000-0000-0000-000000000001, 20971520000 bytes with sectors of 512)",
        ),
        (
            "replaced by a blank one, not waived",
            |inventory, claim| {
                forget_marker(inventory, claim);
                empty(&mut inventory.disks[0], "Z9");
            },
            "filesystems[3]: / will be recreated on sda, but no filesystem there has the marker of machine m-1, allocation a-1 (/etc/metal/drophammer.json): no filesystem of the machine contains a marker. Attach the disk with the installation; or, if that disk was replaced, order the reinstall again with --without-marker",
        ),
    ];
    for (name, change, expected) in cases {
        let (mut inventory, mut claim) = (marked(), claim());
        change(&mut inventory, &mut claim);
        let reasons = reasons(reinstall(&layout(), &inventory, claim));
        assert!(reasons.iter().any(|reason| reason == expected), "{name}: {reasons:#?}");
    }
}

#[test]
fn accepts_reinstall_of_recorded_disks_and_warns_about_changes() {
    let cases: [Case; 7] = [
        ("as installed", |_, _| {}, ""),
        ("disks cannot be distinguished", |inventory, _| inventory.disks[0].serial.clear(), ""),
        (
            "the first attempt had begun",
            |inventory, claim| {
                forget_marker(inventory, claim);
                claim.waiver = Some(MarkerWaiver::Begun);
            },
            "found no marker of this installation on sda; an earlier attempt has started to wipe the disks",
        ),
        (
            "replaced by a blank one, waived",
            |inventory, claim| {
                forget_marker(inventory, claim);
                claim.waiver = Some(MarkerWaiver::Operator);
                empty(&mut inventory.disks[0], "Z9");
            },
            "found no marker of this installation on sda; the operator permits the reinstall without the marker|/dev/sda is the disk with serial Z9 (21.0 GB), but when the machine was installed it was the disk with serial A0 (21.0 GB), which is now absent",
        ),
        (
            "a replaced one that has the marker, as a mirror does when the new disk was added",
            |inventory, _| inventory.disks[0].serial = "Z9".to_owned(),
            "/dev/sda is the disk with serial Z9 (21.0 GB), but when the machine was installed it was the disk with serial A0 (21.0 GB), which is now absent",
        ),
        (
            "a replaced one, made by the attempt that had begun",
            |inventory, claim| {
                forget_marker(inventory, claim);
                claim.waiver = Some(MarkerWaiver::Begun);
                inventory.disks[0].serial = "Z9".to_owned();
                claim.begun_on = marker(inventory).disks;
            },
            "found no marker of this installation on sda; an earlier attempt has started to wipe the disks",
        ),
        (
            "a foreign disk with somebody else's installation",
            |inventory, _| {
                let marker = Some(InstallMarker { machine: "m-9".to_owned(), ..InstallMarker::default() });
                let device = "/dev/sdc".into();
                inventory.filesystems.push(FilesystemContents { device, marker, ..FilesystemContents::default() });
            },
            "",
        ),
    ];
    for (name, change, expected) in cases {
        let (mut inventory, mut claim) = (marked(), claim());
        change(&mut inventory, &mut claim);
        let plan = reinstall(&layout(), &inventory, claim).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        assert_eq!(plan.warnings.join("|"), expected, "{name}");
    }
}

#[test]
fn offline_reinstall_requires_any_marker_on_inspected_filesystems() {
    let plan = make(&layout(), &installed(), InstallMode::Reinstall).unwrap();
    assert!(plan.warnings[0].starts_with("the inventory does not contain install markers"), "{plan:?}");
    let mut inventory = marked();
    assert_eq!(make(&layout(), &inventory, InstallMode::Reinstall).unwrap().warnings, [""; 0]);
    inventory.filesystems[0].marker = None;
    let reasons = reasons(make(&layout(), &inventory, InstallMode::Reinstall));
    assert!(reasons[0].contains("no filesystem there has the marker of an installation"), "{reasons:?}");
}

#[test]
fn installation_requires_no_marker() {
    let mut inventory = marked();
    inventory.filesystems[0].marker.as_mut().unwrap().allocation = "old".to_owned();
    let claim = Some(InstallClaim { order: None, ..claim() });
    let request = PlanRequest {
        mode: InstallMode::Install,
        steps: StepList::default(),
        subject: subject(),
        assigned: Default::default(),
        claim,
    };
    assert!(super::super::make_plan(&layout(), &inventory, request, &mut counting()).is_ok());
}

#[test]
fn printed_refusal_of_swapped_disks_matches_the_recorded_one() {
    let mut inventory = marked();
    inventory.disks[0].serial = "B0".to_owned();
    inventory.disks[1].serial = "A0".to_owned();
    assert_printed("reinstall-swapped-refused", &reinstall(&layout(), &inventory, claim()).unwrap_err());
}
