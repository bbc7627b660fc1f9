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
use crate::order::Gather;
use std::collections::{BTreeMap, BTreeSet};

/// Pairs of a kept device and another one that are compared for one UUID, and copies that are listed for the machine. What has more is
/// refused without being compared.
const MAXIMUM_COMPARED: usize = 1 << 20;
const MAXIMUM_COPIES: usize = 1000;

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
    fn copied_contents(&mut self) -> Vec<(Content<'a>, Content<'a>)> {
        let mut by_uuid: BTreeMap<String, Vec<Content>> = BTreeMap::new();
        let (inside, members) = (self.inventory.inside_devices(), self.members());
        for (device, signature) in signatures(self.inventory) {
            let is_part = SPANNING.contains(&signature.kind.as_str()) || members.contains(device);
            if !signature.uuid.is_empty() && !inside.contains(device) && !is_part {
                by_uuid.entry(signature.uuid.to_lowercase()).or_default().push((device, signature));
            }
        }
        let mut copies = Vec::new();
        for (uuid, found) in by_uuid.into_iter().filter(|(_, found)| found.len() > 1) {
            match self.copies_of(&found) {
                Some(of_uuid) if copies.len() + of_uuid.len() <= MAXIMUM_COPIES => copies.extend(of_uuid),
                _ => self.refuse_many_copies(&uuid, &found),
            }
        }
        copies
    }

    /// Pairs of which one is kept. `None`: there are too many to compare.
    fn copies_of(&self, found: &[Content<'a>]) -> Option<Vec<(Content<'a>, Content<'a>)>> {
        let kept: Vec<bool> = found.iter().map(|(device, _)| self.is_kept(device)).collect();
        if kept.iter().filter(|kept| **kept).count() * found.len() > MAXIMUM_COMPARED {
            return None;
        }
        let mut copies = Vec::new();
        for (index, one) in found.iter().enumerate() {
            let others = (index + 1..found.len()).filter(|other| kept[index] || kept[*other]);
            for other in others.filter(|other| !self.is_one_thing(one.0, found[*other].0)) {
                copies.push(if kept[index] { (*one, found[other]) } else { (found[other], *one) });
            }
        }
        Some(copies)
    }

    fn refuse_many_copies(&mut self, uuid: &str, found: &[Content]) {
        let Some((kept, _)) = found.iter().find(|(device, _)| self.is_kept(device)) else { return };
        self.refuse(
            "disks",
            format!(
                "{kept} will be preserved, and {} devices have its UUID {uuid}: they cannot all be compared; disconnect the copies, or give them UUIDs of their own",
                found.len()
            ),
        );
    }

    /// Devices with a signature of a RAID member, and members of known arrays.
    fn members(&self) -> BTreeSet<&'a DevicePath> {
        let is_member = |found: &Signature| found.usage == "raid" && found.kind != "LVM2_member";
        let signed = signatures(self.inventory).filter(|(_, found)| is_member(found)).map(|(device, _)| device);
        let listed = self.inventory.arrays.iter().flat_map(|array| &array.members).map(|member| &member.device);
        signed.chain(listed).gather()
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
            let is_kept = |copy: &&&ArrayMember| self.is_kept(&member.device) || self.is_kept(&copy.device);
            if let Some(copy) = copy.filter(is_kept) {
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
