//! MAC addresses of clients on the same network segment, from the kernel's neighbor table. This table is more reliable
//! than the MAC that a client reports.
//!
//! The table is read over rtnetlink (rtnetlink(7)), since `/proc/net/arp` contains only IPv4. Two attributes are used:
//! the address and the MAC.

use common::encoding::join_hex;
use model::machine_identity::parse_mac;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket};
use nix::sys::time::{TimeVal, TimeValLike};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Lookup of a neighbor's MACs by its IP address. The result is empty if the address is unknown or behind a router, and
/// contains several MACs if the address is in use on two segments.
pub type MacLookup = Arc<dyn Fn(IpAddr) -> Vec<String> + Send + Sync>;

/// Length of `struct nlmsghdr`: length, type, flags, sequence, port.
const HEAD: usize = 16;
/// Length of `struct ndmsg`: family, padding, interface, state, flags, type.
const NEIGHBOR: usize = 12;
/// Alignment of netlink messages and their attributes, in bytes (`NLMSG_ALIGNTO` and `NLA_ALIGNTO`).
const ALIGNED: usize = 4;

/// Maximum size of the kernel's messages, in bytes (`NLMSG_GOODSIZE` and `max_recvmsg_len`).
const MAXIMUM_MESSAGE_BYTES: usize = 32 << 10;

/// Timeout of a lookup. A request from a machine is not answered until the lookup has ended. The kernel usually
/// responds within a millisecond.
const PATIENCE_SECONDS: i64 = 2;

/// Looks up MACs in the kernel's neighbor table. If the kernel does not respond in time, logs a warning and returns an
/// empty list. An empty list does not cause a client to be refused, because the MAC is checked only in addition to the
/// token.
pub fn look_up_macs(address: IpAddr) -> Vec<String> {
    query_kernel(address).unwrap_or_else(|error| {
        tracing::warn!("cannot read the kernel's neighbor table: {error}");
        Vec::new()
    })
}

fn query_kernel(address: IpAddr) -> nix::Result<Vec<String>> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
    let socket = open_socket(TimeVal::seconds(PATIENCE_SECONDS))?;
    send(socket.as_raw_fd(), &build_request(family), MsgFlags::empty())?;
    receive_macs(&socket, address)
}

/// Opens a socket with a receive timeout, after which reads fail with `EAGAIN`.
fn open_socket(patience: TimeVal) -> nix::Result<OwnedFd> {
    let socket =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, Some(SockProtocol::NetlinkRoute))?;
    setsockopt(&socket, ReceiveTimeout, &patience)?;
    Ok(socket)
}

fn receive_macs(socket: &OwnedFd, address: IpAddr) -> nix::Result<Vec<String>> {
    let (mut macs, mut bytes) = (Vec::new(), vec![0; MAXIMUM_MESSAGE_BYTES]);
    loop {
        let got = recv(socket.as_raw_fd(), &mut bytes, MsgFlags::empty())?;
        let goes_on = parse_messages(&bytes[..got], address, &mut macs);
        if got == 0 || !goes_on {
            return Ok(macs);
        }
    }
}

/// Returns a request for all neighbors of the address family.
fn build_request(family: u8) -> Vec<u8> {
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    let length = (HEAD + NEIGHBOR) as u32;
    let head = [&length.to_ne_bytes()[..], &libc::RTM_GETNEIGH.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8]].concat();
    [&head[..], &[family], &[0; NEIGHBOR - 1]].concat()
}

/// Collects the MACs of the address from the messages. Returns whether more messages will follow.
fn parse_messages(mut bytes: &[u8], address: IpAddr, macs: &mut Vec<String>) -> bool {
    while let (Some(length), Some(kind)) = (read_integer(bytes, 0, 4), read_integer(bytes, 4, 2)) {
        let Some(body) = bytes.get(HEAD..length) else { return false };
        match u16::try_from(kind) {
            Ok(libc::RTM_NEWNEIGH) => macs.extend(parse_entry(body, address).filter(|mac| !macs.contains(mac))),
            _ if [libc::NLMSG_DONE as usize, libc::NLMSG_ERROR as usize].contains(&kind) => return false,
            _ => {}
        }
        bytes = bytes.get(length.next_multiple_of(ALIGNED)..).unwrap_or_default();
    }
    true
}

/// Returns the MAC in an entry, if the entry is for the address and contains a resolved MAC.
fn parse_entry(body: &[u8], address: IpAddr) -> Option<String> {
    const ANSWERED: u16 =
        libc::NUD_REACHABLE | libc::NUD_STALE | libc::NUD_DELAY | libc::NUD_PROBE | libc::NUD_PERMANENT;
    let state = u16::try_from(read_integer(body, 8, 2)?).ok()?;
    let own = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let attributes = body.get(NEIGHBOR..)?;
    let is_it = state & ANSWERED != 0 && find_attribute(attributes, libc::NDA_DST)? == own;
    let mac: [u8; 6] = find_attribute(attributes, libc::NDA_LLADDR)?.try_into().ok()?;
    parse_mac(&join_hex(mac, ":")).ok().filter(|_| is_it && mac != [0; 6])
}

/// Finds an attribute in a sequence of `struct nlattr`. Each attribute consists of its length (including the header),
/// its type, and its content.
fn find_attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let (length, kind) = (read_integer(bytes, 0, 2)?, read_integer(bytes, 2, 2)?);
        let content = bytes.get(4..length)?;
        if kind == usize::from(wanted) {
            return Some(content);
        }
        bytes = bytes.get(length.next_multiple_of(ALIGNED)..)?;
    }
}

