//! Plan that adds a boot entry for an unmodified raw image. The plan is made after the image was written, because the
//! partition with the boot loader is unknown before. All disks are locked, and none is written.

use super::{
    DiskPlan, DiskVerdict, InstallMode, Plan, PlanRefusal, PlanSubject, non_destructive_plan::ReadOnlyPlan,
    opaque_objects, stale_boot_variables,
};
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::allocation::BootOrder;
use model::inventory::{DiskPartition, Inventory, InventoryDisk};
use model::layout::{FilesystemFormat, PartitionType};
use operations::{
    DiskIdentity, Esp, FlushDisks, LockDisk, MountFilesystem, MountReadOnly, Operation, PlanStage, SessionOp,
    StageName, WriteBootEntries,
};
use uuid::Uuid;

/// Name of the plan, displayed instead of a layout id.
const NAME: &str = "boot entry for the unmodified image";

/// Makes a plan with a boot entry for the first EFI system partition of this disk. Returns `None` if the disk does not
/// have a GPT, because a boot entry cannot refer to a partition of such a disk; the firmware must find the boot loader
/// itself.
///
/// # Errors
/// Fails if the disk has no EFI system partition, because this firmware cannot boot such a disk.
pub fn plan_boot_entry(
    inventory: &Inventory,
    disk: &InventoryDisk,
    subject: PlanSubject,
) -> Result<Option<Plan>, Box<PlanRefusal>> {
    let Some(table) = disk.table.as_ref().filter(|table| table.kind == "gpt") else { return Ok(None) };
    let disks: Vec<DiskPlan> =
        inventory.disks.iter().map(|one| DiskPlan::from_disk(one, disk_verdict(one, disk))).collect();
    let layout = NAME.to_owned();
    let Some(esp) = table.partitions.iter().find_map(|partition| find_esp(disk, partition)) else {
        let why = format!(
            "this machine boots in UEFI mode, but the image has no EFI system partition: none of the partitions of {disk} has the type of an EFI system partition and contains a vfat filesystem",
            disk = disk.device
        );
        let problems = vec![Diagnostic::new("image", why).with_code(ErrorCode::ImageNotBootable)];
        let opaque = opaque_objects::listed_objects(inventory);
        return Err(Box::new(PlanRefusal { mode: InstallMode::Install, subject, layout, disks, opaque, problems }));
    };
    let stages = entry_stages(inventory, disk, esp, &subject);
    let root_uuid = String::new();
    let harmless =
        ReadOnlyPlan { mode: InstallMode::Install, subject, layout, disks, stages, root_uuid, already: None };
    Ok(Some(harmless.build_plan(inventory)))
}

fn entry_stages(inventory: &Inventory, disk: &InventoryDisk, esp: Esp, subject: &PlanSubject) -> Vec<PlanStage> {
    let lock =
        |disk: &InventoryDisk| SessionOp::LockDisk(LockDisk { device: disk.device.clone(), untouched: Vec::new() });
    let locked = inventory.disks.iter().filter(|disk| !disk.read_only);
    let (device, path) = (esp.device.clone(), "/".to_owned());
    let mount =
        MountFilesystem { device, path, format: FilesystemFormat::Vfat, options: Vec::new(), others: Vec::new() };
    // An Ironic node may have no name. In this case, the boot entry is labeled with the id of the node.
    let name = if subject.name.is_empty() { &subject.machine } else { &subject.name };
    let is_on_other_disk = |guid: Uuid| {
        let mut others = inventory.disks.iter().filter(|other| other.name != disk.name);
        let has_partition = |other: &InventoryDisk| {
            other.table.iter().flat_map(|table| &table.partitions).any(|part| part.guid == Some(guid))
        };
        others.any(|other| has_partition(other) || other.unreadable.is_some())
    };
    let planned = esp.guid;
    let entries = WriteBootEntries {
        label: format!("drophammer: {name}"),
        esps: vec![esp],
        order: BootOrder::Disk,
        // The image replaces every system that was on its disk. All other disks are preserved.
        preserved: stale_boot_variables::list_preserved(inventory, |guid| guid != planned && is_on_other_disk(guid)),
        unless_installer: false,
    };
    let stages = [
        (StageName::StorageIdentify, vec![SessionOp::IdentifyDisk(DiskIdentity::from_disk(disk))]),
        (StageName::StorageLock, locked.map(lock).collect()),
        (StageName::StorageMount, vec![SessionOp::MountReadOnly(MountReadOnly(mount))]),
        (StageName::BootEntries, vec![SessionOp::FindBootLoader, SessionOp::WriteBootEntries(entries)]),
        (
            StageName::StorageUnmount,
            vec![
                SessionOp::Unmount,
                SessionOp::FlushDisks(FlushDisks { disks: vec![disk.device.clone()], keep_locks: false }),
            ],
        ),
    ];
    let stage = |(name, operations): (StageName, Vec<SessionOp>)| PlanStage {
        name,
        operations: operations.into_iter().map(Operation::Run).collect(),
    };
    stages.into_iter().map(stage).filter(|stage| !stage.operations.is_empty()).collect()
}

