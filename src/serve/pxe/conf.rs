//! What dnsmasq is told. It reads this file and no other.

use super::Range;
use super::card::Card;
use std::fmt::Write;
use std::path::Path;

/// For BIOS, and for UEFI. Both use the firmware's driver of the card. iPXE with drivers of its own, Debian's `ipxe.efi`, was seen to hang when it
/// is to give the card back, so that an installed machine did not come to its disk.
pub const BINARIES: [&str; 2] = [BIOS, UEFI];
const BIOS: &str = "undionly.kpxe";
pub const UEFI: &str = "snponly.efi";

/// In DHCP's header a file's name has 128 bytes, with the zero behind it.
pub const NAME_BYTES: usize = 127;

/// All that decides.
pub struct Asked<'a> {
    pub card: &'a Card,
    /// Give addresses of it.
    pub range: Option<Range>,
    /// This host takes packets on to other networks.
    pub forwards: bool,
    /// The script for iPXE.
    pub script: &'a str,
    /// iPXE, for firmware that boots over HTTP.
    pub ipxe: &'a str,
    /// Where the binaries are.
    pub tftp: &'a Path,
    pub leases: &'a Path,
}

/// The words of dnsmasq(8). Who sends option 175, or the user class iPXE, is iPXE; all others are firmware, which has to fetch iPXE first.
pub fn text(asked: &Asked) -> String {
    let Asked { card, script, ipxe, .. } = asked;
    let mut text = format!(
        "# Made by drophammer serve at each start.\n\
         port=0\n\
         interface={}\n\
         bind-interfaces\n\
         log-facility=-\n\
         pid-file=\n\
         dhcp-leasefile={}\n\
         enable-tftp\n\
         tftp-root={}\n\
         dhcp-userclass=set:ipxe,iPXE\n\
         dhcp-match=set:ipxe,175\n\
         dhcp-match=set:bios,option:client-arch,0\n\
         dhcp-match=set:uefi,option:client-arch,7\n\
         dhcp-match=set:uefi,option:client-arch,9\n\
         dhcp-match=set:http,option:client-arch,16\n\
         dhcp-boot=tag:ipxe,{script},,{server}\n\
         dhcp-boot=tag:!ipxe,tag:http,{ipxe},,{server}\n",
        card.name,
        asked.leases.display(),
        asked.tftp.display(),
        // iPXE takes no file from a proxy that names no server, and a proxy names none by itself.
        server = card.address,
    );
    let more = match asked.range {
        Some(range) => with_addresses(range, card, asked.forwards),
        None => proxy(card),
    };
    text.push_str(&more);
    text
}

/// Beside the DHCP server that gives the addresses. Firmware that boots over HTTP calls itself HTTPClient, and wants the answer to do so too.
fn proxy(card: &Card) -> String {
    let mut text =
        format!("dhcp-range={},proxy,{}\ndhcp-pxe-vendor=PXEClient,HTTPClient\n", card.network(), card.netmask);
    for (kind, file) in [("x86PC", BIOS), ("BC_EFI", UEFI), ("X86-64_EFI", UEFI)] {
        let _ = writeln!(text, "pxe-service=tag:!ipxe,{kind},\"iPXE\",{file}");
    }
    text
}

/// Gives one address to each NIC. Firmware, iPXE, ramdisk and installed system identify one NIC by different client identifiers, and
/// boards that share an SMBIOS UUID send the same one.
fn with_addresses(Range { first, last }: Range, card: &Card, forwards: bool) -> String {
    // Without an address it is told that there is none; dnsmasq would name itself.
    let router = if forwards { format!(",{}", card.address) } else { String::new() };
    format!(
        "dhcp-range={first},{last},{},12h\n\
         dhcp-ignore-clid\n\
         dhcp-option=option:router{router}\n\
         dhcp-boot=tag:!ipxe,tag:bios,{BIOS}\n\
         dhcp-boot=tag:!ipxe,tag:uefi,{UEFI}\n\
         dhcp-option-force=tag:!ipxe,tag:http,60,HTTPClient\n",
        card.netmask
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// dnsmasq's own opinion, where there is one: see also the tests that talk to it.
    #[test]
    fn each_kind_of_machine_has_its_line() {
        let address = |text: &str| text.parse().unwrap();
        let (name, netmask) = ("eth1".to_owned(), address("255.255.255.0"));
        let card = Card { name, index: 2, address: address("10.0.0.1"), netmask };
        let (script, ipxe) = ("http://10.0.0.1:8080/start.ipxe", "http://10.0.0.1:8080/ipxe/snponly.efi");
        let (tftp, leases) = (Path::new("/t"), Path::new("/l"));
        let asked = Asked { card: &card, range: None, forwards: false, script, ipxe, tftp, leases };
        let told = text(&asked);
        for line in [
            "port=0",
            "interface=eth1",
            "tftp-root=/t",
            "dhcp-range=10.0.0.0,proxy,255.255.255.0",
            "pxe-service=tag:!ipxe,x86PC,\"iPXE\",undionly.kpxe",
            "pxe-service=tag:!ipxe,X86-64_EFI,\"iPXE\",snponly.efi",
            "dhcp-boot=tag:ipxe,http://10.0.0.1:8080/start.ipxe,,10.0.0.1",
            "dhcp-boot=tag:!ipxe,tag:http,http://10.0.0.1:8080/ipxe/snponly.efi,,10.0.0.1",
        ] {
            assert!(told.lines().any(|one| one == line), "{line}\n{told}");
        }
        let range = Some(Range { first: address("10.0.0.100"), last: address("10.0.0.200") });
        let told = text(&Asked { range, ..asked });
        assert!(
            told.contains(
                "\ndhcp-range=10.0.0.100,10.0.0.200,255.255.255.0,12h\ndhcp-ignore-clid\ndhcp-option=option:router\n"
            ),
            "{told}"
        );
        assert!(!told.contains("proxy"), "{told}");
        let told = text(&Asked { range, forwards: true, card: &card, script, ipxe, tftp, leases });
        assert!(told.contains("\ndhcp-option=option:router,10.0.0.1\n"), "{told}");
    }
}
