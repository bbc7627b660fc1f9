//! Encrypted filesystems: a LUKS container between the device and the filesystem, made with the device or kept with it. Groups are in
//! `encrypted_groups`.
//!
//! | kept, and the layout says `encrypted` | |
//! |---|---|
//! | a container that opens with the key | what is in it is compared and kept as any other filesystem |
//! | a container that `disk_key` opens and the machine's TPM does not | the same, and said |
//! | a container that does not open, and the new system mounts it without `nofail` or `noauto` | refused, with the reason |
//! | the same, and the new system can do without | left locked, and said |
//! | the same, and an earlier attempt was about to make its disk | made again, or refused |
//! | a container that opens, and zeros where the filesystem should be | refused |
//! | anything else | refused, with both sides |

use super::devices::{Device, Fate};
use super::display;
use super::placed::FilesystemFate;
use super::returning::mountable;
use super::sectors::MIB;
use super::verdict::{Decided, Deciding};
use super::{ByteRange, Container, CrypttabEntry, DiskPlan, OfRun, OnDevice, Operation, Plan};
use crate::allocation::Allocation;
use crate::device::{DevicePath, LayoutPath};
use crate::inventory::{Inventory, Signature, Tried};
use crate::layout::{Encrypted, Filesystem, Format, KeySource, Layout};
use crate::pull::Secret;
use crate::topology::{Match, Stack};
use uuid::Uuid;

/// libblkid's word for a container, of either version.
pub const KIND: &str = "crypto_LUKS";

/// Where the data begin: both headers and the key slots lie before (LUKS2 On-Disk Format, 2.2; cryptsetup's default).
pub const DATA_OFFSET_BYTES: u64 = 16 * MIB;

/// A container of the layout, around a filesystem or a physical volume of a group.
pub struct Luks {
    pub container: Container,
    pub fate: LuksFate,
    /// The group.
    pub group: Option<String>,
    /// Mount point, and whether the system starts without it.
    path: Option<String>,
    nofail: bool,
    noauto: bool,
    read_only: bool,
    /// It is kept, and the TPM of this machine does not open it.
    strange_tpm: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LuksFate {
    Made,
    /// Kept, and what is in it is kept too.
    Opened,
    /// Kept, and nobody can look into it.
    Locked,
}

/// What an allocation brings for a container whose key comes from there; empty when it brings none. Beside the one that a TPM has,
/// `disk_key` is the second.
pub fn key(allocation: &Allocation, source: KeySource) -> Secret {
    match source {
        KeySource::Server | KeySource::Tpm2 => allocation.disk_key.clone(),
        KeySource::File => allocation.file_key.clone(),
        KeySource::Prompt => allocation.prompt_key.clone(),
    }
}

/// Containers that a reinstall keeps, to be opened read-only before the plan is made: each of a filesystem alone, those of a group together.
pub fn to_open(layout: &Layout, inventory: &Inventory, allocation: &Allocation) -> Vec<Vec<Container>> {
    if !allocation.reinstall && !allocation.keeps {
        return Vec::new();
    }
    let (meant, stack) = (Match::new(layout, inventory), Stack::new(inventory));
    let kept = |device: &LayoutPath, source: KeySource| {
        let disks = meant.graph.below([device]).disks;
        let device = meant.now(device)?;
        let uuid = container_uuid(stack.unit(&stack.name(&device)).signatures()).ok()?;
        let is_kept = disks.iter().all(|disk| !layout.disks[*disk].wipeonreinstall);
        is_kept.then(|| Container::new(device, uuid, 512, source, key(allocation, source)))
    };
    let filesystems = layout.filesystems.iter();
    let alone = filesystems.filter_map(|is| Some(vec![kept(&is.device, is.encrypted?.key)?]));
    let groups = layout.volumegroups.iter().filter_map(|group| {
        let source = group.encrypted?.key;
        Some(group.devices.iter().filter_map(|device| kept(device, source)).collect())
    });
    alone.chain(groups).collect()
}

/// Of the container on a kept device.
pub fn uuid_on(device: &Device) -> Result<Uuid, String> {
    device.content.as_deref().map_err(String::clone).and_then(container_uuid)
}

fn container_uuid(found: &[Signature]) -> Result<Uuid, String> {
    match found {
        [one] if one.kind == KIND => one.uuid.parse().map_err(|_| "its UUID cannot be read".to_owned()),
        [one] => Err(format!("there is {}", display::signature(one))),
        [] => Err("there is nothing that is known".to_owned()),
        several => {
            let there: Vec<String> = several.iter().map(display::signature).collect();
            Err(format!("there are several signatures at once: {}", there.join(" and ")))
        }
    }
}

impl<'a> Deciding<'a> {
    pub fn decide_encrypted(
        &mut self,
        place: &str,
        filesystem: &Filesystem,
        encrypted: Encrypted,
        device: &Device<'a>,
    ) {
        // Its disk was refused.
        if device.absent.is_some() {
            return;
        }
        match device.fate {
            Fate::Wiped | Fate::Blank => self.make_encrypted(place, filesystem, encrypted, device),
            Fate::Kept => self.keep_encrypted(place, filesystem, encrypted, device),
        }
    }

