//! Location of disks in sysfs: transport, and name in `/dev/disk/by-path`. udev does not run in the ramdisk, so its
//! rules are reimplemented here for server hardware (systemd, src/udev/udev-builtin-path_id.c and
//! 60-persistent-storage.rules).

use super::sysfs::read_attribute;
use std::path::{Path, PathBuf};

/// Returns the directories from the disk up to `/sys/devices`, deepest first, with their names.
fn sysfs_ancestors(sys: &Path, disk: &Path) -> Vec<(String, PathBuf)> {
    let top = sys.join("devices").canonicalize().unwrap_or_default();
    let named = |dir: &Path| (dir.file_name().unwrap_or_default().to_string_lossy().into_owned(), dir.to_owned());
    disk.ancestors().take_while(|dir| *dir != top).map(named).collect()
}

/// Returns the transport of a disk: `sata`, `sas`, `nvme`, `virtio`, `usb`, `scsi`, `fc`, `iscsi`, `mmc`; empty if
/// unknown. `disk` is the canonical directory of the disk below `sys`.
pub(super) fn find_transport(sys: &Path, disk: &Path) -> &'static str {
    let places = sysfs_ancestors(sys, disk);
    let any = |test: &dyn Fn(&str) -> bool| places.iter().any(|(name, _)| test(name));
    let numbered = |prefix: &'static str| any(&|name| parse_number_after(name, prefix).is_some());
    // The order matters: USB bridges and HBAs both have a SCSI host, and a SATA disk behind a SAS HBA has the transport
    // `sas`.
    if numbered("usb") {
        "usb"
    } else if any(&|name| name.starts_with("end_device-")) {
        "sas"
    } else if any(&|name| name.starts_with("rport-")) {
        "fc"
    } else if numbered("session") {
        "iscsi"
    } else if numbered("ata") {
        "sata"
    } else if any(&|name| name == "nvme" || name == "nvme-subsystem") {
        "nvme"
    } else if numbered("host") {
        "scsi"
    } else if numbered("virtio") {
        "virtio"
    } else if numbered("mmc") {
        "mmc"
    } else {
        ""
    }
}

/// Returns the link `/dev/disk/by-path/…`; empty if this type of attachment is not supported.
///
/// If udev creates two links, returns the shorter or older one, which all versions of udev create: `…-ata-1` (not
/// `…-ata-1.0`) and `virtio-pci-…`.
pub(super) fn find_by_path(sys: &Path, disk: &Path) -> String {
    build_path_id(sys, disk).map(|id| format!("/dev/disk/by-path/{id}")).unwrap_or_default()
}

/// Returns the SCSI address (host:channel:target:lun) of a SCSI, ATA or USB disk; empty for disks of other types.
pub(super) fn find_hctl(disk: &Path) -> String {
    let names = disk.ancestors().filter_map(|dir| dir.file_name()?.to_str());
    names.take(3).find(|name| is_scsi_address(name)).unwrap_or_default().to_owned()
}

fn build_path_id(sys: &Path, disk: &Path) -> Option<String> {
    let mut parts = Vec::new();
    let mut start = disk.to_owned();
    if let Some((controller, _)) = parse_nvme_name(disk.file_name()?.to_str()?) {
        parts.push(format!("nvme-{}", parse_number(&read_attribute(&disk.join("nsid")))?));
        // With native multipath, the sysfs directory of the namespace is below /sys/devices/virtual. The directory of
        // its controller is used instead.
        start = sys.join(format!("class/nvme/nvme{controller}")).canonicalize().unwrap_or(start);
    }
    let mut virtio = false;
    let mut inside_pci = false;
    for (name, dir) in sysfs_ancestors(sys, &start) {
        let pci = is_pci_address(&name);
        // Only the last bridge of a chain is part of the name; a new PCI domain (Intel VMD) starts a new chain.
        if pci && !inside_pci {
            parts.push(format!("pci-{name}"));
        }
        inside_pci = pci;
        if is_scsi_address(&name) {
            parts.push(format_scsi_part(&name, &dir)?);
        } else if let Some(interface) = parse_usb_interface(&name) {
            parts.push(format!("usb-0:{interface}"));
        }
        virtio |= parse_number_after(&name, "virtio").is_some() && parts.is_empty();
    }
    // An eMMC behind a PCI controller has no path, because udev does not create a link for it.
    let is_mmc = sysfs_ancestors(sys, disk).iter().any(|(name, _)| parse_number_after(name, "mmc").is_some());
    if is_mmc || !parts.iter().any(|part| part.starts_with("pci-")) {
        return None;
    }
    if virtio {
        parts.push("virtio".to_owned());
    }
    parts.reverse();
    Some(parts.join("-"))
}

