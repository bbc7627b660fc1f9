//! Assertions on a single plan: no operation writes to an object that the verdicts preserve.

use super::*;

pub(crate) fn assert_sound(plan: &Plan, inventory: &Inventory) {
    let verdict = |name: &str| plan.disks.iter().find(|disk| disk.name == name).unwrap().verdict;
    let brought = brought(plan);
    for (index, stage) in plan.stages.iter().enumerate() {
        for operation in &stage.operations {
            for device in effect(operation).destroyed {
                let disks = bottoms(plan, &brought, device);
                assert!(!disks.is_empty(), "{operation:?}");
                let fills =
                    matches!(operation, Operation::Device(DeviceOp::MakeFilesystem(_))) && is_blank(inventory, device);
                let takes = matches!(operation, Operation::Device(DeviceOp::CreateK8sVolume(_)));
                let is_renewed = |disk: &&str| {
                    is_made(verdict(disk))
                        || is_renewed_part(plan, &brought, device, disk)
                        || is_in_renewed_group(plan, operation, device)
                };
                assert!(disks.iter().all(is_renewed) || fills || takes, "{operation:?}");
                assert!(index >= plan.point_of_no_return);
            }
            match operation {
                Operation::Device(DeviceOp::CreateK8sVolume(volume)) => assert_prepares(volume, plan, inventory),
                Operation::Device(operation) => assert_on_device(operation, inventory, verdict),
                Operation::Run(operation) => assert_of_run(operation, inventory, verdict),
            }
        }
    }
    for disk in plan.disks.iter().filter(|disk| disk.verdict == DiskVerdict::Make) {
        let found = inventory.find_disk(disk.device.as_str()).unwrap();
        let partitions = found.table.iter().flat_map(|table| &table.partitions);
        assert!(found.blank || (found.table.is_some() && partitions.into_iter().all(|part| part.blank)), "{disk:?}");
    }
    assert_parents_first(plan);
    writable_extents::assert_just_what_is_written(plan, inventory);
}

/// Returns whether the device uses only those partitions of a partly kept disk that the plan adds to its table.
fn is_renewed_part(plan: &Plan, brought: &Brought, device: &DevicePath, disk: &str) -> bool {
    let is_added = plan.stages.iter().flat_map(|stage| &stage.operations).any(|operation| match operation {
        Operation::Device(DeviceOp::EditTable(edit)) => {
            let mut added = edit.added.iter().map(|new| edit.device.partition_path(new.number));
            edit.device.kernel_name().as_str() == disk && added.any(|added| added == *device)
        }
        _ => false,
    });
    is_added
        || brought.get(device).is_some_and(|below| {
            let mut below = below.iter().filter(|below| bottoms(plan, brought, below).contains(disk));
            below.all(|below| is_renewed_part(plan, brought, below, disk))
        })
}

/// Returns whether the operation creates a volume in a preserved group after volumes were removed from it, or writes to
/// such a volume.
pub(crate) fn is_in_renewed_group(plan: &Plan, operation: &Operation, device: &DevicePath) -> bool {
    let operations = || plan.stages.iter().flat_map(|stage| &stage.operations);
    let is_renewed = |group: &str| {
        operations().any(|operation| matches!(operation, Operation::Device(DeviceOp::RemoveVolumes(remove)) if remove.group == group))
    };
    let is_new = |operation: &Operation| matches!(operation, Operation::Device(DeviceOp::CreateVolume(new)) if new.device == *device && is_renewed(&new.group));
    matches!(operation, Operation::Device(DeviceOp::CreateVolume(new)) if is_renewed(&new.group))
        || operations().any(is_new)
}

fn assert_on_device(operation: &DeviceOp, inventory: &Inventory, verdict: impl Fn(&str) -> DiskVerdict) {
    match operation {
        DeviceOp::WipeDisk(wipe) => assert_wipe(wipe, inventory),
        DeviceOp::WriteTable(table) => assert_table(table, inventory.find_disk(table.device.as_str()).unwrap()),
        DeviceOp::ClearRanges(clear) => assert_eq!(clear.find_overlap(), None),
        DeviceOp::EditTable(edit) => assert!(!edit.preserved.is_empty(), "{edit:?}"),
        DeviceOp::Release(release) => assert_release(&release.0, inventory, verdict),
        DeviceOp::AssertFree(AssertFree { disks }) => {
            let verdict = |disk: &DevicePath| verdict(&inventory.find_disk(disk.as_str()).unwrap().name);
            assert!(disks.iter().all(|disk| verdict(disk).is_written()), "{operation:?}");
        }
        DeviceOp::StopInspectedDevices(_)
        | DeviceOp::ProveZeros(_)
        | DeviceOp::CreateArray(_)
        | DeviceOp::CreateGroup(_)
        | DeviceOp::RemoveVolumes(_)
        | DeviceOp::CreateVolume(_)
        | DeviceOp::CreateContainer(_)
        | DeviceOp::OpenContainer(_)
        | DeviceOp::CloseContainer(_)
        | DeviceOp::AssembleArray(_)
        | DeviceOp::ActivateGroup(_)
        | DeviceOp::TryArray(_)
        | DeviceOp::TryFilesystem(_)
        | DeviceOp::MakeFilesystem(_)
        | DeviceOp::CreateK8sVolume(_)
        | DeviceOp::DeactivateGroup(_)
        | DeviceOp::StopArray(_) => {}
    }
}

