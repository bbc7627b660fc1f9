//! Steps that do not belong to the plan of a deploy. Each of these steps has its own plan.

use super::super::deploy_args::{IronicNode, plan_refusal};
use super::super::inject_files::{self, FileDestination};
use super::super::{direct_deploy, skipped_disks};
use super::{StepRunner, step_refusal};
use common::error::Result;
use common::sync::lock_mutex;
use model::allocation::AssignedMachine;
use model::deploy_steps::EraseMode;
use model::device_name::{DevicePath, KernelName};
use model::inventory::{FirmwareType, Inventory, InventoryDisk};
use model::pool_machine_disks::ConnectedDisk;
use model::storage_graph::DeviceStack;
use operations::{AddedPartition, InjectedFile};
use plan::{PlanSubject, request_from_allocation};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

const IMAGE_NOT_INSTALLED: &str =
    "the boot loader cannot be installed, because no image was installed since this machine booted";

/// Partition name that identifies a config drive.
const CONFIG_DRIVE: &str = "config-2";

/// Whole-disk image that was written in this boot, and its disk.
#[derive(Clone)]
pub(super) struct WrittenImage {
    pub(super) disk: KernelName,
    /// Identity of the disk. After a disk was reconnected, another disk may have its kernel name.
    pub(super) identity: ConnectedDisk,
    pub(super) subject: PlanSubject,
}

impl WrittenImage {
    /// Returns whether the device is on the disk to which the image was written.
    fn contains(&self, device: &DevicePath, inventory: &Inventory) -> bool {
        let stack = DeviceStack::new(inventory);
        let found = self.find_disk(inventory);
        found.is_some_and(|disk| stack.disks_below(&stack.kernel_name(device)).contains(&disk.name))
    }

    fn find_disk<'a>(&self, inventory: &'a Inventory) -> Option<&'a InventoryDisk> {
        inventory.disks.iter().find(|disk| ConnectedDisk::from(*disk) == self.identity)
    }
}

impl StepRunner {
    /// Erases all disks for which `wanted` returns true.
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
        let part =
            plan::plan_erasure(&inventory, erase, &skipped, subject).map_err(|refusal| self.log_refusal(&refusal))?;
        self.log_text(&part.to_string());
        let done = self.actions.run_part(&part).inspect_err(|error| self.log_text(&error.to_string()))?;
        self.actions.release_all(true);
        let removable = inventory.disks.iter().filter(|disk| disk.removable).map(|disk| &disk.name);
        let left: BTreeSet<&str> = removable.chain(&skipped).map(KernelName::as_str).collect();
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
        let disk = direct_deploy::find_root_disk(node, &inventory, &skipped)?;
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
        let (name, identity) = (disk.name.clone(), ConnectedDisk::from(disk));
        *lock_mutex(&self.written) = Some(WrittenImage { disk: name, identity, subject: plan.subject.clone() });
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
        let disk = &written.disk;
        let found = written
            .find_disk(&inventory)
            .ok_or_else(|| step_refusal(&format!("{disk}, to which the image was written, is no longer present")))?;
        let plan =
            plan::plan_boot_entry(&inventory, found, written.subject).map_err(|refusal| self.log_refusal(&refusal))?;
        let Some(plan) = plan else {
            self.log_text(&format!(
                "{disk} lacks a GPT, so no boot entry can refer to a partition; the firmware must find the boot loader by itself"
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
        for (device, files) in group_by_device(node, &inventory, &skipped, written.as_ref(), files)? {
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

/// Groups files by filesystem. The files of each filesystem keep their order.
fn group_by_device(
    node: &IronicNode,
    inventory: &Inventory,
    skipped: &[KernelName],
    written: Option<&WrittenImage>,
    files: Vec<(FileDestination, InjectedFile)>,
) -> Result<BTreeMap<DevicePath, Vec<InjectedFile>>> {
    let mut found: BTreeMap<DevicePath, Vec<InjectedFile>> = BTreeMap::new();
    for (place, file) in files {
        let device = match place {
            FileDestination::Device(device) => device,
            FileDestination::Number(number) => {
                direct_deploy::find_root_disk(node, inventory, skipped)?.device.partition_path(number)
            }
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
            disk = written.disk,
        ))),
        _ => Ok(device),
    }
}
