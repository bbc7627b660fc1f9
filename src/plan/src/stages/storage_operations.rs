//! Operations on disks and the devices on them, in the order of execution: locking, release, creation, and
//! deactivation.

use super::super::plan_decisions::{ArrayFate, GroupFate, PlanDecisions};
use super::super::{DiskPlan, DiskVerdict, guard_ranges, luks};
use model::device_name::DevicePath;
use model::storage_graph::LayoutMatch;
use operations::{
    AssertFree, DeactivateGroup, DeviceOp, FlushDisks, LockDisk, Operation, ProveZeros, ReleaseDiskHolder, SessionOp,
    StopArray, UnlockDisk, WriteK8sVolumeFiles,
};

/// Returns the devices that the image's installer may write: recreated disks, new partitions of partly kept disks, and
/// new arrays and volumes on them.
pub(crate) fn writable_devices(decided: &PlanDecisions) -> Vec<DevicePath> {
    let arrays = create_arrays(decided).into_iter().chain(create_groups_and_volumes(decided));
    let arrays = arrays.filter_map(|operation| match operation {
        Operation::Device(DeviceOp::CreateArray(array)) => Some(array.device),
        Operation::Device(DeviceOp::CreateVolume(volume)) => Some(volume.device),
        _ => None,
    });
    let parts = decided.edits.iter().flat_map(|edit| &edit.added).map(|part| part.device.clone());
    devices_with_verdict(decided, DiskVerdict::is_recreated).into_iter().chain(parts).chain(arrays).collect()
}

pub(super) fn devices_with_verdict(decided: &PlanDecisions, is: impl Fn(DiskVerdict) -> bool) -> Vec<DevicePath> {
    decided.disks.iter().filter(|disk| is(disk.verdict)).map(|disk| disk.device.clone()).collect()
}

pub(super) fn lock_operations(meant: &LayoutMatch, decided: &PlanDecisions) -> Vec<Operation> {
    let disks = decided.disks.iter().filter(|disk| !disk.verdict.is_written());
    let lock = |disk: &DiskPlan| {
        // The ranges of a disk that is written for a Kubernetes volume are not guarded, because they will change. If
        // other members of an array are wiped, stopping the array may update the superblocks on this disk.
        let is_written = decided.persistent.written.contains(&disk.name);
        let is_torn = decided.dismantled.iter().any(|torn| torn.stays_on.contains(&disk.name));
        let mut untouched = if is_written || is_torn { Vec::new() } else { guard_ranges::guarded_ranges(meant, disk) };
        untouched.extend(luks::guard_locked(meant, decided, disk));
        Operation::Run(SessionOp::LockDisk(LockDisk { device: disk.device.clone(), untouched }))
    };
    // The disk itself must stay writable, because its other partitions are removed and created again.
    let parts = decided.partly_kept.iter().flat_map(|disk| &disk.preserved).map(|part| {
        let untouched = guard_ranges::unused_ends(meant, part);
        Operation::Run(SessionOp::LockDisk(LockDisk { device: part.device.clone(), untouched }))
    });
    disks.map(lock).chain(parts).collect()
}

/// Returns the operation that proves that devices contain only zeros. This operation is the last check, because it
/// may take hours. It precedes the release of holders, because the release stops arrays and volumes that the
/// operation reads.
pub(super) fn prove_zeros(decided: &PlanDecisions) -> Option<Operation> {
    let proofs = &decided.zero_proofs;
    (!proofs.is_empty()).then(|| Operation::Device(DeviceOp::ProveZeros(ProveZeros(proofs.clone()))))
}

pub(super) fn release_operations(decided: &PlanDecisions) -> Vec<Operation> {
    let disks = devices_with_verdict(decided, DiskVerdict::is_written);
    let assert = (!disks.is_empty()).then_some(Operation::Device(DeviceOp::AssertFree(AssertFree { disks })));
    decided
        .releases
        .iter()
        .cloned()
        .map(ReleaseDiskHolder)
        .map(DeviceOp::Release)
        .map(Operation::Device)
        .chain(assert)
        .collect()
}

/// Returns the operations that create arrays, in the order of the layout. An array can only be on top of arrays that
/// precede it in the layout.
pub(super) fn create_arrays(decided: &PlanDecisions) -> Vec<Operation> {
    let made = decided.arrays.iter().filter_map(|array| match array {
        ArrayFate::Created(array) => Some(Operation::Device(DeviceOp::CreateArray(array.clone()))),
        ArrayFate::Preserved { .. } => None,
    });
    made.collect()
}

