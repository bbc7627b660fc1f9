//! Hardware other than disks: SMBIOS, processors, memory, NICs.

use super::sysfs::{list_names, read_attribute, read_link_name};
use common::error::{Error, Phase, Result};
use model::architecture::Architecture;
use model::inventory::{Cpu, FirmwareType, Nic, SystemInfo};
use model::machine_identity::parse_usable_uuid;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Returns SMBIOS data as decoded by the kernel. Without SMBIOS, the fields are empty.
pub(super) fn read_system(sys: &Path) -> SystemInfo {
    let dmi = |name: &str| read_attribute(&sys.join("class/dmi/id").join(name));
    SystemInfo {
        uuid: parse_machine_uuid(&dmi("product_uuid")),
        vendor: dmi("sys_vendor"),
        product: dmi("product_name"),
        serial: dmi("product_serial"),
        bios_vendor: dmi("bios_vendor"),
        bios_version: dmi("bios_version"),
        bios_date: dmi("bios_date"),
        firmware: if sys.join("firmware/efi").is_dir() { FirmwareType::Uefi } else { FirmwareType::Bios },
        architecture: Architecture::NATIVE,
    }
}

/// Parses a UUID. Returns `None` if the UUID does not identify a machine: see [`model::machine_identity`].
fn parse_machine_uuid(text: &str) -> Option<String> {
    parse_usable_uuid(text).map(|uuid| uuid.to_string())
}

/// Processor socket, whose data is accumulated while cpuinfo is parsed.
#[derive(Default)]
struct CpuSocket {
    vendor: String,
    model: String,
    cores: BTreeSet<String>,
    threads: u32,
}

/// Returns the sockets of `/proc/cpuinfo` in the order of their numbers. If the kernel does not report sockets (most
/// architectures other than x86), all threads are attributed to one socket.
pub(super) fn parse_cpus(cpuinfo: &str) -> Vec<Cpu> {
    let mut sockets: BTreeMap<u32, CpuSocket> = BTreeMap::new();
    for thread in cpuinfo.split("\n\n") {
        let fields: BTreeMap<&str, &str> = thread
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(key, value)| (key.trim(), value.trim()))
            .collect();
        if !fields.contains_key("processor") {
            continue;
        }
        let field = |name: &str| fields.get(name).copied().unwrap_or_default().to_owned();
        let socket = sockets.entry(field("physical id").parse().unwrap_or_default()).or_default();
        socket.vendor = field("vendor_id");
        socket.model = field("model name");
        socket.threads += 1;
        // If the kernel does not report core numbers, each thread is counted as a core.
        let core = if fields.contains_key("core id") { field("core id") } else { field("processor") };
        socket.cores.insert(core);
    }
    let cpu = |socket: CpuSocket| Cpu {
        vendor: socket.vendor,
        model: socket.model,
        cores: u32::try_from(socket.cores.len()).unwrap_or(u32::MAX),
        threads: socket.threads,
    };
    sockets.into_values().map(cpu).collect()
}

/// Returns the total memory from `/proc/meminfo`.
pub(super) fn parse_memory_bytes(meminfo: &str) -> Result<u64> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB"));
    let kibibytes = total.and_then(|number| number.trim().parse::<u64>().ok());
    kibibytes
        .and_then(|number| number.checked_mul(1024))
        .ok_or_else(|| Error::new(Phase::Inventory, "/proc/meminfo does not contain MemTotal in kB"))
}

/// Returns the NICs. Bridges, bonds, tunnels and loopback interfaces have no hardware device and are omitted.
pub(super) fn read_nics(sys: &Path) -> Result<Vec<Nic>> {
    let net = sys.join("class/net");
    let physical = list_names(&net)?.into_iter().filter(|name| net.join(name).join("device").exists());
    Ok(physical
        .map(|name| {
            let dir = net.join(&name);
            Nic {
                mac: read_mac(&dir),
                driver: read_link_name(&dir.join("device/driver")),
                usb: is_on_usb(&dir),
                // While the interface is down, reading `carrier` fails with EINVAL, and the link counts as absent.
                link: read_attribute(&dir.join("carrier")) == "1",
                name,
                neighbors: Vec::new(),
            }
        })
        .collect())
}

