//! Validation of values that become part of iPXE scripts and kernel command lines.

use model::machine_identity::usable_uuid;

/// Parses a UUID in its usual spelling. Returns the UUID in lower case, or `None` if the UUID does not identify a
/// single machine.
///
/// # Errors
/// Returns an error if the text is not a UUID.
pub fn parse_uuid(text: &str) -> Result<Option<String>, String> {
    match uuid::Uuid::try_parse(text) {
        Ok(uuid) if text.len() == 36 => Ok(usable_uuid(uuid).map(|uuid| uuid.to_string())),
        _ => Err(format!("{text:?} is not a UUID such as 4c4c4544-0051-3010-8052-b4c04f4d3132")),
    }
}

/// Validates the value of a `console=` argument.
///
/// # Errors
/// Returns an error if the text contains characters that are not valid in console names.
pub(crate) fn validate_console(text: &str) -> Result<(), String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b",._:/-".contains(&byte);
    if !text.is_empty() && text.bytes().all(fits) {
        Ok(())
    } else {
        Err(format!("{text:?} is not a console such as ttyS0,115200n8"))
    }
}

/// Validates `HOST` or `HOST:PORT`, the value of a Host header.
///
/// # Errors
/// Returns an error if the text has another form.
pub fn validate_host(text: &str) -> Result<(), String> {
    let refuse = || format!("{text:?} is not a host name with an optional port");
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or_else(refuse)?,
        None => text.find(':').map_or((text, ""), |colon| text.split_at(colon)),
    };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-' || byte == b'_';
    let name_fits = if text.starts_with('[') {
        name.parse::<std::net::Ipv6Addr>().is_ok()
    } else {
        !name.is_empty() && name.bytes().all(fits)
    };
    let port_fits = port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    if name_fits && port_fits { Ok(()) } else { Err(refuse()) }
}

/// Validates additional kernel arguments. iPXE interprets some characters and words; arguments that contain them would
/// not reach the kernel unchanged.
///
/// # Errors
/// Returns an error if the text contains a character or word that iPXE would interpret.
pub fn validate_cmdline(text: &str) -> Result<(), String> {
    let odd = |c: char| !(c == ' ' || c.is_ascii_graphic()) || "$\\'\"#".contains(c);
    if let Some(c) = text.chars().find(|c| odd(*c)) {
        return Err(format!(
            "kernel arguments {text:?}: {c:?} is not allowed, because iPXE would interpret this character"
        ));
    }
    match text.split_whitespace().find(|word| ["||", "&&"].contains(word)) {
        Some(word) => {
            Err(format!("kernel arguments {text:?}: {word} is not allowed, because {word} ends a command in iPXE"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_boot_values_are_accepted() {
        let id = "4C4C4544-0051-3010-8052-B4C04F4D3132";
        assert_eq!(parse_uuid(id), Ok(Some(id.to_lowercase())));
        assert_eq!(parse_uuid("00000000-0000-0000-0000-000000000000"), Ok(None));
        assert_eq!(parse_uuid("ffffffff-ffff-ffff-ffff-ffffffffffff"), Ok(None));
        for bad in
            ["", "x", "4C4C454400513010805200B4C04F4D3132", &format!("{id}\nboot"), &format!("{{{id}}}"), "${uuid}"]
        {
            assert!(parse_uuid(bad).is_err(), "{bad}");
        }
        for good in ["h", "10.0.2.2:8080", "install-1.rack_2.example", "[fe80::1]:80", "[::1]"] {
            assert!(validate_host(good).is_ok(), "{good}");
        }
        for bad in ["", ":80", "h:", "h:x", "h:99999", "h h", "h\nboot", "u@h", "h/p", "${h}", "[::1", "[h]", "a:1:2"] {
            assert!(validate_host(bad).is_err(), "{bad}");
        }
        for good in ["tty0", "ttyS0,115200n8", "uart8250,mmio32,0xfedc9000,115200n8"] {
            assert!(validate_console(good).is_ok(), "{good}");
        }
        for bad in ["", "tty0 init=/bin/sh", "tty0\nboot", "${x}"] {
            assert!(validate_console(bad).is_err(), "{bad}");
        }
        for good in ["", "quiet drophammer.hold=60 ip=dhcp a.b=1|2"] {
            assert!(validate_cmdline(good).is_ok(), "{good}");
        }
        for bad in ["a\nb", "a || b", "a && b", "${x}", "a=\"b c\"", "ä"] {
            assert!(validate_cmdline(bad).is_err(), "{bad}");
        }
    }
}
