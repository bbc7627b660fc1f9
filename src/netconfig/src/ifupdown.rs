//! Configuration for ifupdown: `/etc/network/interfaces`, and the `.link` files from which udev takes the
//! names of the NICs.
//!
//! `ip` commands in the stanzas create the bonds and VLANs, so the image needs neither ifenslave nor the package vlan.

use super::bond_parameters::ParameterType;
use super::{
    BondConfig, DHCP_METRIC, InterfaceSettings, NetworkConfig, NicSelector, RenderedFile, StaticRoute, WRITTEN_BY,
};
use model::inventory::Nic;

impl NetworkConfig {
    pub(super) fn render_ifupdown(&self, nics: &[Nic]) -> Vec<RenderedFile> {
        let mut text = format!("{WRITTEN_BY}\nsource /etc/network/interfaces.d/*\n\nauto lo\niface lo inet loopback\n");
        let mut files = Vec::new();
        for (id, ethernet) in &self.ethernets {
            let name = self.assigned_name(id, nics);
            if ethernet.set_name.is_some() || matches!(ethernet.nic, NicSelector::Mac(_)) {
                files.extend(self.render_link_file(id, &name));
            }
            if self.find_bond(id).is_some() {
                continue;
            }
            // VLANs are brought up at boot (`auto`), so their underlying devices must also be up by then.
            let comes_late = ethernet.settings.optional && self.vlans_on_device(id).next().is_none();
            text += &format_stanzas(&name, comes_late, Vec::new(), &ethernet.settings, Vec::new());
        }
        for (id, bond) in &self.bonds {
            text += &format_stanzas(id, false, self.bond_commands(id, bond, nics), &bond.settings, removal_command(id));
        }
        for (id, vlan) in self.vlans_in_order() {
            let link = self.assigned_name(&vlan.link, nics);
            let add = format!("link {link} name {id} type vlan id {}", vlan.id);
            text += &format_stanzas(id, false, vec![creation_command(id, &add)], &vlan.settings, removal_command(id));
        }
        files.push(RenderedFile { path: "/etc/network/interfaces".to_owned(), mode: 0o644, content: text });
        files
    }

    fn bond_commands(&self, id: &str, bond: &BondConfig, nics: &[Nic]) -> Vec<String> {
        let given = bond.set_parameters().filter(|(parameter, value)| {
            // An interval of 0 is omitted. It is the kernel's default, and the kernel refuses an explicit 0 if the
            // other type of link monitoring is configured.
            !(matches!(parameter.kind, ParameterType::Milliseconds) && *value == "0")
        });
        let parameters: Vec<String> = given.map(|(parameter, value)| format!("{} {value}", parameter.kernel)).collect();
        // bond0 may already exist, because loading the kernel module can create it.
        let mut lines = vec![creation_command(id, &format!("name {id} type bond"))];
        lines.push(format!("pre-up ip link set dev {id} type bond {}", parameters.join(" ")));
        lines.extend(bond.mac.iter().map(|mac| format!("pre-up ip link set dev {id} address {mac}")));
        for member in &bond.members {
            let member = self.assigned_name(member, nics);
            // A failure is ignored, so that the bond also comes up without a missing NIC.
            lines.push(format!("pre-up ip link set dev {member} down || true"));
            lines.push(format!("pre-up ip link set dev {member} master {id} || true"));
        }
        let primary = bond.primary.iter().map(|primary| self.assigned_name(primary, nics));
        lines.extend(primary.map(|primary| format!("pre-up ip link set dev {id} type bond primary {primary} || true")));
        lines
    }
}

fn creation_command(id: &str, add: &str) -> String {
    format!("pre-up ip link show dev {id} >/dev/null 2>&1 || ip link add {add}")
}

fn removal_command(id: &str) -> Vec<String> {
    vec![format!("post-down ip link delete dev {id}")]
}

/// An `iface` stanza. An interface has one stanza for each address and for each dynamic method. The first stanza
/// contains the commands that create the device, and the last stanza the commands that remove it.
struct InterfaceStanza {
    is_v4: bool,
    method: &'static str,
    options: Vec<String>,
}

