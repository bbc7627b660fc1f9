//! Options for network boot on the command line.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::str::FromStr;

/// Options for network boot.
#[derive(Debug, Clone)]
pub struct PxeOptions {
    pub nic: String,
    /// Range from which addresses are assigned; `None` if another DHCP server assigns them.
    pub range: Option<AddressRange>,
    /// DHCP options that are sent to all clients.
    pub dhcp_options: Vec<DhcpOption>,
    /// Directory with iPXE's binaries; `None` for the directory in which Debian installs them.
    pub ipxe: Option<PathBuf>,
}

impl PxeOptions {
    /// Returns whether clients receive an address from this server, but no DNS server.
    pub fn assigns_without_dns(&self) -> bool {
        self.range.is_some() && !self.dhcp_options.iter().any(|option| option.is("6", "dns-server"))
    }

    /// Returns the DNS servers that clients receive with their addresses.
    pub(super) fn dns_servers(&self) -> Vec<Ipv4Addr> {
        let options = self.dhcp_options.iter().filter(|option| self.range.is_some() && option.is("6", "dns-server"));
        options.flat_map(|option| option.value.split(',').filter_map(|address| address.parse().ok())).collect()
    }
}

/// Range of addresses, such as `10.0.0.100,10.0.0.200`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    pub first: Ipv4Addr,
    pub last: Ipv4Addr,
}

impl FromStr for AddressRange {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<AddressRange, String> {
        let form = || "must be the first and the last address, such as 10.0.0.100,10.0.0.200".to_owned();
        let (first, last) = text.split_once(',').ok_or_else(form)?;
        let read = |address: &str| address.trim().parse().map_err(|_| form());
        let (first, last) = (read(first)?, read(last)?);
        if first > last {
            Err(format!("the first address {first} comes after the last address {last}"))
        } else {
            Ok(AddressRange { first, last })
        }
    }
}

/// DHCP option with its value, such as `ntp-server,10.0.0.5`, in the notation of dnsmasq.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DhcpOption {
    /// Option name, as listed by `dnsmasq --help dhcp`, or option number.
    name: String,
    value: String,
}

impl DhcpOption {
    /// Returns whether this option has the given number or name.
    pub(super) fn is(&self, number: &str, name: &str) -> bool {
        self.name == number || self.name == name
    }

    /// Returns the line for dnsmasq's configuration.
    pub(super) fn config_line(&self) -> String {
        let kind = if self.name.bytes().all(|byte| byte.is_ascii_digit()) { "" } else { "option:" };
        format!("dhcp-option={kind}{},{}\n", self.name, self.value)
    }
}

/// DHCP options that `--pxe` sets itself, by number and name. The operator must not set them.
const RESERVED_DHCP_OPTIONS: [(&str, &str); 5] =
    [("43", "vendor-encap"), ("60", "vendor-class"), ("66", "tftp-server"), ("67", "bootfile-name"), ("150", "")];

impl FromStr for DhcpOption {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<DhcpOption, String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-,/:@_".contains(&byte);
        let given = text.split_once(',').filter(|(_, value)| !value.is_empty() && value.bytes().all(plain));
        let Some((name, value)) = given.filter(|(name, _)| !name.is_empty() && !name.contains([':', '@', '/'])) else {
            return Err("must be the name or number of an option and its value, such as ntp-server,10.0.0.5".to_owned());
        };
        let option = DhcpOption { name: name.to_owned(), value: value.to_owned() };
        match RESERVED_DHCP_OPTIONS.iter().find(|(number, name)| option.is(number, name)) {
            Some(_) => Err(format!("DHCP option {name} cannot be specified, because --pxe sets this option")),
            None if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') => {
                Err(format!("{name:?} is not the name or number of an option"))
            }
            None => Ok(option),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_two_addresses_in_order() {
        let range: AddressRange = "10.0.0.100,10.0.0.200".parse().unwrap();
        assert_eq!((range.first.to_string(), range.last.octets()[3]), ("10.0.0.100".to_owned(), 200));
        for (text, expected) in [
            ("10.0.0.100", "must be the first and the last address"),
            ("10.0.0.100,x", "must be the first and the last address"),
            ("10.0.0.100-10.0.0.200", "must be the first and the last address"),
            ("10.0.0.2,10.0.0.1", "the first address 10.0.0.2 comes after the last address 10.0.0.1"),
        ] {
            assert!(text.parse::<AddressRange>().unwrap_err().contains(expected), "{text}");
        }
    }

    #[test]
    fn dhcp_options_become_dnsmasq_lines() {
        for (text, line) in [
            ("ntp-server,10.0.0.5", "dhcp-option=option:ntp-server,10.0.0.5\n"),
            ("dns-server,10.0.0.53,10.0.0.54", "dhcp-option=option:dns-server,10.0.0.53,10.0.0.54\n"),
            ("121,192.0.2.0/24,10.0.0.254", "dhcp-option=121,192.0.2.0/24,10.0.0.254\n"),
        ] {
            assert_eq!(text.parse::<DhcpOption>().unwrap().config_line(), line);
        }
        for (text, expected) in [
            ("ntp-server", "must be the name or number"),
            ("ntp-server,", "must be the name or number"),
            (",10.0.0.5", "must be the name or number"),
            ("ntp-server,10.0.0.5\nuser=root", "must be the name or number"),
            ("ntp-server,a b", "must be the name or number"),
            ("tag:x,ntp-server,10.0.0.5", "must be the name or number"),
            ("ntp server,10.0.0.5", "is not the name or number of an option"),
            ("67,other.efi", "DHCP option 67 cannot be specified"),
            ("bootfile-name,other.efi", "because --pxe sets this option"),
        ] {
            let why = text.parse::<DhcpOption>().unwrap_err();
            assert!(why.contains(expected), "{text}: {why}");
        }
    }
}
