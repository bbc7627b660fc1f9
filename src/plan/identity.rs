//! Which installation is on these disks, and are they the ones that it was made on? A reinstall renews what its marker
//! proves to be its own.

use super::verdict::Deciding;
use super::{Mode, Verdict, Waiver, display};
use crate::inventory;
use crate::layout;
use crate::marker::{self, MarkedDisk, Marker};
use std::collections::BTreeSet;

/// A filesystem with a marker.
struct Marked<'a> {
    device: &'a str,
    marker: &'a Marker,
    /// Kernel names of the disks at its bottom.
    disks: BTreeSet<String>,
}

impl<'a> Deciding<'a> {
    /// | found on the disks of `/` | |
    /// |---|---|
    /// | the marker of this machine and allocation | ours |
    /// | no such marker | refused, unless it is known why |
    ///
    /// | the disk that the layout's name means now, or its hints | |
    /// |---|---|
    /// | the recorded one, or nothing tells it from that and from any other recorded one | ours, whatever the kernel calls it |
    /// | another one, and one of both is recorded or found elsewhere | refused: names or hints point elsewhere |
    /// | another one, blank | a replacement |
    /// | another one, to be wiped, not blank | refused |
    pub fn decide_identity(&mut self) {
        if self.request.mode != Mode::Reinstall {
            return;
        }
        let marked = self.marked();
        let root = self.root_disks();
        self.refuse_others(&marked);
        let on_root = |found: &&Marked| !found.disks.is_empty() && found.disks.is_subset(&root);
        let ours = marked.iter().filter(|found| self.is_ours(found.marker)).filter(on_root);
        let ours = ours.max_by_key(|found| &found.marker.time);
        if ours.is_none() {
            self.decide_without_marker(&marked, &root);
        }
        let remembered = self.request.claim.as_ref().and_then(|claim| claim.installed.as_ref());
        let recorded = ours.map(|found| found.marker).or(remembered).map(|recorded| recorded.disks.as_slice());
        let begun_on = self.request.claim.as_ref().map(|claim| claim.begun_on.as_slice()).unwrap_or_default();
        // An attempt that has begun knows of disks that were replaced before.
        let recorded = if begun_on.is_empty() { recorded.unwrap_or_default() } else { begun_on };
        let proven = ours.map(|found| found.disks.clone()).unwrap_or_default();
        self.compare_disks(recorded, &proven);
    }

