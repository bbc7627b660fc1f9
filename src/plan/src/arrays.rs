//! Decides on each array of the layout. An array is created if its devices are recreated. If its devices are preserved,
//! the array is preserved, provided that the array found on the disks matches the layout.

use super::creation_trials;
use super::missing_disks::has_all_data;
use super::partition_placement::MIB;
use super::plan_decisions::ArrayFate;
use super::planned_device_capacity::{array_bytes, changes_size, max_array_bytes, stripe_bytes};
use super::planned_devices::{DeviceFate, DeviceSize, PlannedDevice, UnderlyingDevices};
use super::planner_state::PlannerState;
use common::error_code::ErrorCode;
use model::device_name::{DevicePath, KernelName};
use model::inventory::{self, ArrayMember, DeviceSignature, InspectionTarget, MemberRole};
use model::layout::ArraySpec;
use model::storage_graph::find_arrays_on;
use operations::{ArraySlot, CreateArray};

/// Metadata versions that place the superblock at the end of a member.
const AT_THE_END: [&str; 2] = ["0.90", "1.0"];

impl<'a> PlannerState<'a> {
    pub(crate) fn decide_arrays(&mut self) {
        for (index, raid) in self.layout.raid.iter().enumerate() {
            let place = format!("raid[{index}]");
            match self.common_fate(&place, raid.arrayname.as_str(), &raid.devices) {
                Some(below) if below.fate == DeviceFate::Preserved => self.preserve_array(&place, raid, &below),
                Some(below) => self.make_array(&place, raid, &below),
                None => {}
            }
        }
    }

    fn make_array(&mut self, place: &str, raid: &ArraySpec, below: &UnderlyingDevices) {
        self.refuse_taken_name(place, raid, None);
        let active = raid.devices.len().saturating_sub(raid.spares as usize);
        let missing: Vec<usize> = below.absent().map(|(place, _)| place).filter(|place| *place < active).collect();
        if !has_all_data(raid.level, active, &missing) {
            return self.refuse_without(raid, below);
        }
        let (devices, spares) = slots_for_mdadm(raid, below);
        if devices.len() < raid.devices.len() || !missing.is_empty() {
            let absent: Vec<&str> = below.absent().map(|(_, device)| device.path.as_str()).collect();
            let how = if missing.is_empty() { "with fewer spares" } else { "DEGRADED" };
            self.warn(format!(
                "array {array} is created {how}, without {absent}",
                array = raid.arrayname,
                absent = absent.join(", ")
            ));
        }
        let metadata = self.layout.effective_metadata(raid);
        let sizes: Vec<Option<u64>> = below.present().map(|device| device.size_bytes).collect();
        if let Some(message) = too_large_for_metadata(raid, &metadata, below) {
            return self.refuse(ErrorCode::ObjectNotCreatable, format!("{place}.devices"), message);
        }
        let size_bytes = array_bytes(raid, &metadata, &sizes);
        if size_bytes == Some(0) {
            return self.refuse(
                ErrorCode::TooSmall,
                format!("{place}.devices"),
                explain_too_small(raid, &metadata, below),
            );
        }
        self.devices.insert(raid.arrayname.clone(), new_array_device(raid, below, size_bytes));
        let made = CreateArray {
            device: raid.arrayname.as_device(),
            level: raid.level,
            metadata,
            uuid: self.migrated_array_uuid(&raid.arrayname).unwrap_or_else(|| (self.ids)()),
            devices,
            spares,
            createoptions: raid.options_without_metadata(),
        };
        let members: Vec<DeviceSize> = below.present().map(PlannedDevice::size).collect();
        self.decided.array_trials.extend(creation_trials::array_trial(&made, &members, below.sector_bytes()));
        self.decided.arrays.push(ArrayFate::Created(made));
    }

    /// Adds a problem for every absent device of an array that cannot work without its absent devices.
    fn refuse_without(&mut self, raid: &ArraySpec, below: &UnderlyingDevices) {
        for (_, device) in below.absent() {
            let why = format!("{} ({}) requires {}", raid.arrayname, raid.level, device.path);
            self.refuse_absent(device, why);
        }
    }

