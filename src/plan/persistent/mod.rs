//! Kubernetes volumes: created, kept, or added to preserved objects.
//!
//! An implementation of the table in docs/plan.md.
//!
//! | | | |---|---| | its UUID is on a device that is not wiped | kept, wherever that is | | a blank disk that the layout does not list |
//! created: the volume names that disk, and nothing else is written to it | | a device that this plan creates | created; refused on a disk
//! that this reinstall wipes | | free space of a preserved group, a new file in a preserved filesystem | added | | it was prepared before,
//! and its data are not found | refused: they may be on a disk that is absent or unreadable ([`prepared`]) | | it is marked for deletion |
//! kept if it exists, otherwise left | | anything else | refused, by the name of the volume |

mod carriers;
mod group_space;
mod leaving;
mod logical;
mod prepared;
mod raw;
mod records;
mod sparse;
mod sparse_room;

use super::devices::{Device, Fate, Size};
use super::sectors::MIB;
use super::verdict::Deciding;
use super::{
    Filling, MakeFilesystem, Mode, Persistent, PersistentVerdict, PersistentVolume, PreparePersistent, Prepared,
    SparseVolume, TryFilesystem, Verdict, capacity, partition_bytes,
};
use crate::device::{DevicePath, KernelName, LayoutPath};
use crate::inventory::{Disk, Inventory, Signature};
use crate::layout::Format;
use crate::marker::RecordedVolume;
use crate::order;
use crate::volume::{Content, Source, Volume};
use std::collections::BTreeSet;

/// Decisions on all Kubernetes volumes.
#[derive(Default)]
pub struct Decisions {
    /// Volumes in the order of the list.
    pub planned: Vec<PersistentVolume>,
    pub prepared: Vec<Prepared>,
    pub prepares: Vec<PreparePersistent>,
    pub sparse: Vec<SparseVolume>,
    pub trials: Vec<TryFilesystem>,
    /// Disks that the layout does not list and that are written for a volume.
    pub written: Vec<KernelName>,
    /// Volumes that the marker records.
    pub records: Vec<RecordedVolume>,
    /// Preserved groups to which a volume is added.
    pub extended: BTreeSet<String>,
}

/// Minimum size of a volume: a partition table, and space for a partition.
const LEAST_BYTES: u64 = 4 * MIB;

/// Decision on one volume.
struct Decision {
    device: DevicePath,
    disks: BTreeSet<KernelName>,
    verdict: PersistentVerdict,
    size: Size,
    sector_bytes: u32,
    prepare: Option<PreparePersistent>,
    persistent: Persistent,
}

/// Reason why a volume is refused; `None` if an object below it was refused.
pub type Refused = Option<String>;

impl<'a> Deciding<'a> {
    pub fn decide_persistent(&mut self) {
        let allocation = &self.request.assigned.allocation;
        let (volumes, hostname) = match allocation.volumes() {
            Ok(volumes) => (volumes, allocation.hostname.clone()),
            Err(problems) => return self.decided.problems.extend(problems),
        };
        let mut order: Vec<usize> = (0..volumes.len()).collect();
        // Volumes with hints come last: they take only disks that no other volume names.
        order::by_key(&mut order, |&index| matches!(volumes[index].source, Source::Discover(_)));
        let mut decisions: Vec<(usize, Decision)> = Vec::new();
        for index in order {
            let volume = &volumes[index];
            let decided = match volume.is_of(&hostname) {
                true if volume.deleted => self.decide_deleted(volume),
                true => self.refuse_hidden(volume).and_then(|()| self.decide_volume(volume)),
                false => Err(Some(format!("belongs to node {}, but this machine is {hostname}", volume.node))),
            };
            match decided {
                Ok(decision) => decisions.push((index, decision)),
                Err(Some(why)) => self.refuse(place(volume), format!("volume {} {why}", volume.name)),
                Err(None) => {}
            }
        }
        order::by_key(&mut decisions, |(index, _)| *index);
        for (index, decision) in decisions {
            self.note_decision(&volumes[index], decision);
        }
        self.record_volumes();
        self.refuse_full_carrier();
    }

    fn decide_volume(&mut self, volume: &Volume) -> Result<Decision, Refused> {
        let decision = match &volume.source {
            Source::Raw(path) => self.decide_raw(volume, Some(path)),
            Source::Discover(hints) => match self.discovered(volume, hints) {
                Ok(None) => self.decide_raw(volume, None),
                Ok(Some(disk)) => self.take_disk(volume, disk),
                Err(why) => Err(why),
            },
            Source::Logical { group, size_bytes } => self.decide_logical(volume, group, *size_bytes),
            Source::Sparse { size_bytes } => self.decide_sparse(volume, *size_bytes),
        }?;
        if decision.verdict == PersistentVerdict::Keep {
            return Ok(decision);
        }
        if let Some(why) = self.lost(volume).map(lies_on_wiped) {
            return Err(Some(why));
        }
        self.refuse_second_copy(volume, &decision)?;
        match too_small(volume, &decision) {
            Some(why) => Err(Some(why)),
            None => Ok(decision),
        }
    }

