//! Registration of a machine with metal-stack, independent of the API version.

use super::bmc_record::BmcRecord;
use model::inventory::{Cpu, Inventory};
use model::layout::root_device_hints::is_portable;

/// Maximum number of characters that the server accepts in each field.
const TEXT: usize = 256;

/// Data with which a machine is registered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineRegistration {
    pub machine: String,
    pub partition: String,
    /// Version of the agent, which operators see.
    pub version: String,
    pub memory_bytes: u64,
    pub cpus: Vec<Cpu>,
    /// Device path and size in bytes of each disk. From these values, the server determines the size of the machine, a
    /// class of hardware.
    pub disks: Vec<(String, u64)>,
    pub nics: Vec<RegisteredNic>,
    pub bios: BiosInfo,
    pub product: ProductInfo,
    /// Record of the BMC, which replaces the record that the control plane stores.
    pub bmc: BmcRecord,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BiosInfo {
    pub vendor: String,
    pub version: String,
    pub date: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProductInfo {
    pub manufacturer: String,
    pub name: String,
    pub serial: String,
}

/// Network interface of the machine, or the port of a leaf switch to which an interface is connected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegisteredNic {
    pub name: String,
    pub mac: String,
    /// Identifier of the leaf's port; empty for an interface of the machine itself.
    pub identifier: String,
    pub hostname: String,
    pub neighbors: Vec<RegisteredNic>,
}

impl MachineRegistration {
    /// Creates the registration from an inventory that contains the LLDP neighbors.
    pub fn new(machine: &str, partition: &str, inventory: &Inventory, bmc: BmcRecord) -> MachineRegistration {
        let system = &inventory.system;
        let disks = inventory.disks.iter().filter(|disk| !is_portable(disk));
        let lo =
            RegisteredNic { name: "lo".to_owned(), mac: "00:00:00:00:00:00".to_owned(), ..RegisteredNic::default() };
        let nics = inventory.nics.iter().map(|nic| RegisteredNic {
            name: nic.name.clone(),
            mac: nic.mac.clone(),
            neighbors: nic.neighbors.iter().map(describe_port).collect(),
            ..RegisteredNic::default()
        });
        let cpu =
            |cpu: &Cpu| Cpu { vendor: shorten_field(&cpu.vendor), model: shorten_field(&cpu.model), ..cpu.clone() };
        MachineRegistration {
            machine: machine.to_owned(),
            partition: partition.to_owned(),
            version: concat!("drophammer ", env!("CARGO_PKG_VERSION")).to_owned(),
            memory_bytes: inventory.memory_bytes,
            cpus: inventory.cpus.iter().map(cpu).collect(),
            disks: disks.map(|disk| (disk.device.to_string(), disk.size_bytes)).collect(),
            // The loopback interface is also registered, because operators' inventories contain it.
            nics: std::iter::once(lo).chain(nics).collect(),
            bios: BiosInfo {
                vendor: shorten_field(&system.bios_vendor),
                version: shorten_field(&system.bios_version),
                date: shorten_field(&system.bios_date),
            },
            product: ProductInfo {
                manufacturer: shorten_field(&system.vendor),
                name: shorten_field(&system.product),
                serial: shorten_field(&system.serial),
            },
            bmc,
        }
    }
}

/// Describes the port of a leaf switch. The port id is sent both as MAC and as identifier, as by metal-stack's own
/// agent. The server requires names of at least two characters, so shorter names get a prefix.
fn describe_port(leaf: &model::inventory::lldp::LldpNeighbor) -> RegisteredNic {
    let name = leaf.display_name();
    let name = if name.chars().count() < 2 { format!("port {name}") } else { name.to_owned() };
    RegisteredNic {
        name: shorten_field(&name).chars().take(128).collect(),
        mac: leaf.port.clone(),
        identifier: leaf.port.chars().take(128).collect(),
        hostname: leaf.hostname.clone(),
        neighbors: Vec::new(),
    }
}

fn shorten_field(text: &str) -> String {
    text.trim().chars().take(TEXT).collect::<String>().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::inventory::lldp::LldpNeighbor;
    use model::inventory::{InventoryDisk, Nic};

    #[test]
    fn lldp_neighbors_are_registered_with_their_port_ids() {
        let leaf = |port: &str, description: &str| LldpNeighbor {
            hostname: "leaf01".into(),
            port: port.into(),
            description: description.into(),
            ..LldpNeighbor::default()
        };
        let nic = Nic {
            name: "eth0".into(),
            mac: "52:54:00:00:00:01".into(),
            neighbors: vec![leaf("Ethernet4", "rack 7"), leaf("9", "")],
            ..Nic::default()
        };
        let stick = InventoryDisk { device: "/dev/sdb".into(), removable: true, ..InventoryDisk::default() };
        let disk = InventoryDisk { device: "/dev/sda".into(), size_bytes: 7, ..InventoryDisk::default() };
        let usb = InventoryDisk { device: "/dev/sdc".into(), transport: "usb".into(), ..InventoryDisk::default() };
        let inventory = Inventory { nics: vec![nic], disks: vec![disk, stick, usb], ..Inventory::default() };
        let registration = MachineRegistration::new("m", "fra", &inventory, BmcRecord::default());
        assert_eq!(registration.disks, [("/dev/sda".to_owned(), 7)]);
        let [lo, eth0] = &registration.nics[..] else { panic!("{registration:?}") };
        assert_eq!((lo.name.as_str(), lo.mac.as_str()), ("lo", "00:00:00:00:00:00"));
        let ports: Vec<_> = eth0.neighbors.iter().map(|port| (port.name.as_str(), port.identifier.as_str())).collect();
        assert_eq!(ports, [("rack 7", "Ethernet4"), ("port 9", "9")]);
        assert_eq!((eth0.neighbors[0].mac.as_str(), eth0.neighbors[0].hostname.as_str()), ("Ethernet4", "leaf01"));
    }
}
