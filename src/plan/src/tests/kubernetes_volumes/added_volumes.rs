//! Volumes that are added to preserved objects. A volume that does not fit into its volume group or filesystem is
//! refused before anything is wiped.

use super::*;
use model::inventory::{FreeSpace, GroupAllocation};
use operations::{DeviceOp, Operation, RestoreOp, SessionOp, StageName};

const GIB: u64 = 1 << 30;

fn free(gib: u64, largest_gib: u64, is_allocatable: bool) -> FreeSpace {
    let physical = format!("pv-{gib}-{largest_gib}");
    FreeSpace { physical, is_allocatable, bytes: gib * GIB, largest_bytes: largest_gib * GIB }
}

fn allocation(policy: &str, max_volumes: u64, free: &[FreeSpace]) -> GroupAllocation {
    let free = free.to_vec();
    GroupAllocation { policy: policy.to_owned(), max_volumes, volumes: 2, read_only: false, free }
}

/// Makes the plan in which volumes of these sizes in GiB are added to a preserved group.
fn extended(allocation: GroupAllocation, sizes: &[u64]) -> Result<Plan, Box<PlanRefusal>> {
    let mut inventory = installed(&[]);
    inventory.groups[0].free_bytes = Some(20 * GIB);
    inventory.groups[0].allocation = Some(allocation);
    let volumes = sizes.iter().enumerate();
    let volumes: Vec<Value> = volumes
        .map(|(index, gib)| in_group(&format!("v{index}"), index as u8, "Filesystem", "csi", &format!("{gib}Gi")))
        .collect();
    planned(&layout(), &inventory, InstallMode::Reinstall, &volumes)
}

#[test]
fn refuses_group_that_lvm_would_not_extend() {
    let read_only = GroupAllocation { read_only: true, ..allocation("normal", 0, &[free(9, 9, true)]) };
    let cases = [
        (read_only, &[1][..], "is new in vg:csi, whose metadata is read-only"),
        (allocation("normal", 2, &[free(9, 9, true)]), &[1], "which has 2 volumes and a limit of 2"),
        (allocation("normal", 3, &[free(9, 9, true)]), &[1, 1], "which has 3 volumes and a limit of 3"),
        (
            allocation("normal", 0, &[free(1, 1, true), free(9, 9, false)]),
            &[2],
            "needs 2.15 GB in vg:csi, which has 1.07 GB free; 9.66 GB more are free on physical volumes that LVM may not allocate",
        ),
        (allocation("normal", 0, &[free(3, 3, true)]), &[2, 2], "needs 2.15 GB in vg:csi, which has 1.07 GB free"),
        (allocation("contiguous", 0, &[free(3, 1, true), free(3, 2, true)]), &[3], "at most 2.15 GB are contiguous"),
        (allocation("contiguous", 0, &[free(3, 1, true), free(9, 9, false)]), &[2], "at most 1.07 GB are contiguous"),
    ];
    for (allocation, sizes, words) in cases {
        let said = reasons(extended(allocation.clone(), sizes));
        assert!(said.len() == 1 && said[0].contains(words), "{allocation:?}: {said:?}");
    }
}

#[test]
fn extension_of_a_group_with_space_is_rehearsed() {
    let cases = [
        (allocation("normal", 0, &[free(2, 1, true)]), &[2][..]),
        (allocation("normal", 4, &[free(1, 1, true), free(1, 1, true)]), &[1, 1]),
        (allocation("contiguous", 3, &[free(3, 3, true)]), &[3]),
        (allocation("cling", 0, &[free(3, 1, true)]), &[3]),
    ];
    for (allocation, sizes) in cases {
        let plan = extended(allocation, sizes).unwrap_or_else(|refusal| panic!("{refusal}"));
        let [Operation::Run(SessionOp::Rehearse(rehearsal))] =
            super::super::arrays_and_groups::operations(&plan, StageName::StorageRehearse)
        else {
            panic!("{plan}")
        };
        let added = rehearsal.operations.iter().filter(|operation| matches!(operation, RestoreOp::CreateVolume(_)));
        assert_eq!(added.count(), sizes.len(), "{plan}");
        assert!(rehearsal.over.contains(&"/dev/sdb".into()), "{plan}");
        // The plan also contains trials of mkfs in memory.
        let lock = super::super::arrays_and_groups::operations(&plan, StageName::StorageLock);
        let tried = lock.iter().filter(|operation| matches!(operation, Operation::Device(DeviceOp::TryFilesystem(_))));
        assert_eq!(tried.count(), sizes.len(), "{plan}");
    }
}

