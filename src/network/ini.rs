//! Files of sections and keys: units of systemd-networkd, keyfiles of NetworkManager, and the name that udev gives a card.

use super::{Card, Network, Rendered, WRITTEN_BY};
use std::fmt::Display;

/// A file in the making. A section without keys is left out.
#[derive(Default)]
pub(super) struct Ini(Vec<(&'static str, Vec<String>)>);

impl Ini {
    pub fn section(&mut self, name: &'static str) -> &mut Ini {
        self.0.push((name, Vec::new()));
        self
    }

    /// In the section that was begun last.
    pub fn set(&mut self, key: impl Display, value: impl Display) -> &mut Ini {
        if let Some((_, lines)) = self.0.last_mut() {
            lines.push(format!("{key}={value}"));
        }
        self
    }

    /// A line for each value: none, one, or several.
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
    /// The file by which udev gives the card its name. It takes the place of systemd's own, so it says all that is wanted.
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
