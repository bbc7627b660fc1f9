//! Lines of an fstab, and the devices that these lines mount.

use crate::discovery_notes::DiscoveryNote;
use model::device_name::KernelName;
use model::inventory::Inventory;
use model::storage_graph::{DeviceStack, all_units, device_references};
use std::collections::{BTreeMap, BTreeSet};

/// Filesystem types that the kernel provides without a device.
const VIRTUAL: [&str; 14] = [
    "proc",
    "sysfs",
    "devpts",
    "devtmpfs",
    "cgroup",
    "cgroup2",
    "securityfs",
    "debugfs",
    "tracefs",
    "configfs",
    "efivarfs",
    "hugetlbfs",
    "mqueue",
    "binfmt_misc",
];
/// Filesystem types whose files are on another machine.
const REMOTE: [&str; 8] = ["nfs", "nfs4", "cifs", "smb3", "ceph", "glusterfs", "9p", "fuse.sshfs"];

/// Line of an fstab.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FstabLine {
    pub source: String,
    /// Mount point; `none` for a swap area.
    pub path: String,
    pub format: String,
    pub options: Vec<String>,
}

impl FstabLine {
    pub fn has_option(&self, name: &str) -> bool {
        self.options.iter().any(|option| option == name)
    }

    /// Returns whether the line mounts a subvolume of a btrfs filesystem.
    pub fn is_subvolume(&self) -> bool {
        self.options.iter().any(|option| is_subvolume_option(option))
    }

    pub fn is_swap(&self) -> bool {
        self.format == "swap"
    }
}

pub(crate) fn is_subvolume_option(option: &str) -> bool {
    option.starts_with("subvol=") || option.starts_with("subvolid=")
}

/// Parses the lines of an fstab. Comments, and lines with fewer than three fields, are skipped.
pub(crate) fn parse_fstab(text: &str) -> Vec<FstabLine> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let fields = lines.filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().map(decode_field);
        let (source, path, format) = (fields.next()?, fields.next()?, fields.next()?);
        let options = fields.next().unwrap_or_default();
        let options = options.split(',').filter(|option| !option.is_empty() && *option != "defaults");
        let options = options.map(str::to_owned).collect();
        let path = if path.len() > 1 { path.trim_end_matches('/').to_owned() } else { path };
        Some(FstabLine { source, path, format, options })
    });
    fields.collect()
}

/// Decodes the octal escapes of getmntent(3), such as `\040` for a blank.
fn decode_field(field: &str) -> String {
    let mut pieces = field.split('\\');
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        match piece.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(u8::is_ascii) {
            Some(byte) => {
                plain.push(char::from(byte));
                plain += &piece[3..];
            }
            None => {
                plain.push('\\');
                plain += piece;
            }
        }
    }
    plain
}

/// Lines of an fstab, grouped by the device that they mount.
#[derive(Debug, Default)]
pub(crate) struct MountTable {
    lines: BTreeMap<KernelName, Vec<FstabLine>>,
    /// Lines that mount filesystems in memory, which have no device.
    pub memory: Vec<FstabLine>,
}

impl MountTable {
    /// Finds the device of each line, and adds a note for each line that a layout cannot express.
    pub fn from_fstab(
        lines: Vec<FstabLine>,
        inventory: &Inventory,
        stack: &DeviceStack,
        notes: &mut Vec<DiscoveryNote>,
    ) -> MountTable {
        let mut table = MountTable::default();
        let mut points = BTreeSet::new();
        for line in lines {
            if VIRTUAL.contains(&line.format.as_str()) {
                continue;
            }
            if line.path.starts_with('/') && !points.insert(line.path.clone()) {
                notes.push(DiscoveryNote::obstacle(format!(
                    "fstab mounts several filesystems at {}: remove all lines but one",
                    line.path
                )));
                continue;
            }
            match find_device(&line, inventory, stack) {
                Ok(Some(device)) => table.lines.entry(device).or_default().push(line),
                Ok(None) if line.format == "tmpfs" => table.memory.push(line),
                Ok(None) => notes.push(describe_unexpressed(&line)),
                Err(note) => notes.push(note),
            }
        }
        table
    }

