//! Filesystems and swap areas of the layout.

use super::LayoutBuilder;
use crate::content_purposes::MachineContent;
use crate::fstab::{FstabLine, is_subvolume_option};
use crate::layout_device_names::NamedDevice;
use crate::mount_point_purposes::is_mixed_path;
use crate::system_partition_types::name_system_type;
use model::inventory::DeviceUse;
use model::layout::{EncryptionSpec, FilesystemFormat, FilesystemSpec, KeySource, OnReinstall};
use model::storage_graph::StackUnit;

impl LayoutBuilder<'_> {
    /// Adds all mounted filesystems, swap areas and filesystems in memory.
    pub fn add_filesystems(&mut self, memory: &[FstabLine]) {
        let machine = self.machine;
        for content in &machine.contents {
            self.check_signatures(content);
            self.check_lines(content);
            self.check_mounts(content);
            if content.paths().next().is_none() && !content.is_system_swap() {
                continue;
            }
            let named = match machine.name_device(&content.name, &self.disks) {
                Ok(named) => named,
                Err(kind) => {
                    let uses = describe_uses(content);
                    self.prevent(format!("{} ({uses}) is on {kind}, which layouts do not support", content.device));
                    continue;
                }
            };
            if let Some(spec) = self.describe_filesystem(content, &named) {
                self.used.insert(spec.device.clone());
                self.layout.filesystems.push(spec);
            }
        }
        if !self.layout.filesystems.iter().any(|filesystem| filesystem.path.as_deref() == Some("/")) {
            self.prevent(
                "no device is mounted at /: specify the fstab of the installed system with --fstab".to_owned(),
            );
        }
        for line in memory {
            let spec = FilesystemSpec {
                path: Some(line.path.clone()),
                mountoptions: line.options.clone(),
                ..empty_filesystem("tmpfs", FilesystemFormat::Tmpfs)
            };
            self.layout.filesystems.push(spec);
        }
    }

    /// Reports signatures with which a reinstall is not possible.
    fn check_signatures(&mut self, content: &MachineContent) {
        let device = &content.device;
        let kind = content.signature().map(|found| found.kind.as_str()).unwrap_or_default();
        match kind {
            "zfs_member" if content.purpose.data => {
                self.prevent(format!("{device} is part of a ZFS pool, which layouts do not support"));
            }
            "bcache" => self.prevent(format!("{device} is a bcache device that is not running")),
            _ => {}
        }
        if let [first, second, ..] = content.unit.signatures() {
            self.prevent(format!(
                "{device} has several signatures ({}, {}): remove the stale one (wipefs)",
                first.kind, second.kind
            ));
        }
    }

    /// Reports mount points that the layout does not express, or that the operator must consider.
    fn check_mounts(&mut self, content: &MachineContent) {
        let device = &content.device;
        let points: Vec<&str> = content.paths().collect();
        if content.purpose.is_shared() {
            let all: Vec<&str> = content.all_paths().collect();
            self.prevent(format!(
                "{device} contains the system and data in one filesystem ({}): move the data to another filesystem, \
                or back up the data and remove `preserve: true`",
                all.join(", ")
            ));
        } else if points.len() > 1 {
            let others = points[1..].join(", ");
            self.report(format!(
                "{device}: only the mount point {} is in the layout; add fstab lines for {others}",
                points[0]
            ));
        }
        if content.purpose.system && points.contains(&"/") && !content.purpose.is_shared() {
            self.report(format!(
                "{device}: a reinstall replaces all files of /, including directories such as /home, /root, /srv and /var that are not separate filesystems"
            ));
        }
        if let Some(path) = points.iter().find(|path| is_mixed_path(path)) {
            self.report(format!(
                "{path}: contains data and files of the system, such as the package database; a reinstall preserves this filesystem \
                unchanged, so the package database describes the old system, and files of the image below {path} are hidden. \
                `reinstall: merge` would add the files of the image, but it replaces files of the same name, also those of a \
                database"
            ));
        }
        if content.purpose.data && content.unit.uses().iter().any(|usage| matches!(usage, DeviceUse::Mounted(_))) {
            self.report(format!(
                "{device}: in use at {}: stop its services, such as databases, before the reinstall; a journal that is not clean is replayed when the new system mounts it",
                points.join(", ")
            ));
        }
        if content.is_only_running && !points.is_empty() {
            self.report(format!("{device}: mounted at {}, but not listed in fstab", points[0]));
        }
    }

    fn describe_filesystem(&mut self, content: &MachineContent, named: &NamedDevice) -> Option<FilesystemSpec> {
        let format = self.choose_format(content)?;
        let line = choose_line(content);
        let is_data = content.purpose.data;
        let path = line.map(|line| line.path.clone()).filter(|path| path.starts_with('/'));
        let options = line.map(|line| line.options.as_slice()).unwrap_or_default();
        let is_kept_option = |option: &&String| is_data || !is_subvolume_option(option);
        let is_swap = format == FilesystemFormat::Swap;
        if !is_data && line.is_some_and(FstabLine::is_subvolume) {
            self.report(format!("{}: the new filesystem has no subvolumes", content.device));
        }
        let is_group_encrypted = self.is_in_encrypted_group(content);
        if named.is_encrypted && !is_data {
            self.report(format!(
                "{}: the system is encrypted, but layouts support encryption only for data; the new system is not encrypted",
                content.device
            ));
        }
        Some(FilesystemSpec {
            // The image must not replace files of data, so the value is never `merge`.
            reinstall: OnReinstall::Keep,
            path,
            label: content.signature().map(|found| found.label.clone()).filter(|label| !label.is_empty()),
            mountoptions: match is_swap {
                true => options.iter().filter(|option| *option != "sw").cloned().collect(),
                false => options.iter().filter(is_kept_option).cloned().collect(),
            },
            encrypted: (named.is_encrypted && is_data && !is_group_encrypted)
                .then_some(EncryptionSpec { key: KeySource::Prompt }),
            preserve: is_data && !self.is_on_preserved_group(content) && self.is_partly_renewed(&content.name),
            ..empty_filesystem(named.path.as_str(), format)
        })
    }

    /// Returns the format of the filesystem in the layout; `None` if the layout cannot contain it.
    fn choose_format(&mut self, content: &MachineContent) -> Option<FilesystemFormat> {
        if content.is_system_swap() {
            return Some(FilesystemFormat::Swap);
        }
        let (device, uses) = (&content.device, describe_uses(content));
        let found = content.signature().map(|found| found.kind.as_str()).unwrap_or("no filesystem");
        let supported = FilesystemFormat::ALL.into_iter().filter(|format| {
            !matches!(format, FilesystemFormat::None | FilesystemFormat::Tmpfs | FilesystemFormat::Swap)
        });
        if let Some(format) = supported.into_iter().find(|format| format.name() == found) {
            return Some(format);
        }
        if content.purpose.data {
            self.report(format!(
                "{device}: {uses} is {found}, which layouts do not support; the device is preserved, but not mounted"
            ));
            return None;
        }
        self.report(format!("{device}: {uses} is {found}, which layouts do not support; the new filesystem is ext4"));
        Some(FilesystemFormat::Ext4)
    }

    fn is_in_encrypted_group(&self, content: &MachineContent) -> bool {
        let volume = self.machine.volume_of(content);
        volume.is_some_and(|(group, _)| self.is_encrypted_group(group))
    }

    /// Returns whether the group of the volume is preserved as a whole.
    fn is_on_preserved_group(&self, content: &MachineContent) -> bool {
        let volume = self.machine.volume_of(content);
        volume.is_some_and(|(group, _)| self.is_preserved_group(group))
    }
}

