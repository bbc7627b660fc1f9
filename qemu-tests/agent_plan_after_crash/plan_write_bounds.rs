//! Limits of a plan: the agent may write anywhere on completely wiped disks, but on other disks only to the announced
//! extents.

use super::{BOOT, REINSTALL, is_on};
use crate::crash_record::ReinstallRecord;
use crate::crash_states::ByteRanges;
use model::allocation::{Allocation, AssignedMachine, OrderedReinstall};
use model::device_name::DevicePath;
use model::inventory::Inventory;
use model::layout::Layout;
use operations::{DeviceOp, GrowFilesystem, Operation, SessionOp};
use plan::{DiskVerdict, InstallMode, Plan, PlanRequest, request_from_allocation};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use uuid::Uuid;

/// Builds the agent's plan request from this response of the server.
fn build_request(
    machine: &AssignedMachine,
    allocation: &Allocation,
    layout: &Layout,
    found: &Inventory,
) -> PlanRequest {
    let mut allocation = allocation.clone();
    request_from_allocation::clear_begun_if_intact(&machine.id, &mut allocation, layout, found);
    request_from_allocation::build_request(machine, &machine.id, &allocation, &[])
}

/// Limits of a plan. The plan may write anywhere on completely wiped disks, and on other disks only to the extents that
/// the recorded agent has announced.
pub struct PlanBounds {
    /// Names of the disks that the reinstall wipes, completely or except for preserved partitions.
    pub wiped: Vec<String>,
    /// Preserved partitions on wiped disks.
    preserved: Vec<DevicePath>,
    /// Extents that the recorded agent has announced, by disk.
    pub open: BTreeMap<String, ByteRanges>,
}

impl PlanBounds {
    /// Derives the limits from the announcement at the point of no return.
    pub fn new(record: &ReinstallRecord, layout: &Layout) -> PlanBounds {
        let disks = || layout.disks.iter().filter(|disk| disk.wipeonreinstall);
        let wiped = disks().map(|disk| disk.device.as_str().trim_start_matches("/dev/").to_owned()).collect();
        let preserved = disks().flat_map(|disk| {
            let partitions = disk.partitions.iter().filter(|partition| partition.preserve);
            partitions.map(|partition| disk.device.partition_path(partition.number).as_device())
        });
        let preserved = preserved.collect();
        let groups = record.announced["extents"].as_array().into_iter().flatten();
        let disks: Vec<&Value> = groups.flat_map(|group| group["disks"].as_array().into_iter().flatten()).collect();
        let open = record.disks.iter().map(|name| {
            let own = disks.iter().filter(|disk| disk["device"] == format!("/dev/{name}"));
            let ranges = own.flat_map(|disk| disk["ranges"].as_array().into_iter().flatten());
            let ranges = ranges.filter_map(|range| Some((range["start"].as_u64()?, range["length"].as_u64()?)));
            (name.clone(), ByteRanges::new(ranges))
        });
        PlanBounds { wiped, preserved, open: open.collect() }
    }

    /// Returns whether the reinstall may write anywhere on the disk.
    pub fn is_completely_wiped(&self, name: &str) -> bool {
        self.wiped.iter().any(|wiped| wiped == name)
            && !self.preserved.iter().any(|device| is_on(device.as_str(), name))
    }

    /// Returns the next action of the agent, or a description of the violated limit.
    pub fn check_plan(
        &self,
        machine: &AssignedMachine,
        layout: &Layout,
        found: &Inventory,
    ) -> std::result::Result<String, String> {
        let allocation = machine.allocation.as_ref().ok_or("the server has no allocation")?;
        match plan::make_plan(layout, found, build_request(machine, allocation, layout, found), &mut Uuid::new_v4) {
            Err(refusal) => {
                Ok(format!("refuse: {}", refusal.problems.first().map(ToString::to_string).unwrap_or_default()))
            }
            Ok(plan) => match self.find_violation(&plan) {
                Some(words) => Err(words),
                None if plan.already.is_some() => Ok(BOOT.to_owned()),
                None if plan.mode == InstallMode::Reinstall => Ok(REINSTALL.to_owned()),
                None => Err("it would install an allocation that is already installed".to_owned()),
            },
        }
    }

