//! Decides how the image is made bootable on this machine. An image that cannot be made bootable is refused before the
//! first write.

use super::filesystem_fate::PlacedFilesystem;
use super::plan_decisions::{ArrayFate, PlanDecisions};
use super::preserved_activation::mount_path;
use super::stages::writable_devices;
use super::{InstallMode, PlanRequest, ganeti_os_definition, image_bootability};
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::allocation::{
    Allocation, FinisherChoice, ServerKind, find_argument_error, find_hostname_error, find_key_line_error,
    normalize_servers,
};
use model::device_name::{DevicePath, LayoutPath};
use model::inventory::{self, FirmwareType, Inventory, Nic};
use model::layout::{DiskSpec, FilesystemFormat, FilesystemSpec, Layout, PartitionSpec, PartitionType, RaidLevel};
use model::storage_graph::LayoutMatch;
use netconfig::NetworkConfig;
use operations::{
    BootDisk, BootFilesystem, ByteRange, Esp, FinishInputs, FinishedArray, FstabEntry, MachineFiles, NewPartition,
    RequestedNetwork, SeedFilesystem, SystemFilesystem, SystemVolume,
};
use uuid::Uuid;

/// Returns the reasons why the image cannot be made bootable on this machine.
pub(crate) fn refuse_finishing(layout: &Layout, inventory: &Inventory, request: &PlanRequest) -> Vec<Diagnostic> {
    // A migrated system is already bootable, because it was installed on the source machine.
    if request.receiving().is_some() {
        return Vec::new();
    }
    let allocation = &request.assigned.allocation;
    let esp = match (allocation.finisher(), inventory.system.firmware) {
        (FinisherChoice::Builtin, FirmwareType::Uefi) => layout.find_missing_esp(),
        _ => None,
    };
    let writes = matches!(allocation.finisher(), FinisherChoice::Auto | FinisherChoice::Builtin);
    let words = if writes { check_injected_values(allocation) } else { Vec::new() };
    let network = requested_network(allocation, &inventory.nics).err().unwrap_or_default();
    let contents = image_bootability::check_image_contents(layout, inventory, request).refused;
    let architecture = image_bootability::refuse_architecture(inventory, request);
    let definition = ganeti_os_definition::refuse_definition(layout, request);
    // For a reinstall, this check is omitted, because the machine has already booted from its disks.
    let is_new = request.mode == InstallMode::Install;
    let sectors = find_unbootable_sectors(layout, inventory).filter(|_| writes && is_new);
    let esp = esp.map(|problem| problem.with_default_code(ErrorCode::ImageNotBootable));
    let image = architecture.into_iter().chain(contents).chain(definition);
    esp.into_iter().chain(sectors).chain(words).chain(network).chain(image).collect()
}

/// Returns the network configuration of the allocation. Any invalid `network` is refused. An invalid `networks` is
/// refused only if the agent must make the image bootable itself; otherwise the image's installer may support it.
fn requested_network(allocation: &Allocation, nics: &[Nic]) -> Result<RequestedNetwork, Vec<Diagnostic>> {
    if !allocation.network.is_null() {
        let network = NetworkConfig::parse(&allocation.network).map_err(place_in_allocation)?;
        let misfits = place_in_allocation(network.check_nics(nics));
        return if misfits.is_empty() { Ok(RequestedNetwork::Described(network)) } else { Err(misfits) };
    }
    if allocation.networks.is_null() {
        return Ok(RequestedNetwork::Unsaid);
    }
    let announced = NetworkConfig::from_metal_stack(&allocation.networks, &allocation.dns_servers, nics);
    match (announced, allocation.finisher()) {
        (Ok(network), _) => Ok(RequestedNetwork::Announced(network)),
        (Err(problems), FinisherChoice::Builtin) => Err(place_in_allocation(problems)),
        (Err(_), _) => Ok(RequestedNetwork::Unsaid),
    }
}