/// Reads an integer of two or four bytes, in native byte order.
fn read_integer(bytes: &[u8], at: usize, length: usize) -> Option<usize> {
    match *bytes.get(at..at + length)? {
        [a, b] => Some(u16::from_ne_bytes([a, b]).into()),
        [a, b, c, d] => usize::try_from(u32::from_ne_bytes([a, b, c, d])).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARD: [u8; 6] = [0x52, 0x54, 0, 0xab, 0, 7];
    const MAC: &str = "52:54:00:ab:00:07";

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let length = (HEAD + body.len()) as u32;
        let mut message = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], body].concat();
        message.resize(message.len().next_multiple_of(ALIGNED), 0);
        message
    }

    fn with(kind: u16, content: &[u8]) -> Vec<u8> {
        let length = (4 + content.len()) as u16;
        let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), content].concat();
        bytes.resize(bytes.len().next_multiple_of(ALIGNED), 0);
        bytes
    }

    fn entry(address: &str, mac: &[u8], state: u16) -> Vec<u8> {
        let (family, octets) = match address.parse().unwrap() {
            IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
            IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
        };
        let head = [&[family as u8, 0, 0, 0, 2, 0, 0, 0][..], &state.to_ne_bytes(), &[0, 1]].concat();
        let attributes = [with(libc::NDA_DST, &octets), with(libc::NDA_LLADDR, mac), with(3, &[0; 16])];
        message(libc::RTM_NEWNEIGH, &[head, attributes.concat()].concat())
    }

    fn macs(bytes: &[u8], address: &str) -> Vec<String> {
        let mut macs = Vec::new();
        parse_messages(bytes, address.parse().unwrap(), &mut macs);
        macs
    }

    #[test]
    fn only_resolved_entries_are_neighbors() {
        let other = [0x52, 0x54, 0, 0xab, 0, 9];
        let table = [
            entry("10.0.0.7", &CARD, libc::NUD_REACHABLE),
            entry("10.0.0.8", &CARD, libc::NUD_INCOMPLETE),
            entry("10.0.0.9", &CARD, libc::NUD_FAILED),
            entry("10.0.0.10", &[0; 6], libc::NUD_STALE),
            // InfiniBand.
            entry("10.0.0.11", &[1; 20], libc::NUD_STALE),
            entry("10.0.0.12", &CARD, libc::NUD_NOARP),
            entry("10.0.0.13", &CARD, libc::NUD_PERMANENT),
            entry("fe80::7", &CARD, libc::NUD_STALE),
            // The same address on two segments, with a repeated entry for the first one.
            entry("fe80::9", &CARD, libc::NUD_DELAY),
            entry("fe80::9", &other, libc::NUD_PROBE),
            entry("fe80::9", &CARD, libc::NUD_STALE),
        ]
        .concat();
        for (address, expected_macs) in [
            ("10.0.0.7", &[MAC][..]),
            ("10.0.0.8", &[]),
            ("10.0.0.9", &[]),
            ("10.0.0.10", &[]),
            ("10.0.0.11", &[]),
            ("10.0.0.12", &[]),
            ("10.0.0.13", &[MAC]),
            ("10.0.0.70", &[]),
            ("fe80::7", &[MAC]),
            ("fe80::9", &[MAC, "52:54:00:ab:00:09"]),
            ("::ffff:10.0.0.7", &[]),
            ("fe80::1", &[]),
        ] {
            assert_eq!(macs(&table, address), expected_macs, "{address}");
        }
    }

    #[test]
    fn truncated_netlink_messages_yield_no_address() {
        let good = entry("fe80::7", &CARD, libc::NUD_STALE);
        let address = "fe80::7".parse().unwrap();
        for end in [libc::NLMSG_DONE as u16, libc::NLMSG_ERROR as u16] {
            let bytes = [message(end, &[0; 4]), good.clone()].concat();
            let mut macs = Vec::new();
            assert!(!parse_messages(&bytes, address, &mut macs) && macs.is_empty());
        }
        let mut seen = Vec::new();
        assert!(parse_messages(&[message(libc::NLMSG_NOOP as u16, &[]), good.clone()].concat(), address, &mut seen));
        assert_eq!(seen, [MAC]);
        for length in 0..good.len() {
            let mut cut = good[..length].to_vec();
            assert!(macs(&cut, "fe80::7").is_empty(), "{length}");
            // Truncated message whose length field matches the truncation.
            if length >= HEAD {
                cut[..4].copy_from_slice(&(length as u32).to_ne_bytes());
                let known = macs(&cut, "fe80::7");
                assert!(known.is_empty() || known == [MAC], "{length}: {known:?}");
            }
        }
        // Messages whose length field is 0.
        assert!(macs(&[0; 64], "fe80::7").is_empty());
    }

    /// The kernel sends nothing, because no request was sent. Without the timeout, the test would not end.
    #[test]
    fn kernel_query_ends_after_its_timeout() {
        let socket = open_socket(TimeVal::milliseconds(20)).unwrap();
        assert_eq!(receive_macs(&socket, "10.0.0.7".parse().unwrap()), Err(nix::errno::Errno::EAGAIN));
    }

    #[test]
    fn kernel_answers_neighbor_queries() {
        // The addresses of this host are not in its own neighbor table.
        for address in ["127.0.0.1", "::1"] {
            assert_eq!(query_kernel(address.parse().unwrap()).unwrap(), Vec::<String>::new(), "{address}");
        }
    }
}
