//! The dnsmasq configuration in the docs, for racks with their own DHCP server: dnsmasq accepts it and responds to
//! firmware.

use super::pxe::{BIOS, IPXE_BIOS, IPXE_UEFI, UEFI, on_a_network};
use linux::process::ToolCommand;

#[test]
#[ignore = "needs root and dnsmasq"]
fn root_dnsmasq_as_the_docs_have_it_answers_firmware() {
    on_a_network(|client| {
        let dir = tempfile::tempdir().unwrap();
        let written = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let sample = testing::docs::blocks(include_str!("../../../../docs/start.md"), "conf").remove(0);
        let sample = sample.replace("10.0.0.", "10.77.0.").replace("/srv/tftp", &dir.path().display().to_string());
        let sample = written("drophammer.conf", &sample);
        let own = format!("dhcp-leasefile={}/leases\npid-file=\nlog-facility=-\nuser=root\n", dir.path().display());
        let all = written("all.conf", &format!("conf-file={sample}\n{own}"));
        ToolCommand::new("/usr/sbin/dnsmasq").args(["--test", "-C", &sample]).run().unwrap();
        let started = ToolCommand::new("/usr/sbin/dnsmasq")
            .args(["--keep-in-foreground", "-C", &all])
            .start_in_background(|_| {});
        let running = started.unwrap();
        let script = "http://10.77.0.1:8080/start.ipxe";
        let files = [(BIOS, "undionly.kpxe"), (UEFI, "snponly.efi"), (IPXE_BIOS, script), (IPXE_UEFI, script)];
        for (firmware, file) in files {
            assert_eq!(client.lease(firmware).file, file);
        }
        running.terminate(std::time::Duration::from_secs(2));
    });
}
