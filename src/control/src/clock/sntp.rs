//! Client for time servers that use SNTP (RFC 4330).

use std::net::{ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant, SystemTime};

pub(super) const PORT: u16 = 123;

/// Time limit for the response of one time server.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);

/// Number of seconds between 1900, when the first era of NTP began, and 1970. A timestamp whose most significant bit is
/// not set belongs to the second era, which begins in 2036.
const TO_1970: u64 = 2_208_988_800;
const ERA: u64 = 1 << 32;

const PACKET: usize = 48;
const TRANSMITTED: usize = 40;
const ORIGINATED: usize = 24;

/// Requests the time from a server.
///
/// # Errors
/// Fails if the server does not respond, or is not synchronized.
pub(super) fn query_time_server(server: &str, port: u16) -> Result<SystemTime, String> {
    let lost = |error: std::io::Error| format!("no time from {server}: {error}");
    let addresses = (server, port).to_socket_addrs().map_err(lost)?;
    let address = addresses
        .into_iter()
        .next()
        .ok_or_else(|| format!("no time from {server}: the host name does not resolve to an address"))?;
    let socket = UdpSocket::bind(if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).map_err(lost)?;
    socket.connect(address).map_err(lost)?;
    let (began, end) = (Instant::now(), Instant::now() + RESPONSE_TIMEOUT);
    let secret = generate_request_number().map_err(|error| format!("no time from {server}: {error}"))?;
    socket.send(&build_sntp_request(secret)).map_err(lost)?;
    let mut answer = [0; PACKET];
    loop {
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        socket.set_read_timeout(Some(left)).map_err(lost)?;
        let length = socket.recv(&mut answer).map_err(lost)?;
        // Half of the round-trip time is added to the time in the response.
        if let Some(time) = parse_sntp_response(answer.get(..length).unwrap_or_default(), secret) {
            return Ok(time + began.elapsed() / 2);
        }
        if Instant::now() >= end {
            return Err(format!("no time from {server}: invalid response"));
        }
    }
}

/// Generates the number of a request from random bytes of the kernel, so that another host can neither predict the
/// number nor derive other random values from it. The number is never 0, which is the value of an unset timestamp.
fn generate_request_number() -> Result<u64, getrandom::Error> {
    loop {
        let mut random = [0; 8];
        getrandom::fill(&mut random)?;
        let number = u64::from_be_bytes(random);
        if number != 0 {
            return Ok(number);
        }
    }
}

/// Builds an SNTP request of version 4. Its transmit timestamp is a random number, which the response must repeat.
fn build_sntp_request(secret: u64) -> [u8; PACKET] {
    let mut packet = [0; PACKET];
    packet[0] = 4 << 3 | 3;
    packet[TRANSMITTED..].copy_from_slice(&secret.to_be_bytes());
    packet
}

/// Returns the time in a response; `None` if the response belongs to another request, or the server is not
/// synchronized.
fn parse_sntp_response(packet: &[u8], secret: u64) -> Option<SystemTime> {
    let packet: &[u8; PACKET] = packet.try_into().ok()?;
    let number = |at: usize| Some(u64::from_be_bytes(packet.get(at..at + 8)?.try_into().ok()?));
    let (leap, mode, stratum) = (packet[0] >> 6, packet[0] & 7, packet[1]);
    if mode != 4 || leap == 3 || !(1..16).contains(&stratum) || number(ORIGINATED)? != secret {
        return None;
    }
    let time = number(TRANSMITTED)?;
    let (seconds, fraction) = (time >> 32, time & 0xffff_ffff);
    let seconds = if seconds >> 31 == 1 { seconds } else { seconds + ERA };
    let nanoseconds = (fraction * 1_000_000_000) >> 32;
    let since = Duration::from_secs(seconds.checked_sub(TO_1970)?) + Duration::from_nanos(nanoseconds);
    Some(SystemTime::UNIX_EPOCH + since)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn answer(question: &[u8], first: u8, stratum: u8, seconds: u32) -> [u8; PACKET] {
        let mut packet = [0; PACKET];
        (packet[0], packet[1]) = (first, stratum);
        packet[ORIGINATED..ORIGINATED + 8].copy_from_slice(&question[TRANSMITTED..]);
        packet[TRANSMITTED..TRANSMITTED + 4].copy_from_slice(&seconds.to_be_bytes());
        packet
    }

    #[test]
    fn only_valid_sntp_responses_to_the_request_are_accepted() {
        let at = |seconds: u64| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        let ask = build_sntp_request(7);
        // The year 1970, and a time in the second era, which begins in 2036.
        assert_eq!(parse_sntp_response(&answer(&ask, 4 << 3 | 4, 1, 2_208_988_800), 7), at(0));
        assert_eq!(parse_sntp_response(&answer(&ask, 4 << 3 | 4, 15, 5), 7), at(ERA + 5 - TO_1970));
        for (first, stratum, secret) in [(4 << 3 | 3, 1, 7), (0xc0 | 4, 1, 7), (4, 0, 7), (4, 16, 7), (4, 1, 8)] {
            assert_eq!(parse_sntp_response(&answer(&ask, first, stratum, 2_208_988_800), secret), None);
        }
        assert_eq!(parse_sntp_response(&answer(&ask, 4, 1, 0)[..47], 7), None);
        let mut half = answer(&ask, 4, 1, 2_208_988_801);
        half[TRANSMITTED + 4] = 0x80;
        assert_eq!(parse_sntp_response(&half, 7), Some(SystemTime::UNIX_EPOCH + Duration::from_millis(1500)));
    }

    #[test]
    fn request_number_does_not_depend_on_the_state_of_fastrand() {
        let [one, other] = [(); 2].map(|()| {
            fastrand::seed(7);
            generate_request_number().unwrap()
        });
        assert!(one != other && one != 0 && other != 0);
    }

    #[test]
    fn queries_time_server_and_skips_invalid_responses() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let told = thread::spawn(move || {
            let mut question = [0; PACKET];
            let (_, client) = server.recv_from(&mut question).unwrap();
            for (first, seconds) in [(3, 0), (4, 2_208_988_800 + 1_800_000_000)] {
                server.send_to(&answer(&question, first, 2, seconds), client).unwrap();
            }
        });
        let now = query_time_server("127.0.0.1", port).unwrap();
        told.join().unwrap();
        let expected = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        assert!(now.duration_since(expected).unwrap() < Duration::from_secs(60));
        assert!(query_time_server("no such host", port).unwrap_err().starts_with("no time from no such host"));
    }
}
