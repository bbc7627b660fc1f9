//! Rules for encrypted filesystems.

use super::{Check, Provider};
use crate::layout::{Filesystem, Format, KeySource};

/// The system needs these before it can open anything. A path below one of them is needed as well.
const NEEDED_FIRST: [&str; 7] = ["/boot", "/efi", "/etc", "/usr", "/bin", "/sbin", "/lib"];

pub(super) fn check(check: &mut Check, filesystems: &[Filesystem]) {
    for (index, filesystem) in filesystems.iter().enumerate() {
        let Some(encrypted) = filesystem.encrypted else { continue };
        let place = format!("filesystems[{index}].encrypted");
        if let Some(why) = refused_key(encrypted.key) {
            check.report(&format!("{place}.key"), why);
        }
        if check.known(&format!("filesystems[{index}].format"))
            && matches!(filesystem.format, Format::Swap | Format::Tmpfs | Format::None)
        {
            let message =
                format!("format {} is not encrypted here: use ext4, xfs, btrfs, ext3 or vfat", filesystem.format);
            check.report(&place, message);
        }
        if let Some(path) = filesystem.path.as_deref().filter(|path| is_needed_first(path)) {
            let message = format!("{path} cannot be encrypted: the machine needs it before it can open anything");
            check.report(&place, message);
        }
        if filesystem.is_for_seed() {
            check.report(&place, "cloud-init's seed cannot be encrypted: nobody would find it");
        }
        if check.provided.get(&filesystem.device) == Some(&Provider::ImagePartition) {
            let message = format!("device:{} is a partition of the image, which brings it as it is", filesystem.device);
            check.report(&place, message);
        }
    }
}

fn refused_key(key: KeySource) -> Option<&'static str> {
    match key {
        KeySource::Server | KeySource::File | KeySource::Tpm2 => None,
        KeySource::Prompt => {
            Some("key prompt is not built: nobody is asked at the console. Write server, file or tpm2")
        }
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
    fn a_filesystem_may_be_encrypted_and_says_so_again() {
        for key in [KeySource::Server, KeySource::File, KeySource::Tpm2] {
            let text = layout(&format!("path: /data, format: xfs, encrypted: {{key: {key}}}"));
            let parsed = read_yaml(&text).unwrap();
            assert_eq!(parsed.layout.filesystems[1].encrypted.map(|is| is.key), Some(key));
            assert_eq!(parsed.layout.filesystems[0].encrypted, None);
            let again = read_yaml(&crate::layout::canonical_yaml(&parsed.layout)).unwrap();
            assert_eq!((again.layout, again.notes.len()), (parsed.layout, 0));
        }
    }

    #[test]
    fn what_cannot_be_encrypted_is_refused_each_for_its_reason() {
        for (more, words) in [
            (
                "path: /boot, format: ext4, encrypted: {key: server}",
                "7:63: filesystems[1].encrypted: /boot cannot be encrypted",
            ),
            ("path: /usr/share, format: ext4, encrypted: {key: file}", "/usr/share cannot be encrypted"),
            ("format: vfat, label: CIDATA, encrypted: {key: server}", "cloud-init's seed cannot be encrypted"),
            ("format: swap, encrypted: {key: server}", "format swap is not encrypted here"),
            ("path: /boot, format: ext4, encrypted: {key: tpm2}", "/boot cannot be encrypted"),
            (
                "path: /data, format: xfs, encrypted: {key: prompt}",
                "filesystems[1].encrypted.key: key prompt is not built",
            ),
            (
                "path: /data, format: xfs, encrypted: {key: paper}",
                "given key:paper is not supported, but:server,file,tpm2,prompt",
            ),
            ("path: /data, format: xfs, encrypted: {}", "key is missing"),
            ("path: /data, format: xfs, encrypted: true", "must be a mapping of fields, found a single value"),
            ("path: /data, format: xfs, encrypted: {key: server, cipher: x}", "unknown field cipher"),
        ] {
            let problems = read_yaml(&layout(more)).unwrap_err();
            let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
            assert!(said.len() == 1 && said[0].contains(words), "{more}: {said:?}");
        }
        let all = read_yaml(&layout("path: /efi, format: swap, encrypted: {key: prompt}")).unwrap_err();
        assert!(all.len() >= 3, "{all:?}");
    }

    #[test]
    fn a_partition_of_a_raw_image_is_as_it_comes() {
        let text = "{id: x, constraints: {sizes: [], images: {}}, disks: [{device: /dev/sda, image: true, wipeonreinstall: true}], \
                    filesystems: [{path: /, device: /dev/sda1, format: ext4}, {path: /data, device: /dev/sda2, format: ext4, encrypted: {key: server}}]}";
        let said: Vec<String> = read_yaml(text).unwrap_err().iter().map(ToString::to_string).collect();
        assert!(
            said.iter().any(|line| line.contains("/dev/sda2 is a partition of the image, which brings it as it is")),
            "{said:?}"
        );
    }
}
