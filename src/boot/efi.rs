//! The firmware's boot entries through efivarfs: which of them boots over the network, and that it comes next, once.
//! Layouts are the UEFI specification's: 3.1.3 load options, 10.3 device paths.

use crate::error::{Context, Error, Phase, Result};
use nix::errno::Errno;
use nix::libc::c_long;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// efivarfs, where the kernel shows it.
pub const VARIABLES: &str = "/sys/firmware/efi/efivars";

/// Vendor of all variables that the specification names.
const GLOBAL: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// Non-volatile, for boot services and for the running system.
const ATTRIBUTES: u32 = 7;

const ACTIVE: u32 = 1;

/// A boot entry that starts from the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkEntry {
    /// `Boot0003`.
    pub number: u16,
    pub description: String,
    /// Of the network card, `52:54:00:12:34:56`.
    pub mac: String,
    /// Over HTTP: needs more of a server than PXE does.
    http: bool,
    ipv6: bool,
}

/// The entry that boots this machine over PXE: one of its own cards before others, PXE before HTTP, IPv4 before IPv6, and
/// then the firmware's order. `None` where there is none.
///
/// # Errors
/// The variables cannot be read.
pub fn network_entry(variables: &Path, macs: &[String]) -> Result<Option<NetworkEntry>> {
    let what = || format!("read {}", variables.display());
    let order = read(variables, "BootOrder").unwrap_or_default();
    let order: Vec<u16> = order.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
    let mut entries = Vec::new();
    for file in fs::read_dir(variables).context(Phase::Boot, what)? {
        let name = file.context(Phase::Boot, what)?.file_name();
        let Some(number) = name.to_str().and_then(entry_number) else { continue };
        let entry = read(variables, &format!("Boot{number:04X}")).and_then(|option| parse(number, &option));
        entries.extend(entry);
    }
    let place = |number: u16| order.iter().position(|other| *other == number).unwrap_or(order.len());
    entries
        .sort_by_key(|entry| (!macs.contains(&entry.mac), entry.http, entry.ipv6, place(entry.number), entry.number));
    Ok(entries.into_iter().next())
}

/// Makes the firmware start this entry the next time, and only then.
///
/// # Errors
/// The firmware or the kernel refuses, or does not keep it.
pub fn set_boot_next(variables: &Path, number: u16) -> Result<()> {
    let path = file(variables, "BootNext");
    let what = || format!("write {}", path.display());
    if let Ok(there) = File::open(&path) {
        make_mutable(&there).context(Phase::Boot, || format!("clear the immutable flag of {}", path.display()))?;
    }
    // efivarfs takes attributes and value in one write(2) or not at all.
    let content = [&ATTRIBUTES.to_le_bytes()[..], &number.to_le_bytes()].concat();
    let opened = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
    opened.and_then(|mut variable| variable.write_all(&content)).context(Phase::Boot, what)?;
    if read(variables, "BootNext").as_deref() != Some(&number.to_le_bytes()) {
        return Err(Error::new(Phase::Boot, format!("{} does not keep what was written", path.display())));
    }
    Ok(())
}

fn file(variables: &Path, name: &str) -> PathBuf {
    variables.join(format!("{name}-{GLOBAL}"))
}

/// The value of a variable, without its attributes.
fn read(variables: &Path, name: &str) -> Option<Vec<u8>> {
    Some(fs::read(file(variables, name)).ok()?.get(4..)?.to_vec())
}

/// `Boot0003-8be4df61-…` is number 3.
fn entry_number(file: &str) -> Option<u16> {
    let digits = file.strip_suffix(GLOBAL)?.strip_suffix('-')?.strip_prefix("Boot")?;
    let hexadecimal = digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    u16::from_str_radix(digits, 16).ok().filter(|_| hexadecimal)
}

/// A load option whose device path has a network card; `None` for all others, for inactive and for broken ones.
fn parse(number: u16, option: &[u8]) -> Option<NetworkEntry> {
    let attributes = u32::from_le_bytes(option.get(..4)?.try_into().ok()?);
    let path_bytes = usize::from(u16::from_le_bytes(option.get(4..6)?.try_into().ok()?));
    let units = option.get(6..)?.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    let description: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
    let start = 6 + (description.len() + 1) * 2;
    let mut path = option.get(start..start + path_bytes)?;
    let (mut mac, mut http, mut ipv6) = (None, false, false);
    // Type, subtype, length of the node with these four bytes.
    while let [kind, subtype, low, high, ..] = *path {
        let length = usize::from(u16::from_le_bytes([low, high]));
        let node = path.get(..length).filter(|node| node.len() >= 4)?;
        match (kind, subtype) {
            (3, 11) => mac = Some(node.get(4..10)?),
            (3, 13) => ipv6 = true,
            (3, 24) => http = true,
            (0x7f, _) => break,
            _ => {}
        }
        path = &path[length..];
    }
    let digits: Vec<String> = mac?.iter().map(|byte| format!("{byte:02x}")).collect();
    let entry =
        NetworkEntry { number, description: String::from_utf16_lossy(&description), mac: digits.join(":"), http, ipv6 };
    (attributes & ACTIVE != 0).then_some(entry)
}

mod ioctl {
    use nix::libc::c_long;

    nix::ioctl_read!(get_flags, b'f', 1, c_long);
    nix::ioctl_write_ptr!(set_flags, b'f', 2, c_long);
}

/// FS_IMMUTABLE_FL: efivarfs sets it on what it does not know, so that `rm -r` kills no firmware.
const IMMUTABLE: c_long = 0x10;

