//! The installed system: inventory, fstab, and the names of machine and system.

use super::{AdoptionHost, MachineAdoptionOptions, read_optional_text, refuse};
use crate::local_commands::installed_crypttab::{read_crypttab_copy, read_system_crypttab};
use crate::local_commands::plan::read_inventory;
use crate::local_commands::{check_layout_text, read_text};
use common::error::Result;
use layout_discovery::{DiscoveredLayout, InstalledCrypttab, discover_layout_with_keys};
use linux::probe::{self, ProbeDepth};
use model::inventory::Inventory;
use model::machine_identity::parse_usable_uuid;

/// Name of the installed system if os-release does not contain one.
const UNKNOWN_SYSTEM: &str = "unknown-system";

/// System that another installer has installed.
#[derive(Debug)]
pub(crate) struct ForeignSystem {
    pub inventory: Inventory,
    /// Content of the fstab; `None` if the fstab in the inventory applies.
    fstab: Option<String>,
    /// Crypttab of the system; `None` if it is unknown.
    crypttab: Option<InstalledCrypttab>,
    /// Id of the machine.
    pub machine: String,
    /// Name of the machine.
    pub name: String,
    /// Name of the system, in the format of an image id: `debian-13`.
    pub image: String,
}

impl ForeignSystem {
    /// Reads the machine, or the inventory that the options name.
    pub(crate) fn read(options: &MachineAdoptionOptions, host: &AdoptionHost) -> Result<ForeignSystem> {
        let inventory = match &options.inventory {
            Some(path) => read_inventory(path)?,
            None => probe::read_inventory(ProbeDepth::Deep)?,
        };
        let fstab = match (&options.fstab, &options.inventory) {
            (Some(path), _) => Some(read_text(path)?),
            (None, Some(_)) => None,
            (None, None) => Some(read_text(&host.root.join("etc/fstab"))?),
        };
        let crypttab = match (&options.crypttab, &options.inventory) {
            (Some(path), _) => Some(read_crypttab_copy(path)?),
            (None, Some(_)) => None,
            (None, None) => Some(read_system_crypttab(&host.root)?),
        };
        let read = |path: &str| read_optional_text(&host.root.join(path)).unwrap_or_default();
        let machine = options.machine.or_else(|| parse_usable_uuid(inventory.system.uuid.as_deref()?));
        let machine = machine.map(|id| id.to_string()).ok_or_else(|| refuse(explain_missing_id(host)))?;
        let name = options.name.clone().or_else(|| find_host_name(&read("etc/hostname"))).ok_or_else(|| {
            refuse("drophammer adopt: /etc/hostname does not contain a name; specify the name of the machine with --name NAME")
        })?;
        let image = find_system_name(&read("etc/os-release"))
            .or_else(|| find_system_name(&read("usr/lib/os-release")))
            .unwrap_or_else(|| UNKNOWN_SYSTEM.to_owned());
        Ok(ForeignSystem { inventory, fstab, crypttab, machine, name, image })
    }

    /// Returns the discovered layout. If the options name a layout file, the layout in this file replaces the
    /// discovered layout, including its id.
    pub(crate) fn discover_layout(&self, options: &MachineAdoptionOptions) -> Result<DiscoveredLayout> {
        let (fstab, crypttab) = (self.fstab.as_deref(), self.crypttab.as_ref());
        let mut found = discover_layout_with_keys(&self.inventory, fstab, crypttab, &self.name);
        options.give_up.iter().for_each(|device| found.give_up(device));
        if let Some(path) = &options.layout {
            found.layout = check_layout_text(path, &read_text(path)?).map_err(refuse)?.layout;
        }
        Ok(found)
    }

    /// Returns the reasons why disks could not be read.
    pub(crate) fn list_unreadable(&self) -> Vec<String> {
        let unreadable = self.inventory.disks.iter().filter_map(|disk| Some((&disk.device, disk.unreadable.as_ref()?)));
        unreadable.map(|(device, why)| format!("{device} cannot be read: {why}; run the command as root")).collect()
    }
}

fn explain_missing_id(host: &AdoptionHost) -> &'static str {
    match host.is_privileged {
        true => {
            "drophammer adopt: the firmware does not report a usable UUID; specify the id of the machine with --machine UUID"
        }
        false => {
            "drophammer adopt: only root can read the UUID of the machine; run the command as root, or specify --machine UUID"
        }
    }
}

/// Returns the first label of the host name.
fn find_host_name(text: &str) -> Option<String> {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'))?;
    let name = line.split('.').next().unwrap_or_default();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    (!name.is_empty() && name.bytes().all(is_plain)).then(|| name.to_owned())
}

/// Returns `ID-VERSION_ID` of os-release, or `ID` of a system without versions.
fn find_system_name(text: &str) -> Option<String> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        let value = line.trim().trim_matches(['"', '\'']);
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        (!value.is_empty() && value.len() < 64 && value.bytes().all(is_plain)).then_some(value)
    };
    let id = field("ID")?;
    Some(field("VERSION_ID").map_or(id.to_owned(), |version| format!("{id}-{version}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_machine_and_system_are_read() {
        assert_eq!(find_host_name("# comment\nweb-1.example.org\n").as_deref(), Some("web-1"));
        for text in ["", "\n", ".example.org", "web 1", "web\u{1b}[2J"] {
            assert_eq!(find_host_name(text), None, "{text:?}");
        }
        let debian = "PRETTY_NAME=\"Debian GNU/Linux 13 (trixie)\"\nVERSION_ID=\"13\"\nID=debian\n";
        assert_eq!(find_system_name(debian).as_deref(), Some("debian-13"));
        assert_eq!(find_system_name("ID=arch\nBUILD_ID=rolling\n").as_deref(), Some("arch"));
        for text in ["", "VERSION_ID=13\n", "ID=\"a b\"\n", "ID=\u{1b}[2J\n"] {
            assert_eq!(find_system_name(text), None, "{text:?}");
        }
    }
}
