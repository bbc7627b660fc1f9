//! Encrypted filesystems. Each of them is in a LUKS container, which is created or preserved together with the device
//! that contains it. Encrypted volume groups are in `encrypted_groups`.
//!
//! | a preserved device of a filesystem that is `encrypted` in the layout | result |
//! |---|---|
//! | has a container that opens with the key | the filesystem in the container is compared and preserved like any other filesystem |
//! | has a container that opens with `disk_key` but not with the TPM of the machine | as in the previous row, with a warning |
//! | has a container that does not open, and the new system mounts its filesystem without `nofail` or `noauto` | refused, with the reason |
//! | has a container that does not open, and the new system does not require it | `locked_containers` decides |
//! | has a container that does not open, and an earlier attempt was interrupted while it recreated the disk of the container | the disk is recreated if this solves all problems, otherwise refused |
//! | has a container that opens, and contains zeros instead of a filesystem | refused |
//! | has any other content | refused, with the expected and the found content |

use super::plan_decisions::{LuksDecision, LuksFate, PlanDecisions};
use crate::content_descriptions;
use common::error_code::ErrorCode;
use operations::{CheckContainers, CloseContainer, CreateLuksContainer, WriteCrypttab};

use super::filesystem_fate::FilesystemFate;
use super::locked_containers::{LockedContainers, describe_incomplete_container};
use super::partition_placement::MIB;
use super::planned_devices::{DeviceFate, PlannedDevice};
use super::planner_state::PlannerState;
use super::preserved_activation::mount_path;
use super::{DiskPlan, Plan};
use model::allocation::Allocation;
use model::device_name::{DevicePath, LayoutPath};
use model::inventory::{DeviceSignature, InspectionTarget, Inventory};
use model::layout::preserved_objects::PreservedObjects;
use model::layout::{EncryptionSpec, FilesystemFormat, FilesystemSpec, KeySource, Layout};
use model::secret_text::SecretText;
use model::storage_graph::{DeviceStack, LayoutMatch};
use operations::{ByteRange, CrypttabEntry, DATA_OFFSET_BYTES, DeviceOp, LuksContainer, Operation, SessionOp};
use uuid::Uuid;

/// Signature type of a container in libblkid, for both versions of LUKS.
pub const LUKS_SIGNATURE_TYPE: &str = "crypto_LUKS";

/// Returns the key for a container with this key source; empty if the allocation does not contain this key. For a TPM,
/// returns `disk_key`, the additional passphrase of the container.
pub(crate) fn find_key(allocation: &Allocation, source: KeySource) -> SecretText {
    match source {
        KeySource::Server | KeySource::Tpm2 => allocation.disk_key.clone(),
        KeySource::File => allocation.file_key.clone(),
        KeySource::Prompt => allocation.prompt_key.clone(),
    }
}

/// Returns the containers that a reinstall preserves: one list for each encrypted filesystem, and one for each
/// encrypted group. The agent opens them read-only before the plan is made.
pub fn containers_to_open(layout: &Layout, inventory: &Inventory, allocation: &Allocation) -> Vec<Vec<LuksContainer>> {
    if !allocation.reinstall && !allocation.keeps {
        return Vec::new();
    }
    let (meant, stack) = (LayoutMatch::new(layout, inventory), DeviceStack::new(inventory));
    let preserved = PreservedObjects::from_graph(&meant.graph);
    let existing = |listed: &LayoutPath, source: KeySource| {
        let disks = meant.graph.objects_below([listed]).disks;
        let device = meant.present_path(listed)?;
        let uuid = container_uuid(stack.find_unit(&stack.kernel_name(&device)).signatures()).ok()?;
        let is_preserved =
            preserved.includes_device(listed) || disks.iter().all(|disk| !layout.disks[*disk].wipeonreinstall);
        is_preserved.then(|| LuksContainer::new(device, uuid, 512, source, find_key(allocation, source)))
    };
    let filesystems = layout.filesystems.iter();
    let alone = filesystems.filter_map(|spec| Some(vec![existing(&spec.device, spec.encrypted?.key)?]));
    let groups = layout.volumegroups.iter().filter_map(|group| {
        let source = group.encrypted?.key;
        Some(group.devices.iter().filter_map(|device| existing(device, source)).collect())
    });
    alone.chain(groups).collect()
}