    fn make_encrypted(&mut self, place: &str, filesystem: &Filesystem, encrypted: Encrypted, device: &Device<'a>) {
        if let Some(message) = too_small(&filesystem.device, device) {
            return self.refuse(place, message);
        }
        let uuid = (self.ids)();
        let container = self.container(filesystem, encrypted, device, uuid, LuksFate::Made);
        let device = made_inside(device, container.mapping);
        self.decide_plain(place, filesystem, &device);
    }

    fn keep_encrypted(&mut self, place: &str, filesystem: &Filesystem, encrypted: Encrypted, device: &Device<'a>) {
        let uuid = match uuid_on(device) {
            Ok(uuid) => uuid,
            Err(why) => {
                let message = format!("{} is to be kept with {} in LUKS, but {why}", device.path, filesystem.format);
                return self.refuse(place, message);
            }
        };
        if let Some(inside) = self.opened(device, uuid) {
            self.container(filesystem, encrypted, device, uuid, LuksFate::Opened);
            self.note_strange_tpm(device);
            if inside.blank && filesystem.format != Format::None {
                let message = format!(
                    "{} is to be kept with {} in LUKS, and there are only zeros in it: make the filesystem there, or erase the disk, \
                     and it is made anew",
                    device.path, filesystem.format
                );
                return self.refuse(place, message);
            }
            return self.decide_plain(place, filesystem, &inside);
        }
        let needed = mountable(filesystem).filter(|_| !may_be_missing(filesystem));
        match (self.inventory.failure(&Tried::Container(device.now.clone())), needed) {
            (Some(why), Some(path)) => {
                let message = format!(
                    "{} is to be kept with {} in LUKS, and the new system mounts it at {path}, but it does not open: {why}. \
                     Give its key; or say nofail in its mountoptions, and it stays locked",
                    device.path, filesystem.format
                );
                self.refuse(place, message);
            }
            (Some(why), None) if self.was_being_made(&filesystem.device) => {
                self.refuse(place, half_made(device.path.as_str(), why));
            }
            (Some(why), None) => {
                self.warn(format!(
                    "{} stays LOCKED and as it is, and the new system gets no line for it: it does not open: {why}",
                    device.path
                ));
                self.container(filesystem, encrypted, device, uuid, LuksFate::Locked);
                let device = device.path.clone();
                self.decided.filesystems.push(FilesystemFate::Unformatted { device, is_kept: true });
            }
            // On a desk: there is no key, and no disk.
            (None, _) => {
                self.warn(format!("{}: the machine opens it with its key, to see what is in it", device.path));
                let container = self.container(filesystem, encrypted, device, uuid, LuksFate::Opened);
                self.decided.filesystems.push(FilesystemFate::Kept { device: container.mapping, uuid: None });
            }
        }
    }

    /// Of the container that was noted last. Nothing of what is kept is written, so that it stays sealed to the other TPM.
    pub fn note_strange_tpm(&mut self, device: &Device) {
        let Some(why) = self.inventory.failure(&Tried::Sealed(device.now.clone())) else { return };
        if let Some(luks) = self.decided.luks.last_mut() {
            luks.strange_tpm = true;
        }
        self.warn(format!(
            "{} opens with disk_key alone, and the new system does not have that: it asks for it at its console, until this machine's \
             TPM was enrolled there (systemd-cryptenroll). {why}",
            device.path
        ));
    }

