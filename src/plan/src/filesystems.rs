//! Decisions on filesystems. On a new device, a filesystem is created. On a preserved device, the existing filesystem
//! is compared with the layout.

use super::MarkerWaiver;
use super::filesystem_fate::{FilesystemFate, NewFilesystem};
use super::partition_placement::MIB;
use super::planned_device_capacity::min_filesystem_mib;
use super::planned_devices::{DeviceFate, PlannedDevice};
use super::planner_state::PlannerState;
use super::preserved_activation::mount_path;
use crate::content_descriptions;
use common::error_code::ErrorCode;
use model::inventory::InspectionTarget;
use model::layout::{FilesystemFormat, FilesystemSpec, max_filesystem_bytes};
use uuid::Uuid;

impl<'a> PlannerState<'a> {
    pub(crate) fn decide_filesystems(&mut self) {
        for (index, filesystem) in self.layout.filesystems.iter().enumerate() {
            let place = format!("filesystems[{index}]");
            if filesystem.format == FilesystemFormat::Tmpfs {
                self.decided.filesystems.push(FilesystemFate::Tmpfs);
            } else if let Some(hidden) = self.unopened_reason(&filesystem.device) {
                self.decide_hidden(filesystem, hidden);
            } else if let Some(device) = self.devices.get_or_report(&place, &filesystem.device) {
                match filesystem.encrypted {
                    Some(encrypted) => self.decide_encrypted(&place, filesystem, encrypted, &device),
                    None => self.decide_plain(&place, filesystem, &device),
                }
            }
        }
    }

    /// Decides on the filesystem on this device, which is the mapping of the container if the filesystem is encrypted.
    pub(crate) fn decide_plain(&mut self, place: &str, filesystem: &FilesystemSpec, device: &PlannedDevice<'a>) {
        // Filesystems on absent disks are skipped, because the module `missing_disks` decides on absent disks.
        if device.absent.is_some() {
            return;
        }
        let in_image = self.layout.disks.iter().find_map(|disk| disk.image_partition_number(&filesystem.device));
        if let Some(number) = in_image {
            let device = device.path.clone();
            return self.decided.filesystems.push(FilesystemFate::InImage { device, number });
        }
        let keep = device.fate == DeviceFate::Preserved;
        let is_filled = keep && filesystem.format != FilesystemFormat::None;
        let cut_off = if is_filled { self.find_unfinished(device) } else { None };
        let is_cut_off = cut_off.is_some();
        let fill = is_filled && (device.blank || is_cut_off);
        // A root filesystem is not created on a disk that the layout preserves, because later reinstalls would
        // also preserve it.
        let refused = device.fate != DeviceFate::Wiped && is_root(filesystem);
        let is_kept_as_found = refused || keep && !fill;
        let fate = if is_kept_as_found {
            preserve_filesystem(filesystem, device)
        } else {
            check_size(filesystem, device)
                .map_or_else(|| Ok(self.new_filesystem(filesystem, device, cut_off, fill)), Err)
        };
        match fate {
            Ok(fate) => {
                match &fate {
                    FilesystemFate::Filled(new) => {
                        self.warn_filled(filesystem, device, &new.uuid, is_cut_off);
                        self.check_mountable(place, filesystem, device, true);
                    }
                    FilesystemFate::Preserved { .. } => {
                        self.decided.matching.push(filesystem.device.clone());
                        self.check_mountable(place, filesystem, device, false);
                        self.refuse_companions(place, filesystem, device);
                    }
                    FilesystemFate::Created(_)
                    | FilesystemFate::InImage { .. }
                    | FilesystemFate::Tmpfs
                    | FilesystemFate::Unformatted { .. } => {}
                }
                self.decided.filesystems.push(fate);
            }
            Err(message) => {
                let code = if is_kept_as_found { ErrorCode::PreservedMismatch } else { ErrorCode::TooSmall };
                self.refuse(code, place, message);
            }
        }
    }

