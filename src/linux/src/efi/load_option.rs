//! UEFI load options, such as `Boot0003` (UEFI specification 3.1.3), and their device paths (10.3).

use uuid::Uuid;

const ACTIVE: u32 = 1;

/// Partition table format and signature type in the node of a GPT partition.
const GPT: u8 = 2;
const GUID: u8 = 2;

const END_NODE: &[u8] = &[0x7f, 0xff, 4, 0];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadOption {
    pub attributes: u32,
    /// Title in the firmware's menu.
    pub description: String,
    path: Vec<u8>,
    /// Arguments passed to the boot loader.
    pub optional: Vec<u8>,
}

/// GPT partition in the device path of a load option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionLocation {
    pub number: u32,
    pub guid: Uuid,
    /// First logical sector of the partition. `sectors` is the size of the partition in logical sectors.
    pub first_lba: u64,
    pub sectors: u64,
}

/// A node of a device path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevicePathNode<'a> {
    pub kind: u8,
    pub subtype: u8,
    /// Payload of the node, without its type, subtype and length.
    pub data: &'a [u8],
}

impl LoadOption {
    /// Returns a load option that starts a program on this partition; `None` if the program's path cannot be encoded.
    pub fn for_file(
        label: &str,
        partition: impl Into<PartitionLocation>,
        loader: &str,
        arguments: &str,
    ) -> Option<LoadOption> {
        let description: String = label.chars().filter(|letter| !letter.is_control()).collect();
        let loader = loader.replace('/', "\\");
        let loader = if loader.starts_with('\\') { loader } else { format!("\\{loader}") };
        if loader.len() < 2 || loader.chars().any(char::is_control) {
            return None;
        }
        let path = [
            encode_partition_node(&partition.into()),
            encode_node(4, 4, &encode_utf16_nul(&loader))?,
            END_NODE.to_vec(),
        ]
        .concat();
        // In a load option, the length field of the device path has 16 bits. The other parts of the load option do not
        // have length fields, so only the device path is limited.
        u16::try_from(path.len()).ok()?;
        let optional = if arguments.is_empty() { Vec::new() } else { encode_utf16_nul(arguments) };
        Some(LoadOption { attributes: ACTIVE, description, path, optional })
    }

    /// Parses a load option; `None` if it is malformed.
    pub fn parse(value: &[u8]) -> Option<LoadOption> {
        let attributes = u32::from_le_bytes(value.get(..4)?.try_into().ok()?);
        let path_bytes = usize::from(u16::from_le_bytes(value.get(4..6)?.try_into().ok()?));
        let units = value.get(6..)?.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
        let description: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
        let start = 6 + (description.len() + 1) * 2;
        let path = value.get(start..start + path_bytes)?.to_vec();
        let optional = value.get(start + path_bytes..)?.to_vec();
        Some(LoadOption { attributes, description: String::from_utf16_lossy(&description), path, optional })
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        // The conversion cannot fail: the length of the path was limited to the range of u16 when the load option was
        // created or parsed.
        let length = u16::try_from(self.path.len()).unwrap_or_default().to_le_bytes();
        let description = encode_utf16_nul(&self.description);
        [&self.attributes.to_le_bytes()[..], &length, &description, &self.path, &self.optional].concat()
    }

    pub fn is_active(&self) -> bool {
        self.attributes & ACTIVE != 0
    }

    /// Returns the nodes of the path without its terminator; `None` if the path is malformed.
    pub fn nodes(&self) -> Option<Vec<DevicePathNode<'_>>> {
        let (mut path, mut nodes) = (&self.path[..], Vec::new());
        // A node starts with type, subtype, and a length that includes these four bytes.
        while let [kind, subtype, low, high, ..] = *path {
            let length = usize::from(u16::from_le_bytes([low, high]));
            let node = path.get(..length).filter(|node| node.len() >= 4)?;
            if kind == 0x7f {
                break;
            }
            nodes.push(DevicePathNode { kind, subtype, data: &node[4..] });
            path = &path[length..];
        }
        Some(nodes)
    }
}

impl DevicePathNode<'_> {
    /// Returns the GUID of the GPT partition that this node identifies (10.3.5.1); `None` for any other node.
    pub fn partition_guid(&self) -> Option<Uuid> {
        let is_gpt = (self.kind, self.subtype) == (4, 1) && self.data.get(36..38)? == [GPT, GUID];
        is_gpt.then(|| self.data.get(20..36)?.try_into().ok().map(Uuid::from_bytes_le)).flatten()
    }
}

/// Encodes a GPT partition as a short-form device path (3.1.2). A short-form path does not contain the location of the
/// disk, so the firmware finds the partition even if the disk is moved to another slot.
fn encode_partition_node(partition: &PartitionLocation) -> Vec<u8> {
    let PartitionLocation { number, guid, first_lba, sectors } = partition;
    let (start, sectors) = (first_lba.to_le_bytes(), sectors.to_le_bytes());
    let data = [&number.to_le_bytes()[..], &start, &sectors, &guid.to_bytes_le(), &[GPT, GUID]].concat();
    [&[4, 1, 42, 0][..], &data].concat()
}