/// Returns the UUID of the LUKS container on a preserved device. Fails with the reason if there is no such container.
pub(crate) fn container_uuid_on(device: &PlannedDevice) -> Result<Uuid, String> {
    device.content.as_deref().map_err(String::clone).and_then(container_uuid)
}

fn container_uuid(found: &[DeviceSignature]) -> Result<Uuid, String> {
    match found {
        [one] if one.kind == LUKS_SIGNATURE_TYPE => {
            one.uuid.parse().map_err(|_| "the container's UUID cannot be read".to_owned())
        }
        [one] => Err(format!("there is {}", content_descriptions::describe_signature(one))),
        [] => Err("found no signature".to_owned()),
        several => {
            let there: Vec<String> = several.iter().map(content_descriptions::describe_signature).collect();
            Err(format!("found several signatures: {}", there.join(" and ")))
        }
    }
}

impl<'a> PlannerState<'a> {
    pub(crate) fn decide_encrypted(
        &mut self,
        place: &str,
        filesystem: &FilesystemSpec,
        encrypted: EncryptionSpec,
        device: &PlannedDevice<'a>,
    ) {
        // Containers on absent disks are skipped, because the module `missing_disks` decides on absent disks.
        if device.absent.is_some() {
            return;
        }
        match device.fate {
            DeviceFate::Wiped | DeviceFate::Blank => self.make_encrypted(place, filesystem, encrypted, device),
            DeviceFate::Preserved => self.preserve_encrypted(place, filesystem, encrypted, device),
        }
    }

    fn make_encrypted(
        &mut self,
        place: &str,
        filesystem: &FilesystemSpec,
        encrypted: EncryptionSpec,
        device: &PlannedDevice<'a>,
    ) {
        if let Some(message) = check_min_size(&filesystem.device, device) {
            return self.refuse(ErrorCode::TooSmall, place, message);
        }
        let uuid = (self.ids)();
        let container = self.add_filesystem_container(filesystem, encrypted, device, uuid, LuksFate::Created);
        let device = mapping_on(device, container.mapping);
        self.decide_plain(place, filesystem, &device);
    }

    fn preserve_encrypted(
        &mut self,
        place: &str,
        filesystem: &FilesystemSpec,
        encrypted: EncryptionSpec,
        device: &PlannedDevice<'a>,
    ) {
        let uuid = match container_uuid_on(device) {
            Ok(uuid) => uuid,
            Err(why) => {
                let message = format!(
                    "{device} must be preserved, and must contain {format} in LUKS, but {why}",
                    device = device.path,
                    format = filesystem.format
                );
                return self.refuse(ErrorCode::PreservedMismatch, place, message);
            }
        };
        if let Some(inside) = self.find_opened(device, uuid) {
            self.add_filesystem_container(filesystem, encrypted, device, uuid, LuksFate::Opened);
            self.mark_foreign_tpm(device);
            if inside.blank && filesystem.format != FilesystemFormat::None {
                let message = format!(
                    "{} must be preserved, and must contain {} in LUKS, but the container holds only zeros; create the filesystem in the container, or erase the disk \
                     to have the container recreated",
                    device.path, filesystem.format
                );
                return self.refuse(ErrorCode::PreservedMismatch, place, message);
            }
            return self.decide_plain(place, filesystem, &inside);
        }
        self.preserve_unopened(place, filesystem, encrypted, device, uuid);
    }

