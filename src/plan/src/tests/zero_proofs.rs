//! A preserved or unlisted device that appears blank is read completely first, because samples prove nothing.

use super::installation_identity::{claim, forget_marker, marked, reinstall};
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
    let replaced = |serial: &str, forgotten: bool| {
        let (mut inventory, mut claim) = (marked(), claim());
        let blank = inventory::InventoryDisk { serial: serial.to_owned(), blank: true, ..disk("sdb", 8_000) };
        inventory.disks[1] = blank;
        if forgotten {
            forget_marker(&mut inventory, &mut claim);
            (claim.installed, claim.waiver) = (None, Some(MarkerWaiver::Operator));
        }
        proof(&reinstall(&layout(), &inventory, claim).unwrap_or_else(|refusal| panic!("{refusal}")))
    };
    assert_eq!(replaced("NEW", false), None);
    // No property distinguishes the disk from the disk of the installation.
    assert!(replaced("", false).is_some_and(|proof| proof.contains("sdb")));
    // Without a record, it is unknown whether the disk was replaced.
    assert!(replaced("NEW", true).is_some_and(|proof| proof.contains("sdb")));
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
