//! Encrypted filesystems: a LUKS container between the device and the filesystem, made with the device or kept with it.
//!
//! | kept, and the layout says `encrypted` | |
//! |---|---|
//! | a container that opens with the key | what is in it is compared and kept as any other filesystem |
//! | a container that `disk_key` opens and the machine's TPM does not | the same, and said |
//! | a container that does not open, and the new system mounts it without `nofail` or `noauto` | refused, with the reason |
//! | the same, and the new system can do without | left locked, and said |
//! | anything else | refused, with both sides |

use super::devices::{Device, Fate};
use super::display;
use super::placed::FilesystemFate;
use super::returning::mountable;
use super::sectors::MIB;
use super::verdict::{Decided, Deciding};
use super::{ByteRange, Container, CrypttabEntry, DiskPlan, OfRun, OnDevice, Operation};
use crate::allocation::Allocation;
use crate::device::DevicePath;
use crate::inventory::{Inventory, Signature, Tried};
use crate::layout::{Encrypted, Filesystem, KeySource, Layout};
use crate::pull::Secret;
use crate::topology::{Match, Stack};
use uuid::Uuid;

/// libblkid's word for a container, of either version.
const KIND: &str = "crypto_LUKS";

/// Where the data begin: both headers and the key slots lie before (LUKS2 On-Disk Format, 2.2; cryptsetup's default).
pub const DATA_OFFSET_BYTES: u64 = 16 * MIB;

/// The container of a filesystem of the layout.
pub struct Luks {
    pub container: Container,
    pub fate: LuksFate,
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
        KeySource::Prompt => Secret::default(),
    }
}

/// Containers that a reinstall keeps, to be opened read-only before the plan is made.
pub fn to_open(layout: &Layout, inventory: &Inventory, allocation: &Allocation) -> Vec<Container> {
    if !allocation.reinstall && !allocation.keeps {
        return Vec::new();
    }
    let (meant, stack) = (Match::new(layout, inventory), Stack::new(inventory));
    let kept = layout.filesystems.iter().filter_map(|filesystem| {
        let source = filesystem.encrypted?.key;
        let disks = meant.graph.below([&filesystem.device]).disks;
        let device = meant.now(&filesystem.device)?;
        let uuid = container_uuid(stack.unit(&stack.name(&device)).signatures()).ok()?;
        let is_kept = disks.iter().all(|disk| !layout.disks[*disk].wipeonreinstall);
        is_kept.then(|| Container::new(device, uuid, 512, source, key(allocation, source)))
    });
    kept.collect()
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
        if let Some(bytes) = device.size_bytes.filter(|bytes| *bytes <= DATA_OFFSET_BYTES) {
            let message = format!(
                "device:{} is not big enough required:{}MiB, existing:{}MiB (LUKS2: its headers alone)",
                filesystem.device,
                DATA_OFFSET_BYTES / MIB + 1,
                bytes / MIB
            );
            return self.refuse(place, message);
        }
        let uuid = (self.ids)();
        let container = self.container(filesystem, encrypted, device, uuid, LuksFate::Made);
        let within = |bytes: u64| bytes.saturating_sub(DATA_OFFSET_BYTES);
        let (size_bytes, most_bytes) = (device.size_bytes.map(within), within(device.most_bytes));
        let mapping = container.mapping;
        let device =
            Device { path: mapping.clone(), now: mapping, size_bytes, most_bytes, content: Ok(&[]), ..device.clone() };
        self.decide_plain(place, filesystem, &device);
    }

    fn keep_encrypted(&mut self, place: &str, filesystem: &Filesystem, encrypted: Encrypted, device: &Device<'a>) {
        let found = device.content.as_deref().map_err(String::clone);
        let uuid = match found.and_then(container_uuid) {
            Ok(uuid) => uuid,
            Err(why) => {
                let message = format!("{} is to be kept with {} in LUKS, but {why}", device.path, filesystem.format);
                return self.refuse(place, message);
            }
        };
        let (below, inventory) = (self.stack.name(&device.now), self.inventory);
        let mapping = Container::new(device.now.clone(), uuid, 0, encrypted.key, Secret::default()).mapping;
        let opened = inventory.stacked.iter().find(|is| is.device == mapping && is.below.contains(&below));
        if let Some(opened) = opened {
            self.container(filesystem, encrypted, device, uuid, LuksFate::Opened);
            if let Some(why) = inventory.failure(&Tried::Container(device.now.clone())) {
                self.opens_by_disk_key(device, why);
            }
            let size_bytes = Some(opened.size_bytes);
            let (blank, content) = (opened.blank, Ok(opened.signatures.as_slice()));
            let device = Device { path: mapping.clone(), now: mapping, size_bytes, blank, content, ..device.clone() };
            return self.decide_plain(place, filesystem, &device);
        }
        let needed = mountable(filesystem).filter(|_| !may_be_missing(filesystem));
        match (inventory.failure(&Tried::Container(device.now.clone())), needed) {
            (Some(why), Some(path)) => {
                let message = format!(
                    "{} is to be kept with {} in LUKS, and the new system mounts it at {path}, but it does not open: {why}. \
                     Give its key; or say nofail in its mountoptions, and it stays locked",
                    device.path, filesystem.format
                );
                self.refuse(place, message);
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

    /// Nothing of what is kept is written, so that it stays sealed to the other TPM.
    fn opens_by_disk_key(&mut self, device: &Device, why: &str) {
        if let Some(luks) = self.decided.luks.last_mut() {
            luks.strange_tpm = true;
        }
        self.warn(format!(
            "{} opens with disk_key alone, and the new system does not have that: it asks for it at its console, until this machine's \
             TPM was enrolled there (systemd-cryptenroll). {why}",
            device.path
        ));
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
        let says = |word: &str| filesystem.options().any(|option| option == word);
        self.decided.luks.push(Luks {
            container: container.clone(),
            fate,
            path: mountable(filesystem).map(str::to_owned),
            nofail: says("nofail"),
            noauto: says("noauto"),
            read_only: filesystem.is_read_only(),
            strange_tpm: false,
        });
        container
    }
}

fn may_be_missing(filesystem: &Filesystem) -> bool {
    filesystem.options().any(|option| ["nofail", "noauto"].contains(&option))
}

impl Luks {
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
            _ => (self.container.key.clone(), None),
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

pub fn made(decided: &Decided) -> Vec<Operation> {
    let made = decided.luks.iter().filter(|luks| luks.fate == LuksFate::Made);
    made.map(|luks| Operation::Device(OnDevice::CreateContainer(luks.container.clone()))).collect()
}

pub fn closed(decided: &Decided) -> impl Iterator<Item = Operation> {
    let close = |luks: &Luks| OnDevice::CloseContainer { mapping: luks.container.mapping.clone() };
    open(decided).map(close).map(Operation::Device)
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
