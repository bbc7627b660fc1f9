//! Rules for values that the installed system interprets: hostnames, kernel arguments, SSH keys, DNS and NTP servers.

use base64::prelude::{BASE64_STANDARD, Engine};
use common::diagnostic::Diagnostic;
use serde_json::{Value, json};
use std::net::IpAddr;

/// Returns the reason why a word cannot be an argument of the installed kernel; `None` if the word is allowed.
/// Characters that a boot loader may interpret are not allowed.
pub fn find_argument_error(word: &str) -> Option<&'static str> {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"'\\$`;&|<>(){}".contains(&byte);
    match word {
        "" => Some("a kernel argument must not be empty"),
        _ if !word.bytes().all(is_plain) => Some(
            "a kernel argument must be a single word of letters, digits and characters such as - _ . , : = / @ + %",
        ),
        _ if word.starts_with("root=") => Some("root= is derived from the layout: remove this argument"),
        _ => None,
    }
}

/// Returns the reason why a name is not a valid hostname (RFC 1123; at most 64 bytes on Linux); `None` if it is valid.
pub fn find_hostname_error(name: &str) -> Option<&'static str> {
    let is_label = |label: &str| {
        let is_word = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        is_word && !label.is_empty() && label.len() <= 63 && !label.starts_with('-') && !label.ends_with('-')
    };
    match name {
        _ if name.len() > 64 => Some("a hostname must not have more than 64 characters"),
        _ if !name.split('.').all(is_label) => {
            Some("a hostname must consist of labels of letters, digits and hyphens, separated by dots")
        }
        _ => None,
    }
}

/// Returns the reason why a string must not be written into `authorized_keys`; `None` if the string is a single
/// nonempty line that is not part of a private key.
pub fn find_key_line_error(key: &str) -> Option<&'static str> {
    let is_private = key.contains("PRIVATE KEY-----") || key.contains("PuTTY-User-Key-File");
    match key.trim() {
        _ if is_private => Some(
            "the text is a private key: replace it with the public key (the file that ends in .pub), and consider the private key compromised",
        ),
        "" => Some("the public key is empty"),
        line if line.chars().any(char::is_control) => {
            Some("a public key must be a single line; list several keys separately")
        }
        _ => None,
    }
}

/// Returns the reason why a string is not a valid line of `authorized_keys`; `None` if it is valid. A line consists
/// of the type of the key and the key in base64, which may be preceded by options and followed by a comment
/// (sshd(8)).
pub fn find_public_key_error(key: &str) -> Option<&'static str> {
    let is_type = |word: &str| {
        let word = word.strip_suffix("@openssh.com").unwrap_or(word);
        ["ssh-", "ecdsa-sha2-", "sk-ssh-", "sk-ecdsa-sha2-", "webauthn-sk-"].iter().any(|begin| word.starts_with(begin))
    };
    find_key_line_error(key).or_else(|| {
        let words: Vec<&str> = key.split_ascii_whitespace().collect();
        // Options may precede the type of the key, and quoted options may contain blanks, so every word is tried.
        let Some(index) = words.iter().position(|word| is_type(word)) else {
            return Some(
                "a public key begins with its type, such as ssh-ed25519: specify the whole line of the .pub file",
            );
        };
        let blob = words.get(index + 1).and_then(|word| BASE64_STANDARD.decode(word).ok());
        match blob {
            Some(blob) if is_complete_key(words[index], &blob) => None,
            _ => Some("the key after its type is damaged or incomplete: specify the whole line of the .pub file"),
        }
    })
}

/// Returns whether the blob of a public key is complete. A complete blob consists of fields that are preceded by their
/// lengths, and its first field is the type of the key (RFC 4253, 6.6). A blob without any field is accepted, because
/// it occurs only in examples and authorizes no key.
fn is_complete_key(kind: &str, blob: &[u8]) -> bool {
    let (mut rest, mut fields) = (blob, Vec::new());
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        let Some((field, after)) = after.split_at_checked(length) else { return false };
        fields.push(field);
        rest = after;
    }
    match &fields[..] {
        [] => true,
        [first, others @ ..] => *first == kind.as_bytes() && !others.is_empty() && rest.is_empty(),
    }
}

/// Service for which an allocation lists servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerKind {
    /// `dns_servers`: addresses.
    Dns,
    /// `ntp_servers`: addresses or names.
    Ntp,
}

impl ServerKind {
    /// Returns the name of the field of the allocation that lists the servers.
    pub fn field(self) -> &'static str {
        match self {
            ServerKind::Dns => "dns_servers",
            ServerKind::Ntp => "ntp_servers",
        }
    }

    /// Returns the name of the field that contains the server's address in each object of metal-api's list.
    pub fn key(self) -> &'static str {
        match self {
            ServerKind::Dns => "ip",
            ServerKind::Ntp => "address",
        }
    }
}

/// Converts a list of servers to metal-api's format, a list of objects. Items may also be plain strings, as in the
/// flags of metalctl.
///
/// # Errors
/// Returns all entries that do not name a server, each with its path in the allocation.
pub fn normalize_servers(kind: ServerKind, given: &Value) -> Result<Value, Vec<Diagnostic>> {
    let (field, key) = (kind.field(), kind.key());
    let entries = match given {
        Value::Null => return Ok(Value::Null),
        Value::Array(entries) => entries,
        _ => return Err(vec![Diagnostic::new(field, format!("must be a list: `[{{{key}: ADDRESS}}]`"))]),
    };
    let (mut servers, mut problems) = (Vec::new(), Vec::new());
    for (index, entry) in entries.iter().enumerate() {
        let name = entry.as_str().or_else(|| entry.get(key)?.as_str());
        let is_server = |name: &&str| {
            name.parse::<IpAddr>().is_ok() || (kind == ServerKind::Ntp && find_hostname_error(name).is_none())
        };
        match name.filter(is_server) {
            Some(name) => servers.push(json!({ key: name })),
            None => {
                let what = if kind == ServerKind::Dns { "an IP address" } else { "an IP address or a host name" };
                problems.push(Diagnostic::new(
                    format!("{field}[{index}]"),
                    format!("must be {what}, as `{{{key}: ADDRESS}}` or as a string, not {entry}"),
                ));
            }
        }
    }
    if problems.is_empty() { Ok(Value::Array(servers)) } else { Err(problems) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_arguments_and_hostnames_are_plain_words() {
        for good in ["quiet", "nvme_core.io_timeout=300", "ip=dhcp", "module_blacklist=a,b", "hugepages=1G:4"] {
            assert_eq!(find_argument_error(good), None, "{good}");
        }
        for bad in ["", "a b", "a\nb", "a=\"b\"", "$x", "a;b", "root=/dev/sda1", "ä"] {
            assert!(find_argument_error(bad).is_some(), "{bad}");
        }
        for good in ["a", "web-1", "web-1.example.org", "7"] {
            assert_eq!(find_hostname_error(good), None, "{good}");
        }
        let long = "a".repeat(65);
        for bad in ["", "a b", "-a", "a-", "a..b", "a_b", "web\n1", &long] {
            assert!(find_hostname_error(bad).is_some(), "{bad}");
        }
    }

    const ED25519: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEIwk2aIjLB/NFS0uwM4s/LOwzTEmCTtitqBHv/340Bo";

    #[test]
    fn public_keys_are_complete_lines() {
        let commented = format!("{ED25519} you@desk");
        let with_options = format!("from=\"192.0.2.0/24\",command=\"echo a b\" {commented}");
        for good in [ED25519, &commented, &with_options, "ssh-ed25519 AAAA", "ssh-rsa AAAA you@desk"] {
            assert_eq!(find_public_key_error(good), None, "{good}");
        }
        let (_, blob) = ED25519.split_once(' ').unwrap();
        let private = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----\n";
        let bad = [
            (private.to_owned(), "private key"),
            ("-----BEGIN RSA PRIVATE KEY-----".to_owned(), "private key"),
            ("PuTTY-User-Key-File-3: ssh-ed25519".to_owned(), "private key"),
            (String::new(), "empty"),
            (format!("{ED25519}\n{ED25519}"), "single line"),
            (blob.to_owned(), "begins with its type"),
            ("https://example.org/you.keys".to_owned(), "begins with its type"),
            ("ssh-ed25519".to_owned(), "incomplete"),
            (ED25519[..ED25519.len() - 4].to_owned(), "incomplete"),
            (format!("ssh-rsa {blob}"), "damaged"),
            ("ssh-ed25519 AAAA... you@desk".to_owned(), "damaged"),
        ];
        for (key, words) in bad {
            let why = find_public_key_error(&key);
            assert!(why.is_some_and(|why| why.contains(words)), "{key}: {why:?}");
        }
        assert!(find_key_line_error(private).is_some());
        assert_eq!(find_key_line_error("a-key-of-another-kind AAAA"), None);
    }

    #[test]
    fn servers_are_objects_or_strings() {
        let dns = |given: Value| normalize_servers(ServerKind::Dns, &given);
        let canonical = json!([{"ip": "192.0.2.53"}, {"ip": "2001:db8::53"}]);
        for given in
            [canonical.clone(), json!(["192.0.2.53", "2001:db8::53"]), json!(["192.0.2.53", {"ip": "2001:db8::53"}])]
        {
            assert_eq!(dns(given).unwrap(), canonical);
        }
        assert_eq!(dns(Value::Null).unwrap(), Value::Null);
        let ntp = normalize_servers(ServerKind::Ntp, &json!(["192.0.2.123", {"address": "ntp.example.org"}])).unwrap();
        assert_eq!(ntp, json!([{"address": "192.0.2.123"}, {"address": "ntp.example.org"}]));
        for bad in [
            json!([{"address": "192.0.2.53"}]),
            json!(["dns.example.org"]),
            json!([{"ip": "not-an-address"}]),
            json!([7]),
            json!([{}]),
        ] {
            let problems = dns(bad.clone()).unwrap_err();
            assert_eq!(problems[0].place, "dns_servers[0]", "{bad}");
        }
        assert_eq!(dns(json!("192.0.2.53")).unwrap_err()[0].place, "dns_servers");
        assert!(normalize_servers(ServerKind::Ntp, &json!(["a b", {"address": "x\ny"}])).unwrap_err().len() == 2);
    }
}