fn assert_of_run(operation: &SessionOp, inventory: &Inventory, verdict: impl Fn(&str) -> DiskVerdict) {
    // Partitions of partly kept disks are locked and unlocked one by one.
    let verdict = |device: &DevicePath| {
        let parts = |disk: &&inventory::InventoryDisk| {
            disk.table.iter().flat_map(|table| &table.partitions).any(|part| part.device == *device)
        };
        let disk = inventory.find_disk(device.as_str()).or_else(|| inventory.disks.iter().find(parts));
        verdict(&disk.unwrap().name)
    };
    match operation {
        SessionOp::BurnDisk(burn) => assert_burn(burn, inventory.find_disk(burn.device.as_str()).unwrap()),
        SessionOp::CreateSystem(create) => {
            assert!(create.disks.iter().all(|disk| is_made(verdict(disk))), "{operation:?}");
            assert_burn(&create.onto, inventory.find_disk(create.onto.device.as_str()).unwrap());
        }
        SessionOp::LockDisk(LockDisk { device, .. }) => assert!(!is_made(verdict(device)), "{operation:?}"),
        SessionOp::UnlockDisk(UnlockDisk { device, .. }) => {
            let verdict = verdict(device);
            assert!(
                matches!(verdict, DiskVerdict::Keep | DiskVerdict::PartlyKept | DiskVerdict::Volumes),
                "{operation:?}"
            );
        }
        SessionOp::ResolveImage(_)
        | SessionOp::VerifyDefinition(_)
        | SessionOp::FindPrograms(_)
        | SessionOp::IdentifyDisk(_)
        | SessionOp::CheckContainers(_)
        | SessionOp::Rehearse(_)
        | SessionOp::AnnouncePointOfNoReturn(_)
        | SessionOp::CheckMigrationCanceled(_)
        | SessionOp::Mount(_)
        | SessionOp::MountReadOnly(_)
        | SessionOp::GrowFilesystem(_)
        | SessionOp::BurnImage(_)
        | SessionOp::WriteMachineFiles(_)
        | SessionOp::InjectFiles(_)
        | SessionOp::WriteK8sVolumeFiles(_)
        | SessionOp::Finish(_)
        | SessionOp::AdaptImage(_)
        | SessionOp::AdaptMoved(_)
        | SessionOp::Receive(_)
        | SessionOp::WriteFstab(_)
        | SessionOp::ExtendFstab(_)
        | SessionOp::WriteCrypttab(_)
        | SessionOp::FindBootLoader
        | SessionOp::RemoveVariables(_)
        | SessionOp::WriteBootEntries(_)
        | SessionOp::LoadKernel(_)
        | SessionOp::ProvePreserved(_)
        | SessionOp::WriteMarker(_)
        | SessionOp::Unmount
        | SessionOp::FlushDisks(_)
        | SessionOp::Report(_)
        | SessionOp::Kexec => {}
    }
}

