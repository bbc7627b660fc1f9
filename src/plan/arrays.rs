//! Arrays: made of members that are made, or found as the layout says.

use super::CreateArray;
use super::capacity::{array_bytes, stripe_bytes};
use super::devices::{Below, Device};
use super::sectors::MIB;
use super::verdict::{ArrayFate, Deciding};
use crate::inventory::{self, ArrayMember, MemberRole, Signature};
use crate::layout::Raid;

impl<'a> Deciding<'a> {
    pub fn decide_arrays(&mut self) {
        for (index, raid) in self.layout.raid.iter().enumerate() {
            let place = format!("raid[{index}]");
            match self.below(&place, &raid.arrayname, &raid.devices) {
                Some(below) if below.keep => self.keep_array(&place, raid, &below),
                Some(below) => self.make_array(&place, raid, &below),
                None => {}
            }
        }
    }

    fn make_array(&mut self, place: &str, raid: &Raid, below: &Below) {
        self.refuse_taken_name(place, raid, None);
        let metadata = self.layout.metadata(raid);
        let sizes: Vec<Option<u64>> = below.devices.iter().map(|device| device.size_bytes).collect();
        let size_bytes = array_bytes(raid, &metadata, &sizes);
        if size_bytes == Some(0) {
            let least = below.devices.iter().min_by_key(|device| device.size_bytes);
            let least = least.map(|device| device.path.as_str()).unwrap_or_default();
            let existing = sizes.iter().flatten().min().map_or(0, |bytes| bytes / MIB);
            let message = format!(
                "device:{least} is not big enough required:4MiB, existing:{existing}MiB (for {} with metadata {metadata})",
                raid.arrayname
            );
            self.refuse(format!("{place}.devices"), message);
            return;
        }
        let device = Device {
            path: raid.arrayname.clone(),
            now: raid.arrayname.clone(),
            keep: false,
            size_bytes,
            sector_bytes: below.sector_bytes(),
            stripe_bytes: stripe_bytes(raid),
            content: Ok(&[]),
        };
        self.devices.insert(raid.arrayname.clone(), device);
        self.decided.arrays.push(ArrayFate::Made(CreateArray {
            device: raid.arrayname.clone(),
            level: raid.level,
            metadata,
            uuid: (self.ids)(),
            devices: below.paths(),
            spares: raid.spares,
            createoptions: raid.other_options(),
        }));
    }

    fn keep_array(&mut self, place: &str, raid: &Raid, below: &Below) {
        let members = below.now();
        let holds_one = |array: &&inventory::Array| array.members.iter().any(|is| members.contains(&is.device));
        let found: Vec<&'a inventory::Array> = self.inventory.arrays.iter().filter(holds_one).collect();
        let array = match found.as_slice() {
            [one] if is_same(raid, one, &members) && !is_ambiguous(below) => *one,
            several => {
                let there: Vec<String> = several.iter().map(|array| in_words(array)).collect();
                let there = match there.is_empty() {
                    true => "none of them is a member of an array".to_owned(),
                    false if is_ambiguous(below) => {
                        format!("there are several signatures on one member, and {}", there.join(" and "))
                    }
                    false => format!("there is {}", there.join(" and ")),
                };
                let wish = wish(raid, &members);
                return self.refuse(place, format!("{} is to be kept as {wish}, but {there}", raid.arrayname));
            }
        };
        self.refuse_taken_name(place, raid, array.running.as_deref());
        let running = array.running.as_deref().and_then(|name| self.stack.stacked(name));
        let not_running = || format!("{} does not run, so that nothing is known of what is on it", in_words(array));
        let content = running.map(|running| running.signatures.as_slice()).ok_or_else(not_running);
        let device = Device {
            path: raid.arrayname.clone(),
            now: running.map_or_else(|| raid.arrayname.clone(), |running| running.device.clone()),
            keep: true,
            size_bytes: running.map(|running| running.size_bytes),
            sector_bytes: below.sector_bytes(),
            stripe_bytes: 0,
            content,
        };
        self.devices.insert(raid.arrayname.clone(), device);
        let (device, uuid, members) = (raid.arrayname.clone(), array.uuid, below.paths());
        self.decided.arrays.push(ArrayFate::Kept { device, uuid, members });
    }

    /// mdadm cannot give an array a number that another one has which goes on running.
    fn refuse_taken_name(&mut self, place: &str, raid: &Raid, ours: Option<&str>) {
        let name = raid.arrayname.trim_start_matches("/dev/");
        let running = self.stack.stacked(name).filter(|_| ours != Some(name) && !self.released.contains(name));
        if let Some(running) = running {
            let message = format!(
                "array:{} is the name of another array, which runs on {} and stays: choose another name",
                raid.arrayname,
                running.below.join(", ")
            );
            self.refuse(format!("{place}.arrayname"), message);
        }
    }
}

/// Same level, same devices, and as many of them spare; which ones are changes when a disk has failed.
fn is_same(raid: &Raid, array: &inventory::Array, members: &[String]) -> bool {
    let mut found: Vec<&String> = array.members.iter().map(|member| &member.device).collect();
    found.sort_unstable();
    let spares = array.members.iter().filter(|member| member.role == MemberRole::Spare).count();
    let whole = array.members.iter().all(|member| member.role != MemberRole::Faulty);
    let active = raid.devices.len().saturating_sub(raid.spares as usize);
    array.level == raid.level.to_string()
        && array.raid_devices as usize == active
        && spares == raid.spares as usize
        && whole
        && found.into_iter().eq(members.iter())
}

/// A member that is something else too. Metadata at the end leaves the start to the content, which is no ambiguity.
fn is_ambiguous(below: &Below) -> bool {
    let signatures = |device: &Device| -> usize {
        let claims = |signature: &&Signature| signature.kind == "linux_raid_member" || signature.kind == "LVM2_member";
        device.content.as_ref().map_or(0, |content| content.iter().filter(claims).count())
    };
    below.devices.iter().any(|device| signatures(device) > 1)
}

fn wish(raid: &Raid, members: &[String]) -> String {
    let spares = if raid.spares == 0 { String::new() } else { format!(", {} of them spare", raid.spares) };
    format!("{} of {}{spares}", raid.level, members.join(", "))
}

/// `raid1 "root" of /dev/sda2, /dev/sdb2 (spare)`.
pub fn in_words(array: &inventory::Array) -> String {
    let member = |member: &ArrayMember| match member.role {
        MemberRole::Active(_) => member.device.clone(),
        MemberRole::Spare => format!("{} (spare)", member.device),
        MemberRole::Faulty => format!("{} (faulty)", member.device),
    };
    let members: Vec<String> = array.members.iter().map(member).collect();
    let name = if array.name.is_empty() { String::new() } else { format!(" \"{}\"", array.name) };
    let active = array.members.iter().filter(|member| matches!(member.role, MemberRole::Active(_))).count();
    let missing = (array.raid_devices as usize).saturating_sub(active);
    let missing =
        if missing == 0 { String::new() } else { format!(" with {missing} of {} missing", array.raid_devices) };
    format!("{}{name} of {}{missing}", array.level, members.join(", "))
}
