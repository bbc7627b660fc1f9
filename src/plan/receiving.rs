//! A machine that gets the system of another one: an installation whose image is that machine. The layout's disks are those that the
//! move names, all ids are those of the other machine, and its filesystems are received instead of made.
//!
//! | refused before the first write | |
//! |---|---|
//! | a filesystem of the layout that does not come, or comes as another one | nothing would fill it |
//! | a device that is smaller than that on the other machine, or has larger sectors | the filesystem does not fit |
//! | a device with smaller sectors, for a `vfat` or what is not known | it may count in sectors |
//! | an id that is on a disk which stays | the system would take the wrong one |
//! | a disk of the other machine among those that are wiped, by its table or its hardware's names | it is what is to be moved |
//! | volumes of Kubernetes | they do not come along |

use super::devices::Device;
use super::image::Way;
use super::marking::{named, table_guid};
use super::returning::Returning;
use super::verdict::{Decided, Deciding, decide};
use super::{
    Finishing, MakeFilesystem, Mode, OfRun, OnDevice, Operation, Receive, Received, Request, StageName, Subject,
    booting, staying,
};
use crate::carried::{Carried, CarriedFilesystem, Moving, Part};
use crate::device::{DevicePath, LayoutPath};
use crate::inventory::{self, Inventory};
use crate::layout::{self, Format, Layout, hints};
use crate::marker::{MarkedDisk, Marker};
use crate::problem::Problem;
use crate::steps::Steps;
use crate::text::bytes;
use std::borrow::Cow;
use std::collections::BTreeMap;
use uuid::Uuid;

impl Request {
    /// What another machine's system comes to this one by.
    pub fn receiving(&self) -> Option<&Moving> {
        self.assigned.allocation.moving.as_ref().filter(|moving| moving.part == Part::Receive)
    }

    fn carried(&self) -> Option<&Carried> {
        self.receiving()?.carried.as_ref()
    }
}

/// The layout with the disks that the move means, whatever they are called here.
pub fn meant<'a>(layout: &'a Layout, inventory: &Inventory, request: &Request) -> Cow<'a, Layout> {
    let Some(moving) = request.receiving() else { return Cow::Borrowed(layout) };
    let mut meant = layout.clone();
    for disk in &mut meant.disks {
        let Some(record) = record(moving, disk) else { continue };
        let mut hints = BTreeMap::new();
        let serial = record.comparable_serial().map(|_| &record.serial);
        let wwn = record.comparable_wwn().map(|_| &record.wwn);
        for (hint, value) in [("serial", serial), ("wwn", wwn), ("by_path", Some(&record.by_path))] {
            // Where it was is no matter, unless nothing else tells.
            let is_told =
                hint == "by_path" && !hints.is_empty() && hints::candidates(&hints, &inventory.disks).len() < 2;
            if let Some(value) = value.filter(|value| !value.is_empty() && !is_told) {
                hints.insert(hint.to_owned(), format!("s== {value}"));
            }
        }
        if !hints.is_empty() {
            disk.hints = hints;
        }
    }
    Cow::Owned(meant)
}

fn record<'a>(moving: &'a Moving, disk: &layout::Disk) -> Option<&'a MarkedDisk> {
    moving.disks.iter().find(|record| disk.device == record.device)
}

/// Of the layout as the control plane has it.
pub fn digest(layout: &Layout, request: &Request) -> String {
    let stored = request.receiving().and_then(|_| request.assigned.allocation.layout().ok());
    layout::digest(stored.as_ref().map_or(layout, |stored| &stored.layout))
}