    fn preserve_array(&mut self, place: &str, raid: &ArraySpec, below: &UnderlyingDevices) {
        let Some(array) = self.array_to_keep(place, raid, below) else { return };
        self.decided.matching.push(raid.arrayname.clone());
        if let Some(why) = self.inventory.find_failure(&InspectionTarget::Array(array.uuid)) {
            let message = format!(
                "{array} must be preserved, but {members} cannot be assembled: {why}",
                array = raid.arrayname,
                members = describe_array(array)
            );
            return self.refuse(ErrorCode::PreservedUnusable, place, message);
        }
        self.warn_degraded(raid, array);
        self.refuse_taken_name(place, raid, array.running.as_ref());
        let running = array.running.as_ref().and_then(|name| self.stack.find_stacked(name));
        let not_running =
            || format!("{array} is not running, so its content is unknown", array = describe_array(array));
        let content = running.map(|running| running.signatures.as_slice()).ok_or_else(not_running);
        let device = PlannedDevice {
            path: raid.arrayname.as_device(),
            now: running.map_or_else(|| raid.arrayname.as_device(), |running| running.device.clone()),
            fate: DeviceFate::Preserved,
            absent: None,
            blank: running.is_some_and(|running| running.blank),
            size_bytes: running.map(|running| running.size_bytes),
            most_bytes: 0,
            sector_bytes: below.sector_bytes(),
            stripe_bytes: 0,
            content,
        };
        self.devices.insert(raid.arrayname.clone(), device);
        let is_faulty = |now: &DevicePath| {
            array.members.iter().any(|member| member.device == *now && member.role == MemberRole::Faulty)
        };
        let members =
            below.present().filter(|device| !is_faulty(&device.now)).map(|device| device.path.clone()).collect();
        let (device, uuid) = (raid.arrayname.as_device(), array.uuid);
        self.decided.arrays.push(ArrayFate::Preserved { device, uuid, members });
    }

    /// Returns the array found on the disks if it matches the layout; otherwise adds a problem and returns `None`.
    fn array_to_keep(
        &mut self,
        place: &str,
        raid: &ArraySpec,
        below: &UnderlyingDevices,
    ) -> Option<&'a inventory::MdArray> {
        let members = below.present_paths();
        let found = find_arrays_on(self.inventory, &members);
        let there = match found.as_slice() {
            [one] if is_same_array(raid, one, &members) && !self.is_ambiguous(below, &found) => return Some(*one),
            [one] if is_same_broken_array(raid, one, &members) && !self.is_ambiguous(below, &found) => {
                self.refuse_without(raid, below);
                format!("the array has lost too many members: found {array}", array = describe_array(one))
            }
            [] if members.is_empty() => {
                self.refuse_without(raid, below);
                return None;
            }
            [] => "none of the devices is a member of an array".to_owned(),
            several => {
                let all = several.iter().map(|array| describe_array(array)).collect::<Vec<_>>().join(" and ");
                let ambiguous = if self.is_ambiguous(below, &found) {
                    "found several signatures on one member:"
                } else {
                    "there is"
                };
                format!("{ambiguous} {all}")
            }
        };
        let wish = describe_wish(raid, &members);
        self.refuse(
            ErrorCode::PreservedMismatch,
            place,
            format!("{array} must be preserved, and must be a {wish}, but {there}", array = raid.arrayname),
        );
        None
    }

    /// Returns whether a member has signatures of more than one array or group. If the metadata of an array is at the
    /// end of its members, the signature of a physical volume on the array is also visible on the members. Such a
    /// signature does not count, because the member itself does not belong to the volume group.
    fn is_ambiguous(&self, below: &UnderlyingDevices, found: &[&inventory::MdArray]) -> bool {
        let contents: Vec<&DeviceSignature> = match found {
            [one] if AT_THE_END.contains(&one.metadata.as_str()) => {
                let running = one.running.as_ref().and_then(|name| self.stack.find_stacked(name));
                running.into_iter().flat_map(|running| &running.signatures).collect()
            }
            _ => Vec::new(),
        };
        let claims = |found: &&DeviceSignature| match found.kind.as_str() {
            "linux_raid_member" => true,
            "LVM2_member" => !contents.contains(found),
            _ => false,
        };
        let count =
            |device: &PlannedDevice| device.content.as_ref().map_or(0, |found| found.iter().filter(claims).count());
        below.devices.iter().any(|device| count(device) > 1)
    }

    fn warn_degraded(&mut self, raid: &ArraySpec, array: &inventory::MdArray) {
        let spares = array.members.iter().filter(|member| member.role == MemberRole::Spare).count();
        let how = match missing_slots(array).as_slice() {
            [] if spares == raid.spares as usize => return,
            [] => "with a different number of spares than in the layout",
            _ => "DEGRADED",
        };
        self.warn(format!(
            "{array} is kept {how}: found {actual}",
            array = raid.arrayname,
            actual = describe_array(array)
        ));
    }

    /// Refuses an array name that another active array uses, unless this plan stops the other array before it creates
    /// arrays. mdadm cannot create a second array with the same device name.
    fn refuse_taken_name(&mut self, place: &str, raid: &ArraySpec, ours: Option<&KernelName>) {
        let name = raid.arrayname.as_device().kernel_name();
        let running = self.stack.find_stacked(&name).filter(|_| ours != Some(&name) && !self.released.contains(&name));
        if let Some(running) = running {
            // An overlay of the agent has only a kernel name, so the device below it is printed instead.
            let member = |name: &KernelName| match self.stack.find_stacked(name).filter(|below| below.is_overlay()) {
                Some(overlay) => overlay.below.join(", "),
                None => name.to_string(),
            };
            let members: Vec<String> = running.below.iter().map(member).collect();
            let message = format!(
                "array:{name} is the name of another array, which is active on {devices} and will not be stopped; choose another name",
                name = raid.arrayname,
                devices = members.join(", ")
            );
            self.refuse(ErrorCode::NameTaken, format!("{place}.arrayname"), message);
        }
    }
}