    fn find_violation(&self, plan: &Plan) -> Option<String> {
        let is_wiped = |device: &DevicePath| {
            !self.preserved.contains(device) && self.wiped.iter().any(|name| is_on(device.as_str(), name))
        };
        let disks = plan.disks.iter().filter(|disk| !self.is_completely_wiped(disk.name.as_str()));
        let mut disks = disks.filter(|disk| matches!(disk.verdict, DiskVerdict::Wipe | DiskVerdict::Make));
        if let Some(disk) = disks.next() {
            return Some(format!("{} would be {:?}", disk.device, disk.verdict));
        }
        for operation in plan.stages.iter().flat_map(|step| &step.operations) {
            let others = list_targets(operation).into_iter().find(|device| !is_wiped(device));
            if let Some(device) = others {
                return Some(format!("{device} would be written: {operation:?}"));
            }
        }
        for extents in plan.extents.iter().flat_map(|extents| &extents.disks) {
            let name = extents.device.as_str().trim_start_matches("/dev/");
            if self.is_completely_wiped(name) {
                continue;
            }
            let ranges = ByteRanges::new(extents.ranges.iter().map(|range| (range.start, range.length)));
            let open = self.open.get(name).cloned().unwrap_or_default();
            if let Some((start, length)) = ranges.exclude_ranges(&open).iter().next() {
                return Some(format!("{length} bytes at {start} of {name} would be writable"));
            }
        }
        None
    }
}

/// Returns the devices on which an operation creates an object.
fn list_targets(operation: &Operation) -> Vec<&DevicePath> {
    match operation {
        Operation::Device(operation) => list_device_targets(operation),
        Operation::Run(operation) => list_session_targets(operation),
    }
}

fn list_device_targets(operation: &DeviceOp) -> Vec<&DevicePath> {
    match operation {
        DeviceOp::WipeDisk(wipe) => vec![&wipe.device],
        DeviceOp::WriteTable(table) => vec![&table.device],
        DeviceOp::ClearRanges(clear) => vec![&clear.device],
        DeviceOp::EditTable(edit) => vec![&edit.device],
        DeviceOp::CreateArray(array) => array.present_devices().collect(),
        DeviceOp::CreateGroup(group) => group.devices.iter().collect(),
        DeviceOp::RemoveVolumes(remove) => remove.physical.iter().collect(),
        DeviceOp::CreateVolume(volume) => volume.physical.iter().collect(),
        DeviceOp::CreateContainer(creation) => vec![&creation.0.device],
        DeviceOp::MakeFilesystem(make) => vec![&make.device],
        DeviceOp::CreateK8sVolume(volume) => volume.written_devices(),
        DeviceOp::Release(_)
        | DeviceOp::AssertFree(_)
        | DeviceOp::StopInspectedDevices(_)
        | DeviceOp::ProveZeros(_)
        | DeviceOp::AssembleArray(_)
        | DeviceOp::ActivateGroup(_)
        | DeviceOp::OpenContainer(_)
        | DeviceOp::CloseContainer(_)
        | DeviceOp::TryArray(_)
        | DeviceOp::TryFilesystem(_)
        | DeviceOp::DeactivateGroup(_)
        | DeviceOp::StopArray(_) => Vec::new(),
    }
}

