//! Network managers of installed systems: their detection, units, and files.

use super::{NetworkConfig, RenderedFile, WRITTEN_BY};
use model::inventory::Nic;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkBackend {
    Netplan,
    NetworkManager,
    Ifupdown,
    Networkd,
    CloudInit,
}

/// Configuration files of the image that would configure NICs in addition to drophammer's files. These are the files in
/// `folder` whose names start with one of `beginnings` and end with one of `endings`, except hidden files and
/// `ifcfg-lo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DisplacedFiles {
    pub folder: &'static str,
    pub beginnings: &'static [&'static str],
    pub endings: &'static [&'static str],
}

impl DisplacedFiles {
    pub fn matches(&self, name: &str) -> bool {
        let is_loopback = self.folder == IFCFG.folder && name == "ifcfg-lo";
        let fits = self.beginnings.iter().any(|beginning| name.starts_with(beginning))
            && self.endings.iter().any(|ending| name.ends_with(ending));
        fits && !name.starts_with('.') && !is_loopback
    }
}

/// Configuration files of Red Hat's initscripts, which NetworkManager also reads.
const IFCFG: DisplacedFiles = DisplacedFiles {
    folder: "/etc/sysconfig/network-scripts",
    beginnings: &["ifcfg-", "route-", "route6-", "rule-", "rule6-"],
    endings: &[""],
};

/// Unsupported network managers, with files that exist only in their packages.
const UNSUPPORTED: [(&str, &[&str]); 5] = [
    WICKED,
    INITSCRIPTS,
    ("dhcpcd", &["/usr/sbin/dhcpcd", "/usr/bin/dhcpcd", "/sbin/dhcpcd"]),
    ("connman", &["/usr/sbin/connmand", "/usr/bin/connmand"]),
    ("netctl", &["/usr/bin/netctl"]),
];

/// Network manager of SUSE. Its program `ifup` does not read the files of ifupdown.
const WICKED: (&str, &[&str]) = ("wicked", &["/usr/sbin/wicked", "/usr/sbin/wickedd"]);

/// Network scripts of Red Hat and Mageia. Their program `ifup` does not read the files of ifupdown.
const INITSCRIPTS: (&str, &[&str]) =
    ("initscripts", &["/etc/sysconfig/network-scripts/ifup-eth", "/etc/sysconfig/network-scripts/network-functions"]);

/// Returns the name of an unsupported network manager if the tree contains only unsupported ones. `has` returns whether
/// a path exists in the tree.
pub fn find_unsupported(has: &dyn Fn(&str) -> bool) -> Option<&'static str> {
    let is_there = |(_, files): &&(&str, &[&str])| files.iter().any(|path| has(path));
    let found = || UNSUPPORTED.iter().find(is_there).map(|(name, _)| *name);
    NetworkBackend::detect(has).is_none().then(found).flatten()
}

/// Returns whether this is the name of an unsupported network manager.
pub fn is_unsupported(name: &str) -> bool {
    UNSUPPORTED.iter().any(|(unsupported, _)| *unsupported == name)
}

/// Supported network managers, in the order of their detection. netplan is first, because it controls NetworkManager
/// and networkd. networkd follows NetworkManager and ifupdown, because nearly every image with systemd contains it,
/// even if the image does not use it. cloud-init is last, because it does not pass all settings to other network
/// managers (22.4, Debian 12): for networkd it writes neither bonds nor VLANs, for ifupdown only VLANs with the VLAN id
/// in their names, and `on-link` only for netplan.
const ALL: [NetworkBackend; 5] = [
    NetworkBackend::Netplan,
    NetworkBackend::NetworkManager,
    NetworkBackend::Ifupdown,
    NetworkBackend::Networkd,
    NetworkBackend::CloudInit,
];

const CLOUD_INIT: &str = "/usr/bin/cloud-init";

/// Directory of cloud-init's settings. If several files contain the same setting, the file whose name sorts last takes
/// precedence.
pub const CLOUD_FOLDER: &str = "/etc/cloud/cloud.cfg.d";

/// Returns a file name that sorts after `others`, the names of all other settings files.
fn choose_last_name(others: &[String]) -> String {
    const DEFAULT_FILE_NAME: &str = "99-drophammer-network.cfg";
    const FILE_NAME_SUFFIX: &str = "drophammer-network.cfg";
    let last = others.iter().map(String::as_str).filter(|name| name.ends_with(".cfg")).max();
    match last.filter(|name| *name > DEFAULT_FILE_NAME) {
        Some(name) if name.ends_with(FILE_NAME_SUFFIX) => name.to_owned(),
        Some(name) => format!("{}_{FILE_NAME_SUFFIX}", name.trim_end_matches(".cfg")),
        None => DEFAULT_FILE_NAME.to_owned(),
    }
}

impl NetworkBackend {
    /// Detects the network manager of a tree. `has` returns whether a path exists in the tree.
    pub fn detect(has: &dyn Fn(&str) -> bool) -> Option<NetworkBackend> {
        let is_there = |system: &NetworkBackend| {
            let is_off = match system {
                NetworkBackend::CloudInit => has("/etc/cloud/cloud-init.disabled"),
                NetworkBackend::Ifupdown => {
                    [WICKED, INITSCRIPTS].iter().any(|(_, files)| files.iter().any(|path| has(path)))
                }
                _ => false,
            };
            !is_off && system.program_paths().iter().any(|path| has(path))
        };
        ALL.into_iter().find(is_there)
    }

