//! A preserved or unlisted device that appears blank is read completely first, because samples prove nothing.

use super::installation_identity::{claim, forget_marker, marked, marker, reinstall};
use super::*;
use operations::StageName;

/// Returns a machine whose preserved partition sdb1 appears blank.
fn emptied() -> Inventory {
    let mut inventory = marked();
    let part = &mut inventory.disks[1].table.as_mut().unwrap().partitions[0];
    part.signatures.clear();
    part.blank = true;
    inventory
}

fn proof(plan: &Plan) -> Option<String> {
    let text = plan.to_string();
    text.lines().find(|line| line.contains("read all of")).map(|line| line.trim().to_owned())
}

#[test]
fn preserved_partition_is_read_completely_before_mkfs() {
    let plan = reinstall(&layout(), &emptied(), claim()).unwrap();
    let proof = proof(&plan).unwrap_or_else(|| panic!("{plan}"));
    assert!(proof.contains("sdb1") && proof.contains("zero"), "{plan}");
    let stage = plan.stages.iter().position(|stage| stage.name == StageName::StorageLock).unwrap();
    assert!(stage < plan.point_of_no_return);
    assert!(plan.warnings.iter().any(|said| said.contains("/dev/sdb1") && said.contains("samples")), "{plan}");
}

#[test]
fn discarded_disk_is_not_read() {
    let given = InstallClaim { give_up: vec!["B0".to_owned()], ..claim() };
    assert_eq!(proof(&reinstall(&layout(), &emptied(), given).unwrap()), None);
}

#[test]
fn preserved_or_wiped_content_is_not_read() {
    assert_eq!(proof(&reinstall(&layout(), &marked(), claim()).unwrap()), None);
    assert_eq!(proof(&make(&layout(), &machine(), InstallMode::Install).unwrap()), None);
}

/// A whole disk is not read if the record proves that it is not the disk of the installation.
#[test]
fn whole_disk_is_read_unless_proven_to_be_new() {
    let replaced = |serial: &str, size_mib: u64, forgotten: bool| {
        let (mut inventory, mut claim) = (marked(), claim());
        let blank = inventory::InventoryDisk { serial: serial.to_owned(), blank: true, ..disk("sdb", size_mib) };
        inventory.disks[1] = blank;
        if forgotten {
            forget_marker(&mut inventory, &mut claim);
            (claim.installed, claim.waiver, claim.order) = (None, Some(MarkerWaiver::Operator), None);
        }
        proof(&reinstall(&layout(), &inventory, claim).unwrap_or_else(|refusal| panic!("{refusal}")))
    };
    assert_eq!(replaced("NEW", 8_000, false), None);
    // No property distinguishes the disk from the disk of the installation.
    assert!(replaced("", 8_000, false).is_some_and(|proof| proof.contains("sdb")));
    // A different size is not a proof: a virtual disk may have been enlarged.
    assert!(replaced("", 8_001, false).is_some_and(|proof| proof.contains("sdb")));
    // Without a record, it is unknown whether the disk was replaced.
    assert!(replaced("NEW", 8_000, true).is_some_and(|proof| proof.contains("sdb")));
}

/// Case: serial number of the disk that has replaced the wiped disk sda, further changes, and whether the disk is read.
type WipedCase = (&'static str, &'static str, fn(&mut Layout, &mut Inventory, &mut InstallClaim), bool);

/// Changes the machine and its records as if an attempt had been started on the disks.
fn start_attempt(_: &mut Layout, inventory: &mut Inventory, claim: &mut InstallClaim) {
    inventory.disks[0].by_path = "/dev/disk/by-path/pci-1".to_owned();
    let mut begun_on = marker(inventory).disks;
    (begun_on[0].by_path, begun_on[0].sector_bytes) = (inventory.disks[0].by_path.clone(), 512);
    (claim.begun_on, claim.waiver) = (begun_on, Some(MarkerWaiver::Begun));
}

/// The disk that will be wiped is not proven to be the recorded one, and all of its samples are zero.
#[test]
fn wiped_disk_is_read_unless_its_identity_is_known() {
    let cases: [WipedCase; 7] = [
        ("replacement", "NEW", |_, _, _| {}, false),
        ("disk without an identifier", "", |_, _, _| {}, true),
        (
            "another recorded disk has no identifier",
            "NEW",
            |_, _, claim| claim.installed.as_mut().unwrap().disks[1].serial.clear(),
            true,
        ),
        ("no record of any disk", "NEW", |_, _, claim| claim.installed = None, true),
        (
            "no record, but the disk is discarded",
            "NEW",
            |_, _, claim| {
                claim.installed = None;
                claim.give_up = vec!["NEW".to_owned()];
            },
            false,
        ),
        (
            "no record, but the layout identifies the disk",
            "NEW",
            |layout, _, claim| {
                claim.installed = None;
                layout.disks[0].hints = [("serial".to_owned(), "NEW".to_owned())].into();
            },
            false,
        ),
        ("disk of an interrupted attempt", "", start_attempt, false),
    ];
    for (name, serial, change, is_read) in cases {
        let (mut layout, mut inventory, mut claim) = (layout(), marked(), claim());
        forget_marker(&mut inventory, &mut claim);
        claim.waiver = Some(MarkerWaiver::Operator);
        inventory.disks[0] = inventory::InventoryDisk { serial: serial.to_owned(), blank: true, ..disk("sda", 20_000) };
        change(&mut layout, &mut inventory, &mut claim);
        let plan = reinstall(&layout, &inventory, claim).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        assert_eq!(plan.disks[0].verdict, DiskVerdict::Wipe, "{name}");
        let proof = proof(&plan);
        assert_eq!(proof.as_ref().is_some_and(|proof| proof.contains("sda")), is_read, "{name}: {proof:?}");
    }
}

