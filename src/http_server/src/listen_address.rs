//! Addresses that `drophammer serve` listens on, as written on the command line.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

/// Parses an address to listen on, such as `10.0.0.1:8080`. `:8080` and `8080` stand for all addresses of the host.
///
/// # Errors
/// Returns a message if the text is not such an address.
pub fn parse_listen_address(text: &str) -> Result<SocketAddr, String> {
    const EXAMPLES: &str = "examples: 10.0.0.1:8080, localhost:8080, :8080, [::]:8080";
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    if text.contains("://") {
        return Err(format!("omit the scheme and the path of the URL; {EXAMPLES}"));
    }
    let all_addresses = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port);
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.starts_with('[') => (host, port),
        Some(_) => return Err(format!("an IPv6 address must be in brackets; {EXAMPLES}")),
        None => ("", text),
    };
    let port = match port.parse::<u16>() {
        Ok(port) => port,
        Err(_) if !text.contains(':') => return Err(format!("the port is missing; {EXAMPLES}")),
        Err(_) => return Err(format!("{port:?} is not a port from 0 to 65535; {EXAMPLES}")),
    };
    if host.is_empty() {
        return Ok(all_addresses(port));
    }
    let found =
        (host, port).to_socket_addrs().map_err(|error| format!("cannot resolve {host:?}: {error}; {EXAMPLES}"))?;
    let found: Vec<SocketAddr> = found.collect();
    // IPv4 addresses are preferred, because machines boot over IPv4.
    let preferred = found.iter().find(|address| address.is_ipv4()).or(found.first());
    preferred.copied().ok_or_else(|| format!("{host:?} has no address; {EXAMPLES}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_hosts_and_addresses_are_accepted() {
        for (text, expected) in [
            ("10.0.0.1:8080", "10.0.0.1:8080"),
            ("[::1]:8080", "[::1]:8080"),
            (":8080", "0.0.0.0:8080"),
            ("8080", "0.0.0.0:8080"),
            ("0", "0.0.0.0:0"),
            ("localhost:8080", "127.0.0.1:8080"),
        ] {
            assert_eq!(parse_listen_address(text).unwrap().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn invalid_listen_addresses_are_refused_with_examples() {
        for (text, expected) in [
            ("", "the port is missing"),
            ("localhost", "the port is missing"),
            ("10.0.0.1", "the port is missing"),
            ("localhost:", "\"\" is not a port"),
            ("localhost:http", "\"http\" is not a port"),
            (":70000", "\"70000\" is not a port"),
            ("http://localhost:8080", "omit the scheme and the path of the URL"),
            ("::1:8080", "an IPv6 address must be in brackets"),
            ("name.invalid:8080", "cannot resolve \"name.invalid\""),
        ] {
            let error = parse_listen_address(text).unwrap_err();
            assert!(error.starts_with(expected) && error.contains("examples: 10.0.0.1:8080"), "{text}: {error}");
        }
    }
}
