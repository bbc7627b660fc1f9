//! Volumes of their own in a group of the layout, made or kept.

use super::super::capacity::{self, EXTENT_BYTES, NoRoom};
use super::super::devices::{Fate, Size as Known};
use super::super::sectors::MIB;
use super::super::verdict::{Deciding, GroupFate};
use super::super::{CreateVolume, Filling, Persistent, PersistentVerdict, PreparePersistent, display, mapping_path};
use super::{Decision, Refused, group_space, is_lost, on_kept, persistent};
use crate::device::{DevicePath, KernelName, LayoutPath};
use crate::inventory::{self, Health};
use crate::layout::{LvmType, Size};
use crate::marker::Making;
use crate::order::Gather;
use crate::text;
use crate::volume::{Content, Volume};
use std::collections::BTreeSet;

impl<'a> Deciding<'a> {
    pub(super) fn decide_logical(
        &mut self,
        volume: &Volume,
        group: &str,
        size_bytes: u64,
    ) -> Result<Decision, Refused> {
        let layout = self.layout;
        if layout.logicalvolumes.iter().any(|listed| listed.volumegroup == group && listed.name == volume.name) {
            return Err(Some(format!(
                "is called like a volume that the layout has in vg:{group}: name it as rawBlockDevice"
            )));
        }
        let Some(listed) = layout.volumegroups.iter().find(|listed| listed.name == group) else {
            return Err(Some(format!("is to be in vg:{group}, which is no group of the layout")));
        };
        // A group that is missing here was refused.
        let Some(found) = self.groups.get(group) else { return Err(None) };
        let (fate, kept) = (found.fate, found.kept);
        if is_lost(self.request.mode, fate) {
            let why = "which a reinstall wipes: say wipeonreinstall: false for its disks";
            return Err(Some(format!("is to be in vg:{group}, {why}")));
        }
        let mib = size_bytes.div_ceil(MIB);
        let create = CreateVolume {
            name: volume.name.clone(),
            group: group.to_owned(),
            device: format!("/dev/{group}/{}", volume.name).into(),
            physical: found.physical.clone(),
            size: Size::from(mib),
            kind: LvmType::Linear,
        };
        if fate != Fate::Kept {
            self.warn_of_wipes(volume, &listed.devices);
        }
        let same_name = kept.and_then(|kept| kept.volumes.iter().find(|found| found.name == volume.name));
        if let Some(decision) = self.keep_renamed(volume, &create.device, same_name)? {
            return Ok(decision);
        }
        match (kept, same_name) {
            (None, _) => self.make_logical(volume, create, mib, &listed.devices),
            (Some(kept), Some(found)) => self.keep_logical(volume, create, kept, found, size_bytes, &listed.devices),
            (Some(kept), None) => self.add_logical(volume, create, kept, size_bytes, &listed.devices),
        }
    }

    /// Keeps the volume where it is found: by its UUID, or by the recorded LVM UUID of a `Block` volume. The logical volume may have been
    /// renamed since. A volume that has its name is left to the caller, as is the refusal of another one with that name.
    fn keep_renamed(
        &mut self,
        volume: &Volume,
        named: &DevicePath,
        same_name: Option<&inventory::LogicalVolume>,
    ) -> Result<Option<Decision>, Refused> {
        if volume.content == Content::Block {
            return self.keep_recorded(volume, named, same_name);
        }
        let Some((device, unit)) = self.found(volume)?.filter(|_| same_name.is_none()) else { return Ok(None) };
        self.warn(format!("volume {} names {named}, and is kept on {device}, which has its UUID", volume.name));
        Ok(Some(self.keep_raw(volume, None, device, unit)))
    }

