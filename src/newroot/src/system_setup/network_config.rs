//! Network configuration of the target, written for the network system that the image contains.

use super::file_search::is_file;
use crate::NewRoot;
use crate::chroot::TargetRunner;
use common::error::{Context, Error, Phase, Result};
use model::inventory::Nic;
use netconfig::{DisplacedFiles, NetworkBackend, NetworkConfig, RenderedFile};
use operations::RequestedNetwork;
use std::time::Duration;

const ENABLE_DEADLINE: Duration = Duration::from_secs(60);

/// Routing daemon. metal-stack images that contain FRR configure `networks` of the allocation themselves.
const FRR: &str = "/usr/lib/frr/bgpd";
const UNROUTED: &str = "WARNING: the image contains FRR, for which drophammer does not configure `networks` of the allocation: the image must do so at its first boot";

/// Programs that rename NICs. In an image without any of them, such as Alpine, NICs have the kernel's names.
const UDEV: [&str; 3] = ["/usr/lib/systemd/systemd-udevd", "/lib/systemd/systemd-udevd", "/sbin/udevd"];

const SYSTEMD_LIBRARIES: [&str; 4] =
    ["/usr/lib/systemd", "/lib/systemd", "/usr/lib/x86_64-linux-gnu/systemd", "/usr/lib64/systemd"];

const INTERFACES: &str = "/etc/network/interfaces";

const SUPPORTED: &str = "netplan, NetworkManager, ifupdown, systemd-networkd or cloud-init";

const SYSTEMCTL: [&str; 2] = ["/usr/bin/systemctl", "/bin/systemctl"];
const RC_UPDATE: [&str; 2] = ["/sbin/rc-update", "/usr/sbin/rc-update"];

/// Command that enables the network at boot: a program of the target and its arguments.
type EnableCommand = (&'static str, Vec<&'static str>);

