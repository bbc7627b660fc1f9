//! The plan for a machine that is already installed. It destroys nothing and boots the installed system.

use super::display::{self, Running};
use super::harmless::Harmless;
use super::marking::table_guid;
use super::returning::without_replay;
use super::stages::with_work;
use super::{
    Claim, DiskPlan, Mode, MountFilesystem, OfRun, Operation, Plan, Refusal, Request, StageName, Verdict, handing,
    opaque,
};
use crate::carried::Moving;
use crate::device::{DevicePath, KernelName};
use crate::inventory::{self, ComparableDisks, Inventory, Signature};
use crate::layout::{self, Format, Layout};
use crate::marker::attempt::created_tables;
use crate::marker::{MarkedDisk, Marker, lineage};
use crate::order::Gather;
use crate::problem::Problem;
use crate::topology::{Match, Stack, find};
use std::collections::BTreeSet;

/// Finds the marker of an installation that must not be repeated.
///
/// | mode | marker of this machine and allocation | reason | |---|---|---| | install | any, and the control plane declares that the
/// allocation is installed | an accidental boot over PXE | | install | of the started attempt | a power cut between marker and report | |
/// install, migration | of the started attempt, written by this machine, received from the current boot of the source machine, if it is
/// running | a power cut between marker and report | | install | any other: ignored here, and refused (`identity`) | a previous owner of
/// the disk may have written it | | reinstall | of this order, and of the started attempt | a power cut between marker and report | |
/// reinstall | any other: ignored here; the order is carried out | the previous installation, or a forgery by its root user |
///
/// A marker is of the started attempt if the control plane declares that attempt, its secret, image and new partition tables agree with the
/// marker, and these tables are on the disks.
pub fn marked<'a>(layout: &Layout, inventory: &'a Inventory, request: &Request) -> Option<Marked<'a>> {
    let claim = request.claim.as_ref().filter(|claim| !claim.allocation.is_empty())?;
    let is_believed = |marker: &Marker| match (request.mode, request.receiving()) {
        (Mode::Install, Some(moving)) => is_received(inventory, claim, moving, marker),
        (Mode::Install, None) => claim.is_installed() || is_of_attempt(inventory, claim, marker),
        (Mode::Reinstall, _) => is_carried_out(inventory, claim, marker),
    };
    latest(layout, inventory, |marker| claim.is_ours(marker) && is_believed(marker))
}

/// Returns a matching marker: the one on the root filesystem of the layout, else the newest, else the first that was found. The choice only
/// matters for booting and reading.
pub fn latest<'a>(layout: &Layout, inventory: &'a Inventory, is_it: impl Fn(&Marker) -> bool) -> Option<Marked<'a>> {
    let is_it = |marker: &&Marker| is_it(marker);
    let found = inventory.filesystems.iter().filter_map(|filesystem| {
        let marker = filesystem.marker.as_ref().filter(is_it)?;
        Some(Marked { device: &filesystem.device, marker })
    });
    let comparable = ComparableDisks::new(&inventory.disks);
    let is_root = |marked: &Marked| {
        let root = layout.filesystems.iter().find(|is| is.path.as_deref() == Some("/"));
        let now = root.and_then(|root| by_marker(layout, inventory, &comparable, marked.marker).now(&root.device));
        now.as_ref() == Some(marked.device)
    };
    let mut found: Vec<Marked> = found.collect();
    let roots: Vec<bool> = found.iter().map(is_root).collect();
    if roots.contains(&true) {
        let mut roots = roots.into_iter();
        found.retain(|_| roots.next() == Some(true));
    }
    let markers: Vec<&Marker> = found.iter().map(|marked| marked.marker).collect();
    let newest = lineage::find_newest(&markers).unwrap_or_default();
    found.into_iter().nth(newest)
}

/// An installation that is already on the disks, found by its marker.
pub struct Marked<'a> {
    /// Current path of the filesystem with the marker.
    pub device: &'a DevicePath,
    pub marker: &'a Marker,
}

