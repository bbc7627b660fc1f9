//! Contents of an image that affect NICs in addition to the selected network manager: services that configure NICs at
//! boot, and `.link` files.

use super::{NetworkBackend, NetworkConfig};
use model::inventory::Nic;

/// Network managers and the prefixes of the names of their services, which are systemd units or OpenRC init scripts.
/// The network manager `initscripts` is not listed, because its service configures only NICs with `ifcfg-*` files.
const SERVICES: [(&str, &[&str]); 7] = [
    ("systemd-networkd", &["systemd-networkd"]),
    ("NetworkManager", &["NetworkManager", "networkmanager"]),
    ("ifupdown", &["networking", "ifupdown"]),
    ("wicked", &["wicked", "wickedd"]),
    ("dhcpcd", &["dhcpcd"]),
    ("connman", &["connman"]),
    ("netctl", &["netctl"]),
];

/// Returns the name of the network manager to which a service belongs, such as `wicked` for `wickedd-nanny.service`;
/// `None` for a service that does not configure NICs.
pub fn find_service_manager(service: &str) -> Option<&'static str> {
    let belongs = |begin: &&str| {
        service.strip_prefix(*begin).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-', '@']))
    };
    SERVICES.iter().find(|(_, beginnings)| beginnings.iter().any(belongs)).map(|(name, _)| *name)
}

impl NetworkBackend {
    /// Returns the network manager whose services configure the NICs. netplan has no service of its own: it writes the
    /// files of its renderer, which is networkd, unless one of the `vendor_files` specifies NetworkManager.
    /// `vendor_files` are the contents of netplan's files outside of `/etc`, ordered by file name.
    pub fn running_manager(self, vendor_files: &[String]) -> NetworkBackend {
        let lines = vendor_files.iter().flat_map(|text| text.lines());
        let last = lines.filter_map(|line| line.trim().strip_prefix("renderer:")).next_back();
        match (self, last.map(|name| name.trim().trim_matches(['"', '\'']))) {
            (NetworkBackend::Netplan, Some("NetworkManager")) => NetworkBackend::NetworkManager,
            (NetworkBackend::Netplan, _) => NetworkBackend::Networkd,
            (system, _) => system,
        }
    }

    /// Returns whether udev prefers the image's `.link` file `name` to the `.link` files of this network manager. If
    /// several files match a NIC, udev applies only the one whose name sorts first.
    pub fn is_overridden_by_link_file(self, name: &str) -> bool {
        let own = if self == NetworkBackend::Netplan { "10-netplan-" } else { "10-drophammer-" };
        name.ends_with(".link") && (name < own || name.starts_with(own))
    }
}

impl NetworkConfig {
    /// Returns whether this network manager has `.link` files, from which udev takes the names of NICs.
    /// cloud-init renames NICs itself.
    pub fn has_link_files(&self, system: NetworkBackend, nics: &[Nic]) -> bool {
        match system {
            NetworkBackend::CloudInit => false,
            NetworkBackend::Netplan => self.ethernets.values().any(|ethernet| ethernet.set_name.is_some()),
            _ => self.render(system, nics).iter().any(|file| file.path.ends_with(".link")),
        }
    }
}