    fn marked(&self) -> Vec<Marked<'a>> {
        let filesystems = self.inventory.filesystems.iter();
        let marked = filesystems.filter_map(|filesystem| {
            let disks = self.stack.disks(self.stack.name(&filesystem.device));
            Some(Marked { device: &filesystem.device, marker: filesystem.marker.as_ref()?, disks })
        });
        marked.collect()
    }

    /// Kernel names of the disks that carry `/` by the layout.
    fn root_disks(&self) -> BTreeSet<String> {
        let root = self.layout.filesystems.iter().find(|filesystem| filesystem.path.as_deref() == Some("/"));
        let below = root.map(|root| self.layout.below([root.device.as_str()]).disks).unwrap_or_default();
        below.iter().filter_map(|index| self.found.get(index)).map(|disk| disk.name.clone()).collect()
    }

    /// On a desk any installation will do.
    fn is_ours(&self, marker: &Marker) -> bool {
        let claim = self.request.claim.as_ref();
        claim.is_none_or(|claim| claim.machine == marker.machine && claim.allocation == marker.allocation)
    }

    /// The installation of somebody else is not wiped, whoever waived the marker of this one.
    fn refuse_others(&mut self, marked: &[Marked]) {
        let Some(claim) = &self.request.claim else { return };
        for found in marked {
            if self.is_ours(found.marker) {
                continue;
            }
            let wiped: Vec<&str> = found
                .disks
                .iter()
                .filter(|disk| matches!(self.verdict(disk), Verdict::Wipe | Verdict::Make))
                .map(String::as_str)
                .collect();
            if !wiped.is_empty() {
                let message = format!(
                    "{} on {}, which is to be wiped, holds the installation of {}, but this is the reinstall of {}: put the disks of this machine back; if nobody needs what is there, erase it",
                    found.device,
                    wiped.join(", "),
                    whose(&found.marker.machine, &found.marker.allocation),
                    whose(&claim.machine, &claim.allocation)
                );
                self.refuse("disks", message);
            }
        }
    }

    fn decide_without_marker(&mut self, marked: &[Marked], root: &BTreeSet<String>) {
        let root = root.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let root = if root.is_empty() { "disks that are not there" } else { &root };
        let claim = self.request.claim.as_ref();
        match claim.map(|claim| claim.waiver) {
            None if self.inventory.filesystems.is_empty() => {
                let message = "nothing in this inventory tells what is inside of filesystems: the agent will refuse to reinstall if there is no marker of this installation on";
                return self.warn(format!("{message} {root}"));
            }
            Some(Some(Waiver::Operator)) => {
                let message = "no marker of this installation is on";
                return self.warn(format!("{message} {root}; the operator has said to go on without it"));
            }
            Some(Some(Waiver::Begun)) => {
                let message = "no marker of this installation is on";
                return self.warn(format!("{message} {root}; an earlier attempt has begun to wipe"));
            }
            None | Some(None) => {}
        }
        let wanted = match claim {
            Some(claim) => format!("the marker of {}", whose(&claim.machine, &claim.allocation)),
            None => "the marker of an installation".to_owned(),
        };
        let found = marked.iter().map(|found| {
            let disks: Vec<&str> = found.disks.iter().map(String::as_str).collect();
            let whose = whose(&found.marker.machine, &found.marker.allocation);
            format!("{} on {} has that of {whose}", found.device, disks.join(", "))
        });
        let found: Vec<String> = found.collect();
        let found = if found.is_empty() { "no filesystem of the machine has one".to_owned() } else { found.join("; ") };
        let message = format!(
            "/ is to be made anew on {root}, but no filesystem there has {wanted} ({}): {found}. Put the disk with the installation back; or, if it was replaced, order the reinstall again with --without-marker",
            marker::PATH
        );
        let place = self.layout.filesystems.iter().position(|filesystem| filesystem.path.as_deref() == Some("/"));
        self.refuse(format!("filesystems[{}]", place.unwrap_or_default()), message);
    }

    /// Hints find a disk again whatever its name is; they find another one just as well when it is gone.
    fn compare_disks(&mut self, recorded: &[MarkedDisk], proven: &BTreeSet<String>) {
        let layout = self.layout;
        for (index, listed) in layout.disks.iter().enumerate() {
            let Some(record) = recorded.iter().find(|record| record.device == listed.device) else { continue };
            let place = format!("disks[{index}].device");
            let found = self.found.get(&index).copied();
            let is_it = found.and_then(|found| is_recorded(record, found));
            if is_it == Some(true) {
                continue;
            }
            if let Some(message) = self.elsewhere(listed, record, found, recorded) {
                self.refuse(place, message);
            } else if let (Some(found), Some(_)) = (found, is_it) {
                self.decide_replaced(place, &is_now(listed, found), record, found, proven);
            }
        }
    }

    /// The recorded disk is another one of the machine now, or this one was another one of the layout then.
    fn elsewhere(
        &self,
        listed: &layout::Disk,
        record: &MarkedDisk,
        found: Option<&inventory::Disk>,
        recorded: &[MarkedDisk],
    ) -> Option<String> {
        let now = self.inventory.disks.iter().find(|disk| is_recorded(record, disk) == Some(true));
        let then = found.and_then(|found| {
            let mut others = recorded.iter().filter(|record| is_recorded(record, found) == Some(true));
            others.find(|other| !self.is_harmless_copy(other, found))
        });
        if now.is_none() && then.is_none() {
            return None;
        }
        let is = match found {
            Some(found) => format!("{} now", is_now(listed, found)),
            None => format!("{} is not there now", record.device),
        };
        let then = then.map(|record| format!(" (then {})", record.device)).unwrap_or_default();
        let now = now.map(|disk| format!(" (now {})", disk.device)).unwrap_or_default();
        let remedy = match listed.hints.is_empty() {
            true => {
                "the layout's names point elsewhere. Put the disks back in their places, or start again so that they get their names back"
            }
            false => {
                "the layout's hints point elsewhere. Put the disks back as they were, or take out the one that was added"
            }
        };
        Some(format!("{is}{then}, and was {}{now} when the machine was installed: {remedy}", record_in_words(record)))
    }

    /// Who repairs a mirror copies the table, GUID and all. With the recorded one in its place as well, that costs no data
    /// where nothing is wiped that may be kept: which of the two is the copy, nobody can tell.
    fn is_harmless_copy(&self, record: &MarkedDisk, found: &inventory::Disk) -> bool {
        let mut listed = self.layout.disks.iter().enumerate().filter(|(_, listed)| listed.device == record.device);
        listed.any(|(index, listed)| {
            let is_in_place = self.found.get(&index).is_some_and(|is| is_recorded(record, is) == Some(true));
            is_in_place && (listed.wipeonreinstall || self.verdict(&found.name) != Verdict::Wipe)
        })
    }

    fn decide_replaced(
        &mut self,
        place: String,
        is: &str,
        record: &MarkedDisk,
        found: &inventory::Disk,
        proven: &BTreeSet<String>,
    ) {
        let other = format!(
            "{is}, but was {} when the machine was installed, which is not in the machine any more",
            record_in_words(record)
        );
        let is_wiped = self.verdict(&found.name) == Verdict::Wipe;
        // What is kept was compared with the layout, and is not written.
        if !is_wiped || found.blank || proven.contains(&found.name) {
            self.warn(other);
        } else {
            let there = display::contents(found);
            let there = if there == "blank" { "data of no known kind" } else { &there };
            let message = format!(
                "{other}; it is to be wiped and is not blank: there is {there}. Put the old disk back, or erase the new one"
            );
            self.refuse(place, message);
        }
    }
}

