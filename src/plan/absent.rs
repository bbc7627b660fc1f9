//! Disks of the layout that are absent from the machine. A reinstall continues without such a disk, with a warning, if everything on it has
//! a copy elsewhere.

use super::devices::{Device, Fate};
use super::verdict::Deciding;
use crate::device::LayoutPath;
use crate::layout::{self, RaidLevel};
use crate::problem::Problem;

/// A disk of the layout that is absent.
pub struct Absent {
    /// Name of the disk, and what is present instead.
    message: String,
    /// Reasons why objects need the disk.
    needed: Vec<String>,
}

impl Absent {
    pub fn new(message: String) -> Absent {
        Absent { message, needed: Vec::new() }
    }
}

impl Deciding<'_> {
    /// Registers the devices that the layout has on the absent disk, so that its dependents can check whether they survive without them.
    pub fn note_absent(&mut self, index: usize, disk: &layout::Disk) {
        for path in devices(disk) {
            let device = Device {
                now: path.as_device(),
                path: path.as_device(),
                fate: if disk.wipeonreinstall { Fate::Wiped } else { Fate::Kept },
                absent: Some(index),
                blank: false,
                size_bytes: None,
                most_bytes: 0,
                sector_bytes: 512,
                stripe_bytes: 0,
                content: Err("it is absent".to_owned()),
            };
            self.devices.insert(path, device);
        }
    }

    /// Adds a reason why the disk of that device is needed.
    pub fn refuse_absent(&mut self, device: &Device, why: String) {
        if let Some(absent) = device.absent.and_then(|index| self.absent.get_mut(&index)) {
            absent.needed.push(why);
        }
    }

    /// Refuses a disk that is needed or whose content has no copy elsewhere; warns about the others.
    pub fn decide_absent(&mut self) {
        for (index, absent) in std::mem::take(&mut self.absent) {
            let disk = &self.layout.disks[index];
            let leaves = devices(disk).skip(usize::from(!disk.partitions.is_empty()));
            let alone: Vec<LayoutPath> = leaves.filter(|leaf| !self.graph.is_member(leaf)).collect();
            let mut message = absent.message;
            if !alone.is_empty() || !absent.needed.is_empty() {
                let alone = alone.iter().map(|leaf| format!("nothing else has a copy of {leaf}"));
                let why: Vec<String> = alone.chain(absent.needed).collect();
                message = format!("{message}; {}", why.join("; "));
                self.decided.problems.push(Problem::new(format!("disks[{index}].device"), message));
            } else {
                self.warn(format!("{message}; arrays and volume groups on it continue WITHOUT it"));
            }
        }
    }
}

/// Returns the disk and its partitions.
fn devices(disk: &layout::Disk) -> impl Iterator<Item = LayoutPath> {
    let partitions = disk.partitions.iter().map(|partition| disk.device.partition(partition.number));
    std::iter::once(disk.device.clone()).chain(partitions)
}

/// Returns whether an array still has all data without these active members. RAID 10 stores the two copies on adjacent members.
pub fn survives(level: RaidLevel, active: usize, missing: &[usize]) -> bool {
    match level {
        RaidLevel::Raid0 => missing.is_empty(),
        RaidLevel::Raid1 => missing.len() < active,
        RaidLevel::Raid5 => missing.len() <= 1,
        RaidLevel::Raid6 => missing.len() <= 2,
        RaidLevel::Raid10 => !missing.iter().any(|place| missing.contains(&((place + 1) % active.max(1)))),
    }
}
