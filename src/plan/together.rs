//! Devices that operations assemble from existing ones: arrays from their members, volumes from the devices of their group.

use super::{ActivateGroup, AssembleArray, Container};
use crate::device::DevicePath;
use crate::topology::graph::Graph;
use std::collections::BTreeSet;

/// Graph of the devices that operations assemble, and of their members.
#[derive(Default)]
pub struct Together(Graph<DevicePath, ()>);

impl Together {
    pub fn array(&mut self, AssembleArray { device, members, .. }: &AssembleArray) {
        self.put(device.clone(), members);
    }

    pub fn group(&mut self, ActivateGroup { name, devices, volumes }: &ActivateGroup) {
        volumes.iter().for_each(|volume| self.put(format!("/dev/{name}/{volume}").into(), devices));
    }

    pub fn container(&mut self, Container { device, mapping, .. }: &Container) {
        self.put(mapping.clone(), std::slice::from_ref(device));
    }

    fn put(&mut self, upper: DevicePath, devices: &[DevicePath]) {
        let upper = self.node(upper);
        for device in devices {
            let lower = self.node(device.clone());
            self.0.link(lower, upper);
        }
    }

    fn node(&mut self, device: DevicePath) -> usize {
        self.0.find(&device).unwrap_or_else(|| self.0.provide(device, ()))
    }

    /// Returns the underlying devices of these devices. A device that no operation assembles is its own.
    pub fn bottoms(&self, devices: impl IntoIterator<Item = DevicePath>) -> BTreeSet<DevicePath> {
        let mut bottoms = BTreeSet::new();
        for device in devices {
            match self.0.find(&device) {
                Some(node) => {
                    bottoms.extend(self.0.bottoms([node]).into_iter().map(|it| self.0.nodes[it].name.clone()))
                }
                None => drop(bottoms.insert(device)),
            }
        }
        bottoms
    }
}