fn make_mutable(file: &File) -> nix::Result<()> {
    let mut flags: c_long = 0;
    // SAFETY: the descriptor is open. The kernel writes and reads an int there, which a long has room for.
    match unsafe { ioctl::get_flags(file.as_raw_fd(), &mut flags) } {
        // No such flags, so none is set.
        Err(Errno::ENOTTY | Errno::EOPNOTSUPP) => return Ok(()),
        other => other?,
    };
    if flags & IMMUTABLE == 0 {
        return Ok(());
    }
    flags &= !IMMUTABLE;
    // SAFETY: as above.
    unsafe { ioctl::set_flags(file.as_raw_fd(), &flags) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
    const PCI: &[u8] = &[1, 1, 6, 0, 0, 2];
    const IPV4: &[u8] = &[3, 12, 5, 0, 0];
    const IPV6: &[u8] = &[3, 13, 5, 0, 0];
    const URI: &[u8] = &[3, 24, 4, 0];
    const END: &[u8] = &[0x7f, 0xff, 4, 0];

    fn card(mac: [u8; 6]) -> Vec<u8> {
        [&[3, 11, 37, 0][..], &mac, &[0; 26], &[1]].concat()
    }

    fn option(attributes: u32, description: &str, nodes: &[&[u8]]) -> Vec<u8> {
        let path = nodes.concat();
        let text: Vec<u8> = description.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
        let length = u16::try_from(path.len()).unwrap().to_le_bytes();
        [&attributes.to_le_bytes()[..], &length, &text, &path, b"optional data"].concat()
    }

    fn write(variables: &Path, name: &str, value: &[u8]) {
        fs::write(file(variables, name), [&ATTRIBUTES.to_le_bytes()[..], value].concat()).unwrap();
    }

    #[test]
    fn a_load_option_with_a_card_is_a_network_entry() {
        let whole = option(1, "UEFI PXEv4 (MAC:525400123456)", &[PCI, &card(MAC), IPV4, END]);
        let entry = parse(3, &whole).unwrap();
        assert_eq!((entry.number, entry.mac.as_str(), entry.http, entry.ipv6), (3, "52:54:00:12:34:56", false, false));
        assert_eq!(entry.description, "UEFI PXEv4 (MAC:525400123456)");
        let http = parse(4, &option(1, "HTTP", &[PCI, &card(MAC), IPV6, URI, END])).unwrap();
        assert!(http.http && http.ipv6);
        for (what, option) in [
            ("a disk", option(1, "debian", &[PCI, &[4, 1, 42, 0], &[0; 38], END])),
            ("inactive", option(0, "off", &[PCI, &card(MAC), END])),
            ("a card after the end", option(1, "late", &[PCI, END, &card(MAC)])),
            ("a node of no length", option(1, "zero", &[&[3, 11, 0, 0], &card(MAC), END])),
            ("a node beyond the path", option(1, "long", &[&[1, 1, 200, 0], &card(MAC), END])),
            ("a card without address", option(1, "short", &[&[3, 11, 6, 0, 1, 2], END])),
            ("no path", option(1, "none", &[])),
            ("nothing", Vec::new()),
        ] {
            assert_eq!(parse(1, &option), None, "{what}");
        }
        for length in 0..whole.len() - b"optional data".len() - END.len() {
            assert_eq!(parse(1, &whole[..length]), None, "cut at {length}");
        }
    }

    #[test]
    fn the_own_card_and_plain_pxe_come_first_then_the_firmwares_order() {
        let directory = tempfile::tempdir().unwrap();
        let variables = directory.path();
        let other = [2, 0, 0, 0, 0, 1];
        assert_eq!(network_entry(variables, &[]).unwrap(), None);
        for (name, nodes) in [
            ("Boot0000", &[PCI, &card(MAC), IPV4, URI, END][..]),
            ("Boot0001", &[PCI, &card(MAC), IPV6, END]),
            ("Boot0002", &[PCI, &card(MAC), IPV4, END]),
            ("Boot000A", &[PCI, &card(MAC), IPV4, END]),
            ("Boot0004", &[PCI, &card(other), IPV4, END]),
            ("Boot0005", &[PCI, END]),
        ] {
            write(variables, name, &option(1, name, nodes));
        }
        write(variables, "Boot0006", b"");
        write(variables, "BootOrder", &[5, 0, 4, 0, 10, 0, 2, 0, 9]);
        fs::write(variables.join("BootXYZW-00000000-0000-0000-0000-000000000000"), "").unwrap();
        let mac = "52:54:00:12:34:56".to_owned();
        let chosen = |macs: &[String]| network_entry(variables, macs).unwrap().unwrap().number;
        assert_eq!(chosen(&[mac]), 0x0a);
        assert_eq!(chosen(&["02:00:00:00:00:01".to_owned()]), 4);
        assert_eq!(chosen(&[]), 4);
        let error = network_entry(&variables.join("no"), &[]).unwrap_err().to_string();
        assert!(error.starts_with("read ") && error.contains("No such file"), "{error}");
    }

    #[test]
    fn boot_next_is_written_with_its_attributes_and_replaced() {
        let directory = tempfile::tempdir().unwrap();
        for number in [3, 0x1234] {
            set_boot_next(directory.path(), number).unwrap();
            let [low, high] = number.to_le_bytes();
            assert_eq!(fs::read(file(directory.path(), "BootNext")).unwrap(), [7, 0, 0, 0, low, high]);
        }
        let error = set_boot_next(&directory.path().join("no"), 1).unwrap_err().to_string();
        assert!(error.contains("BootNext-8be4df61"), "{error}");
    }
}