fn list_session_targets(operation: &SessionOp) -> Vec<&DevicePath> {
    match operation {
        SessionOp::BurnDisk(burn) => vec![&burn.device],
        SessionOp::CreateSystem(create) => create.disks.iter().collect(),
        SessionOp::GrowFilesystem(GrowFilesystem(grow)) => vec![&grow.device],
        SessionOp::Receive(receive) => receive.devices.iter().map(|received| &received.device).collect(),
        SessionOp::ResolveImage(_)
        | SessionOp::VerifyDefinition(_)
        | SessionOp::FindPrograms(_)
        | SessionOp::IdentifyDisk(_)
        | SessionOp::CheckContainers(_)
        | SessionOp::LockDisk(_)
        | SessionOp::UnlockDisk(_)
        | SessionOp::Rehearse(_)
        | SessionOp::AnnouncePointOfNoReturn(_)
        | SessionOp::CheckMigrationCanceled(_)
        | SessionOp::Mount(_)
        | SessionOp::MountReadOnly(_)
        | SessionOp::BurnImage(_)
        | SessionOp::WriteMachineFiles(_)
        | SessionOp::InjectFiles(_)
        | SessionOp::Finish(_)
        | SessionOp::AdaptImage(_)
        | SessionOp::AdaptMoved(_)
        | SessionOp::WriteK8sVolumeFiles(_)
        | SessionOp::WriteFstab(_)
        | SessionOp::ExtendFstab(_)
        | SessionOp::WriteCrypttab(_)
        | SessionOp::RemoveVariables(_)
        | SessionOp::WriteBootEntries(_)
        | SessionOp::LoadKernel(_)
        | SessionOp::ProvePreserved(_)
        | SessionOp::WriteMarker(_)
        | SessionOp::Unmount
        | SessionOp::FlushDisks(_)
        | SessionOp::Report(_)
        | SessionOp::FindBootLoader
        | SessionOp::Kexec => Vec::new(),
    }
}

pub(super) fn test_plan_checks() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata");
    let text = fs::read_to_string(folder.join("inventories/installed-default.json")).expect("an inventory");
    let found: Inventory = serde_json::from_str(&text).expect("an inventory");
    let layout = fs::read_to_string(folder.join("layouts/default.yaml")).expect("a layout");
    let layout = model::layout::read_yaml(&layout).expect("a layout").layout;
    let bounds = |wiped: &[&str]| PlanBounds {
        wiped: wiped.iter().map(|name| (*name).to_owned()).collect(),
        preserved: Vec::new(),
        open: BTreeMap::new(),
    };
    let order = OrderedReinstall {
        id: "o".to_owned(),
        attempt: 1,
        attempts: 3,
        without_marker: true,
        ..OrderedReinstall::default()
    };
    let machine = |reinstall, order: Option<OrderedReinstall>| AssignedMachine {
        id: "m".to_owned(),
        allocation: Some(Allocation { id: "a".to_owned(), reinstall, order, ..Allocation::default() }),
        ..AssignedMachine::default()
    };
    let ordered = machine(true, Some(OrderedReinstall { started: true, ..order }));
    assert_eq!(bounds(&["sda"]).check_plan(&ordered, &layout, &found), Ok(REINSTALL.to_owned()));
    let beyond = bounds(&[]).check_plan(&ordered, &layout, &found);
    assert!(beyond.as_ref().is_err_and(|words| words.contains("/dev/sda would be")), "{beyond:?}");
    let forgotten = bounds(&["sda"]).check_plan(&machine(false, None), &layout, &found);
    assert!(forgotten.as_ref().is_err_and(|words| words.contains("would install")), "{forgotten:?}");
    assert!(bounds(&["sda"]).check_plan(&AssignedMachine::default(), &layout, &found).is_err());
    let partly_kept = PlanBounds { preserved: vec!["/dev/sda2".into()], ..bounds(&["sda"]) };
    assert!(!partly_kept.is_completely_wiped("sda") && bounds(&["sda"]).is_completely_wiped("sda"));
    let beyond = partly_kept.check_plan(&ordered, &layout, &found);
    assert!(beyond.as_ref().is_err_and(|words| words.contains("/dev/sda would be")), "{beyond:?}");
}
