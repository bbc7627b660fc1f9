//! Steps that are not part of a deploy's plan. Each has its own plan.

use super::super::files::{self, Place};
use super::super::order::Node;
use super::super::{direct, disks};
use super::{Steps, Written, refused};
use crate::allocation::Machine;
use crate::assigned;
use crate::device::{DevicePath, KernelName};
use crate::error::Result;
use crate::inventory::{Disk, Firmware, Inventory};
use crate::order::Gather;
use crate::plan::{self, AddedPartition, InjectedFile, Subject};
use crate::steps::Erase;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

const NO_LOADER: &str = "the boot loader is installed with the image, but no image was installed in this boot";

/// Partition name by which a config drive is found.
const CONFIG_DRIVE: &str = "config-2";

impl Steps {
    /// Erases all disks for which `wanted` returns true.
    pub(super) fn erase(&self, node: &Node, erase: Erase, wanted: impl Fn(&Inventory, &Disk) -> bool) -> Result<Value> {
        self.forget();
        let inventory = self.hands.begin(None)?;
        let mut skipped = disks::skipped(node, &inventory)?;
        let others = inventory.disks.iter().filter(|disk| !wanted(&inventory, disk));
        skipped.extend(others.map(|disk| disk.name.clone()));
        let (machine, name) = (node.uuid().to_owned(), node.name().to_owned());
        let subject = Subject { machine, name, image: "nothing".to_owned(), url: String::new() };
        let part =
            plan::erase(&inventory, erase, &skipped, subject).map_err(|refusal| self.told(&refusal.to_string()))?;
        self.say(&part.to_string());
        let done = self.hands.run(&part).inspect_err(|error| self.say(&error.to_string()))?;
        self.hands.leave(true);
        let removable = inventory.disks.iter().filter(|disk| disk.removable).map(|disk| &disk.name);
        let left: BTreeSet<&str> = removable.chain(&skipped).map(KernelName::as_str).gather();
        Ok(json!({ "erased": done.erased, "left_alone": left }))
    }

    /// Writes a whole-disk image. It requires no layout and is not inspected.
    pub(super) fn write(&self, node: &Node, args: &Map<String, Value>) -> Result<Value> {
        if self.begun().is_some() {
            return Err(refused(
                "write_image requires a whole disk, but a layout was applied in this boot; continue with burn_image",
            ));
        }
        let (image, drive) = (direct::image(args)?, direct::drive(args)?);
        let inventory = self.hands.begin(None)?;
        let skipped = disks::skipped(node, &inventory)?;
        let disk = direct::root_disk(node, &inventory, &skipped)?;
        let machine = Machine { name: node.name().to_owned(), ..Machine::default() };
        let request = assigned::request(&machine, node.uuid(), &direct::allocation(image), &self.consoles);
        let added =
            drive.map(|content| AddedPartition { name: CONFIG_DRIVE.to_owned(), guid: Uuid::new_v4(), content });
        let plan = plan::write(&inventory, disk, &skipped, request, added)
            .map_err(|refusal| self.told(&refusal.to_string()))?;
        self.say(&plan.to_string());
        let done = self.hands.run(&plan).inspect_err(|error| self.say(&error.to_string()))?;
        self.hands.leave(true);
        *self.written() = Some(Written { disk: disk.name.clone(), subject: plan.subject.clone() });
        Ok(json!({ "disk": disk.device, "image": plan.subject.image, "burned": done.burn }))
    }

    /// Makes the machine boot from its disks. For the image of a layout this is already done. For a whole-disk image the firmware's boot
    /// entry is created now, since the image's contents were not known before.
    ///
    /// # Errors
    /// Refuses if nothing was installed in this boot, or the written image contains nothing that this machine could boot.
    pub fn install_bootloader(&self, boots_by_bios: bool) -> Result<()> {
        let written = self.written().clone();
        let Some(Written { disk, subject }) = written else {
            return if self.made().is_some() && self.is_whole() { Ok(()) } else { Err(refused(NO_LOADER)) };
        };
        let inventory = self.hands.begin(None)?;
        if boots_by_bios || inventory.system.firmware != Firmware::Uefi {
            return Ok(());
        }
        let found = inventory.disks.iter().find(|found| found.name == disk);
        let found =
            found.ok_or_else(|| refused(&format!("{disk}, to which the image was written, is no longer present")))?;
        let plan = plan::enter(&inventory, found, subject).map_err(|refusal| self.told(&refusal.to_string()))?;
        let Some(plan) = plan else {
            self.say(&format!(
                "{disk} lacks a GPT, so no boot entry can refer to a partition; the firmware must find it by itself"
            ));
            return Ok(());
        };
        self.say(&plan.to_string());
        self.hands.run(&plan).inspect_err(|error| self.say(&error.to_string()))?;
        self.hands.leave(true);
        Ok(())
    }

    /// Writes files into a complete installation.
    pub(super) fn inject(&self, node: &Node, args: &Map<String, Value>) -> Result<Value> {
        if !self.is_whole() {
            return Err(refused(
                "files can only be written to a complete installation, but the deploy has not reached the step finish",
            ));
        }
        let files = files::read(node, args, &|url| self.hands.fetch(url))?;
        let inventory = self.hands.begin(None)?;
        let skipped = disks::skipped(node, &inventory)?;
        let mut plans = Vec::new();
        for (device, files) in by_device(node, &inventory, &skipped, files)? {
            let (machine, name) = (node.uuid().to_owned(), node.name().to_owned());
            let subject = Subject { machine, name, image: "nothing".to_owned(), url: String::new() };
            let plan = plan::inject(&inventory, &device, &skipped, files, subject);
            plans.push(plan.map_err(|refusal| self.told(&refusal.to_string()))?);
        }
        for plan in &plans {
            self.say(&plan.to_string());
            self.hands.run(plan).inspect_err(|error| self.say(&error.to_string()))?;
        }
        self.hands.leave(true);
        Ok(json!({ "filesystems": plans.len() }))
    }
}

/// Groups files by filesystem, in the given order.
fn by_device(
    node: &Node,
    inventory: &Inventory,
    skipped: &[KernelName],
    files: Vec<(Place, InjectedFile)>,
) -> Result<BTreeMap<DevicePath, Vec<InjectedFile>>> {
    let mut found: BTreeMap<DevicePath, Vec<InjectedFile>> = BTreeMap::new();
    for (place, file) in files {
        let device = match place {
            Place::Device(device) => device,
            Place::Number(number) => direct::root_disk(node, inventory, skipped)?.device.partition(number),
            Place::Installed => files::installed(node, inventory)?,
        };
        found.entry(device).or_default().push(file);
    }
    Ok(found)
}
