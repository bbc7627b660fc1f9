//! Objects on preserved or unlisted disks that lack a component. The missing component may be on a disk that will be
//! wiped, either as an object that could not be inspected, or inside such an object.

use super::opaque_objects::OpaqueOnDisks;
use super::planner_state::PlannerState;
use super::spanning_objects::SPANNING;
use super::{DiskVerdict, InstallMode, MarkerWaiver, arrays, lvm};
use common::error_code::ErrorCode;
use common::format::join_few;
use model::device_name::{DevicePath, KernelName};
use model::inventory::{BTRFS_SEED, ComponentRole, InventoryDisk, MemberRole, SpanningComponent};
use model::layout::FilesystemFormat;
use std::collections::{BTreeMap, BTreeSet};

impl<'a> PlannerState<'a> {
    /// Refuses to wipe a disk that may contain the missing component of a preserved object.
    ///
    /// | the preserved and unlisted disks contain | the disk that a reinstall would wipe contains | the reinstall is |
    /// |---|---|---|
    /// | only complete objects | anything | allowed |
    /// | an object that lacks a component, or an uninspected object, which may lack one | an uninspected object, which may be the component | refused |
    /// | an object that lacks a component, or an uninspected object | an uninspected object, but the operator discards the disk | allowed, with a warning |
    /// | a btrfs that lacks a device | a seed device of btrfs, which may be that device | refused, unless the operator discards the disk |
    ///
    /// After an attempt was started, nothing is refused, because unfinished objects of that attempt belong to this
    /// installation.
    pub(crate) fn refuse_missing(&mut self) {
        let started = self.request.claim.as_ref().and_then(|claim| claim.waiver) == Some(MarkerWaiver::Begun);
        if self.request.mode == InstallMode::Install || started {
            return;
        }
        self.refuse_seeds();
        let opaque = self.opaque_of_one_fate();
        let missing = [self.describe_incomplete(), self.describe_possibly_incomplete(&opaque)].concat();
        if missing.is_empty() {
            return;
        }
        for (disk, objects) in self.opaque_on_wiped(&opaque) {
            let device = &disk.device;
            let said = format!(
                "{device} will be wiped, although the content of {objects} could not be inspected and may include a component that is missing elsewhere: {missing}",
                missing = join_few(&missing, "; ")
            );
            self.decide_possible_component(disk, &said);
        }
    }

    /// Refuses to wipe a seed device of btrfs while a btrfs that is not wiped lacks a device. A filesystem that was
    /// created on top of a seed has another UUID than the seed, so its superblock does not show whether it needs this
    /// seed.
    fn refuse_seeds(&mut self) {
        let is_btrfs = |part: &SpanningComponent| part.kind == FilesystemFormat::Btrfs.name();
        let incomplete = self.incomplete_components().into_iter().filter(|(part, _)| is_btrfs(part));
        let missing: Vec<String> = incomplete.map(|(_, text)| text).collect();
        if missing.is_empty() {
            return;
        }
        let inventory = self.inventory;
        for seed in inventory.parts.iter().filter(|part| part.whole == BTRFS_SEED) {
            if !self.verdicts_on(&seed.device).iter().any(|verdict| verdict.loses_data()) {
                continue;
            }
            let below = self.disks_below(&seed.device);
            let is_wiped = |disk: &&InventoryDisk| below.contains(&disk.name) && self.verdict(&disk.name).loses_data();
            for disk in inventory.disks.iter().filter(is_wiped).collect::<Vec<_>>() {
                let said = format!(
                    "{device} will be wiped, although {seed} is a seed device of btrfs, and may be the device that is missing elsewhere: {missing}",
                    device = disk.device,
                    seed = seed.device,
                    missing = join_few(&missing, "; ")
                );
                self.decide_possible_component(disk, &said);
            }
        }
    }

    /// Refuses to wipe a disk that may contain a missing component, unless the operator discards the disk.
    fn decide_possible_component(&mut self, disk: &InventoryDisk, said: &str) {
        let device = &disk.device;
        if self.is_discarded(&disk.name) {
            return self
                .warn(format!("{said}. The content of {device} will be discarded, as requested by the operator"));
        }
        let road = match self.discard_name(disk) {
            Some(name) => format!("discard the disk with --give-up {name}"),
            None => {
                format!(
                    "erase {device} by hand (wipefs -a), because this device lacks an identifier that --give-up \
                        accepts"
                )
            }
        };
        self.refuse(
            ErrorCode::IncompleteObject,
            "disks",
            format!("{said}. If the missing component is on another disk, connect that disk; if the content of {device} is not needed, {road}"),
        );
    }

