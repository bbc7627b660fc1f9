//! Comparison of a layout with disk sizes: its results equal those of the plan for the same disks.

use super::*;
use crate::disk_capacity::find_capacity_problems;
use proptest::prelude::*;

/// Returns the problems of the plan with disks that are missing or too small for their partitions.
fn refused_by_plan(layout: &Layout, inventory: &Inventory) -> Vec<String> {
    let refused = make(layout, inventory, InstallMode::Install).err();
    let all = refused.into_iter().flat_map(|refused| refused.problems).map(|problem| problem.to_string());
    all.filter(|reason| reason.contains("with 1 MiB at each end")).collect()
}

fn compared(layout: &Layout, inventory: &Inventory) -> Vec<String> {
    find_capacity_problems(layout, inventory).iter().map(ToString::to_string).collect()
}

/// Returns a layout with partitions of these sizes on one disk, and that disk.
fn of_sizes(sizes: &[u64], size_bytes: u64, sector_bytes: u32) -> (Layout, Inventory) {
    let partitions = (1..).zip(sizes).map(|(number, mib)| partition(number, "p", *mib, PartitionType::Linux));
    let mut layout = self::layout();
    layout.disks.truncate(1);
    layout.disks[0].partitions = partitions.collect();
    let last = layout.disks[0].device.partition_path(u32::try_from(sizes.len()).unwrap());
    layout.filesystems = vec![filesystem("/", last.as_str(), FilesystemFormat::Ext4, "root")];
    let mut inventory = machine();
    inventory.disks.retain(|disk| disk.has_path(layout.disks[0].device.as_str()));
    inventory.disks[0].size_bytes = size_bytes;
    inventory.disks[0].sector_bytes = sector_bytes;
    (layout, inventory)
}

#[test]
fn capacity_check_reserves_space_for_both_partition_tables() {
    let backup = 128 * 128 + 512;
    for (sizes, size_bytes, fits) in [
        (&[99][..], 101 * MIB, true),
        (&[99], 100 * MIB, false),
        (&[99], 100 * MIB + backup, true),
        (&[99], 100 * MIB + backup - 1, false),
        (&[98, 0], 100 * MIB + backup, true),
        (&[99, 0], 100 * MIB + backup, false),
        (&[u64::MAX, 0], 100 * MIB, false),
    ] {
        let (layout, inventory) = of_sizes(sizes, size_bytes, 512);
        let problems = compared(&layout, &inventory);
        assert_eq!(problems.is_empty(), fits, "{sizes:?} on {size_bytes}: {problems:?}");
    }
    let (layout, mut inventory) = of_sizes(&[99], 101 * MIB, 512);
    inventory.disks.clear();
    let problems = compared(&layout, &inventory);
    assert!(problems[0].contains("does not exist on given hardware"), "{problems:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn capacity_check_refuses_the_same_disks_as_the_plan(
        fixed in prop::collection::vec(16u64..3000, 1..5),
        with_rest: bool,
        beyond in prop_oneof![-4 * (1i64 << 20)..4 << 20, 128 * 128 + 510..128 * 128 + 515i64, 128 * 128 + 4094..128 * 128 + 4099i64],
        in_sectors_of_4096: bool,
    ) {
        let sizes: Vec<u64> = fixed.iter().copied().chain(with_rest.then_some(0)).collect();
        let sum: u64 = fixed.iter().sum();
        let sector_bytes = if in_sectors_of_4096 { 4096 } else { 512 };
        let size_bytes = ((sum + 1) * MIB).saturating_add_signed(beyond);
        let (layout, inventory) = of_sizes(&sizes, size_bytes, sector_bytes);
        prop_assert_eq!(compared(&layout, &inventory), refused_by_plan(&layout, &inventory));
    }
}
