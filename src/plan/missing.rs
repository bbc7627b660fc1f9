//! What is to be kept and misses a part, while a disk that is to be wiped has something of which nobody can tell what it is:
//! it may be that part.

use super::verdict::Deciding;
use super::{Mode, Verdict, Waiver, arrays, display, lvm};
use crate::device::DevicePath;
use crate::inventory::{Disk, MemberRole, Part, Role, Signature, StackedKind, Tried};
use crate::order::Gather;
use std::collections::BTreeSet;

/// Kinds that hide what is in them, beside all that libblkid calls crypto.
///
/// Firmware's RAID, which md does not know; a network's copy; the other half of a device-mapper device.
const OPAQUE: [&str; 14] = [
    "BitLocker",
    "crypto_LUKS",
    "drbd",
    "DM_snapshot_cow",
    "DM_verity_hash",
    "adaptec_raid_member",
    "highpoint37x_raid_member",
    "highpoint45x_raid_member",
    "jmicron_raid_member",
    "lsi_mega_raid_member",
    "nvidia_raid_member",
    "promise_fasttrack_raid_member",
    "silicon_medley_raid_member",
    "via_raid_member",
];

impl<'a> Deciding<'a> {
    /// | on a kept disk | on a disk that a reinstall wipes | |
    /// |---|---|---|
    /// | nothing misses a part | anything | allowed |
    /// | something misses a part | something that nobody can look into | refused |
    /// | the same | the same, and the operator gives up that disk | said |
    ///
    /// What an attempt that has begun left half made is its own.
    pub fn refuse_missing(&mut self) {
        let begun = self.request.claim.as_ref().and_then(|claim| claim.waiver) == Some(Waiver::Begun);
        if self.request.mode == Mode::Install || begun {
            return;
        }
        let missing = self.missing();
        if missing.is_empty() {
            return;
        }
        for (disk, what) in self.opaque() {
            let Disk { name, device, .. } = disk;
            let said = format!("{device} is wiped, and nobody can tell what {what} holds: {}", missing.join("; "));
            if self.is_given_up(name) {
                self.warn(format!("{said}. The operator gives up what is on {device}"));
                continue;
            }
            let road = match self.give_up_name(disk) {
                None => "the disk has no serial number by which it could be given up: erase it by hand".to_owned(),
                Some(name) => format!("give the disk up with --give-up {name}"),
            };
            self.refuse("disks", format!("{said}. It may be the part that is missing: put that back, or {road}"));
        }
    }

    fn lies_on_kept<'b>(&self, mut devices: impl Iterator<Item = &'b DevicePath>) -> bool {
        devices.any(|device| self.verdicts_on(device).contains(&Verdict::Keep))
    }

    /// Kept things without all their parts, in words.
    fn missing(&self) -> Vec<String> {
        let arrays = self.inventory.arrays.iter().filter(|array| {
            let active = array.members.iter().filter(|member| matches!(member.role, MemberRole::Active(_))).count();
            active < array.raid_devices as usize && self.lies_on_kept(array.members.iter().map(|member| &member.device))
        });
        let arrays = arrays.map(|array| format!("{} is to be kept, and misses members", arrays::in_words(array)));
        let groups = self.inventory.groups.iter().filter(|group| {
            group.physical.iter().any(|physical| physical.device.is_none()) && self.lies_on_kept(group.devices())
        });
        let groups = groups.map(|group| format!("{} is to be kept, and misses physical volumes", lvm::in_words(group)));
        let parts = self.inventory.parts.iter().filter(|part| self.lies_on_kept(std::iter::once(&part.device)));
        let parts = parts.filter_map(|part| {
            Some(format!("{} on {} is to be kept, and {}", part.kind, part.device, self.misses(part)?))
        });
        arrays.chain(groups).chain(parts).collect()
    }

    /// What a part misses, in words.
    ///
    /// | the part says | it misses something |
    /// |---|---|
    /// | that it needs another one | when no other serves it |
    /// | how many there are | when fewer are there |
    /// | that it is one of several, and not of how many | nobody can tell: for all that is known |
    fn misses(&self, part: &Part) -> Option<String> {
        let whole = self.inventory.parts.iter().filter(|other| (&other.whole, &other.id) == (&part.whole, &part.id));
        match part.role {
            Role::Serves => None,
            Role::NeedsAnother if whole.clone().any(|other| other.role == Role::Serves) => None,
            Role::NeedsAnother => Some(format!("the other part of it is missing ({})", part.whole)),
            Role::Peer => Some(format!("does not say of how many parts it is one ({} {})", part.whole, part.id)),
            Role::OneOf(count) => {
                let there = self.different(whole.map(|other| &other.device));
                ((there as u64) < count).then(|| format!("{there} of its {count} devices are there ({})", part.id))
            }
        }
    }

    /// How many of these devices are others than those before: what is in an array shows on the array, and may on its members.
    fn different<'b>(&self, devices: impl Iterator<Item = &'b DevicePath>) -> usize {
        let mut different: Vec<&DevicePath> = Vec::new();
        for device in devices {
            if !different.iter().any(|seen| self.is_one_thing(seen, device)) {
                different.push(device);
            }
        }
        different.len()
    }

    /// Disks to be wiped with something on them that nobody can look into, and what that is.
    fn opaque(&self) -> Vec<(&'a Disk, String)> {
        let wiped = self.inventory.disks.iter().filter(|disk| self.verdict(&disk.name) == Verdict::Wipe);
        let opaque = wiped.filter_map(|disk| {
            let signatures =
                self.inventory.all_signatures().filter(|(device, _)| self.disks_below(device).contains(&disk.name));
            let hidden = signatures.flat_map(|(device, found)| found.iter().map(move |found| (device, found)));
            let hidden = hidden.filter(|(device, found)| hides(found) && !self.is_open(device));
            let hidden = hidden.map(|(device, found)| format!("{} on {device}", display::signature(found)));
            let arrays = self.inventory.arrays.iter().filter(|array| {
                array.members.iter().any(|member| self.disks_below(&member.device).contains(&disk.name))
                    && self.inventory.failure(&Tried::Array(array.uuid)).is_some()
            });
            let arrays = arrays.map(|array| format!("{}, which does not start,", arrays::in_words(array)));
            let unreadable = disk.unreadable.iter().map(|why| format!("what cannot be read of it ({why})"));
            let all: BTreeSet<String> = hidden.chain(arrays).chain(unreadable).gather();
            (!all.is_empty()).then(|| (disk, all.into_iter().collect::<Vec<_>>().join(" and ")))
        });
        opaque.collect()
    }

    /// Then what is in it was seen.
    fn is_open(&self, device: &DevicePath) -> bool {
        let holders = self.stack.holders(&self.stack.name(device));
        holders.iter().filter_map(|name| self.stack.stacked(name)).any(|stacked| stacked.kind == StackedKind::Crypt)
    }
}

fn hides(signature: &Signature) -> bool {
    signature.usage == "crypto" || OPAQUE.contains(&signature.kind.as_str())
}
