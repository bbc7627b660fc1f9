//! State of the validation: the problems found so far, and the devices that the layout provides and uses.

use crate::device_name::LayoutPath;
use common::diagnostic::Diagnostic;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct LayoutCheck<'a> {
    pub(super) unread: &'a [String],
    pub(super) problems: Vec<Diagnostic>,
    /// Block devices that will exist after the installation.
    pub(super) provided: BTreeMap<LayoutPath, DeviceSource>,
    /// Map from likely incorrect names of partitions to the correct names. A likely incorrect name is one that the
    /// partition would have on another type of disk.
    pub(super) misnamed: BTreeMap<LayoutPath, LayoutPath>,
    /// Block devices that the layout uses, each with the path of the field that refers to the device.
    pub(super) used: BTreeMap<LayoutPath, String>,
}

/// Type of the object in the layout that defines a block device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DeviceSource {
    Disk,
    PartitionedDisk,
    Partition,
    /// Possible partition of a raw image. Whether the image contains this partition is not known.
    ImagePartition,
    Array,
    /// Logical volume.
    Volume,
}

impl LayoutCheck<'_> {
    pub(super) fn report_problem(&mut self, place: &str, message: impl Into<String>) {
        if self.is_readable(place) {
            self.problems.push(Diagnostic::new(place, message));
        }
    }

    /// Returns whether the value at the path `place` could be read.
    pub(super) fn is_readable(&self, place: &str) -> bool {
        !self.unread.iter().any(|unread| is_within(place, unread))
    }

    /// Returns whether all items of the list at the path `place` could be read, and also all fields with the name
    /// `field` below this path.
    pub(super) fn is_list_readable(&self, place: &str, field: &str) -> bool {
        !self.unread.iter().any(|unread| {
            // A path that ends with `[]` is a list that lacks unreadable items.
            let unread = unread.strip_suffix("[]").unwrap_or(unread);
            unread == place || (is_within(unread, place) && unread.ends_with(&format!(".{field}")))
        })
    }

    /// Returns whether the list at the path `place` could be read with everything below it.
    pub(super) fn is_whole_readable(&self, place: &str) -> bool {
        !self
            .unread
            .iter()
            .any(|unread| unread.is_empty() || is_within(unread.strip_suffix("[]").unwrap_or(unread), place))
    }

    /// Returns whether the names of all devices that the layout defines could be read.
    pub(super) fn are_devices_known(&self) -> bool {
        self.is_list_readable("disks", "device")
            && self.is_list_readable("disks", "number")
            && self.is_list_readable("disks", "partitions")
            && self.is_list_readable("raid", "arrayname")
            && self.is_list_readable("logicalvolumes", "name")
            && self.is_list_readable("logicalvolumes", "volumegroup")
    }

    /// Records that `device` is used at the path `place`. Reports a device that is used twice, or that is partitioned.
    pub(super) fn use_device(&mut self, place: &str, device: &LayoutPath) {
        if self.provided.get(device) == Some(&DeviceSource::PartitionedDisk) {
            self.report_problem(place, format!("device:{device} is partitioned: use one of its partitions"));
        } else if let Some(first) = self.used.get(device) {
            let message = format!("device:{device} is already used by {first}");
            self.report_problem(place, message);
        } else if self.is_readable(place) {
            self.used.insert(device.clone(), place.to_owned());
        }
    }

    /// Records that an array or group uses `devices`. For each device that the layout does not define, reports the
    /// message that `not_provided` returns.
    pub(super) fn use_devices(
        &mut self,
        place: &str,
        devices: &[LayoutPath],
        not_provided: impl Fn(&LayoutPath) -> String,
    ) {
        if devices.is_empty() {
            self.report_problem(&format!("{place}.devices"), "no devices are specified");
        }
        for (index, device) in devices.iter().enumerate() {
            let place = format!("{place}.devices[{index}]");
            if self.provided.get(device) == Some(&DeviceSource::ImagePartition) {
                self.report_problem(
                    &place,
                    format!("device:{device} is a partition of the image and can only be mounted"),
                );
            } else if self.provided.contains_key(device) {
                self.use_device(&place, device);
            } else if self.are_devices_known() {
                let message = not_provided(device) + &self.suggest_partition_name(device);
                self.report_problem(&place, message);
            }
        }
    }

    /// Records that `device` will exist after the installation.
    pub(super) fn add_device(&mut self, device: LayoutPath, provider: DeviceSource) {
        self.provided.entry(device).or_insert(provider);
    }

    /// Checks that each item of a list of command arguments is a single word.
    pub(super) fn check_words(&mut self, place: &str, words: &[String]) {
        for word in words {
            if word.is_empty() {
                self.report_problem(place, "a create option is empty");
            } else if word.contains(char::is_whitespace) {
                let message = format!(
                    "the given createoption:\"{word}\" contains whitespace and must be split into separate options"
                );
                self.report_problem(place, message);
            } else if word.contains(char::is_control) {
                self.report_problem(place, format!("the create option {word} contains a control character"));
            }
        }
    }

    /// Returns the text that is appended to a message about a nonexistent partition. The text suggests the correct
    /// name. Returns an empty string if there is no suggestion.
    pub(super) fn suggest_partition_name(&self, device: &LayoutPath) -> String {
        self.misnamed.get(device).map_or(String::new(), |right| format!(", did you mean {right}?"))
    }
}

pub(super) fn is_within(place: &str, outer: &str) -> bool {
    place.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}
