//! Are these the disks that the machine was installed on? Each listed disk is compared with its record.

use super::identity_words::{disk_in_words, is_now, record_in_words};
use super::same::{self, Candidates, Likeness, Shared};
use super::verdict::Deciding;
use super::{Verdict, display};
use crate::device::{KernelName, LayoutPath};
use crate::inventory::{self, Inventory};
use crate::layout;
use crate::marker::MarkedDisk;
use std::collections::BTreeSet;

/// The records of this installation's disks.
pub struct Known<'a> {
    /// From the last finished installation.
    finished: &'a [MarkedDisk],
    /// From the last attempt that has begun: newer, with the disks that were replaced meanwhile.
    begun_on: &'a [MarkedDisk],
    /// The disks that carry the marker itself.
    proven: BTreeSet<KernelName>,
    shared: Shared,
    /// Disks of the machine, and [`Known::disks`], by their identifiers.
    candidates: (Candidates, Candidates),
}

impl<'a> Known<'a> {
    pub fn new(
        inventory: &'a Inventory,
        finished: &'a [MarkedDisk],
        begun_on: &'a [MarkedDisk],
        proven: BTreeSet<KernelName>,
    ) -> Known<'a> {
        let records = if begun_on.is_empty() { finished } else { begun_on };
        let shared = Shared::new(inventory, records);
        let candidates = (Candidates::of_disks(&inventory.disks), Candidates::of_records(records));
        Known { finished, begun_on, proven, shared, candidates }
    }

    fn disks(&self) -> &'a [MarkedDisk] {
        if self.begun_on.is_empty() { self.finished } else { self.begun_on }
    }

    pub fn of(&self, device: &LayoutPath) -> Option<&'a MarkedDisk> {
        self.disks().iter().find(|record| record.device == *device)
    }

    fn likeness(&self, record: &MarkedDisk, disk: &inventory::Disk) -> Likeness {
        // An attempt may have been cut off before or after it wrote its table: both GUIDs count.
        let finished = self.finished.iter().filter(|finished| finished.device == record.device);
        let finished = finished.map(|finished| &finished.guid);
        let guids = [&record.guid, &record.guid_before].into_iter().chain(finished).flatten();
        let guids: Vec<&str> = guids.map(String::as_str).collect();
        same::compare(record, &guids, disk, &self.shared)
    }

    pub fn is(&self, record: &MarkedDisk, disk: &inventory::Disk) -> bool {
        self.likeness(record, disk) == Likeness::Equal
    }
}

