//! Detection of other DHCP servers on the network of `--pxe`: it sends a DHCPDISCOVER like a PXE client, and collects
//! the offers.

use super::nic::PxeNic;
use crate::{PxeLog, PxeMessage};
use nix::sys::socket::sockopt::{BindToDevice, Broadcast, ReuseAddr};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Number of requests. More than one is sent, because packets may be lost.
const REQUESTS: u32 = 2;
/// Time for which offers are collected after each request. Many servers ping an address before they offer it, which can
/// take 3 seconds.
const OFFER_COLLECTION_TIME: Duration = Duration::from_secs(4);

/// Time between the first and the second search. It is quadrupled before each further search, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(15);
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

const CLIENT_PORT: u16 = 68;
const SERVER_PORT: u16 = 67;
/// Length of the fixed DHCP header, including the magic cookie (RFC 2131).
const DHCP_HEADER_BYTES: usize = 240;
const COOKIE: [u8; 4] = [0x63, 0x82, 0x53, 0x63];

/// Offer of a DHCP server.
#[derive(Debug, Clone, PartialEq, Eq)]
struct DhcpOffer {
    server: Ipv4Addr,
    /// Offered address; unspecified if the server sends only boot information.
    address: Ipv4Addr,
    boot_file: String,
}

/// Repeated search for other DHCP servers of the network.
///
/// A single search is not reliable. An offer may be lost or late, and another server may start later, for example if
/// both hosts were powered on together. Therefore the first searches follow each other within minutes.
pub(super) struct DhcpServerSearch {
    due: Instant,
    pause: Duration,
    /// Problem that the last search has found. A search reports a problem only if it differs from this one.
    last: Arc<Mutex<Option<String>>>,
}

impl Default for DhcpServerSearch {
    fn default() -> DhcpServerSearch {
        DhcpServerSearch { due: Instant::now(), pause: FIRST_PAUSE, last: Arc::default() }
    }
}

impl DhcpServerSearch {
    /// Starts a search if the next one is due. A separate thread waits for the offers, and reports them to `log`.
    /// `assigns` is true if this server assigns addresses.
    pub(super) fn start_if_due(&mut self, nic: &PxeNic, assigns: bool, log: &PxeLog) {
        if Instant::now() < self.due {
            return;
        }
        self.due = Instant::now() + self.pause;
        self.pause = (self.pause * 4).min(LONGEST_PAUSE);
        let (nic, log, last) = (nic.clone(), log.clone(), self.last.clone());
        let search = move || match collect_offers(&nic) {
            Ok(offers) => report_change(describe_offers(&nic, &offers, assigns), &last, &log),
            // A failed search is not a problem of the network. For example, the DHCP client of this host may occupy the
            // port.
            Err(error) => {
                log(PxeMessage::Note(format!("cannot look for other DHCP servers on {nic}: {error}", nic = nic.name)))
            }
        };
        let _ = std::thread::Builder::new().name("dhcp-search".to_owned()).spawn(search);
    }
}

fn report_change(found: Option<String>, last: &Mutex<Option<String>>, log: &PxeLog) {
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    match (&found, &*last) {
        (Some(problem), known) if known.as_ref() != Some(problem) => log(PxeMessage::Problem(problem.clone())),
        (None, Some(problem)) => log(PxeMessage::Note(format!("no longer a problem: {problem}"))),
        _ => {}
    }
    *last = found;
}

