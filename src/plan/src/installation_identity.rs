//! Identification of the installation on the disks. A reinstall replaces an installation only if a marker proves that
//! the installation belongs to this machine and allocation. A first installation is made only if the disks do not
//! contain another installation. The module `installed_disk_identity` decides whether the disks are the recorded ones.

use super::installed_disk_identity::DiskRecords;
use super::planner_state::PlannerState;
use super::{DiskVerdict, InstallClaim, InstallMode, MarkerWaiver, order_age};
use common::error_code::ErrorCode;
use model::device_name::{DevicePath, KernelName, LayoutPath};
use model::install_marker::{self, FencingToken, InstallMarker, RecordedDisk, lineage};
use model::machine_migration::MigratedMachine;
use std::collections::BTreeSet;

/// A filesystem with an install marker.
struct MarkedFilesystem<'a> {
    device: &'a DevicePath,
    marker: &'a InstallMarker,
    /// Disks below the filesystem that contains the marker.
    disks: BTreeSet<KernelName>,
}

impl<'a> PlannerState<'a> {
    pub(crate) fn decide_identity(&mut self) {
        match self.request.mode {
            InstallMode::Install => self.check_first_install(),
            InstallMode::Reinstall => self.check_reinstall(),
        }
        self.require_zeros_of_wiped();
    }

    /// Checks a first installation: the allocation must never have been installed, and the disks must not belong to
    /// another installation. If an earlier attempt was started, the disks must be the disks of that attempt.
    fn check_first_install(&mut self) {
        let request = self.request;
        let Some(claim) = &request.claim else { return };
        let marked = self.marked_filesystems();
        // An installation with a trusted marker was already handled by `existing_system_boot`, which boots it.
        if claim.is_installed() {
            self.refuse_installed(claim, &marked);
        }
        for found in marked.iter().filter(|found| claim.is_ours(found.marker)) {
            match request.receiving() {
                None => self.refuse_untrusted(claim, found),
                Some(moving) => {
                    match moving.carried.as_ref().filter(|migrated_machine| is_finished(claim, found, migrated_machine))
                    {
                        Some(migrated_machine) => self.refuse_finished(found, migrated_machine),
                        None => self.warn_copied(found),
                    }
                }
            }
        }
        self.refuse_others(&marked);
        self.compare_started(&claim.begun_on);
        if !claim.is_installed() {
            self.refuse_opaque(claim);
        }
    }

    /// Checks a reinstall.
    ///
    /// | found on the disks of `/` | result |
    /// |---|---|
    /// | a marker of this machine and allocation | accepted |
    /// | no such marker | refused, unless the reason for its absence is known ([`MarkerWaiver`]) |
    fn check_reinstall(&mut self) {
        let request = self.request;
        let marked = self.marked_filesystems();
        let root = self.root_disks();
        self.refuse_others(&marked);
        self.refuse_outdated_order();
        let on_root = |found: &&MarkedFilesystem| !found.disks.is_empty() && found.disks.is_subset(&root);
        let ours = marked.iter().filter(|found| self.is_ours(found.marker)).filter(on_root);
        let ours: Vec<&MarkedFilesystem> = ours.collect();
        let markers: Vec<&InstallMarker> = ours.iter().map(|found| found.marker).collect();
        let ours = lineage::find_newest(&markers).map(|newest| ours[newest]);
        match (ours, markers.is_empty()) {
            (Some(_), _) => {}
            (None, true) => self.decide_without_marker(&marked, &root),
            (None, false) => self.refuse_ambiguous_markers(&marked),
        }
        let remembered = request.claim.as_ref().and_then(|claim| claim.installed.as_ref());
        let finished = ours.map(|found| found.marker).or(remembered);
        let proven = ours.map(|found| found.disks.clone()).unwrap_or_default();
        let begun_on = request.claim.as_ref().map(|claim| claim.begun_on.as_slice()).unwrap_or_default();
        self.check_wipe_policy(finished);
        let finished = finished.map(|marker| marker.disks.as_slice()).unwrap_or_default();
        self.compare_disks(&DiskRecords::new(self.inventory, finished, begun_on, proven));
    }

    /// Refuses the plan, because the disks of `/` contain several installations of this allocation, and none of them is
    /// proven to be the newest.
    fn refuse_ambiguous_markers(&mut self, marked: &[MarkedFilesystem]) {
        let found = describe_markers(marked);
        let message = format!(
            "/ will be recreated, but its disks contain more than one marker ({marker_file}) of this installation, and the markers do not show which one is the newest: {found}. Erase the filesystem that is not the installed system (wipefs -a in the rescue shell)",
            marker_file = install_marker::PATH
        );
        self.refuse(ErrorCode::InstallationUnconfirmed, "disks", message);
    }

