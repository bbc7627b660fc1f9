//! Volume groups and logical volumes that are opaque, because they are inactive.

use super::device_index::DeviceIndex;
use super::{OpaqueKind, OpaqueObject};
use crate::inventory::{HAS_SNAPSHOT, InspectionTarget, LvmLogicalVolume, LvmVolumeGroup, VolumeHealth};

/// Segment types of volumes whose content can be made readable without any write.
const WRITE_FREE_SEGMENT_TYPES: [&str; 3] = ["linear", "striped", "raid1"];

impl DeviceIndex<'_> {
    /// Returns the inactive volumes of a group, each as one opaque object. If LVM does not activate the group on this
    /// machine, all its inactive volumes are one object.
    pub(super) fn check_volumes(&self, group: &LvmVolumeGroup) -> Vec<OpaqueObject> {
        let idle = || group.volumes.iter().filter(|volume| volume.running.is_none());
        match &group.closed {
            Some(_) if idle().next().is_none() => Vec::new(),
            Some(why) => vec![self.describe_closed_group(group, why, &idle().collect::<Vec<_>>())],
            None => idle().map(|volume| self.describe_volume(group, volume)).collect(),
        }
    }

    fn describe_closed_group(&self, group: &LvmVolumeGroup, why: &str, idle: &[&LvmLogicalVolume]) -> OpaqueObject {
        // `why` consists of a reason and, after the last colon, a remedy.
        let (reason, remedy) =
            why.rsplit_once(": ").unwrap_or((why, "open the volume group in the system that uses it"));
        let volumes: Vec<&str> = idle.iter().map(|volume| volume.name.as_str()).collect();
        OpaqueObject {
            kind: OpaqueKind::VolumeGroup,
            name: format!("volume group {} ({})", group.name, volumes.join(", ")),
            devices: group.present_devices().cloned().collect(),
            reason: reason.to_owned(),
            remedy: remedy.to_owned(),
            untried: !self.inventory.explored && idle.iter().all(|volume| is_showable_in_closed_group(volume)),
        }
    }

    fn describe_volume(&self, group: &LvmVolumeGroup, volume: &LvmLogicalVolume) -> OpaqueObject {
        let failure =
            self.find_failure(&InspectionTarget::Volume(volume.uuid.clone())).filter(|_| !volume.uuid.is_empty());
        let untried = !self.inventory.explored && failure.is_none() && is_showable(volume);
        let path = format!("{}/{}", group.name, volume.name);
        let elsewhere = |what: &str| format!("{what} in the system that uses the volume");
        let (reason, remedy) = match (volume.health, volume.kind.as_str(), &volume.entangled) {
            (VolumeHealth::Lost, "raid1", _) => (
                "none of the volume's copies is known to be complete and current".to_owned(),
                elsewhere(&format!("connect the missing disk, or repair the volume (lvconvert --repair {path})")),
            ),
            (VolumeHealth::Lost, ..) => (
                "part of the volume's data is on a physical volume that is missing".to_owned(),
                "connect the missing disk".to_owned(),
            ),
            _ if untried => {
                ("the volume was not active when the inventory was read".to_owned(), activation_remedy(&path))
            }
            (_, _, Some(how)) => {
                (format!("the volume {how}"), elsewhere("remove the snapshot, or complete the merge or move,"))
            }
            (_, "snapshot", _) => (
                "activating a snapshot may write to it".to_owned(),
                elsewhere(&format!("remove the snapshot (lvremove {path})")),
            ),
            (_, "linear" | "striped" | "raid1", _) => {
                let why = failure.unwrap_or("LVM did not activate the volume");
                (why.to_owned(), activation_remedy(&path))
            }
            (_, kind, _) => (
                format!("activating a volume of type {kind} writes to its disks"),
                elsewhere("back up any data you need, and remove the volume,"),
            ),
        };
        OpaqueObject {
            kind: OpaqueKind::LogicalVolume,
            name: format!("logical volume {path} ({})", volume.kind),
            devices: group.present_devices().cloned().collect(),
            reason,
            remedy,
            untried,
        }
    }
}

fn activation_remedy(path: &str) -> String {
    format!("activate the volume in the rescue shell (lvchange -ay {path})")
}

/// Returns whether the content of the volume can be made readable without any write.
fn is_showable(volume: &LvmLogicalVolume) -> bool {
    let is_free =
        volume.entangled.is_none() || (volume.kind == "linear" && volume.entangled.as_deref() == Some(HAS_SNAPSHOT));
    is_free && volume.health != VolumeHealth::Lost && WRITE_FREE_SEGMENT_TYPES.contains(&volume.kind.as_str())
}

/// Returns whether the content of a volume in a group that LVM refuses to activate can be read through a read-only
/// mapping.
fn is_showable_in_closed_group(volume: &LvmLogicalVolume) -> bool {
    is_showable(volume) && volume.kind != "striped"
}
