//! Lines of fstab that contradict the content of their device, or the mounts of the running system.

use super::LayoutBuilder;
use crate::content_purposes::MachineContent;
use crate::fstab::FstabLine;
use model::inventory::{DeviceSignature, DeviceUse};
use model::storage_graph::all_units;

/// Filesystem types of fstab that mount each other's filesystems, or that are names of the same type.
const EQUIVALENT: [&[&str]; 4] =
    [&["ext2", "ext3", "ext4"], &["vfat", "msdos", "fat"], &["ntfs", "ntfs3", "ntfs-3g"], &["swap", "swsuspend"]];

impl LayoutBuilder<'_> {
    /// Reports lines of fstab that are wrong. It is unknown whether such a line or the device is wrong, so a reinstall
    /// must not rely on the line.
    pub fn check_lines(&mut self, content: &MachineContent) {
        if content.is_only_running {
            return;
        }
        let device = &content.device;
        let points: Vec<&str> = content.paths().collect();
        if content.mounts.iter().any(FstabLine::is_swap) && !points.is_empty() {
            self.prevent(format!(
                "fstab uses {device} as swap, and mounts it at {}: remove the wrong line",
                points.join(", ")
            ));
        }
        for line in &content.mounts {
            if let Some(found) = find_contradiction(line, content.unit.signatures()) {
                let usage = describe_usage(line, device.as_str());
                self.prevent(format!("fstab {usage}, but the device contains {found}: correct the line"));
            }
            if line.source == content.name.device_path().as_str() {
                self.check_running_mount(content, line);
            }
        }
    }

    /// Reports a line with a kernel name if the running system has mounted another device at its mount point, or has
    /// mounted its device elsewhere: kernel names may have changed since the line was written.
    fn check_running_mount(&mut self, content: &MachineContent, line: &FstabLine) {
        let here: Vec<&str> = content.unit.uses().iter().filter_map(mount_point).collect();
        if !line.path.starts_with('/') || here.contains(&line.path.as_str()) {
            return;
        }
        let device = &content.device;
        let others = all_units(self.machine.inventory);
        let mut others =
            others.filter(|(_, unit)| unit.uses().iter().filter_map(mount_point).any(|at| at == line.path));
        let actual = match (here.as_slice(), others.next()) {
            ([], None) => return,
            ([], Some((other, _))) => format!("{other} is mounted at {}", line.path),
            (points, _) => format!("it is mounted at {}", points.join(", ")),
        };
        self.prevent(format!(
            "fstab mounts {device} at {}, but {actual}: kernel names may change; use the UUID of the filesystem in fstab",
            line.path
        ));
    }
}

fn mount_point(usage: &DeviceUse) -> Option<&str> {
    match usage {
        DeviceUse::Mounted(path) => Some(path),
        DeviceUse::Swap | DeviceUse::Holder(_) => None,
    }
}

fn describe_usage(line: &FstabLine, device: &str) -> String {
    match line.is_swap() {
        true => format!("uses {device} as swap"),
        false => format!("mounts {device} at {} as {}", line.path, line.format),
    }
}

/// Returns the content of the device if it contradicts the filesystem type of the line.
fn find_contradiction(line: &FstabLine, signatures: &[DeviceSignature]) -> Option<String> {
    let mut formats = line.format.split(',');
    let is_unspecified = |format: &str| ["auto", "none"].contains(&format) || format.starts_with("fuse");
    if formats.clone().any(is_unspecified) {
        return None;
    }
    match signatures {
        [] => line.is_swap().then(|| "no swap area".to_owned()),
        found if formats.any(|format| found.iter().any(|found| is_equivalent(format, &found.kind))) => None,
        found => Some(found.iter().map(|found| found.kind.as_str()).collect::<Vec<_>>().join(", ")),
    }
}

fn is_equivalent(format: &str, kind: &str) -> bool {
    format == kind || EQUIVALENT.iter().any(|names| names.contains(&format) && names.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_must_agree_with_the_signature() {
        for (format, kinds, contradiction) in [
            ("ext4", &["ext4"][..], None),
            ("ext4", &["ext3"], None),
            ("ext3", &["ext2"], None),
            ("msdos", &["vfat"], None),
            ("ntfs-3g", &["ntfs"], None),
            ("udf,iso9660", &["iso9660"], None),
            ("auto", &["xfs"], None),
            ("fuseblk", &["ntfs"], None),
            ("swap", &["swsuspend"], None),
            ("ext4", &[], None),
            ("ext4", &["xfs"], Some("xfs")),
            ("swap", &["ext4"], Some("ext4")),
            ("swap", &[], Some("no swap area")),
            ("ext4", &["swap"], Some("swap")),
            ("ext4", &["linux_raid_member"], Some("linux_raid_member")),
        ] {
            let signature = |kind: &&str| DeviceSignature { kind: (*kind).to_owned(), ..DeviceSignature::default() };
            let signatures: Vec<DeviceSignature> = kinds.iter().map(signature).collect();
            let line = FstabLine { format: format.to_owned(), ..FstabLine::default() };
            assert_eq!(find_contradiction(&line, &signatures).as_deref(), contradiction, "{format} {kinds:?}");
        }
    }
}