/// Returns the component of a by-path name that follows the controller's component, for the SCSI device `H:B:T:L`.
/// Examples: `ata-1`, `sas-phy3-lun-0`, `scsi-0:0:1:0`.
fn format_scsi_part(address: &str, dir: &Path) -> Option<String> {
    let [_, bus, target, lun] = parse_scsi_address(address)?;
    let above = |prefix: &str| {
        dir.ancestors().find_map(|dir| {
            let name = dir.file_name()?.to_str()?;
            name.starts_with(prefix).then(|| (name.to_owned(), dir.to_owned()))
        })
    };
    if above("rport-").is_some() || above("session").is_some() {
        return None;
    }
    if let Some((name, end_device)) = above("end_device-") {
        return format_sas_part(&name, &end_device, lun);
    }
    let (host, host_dir) = above("host")?;
    let parent = host_dir.parent()?;
    if let Some(port) = parent.file_name()?.to_str().filter(|name| parse_number_after(name, "ata").is_some()) {
        let port_number = parse_number(&read_attribute(&parent.join("ata_port").join(port).join("port_no")))?;
        return Some(match (bus, target) {
            (0, 0) => format!("ata-{port_number}"),
            (0, target) => format!("ata-{port_number}.{target}"),
            (bus, _) => format!("ata-{port_number}.{bus}.0"),
        });
    }
    // In the kernel, the numbers of SCSI hosts are unique in the machine; in the name of the link, they are relative to
    // the first host of the controller.
    let hosts = std::fs::read_dir(parent).ok()?.flatten();
    let first = hosts.filter_map(|entry| parse_number_after(entry.file_name().to_str()?, "host")).min()?;
    Some(format!("scsi-{}:{bus}:{target}:{lun}", parse_number_after(&host, "host")?.checked_sub(first)?))
}

/// Returns the SAS component of a name: `sas-phy3-lun-0` on the HBA itself, `sas-exp0x…-phy3-lun-0` behind an expander,
/// `sas-0x…-lun-0` on a wide port.
fn format_sas_part(name: &str, end_device: &Path, lun: u32) -> Option<String> {
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    let device = end_device.join("sas_device").join(name);
    let port = end_device.parent()?;
    let ports_above = port.parent()?;
    let phys = read_attribute(&port.join("sas_port").join(port.file_name()?).join("num_phys"));
    if phys != "1" {
        return Some(format!("sas-{}-lun-{lun}", some(read_attribute(&device.join("sas_address")))?));
    }
    let phy = parse_number(&read_attribute(&device.join("phy_identifier")))?;
    let expander = read_attribute(&ports_above.join("sas_device").join(ports_above.file_name()?).join("sas_address"));
    Some(match some(expander) {
        Some(address) => format!("sas-exp{address}-phy{phy}-lun-{lun}"),
        None => format!("sas-phy{phy}-lun-{lun}"),
    })
}

/// Returns whether the text is a PCI address: domain, bus, device and function, such as `0000:00:1f.2`.
fn is_pci_address(name: &str) -> bool {
    let hex = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit());
    let fields: Vec<&str> = name.split([':', '.']).collect();
    fields.len() == 4
        && name.ends_with(|c: char| c.is_ascii_digit())
        && name.contains('.')
        && fields.into_iter().all(hex)
}

/// Removes the bus from `1-1.2:1.0` (bus-port:configuration.interface).
fn parse_usb_interface(name: &str) -> Option<&str> {
    let (bus, interface) = name.split_once('-')?;
    parse_number(bus)?;
    interface.contains(':').then_some(interface)
}

fn is_scsi_address(name: &str) -> bool {
    parse_scsi_address(name).is_some()
}

/// Parses a SCSI address: `2:0:1:0`.
fn parse_scsi_address(address: &str) -> Option<[u32; 4]> {
    let fields: Option<Vec<u32>> = address.split(':').map(parse_number).collect();
    fields?.try_into().ok()
}

/// Parses the numbers of the controller and the namespace: `nvme0n1` → 0 and 1.
fn parse_nvme_name(name: &str) -> Option<(u32, u32)> {
    let (controller, namespace) = name.strip_prefix("nvme")?.split_once('n')?;
    Some((parse_number(controller)?, parse_number(namespace)?))
}

fn parse_number_after(name: &str, prefix: &str) -> Option<u32> {
    parse_number(name.strip_prefix(prefix)?)
}