/// Returns whether the started attempt wrote the marker, and the disks still have its partition tables. Without a declared attempt a marker
/// proves nothing.
fn is_of_attempt(inventory: &Inventory, claim: &Claim, marker: &Marker) -> bool {
    let Some(attempt) = &claim.attempt else { return false };
    let is_on_a_disk = |new: &MarkedDisk| inventory.disks.iter().any(|disk| table_guid(disk) == new.guid);
    marker.check_attempt(attempt, &claim.begun_on).is_ok() && created_tables(&claim.begun_on).all(is_on_a_disk)
}

/// Returns whether the order was carried out, and this marker was written by the attempt that did so.
pub fn is_carried_out(inventory: &Inventory, claim: &Claim, marker: &Marker) -> bool {
    let is_of_order = claim.order.is_some() && claim.order == marker.order;
    is_of_order && claim.is_ours(marker) && is_of_attempt(inventory, claim, marker)
}

/// Returns whether this machine wrote the marker after it had received everything. A received root filesystem contains the marker of the
/// source machine, which is ignored. If that machine has booted since, its own system may have written data that is missing here.
fn is_received(inventory: &Inventory, claim: &Claim, moving: &Moving, marker: &Marker) -> bool {
    let is_present = moving.peer.as_ref().is_none_or(|peer| marker.received_from == Some(peer.digest()));
    claim.machine == marker.machine && is_of_attempt(inventory, claim, marker) && is_present
}

/// Returns a plan that mounts root and /boot without writing, and boots.
///
/// # Errors Root or /boot cannot be mounted without writing.
pub fn arrange(
    layout: &Layout,
    inventory: &Inventory,
    request: Request,
    marked: &Marked,
) -> Result<Plan, Box<Refusal>> {
    let disks = disks(layout, inventory, marked.marker);
    match mounts(layout, inventory, marked) {
        Ok((mounts, root_uuid)) => {
            let stages = [
                (StageName::ReportBegin, begin(&request).into_iter().map(Operation::Run).collect()),
                (StageName::StorageMount, mounts.into_iter().map(OfRun::MountReadOnly).map(Operation::Run).collect()),
                (StageName::BootLoad, vec![Operation::Run(OfRun::LoadKernel)]),
                (StageName::StorageUnmount, vec![Operation::Run(OfRun::Unmount)]),
                (
                    StageName::ReportFinal,
                    vec![Operation::Run(handing::closing(&request, Some(marked.marker), Vec::new()))],
                ),
                (StageName::BootKexec, vec![Operation::Run(OfRun::Kexec)]),
            ];
            let stages: Vec<(StageName, Vec<Operation>)> = stages.into();
            let harmless = Harmless {
                mode: request.mode,
                subject: request.subject,
                layout: marked.marker.layout.clone(),
                disks,
                stages: with_work(stages),
                root_uuid,
                already: Some(marked.marker.clone()),
            };
            Ok(harmless.plan(inventory))
        }
        Err(why) => Err(Box::new(Refusal {
            problems: vec![Problem::new("filesystems", cannot(&request, &why))],
            mode: request.mode,
            subject: request.subject,
            layout: layout.id.clone(),
            disks,
            opaque: opaque::listed(inventory),
        })),
    }
}

/// Announces a received installation again, with the tables and the digest of the attempt that received it. The control plane accepts
/// success only from a boot that has announced it, because the source machine may run its system again by now.
fn begin(request: &Request) -> Option<OfRun> {
    let (begun_on, attempt) = request.claim.as_ref().map(|claim| (claim.begun_on.clone(), claim.attempt.clone()))?;
    let secret_digest = attempt.map(|attempt| attempt.secret_digest);
    request.receiving().map(|_| handing::announce(request, begun_on, secret_digest))
}

/// Returns the mounts and the UUID of the root filesystem. Root is the filesystem with the marker; a separate /boot is located by the
/// layout.
fn mounts(layout: &Layout, inventory: &Inventory, marked: &Marked) -> Result<(Vec<MountFilesystem>, String), String> {
    let (root, root_uuid) = look(inventory, marked.device, "/")?;
    let mut mounts = vec![root];
    if let Some(boot) = layout.filesystems.iter().find(|filesystem| filesystem.path.as_deref() == Some("/boot")) {
        let Some(device) =
            by_marker(layout, inventory, &ComparableDisks::new(&inventory.disks), marked.marker).now(&boot.device)
        else {
            return Err(format!("/boot is on {}, which is absent or inactive", boot.device));
        };
        mounts.push(look(inventory, &device, "/boot")?.0);
    }
    Ok((mounts, root_uuid))
}

