//! Selection of a network boot entry of the firmware, for the next boot only.

use common::encoding::join_hex;
use common::error::{Context, Error, Phase, Result};
use linux::efi::LoadOption;
use linux::efi::variables::{self, BootVariables};
use std::path::Path;

/// Boot entry that starts from the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkEntry {
    /// Number of the boot entry, such as 3 for `Boot0003`.
    pub number: u16,
    pub description: String,
    /// MAC of the network interface, such as `52:54:00:12:34:56`.
    pub mac: String,
    /// Whether the entry boots over HTTP. A server that supports only PXE cannot serve such an entry.
    pub(super) http: bool,
    pub(super) ipv6: bool,
}

/// Returns the best entry for a network boot of this machine. NICs in `macs` are preferred to other NICs, PXE to HTTP,
/// and IPv4 to IPv6; the firmware's order decides among equal entries. Returns `None` if there is no network boot
/// entry.
///
/// # Errors
/// Fails if the variables cannot be read.
pub fn find_pxe_entry(directory: &Path, macs: &[String]) -> Result<Option<NetworkEntry>> {
    let variables = BootVariables::read(directory)?;
    let place = |number: u16| variables.position_in_order(number).unwrap_or(variables.order.len());
    let entries = variables.entries.iter().filter_map(|(number, option)| parse_network_entry(*number, option));
    Ok(entries
        .min_by_key(|entry| (!macs.contains(&entry.mac), entry.http, entry.ipv6, place(entry.number), entry.number)))
}

/// Makes the firmware start this entry at the next boot only.
///
/// # Errors
/// Fails if the kernel or the firmware refuses the write or does not store the value.
pub fn set_boot_next(directory: &Path, number: u16) -> Result<()> {
    let path = variables::variable_path(directory, "BootNext");
    let value = number.to_le_bytes();
    variables::write_variable(directory, "BootNext", &value)
        .context(Phase::Boot, || format!("write {}", path.display()))?;
    if variables::read_variable(directory, "BootNext").as_deref() != Some(&value) {
        return Err(Error::new(
            Phase::Boot,
            format!("{path}: the firmware did not store the written value", path = path.display()),
        ));
    }
    Ok(())
}