    /// Returns the opaque objects that may contain a missing component. Omits objects that span wiped and unwiped
    /// disks, and components of filesystems or pools that span such disks, because `check_spanning` already refuses
    /// plans with these objects.
    fn opaque_of_one_fate(&self) -> Vec<OpaqueOnDisks> {
        let is_wiped = |it: &OpaqueOnDisks| {
            let verdicts = self.verdicts_on_object(it);
            (verdicts.iter().any(|verdict| verdict.loses_data()), verdicts.iter().any(|verdict| !verdict.loses_data()))
        };
        let all: Vec<OpaqueOnDisks> =
            self.opaque_on_disks().into_iter().filter(|it| it.object.may_contain_devices()).collect();
        let mut parts: BTreeMap<&DevicePath, &SpanningComponent> = BTreeMap::new();
        for part in &self.inventory.parts {
            parts.entry(&part.device).or_insert(part);
        }
        let wholes = |wiped: bool| -> BTreeSet<String> {
            let of_fate = all.iter().filter(|it| if wiped { is_wiped(it).0 } else { is_wiped(it).1 });
            of_fate.filter_map(|it| self.whole_id(&parts, it)).collect()
        };
        let (wiped, staying) = (wholes(true), wholes(false));
        let is_torn = |it: &OpaqueOnDisks| {
            let whole = self.whole_id(&parts, it);
            is_wiped(it) == (true, true)
                || whole.is_some_and(|whole| wiped.contains(&whole) && staying.contains(&whole))
        };
        let dismantled: Vec<bool> = all.iter().map(is_torn).collect();
        all.into_iter().zip(dismantled).filter(|(_, dismantled)| !dismantled).map(|(it, _)| it).collect()
    }

    /// Returns the verdicts on the devices of the object. On a partly kept disk, they differ from the verdict on the
    /// disk.
    fn verdicts_on_object(&self, it: &OpaqueOnDisks) -> BTreeSet<DiskVerdict> {
        let devices = it.object.devices.iter().filter(|device| !self.disks_below(device).is_empty());
        devices.flat_map(|device| self.verdicts_on(device)).collect()
    }

    /// Returns whether a device of the object is on this disk and will be wiped.
    fn loses_devices_on(&self, it: &OpaqueOnDisks, disk: &KernelName) -> bool {
        let mut devices = it.object.devices.iter().filter(|device| self.disks_below(device).contains(disk));
        devices.any(|device| self.verdicts_on(device).iter().any(|verdict| verdict.loses_data()))
    }

    /// Returns the id of the filesystem or pool of which the object is a component; `None` if the object is not a
    /// component of one.
    fn whole_id(&self, parts: &BTreeMap<&DevicePath, &SpanningComponent>, it: &OpaqueOnDisks) -> Option<String> {
        let [device] = it.object.devices.as_slice() else { return None };
        let part = parts.get(device);
        let found = self.stack.unit_at(device)?.signatures();
        let spanning = found.iter().find(|found| SPANNING.contains(&found.kind.as_str()) && !found.uuid.is_empty());
        part.map(|part| part.id.clone()).or_else(|| spanning.map(|found| found.uuid.clone()))
    }

