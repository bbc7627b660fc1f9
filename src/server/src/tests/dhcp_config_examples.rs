//! Tests of the DHCP configurations that the docs contain for racks with their own DHCP server: dnsmasq and Kea accept
//! these configurations, respond to firmware, and assign one address to each NIC.

use super::pxe_with_dnsmasq::{
    ARM64, BIOS, Client, IA32, IPXE_BIOS, IPXE_UEFI, UEFI, assert_one_address, on_a_network,
};
use linux::process::ToolCommand;
use std::time::Duration;

const SCRIPT: &str = "http://10.77.0.1:8080/start.ipxe";

/// Asserts that each firmware receives its boot file, that each NIC receives one address, and that firmware without a
/// boot file receives no response.
fn assert_boots(client: &Client) {
    for (firmware, file) in [
        (BIOS, "undionly.kpxe"),
        (UEFI, "snponly.efi"),
        (ARM64, "ipxe-arm64.efi"),
        (IPXE_BIOS, SCRIPT),
        (IPXE_UEFI, SCRIPT),
    ] {
        assert_eq!(client.lease(firmware).file, file);
    }
    assert_one_address(client);
    client.is_ignored(IA32);
}

#[test]
#[ignore = "needs root and dnsmasq"]
fn root_documented_dnsmasq_configuration_answers_firmware() {
    on_a_network(|client| {
        let dir = tempfile::tempdir().unwrap();
        let written = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let sample = testing::docs::code_blocks(include_str!("../../../../docs/dhcp-dnsmasq.md"), "conf").remove(0);
        let sample = sample.replace("10.0.0.", "10.77.0.").replace("/srv/tftp", &dir.path().display().to_string());
        let sample = written("drophammer.conf", &sample);
        let own = format!("dhcp-leasefile={}/leases\npid-file=\nlog-facility=-\nuser=root\n", dir.path().display());
        let all = written("all.conf", &format!("conf-file={sample}\n{own}"));
        ToolCommand::new("/usr/sbin/dnsmasq").args(["--test", "-C", &sample]).run().unwrap();
        let started = ToolCommand::new("/usr/sbin/dnsmasq")
            .args(["--keep-in-foreground", "-C", &all])
            .start_in_background(|_| {});
        let running = started.unwrap();
        assert_boots(client);
        running.terminate(Duration::from_secs(2));
    });
}

#[test]
#[ignore = "needs root and kea-dhcp4"]
fn root_documented_kea_configuration_answers_firmware() {
    on_a_network(|client| {
        let dir = tempfile::tempdir().unwrap();
        let sample = testing::docs::code_blocks(include_str!("../../../../docs/dhcp-kea.md"), "json");
        let sample = sample.into_iter().find(|block| block.contains("\"Dhcp4\"")).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&sample.replace("10.0.0.", "10.77.0.")).unwrap();
        config["Dhcp4"]["lease-database"]["name"] = dir.path().join("leases").to_str().into();
        let path = dir.path().join("kea-dhcp4.conf");
        std::fs::write(&path, config.to_string()).unwrap();
        // The program is copied, because AppArmor's profile for its usual path does not permit access to the files in
        // this directory.
        let program = dir.path().join("kea-dhcp4");
        // A separate process writes the copy. If this process wrote it, a child that another test forks at this moment
        // would inherit the open descriptor, and the kernel would not execute the copy (ETXTBSY).
        ToolCommand::new("cp").arg("/usr/sbin/kea-dhcp4").arg(&program).run().unwrap();
        let kea = || {
            let command = ToolCommand::new(&program);
            [("KEA_LOCKFILE_DIR", dir.path()), ("KEA_PIDFILE_DIR", dir.path())]
                .into_iter()
                .fold(command, |command, (name, value)| command.env(name, value))
        };
        kea().arg("-t").arg(&path).run().unwrap();
        let (started, has_begun) = std::sync::mpsc::channel();
        let watch = move |line: &str| {
            if line.contains("DHCP4_STARTED") {
                started.send(()).unwrap();
            }
        };
        let running = kea().arg("-c").arg(&path).start_in_background(watch).unwrap();
        has_begun.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_boots(client);
        running.terminate(Duration::from_secs(2));
    });
}