    /// Refuses the plan, because the control plane requests a first installation although its records show that the
    /// allocation is already installed.
    fn refuse_installed(&mut self, claim: &InstallClaim, marked: &[MarkedFilesystem]) {
        let message = format!(
            "allocation {allocation} is installed on this machine according to the control plane, but no filesystem has its marker ({marker_file}): {found}. An installation would wipe every listed disk, including those that a reinstall keeps. Attach the disk with the installation; or order a reinstall, with --without-marker if that disk was replaced; or, to discard all data of the machine, assign a new id to the allocation",
            allocation = claim.allocation,
            marker_file = install_marker::PATH,
            found = describe_markers(marked)
        );
        self.refuse(ErrorCode::InstallationUnconfirmed, "disks", message);
    }

    /// Refuses the plan, because the disk contains a marker of an installation that the control plane has not recorded.
    /// Either the marker or the records are wrong.
    fn refuse_untrusted(&mut self, claim: &InstallClaim, found: &MarkedFilesystem) {
        let disks: Vec<&str> = found.disks.iter().map(KernelName::as_str).collect();
        let message = format!(
            "{device} on {disks} has the marker ({marker_file}) of {owner}, image {image}, dated {time}, but the control plane does not report this allocation as installed. The installation is neither booted nor erased. If the control plane has lost its records, register the installation with drophammer machine adopt {machine}; if the installation is not needed, erase the disk (wipefs -a in the rescue shell, on each of its partitions and on the disk itself)",
            device = found.device,
            disks = disks.join(", "),
            marker_file = install_marker::PATH,
            owner = describe_owner(&found.marker.machine, &found.marker.allocation),
            image = found.marker.image,
            time = found.marker.time,
            machine = claim.machine
        );
        self.refuse(ErrorCode::InstallationUnconfirmed, "disks", message);
    }

    /// Refuses the plan, because no marker proves that the installation on this machine is older than the installation
    /// that would overwrite it.
    fn refuse_finished(&mut self, found: &MarkedFilesystem, migrated_machine: &MigratedMachine) {
        let message = format!(
            "{device} on {disks} has the marker ({marker_file}) of {owner}, dated {time}. The marker of the source machine, dated {source_time}, does not list this installation as replaced: an earlier migration may have moved the system to this machine, and the system may have run here since. Nothing is overwritten. Make sure that only one of the two machines runs the system. If the system on this machine is not needed, erase the disk (wipefs -a in the rescue shell, on each of its partitions and on the disk itself) and order the migration again",
            device = found.device,
            disks = join_disks(&found.disks),
            marker_file = install_marker::PATH,
            owner = describe_owner(&found.marker.machine, &found.marker.allocation),
            time = found.marker.time,
            source_time = migrated_machine.marker.time
        );
        self.refuse(ErrorCode::MigrationTarget, "disks", message);
    }

    /// Warns about the source machine's marker, which an earlier migration attempt has copied to this machine.
    /// According to the control plane, the allocation still belongs to the source machine.
    fn warn_copied(&mut self, found: &MarkedFilesystem) {
        self.warn(format!(
            "{device} on {disks} has the marker of {owner}, copied by an earlier attempt to migrate that installation to this machine; the migration starts over", device = found.device, disks = join_disks(&found.disks), owner = describe_owner(&found.marker.machine, &found.marker.allocation)));
    }

