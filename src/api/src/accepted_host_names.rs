//! Host names under which clients may address this server.
//!
//! A browser sends the host name in its address bar as `Host`. The owner of another site can make the name of that
//! site resolve to the address of this server (DNS rebinding). Scripts of that site could then read all responses of
//! this server. Requests of these scripts contain the name of the other site in `Host`, and are rejected.

use common::url_host::{extract_host, is_address, strip_port};
use http_server::tls::ServerTls;
use site::boot_value_validation;
use std::net::ToSocketAddrs;

/// Table of host names, hosts(5).
const HOSTS: &str = "/etc/hosts";

/// Names of this server in lower case. The certificate may cover further names.
pub struct HostNames {
    names: Vec<String>,
    certificate: Option<ServerTls>,
}

impl HostNames {
    /// Collects `localhost`, the names of this host, the names in `hosts`, and those in `url` and the certificate.
    pub fn new(hosts: &[String], url: Option<&str>, certificate: Option<ServerTls>) -> HostNames {
        let own = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
        let table = std::fs::read_to_string(HOSTS).unwrap_or_default();
        let url = url.map(extract_host);
        let names = find_aliases(&table, &own).into_iter().chain(["localhost".to_owned(), own]);
        let names = names.chain(hosts.iter().cloned()).chain(url.map(str::to_owned));
        let names = names.map(|name| canonicalize_name(&name)).filter(|name| !name.is_empty()).collect();
        HostNames { names, certificate }
    }

    /// Returns whether a request may address the server as `host`: a name or an IP address, with or without a port.
    ///
    /// Any IP address is accepted, since the addresses of this host may change. This is safe: a browser sends an IP
    /// address as `Host` only if the URL of the page contains this address. The page then comes from this server, and
    /// not from another site.
    pub fn accepts_host(&self, host: &str) -> bool {
        let name = strip_port(host);
        if is_address(name) {
            return true;
        }
        let name = canonicalize_name(name);
        self.names.contains(&name)
            || self.certificate.as_ref().is_some_and(|certificate| certificate.covers_host(&name))
    }
}

/// Parses the value of `--host`: a name without scheme, port or path.
///
/// # Errors
/// Returns the reason why the value is invalid.
pub fn parse_name(text: &str) -> Result<String, String> {
    let name = canonicalize_name(text);
    match boot_value_validation::validate_host(&name) {
        Ok(()) if !name.contains(':') && !name.is_empty() => Ok(name),
        _ => Err("must be a host name such as install.rack, without scheme, port and path".to_owned()),
    }
}

/// Returns a note if machines may be unable to resolve the name in `--url`: either the server cannot resolve the name
/// itself, or the name is in the server's hosts(5) file, which machines do not read.
pub fn describe_unresolvable_host(url: &str) -> Option<String> {
    let local = find_local_name(&std::fs::read_to_string(HOSTS).unwrap_or_default(), url);
    local.or_else(|| find_unresolvable_name(url))
}

/// Returns a note if the server cannot resolve the name in `--url`. The name may be correct nevertheless, because
/// machines may use another DNS server than the server itself.
fn find_unresolvable_name(url: &str) -> Option<String> {
    let name = extract_host(url);
    let error = (!is_address(name)).then(|| (name, 0_u16).to_socket_addrs().err())??;
    Some(format!(
        "--url {url}: this host cannot resolve {name} ({error}): check that the machines' DNS server resolves this name"
    ))
}

fn find_local_name(table: &str, url: &str) -> Option<String> {
    let name = canonicalize_name(extract_host(url));
    let is_listed = !find_aliases(table, &name).is_empty();
    is_listed.then(|| {
        format!(
            "--url {url}: {HOSTS} contains {name}, but machines resolve names only by DNS: check that DNS resolves this name"
        )
    })
}

/// Returns the name in lower case, without the dot of the DNS root.
fn canonicalize_name(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Returns the names that hosts(5) lists on the same line as the name `own`, such as the fully qualified name.
fn find_aliases(table: &str, own: &str) -> Vec<String> {
    let lines = table.lines().map(|line| line.split('#').next().unwrap_or_default());
    let names = lines.map(|line| line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>());
    names.filter(|names| names.iter().any(|name| name.eq_ignore_ascii_case(own))).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> HostNames {
        HostNames { names: names.iter().map(|name| canonicalize_name(name)).collect(), certificate: None }
    }

    #[test]
    fn server_names_and_ip_addresses_are_accepted_as_hosts() {
        let own = names(&["localhost", "install", "Install.Rack"]);
        for host in [
            "localhost:8080",
            "LOCALHOST",
            "install",
            "install.rack:8080",
            "install.rack.",
            "INSTALL.rack.:80",
            "10.0.0.1:8080",
            "203.0.113.9",
            "[::1]:8080",
            "[fe80::1]",
        ] {
            assert!(own.accepts_host(host), "{host}");
        }
    }

    #[test]
    fn foreign_names_and_malformed_addresses_are_rejected() {
        let own = names(&["localhost", "install", "install.rack"]);
        for host in [
            "",
            ".",
            "evil.example",
            "evil.example:8080",
            "install.evil.example",
            "install.rack.evil.example",
            "rack",
            "localhost.evil.example",
            "10.0.0.1.evil.example",
            "10.0.0.1.nip.io:8080",
            "10.0.0",
            "0x0a000001",
            "167772161",
            "10.0.0.01",
            "::1",
            "[::1",
            "[evil.example]",
            "[::1].evil.example",
            "install.rack..",
        ] {
            assert!(!own.accepts_host(host), "{host}");
        }
    }

    #[test]
    fn finds_aliases_of_host_name_in_hosts_file() {
        let table = "127.0.0.1 localhost\n127.0.1.1\tinstall.rack.example  Install # install.evil\n# 1.2.3.4 x install\n10.0.0.9 other.example other\n";
        assert_eq!(find_aliases(table, "install"), ["install.rack.example", "Install"]);
        assert!(find_aliases(table, "").is_empty() && find_aliases("10.0.0.1", "install").is_empty());
    }

    #[test]
    fn url_that_resolves_in_hosts_file_is_noted() {
        let table = "127.0.1.1 install.rack install\n10.0.0.9 10.0.0.1.example\n";
        for (url, is_noted) in [
            ("http://install.rack:8080", true),
            ("https://INSTALL.rack.:8443/base", true),
            ("http://other.rack:8080", false),
            ("http://127.0.1.1:8080", false),
            ("https://[::1]:8443", false),
        ] {
            let note = find_local_name(table, url);
            assert_eq!(
                note.is_some_and(|note| note.contains("contains install.rack, but machines")),
                is_noted,
                "{url}"
            );
        }
    }

    #[test]
    fn option_accepts_only_bare_host_name() {
        assert_eq!(parse_name("Install.Rack.").unwrap(), "install.rack");
        for wrong in ["", "install:8080", "http://install", "install/x", "[::1]", "a b", "*.rack"] {
            assert!(parse_name(wrong).is_err(), "{wrong}");
        }
    }
}
