//! Inventory in the format of Ironic's own agent.

use model::inventory::{Cpu, FirmwareType, Inventory, InventoryDisk, Nic};
use model::machine_identity::{is_controller_driver, usable_mac};
use nix::ifaddrs::getifaddrs;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// First IPv4 address and first IPv6 address of each network interface, by interface name.
pub(crate) type InterfaceAddresses = BTreeMap<String, (Option<Ipv4Addr>, Option<Ipv6Addr>)>;

/// Returns the addresses at which this machine is reachable. Ignores loopback addresses and IPv6 link-local addresses.
pub(crate) fn read_addresses() -> InterfaceAddresses {
    let mut found = InterfaceAddresses::new();
    for one in getifaddrs().into_iter().flatten() {
        let of = found.entry(one.interface_name).or_default();
        let Some(address) = one.address else { continue };
        if let Some(v4) = address.as_sockaddr_in().map(|v4| v4.ip()).filter(|ip| !ip.is_loopback()) {
            of.0.get_or_insert(v4);
        }
        let global = |ip: &Ipv6Addr| !ip.is_loopback() && !ip.is_unicast_link_local();
        if let Some(v6) = address.as_sockaddr_in6().map(|v6| v6.ip()).filter(global) {
            of.1.get_or_insert(v6);
        }
    }
    found
}

/// Returns the data that an inspection sends to Ironic. `boot_mac` is the MAC of the interface that the machine has
/// booted from.
pub(crate) fn inspection_report(
    inventory: &Inventory,
    addresses: &InterfaceAddresses,
    boot_mac: Option<&str>,
) -> Value {
    let root = default_root_disk(inventory).map(describe_disk);
    json!({
        "inventory": ironic_inventory(inventory, addresses, boot_mac),
        "root_disk": root,
        "boot_interface": boot_mac,
        "configuration": { "collectors": ["default"], "managers": ["drophammer"] },
        "error": null,
    })
}

/// Returns the inventory of this machine in Ironic's format.
pub(crate) fn ironic_inventory(inventory: &Inventory, addresses: &InterfaceAddresses, boot_mac: Option<&str>) -> Value {
    let system = &inventory.system;
    let threads: u32 = inventory.cpus.iter().map(|cpu| cpu.threads).sum();
    let mode = match system.firmware {
        FirmwareType::Uefi => "uefi",
        FirmwareType::Bios => "bios",
    };
    json!({
        "interfaces": inventory.nics.iter().map(|nic| describe_interface(nic, addresses)).collect::<Vec<_>>(),
        "disks": inventory.disks.iter().map(describe_disk).collect::<Vec<_>>(),
        "cpu": {
            "model_name": inventory.cpus.first().map(|cpu: &Cpu| cpu.model.as_str()),
            "frequency": null,
            "count": threads,
            "architecture": std::env::consts::ARCH,
            "flags": [],
            "socket_count": inventory.cpus.len(),
        },
        "memory": { "total": inventory.memory_bytes, "physical_mb": inventory.memory_bytes >> 20 },
        "system_vendor": {
            "product_name": system.product,
            "serial_number": system.serial,
            "manufacturer": system.vendor,
            "firmware": {
                "vendor": system.bios_vendor, "version": system.bios_version, "build_date": system.bios_date,
            },
        },
        "boot": { "current_boot_mode": mode, "pxe_interface": boot_mac },
        "bmc_address": null,
        "bmc_v6address": null,
        "bmc_mac": null,
        "hostname": "localhost",
    })
}

/// Returns the MACs for a lookup, the MAC of the boot interface first. The MAC of the NIC that leads to the BMC is used
/// only if there is no other NIC: on some models, this MAC is the same on all machines, and would match several nodes.
pub(crate) fn lookup_macs(inventory: &Inventory, boot_mac: Option<&str>) -> Vec<String> {
    let of = |is_wanted: &dyn Fn(&&Nic) -> bool| -> Vec<String> {
        let nics = inventory.nics.iter().filter(is_wanted).map(|nic| nic.mac.as_str());
        let mut macs: Vec<String> = Vec::new();
        for mac in boot_mac.into_iter().chain(nics).filter_map(usable_mac) {
            if !macs.contains(&mac) {
                macs.push(mac);
            }
        }
        macs
    };
    let macs = of(&|nic| !is_controller_driver(&nic.driver));
    if macs.is_empty() { of(&|_| true) } else { macs }
}

