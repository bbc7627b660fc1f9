//! Plan that adds files to an existing filesystem. All disks are locked, except the disks that contain the filesystem.

use super::write_activation::{self, DeviceActivation};
use super::{
    DiskPlan, DiskVerdict, InstallMode, Plan, PlanRefusal, PlanSubject, non_destructive_plan::ReadOnlyPlan,
    opaque_objects,
};
use crate::content_descriptions;
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::device_name::{DevicePath, KernelName};
use model::inventory::{DeviceSignature, Inventory, InventoryDisk};
use model::layout::FilesystemFormat;
use model::storage_graph::{DeviceStack, StackUnit, all_units};
use operations::{
    DiskIdentity, FlushDisks, InjectFiles, InjectedFile, LockDisk, MountFilesystem, Operation, PlanStage, SessionOp,
    StageName,
};
use std::collections::BTreeSet;

/// Name of the plan, displayed instead of a layout id.
const NAME: &str = "files for an existing filesystem";

/// The filesystem to which the files are written.
struct InjectionTarget {
    /// Path of the filesystem's device after the device was activated.
    device: DevicePath,
    format: FilesystemFormat,
    lift: DeviceActivation,
    below: BTreeSet<KernelName>,
}

/// Makes a plan that writes these files to the filesystem on this disk, partition, array or logical volume. Disks in
/// `skipped` are ignored.
///
/// # Errors
/// Fails if the device has no mountable filesystem, or is in use. Nothing was written.
pub fn plan_injection(
    inventory: &Inventory,
    device: &DevicePath,
    skipped: &[KernelName],
    files: Vec<InjectedFile>,
    subject: PlanSubject,
) -> Result<Plan, Box<PlanRefusal>> {
    let found = find_target(inventory, device).and_then(|found| check_writable(inventory, skipped, found));
    let is_below = |disk: &InventoryDisk| found.as_ref().is_ok_and(|found| found.below.contains(&disk.name));
    let verdict = |disk: &InventoryDisk| if is_below(disk) { DiskVerdict::Keep } else { DiskVerdict::NotOurs };
    let disks: Vec<DiskPlan> = inventory.disks.iter().map(|disk| DiskPlan::from_disk(disk, verdict(disk))).collect();
    let layout = NAME.to_owned();
    let InjectionTarget { device, format, lift, below } = match found {
        Ok(found) => found,
        Err(why) => {
            let problems = vec![Diagnostic::new("partition", why).with_code(ErrorCode::FileInjection)];
            let opaque = opaque_objects::listed_objects(inventory);
            return Err(Box::new(PlanRefusal { mode: InstallMode::Install, subject, layout, disks, opaque, problems }));
        }
    };
    let (written, others): (Vec<&InventoryDisk>, Vec<&InventoryDisk>) =
        inventory.disks.iter().partition(|disk| below.contains(&disk.name));
    let lock =
        |disk: &&InventoryDisk| SessionOp::LockDisk(LockDisk { device: disk.device.clone(), untouched: Vec::new() });
    let mount = MountFilesystem { device, path: "/".to_owned(), format, options: Vec::new(), others: Vec::new() };
    let flushed = written.iter().map(|disk| disk.device.clone()).collect();
    let flush = SessionOp::FlushDisks(FlushDisks { disks: flushed, keep_locks: false });
    let of_run = |operations: Vec<SessionOp>| operations.into_iter().map(Operation::Run).collect::<Vec<_>>();
    let identities = written.iter().map(|disk| SessionOp::IdentifyDisk(DiskIdentity::from_disk(disk)));
    let stages = [
        (StageName::StorageIdentify, of_run(identities.collect())),
        (StageName::StorageLock, of_run(others.iter().filter(|disk| !disk.read_only).map(lock).collect())),
        (StageName::StorageMount, [lift.activate(), of_run(vec![SessionOp::Mount(mount)])].concat()),
        (StageName::TargetFiles, of_run(vec![SessionOp::InjectFiles(InjectFiles(files))])),
        (
            StageName::StorageUnmount,
            [of_run(vec![SessionOp::Unmount]), lift.deactivate(), of_run(vec![flush])].concat(),
        ),
    ];
    let stages = stages.into_iter().filter(|(_, operations)| !operations.is_empty());
    let stages: Vec<PlanStage> = stages.map(|(name, operations)| PlanStage { name, operations }).collect();
    let root_uuid = String::new();
    let harmless =
        ReadOnlyPlan { mode: InstallMode::Install, subject, layout, disks, stages, root_uuid, already: None };
    Ok(harmless.build_plan(inventory))
}

fn find_target(inventory: &Inventory, wanted: &DevicePath) -> Result<InjectionTarget, String> {
    let stack = DeviceStack::new(inventory);
    let (there, device) =
        write_activation::find_device(inventory, wanted).unwrap_or_else(|| (wanted.clone(), wanted.clone()));
    let unit = all_units(inventory).find(|(path, _)| **path == there).map(|(_, unit)| unit);
    // Partitions inside arrays or volumes are not supported, because they cannot be activated for writing.
    let unit = unit.filter(|unit| !matches!(unit, StackUnit::Partition(_)) || is_disk_partition(inventory, &there));
    let Some(unit) = unit else {
        return Err(format!("{wanted} is not a disk, disk partition, array or logical volume of this machine"));
    };
    if !unit.uses().is_empty() {
        return Err(format!("{wanted} is in use"));
    }
    let format = mountable_format(wanted, unit.signatures())?;
    let lift = DeviceActivation::for_device(&stack, inventory, &there)?;
    Ok(InjectionTarget { device, format, lift, below: stack.disks_below(&stack.kernel_name(&there)) })
}