/// Collects the offers of all DHCP servers of the network.
///
/// # Errors
/// Returns an error if no request can be sent, for example because the DHCP client of this host occupies the port.
fn collect_offers(nic: &PxeNic) -> io::Result<Vec<DhcpOffer>> {
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, BindToDevice, &OsString::from(&nic.name))?;
    setsockopt(&socket, ReuseAddr, &true)?;
    setsockopt(&socket, Broadcast, &true)?;
    bind(socket.as_raw_fd(), &SockaddrIn::new(0, 0, 0, 0, CLIENT_PORT))?;
    let (socket, number, mac) = (UdpSocket::from(socket), fastrand::u32(..), nic.read_mac()?);
    let mut offers = BTreeMap::new();
    for _ in 0..REQUESTS {
        socket.send_to(&build_discover(number, mac), (Ipv4Addr::BROADCAST, SERVER_PORT))?;
        let end = Instant::now() + OFFER_COLLECTION_TIME;
        let mut packet = [0; 2048];
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            socket.set_read_timeout(Some(left))?;
            let Ok(length) = socket.recv(&mut packet) else { continue };
            let offer = packet.get(..length).and_then(|packet| parse_offer(packet, number));
            offers.extend(offer.map(|offer| (offer.server, offer)));
        }
    }
    Ok(offers.into_values().collect())
}

/// Builds a DHCPDISCOVER like that of UEFI firmware on x86-64, which requests a broadcast response.
fn build_discover(number: u32, mac: [u8; 6]) -> Vec<u8> {
    let mut packet = vec![0; DHCP_HEADER_BYTES];
    packet[..4].copy_from_slice(&[1, 1, 6, 0]);
    packet[4..8].copy_from_slice(&number.to_be_bytes());
    packet[10] = 0x80;
    packet[28..34].copy_from_slice(&mac);
    packet[236..].copy_from_slice(&COOKIE);
    let class = b"PXEClient:Arch:00007:UNDI:003016";
    for (code, value) in
        [(53, &[1][..]), (55, &[1, 3, 43, 54, 60, 66, 67]), (60, class), (93, &[0, 7]), (94, &[1, 3, 16])]
    {
        packet.extend([code, value.len() as u8]);
        packet.extend(value);
    }
    packet.push(255);
    packet
}

/// Parses an offer in response to this request. The name of the boot file is truncated and sanitized, because it is
/// part of messages.
fn parse_offer(packet: &[u8], number: u32) -> Option<DhcpOffer> {
    let is_it = packet.first() == Some(&2)
        && packet.get(4..8)? == number.to_be_bytes()
        && packet.get(236..DHCP_HEADER_BYTES)? == COOKIE;
    let address = |bytes: &[u8]| Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes.get(..4)?).ok()?));
    let (mut options, mut rest) = (BTreeMap::new(), packet.get(DHCP_HEADER_BYTES..)?);
    while let [code, more @ ..] = rest {
        rest = match (code, more) {
            (0, more) => more,
            (1..=254, [length, more @ ..]) => {
                let (value, after) = more.split_at_checked(usize::from(*length))?;
                options.insert(*code, value);
                after
            }
            _ => break,
        };
    }
    let text = |bytes: &[u8]| {
        let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(bytes).chars().filter(char::is_ascii_graphic).take(127).collect::<String>()
    };
    let is_offer = is_it && options.get(&53).is_some_and(|kind| **kind == [2]);
    let boot_file = options.get(&67).map_or_else(|| text(&packet[108..236]), |file| text(file));
    let server = options.get(&54).and_then(|server| address(server)).or_else(|| address(&packet[20..]))?;
    is_offer.then_some(DhcpOffer { server, address: address(&packet[16..])?, boot_file })
}