fn describe_interface(nic: &Nic, addresses: &InterfaceAddresses) -> Value {
    let (v4, v6) = addresses.get(&nic.name).copied().unwrap_or_default();
    json!({
        "name": nic.name,
        "mac_address": nic.mac.to_lowercase(),
        "ipv4_address": v4.map(IpAddr::V4),
        "ipv6_address": v6.map(IpAddr::V6),
        "has_carrier": nic.link,
        "driver": nonempty_text(&nic.driver),
        "lldp": [],
        "vendor": null,
        "product": null,
        "client_id": null,
        "biosdevname": null,
    })
}

fn describe_disk(disk: &InventoryDisk) -> Value {
    json!({
        "name": disk.device,
        "model": nonempty_text(&disk.model),
        "size": disk.size_bytes,
        "rotational": disk.rotational,
        "wwn": nonempty_text(&disk.wwn),
        "serial": nonempty_text(&disk.serial),
        "vendor": nonempty_text(&disk.vendor),
        "wwn_with_extension": null,
        "wwn_vendor_extension": null,
        "hctl": nonempty_text(&disk.hctl),
        "by_path": nonempty_text(&disk.by_path),
        "tran": nonempty_text(&disk.transport),
        "logical_sectors": disk.sector_bytes,
    })
}

/// Returns the disk that Ironic's agent selects without hints: the smallest disk of at least 4 GiB and, among disks of
/// equal size, the first by name.
fn default_root_disk(inventory: &Inventory) -> Option<&InventoryDisk> {
    let large = inventory.disks.iter().filter(|disk| disk.size_bytes >= 4 << 30);
    large.min_by(|a, b| (a.size_bytes, a.device.as_str()).cmp(&(b.size_bytes, b.device.as_str())))
}

fn nonempty_text(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Inventory {
        serde_json::from_str(include_str!("../../../../testdata/inventories/raid-lvm.json")).unwrap()
    }

    #[test]
    fn inspection_report_has_the_fields_of_ironic() {
        let inventory = machine();
        let mac = inventory.nics[0].mac.clone();
        let v4: Ipv4Addr = "10.0.0.7".parse().unwrap();
        let addresses = [(inventory.nics[0].name.clone(), (Some(v4), None))].into();
        let found = inspection_report(&inventory, &addresses, Some(&mac));
        let first = &found["inventory"]["interfaces"][0];
        assert_eq!((&first["mac_address"], &first["ipv4_address"]), (&json!(mac), &json!("10.0.0.7")));
        assert_eq!(found["inventory"]["boot"]["pxe_interface"], json!(mac));
        let disks = found["inventory"]["disks"].as_array().unwrap();
        assert_eq!(
            (disks.len(), disks[0]["name"].as_str()),
            (inventory.disks.len(), Some(inventory.disks[0].device.as_str()))
        );
        assert!(found["inventory"]["memory"]["physical_mb"].as_u64().unwrap() > 0);
        assert!(found["root_disk"]["name"].is_string());
    }

    #[test]
    fn boot_nic_comes_first_and_no_mac_twice() {
        let nic = |mac: &str| Nic { mac: mac.into(), ..Nic::default() };
        let nics = vec![nic("52:54:00:AA:00:01"), nic("52:54:00:aa:00:02"), nic(""), nic("00:00:00:00:00:00")];
        let inventory = Inventory { nics, ..Inventory::default() };
        assert_eq!(lookup_macs(&inventory, Some("52:54:00:aa:00:02")), ["52:54:00:aa:00:02", "52:54:00:aa:00:01"]);
        assert_eq!(lookup_macs(&inventory, None), ["52:54:00:aa:00:01", "52:54:00:aa:00:02"]);
    }

    #[test]
    fn shared_bmc_nic_is_not_looked_up() {
        let nic = |mac: &str, driver: &str| Nic { mac: mac.into(), driver: driver.into(), ..Nic::default() };
        let bmc = nic("be:3a:f2:b6:05:9f", "cdc_ether");
        let inventory = Inventory { nics: vec![bmc.clone(), nic("52:54:00:aa:00:01", "igb")], ..Inventory::default() };
        assert_eq!(lookup_macs(&inventory, None), ["52:54:00:aa:00:01"]);
        // The NIC of a BMC is used if there is no other NIC, or if the machine has booted from it.
        let only = Inventory { nics: vec![bmc], ..Inventory::default() };
        assert_eq!(lookup_macs(&only, None), ["be:3a:f2:b6:05:9f"]);
        assert_eq!(lookup_macs(&inventory, Some("BE:3A:F2:B6:05:9F")), ["be:3a:f2:b6:05:9f", "52:54:00:aa:00:01"]);
    }
}