    /// Returns a message that the object on these devices must be preserved, or is on a disk that the layout does not
    /// list; `None` if neither is the case.
    pub(crate) fn describe_fate<'b>(&self, devices: impl Iterator<Item = &'b DevicePath>) -> Option<&'static str> {
        let verdicts: BTreeSet<DiskVerdict> = devices.flat_map(|device| self.verdicts_on(device)).collect();
        self.describe_fate_of(&verdicts)
    }

    fn describe_fate_of(&self, verdicts: &BTreeSet<DiskVerdict>) -> Option<&'static str> {
        let stays = |verdict: &&DiskVerdict| matches!(verdict, DiskVerdict::NotOurs | DiskVerdict::Volumes);
        match verdicts.contains(&DiskVerdict::Keep) {
            true => Some("must be preserved"),
            false => verdicts.iter().find(stays).map(|_| "is on a disk that the layout does not list"),
        }
    }

    /// Describes the objects that lack components. Objects that are only on wiped disks are omitted.
    fn describe_incomplete(&self) -> Vec<String> {
        let arrays = self.inventory.arrays.iter().filter_map(|array| {
            let active = array.members.iter().filter(|member| matches!(member.role, MemberRole::Active(_))).count();
            let fate = self.describe_fate(array.members.iter().map(|member| &member.device))?;
            let is_short = active < array.raid_devices as usize;
            is_short.then(|| format!("{array} {fate} and lacks members", array = arrays::describe_array(array)))
        });
        let groups = self.inventory.groups.iter().filter_map(|group| {
            let fate = self.describe_fate(group.present_devices())?;
            let is_short = group.physical.iter().any(|physical| physical.device.is_none());
            is_short.then(|| format!("{group} {fate} and lacks physical volumes", group = lvm::describe_group(group)))
        });
        let parts = self.incomplete_components().into_iter().map(|(_, text)| text);
        arrays.chain(groups).chain(parts).collect()
    }

    /// Returns the components of filesystems and pools that lack another component, each with a description. Objects
    /// that are only on wiped disks are omitted.
    fn incomplete_components(&self) -> Vec<(&'a SpanningComponent, String)> {
        let mut wholes: BTreeMap<(&str, &str), ComponentGroup> = BTreeMap::new();
        for part in &self.inventory.parts {
            let whole = wholes.entry((&part.whole, &part.id)).or_default();
            whole.devices.push(self.stack.kernel_name(&part.device));
            whole.is_served |= part.role == ComponentRole::Serves;
        }
        for whole in wholes.values_mut() {
            whole.count = self.stack.count_distinct(&whole.devices);
        }
        let parts = self.inventory.parts.iter().filter_map(|part| {
            let fate = self.describe_fate(std::iter::once(&part.device))?;
            let missed = describe_missing(part, wholes.get(&(part.whole.as_str(), part.id.as_str()))?)?;
            let text =
                format!("{component} on {device} {fate}, and {missed}", component = part.kind, device = part.device);
            Some((part, text))
        });
        parts.collect()
    }

    /// Describes the objects that could not be inspected and are on disks that are not wiped. An array, group or
    /// filesystem in such an object may lack a component. Objects that the agent has not tried to open are omitted.
    fn describe_possibly_incomplete(&self, opaque: &[OpaqueOnDisks]) -> Vec<String> {
        let stay = opaque.iter().filter(|it| !it.object.untried).filter_map(|it| {
            let fate = self.describe_fate_of(&self.verdicts_on_object(it))?;
            Some(format!(
                "{object} {fate}, and an object stored on it may lack a member on another device: {reason}",
                object = it.object,
                reason = it.object.reason
            ))
        });
        stay.collect()
    }

    /// Returns the disks that will be wiped although they contain objects that could not be inspected. Each disk is
    /// returned with a description of these objects.
    fn opaque_on_wiped(&self, opaque: &[OpaqueOnDisks]) -> Vec<(&'a InventoryDisk, String)> {
        let wiped = self.inventory.disks.iter().filter(|disk| self.verdict(&disk.name).loses_data());
        let on = |name: &KernelName| -> Vec<String> {
            let here = opaque.iter().filter(|it| self.loses_devices_on(it, name));
            here.map(|it| format!("{} ({})", it.object, it.object.reason)).collect()
        };
        let opaque = wiped.map(|disk| (disk, on(&disk.name))).filter(|(_, objects)| !objects.is_empty());
        opaque.map(|(disk, objects)| (disk, join_few(&objects, " and "))).collect()
    }
}

/// All components of one filesystem or pool.
#[derive(Default)]
struct ComponentGroup {
    devices: Vec<KernelName>,
    is_served: bool,
    /// Number of distinct devices of the filesystem or pool. A component on an array may also be visible on the members
    /// of the array; such a component is counted once.
    count: usize,
}

/// Describes the components that a filesystem or pool lacks, according to one of its components.
///
/// | role of the component | another component is missing |
/// |---|---|
/// | requires another component, such as a journal | if no present component has the role [`ComponentRole::Serves`] |
/// | is one of a known number of components | if fewer components are present |
/// | is one of an unknown number of components | always assumed, because it cannot be determined |
fn describe_missing(part: &SpanningComponent, whole: &ComponentGroup) -> Option<String> {
    match part.role {
        ComponentRole::Serves => None,
        ComponentRole::NeedsAnother if whole.is_served => None,
        ComponentRole::NeedsAnother => Some(format!("the other component is missing ({kind})", kind = part.whole)),
        ComponentRole::Peer => {
            Some(format!("the number of components is unknown ({kind} {id})", kind = part.whole, id = part.id))
        }
        ComponentRole::OneOf(count) => ((whole.count as u64) < count).then(|| {
            format!("only {present} of {count} devices are present ({id})", present = whole.count, id = part.id)
        }),
    }
}
