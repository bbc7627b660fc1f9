//! PXE options of the command line.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::str::FromStr;

/// PXE options of the command line.
#[derive(Debug, Clone)]
pub struct PxeOptions {
    pub card: String,
    /// Range of addresses to assign.
    pub range: Option<AddressRange>,
    /// Directory with iPXE's binaries; by default the one in which Debian installs them.
    pub ipxe: Option<PathBuf>,
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
        if first > last { Err(format!("{first} comes after {last}")) } else { Ok(AddressRange { first, last }) }
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
            ("10.0.0.2,10.0.0.1", "10.0.0.2 comes after 10.0.0.1"),
        ] {
            assert!(text.parse::<AddressRange>().unwrap_err().contains(expected), "{text}");
        }
    }
}
