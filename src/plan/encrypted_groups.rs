//! Encrypted volume groups: each physical volume is in a LUKS container of its own, created or preserved together with its device.
//!
//! | preserved, and `encrypted` in the layout | | |---|---| | containers that open with the key | the group in them is compared and
//! preserved like any other | | one that does not open, and the new system mounts a volume of the group without `nofail` or `noauto`, or
//! swaps to it | refused, with the reason | | the same, and the new system does not require the group | all containers stay locked, with a
//! warning | | the same, and an earlier attempt was recreating one of their disks | recreated, or refused | | any of them, and a device of
//! the group is missing | refused: the content of that device is unknown | | anything but a container | refused, with both sides |

use super::devices::{Below, Device, Fate};
use super::filesystems::has_a_line_in_fstab;
use super::luks::{self, Luks, LuksFate};
use super::placed::FilesystemFate;
use super::returning::mountable;
use super::verdict::{Deciding, GroupFate};
use super::{Container, persistent};
use crate::device::{DevicePath, LayoutPath};
use crate::inventory::Tried;
use crate::layout::{Encrypted, Filesystem, Format, VolumeGroup};
use crate::volume::{Source, Volume};
use uuid::Uuid;

/// Reason why the content of an encrypted group is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hidden {
    /// The containers could not be opened.
    Locked,
    /// An offline plan has neither the key nor the disks.
    Unopened,
}