    fn program_paths(self) -> &'static [&'static str] {
        match self {
            NetworkBackend::CloudInit => &[CLOUD_INIT],
            NetworkBackend::Netplan => &["/usr/sbin/netplan", "/usr/bin/netplan"],
            NetworkBackend::NetworkManager => &["/usr/sbin/NetworkManager", "/usr/bin/NetworkManager"],
            NetworkBackend::Ifupdown => &["/sbin/ifup", "/usr/sbin/ifup"],
            NetworkBackend::Networkd => &["/usr/lib/systemd/systemd-networkd", "/lib/systemd/systemd-networkd"],
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            NetworkBackend::CloudInit => "cloud-init",
            NetworkBackend::Netplan => "netplan",
            NetworkBackend::NetworkManager => "NetworkManager",
            NetworkBackend::Ifupdown => "ifupdown",
            NetworkBackend::Networkd => "systemd-networkd",
        }
    }

    /// Returns the systemd unit that must be enabled; `None` if the unit of another program starts the network manager.
    pub fn unit_name(self) -> Option<&'static str> {
        match self {
            NetworkBackend::CloudInit | NetworkBackend::Netplan => None,
            NetworkBackend::NetworkManager => Some("NetworkManager.service"),
            NetworkBackend::Ifupdown => Some("networking.service"),
            NetworkBackend::Networkd => Some("systemd-networkd.service"),
        }
    }

    /// Returns the configuration files of other network managers that would also configure NICs.
    pub fn displaced_files_of_others(self) -> impl Iterator<Item = DisplacedFiles> {
        let others = ALL.into_iter().filter(move |other| *other != self && *other != NetworkBackend::Netplan);
        others.flat_map(|other| other.displaced_files().iter().copied())
    }

    /// Returns the configuration files of the image that must be moved aside for this network manager.
    pub fn displaced_files(self) -> &'static [DisplacedFiles] {
        match self {
            NetworkBackend::CloudInit => &[],
            NetworkBackend::Netplan => {
                &[DisplacedFiles { folder: "/etc/netplan", beginnings: &[""], endings: &[".yaml"] }]
            }
            // NetworkManager reads keyfiles with any file name.
            NetworkBackend::NetworkManager => &[
                DisplacedFiles { folder: "/etc/NetworkManager/system-connections", beginnings: &[""], endings: &[""] },
                DisplacedFiles {
                    folder: "/usr/lib/NetworkManager/system-connections",
                    beginnings: &[""],
                    endings: &[""],
                },
                IFCFG,
            ],
            NetworkBackend::Ifupdown => {
                &[DisplacedFiles { folder: "/etc/network/interfaces.d", beginnings: &[""], endings: &[""] }]
            }
            NetworkBackend::Networkd => &[DisplacedFiles {
                folder: "/etc/systemd/network",
                beginnings: &[""],
                endings: &[".network", ".netdev"],
            }],
        }
    }

    /// Returns whether drophammer must write `/etc/resolv.conf`, because no program in the tree writes this file.
    fn needs_resolv_conf(self, has: &dyn Fn(&str) -> bool) -> bool {
        let resolved = ["/usr/lib/systemd/systemd-resolved", "/lib/systemd/systemd-resolved"];
        match self {
            NetworkBackend::CloudInit | NetworkBackend::NetworkManager => false,
            NetworkBackend::Netplan | NetworkBackend::Networkd => !resolved.iter().any(|path| has(path)),
            NetworkBackend::Ifupdown => !["/sbin/resolvconf", "/usr/sbin/resolvconf"].iter().any(|path| has(path)),
        }
    }
}

impl NetworkConfig {
    /// Renders the configuration files for this network manager on a machine with these NICs.
    pub fn render(&self, system: NetworkBackend, nics: &[Nic]) -> Vec<RenderedFile> {
        match system {
            NetworkBackend::CloudInit => self.render_cloud_init(nics),
            NetworkBackend::Netplan => self.render_netplan(),
            NetworkBackend::Networkd => self.render_networkd(),
            NetworkBackend::NetworkManager => self.render_network_manager(nics),
            NetworkBackend::Ifupdown => self.render_ifupdown(nics),
        }
    }

    /// Renders files that are needed in addition to those of [`NetworkConfig::render`]: `/etc/resolv.conf` if no daemon
    /// writes it, and, if the tree contains cloud-init but `system` is another network manager, a file that disables
    /// network configuration by cloud-init. `cloud_files` are the file names in `/etc/cloud/cloud.cfg.d`.
    pub fn render_additional_files(
        &self,
        system: NetworkBackend,
        has: &dyn Fn(&str) -> bool,
        cloud_files: &[String],
    ) -> Vec<RenderedFile> {
        let resolv_conf = self.render_resolv_conf().filter(|_| system.needs_resolv_conf(has));
        let is_not_asked = system != NetworkBackend::CloudInit && has(CLOUD_INIT);
        let cloud_init = is_not_asked.then(|| RenderedFile {
            path: format!("{CLOUD_FOLDER}/{}", choose_last_name(cloud_files)),
            mode: 0o644,
            content: format!("{WRITTEN_BY}network: {{config: disabled}}\n"),
        });
        resolv_conf.into_iter().chain(cloud_init).collect()
    }
}