/// Maximum size of a member with a 0.90 superblock, in bytes; mdadm refuses larger members.
const MAX_MEMBER_BYTES_0_90: u64 = 4 << 40;

fn explain_too_small(raid: &ArraySpec, metadata: &str, below: &UnderlyingDevices) -> String {
    let least = below.present().min_by_key(|device| device.size_bytes);
    let least = least.map(|device| device.path.as_str()).unwrap_or_default();
    let existing = below.present().filter_map(|device| device.size_bytes).min().map_or(0, |bytes| bytes / MIB);
    format!(
        "device:{least} is not big enough required:4MiB, existing:{existing}MiB (for {array} with metadata {metadata})",
        array = raid.arrayname
    )
}

/// Returns why a member is too large for metadata 0.90. Returns `None` if the create options affect the size of the
/// array; in that case, a trial in memory performs this check.
fn too_large_for_metadata(raid: &ArraySpec, metadata: &str, below: &UnderlyingDevices) -> Option<String> {
    if metadata != "0.90" || changes_size(raid) {
        return None;
    }
    let is_large = |device: &&PlannedDevice| device.size_bytes.is_some_and(|bytes| bytes > MAX_MEMBER_BYTES_0_90);
    let large = below.present().find(is_large)?;
    Some(format!(
        "{array} cannot be created on {device}: the device has {size}, and metadata 0.90 supports members up to {MAX_MEMBER_BYTES_0_90} bytes; use metadata 1.0 or 1.2",
        array = raid.arrayname,
        device = large.path,
        size = common::format::format_bytes(large.size_bytes.unwrap_or_default())
    ))
}

/// Returns the device of an array that the plan creates.
fn new_array_device<'a>(raid: &ArraySpec, below: &UnderlyingDevices, size_bytes: Option<u64>) -> PlannedDevice<'a> {
    PlannedDevice {
        path: raid.arrayname.as_device(),
        now: raid.arrayname.as_device(),
        fate: below.fate,
        absent: None,
        blank: false,
        size_bytes,
        most_bytes: max_array_bytes(raid, below.present().map(|device| device.size().max_bytes())),
        sector_bytes: below.sector_bytes(),
        stripe_bytes: stripe_bytes(raid),
        content: Ok(&[]),
    }
}