impl Deciding<'_> {
    pub fn carried_filesystem(&self, device: &LayoutPath) -> Option<String> {
        let mut carried = self.request.carried()?.filesystems.iter();
        carried.find(|is| is.device == *device).map(|is| is.uuid.clone()).filter(|uuid| !uuid.is_empty())
    }

    pub fn carried_array(&self, device: &LayoutPath) -> Option<Uuid> {
        let mut carried = self.request.carried()?.arrays.iter();
        carried.find(|is| is.device == *device).map(|is| is.uuid)
    }

    pub fn carried_partition(&self, device: &LayoutPath) -> Option<Uuid> {
        let mut carried = self.request.carried()?.partitions.iter();
        carried.find(|is| is.device == *device).map(|is| is.guid)
    }

    pub fn decide_receiving(&mut self) {
        let Some(moving) = self.request.receiving() else { return };
        let Some(carried) = &moving.carried else {
            let message = "the other machine has not said what comes: start it into the ramdisk";
            return self.refuse("moving", message);
        };
        let volumes = &self.request.assigned.allocation.volumes;
        if !volumes.is_null() && volumes.as_array().is_none_or(|volumes| !volumes.is_empty()) {
            let message = "the allocation has volumes of Kubernetes, which do not come along: take them out of it first (drophammer volume rm)";
            self.refuse("moving", message);
        }
        self.compare_disks_meant(moving, &carried.marker);
        let before = sizes_before(self.layout, &carried.marker);
        let layout = self.layout;
        for (index, wanted) in layout.filesystems.iter().enumerate() {
            if wanted.format == Format::Tmpfs {
                continue;
            }
            let place = format!("filesystems[{index}]");
            let device = self.devices.get(&place, &wanted.device).filter(|device| device.absent.is_none());
            let Some(device) = device else { continue };
            let is_it = |is: &&CarriedFilesystem| is.device == wanted.device && is.format == wanted.format;
            let Some(was) = carried.filesystems.iter().find(is_it) else {
                let message = format!(
                    "{} is to have {} by the layout, and the other machine brings none: correct the layout, or that machine",
                    wanted.device, wanted.format
                );
                self.refuse(place, message);
                continue;
            };
            // Swap is made anew, as large as it gets.
            if was.format != Format::Swap {
                self.compare_room(&place, was, &device, before.get(index).copied().flatten());
                self.decided.received.push(Received {
                    name: wanted.device.clone(),
                    device: device.path.clone(),
                    format: was.format,
                    uuid: was.uuid.clone(),
                    size_bytes: was.size_bytes,
                });
            }
        }
    }

    /// The disks that the control plane means, and none of the machine whose system comes.
    fn compare_disks_meant(&mut self, moving: &Moving, marker: &Marker) {
        let layout = self.layout;
        for (index, listed) in layout.disks.iter().enumerate() {
            let place = format!("disks[{index}].device");
            if listed.image {
                let message = "a raw image is on this disk, and machines of raw images are not moved";
                self.refuse(format!("disks[{index}]"), message);
            }
            let Some(found) = self.found.get(&index).copied() else { continue };
            match record(moving, listed) {
                Some(record) if record.size_bytes != 0 && record.size_bytes != found.size_bytes => {
                    let message = format!(
                        "{} is to be a disk of {}, and {} has {}: choose the disks of the move again",
                        listed.device,
                        bytes(record.size_bytes),
                        found.device,
                        bytes(found.size_bytes)
                    );
                    self.refuse(place.clone(), message);
                }
                None if !moving.disks.is_empty() => {
                    let message = format!("the move does not say which disk of this machine is {}", listed.device);
                    self.refuse(place.clone(), message);
                }
                Some(_) | None => {}
            }
            let guid = table_guid(found);
            if guid.is_some() && marker.disks.iter().any(|disk| disk.guid == guid) {
                let message = format!(
                    "{} has the partition table of {}, whose system is to be moved: it is a disk of that machine, or a copy. Put it back; if it is a copy, erase it",
                    found.device, marker.machine
                );
                self.refuse(place, message);
                continue;
            }
            // Without a table too: what is whole a member of an array or a group has none.
            let here = named(found);
            if let Some((there, by)) = marker.disks.iter().find_map(|disk| Some((disk, disk.is_one_with(&here)?))) {
                let message = format!(
                    "{} has the {by} of {} of {}, whose system is to be moved: both machines reach that disk, or it was put in here. Put it back, or choose another disk of this machine for the move",
                    found.device, there.device, marker.machine
                );
                self.refuse(place, message);
            }
        }
    }

    fn compare_room(&mut self, place: &str, was: &CarriedFilesystem, device: &Device, before: Option<u64>) {
        // What md leaves of its members is known at least, and so only compared with the same guess for the other machine.
        let below = self.graph.below([&was.device]);
        let before = before.filter(|_| !below.arrays.is_empty());
        let disks = below.disks.iter().filter_map(|index| self.found.get(index));
        let disks: Vec<String> = disks.map(|disk| format!("{} ({})", disk.device, bytes(disk.size_bytes))).collect();
        let disks = disks.join(", ");
        let (here, there) = match (device.size_bytes, before) {
            (Some(here), _) if here >= was.size_bytes => (here, was.size_bytes),
            (Some(here), Some(before)) => (here, before),
            (Some(here), None) => (here, was.size_bytes),
            (None, _) => (device.most_bytes, was.size_bytes),
        };
        if here < there {
            let message = format!(
                "{} has {} ({here} bytes) here, on {disks}, and {} ({} bytes) on the other machine: its {} does not fit. Choose larger disks",
                was.device,
                bytes(here),
                bytes(was.size_bytes),
                was.size_bytes,
                was.format
            );
            self.refuse(place, message);
        } else if here > there && was.format.grows() {
            self.decided.larger.push(device.path.clone());
        }
        // What is not known, and a vfat, may count in sectors: then it cannot be read in smaller ones either.
        let counts_in_sectors = matches!(was.format, Format::Vfat | Format::None);
        let there = was.sector_bytes;
        let differs = device.sector_bytes != there;
        if device.sector_bytes > there || differs && counts_in_sectors {
            let message = format!(
                "{} has sectors of {} bytes here, on {disks}, and of {there} bytes on the other machine: its {} was made for these, and cannot be read in others. Choose disks with sectors of {there} bytes, or format an NVMe disk to them (nvme format)",
                was.device, device.sector_bytes, was.format
            );
            self.refuse(place, message);
        }
    }
}

