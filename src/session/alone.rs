//! Operations on a single device.

use crate::error::Result;
use crate::facts::Erased;
use crate::plan::{ActivateGroup, AssembleArray, OnDevice};
use crate::report::Reporter;
use crate::storage::{erase, filesystem, gpt, luks, lvm, prepare, raid, release, trial, zeros};

/// Executes an operation. Returns its report.
pub(super) fn on_device(operation: &OnDevice, reporter: &Reporter) -> Result<Option<Erased>> {
    match operation {
        OnDevice::Release(holder) => release::release(holder)?,
        OnDevice::AssertFree { disks } => release::assert_free(disks)?,
        OnDevice::ProveZeros(proofs) => zeros::prove(proofs, &|line| reporter.say(line))?,
        OnDevice::WipeDisk(disk) => {
            let erased = erase::wipe(disk)?;
            reporter.say(&format!("{}: {}", erased.device, erased.proof));
            return Ok(Some(erased));
        }
        OnDevice::WriteTable(table) => gpt::write(table)?,
        OnDevice::CreateArray(array) => raid::create(array)?,
        OnDevice::CreateGroup(group) => lvm::create_group(group)?,
        OnDevice::CreateVolume(volume) => lvm::create_volume(volume)?,
        OnDevice::CreateContainer(container) => luks::create(container)?,
        OnDevice::OpenContainer(open) => luks::open(open, &open.container.device)?,
        OnDevice::CloseContainer { mapping } => luks::close(mapping)?,
        OnDevice::TakeDown { devices } => devices.iter().try_for_each(release::release_above)?,
        OnDevice::AssembleArray(AssembleArray { device, uuid, members }) => raid::assemble(device, *uuid, members)?,
        OnDevice::ActivateGroup(ActivateGroup { name, devices, volumes }) => lvm::activate(name, volumes, devices)?,
        OnDevice::TryArray(array) => trial::array(array)?.iter().for_each(|note| reporter.say(note)),
        OnDevice::TryFilesystem(filesystem) => {
            trial::filesystem(filesystem)?.iter().for_each(|note| reporter.say(note));
        }
        OnDevice::MakeFilesystem(make) => filesystem::make(make)?,
        OnDevice::PreparePersistent(volume) => prepare::prepare(volume)?,
        OnDevice::DeactivateGroup { name, devices } => lvm::deactivate(name, devices)?,
        OnDevice::StopArray { device } => raid::stop(device)?,
    }
    Ok(None)
}
