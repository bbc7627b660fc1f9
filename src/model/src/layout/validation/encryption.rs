//! Rules for encrypted filesystems and groups.

use super::validation_state::{DeviceSource, LayoutCheck};
use crate::device_name::LayoutPath;
use crate::layout::{FilesystemFormat, FilesystemSpec, Layout};

/// Directories that the system needs before it can unlock filesystems. The same applies to all their subdirectories.
const NEEDED_FIRST: [&str; 7] = ["/boot", "/efi", "/etc", "/usr", "/bin", "/sbin", "/lib"];

pub(super) fn check_encryption(check: &mut LayoutCheck, layout: &Layout) {
    for (index, filesystem) in layout.filesystems.iter().enumerate() {
        let within = layout.find_encrypted_group(&filesystem.device).map(|group| group.name.as_str());
        if filesystem.encrypted.is_some() {
            check_filesystem(check, index, filesystem, within);
        } else if within.is_none() {
            continue;
        }
        let (place, of_group) = match within {
            Some(group) => (format!("filesystems[{index}].device"), format!(" (vg:{group} is encrypted)")),
            None => (format!("filesystems[{index}].encrypted"), String::new()),
        };
        if let Some(path) = filesystem.path.as_deref().filter(|path| is_needed_first(path)) {
            let message = format!(
                "{path} cannot be encrypted: the machine needs the files of this filesystem before any filesystem can be unlocked{of_group}"
            );
            check.report_problem(&place, message);
        }
        if filesystem.is_for_seed() {
            check.report_problem(
                &place,
                format!("cloud-init's seed cannot be encrypted: cloud-init would not find it{of_group}"),
            );
        }
    }
    for (index, group) in layout.volumegroups.iter().enumerate() {
        if group.encrypted.is_none() {
            continue;
        }
        let place = format!("volumegroups[{index}].encrypted");
        group.devices.iter().for_each(|device| check_device(check, &place, device));
    }
}

/// Checks the field `encrypted` of a filesystem.
fn check_filesystem(check: &mut LayoutCheck, index: usize, filesystem: &FilesystemSpec, within: Option<&str>) {
    let place = format!("filesystems[{index}].encrypted");
    if check.is_readable(&format!("filesystems[{index}].format"))
        && matches!(filesystem.format, FilesystemFormat::Swap | FilesystemFormat::Tmpfs | FilesystemFormat::None)
    {
        let message = format!(
            "format {format} cannot be encrypted: use ext4, xfs, btrfs, ext3 or vfat",
            format = filesystem.format
        );
        check.report_problem(&place, message);
    }
    if let Some(group) = within {
        check.report_problem(
            &place,
            format!("vg:{group} is already encrypted, including all its volumes: remove `encrypted` here"),
        );
    }
    check_device(check, &place, &filesystem.device);
}

fn check_device(check: &mut LayoutCheck, place: &str, device: &LayoutPath) {
    if check.provided.get(device) == Some(&DeviceSource::ImagePartition) {
        check.report_problem(
            place,
            format!("device:{device} is a partition of the raw image, and such a partition cannot be encrypted"),
        );
    }
}

fn is_needed_first(path: &str) -> bool {
    let is_below =
        |first: &&str| path.strip_prefix(*first).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    path == "/" || NEEDED_FIRST.iter().any(is_below)
}

#[cfg(test)]
mod tests {
    use crate::layout::{KeySource, read_yaml};

    fn layout(more: &str) -> String {
        format!(
            "id: x\nconstraints: {{sizes: [], images: {{}}}}\ndisks:\n  - {{device: /dev/sda, wipeonreinstall: true, partitions: [{{number: 1, size: 99}}, {{number: 2, size: 0}}]}}\n\
             filesystems:\n  - {{path: /, device: /dev/sda1, format: ext4}}\n  - {{device: /dev/sda2, {more}}}\n"
        )
    }

    #[test]
    fn filesystem_encryption_survives_serialization() {
        for key in KeySource::ALL {
            let text = layout(&format!("path: /data, format: xfs, encrypted: {{key: {key}}}"));
            let parsed = read_yaml(&text).unwrap();
            assert_eq!(parsed.layout.filesystems[1].encrypted.map(|encrypted| encrypted.key), Some(key));
            assert_eq!(parsed.layout.filesystems[0].encrypted, None);
            let again = read_yaml(&crate::layout::canonical_yaml(&parsed.layout)).unwrap();
            assert_eq!((again.layout, again.notes.len()), (parsed.layout, 0));
        }
    }

