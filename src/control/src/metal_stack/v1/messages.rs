//! Messages of API v1. The field numbers are those of metal-stack's interface, but no code is generated from its
//! `.proto` files.

use super::protobuf_encoding::{self, ProtobufMessage};
use crate::metal_stack::bmc_record::BmcRecord;
use crate::metal_stack::registration::{MachineRegistration, RegisteredNic};
use model::allocation::Allocation;
use model::install_marker::InstallMarker;
use model::install_report::{BootInfo, EventName};
use model::inventory::Cpu;
use std::time::{Duration, SystemTime};

pub(crate) fn encode_registration(registration: &MachineRegistration) -> Vec<u8> {
    let MachineRegistration { machine, partition, version, memory_bytes, cpus, disks, nics, bios, product: _, bmc } =
        registration;
    let disk = |(name, bytes): &(String, u64)| ProtobufMessage::default().add_text(1, name).add_number(2, *bytes);
    let hardware = ProtobufMessage::default()
        .add_number(1, *memory_bytes)
        .add_messages(3, disks.iter().map(disk))
        .add_messages(4, nics.iter().map(encode_nic))
        .add_messages(5, cpus.iter().map(encode_cpu));
    let bios = ProtobufMessage::default().add_text(1, &bios.version).add_text(2, &bios.vendor).add_text(3, &bios.date);
    // An empty record is omitted, because it would replace the server's record of the BMC.
    let bmc = Some(bmc).filter(|bmc| !bmc.is_empty()).map(encode_bmc);
    ProtobufMessage::default()
        .add_text(1, machine)
        .add_message(2, hardware)
        .add_message(3, bios)
        .add_messages(4, bmc)
        .add_text(6, version)
        .add_text(7, partition)
        .into_bytes()
}

fn encode_bmc(bmc: &BmcRecord) -> ProtobufMessage {
    let BmcRecord { address, mac, user, password, interface, version, power_state, fru } = bmc;
    let fru =
        (1..).zip(fru.fields()).fold(ProtobufMessage::default(), |all, (number, (_, text))| all.add_text(number, text));
    ProtobufMessage::default()
        .add_text(1, address)
        .add_text(2, mac)
        .add_text(3, user)
        .add_text(4, password.reveal())
        .add_text(5, interface)
        .add_message(6, fru)
        .add_text(7, version)
        .add_text(8, power_state)
}

fn encode_cpu(cpu: &Cpu) -> ProtobufMessage {
    let Cpu { vendor, model, cores, threads } = cpu;
    ProtobufMessage::default()
        .add_text(1, vendor)
        .add_text(2, model)
        .add_number(3, u64::from(*cores))
        .add_number(4, u64::from(*threads))
}

fn encode_nic(nic: &RegisteredNic) -> ProtobufMessage {
    let RegisteredNic { name, mac, identifier, hostname, neighbors } = nic;
    let own = ProtobufMessage::default().add_text(1, mac).add_text(2, name);
    // The recursion ends after one level, because the neighbors in a registration are listed without neighbors of their
    // own.
    own.add_messages(3, neighbors.iter().map(self::encode_nic)).add_text(4, hostname).add_text(5, identifier)
}

/// Returns a request that contains only the id of the machine, as field 1, which is named `machine_id` or `uuid`.
pub(crate) fn encode_machine_id(machine: &str) -> Vec<u8> {
    ProtobufMessage::default().add_text(1, machine).into_bytes()
}

/// Returns a request with one event of one machine. In protobuf, a map is encoded as a list of key-value pairs.
pub(crate) fn encode_event(machine: &str, name: EventName, message: &str, now: SystemTime) -> Vec<u8> {
    let since: Duration = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let time = ProtobufMessage::default().add_number(1, since.as_secs()).add_number(2, u64::from(since.subsec_nanos()));
    let event = ProtobufMessage::default().add_message(1, time).add_text(2, name.as_str()).add_text(3, message);
    ProtobufMessage::default()
        .add_message(1, ProtobufMessage::default().add_text(1, machine).add_message(2, event))
        .into_bytes()
}