    fn new_filesystem(
        &mut self,
        filesystem: &FilesystemSpec,
        device: &PlannedDevice,
        cut_off: Option<String>,
        fill: bool,
    ) -> FilesystemFate {
        // The UUID of an interrupted attempt is reused, so that the next attempt recognizes the filesystem if this
        // attempt is also interrupted.
        let uuid = cut_off.or_else(|| self.migrated_filesystem_uuid(&filesystem.device));
        let uuid = uuid.or_else(|| filesystem_uuid(filesystem.format, (self.ids)()));
        let (device, size, sector_bytes) = (device.path.clone(), device.size(), device.sector_bytes);
        match uuid {
            None => FilesystemFate::Unformatted { device, is_preserved: false },
            Some(uuid) if fill => FilesystemFate::Filled(NewFilesystem { device, uuid, size, sector_bytes }),
            Some(uuid) => FilesystemFate::Created(NewFilesystem { device, uuid, size, sector_bytes }),
        }
    }

    fn warn_filled(&mut self, filesystem: &FilesystemSpec, device: &PlannedDevice, uuid: &str, is_cut_off: bool) {
        if !is_cut_off {
            self.require_zeros_on(device);
        }
        let said = match device.blank {
            true => {
                "all samples read from the device are zero: the filesystem will be created if the whole device \
                    contains only zeros"
            }
            false => "an earlier attempt was interrupted while creating the filesystem, which will be recreated",
        };
        self.warn(format!("{}, but {said}", describe_wish(filesystem, device)));
        let making = self.record_filling(device, uuid).map(|making| (filesystem.device.clone(), making));
        self.decided.new_filesystems.extend(making);
    }
}

impl PlannerState<'_> {
    /// Refuses preserved filesystems that could not be mounted after the installation, before the old system is erased.
    ///
    /// | condition of a preserved filesystem that the layout mounts | result |
    /// |---|---|
    /// | the installation must write to its disk (to mount the filesystem for writing, or to create it because its device is blank), but the disk is write-protected | refused |
    /// | the agent cannot mount it, not even read-only | refused, except in the following two cases |
    /// | the agent cannot mount it, but the mount options of the layout may help | warning |
    /// | the agent cannot mount it, but an earlier attempt has already wiped the old system | warning |
    fn check_mountable(&mut self, place: &str, filesystem: &FilesystemSpec, device: &PlannedDevice, fill: bool) {
        let path = mount_path(filesystem);
        let disks = self.disks_below(&device.now);
        let mut disks = self.inventory.disks.iter().filter(|disk| disks.contains(&disk.name));
        let is_written = path.is_some() && !filesystem.is_read_only();
        if let Some(disk) = disks.find(|disk| disk.read_only && (is_written || fill)) {
            let message = format!(
                "{device} must be written ({purpose}), but {disk} is read-only (possible causes: write protection switch, failing disk)",
                device = device.path,
                purpose = path.map_or_else(|| "created".to_owned(), |path| format!("mounted at {path}")),
                disk = disk.device
            );
            return self.refuse(ErrorCode::DiskUnusable, place, message);
        }
        let why = self.inventory.find_failure(&InspectionTarget::Filesystem(device.now.clone()));
        let (Some(path), Some(why), false) = (path, why, fill) else { return };
        let message = format!(
            "{wish}, mounted at {path}, but the filesystem cannot be mounted even read-only: {why}",
            wish = describe_wish(filesystem, device)
        );
        let waiver = self.request.claim.as_ref().and_then(|claim| claim.waiver);
        let may_help = filesystem.mount_options().any(names_further_devices);
        match may_help || waiver == Some(MarkerWaiver::Begun) {
            true => self.warn(message),
            false => self.refuse(ErrorCode::PreservedUnusable, place, message),
        }
    }
}

/// Returns whether a mount option specifies further devices of a filesystem, or permits their absence. The agent tests
/// filesystems without these options, so a test mount may have failed only because they were missing.
fn names_further_devices(option: &str) -> bool {
    let starts = ["device=", "logdev=", "rtdev=", "journal_dev=", "journal_path=", "sb=", "rescue="];
    option == "degraded" || starts.iter().any(|start| option.starts_with(start))
}

fn is_root(filesystem: &FilesystemSpec) -> bool {
    filesystem.path.as_deref() == Some("/")
}

