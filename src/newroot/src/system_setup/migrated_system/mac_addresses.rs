//! Replaces MAC addresses of the previous machine in configuration files by the MAC addresses of the corresponding NICs
//! of this machine.

use super::super::{file_search, user_data};
use crate::NewRoot;
use crate::system_setup::LogSink;
use common::error::Result;
use model::inventory::Nic;
use model::machine_migration::MigratedNic;

/// Files in which systems store MAC addresses.
const FILES: [&str; 10] = [
    "/etc/netplan/*.yaml",
    "/etc/systemd/network/*",
    "/etc/network/interfaces",
    "/etc/network/interfaces.d/*",
    "/etc/NetworkManager/system-connections/*",
    "/etc/udev/rules.d/*",
    "/etc/sysconfig/network-scripts/ifcfg-*",
    "/etc/sysconfig/network/ifcfg-*",
    "/etc/wicked/ifconfig/*.xml",
    "/etc/mactab",
];

/// Setting that disables network configuration by cloud-init.
const CLOUD_INIT: (&str, &str) = (
    "/etc/cloud/cloud.cfg.d/99-drophammer-network.cfg",
    "# written by drophammer: the network is configured for the NICs of this machine\nnetwork: {config: disabled}\n",
);

/// Replaces the addresses in all files.
///
/// # Errors
/// Returns an error if a file cannot be written.
pub(crate) fn replace_mac_addresses(root: &NewRoot, there: &[MigratedNic], here: &[Nic], say: LogSink) -> Result<()> {
    let pairs: Vec<(&str, &str)> =
        there.iter().zip(here).map(|(there, here)| (there.mac.as_str(), here.mac.as_str())).collect();
    let lacking: Vec<String> = there.iter().skip(here.len()).map(|nic| format!("{} ({})", nic.name, nic.mac)).collect();
    if !lacking.is_empty() {
        say(&format!("WARNING: no NIC of this machine corresponds to {macs}", macs = lacking.join(", ")));
    }
    let (mut changed, mut speaks) = (Vec::new(), false);
    for path in FILES.iter().flat_map(|pattern| file_search::find_matching(root, pattern)) {
        let Ok(text) = root.read_text(&path) else { continue };
        // A udev rule does not count as a network configuration, because most rules do not concern the network.
        speaks |= !path.starts_with("/etc/udev/");
        if let Some(new) = replace_once(&text, &pairs) {
            root.rewrite_file(&path, 0o600, new.as_bytes())?;
            changed.push(path);
        }
    }
    if user_data::has_cloud_init(root) {
        root.write_file(CLOUD_INIT.0, 0o644, CLOUD_INIT.1.as_bytes())?;
        say("disabled cloud-init's network configuration, which would look for the NICs of the previous machine");
    }
    match (changed.is_empty(), speaks) {
        (false, _) => say(&format!("replaced MAC addresses in {}", changed.join(", "))),
        (true, true) => say(
            "WARNING: the system's network configuration does not use MAC addresses: names of NICs may differ on this machine",
        ),
        (true, false) => {}
    }
    Ok(())
}

/// Replaces all addresses in a single pass, so that a replacement is not replaced again if one of the new addresses is
/// also an old address. Returns `None` if nothing changes.
fn replace_once(text: &str, pairs: &[(&str, &str)]) -> Option<String> {
    let (mut new, mut rest) = (String::with_capacity(text.len()), text);
    while !rest.is_empty() {
        let is_here =
            |mac: &str| !mac.is_empty() && rest.get(..mac.len()).is_some_and(|is| is.eq_ignore_ascii_case(mac));
        let found = pairs.iter().find(|(there, _)| is_here(there) && !new.ends_with(is_address_character));
        match found.filter(|(there, _)| !rest[there.len()..].starts_with(is_address_character)) {
            Some((there, here)) => {
                new.push_str(here);
                rest = &rest[there.len()..];
            }
            None => {
                let next = rest.chars().next().map_or(rest.len(), char::len_utf8);
                new.push_str(&rest[..next]);
                rest = &rest[next..];
            }
        }
    }
    (new != text).then_some(new)
}

