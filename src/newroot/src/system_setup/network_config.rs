//! Network configuration of the target, written for the network system that the image contains.

use crate::NewRoot;
use crate::chroot::TargetRunner;
use common::error::{Context, Phase, Result};
use model::inventory::Nic;
use netconfig::{NetworkBackend, NetworkConfig, RenderedFile};
use operations::RequestedNetwork;
use std::time::Duration;

const ENABLE_DEADLINE: Duration = Duration::from_secs(60);

/// Routing daemon. metal-stack images that contain FRR configure `networks` of the allocation themselves.
const FRR: &str = "/usr/lib/frr/bgpd";
const UNROUTED: &str = "WARNING: the image contains FRR, for which drophammer does not configure `networks` of the allocation: the image must do so at its first boot";

/// Programs that rename NICs. In an image without any of them, such as Alpine, NICs have the kernel's names.
const UDEV: [&str; 3] = ["/usr/lib/systemd/systemd-udevd", "/lib/systemd/systemd-udevd", "/sbin/udevd"];

const SYSTEMCTL: [&str; 2] = ["/usr/bin/systemctl", "/bin/systemctl"];
const RC_UPDATE: [&str; 2] = ["/sbin/rc-update", "/usr/sbin/rc-update"];

/// Command that enables the network at boot: a program of the target and its arguments.
type EnableCommand = (&'static str, Vec<&'static str>);

/// Writes the network configuration, and removes that of the image. Returns the command that enables the network at
/// boot, if one is required.
///
/// # Errors
/// A file cannot be written or removed.
pub(crate) fn write_network_config(
    root: &NewRoot,
    wanted: &RequestedNetwork,
    nics: &[Nic],
    say: &dyn Fn(&str),
) -> Result<Option<EnableCommand>> {
    let has = |path: &str| root.path_exists(path);
    let Some(system) = NetworkBackend::detect(&has) else {
        say(
            "WARNING: the image does not contain a supported network system: netplan, NetworkManager, ifupdown, systemd-networkd or cloud-init",
        );
        return Ok(None);
    };
    let Some(network) = choose_network(root, system, wanted, nics) else {
        if matches!(wanted, RequestedNetwork::Announced(_)) {
            say(UNROUTED);
        }
        say(&format!("the image's network configuration for {} is preserved", system.name()));
        return Ok(None);
    };
    let has_one_of = |paths: &[&str]| paths.iter().any(|path| has(path));
    let names_nothing = system == NetworkBackend::Ifupdown && !has_one_of(&UDEV);
    let network = if names_nothing { network.with_kernel_names(nics) } else { network };
    for file in list_image_files(root, system) {
        root.remove(&file)?;
    }
    for RenderedFile { path, mode, content } in
        network.render(system, nics).into_iter().chain(network.render_additional_files(system, &has))
    {
        root.write_file(&path, mode, content.as_bytes())?;
    }
    say(&format!("the network is configured by {}", system.name()));
    let by_systemd = |unit| ("systemctl", vec!["enable", unit]);
    let by_openrc = || (system == NetworkBackend::Ifupdown).then(|| ("rc-update", vec!["add", "networking", "boot"]));
    Ok(match has_one_of(&SYSTEMCTL) {
        true => system.unit_name().map(by_systemd),
        false => by_openrc().filter(|_| has_one_of(&RC_UPDATE)),
    })
}

/// Writes the network configuration of a raw image for cloud-init, if a configuration is requested.
///
/// # Errors
/// A file cannot be written.
pub(crate) fn write_cloud_init_network(root: &NewRoot, wanted: &RequestedNetwork, nics: &[Nic]) -> Result<()> {
    let RequestedNetwork::Described(network) = wanted else { return Ok(()) };
    let files = network.render(NetworkBackend::CloudInit, nics).into_iter();
    files.into_iter().try_for_each(|file| root.write_file(&file.path, file.mode, file.content.as_bytes()))
}

/// Enables the network at boot.
///
/// # Errors
/// The program of the image fails.
pub(crate) fn enable_network((program, arguments): &EnableCommand, run: &dyn TargetRunner) -> Result<()> {
    let ran = run.run_program(program, arguments, ENABLE_DEADLINE);
    ran.map(drop).context(Phase::Target, || "enable the network at boot".to_owned())
}

/// Returns the network to configure, or `None` to preserve the image's configuration. If no network is requested, all
/// NICs use DHCP unless the image contains a configuration.
fn choose_network(
    root: &NewRoot,
    system: NetworkBackend,
    wanted: &RequestedNetwork,
    nics: &[Nic],
) -> Option<NetworkConfig> {
    match wanted {
        RequestedNetwork::Described(network) => Some(network.clone()),
        RequestedNetwork::Announced(network) => Some(network.clone()).filter(|_| !root.path_exists(FRR)),
        RequestedNetwork::Unsaid => list_image_files(root, system).is_empty().then(|| NetworkConfig::dhcp_on_all(nics)),
    }
}