fn parse_number(text: &str) -> Option<u32> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::simulated_machine::FakeMachine;
    use super::*;

    /// Returns transport and by-path name of a disk at this path below /sys/devices, in a sysfs that also contains
    /// `files`.
    fn at(place: &str, files: &[(&str, &str)]) -> (&'static str, String) {
        let tree = FakeMachine::new();
        for (file, content) in files {
            tree.write(&format!("sys/{file}"), content);
        }
        tree.disk(place, "../..", 1 << 20);
        let sys = tree.roots().sys;
        let disk = tree.path(&format!("sys/devices/{place}")).canonicalize().unwrap();
        let path = find_by_path(&sys, &disk);
        (find_transport(&sys, &disk), path.strip_prefix("/dev/disk/by-path/").unwrap_or(&path).to_owned())
    }

    #[test]
    fn transport_and_by_path_of_common_disks_are_found() {
        let ahci = "pci0000:00/0000:00:1f.2";
        let hba = "pci0000:16/0000:16:02.0/0000:18:00.0/host0";
        type Case<'a> = (String, &'a [(&'a str, &'a str)], &'a str, &'a str);
        let cases: [Case; 14] = [
            (
                format!("{ahci}/ata3/host2/target2:0:0/2:0:0:0/block/sda"),
                &[("devices/pci0000:00/0000:00:1f.2/ata3/ata_port/ata3/port_no", "1\n")],
                "sata",
                "pci-0000:00:1f.2-ata-1",
            ),
            // The slave of a parallel ATA pair, and a disk behind a port multiplier.
            (
                format!("{ahci}/ata1/host0/target0:0:1/0:0:1:0/block/sdb"),
                &[("devices/pci0000:00/0000:00:1f.2/ata1/ata_port/ata1/port_no", "1\n")],
                "sata",
                "pci-0000:00:1f.2-ata-1.1",
            ),
            (
                format!("{ahci}/ata1/host0/target0:2:0/0:2:0:0/block/sdb"),
                &[("devices/pci0000:00/0000:00:1f.2/ata1/ata_port/ata1/port_no", "1\n")],
                "sata",
                "pci-0000:00:1f.2-ata-1.2.0",
            ),
            (
                "pci0000:00/0000:00:04.0/nvme/nvme0/nvme0n1".into(),
                &[("devices/pci0000:00/0000:00:04.0/nvme/nvme0/nvme0n1/nsid", "1\n")],
                "nvme",
                "pci-0000:00:04.0-nvme-1",
            ),
            // Intel VMD: a separate PCI domain behind a PCI device.
            (
                "pci0000:5d/0000:5d:05.5/pci10000:00/10000:00:02.0/10000:01:00.0/nvme/nvme1/nvme1n1".into(),
                &[(
                    "devices/pci0000:5d/0000:5d:05.5/pci10000:00/10000:00:02.0/10000:01:00.0/nvme/nvme1/nvme1n1/nsid",
                    "1\n",
                )],
                "nvme",
                "pci-0000:5d:05.5-pci-10000:01:00.0-nvme-1",
            ),
            ("pci0000:00/0000:00:05.0/virtio2/block/vda".into(), &[], "virtio", "virtio-pci-0000:00:05.0"),
            (
                "pci0000:00/0000:00:06.0/virtio3/host2/target2:0:1/2:0:1:0/block/sda".into(),
                &[],
                "scsi",
                "pci-0000:00:06.0-scsi-0:0:1:0",
            ),
            // Two hosts on one controller: the second has number 1, regardless of its host number.
            (
                "pci0000:00/0000:00:07.0/host5/target5:1:2/5:1:2:3/block/sdc".into(),
                &[("devices/pci0000:00/0000:00:07.0/host4/scsi_host/x", "")],
                "scsi",
                "pci-0000:00:07.0-scsi-1:1:2:3",
            ),
            (
                format!("{hba}/port-0:3/end_device-0:3/target0:0:3/0:0:3:0/block/sdd"),
                &[
                    ("devices/pci0000:16/0000:16:02.0/0000:18:00.0/host0/port-0:3/sas_port/port-0:3/num_phys", "1\n"),
                    (
                        "devices/pci0000:16/0000:16:02.0/0000:18:00.0/host0/port-0:3/end_device-0:3/sas_device/\
                         end_device-0:3/phy_identifier",
                        "6\n",
                    ),
                ],
                "sas",
                "pci-0000:18:00.0-sas-phy6-lun-0",
            ),
            (
                format!("{hba}/port-0:0/end_device-0:0/target0:0:0/0:0:0:0/block/sdd"),
                &[
                    ("devices/pci0000:16/0000:16:02.0/0000:18:00.0/host0/port-0:0/sas_port/port-0:0/num_phys", "2\n"),
                    (
                        "devices/pci0000:16/0000:16:02.0/0000:18:00.0/host0/port-0:0/end_device-0:0/sas_device/\
                         end_device-0:0/sas_address",
                        "0x5000c500a1b2c3d5\n",
                    ),
                ],
                "sas",
                "pci-0000:18:00.0-sas-0x5000c500a1b2c3d5-lun-0",
            ),
            (
                "pci0000:00/0000:00:01.0/0000:01:00.0/host0/port-0:0/expander-0:0/port-0:0:4/end_device-0:0:4/\
                 target0:0:4/0:0:4:0/block/sde"
                    .into(),
                &[
                    (
                        "devices/pci0000:00/0000:00:01.0/0000:01:00.0/host0/port-0:0/expander-0:0/sas_device/\
                         expander-0:0/sas_address",
                        "0x500304801f19d53f\n",
                    ),
                    (
                        "devices/pci0000:00/0000:00:01.0/0000:01:00.0/host0/port-0:0/expander-0:0/port-0:0:4/\
                         sas_port/port-0:0:4/num_phys",
                        "1\n",
                    ),
                    (
                        "devices/pci0000:00/0000:00:01.0/0000:01:00.0/host0/port-0:0/expander-0:0/port-0:0:4/\
                         end_device-0:0:4/sas_device/end_device-0:0:4/phy_identifier",
                        "4\n",
                    ),
                ],
                "sas",
                "pci-0000:01:00.0-sas-exp0x500304801f19d53f-phy4-lun-0",
            ),
            (
                "pci0000:00/0000:00:14.0/usb1/1-3/1-3.2/1-3.2:1.0/host6/target6:0:0/6:0:0:0/block/sdf".into(),
                &[],
                "usb",
                "pci-0000:00:14.0-usb-0:3.2:1.0-scsi-0:0:0:0",
            ),
            // Locations without a name: no port number, a remote port, no bus at all.
            (format!("{ahci}/ata1/host0/target0:0:0/0:0:0:0/block/sda"), &[], "sata", ""),
            ("pci0000:00/0000:00:08.0/host7/rport-7:0-0/target7:0:0/7:0:0:0/block/sdg".into(), &[], "fc", ""),
        ];
        for (place, files, transport, by_path) in cases {
            assert_eq!(at(&place, files), (transport, by_path.to_owned()), "{place}");
        }
        assert_eq!(at("virtual/block/nbd0", &[]), ("", String::new()));
        assert_eq!(at("platform/soc/1f00.mmc/mmc_host/mmc0/mmc0:0001/block/mmcblk0", &[]), ("mmc", String::new()));
        let emmc = "pci0000:00/0000:00:1c.0/mmc_host/mmc0/mmc0:0001/block/mmcblk0";
        assert_eq!(at(emmc, &[]), ("mmc", String::new()));
    }

    #[test]
    fn nvme_multipath_namespace_has_the_path_of_its_controller() {
        let tree = FakeMachine::new();
        let head = "virtual/nvme-subsystem/nvme-subsys0/nvme0n2";
        tree.disk(head, "..", 1 << 20);
        tree.write(&format!("sys/devices/{head}/nsid"), "2\n");
        tree.write("sys/devices/pci0000:00/0000:00:1c.4/0000:3c:00.0/nvme/nvme0/model", "KIOXIA KCD6\n");
        tree.link("sys/class/nvme/nvme0", "../../devices/pci0000:00/0000:00:1c.4/0000:3c:00.0/nvme/nvme0");
        let (sys, disk) = (tree.roots().sys, tree.path(&format!("sys/devices/{head}")).canonicalize().unwrap());
        assert_eq!(find_by_path(&sys, &disk), "/dev/disk/by-path/pci-0000:3c:00.0-nvme-2");
        assert_eq!(find_transport(&sys, &disk), "nvme");
    }

    #[test]
    fn pci_and_scsi_addresses_are_distinguished() {
        for pci in ["0000:00:1f.2", "10000:01:00.0", "0000:3c:00.7"] {
            assert!(is_pci_address(pci) && !is_scsi_address(pci), "{pci}");
        }
        for scsi in ["0:0:0:0", "12:0:31:7"] {
            assert!(is_scsi_address(scsi) && !is_pci_address(scsi), "{scsi}");
        }
        for neither in ["pci0000:00", "target0:0:0", "host0", "1-1:1.0", "ata1", ""] {
            assert!(!is_pci_address(neither) && !is_scsi_address(neither), "{neither}");
        }
    }
}