fn format_stanzas(
    name: &str,
    comes_late: bool,
    before: Vec<String>,
    settings: &InterfaceSettings,
    after: Vec<String>,
) -> String {
    let mut stanzas = address_stanzas(name, settings);
    if stanzas.is_empty() {
        stanzas.push(InterfaceStanza { is_v4: true, method: "manual", options: Vec::new() });
    }
    if let Some(first) = stanzas.first_mut() {
        let mtu = settings.mtu.map(|mtu| format!("pre-up ip link set dev {name} mtu {mtu}"));
        let mut options: Vec<String> = before.into_iter().chain(mtu).collect();
        options.append(&mut first.options);
        options.extend(dns_options(settings));
        if settings.accept_ra == Some(false) {
            options.push(format!("pre-up echo 0 >/proc/sys/net/ipv6/conf/{name}/accept_ra || true"));
        }
        first.options = options;
    }
    for is_v4 in [true, false] {
        let last = stanzas.iter().rposition(|stanza| stanza.is_v4 == is_v4).unwrap_or_default();
        let routes = settings.routes.iter().filter(|route| route.to.is_v4() == is_v4);
        stanzas[last].options.extend(routes.map(|one| format_route(name, one)));
    }
    if let Some(last) = stanzas.last_mut() {
        last.options.extend(after);
    }
    let mut text = format!("\n{} {name}\n", if comes_late { "allow-hotplug" } else { "auto" });
    for InterfaceStanza { is_v4, method, options } in stanzas {
        text += &format!("iface {name} {} {method}\n", if is_v4 { "inet" } else { "inet6" });
        options.iter().for_each(|option| text += &format!("    {option}\n"));
    }
    text
}

fn address_stanzas(name: &str, settings: &InterfaceSettings) -> Vec<InterfaceStanza> {
    let mut ways = Vec::new();
    let mut push = |is_v4, method, options| ways.push(InterfaceStanza { is_v4, method, options });
    if settings.dhcp4 {
        // The MTU is set after the lease was obtained, because dhclient would otherwise overwrite it.
        let mtu = settings.mtu.map(|mtu| format!("up ip link set dev {name} mtu {mtu}"));
        push(true, "dhcp", [format!("metric {DHCP_METRIC}")].into_iter().chain(mtu).collect());
    }
    for address in settings.addresses.iter().filter(|address| address.is_v4()) {
        push(true, "static", vec![format!("address {address}")]);
    }
    match (settings.dhcp6, settings.accept_ra) {
        (true, _) => push(false, "dhcp", Vec::new()),
        (false, Some(true)) => push(false, "auto", Vec::new()),
        (false, _) => {}
    }
    // Autoconfiguration is enabled explicitly, because ifup disables it by default for an interface with a static
    // address.
    let autoconf = (settings.accept_ra != Some(false)).then(|| "autoconf 1".to_owned());
    for address in settings.addresses.iter().filter(|address| !address.is_v4()) {
        push(false, "static", [format!("address {address}")].into_iter().chain(autoconf.clone()).collect());
    }
    ways
}

/// Returns the stanza options for name servers and search domains. They take effect only if the image contains
/// resolvconf.
fn dns_options(settings: &InterfaceSettings) -> Vec<String> {
    let servers: Vec<String> = settings.nameservers.iter().map(ToString::to_string).collect();
    let lines = [("dns-nameservers", &servers), ("dns-search", &settings.search)];
    lines
        .iter()
        .filter(|(_, words)| !words.is_empty())
        .map(|(name, words)| format!("{name} {}", words.join(" ")))
        .collect()
}

fn format_route(name: &str, route: &StaticRoute) -> String {
    let family = if route.to.is_v4() { 4 } else { 6 };
    let metric = route.metric.map(|metric| format!(" metric {metric}")).unwrap_or_default();
    let on_link = if route.on_link { " onlink" } else { "" };
    format!("up ip -{family} route replace {} via {} dev {name}{metric}{on_link}", route.to, route.via)
}