fn place_in_allocation(problems: Vec<Diagnostic>) -> Vec<Diagnostic> {
    let place = |place: String| match place.as_str() {
        "" => "allocation.network".to_owned(),
        inner if inner.starts_with("network") || inner.starts_with("dns_servers") => format!("allocation.{inner}"),
        inner => format!("allocation.network.{inner}"),
    };
    problems
        .into_iter()
        .map(|problem| Diagnostic { place: place(problem.place.clone()), ..problem })
        .map(|problem| problem.with_default_code(ErrorCode::AllocationValue))
        .collect()
}

/// Returns a warning if the firmware might be unable to boot the system, because the ESP is missing, or because a BIOS
/// does not support the sector size of the disks. The plan is not refused, because an installer of the image may make
/// the system bootable in another way, and a reinstalled machine has already booted from its disks.
pub(crate) fn warn_firmware(layout: &Layout, inventory: &Inventory, finishing: &FinishInputs) -> Option<String> {
    match (finishing.way, finishing.firmware) {
        (FinisherChoice::Auto, FirmwareType::Uefi) => layout.find_missing_esp().map(|problem| problem.message),
        (FinisherChoice::None, FirmwareType::Bios) | (_, FirmwareType::Uefi) => None,
        (_, FirmwareType::Bios) => find_unbootable_sectors(layout, inventory).map(|problem| problem.message),
    }
}

/// Returns a problem for each value of the allocation that could inject syntax into a configuration file, or that the
/// system could not use.
fn check_injected_values(allocation: &Allocation) -> Vec<Diagnostic> {
    let Allocation { hostname, ssh_pub_keys, kernel_arguments, .. } = allocation;
    let hostname = Some(hostname).filter(|name| !name.is_empty()).and_then(|name| find_hostname_error(name));
    let hostname =
        hostname.map(|why| Diagnostic::new("allocation.hostname", why).with_code(ErrorCode::AllocationValue));
    let keys = find_list_errors("ssh_pub_keys", ssh_pub_keys, find_key_line_error);
    let arguments = find_list_errors("kernel_arguments", kernel_arguments, find_argument_error);
    let dns = normalize_servers(ServerKind::Dns, &allocation.dns_servers);
    let ntp = normalize_servers(ServerKind::Ntp, &allocation.ntp_servers);
    let servers = [dns, ntp].into_iter().filter_map(Result::err).flatten();
    let servers = servers
        .map(|problem| Diagnostic { place: format!("allocation.{}", problem.place), ..problem })
        .map(|problem| problem.with_default_code(ErrorCode::AllocationValue));
    hostname.into_iter().chain(keys).chain(arguments).chain(servers).collect()
}

fn find_list_errors(
    field: &str,
    values: &[String],
    find_error: impl Fn(&str) -> Option<&'static str>,
) -> Vec<Diagnostic> {
    let errors = values.iter().enumerate().filter_map(|(index, value)| Some((index, find_error(value)?)));
    errors
        .map(|(index, why)| {
            Diagnostic::new(format!("allocation.{field}[{index}]"), why).with_code(ErrorCode::AllocationValue)
        })
        .collect()
}

/// Returns the finisher that the allocation selects. On a BIOS machine with a partly kept disk, `Auto` is replaced by
/// `Builtin`: an installer of the image could not install the boot loader, because programs of the image have no access
/// to such a disk.
fn finisher_of(allocation: &Allocation, inventory: &Inventory, decided: &PlanDecisions) -> FinisherChoice {
    let is_restricted = inventory.system.firmware == FirmwareType::Bios && !decided.partly_kept.is_empty();
    match allocation.finisher() {
        FinisherChoice::Auto if is_restricted => FinisherChoice::Builtin,
        chosen => chosen,
    }
}

