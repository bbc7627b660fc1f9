//! Disks of the layout that are absent from the machine. If all data on such a disk has a copy on other disks, a
//! reinstall continues without the disk and adds a warning.

use super::planned_devices::{DeviceFate, PlannedDevice};
use super::planner_state::PlannerState;
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::device_name::LayoutPath;
use model::layout::preserved_objects::PreservedObjects;
use model::layout::{self, RaidLevel};

impl PlannerState<'_> {
    /// Registers the layout's devices on the absent disk, so that the planner can decide on the objects that use them:
    /// an array, for example, may work without one of its devices.
    pub fn register_absent_disk(&mut self, index: usize, disk: &layout::DiskSpec) {
        let preserved = PreservedObjects::from_graph(self.graph);
        for path in disk_devices(disk) {
            let is_preserved = !disk.wipeonreinstall || preserved.includes_device(&path);
            let device = PlannedDevice {
                now: path.as_device(),
                path: path.as_device(),
                fate: if is_preserved { DeviceFate::Preserved } else { DeviceFate::Wiped },
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

    /// Records why the plan cannot proceed without the absent disk below the device.
    pub(crate) fn refuse_absent(&mut self, device: &PlannedDevice, why: String) {
        if let Some(absent) = device.absent.and_then(|index| self.absent.get_mut(&index)) {
            absent.needed.push(why);
        }
    }

    /// Adds a problem for each absent disk that is required, or that contains data without a copy on other disks. Adds
    /// a warning for each other absent disk.
    pub(crate) fn decide_absent(&mut self) {
        for (index, absent) in std::mem::take(&mut self.absent) {
            let disk = &self.layout.disks[index];
            let leaves = disk_devices(disk).skip(usize::from(!disk.partitions.is_empty()));
            let alone: Vec<LayoutPath> = leaves.filter(|leaf| !self.graph.is_member(leaf)).collect();
            let mut message = absent.message;
            if !alone.is_empty() || !absent.needed.is_empty() {
                let alone = alone.iter().map(|leaf| format!("no other device has a copy of the data on {leaf}"));
                let why: Vec<String> = alone.chain(absent.needed).collect();
                message = format!("{message}; {}", why.join("; "));
                self.decided
                    .problems
                    .push(Diagnostic::new(format!("disks[{index}].device"), message).with_code(ErrorCode::DiskMissing));
            } else {
                self.warn(format!("{message}; arrays and volume groups on that disk continue WITHOUT this disk"));
            }
        }
    }
}

/// Returns the paths of the disk and its partitions in the layout.
fn disk_devices(disk: &layout::DiskSpec) -> impl Iterator<Item = LayoutPath> {
    let partitions = disk.partitions.iter().map(|partition| disk.device.partition_path(partition.number));
    std::iter::once(disk.device.clone()).chain(partitions)
}

/// Returns whether an array still has all of its data if these active members are missing. For RAID 10, any two
/// adjacent members may be the only two copies of a chunk.
pub(crate) fn has_all_data(level: RaidLevel, active: usize, missing: &[usize]) -> bool {
    match level {
        RaidLevel::Raid0 => missing.is_empty(),
        RaidLevel::Raid1 => missing.len() < active,
        RaidLevel::Raid5 => missing.len() <= 1,
        RaidLevel::Raid6 => missing.len() <= 2,
        RaidLevel::Raid10 => !missing.iter().any(|place| missing.contains(&((place + 1) % active.max(1)))),
    }
}
