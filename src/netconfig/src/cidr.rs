//! IP addresses with a prefix length, and validation of addresses.

use model::machine_identity::{self, is_group_mac};
use serde::{Serialize, Serializer};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IP address with a prefix length: `10.0.0.7/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    pub address: IpAddr,
    pub prefix: u8,
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl Serialize for Cidr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn address_bits(address: &IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Returns the address as a 128-bit number. An IPv4 address is in the 32 most significant bits.
fn left_aligned_bits(address: &IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Returns the network mask of a prefix length, aligned like the result of [`left_aligned_bits`].
fn prefix_mask(prefix: u8) -> u128 {
    match prefix {
        0 => 0,
        _ => u128::MAX << (128 - u32::from(prefix.min(128))),
    }
}

impl Cidr {
    pub(crate) fn is_v4(&self) -> bool {
        self.address.is_ipv4()
    }

    /// Returns whether the prefix contains all addresses of its address family.
    pub(crate) fn is_default(&self) -> bool {
        self.prefix == 0
    }

    pub(crate) fn contains(&self, address: &IpAddr) -> bool {
        self.is_v4() == address.is_ipv4()
            && (left_aligned_bits(&self.address) ^ left_aligned_bits(address)) & prefix_mask(self.prefix) == 0
    }

    /// Returns the prefix that contains only this address.
    pub(crate) fn single_address(address: IpAddr) -> Cidr {
        Cidr { address, prefix: address_bits(&address) }
    }

    /// Returns the prefix that contains all addresses of the family: `0.0.0.0/0` or `::/0`.
    pub(crate) fn whole_family(is_v4: bool) -> Cidr {
        let address = if is_v4 { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
        Cidr { address, prefix: 0 }
    }

    fn network_address(&self) -> IpAddr {
        let bits = left_aligned_bits(&self.address) & prefix_mask(self.prefix);
        match self.address {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::from_bits((bits >> 96) as u32)),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(bits)),
        }
    }

    fn is_broadcast(&self) -> bool {
        self.is_v4()
            && self.prefix < 31
            && left_aligned_bits(&self.address) | prefix_mask(self.prefix) | (u128::MAX >> 32) == u128::MAX
    }
}

pub(super) fn parse_ip(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| format!("{text:?} is not an IP address such as 10.0.0.1 or 2001:db8::1"))
}

/// Parses an address or network, with a slash and a prefix length.
pub(super) fn parse_cidr(text: &str) -> Result<Cidr, String> {
    let no = || format!("{text:?} is not an address with a prefix length, such as 10.0.0.7/24");
    let (address, length) = text.split_once('/').ok_or_else(no)?;
    let address = parse_ip(address)?;
    let is_number = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
    let prefix = length.parse().ok().filter(|length| is_number && *length <= address_bits(&address));
    let prefix = prefix.ok_or_else(|| {
        format!(
            "the prefix length of {text:?} must be a number from 0 to {bits}, not a netmask",
            bits = address_bits(&address)
        )
    })?;
    Ok(Cidr { address, prefix })
}

/// Parses an address with its prefix length. Rejects an address that cannot be assigned to a device.
pub(super) fn parse_own_address(text: &str) -> Result<Cidr, String> {
    let cidr = parse_cidr(text)?;
    let address = cidr.address;
    if address.is_loopback() || address.is_multicast() || address.is_unspecified() {
        return Err(format!(
            "{address} is a loopback, multicast or unspecified address, which cannot be the address of a NIC"
        ));
    }
    if cidr.is_default() {
        return Err(format!(
            "with the prefix length of {text:?}, all addresses would be on this link; specify the prefix length of the network"
        ));
    }
    if cidr.prefix + 1 < address_bits(&address) && cidr.network_address() == address {
        return Err(format!(
            "{text:?} is the address of the network itself; specify the address of this machine in the network"
        ));
    }
    if cidr.is_broadcast() {
        return Err(format!(
            "{text:?} is the broadcast address of its network; specify the address of this machine in the network"
        ));
    }
    Ok(cidr)
}

/// Parses the destination of a route with the gateway `via`. `default` stands for the default route of the gateway's
/// address family.
pub(super) fn parse_destination(text: &str, via: &IpAddr) -> Result<Cidr, String> {
    let to = match text {
        "default" => Cidr::whole_family(via.is_ipv4()),
        _ if text.contains('/') => parse_cidr(text)?,
        _ => Cidr::single_address(parse_ip(text)?),
    };
    if to.is_v4() != via.is_ipv4() {
        return Err(format!("the destination {to} and the gateway {via} have different address families"));
    }
    if to.network_address() != to.address {
        return Err(format!(
            "{to} is not a network address: the network is {network}/{prefix}",
            network = to.network_address(),
            prefix = to.prefix
        ));
    }
    Ok(to)
}

/// Parses a MAC address and returns it in lower case, with colons.
pub(super) fn parse_mac(text: &str) -> Result<String, String> {
    match machine_identity::parse_mac(text)? {
        mac if is_group_mac(&mac) => Err(format!("{text:?} is a multicast address, which a NIC cannot have")),
        mac if mac == "00:00:00:00:00:00" => Err(format!("{text:?} is not a valid MAC address of a NIC")),
        mac => Ok(mac),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_addresses_are_parsed_or_refused() {
        for good in ["10.0.0.7/24", "10.0.0.0/31", "10.0.0.1/32", "2001:db8::7/64", "fe80::1/64", "2001:db8::/128"] {
            assert_eq!(parse_own_address(good).unwrap().to_string(), good);
        }
        for (bad, words) in [
            ("10.0.0.7", "with a prefix length"),
            ("10.0.0.300/24", "not an IP address"),
            ("10.0.0.7/33", "0 to 32"),
            ("10.0.0.7/+8", "0 to 32"),
            ("10.0.0.7/255.255.255.0", "not a netmask"),
            ("2001:db8::7/129", "0 to 128"),
            ("10.0.0.0/24", "the network itself"),
            ("2001:db8::/64", "the network itself"),
            ("10.0.0.255/24", "broadcast"),
            ("10.0.3.255/22", "broadcast"),
            ("127.0.0.1/8", "cannot be the address of a NIC"),
            ("224.0.0.1/4", "cannot be the address of a NIC"),
            ("::1/128", "cannot be the address of a NIC"),
            ("10.0.0.7/0", "all addresses would be on this link"),
        ] {
            let said = parse_own_address(bad).unwrap_err();
            assert!(said.contains(words), "{bad}: {said}");
        }
    }

    #[test]
    fn destinations_are_parsed_or_refused() {
        let to = |text: &str, via: &str| parse_destination(text, &via.parse().unwrap()).map(|to| to.to_string());
        assert_eq!(to("default", "10.0.0.1").unwrap(), "0.0.0.0/0");
        assert_eq!(to("default", "fe80::1").unwrap(), "::/0");
        assert_eq!(to("10.9.0.0/16", "10.0.0.1").unwrap(), "10.9.0.0/16");
        assert_eq!(to("10.9.0.1", "10.0.0.1").unwrap(), "10.9.0.1/32");
        assert!(to("10.9.0.1/16", "10.0.0.1").unwrap_err().contains("the network is 10.9.0.0/16"));
        assert!(to("10.9.0.0/16", "fe80::1").unwrap_err().contains("different address families"));
        assert!(to("nowhere", "fe80::1").is_err());
    }

    #[test]
    fn network_contains_its_addresses() {
        let holds = |network: &str, address: &str| parse_cidr(network).unwrap().contains(&address.parse().unwrap());
        assert!(
            holds("10.0.0.7/24", "10.0.0.1")
                && holds("10.0.0.7/0", "8.8.8.8")
                && holds("2001:db8::7/64", "2001:db8::1")
        );
        assert!(!holds("10.0.0.7/24", "10.0.1.1") && !holds("10.0.0.7/24", "::1") && !holds("10.0.0.7/32", "10.0.0.1"));
    }

    #[test]
    fn macs_are_parsed_or_refused() {
        assert_eq!(parse_mac("52-54-00-AA-00-01").unwrap(), "52:54:00:aa:00:01");
        for bad in [
            "",
            "52:54:00:aa:00",
            "52:54:00:aa:00:0g",
            "52:54:00:aa:00:1",
            "+1:54:00:aa:00:01",
            "01:00:5e:00:00:01",
            "00:00:00:00:00:00",
        ] {
            assert!(parse_mac(bad).is_err(), "{bad}");
        }
    }
}