/// Returns whether the device is below a USB bus in sysfs: `…/usb1/1-4/1-4:1.0`.
fn is_on_usb(nic: &Path) -> bool {
    let device = std::fs::canonicalize(nic.join("device")).unwrap_or_default();
    let is_bus = |name: &str| {
        name.strip_prefix("usb")
            .is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    device.components().any(|component| component.as_os_str().to_str().is_some_and(is_bus))
}

/// Returns the permanent MAC address of a NIC. The current address does not identify the NIC, because all NICs in a
/// bond have the same current address.
fn read_mac(nic: &Path) -> String {
    let own = read_attribute(&nic.join("bonding_slave/perm_hwaddr"));
    let shown = || read_attribute(&nic.join("address"));
    Some(own).filter(|own| !own.is_empty()).unwrap_or_else(shown).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::super::simulated_machine::FakeMachine;
    use super::*;

    #[test]
    fn smbios_values_are_read() {
        let tree = FakeMachine::new();
        tree.write("sys/class/dmi/id/product_uuid", "4C4C4544-0051-3010-8052-B4C04F4E4232\n");
        tree.write("sys/class/dmi/id/sys_vendor", "QEMU\n");
        tree.write("sys/class/dmi/id/product_name", "Standard PC (Q35 + ICH9, 2009)  \n");
        tree.write("sys/class/dmi/id/bios_date", "02/06/2015\n");
        tree.write("sys/firmware/efi/fw_platform_size", "64\n");
        let system = read_system(&tree.roots().sys);
        assert_eq!(system.uuid.as_deref(), Some("4c4c4544-0051-3010-8052-b4c04f4e4232"));
        assert_eq!((system.vendor.as_str(), system.serial.as_str()), ("QEMU", ""));
        assert_eq!(system.product, "Standard PC (Q35 + ICH9, 2009)");
        assert_eq!(system.bios_date, "02/06/2015");
        assert_eq!(system.firmware, FirmwareType::Uefi);
    }

    #[test]
    fn bonded_nic_has_its_permanent_address() {
        let tree = FakeMachine::new();
        for (nic, shown) in
            [("eth0", "52:54:00:00:00:01"), ("eth1", "52:54:00:00:00:01"), ("bond0", "52:54:00:00:00:01")]
        {
            tree.write(&format!("sys/class/net/{nic}/address"), format!("{shown}\n"));
        }
        for nic in ["eth0", "eth1"] {
            tree.write(&format!("sys/class/net/{nic}/device/vendor"), "0x1af4\n");
        }
        tree.write("sys/class/net/eth1/bonding_slave/perm_hwaddr", "52:54:00:AA:00:02\n");
        let macs: Vec<String> = read_nics(&tree.roots().sys).unwrap().into_iter().map(|nic| nic.mac).collect();
        assert_eq!(macs, ["52:54:00:00:00:01", "52:54:00:aa:00:02"]);
    }

    #[test]
    fn machine_without_smbios_has_default_values() {
        let expected = SystemInfo { architecture: Architecture::NATIVE, ..SystemInfo::default() };
        assert_eq!(read_system(&FakeMachine::new().roots().sys), expected);
    }

    #[test]
    fn placeholder_uuids_are_ignored() {
        for none in ["", "00000000-0000-0000-0000-000000000000", "FFFFFFFF-ffff-FFFF-FFFF-FFFFFFFFFFFF"] {
            assert_eq!(parse_machine_uuid(none), None, "{none}");
        }
        assert_eq!(
            parse_machine_uuid("FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFE").as_deref(),
            Some("ffffffff-ffff-ffff-ffff-fffffffffffe")
        );
    }

    #[test]
    fn vendor_default_uuids_are_ignored() {
        for default in [
            "03000200-0400-0500-0006-000700080009",
            "00020003-0004-0005-0006-000700080009",
            "FEFEFEFE-FEFE-FEFE-FEFE-FEFEFEFEFEFE",
            "12345678-1234-5678-90AB-CDDEEFAABBCC",
        ] {
            assert_eq!(parse_machine_uuid(default), None, "{default}");
        }
        assert_eq!(parse_machine_uuid("Not Settable"), None);
    }

    fn thread(processor: u32, socket: u32, core: u32) -> String {
        format!(
            "processor\t: {processor}\nvendor_id\t: GenuineIntel\nmodel name\t: Xeon Silver 4210 @ 2.20GHz: test\n\
             physical id\t: {socket}\nsiblings\t: 4\ncore id\t\t: {core}\ncpu cores\t: 2\nflags\t\t: fpu\n"
        )
    }

    #[test]
    fn threads_are_grouped_by_socket_and_core() {
        // Two sockets of two cores with two threads each. Linux numbers the first threads of all cores before the
        // second ones.
        let places = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 0), (0, 1), (1, 0), (1, 1)];
        let text: Vec<String> =
            (0..).zip(places).map(|(number, (socket, core))| thread(number, socket, core)).collect();
        let cpus = parse_cpus(&text.join("\n"));
        assert_eq!(cpus.len(), 2);
        for cpu in cpus {
            assert_eq!(cpu.model, "Xeon Silver 4210 @ 2.20GHz: test");
            assert_eq!((cpu.vendor.as_str(), cpu.cores, cpu.threads), ("GenuineIntel", 2, 4));
        }
    }

    #[test]
    fn cpus_without_topology_form_one_socket() {
        let arm = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\n\n\
                   processor\t: 1\nBogoMIPS\t: 50.00\n\nHardware\t: BCM2835\n";
        assert_eq!(parse_cpus(arm), [Cpu { cores: 2, threads: 2, ..Cpu::default() }]);
        assert_eq!(parse_cpus(""), []);
    }

    #[test]
    fn memory_size_is_parsed_in_bytes() {
        assert_eq!(parse_memory_bytes("MemTotal:         502356 kB\nMemFree: 1 kB\n").unwrap(), 502_356 * 1024);
        for bad in
            ["", "MemFree: 12 kB\n", "MemTotal: many kB\n", "MemTotal: 12\n", "MemTotal: 18446744073709551615 kB"]
        {
            assert!(parse_memory_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_physical_nics_are_listed() {
        let tree = FakeMachine::new();
        let pci = "sys/devices/pci0000:00/0000:00:03.0";
        tree.write(&format!("{pci}/virtio0/net/eth0/address"), "52:54:00:AA:bb:01\n");
        tree.write(&format!("{pci}/virtio0/net/eth0/carrier"), "1\n");
        tree.link(&format!("{pci}/virtio0/net/eth0/device"), "../..");
        tree.link(&format!("{pci}/virtio0/driver"), "../../../../bus/virtio/drivers/virtio_net");
        tree.link("sys/class/net/eth0", "../../devices/pci0000:00/0000:00:03.0/virtio0/net/eth0");
        tree.write("sys/devices/virtual/net/lo/address", "00:00:00:00:00:00\n");
        tree.link("sys/class/net/lo", "../../devices/virtual/net/lo");
        // The bonding driver creates a plain file here.
        tree.write("sys/class/net/bonding_masters", "\n");
        let usb = "sys/devices/pci0000:00/0000:00:14.0/usb1/1-4/1-4:1.0";
        tree.write(&format!("{usb}/net/eth1/address"), "be:3a:f2:b6:05:9f\n");
        tree.link(&format!("{usb}/net/eth1/device"), "../..");
        tree.link(&format!("{usb}/driver"), "../../../../../../bus/usb/drivers/cdc_ether");
        tree.link("sys/class/net/eth1", "../../devices/pci0000:00/0000:00:14.0/usb1/1-4/1-4:1.0/net/eth1");
        let expected = Nic {
            name: "eth0".into(),
            mac: "52:54:00:aa:bb:01".into(),
            driver: "virtio_net".into(),
            link: true,
            ..Nic::default()
        };
        let of_controller = Nic {
            name: "eth1".into(),
            mac: "be:3a:f2:b6:05:9f".into(),
            driver: "cdc_ether".into(),
            usb: true,
            ..Nic::default()
        };
        assert_eq!(read_nics(&tree.roots().sys).unwrap(), [expected, of_controller]);
        assert_eq!(read_nics(Path::new("/nonexistent")).unwrap(), []);
    }
}