pub(crate) fn is_in_fstab(filesystem: &FilesystemSpec) -> bool {
    filesystem.format == FilesystemFormat::Swap || mount_path(filesystem).is_some()
}

pub(crate) fn describe_wish(wanted: &FilesystemSpec, device: &PlannedDevice) -> String {
    let label = wanted.label.as_deref().map(|label| format!(" \"{label}\"")).unwrap_or_default();
    format!(
        "{device} must be preserved, and must contain {format}{label}",
        device = device.path,
        format = wanted.format
    )
}

/// Returns why a filesystem cannot be created on a device of this size.
fn check_size(filesystem: &FilesystemSpec, device: &PlannedDevice) -> Option<String> {
    let (name, format) = (&filesystem.device, filesystem.format);
    let size_bytes = device.size_bytes?;
    match (min_filesystem_mib(filesystem, device.sector_bytes), max_filesystem_bytes(filesystem, device.sector_bytes)) {
        (Some((required, why)), _) if size_bytes / MIB < required => {
            let existing = size_bytes / MIB;
            Some(format!(
                "device:{name} is not big enough required:{required}MiB, existing:{existing}MiB ({format}: {why})"
            ))
        }
        (_, Some((most, why))) if size_bytes > most => {
            Some(format!("device:{name} is {size_bytes} bytes, but {format} supports at most {most} bytes: {why}"))
        }
        _ => None,
    }
}

/// Preserves the existing filesystem if it matches the layout.
fn preserve_filesystem(wanted: &FilesystemSpec, device: &PlannedDevice) -> Result<FilesystemFate, String> {
    if is_root(wanted) {
        let message = "contains /, which the new image replaces, so this filesystem cannot be preserved; set wipeonreinstall: true for its disks";
        return Err(format!("{} {message}", device.path));
    }
    if wanted.format == FilesystemFormat::None {
        return Ok(FilesystemFate::Unformatted { device: device.path.clone(), is_preserved: true });
    }
    let wish = describe_wish(wanted, device);
    match device.content.as_ref().map_err(|why| format!("{wish}, but {why}"))? {
        [] => {
            let size = common::format::format_bytes(device.size_bytes.unwrap_or_default());
            Err(format!("{wish}, but the device contains {size} of unrecognized data"))
        }
        [one] if one.kind != wanted.format.name() => Err(format!(
            "{wish}, but the device contains {content}",
            content = content_descriptions::describe_signature(one)
        )),
        [one] if wanted.label.as_ref().is_some_and(|label| *label != one.label) => Err(format!(
            "{wish}, but the device contains {content}",
            content = content_descriptions::describe_signature(one)
        )),
        [one] if one.uuid.is_empty() && is_in_fstab(wanted) => Err(format!(
            "{wish}, but the filesystem does not have a UUID, which /etc/fstab needs; set a UUID in the installed system"
        )),
        [one] => {
            let uuid = (!one.uuid.is_empty()).then(|| one.uuid.clone());
            Ok(FilesystemFate::Preserved { device: device.path.clone(), uuid })
        }
        several => {
            let there: Vec<String> = several.iter().map(content_descriptions::describe_signature).collect();
            Err(format!(
                "{wish}, but the device has several signatures: {signatures}",
                signatures = there.join(" and ")
            ))
        }
    }
}

/// Returns the UUID of the new filesystem in the notation of blkid, which for vfat is a 32-bit volume id. Returns
/// `None` if no filesystem is created.
fn filesystem_uuid(format: FilesystemFormat, id: Uuid) -> Option<String> {
    match format {
        FilesystemFormat::None | FilesystemFormat::Tmpfs => None,
        FilesystemFormat::Vfat => {
            let bytes = id.as_bytes();
            Some(format!("{:02X}{:02X}-{:02X}{:02X}", bytes[0], bytes[1], bytes[2], bytes[3]))
        }
        FilesystemFormat::Ext3
        | FilesystemFormat::Ext4
        | FilesystemFormat::Xfs
        | FilesystemFormat::Btrfs
        | FilesystemFormat::Swap => Some(id.to_string()),
    }
}
