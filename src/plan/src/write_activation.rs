//! Activation of an existing array or logical volume for writing. The device, which was assembled for inspection, is
//! stopped and activated again under its current name. Other volumes of the same volume group are not activated.

use super::preserved_activation::bottom_devices;
use model::device_name::{DevicePath, KernelName};
use model::inventory::{Inventory, LvmLogicalVolume, LvmVolumeGroup, MdArray, MemberRole, StackedDeviceKind};
use model::storage_graph::{DeviceStack, StackUnit};
use operations::{
    ActivateGroup, AssembleArray, DeactivateGroup, DeviceOp, Operation, RestoreOp, StopArray, StopInspectedDevices,
};

/// Operations that activate a device, starting with the lowest device below it; empty for a disk or a partition of a
/// disk.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceActivation(Vec<RestoreOp>);

impl DeviceActivation {
    /// Determines the operations for a device.
    ///
    /// # Errors
    /// Fails if the device is incomplete, or is on top of an unsupported type of device.
    pub(crate) fn for_device(
        stack: &DeviceStack,
        inventory: &Inventory,
        device: &DevicePath,
    ) -> Result<DeviceActivation, String> {
        let mut lift = DeviceActivation::default();
        lift.add_device(stack, inventory, device)?;
        Ok(lift)
    }

    fn add_device(&mut self, stack: &DeviceStack, inventory: &Inventory, device: &DevicePath) -> Result<(), String> {
        let name = stack.kernel_name(device);
        let StackUnit::Stacked(stacked) = stack.find_unit(&name) else { return Ok(()) };
        match stacked.kind {
            StackedDeviceKind::Array => {
                let array = inventory.arrays.iter().find(|array| array.running.as_ref() == Some(&name));
                let array = array.filter(|array| array.metadata.starts_with(|first: char| first.is_ascii_digit()));
                let array =
                    array.ok_or_else(|| format!("{device} is a firmware RAID array, which is not supported"))?;
                let members = present_members(array);
                members.iter().try_for_each(|member| self.add_device(stack, inventory, member))?;
                self.add_once(RestoreOp::AssembleArray(AssembleArray {
                    device: device.clone(),
                    uuid: array.uuid,
                    members,
                }));
                Ok(())
            }
            StackedDeviceKind::Volume => {
                let found = all_volumes(inventory).find(|(_, volume)| volume.running.as_ref() == Some(&name));
                let (group, volume) = found.ok_or_else(|| format!("{device} is not in a volume group"))?;
                let devices: Vec<DevicePath> = group.present_devices().cloned().collect();
                if group.closed.is_some() || devices.len() < group.physical.len() {
                    return Err(format!("volume group {group} of {device} is incomplete", group = group.name));
                }
                devices.iter().try_for_each(|below| self.add_device(stack, inventory, below))?;
                let (name, volumes) = (group.name.clone(), vec![volume.name.clone()]);
                self.add_once(RestoreOp::ActivateGroup(ActivateGroup { name, devices, volumes }));
                Ok(())
            }
            StackedDeviceKind::Crypt | StackedDeviceKind::Bcache | StackedDeviceKind::Other => {
                Err(format!("{device} is neither an array nor a logical volume"))
            }
        }
    }

    /// Adds an operation if it was not added before. Two devices may have a lower device in common, which is activated
    /// only once.
    fn add_once(&mut self, restore: RestoreOp) {
        if !self.0.contains(&restore) {
            self.0.push(restore);
        }
    }

    pub(crate) fn activate(&self) -> Vec<Operation> {
        let devices: Vec<DevicePath> = bottom_devices(&self.0).into_iter().collect();
        let down = (!devices.is_empty())
            .then_some(Operation::Device(DeviceOp::StopInspectedDevices(StopInspectedDevices { devices })));
        down.into_iter().chain(self.0.iter().cloned().map(Operation::from)).collect()
    }

    pub(crate) fn deactivate(&self) -> Vec<Operation> {
        let down = self.0.iter().rev().filter_map(|restore| match restore {
            RestoreOp::AssembleArray(array) => Some(DeviceOp::StopArray(StopArray { device: array.device.clone() })),
            RestoreOp::ActivateGroup(ActivateGroup { name, devices, .. }) => {
                Some(DeviceOp::DeactivateGroup(DeactivateGroup { name: name.clone(), devices: devices.clone() }))
            }
            RestoreOp::OpenContainer(_)
            | RestoreOp::Mount(_)
            | RestoreOp::RemoveVolumes(_)
            | RestoreOp::CreateVolume(_) => None,
        });
        down.map(Operation::Device).collect()
    }
}