    #[test]
    fn refuses_unsupported_encryption_with_the_reason() {
        for (more, words) in [
            (
                "path: /boot, format: ext4, encrypted: {key: server}",
                "7:63: filesystems[1].encrypted: /boot cannot be encrypted",
            ),
            ("path: /usr/share, format: ext4, encrypted: {key: file}", "/usr/share cannot be encrypted"),
            ("format: vfat, label: CIDATA, encrypted: {key: server}", "cloud-init's seed cannot be encrypted"),
            ("format: swap, encrypted: {key: server}", "format swap cannot be encrypted"),
            ("path: /boot, format: ext4, encrypted: {key: tpm2}", "/boot cannot be encrypted"),
            (
                "path: /data, format: xfs, encrypted: {key: paper}",
                "given key:paper is not supported, but:server,file,tpm2,prompt",
            ),
            ("path: /data, format: xfs, encrypted: {}", "key is missing"),
            ("path: /data, format: xfs, encrypted: true", "must be a mapping of fields, but is a single value"),
            ("path: /data, format: xfs, encrypted: {key: server, cipher: x}", "unknown field cipher"),
        ] {
            let problems = read_yaml(&layout(more)).unwrap_err();
            let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
            assert!(said.len() == 1 && said[0].contains(words), "{more}: {said:?}");
        }
        let all = read_yaml(&layout("path: /efi, format: swap, encrypted: {key: paper}")).unwrap_err();
        assert!(all.len() >= 3, "{all:?}");
    }

    #[test]
    fn refuses_encrypted_filesystem_in_an_encrypted_group() {
        let with = |group: &str, filesystem: &str| {
            format!(
                "{{id: x, constraints: {{sizes: [], images: {{}}}}, disks: [{{device: /dev/sda, wipeonreinstall: true, partitions: [{{number: 1, size: 0}}]}}, {{device: /dev/sdb}}], \
                 volumegroups: [{{name: data, devices: [/dev/sdb], {group}}}], logicalvolumes: [{{name: srv, volumegroup: data, size: 0, lvmtype: linear}}], \
                 filesystems: [{{path: /, device: /dev/sda1, format: ext4}}, {{device: /dev/data/srv, {filesystem}}}]}}"
            )
        };
        for (filesystem, words) in [
            ("path: /srv, format: ext4", ""),
            ("format: swap", ""),
            (
                "path: /srv, format: ext4, encrypted: {key: server}",
                "vg:data is already encrypted, including all its volumes",
            ),
            ("path: /usr, format: ext4", "filesystems[1].device: /usr cannot be encrypted"),
            ("format: vfat, label: CIDATA", "cloud-init's seed cannot be encrypted"),
        ] {
            match read_yaml(&with("encrypted: {key: server}", filesystem)) {
                Ok(parsed) => {
                    assert!(words.is_empty(), "{filesystem}");
                    let encrypted: Vec<KeySource> =
                        parsed.layout.encryption_specs().map(|encryption_spec| encryption_spec.key).collect();
                    assert_eq!(encrypted, [KeySource::Server]);
                    let again = read_yaml(&crate::layout::canonical_yaml(&parsed.layout)).unwrap();
                    assert_eq!((again.layout, again.notes.len()), (parsed.layout, 0));
                }
                Err(problems) => {
                    let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
                    assert!(!words.is_empty() && said.len() == 1 && said[0].contains(words), "{filesystem}: {said:?}");
                }
            }
        }
        let said = read_yaml(&with("encrypted: {key: tpm3}", "path: /srv, format: ext4")).unwrap_err();
        assert!(said[0].to_string().contains("given key:tpm3 is not supported"), "{said:?}");
    }

    #[test]
    fn refuses_encryption_of_raw_image_partitions() {
        let text = "{id: x, constraints: {sizes: [], images: {}}, disks: [{device: /dev/sda, image: true, wipeonreinstall: true}], \
                    filesystems: [{path: /, device: /dev/sda1, format: ext4}, {path: /data, device: /dev/sda2, format: ext4, encrypted: {key: server}}]}";
        let said: Vec<String> = read_yaml(text).unwrap_err().iter().map(ToString::to_string).collect();
        assert!(
            said.iter().any(|line| line
                .contains("/dev/sda2 is a partition of the raw image, and such a partition cannot be encrypted")),
            "{said:?}"
        );
    }
}