fn list_image_files(root: &NewRoot, system: NetworkBackend) -> Vec<String> {
    let mut files = Vec::new();
    for aside in system.displaced_files() {
        let names = root.list_names(aside.folder).unwrap_or_default().into_iter().filter(|name| !name.starts_with('.'));
        let counted = names.filter(|name| aside.endings.iter().any(|ending| name.ends_with(ending)));
        files.extend(counted.map(|name| format!("{}/{name}", aside.folder)));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::super::testing::{said, tree};
    use super::*;
    use serde_json::json;

    fn nics() -> Vec<Nic> {
        vec![Nic { name: "eth0".into(), mac: "52:54:00:00:00:01".into(), link: true, ..Nic::default() }]
    }

    fn described() -> RequestedNetwork {
        let document = json!({"version": 2, "ethernets": {"lan": {
            "match": {"macaddress": "52:54:00:00:00:01"}, "addresses": ["192.0.2.7/24"]}}});
        RequestedNetwork::Described(NetworkConfig::parse(&document).unwrap())
    }

    const NETWORKD: (&str, &str) = ("usr/lib/systemd/systemd-networkd", "");
    const OWN: (&str, &str) = ("etc/systemd/network/80-own.network", "[Match]\nName=*\n");

    #[test]
    fn what_is_described_takes_the_place_of_the_images_own() {
        let (_dir, root) = tree(&[NETWORKD, OWN, ("usr/bin/systemctl", "")]);
        let (unit, lines) = said(|say| write_network_config(&root, &described(), &nics(), say));
        assert_eq!(unit.unwrap(), Some(("systemctl", vec!["enable", "systemd-networkd.service"])));
        assert_eq!(lines, ["the network is configured by systemd-networkd"]);
        assert!(!root.path_exists("/etc/systemd/network/80-own.network"));
        let names = root.list_names("/etc/systemd/network").unwrap();
        let texts: Vec<String> =
            names.iter().map(|name| root.read_text(&format!("/etc/systemd/network/{name}")).unwrap()).collect();
        assert!(texts.iter().any(|text| text.contains("192.0.2.7/24")), "{texts:?}");
    }

    #[test]
    fn without_a_description_the_images_own_stays_and_dhcp_is_the_last_resort() {
        let (_dir, root) = tree(&[NETWORKD, OWN]);
        let (unit, lines) = said(|say| write_network_config(&root, &RequestedNetwork::Unsaid, &nics(), say));
        assert_eq!((unit.unwrap(), lines.len()), (None, 1));
        assert_eq!(root.list_names("/etc/systemd/network").unwrap(), ["80-own.network"]);

        let (_dir, root) = tree(&[NETWORKD]);
        said(|say| write_network_config(&root, &RequestedNetwork::Unsaid, &nics(), say)).0.unwrap();
        let names = root.list_names("/etc/systemd/network").unwrap();
        assert!(root.read_text(&format!("/etc/systemd/network/{}", names[0])).unwrap().contains("DHCP="), "{names:?}");
    }

    #[test]
    fn a_routing_daemon_makes_something_of_metal_stacks_networks_itself() {
        let RequestedNetwork::Described(network) = described() else { panic!("described") };
        let announced = RequestedNetwork::Announced(network);
        let (_dir, root) = tree(&[NETWORKD, ("usr/lib/frr/bgpd", "")]);
        said(|say| write_network_config(&root, &announced, &nics(), say)).0.unwrap();
        assert!(!root.path_exists("/etc/systemd/network"));
        let (_dir, root) = tree(&[NETWORKD]);
        said(|say| write_network_config(&root, &announced, &nics(), say)).0.unwrap();
        assert!(!root.list_names("/etc/systemd/network").unwrap().is_empty());
    }

    #[test]
    fn a_system_without_udev_has_the_kernels_names() {
        let files = [("sbin/ifup", ""), ("sbin/rc-update", "")];
        let (_dir, root) = tree(&files);
        let (enabling, _) = said(|say| write_network_config(&root, &described(), &nics(), say));
        assert_eq!(enabling.unwrap(), Some(("rc-update", vec!["add", "networking", "boot"])));
        assert!(root.read_text("/etc/network/interfaces").unwrap().contains("iface eth0 inet static"));
        assert!(!root.path_exists("/etc/systemd"));
        let (_dir, root) = tree(&[files[0], ("sbin/udevd", "")]);
        let (enabling, _) = said(|say| write_network_config(&root, &described(), &nics(), say));
        assert_eq!(enabling.unwrap(), None);
        assert!(root.read_text("/etc/network/interfaces").unwrap().contains("iface lan inet static"));
        assert!(root.path_exists("/etc/systemd/network/10-drophammer-lan.link"));
    }

    #[test]
    fn a_tree_that_sets_up_no_network_is_told() {
        let (_dir, root) = tree(&[]);
        let (unit, lines) = said(|say| write_network_config(&root, &described(), &nics(), say));
        assert_eq!(unit.unwrap(), None);
        assert!(lines[0].starts_with("WARNING: the image does not contain a supported network system"), "{lines:?}");
    }
}
