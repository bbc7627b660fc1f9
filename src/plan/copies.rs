//! Two things with one UUID, of which one is to be kept: somebody has copied a disk (`dd`) and left the copy plugged in. Whoever
//! looks for the UUID finds one of both, and writes to it.

use super::reaching::{SPANNING, signatures};
use super::verdict::Deciding;
use super::{Mode, Verdict, display};
use crate::inventory::{Array, ArrayMember, MemberRole, Signature};
use std::collections::{BTreeMap, BTreeSet};

impl Deciding<'_> {
    pub fn refuse_copies(&mut self) {
        if self.request.mode == Mode::Install {
            return;
        }
        let contents = self.copied_contents();
        let members = self.inventory.arrays.iter().flat_map(|array| self.copied_members(array));
        let messages: Vec<String> = contents.into_iter().chain(members).collect();
        messages.into_iter().for_each(|message| self.refuse("disks", message));
    }

    /// Filesystems, swap areas, physical volumes, LUKS containers.
    fn copied_contents(&self) -> Vec<String> {
        let mut by_uuid: BTreeMap<String, Vec<(&str, &Signature)>> = BTreeMap::new();
        for (device, signature) in signatures(self.inventory) {
            if !signature.uuid.is_empty() && !self.is_wiped(device) && !self.is_part_of_several(device, signature) {
                by_uuid.entry(signature.uuid.to_lowercase()).or_default().push((device, signature));
            }
        }
        let mut messages = Vec::new();
        for (uuid, found) in by_uuid {
            for (index, (device, signature)) in found.iter().enumerate() {
                let copy = found[index + 1..].iter().find(|(other, _)| !self.is_one_thing(device, other));
                let Some((copy, other)) = copy.filter(|(copy, _)| self.is_kept(device) || self.is_kept(copy)) else {
                    continue;
                };
                messages.push(format!(
                    "{} ({}) and {} ({}) have one UUID, {uuid}, and {} is to be kept: one of them is a copy, and nobody can tell which one will be used. Take the copy out, or give it a UUID of its own",
                    self.with_disks(device),
                    display::signature(signature),
                    self.with_disks(copy),
                    display::signature(other),
                    if self.is_kept(device) { device } else { copy },
                ));
            }
        }
        messages
    }

    /// Two members of a kept array that say to have one place in it.
    fn copied_members(&self, array: &Array) -> Vec<String> {
        let is_active = |member: &&ArrayMember| matches!(member.role, MemberRole::Active(_));
        let members: Vec<&ArrayMember> = array.members.iter().filter(is_active).collect();
        let mut messages = Vec::new();
        for (index, member) in members.iter().enumerate() {
            let copy = members[index + 1..].iter().find(|other| other.role == member.role);
            let is_kept = |copy: &&&ArrayMember| self.is_kept(&member.device) || self.is_kept(&copy.device);
            if let (Some(copy), MemberRole::Active(place)) = (copy.filter(is_kept), member.role) {
                messages.push(format!(
                    "{} and {} both say to be member {place} of the array {} \"{}\", which is to be kept: one of them is a copy, and nobody can tell which one will be used. Take the copy out, or erase it",
                    self.with_disks(&member.device),
                    self.with_disks(&copy.device),
                    array.uuid,
                    array.name
                ));
            }
        }
        messages
    }

    /// Members of arrays all have the array's UUID, and show the filesystem inside where its metadata is at the end. So have the
    /// devices of filesystems that lie on several (`reaching` has them).
    fn is_part_of_several(&self, device: &str, signature: &Signature) -> bool {
        let mut members = self.inventory.arrays.iter().flat_map(|array| &array.members);
        let is_member = |found: &Signature| found.usage == "raid" && found.kind != "LVM2_member";
        SPANNING.contains(&signature.kind.as_str())
            || signatures(self.inventory).any(|(on, found)| on == device && is_member(found))
            || members.any(|member| member.device == device)
    }

    /// Does one of them lie on the other, or something on both?
    fn is_one_thing(&self, device: &str, other: &str) -> bool {
        let (device, other) = (self.stack.name(device), self.stack.name(other));
        let whole = self.stack.disks(device).contains(other) || self.stack.disks(other).contains(device);
        whole || !self.with_holders(device).is_disjoint(&self.with_holders(other))
    }

    /// Kernel names of the device and of all that lies on it.
    fn with_holders(&self, name: &str) -> BTreeSet<String> {
        let (mut seen, mut open) = (BTreeSet::new(), vec![name.to_owned()]);
        while let Some(name) = open.pop() {
            if seen.insert(name.clone()) {
                open.extend(self.stack.holders(&name).map(str::to_owned));
            }
        }
        seen
    }

    /// Then it is gone before anybody looks for the UUID.
    fn is_wiped(&self, device: &str) -> bool {
        let verdicts = self.verdicts_below(self.stack.name(device));
        !verdicts.is_empty() && verdicts.iter().all(|verdict| matches!(verdict, Verdict::Wipe | Verdict::Make))
    }

    fn is_kept(&self, device: &str) -> bool {
        self.verdicts_below(self.stack.name(device)).contains(&Verdict::Keep)
    }

    /// `/dev/sdb1 on sdb`.
    fn with_disks(&self, device: &str) -> String {
        let disks: Vec<String> = self.stack.disks(self.stack.name(device)).into_iter().collect();
        format!("{device} on {}", disks.join(", "))
    }
}