pub(crate) fn finish_inputs(
    meant: &LayoutMatch,
    decided: &PlanDecisions,
    filesystems: &[PlacedFilesystem],
    fstab: &[FstabEntry],
    files: Box<MachineFiles>,
) -> Box<FinishInputs> {
    let (layout, inventory) = (meant.graph.layout, meant.inventory);
    let mounted = |path: &str| filesystems.iter().find(|(wanted, _)| wanted.path.as_deref() == Some(path));
    let root = mounted("/");
    let boot = mounted("/boot");
    Box::new(FinishInputs {
        way: finisher_of(&files.assigned.allocation, inventory, decided),
        devices: writable_devices(decided),
        architecture: inventory.system.architecture,
        firmware: inventory.system.firmware,
        root: root.map(|root| system_filesystem(meant, decided, root)).unwrap_or_default(),
        usr: mounted("/usr").map(|usr| system_filesystem(meant, decided, usr)),
        arrays: layout
            .raid
            .iter()
            .zip(&decided.arrays)
            .map(|(raid, fate)| finished_array(layout, inventory, raid, fate))
            .collect(),
        groups: layout.volumegroups.iter().map(|group| group.name.clone()).collect(),
        esps: efi_partitions(meant, decided),
        boot: boot.and_then(|(wanted, is)| Some(BootFilesystem { uuid: is.uuid()?.to_owned(), format: wanted.format })),
        boot_disks: boot.or(root).map(|(wanted, _)| boot_disks(meant, decided, &wanted.device)).unwrap_or_default(),
        fstab: fstab.to_vec(),
        new_mounts: filesystems.iter().filter_map(new_mount_point).collect(),
        seed: seed_filesystem(filesystems),
        // An invalid network configuration is ignored, because the plan was already refused.
        network: requested_network(&files.assigned.allocation, &files.nics).unwrap_or_default(),
        environment: ganeti_os_definition::installer_environment(meant, decided, &files),
        files,
    })
}

/// Returns the mount point of a filesystem other than `/` that is not preserved and stores extended attributes; `None`
/// for all other filesystems.
fn new_mount_point((wanted, is): &PlacedFilesystem) -> Option<String> {
    let path = mount_path(wanted).filter(|path| *path != "/")?;
    let is_new = is.device().is_some() && !is.is_preserved() && wanted.format != FilesystemFormat::Vfat;
    is_new.then(|| path.to_owned())
}

/// Returns the filesystem for the cloud-init seed. A preserved filesystem is used only if the layout specifies a mount
/// point for it.
fn seed_filesystem(filesystems: &[PlacedFilesystem]) -> Option<SeedFilesystem> {
    let seeds = filesystems.iter().filter(|(wanted, _)| wanted.is_for_seed());
    let mut places = seeds.filter_map(|(wanted, is)| {
        let path = mount_path(wanted).map(str::to_owned);
        let device = is.device().filter(|_| path.is_some() || !is.is_on_preserved_device())?;
        Some(SeedFilesystem { device: device.clone(), path })
    });
    places.next()
}

fn system_filesystem(
    meant: &LayoutMatch,
    decided: &PlanDecisions,
    (wanted, is): &PlacedFilesystem,
) -> SystemFilesystem {
    let below = meant.graph.objects_below([&wanted.device]);
    let disks = below.disks.into_iter().filter_map(|index| meant.matched_disk(index));
    let volume = meant.graph.layout.logicalvolumes.iter().find(|volume| volume.device_path() == wanted.device);
    SystemFilesystem {
        uuid: is.uuid().unwrap_or_default().to_owned(),
        format: Some(wanted.format),
        disks: disks.map(|disk| disk.device.clone()).collect(),
        arrays: below.arrays.into_iter().filter_map(|index| decided.arrays.get(index)).map(array_uuid).collect(),
        volume: volume.map(|volume| SystemVolume {
            group: volume.volumegroup.clone(),
            name: volume.name.clone(),
            kind: volume.lvmtype,
        }),
    }
}

fn array_uuid(fate: &ArrayFate) -> Uuid {
    match fate {
        ArrayFate::Created(array) => array.uuid,
        ArrayFate::Preserved { uuid, .. } => *uuid,
    }
}

fn finished_array(
    layout: &Layout,
    inventory: &Inventory,
    raid: &model::layout::ArraySpec,
    fate: &ArrayFate,
) -> FinishedArray {
    let (device, metadata) = match fate {
        ArrayFate::Created(array) => (array.device.clone(), array.metadata.clone()),
        ArrayFate::Preserved { device, uuid, .. } => {
            let found = inventory.arrays.iter().find(|array| array.uuid == *uuid);
            (device.clone(), found.map_or_else(|| layout.effective_metadata(raid), |array| array.metadata.clone()))
        }
    };
    FinishedArray { device, uuid: array_uuid(fate), level: raid.level, metadata }
}