    /// Decides on a preserved container that is not open.
    fn preserve_unopened(
        &mut self,
        place: &str,
        filesystem: &FilesystemSpec,
        encrypted: EncryptionSpec,
        device: &PlannedDevice<'a>,
        uuid: Uuid,
    ) {
        let needed = mount_path(filesystem).filter(|_| !is_optional(filesystem));
        self.decided.matching.push(filesystem.device.clone());
        match (self.inventory.find_failure(&InspectionTarget::Container(device.now.clone())), needed) {
            (Some(why), Some(path)) => {
                let message = format!(
                    "{} must be preserved, and must contain {} in LUKS, which the new system mounts at {path}, but the container cannot be opened: {why}. \
                     Provide the key of the container; or, if the new system can start without the container, add nofail to the mountoptions \
                     of the filesystem, and order the reinstall with --leave-locked {uuid}",
                    device.path, filesystem.format
                );
                self.refuse(ErrorCode::EncryptionLocked, place, message);
            }
            (Some(why), None) if self.was_being_recreated(&filesystem.device) => {
                self.refuse(
                    ErrorCode::EncryptionLocked,
                    place,
                    describe_incomplete_container(device.path.as_str(), why),
                );
            }
            (Some(why), None) => {
                let object = device.path.as_str();
                let locked = LockedContainers { object, uuids: &[uuid], device: &device.now, reason: why };
                self.decide_locked(place, &locked);
                self.add_filesystem_container(filesystem, encrypted, device, uuid, LuksFate::Locked);
                let locked = FilesystemFate::Unformatted { device: device.path.clone(), is_preserved: true };
                self.decided.filesystems.push(locked);
            }
            // No key was tried, because an offline plan has access neither to the key nor to the disks.
            (None, _) => {
                self.warn(format!(
                    "{}: the container was not opened for this plan; the machine will open it with its key and \
                        inspect the content",
                    device.path
                ));
                let container = self.add_filesystem_container(filesystem, encrypted, device, uuid, LuksFate::Opened);
                self.decided.filesystems.push(FilesystemFate::Preserved { device: container.mapping, uuid: None });
            }
        }
    }

    /// Marks the most recently added container as sealed to another machine's TPM, if this machine's TPM did not unlock
    /// it. The headers of a preserved container are not written, so the container stays sealed to that TPM.
    pub(crate) fn mark_foreign_tpm(&mut self, device: &PlannedDevice) {
        let Some(why) = self.inventory.find_failure(&InspectionTarget::Sealed(device.now.clone())) else { return };
        if let Some(luks) = self.decided.luks.last_mut() {
            luks.sealed_to_other_tpm = true;
        }
        self.warn(format!(
            "{} can only be opened with disk_key, which the new system does not have: the new system asks for the passphrase at its console until the TPM of \
             this machine is enrolled (systemd-cryptenroll). {why}",
            device.path
        ));
    }