pub(super) fn create_groups_and_volumes(decided: &PlanDecisions) -> Vec<Operation> {
    let groups = decided.groups.iter().filter_map(|group| match group {
        GroupFate::Created(group) => Some(Operation::Device(DeviceOp::CreateGroup(group.clone()))),
        GroupFate::Preserved { .. } => None,
    });
    groups.chain(decided.volumes.iter().cloned().map(DeviceOp::CreateVolume).map(Operation::Device)).collect()
}

pub(super) fn try_arrays(decided: &PlanDecisions) -> impl Iterator<Item = Operation> {
    decided.array_trials.iter().cloned().map(DeviceOp::TryArray).map(Operation::Device)
}

/// Returns the operations that unmount all filesystems, and flush them to the disks. Arrays and groups are still
/// active, so that an incomplete system can be made unbootable if a disk fails.
pub(super) fn unmount_operations(decided: &PlanDecisions) -> Vec<Operation> {
    let keep_locks = stop_operations(decided).next().is_some();
    vec![Operation::Run(SessionOp::Unmount), flush_written_disks(decided, keep_locks)]
}

/// Returns the operations that deactivate everything below the filesystems, in the reverse order of activation. Returns
/// no operations if nothing is active.
pub(super) fn deactivate_operations(decided: &PlanDecisions) -> Vec<Operation> {
    let stops: Vec<Operation> = stop_operations(decided).collect();
    let flush = (!stops.is_empty()).then(|| flush_written_disks(decided, false));
    stops.into_iter().chain(flush).collect()
}

fn flush_written_disks(decided: &PlanDecisions, keep_locks: bool) -> Operation {
    let preserved = devices_with_verdict(decided, |verdict| verdict == DiskVerdict::Keep);
    let written = devices_with_verdict(decided, DiskVerdict::is_written);
    let disks = written.into_iter().chain(preserved).chain(written_for_volumes(decided)).collect();
    Operation::Run(SessionOp::FlushDisks(FlushDisks { disks, keep_locks }))
}

fn stop_operations(decided: &PlanDecisions) -> impl Iterator<Item = Operation> {
    let groups = decided.groups.iter().rev().filter_map(|group| {
        let (name, devices) = match group {
            GroupFate::Created(group) => (&group.name, &group.devices),
            // A preserved group is active only if the plan uses its volumes, or adds a volume to it.
            GroupFate::Preserved { name, volumes, .. }
                if volumes.is_empty() && !decided.persistent.extended.contains(name) =>
            {
                return None;
            }
            GroupFate::Preserved { name, devices, .. } => (name, devices),
        };
        Some(Operation::Device(DeviceOp::DeactivateGroup(DeactivateGroup {
            name: name.clone(),
            devices: devices.clone(),
        })))
    });
    let arrays = decided.arrays.iter().rev().map(|array| match array {
        ArrayFate::Created(array) => Operation::Device(DeviceOp::StopArray(StopArray { device: array.device.clone() })),
        ArrayFate::Preserved { device, .. } => {
            Operation::Device(DeviceOp::StopArray(StopArray { device: device.clone() }))
        }
    });
    luks::close_containers(decided, false).chain(groups).chain(luks::close_containers(decided, true)).chain(arrays)
}

/// Returns the disks that the layout does not list and that are written for Kubernetes volumes.
pub(super) fn written_for_volumes(decided: &PlanDecisions) -> impl Iterator<Item = DevicePath> {
    let written = decided.disks.iter().filter(|disk| decided.persistent.written.contains(&disk.name));
    written.map(|disk| disk.device.clone())
}

/// Returns the operations for Kubernetes volumes. They run after all preserved objects are activated.
pub(super) fn volume_operations(decided: &PlanDecisions) -> Vec<Operation> {
    let unlock = |device| Operation::Run(SessionOp::UnlockDisk(UnlockDisk { device, others: Vec::new() }));
    let prepares = decided.persistent.prepares.iter().cloned().map(Box::new);
    let prepares = prepares.map(DeviceOp::CreateK8sVolume).map(Operation::Device);
    let (sparse, volumes) = (decided.persistent.sparse.clone(), decided.persistent.prepared.clone());
    let write =
        (!volumes.is_empty()).then_some(SessionOp::WriteK8sVolumeFiles(WriteK8sVolumeFiles { sparse, volumes }));
    written_for_volumes(decided).map(unlock).chain(prepares).chain(write.map(Operation::Run)).collect()
}