impl Deciding<'_> {
    /// | the disk that the layout's name or hints mean now | what happens |
    /// |---|---|
    /// | the recorded one | accepted, whatever the kernel calls it |
    /// | the recorded one, to be kept, and it reads blank | refused, unless given up |
    /// | not proven to be it, and one of both was recorded or is found elsewhere | refused: names or hints no longer point to the same disks |
    /// | not proven to be it, kept | accepted if the rest of the plan accepts what is on it; a contradiction is a warning |
    /// | not proven to be it, blank or with the marker | accepted as a replacement; a contradiction is a warning |
    /// | not proven to be it, to be wiped, not blank | refused, unless given up, or taken for the disk of an attempt that was cut off |
    ///
    /// Hints find a disk whatever its name is. When that disk is gone, they may find another one just as well.
    pub fn compare_disks(&mut self, known: &Known) {
        let layout = self.layout;
        for (index, listed) in layout.disks.iter().enumerate() {
            let place = format!("disks[{index}].device");
            let found = self.found.get(&index).copied();
            if let Some(found) = found {
                self.refuse_blanked(&place, listed, found, known);
            }
            let Some(record) = known.of(&listed.device) else {
                if let Some(found) = found.filter(|_| !known.disks().is_empty()) {
                    self.decide_unrecorded(place, listed, found, known);
                }
                continue;
            };
            let likeness = found.map(|found| known.likeness(record, found));
            if likeness == Some(Likeness::Equal) {
                continue;
            }
            if let Some(message) = self.elsewhere(listed, record, found, known) {
                self.refuse(place, message);
            } else if let (Some(found), Some(likeness)) = (found, likeness) {
                self.decide_unproven(place, listed, record, found, (likeness, known));
            }
        }
    }

    /// A first installation that was cut off keeps nothing. But it may erase only the disks that it is known to have begun on.
    pub fn compare_begun(&mut self, begun_on: &[MarkedDisk]) {
        if begun_on.is_empty() {
            return;
        }
        let known = Known::new(self.inventory, &[], begun_on, BTreeSet::new());
        let layout = self.layout;
        for (index, listed) in layout.disks.iter().enumerate() {
            let Some(found) = self.found.get(&index).copied() else { continue };
            let record = known.of(&listed.device);
            if record.is_some_and(|record| known.is_still(record, found)) {
                continue;
            }
            let then = match record {
                Some(record) => format!("with {}", same::record_in_full(record)),
                None => "without it".to_owned(),
            };
            let message = format!(
                "{}, and this installation has begun {then}; now it has {}. It goes on only with the disks that it has begun on: put the old disk back; or give the allocation a new id, to begin anew with this one",
                is_now(listed, found),
                same::disk_in_full(found)
            );
            self.refuse(format!("disks[{index}].device"), message);
        }
    }

    /// A replaced disk is blank. The recorded disk itself is blank only if it has lost its data: then the plan is refused.
    fn refuse_blanked(&mut self, place: &str, listed: &layout::Disk, found: &inventory::Disk, known: &Known) {
        let mut recorded = known.finished.iter().filter(|record| record.device == listed.device);
        let is_it = recorded.any(|record| known.is(record, found));
        if self.verdict(&found.name) != Verdict::Make || !is_it {
            return;
        }
        let said = format!(
            "{}, the very disk that the machine was installed with, and it is to be kept, but it reads as if there were nothing on it",
            is_now(listed, found)
        );
        if self.is_given_up(&found.name) {
            return self.warn(format!("{said}: the operator gives up what was there"));
        }
        let remedy = match self.give_up_name(found) {
            None => "if its data are lost, erase it whole".to_owned(),
            Some(name) => {
                format!("if its data are lost, order the reinstall again with --give-up {name}")
            }
        };
        self.refuse(
            place,
            format!("{said}: was it erased, or does its controller fail? Look before it is written; {remedy}"),
        );
    }

    /// Decides about a disk that the layout lists and the installation did not have.
    fn decide_unrecorded(&mut self, place: String, listed: &layout::Disk, found: &inventory::Disk, known: &Known) {
        let claim = self.request.claim.as_ref();
        let is_wanted = claim.is_some_and(|claim| claim.change_promise) || self.is_given_up(&found.name);
        let is_lost = self.verdict(&found.name) == Verdict::Wipe && !found.blank && !known.proven.contains(&found.name);
        if !is_lost {
            return;
        }
        let said = format!(
            "{}, and no disk of that name was recorded when the machine was installed; it is to be wiped and is not blank: there is {}",
            is_now(listed, found),
            display::contents(found)
        );
        match is_wanted {
            true => self.warn(format!("{said}: the operator gives it up")),
            false => self.refuse(place, format!("{said}. {}", self.remedy(found, "Correct the layout"))),
        }
    }

    /// Why names or hints point to other disks now: the recorded disk has another name, or this disk was recorded under another name.
    fn elsewhere(
        &self,
        listed: &layout::Disk,
        record: &MarkedDisk,
        found: Option<&inventory::Disk>,
        known: &Known,
    ) -> Option<String> {
        let is_found = |disk: &&inventory::Disk| found.is_some_and(|found| found.name == disk.name);
        let (disks, records) = &known.candidates;
        let alike = disks.like_record(record).into_iter().filter_map(|index| self.inventory.disks.get(index));
        let mut others = alike.filter(|disk| !is_found(disk));
        let now = others.find(|disk| same::may_be(record, disk, &known.shared));
        let then = found.and_then(|found| {
            let alike = records.like_disk(found).into_iter().filter_map(|index| known.disks().get(index));
            let mut others = alike.filter(|record| same::may_be(record, found, &known.shared));
            others.find(|other| !self.is_harmless_copy(other, found, known))
        });
        if now.is_none() && then.is_none() {
            return None;
        }
        let is = match found {
            Some(found) => format!("{} now", is_now(listed, found)),
            None => format!("{} is not there now", record.device),
        };
        let then = then.map(|record| format!("that disk was {}, and ", record.device)).unwrap_or_default();
        let now = now.map(|disk| format!(" That one is {} now.", disk.device)).unwrap_or_default();
        let remedy = match listed.hints.is_empty() {
            true => {
                "The layout's names no longer point to the same disks. Put the disks back in their places, or start the machine again so that they get their names back"
            }
            false => {
                "The layout's hints no longer point to the same disks. Put the disks back as they were, or take out the one that was added"
            }
        };
        Some(format!(
            "{is}. When the machine was installed, {then}{} was {}.{now} {remedy}",
            record.device,
            record_in_words(record)
        ))
    }

    /// Repairing a mirror may copy its table with the GUID, so that two disks match one record, and nobody can tell which is the
    /// copy. This costs no data if the record's own disk is in its place, and either the found disk is not wiped or both are.
    fn is_harmless_copy(&self, record: &MarkedDisk, found: &inventory::Disk, known: &Known) -> bool {
        let mut listed = self.layout.disks.iter().enumerate().filter(|(_, listed)| listed.device == record.device);
        listed.any(|(index, listed)| {
            let is_in_place = self.found.get(&index).is_some_and(|is| same::may_be(record, is, &known.shared));
            is_in_place && (listed.wipeonreinstall || self.verdict(&found.name) != Verdict::Wipe)
        })
    }

    /// Decides about a disk that is another one, or that nobody can identify.
    fn decide_unproven(
        &mut self,
        place: String,
        listed: &layout::Disk,
        record: &MarkedDisk,
        found: &inventory::Disk,
        (likeness, known): (Likeness, &Known),
    ) {
        let other = not_it(listed, record, found, likeness);
        // A kept disk was compared with the layout, and is not written.
        let has_nothing_to_lose =
            self.verdict(&found.name) != Verdict::Wipe || found.blank || known.proven.contains(&found.name);
        if has_nothing_to_lose {
            if likeness == Likeness::Contradicting {
                self.warn(other);
            }
        } else if self.is_given_up(&found.name) {
            self.warn(format!("{other}; the operator gives up what is on it"));
        } else if !known.begun_on.is_empty() && known.is_still(record, found) {
            self.warn(format!(
                "{other}; an earlier attempt has begun to wipe the disk in its place, which looked the same"
            ));
        } else {
            let message = format!(
                "{other}; it is to be wiped and is not blank: there is {}. {} (recorded: {}; found: {})",
                display::contents(found),
                self.remedy(found, "Put the old disk back"),
                same::record_in_full(record),
                same::disk_in_full(found)
            );
            self.refuse(place, message);
        }
    }

    /// Returns the operator's options for a disk that is not proven to be the recorded one.
    fn remedy(&self, found: &inventory::Disk, first: &str) -> String {
        match self.give_up_name(found) {
            None => format!("{first}, or erase the new one"),
            Some(name) => format!("{first}, or erase the new one, or give up what is on it: --give-up {name}"),
        }
    }
}

impl Known<'_> {
    /// Is this the disk of the attempt that was cut off? If its table identified it and is wiped, it must look the same, in the
    /// same place.
    pub fn is_still(&self, record: &MarkedDisk, disk: &inventory::Disk) -> bool {
        match self.likeness(record, disk) {
            Likeness::Equal => true,
            Likeness::Contradicting => false,
            Likeness::TooLittle => same::looks_like(record, disk),
        }
    }
}

/// `/dev/sda is the disk with serial Z9, but was the disk with serial A0 when the machine was installed`.
fn not_it(listed: &layout::Disk, record: &MarkedDisk, found: &inventory::Disk, likeness: Likeness) -> String {
    let (is, was) = (is_now(listed, found), record_in_words(record));
    match likeness {
        Likeness::TooLittle => {
            format!(
                "{is}, and was {was} when the machine was installed: nothing that identifies a disk is known of both"
            )
        }
        _ if disk_in_words(found) == was => {
            format!("{is}, as when the machine was installed, but it is not what it was")
        }
        _ => format!("{is}, but was {was} when the machine was installed, which is not in the machine any more"),
    }
}