/// Returns the devices in the order in which mdadm receives them, and the number of spares among them. Absent spares
/// are omitted.
fn slots_for_mdadm(raid: &ArraySpec, below: &UnderlyingDevices) -> (Vec<ArraySlot>, u32) {
    let active = raid.devices.len().saturating_sub(raid.spares as usize);
    let device = |(place, device): (usize, &PlannedDevice)| match device.absent {
        None => Some(ArraySlot::Device(device.path.clone())),
        Some(_) if place < active => Some(ArraySlot::Missing),
        Some(_) => None,
    };
    let devices: Vec<ArraySlot> = below.devices.iter().enumerate().filter_map(device).collect();
    let spares = devices.len().saturating_sub(active);
    (devices, spares as u32)
}

/// Returns whether the array on the disks is the array of the layout and still has all of its data.
fn is_same_array(raid: &ArraySpec, array: &inventory::MdArray, members: &[DevicePath]) -> bool {
    is_listed_array(raid, array, members)
        && has_all_data(raid.level, array.raid_devices as usize, &missing_slots(array))
}

fn is_same_broken_array(raid: &ArraySpec, array: &inventory::MdArray, members: &[DevicePath]) -> bool {
    is_listed_array(raid, array, members)
        && !has_all_data(raid.level, array.raid_devices as usize, &missing_slots(array))
}

/// Returns whether the array on the disks is the array of the layout, and has exactly the members that are present in
/// the machine. The slots of spares are not compared, because they change when a disk fails. If two members claim the
/// same slot, they were written at different times, which is a mismatch.
fn is_listed_array(raid: &ArraySpec, array: &inventory::MdArray, members: &[DevicePath]) -> bool {
    let mut found: Vec<&DevicePath> = array.members.iter().map(|member| &member.device).collect();
    found.sort();
    let mut places = active_slots(array);
    places.sort();
    array.level == raid.level.to_string()
        && array.raid_devices as usize == raid.devices.len().saturating_sub(raid.spares as usize)
        && found.into_iter().eq(members.iter())
        && places.windows(2).all(|pair| pair[0] != pair[1])
}

fn active_slots(array: &inventory::MdArray) -> Vec<usize> {
    let place = |member: &ArrayMember| match member.role {
        MemberRole::Active(place) => Some(place as usize),
        MemberRole::Spare | MemberRole::Faulty => None,
    };
    array.members.iter().filter_map(place).collect()
}

/// Returns the slots of the array without an active member.
fn missing_slots(array: &inventory::MdArray) -> Vec<usize> {
    let there = active_slots(array);
    (0..array.raid_devices as usize).filter(|place| !there.contains(place)).collect()
}

fn describe_wish(raid: &ArraySpec, members: &[DevicePath]) -> String {
    let spares = if raid.spares == 0 { String::new() } else { format!(", {} of them spare", raid.spares) };
    format!("{} of {}{spares}", raid.level, members.join(", "))
}

/// Describes an array: `raid1 "root" of /dev/sda2, /dev/sdb2 (spare)`.
pub(crate) fn describe_array(array: &inventory::MdArray) -> String {
    let member = |member: &ArrayMember| match member.role {
        MemberRole::Active(_) => member.device.to_string(),
        MemberRole::Spare => format!("{} (spare)", member.device),
        MemberRole::Faulty => format!("{} (faulty)", member.device),
    };
    let members: Vec<String> = array.members.iter().map(member).collect();
    let name = if array.name.is_empty() { String::new() } else { format!(" \"{}\"", array.name) };
    let active = array.members.iter().filter(|member| matches!(member.role, MemberRole::Active(_))).count();
    let missing = (array.raid_devices as usize).saturating_sub(active);
    let missing = if missing == 0 {
        String::new()
    } else {
        format!(" with {missing} of {count} missing", count = array.raid_devices)
    };
    format!("{}{name} of {}{missing}", array.level, members.join(", "))
}
