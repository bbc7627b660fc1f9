//! Host in a URL or in a `Host` header.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Returns the host of a URL, without its port.
pub fn extract_host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    strip_port(rest.split('/').next().unwrap_or_default())
}

/// Returns whether a host is an IP address; IPv6 addresses are in brackets, as in URLs.
pub fn is_address(name: &str) -> bool {
    let bracketed = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    bracketed.map_or_else(|| name.parse::<Ipv4Addr>().is_ok(), |address| address.parse::<Ipv6Addr>().is_ok())
}

/// Removes the port from `HOST:PORT`, such as `[::1]:80`.
pub fn strip_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_without_their_port() {
        for (host, name) in [("h:80", "h"), ("h", "h"), ("[::1]:80", "[::1]"), ("[fe80::80]", "[fe80::80]")] {
            assert_eq!(strip_port(host), name);
        }
    }

    #[test]
    fn host_is_extracted_from_url() {
        for (url, host) in
            [("http://install.rack:8080/base", "install.rack"), ("https://[::1]:8443", "[::1]"), ("https://h", "h")]
        {
            assert_eq!(extract_host(url), host);
        }
    }
}
