//! Messages of API v1. Field numbers are part of the interface; no files of metal-stack are used here.

use super::protobuf::{self, ProtobufMessage};
use crate::metal::registration::{MachineRegistration, RegisteredNic};
use model::install_report::{BootInfo, EventName};
use model::inventory::Cpu;
use std::time::{Duration, SystemTime};

pub(crate) fn encode_registration(registration: &MachineRegistration) -> Vec<u8> {
    let MachineRegistration { machine, partition, version, memory_bytes, cpus, disks, nics, bios, product: _ } =
        registration;
    let disk = |(name, bytes): &(String, u64)| ProtobufMessage::default().add_text(1, name).add_number(2, *bytes);
    let hardware = ProtobufMessage::default()
        .add_number(1, *memory_bytes)
        .add_messages(3, disks.iter().map(disk))
        .add_messages(4, nics.iter().map(encode_nic))
        .add_messages(5, cpus.iter().map(encode_cpu));
    let bios = ProtobufMessage::default().add_text(1, &bios.version).add_text(2, &bios.vendor).add_text(3, &bios.date);
    // Without `ipmi`: an entry without user and password could overwrite the control plane's data of this machine's BMC.
    ProtobufMessage::default()
        .add_text(1, machine)
        .add_message(2, hardware)
        .add_message(3, bios)
        .add_text(6, version)
        .add_text(7, partition)
        .into_bytes()
}

fn encode_cpu(cpu: &Cpu) -> ProtobufMessage {
    let Cpu { vendor, model, cores, threads } = cpu;
    ProtobufMessage::default()
        .add_text(1, vendor)
        .add_text(2, model)
        .add_number(3, u64::from(*cores))
        .add_number(4, u64::from(*threads))
}

fn encode_nic(card: &RegisteredNic) -> ProtobufMessage {
    let RegisteredNic { name, mac, identifier, hostname, neighbours } = card;
    let own = ProtobufMessage::default().add_text(1, mac).add_text(2, name);
    // Neighbours have no neighbours themselves.
    own.add_messages(3, neighbours.iter().map(self::encode_nic)).add_text(4, hostname).add_text(5, identifier)
}

/// Returns the request that contains only the id of the machine, as `machine_id` or `uuid`.
pub(crate) fn encode_machine_id(machine: &str) -> Vec<u8> {
    ProtobufMessage::default().add_text(1, machine).into_bytes()
}

/// Returns the request with one event of one machine. A protobuf map is encoded as a list of key-value pairs.
pub(crate) fn encode_event(machine: &str, name: EventName, message: &str, now: SystemTime) -> Vec<u8> {
    let since: Duration = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let time = ProtobufMessage::default().add_number(1, since.as_secs()).add_number(2, u64::from(since.subsec_nanos()));
    let event = ProtobufMessage::default().add_message(1, time).add_text(2, name.as_str()).add_text(3, message);
    ProtobufMessage::default()
        .add_message(1, ProtobufMessage::default().add_text(1, machine).add_message(2, event))
        .into_bytes()
}

/// Returns the events that the server rejected. Empty if it accepted all, or the response cannot be parsed.
pub(crate) fn read_rejected_events(answer: &[u8]) -> Vec<String> {
    protobuf::read_texts(answer, 2).unwrap_or_default()
}

/// Returns the report of a success; the server ignores a report of a failure. Paths are those of the installed system.
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

/// Returns the size that the server found for the machine, from the response to a registration.
pub(crate) fn read_size(answer: &[u8]) -> Option<String> {
    protobuf::read_texts(answer, 2)?.pop()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_says_when_what_and_of_whom() {
        let now = SystemTime::UNIX_EPOCH + Duration::new(7, 9);
        let field = |tag: u8, value: &[u8]| [&[tag, u8::try_from(value.len()).unwrap()][..], value].concat();
        let time = field(0x0a, &[0x08, 7, 0x10, 9]);
        let of = [time, field(0x12, b"Booting New Kernel"), field(0x1a, b"x")].concat();
        let expected = field(0x0a, &[field(0x0a, b"m"), field(0x12, &of)].concat());
        let bytes = encode_event("m", EventName::BootingNewKernel, "x", now);
        assert_eq!(bytes, expected);
    }

    #[test]
    fn what_the_server_did_not_take_is_read() {
        assert_eq!(read_rejected_events(b"\x08\x01"), Vec::<String>::new());
        assert_eq!(read_rejected_events(b"\x08\x01\x12\x01a\x12\x01b"), ["a", "b"]);
        assert_eq!(read_rejected_events(b"\x12\x09a"), Vec::<String>::new());
        assert_eq!(read_size(b"\x0a\x01m\x12\x09c1-xlarge").as_deref(), Some("c1-xlarge"));
        assert_eq!(read_size(b""), None);
    }
}