    /// A kept device as it is inside of its container, if that is open with the key that was given.
    pub fn opened(&self, device: &Device<'a>, uuid: Uuid) -> Option<Device<'a>> {
        // Somebody else may have it open.
        if self.inventory.failure(&Tried::Container(device.now.clone())).is_some() {
            return None;
        }
        let mapping = Container::new(device.now.clone(), uuid, 0, KeySource::Server, Secret::default()).mapping;
        let (below, inventory) = (self.stack.name(&device.now), self.inventory);
        let opened = inventory.stacked.iter().find(|is| is.device == mapping && is.below.contains(&below))?;
        let (size_bytes, blank) = (Some(opened.size_bytes), opened.blank);
        let content = Ok(opened.signatures.as_slice());
        Some(Device { path: mapping.clone(), now: mapping, size_bytes, blank, content, ..device.clone() })
    }

    pub fn is_withheld(&self, key: KeySource) -> bool {
        self.request.assigned.allocation.disk_key_withheld && matches!(key, KeySource::Server | KeySource::Tpm2)
    }

    fn container(
        &mut self,
        filesystem: &Filesystem,
        encrypted: Encrypted,
        device: &Device,
        uuid: Uuid,
        fate: LuksFate,
    ) -> Container {
        let key = key(&self.request.assigned.allocation, encrypted.key);
        let container = Container::new(device.path.clone(), uuid, device.sector_bytes, encrypted.key, key);
        let container = Container { withheld: self.is_withheld(encrypted.key), ..container };
        let says = |word: &str| filesystem.options().any(|option| option == word);
        self.decided.luks.push(Luks {
            container: container.clone(),
            fate,
            group: None,
            path: mountable(filesystem).map(str::to_owned),
            nofail: says("nofail"),
            noauto: says("noauto"),
            read_only: filesystem.is_read_only(),
            strange_tpm: false,
        });
        container
    }
}

/// Why a container stays neither as it is nor locked. The plan is made once more then, with its disk to be made anew.
pub fn half_made(what: &str, why: &str) -> String {
    format!(
        "{what} is to be kept in LUKS, and an earlier attempt, which was cut off, was about to make it: it does not open: {why}. \
         Give its key; or erase it, and it is made anew"
    )
}

/// Is there no room for more than the headers?
pub fn too_small(name: &LayoutPath, device: &Device) -> Option<String> {
    let bytes = device.size_bytes.filter(|bytes| *bytes <= DATA_OFFSET_BYTES)?;
    Some(format!(
        "device:{name} is not big enough required:{}MiB, existing:{}MiB (LUKS2: its headers alone)",
        DATA_OFFSET_BYTES / MIB + 1,
        bytes / MIB
    ))
}

/// The device as it will be inside of a container that is made on it.
pub fn made_inside<'a>(device: &Device<'a>, mapping: DevicePath) -> Device<'a> {
    let within = |bytes: u64| bytes.saturating_sub(DATA_OFFSET_BYTES);
    let (size_bytes, most_bytes) = (device.size_bytes.map(within), within(device.most_bytes));
    Device { path: mapping.clone(), now: mapping, size_bytes, most_bytes, content: Ok(&[]), ..device.clone() }
}

pub fn may_be_missing(filesystem: &Filesystem) -> bool {
    filesystem.options().any(|option| ["nofail", "noauto"].contains(&option))
}

impl Luks {
    /// Around a physical volume of a group. `needed` is where the new system mounts something of the group that it cannot do without.
    pub fn of_group(container: Container, fate: LuksFate, group: &str, needed: Option<&str>) -> Luks {
        let (group, path, nofail) = (Some(group.to_owned()), needed.map(str::to_owned), needed.is_none());
        Luks { container, fate, group, path, nofail, noauto: false, read_only: false, strange_tpm: false }
    }

    pub fn is_kept(&self) -> bool {
        self.fate != LuksFate::Made
    }