/// Returns the events that the server has rejected; empty if it has accepted all events, or if the response cannot be
/// parsed.
pub(crate) fn read_rejected_events(answer: &[u8]) -> Vec<String> {
    protobuf_encoding::read_texts(answer, 2).unwrap_or_default()
}

/// Returns the report of a successful installation. Failed installations are not reported with this message, because
/// the server ignores reports of failures. Paths in the report are relative to the root of the installed system.
/// Returns the id of the image that was installed: the image in the install marker, or, without a marker, the image of
/// the allocation.
pub(crate) fn find_installed_image(marker: Option<&InstallMarker>, allocation: Option<&Allocation>) -> String {
    let installed = marker.map(|marker| &marker.image);
    installed.or_else(|| allocation.map(|allocation| &allocation.image.id)).cloned().unwrap_or_default()
}

pub(crate) fn encode_report(
    machine: &str,
    image: &str,
    boot: &BootInfo,
    console_password: &str,
    message: &str,
) -> Vec<u8> {
    let BootInfo { kernel, initrd, cmdline, bootloader_id } = boot;
    let boot = ProtobufMessage::default()
        .add_text(1, image)
        .add_text(4, initrd)
        .add_text(5, cmdline)
        .add_text(6, kernel)
        .add_text(8, bootloader_id);
    let report = ProtobufMessage::default().add_text(1, machine).add_text(2, console_password).add_message(3, boot);
    report.add_flag(4, true).add_text(5, message).into_bytes()
}

pub(crate) fn encode_abort_reinstall(machine: &str, wiped: bool) -> Vec<u8> {
    ProtobufMessage::default().add_text(1, machine).add_flag(2, wiped).into_bytes()
}

