//! iPXE scripts, and validation of everything that an unauthenticated client may put into one.

use model::machine_identity::usable_uuid;

/// Parameters of a ramdisk boot: addresses of the server, and identity of the machine.
pub(crate) struct RamdiskBoot<'a> {
    /// Base URL of the API, without a trailing slash.
    pub url: &'a str,
    /// Base URL of kernel and ramdisk, for firmware.
    pub files: &'a str,
    pub token: &'a str,
    pub machine: &'a str,
    pub consoles: &'a [String],
    /// Network configuration without DHCP, as for `drophammer.network=`.
    pub network: Option<&'a str>,
    /// Additional kernel arguments of the operator.
    pub cmdline: &'a str,
    /// Offer a shell at the console instead of starting the agent.
    pub stop: bool,
    /// File name of the ramdisk.
    pub initrd: &'a str,
}

impl RamdiskBoot<'_> {
    pub(crate) fn kernel_url(&self) -> String {
        format!("{}/boot/vmlinuz", self.files)
    }

    pub(crate) fn initrd_url(&self) -> String {
        format!("{}/boot/{}", self.files, self.initrd)
    }

    /// Returns the kernel's command line, which does not depend on how the kernel is started.
    pub(crate) fn kernel_arguments(&self) -> String {
        let RamdiskBoot { url, token, machine, .. } = self;
        let mut arguments = vec![
            format!("drophammer.url={url}"),
            format!("drophammer.token={token}"),
            format!("drophammer.machine={machine}"),
        ];
        arguments.extend(self.stop.then(|| "drophammer.stop=1".to_owned()));
        arguments.extend(self.consoles.iter().map(|console| format!("console={console}")));
        arguments.extend(self.network.map(|network| format!("drophammer.network={network}")));
        arguments.push("panic=-1".to_owned());
        arguments.extend(self.cmdline.split_whitespace().map(str::to_owned));
        arguments.join(" ")
    }
}

/// Returns a script that boots the ramdisk. `initrd=initrd` is for UEFI kernels, which request the file by that name; BIOS ignores it.
pub(crate) fn ramdisk_script(boot: &RamdiskBoot) -> String {
    let (kernel, initrd, arguments) = (boot.kernel_url(), boot.initrd_url(), boot.kernel_arguments());
    format!("#!ipxe\nkernel {kernel} initrd=initrd {arguments}\ninitrd --name initrd {initrd}\nboot\n")
}

/// Returns a script that boots the installed system. UEFI firmware continues with its next boot entry if this one fails, but shows its menu
/// if it succeeds (UEFI 2.10, 3.1.1). A BIOS may stop in either case, so its first disk is started explicitly.
pub(crate) fn local_disk_script(machine: &str) -> String {
    format!(
        "#!ipxe\necho drophammer: {machine} is installed, starting its disk\niseq ${{platform}} pcbios || exit 1\n\
         sanboot --no-describe --drive 0x80 || exit\n"
    )
}

/// Returns a script that waits and repeats the request, until the operator has corrected the machine's file or its migration has ended. It
/// never returns to the firmware, even on errors, as the firmware would boot the disk.
pub(crate) fn hold_script(url: &str, machine: &str) -> String {
    format!(
        "#!ipxe\n:again\necho drophammer: {machine} waits: it takes part in a migration, and its file does not list the NIC ${{netX/mac}}\n\
         sleep 30 ||\nchain --replace {url}/boot.ipxe?uuid=${{uuid}}&mac=${{netX/mac}} || goto again\n"
    )
}

/// Returns the script for the TFTP server. `netX` is the NIC that has just been configured by DHCP.
pub fn start_script(url: &str) -> String {
    format!("#!ipxe\necho drophammer: asking {url}\ndhcp\nchain {url}/boot.ipxe?uuid=${{uuid}}&mac=${{netX/mac}}\n")
}