    fn note_decision(&mut self, volume: &Volume, decision: Decision) {
        let Decision { device, disks, verdict, size, sector_bytes, prepare, persistent } = decision;
        if verdict == PersistentVerdict::Leave {
            let (name, uid, kind) = (volume.name.clone(), volume.uid, volume.kind());
            let left =
                PersistentVolume { name, uid, kind, device, disks: Vec::new(), verdict, path: None, size_bytes: None };
            return self.decided.persistent.planned.push(left);
        }
        let filling = prepare.as_ref().map(|prepare| &prepare.filling);
        let is_kept = verdict == PersistentVerdict::Keep;
        let new = if is_kept { None } else { filling.cloned().or_else(|| self.sparse_filling(volume)) };
        let trial = new.as_ref().and_then(|filling| {
            super::trying::volume(filling, size, sector_bytes, verdict == PersistentVerdict::Extend)
        });
        let is_part = matches!(new, Some(Filling::Partition { .. }));
        let size_bytes = match size {
            Size::Known(bytes) if is_part => Some(partition_bytes(bytes)),
            Size::Known(bytes) => Some(bytes),
            Size::AtMost(_) => None,
        };
        let decided = &mut self.decided.persistent;
        decided.trials.extend(trial);
        if let (Source::Sparse { .. }, Size::Known(size_bytes)) = (&volume.source, size) {
            let (name, uid, path) = (volume.name.clone(), volume.uid, volume.sparse_path());
            decided.sparse.push(SparseVolume { name, uid, path, size_bytes, make: new });
        }
        decided.planned.push(PersistentVolume {
            name: volume.name.clone(),
            uid: volume.uid,
            kind: volume.kind(),
            device: device.clone(),
            disks: disks.into_iter().collect(),
            verdict,
            path: persistent.known().map(str::to_owned),
            size_bytes,
        });
        decided.prepares.extend(prepare);
        decided.prepared.push(Prepared { volume: volume.clone(), device, is_part, persistent, size_bytes });
    }

    /// Returns the name of the listed volume with this filesystem.
    fn whose_filesystem(&self, signatures: &[Signature]) -> Option<String> {
        let [one] = signatures else { return None };
        let volumes = self.request.assigned.allocation.volumes().unwrap_or_default();
        let is_it = |volume: &Volume| one.uuid.eq_ignore_ascii_case(&volume.uid.to_string());
        volumes.into_iter().find(is_it).map(|volume| volume.name)
    }

    /// Returns the filesystem or partition that is created for a volume on this device; nothing for a block volume of LVM.
    fn filling(&mut self, volume: &Volume, device: &DevicePath, is_logical: bool) -> Filling {
        match &volume.content {
            Content::Filesystem { format, options } => Filling::Filesystem(MakeFilesystem {
                device: device.clone(),
                format: *format,
                label: None,
                uuid: volume.uid.to_string(),
                createoptions: options.clone(),
            }),
            Content::Block if is_logical => Filling::Nothing,
            Content::Block => Filling::Partition { guid: (self.ids)() },
        }
    }

    fn prepare(&mut self, volume: &Volume, device: &DevicePath, must_be_blank: bool) -> PreparePersistent {
        PreparePersistent {
            name: volume.name.clone(),
            uid: volume.uid,
            device: device.clone(),
            create: None,
            must_be_blank,
            filling: self.filling(volume, device, false),
        }
    }

    /// Reserves an unlisted disk for the allocation.
    fn take_name(&mut self, disk: &Disk) {
        if self.set_verdict(&disk.name, Verdict::Volumes).is_none() {
            self.decided.identities.push(super::DiskIdentity::of(disk));
        }
    }

    /// Returns whether the layout does not list the disk.
    fn is_unlisted(&self, disk: &Disk) -> bool {
        !self.found.values().any(|found| found.name == disk.name)
    }
}

/// Returns the device as if it were preserved, for comparison with those of an interrupted attempt.
fn on_kept<'a>(device: &DevicePath, signatures: &'a [Signature], size_bytes: u64) -> Device<'a> {
    Device {
        path: device.clone(),
        now: device.clone(),
        fate: Fate::Kept,
        absent: None,
        blank: false,
        size_bytes: Some(size_bytes),
        most_bytes: size_bytes,
        sector_bytes: 512,
        stripe_bytes: 0,
        content: Ok(signatures),
    }
}

fn place(volume: &Volume) -> String {
    format!("volumes[{}]", volume.name)
}

/// Returns the path of the volume in the installed system, from the kernel and udev, on any device except arrays.
fn persistent(volume: &Volume) -> Persistent {
    Persistent::Known(match volume.content {
        Content::Filesystem { .. } => format!("/dev/disk/by-uuid/{}", volume.uid),
        Content::Block => format!("/dev/disk/by-partuuid/{}", volume.uid),
    })
}

fn lies_on_wiped(device: &DevicePath) -> String {
    format!("lies on {device}, which a reinstall wipes; set wipeonreinstall: false for its disks")
}

fn too_small(volume: &Volume, decision: &Decision) -> Option<String> {
    let required = match volume.content {
        Content::Filesystem { format: Format::Xfs, .. } => capacity::XFS_MIB * MIB,
        Content::Filesystem { .. } | Content::Block => LEAST_BYTES,
    };
    let existing = match decision.size {
        Size::Known(bytes) if bytes < required => bytes,
        _ => return None,
    };
    let (existing, required) = (crate::text::bytes(existing), crate::text::bytes(required));
    Some(format!("has {existing} on {}, but {} requires {required}", decision.device, volume.content))
}

/// Lists the disks of the machine for a message.
fn names(inventory: &Inventory) -> String {
    let disks: Vec<&str> = inventory.disks.iter().map(|disk| disk.device.as_str()).collect();
    if disks.is_empty() { "no disks were found".to_owned() } else { format!("its disks are {}", disks.join(", ")) }
}

fn is_of_disk(disk: &Disk, path: &LayoutPath) -> bool {
    disk.is(path.as_str())
}

/// Returns whether a device with this fate is wiped by a reinstall.
fn is_lost(mode: Mode, fate: Fate) -> bool {
    mode == Mode::Reinstall && fate == Fate::Wiped
}