/// The disk has a table that an interrupted run wrote. Its partitions, and the space between them, are read.
#[test]
fn reads_disk_with_a_table_except_the_table() {
    let mut layout = arrays_and_groups::layout();
    let part = |number| partition(number, "", if number == 1 { 4000 } else { 0 }, PartitionType::LinuxRaid);
    for index in 2..5 {
        layout.disks[index].partitions = vec![part(1), part(2)];
    }
    layout.raid[2].devices = ["/dev/sdc2", "/dev/sdd2", "/dev/sde2"].map(Into::into).to_vec();
    layout.raid[2].spares = 0;
    let mut inventory =
        after(&make(&layout, &arrays_and_groups::five(), InstallMode::Install).unwrap(), arrays_and_groups::five());
    inventory.arrays.retain(|array| array.name != "data");
    inventory.groups.clear();
    inventory.stacked.retain(|stacked| {
        !stacked
            .below
            .iter()
            .any(|name| name.as_str().starts_with("sdc") || name.starts_with("md125") || name.starts_with("md127"))
    });
    let gone: Vec<_> = inventory.stacked.iter().map(|stacked| stacked.name.clone()).collect();
    for disk in &mut inventory.disks[2..5] {
        for part in &mut disk.table.as_mut().unwrap().partitions {
            part.signatures.clear();
            part.uses.retain(|usage| matches!(usage, DeviceUse::Holder(holder) if gone.contains(holder)));
            part.blank = true;
        }
    }
    let plan = make(&layout, &inventory, InstallMode::Reinstall).unwrap_or_else(|refusal| panic!("{refusal}"));
    let proof = proof(&plan).unwrap_or_else(|| panic!("{plan}"));
    assert!(["sdc", "sdd", "sde"].iter().all(|disk| proof.contains(disk)), "{proof}");
}

/// The serial number or WWN proves that the blank disk is the recorded one, even if its size, sector size or model
/// differs: a virtual disk was resized, or a failing disk reports other values.
#[test]
fn recorded_disk_that_reads_as_blank_is_refused_regardless_of_its_shape() {
    let blanked = |change: fn(&mut inventory::InventoryDisk)| {
        let mut inventory = marked();
        inventory.disks[1].wwn = "0x5000c500a1b2c3d4".to_owned();
        inventory.disks[1].model = "VIRTUAL-DISK".to_owned();
        let mut marker = super::installation_identity::marker(&inventory);
        marker.disks[1].model = "VIRTUAL-DISK".to_owned();
        marker.disks[1].sector_bytes = 512;
        inventory.filesystems[0].marker = Some(marker);
        let disk = &mut inventory.disks[1];
        (disk.table, disk.blank) = (None, true);
        change(disk);
        inventory
    };
    type Change = fn(&mut inventory::InventoryDisk);
    let cases: [(&str, Change, bool); 6] = [
        ("size", |disk| disk.size_bytes *= 2, false),
        ("sector size", |disk| disk.sector_bytes = 4096, false),
        ("model", |disk| disk.model = "INTERNAL-TEST".to_owned(), false),
        ("only the WWN is known", |disk| (disk.serial, disk.model) = (String::new(), "X".to_owned()), false),
        ("another serial number", |disk| disk.serial = "N1".to_owned(), true),
        ("another WWN", |disk| disk.wwn = "0x5000c500a1b2c3d5".to_owned(), true),
    ];
    for (case, change, is_planned) in cases {
        let inventory = blanked(change);
        let plan = reinstall(&layout(), &inventory, claim());
        assert_eq!(plan.is_ok(), is_planned, "{case}: {plan:?}");
        match plan {
            Ok(plan) => assert_eq!(proof(&plan), None, "{case}"),
            Err(refusal) => {
                let said = &refusal.problems[0].message;
                assert!(said.contains("this disk must be preserved, but reads as blank"), "{case}: {said}");
                let given = InstallClaim { give_up: vec!["B0".into(), "0x5000c500a1b2c3d4".into()], ..claim() };
                assert!(reinstall(&layout(), &inventory, given).is_ok(), "{case}");
            }
        }
    }
}