/// Parses a UUID in its usual spelling. Returns it in lower case, or `None` if it does not identify a machine.
///
/// # Errors
/// The text is not a UUID.
pub(crate) fn parse_uuid(text: &str) -> Result<Option<String>, String> {
    match uuid::Uuid::try_parse(text) {
        Ok(uuid) if text.len() == 36 => Ok(usable_uuid(uuid).map(|uuid| uuid.to_string())),
        _ => Err(format!("{text:?} is not a UUID such as 4c4c4544-0051-3010-8052-b4c04f4d3132")),
    }
}

/// Validates the value of a `console=` argument.
///
/// # Errors
/// The text contains characters that are not valid in console names.
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
/// The text is neither.
pub(crate) fn validate_host(text: &str) -> Result<(), String> {
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

/// Validates additional kernel arguments. iPXE interprets some characters, so that arguments with them would not reach the kernel.
///
/// # Errors
/// The text contains such a character or word.
pub(crate) fn validate_cmdline(text: &str) -> Result<(), String> {
    let odd = |c: char| !(c == ' ' || c.is_ascii_graphic()) || "$\\'\"#".contains(c);
    if let Some(c) = text.chars().find(|c| odd(*c)) {
        return Err(format!("kernel arguments {text:?}: {c:?} is not allowed: iPXE would interpret it"));
    }
    match text.split_whitespace().find(|word| ["||", "&&"].contains(word)) {
        Some(word) => Err(format!("kernel arguments {text:?}: {word} is not allowed: it ends a command in iPXE")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ramdisk_script() {
        let consoles = ["tty0".to_owned(), "ttyS0,115200n8".to_owned()];
        let boot = RamdiskBoot {
            url: "https://10.0.2.2:8443",
            files: "http://10.0.2.2:8080",
            token: "abc",
            machine: "4c4c4544-0051-3010-8052-b4c04f4d3132",
            consoles: &consoles,
            network: None,
            cmdline: " quiet  drophammer.hold=60",
            stop: false,
            initrd: "initrd",
        };
        let script = ramdisk_script(&boot);
        assert_eq!(
            script,
            "#!ipxe\n\
             kernel http://10.0.2.2:8080/boot/vmlinuz initrd=initrd drophammer.url=https://10.0.2.2:8443 \
             drophammer.token=abc drophammer.machine=4c4c4544-0051-3010-8052-b4c04f4d3132 \
             console=tty0 console=ttyS0,115200n8 panic=-1 quiet drophammer.hold=60\n\
             initrd --name initrd http://10.0.2.2:8080/boot/initrd\n\
             boot\n"
        );
        let stopped = ramdisk_script(&RamdiskBoot { stop: true, ..boot });
        assert_eq!(stopped, script.replace(" console=tty0", " drophammer.stop=1 console=tty0"));
        let more = ramdisk_script(&RamdiskBoot { initrd: "initrd-luks", ..boot });
        assert_eq!(
            more,
            script.replace("boot/initrd\n", "boot/initrd-luks\n"),
            "the kernel asks for it by the same name"
        );
        let described = ramdisk_script(&RamdiskBoot { network: Some("e30"), ..boot });
        assert_eq!(described, script.replace(" panic", " drophammer.network=e30 panic"));
    }

    #[test]
    fn the_other_scripts() {
        assert_eq!(
            start_script("http://10.0.2.2:8080"),
            "#!ipxe\necho drophammer: asking http://10.0.2.2:8080\ndhcp\n\
             chain http://10.0.2.2:8080/boot.ipxe?uuid=${uuid}&mac=${netX/mac}\n"
        );
        assert_eq!(
            local_disk_script("m"),
            "#!ipxe\necho drophammer: m is installed, starting its disk\niseq ${platform} pcbios || exit 1\n\
             sanboot --no-describe --drive 0x80 || exit\n"
        );
        let held = hold_script("http://10.0.2.2:8080", "m");
        assert_eq!(
            held,
            "#!ipxe\n:again\necho drophammer: m waits: it takes part in a migration, and its file does not list the NIC ${netX/mac}\n\
             sleep 30 ||\nchain --replace http://10.0.2.2:8080/boot.ipxe?uuid=${uuid}&mac=${netX/mac} || goto again\n"
        );
        assert!(!held.contains("exit") && !held.contains("sanboot"));
    }

    #[test]
    fn only_what_it_says_it_is_gets_through() {
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
