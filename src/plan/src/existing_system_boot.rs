//! Plan for a machine that is already installed. The plan boots the installed system, and does not destroy anything.

use super::display::RunningTrees;
use super::image_boot_setup;
use super::non_destructive_plan::ReadOnlyPlan;
use super::preserved_activation::no_replay_option;
use super::recorded_disk::table_guid;
use super::stages::drop_empty_stages;
use super::{
    DiskPlan, DiskVerdict, InstallClaim, InstallMode, Plan, PlanRefusal, PlanRequest, opaque_objects, operation_args,
};
use crate::content_descriptions;
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::device_name::{DevicePath, KernelName};
use model::install_marker::attempt_proof::disks_with_new_tables;
use model::install_marker::{InstallMarker, RecordedDisk, lineage};
use model::inventory::{self, ComparableDiskIndex, DeviceSignature, Inventory};
use model::layout::{self, FilesystemFormat, Layout};
use model::machine_migration::MigrationOffer;
use model::storage_graph::{DeviceStack, LayoutMatch, disk_lookup};
use operations::{LoadKernel, MountFilesystem, MountReadOnly, Operation, SessionOp, StageName};
use std::collections::BTreeSet;
use uuid::Uuid;

/// Finds the marker of an installation that must not be repeated.
///
/// | mode | the marker of this machine and allocation is | the installed system is |
/// |---|---|---|
/// | install | any marker, and the control plane reports the allocation as installed | booted: the machine has booted over PXE by accident |
/// | install | from the started attempt | booted: power failed after the marker was written and before the report was sent |
/// | install by migration | from the started attempt, and written by this machine; if the source machine is in its ramdisk, it has not booted since it sent the data | booted: power failed after the marker was written and before the report was sent |
/// | install | any other marker | not booted, and the plan is refused (`identity`): a previous owner of the disk may have written the marker |
/// | reinstall | of this order, and from the started attempt | booted: power failed after the marker was written and before the report was sent |
/// | reinstall | any other marker | not booted, and the order is executed: the marker belongs to the previous installation, or was forged by root in that installation |
///
/// A marker is *from the started attempt* if the control plane has a record of that attempt, the marker has the secret,
/// the image and the new partition tables of that record, and these tables are on the disks.
pub(crate) fn find_installation<'a>(
    layout: &Layout,
    inventory: &'a Inventory,
    request: &PlanRequest,
) -> Option<ExistingInstallation<'a>> {
    let claim = request.claim.as_ref().filter(|claim| !claim.allocation.is_empty())?;
    let is_believed = |marker: &InstallMarker| match (request.mode, request.receiving()) {
        (InstallMode::Install, Some(moving)) => is_received(inventory, claim, moving, marker),
        (InstallMode::Install, None) => claim.is_installed() || is_from_started_attempt(inventory, claim, marker),
        (InstallMode::Reinstall, _) => is_carried_out(inventory, claim, marker),
    };
    find_best_marker(layout, inventory, |marker| claim.is_ours(marker) && is_believed(marker))
}

/// Returns the installation of the newest matching marker, or of the first one if none is proven to be the newest. If
/// matching markers are on the root filesystem of the layout, only these markers are considered. The choice only
/// determines which system is booted.
pub(crate) fn find_best_marker<'a>(
    layout: &Layout,
    inventory: &'a Inventory,
    is_it: impl Fn(&InstallMarker) -> bool,
) -> Option<ExistingInstallation<'a>> {
    let is_it = |marker: &&InstallMarker| is_it(marker);
    let found = inventory.filesystems.iter().filter_map(|filesystem| {
        let marker = filesystem.marker.as_ref().filter(is_it)?;
        Some(ExistingInstallation { device: &filesystem.device, marker })
    });
    let comparable = ComparableDiskIndex::new(&inventory.disks);
    let is_root = |marked: &ExistingInstallation| {
        let root = layout.filesystems.iter().find(|filesystem| filesystem.path.as_deref() == Some("/"));
        let now = root
            .and_then(|root| match_by_marker(layout, inventory, &comparable, marked.marker).present_path(&root.device));
        now.as_ref() == Some(marked.device)
    };
    let mut found: Vec<ExistingInstallation> = found.collect();
    let roots: Vec<bool> = found.iter().map(is_root).collect();
    if roots.contains(&true) {
        let mut roots = roots.into_iter();
        found.retain(|_| roots.next() == Some(true));
    }
    let markers: Vec<&InstallMarker> = found.iter().map(|marked| marked.marker).collect();
    let newest = lineage::find_newest(&markers).unwrap_or_default();
    found.into_iter().nth(newest)
}

/// An installation that is already on the disks, found by its marker.
pub(crate) struct ExistingInstallation<'a> {
    /// Current device path of the filesystem that contains the marker.
    pub device: &'a DevicePath,
    pub marker: &'a InstallMarker,
}