fn encode_node(kind: u8, subtype: u8, data: &[u8]) -> Option<Vec<u8>> {
    let [low, high] = u16::try_from(data.len() + 4).ok()?.to_le_bytes();
    Some([&[kind, subtype, low, high][..], data].concat())
}

/// Encodes text as NUL-terminated UTF-16.
fn encode_utf16_nul(text: &str) -> Vec<u8> {
    text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect()
}

impl From<&operations::Esp> for PartitionLocation {
    fn from(esp: &operations::Esp) -> PartitionLocation {
        PartitionLocation { number: esp.number, guid: esp.guid, first_lba: esp.first_lba, sectors: esp.sectors }
    }
}

#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used)]
pub mod testing {
    use super::*;

    pub const PCI: &[u8] = &[1, 1, 6, 0, 0, 2];

    /// Returns a load option whose device path consists of these nodes and the end node.
    pub fn option(attributes: u32, description: &str, nodes: &[&[u8]]) -> LoadOption {
        let path = [nodes.concat(), END_NODE.to_vec()].concat();
        LoadOption { attributes, description: description.to_owned(), path, optional: Vec::new() }
    }

    pub fn mac_node(mac: [u8; 6]) -> Vec<u8> {
        [&[3, 11, 37, 0][..], &mac, &[0; 26], &[1]].concat()
    }

    pub fn partition(guid: u128) -> PartitionLocation {
        PartitionLocation { number: 1, guid: Uuid::from_u128(guid), first_lba: 2048, sectors: 532_480 }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::partition;
    use super::*;
    use proptest::prelude::*;

    /// Published example: `Boot0000` of an Arch Linux system, created by `grub-install` through efibootmgr.
    const GRUB: &str = "01000000 5e00 47005200550042000000 \
        04012a00 01000000 0008000000000000 0020080000000000 72f46fd0a1d71746b48ec6b2eff6fe8d 0202 \
        04043000 5c00450046004900 5c0047005200550042005c00 67007200750062007800360034002e006500660069000000 7fff0400";

    fn bytes(hexadecimal: &str) -> Vec<u8> {
        let digits: Vec<u8> = hexadecimal.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }

    #[test]
    fn load_option_equals_that_of_other_tools() {
        let esp = PartitionLocation { sectors: 0x82000, ..partition(0xd06ff472_d7a1_4617_b48e_c6b2eff6fe8d) };
        let made = LoadOption::for_file("GRUB", esp, r"\EFI\GRUB\grubx64.efi", "").unwrap();
        assert_eq!(made.to_bytes(), bytes(GRUB));
        assert_eq!(LoadOption::parse(&bytes(GRUB)), Some(made.clone()));
        assert_eq!(LoadOption::for_file("GRUB", esp, "EFI/GRUB/grubx64.efi", ""), Some(made));
    }

    #[test]
    fn arguments_are_nul_terminated_text() {
        let made = LoadOption::for_file("drophammer: wüb-1\n", partition(7), r"\vmlinuz.efi", "ro a").unwrap();
        assert_eq!((made.description.as_str(), &made.optional[..]), ("drophammer: wüb-1", &b"r\0o\0 \0a\0\0\0"[..]));
        assert_eq!(LoadOption::parse(&made.to_bytes()), Some(made));
    }

    #[test]
    fn refuses_loader_paths_that_firmware_does_not_accept() {
        let esp = partition(7);
        for loader in ["", "\\", "a\0b", &"x".repeat(40_000)[..], &"x".repeat(32_750)[..]] {
            assert_eq!(LoadOption::for_file("a", esp, loader, ""), None, "{} letters", loader.len());
        }
        assert!(LoadOption::for_file("a", esp, &"x".repeat(32_000), "").is_some());
    }

    proptest! {
        #[test]
        fn mutated_load_options_are_parsed_or_refused(
            changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..8),
            length in any::<proptest::sample::Index>(),
        ) {
            let mut value = bytes(GRUB);
            for (place, byte) in changes {
                *place.get_mut(&mut value) = byte;
            }
            value.truncate(length.index(value.len() + 1));
            if let Some(option) = LoadOption::parse(&value) {
                let nodes = option.nodes().unwrap_or_default();
                prop_assert!(nodes.iter().map(|node| node.data.len() + 4).sum::<usize>() <= value.len());
                let again = LoadOption::parse(&option.to_bytes()).unwrap();
                prop_assert_eq!(again.nodes(), option.nodes());
            }
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(value in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = LoadOption::parse(&value).and_then(|option| option.nodes().map(|nodes| nodes.len()));
        }
    }
}
