//! INI files: units of systemd-networkd, keyfiles of NetworkManager, and udev's `.link` files.

use super::{Card, Network, Rendered, WRITTEN_BY};
use std::fmt::Display;

/// INI file under construction. Sections without keys are omitted.
#[derive(Default)]
pub(super) struct Ini(Vec<(&'static str, Vec<String>)>);

impl Ini {
    pub fn section(&mut self, name: &'static str) -> &mut Ini {
        self.0.push((name, Vec::new()));
        self
    }

    /// Adds a key to the last section.
    pub fn set(&mut self, key: impl Display, value: impl Display) -> &mut Ini {
        if let Some((_, lines)) = self.0.last_mut() {
            lines.push(format!("{key}={value}"));
        }
        self
    }

    /// Adds a line for each value.
    pub fn set_each(&mut self, key: &str, values: impl IntoIterator<Item = impl Display>) -> &mut Ini {
        for value in values {
            self.set(key, value);
        }
        self
    }

    pub fn text(&self) -> String {
        let filled = self.0.iter().filter(|(_, lines)| !lines.is_empty());
        let sections: Vec<String> = filled.map(|(name, lines)| format!("[{name}]\n{}\n", lines.join("\n"))).collect();
        format!("{WRITTEN_BY}\n{}", sections.join("\n"))
    }

    pub fn file(&self, path: String, mode: u32) -> Rendered {
        Rendered { path, mode, content: self.text() }
    }
}

impl Network {
    /// Renders the `.link` file by which udev names the NIC. It replaces systemd's default `.link` file, so it contains all settings.
    pub(super) fn link_file(&self, id: &str, name: &str) -> Option<Rendered> {
        let ethernet = self.ethernets.get(id)?;
        let mut ini = Ini::default();
        ini.section("Match");
        match &ethernet.card {
            Card::Mac(mac) => ini.set("PermanentMACAddress", mac),
            Card::Name(name) => ini.set("OriginalName", name),
        };
        ini.section("Link").set("Name", name).set_each("MTUBytes", ethernet.settings.mtu);
        Some(ini.file(format!("/etc/systemd/network/10-drophammer-{id}.link"), 0o644))
    }
}