/// Returns the size that the server has selected for the machine, from the response to a registration.
pub(crate) fn read_size(answer: &[u8]) -> Option<String> {
    protobuf_encoding::read_texts(answer, 2)?.pop()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metal_stack::registration::BiosInfo;
    use model::bmc::FruInfo;
    use model::secret_text::SecretText;

    /// Encodes a field of at most 127 bytes.
    fn field(number: u8, value: impl AsRef<[u8]>) -> Vec<u8> {
        let value = value.as_ref();
        [&[number << 3 | 2, u8::try_from(value.len()).unwrap()][..], value].concat()
    }

    #[test]
    fn event_has_the_published_field_numbers() {
        let now = SystemTime::UNIX_EPOCH + Duration::new(7, 9);
        let event = [field(1, [0x08, 7, 0x10, 9]), field(2, "Booting New Kernel"), field(3, "x")].concat();
        let expected = field(1, [field(1, "m"), field(2, event)].concat());
        assert_eq!(encode_event("m", EventName::BootingNewKernel, "x", now), expected);
    }

    #[test]
    fn a_registration_has_the_published_field_numbers() {
        let nic = |name: &str, identifier: &str, neighbors: Vec<RegisteredNic>| RegisteredNic {
            name: name.to_owned(),
            mac: "a".to_owned(),
            identifier: identifier.to_owned(),
            hostname: "h".to_owned(),
            neighbors,
        };
        let registration = MachineRegistration {
            machine: "m".to_owned(),
            partition: "p".to_owned(),
            version: "v".to_owned(),
            memory_bytes: 300,
            cpus: vec![Cpu { vendor: "i".to_owned(), model: "x".to_owned(), cores: 2, threads: 4 }],
            disks: vec![("d".to_owned(), 5), ("e".to_owned(), 0)],
            nics: vec![nic("n", "", vec![nic("s", "t", vec![])]), RegisteredNic::default()],
            bios: BiosInfo { vendor: "b".to_owned(), version: "1".to_owned(), date: "2".to_owned() },
            ..MachineRegistration::default()
        };
        let port = [field(1, "a"), field(2, "s"), field(4, "h"), field(5, "t")].concat();
        let nic = [field(1, "a"), field(2, "n"), field(3, port), field(4, "h")].concat();
        let cpu = [field(1, "i"), field(2, "x"), vec![0x18, 2, 0x20, 4]].concat();
        let disks = [field(3, [field(1, "d"), vec![0x10, 5]].concat()), field(3, field(1, "e"))].concat();
        let hardware = [vec![0x08, 0xac, 0x02], disks, field(4, nic), field(4, ""), field(5, cpu)].concat();
        let bios = [field(1, "1"), field(2, "b"), field(3, "2")].concat();
        let all = [field(1, "m"), field(2, hardware), field(3, bios), field(6, "v"), field(7, "p")].concat();
        assert_eq!(encode_registration(&registration), all);
        assert_eq!(encode_registration(&MachineRegistration::default()), [field(2, ""), field(3, "")].concat());
    }

    #[test]
    fn a_bmc_has_the_published_field_numbers() {
        let [a, b, c, d, e, f, g] = ["a", "b", "c", "d", "e", "f", "g"].map(str::to_owned);
        let fru = [1, 2, 3, 4, 5, 6, 7, 8].map(|number: u8| number.to_string());
        let [one, two, three, four, five, six, seven, eight] = fru.clone();
        let bmc = BmcRecord {
            address: a,
            mac: b,
            user: c,
            password: SecretText::new(d),
            interface: e,
            version: f,
            power_state: g,
            fru: FruInfo {
                chassis_part_number: one,
                chassis_part_serial: two,
                board_mfg: three,
                board_mfg_serial: four,
                board_part_number: five,
                product_manufacturer: six,
                product_part_number: seven,
                product_serial: eight,
            },
        };
        let fru: Vec<u8> = (1..).zip(fru).flat_map(|(number, text)| field(number, text)).collect();
        let texts = [field(1, "a"), field(2, "b"), field(3, "c"), field(4, "d"), field(5, "e")].concat();
        let expected = [texts, field(6, fru), field(7, "f"), field(8, "g")].concat();
        let registration = MachineRegistration { bmc, ..MachineRegistration::default() };
        assert_eq!(encode_registration(&registration), [field(2, ""), field(3, ""), field(4, expected)].concat());
    }

    #[test]
    fn reports_have_the_published_field_numbers() {
        let [kernel, initrd, cmdline, bootloader_id] = ["k", "i", "c", "b"].map(str::to_owned);
        let boot = BootInfo { kernel, initrd, cmdline, bootloader_id };
        let boot_info = [field(1, "j"), field(4, "i"), field(5, "c"), field(6, "k"), field(8, "b")].concat();
        let report = [field(1, "m"), field(2, "p"), field(3, boot_info), vec![0x20, 1], field(5, "x")].concat();
        assert_eq!(encode_report("m", "j", &boot, "p", "x"), report);
        assert_eq!(encode_abort_reinstall("m", true), [field(1, "m"), vec![0x10, 1]].concat());
        assert_eq!(encode_abort_reinstall("m", false), field(1, "m"));
        assert_eq!(encode_machine_id("m"), field(1, "m"));
    }

    #[test]
    fn a_report_contains_the_image_in_the_install_marker() {
        let mut allocation = Allocation::default();
        allocation.image.id = "ordered".into();
        let marker = InstallMarker { image: "installed".into(), ..InstallMarker::default() };
        assert_eq!(find_installed_image(Some(&marker), Some(&allocation)), "installed");
        assert_eq!(find_installed_image(None, Some(&allocation)), "ordered");
        assert_eq!(find_installed_image(None, None), "");
    }

    #[test]
    fn rejected_events_and_size_are_parsed() {
        assert_eq!(read_rejected_events(b"\x08\x01"), Vec::<String>::new());
        assert_eq!(read_rejected_events(b"\x08\x01\x12\x01a\x12\x01b"), ["a", "b"]);
        assert_eq!(read_rejected_events(b"\x12\x09a"), Vec::<String>::new());
        assert_eq!(read_size(b"\x0a\x01m\x12\x09c1-xlarge").as_deref(), Some("c1-xlarge"));
        assert_eq!(read_size(b""), None);
    }
}
