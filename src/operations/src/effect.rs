//! Effect of an operation: the devices that it opens and writes, and how the operation is undone.

use crate::operation_text::{DeviceSizes, OperationLine};
use crate::{ClearRanges, CloseContainer, DeactivateGroup, StopArray};
use model::device_name::DevicePath;

/// Methods of an operation. Each type of operation implements them in the file that defines the type, and the enums of
/// operations delegate to these implementations.
pub trait PlannedOperation {
    /// Returns the text of the operation in the printed plan.
    fn describe(&self, sizes: &DeviceSizes) -> OperationLine<'_>;

    fn effect(&self) -> Effect<'_>;
}

/// Effect of an operation: the devices that it opens and writes, and how the operation is undone.
#[derive(Debug, PartialEq, Eq)]
pub struct Effect<'a> {
    /// Devices that a tool or the kernel opens by path. Device names can change, so immediately before the operation
    /// the executor verifies that each path still leads to a disk of the plan. An operation that opens a disk itself
    /// verifies the open descriptor, and does not list the disk here.
    pub opened: Vec<&'a DevicePath>,
    /// Devices that may be written from this operation on, by this operation and by all later ones. Devices on
    /// recreated disks are omitted, because recreated disks may be written completely.
    pub written: Vec<DevicePath>,
    /// Undo operations, executed in reverse order. The executor records them before the operation, because a partially
    /// executed operation must also be undone.
    pub undo: Vec<UndoOperation>,
}

impl<'a> Effect<'a> {
    /// Returns the effect of an operation that opens no device by path, writes no preserved device, and need not be
    /// undone.
    pub(crate) fn none() -> Effect<'a> {
        Effect { opened: Vec::new(), written: Vec::new(), undo: Vec::new() }
    }

    pub(crate) fn opening(devices: impl IntoIterator<Item = &'a DevicePath>) -> Effect<'a> {
        Effect { opened: devices.into_iter().collect(), ..Effect::none() }
    }

    pub(crate) fn writing(self, devices: impl IntoIterator<Item = DevicePath>) -> Effect<'a> {
        Effect { written: devices.into_iter().collect(), ..self }
    }

    pub(crate) fn undone_by(self, undo: impl IntoIterator<Item = UndoOperation>) -> Effect<'a> {
        Effect { undo: undo.into_iter().collect(), ..self }
    }
}

/// Action that undoes an operation of a session. A session executes one plan, or several plans in succession.
/// `WipeUnfinishedDisk`, `WipeBootCode`, `Clearing` and `WipeDeviceEnds` are performed only after failures that leave
/// the system incomplete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UndoOperation {
    /// Makes all disks that the session has locked writable again.
    Unlock,
    /// Wipes both ends of a disk whose wipe has not completed, so that the disk is not mistaken for an unchanged disk.
    WipeUnfinishedDisk(DevicePath),
    /// Wipes the boot code in the first sector of a disk, and preserves the partition table. Once all wipes have
    /// completed, this action replaces `WipeUnfinishedDisk`, and also `Clearing` of a disk whose boot code was cleared.
    WipeBootCode(DevicePath),
    /// Zeroes the boot areas of removed partitions, if the clearing of their disk has not completed. Everything else on
    /// the disk stays unchanged, because it contains preserved partitions.
    Clearing(Box<ClearRanges>),
    /// Wipes both ends of a device to which this session has written a filesystem or a raw image.
    WipeDeviceEnds(DevicePath),
    /// Stops an array that the session has started.
    StopArray(StopArray),
    /// Deactivates a volume group that the session has activated.
    DeactivateGroup(DeactivateGroup),
    /// Closes a container that the session has opened.
    CloseContainer(CloseContainer),
    /// Unmounts all mounts of the session.
    Unmount,
    /// Terminates processes that were started by programs of the image and are still running.
    EndProcesses,
    UnloadKernel,
}