/// Explains why the installed system cannot be booted. If the control plane knows of the installation, erasing the disk does not help: only
/// an order reinstalls it.
fn cannot(request: &Request, why: &str) -> String {
    let is_known = request.claim.as_ref().is_some_and(Claim::is_installed);
    let anew = match request.mode {
        Mode::Install if is_known => "order a reinstall",
        Mode::Install | Mode::Reinstall => "erase the disk that contains /",
    };
    format!(
        "this allocation is already installed, so it is not installed again, but its system cannot be booted from the ramdisk: \
         {why}. Boot it from its disk. To install it again, {anew}"
    )
}

/// Returns a mount that neither writes nor replays a journal, and the UUID of the filesystem.
///
/// # Errors Returns the reason why the device cannot be mounted in this way.
fn look(inventory: &Inventory, device: &DevicePath, path: &str) -> Result<(MountFilesystem, String), String> {
    let filesystem = match signatures(inventory, device) {
        [one] => one,
        [] => return Err(format!("{path} is on {device}, which lacks a filesystem signature")),
        _ => return Err(format!("{path} is on {device}, which has several signatures")),
    };
    let format = Format::ALL.into_iter().find(|format| format.name() == filesystem.kind);
    let Some((format, option)) = format.and_then(|format| Some((format, without_replay(format)?))) else {
        let held = display::signature(filesystem);
        return Err(format!("{path} is on {device}, which contains {held} and cannot be mounted without writing"));
    };
    let options = ["ro", option].into_iter().filter(|option| !option.is_empty()).map(str::to_owned).collect();
    let mount = MountFilesystem { device: device.clone(), path: path.to_owned(), format, options, others: Vec::new() };
    Ok((mount, filesystem.uuid.clone()))
}

fn signatures<'a>(inventory: &'a Inventory, device: &DevicePath) -> &'a [Signature] {
    let stack = Stack::new(inventory);
    stack.unit(&stack.name(device)).signatures()
}

/// Matches disks by the serial numbers and WWNs in the marker, whatever their present kernel names are.
pub fn by_marker<'a>(
    layout: &'a Layout,
    inventory: &'a Inventory,
    comparable: &ComparableDisks<'a>,
    marker: &Marker,
) -> Match<'a> {
    Match::by(layout, inventory, |listed| disk_now(listed, inventory, comparable, marker))
}

fn disk_now<'a>(
    listed: &layout::Disk,
    inventory: &'a Inventory,
    comparable: &ComparableDisks<'a>,
    marker: &Marker,
) -> Option<&'a inventory::Disk> {
    let recorded = marker.disks.iter().find(|disk| disk.device == listed.device);
    let names = recorded.map(|disk| (disk.comparable_serial(), disk.comparable_wwn()));
    let Some((serial, wwn)) = names.filter(|(serial, wwn)| serial.is_some() || wwn.is_some()) else {
        return find::disk(listed, inventory).ok();
    };
    comparable.find(serial.as_ref(), wwn.as_ref())
}

/// Returns the disks of the plan, none of which is wiped or recreated.
fn disks(layout: &Layout, inventory: &Inventory, marker: &Marker) -> Vec<DiskPlan> {
    let stack = Stack::new(inventory);
    let comparable = ComparableDisks::new(&inventory.disks);
    let listed = layout.disks.iter().filter_map(|listed| disk_now(listed, inventory, &comparable, marker));
    let listed: BTreeSet<&KernelName> = listed.map(|disk| &disk.name).gather();
    let running = Running::new(inventory, &stack).trees();
    let plans = inventory.disks.iter().zip(running).map(|(disk, running)| {
        let verdict = if listed.contains(&disk.name) { Verdict::Keep } else { Verdict::NotOurs };
        DiskPlan { running, ..DiskPlan::of(disk, verdict) }
    });
    plans.collect()
}
