//! Replaces device names of the previous machine in configuration files. UUIDs, labels, and the names of volumes and
//! arrays do not depend on the machine, and are not changed.

use super::super::array_config;
use crate::system_setup::LogSink;
use crate::{NewRoot, fstab};
use common::error::{Context, Phase, Result};
use model::device_name::LayoutPath;
use model::install_marker::RecordedDisk;
use model::machine_migration::{MigratedFilesystem, MigratedMachine};
use operations::FinishedArray;
use std::io;
use std::io::ErrorKind;

const FSTAB: &str = "/etc/fstab";
const MDADM_CONFS: [&str; 2] = ["/etc/mdadm/mdadm.conf", "/etc/mdadm.conf"];

/// Replaces device names in fstab by UUIDs and preserves the rest of the file.
///
/// # Errors
/// Returns an error if the file cannot be read or written.
pub(crate) fn replace_in_fstab(root: &NewRoot, migrated_machine: &MigratedMachine, say: LogSink) -> Result<()> {
    let Some(text) = read_if_exists(root.read_text(FSTAB))
        .context(Phase::Target, || format!("read the migrated system's {FSTAB}"))?
    else {
        return Ok(());
    };
    let mut changed = false;
    let lines = text.lines().map(|line| {
        let source = fstab::parse_fstab(line).into_iter().next().map(|line| line.source);
        let Some(source) = source.filter(|source| is_hardware_name(source)) else { return line.to_owned() };
        let Some(uuid) = find_uuid(&source, migrated_machine) else {
            say(&format!(
                "WARNING: {FSTAB} refers to {source}, a device of the previous machine. The line is not changed, because the corresponding device of this machine is unknown"
            ));
            return line.to_owned();
        };
        changed = true;
        say(&format!("{FSTAB}: replaced {source} by UUID={uuid}"));
        // The end of the first word is searched in the unparsed line, because the parsed source contains no escapes.
        let start = line.len() - line.trim_start().len();
        let rest = line[start..].find([' ', '\t']).map_or("", |end| &line[start + end..]);
        format!("{}UUID={uuid}{rest}", &line[..start])
    });
    let mut new: String = lines.map(|line| line + "\n").collect();
    if !text.ends_with('\n') {
        new.pop();
    }
    if changed { root.rewrite_file(FSTAB, 0o644, new.as_bytes()) } else { Ok(()) }
}

/// Returns whether the device name depends on the hardware, and may therefore differ on another machine.
fn is_hardware_name(source: &str) -> bool {
    let stays = [
        "/dev/mapper/",
        "/dev/md",
        "/dev/disk/by-uuid/",
        "/dev/disk/by-partuuid/",
        "/dev/disk/by-label/",
        "/dev/disk/by-partlabel/",
    ];
    let Some(name) = source.strip_prefix("/dev/") else { return false };
    let is_node = !name.contains('/');
    let by_hardware = ["/dev/disk/by-id/", "/dev/disk/by-path/"].iter().any(|folder| source.starts_with(folder));
    // The names of LVM volumes and md arrays do not depend on the disks, so they are not replaced.
    let by_own_name = ["/dev/disk/by-id/dm-", "/dev/disk/by-id/lvm-", "/dev/disk/by-id/md-"];
    (is_node || by_hardware) && !stays.iter().chain(&by_own_name).any(|start| source.starts_with(start))
}

fn find_uuid<'a>(source: &str, migrated_machine: &'a MigratedMachine) -> Option<&'a str> {
    let by_link = migrated_machine.marker.disks.iter().find_map(|disk| resolve_udev_link(source, disk));
    let name = by_link.unwrap_or_else(|| source.into());
    let is_it = |filesystem: &&MigratedFilesystem| filesystem.device == name && !filesystem.uuid.is_empty();
    migrated_machine.filesystems.iter().find(is_it).map(|is| is.uuid.as_str())
}

