//! Spellings of links in `/dev/disk/by-path`. Different versions of udev use different names for the same port
//! (systemd, udev-builtin-path_id.c and 60-persistent-storage.rules): `…-ata-1` and `…-ata-1.0`, `virtio-pci-…` and
//! `pci-…`, `…-usb-…` and `…-usbv3-…`.

const BY_PATH_DIRECTORY: &str = "/dev/disk/by-path/";
const USB: &str = "-usb-";
const USB_VERSIONS: [&str; 2] = ["-usbv2-", "-usbv3-"];

/// Returns whether two links in `/dev/disk/by-path` name the same port.
pub fn is_same_by_path(one: &str, other: &str) -> bool {
    one == other || canonical_name(one).is_some_and(|name| Some(name) == canonical_name(other))
}

/// Returns all spellings of a link in `/dev/disk/by-path`, as paths.
pub fn list_by_path_spellings(path: &str) -> Vec<String> {
    let Some(name) = canonical_name(path) else { return vec![path.to_owned()] };
    let ata = split_ata_port(&name).is_some_and(|(_, port)| !port.contains('.')).then(|| format!("{name}.0"));
    let virtio = name.strip_prefix("pci-").filter(|address| !address.contains('-')).map(|_| format!("virtio-{name}"));
    let usb = USB_VERSIONS.iter().filter(|_| name.contains(USB)).map(|version| name.replace(USB, version));
    let others: Vec<String> = ata.into_iter().chain(virtio).chain(usb).collect();
    std::iter::once(name).chain(others).map(|name| format!("{BY_PATH_DIRECTORY}{name}")).collect()
}

/// Returns the shortest spelling of a link's name.
fn canonical_name(path: &str) -> Option<String> {
    let name = path.strip_prefix(BY_PATH_DIRECTORY)?;
    let name = name.strip_prefix("virtio-").filter(|rest| rest.starts_with("pci-")).unwrap_or(name);
    let name = USB_VERSIONS.iter().fold(name.to_owned(), |name, version| name.replace(version, USB));
    Some(match split_ata_port(&name) {
        Some((_, port)) if port.ends_with(".0") && port.matches('.').count() == 1 => name[..name.len() - 2].to_owned(),
        _ => name,
    })
}

fn split_ata_port(name: &str) -> Option<(&str, &str)> {
    let (controller, port) = name.rsplit_once("-ata-")?;
    port.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.').then_some((controller, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_port_match_and_other_ports_differ() {
        for (one, other) in [
            ("pci-0000:00:17.0-ata-1", "pci-0000:00:17.0-ata-1.0"),
            ("virtio-pci-0000:00:05.0", "pci-0000:00:05.0"),
            ("pci-0000:00:14.0-usb-0:3:1.0-scsi-0:0:0:0", "pci-0000:00:14.0-usbv3-0:3:1.0-scsi-0:0:0:0"),
        ] {
            let [one, other] = [one, other].map(|name| format!("{BY_PATH_DIRECTORY}{name}"));
            for path in [&one, &other] {
                let spellings = list_by_path_spellings(path);
                assert!(spellings.contains(&one) && spellings.contains(&other), "{spellings:?}");
                assert!(is_same_by_path(path, &one) && is_same_by_path(path, &other), "{path}");
            }
        }
        for (one, other) in [
            ("pci-0000:00:17.0-ata-1", "pci-0000:00:17.0-ata-1.1"),
            ("pci-0000:00:17.0-ata-1", "pci-0000:00:17.0-ata-10"),
            ("pci-0000:00:17.0-ata-1.2.0", "pci-0000:00:17.0-ata-1.2"),
            ("pci-0000:00:17.0-ata-1", "pci-0000:00:18.0-ata-1.0"),
            ("pci-0000:00:05.0-nvme-1", "pci-0000:00:05.0"),
            ("pci-0000:00:05.0-scsi-0:0:1:0", "virtio-pci-0000:00:05.0"),
        ] {
            assert!(
                !is_same_by_path(&format!("{BY_PATH_DIRECTORY}{one}"), &format!("{BY_PATH_DIRECTORY}{other}")),
                "{one} {other}"
            );
        }
        assert_eq!(list_by_path_spellings("/dev/disk/by-path/pci-0000:00:05.0-nvme-1").len(), 1);
        assert!(is_same_by_path("", "") && !is_same_by_path("", "/dev/disk/by-path/x"));
    }
}
