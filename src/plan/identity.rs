//! Which installation is on these disks? A reinstall renews only the installation that a marker proves to be its own. A
//! first installation is made only where there is none. Whether the disks are still the same ones is decided in
//! `recorded`.

use super::recorded::Known;
use super::verdict::Deciding;
use super::{Claim, Mode, Verdict, Waiver};
use crate::carried::Carried;
use crate::device::{DevicePath, KernelName, LayoutPath};
use crate::marker::{self, MarkedDisk, Marker, lineage};
use crate::order::Gather;
use std::collections::BTreeSet;

/// A filesystem with a marker.
struct Marked<'a> {
    device: &'a DevicePath,
    marker: &'a Marker,
    /// Those at its bottom.
    disks: BTreeSet<KernelName>,
}

impl<'a> Deciding<'a> {
    pub fn decide_identity(&mut self) {
        match self.request.mode {
            Mode::Install => self.decide_first(),
            Mode::Reinstall => self.decide_renewal(),
        }
    }

    /// An installation erases. So the allocation must never have been installed, and the disks must be nobody else's.
    /// If an earlier attempt has begun, the disks must be the ones that it has begun on.
    fn decide_first(&mut self) {
        let request = self.request;
        let Some(claim) = &request.claim else { return };
        let marked = self.marked();
        // A marker that is believed never comes here: `already` boots that installation.
        if claim.is_installed() {
            self.refuse_installed(claim, &marked);
        }
        for found in marked.iter().filter(|found| claim.is_ours(found.marker)) {
            match request.receiving() {
                None => self.refuse_unbelieved(claim, found),
                Some(moving) => match moving.carried.as_ref().filter(|carried| is_finished(claim, found, carried)) {
                    Some(carried) => self.refuse_finished(found, carried),
                    None => self.say_copied(found),
                },
            }
        }
        self.refuse_others(&marked);
        self.compare_begun(&claim.begun_on);
        if !claim.is_installed() {
            self.refuse_opaque(claim);
        }
    }

    /// | found on the disks of `/` | |
    /// |---|---|
    /// | the marker of this machine and allocation | ours |
    /// | no such marker | refused, unless it is known why |
    fn decide_renewal(&mut self) {
        let request = self.request;
        let marked = self.marked();
        let root = self.root_disks();
        self.refuse_others(&marked);
        self.refuse_outdated_order();
        let on_root = |found: &&Marked| !found.disks.is_empty() && found.disks.is_subset(&root);
        let ours = marked.iter().filter(|found| self.is_ours(found.marker)).filter(on_root);
        let ours: Vec<&Marked> = ours.collect();
        let markers: Vec<&Marker> = ours.iter().map(|found| found.marker).collect();
        let ours = lineage::find_newest(&markers).map(|newest| ours[newest]);
        match (ours, markers.is_empty()) {
            (Some(_), _) => {}
            (None, true) => self.decide_without_marker(&marked, &root),
            (None, false) => self.refuse_unordered(&marked),
        }
        let remembered = request.claim.as_ref().and_then(|claim| claim.installed.as_ref());
        let finished = ours.map(|found| found.marker).or(remembered);
        let proven = ours.map(|found| found.disks.clone()).unwrap_or_default();
        let begun_on = request.claim.as_ref().map(|claim| claim.begun_on.as_slice()).unwrap_or_default();
        self.decide_promises(finished);
        let finished = finished.map(|marker| marker.disks.as_slice()).unwrap_or_default();
        self.compare_disks(&Known::new(self.inventory, finished, begun_on, proven));
    }

    /// Refuses because several installations of this allocation are on the disks of `/`, and none is proven to be the newest.
    fn refuse_unordered(&mut self, marked: &[Marked]) {
        let found = in_words(marked);
        let message = format!(
            "/ will be recreated, and its disks hold more than one marker ({}) of this installation, none of which names the others as replaced: {found}. Their times prove nothing. Erase the filesystem that is not the installed system: wipefs -a in the rescue shell",
            marker::PATH
        );
        self.refuse("disks", message);
    }

    /// The control plane orders an installation, although it knows that the allocation is installed.
    fn refuse_installed(&mut self, claim: &Claim, marked: &[Marked]) {
        let message = format!(
            "allocation {} is installed on this machine, by the word of the control plane, but no filesystem has its marker ({}): {}. An installation would wipe every listed disk, the kept ones too. Put the disk with the installation back; or order a reinstall, with --without-marker where that disk was replaced; or, to give up all data of the machine, give the allocation a new id",
            claim.allocation,
            marker::PATH,
            in_words(marked)
        );
        self.refuse("disks", message);
    }