/// Returns whether the started attempt wrote the marker, and the disks still have the partition tables of that attempt.
/// If the control plane does not have a record of an attempt, a marker proves nothing.
fn is_from_started_attempt(inventory: &Inventory, claim: &InstallClaim, marker: &InstallMarker) -> bool {
    let Some(attempt) = &claim.attempt else { return false };
    let is_on_a_disk = |new: &RecordedDisk| inventory.disks.iter().any(|disk| table_guid(disk) == new.guid);
    marker.check_attempt(attempt, &claim.begun_on).is_ok() && disks_with_new_tables(&claim.begun_on).all(is_on_a_disk)
}

/// Returns whether this marker proves that the started attempt has executed the reinstall order.
pub fn is_carried_out(inventory: &Inventory, claim: &InstallClaim, marker: &InstallMarker) -> bool {
    let is_of_order = claim.order.is_some() && claim.order == marker.order;
    is_of_order && claim.is_ours(marker) && is_from_started_attempt(inventory, claim, marker)
}

/// Returns whether this machine wrote the marker after it had received all data of the migration. The received marker
/// of the source machine is ignored. If the source machine is in its ramdisk, it must not have booted since it sent the
/// data: during such a boot, the system of the source machine may have written data that this machine lacks.
fn is_received(inventory: &Inventory, claim: &InstallClaim, moving: &MigrationOffer, marker: &InstallMarker) -> bool {
    let is_present = moving.peer.as_ref().is_none_or(|peer| marker.received_from == Some(peer.digest()));
    claim.machine == marker.machine && is_from_started_attempt(inventory, claim, marker) && is_present
}

/// Returns a plan that mounts / and /boot without writing to them, and boots the system.
///
/// # Errors
/// Fails if / or /boot cannot be mounted without writing.
pub(crate) fn plan_boot(
    layout: &Layout,
    inventory: &Inventory,
    request: PlanRequest,
    marked: &ExistingInstallation,
) -> Result<Plan, Box<PlanRefusal>> {
    let disks = disk_plans(layout, inventory, marked.marker);
    match read_only_mounts(layout, inventory, marked) {
        Ok((mounts, root_uuid)) => {
            let load = LoadKernel { installed_esps: Some(find_esps(layout, inventory, marked.marker)) };
            let stages = [
                (StageName::ReportBegin, announce_received(&request).into_iter().map(Operation::Run).collect()),
                (
                    StageName::StorageMount,
                    mounts.into_iter().map(MountReadOnly).map(SessionOp::MountReadOnly).map(Operation::Run).collect(),
                ),
                (StageName::BootLoad, vec![Operation::Run(SessionOp::LoadKernel(load))]),
                (StageName::StorageUnmount, vec![Operation::Run(SessionOp::Unmount)]),
                (
                    StageName::ReportFinal,
                    vec![Operation::Run(operation_args::final_report(&request, Some(marked.marker), Vec::new()))],
                ),
                (StageName::BootKexec, vec![Operation::Run(SessionOp::Kexec)]),
            ];
            let stages: Vec<(StageName, Vec<Operation>)> = stages.into();
            let harmless = ReadOnlyPlan {
                mode: request.mode,
                subject: request.subject,
                layout: marked.marker.layout.clone(),
                disks,
                stages: drop_empty_stages(stages),
                root_uuid,
                already: Some(marked.marker.clone()),
            };
            Ok(harmless.build_plan(inventory))
        }
        Err(why) => Err(Box::new(PlanRefusal {
            problems: vec![
                Diagnostic::new("filesystems", explain_unbootable(&request, &why))
                    .with_code(ErrorCode::InstalledSystem),
            ],
            mode: request.mode,
            subject: request.subject,
            layout: layout.id.clone(),
            disks,
            opaque: opaque_objects::listed_objects(inventory),
        })),
    }
}

/// Announces a received installation again, with the partition tables and the digest of the attempt that received it.
/// The control plane accepts a report of success only from a boot that has sent an announcement, because the source
/// machine may have started its own system again since it sent the data.
fn announce_received(request: &PlanRequest) -> Option<SessionOp> {
    let (begun_on, attempt) = request.claim.as_ref().map(|claim| (claim.begun_on.clone(), claim.attempt.clone()))?;
    let secret_digest = attempt.map(|attempt| attempt.secret_digest);
    request.receiving().map(|_| operation_args::announce_start(request, begun_on, secret_digest))
}

/// Returns the mounts and the UUID of the root filesystem. The root filesystem is the one with the marker; the layout
/// specifies the device of a separate /boot.
fn read_only_mounts(
    layout: &Layout,
    inventory: &Inventory,
    marked: &ExistingInstallation,
) -> Result<(Vec<MountFilesystem>, String), String> {
    let (root, root_uuid) = mount_without_replay(inventory, marked.device, "/")?;
    let mut mounts = vec![root];
    if let Some(boot) = layout.filesystems.iter().find(|filesystem| filesystem.path.as_deref() == Some("/boot")) {
        let Some(device) =
            match_by_marker(layout, inventory, &ComparableDiskIndex::new(&inventory.disks), marked.marker)
                .present_path(&boot.device)
        else {
            return Err(format!("/boot is on {device}, which is absent or inactive", device = boot.device));
        };
        mounts.push(mount_without_replay(inventory, &device, "/boot")?.0);
    }
    Ok((mounts, root_uuid))
}