/// Finds the device that the operator specified, either by its path, or by the name of an array or volume. Such a
/// name does not depend on kernel names. Returns the path of the device in the inventory, and its path after
/// activation.
pub(crate) fn find_device(inventory: &Inventory, wanted: &DevicePath) -> Option<(DevicePath, DevicePath)> {
    let path = |name: &Option<KernelName>| {
        let running = inventory.stacked.iter().find(|stacked| Some(&stacked.name) == name.as_ref());
        running.map(|stacked| stacked.device.clone())
    };
    let arrays = inventory.arrays.iter().filter_map(|array| {
        let device = path(&array.running)?;
        Some((format!("/dev/md/{}", array.name).into(), device.clone(), device))
    });
    let volumes = all_volumes(inventory).filter_map(|(group, volume)| {
        let started = DevicePath::from(format!("/dev/{}/{}", group.name, volume.name));
        Some((started.clone(), path(&volume.running)?, started))
    });
    let mut all = arrays.chain(volumes);
    let found = all.find(|(name, device, _): &(DevicePath, _, _)| device == wanted || name == wanted);
    found.map(|(_, device, started)| (device, started))
}

fn present_members(array: &MdArray) -> Vec<DevicePath> {
    let there = array.members.iter().filter(|member| member.role != MemberRole::Faulty);
    there.map(|member| member.device.clone()).collect()
}

fn all_volumes(inventory: &Inventory) -> impl Iterator<Item = (&LvmVolumeGroup, &LvmLogicalVolume)> {
    inventory.groups.iter().flat_map(|group| group.volumes.iter().map(move |volume| (group, volume)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Inventory {
        serde_json::from_str(include_str!("../../../testdata/inventories/raid-lvm.json")).unwrap()
    }

    fn lift(inventory: &Inventory, device: &str) -> Result<DeviceActivation, String> {
        DeviceActivation::for_device(&DeviceStack::new(inventory), inventory, &device.into())
    }

    #[test]
    fn activates_volume_on_array_bottom_up_and_deactivates_it() {
        let inventory = machine();
        let lift = lift(&inventory, "/dev/mapper/vg00-root").unwrap();
        let [
            Operation::Device(DeviceOp::StopInspectedDevices(StopInspectedDevices { devices })),
            Operation::Device(DeviceOp::AssembleArray(array)),
            Operation::Device(DeviceOp::ActivateGroup(group)),
        ] = &lift.activate()[..]
        else {
            panic!("{:?}", lift.activate())
        };
        assert_eq!(*devices, ["/dev/sda2", "/dev/sdb2"]);
        assert_eq!((array.device.as_str(), array.uuid), ("/dev/md127", inventory.arrays[1].uuid));
        assert_eq!(array.members, ["/dev/sda2", "/dev/sdb2"]);
        assert_eq!((group.name.as_str(), &group.volumes[..]), ("vg00", &["root".to_owned()][..]));
        let [
            Operation::Device(DeviceOp::DeactivateGroup(DeactivateGroup { name, .. })),
            Operation::Device(DeviceOp::StopArray(StopArray { device })),
        ] = &lift.deactivate()[..]
        else {
            panic!("{:?}", lift.deactivate())
        };
        assert_eq!((name.as_str(), device.as_str()), ("vg00", "/dev/md127"));
    }

    #[test]
    fn partition_needs_no_activation_and_unsupported_stacks_are_refused() {
        let mut inventory = machine();
        assert_eq!(lift(&inventory, "/dev/sda1").unwrap(), DeviceActivation::default());
        assert_eq!(
            (lift(&inventory, "/dev/sda1").unwrap().activate(), DeviceActivation::default().deactivate()),
            (vec![], vec![])
        );
        inventory.arrays[1].members[1].role = MemberRole::Faulty;
        let Some(Operation::Device(DeviceOp::AssembleArray(array))) =
            lift(&inventory, "/dev/md127").unwrap().activate().pop()
        else {
            panic!("no array")
        };
        assert_eq!(array.members, ["/dev/sda2"]);
        inventory.groups[0].physical[0].device = None;
        assert!(
            lift(&inventory, "/dev/mapper/vg00-root")
                .unwrap_err()
                .contains("vg00 of /dev/mapper/vg00-root is incomplete")
        );
        inventory.arrays[1].metadata = "imsm".into();
        assert!(lift(&inventory, "/dev/md127").unwrap_err().contains("is a firmware RAID array"));
        inventory.stacked[0].kind = StackedDeviceKind::Crypt;
        assert!(lift(&inventory, "/dev/mapper/vg00-root").unwrap_err().contains("neither an array nor"));
    }

    #[test]
    fn finds_arrays_and_volumes_by_persistent_names() {
        let inventory = machine();
        for (wanted, there, started) in [
            ("/dev/md/efi", "/dev/md126", "/dev/md126"),
            ("/dev/md126", "/dev/md126", "/dev/md126"),
            ("/dev/vg00/root", "/dev/mapper/vg00-root", "/dev/vg00/root"),
            ("/dev/mapper/vg00-root", "/dev/mapper/vg00-root", "/dev/vg00/root"),
        ] {
            assert_eq!(find_device(&inventory, &wanted.into()), Some((there.into(), started.into())), "{wanted}");
        }
        for wanted in ["/dev/md/", "/dev/md9", "/dev/vg00/other", "/dev/sda1"] {
            assert_eq!(find_device(&inventory, &wanted.into()), None, "{wanted}");
        }
    }
}