    /// The disk says that it has this installation, and the control plane does not know of it. One of them is wrong.
    fn refuse_unbelieved(&mut self, claim: &Claim, found: &Marked) {
        let disks: Vec<&str> = found.disks.iter().map(KernelName::as_str).collect();
        let message = format!(
            "{} on {} has the marker ({}) of {}, image {}, of {}, but the control plane does not say that this allocation is installed. It is neither booted nor erased. If the control plane has lost its memory, tell it: drophammer machine adopt {}; if nobody needs what is there, erase the disk: wipefs -a in the rescue shell, for each of its partitions and for itself",
            found.device,
            disks.join(", "),
            marker::PATH,
            whose(&found.marker.machine, &found.marker.allocation),
            found.marker.image,
            found.marker.time,
            claim.machine
        );
        self.refuse("disks", message);
    }

    /// Refuses because no marker proves that the installation on this machine is older than the one that would overwrite it.
    fn refuse_finished(&mut self, found: &Marked, carried: &Carried) {
        let message = format!(
            "{} on {} has the marker ({}) of {}, dated {}, and the marker of the other machine, dated {}, does not list it as replaced: the system may have been moved here before, and may have run here since. The database of the control plane may be older. Nothing is overwritten. Make sure that only one of the two machines runs. To keep the system on this machine, restore a newer backup of the control plane; if it is not needed, erase the disk (wipefs -a in the rescue shell, for each of its partitions and for itself) and order the move again",
            found.device,
            listed(&found.disks),
            marker::PATH,
            whose(&found.marker.machine, &found.marker.allocation),
            found.marker.time,
            carried.marker.time
        );
        self.refuse("disks", message);
    }

    /// The allocation is the other machine's still, by the word of the control plane.
    fn say_copied(&mut self, found: &Marked) {
        self.warn(format!(
            "{} on {} has the marker of {}: an earlier attempt to move it here has left it, and all begins again",
            found.device,
            listed(&found.disks),
            whose(&found.marker.machine, &found.marker.allocation)
        ));
    }