    /// Returns the mapping of a preserved device if its container was opened with the configured key.
    pub(crate) fn find_opened(&self, device: &PlannedDevice<'a>, uuid: Uuid) -> Option<PlannedDevice<'a>> {
        // If the key did not open the container, an existing mapping was opened without this key, and is not used.
        if self.inventory.find_failure(&InspectionTarget::Container(device.now.clone())).is_some() {
            return None;
        }
        let mapping = LuksContainer::new(device.now.clone(), uuid, 0, KeySource::Server, SecretText::default()).mapping;
        let (below, inventory) = (self.stack.kernel_name(&device.now), self.inventory);
        let opened = inventory.stacked.iter().find(|is| is.device == mapping && is.below.contains(&below))?;
        let (size_bytes, blank) = (Some(opened.size_bytes), opened.blank);
        let content = Ok(opened.signatures.as_slice());
        Some(PlannedDevice { path: mapping.clone(), now: mapping, size_bytes, blank, content, ..device.clone() })
    }

    pub(crate) fn is_withheld(&self, key: KeySource) -> bool {
        self.request.assigned.allocation.disk_key_withheld && matches!(key, KeySource::Server | KeySource::Tpm2)
    }

    fn add_filesystem_container(
        &mut self,
        filesystem: &FilesystemSpec,
        encrypted: EncryptionSpec,
        device: &PlannedDevice,
        uuid: Uuid,
        fate: LuksFate,
    ) -> LuksContainer {
        let key = find_key(&self.request.assigned.allocation, encrypted.key);
        let container = LuksContainer::new(device.path.clone(), uuid, device.sector_bytes, encrypted.key, key);
        let container = LuksContainer { withheld: self.is_withheld(encrypted.key), ..container };
        let says = |word: &str| filesystem.mount_options().any(|option| option == word);
        self.decided.luks.push(LuksDecision {
            container: container.clone(),
            fate,
            group: None,
            path: mount_path(filesystem).map(str::to_owned),
            nofail: says("nofail"),
            noauto: says("noauto"),
            read_only: filesystem.is_read_only(),
            sealed_to_other_tpm: false,
        });
        container
    }
}

/// Returns a message if the device is so small that only the headers of a container would fit.
pub(crate) fn check_min_size(name: &LayoutPath, device: &PlannedDevice) -> Option<String> {
    let bytes = device.size_bytes.filter(|bytes| *bytes <= DATA_OFFSET_BYTES)?;
    Some(format!(
        "device:{name} is not big enough required:{required_mib}MiB, existing:{existing_mib}MiB (LUKS2 headers)",
        required_mib = DATA_OFFSET_BYTES / MIB + 1,
        existing_mib = bytes / MIB
    ))
}

/// Returns the mapping of a container that is created on the device.
pub(crate) fn mapping_on<'a>(device: &PlannedDevice<'a>, mapping: DevicePath) -> PlannedDevice<'a> {
    let within = |bytes: u64| bytes.saturating_sub(DATA_OFFSET_BYTES);
    let (size_bytes, most_bytes) = (device.size_bytes.map(within), within(device.most_bytes));
    PlannedDevice { path: mapping.clone(), now: mapping, size_bytes, most_bytes, content: Ok(&[]), ..device.clone() }
}

pub(crate) fn is_optional(filesystem: &FilesystemSpec) -> bool {
    filesystem.mount_options().any(|option| ["nofail", "noauto"].contains(&option))
}

impl LuksDecision {
    /// Returns the decision on the container that contains a physical volume of a group. `needed` is the mount point of
    /// a volume of this group, if the new system mounts one.
    pub(crate) fn for_group(
        container: LuksContainer,
        fate: LuksFate,
        group: &str,
        needed: Option<&str>,
    ) -> LuksDecision {
        let (group, path, nofail) = (Some(group.to_owned()), needed.map(str::to_owned), needed.is_none());
        LuksDecision {
            container,
            fate,
            group,
            path,
            nofail,
            noauto: false,
            read_only: false,
            sealed_to_other_tpm: false,
        }
    }

    pub(crate) fn is_preserved(&self) -> bool {
        self.fate != LuksFate::Created
    }

    /// Returns whether the container must be opened for writing, because the new system mounts its content for writing.
    pub(crate) fn is_written(&self) -> bool {
        self.path.is_some() && !self.read_only
    }

    fn crypttab_entry(&self) -> CrypttabEntry {
        let options = [("nofail", self.nofail || self.path.is_none()), ("noauto", self.noauto)];
        let options = options.into_iter().filter(|(_, says)| *says).map(|(word, _)| word.to_owned());
        let needed_at = self.path.clone().filter(|_| !self.nofail && !self.noauto);
        let (key, more) = match self.container.source {
            KeySource::Tpm2 => (SecretText::default(), Some(CrypttabEntry::BY_TPM.to_owned())),
            // The installed system asks for the passphrase at each boot, so no key is stored in it.
            KeySource::Prompt => (SecretText::default(), None),
            KeySource::Server | KeySource::File => (self.container.key.clone(), None),
        };
        let options = std::iter::once("luks".to_owned()).chain(more).chain(options).collect();
        CrypttabEntry { uuid: self.container.uuid, options, needed_at, key }
    }
}

