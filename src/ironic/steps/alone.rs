//! Steps that are no part of a deploy's plan. Each has a plan of its own.

use super::super::files::{self, Place};
use super::super::order::Node;
use super::super::{direct, disks};
use super::{Steps, refused};
use crate::allocation::Machine;
use crate::assigned;
use crate::device::{DevicePath, KernelName};
use crate::error::Result;
use crate::inventory::{Disk, Inventory};
use crate::plan::{self, AddedPartition, InjectedFile, Subject};
use crate::steps::Erase;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use uuid::Uuid;

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
        let left: BTreeSet<&str> = removable.chain(&skipped).map(KernelName::as_str).collect();
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
        self.has_written.store(true, Ordering::Relaxed);
        Ok(json!({ "disk": disk.device, "image": plan.subject.image, "burned": done.burn }))
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
            let plan = plan::inject(&inventory, &device, files, subject);
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