/// What the layout's devices have on the other machine by the arithmetic by which they are planned here, in the order of its
/// filesystems.
fn sizes_before(layout: &Layout, marker: &Marker) -> Vec<Option<u64>> {
    let (mut layout, mut inventory) = (layout.clone(), Inventory::default());
    for (index, disk) in layout.disks.iter_mut().enumerate() {
        let Some(record) = marker.disks.iter().find(|record| disk.device == record.device) else { continue };
        let name = format!("there{index}");
        let device = format!("/dev/{name}");
        disk.hints = [("name".to_owned(), device.clone())].into();
        inventory.disks.push(inventory::Disk {
            name: name.into(),
            device: device.into(),
            size_bytes: record.size_bytes,
            sector_bytes: if record.sector_bytes == 0 { 512 } else { record.sector_bytes },
            ..inventory::Disk::default()
        });
    }
    let (steps, assigned) = (Steps::default(), Default::default());
    let request = Request { mode: Mode::Install, steps, subject: Subject::default(), assigned, claim: None };
    let decided = decide(&layout, &inventory, &request, &Default::default(), &mut || Uuid::nil());
    if !decided.problems.is_empty() {
        return Vec::new();
    }
    let size = |is: &super::FilesystemFate| decided.sizes.get(is.device()?).copied();
    decided.filesystems.iter().map(size).collect()
}

/// Ids that come, and that a disk has which stays.
pub fn taken(request: &Request, inventory: &Inventory, decided: &Decided) -> Vec<Problem> {
    let Some(carried) = request.carried() else { return Vec::new() };
    let taken = staying::uuids(inventory, &decided.disks);
    let filesystems = carried.filesystems.iter().map(|is| (&is.device, is.uuid.to_lowercase()));
    let arrays = carried.arrays.iter().map(|is| (&is.device, is.uuid.to_string()));
    let partitions = carried.partitions.iter().map(|is| (&is.device, is.guid.to_string()));
    let ids = filesystems.chain(arrays).chain(partitions);
    let problem = |(device, id): (&LayoutPath, String)| {
        let on: &DevicePath = taken.get(&id)?;
        let message = format!(
            "{device} brings the id {id}, which {on} has too, on a disk that stays: the moved system would not know which is which. Take that disk out, or erase it"
        );
        Some(Problem::new("moving", message))
    };
    ids.filter_map(problem).collect()
}

/// Of what is received nothing is made here, but for swap.
pub fn is_made_here(request: &Request, operation: &Operation) -> bool {
    let is_swap = match operation {
        Operation::Device(OnDevice::MakeFilesystem(MakeFilesystem { format, .. })) => *format == Format::Swap,
        Operation::Device(OnDevice::TryFilesystem(trial)) => trial.make.format == Format::Swap,
        _ => true,
    };
    is_swap || request.receiving().is_none()
}

/// In the place of an image.
pub fn way(moving: &Moving, decided: &Decided, returning: &Returning, finishing: Box<Finishing>) -> Way {
    let machine = moving.carried.as_ref().map(|carried| carried.marker.machine.clone()).unwrap_or_default();
    let receive = Receive { order: moving.order.clone(), machine, devices: decided.received.clone() };
    let mounts = returning.before_the_image().into_iter().flat_map(|mount| {
        let grow = match &mount {
            Operation::Run(OfRun::Mount(mount)) if decided.larger.contains(&mount.device) => {
                Some(Operation::Run(OfRun::GrowFilesystem(mount.clone())))
            }
            _ => None,
        };
        [Some(mount), grow].into_iter().flatten()
    });
    Way {
        first: (StageName::MoveCopy, vec![Operation::Run(OfRun::Receive(receive))]),
        second: (StageName::StorageMount, mounts.collect()),
        entries: booting::entries_of_moved(&finishing),
        installer: Operation::Run(OfRun::AdaptMoved(finishing)),
        fstab: Vec::new(),
    }
}
