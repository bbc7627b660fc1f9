//! Preserved devices whose UUID another device also has, for example because a disk was copied with `dd` and the copy
//! is still attached. A lookup by UUID may find either device, so the installed system could write to the wrong one.
//!
//! | if one device is on a preserved disk, and the other device | the plan is |
//! |---|---|
//! | is on a preserved disk or on an unlisted disk | refused: it is undefined which of the two will be used |
//! | is on a disk that will be wiped | refused, unless the operator discards that disk: it is unknown which of the two has the current data |
//! | is inside a volume, like the disk of a virtual machine | allowed: a lookup by UUID does not find it there |

use super::planner_state::PlannerState;
use super::spanning_objects::{SPANNING, all_signatures};
use super::{DiskVerdict, InstallMode};
use crate::content_descriptions;
use common::error_code::ErrorCode;
use model::device_name::{DevicePath, KernelName};
use model::inventory::{ArrayMember, DeviceSignature, MdArray, MemberRole};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of pairs of devices with the same UUID that are compared. If there are more pairs, the plan is
/// refused without a comparison.
const MAXIMUM_COMPARED: usize = 1 << 20;
/// Maximum number of pairs of devices with the same UUID that are reported as copies. If there are more, the plan is
/// refused.
const MAXIMUM_COPIES: usize = 1000;

/// A device and a signature on it.
type SignatureOnDevice<'a> = (&'a DevicePath, &'a DeviceSignature);

impl<'a> PlannerState<'a> {
    pub(crate) fn refuse_copies(&mut self) {
        if self.request.mode == InstallMode::Install {
            return;
        }
        for (preserved, copy) in self.find_copied_contents() {
            self.decide_copy(preserved, copy);
        }
        let members: Vec<String> =
            self.inventory.arrays.iter().flat_map(|array| self.find_copied_members(array)).collect();
        members.into_iter().for_each(|message| self.refuse(ErrorCode::DuplicateObject, "disks", message));
    }

    /// Returns pairs of devices whose filesystems, swap areas, physical volumes or LUKS containers have the same UUID.
    /// The first device of each pair is preserved.
    fn find_copied_contents(&mut self) -> Vec<(SignatureOnDevice<'a>, SignatureOnDevice<'a>)> {
        let mut by_uuid: BTreeMap<String, Vec<SignatureOnDevice>> = BTreeMap::new();
        let (inside, members) = (self.inventory.partitions_inside_volumes(), self.raid_members());
        for (device, signature) in all_signatures(self.inventory) {
            let is_part = SPANNING.contains(&signature.kind.as_str()) || members.contains(device);
            if !signature.uuid.is_empty() && !inside.contains(device) && !is_part {
                by_uuid.entry(signature.uuid.to_lowercase()).or_default().push((device, signature));
            }
        }
        let mut copies = Vec::new();
        for (uuid, found) in by_uuid.into_iter().filter(|(_, found)| found.len() > 1) {
            match self.find_copies(&found) {
                Some(of_uuid) if copies.len() + of_uuid.len() <= MAXIMUM_COPIES => copies.extend(of_uuid),
                _ => self.refuse_many_copies(&uuid, &found),
            }
        }
        copies
    }

    /// Returns the pairs in which at least one device is preserved. `None` if there are too many pairs to compare.
    fn find_copies(
        &self,
        found: &[SignatureOnDevice<'a>],
    ) -> Option<Vec<(SignatureOnDevice<'a>, SignatureOnDevice<'a>)>> {
        let preserved: Vec<bool> = found.iter().map(|(device, _)| self.is_preserved(device)).collect();
        if preserved.iter().filter(|preserved| **preserved).count() * found.len() > MAXIMUM_COMPARED {
            return None;
        }
        let mut copies = Vec::new();
        for (index, one) in found.iter().enumerate() {
            let others = (index + 1..found.len()).filter(|other| preserved[index] || preserved[*other]);
            for other in others.filter(|other| !self.is_one_object(one.0, found[*other].0)) {
                copies.push(if preserved[index] { (*one, found[other]) } else { (found[other], *one) });
            }
        }
        Some(copies)
    }

    fn refuse_many_copies(&mut self, uuid: &str, found: &[SignatureOnDevice]) {
        let Some((preserved, _)) = found.iter().find(|(device, _)| self.is_preserved(device)) else { return };
        self.refuse(
            ErrorCode::DuplicateObject,
            "disks",
            format!(
                "{preserved} will be preserved, and {} devices have its UUID {uuid}: too many to determine which are \
                    copies; disconnect the copies, or assign new UUIDs to them",
                found.len()
            ),
        );
    }

    /// Returns devices with a signature of a RAID member, and members of known arrays.
    fn raid_members(&self) -> BTreeSet<&'a DevicePath> {
        let is_member = |found: &DeviceSignature| found.usage == "raid" && found.kind != "LVM2_member";
        let signed = all_signatures(self.inventory).filter(|(_, found)| is_member(found)).map(|(device, _)| device);
        let listed = self.inventory.arrays.iter().flat_map(|array| &array.members).map(|member| &member.device);
        signed.chain(listed).collect()
    }