/// Returns the name that the layout uses for the device to which a udev link of the previous machine referred.
fn resolve_udev_link(source: &str, disk: &RecordedDisk) -> Option<LayoutPath> {
    let (whole, number) = match source.rsplit_once("-part") {
        Some((whole, number)) => (whole, number.parse::<u32>().ok()),
        None => (source, None),
    };
    let by_path = !disk.by_path.is_empty() && whole == disk.by_path;
    let id = whole.strip_prefix("/dev/disk/by-id/");
    let has_serial = disk.comparable_serial().is_some();
    let by_serial = has_serial && id.is_some_and(|id| id.ends_with(&format!("_{}", disk.serial)));
    let by_wwn = disk.comparable_wwn().is_some() && id == Some(&format!("wwn-{}", disk.wwn));
    let listed = LayoutPath::from(disk.device.as_str());
    (by_path || by_serial || by_wwn).then(|| number.map_or(listed.clone(), |number| listed.partition_path(number)))
}

/// Removes disk names from mdadm.conf. The disk names are not required, because the arrays have the same UUIDs on this
/// machine.
///
/// # Errors
/// Returns an error if the file cannot be read or written.
pub(crate) fn replace_in_mdadm_conf(root: &NewRoot, wanted: &[FinishedArray], say: LogSink) -> Result<()> {
    for path in MDADM_CONFS {
        let Some(text) = read_if_exists(root.read_text(path))
            .context(Phase::Target, || format!("read the migrated system's {path}"))?
        else {
            continue;
        };
        let new: String = text.lines().map(|line| remove_disk_names(line) + "\n").collect();
        if new.trim_end() != text.trim_end() {
            root.rewrite_file(path, 0o644, new.as_bytes())?;
            say(&format!("removed disk names from {path}; the arrays are found by UUID"));
        }
        let named = array_config::listed_uuids(&text);
        let lacking = wanted.iter().filter(|array| !named.contains(&array_config::uuid_text(array.uuid)));
        let lacking: Vec<&str> = lacking.map(|array| array.device.as_str()).collect();
        if !named.is_empty() && !lacking.is_empty() {
            say(&format!(
                "WARNING: {path} does not list {arrays}: the system may fail to start these arrays",
                arrays = lacking.join(", ")
            ));
        }
    }
    Ok(())
}

/// Removes restrictions to certain disks from a line of mdadm.conf(5): the word `devices=` of an array, and the paths
/// in a DEVICE line.
fn remove_disk_names(line: &str) -> String {
    let lower = line.to_ascii_lowercase();
    if lower.starts_with("dev") && line.contains("/dev/") {
        return "DEVICE partitions".to_owned();
    }
    if line.trim_start().starts_with('#') || !lower.contains("devices=") {
        return line.to_owned();
    }
    let is_preserved = |word: &&str| !word.to_ascii_lowercase().starts_with("devices=");
    let begin = if line.starts_with([' ', '\t']) { " " } else { "" };
    format!("{begin}{}", line.split_whitespace().filter(is_preserved).collect::<Vec<_>>().join(" "))
}

