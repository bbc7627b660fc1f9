//! Check that the DNS servers which machines receive over DHCP resolve the host name in `--url`.

use common::url_host::is_address;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

const DNS_PORT: u16 = 53;
/// Number of requests to each server. More than one is sent, because packets may be lost.
const REQUESTS: u32 = 2;
/// Time limit for the response to one request.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Length of the header of a DNS message (RFC 1035, section 4.1.1).
const DNS_HEADER_BYTES: usize = 12;
/// Maximum lengths of a name, and of a label in a name (RFC 1035, section 2.3.4).
const NAME: usize = 253;
const LABEL: usize = 63;
/// Response code for a name that does not exist.
const NXDOMAIN: u8 = 3;

/// Checks that at least one of the DNS servers returns an IPv4 address for the name. The check also succeeds if a
/// server responds with a failure, or does not respond to this host, because it may respond to machines.
///
/// # Errors
/// Returns the reason if each server responds that the name does not exist or has no IPv4 address.
pub(super) fn check_name(name: &str, servers: &[Ipv4Addr]) -> Result<(), String> {
    if servers.is_empty() || is_address(name) {
        return Ok(());
    }
    let Some(query) = build_query(name) else { return Err(format!("{name} is not a name that DNS can contain")) };
    let answers = servers.iter().map(|server| ask_server(SocketAddr::from((*server, DNS_PORT)), &query));
    if answers.collect::<Vec<_>>().iter().any(|answer| !matches!(answer, Ok(DnsAnswer::Unknown))) {
        return Ok(());
    }
    let servers: Vec<String> = servers.iter().map(Ipv4Addr::to_string).collect();
    Err(format!(
        "the DNS server {servers} of --dhcp-option has no IPv4 address for {name}, so machines cannot reach this server: add the name to DNS, or specify an address in --url",
        servers = servers.join(", ")
    ))
}

#[derive(Debug, PartialEq, Eq)]
enum DnsAnswer {
    Known,
    Unknown,
    /// The DNS server fails to answer queries from this host, or refuses them, but may answer queries from machines.
    Undecided,
}

fn ask_server(server: SocketAddr, query: &[u8]) -> io::Result<DnsAnswer> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(server)?;
    for _ in 0..REQUESTS {
        socket.send(query)?;
        let end = Instant::now() + RESPONSE_TIMEOUT;
        let mut packet = [0; 1500];
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            socket.set_read_timeout(Some(left))?;
            let length = match socket.recv(&mut packet) {
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => break,
                received => received?,
            };
            if let Some(answer) = packet.get(..length).and_then(|packet| parse_answer(packet, query)) {
                return Ok(answer);
            }
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Builds a recursive query for the IPv4 addresses of the name; `None` if the name is not valid in DNS.
fn build_query(name: &str) -> Option<Vec<u8>> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let mut query = fastrand::u16(..).to_be_bytes().to_vec();
    query.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        query.push(u8::try_from(label.len()).ok().filter(|length| (1..=LABEL as u8).contains(length))?);
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    (name.len() <= NAME).then_some(query)
}

/// Parses the response to the query; `None` if the packet is not a response to this query.
fn parse_answer(packet: &[u8], query: &[u8]) -> Option<DnsAnswer> {
    let header = packet.get(..DNS_HEADER_BYTES)?;
    let is_response = header[..2] == query[..2] && header[2] & 0x80 != 0;
    let question = packet.get(DNS_HEADER_BYTES..query.len())?;
    if !is_response || !question.eq_ignore_ascii_case(&query[DNS_HEADER_BYTES..]) {
        return None;
    }
    let count = u16::from_be_bytes([header[6], header[7]]);
    Some(match header[3] & 0xf {
        0 if count > 0 => DnsAnswer::Known,
        0 | NXDOMAIN => DnsAnswer::Unknown,
        _ => DnsAnswer::Undecided,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dns_query_encodes_name_as_labels() {
        let query = build_query("install.rack.").unwrap();
        assert_eq!(&query[2..], b"\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07install\x04rack\x00\x00\x01\x00\x01");
        for name in ["", "a..b", &"a".repeat(64), &format!("{}a", "a.".repeat(127))] {
            assert_eq!(build_query(name), None, "{name}");
        }
    }

    #[test]
    fn only_the_response_to_the_query_is_parsed() {
        let query = build_query("install.rack").unwrap();
        let response = |code: u8, count: u8| {
            let mut packet = query.clone();
            (packet[2], packet[3], packet[7]) = (0x81, 0x80 | code, count);
            packet
        };
        for (packet, expected) in [
            (response(0, 1), Some(DnsAnswer::Known)),
            (response(0, 0), Some(DnsAnswer::Unknown)),
            (response(3, 0), Some(DnsAnswer::Unknown)),
            (response(2, 0), Some(DnsAnswer::Undecided)),
            (response(5, 0), Some(DnsAnswer::Undecided)),
            (query.clone(), None),
        ] {
            assert_eq!(parse_answer(&packet, &query), expected, "{packet:?}");
        }
        let good = response(0, 1);
        for end in 0..good.len() {
            assert_eq!(parse_answer(&good[..end], &query), None, "{end}");
        }
        let mut other = good.clone();
        other[DNS_HEADER_BYTES + 1] = b'x';
        assert_eq!(parse_answer(&other, &query), None);
        let mut other = good;
        other[0] ^= 1;
        assert_eq!(parse_answer(&other, &query), None);
    }
}
