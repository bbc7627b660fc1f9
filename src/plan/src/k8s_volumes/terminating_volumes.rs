//! Kubernetes volumes that are marked for deletion (`metadata.deletionTimestamp`): existing data is preserved, and new
//! volumes are not prepared. Kubernetes decides when the data may be deleted; the volume is then removed from the
//! list.

use super::super::planned_devices::{DeviceFate, DeviceSize};
use super::super::planner_state::PlannerState;
use super::super::{DiskVerdict, FilesystemFate, InstallMode, PersistentVerdict};
use super::{VolumeDecision, VolumeRefusal, is_wiped_later, udev_path};
use model::device_name::{DevicePath, LayoutPath};
use model::k8s_volume::{K8sVolume, VolumeContent, VolumeSource};
use model::layout::graph::LayoutItem;
use operations::{VolumePath, logical_volume_link};

impl PlannerState<'_> {
    /// Decides on a volume that is marked for deletion.
    ///
    /// | the volume, on this machine | decision |
    /// |---|---|
    /// | is on a device that is not wiped | kept |
    /// | is on a device that this reinstall recreates | refused, because the volume may still be in use |
    /// | may be in an encrypted group or filesystem that this reinstall recreates without having opened it | refused |
    /// | does not exist | not created |
    pub(super) fn decide_deleted(&mut self, volume: &K8sVolume) -> Result<VolumeDecision, VolumeRefusal> {
        let decision = match &volume.source {
            VolumeSource::Raw(path) => self.leave_raw(volume, Some(path)),
            VolumeSource::Discover(_) => self.leave_raw(volume, None),
            VolumeSource::Logical { group, .. } => self.leave_logical(volume, group),
            VolumeSource::Sparse { .. } => self.leave_sparse(volume),
        }?;
        match self.find_unopened(volume).filter(|_| decision.verdict == PersistentVerdict::Leave) {
            Some(what) => Err(Some(format!(
                "is marked for deletion, and its data may be in {what}, which is encrypted and which this reinstall would recreate; remove the volume from the list once the volume is no longer used"
            ))),
            None => Ok(decision),
        }
    }

    /// Returns the encrypted object that may contain the volume and that was not opened because it will be recreated.
    fn find_unopened(&self, volume: &K8sVolume) -> Option<String> {
        let group = match &volume.source {
            VolumeSource::Logical { group, .. } => self.layout.volumegroups.iter().find(|listed| listed.name == *group),
            VolumeSource::Raw(path) => self.layout.find_encrypted_group(path),
            VolumeSource::Discover(_) => None,
            VolumeSource::Sparse { .. } => {
                self.sparse_carrier().and_then(|(_, wanted, _)| self.layout.find_encrypted_group(&wanted.device))
            }
        };
        if let Some(group) = group.filter(|group| group.encrypted.is_some()) {
            let fate = self.groups.get(group.name.as_str()).map(|is| is.fate);
            let is_seen = self.inventory.groups.iter().any(|is| is.name == group.name);
            let is_lost = fate.is_some_and(|fate| is_wiped_later(self.request.mode, fate));
            return (is_lost && !is_seen).then(|| format!("vg:{}", group.name));
        }
        let (path, wanted, is) =
            self.sparse_carrier().filter(|_| matches!(volume.source, VolumeSource::Sparse { .. }))?;
        let is_made = matches!(is, FilesystemFate::Created(_)) && self.request.mode == InstallMode::Reinstall;
        (is_made && wanted.encrypted.is_some()).then(|| format!("the filesystem at {path}"))
    }

    fn leave_raw(&mut self, volume: &K8sVolume, path: Option<&LayoutPath>) -> Result<VolumeDecision, VolumeRefusal> {
        if let Some((device, unit)) = self.find_preserved(volume)? {
            return Ok(self.preserve_raw_device(volume, path, device, unit));
        }
        if let Some(lost) = self.find_volume_devices(volume).first()
            && self.request.mode == InstallMode::Reinstall
        {
            return Err(Some(describe_wiped(lost.device)));
        }
        let named = path.map(|path| DevicePath::from(path.as_str())).unwrap_or_default();
        // A block volume on LVM has no UUID of its own. It is identified by the logical volume of the layout.
        if let (Some(path), VolumeContent::Block) = (path, &volume.content)
            && let Some(LayoutItem::Volume(listed)) =
                self.graph.find_device(path).map(|node| self.graph.nodes[node].item)
            && let Some((uuid, size_bytes)) = self.find_logical(&listed.volumegroup, &listed.name)
            && let Some(device) = self.devices.get_or_report("volumes", path)
        {
            if is_wiped_later(self.request.mode, device.fate) {
                return Err(Some(describe_wiped(&device.path)));
            }
            if device.fate == DeviceFate::Preserved {
                self.layout_names.insert(path.clone());
                return Ok(preserved_decision(device.path.clone(), size_bytes, VolumePath::Known(uuid)));
            }
        }
        Ok(left_decision(named))
    }

    fn leave_logical(&mut self, volume: &K8sVolume, group: &str) -> Result<VolumeDecision, VolumeRefusal> {
        let device = DevicePath::from(format!("/dev/{group}/{}", volume.name));
        let Some(fate) = self.groups.get(group).map(|group| group.fate) else { return Ok(left_decision(device)) };
        let Some((path, size_bytes)) = self.find_logical(group, &volume.name) else { return Ok(left_decision(device)) };
        if is_wiped_later(self.request.mode, fate) {
            return Err(Some(describe_wiped(&device)));
        }
        let is_there = match volume.content {
            VolumeContent::Block => true,
            VolumeContent::Filesystem { .. } => self.find_preserved(volume)?.is_some(),
        };
        if fate != DeviceFate::Preserved || !is_there {
            return Ok(left_decision(device));
        }
        let path = match volume.content {
            VolumeContent::Block => VolumePath::Known(path),
            VolumeContent::Filesystem { .. } => udev_path(volume),
        };
        let preserved_group = self.groups.get(group).and_then(|group| group.preserved);
        let disks = preserved_group
            .into_iter()
            .flat_map(|group| group.present_devices())
            .flat_map(|device| self.disks_below(device));
        Ok(VolumeDecision { disks: disks.collect(), ..preserved_decision(device, size_bytes, path) })
    }

    /// Returns the persistent path and the size of the logical volume with these names.
    fn find_logical(&self, group: &str, name: &str) -> Option<(String, u64)> {
        let groups = self.inventory.groups.iter().filter(|is| is.name == group);
        let mut volumes = groups.flat_map(|group| group.volumes.iter().map(move |volume| (group, volume)));
        let (group, volume) = volumes.find(|(_, volume)| volume.name == name)?;
        Some((logical_volume_link(&group.uuid, &volume.uuid), volume.size_bytes))
    }

    fn leave_sparse(&mut self, volume: &K8sVolume) -> Result<VolumeDecision, VolumeRefusal> {
        let device = DevicePath::from(volume.sparse_path());
        let mut inside = self.inventory.filesystems.iter();
        let found = inside.find_map(|is| Some((&is.device, is.sparse.iter().find(|file| file.uid == volume.uid)?)));
        let Some((carrier, file)) = found else { return Ok(left_decision(device)) };
        if self.is_carried_on(carrier) {
            let wanted = self.sparse_carrier().map(|(_, wanted, _)| wanted.device.clone());
            let disks = self.disks_meant(wanted.as_slice());
            return Ok(VolumeDecision { disks, ..preserved_decision(device, file.size_bytes, udev_path(volume)) });
        }
        let is_wiped =
            self.verdicts_on(carrier).iter().any(|verdict| matches!(verdict, DiskVerdict::Wipe | DiskVerdict::Make));
        match self.request.mode == InstallMode::Reinstall && is_wiped {
            true => Err(Some(describe_wiped(&device))),
            false => Ok(left_decision(device)),
        }
    }
}

fn describe_wiped(device: &DevicePath) -> String {
    format!(
        "is marked for deletion, and its data is on {device}, which this reinstall recreates; remove the volume from the list once the volume is no longer used"
    )
}

fn preserved_decision(device: DevicePath, size_bytes: u64, persistent: VolumePath) -> VolumeDecision {
    let (verdict, size) = (PersistentVerdict::Keep, DeviceSize::Known(size_bytes));
    VolumeDecision { device, disks: Default::default(), verdict, size, sector_bytes: 512, prepare: None, persistent }
}

fn left_decision(device: DevicePath) -> VolumeDecision {
    let (verdict, persistent) = (PersistentVerdict::Leave, VolumePath::Known(String::new()));
    VolumeDecision {
        device,
        disks: Default::default(),
        verdict,
        size: DeviceSize::AtMost(0),
        sector_bytes: 512,
        prepare: None,
        persistent,
    }
}
