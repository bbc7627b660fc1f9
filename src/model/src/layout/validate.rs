//! Validation of layouts, independent of a machine.
//!
//! metal-api's rules are reported with metal-api's messages, because users and scripts know them. metal-api accepts many layouts that fail
//! in the middle of an installation; the other rules reject these.

mod disks;
mod encrypted;
mod filesystems;
mod lvm;
mod raid;
mod raw_image;
mod reinstall;
mod sizes;

pub use sizes::{MIN_BTRFS_MIB, MIN_XFS_MIB};

use super::{Layout, constraints};
use crate::device::LayoutPath;
use common::diagnostic::Diagnostic;
use std::collections::BTreeMap;

/// Returns all violated rules; empty if the layout is valid.
pub fn validate_layout(layout: &Layout) -> Vec<Diagnostic> {
    validate_except(layout, &[])
}

/// Validates a layout that could not be parsed completely: rules that depend on a path in `unread` are skipped.
pub(super) fn validate_except(layout: &Layout, unread: &[String]) -> Vec<Diagnostic> {
    let mut check = LayoutCheck { unread, ..LayoutCheck::default() };
    if layout.id.is_empty() {
        check.report_problem("id", "id should not be empty");
    }
    disks::check_disks(&mut check, &layout.disks);
    raid::check_arrays(&mut check, layout);
    lvm::check_lvm(&mut check, layout);
    filesystems::check_filesystems(&mut check, &layout.filesystems);
    encrypted::check_encryption(&mut check, layout);
    reinstall::check_reinstall_policies(&mut check, layout);
    raw_image::check_raw_image(&mut check, layout);
    sizes::check_device_sizes(&mut check, layout);
    check_constraints(&mut check, layout);
    check.problems
}

#[derive(Default)]
struct LayoutCheck<'a> {
    unread: &'a [String],
    problems: Vec<Diagnostic>,
    /// Block devices that will exist.
    provided: BTreeMap<LayoutPath, DeviceSource>,
    /// Correct names of partitions by the names that other types of disks would give them.
    misnamed: BTreeMap<LayoutPath, LayoutPath>,
    /// Block devices that are in use, each with the path of its user.
    used: BTreeMap<LayoutPath, String>,
}

/// Source of a block device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeviceSource {
    Disk,
    PartitionedDisk,
    Partition,
    /// Partition of a raw image, if the image contains it.
    ImagePartition,
    Array,
    /// Logical volume.
    Volume,
}

impl LayoutCheck<'_> {
    fn report_problem(&mut self, place: &str, message: impl Into<String>) {
        if self.is_readable(place) {
            self.problems.push(Diagnostic::new(place, message));
        }
    }

    /// Returns whether the value at `place` could be read.
    fn is_readable(&self, place: &str) -> bool {
        !self.unread.iter().any(|unread| is_within(place, unread))
    }

    /// Returns whether every item of the list `place`, and every field of that name below it, could be read.
    fn is_list_readable(&self, place: &str, field: &str) -> bool {
        !self.unread.iter().any(|unread| {
            // `[]` marks a list in which an item is missing.
            let unread = unread.strip_suffix("[]").unwrap_or(unread);
            unread == place || (is_within(unread, place) && unread.ends_with(&format!(".{field}")))
        })
    }

    /// Returns whether the whole list `place` could be read.
    fn is_whole_readable(&self, place: &str) -> bool {
        !self
            .unread
            .iter()
            .any(|unread| unread.is_empty() || is_within(unread.strip_suffix("[]").unwrap_or(unread), place))
    }

    /// Returns whether the names of all devices that the layout provides are known.
    fn are_devices_known(&self) -> bool {
        self.is_list_readable("disks", "device")
            && self.is_list_readable("disks", "number")
            && self.is_list_readable("disks", "partitions")
            && self.is_list_readable("raid", "arrayname")
            && self.is_list_readable("logicalvolumes", "name")
            && self.is_list_readable("logicalvolumes", "volumegroup")
    }

    /// Records that `device` is used at `place`. A device can be used only once, and not if it is partitioned.
    fn use_device(&mut self, place: &str, device: &LayoutPath) {
        if self.provided.get(device) == Some(&DeviceSource::PartitionedDisk) {
            self.report_problem(place, format!("device:{device} is partitioned: use one of its partitions"));
        } else if let Some(first) = self.used.get(device) {
            let message = format!("device:{device} is already used by {first}");
            self.report_problem(place, message);
        } else if self.is_readable(place) {
            self.used.insert(device.clone(), place.to_owned());
        }
    }

    /// Records the use of all `devices` of an array or group; `not_provided` returns the message for a device that does not exist.
    fn use_devices(&mut self, place: &str, devices: &[LayoutPath], not_provided: impl Fn(&LayoutPath) -> String) {
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

    /// Records that `device` will exist.
    fn add_device(&mut self, device: LayoutPath, provider: DeviceSource) {
        self.provided.entry(device).or_insert(provider);
    }

    /// Checks arguments of a command: one word per item.
    fn check_words(&mut self, place: &str, words: &[String]) {
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

    /// Returns the correct name of a nonexistent partition as the end of a message.
    fn suggest_partition_name(&self, device: &LayoutPath) -> String {
        self.misnamed.get(device).map_or(String::new(), |right| format!(", did you mean {right}?"))
    }
}

fn is_within(place: &str, outer: &str) -> bool {
    place.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Returns whether this is the full, normalized path of a device node.
fn is_device_path(device: &str) -> bool {
    device.strip_prefix("/dev/").is_some_and(|name| name.split('/').all(|part| !matches!(part, "" | "." | "..")))
        && !device.contains(|c: char| c.is_whitespace() || c.is_control())
}

fn check_constraints(check: &mut LayoutCheck, layout: &Layout) {
    let constraints = &layout.constraints;
    for (index, size) in constraints.sizes.iter().enumerate() {
        let place = format!("constraints.sizes[{index}]");
        if size.contains('*') {
            check.report_problem(&place, "no wildcard allowed in size constraint");
        } else if size.trim().is_empty() {
            check.report_problem(&place, "a size should not be empty");
        } else if constraints.sizes[..index].contains(size) {
            check.report_problem(&place, format!("size {size} is configured more than once"));
        }
    }
    for (os, constraint) in &constraints.images {
        let place = format!("constraints.images.{os}");
        if os == "*" {
            check.report_problem(&place, "just '*' is not allowed as image os constraint");
        } else if os.trim().is_empty() {
            check.report_problem("constraints.images", "the os of an image constraint should not be empty");
        }
        if let Some(message) = constraints::find_syntax_error(constraint) {
            check.report_problem(&place, message);
        }
    }
}