/// Returns the GUIDs of the EFI system partitions of the installed system.
fn find_esps(layout: &Layout, inventory: &Inventory, marker: &InstallMarker) -> Vec<Uuid> {
    let comparable = ComparableDiskIndex::new(&inventory.disks);
    image_boot_setup::present_esps(&match_by_marker(layout, inventory, &comparable, marker))
}

/// Explains why the installed system cannot be booted. If the control plane records the allocation as installed, the
/// remedy is a reinstall. Erasing the disk would not help, because the control plane then refuses a first
/// installation.
fn explain_unbootable(request: &PlanRequest, why: &str) -> String {
    let is_known = request.claim.as_ref().is_some_and(InstallClaim::is_installed);
    let anew = match request.mode {
        InstallMode::Install if is_known => "order a reinstall",
        InstallMode::Install | InstallMode::Reinstall => "erase the disk that contains /",
    };
    format!(
        "this allocation is already installed, but its system cannot be booted from the ramdisk: {why}. Nothing will \
         be installed. Boot the system from its disk. To install the system again, {anew}"
    )
}

/// Returns a read-only mount that does not replay the journal, and the UUID of the filesystem.
///
/// # Errors
/// Returns the reason if the device cannot be mounted in this way.
fn mount_without_replay(
    inventory: &Inventory,
    device: &DevicePath,
    path: &str,
) -> Result<(MountFilesystem, String), String> {
    let filesystem = match signatures_on(inventory, device) {
        [one] => one,
        [] => return Err(format!("{path} is on {device}, which lacks a filesystem signature")),
        _ => return Err(format!("{path} is on {device}, which has several signatures")),
    };
    let format = FilesystemFormat::ALL.into_iter().find(|format| format.name() == filesystem.kind);
    let Some((format, option)) = format.and_then(|format| Some((format, no_replay_option(format)?))) else {
        let held = content_descriptions::describe_signature(filesystem);
        return Err(format!(
            "{path} is on {device}, which contains {held} and cannot be mounted without writing to it"
        ));
    };
    let options = ["ro", option].into_iter().filter(|option| !option.is_empty()).map(str::to_owned).collect();
    let mount = MountFilesystem { device: device.clone(), path: path.to_owned(), format, options, others: Vec::new() };
    Ok((mount, filesystem.uuid.clone()))
}

fn signatures_on<'a>(inventory: &'a Inventory, device: &DevicePath) -> &'a [DeviceSignature] {
    let stack = DeviceStack::new(inventory);
    stack.find_unit(&stack.kernel_name(device)).signatures()
}

/// Matches disks by the serial numbers and WWNs in the marker. Current kernel names are ignored.
pub(crate) fn match_by_marker<'a>(
    layout: &'a Layout,
    inventory: &'a Inventory,
    comparable: &ComparableDiskIndex<'a>,
    marker: &InstallMarker,
) -> LayoutMatch<'a> {
    LayoutMatch::with_disks(layout, inventory, |listed| find_recorded_disk(listed, inventory, comparable, marker))
}

fn find_recorded_disk<'a>(
    listed: &layout::DiskSpec,
    inventory: &'a Inventory,
    comparable: &ComparableDiskIndex<'a>,
    marker: &InstallMarker,
) -> Option<&'a inventory::InventoryDisk> {
    let recorded = marker.disks.iter().find(|disk| disk.device == listed.device);
    let names = recorded.map(|disk| (disk.comparable_serial(), disk.comparable_wwn()));
    let Some((serial, wwn)) = names.filter(|(serial, wwn)| serial.is_some() || wwn.is_some()) else {
        return disk_lookup::find_disk(listed, inventory).ok();
    };
    comparable.find_disk(serial.as_ref(), wwn.as_ref())
}

/// Returns the disks of the plan, none of which is wiped or recreated.
fn disk_plans(layout: &Layout, inventory: &Inventory, marker: &InstallMarker) -> Vec<DiskPlan> {
    let stack = DeviceStack::new(inventory);
    let comparable = ComparableDiskIndex::new(&inventory.disks);
    let listed = layout.disks.iter().filter_map(|listed| find_recorded_disk(listed, inventory, &comparable, marker));
    let listed: BTreeSet<&KernelName> = listed.map(|disk| &disk.name).collect();
    let running = RunningTrees::new(inventory, &stack).draw_trees();
    let plans = inventory.disks.iter().zip(running).map(|(disk, running)| {
        let verdict = if listed.contains(&disk.name) { DiskVerdict::Keep } else { DiskVerdict::NotOurs };
        DiskPlan { running, ..DiskPlan::from_disk(disk, verdict) }
    });
    plans.collect()
}
