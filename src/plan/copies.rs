//! Two things with one UUID, of which one is to be kept: somebody has copied a disk (`dd`) and left the copy plugged in. Whoever
//! looks for the UUID finds one of both, and writes to it.
//!
//! | one is on a kept disk, the other on | |
//! |---|---|
//! | a kept disk, or one that is not ours | refused: nobody can tell which one will be used |
//! | a disk to be wiped | refused: nobody can tell which one was used, and has the data of today; unless the disk is given up |
//! | the inside of a volume, as a virtual machine's disk | allowed: nobody finds it there |

use super::reaching::{SPANNING, signatures};
use super::verdict::Deciding;
use super::{Mode, Verdict, display};
use crate::device::{DevicePath, KernelName};
use crate::inventory::{Array, ArrayMember, MemberRole, Signature};
use std::collections::BTreeMap;

/// A device, and what is on it.
type Content<'a> = (&'a DevicePath, &'a Signature);

impl<'a> Deciding<'a> {
    pub fn refuse_copies(&mut self) {
        if self.request.mode == Mode::Install {
            return;
        }
        for (kept, copy) in self.copied_contents() {
            self.decide_copy(kept, copy);
        }
        let members: Vec<String> = self.inventory.arrays.iter().flat_map(|array| self.copied_members(array)).collect();
        members.into_iter().for_each(|message| self.refuse("disks", message));
    }

    /// Filesystems, swap areas, physical volumes, LUKS containers: what is kept, and what has its UUID.
    fn copied_contents(&self) -> Vec<(Content<'a>, Content<'a>)> {
        let mut by_uuid: BTreeMap<String, Vec<Content>> = BTreeMap::new();
        for (device, signature) in signatures(self.inventory) {
            let counts = !signature.uuid.is_empty() && !self.inventory.is_inside(device);
            if counts && !self.is_part_of_several(device, signature) {
                by_uuid.entry(signature.uuid.to_lowercase()).or_default().push((device, signature));
            }
        }
        let mut copies = Vec::new();
        for found in by_uuid.into_values() {
            for (index, one) in found.iter().enumerate() {
                let others = found[index + 1..].iter().filter(|other| !self.is_one_thing(one.0, other.0));
                copies.extend(others.filter_map(|other| match (self.is_kept(one.0), self.is_kept(other.0)) {
                    (true, _) => Some((*one, *other)),
                    (false, true) => Some((*other, *one)),
                    (false, false) => None,
                }));
            }
        }
        copies
    }

    fn decide_copy(&mut self, (kept, signature): Content, (copy, other): Content) {
        let said = format!(
            "{} ({}) and {} ({}) have one UUID, {}, and {kept} is to be kept",
            self.with_disks(kept),
            display::signature(signature),
            self.with_disks(copy),
            display::signature(other),
            signature.uuid.to_lowercase()
        );
        if !self.is_wiped(copy) {
            let message = format!(
                "{said}: one of them is a copy, and nobody can tell which one will be used. Take the copy out, or give it a UUID of its own"
            );
            return self.refuse("disks", message);
        }
        let disks = self.disks_below(copy);
        if disks.iter().all(|disk| self.is_given_up(disk)) {
            return self.warn(format!("{said}, and {copy} to be wiped: the operator gives up what is there"));
        }
        let below = self.inventory.disks.iter().filter(|disk| disks.contains(&disk.name));
        let give_up: Option<Vec<&str>> = below.map(|disk| self.give_up_name(disk)).collect();
        let road = match give_up {
            None => format!("erase {copy} by hand"),
            Some(names) => format!("order the reinstall again with --give-up {}", names.join(" --give-up ")),
        };
        let message = format!(
            "{said}, and {copy} to be wiped: one of them is a copy, and nobody can tell which one was used until now. Look into both; if nobody needs what is on {copy}, {road}"
        );
        self.refuse("disks", message);
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
    fn is_part_of_several(&self, device: &DevicePath, signature: &Signature) -> bool {
        let mut members = self.inventory.arrays.iter().flat_map(|array| &array.members);
        let is_member = |found: &Signature| found.usage == "raid" && found.kind != "LVM2_member";
        SPANNING.contains(&signature.kind.as_str())
            || signatures(self.inventory).any(|(on, found)| on == device && is_member(found))
            || members.any(|member| member.device == *device)
    }

    /// Does one of them lie on the other, or something on both?
    pub fn is_one_thing(&self, device: &DevicePath, other: &DevicePath) -> bool {
        self.stack.is_one_thing(&self.stack.name(device), &self.stack.name(other))
    }

    fn is_wiped(&self, device: &DevicePath) -> bool {
        let verdicts = self.verdicts_on(device);
        !verdicts.is_empty() && verdicts.iter().all(|verdict| matches!(verdict, Verdict::Wipe | Verdict::Make))
    }

    fn is_kept(&self, device: &DevicePath) -> bool {
        self.verdicts_on(device).contains(&Verdict::Keep)
    }

    /// `/dev/sdb1 on sdb`.
    fn with_disks(&self, device: &DevicePath) -> String {
        let disks: Vec<KernelName> = self.disks_below(device).into_iter().collect();
        format!("{device} on {}", disks.join(", "))
    }
}