/// Parses a load option whose device path contains a MAC address. Returns `None` if the device path contains no MAC
/// address, or if the load option is inactive or malformed.
pub(super) fn parse_network_entry(number: u16, option: &[u8]) -> Option<NetworkEntry> {
    let option = LoadOption::parse(option)?;
    let (mut mac, mut http, mut ipv6) = (None, false, false);
    for node in option.nodes()? {
        match (node.kind, node.subtype) {
            (3, 11) => mac = Some(node.data.get(..6)?),
            (3, 13) => ipv6 = true,
            (3, 24) => http = true,
            _ => {}
        }
    }
    let mac = join_hex(mac?, ":");
    let active = option.is_active();
    let entry = NetworkEntry { number, description: option.description, mac, http, ipv6 };
    active.then_some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::efi::variables::testing::write;
    use std::fs;

    const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
    const PCI: &[u8] = &[1, 1, 6, 0, 0, 2];
    const IPV4: &[u8] = &[3, 12, 5, 0, 0];
    const IPV6: &[u8] = &[3, 13, 5, 0, 0];
    const URI: &[u8] = &[3, 24, 4, 0];
    const END: &[u8] = &[0x7f, 0xff, 4, 0];

    fn mac_node(mac: [u8; 6]) -> Vec<u8> {
        [&[3, 11, 37, 0][..], &mac, &[0; 26], &[1]].concat()
    }

    fn option(attributes: u32, description: &str, nodes: &[&[u8]]) -> Vec<u8> {
        let path = nodes.concat();
        let text: Vec<u8> = description.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
        let length = u16::try_from(path.len()).unwrap().to_le_bytes();
        [&attributes.to_le_bytes()[..], &length, &text, &path, b"optional data"].concat()
    }

    #[test]
    fn load_option_with_a_nic_is_a_network_entry() {
        let whole = option(1, "UEFI PXEv4 (MAC:525400123456)", &[PCI, &mac_node(MAC), IPV4, END]);
        let entry = parse_network_entry(3, &whole).unwrap();
        assert_eq!((entry.number, entry.mac.as_str(), entry.http, entry.ipv6), (3, "52:54:00:12:34:56", false, false));
        assert_eq!(entry.description, "UEFI PXEv4 (MAC:525400123456)");
        let http = parse_network_entry(4, &option(1, "HTTP", &[PCI, &mac_node(MAC), IPV6, URI, END])).unwrap();
        assert!(http.http && http.ipv6);
        for (what, option) in [
            ("a disk", option(1, "debian", &[PCI, &[4, 1, 42, 0], &[0; 38], END])),
            ("inactive", option(0, "off", &[PCI, &mac_node(MAC), END])),
            ("a NIC after the end", option(1, "late", &[PCI, END, &mac_node(MAC)])),
            ("a node of no length", option(1, "zero", &[&[3, 11, 0, 0], &mac_node(MAC), END])),
            ("a node beyond the path", option(1, "long", &[&[1, 1, 200, 0], &mac_node(MAC), END])),
            ("a NIC without address", option(1, "short", &[&[3, 11, 6, 0, 1, 2], END])),
            ("no path", option(1, "none", &[])),
            ("nothing", Vec::new()),
        ] {
            assert_eq!(parse_network_entry(1, &option), None, "{what}");
        }
        for length in 0..whole.len() - b"optional data".len() - END.len() {
            assert_eq!(parse_network_entry(1, &whole[..length]), None, "cut at {length}");
        }
    }

    #[test]
    fn own_nic_and_plain_pxe_precede_the_firmware_order() {
        let directory = tempfile::tempdir().unwrap();
        let variables = directory.path();
        let other = [2, 0, 0, 0, 0, 1];
        assert_eq!(find_pxe_entry(variables, &[]).unwrap(), None);
        for (name, nodes) in [
            ("Boot0000", &[PCI, &mac_node(MAC), IPV4, URI, END][..]),
            ("Boot0001", &[PCI, &mac_node(MAC), IPV6, END]),
            ("Boot0002", &[PCI, &mac_node(MAC), IPV4, END]),
            ("Boot000A", &[PCI, &mac_node(MAC), IPV4, END]),
            ("Boot0004", &[PCI, &mac_node(other), IPV4, END]),
            ("Boot0005", &[PCI, END]),
        ] {
            write(variables, name, &option(1, name, nodes));
        }
        write(variables, "Boot0006", b"");
        write(variables, "BootOrder", &[5, 0, 4, 0, 10, 0, 2, 0, 9]);
        fs::write(variables.join("BootXYZW-00000000-0000-0000-0000-000000000000"), "").unwrap();
        let mac = "52:54:00:12:34:56".to_owned();
        let chosen = |macs: &[String]| find_pxe_entry(variables, macs).unwrap().unwrap().number;
        assert_eq!(chosen(&[mac]), 0x0a);
        assert_eq!(chosen(&["02:00:00:00:00:01".to_owned()]), 4);
        assert_eq!(chosen(&[]), 4);
        let error = find_pxe_entry(&variables.join("no"), &[]).unwrap_err().to_string();
        assert!(error.starts_with("read ") && error.contains("No such file"), "{error}");
    }

    #[test]
    fn boot_next_is_written_with_its_attributes_and_replaced() {
        let directory = tempfile::tempdir().unwrap();
        for number in [3, 0x1234] {
            set_boot_next(directory.path(), number).unwrap();
            let [low, high] = number.to_le_bytes();
            assert_eq!(
                fs::read(variables::variable_path(directory.path(), "BootNext")).unwrap(),
                [7, 0, 0, 0, low, high]
            );
        }
        let error = set_boot_next(&directory.path().join("no"), 1).unwrap_err().to_string();
        assert!(error.contains("BootNext-8be4df61"), "{error}");
    }
}