fn is_disk_partition(inventory: &Inventory, device: &DevicePath) -> bool {
    let mut parts = inventory.disks.iter().flat_map(|disk| disk.table.iter().flat_map(|table| &table.partitions));
    parts.any(|part| part.device == *device)
}

fn check_writable(
    inventory: &Inventory,
    skipped: &[KernelName],
    found: InjectionTarget,
) -> Result<InjectionTarget, String> {
    if let Some(disk) = skipped.iter().find(|disk| found.below.contains(*disk)) {
        return Err(format!("{device} is on {disk}, which is skipped", device = found.device));
    }
    let below = |disk: &&InventoryDisk| found.below.contains(&disk.name);
    match inventory.disks.iter().filter(below).find(|disk| disk.read_only) {
        Some(disk) => Err(format!("{} is write-protected", disk.device)),
        None => Ok(found),
    }
}

fn mountable_format(device: &DevicePath, signatures: &[DeviceSignature]) -> Result<FilesystemFormat, String> {
    let mounts = |signature: &DeviceSignature| {
        let is_it = |format: &FilesystemFormat| {
            format.name() == signature.kind && !matches!(format, FilesystemFormat::Swap | FilesystemFormat::None)
        };
        FilesystemFormat::ALL.into_iter().find(is_it)
    };
    match signatures {
        [one] => mounts(one).ok_or_else(|| {
            format!(
                "{device} contains {content}, which cannot be mounted",
                content = content_descriptions::describe_signature(one)
            )
        }),
        [] => Err(format!("{device} does not contain a filesystem")),
        _ => Err(format!("{device} has several signatures")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use operations::DeviceOp;

    fn machine(name: &str) -> Inventory {
        let text = std::fs::read_to_string(format!(
            "{}/testdata/inventories/{name}.json",
            concat!(env!("CARGO_MANIFEST_DIR"), "/../..")
        ))
        .unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn file() -> InjectedFile {
        InjectedFile {
            path: "/etc/motd".into(),
            content: Some(b"hello".to_vec()),
            mode: 0o644,
            owner: None,
            group: None,
        }
    }

    #[test]
    fn mounts_one_filesystem_and_locks_every_other_disk() {
        let inventory = machine("installed-default");
        let device = DevicePath::from("/dev/sda2");
        let plan = plan_injection(&inventory, &device, &[], vec![file()], PlanSubject::default()).unwrap();
        let names: Vec<StageName> = plan.stages.iter().map(|stage| stage.name).collect();
        assert!(
            names.ends_with(&[StageName::StorageMount, StageName::TargetFiles, StageName::StorageUnmount]),
            "{names:?}"
        );
        assert!(plan.stages.iter().all(|stage| !stage.name.is_destructive()));
        let operations = plan.stages.iter().flat_map(|stage| &stage.operations);
        let locked = operations.filter(|operation| matches!(operation, Operation::Run(SessionOp::LockDisk(_))));
        assert_eq!(locked.count(), inventory.disks.len() - 1);
        assert!(plan.to_string().contains("/etc/motd with 5"), "{plan}");
    }

    #[test]
    fn starts_underlying_array_and_stops_it_afterwards() {
        let mut inventory = machine("raid-lvm");
        let third = InventoryDisk { name: "sdc".into(), device: "/dev/sdc".into(), ..InventoryDisk::default() };
        inventory.disks.push(third);
        for (wanted, mounted) in [("/dev/vg00/root", "/dev/vg00/root"), ("/dev/md/efi", "/dev/md126")] {
            let plan = plan_injection(&inventory, &wanted.into(), &[], vec![file()], PlanSubject::default()).unwrap();
            let operations = || plan.stages.iter().flat_map(|stage| &stage.operations);
            let mounts = operations().filter_map(|operation| match operation {
                Operation::Run(SessionOp::Mount(mount)) => Some(mount.device.as_str()),
                _ => None,
            });
            assert_eq!(mounts.collect::<Vec<_>>(), [mounted]);
            let locked = operations().filter_map(|operation| match operation {
                Operation::Run(SessionOp::LockDisk(LockDisk { device, .. })) => Some(device.as_str()),
                _ => None,
            });
            assert_eq!(locked.collect::<Vec<_>>(), ["/dev/sdc"]);
            let identified = operations().filter(|one| matches!(one, Operation::Run(SessionOp::IdentifyDisk(_))));
            assert_eq!(identified.count(), 2);
            let last = plan.stages.last().unwrap();
            let stops = |one: &Operation| matches!(one, Operation::Device(DeviceOp::StopArray(_)));
            assert!(last.operations.iter().any(stops), "{last:?}");
        }
        let skipped = [inventory.disks[1].name.clone()];
        let refusal =
            plan_injection(&inventory, &"/dev/vg00/root".into(), &skipped, vec![file()], PlanSubject::default());
        assert!(refusal.unwrap_err().to_string().contains("is on sdb, which is skipped"));
    }

    #[test]
    fn refuses_devices_that_cannot_be_mounted() {
        let mut inventory = machine("installed-default");
        let refused = |inventory: &Inventory, device: &str| {
            plan_injection(inventory, &device.into(), &[], vec![file()], PlanSubject::default())
                .unwrap_err()
                .to_string()
        };
        assert!(
            refused(&inventory, "/dev/md1")
                .contains("is not a disk, disk partition, array or logical volume of this machine")
        );
        assert!(refused(&inventory, "/dev/sda").contains("/dev/sda does not contain a filesystem"));
        inventory.disks[0].read_only = true;
        assert!(refused(&inventory, "/dev/sda2").contains("write-protected"));
        let inventory = machine("raid-lvm");
        assert!(refused(&inventory, "/dev/md127").contains("/dev/md127 is in use"));
        assert!(refused(&inventory, "/dev/sda2").contains("/dev/sda2 is in use"));
    }
}