fn is_address_character(character: char) -> bool {
    character.is_ascii_hexdigit() || character == ':'
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{capture_log, tree};
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    const THERE: [&str; 3] = ["52:54:00:aa:00:01", "52:54:00:aa:00:02", "52:54:00:aa:00:03"];

    fn there(count: usize) -> Vec<MigratedNic> {
        let nic = |(index, mac): (usize, &&str)| MigratedNic { name: format!("eth{index}"), mac: (*mac).to_owned() };
        THERE.iter().take(count).enumerate().map(nic).collect()
    }

    fn here(macs: &[&str]) -> Vec<Nic> {
        macs.iter().map(|mac| Nic { mac: (*mac).to_owned(), ..Nic::default() }).collect()
    }

    #[test]
    fn mac_addresses_are_replaced_in_every_file() {
        let files = [
            ("etc/netplan/50-cloud-init.yaml", "match: {macaddress: \"52:54:00:aa:00:01\"}\n"),
            ("etc/systemd/network/10-lan.link", "[Match]\nMACAddress=52:54:00:AA:00:02\n"),
            ("etc/network/interfaces", "iface lan\n  hwaddress 52:54:00:aa:00:01\n"),
            ("etc/network/interfaces.d/more", "# 52:54:00:aa:00:02"),
            ("etc/NetworkManager/system-connections/lan.nmconnection", "mac-address=52:54:00:AA:00:01\n"),
            ("etc/udev/rules.d/70-persistent-net.rules", "ATTR{address}==\"52:54:00:aa:00:02\"\n"),
            ("etc/sysconfig/network-scripts/ifcfg-eth0", "HWADDR=52:54:00:AA:00:01\n"),
            ("etc/sysconfig/network/ifcfg-eth0", "LLADDR='52:54:00:aa:00:01'\n"),
        ];
        let (_dir, root) = tree(&files);
        let secret = root.path().join("etc/NetworkManager/system-connections/lan.nmconnection");
        fs::set_permissions(&secret, PermissionsExt::from_mode(0o640)).unwrap();
        let new = ["02:00:00:00:00:0a", "02:00:00:00:00:0b"];
        let (done, lines) = capture_log(|say| replace_mac_addresses(&root, &there(2), &here(&new), say));
        done.unwrap();
        for (path, text) in files {
            let lower = text.to_lowercase();
            let expected = lower.replace(THERE[0], new[0]).replace(THERE[1], new[1]);
            assert_eq!(root.read_text(&format!("/{path}")).unwrap().to_lowercase(), expected, "{path}");
        }
        assert_eq!(fs::metadata(secret).unwrap().permissions().mode() & 0o7777, 0o640);
        assert!(lines.len() == 1 && lines[0].starts_with("replaced MAC addresses in "), "{lines:?}");
        assert!(!root.path_exists("/etc/cloud"));
    }

    #[test]
    fn swapped_addresses_are_replaced_only_once() {
        let pairs = [(THERE[0], THERE[1]), (THERE[1], THERE[0])];
        let text = format!("{} {} {}", THERE[0], THERE[1], THERE[2]);
        assert_eq!(replace_once(&text, &pairs).unwrap(), format!("{} {} {}", THERE[1], THERE[0], THERE[2]));
        for other in ["00:52:54:00:aa:00:01", "52:54:00:aa:00:01:ff", "52:54:00:aa:00:011", "é", ""] {
            assert_eq!(replace_once(other, &pairs), None, "{other}");
        }
        assert_eq!(replace_once("x", &[("", "y")]), None);
    }

    #[test]
    fn unmatched_nics_cause_a_warning() {
        let (_dir, root) = tree(&[("etc/network/interfaces", "auto enp1s0\n"), ("usr/bin/cloud-init", "")]);
        let (done, lines) =
            capture_log(|say| replace_mac_addresses(&root, &there(3), &here(&["02:00:00:00:00:0a"]), say));
        done.unwrap();
        assert_eq!(
            lines[0],
            "WARNING: no NIC of this machine corresponds to eth1 (52:54:00:aa:00:02), eth2 (52:54:00:aa:00:03)"
        );
        assert!(lines[1].starts_with("disabled cloud-init's network configuration"), "{lines:?}");
        assert!(
            lines[2].starts_with("WARNING: the system's network configuration does not use MAC addresses"),
            "{lines:?}"
        );
        assert!(root.read_text(CLOUD_INIT.0).unwrap().ends_with("network: {config: disabled}\n"));
        assert_eq!(root.read_text("/etc/network/interfaces").unwrap(), "auto enp1s0\n");
        // A system without any of these files.
        let (_dir, root) = tree(&[]);
        let (done, lines) =
            capture_log(|say| replace_mac_addresses(&root, &there(1), &here(&["02:00:00:00:00:0a"]), say));
        done.unwrap();
        assert_eq!(lines, Vec::<String>::new());
    }

    #[test]
    fn symlink_out_of_the_tree_is_not_followed() {
        let (_dir, root) = tree(&[("etc/netplan/own.yaml", "")]);
        let outside = tempfile::tempdir().unwrap();
        let file = outside.path().join("own.yaml");
        fs::write(&file, THERE[0]).unwrap();
        std::os::unix::fs::symlink(&file, root.path().join("etc/netplan/link.yaml")).unwrap();
        capture_log(|say| replace_mac_addresses(&root, &there(1), &here(&["02:00:00:00:00:0a"]), say)).0.unwrap();
        assert_eq!(fs::read_to_string(file).unwrap(), THERE[0]);
    }
}