/// First sector after a GPT with 128 entries. Each GPT that drophammer writes has 128 entries.
const FIRST_SECTOR_AFTER_GPT: u64 = 2 + 128 * 128 / BIOS_SECTOR;

/// Sector size of the disks from which a BIOS boots, in bytes. A BIOS does not boot from disks with other sector sizes.
const BIOS_SECTOR: u64 = 512;

/// Returns a problem if the machine has a BIOS, and no disk that holds `/boot` has sectors of 512 bytes. If the layout
/// has no `/boot`, the disks that hold `/` are checked.
fn find_unbootable_sectors(layout: &Layout, inventory: &Inventory) -> Option<Diagnostic> {
    if inventory.system.firmware != FirmwareType::Bios {
        return None;
    }
    let meant = LayoutMatch::new(layout, inventory);
    let boot = layout.filesystems.iter().find(|filesystem| filesystem.path.as_deref() == Some("/boot"));
    let below = boot.map_or_else(|| meant.graph.objects_below_root(), |boot| meant.graph.objects_below([&boot.device]));
    let disks: Vec<_> = below.disks.into_iter().filter_map(|index| meant.matched_disk(index)).collect();
    let first = disks.first()?;
    let boots = |disk: &&inventory::InventoryDisk| u64::from(disk.sector_bytes) == BIOS_SECTOR;
    (!disks.iter().any(boots)).then(|| {
        let message = format!(
            "a BIOS cannot boot from {}, which has {}-byte sectors: set the firmware to UEFI and add an EFI system \
             partition, or put \
             /boot on a disk with sectors of 512 bytes",
            first.device, first.sector_bytes
        );
        Diagnostic::new("disks", message).with_code(ErrorCode::ImageNotBootable)
    })
}

/// Returns the disks below the filesystem to which the boot loader of a BIOS machine is written. Omits preserved disks,
/// which are never written.
fn boot_disks(meant: &LayoutMatch, decided: &PlanDecisions, device: &LayoutPath) -> Vec<BootDisk> {
    let is_written = |disk: &&inventory::InventoryDisk| {
        decided.disks.iter().any(|plan| plan.name == disk.name && plan.verdict.is_written())
    };
    let disks = meant.graph.objects_below([device]).disks.into_iter().filter_map(|index| meant.matched_disk(index));
    let gap = |disk: &inventory::InventoryDisk| {
        if let Some(edit) = decided.edits.iter().find(|edit| edit.device == disk.device) {
            return edit.boot_gap;
        }
        let table = decided.tables.iter().find(|table| table.device == disk.device)?;
        gap_before(table.partitions.iter().map(|part| part.first_lba).min()?, table.sector_bytes)
    };
    let is_partly_kept =
        |disk: &inventory::InventoryDisk| decided.partly_kept.iter().any(|preserved| preserved.name == disk.name);
    disks
        .filter(is_written)
        .map(|disk| BootDisk { device: disk.device.clone(), gap: gap(disk), partly_kept: is_partly_kept(disk) })
        .collect()
}

/// Returns the gap between a GPT with 128 entries and the first partition; `None` if a BIOS does not boot from disks
/// with this sector size.
pub(crate) fn gap_before(first_lba: u64, sector_bytes: u32) -> Option<ByteRange> {
    let sectors = first_lba.checked_sub(FIRST_SECTOR_AFTER_GPT).filter(|_| u64::from(sector_bytes) == BIOS_SECTOR)?;
    Some(ByteRange { start: FIRST_SECTOR_AFTER_GPT * BIOS_SECTOR, length: sectors * BIOS_SECTOR })
}

/// Returns the partitions of the layout whose disks are in the machine, in the order of the layout.
fn matched_partitions<'a>(
    meant: &LayoutMatch<'a>,
) -> impl Iterator<Item = (&'a DiskSpec, &'a inventory::InventoryDisk, &'a PartitionSpec)> {
    let disks = meant.graph.layout.disks.iter().enumerate();
    let disks: Vec<_> = disks.filter_map(|(index, disk)| Some((disk, meant.matched_disk(index)?))).collect();
    disks.into_iter().flat_map(|(disk, found)| disk.partitions.iter().map(move |part| (disk, found, part)))
}