    fn marked_filesystems(&self) -> Vec<MarkedFilesystem<'a>> {
        let filesystems = self.inventory.filesystems.iter();
        let marked = filesystems.filter_map(|filesystem| {
            let marker = filesystem.marker.as_ref()?;
            Some(MarkedFilesystem { device: &filesystem.device, marker, disks: self.disks_below(&filesystem.device) })
        });
        marked.collect()
    }

    /// Returns the disks that hold `/`, according to the layout.
    fn root_disks(&self) -> BTreeSet<KernelName> {
        let below = self.graph.objects_below_root().disks;
        below.iter().filter_map(|index| self.found.get(index)).map(|disk| disk.name.clone()).collect()
    }

    /// Returns the latest record of the disk with the name `device` in the layout.
    pub(crate) fn latest_record(&self, device: &LayoutPath) -> Option<&'a RecordedDisk> {
        let request = self.request;
        let claim = request.claim.as_ref();
        let started = claim.into_iter().flat_map(|claim| &claim.begun_on);
        let remembered = claim.and_then(|claim| claim.installed.as_ref()).into_iter();
        let found = self.inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
        let found = found.filter(|marker| self.is_ours(marker));
        let mut all = started.chain(found.chain(remembered).flat_map(|marker| &marker.disks));
        all.find(|record| record.device == *device)
    }

    /// Returns whether the marker belongs to this installation. In an offline plan the installation is unknown, and any
    /// marker is accepted.
    fn is_ours(&self, marker: &InstallMarker) -> bool {
        self.request.claim.as_ref().is_none_or(|claim| claim.is_ours(marker))
    }

    /// Refuses a plan that would wipe or preserve disks of another installation.
    ///
    /// | the marker belongs to | on a disk | installation | reinstall |
    /// |---|---|---|---|
    /// | another machine | that will be wiped | refused | refused, unless the operator discards the disk |
    /// | another machine | that will be preserved | not applicable | refused |
    /// | another allocation of this machine | that will be wiped | wiped, because that allocation has ended; refused if the marker is newer than the request | as for another machine |
    fn refuse_others(&mut self, marked: &[MarkedFilesystem]) {
        let request = self.request;
        let Some(claim) = &request.claim else { return };
        for found in marked {
            let is_foreign = !claim.is_of_this_machine(found.marker);
            let is_other_allocation = !is_foreign && self.request.mode == InstallMode::Install;
            let is_outdated = is_other_allocation && order_age::is_outdated_install(claim, found.marker);
            if claim.is_ours(found.marker) || is_other_allocation && !is_outdated {
                continue;
            }
            let on = |verdicts: &[DiskVerdict]| -> Vec<KernelName> {
                let disks = found.disks.iter().filter(|disk| verdicts.contains(&self.verdict(disk)));
                disks.cloned().collect()
            };
            let (wiped, preserved) =
                (on(&[DiskVerdict::Wipe, DiskVerdict::Make, DiskVerdict::PartlyKept]), on(&[DiskVerdict::Keep]));
            let theirs = describe_owner(&found.marker.machine, &found.marker.allocation);
            let (mode, ours) = match request.mode {
                InstallMode::Install => ("installation", describe_owner(&claim.machine, &claim.allocation)),
                InstallMode::Reinstall => ("reinstall", describe_owner(&claim.machine, &claim.allocation)),
            };
            let holds = |disks: &[KernelName], fate: &str| {
                let disks = disks.join(", ");
                format!(
                    "{device} on {disks}, which will be {fate}, contains the installation of {theirs}, but this plan \
                    is for the {mode} of {ours}",
                    device = found.device
                )
            };
            if !wiped.is_empty() && is_outdated {
                self.refuse_outdated_install(claim, found.marker, &holds(&wiped, "wiped"));
            } else if !wiped.is_empty() {
                let said = holds(&wiped, "wiped");
                if request.mode == InstallMode::Reinstall && wiped.iter().all(|disk| self.is_discarded(disk)) {
                    self.warn(format!("{said}: that installation will be discarded, as requested by the operator"));
                } else {
                    let remedy = suggest_remedy(request.mode, claim, found.marker);
                    self.refuse(ErrorCode::ForeignDisks, "disks", format!("{said}: {remedy}"));
                }
            } else if !preserved.is_empty() && is_foreign {
                let said = holds(&preserved, "kept");
                self.refuse(
                    ErrorCode::ForeignDisks,
                    "disks",
                    format!("{said}: attach the disk of this machine, or erase this disk if you do not need its data"),
                );
            }
        }
    }

    /// Refuses a first installation that was requested before the installation on the disks was made. The control
    /// plane was reset to an earlier state, for example to a snapshot of its virtual machine.
    fn refuse_outdated_install(&mut self, claim: &InstallClaim, marker: &InstallMarker, subject: &str) {
        let number = |token: &Option<FencingToken>| token.as_ref().map(|token| token.sequence).unwrap_or_default();
        let message = format!(
            "{subject}, and that installation is newer (number {installed}) than this request (number {requested} of the same database): the control plane may have been reset to an earlier state. Restore the latest state of the control plane; or, if the installation on the disk is not needed, erase the disk (wipefs -a in the rescue shell, on each of its partitions and on the disk itself)",
            installed = number(&marker.fencing),
            requested = number(&claim.fencing)
        );
        self.refuse(ErrorCode::OrderOutdated, "disks", message);
    }

    fn decide_without_marker(&mut self, marked: &[MarkedFilesystem], root: &BTreeSet<KernelName>) {
        let root = join_disks(root);
        let root = if root.is_empty() { "absent disks" } else { &root };
        let claim = self.request.claim.as_ref();
        match claim.map(|claim| claim.waiver) {
            None | Some(Some(MarkerWaiver::OfflinePlan)) if self.inventory.filesystems.is_empty() => {
                let message = "the inventory does not contain install markers: the agent will refuse the reinstall unless it finds a marker of this installation on";
                return self.warn(format!("{message} {root}"));
            }
            Some(Some(MarkerWaiver::Operator)) => {
                let message = "found no marker of this installation on";
                return self.warn(format!("{message} {root}; the operator permits the reinstall without the marker"));
            }
            Some(Some(MarkerWaiver::Begun)) => {
                let message = "found no marker of this installation on";
                return self.warn(format!("{message} {root}; an earlier attempt has started to wipe the disks"));
            }
            None | Some(None | Some(MarkerWaiver::OfflinePlan)) => {}
        }
        let wanted = match claim {
            Some(claim) => format!("the marker of {}", describe_owner(&claim.machine, &claim.allocation)),
            None => "the marker of an installation".to_owned(),
        };
        let place = self.layout.filesystems.iter().position(|filesystem| filesystem.path.as_deref() == Some("/"));
        let place = format!("filesystems[{}]", place.unwrap_or_default());
        let elsewhere: Vec<String> = marked
            .iter()
            .filter(|found| self.is_ours(found.marker))
            .map(|found| format!("{} on {}", found.device, join_disks(&found.disks)))
            .collect();
        if !elsewhere.is_empty() {
            let message = format!(
                "/ will be recreated on {root}, but this installation is on other disks of the machine: {disks}. The names or hints in the layout now match other disks than at installation. Put the disks back in their slots, or reboot so that they get their names back",
                disks = elsewhere.join("; ")
            );
            return self.refuse(ErrorCode::ForeignDisks, place, message);
        }
        let found = describe_markers(marked);
        let message = format!(
            "/ will be recreated on {root}, but no filesystem there has {wanted} ({marker_file}): {found}. Attach the disk with the installation; or, if that disk was replaced, order the reinstall again with --without-marker",
            marker_file = install_marker::PATH
        );
        self.refuse(ErrorCode::ForeignDisks, place, message);
    }
}