impl<'a> Deciding<'a> {
    /// Returns the same devices as mappings of their containers. `None` if they were refused, or were not inspected.
    pub fn within_containers(
        &mut self,
        place: &str,
        group: &'a VolumeGroup,
        encrypted: Encrypted,
        below: &Below<'a>,
    ) -> Option<Below<'a>> {
        let devices = match below.fate {
            Fate::Wiped | Fate::Blank => self.made_within(place, group, encrypted, below)?,
            Fate::Kept => self.kept_within(place, group, encrypted, below)?,
        };
        Some(Below { devices, fate: below.fate })
    }

    fn made_within(
        &mut self,
        place: &str,
        group: &VolumeGroup,
        encrypted: Encrypted,
        below: &Below<'a>,
    ) -> Option<Vec<Device<'a>>> {
        let mut inside = Vec::new();
        for (index, device) in below.devices.iter().enumerate() {
            if device.absent.is_some() {
                inside.push(device.clone());
                continue;
            }
            if let Some(message) = luks::too_small(&group.devices[index], device) {
                self.refuse(format!("{place}.devices[{index}]"), message);
                return None;
            }
            let uuid = (self.ids)();
            let container = self.contain(group, encrypted, device, uuid, LuksFate::Made);
            inside.push(luks::made_inside(device, container.mapping));
        }
        Some(inside)
    }

    fn kept_within(
        &mut self,
        place: &str,
        group: &'a VolumeGroup,
        encrypted: Encrypted,
        below: &Below<'a>,
    ) -> Option<Vec<Device<'a>>> {
        let mut uuids = Vec::new();
        for device in below.present() {
            match luks::uuid_on(device) {
                Ok(uuid) => uuids.push(uuid),
                Err(why) => {
                    let message = format!("vg:{} must be kept on {} in LUKS, but {why}", group.name, device.now);
                    self.refuse(place, message);
                    return None;
                }
            }
        }
        let opened: Option<Vec<Device>> =
            below.present().zip(&uuids).map(|(device, uuid)| self.opened(device, *uuid)).collect();
        if let Some(opened) = opened {
            self.contain_all(group, encrypted, below, &uuids, LuksFate::Opened);
            return Some(opened.into_iter().chain(below.absent().map(|(_, device)| device.clone())).collect());
        }
        self.hide(place, group, encrypted, below, &uuids);
        None
    }

    /// Decides on a group of which at least one container was not opened.
    fn hide(&mut self, place: &str, group: &'a VolumeGroup, encrypted: Encrypted, below: &Below<'a>, uuids: &[Uuid]) {
        // Unopened containers show neither whether the group survives without the absent disk, nor which disks belong to the group.
        if below.absent().next().is_some() {
            return self.refuse_without_physical(group, below);
        }
        let failure = |device: &&Device| self.inventory.failure(&Tried::Container(device.now.clone()));
        let failed = below.present().find_map(|device| Some((device.now.clone(), failure(&device)?)));
        let Some((device, why)) = failed else {
            self.warn(format!("vg:{}: the machine opens it with its key to inspect the content", group.name));
            let devices = self.contain_all(group, encrypted, below, uuids, LuksFate::Opened);
            let volumes = self.layout.logicalvolumes.iter().filter(|volume| volume.volumegroup == group.name);
            let volumes = volumes.map(|volume| volume.name.clone()).collect();
            self.decided.groups.push(GroupFate::Kept { name: group.name.clone(), devices, volumes });
            self.hidden.insert(&group.name, Hidden::Unopened);
            return;
        };
        if let Some(needed) = self.needed_of(group) {
            let message = format!(
                "vg:{} must be kept in LUKS, and the new system {needed}, but {device} cannot be opened: {why}. \
                 Provide its key, or add nofail to its mountoptions to leave it locked",
                group.name
            );
            return self.refuse(place, message);
        }
        if group.devices.iter().any(|device| self.was_being_made(device)) {
            return self.refuse(place, luks::half_made(&format!("vg:{}", group.name), why));
        }
        self.warn(format!(
            "vg:{} stays LOCKED and unchanged, without lines in /etc/crypttab and /etc/fstab: {device} cannot be opened: {why}",
            group.name
        ));
        self.contain_all(group, encrypted, below, uuids, LuksFate::Locked);
        let name = group.name.clone();
        self.decided.groups.push(GroupFate::Kept { name, devices: Vec::new(), volumes: Vec::new() });
        self.hidden.insert(&group.name, Hidden::Locked);
    }

    /// Returns why the new system requires the group, as text.
    fn needed_of(&self, group: &VolumeGroup) -> Option<String> {
        let needed = self.filesystems_in(group).find(|is| !luks::may_be_missing(is) && has_a_line_in_fstab(is))?;
        Some(mountable(needed).map_or_else(
            || format!("swaps to {}", needed.device),
            |path| format!("mounts {} at {path}", needed.device),
        ))
    }

    fn filesystems_in(&self, group: &VolumeGroup) -> impl Iterator<Item = &'a Filesystem> {
        let (layout, name) = (self.layout, group.name.clone());
        layout
            .filesystems
            .iter()
            .filter(move |is| layout.encrypted_group(&is.device).is_some_and(|group| group.name == name))
    }

    /// Records the containers of all present devices, and returns their mappings.
    fn contain_all(
        &mut self,
        group: &VolumeGroup,
        encrypted: Encrypted,
        below: &Below<'a>,
        uuids: &[Uuid],
        fate: LuksFate,
    ) -> Vec<DevicePath> {
        let devices: Vec<&Device> = below.present().collect();
        let all = devices.into_iter().zip(uuids);
        all.map(|(device, uuid)| self.contain(group, encrypted, device, *uuid, fate).mapping).collect()
    }

    fn contain(
        &mut self,
        group: &VolumeGroup,
        encrypted: Encrypted,
        device: &Device,
        uuid: Uuid,
        fate: LuksFate,
    ) -> Container {
        let key = luks::key(&self.request.assigned.allocation, encrypted.key);
        let container = Container::new(device.path.clone(), uuid, device.sector_bytes, encrypted.key, key);
        let container = Container { withheld: self.is_withheld(encrypted.key), ..container };
        let needed = self.filesystems_in(group).filter(|is| !luks::may_be_missing(is)).find_map(mountable);
        self.decided.luks.push(Luks::of_group(container.clone(), fate, &group.name, needed));
        if fate == LuksFate::Opened {
            self.note_strange_tpm(device);
        }
        container
    }

    /// Returns why the content of a device is unknown, if it is in an encrypted group that was not opened.
    pub fn hidden(&self, device: &LayoutPath) -> Option<Hidden> {
        self.hidden.get(self.layout.encrypted_group(device)?.name.as_str()).copied()
    }

    /// Decides on a filesystem on a volume of unknown content.
    pub fn decide_hidden(&mut self, filesystem: &Filesystem, hidden: Hidden) {
        let device = filesystem.device.as_device();
        self.decided.filesystems.push(match hidden {
            Hidden::Unopened if filesystem.format != Format::None => FilesystemFate::Kept { device, uuid: None },
            Hidden::Unopened | Hidden::Locked => FilesystemFate::Unformatted { device, is_kept: true },
        });
    }

    /// Refuses a Kubernetes volume in a group of unknown content.
    pub fn refuse_hidden(&self, volume: &Volume) -> Result<(), persistent::Refused> {
        let group = match &volume.source {
            Source::Logical { group, .. } => Some(group.as_str()),
            Source::Raw(path) => self.layout.encrypted_group(path).map(|group| group.name.as_str()),
            Source::Discover(_) | Source::Sparse { .. } => None,
        };
        match group.filter(|group| self.hidden.contains_key(group)) {
            Some(group) => {
                Err(Some(format!("is in vg:{group}, which is encrypted and was not opened; provide its key")))
            }
            None => Ok(()),
        }
    }
}
