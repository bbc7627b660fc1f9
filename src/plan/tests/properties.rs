//! What must hold for every layout on every machine.

use super::*;
use proptest::prelude::*;

prop_compose! {
    fn any_disk(name: &'static str)(
        size_mib in 0u64..20_000,
        sector_bytes in prop_oneof![Just(512u32), Just(4096)],
        read_only in prop::bool::weighted(0.05),
        held in prop::bool::weighted(0.05),
        partitions in prop::collection::vec((1u32..9, 0u64..20_000, 0u64..20_000), 0..3),
    ) -> inventory::Disk {
        let partitions = partitions.into_iter().map(|(number, start_mib, mib)| inventory::Partition {
            number,
            device: partition_device(&format!("/dev/{name}"), number),
            start_bytes: start_mib * MIB,
            size_bytes: mib * MIB,
            ..inventory::Partition::default()
        }).collect();
        inventory::Disk {
            sector_bytes,
            read_only,
            uses: if held { vec![Use::Swap] } else { Vec::new() },
            table: Some(Table { kind: "gpt".to_owned(), guid: None, partitions }),
            ..disk(name, size_mib)
        }
    }
}

prop_compose! {
    fn any_layout_disk(name: &'static str)(
        wipeonreinstall in any::<bool>(),
        sizes in prop::collection::vec(0u64..4000, 0..4),
    ) -> Disk {
        let partitions = sizes.iter().enumerate().map(|(index, &size_mib)| {
            // Only the last may be of size 0.
            let size_mib = if index + 1 < sizes.len() { size_mib.max(1) } else { size_mib };
            partition(index as u32 + 1, "p", size_mib, PartitionKind::Linux)
        }).collect();
        Disk { device: format!("/dev/{name}"), hints: Default::default(), partitions, wipeonreinstall }
    }
}

fn any_layout() -> impl Strategy<Value = Layout> {
    let disks = (any_layout_disk("sda"), any_layout_disk("sdb"), any_layout_disk("sdc"), 1usize..4);
    disks.prop_map(|(a, b, c, count)| {
        let disks: Vec<Disk> = [a, b, c].into_iter().take(count).collect();
        let devices = disks.iter().flat_map(|disk| {
            let partitions = disk.partitions.iter().map(|partition| partition_device(&disk.device, partition.number));
            if disk.partitions.is_empty() { vec![disk.device.clone()] } else { partitions.collect() }
        });
        let filesystems = devices.enumerate().map(|(index, device)| {
            let path = if index == 0 { "/".to_owned() } else { format!("/data{index}") };
            filesystem(&path, &device, Format::Ext4, "")
        });
        Layout { filesystems: filesystems.collect(), disks, ..Layout::default() }
    })
}

fn any_machine() -> impl Strategy<Value = Inventory> {
    (any_disk("sda"), any_disk("sdb"), any_disk("sdc"), any_disk("sdd"))
        .prop_map(|(a, b, c, d)| Inventory { disks: vec![a, b, c, d], ..Inventory::default() })
}

/// Devices that an operation writes destructively.
fn destroyed(operation: &Operation) -> Option<&str> {
    match operation {
        Operation::WipeDisk(WipeDisk { device, .. }) => Some(device),
        Operation::WriteTable(table) => Some(&table.device),
        Operation::MakeFilesystem(make) => Some(&make.device),
        _ => None,
    }
}

fn assert_sound(plan: &Plan, inventory: &Inventory) {
    let steps = plan.steps.iter().enumerate();
    for (index, step) in steps {
        for operation in &step.operations {
            if let Some(device) = destroyed(operation) {
                let disk = plan.disks.iter().find(|disk| device.starts_with(&disk.device)).unwrap();
                assert_eq!(disk.verdict, Verdict::Wipe, "{device}");
                assert!(index >= plan.point_of_no_return);
            }
            match operation {
                Operation::WipeDisk(WipeDisk { device, zero, .. }) => {
                    let size_bytes = inventory.disk(device).unwrap().size_bytes;
                    assert!(zero.iter().all(|range| range.start + range.length <= size_bytes));
                    assert!(zero.windows(2).all(|pair| pair[0].start + pair[0].length < pair[1].start));
                }
                Operation::WriteTable(table) => assert_table(table, inventory.disk(&table.device).unwrap()),
                _ => {}
            }
        }
    }
    let mounts: Vec<&str> = plan.fstab.iter().map(|entry| entry.path.as_str()).collect();
    for (index, path) in mounts.iter().enumerate() {
        assert!(mounts[..index].iter().all(|earlier| !earlier.starts_with(&format!("{path}/"))));
    }
}

fn assert_table(table: &PartitionTable, disk: &inventory::Disk) {
    let sector = u64::from(disk.sector_bytes);
    assert_eq!(table.sector_bytes, disk.sector_bytes);
    let mut next = MIB / sector;
    let mut partitions: Vec<&NewPartition> = table.partitions.iter().collect();
    partitions.sort_by_key(|partition| partition.number);
    for partition in partitions {
        assert!(partition.first_lba >= next && partition.first_lba <= partition.last_lba);
        assert_eq!(partition.first_lba * sector % MIB, 0);
        next = partition.last_lba + 1;
    }
    // Backup entries and header.
    assert!(next * sector + 16384 + sector <= disk.size_bytes);
}

proptest! {
    #[test]
    fn no_plan_destroys_what_is_kept_or_foreign(layout in any_layout(), machine in any_machine(), again in any::<bool>()) {
        let mode = if again { Mode::Reinstall } else { Mode::Install };
        if let Ok(plan) = make(&layout, &machine, mode) {
            assert_sound(&plan, &machine);
            prop_assert_eq!(plan.to_string().matches("point of no return").count(), 1);
        }
    }

    #[test]
    fn a_reinstall_over_an_install_keeps_and_a_second_one_too(layout in any_layout(), machine in any_machine()) {
        let Ok(first) = make(&layout, &machine, Mode::Install) else { return Ok(()) };
        let installed = after(&first, machine);
        match make(&layout, &installed, Mode::Reinstall) {
            Ok(second) => {
                assert_sound(&second, &installed);
                let reinstalled = after(&second, installed.clone());
                for (disk, plan) in installed.disks.iter().zip(&second.disks) {
                    if plan.verdict != Verdict::Wipe {
                        prop_assert_eq!(Some(disk), reinstalled.disk(&disk.device));
                    }
                }
                prop_assert!(make(&layout, &reinstalled, Mode::Reinstall).is_ok());
            }
            Err(refusal) => prop_assert!(layout.disks.iter().all(|disk| !disk.wipeonreinstall), "{}", refusal),
        }
    }
}