    /// Returns the lines that mount this device.
    pub fn lines_of(&self, device: &KernelName) -> &[FstabLine] {
        self.lines.get(device).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns whether a line mounts a filesystem at this path.
    pub fn has_path(&self, path: &str) -> bool {
        self.lines.values().flatten().any(|line| line.path == path)
    }
}

/// Returns the device of a line; `None` if the line does not name a device.
fn find_device(
    line: &FstabLine,
    inventory: &Inventory,
    stack: &DeviceStack,
) -> Result<Option<KernelName>, DiscoveryNote> {
    let Some(wanted) = device_references::device_name(&line.source) else { return Ok(None) };
    let matching =
        all_units(inventory).filter(|(device, unit)| device_references::has_name(stack, device, *unit, &wanted));
    let mut found: Vec<KernelName> = matching.map(|(device, _)| stack.kernel_name(device)).collect();
    // If the devices are a mirror and its members, only the mirror is used: the filesystem on the mirror may also be
    // visible on the members.
    let all = found.clone();
    found.retain(|name| !stack.holders(name).iter().any(|upper| all.contains(upper)));
    let (source, path) = (&line.source, &line.path);
    match found.as_slice() {
        [one] => Ok(Some(one.clone())),
        [] if line.has_option("nofail") || line.has_option("noauto") => Err(DiscoveryNote::report(format!(
            "fstab mounts {source} at {path}, but no device has this name; the line has the option nofail or noauto, \
            so the layout omits it"
        ))),
        [] => Err(DiscoveryNote::obstacle(format!(
            "fstab mounts {source} at {path}, but no device has this name: connect the disk, unlock the container, or remove the line"
        ))),
        several => Err(DiscoveryNote::obstacle(format!(
            "fstab mounts {source} at {path}, but several devices have this name: {}; use a name that only one device has",
            several.join(", ")
        ))),
    }
}

/// Describes a line that does not mount a block device.
fn describe_unexpressed(line: &FstabLine) -> DiscoveryNote {
    let FstabLine { source, path, format, .. } = line;
    let what = match format.as_str() {
        "zfs" => {
            return DiscoveryNote::obstacle(format!(
                "fstab mounts the ZFS dataset {source} at {path}: layouts do not support ZFS"
            ));
        }
        _ if line.has_option("bind") || line.has_option("rbind") => "a bind mount",
        _ if line.has_option("loop") || line.options.iter().any(|option| option.starts_with("loop=")) => "a loop file",
        "overlay" => "an overlay mount",
        "swap" => "a swap file",
        _ if REMOTE.contains(&format.as_str()) => "a network filesystem",
        _ if source.starts_with('/') => "a file",
        _ => "a filesystem without a device",
    };
    DiscoveryNote::report(format!(
        "{path}: {what} ({source}) is not part of the layout; add its line to fstab after the reinstall"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed_and_escapes_are_decoded() {
        let text = "# comment\n\nUUID=a / ext4 errors=remount-ro 0 1\nLABEL=x\\040y /srv/a\\134b/ xfs defaults,noatime\nbroken line\n/dev/sda2 none swap sw 0 0\n";
        let lines = parse_fstab(text);
        let shown: Vec<String> =
            lines.iter().map(|l| format!("{} {} {} {}", l.source, l.path, l.format, l.options.join(","))).collect();
        assert_eq!(
            shown,
            ["UUID=a / ext4 errors=remount-ro", "LABEL=x y /srv/a\\b xfs noatime", "/dev/sda2 none swap sw"]
        );
        assert!(lines[2].is_swap() && !lines[0].is_swap());
    }

    #[test]
    fn lines_without_a_block_device_are_reported() {
        for (line, expected) in [
            ("/srv/data /var/www none bind 0 0", "/var/www: a bind mount (/srv/data)"),
            ("/srv/disk.img /mnt ext4 loop 0 0", "/mnt: a loop file (/srv/disk.img)"),
            ("/swapfile none swap sw 0 0", "none: a swap file (/swapfile)"),
            ("overlay /merged overlay lowerdir=/a 0 0", "/merged: an overlay mount (overlay)"),
            ("nas:/x /mnt nfs defaults 0 0", "/mnt: a network filesystem (nas:/x)"),
        ] {
            let note = describe_unexpressed(&parse_fstab(line)[0]);
            assert!(note.text.starts_with(expected) && !note.is_obstacle, "{note:?}");
        }
        assert!(describe_unexpressed(&parse_fstab("rpool/a /a zfs defaults 0 0")[0]).is_obstacle);
    }
}