    /// Is anything of it written once it is open?
    pub fn is_written(&self) -> bool {
        self.path.is_some() && !self.read_only
    }

    fn entry(&self) -> CrypttabEntry {
        let options = [("nofail", self.nofail || self.path.is_none()), ("noauto", self.noauto)];
        let options = options.into_iter().filter(|(_, says)| *says).map(|(word, _)| word.to_owned());
        let needed_at = self.path.clone().filter(|_| !self.nofail && !self.noauto);
        let (key, more) = match self.container.source {
            KeySource::Tpm2 => (Secret::default(), Some(CrypttabEntry::BY_TPM.to_owned())),
            // Whoever starts the installed system is asked again.
            KeySource::Prompt => (Secret::default(), None),
            KeySource::Server | KeySource::File => (self.container.key.clone(), None),
        };
        let options = std::iter::once("luks".to_owned()).chain(more).chain(options).collect();
        CrypttabEntry { uuid: self.container.uuid, options, needed_at, key }
    }
}

fn open(decided: &Decided) -> impl Iterator<Item = &Luks> {
    decided.luks.iter().filter(|luks| luks.fate != LuksFate::Locked)
}

/// Asked before the first write: the program, and every key or TPM that is needed.
pub fn check(decided: &Decided) -> Option<Operation> {
    let asked = open(decided).filter(|luks| !luks.strange_tpm);
    let containers: Vec<Container> = asked.map(|luks| luks.container.clone()).collect();
    (!containers.is_empty()).then_some(Operation::Run(OfRun::CheckContainers(containers)))
}

/// Is a container made whose passphrase nobody has typed yet?
pub fn asks(plan: &Plan) -> bool {
    let is_open = |container: &Container| container.source == KeySource::Prompt && container.key.is_empty();
    plan.stages.iter().flat_map(|stage| &stage.operations).any(
        |operation| matches!(operation, Operation::Device(OnDevice::CreateContainer(container)) if is_open(container)),
    )
}

/// Those around physical volumes, which come before their groups, or those of filesystems.
pub fn made(decided: &Decided, of_groups: bool) -> Vec<Operation> {
    let made = decided.luks.iter().filter(|luks| luks.fate == LuksFate::Made && luks.group.is_some() == of_groups);
    made.map(|luks| Operation::Device(OnDevice::CreateContainer(luks.container.clone()))).collect()
}

/// Those around physical volumes, when their groups are down, or those of filesystems.
pub fn closed(decided: &Decided, of_groups: bool) -> impl Iterator<Item = Operation> {
    let close = |luks: &Luks| OnDevice::CloseContainer { mapping: luks.container.mapping.clone() };
    open(decided).filter(move |luks| luks.group.is_some() == of_groups).map(close).map(Operation::Device)
}

pub fn crypttab(decided: &Decided) -> Option<Operation> {
    let entries: Vec<CrypttabEntry> = open(decided).map(Luks::entry).collect();
    (!entries.is_empty()).then_some(Operation::Run(OfRun::WriteCrypttab(entries)))
}

/// Both ends of what stays locked on this disk, which nobody may write.
pub fn untouched(meant: &Match, decided: &Decided, disk: &DiskPlan) -> Vec<ByteRange> {
    let Some(found) = meant.inventory.disk(disk.device.as_str()) else { return Vec::new() };
    let locked = |device: &DevicePath| is_locked(decided, device);
    let whole = locked(&found.device).then_some((0, found.size_bytes));
    let parts = found.table.iter().flat_map(|table| &table.partitions).filter(|part| locked(&part.device));
    let all = whole.into_iter().chain(parts.map(|part| (part.start_bytes, part.size_bytes)));
    all.flat_map(|(start, size)| super::untouched::ends(start, size)).collect()
}

/// Does what is on this device stay locked?
pub fn is_locked(decided: &Decided, device: &DevicePath) -> bool {
    decided.luks.iter().any(|luks| luks.fate == LuksFate::Locked && luks.container.device == *device)
}

/// Is this the mapping of a container of the plan?
pub fn is_mapping(decided: &Decided, device: &DevicePath) -> bool {
    decided.luks.iter().any(|luks| luks.container.mapping == *device)
}
