//! Formats the firmware's boot entries as text, in the format of `efibootmgr -v`.

use super::load_option::{DevicePathNode, LoadOption};
use super::variables::{BootVariables, entry_name};
use common::encoding::encode_hex;
use std::fmt;

impl fmt::Display for BootVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::new();
        lines.extend(self.next.map(|number| format!("BootNext: {number:04X}")));
        lines.extend(self.current.map(|number| format!("BootCurrent: {number:04X}")));
        lines.extend(self.timeout_seconds.map(|seconds| format!("Timeout: {seconds} seconds")));
        let order: Vec<String> = self.order.iter().map(|number| format!("{number:04X}")).collect();
        lines.push(match &self.unreadable_order {
            Some(why) => why.clone(),
            None => format!("BootOrder: {}", order.join(",")),
        });
        lines.extend(self.entries.iter().map(|(number, value)| format_entry(*number, value)));
        f.write_str(&lines.join("\n"))
    }
}

/// Formats an entry: `Boot0001* debian  HD(1,GPT,…,0x800,0x82000)/File(\EFI\debian\shimx64.efi)`.
fn format_entry(number: u16, value: &[u8]) -> String {
    let name = entry_name(number);
    let Some(option) = LoadOption::parse(value) else {
        return format!("{name}  malformed load option ({bytes} bytes)", bytes = value.len());
    };
    let active = if option.is_active() { "*" } else { " " };
    let path = device_path_text(&option).unwrap_or_else(|| "malformed device path".to_owned());
    let optional = format_arguments(&option.optional);
    mask_control_characters(&format!("{name}{active} {}  {path}{optional}", option.description))
}

/// Returns the device path as text (UEFI specification 10.6); `None` if the path is malformed.
pub(crate) fn device_path_text(option: &LoadOption) -> Option<String> {
    Some(option.nodes()?.iter().map(format_node).collect::<Vec<_>>().join("/"))
}

/// Replaces control characters by dots. Firmware and other operating systems may store arbitrary text, whose control
/// characters could manipulate the terminal.
fn mask_control_characters(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '.' } else { letter }).collect()
}

/// Formats optional data. Returns printable data as text. For other data, returns the size in bytes.
fn format_arguments(optional: &[u8]) -> String {
    if optional.is_empty() {
        return String::new();
    }
    match text_arguments(optional) {
        Some(text) => format!("  {text}"),
        None => format!("  {} bytes of data", optional.len()),
    }
}

/// Returns the optional data of a load option as text; `None` if it is empty or not printable ASCII in UTF-16.
pub(crate) fn text_arguments(optional: &[u8]) -> Option<String> {
    let units = optional.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    let text = String::from_utf16(&units.collect::<Vec<_>>()).unwrap_or_default();
    let text = text.trim_end_matches('\0');
    let is_text =
        optional.len().is_multiple_of(2) && text.chars().all(|letter| letter == ' ' || letter.is_ascii_graphic());
    (is_text && !text.is_empty()).then(|| text.to_owned())
}

/// Formats a device node (UEFI specification 10.6.1.6).
fn format_node(node: &DevicePathNode) -> String {
    format_known_node(node).unwrap_or_else(|| format!("Path({},{},{})", node.kind, node.subtype, encode_hex(node.data)))
}

fn format_known_node(DevicePathNode { kind, subtype, data }: &DevicePathNode) -> Option<String> {
    Some(match (kind, subtype) {
        (1, 1) => format!("Pci(0x{:x},0x{:x})", data.get(1)?, data.first()?),
        (1, 4) => format!("VenHw({})", read_guid(data)?),
        (2, 1) => match data.get(..4)? {
            // The ids PNP0A03 and PNP0A08 of PCI and PCI Express root bridges, in EISA encoding.
            [0xd0, 0x41, 0x03 | 0x08, 0x0a] => format!("PciRoot(0x{:x})", read_u32(data, 4)?),
            _ => format!("Acpi(0x{:08x},0x{:x})", read_u32(data, 0)?, read_u32(data, 4)?),
        },
        (3, 2) => format!("Scsi({},{})", read_u16(data, 0)?, read_u16(data, 2)?),
        (3, 5) => format!("USB({},{})", data.first()?, data.get(1)?),
        (3, 10) => format!("VenMsg({})", read_guid(data)?),
        (3, 11) => format!("MAC({},{})", encode_hex(data.get(..6)?), data.get(32)?),
        (3, 12) => "IPv4()".to_owned(),
        (3, 13) => "IPv6()".to_owned(),
        (3, 18) => format!("Sata({},{},{})", read_u16(data, 0)?, read_u16(data, 2)?, read_u16(data, 4)?),
        (3, 20) => format!("Vlan({})", read_u16(data, 0)?),
        (3, 23) => {
            let eui: Vec<String> = data.get(4..12)?.iter().rev().map(|byte| format!("{byte:02X}")).collect();
            format!("NVMe(0x{:x},{})", read_u32(data, 0)?, eui.join("-"))
        }
        (3, 24) => format!("Uri({})", String::from_utf8_lossy(data)),
        (4, 1) => format_partition_node(data)?,
        (4, 2) => format!("CDROM({})", read_u32(data, 0)?),
        (4, 3) => format!("VenMedia({})", read_guid(data)?),
        (4, 4) => {
            let units = data.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
            let units: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
            format!("File({})", String::from_utf16_lossy(&units))
        }
        (4, 6) => format!("FvFile({})", read_guid(data)?),
        (4, 7) => format!("FvVol({})", read_guid(data)?),
        (5, 1) => {
            format!("BBS({},{})", read_u16(data, 0)?, String::from_utf8_lossy(data.get(4..)?).trim_end_matches('\0'))
        }
        _ => return None,
    })
}