fn describe_offers(nic: &PxeNic, offers: &[DhcpOffer], assigns: bool) -> Option<String> {
    let name = &nic.name;
    let others: Vec<&DhcpOffer> = offers.iter().filter(|offer| offer.server != nic.address).collect();
    let list = |offers: &[&DhcpOffer]| {
        let each = offers.iter().map(|DhcpOffer { server, address, boot_file }| {
            let address = if address.is_unspecified() { String::new() } else { format!(" offers {address}") };
            let file = if boot_file.is_empty() { String::new() } else { format!(" sends the boot file {boot_file:?}") };
            format!("{server}{address}{}{file}", if address.is_empty() || file.is_empty() { "" } else { " and" })
        });
        each.collect::<Vec<_>>().join(", ")
    };
    let boots: Vec<&DhcpOffer> = others.iter().copied().filter(|offer| !offer.boot_file.is_empty()).collect();
    match assigns {
        true if !others.is_empty() => Some(format!(
            "another DHCP server answers on {name}: {servers}. Machines may accept the answer of that server, and then not boot from this server: stop that server on this network, or start this server without --range",
            servers = list(&others)
        )),
        false if others.iter().all(|offer| offer.address.is_unspecified()) => Some(format!(
            "no DHCP server on {name} offers an address, so machines cannot boot: start a DHCP server there, or let this server \
             assign addresses with --range"
        )),
        false if !boots.is_empty() => Some(format!(
            "another server on {name} sends boot files: {servers}. Firmware may load such a file instead of the boot file of this server: remove the boot file from the configuration of the other server",
            servers = list(&boots)
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic() -> PxeNic {
        let [address, netmask] = [[10, 77, 0, 1], [255, 255, 255, 0]].map(Ipv4Addr::from);
        PxeNic { name: "eth1".to_owned(), index: 2, address, netmask }
    }

    fn offer(server: u8, address: u8, boot_file: &str) -> DhcpOffer {
        let address = if address == 0 { Ipv4Addr::UNSPECIFIED } else { Ipv4Addr::new(10, 77, 0, address) };
        DhcpOffer { server: Ipv4Addr::new(10, 77, 0, server), address, boot_file: boot_file.to_owned() }
    }

    #[test]
    fn conflicting_dhcp_servers_are_reported() {
        let (own, router, pxe) = (offer(1, 100, "snponly.efi"), offer(254, 17, ""), offer(9, 0, "grubx64.efi"));
        for (offers, assigns, expected) in [
            (vec![own.clone()], true, None),
            (
                vec![own.clone(), router.clone()],
                true,
                Some("another DHCP server answers on eth1: 10.77.0.254 offers 10.77.0.17. "),
            ),
            (vec![pxe.clone()], true, Some("on eth1: 10.77.0.9 sends the boot file \"grubx64.efi\". ")),
            (
                vec![offer(9, 18, "x")],
                true,
                Some("on eth1: 10.77.0.9 offers 10.77.0.18 and sends the boot file \"x\". "),
            ),
            (vec![own.clone(), router.clone()], false, None),
            (vec![], false, Some("no DHCP server on eth1 offers an address")),
            (vec![own, pxe.clone()], false, Some("no DHCP server on eth1 offers an address")),
            (vec![router, pxe], false, Some("another server on eth1 sends boot files: 10.77.0.9 sends the boot file")),
        ] {
            let found = describe_offers(&nic(), &offers, assigns);
            match expected {
                Some(words) => assert!(found.as_ref().is_some_and(|found| found.contains(words)), "{words}: {found:?}"),
                None => assert_eq!(found, None),
            }
        }
    }

    #[test]
    fn only_an_offer_for_this_request_is_parsed() {
        let mut packet = build_discover(7, [2, 0, 0, 0, 0, 1])[..DHCP_HEADER_BYTES].to_vec();
        packet[0] = 2;
        packet[16..20].copy_from_slice(&[10, 77, 0, 17]);
        packet[108..112].copy_from_slice(b"f\x1b[m");
        packet.extend([0, 53, 1, 2, 54, 4, 10, 77, 0, 254, 255, 9]);
        assert_eq!(parse_offer(&packet, 7), Some(offer(254, 17, "f[m")));
        assert_eq!(parse_offer(&packet, 8), None);
        let with = |at: usize, byte: u8| {
            let mut packet = packet.clone();
            packet[at] = byte;
            parse_offer(&packet, 7)
        };
        // Packets that are not parsed: a request, another cookie, an acknowledgement, and an option that is longer than
        // the packet.
        assert_eq!(
            [with(0, 1), with(236, 0), with(DHCP_HEADER_BYTES + 3, 5), with(DHCP_HEADER_BYTES + 5, 200)],
            [None, None, None, None]
        );
        for end in 0..DHCP_HEADER_BYTES + 4 {
            assert_eq!(parse_offer(&packet[..end], 7), None, "{end}");
        }
    }
}
