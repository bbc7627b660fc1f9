//! The plan for a machine that is installed already. It destroys nothing and boots the installed system.

use super::display::{self, Running};
use super::harmless::Harmless;
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
use crate::marker::{MarkedDisk, Marker, lineage};
use crate::order::Gather;
use crate::problem::Problem;
use crate::topology::{Match, Stack, find};
use std::collections::BTreeSet;

/// Finds the marker of an installation that must not be made again.
///
/// | mode | marker of this machine and allocation | why it is there |
/// |---|---|---|
/// | install | any, and the control plane says that the allocation is installed | a boot over PXE by accident |
/// | install | written by the attempt that has begun, as the GUIDs of its new tables show | a cut between marker and report |
/// | install, of a move | written by this machine when it had received all, as those GUIDs show, from the boot that the other machine is in now, if it is in any | a cut between marker and report |
/// | install | any other: not found here, and refused (`identity`) | an earlier owner of the disk may have written it |
/// | reinstall | of this very order | a cut between marker and report |
pub fn marked<'a>(layout: &Layout, inventory: &'a Inventory, request: &Request) -> Option<Marked<'a>> {
    let claim = request.claim.as_ref().filter(|claim| !claim.allocation.is_empty())?;
    let is_believed = |marker: &Marker| match (request.mode, request.receiving()) {
        (Mode::Install, Some(moving)) => is_received(claim, moving, marker),
        (Mode::Install, None) => claim.is_installed() || is_of_begun(claim, marker),
        (Mode::Reinstall, _) => is_order(claim, marker),
    };
    latest(layout, inventory, |marker| claim.is_ours(marker) && is_believed(marker))
}

/// Returns a matching marker: the one where the layout has its root, else the newest, else the first that was found. The choice is
/// only used to boot and to read.
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

pub struct Marked<'a> {
    /// Current path of the filesystem with the marker.
    pub device: &'a DevicePath,
    pub marker: &'a Marker,
}

/// Was the marker written by the attempt that has begun? That attempt reported the GUIDs of its new tables before it began: the
/// marker must have them all. An image that brings its own tables leaves no such GUID; then any begun attempt will do.
fn is_of_begun(claim: &Claim, marker: &Marker) -> bool {
    match new_tables(claim).next() {
        None => !claim.begun_on.is_empty(),
        Some(_) => is_of_new(claim, marker),
    }
}

/// What it receives has the marker of the machine that sends it, so that one does not count. And if that machine has booted since, its
/// own system may have written something that is not here.
fn is_received(claim: &Claim, moving: &Moving, marker: &Marker) -> bool {
    let is_present = moving.peer.as_ref().is_none_or(|peer| marker.received_from == Some(peer.digest()));
    claim.machine == marker.machine && is_of_new(claim, marker) && is_present
}

/// Does the marker have them all, and is there one?
fn is_of_new(claim: &Claim, marker: &Marker) -> bool {
    let has =
        |record: &MarkedDisk| marker.disks.iter().any(|disk| disk.device == record.device && disk.guid == record.guid);
    new_tables(claim).next().is_some() && new_tables(claim).all(has)
}

fn new_tables(claim: &Claim) -> impl Iterator<Item = &MarkedDisk> {
    claim.begun_on.iter().filter(|disk| disk.guid.is_some() && disk.guid != disk.guid_before)
}

fn is_order(claim: &Claim, marker: &Marker) -> bool {
    claim.order.is_some() && claim.order == marker.order
}

/// The plan mounts root and /boot without writing, and boots.
///
/// # Errors
/// Root or /boot cannot be mounted without writing.
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

/// What was received is reported by a boot that the control plane has let begin, and by no other one: whoever has sent it may have
/// its system again by now. It is told of the same tables as before.
fn begin(request: &Request) -> Option<OfRun> {
    let begun_on = request.claim.as_ref().map(|claim| claim.begun_on.clone()).unwrap_or_default();
    request.receiving().map(|_| handing::announce(request, begun_on))
}

/// Root is the filesystem with the marker. A separate /boot is where the layout has it.
fn mounts(layout: &Layout, inventory: &Inventory, marked: &Marked) -> Result<(Vec<MountFilesystem>, String), String> {
    let (root, root_uuid) = look(inventory, marked.device, "/")?;
    let mut mounts = vec![root];
    if let Some(boot) = layout.filesystems.iter().find(|filesystem| filesystem.path.as_deref() == Some("/boot")) {
        let Some(device) =
            by_marker(layout, inventory, &ComparableDisks::new(&inventory.disks), marked.marker).now(&boot.device)
        else {
            return Err(format!("/boot is on {}, which is not there or does not run", boot.device));
        };
        mounts.push(look(inventory, &device, "/boot")?.0);
    }
    Ok((mounts, root_uuid))
}

/// Once the control plane knows the installation, an erased disk is refused too: only an order makes it anew.
fn cannot(request: &Request, why: &str) -> String {
    let is_known = request.claim.as_ref().is_some_and(Claim::is_installed);
    let anew = match request.mode {
        Mode::Install if is_known => "order a reinstall",
        Mode::Install | Mode::Reinstall => "erase the disk that carries /",
    };
    format!(
        "this allocation is installed already, so it is not installed again. But it cannot be booted from here: {why}. Boot it from its disk. To install it anew, {anew}"
    )
}

/// A mount that neither writes nor replays a journal, and the UUID of the filesystem; or why there is none.
fn look(inventory: &Inventory, device: &DevicePath, path: &str) -> Result<(MountFilesystem, String), String> {
    let filesystem = match signatures(inventory, device) {
        [one] => one,
        [] => return Err(format!("{path} is on {device}, which has no signature of a filesystem")),
        _ => return Err(format!("{path} is on {device}, which has several signatures at once")),
    };
    let format = Format::ALL.into_iter().find(|format| format.name() == filesystem.kind);
    let Some((format, option)) = format.and_then(|format| Some((format, without_replay(format)?))) else {
        let held = display::signature(filesystem);
        return Err(format!("{path} is on {device}, which holds {held}, and that cannot be mounted without a write"));
    };
    let options = ["ro", option].into_iter().filter(|option| !option.is_empty()).map(str::to_owned).collect();
    let mount = MountFilesystem { device: device.clone(), path: path.to_owned(), format, options, others: Vec::new() };
    Ok((mount, filesystem.uuid.clone()))
}

fn signatures<'a>(inventory: &'a Inventory, device: &DevicePath) -> &'a [Signature] {
    let stack = Stack::new(inventory);
    stack.unit(&stack.name(device)).signatures()
}

/// A disk is the one that the marker records, whatever the kernel calls it today.
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

/// The disks of the plan. None of them is wiped or made.
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