    fn marked(&self) -> Vec<Marked<'a>> {
        let filesystems = self.inventory.filesystems.iter();
        let marked = filesystems.filter_map(|filesystem| {
            let marker = filesystem.marker.as_ref()?;
            Some(Marked { device: &filesystem.device, marker, disks: self.disks_below(&filesystem.device) })
        });
        marked.collect()
    }

    /// The disks that carry `/` by the layout.
    fn root_disks(&self) -> BTreeSet<KernelName> {
        let below = self.graph.below_root().disks;
        below.iter().filter_map(|index| self.found.get(index)).map(|disk| disk.name.clone()).gather()
    }

    /// The latest record of the disk that the layout calls `device`.
    pub fn recorded(&self, device: &LayoutPath) -> Option<&'a MarkedDisk> {
        let request = self.request;
        let claim = request.claim.as_ref();
        let begun = claim.into_iter().flat_map(|claim| &claim.begun_on);
        let remembered = claim.and_then(|claim| claim.installed.as_ref()).into_iter();
        let found = self.inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
        let found = found.filter(|marker| self.is_ours(marker));
        let mut all = begun.chain(found.chain(remembered).flat_map(|marker| &marker.disks));
        all.find(|record| record.device == *device)
    }

    /// On a desk there is no claim, and every installation counts as ours.
    fn is_ours(&self, marker: &Marker) -> bool {
        self.request.claim.as_ref().is_none_or(|claim| claim.is_ours(marker))
    }

    /// | the marker is of | on a disk | installation | reinstall |
    /// |---|---|---|---|
    /// | another machine | to be wiped | refused | refused, unless the disk's data were given up |
    /// | another machine | to be kept | | refused |
    /// | another allocation of this machine | to be wiped | it is over: wiped | as another machine's |
    fn refuse_others(&mut self, marked: &[Marked]) {
        let request = self.request;
        let Some(claim) = &request.claim else { return };
        for found in marked {
            let is_foreign = !claim.is_of_this_machine(found.marker);
            let is_over = !is_foreign && self.request.mode == Mode::Install;
            if claim.is_ours(found.marker) || is_over {
                continue;
            }
            let on = |verdicts: &[Verdict]| -> Vec<KernelName> {
                let disks = found.disks.iter().filter(|disk| verdicts.contains(&self.verdict(disk)));
                disks.cloned().collect()
            };
            let (wiped, kept) = (on(&[Verdict::Wipe, Verdict::Make]), on(&[Verdict::Keep]));
            let theirs = whose(&found.marker.machine, &found.marker.allocation);
            let (mode, ours) = match request.mode {
                Mode::Install => ("installation", whose(&claim.machine, &claim.allocation)),
                Mode::Reinstall => ("reinstall", whose(&claim.machine, &claim.allocation)),
            };
            let holds = |disks: &[KernelName], fate: &str| {
                let disks = disks.join(", ");
                format!(
                    "{} on {disks}, which is to be {fate}, holds the installation of {theirs}, but this is the {mode} of {ours}",
                    found.device
                )
            };
            if !wiped.is_empty() {
                let said = holds(&wiped, "wiped");
                if request.mode == Mode::Reinstall && wiped.iter().all(|disk| self.is_given_up(disk)) {
                    self.warn(format!("{said}: the operator gives it up"));
                } else {
                    let remedy = remedy(request.mode, claim, found.marker);
                    self.refuse("disks", format!("{said}: {remedy}"));
                }
            } else if !kept.is_empty() && is_foreign {
                let said = holds(&kept, "kept");
                self.refuse(
                    "disks",
                    format!("{said}: put the disk of this machine back; if nobody needs what is there, erase it"),
                );
            }
        }
    }

    fn decide_without_marker(&mut self, marked: &[Marked], root: &BTreeSet<KernelName>) {
        let root = listed(root);
        let root = if root.is_empty() { "disks that are not there" } else { &root };
        let claim = self.request.claim.as_ref();
        match claim.map(|claim| claim.waiver) {
            None | Some(Some(Waiver::Unseen)) if self.inventory.filesystems.is_empty() => {
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
            None | Some(None | Some(Waiver::Unseen)) => {}
        }
        let wanted = match claim {
            Some(claim) => format!("the marker of {}", whose(&claim.machine, &claim.allocation)),
            None => "the marker of an installation".to_owned(),
        };
        let place = self.layout.filesystems.iter().position(|filesystem| filesystem.path.as_deref() == Some("/"));
        let place = format!("filesystems[{}]", place.unwrap_or_default());
        let elsewhere: Vec<String> = marked
            .iter()
            .filter(|found| self.is_ours(found.marker))
            .map(|found| format!("{} on {}", found.device, listed(&found.disks)))
            .collect();
        if !elsewhere.is_empty() {
            let message = format!(
                "/ is to be made anew on {root}, but this installation is in the machine and lies elsewhere: {}. The layout's names or hints point to another disk than then. Put the disks back in their places; or start again, so that they get their names back",
                elsewhere.join("; ")
            );
            return self.refuse(place, message);
        }
        let found = in_words(marked);
        let message = format!(
            "/ is to be made anew on {root}, but no filesystem there has {wanted} ({}): {found}. Put the disk with the installation back; or, if it was replaced, order the reinstall again with --without-marker",
            marker::PATH
        );
        self.refuse(place, message);
    }
}

/// Returns whether this machine may have the newer installation: its marker is not listed as replaced by the one that is received, and
/// no attempt has begun. An attempt that has begun is recognized by its tables (`already`), or begins again.
fn is_finished(claim: &Claim, found: &Marked, carried: &Carried) -> bool {
    let is_replaced = carried.marker.has_superseded(found.marker);
    claim.begun_on.is_empty() && found.marker.machine == claim.machine && !is_replaced
}

/// What the operator can do about a disk with somebody else's installation that is to be wiped.
fn remedy(mode: Mode, claim: &Claim, marker: &Marker) -> &'static str {
    match mode {
        Mode::Reinstall => "put the disks of this machine back; if nobody needs what is there, erase it",
        Mode::Install if claim.allocation == marker.allocation => {
            "if this is that machine and its id has changed, tell the control plane (drophammer machine rename OLD NEW); else put the disks of this machine back. If nobody needs what is there, erase the disk: wipefs -a in the rescue shell, for each of its partitions and for itself"
        }
        Mode::Install => {
            "put the disks of this machine back; if nobody needs what is there, erase the disk: wipefs -a in the rescue shell, for each of its partitions and for itself"
        }
    }
}

fn listed(disks: &BTreeSet<KernelName>) -> String {
    disks.iter().map(KernelName::as_str).collect::<Vec<_>>().join(", ")
}

/// Which markers were found, and where.
fn in_words(marked: &[Marked]) -> String {
    let found = marked.iter().map(|found| {
        let whose = whose(&found.marker.machine, &found.marker.allocation);
        format!("{} on {} has that of {whose}", found.device, listed(&found.disks))
    });
    let found: Vec<String> = found.collect();
    if found.is_empty() { "no filesystem of the machine has one".to_owned() } else { found.join("; ") }
}

/// `machine m-1, allocation a-1`.
pub fn whose(machine: &str, allocation: &str) -> String {
    format!("machine {machine}, allocation {allocation}")
}