/// Defines an enum of operations. A variant with data delegates to its data. A variant without data delegates to the
/// unit type with the name of the variant.
macro_rules! operations {
    ($(#[$attribute:meta])* $name:ident { $($(#[$rename:meta])* $variant:ident($data:ty),)* } $({ $($(#[$unit_rename:meta])* $unit:ident,)* })?) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, PartialEq, Eq, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name {
            $($(#[$rename])* $variant($data),)*
            $($($(#[$unit_rename])* $unit,)*)?
        }

        impl PlannedOperation for $name {
            fn describe(&self, sizes: &DeviceSizes) -> OperationLine<'_> {
                match self {
                    $($name::$variant(operation) => operation.describe(sizes),)*
                    $($($name::$unit => $unit.describe(sizes),)*)?
                }
            }

            fn effect(&self) -> Effect<'_> {
                match self {
                    $($name::$variant(operation) => operation.effect(),)*
                    $($($name::$unit => $unit.effect(),)*)?
                }
            }
        }
    };
}

pub(crate) use operations;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LuksContainer, MakeFilesystem, MountFilesystem, MountReadOnly, OpenContainer};
    use model::layout::{FilesystemFormat, KeySource};
    use model::secret_text::SecretText;
    use uuid::Uuid;

    fn mount(format: FilesystemFormat, options: &[&str]) -> MountFilesystem {
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        MountFilesystem {
            device: "/dev/sda1".into(),
            path: "/".into(),
            format,
            options,
            others: vec!["/dev/sdb".into()],
        }
    }

    fn paths(effect: &Effect) -> (Vec<String>, Vec<String>) {
        let opened = effect.opened.iter().map(|device| device.to_string()).collect();
        (opened, effect.written.iter().map(DevicePath::to_string).collect())
    }

    #[test]
    fn mount_writes_its_devices_unless_read_only() {
        let both = ["/dev/sda1", "/dev/sdb"].map(str::to_owned).to_vec();
        let writable = mount(FilesystemFormat::Xfs, &["logdev=/dev/sdc1"]);
        let written = ["/dev/sda1", "/dev/sdc1", "/dev/sdb"].map(str::to_owned).to_vec();
        assert_eq!(paths(&writable.effect()), (both.clone(), written));
        let read_only = mount(FilesystemFormat::Ext4, &["rw,noatime", "ro"]);
        assert_eq!(paths(&read_only.effect()), (both, vec![]));
        assert_eq!(paths(&mount(FilesystemFormat::Tmpfs, &["ro"]).effect()), (vec![], vec![]));
        let unchanged = MountReadOnly(mount(FilesystemFormat::Ext4, &[]));
        assert_eq!(paths(&unchanged.effect()), (vec![], vec![]));
        for effect in [writable.effect(), unchanged.effect()] {
            assert_eq!(effect.undo, [UndoOperation::Unmount]);
        }
    }

    #[test]
    fn only_a_filesystem_that_is_created_is_undone() {
        let make = |format| MakeFilesystem {
            device: "/dev/sda1".into(),
            format,
            label: None,
            uuid: String::new(),
            createoptions: vec![],
        };
        assert_eq!(make(FilesystemFormat::Ext4).effect().undo, [UndoOperation::WipeDeviceEnds("/dev/sda1".into())]);
        assert_eq!(make(FilesystemFormat::None).effect().undo, []);
    }

    #[test]
    fn read_only_container_is_closed_but_not_written() {
        let container =
            LuksContainer::new("/dev/sda1".into(), Uuid::nil(), 512, KeySource::Server, SecretText::default());
        for (read_only, written) in [(true, vec![]), (false, vec!["/dev/sda1".to_owned()])] {
            let open = OpenContainer { container: container.clone(), read_only };
            assert_eq!(paths(&open.effect()), (vec!["/dev/sda1".to_owned()], written));
            assert!(matches!(open.effect().undo[..], [UndoOperation::CloseContainer(_)]));
        }
    }
}