/// Is that the disk? `None` when nothing tells. Where neither serial number nor WWN does, the table of another recorded disk
/// tells that it is that one. Another table than the recorded one tells nothing: it may be made anew.
fn is_recorded(record: &MarkedDisk, disk: &inventory::Disk) -> Option<bool> {
    let pairs = [(&record.serial, &disk.serial), (&record.wwn, &disk.wwn)];
    let mut known = pairs.iter().filter(|(recorded, is)| !recorded.is_empty() && !is.is_empty()).peekable();
    if known.peek().is_none() {
        return (!record.guid.is_empty() && record.guid == guid(disk)).then_some(true);
    }
    Some(known.all(|(recorded, is)| recorded == is))
}

/// Of its GPT; empty when it has none.
fn guid(disk: &inventory::Disk) -> String {
    disk.table.as_ref().and_then(|table| table.guid).map(|guid| guid.to_string()).unwrap_or_default()
}

/// A name of the kernel is no name of the layout where hints have found the disk.
fn is_now(listed: &layout::Disk, found: &inventory::Disk) -> String {
    let by_hints = format!(" (by the hints of {})", listed.device);
    let by_hints = if listed.hints.is_empty() { "" } else { &by_hints };
    format!("{}{by_hints} is {}", found.device, disk_in_words(found))
}

fn whose(machine: &str, allocation: &str) -> String {
    format!("machine {machine}, allocation {allocation}")
}

fn disk_in_words(disk: &inventory::Disk) -> String {
    in_words(&disk.serial, &disk.wwn, &guid(disk), disk.size_bytes)
}

fn record_in_words(record: &MarkedDisk) -> String {
    in_words(&record.serial, &record.wwn, &record.guid, record.size_bytes)
}

fn in_words(serial: &str, wwn: &str, guid: &str, size_bytes: u64) -> String {
    let names = [("serial", serial), ("wwn", wwn), ("GPT", guid)];
    let name =
        names.iter().find(|(_, name)| !name.is_empty()).map(|(kind, name)| format!("the disk with {kind} {name}"));
    let name = name.unwrap_or_else(|| "a disk without serial number and GPT".to_owned());
    format!("{name} ({})", crate::text::bytes(size_bytes))
}
