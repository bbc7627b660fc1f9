//! Writer of INI files for systemd-networkd, NetworkManager and udev's `.link` files.

use super::{NetworkConfig, NicSelector, RenderedFile, WRITTEN_BY};
use std::fmt::Display;

/// INI file under construction. Sections without keys are omitted.
#[derive(Default)]
pub(super) struct IniFile(Vec<(&'static str, Vec<String>)>);

impl IniFile {
    pub(crate) fn section(&mut self, name: &'static str) -> &mut IniFile {
        self.0.push((name, Vec::new()));
        self
    }

    /// Adds a key with its value to the current section.
    pub(crate) fn set(&mut self, key: impl Display, value: impl Display) -> &mut IniFile {
        if let Some((_, lines)) = self.0.last_mut() {
            lines.push(format!("{key}={value}"));
        }
        self
    }

    /// Adds a line with this key for each of the values.
    pub(crate) fn set_each(&mut self, key: &str, values: impl IntoIterator<Item = impl Display>) -> &mut IniFile {
        for value in values {
            self.set(key, value);
        }
        self
    }

    pub(crate) fn to_text(&self) -> String {
        let filled = self.0.iter().filter(|(_, lines)| !lines.is_empty());
        let sections: Vec<String> = filled.map(|(name, lines)| format!("[{name}]\n{}\n", lines.join("\n"))).collect();
        format!("{WRITTEN_BY}\n{}", sections.join("\n"))
    }

    pub(crate) fn to_file(&self, path: String, mode: u32) -> RenderedFile {
        RenderedFile { path, mode, content: self.to_text() }
    }
}

impl NetworkConfig {
    /// Renders the `.link` file with which udev names the NIC and sets its MTU. Since udev applies only one
    /// `.link` file to a NIC, this file replaces the default file of systemd.
    pub(super) fn render_link_file(&self, id: &str, name: &str) -> Option<RenderedFile> {
        let ethernet = self.ethernets.get(id)?;
        let mut ini = IniFile::default();
        ini.section("Match");
        match &ethernet.nic {
            NicSelector::Mac(mac) => ini.set("PermanentMACAddress", mac),
            NicSelector::Name(name) => ini.set("OriginalName", name),
        };
        ini.section("Link").set("Name", name).set_each("MTUBytes", ethernet.settings.mtu);
        Some(ini.to_file(format!("/etc/systemd/network/10-drophammer-{id}.link"), 0o644))
    }
}
