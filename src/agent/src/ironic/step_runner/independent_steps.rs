//! Steps that do not belong to the plan of a deploy. Each of these steps has its own plan.

use super::super::deploy_args::{IronicNode, plan_refusal};
use super::super::inject_files::{self, FileDestination};
use super::super::root_disk::{self, CONFIG_DRIVE};
use super::super::{direct_deploy, skipped_disks};
use super::{StepRunner, step_refusal};
use common::error::Result;
use common::sync::lock_mutex;
use model::allocation::AssignedMachine;
use model::deploy_steps::EraseMode;
use model::device_name::{DevicePath, KernelName};
use model::inventory::{FirmwareType, Inventory, InventoryDisk};
use model::layout::root_device_hints;
use model::storage_graph::DeviceStack;
use operations::{AddedPartition, DiskIdentity, InjectedFile};
use plan::{PlanSubject, request_from_allocation};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

const IMAGE_NOT_INSTALLED: &str =
    "the boot loader cannot be installed, because no image was installed since this machine booted";

/// Whole-disk image that was written in this boot, and the disk to which it was written.
#[derive(Clone)]
pub(super) struct WrittenImage {
    pub(super) disk: DiskIdentity,
    subject: PlanSubject,
}

impl WrittenImage {
    /// Returns the disk to which the image was written.
    ///
    /// # Errors
    /// Fails if the disk is absent, or if its name now refers to another disk.
    fn find_disk<'a>(&self, inventory: &'a Inventory) -> Result<&'a InventoryDisk> {
        let device = &self.disk.device;
        match inventory.disks.iter().find(|disk| disk.device == *device) {
            Some(disk) if DiskIdentity::from_disk(disk) == self.disk => Ok(disk),
            Some(_) => Err(step_refusal(&format!(
                "{device} is no longer the disk to which the image was written: its size, serial number, WWN or sequence \
                 number (diskseq) has changed; write the image again"
            ))),
            None => Err(step_refusal(&format!("{device}, to which the image was written, is no longer present"))),
        }
    }

    /// Returns whether the device is on the disk to which the image was written.
    fn contains(&self, device: &DevicePath, inventory: &Inventory) -> bool {
        let stack = DeviceStack::new(inventory);
        let found = self.find_disk(inventory).ok();
        found.is_some_and(|disk| stack.disks_below(&stack.kernel_name(device)).contains(&disk.name))
    }
}

impl StepRunner {
    /// Erases all disks for which `wanted` returns true. Disks that are removable or attached by USB are erased only if
    /// `root_device` selects them.
    pub(super) fn erase_disks(
        &self,
        node: &IronicNode,
        erase: EraseMode,
        wanted: impl Fn(&Inventory, &InventoryDisk) -> bool,
    ) -> Result<Value> {
        self.drop_state();
        let inventory = self.actions.begin_step(None)?;
        let mut skipped = skipped_disks::find_skipped_disks(node, &inventory)?;
        let others = inventory.disks.iter().filter(|disk| !wanted(&inventory, disk));
        skipped.extend(others.map(|disk| disk.name.clone()));
        let (machine, name) = (node.uuid().to_owned(), node.name().to_owned());
        let subject = PlanSubject { machine, name, image: "nothing".to_owned(), url: String::new() };
        let owned = root_disk::find_portable_root_disks(node, &inventory);
        let part = plan::plan_erasure(&inventory, erase, &skipped, &owned, subject)
            .map_err(|refusal| self.log_refusal(&refusal))?;
        self.log_text(&part.to_string());
        let done = self.actions.run_part(&part).inspect_err(|error| self.log_text(&error.to_string()))?;
        self.actions.release_all(true);
        let portable = inventory.disks.iter().filter(|disk| root_device_hints::is_portable(disk));
        let portable = portable.map(|disk| &disk.name).filter(|name| !owned.contains(name));
        let left: BTreeSet<&str> = portable.chain(&skipped).map(KernelName::as_str).collect();
        Ok(json!({ "erased": done.erased, "left_alone": left }))
    }

