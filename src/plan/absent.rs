//! Disks of the layout that are not in the machine. A reinstall goes on without one where everything that lies on it has
//! copies elsewhere, and says so.

use super::devices::{Device, Fate};
use super::verdict::Deciding;
use crate::layout::{self, RaidLevel, partition_device};
use crate::problem::Problem;

/// A disk that is not there.
pub struct Absent {
    /// Which one, and what is there instead.
    message: String,
    /// Who cannot do without it.
    needed: Vec<String>,
}

impl Absent {
    pub fn new(message: String) -> Absent {
        Absent { message, needed: Vec::new() }
    }
}

impl Deciding<'_> {
    /// What the layout puts on the disk is known, so that others can be asked whether they do without it.
    pub fn note_absent(&mut self, index: usize, disk: &layout::Disk) {
        for path in devices(disk) {
            let device = Device {
                now: path.clone(),
                path: path.clone(),
                fate: if disk.wipeonreinstall { Fate::Wiped } else { Fate::Kept },
                absent: Some(index),
                blank: false,
                size_bytes: None,
                most_bytes: 0,
                sector_bytes: 512,
                stripe_bytes: 0,
                content: Err("it is not there".to_owned()),
            };
            self.devices.insert(path, device);
        }
    }

    /// The disk of that device is needed after all.
    pub fn refuse_absent(&mut self, device: &Device, why: String) {
        if let Some(absent) = device.absent.and_then(|index| self.absent.get_mut(&index)) {
            absent.needed.push(why);
        }
    }

    /// Refuses what is needed, or has nothing on it that could stand in; warns about the others.
    pub fn decide_absent(&mut self) {
        for (index, absent) in std::mem::take(&mut self.absent) {
            let disk = &self.layout.disks[index];
            let arrays = self.layout.raid.iter().map(|raid| &raid.devices);
            let members: Vec<&String> =
                arrays.chain(self.layout.volumegroups.iter().map(|group| &group.devices)).flatten().collect();
            let leaves = devices(disk).skip(usize::from(!disk.partitions.is_empty()));
            let alone: Vec<String> = leaves.filter(|leaf| !members.contains(&leaf)).collect();
            let mut message = absent.message;
            if !alone.is_empty() || !absent.needed.is_empty() {
                let alone = alone.iter().map(|leaf| format!("nothing else has a copy of {leaf}"));
                let why: Vec<String> = alone.chain(absent.needed).collect();
                message = format!("{message}; {}", why.join("; "));
                self.decided.problems.push(Problem::new(format!("disks[{index}].device"), message));
            } else {
                self.warn(format!("{message}: what lies on it goes on WITHOUT it"));
            }
        }
    }
}

/// The disk and its partitions.
fn devices(disk: &layout::Disk) -> impl Iterator<Item = String> {
    let partitions = disk.partitions.iter().map(|partition| partition_device(&disk.device, partition.number));
    std::iter::once(disk.device.clone()).chain(partitions)
}

/// Are all data of an array there when these of its active members are not? Two copies of a RAID 10 lie on neighbours.
pub fn survives(level: RaidLevel, active: usize, missing: &[usize]) -> bool {
    match level {
        RaidLevel::Raid0 => missing.is_empty(),
        RaidLevel::Raid1 => missing.len() < active,
        RaidLevel::Raid5 => missing.len() <= 1,
        RaidLevel::Raid6 => missing.len() <= 2,
        RaidLevel::Raid10 => !missing.iter().any(|place| missing.contains(&((place + 1) % active.max(1)))),
    }
}
