//! Operations on a single device.

use crate::report::ProgressReporter;
use common::error::Result;
use linux::storage::{
    creation_trial, disk_erase, k8s_volume_preparation, luks, lvm, mdadm, mkfs, partition_table, partition_table_edit,
    range_clearing, teardown, zero_verification,
};
use model::install_report::ErasedDisk;
use operations::{
    ActivateGroup, AssembleArray, AssertFree, CloseContainer, DeactivateGroup, DeviceOp, Operation, ProveZeros,
    StageName, StopArray, StopInspectedDevices,
};
use plan::Plan;

/// Checks, before the stages `storage.lock` and `storage.wipe`, that all planned edits of partition tables are
/// possible. Without this check, the contents of partitions would already be destroyed when an edit is refused.
pub(super) fn check_table_edits(plan: &Plan, before: StageName) -> Result<()> {
    if !matches!(before, StageName::StorageLock | StageName::StorageWipe) {
        return Ok(());
    }
    let mut edits = plan.stages.iter().flat_map(|stage| &stage.operations).filter_map(|operation| match operation {
        Operation::Device(DeviceOp::EditTable(edit)) => Some(edit),
        _ => None,
    });
    edits
        .try_for_each(partition_table_edit::check_table_edit)
        .map_err(|error| error.with_default_code(StageName::StoragePartition.error_code()))
}

/// Executes an operation. For an operation that erases a disk, returns a record of the erasure.
pub(super) fn run_device_op(operation: &DeviceOp, reporter: &ProgressReporter) -> Result<Option<ErasedDisk>> {
    match operation {
        DeviceOp::Release(release) => teardown::release_holder(&release.0)?,
        DeviceOp::AssertFree(AssertFree { disks }) => teardown::verify_unused(disks)?,
        DeviceOp::ProveZeros(ProveZeros(proofs)) => {
            zero_verification::verify_all_zero(proofs, &|line| reporter.print_line(line))?
        }
        DeviceOp::WipeDisk(disk) => {
            let erased = disk_erase::wipe_disk(disk)?;
            reporter.print_line(&format!("{}: {}", erased.device, erased.proof));
            return Ok(Some(erased));
        }
        DeviceOp::ClearRanges(clear) => range_clearing::clear_ranges(clear)?,
        DeviceOp::EditTable(edit) => {
            partition_table_edit::edit_partition_table(edit)?;
        }
        DeviceOp::WriteTable(table) => partition_table::write_partition_table(table)?,
        DeviceOp::CreateArray(array) => mdadm::create_array(array)?,
        DeviceOp::CreateGroup(group) => lvm::create_group(group)?,
        DeviceOp::RemoveVolumes(remove) => lvm::remove_volumes(remove)?,
        DeviceOp::CreateVolume(volume) => lvm::create_volume(volume)?,
        DeviceOp::CreateContainer(creation) => luks::create_container(&creation.0)?,
        DeviceOp::OpenContainer(open) => luks::open_container(open, &open.container.device)?,
        DeviceOp::CloseContainer(CloseContainer { mapping }) => luks::close_mapping(mapping)?,
        DeviceOp::StopInspectedDevices(StopInspectedDevices { devices }) => {
            devices.iter().try_for_each(teardown::release_above)?
        }
        DeviceOp::AssembleArray(AssembleArray { device, uuid, members }) => {
            mdadm::assemble_array(device, *uuid, members)?
        }
        DeviceOp::ActivateGroup(ActivateGroup { name, devices, volumes }) => {
            lvm::activate_volumes(name, volumes, devices)?
        }
        DeviceOp::TryArray(array) => {
            creation_trial::try_array(array)?.iter().for_each(|note| reporter.print_line(note))
        }
        DeviceOp::TryFilesystem(filesystem) => {
            creation_trial::try_filesystem(filesystem)?.iter().for_each(|note| reporter.print_line(note));
        }
        DeviceOp::MakeFilesystem(make) => mkfs::make_filesystem(make)?,
        DeviceOp::CreateK8sVolume(volume) => k8s_volume_preparation::prepare_volume(volume)?,
        DeviceOp::DeactivateGroup(DeactivateGroup { name, devices }) => lvm::deactivate_group(name, devices)?,
        DeviceOp::StopArray(StopArray { device }) => mdadm::stop_array(device)?,
    }
    Ok(None)
}
