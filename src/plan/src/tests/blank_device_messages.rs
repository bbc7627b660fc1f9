//! Tests that messages call a device "blank" only if it is proven to be blank, because operators may erase such
//! devices.

use super::property_counts::PropertyCounts;
use super::random_layouts_and_machines::{any_layout, any_machine};
use super::*;
use crate::content_descriptions::describe_contents;
use proptest::prelude::*;

fn signature(kind: &str) -> DeviceSignature {
    DeviceSignature { kind: kind.to_owned(), ..DeviceSignature::default() }
}

fn part(number: u32, signatures: &[&str], blank: bool) -> inventory::DiskPartition {
    let signatures = signatures.iter().map(|kind| signature(kind)).collect();
    inventory::DiskPartition {
        number,
        device: format!("/dev/sda{number}").into(),
        signatures,
        blank,
        ..Default::default()
    }
}

#[test]
fn only_proven_blank_disks_are_called_blank() {
    let table = |kind: &str, partitions: Vec<inventory::DiskPartition>| {
        Some(DiskTable { kind: kind.to_owned(), guid: None, partitions })
    };
    let extended = inventory::DiskPartition { kind: "0x5".to_owned(), ..part(2, &[], false) };
    for (table, signatures, blank, unreadable, expected) in [
        (None, &[][..], true, None, "blank"),
        (None, &[], false, None, "data of no known kind"),
        (None, &["ext4"], false, None, "ext4"),
        (None, &[], false, Some("Input/output error"), "partly unreadable: Input/output error"),
        (table("gpt", vec![]), &[], false, None, "GPT 0 partitions"),
        (
            table("gpt", vec![part(1, &["vfat"], false), part(2, &[], true)]),
            &[],
            false,
            None,
            "GPT 2 partitions · vfat",
        ),
        (
            table("gpt", vec![part(1, &[], false), part(2, &["ext4"], false), part(3, &[], false)]),
            &[],
            false,
            None,
            "GPT 3 partitions · ext4 · data of no known kind on sda1, sda3",
        ),
        (table("dos", vec![part(1, &[], true), extended]), &[], false, None, "DOS 2 partitions"),
    ] {
        let signatures = signatures.iter().map(|kind| signature(kind)).collect();
        let unreadable = unreadable.map(str::to_owned);
        let disk = inventory::InventoryDisk { table, signatures, blank, unreadable, ..disk("sda", 100) };
        assert_eq!(describe_contents(&disk), expected);
    }
}

/// Sets the `blank` flag of every device without content to `said`.
fn flagged(mut machine: Inventory, said: bool) -> Inventory {
    let flag = |table: &mut Option<DiskTable>| {
        let partitions = table.iter_mut().flat_map(|table| &mut table.partitions);
        partitions.for_each(|part| part.blank = said && part.signatures.is_empty());
    };
    for disk in &mut machine.disks {
        disk.blank = said && disk.table.is_none() && disk.signatures.is_empty();
        flag(&mut disk.table);
    }
    for device in &mut machine.stacked {
        device.blank = said && device.table.is_none() && device.signatures.is_empty();
        flag(&mut device.table);
    }
    machine
}

fn printed(layout: &Layout, machine: &Inventory, mode: InstallMode) -> (String, Vec<DiskPlan>) {
    match make(layout, machine, mode) {
        Ok(plan) => (plan.to_string(), plan.disks),
        Err(refusal) => (refusal.to_string(), refusal.disks),
    }
}

#[test]
fn no_plan_calls_an_unproven_disk_blank() {
    let judged = PropertyCounts::new("no_plan_calls_an_unproven_disk_blank");
    proptest!(ProptestConfig::with_cases(64), |(
        layout in any_layout(),
        machine in any_machine(),
        install in any::<bool>(),
    )| {
        judged.case();
        let mode = if install { InstallMode::Install } else { InstallMode::Reinstall };
        let (said, _) = printed(&layout, &flagged(machine.clone(), false), mode);
        prop_assert!(!said.contains("blank"), "{said}");
        let proven = flagged(machine, true);
        let (_, disks) = printed(&layout, &proven, mode);
        judged.note("machines with a blank disk", proven.disks.iter().any(|disk| disk.blank));
        judged.note("machines with a disk that is not blank", proven.disks.iter().any(|disk| !disk.blank));
        prop_assert_eq!(proven.disks.len(), disks.len());
        for (disk, plan) in proven.disks.iter().zip(&disks) {
            prop_assert_eq!(plan.now.contains("blank"), disk.blank);
            prop_assert_eq!(plan.found.blank, disk.blank);
        }
    });
    judged.assert_shares(&[("machines with a blank disk", 1), ("machines with a disk that is not blank", 1)]);
}