/// Returns the result of reading a file; `None` if the file does not exist.
fn read_if_exists(text: io::Result<String>) -> io::Result<Option<String>> {
    match text {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        text => text.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{capture_log, tree};
    use super::*;
    use model::install_marker::InstallMarker;
    use model::layout::{FilesystemFormat, RaidLevel};
    use uuid::Uuid;

    fn migrated_machine() -> MigratedMachine {
        let filesystem = |device: &str, uuid: &str| MigratedFilesystem {
            device: device.into(),
            format: FilesystemFormat::Ext4,
            uuid: uuid.to_owned(),
            size_bytes: 1,
            sector_bytes: 512,
        };
        let disk = RecordedDisk {
            device: "/dev/sda".into(),
            serial: "S1".into(),
            wwn: "0x5000".into(),
            by_path: "/dev/disk/by-path/pci-0000:00:1f.2-ata-1".into(),
            ..RecordedDisk::default()
        };
        let filesystems =
            vec![filesystem("/dev/sda2", "r-uuid"), filesystem("/dev/sda1", "1A2B-3C4D"), filesystem("/dev/sda4", "")];
        MigratedMachine {
            marker: InstallMarker { disks: vec![disk], ..InstallMarker::default() },
            filesystems,
            ..MigratedMachine::default()
        }
    }

    #[test]
    fn disk_names_become_uuids_and_other_lines_remain() {
        let own = "# mine\nUUID=r-uuid / ext4 defaults 0 1\n/dev/sda1\t/boot/efi vfat umask=0077 0 2 # efi\n\
            \x20 /dev/disk/by-path/pci-0000:00:1f.2-ata-1-part2 /mnt ext4 noauto 0 0\n/dev/disk/by-id/ata-DISK_S1-part1 /x vfat ro 0 0\n\
            /dev/disk/by-id/wwn-0x5000-part2 /y ext4 ro 0 0\nLABEL=data /data xfs defaults 0 0\n/dev/mapper/vg-srv /srv ext4 defaults 0 0\n\
            /dev/md0 /m ext4 defaults 0 0\n/dev/md/x /n ext4 defaults 0 0\n/dev/vg/lv /o ext4 defaults 0 0\n\
            /dev/disk/by-uuid/1 /p ext4 defaults 0 0\n/dev/disk/by-id/md-uuid-1 /q ext4 defaults 0 0\ntmpfs /tmp tmpfs size=1G 0 0\n\
            10.0.0.1:/x /nfs nfs defaults 0 0\n";
        let expected = own
            .replace("/dev/sda1\t", "UUID=1A2B-3C4D\t")
            .replace("/dev/disk/by-path/pci-0000:00:1f.2-ata-1-part2 ", "UUID=r-uuid ")
            .replace("/dev/disk/by-id/ata-DISK_S1-part1 ", "UUID=1A2B-3C4D ")
            .replace("/dev/disk/by-id/wwn-0x5000-part2 ", "UUID=r-uuid ");
        let (_dir, root) = tree(&[("etc/fstab", own)]);
        let (done, lines) = capture_log(|say| replace_in_fstab(&root, &migrated_machine(), say));
        done.unwrap();
        assert_eq!(root.read_text(FSTAB).unwrap(), expected);
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert_eq!(lines[0], "/etc/fstab: replaced /dev/sda1 by UUID=1A2B-3C4D");
    }

    #[test]
    fn unknown_devices_in_fstab_are_kept_with_a_warning() {
        let own = "/dev/sdz9 /z ext4 defaults 0 0\n/dev/sda4 /w ext4 defaults 0 0\n/dev/disk/by-id/usb-X-part1 /u vfat ro 0 0";
        let (_dir, root) = tree(&[("etc/fstab", own)]);
        let (done, lines) = capture_log(|say| replace_in_fstab(&root, &migrated_machine(), say));
        done.unwrap();
        assert_eq!(root.read_text(FSTAB).unwrap(), own);
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| line.starts_with("WARNING: /etc/fstab refers to /dev/")), "{lines:?}");
        let (_dir, root) = tree(&[]);
        replace_in_fstab(&root, &migrated_machine(), &|_| {}).unwrap();
        assert!(!root.path_exists(FSTAB));
    }

    #[test]
    fn arrays_are_identified_only_by_uuid() {
        let uuid = Uuid::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        let array = |uuid| FinishedArray {
            device: "/dev/md/root".into(),
            uuid,
            level: RaidLevel::Raid1,
            metadata: "1.2".into(),
        };
        let line = "ARRAY /dev/md/root metadata=1.2 UUID=01234567:89abcdef:01234567:89abcdef";
        let own = format!("# devices=/dev/sda\nMAILADDR me\n{line}\n");
        let (_dir, root) = tree(&[("etc/mdadm/mdadm.conf", &own)]);
        let (done, lines) = capture_log(|say| replace_in_mdadm_conf(&root, &[array(uuid)], say));
        done.unwrap();
        assert_eq!((root.read_text(MDADM_CONFS[0]).unwrap(), lines), (own, Vec::new()));

        let disks =
            format!("DEVICE /dev/sda2 /dev/sdb2\n{line} devices=/dev/sda2,/dev/sdb2\n  Devices=/dev/sdc name=x\n");
        let (_dir, root) = tree(&[("etc/mdadm.conf", &disks)]);
        let (done, lines) = capture_log(|say| replace_in_mdadm_conf(&root, &[array(uuid)], say));
        done.unwrap();
        assert_eq!(root.read_text(MDADM_CONFS[1]).unwrap(), format!("DEVICE partitions\n{line}\n name=x\n"));
        assert_eq!(lines, ["removed disk names from /etc/mdadm.conf; the arrays are found by UUID"]);
        // An array that is missing from mdadm.conf would not be started.
        let (_, lines) = capture_log(|say| replace_in_mdadm_conf(&root, &[array(Uuid::from_u128(1))], say));
        assert_eq!(
            lines,
            ["WARNING: /etc/mdadm.conf does not list /dev/md/root: the system may fail to start these arrays"]
        );
    }
}
