//! Which network card an address on the same segment has, by the kernel's table of neighbours. It knows better than whoever asks.

use super::ipxe;
use std::net::IpAddr;
use std::path::Path;

/// IPv4 only.
pub const TABLE: &str = "/proc/net/arp";

/// The entry has an answer in it (`ATF_COM` of `linux/if_arp.h`).
const COMPLETE: u32 = 2;

/// The MAC of the neighbour with that address; `None` when it is behind a router, or not known.
pub fn mac_of(address: IpAddr, table: &Path) -> Option<String> {
    read(&std::fs::read_to_string(table).ok()?, address)
}

/// Of the table's text: `IP address`, `HW type`, `Flags`, `HW address`, `Mask`, `Device`.
fn read(text: &str, address: IpAddr) -> Option<String> {
    text.lines().skip(1).find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [at, _, flags, mac, ..] = words[..] else { return None };
        let flags = u32::from_str_radix(flags.strip_prefix("0x")?, 16).ok()?;
        let is_it = at.parse::<IpAddr>() == Ok(address) && flags & COMPLETE != 0;
        ipxe::mac(mac).ok().filter(|mac| is_it && mac != "00:00:00:00:00:00")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_answered_is_a_neighbour() {
        let table = "\
IP address       HW type     Flags       HW address            Mask     Device
10.0.0.7         0x1         0x2         52:54:00:AB:00:07     *        eth0
10.0.0.8         0x1         0x0         00:00:00:00:00:00     *        eth0
10.0.0.9         0x1         0x6         52:54:00:ab:00:09     *        eth0
10.0.0.10        0x1         0x2         00:00:00:00:00:00     *        eth0
10.0.0.11        0x20        0x2         80:00:02:08:fe:80:00:00:00:00:00:00:00:02:c9:03:00:0a:0b:0c *  ib0
10.0.0.12
10.0.0.13        0x1         2           52:54:00:ab:00:13     *        eth0
";
        for (address, mac) in [
            ("10.0.0.7", Some("52:54:00:ab:00:07")),
            ("10.0.0.8", None),
            ("10.0.0.9", Some("52:54:00:ab:00:09")),
            ("10.0.0.10", None),
            ("10.0.0.11", None),
            ("10.0.0.12", None),
            ("10.0.0.13", None),
            ("10.0.0.70", None),
            ("fe80::1", None),
        ] {
            assert_eq!(read(table, address.parse().unwrap()).as_deref(), mac, "{address}");
        }
        assert_eq!(read("", "10.0.0.7".parse().unwrap()), None);
        assert_eq!(mac_of("10.0.0.7".parse().unwrap(), Path::new("/nothing")), None);
    }
}
