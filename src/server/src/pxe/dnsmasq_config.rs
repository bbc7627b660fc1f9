//! Configuration of dnsmasq, which reads no other configuration file.

use super::nic::PxeNic;
use super::pxe_options::{AddressRange, DhcpOption};
use std::fmt::Write;
use std::path::Path;

/// iPXE binaries for BIOS and for UEFI. Both use the NIC driver of the firmware. Debian's `ipxe.efi`, which contains its own drivers, was
/// observed to hang when it released the NIC, so that an installed machine did not boot its disk.
pub(crate) const BINARIES: [&str; 2] = [BIOS, UEFI];
const BIOS: &str = "undionly.kpxe";
pub(crate) const UEFI: &str = "snponly.efi";

/// Maximum length of a file name in the DHCP header, which has 128 bytes including the terminating zero.
pub(crate) const NAME_BYTES: usize = 127;

/// Parameters of the configuration.
pub(crate) struct DnsmasqParameters<'a> {
    pub card: &'a PxeNic,
    /// Range of addresses to assign; `None` if another DHCP server assigns addresses.
    pub range: Option<AddressRange>,
    /// Further options that are sent with addresses.
    pub dhcp_options: &'a [DhcpOption],
    /// True if this host forwards packets to other networks.
    pub forwards: bool,
    /// URL of the iPXE script.
    pub script: &'a str,
    /// URL of the iPXE binary, for firmware that boots over HTTP.
    pub ipxe: &'a str,
    /// Directory of the iPXE binaries, which TFTP serves.
    pub tftp: &'a Path,
    pub leases: &'a Path,
}

/// Returns the configuration in the format of dnsmasq(8). A client that sends option 175 or the user class iPXE is iPXE, and gets the
/// script. Every other client is firmware, and must load iPXE first. Firmware of other architectures gets no answer: after an answer without
/// a boot file it would not try the network's other servers.
pub(crate) fn dnsmasq_config(asked: &DnsmasqParameters) -> String {
    let DnsmasqParameters { card, script, ipxe, .. } = asked;
    let mut text = format!(
        "# Made by drophammer serve at each start.\n\
         port=0\n\
         interface={}\n\
         except-interface=lo\n\
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
         dhcp-match=set:firmware,option:client-arch\n\
         dhcp-ignore=tag:firmware,tag:!bios,tag:!uefi,tag:!http\n\
         dhcp-boot=tag:ipxe,{script},,{server}\n\
         dhcp-boot=tag:!ipxe,tag:http,{ipxe},,{server}\n",
        card.name,
        asked.leases.display(),
        asked.tftp.display(),
        // iPXE ignores a file offered by a proxy without a server address, and a proxy does not send one by default.
        server = card.address,
    );
    let more = match asked.range {
        Some(range) => address_config(range, asked),
        None => proxy_config(card),
    };
    text.push_str(&more);
    text
}

/// Returns the part of the configuration for a network in which another DHCP server assigns the addresses. Firmware that boots over HTTP
/// identifies itself as HTTPClient, and accepts only a response with the same vendor class.
fn proxy_config(card: &PxeNic) -> String {
    let mut text =
        format!("dhcp-range={},proxy,{}\ndhcp-pxe-vendor=PXEClient,HTTPClient\n", card.network(), card.netmask);
    for (kind, file) in [("x86PC", BIOS), ("BC_EFI", UEFI), ("X86-64_EFI", UEFI)] {
        let _ = writeln!(text, "pxe-service=tag:!ipxe,{kind},\"iPXE\",{file}");
    }
    text
}

/// Returns the part of the configuration that assigns one address to each NIC, by its MAC. Client identifiers are ignored: firmware, iPXE,
/// ramdisk and installed system send different ones for the same NIC, and boards that share an SMBIOS UUID send the same one.
fn address_config(AddressRange { first, last }: AddressRange, asked: &DnsmasqParameters) -> String {
    let DnsmasqParameters { card, dhcp_options, .. } = asked;
    // An empty option prevents dnsmasq from announcing itself as the router.
    let own_router = if asked.forwards { format!(",{}", card.address) } else { String::new() };
    let is_router_given = dhcp_options.iter().any(|option| option.is("3", "router"));
    let router = if is_router_given { String::new() } else { format!("dhcp-option=option:router{own_router}\n") };
    let options: String = dhcp_options.iter().map(DhcpOption::config_line).collect();
    format!(
        "dhcp-range={first},{last},{},12h\n\
         dhcp-ignore-clid\n\
         {router}{options}\
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
        let card = PxeNic { name, index: 2, address: address("10.0.0.1"), netmask };
        let (script, ipxe) = ("http://10.0.0.1:8080/start.ipxe", "http://10.0.0.1:8080/ipxe/snponly.efi");
        let (tftp, leases) = (Path::new("/t"), Path::new("/l"));
        let (range, dhcp_options) = (None, &[][..]);
        let asked = DnsmasqParameters { card: &card, range, dhcp_options, forwards: false, script, ipxe, tftp, leases };
        let told = dnsmasq_config(&asked);
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
        let range = Some(AddressRange { first: address("10.0.0.100"), last: address("10.0.0.200") });
        let told = dnsmasq_config(&DnsmasqParameters { range, ..asked });
        assert!(
            told.contains(
                "\ndhcp-range=10.0.0.100,10.0.0.200,255.255.255.0,12h\ndhcp-ignore-clid\ndhcp-option=option:router\n"
            ),
            "{told}"
        );
        assert!(!told.contains("proxy"), "{told}");
        let asked = DnsmasqParameters { card: &card, range, dhcp_options, forwards: true, script, ipxe, tftp, leases };
        let told = dnsmasq_config(&asked);
        assert!(told.contains("\ndhcp-option=option:router,10.0.0.1\n"), "{told}");
        let given = ["router,10.0.0.254", "42,10.0.0.5"].map(|option| option.parse().unwrap());
        let told = dnsmasq_config(&DnsmasqParameters { dhcp_options: &given, ..asked });
        assert!(told.contains("\ndhcp-option=option:router,10.0.0.254\ndhcp-option=42,10.0.0.5\n"), "{told}");
        assert!(!told.contains("option:router,10.0.0.1\n"), "{told}");
    }
}