/// Writes the network configuration, and removes that of the image. Returns the command that enables the network at
/// boot, if one is required.
///
/// # Errors
/// Returns an error if a file cannot be written or removed.
pub(crate) fn write_network_config(
    root: &NewRoot,
    wanted: &RequestedNetwork,
    nics: &[Nic],
    say: &dyn Fn(&str),
) -> Result<Option<EnableCommand>> {
    let has = |path: &str| root.path_exists(path);
    let Some(system) = NetworkBackend::detect(&has) else {
        if let (RequestedNetwork::Described(_), Some(name)) = (wanted, netconfig::find_unsupported(&has)) {
            let what = format!(
                "the image configures its network with {name}, which drophammer cannot configure: use an image with {SUPPORTED}, or \
                 remove `network` from the allocation"
            );
            return Err(Error::new(Phase::Target, what));
        }
        say(&format!("WARNING: the image does not contain a supported network system: {SUPPORTED}"));
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
    if *wanted != RequestedNetwork::Unsaid {
        remove_files_of_others(root, system, say)?;
    }
    let systemd = read_systemd_version(root);
    let files = network.render(system, nics).into_iter().chain(network.render_additional_files(system, &has));
    for RenderedFile { path, mode, content } in files.map(|file| file.for_systemd(systemd)) {
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
/// Returns an error if a file cannot be written.
pub(crate) fn write_cloud_init_network(root: &NewRoot, wanted: &RequestedNetwork, nics: &[Nic]) -> Result<()> {
    let RequestedNetwork::Described(network) = wanted else { return Ok(()) };
    let files = network.render(NetworkBackend::CloudInit, nics).into_iter();
    files.into_iter().try_for_each(|file| root.write_file(&file.path, file.mode, file.content.as_bytes()))
}

/// Enables the network at boot.
///
/// # Errors
/// Returns an error if the program of the image fails.
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
        files.extend(list_displaced(root, aside));
    }
    files
}

fn list_displaced(root: &NewRoot, aside: &DisplacedFiles) -> Vec<String> {
    let names = root.list_names(aside.folder).unwrap_or_default().into_iter().filter(|name| aside.matches(name));
    names.map(|name| format!("{}/{name}", aside.folder)).filter(|path| is_file(root, path)).collect()
}

/// Removes the configuration of unused network managers, which would configure the same NICs if their services are
/// enabled.
fn remove_files_of_others(root: &NewRoot, system: NetworkBackend, say: &dyn Fn(&str)) -> Result<()> {
    let files: Vec<String> =
        system.displaced_files_of_others().flat_map(|aside| list_displaced(root, &aside)).collect();
    files.iter().try_for_each(|file| root.remove(file))?;
    if !files.is_empty() {
        say(&format!("removed the image's configuration for other network systems: {}", files.join(", ")));
    }
    if system != NetworkBackend::Ifupdown && root.read_text(INTERFACES).is_ok_and(|text| configures_interfaces(&text)) {
        say(&format!("WARNING: {INTERFACES} of the image also configures NICs, if ifupdown is enabled in it"));
    }
    Ok(())
}

/// Returns whether a file of ifupdown configures an interface other than the loopback interface.
fn configures_interfaces(text: &str) -> bool {
    let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    words.into_iter().any(|words| matches!(words.as_slice(), ["iface", name, ..] if *name != "lo"))
}

/// Reads the version of systemd from the name of its library, such as `libsystemd-shared-239.so`.
fn read_systemd_version(root: &NewRoot) -> Option<u32> {
    let names = SYSTEMD_LIBRARIES.iter().flat_map(|dir| root.list_names(dir).unwrap_or_default());
    let versions = names.filter_map(|name| {
        let rest = name.strip_prefix("libsystemd-shared-")?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    });
    versions.max()
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

    #[test]
    fn a_link_file_has_a_condition_that_systemd_of_the_tree_understands() {
        let ifupdown = [("sbin/ifup", ""), ("sbin/udevd", "")];
        for (library, key) in [
            ("usr/lib/systemd/libsystemd-shared-239.so", "\nMACAddress=52:54:00:00:00:01\n"),
            ("lib/systemd/libsystemd-shared-237.so", "\nMACAddress="),
            ("usr/lib/systemd/libsystemd-shared-245.so", "\nPermanentMACAddress="),
            ("usr/lib/systemd/libsystemd-shared-255.4-1ubuntu8.so", "\nPermanentMACAddress="),
            ("usr/lib/systemd/other", "\nPermanentMACAddress="),
        ] {
            let (_dir, root) = tree(&[ifupdown[0], ifupdown[1], (library, "")]);
            said(|say| write_network_config(&root, &described(), &nics(), say)).0.unwrap();
            let text = root.read_text("/etc/systemd/network/10-drophammer-lan.link").unwrap();
            assert!(text.contains(key), "{library}: {text}");
        }
    }

    #[test]
    fn leftovers_of_the_image_do_not_configure_the_network() {
        let scripts = "etc/sysconfig/network-scripts";
        let ifcfg = (format!("{scripts}/ifcfg-eth0"), format!("{scripts}/ifcfg-lo"));
        let keyfiles = "etc/NetworkManager/system-connections";
        let keyfile = (format!("{keyfiles}/eth0"), format!("{keyfiles}/default.nmconnection"));
        let (_dir, root) = tree(&[
            ("usr/sbin/NetworkManager", ""),
            (&ifcfg.0, "DEVICE=eth0\n"),
            (&ifcfg.1, "DEVICE=lo\n"),
            (&keyfile.0, "[connection]\n"),
            (&keyfile.1, "[connection]\n"),
            ("etc/network/interfaces", "auto lo\niface lo inet loopback\niface eth0 inet dhcp\n"),
            NETWORKD,
            OWN,
        ]);
        let (done, lines) = said(|say| write_network_config(&root, &described(), &nics(), say));
        done.unwrap();
        for removed in [&ifcfg.0, &keyfile.0, &keyfile.1, "etc/systemd/network/80-own.network"] {
            assert!(!root.path_exists(&format!("/{removed}")), "{removed}");
        }
        assert!(root.path_exists(&format!("/{}", ifcfg.1)));
        assert!(lines.iter().any(|line| line.contains("80-own.network")), "{lines:?}");
        assert!(lines.iter().any(|line| line.starts_with("WARNING: /etc/network/interfaces")), "{lines:?}");
    }

    #[test]
    fn a_described_network_is_refused_if_the_image_cannot_have_it() {
        for (program, name) in [("usr/sbin/wicked", "wicked"), ("usr/sbin/dhcpcd", "dhcpcd")] {
            let (_dir, root) = tree(&[(program, "")]);
            let error = said(|say| write_network_config(&root, &described(), &nics(), say)).0.unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
            let (done, lines) = said(|say| write_network_config(&root, &RequestedNetwork::Unsaid, &nics(), say));
            assert!(done.unwrap().is_none() && lines[0].starts_with("WARNING: "), "{lines:?}");
        }
    }
}
