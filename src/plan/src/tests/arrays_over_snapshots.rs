//! Arrays that the agent has assembled over snapshots of their members: the plan is the same as without snapshots.

use super::arrays_and_groups::operations;
use super::*;
use model::inventory::{OVERLAY, StackedDevice, StackedDeviceKind};
use operations::{DeviceOp, DiskHolder, Operation, ReleaseDiskHolder, StageName};

/// Inserts a snapshot between each array and each of its members.
fn overlaid(mut inventory: Inventory) -> Inventory {
    let mut overlays: Vec<StackedDevice> = Vec::new();
    for array in inventory.stacked.iter_mut().filter(|stacked| stacked.kind == StackedDeviceKind::Array) {
        for member in &mut array.below {
            let name = format!("dm-{}", 900 + overlays.len()).into();
            let below = vec![std::mem::replace(member, name)];
            let device = format!("/dev/mapper/{OVERLAY}{}", below[0]).into();
            let uses = vec![DeviceUse::Holder(array.name.clone())];
            let (name, kind, size_bytes) = (member.clone(), StackedDeviceKind::Other, array.size_bytes);
            overlays.push(StackedDevice {
                name,
                device,
                kind,
                below,
                size_bytes,
                uses,
                assembled: true,
                ..StackedDevice::default()
            });
        }
    }
    for overlay in &overlays {
        let (held, holder) = (&overlay.below[0], DeviceUse::Holder(overlay.name.clone()));
        for disk in &mut inventory.disks {
            if disk.name == *held {
                disk.uses = vec![holder.clone()];
            }
            let parts = disk.table.iter_mut().flat_map(|table| &mut table.partitions);
            parts.filter(|part| part.device.kernel_name() == *held).for_each(|part| part.uses = vec![holder.clone()]);
        }
    }
    inventory.stacked.extend(overlays);
    inventory
}

#[test]
fn plan_over_snapshots_equals_plan_without_and_removes_snapshots() {
    for mode in [InstallMode::Install, InstallMode::Reinstall] {
        let before = overlaid(arrays_and_groups::installed());
        let plan = make(&arrays_and_groups::layout(), &before, mode).unwrap_or_else(|refusal| panic!("{refusal}"));
        let plain = make(&arrays_and_groups::layout(), &arrays_and_groups::installed(), mode).unwrap();
        assert_eq!(verdicts(&plan), verdicts(&plain));
        assert_eq!((&plan.warnings, &plan.extents, &plan.fstab), (&plain.warnings, &plain.extents, &plain.fstab));
        for stage in [StageName::StorageRehearse, StageName::StorageMountPreserved, StageName::StorageProvePreserved] {
            assert_eq!(operations(&plan, stage), operations(&plain, stage));
        }
        let shown: Vec<&String> = plan.disks.iter().flat_map(|disk| &disk.running).collect();
        assert_eq!(shown, plain.disks.iter().flat_map(|disk| &disk.running).collect::<Vec<_>>());
        let released = |device: &str| {
            let is_it = |operation: &Operation| match operation {
                Operation::Device(DeviceOp::Release(ReleaseDiskHolder(DiskHolder::Mapping { device: mapping }))) => {
                    mapping == device
                }
                _ => false,
            };
            operations(&plan, StageName::StorageRelease).iter().position(is_it)
        };
        assert!(released(&format!("/dev/mapper/{OVERLAY}sda1")).is_some(), "{plan}");
        // Devices that are only on preserved disks are stopped later, when they are activated for writing.
        assert_eq!(released(&format!("/dev/mapper/{OVERLAY}sdc")).is_some(), mode == InstallMode::Install, "{plan}");
        after(&plan, before);
    }
}

/// The array of unlisted disks is stopped, and its snapshots are removed.
#[test]
fn stops_array_of_unlisted_disks_and_removes_its_snapshots() {
    let mut layout = arrays_and_groups::layout();
    layout.disks.truncate(2);
    layout.raid.truncate(2);
    (layout.volumegroups, layout.logicalvolumes) = (Vec::new(), Vec::new());
    layout.filesystems.retain(|filesystem| !filesystem.device.as_str().starts_with("/dev/vg00"));
    let before = overlaid(arrays_and_groups::installed());
    let plan = make(&layout, &before, InstallMode::Reinstall).unwrap_or_else(|refusal| panic!("{refusal}"));
    assert_eq!(verdicts(&plan)[2..], [DiskVerdict::NotOurs; 4]);
    let after = after(&plan, before);
    let left = after.stacked.iter().find(|stacked| stacked.is_overlay());
    assert_eq!(left, None, "{plan}");
}