    fn keep_recorded(
        &mut self,
        volume: &Volume,
        named: &DevicePath,
        same_name: Option<&inventory::LogicalVolume>,
    ) -> Result<Option<Decision>, Refused> {
        let recorded = self.record_of(volume).and_then(|record| self.recorded_logical(record));
        let stays = |group: &inventory::VolumeGroup| !group.devices().any(|device| self.is_erased(device));
        let Some((group, found)) = recorded.filter(|(group, _)| stays(group)) else { return Ok(None) };
        if same_name.is_some_and(|same_name| same_name.uuid == found.uuid) {
            return Ok(None);
        }
        let device = DevicePath::from(format!("/dev/{}/{}", group.name, found.name));
        if found.health == Health::Lost {
            return Err(Some(format!(
                "cannot be kept on {device}, which was {named}: not all of its data are there; put the missing disk back"
            )));
        }
        self.warn(format!(
            "volume {} names {named}, and is kept on {device}, which has the recorded LVM UUID",
            volume.name
        ));
        Ok(Some(Decision {
            device,
            disks: group.devices().flat_map(|device| self.disks_below(device)).gather(),
            verdict: PersistentVerdict::Keep,
            size: Known::Known(found.size_bytes),
            sector_bytes: 512,
            prepare: None,
            persistent: Persistent::Known(mapping_path(&group.uuid, &found.uuid)),
        }))
    }

    fn make_logical(
        &mut self,
        volume: &Volume,
        create: CreateVolume,
        mib: u64,
        on: &[LayoutPath],
    ) -> Result<Decision, Refused> {
        let Some(group) = self.groups.get_mut(create.group.as_str()) else { return Err(None) };
        let sector_bytes = group.sector_bytes;
        let room = group.free.as_mut().map(|free| capacity::allocate(LvmType::Linear, Size::from(mib), free));
        let size_bytes = match room.transpose() {
            Ok(known) => known.unwrap_or(mib.saturating_mul(MIB).next_multiple_of(EXTENT_BYTES)),
            Err(NoRoom { required_mib, existing_mib }) => {
                let why = format!("needs {required_mib} MiB in vg:{}, which has {existing_mib} MiB left", create.group);
                return Err(Some(why));
            }
        };
        let disks = self.disks_meant(on);
        Ok(self.created(volume, create, size_bytes, sector_bytes, disks, PersistentVerdict::Make))
    }

    /// The only write that a kept disk gets: new extents, and LVM's record of them.
    fn add_logical(
        &mut self,
        volume: &Volume,
        create: CreateVolume,
        kept: &'a inventory::VolumeGroup,
        size_bytes: u64,
        on: &[LayoutPath],
    ) -> Result<Decision, Refused> {
        let group = &create.group;
        if kept.physical.iter().any(|physical| physical.device.is_none()) {
            return Err(Some(format!(
                "is new in vg:{group}, which is kept without a physical volume: nothing is added to it"
            )));
        }
        let disks: BTreeSet<KernelName> = kept.devices().flat_map(|device| self.disks_below(device)).gather();
        let mut beneath = self.inventory.disks.iter().filter(|disk| disks.contains(&disk.name));
        if let Some(disk) = beneath.find(|disk| disk.read_only) {
            return Err(Some(format!("is new in vg:{group}, and {} is read-only: it cannot be written", disk.device)));
        }
        let extent = kept.extent_bytes.max(1);
        let size_bytes = size_bytes.div_ceil(MIB).saturating_mul(MIB).div_ceil(extent).saturating_mul(extent);
        let added = self.added.entry(group.clone()).or_default();
        if let Some(why) = group_space::obstacle(kept, size_bytes, added) {
            return Err(Some(why));
        }
        added.push(size_bytes);
        self.extend(&kept.uuid, volume, &create, on);
        let sector_bytes = self.groups.get(create.group.as_str()).map_or(512, |group| group.sector_bytes);
        Ok(self.created(volume, create, size_bytes, sector_bytes, disks, PersistentVerdict::Extend))
    }

    /// What the next attempt must know when this one is cut off.
    fn extend(&mut self, group: &str, volume: &Volume, create: &CreateVolume, on: &[LayoutPath]) {
        self.decided.persistent.extended.insert(create.group.clone());
        if let Content::Filesystem { .. } = volume.content {
            let making = Making::filesystem(format!("volume {group} {}", volume.name), volume.uid.to_string());
            self.decided.filling.extend(on.first().map(|first| (first.clone(), making)));
        }
    }