fn opened_containers(decided: &PlanDecisions) -> impl Iterator<Item = &LuksDecision> {
    decided.luks.iter().filter(|luks| luks.fate != LuksFate::Locked)
}

/// Returns the operation that checks, before the first write, that cryptsetup and every required key or TPM are
/// available.
pub(crate) fn check_containers(decided: &PlanDecisions) -> Option<Operation> {
    let opened = opened_containers(decided).filter(|luks| !luks.sealed_to_other_tpm);
    let containers: Vec<LuksContainer> = opened.map(|luks| luks.container.clone()).collect();
    (!containers.is_empty()).then_some(Operation::Run(SessionOp::CheckContainers(CheckContainers(containers))))
}

/// Returns whether the plan creates a container with a passphrase that was not entered yet.
pub fn needs_passphrase(plan: &Plan) -> bool {
    let is_open = |container: &LuksContainer| container.source == KeySource::Prompt && container.key.is_empty();
    let mut planned = plan.stages.iter().flat_map(|stage| &stage.operations);
    planned.any(|one| matches!(one, Operation::Device(DeviceOp::CreateContainer(new)) if is_open(&new.0)))
}

/// Returns the operations that create the containers of physical volumes (if `of_groups` is true) or of filesystems.
/// The containers of physical volumes must be created before the groups.
pub(crate) fn create_containers(decided: &PlanDecisions, of_groups: bool) -> Vec<Operation> {
    let made = decided.luks.iter().filter(|luks| luks.fate == LuksFate::Created && luks.group.is_some() == of_groups);
    made.map(|luks| Operation::Device(DeviceOp::CreateContainer(CreateLuksContainer(luks.container.clone())))).collect()
}

/// Returns the operations that close the containers of physical volumes (if `of_groups` is true) or of filesystems. The
/// containers of physical volumes can be closed only after the groups are deactivated.
pub(crate) fn close_containers(decided: &PlanDecisions, of_groups: bool) -> impl Iterator<Item = Operation> {
    let close =
        |luks: &LuksDecision| DeviceOp::CloseContainer(CloseContainer { mapping: luks.container.mapping.clone() });
    opened_containers(decided).filter(move |luks| luks.group.is_some() == of_groups).map(close).map(Operation::Device)
}

pub(crate) fn write_crypttab(decided: &PlanDecisions) -> Option<Operation> {
    let entries: Vec<CrypttabEntry> = opened_containers(decided).map(LuksDecision::crypttab_entry).collect();
    (!entries.is_empty()).then_some(Operation::Run(SessionOp::WriteCrypttab(WriteCrypttab(entries))))
}

/// Returns both ends of each locked container on this disk. These ranges must not be written.
pub(crate) fn guard_locked(meant: &LayoutMatch, decided: &PlanDecisions, disk: &DiskPlan) -> Vec<ByteRange> {
    let Some(found) = meant.inventory.find_disk(disk.device.as_str()) else { return Vec::new() };
    let locked = |device: &DevicePath| is_locked(decided, device);
    let whole = locked(&found.device).then_some((0, found.size_bytes));
    let parts = found.table.iter().flat_map(|table| &table.partitions).filter(|part| locked(&part.device));
    let all = whole.into_iter().chain(parts.map(|part| (part.start_bytes, part.size_bytes)));
    all.flat_map(|(start, size)| super::guard_ranges::end_ranges(start, size)).collect()
}

/// Returns whether the container on this device stays locked.
pub(crate) fn is_locked(decided: &PlanDecisions, device: &DevicePath) -> bool {
    decided.luks.iter().any(|luks| luks.fate == LuksFate::Locked && luks.container.device == *device)
}

/// Returns whether the device is the mapping of a container of the plan.
pub(crate) fn is_mapping(decided: &PlanDecisions, device: &DevicePath) -> bool {
    decided.luks.iter().any(|luks| luks.container.mapping == *device)
}