fn format_partition_node(data: &[u8]) -> Option<String> {
    let (number, signature) = (read_u32(data, 0)?, data.get(20..36)?);
    let (start, sectors) = (read_u64(data, 4)?, read_u64(data, 12)?);
    let (format, signature) = match data.get(36..38)? {
        [2, 2] => ("GPT", read_guid(signature)?),
        [1, 1] => ("MBR", format!("0x{:08x}", read_u32(signature, 0)?)),
        _ => return None,
    };
    Some(format!("HD({number},{format},{signature},0x{start:x},0x{sectors:x})"))
}

fn read_guid(data: &[u8]) -> Option<String> {
    Some(uuid::Uuid::from_bytes_le(data.get(..16)?.try_into().ok()?).to_string())
}

fn read_u16(data: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(data.get(at..at + 2)?.try_into().ok()?))
}

fn read_u32(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(data.get(at..at + 4)?.try_into().ok()?))
}

fn read_u64(data: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(data.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::load_option::testing::{PCI, mac_node, option, partition};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn displays_all_boot_variables() {
        let root = [&[2, 1, 12, 0, 0xd0, 0x41, 0x03, 0x0a][..], &[0; 4]].concat();
        let mac_node = mac_node([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
        let network = option(1, "UEFI PXEv4\u{7}", &[&root, PCI, &mac_node, &[&[3, 12, 27, 0][..], &[0; 23]].concat()]);
        let nvme = [&[3, 23, 16, 0, 1, 0, 0, 0][..], &[8, 7, 6, 5, 4, 3, 2, 1]].concat();
        let mut off = option(0, "off", &[&root, &nvme, &[9, 9, 5, 0, 0xab]]);
        off.optional = vec![0, 0, b'B', b'O'];
        let esp = partition(0xd06ff472_d7a1_4617_b48e_c6b2eff6fe8d);
        let ours = LoadOption::for_file("drophammer: web-1", esp, r"\EFI\debian\shimx64.efi", "ro quiet").unwrap();
        let entries =
            [(0, ours.to_bytes()), (3, network.to_bytes()), (0x1a, off.to_bytes()), (0x1b, vec![1, 2])].into();
        let (order, current) = (vec![3, 0, 0x99], Some(3));
        let variables = BootVariables { entries, order, current, timeout_seconds: Some(5), ..BootVariables::default() };
        let expected = "\
BootCurrent: 0003
Timeout: 5 seconds
BootOrder: 0003,0000,0099
Boot0000* drophammer: web-1  HD(1,GPT,d06ff472-d7a1-4617-b48e-c6b2eff6fe8d,0x800,0x82000)/File(\\EFI\\debian\\shimx64.efi)  ro quiet
Boot0003* UEFI PXEv4.  PciRoot(0x0)/Pci(0x2,0x0)/MAC(525400123456,1)/IPv4()
Boot001A  off  PciRoot(0x0)/NVMe(0x1,01-02-03-04-05-06-07-08)/Path(9,9,ab)  4 bytes of data
Boot001B  malformed load option (2 bytes)";
        assert_eq!(variables.to_string(), expected);
    }

    proptest! {
        #[test]
        fn any_load_option_is_displayed_without_control_characters(kind in 0u8..6, subtype in 0u8..26, data in proptest::collection::vec(any::<u8>(), 0..60)) {
            let length = u8::try_from(data.len() + 4).unwrap();
            let whole = [&[kind, subtype, length, 0][..], &data].concat();
            let text = format_entry(1, &option(1, "x", &[&whole]).to_bytes());
            prop_assert!(!text.chars().any(char::is_control));
        }
    }
}