    fn created(
        &mut self,
        volume: &Volume,
        create: CreateVolume,
        size_bytes: u64,
        sector_bytes: u32,
        disks: BTreeSet<KernelName>,
        verdict: PersistentVerdict,
    ) -> Decision {
        let device = create.device.clone();
        let persistent = match volume.content {
            Content::Filesystem { .. } => persistent(volume),
            Content::Block => Persistent::Made(create.clone()),
        };
        let filling = self.filling(volume, &device, true);
        let prepare = self.prepare_logical(volume, &device, Some(create), filling);
        Decision {
            device,
            disks,
            verdict,
            size: Known::Known(size_bytes),
            sector_bytes,
            prepare: Some(prepare),
            persistent,
        }
    }

    fn prepare_logical(
        &self,
        volume: &Volume,
        device: &DevicePath,
        create: Option<CreateVolume>,
        filling: Filling,
    ) -> PreparePersistent {
        let (name, uid, device) = (volume.name.clone(), volume.uid, device.clone());
        PreparePersistent { name, uid, device, create, must_be_blank: false, filling }
    }

    /// A volume of that name is in the kept group: it is the one that is meant, or the plan is refused.
    fn keep_logical(
        &mut self,
        volume: &Volume,
        create: CreateVolume,
        kept: &'a inventory::VolumeGroup,
        found: &'a inventory::LogicalVolume,
        size_bytes: u64,
        on: &[LayoutPath],
    ) -> Result<Decision, Refused> {
        let device = create.device.clone();
        let refuse = |why: String| Err(Some(format!("is to be {device}, {why}")));
        if found.health == Health::Lost {
            return refuse("and not all of its data are there".to_owned());
        }
        if found.size_bytes < size_bytes {
            let (is, wanted) = (text::bytes(found.size_bytes), text::bytes(size_bytes));
            return refuse(format!("which is there with {is} and not {wanted}"));
        }
        let running = found.running.as_ref().and_then(|name| self.stack.stacked(name));
        let disks = kept.devices().flat_map(|device| self.disks_below(device)).collect();
        let sector_bytes = self.groups.get(create.group.as_str()).map_or(512, |group| group.sector_bytes);
        let is = Decision {
            device: device.clone(),
            disks,
            verdict: PersistentVerdict::Keep,
            size: Known::Known(found.size_bytes),
            sector_bytes,
            prepare: None,
            persistent: persistent(volume),
        };
        if volume.content == Content::Block {
            if let Some(other) = running.and_then(|running| self.whose_filesystem(&running.signatures)) {
                return refuse(format!("on which the filesystem of volume {other} is"));
            }
            return Ok(Decision { persistent: Persistent::Known(mapping_path(&kept.uuid, &found.uuid)), ..is });
        }
        let elsewhere = self.found(volume)?;
        let Some(running) = running else {
            return refuse("which is not active, so that nothing is known of what is on it".to_owned());
        };
        match elsewhere {
            Some((carrier, _)) if *carrier == running.device => return Ok(is),
            Some((carrier, _)) => return refuse(format!("and its UUID is on {carrier}")),
            None => {}
        }
        let content = on_kept(&running.device, &running.signatures, found.size_bytes);
        let cut_off = self.was_cut_off(&content).is_some_and(|uuid| uuid == volume.uid.to_string());
        if !running.blank && !cut_off {
            let there: Vec<String> = running.signatures.iter().map(display::signature).collect();
            let there = if there.is_empty() { display::nothing_known(false).to_owned() } else { there.join(" and ") };
            return refuse(format!("which does not have its UUID: there is {there}"));
        }
        if let Some(how) = &found.entangled {
            return refuse(format!("which {how}: end that in the installed system"));
        }
        if !cut_off {
            self.require_zeros(&running.device, found.size_bytes);
        }
        // What the attempt before this one has made and not filled.
        self.extend(&kept.uuid, volume, &create, on);
        self.activate(&create);
        let filling = self.filling(volume, &device, true);
        let prepare = self.prepare_logical(volume, &device, None, filling);
        Ok(Decision { verdict: PersistentVerdict::Extend, prepare: Some(prepare), ..is })
    }

    fn activate(&mut self, create: &CreateVolume) {
        for fate in &mut self.decided.groups {
            if let GroupFate::Kept { name, volumes, .. } = fate
                && *name == create.group
            {
                volumes.push(create.name.clone());
            }
        }
    }
}