/// Returns the line of fstab that the layout expresses: the root filesystem, or else the first mount point, or else the
/// first line.
fn choose_line<'c>(content: &'c MachineContent) -> Option<&'c FstabLine> {
    let find = |is_chosen: fn(&FstabLine) -> bool| content.mounts.iter().find(|line| is_chosen(line));
    find(|line| line.path == "/").or_else(|| find(|line| line.path.starts_with('/'))).or(content.mounts.first())
}

/// Describes the mount points of a device.
fn describe_uses(content: &MachineContent) -> String {
    let paths: Vec<&str> = content.paths().collect();
    match (content.is_system_swap(), paths.is_empty()) {
        (true, _) => "swap".to_owned(),
        (false, true) => "not mounted".to_owned(),
        (false, false) => paths.join(", "),
    }
}

fn empty_filesystem(device: &str, format: FilesystemFormat) -> FilesystemSpec {
    FilesystemSpec {
        path: None,
        device: device.into(),
        format,
        label: None,
        mountoptions: Vec::new(),
        createoptions: Vec::new(),
        reinstall: OnReinstall::Keep,
        grow: false,
        encrypted: None,
        preserve: false,
    }
}

/// Describes a content for the operator: its device, and its mount points or its type.
pub(crate) fn describe_content(content: &MachineContent) -> String {
    let unmounted = || {
        let type_name = match content.unit {
            StackUnit::Partition(partition) => name_system_type(partition),
            _ => None,
        };
        let found = content.signature().map(|found| found.kind.as_str());
        format!("unmounted {}", found.or(type_name).unwrap_or("unknown content"))
    };
    let uses = describe_uses(content);
    let what = if uses == "not mounted" { unmounted() } else { uses };
    format!("{} {what}", content.device)
}
