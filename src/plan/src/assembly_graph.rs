//! Devices that operations assemble from existing ones: arrays from members, logical volumes from physical volumes.

use model::device_name::DevicePath;
use model::storage_graph::layer_graph::LayerGraph;
use operations::{ActivateGroup, AssembleArray, LuksContainer};
use std::collections::BTreeSet;

/// Graph of the devices that operations assemble, and of their members.
#[derive(Default)]
pub(crate) struct AssembledMembers(LayerGraph<DevicePath, ()>);

impl AssembledMembers {
    pub(crate) fn add_array(&mut self, AssembleArray { device, members, .. }: &AssembleArray) {
        self.link_members(device.clone(), members);
    }

    pub(crate) fn add_group(&mut self, ActivateGroup { name, devices, volumes }: &ActivateGroup) {
        volumes.iter().for_each(|volume| self.link_members(format!("/dev/{name}/{volume}").into(), devices));
    }

    pub(crate) fn add_container(&mut self, LuksContainer { device, mapping, .. }: &LuksContainer) {
        self.link_members(mapping.clone(), std::slice::from_ref(device));
    }

    fn link_members(&mut self, upper: DevicePath, devices: &[DevicePath]) {
        let upper = self.find_or_add(upper);
        for device in devices {
            let lower = self.find_or_add(device.clone());
            self.0.link(lower, upper);
        }
    }

    fn find_or_add(&mut self, device: DevicePath) -> usize {
        self.0.find(&device).unwrap_or_else(|| self.0.add_named(device, ()))
    }

    /// Returns the lowest devices below these devices. If no operation assembles a device, the device itself is
    /// returned.
    pub(crate) fn find_bottoms(&self, devices: impl IntoIterator<Item = DevicePath>) -> BTreeSet<DevicePath> {
        let mut bottoms = BTreeSet::new();
        for device in devices {
            match self.0.find(&device) {
                Some(node) => {
                    bottoms.extend(self.0.find_bottoms([node]).into_iter().map(|it| self.0.nodes[it].name.clone()))
                }
                None => drop(bottoms.insert(device)),
            }
        }
        bottoms
    }
}