/// Returns whether this machine may have a newer installation than the received one. That is the case if the received
/// marker does not list the marker on this machine as replaced, and no attempt was started. A started attempt is
/// either recognized by its partition tables (`existing_system_boot`), or repeated from the beginning.
fn is_finished(claim: &InstallClaim, found: &MarkedFilesystem, migrated_machine: &MigratedMachine) -> bool {
    let is_replaced = migrated_machine.marker.has_superseded(found.marker);
    claim.begun_on.is_empty() && found.marker.machine == claim.machine && !is_replaced
}

/// Returns the remedy for a wiped disk that contains the installation of another machine or allocation.
fn suggest_remedy(mode: InstallMode, claim: &InstallClaim, marker: &InstallMarker) -> &'static str {
    match mode {
        InstallMode::Reinstall => "attach the disks of this machine; if that installation is not needed, erase it",
        InstallMode::Install if claim.allocation == marker.allocation => {
            "if this is that machine and its id has changed, register the new id (drophammer machine rename OLD NEW); otherwise attach the disks of this machine. If that installation is not needed, erase the disk (wipefs -a in the rescue shell, on each of its partitions and on the disk itself)"
        }
        InstallMode::Install => {
            "attach the disks of this machine; if that installation is not needed, erase the disk (wipefs -a in the rescue shell, on each of its partitions and on the disk itself)"
        }
    }
}

fn join_disks(disks: &BTreeSet<KernelName>) -> String {
    disks.iter().map(KernelName::as_str).collect::<Vec<_>>().join(", ")
}

/// Returns a description of the markers found, each with its device.
fn describe_markers(marked: &[MarkedFilesystem]) -> String {
    let found = marked.iter().map(|found| {
        let whose = describe_owner(&found.marker.machine, &found.marker.allocation);
        format!(
            "{device} on {disks} has the marker of {whose}",
            device = found.device,
            disks = join_disks(&found.disks)
        )
    });
    let found: Vec<String> = found.collect();
    if found.is_empty() { "no filesystem of the machine contains a marker".to_owned() } else { found.join("; ") }
}

/// Describes an installation: `machine m-1, allocation a-1`.
pub(crate) fn describe_owner(machine: &str, allocation: &str) -> String {
    format!("machine {machine}, allocation {allocation}")
}