    /// Writes a whole-disk image. The step does not require a layout, and does not inspect the contents of the image.
    pub(super) fn write_image(&self, node: &IronicNode, args: &Map<String, Value>) -> Result<Value> {
        if lock_mutex(&self.started).is_some() {
            return Err(step_refusal(
                "`write_image` requires a whole disk, but a layout was applied in this boot; continue with `burn_image`",
            ));
        }
        let (image, drive) = (direct_deploy::parse_image_info(args)?, direct_deploy::decode_config_drive(args)?);
        let inventory = self.actions.begin_step(None)?;
        let skipped = skipped_disks::find_skipped_disks(node, &inventory)?;
        let disk = root_disk::find_root_disk(node, &inventory, &skipped)?;
        let machine = AssignedMachine { name: node.name().to_owned(), ..AssignedMachine::default() };
        let request = request_from_allocation::build_request(
            &machine,
            node.uuid(),
            &direct_deploy::image_allocation(image),
            &self.consoles,
        );
        let added =
            drive.map(|content| AddedPartition { name: CONFIG_DRIVE.to_owned(), guid: Uuid::new_v4(), content });
        let plan = plan::plan_raw_image(&inventory, disk, &skipped, request, added)
            .map_err(|refusal| self.log_refusal(&refusal))?;
        self.log_text(&plan.to_string());
        // If this image is written only partly, no boot entry may be created for the image that was written before.
        *lock_mutex(&self.written) = None;
        let done = self.actions.run_part(&plan).inspect_err(|error| self.log_text(&error.to_string()))?;
        self.actions.release_all(true);
        let identity = DiskIdentity::from_disk(disk);
        *lock_mutex(&self.written) = Some(WrittenImage { disk: identity, subject: plan.subject.clone() });
        Ok(json!({ "disk": disk.device, "image": plan.subject.image, "burned": done.burn }))
    }

    /// Makes the machine boot from its disks. After an installation with a layout, nothing is done, because the boot
    /// loader is already installed. After a whole-disk image was written, this function creates the firmware's boot
    /// entry. The entry refers to a partition of the image, so it cannot be created before the image is written.
    ///
    /// # Errors
    /// Fails if nothing was installed in this boot, or if this machine cannot boot the written image.
    pub(crate) fn install_bootloader(&self, boots_by_bios: bool) -> Result<()> {
        let written = lock_mutex(&self.written).clone();
        let Some(written) = written else {
            return if self.root_and_esp_uuids().is_some() && self.is_complete_or_unstarted() {
                Ok(())
            } else {
                Err(step_refusal(IMAGE_NOT_INSTALLED))
            };
        };
        let inventory = self.actions.begin_step(None)?;
        if boots_by_bios || inventory.system.firmware != FirmwareType::Uefi {
            return Ok(());
        }
        let disk = written.find_disk(&inventory)?;
        let plan =
            plan::plan_boot_entry(&inventory, disk, written.subject).map_err(|refusal| self.log_refusal(&refusal))?;
        let Some(plan) = plan else {
            self.log_text(&format!(
                "{device} lacks a GPT, so no boot entry can refer to a partition; the firmware must find the boot loader by itself",
                device = disk.device
            ));
            return Ok(());
        };
        self.log_text(&plan.to_string());
        self.actions.run_part(&plan).inspect_err(|error| self.log_text(&error.to_string()))?;
        self.actions.release_all(true);
        Ok(())
    }