fn disk_verdict(one: &InventoryDisk, written: &InventoryDisk) -> DiskVerdict {
    if one.name == written.name { DiskVerdict::Keep } else { DiskVerdict::NotOurs }
}

/// Returns this partition as an ESP, or `None` if the partition is not an ESP.
fn find_esp(disk: &InventoryDisk, partition: &DiskPartition) -> Option<Esp> {
    let is_esp = Uuid::parse_str(&partition.kind).ok() == Some(PartitionType::Boot.guid());
    let [signature] = partition.signatures.as_slice() else { return None };
    let sector_bytes = u64::from(disk.sector_bytes.max(1));
    (is_esp && signature.kind == FilesystemFormat::Vfat.name()).then_some(Esp {
        device: partition.device.clone(),
        disk: disk.device.clone(),
        number: partition.number,
        guid: partition.guid?,
        first_lba: partition.start_bytes / sector_bytes,
        sectors: partition.size_bytes / sector_bytes,
        sector_bytes: disk.sector_bytes,
        path: None,
        preserved: false,
        array: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Inventory {
        serde_json::from_str(include_str!("../../../testdata/inventories/installed-default.json")).unwrap()
    }

    #[test]
    fn names_existing_esp_and_locks_every_disk() {
        let inventory = machine();
        let subject = PlanSubject { machine: "n-1".into(), ..PlanSubject::default() };
        let plan = plan_boot_entry(&inventory, &inventory.disks[0], subject).unwrap().unwrap();
        let names: Vec<StageName> = plan.stages.iter().map(|stage| stage.name).collect();
        let last = [StageName::StorageMount, StageName::BootEntries, StageName::StorageUnmount];
        assert!(names.ends_with(&last), "{names:?}");
        assert!(plan.stages.iter().all(|stage| !stage.name.is_destructive()));
        assert!(plan.extents.iter().all(|extents| extents.disks.is_empty()));
        let operations = || plan.stages.iter().flat_map(|stage| &stage.operations);
        let locked = operations().filter(|operation| matches!(operation, Operation::Run(SessionOp::LockDisk(_))));
        assert_eq!(locked.count(), inventory.disks.len());
        let partition = &inventory.disks[0].table.as_ref().unwrap().partitions[0];
        let entries = operations().find_map(|operation| match operation {
            Operation::Run(SessionOp::WriteBootEntries(entries)) => Some(entries),
            _ => None,
        });
        let entries = entries.unwrap();
        let [esp] = &entries.esps[..] else { panic!("{entries:?}") };
        assert_eq!((&esp.device, Some(esp.guid), esp.number), (&partition.device, partition.guid, 1));
        assert_eq!((esp.first_lba * 512, esp.sectors * 512), (partition.start_bytes, partition.size_bytes));
        assert_eq!((entries.label.as_str(), entries.order), ("drophammer: n-1", BootOrder::Disk));
        assert!(plan.to_string().contains("EFI entries \"drophammer: n-1\" for sda1"), "{plan}");
    }

    #[test]
    fn refuses_image_that_the_firmware_cannot_start() {
        let mut inventory = machine();
        let refused = |inventory: &Inventory| {
            plan_boot_entry(inventory, &inventory.disks[0], PlanSubject::default()).unwrap_err().to_string()
        };
        let part = |inventory: &mut Inventory, change: fn(&mut DiskPartition)| {
            change(&mut inventory.disks[0].table.as_mut().unwrap().partitions[0]);
        };
        part(&mut inventory, |part| part.signatures[0].kind = "ext4".into());
        assert!(refused(&inventory).contains("the image has no EFI system partition"));
        inventory = machine();
        part(&mut inventory, |part| part.kind = PartitionType::Linux.guid().to_string());
        assert!(refused(&inventory).contains("none of the partitions of /dev/sda"));
        for change in [
            |disk: &mut InventoryDisk| disk.table = None,
            |disk: &mut InventoryDisk| {
                disk.table.as_mut().unwrap().kind = "dos".into();
            },
        ] {
            inventory = machine();
            change(&mut inventory.disks[0]);
            assert_eq!(plan_boot_entry(&inventory, &inventory.disks[0], PlanSubject::default()).unwrap(), None);
        }
    }
}
