//! Operations that are about a device alone.

use super::Installation;
use crate::control::wire::Erased;
use crate::error::{Error, Phase, Result};
use crate::plan::Operation;
use crate::storage::{erase, filesystem, gpt, lvm, raid, release, trial};

/// An operation that needs nothing of the others, and what it has to report.
pub(super) fn on_device(operation: &Operation, installation: &Installation) -> Result<Option<Erased>> {
    match operation {
        Operation::Release(holder) => release::release(holder)?,
        Operation::AssertFree { disks } => release::assert_free(disks)?,
        Operation::WipeDisk(disk) => {
            let erased = erase::wipe(disk)?;
            installation.reporter.say(&format!("{}: {}", erased.device, erased.proof));
            return Ok(Some(erased));
        }
        Operation::WriteTable(table) => gpt::write(table)?,
        Operation::CreateArray(array) => raid::create(array)?,
        Operation::CreateGroup(group) => lvm::create_group(group)?,
        Operation::CreateVolume(volume) => lvm::create_volume(volume)?,
        Operation::AssembleArray { device, uuid, members } => raid::assemble(device, *uuid, members)?,
        Operation::ActivateGroup { name, devices, volumes } => lvm::activate(name, volumes, devices)?,
        Operation::TryArray(array) => trial::array(array)?.iter().for_each(|note| installation.reporter.say(note)),
        Operation::TryFilesystem(filesystem) => {
            trial::filesystem(filesystem)?.iter().for_each(|note| installation.reporter.say(note));
        }
        Operation::MakeFilesystem(make) => filesystem::make(make)?,
        Operation::DeactivateGroup { name, devices } => lvm::deactivate(name, devices)?,
        Operation::StopArray { device } => raid::stop(device)?,
        other => return Err(Error::new(Phase::Storage, format!("{other:?} is not about a device alone"))),
    }
    Ok(None)
}