#[test]
fn inventory_without_allocation_data_uses_total_free_space() {
    let mut inventory = installed(&[]);
    inventory.groups[0].free_bytes = Some(GIB);
    let small = [in_group("web", 3, "Filesystem", "csi", "1Gi")];
    planned(&layout(), &inventory, InstallMode::Reinstall, &small).unwrap();
    let large = [in_group("web", 3, "Filesystem", "csi", "1025Mi")];
    assert!(refused(&layout(), &inventory, InstallMode::Reinstall, &large)[0].contains("which has 1.07 GB free"));
}

/// With extents of 32 MiB, both LVM and the plan round sizes up to a multiple of the extent size.
#[test]
fn volume_size_is_rounded_up_to_group_extents() {
    let mut inventory = installed(&[]);
    (inventory.groups[0].extent_bytes, inventory.groups[0].free_bytes) = (32 * MIB, Some(GIB + 31 * MIB));
    inventory.groups[0].volumes[0].size_bytes = GIB;
    let fits = [in_group("web", 3, "Filesystem", "csi", "1000Mi")];
    planned(&layout(), &inventory, InstallMode::Reinstall, &fits).unwrap();
    let large = [in_group("web", 3, "Filesystem", "csi", "1025Mi")];
    assert!(refused(&layout(), &inventory, InstallMode::Reinstall, &large)[0].contains("needs 1.11 GB"));
}

#[test]
fn refuses_filesystem_without_space_for_sparse_volumes() {
    let with = |used_mib: u64, volumes: &[Value]| {
        let mut inventory = installed(&[]);
        let carrier =
            inventory.filesystems.iter_mut().find(|filesystem| filesystem.device == "/dev/mapper/csi-varlib").unwrap();
        (carrier.size_bytes, carrier.used_bytes) = (1000 * MIB, used_mib * MIB);
        let list = with_class(volumes.to_vec(), json!({"fsType": "xfs"}));
        crate::make_plan(&layout(), &inventory, request(InstallMode::Reinstall, list, None), &mut counting_from(3000))
    };
    let one = |number: u8, mode: &str, size: &str| sparse(&format!("s{number}"), number, mode, size);
    let accepted = [
        (900, vec![one(1, "Filesystem", "100Gi")]),
        (800, vec![one(1, "Filesystem", "100Gi"), one(2, "Filesystem", "1Gi")]),
        (990, vec![one(1, "Block", "100Gi")]),
        (0, vec![one(1, "Filesystem", "1Ti")]),
    ];
    let rejected = [
        (940, vec![one(1, "Filesystem", "100Gi")]),
        (900, vec![one(1, "Filesystem", "100Gi"), one(2, "Filesystem", "1Gi")]),
        (1000, vec![one(1, "Block", "100Gi")]),
        (0, vec![one(1, "Filesystem", "4Ti")]),
    ];
    for (used, volumes) in accepted {
        with(used, &volumes).unwrap_or_else(|refusal| panic!("{used}: {refusal}"));
    }
    for (used, volumes) in rejected {
        let said = reasons(with(used, &volumes));
        assert!(said.len() == 1 && said[0].contains("/var/lib cannot hold the files of the new volumes"), "{said:?}");
    }
    // The carrier is new, has 1000 MiB, and also contains its own journal.
    let list = with_class(vec![one(1, "Filesystem", "4Ti")], json!({"fsType": "xfs"}));
    let new =
        crate::make_plan(&layout(), &machine(), request(InstallMode::Install, list, None), &mut counting_from(3000));
    assert!(reasons(new)[0].contains("/var/lib cannot hold the files of the new volumes s1"));
}