    /// Writes files into a complete installation.
    pub(super) fn inject_files(&self, node: &IronicNode, args: &Map<String, Value>) -> Result<Value> {
        if !self.is_complete_or_unstarted() {
            return Err(step_refusal(
                "files cannot be written yet, because the installation is incomplete: run the step `finish` first",
            ));
        }
        let files = inject_files::read_files(node, args, &|url| self.actions.fetch_file(url))?;
        let inventory = self.actions.begin_step(None)?;
        let skipped = skipped_disks::find_skipped_disks(node, &inventory)?;
        let written = lock_mutex(&self.written).clone();
        let mut plans = Vec::new();
        // The hints may match several disks, or another disk than before, so the disk is not searched again.
        let root = || match &written {
            Some(written) => written.find_disk(&inventory),
            None => root_disk::find_root_disk(node, &inventory, &skipped),
        };
        for (device, files) in group_by_device(node, &inventory, &root, written.as_ref(), files)? {
            let (machine, name) = (node.uuid().to_owned(), node.name().to_owned());
            let subject = PlanSubject { machine, name, image: "nothing".to_owned(), url: String::new() };
            let plan = plan::plan_injection(&inventory, &device, &skipped, files, subject);
            plans.push(plan.map_err(|refusal| self.log_refusal(&refusal))?);
        }
        for plan in &plans {
            self.log_text(&plan.to_string());
            self.actions.run_part(plan).inspect_err(|error| self.log_text(&error.to_string()))?;
        }
        self.actions.release_all(true);
        Ok(json!({ "filesystems": plans.len() }))
    }
}

/// Groups files by filesystem. The files of each filesystem keep their order. `root` returns the root disk.
fn group_by_device<'a>(
    node: &IronicNode,
    inventory: &Inventory,
    root: &dyn Fn() -> Result<&'a InventoryDisk>,
    written: Option<&WrittenImage>,
    files: Vec<(FileDestination, InjectedFile)>,
) -> Result<BTreeMap<DevicePath, Vec<InjectedFile>>> {
    let mut found: BTreeMap<DevicePath, Vec<InjectedFile>> = BTreeMap::new();
    for (place, file) in files {
        let device = match place {
            FileDestination::Device(device) => device,
            FileDestination::Number(number) => root()?.device.partition_path(number),
            FileDestination::Installed => find_installation(node, inventory, written)?,
        };
        found.entry(device).or_default().push(file);
    }
    Ok(found)
}

/// Returns the filesystem of this node's newest installation.
///
/// # Errors
/// Fails if the newest marker is not on the disk to which an image was written in this boot. An image of a whole disk
/// gets no marker, so such a marker belongs to an earlier installation, which the image was written to replace.
fn find_installation(node: &IronicNode, inventory: &Inventory, written: Option<&WrittenImage>) -> Result<DevicePath> {
    let device = inject_files::find_installation(node, inventory)?;
    match written {
        Some(written) if !written.contains(&device, inventory) => Err(plan_refusal(&format!(
            "the install marker of this node is on {device}, but an image was written to {disk} in this boot: specify \
             `partition` for each file, as a partition number or a device path",
            disk = written.disk.device,
        ))),
        _ => Ok(device),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After a disk was reconnected, its name may refer to another disk.
    #[test]
    fn written_image_is_found_only_on_its_own_disk() {
        let disk = InventoryDisk {
            name: "sdc".into(),
            device: "/dev/sdc".into(),
            serial: "C0".into(),
            size_bytes: 8 << 30,
            diskseq: 7,
            ..InventoryDisk::default()
        };
        let written = WrittenImage { disk: DiskIdentity::from_disk(&disk), subject: PlanSubject::default() };
        let found = |change: fn(&mut InventoryDisk)| {
            let mut disk = disk.clone();
            change(&mut disk);
            let inventory = Inventory { disks: vec![disk], ..Inventory::default() };
            written.find_disk(&inventory).map(|disk| disk.name.to_string()).map_err(|error| error.to_string())
        };
        assert_eq!(found(|disk| disk.by_path = "/dev/disk/by-path/pci-1".into()).unwrap(), "sdc");
        let changes: [fn(&mut InventoryDisk); 3] =
            [|disk| disk.serial = "D0".into(), |disk| disk.size_bytes += 1, |disk| disk.diskseq = 8];
        for change in changes {
            let error = found(change).unwrap_err();
            assert!(error.contains("no longer the disk to which the image was written"), "{error}");
        }
        let error = found(|disk| disk.device = "/dev/sdd".into()).unwrap_err();
        assert!(error.contains("is no longer present"), "{error}");
    }
}
