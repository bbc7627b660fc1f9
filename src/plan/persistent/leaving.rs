//! Kubernetes volumes that are marked for deletion (`metadata.deletionTimestamp`): existing data stay, and nothing is prepared. Kubernetes
//! decides when the data may be deleted; the volume is then no longer in the list.

use super::super::devices::{Fate, Size};
use super::super::verdict::Deciding;
use super::super::{FilesystemFate, Mode, Persistent, PersistentVerdict, Verdict, mapping_path};
use super::{Decision, Refused, is_lost, persistent};
use crate::device::{DevicePath, LayoutPath};
use crate::layout::tree::Item;
use crate::order::Gather;
use crate::volume::{Content, Source, Volume};

impl Deciding<'_> {
    /// Decides on a volume that is marked for deletion.
    ///
    /// | the volume, on this machine | | |---|---| | is on a device that is not wiped | kept | | is on a device that this reinstall
    /// recreates | refused, like an unmarked one: it may still be in use | | may be in an encrypted group or filesystem that this reinstall
    /// recreates without having opened it | refused | | does not exist | left: nothing is written for it |
    pub(super) fn decide_deleted(&mut self, volume: &Volume) -> Result<Decision, Refused> {
        let decision = match &volume.source {
            Source::Raw(path) => self.leave_raw(volume, Some(path)),
            Source::Discover(_) => self.leave_raw(volume, None),
            Source::Logical { group, .. } => self.leave_logical(volume, group),
            Source::Sparse { .. } => self.leave_sparse(volume),
        }?;
        match self.unseen(volume).filter(|_| decision.verdict == PersistentVerdict::Leave) {
            Some(what) => Err(Some(format!(
                "is marked for deletion, and its data may be in {what}, which is encrypted and will be recreated by this reinstall; remove the volume from the list once it is no longer used"
            ))),
            None => Ok(decision),
        }
    }

    /// Returns the encrypted object that was not opened because it is recreated, and that may contain the volume.
    fn unseen(&self, volume: &Volume) -> Option<String> {
        let group = match &volume.source {
            Source::Logical { group, .. } => self.layout.volumegroups.iter().find(|listed| listed.name == *group),
            Source::Raw(path) => self.layout.encrypted_group(path),
            Source::Discover(_) => None,
            Source::Sparse { .. } => {
                self.sparse_carrier().and_then(|(_, wanted, _)| self.layout.encrypted_group(&wanted.device))
            }
        };
        if let Some(group) = group.filter(|group| group.encrypted.is_some()) {
            let fate = self.groups.get(group.name.as_str()).map(|is| is.fate);
            let is_seen = self.inventory.groups.iter().any(|is| is.name == group.name);
            let is_lost = fate.is_some_and(|fate| is_lost(self.request.mode, fate));
            return (is_lost && !is_seen).then(|| format!("vg:{}", group.name));
        }
        let (path, wanted, is) = self.sparse_carrier().filter(|_| matches!(volume.source, Source::Sparse { .. }))?;
        let is_made = matches!(is, FilesystemFate::Made(_)) && self.request.mode == Mode::Reinstall;
        (is_made && wanted.encrypted.is_some()).then(|| format!("the filesystem at {path}"))
    }

    fn leave_raw(&mut self, volume: &Volume, path: Option<&LayoutPath>) -> Result<Decision, Refused> {
        if let Some((device, unit)) = self.found(volume)? {
            return Ok(self.keep_raw(volume, path, device, unit));
        }
        if let Some(lost) = self.carriers(volume).first()
            && self.request.mode == Mode::Reinstall
        {
            return Err(Some(wiped(lost.device)));
        }
        let named = path.map(|path| DevicePath::from(path.as_str())).unwrap_or_default();
        // A block volume of LVM has no UUID of its own: it is the logical volume of the layout.
        if let (Some(path), Content::Block) = (path, &volume.content)
            && let Some(Item::Volume(listed)) = self.graph.device(path).map(|node| self.graph.nodes[node].item)
            && let Some((uuid, size_bytes)) = self.logical_there(&listed.volumegroup, &listed.name)
            && let Some(device) = self.devices.get("volumes", path)
        {
            if is_lost(self.request.mode, device.fate) {
                return Err(Some(wiped(&device.path)));
            }
            if device.fate == Fate::Kept {
                self.layout_names.insert(path.clone());
                return Ok(kept(device.path.clone(), size_bytes, Persistent::Known(uuid)));
            }
        }
        Ok(left(named))
    }

    fn leave_logical(&mut self, volume: &Volume, group: &str) -> Result<Decision, Refused> {
        let device = DevicePath::from(format!("/dev/{group}/{}", volume.name));
        let Some(fate) = self.groups.get(group).map(|group| group.fate) else { return Ok(left(device)) };
        let Some((path, size_bytes)) = self.logical_there(group, &volume.name) else { return Ok(left(device)) };
        if is_lost(self.request.mode, fate) {
            return Err(Some(wiped(&device)));
        }
        let is_there = match volume.content {
            Content::Block => true,
            Content::Filesystem { .. } => self.found(volume)?.is_some(),
        };
        if fate != Fate::Kept || !is_there {
            return Ok(left(device));
        }
        let path = match volume.content {
            Content::Block => Persistent::Known(path),
            Content::Filesystem { .. } => persistent(volume),
        };
        let kept_group = self.groups.get(group).and_then(|group| group.kept);
        let disks =
            kept_group.into_iter().flat_map(|group| group.devices()).flat_map(|device| self.disks_below(device));
        Ok(Decision { disks: disks.gather(), ..kept(device, size_bytes, path) })
    }

    /// Returns the persistent path and the size of the logical volume with these names.
    fn logical_there(&self, group: &str, name: &str) -> Option<(String, u64)> {
        let groups = self.inventory.groups.iter().filter(|is| is.name == group);
        let mut volumes = groups.flat_map(|group| group.volumes.iter().map(move |volume| (group, volume)));
        let (group, volume) = volumes.find(|(_, volume)| volume.name == name)?;
        Some((mapping_path(&group.uuid, &volume.uuid), volume.size_bytes))
    }

    fn leave_sparse(&mut self, volume: &Volume) -> Result<Decision, Refused> {
        let device = DevicePath::from(volume.sparse_path());
        let mut inside = self.inventory.filesystems.iter();
        let found = inside.find_map(|is| Some((&is.device, is.sparse.iter().find(|file| file.uid == volume.uid)?)));
        let Some((carrier, file)) = found else { return Ok(left(device)) };
        if self.is_carried_on(carrier) {
            let wanted = self.sparse_carrier().map(|(_, wanted, _)| wanted.device.clone());
            let disks = self.disks_meant(wanted.as_slice());
            return Ok(Decision { disks, ..kept(device, file.size_bytes, persistent(volume)) });
        }
        let is_wiped = self.verdicts_on(carrier).iter().any(|is| matches!(is, Verdict::Wipe | Verdict::Make));
        match self.request.mode == Mode::Reinstall && is_wiped {
            true => Err(Some(wiped(&device))),
            false => Ok(left(device)),
        }
    }
}

fn wiped(device: &DevicePath) -> String {
    format!(
        "is marked for deletion, and its data are on {device}, which this reinstall recreates; remove the volume from the list once it is no longer used"
    )
}

fn kept(device: DevicePath, size_bytes: u64, persistent: Persistent) -> Decision {
    let (verdict, size) = (PersistentVerdict::Keep, Size::Known(size_bytes));
    Decision { device, disks: Default::default(), verdict, size, sector_bytes: 512, prepare: None, persistent }
}

fn left(device: DevicePath) -> Decision {
    let (verdict, persistent) = (PersistentVerdict::Leave, Persistent::Known(String::new()));
    Decision {
        device,
        disks: Default::default(),
        verdict,
        size: Size::AtMost(0),
        sector_bytes: 512,
        prepare: None,
        persistent,
    }
}
