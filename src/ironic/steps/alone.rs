//! Steps that are no part of a deploy's plan. Each has a plan of its own.

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

const NO_LOADER: &str = "drophammer makes the boot loader with the image, and no image was installed in this boot";

/// How a config drive is found.
const CONFIG_DRIVE: &str = "config-2";

impl Steps {
    /// All disks that are `wanted` become empty.
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

    /// An image of a whole disk. It needs no layout, and is not looked into.
    pub(super) fn write(&self, node: &Node, args: &Map<String, Value>) -> Result<Value> {
        if self.begun().is_some() {
            return Err(refused(
                "write_image has a disk for itself, and a layout was made in this boot: burn_image goes on from there",
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

    /// What makes the machine start from its disks: all of it was done with the image of a layout. Of an image as it is, the firmware
    /// is told now, for nobody knew before what it has.
    ///
    /// # Errors
    /// Nothing was installed in this boot, or what was written has nothing that this machine could start.
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
        let found = found.ok_or_else(|| refused(&format!("{disk}, which has the image, is not there any more")))?;
        let plan = plan::enter(&inventory, found, subject).map_err(|refusal| self.told(&refusal.to_string()))?;
        let Some(plan) = plan else {
            self.say(&format!(
                "{disk} has no GPT, of which an entry could name a partition: the firmware finds it by itself"
            ));
            return Ok(());
        };
        self.say(&plan.to_string());
        self.hands.run(&plan).inspect_err(|error| self.say(&error.to_string()))?;
        self.hands.leave(true);
        Ok(())
    }

    /// Files into what is whole: an installed system, or one that this deploy has finished.
    pub(super) fn inject(&self, node: &Node, args: &Map<String, Value>) -> Result<Value> {
        if !self.is_whole() {
            return Err(refused("files go into a system that is whole, and the deploy has not come to finish"));
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

/// The files of each filesystem, in the order in which they were named.
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