/// Returns the GUIDs of the EFI system partitions that are on the disks.
pub(crate) fn present_esps(meant: &LayoutMatch) -> Vec<Uuid> {
    let esps = matched_partitions(meant).filter_map(|(disk, found, part)| {
        efi_filesystem_on(meant.graph.layout, disk, part)?;
        Some(present_partition(found, part.number)?.guid)
    });
    esps.collect()
}

/// Returns the EFI system partitions in the order of the layout's disks.
fn efi_partitions(meant: &LayoutMatch, decided: &PlanDecisions) -> Vec<Esp> {
    let esps = matched_partitions(meant).filter_map(|(disk, found, part)| {
        let (filesystem, array) = efi_filesystem_on(meant.graph.layout, disk, part)?;
        let mut fates = meant.graph.layout.filesystems.iter().zip(&decided.filesystems);
        let preserved = fates.any(|(listed, fate)| listed.device == filesystem.device && fate.is_preserved());
        let made = new_partition(decided, found, part.number);
        // A preserved partition is written only through its mount point in the layout.
        let place = made.or_else(|| present_partition(found, part.number).filter(|_| filesystem.path.is_some()))?;
        Some(Esp {
            device: place.device,
            disk: found.device.clone(),
            number: part.number,
            guid: place.guid,
            first_lba: place.first_lba,
            sectors: place.last_lba + 1 - place.first_lba,
            sector_bytes: found.sector_bytes,
            path: filesystem.path.clone(),
            preserved,
            array,
        })
    });
    esps.collect()
}

/// Returns the vfat filesystem that the firmware reads from this partition. If the partition is a member of a mirror
/// with this filesystem, also returns the path of the mirror.
fn efi_filesystem_on<'a>(
    layout: &'a Layout,
    disk: &DiskSpec,
    part: &PartitionSpec,
) -> Option<(&'a FilesystemSpec, Option<DevicePath>)> {
    let device = disk.device.partition_path(part.number);
    let vfat = |on: &LayoutPath| {
        layout
            .filesystems
            .iter()
            .find(|filesystem| filesystem.format == FilesystemFormat::Vfat && filesystem.device == *on)
    };
    if part.kind == Some(PartitionType::Boot)
        && let Some(filesystem) = vfat(&device)
    {
        return Some((filesystem, None));
    }
    let mirrors = layout.raid.iter().filter(|raid| raid.level == RaidLevel::Raid1 && raid.devices.contains(&device));
    let mut mirrors = mirrors.filter(|raid| ["1.0", "0.90"].contains(&layout.effective_metadata(raid).as_str()));
    mirrors.find_map(|raid| Some((vfat(&raid.arrayname)?, Some(raid.arrayname.as_device()))))
}

/// Returns the partition of the disk with this number if the plan creates it.
fn new_partition(decided: &PlanDecisions, disk: &inventory::InventoryDisk, number: u32) -> Option<NewPartition> {
    let tables = decided.tables.iter().filter(|table| table.device == disk.device).flat_map(|table| &table.partitions);
    let edits = decided.edits.iter().filter(|edit| edit.device == disk.device).flat_map(|edit| &edit.added);
    tables.chain(edits).find(|part| part.number == number).cloned()
}

/// Returns the existing partition of the disk with this number, in the same form as a partition that is created.
fn present_partition(disk: &inventory::InventoryDisk, number: u32) -> Option<NewPartition> {
    let part = disk.table.iter().flat_map(|table| &table.partitions).find(|part| part.number == number)?;
    let sector_bytes = u64::from(disk.sector_bytes.max(1));
    let first_lba = part.start_bytes / sector_bytes;
    Some(NewPartition {
        number,
        device: part.device.clone(),
        first_lba,
        last_lba: first_lba + (part.size_bytes / sector_bytes).checked_sub(1)?,
        kind: PartitionType::Boot.guid(),
        guid: part.guid?,
        name: part.label.clone(),
    })
}