    fn decide_copy(&mut self, (preserved, signature): SignatureOnDevice, (copy, other): SignatureOnDevice) {
        let said = format!(
            "{first} ({first_content}) and {second} ({second_content}) have the same UUID, {uuid}, and {preserved} must be preserved",
            first = self.describe_with_disks(preserved),
            first_content = content_descriptions::describe_signature(signature),
            second = self.describe_with_disks(copy),
            second_content = content_descriptions::describe_signature(other),
            uuid = signature.uuid.to_lowercase()
        );
        if !self.is_wiped(copy) {
            let message = format!(
                "{said}: one of them is a copy, and it is undefined which one will be used; disconnect the copy, or change its UUID"
            );
            return self.refuse(ErrorCode::DuplicateObject, "disks", message);
        }
        let disks = self.disks_below(copy);
        if disks.iter().all(|disk| self.is_discarded(disk)) {
            return self.warn(format!(
                "{said}, but {copy} will be wiped: its data will be discarded, as requested by the operator"
            ));
        }
        let below = self.inventory.disks.iter().filter(|disk| disks.contains(&disk.name));
        let give_up: Option<Vec<&str>> = below.map(|disk| self.discard_name(disk)).collect();
        let road = match give_up {
            None => format!("erase {copy} by hand"),
            Some(names) => {
                format!("order the reinstall again with --give-up {names}", names = names.join(" --give-up "))
            }
        };
        let message = format!(
            "{said}, but {copy} will be wiped: one of them is a copy, and it is unknown which one has the current data. Inspect both devices; if {copy} is not needed, {road}"
        );
        self.refuse(ErrorCode::DuplicateObject, "disks", message);
    }

    /// Returns messages about two members of a preserved array that claim the same slot.
    fn find_copied_members(&self, array: &MdArray) -> Vec<String> {
        let is_active = |member: &&ArrayMember| matches!(member.role, MemberRole::Active(_));
        let members: Vec<&ArrayMember> = array.members.iter().filter(is_active).collect();
        let mut messages = Vec::new();
        let mut by_place: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (index, member) in members.iter().enumerate() {
            if let MemberRole::Active(place) = member.role {
                by_place.entry(place).or_default().push(index);
            }
        }
        for (index, member) in members.iter().enumerate() {
            let MemberRole::Active(place) = member.role else { continue };
            let next = by_place.get(&place).and_then(|all| all.get(all.binary_search(&index).ok()? + 1));
            let copy = next.map(|next| &members[*next]);
            let is_preserved =
                |copy: &&&ArrayMember| self.is_preserved(&member.device) || self.is_preserved(&copy.device);
            if let Some(copy) = copy.filter(is_preserved) {
                messages.push(format!(
                    "{first} and {second} both claim to be member {place} of the array {uuid} \"{name}\", which must be preserved: one of them is a copy, and it is undefined which one will be used; disconnect or erase the copy", first = self.describe_with_disks(&member.device), second = self.describe_with_disks(&copy.device), uuid = array.uuid, name = array.name));
            }
        }
        messages
    }

    /// Returns whether one of two devices is on top of the other, or a third device is on top of both.
    pub(crate) fn is_one_object(&self, device: &DevicePath, other: &DevicePath) -> bool {
        self.stack.is_one_object(&self.stack.kernel_name(device), &self.stack.kernel_name(other))
    }

    fn is_wiped(&self, device: &DevicePath) -> bool {
        let verdicts = self.verdicts_on(device);
        !verdicts.is_empty() && verdicts.iter().all(|verdict| matches!(verdict, DiskVerdict::Wipe | DiskVerdict::Make))
    }

    fn is_preserved(&self, device: &DevicePath) -> bool {
        self.verdicts_on(device).contains(&DiskVerdict::Keep)
    }

    /// Describes a device and its disks: `/dev/sdb1 on sdb`.
    fn describe_with_disks(&self, device: &DevicePath) -> String {
        let disks: Vec<KernelName> = self.disks_below(device).into_iter().collect();
        format!("{device} on {}", disks.join(", "))
    }
}