/// Asserts that a Kubernetes volume is prepared on a new device of the plan, on an otherwise unused blank disk, or in
/// the free space of a group on preserved disks, and that no other disk is written.
fn assert_prepares(volume: &CreateK8sVolume, plan: &Plan, inventory: &Inventory) {
    let brought = brought(plan);
    let disks: BTreeSet<&str> =
        volume.written_devices().into_iter().flat_map(|device| bottoms(plan, &brought, device)).collect();
    let verdict = |name: &str| plan.disks.iter().find(|disk| disk.name == name).unwrap().verdict;
    assert!(!disks.is_empty(), "{volume:?}");
    for disk in disks {
        let found = inventory.disks.iter().find(|found| found.name == disk).unwrap();
        match verdict(disk) {
            DiskVerdict::Wipe | DiskVerdict::Make => {}
            DiskVerdict::Volumes => {
                assert!(volume.must_be_blank && found.blank && found.device == volume.device, "{volume:?}");
                let others = plan.volumes.iter().filter(|other| other.disks.iter().any(|name| name == disk));
                assert_eq!(others.count(), 1, "{volume:?}");
            }
            DiskVerdict::Keep => {
                let create = volume.create.as_ref().unwrap_or_else(|| panic!("{volume:?}"));
                let group = inventory.groups.iter().find(|group| group.name == create.group).unwrap();
                assert!(group.volumes.iter().all(|volume| volume.name != create.name), "{volume:?}");
                assert!(create.size.as_mib().unwrap() * MIB <= group.free_bytes.unwrap(), "{volume:?}");
            }
            DiskVerdict::PartlyKept | DiskVerdict::NotOurs => panic!("{volume:?} on {disk}, which is foreign"),
        }
    }
}

/// Asserts that a released device is on a wiped disk, or was assembled for inspection and is not on preserved disks
/// only.
fn assert_release(holder: &DiskHolder, inventory: &Inventory, verdict: impl Fn(&str) -> DiskVerdict) {
    let device = match holder {
        DiskHolder::Swap { device }
        | DiskHolder::Array { device }
        | DiskHolder::Mapping { device }
        | DiskHolder::Volume { device, .. }
        | DiskHolder::Bcache { device } => device,
    };
    let stack = DeviceStack::new(inventory);
    let disks = stack.disks_below(&stack.kernel_name(&device.as_str().into()));
    let verdicts: Vec<DiskVerdict> = disks.iter().map(|disk| verdict(disk)).collect();
    let assembled = inventory.stacked.iter().any(|stacked| stacked.device == *device && stacked.assembled);
    let restore_contents = assembled && verdicts.iter().any(|verdict| *verdict != DiskVerdict::Keep);
    assert!(verdicts.contains(&DiskVerdict::Wipe) || restore_contents, "{holder:?} on {verdicts:?}");
}

fn assert_wipe(wipe: &WipeDisk, inventory: &Inventory) {
    let disk = inventory.find_disk(wipe.device.as_str()).unwrap();
    assert!(wipe.zero.iter().chain(&wipe.first).all(|range| range.start + range.length <= disk.size_bytes));
    assert!(wipe.zero.windows(2).all(|pair| pair[0].start + pair[0].length < pair[1].start));
    // The boot sector is zeroed before anything that a booted system would need.
    assert_eq!(wipe.first[0], ByteRange { start: 0, length: u64::from(disk.sector_bytes) });
    for part in disk.table.iter().flat_map(|table| &table.partitions) {
        let ends_before = |range: &ByteRange| range.start + range.length <= part.start_bytes;
        let begins_behind = |range: &ByteRange| range.start >= part.start_bytes + part.size_bytes;
        assert!(wipe.first[1..].iter().all(|range| ends_before(range) || begins_behind(range)), "{wipe:?}");
    }
}

fn assert_table(table: &PartitionTable, disk: &inventory::InventoryDisk) {
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
    // The backup GPT needs 16384 bytes for the entries, and one sector for the header.
    assert!(next * sector + 16384 + sector <= disk.size_bytes);
}

/// Asserts that the image is written to this disk, and that its mounted and grown filesystems are on this disk.
fn assert_burn(burn: &BurnDisk, disk: &inventory::InventoryDisk) {
    assert_eq!((burn.size_bytes, burn.sector_bytes), (disk.size_bytes, disk.sector_bytes));
    assert!(!burn.filesystems.is_empty());
    assert!(
        burn.filesystems.iter().all(|filesystem| filesystem.device == disk.device.partition_path(filesystem.number)),
        "{burn:?}"
    );
    let is_listed = |number: u32| burn.filesystems.iter().any(|filesystem| filesystem.number == number);
    assert!(burn.grow.is_none_or(is_listed), "{burn:?}");
}

fn assert_parents_first(plan: &Plan) {
    let operations = plan.stages.iter().flat_map(|stage| &stage.operations);
    let mounts = operations.filter_map(|operation| effect(operation).mounted);
    let mounted: Vec<&str> = mounts.map(|mount| mount.path.as_str()).collect();
    let listed: Vec<&str> = plan.fstab.iter().map(|entry| entry.path.as_str()).collect();
    for paths in [mounted, listed] {
        for (index, path) in paths.iter().enumerate() {
            assert!(paths[..index].iter().all(|earlier| !earlier.starts_with(&format!("{path}/"))), "{paths:?}");
        }
    }
}
