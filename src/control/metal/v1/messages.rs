//! Messages of API v1. Field numbers are part of the interface; no files of metal-stack are used here.

use super::protobuf::{self, Message};
use crate::control::metal::register::{Card, Registration};
use crate::facts::{BootInfo, EventName};
use crate::inventory::Cpu;
use std::time::{Duration, SystemTime};

pub fn register(registration: &Registration) -> Vec<u8> {
    let Registration { machine, partition, version, memory_bytes, cpus, disks, nics, bios, product: _ } = registration;
    let disk = |(name, bytes): &(String, u64)| Message::default().text(1, name).number(2, *bytes);
    let hardware = Message::default()
        .number(1, *memory_bytes)
        .each(3, disks.iter().map(disk))
        .each(4, nics.iter().map(card))
        .each(5, cpus.iter().map(cpu));
    let bios = Message::default().text(1, &bios.version).text(2, &bios.vendor).text(3, &bios.date);
    // Without `ipmi`: an entry without user and password could overwrite the control plane's data of this machine's BMC.
    Message::default()
        .text(1, machine)
        .message(2, hardware)
        .message(3, bios)
        .text(6, version)
        .text(7, partition)
        .into_bytes()
}

fn cpu(cpu: &Cpu) -> Message {
    let Cpu { vendor, model, cores, threads } = cpu;
    Message::default().text(1, vendor).text(2, model).number(3, u64::from(*cores)).number(4, u64::from(*threads))
}

fn card(card: &Card) -> Message {
    let Card { name, mac, identifier, hostname, neighbours } = card;
    let own = Message::default().text(1, mac).text(2, name);
    // Neighbours have no neighbours themselves.
    own.each(3, neighbours.iter().map(self::card)).text(4, hostname).text(5, identifier)
}

/// Returns the request that contains only the id of the machine, as `machine_id` or `uuid`.
pub fn machine(machine: &str) -> Vec<u8> {
    Message::default().text(1, machine).into_bytes()
}

/// Returns the request with one event of one machine. A protobuf map is encoded as a list of key-value pairs.
pub fn event(machine: &str, name: EventName, message: &str, now: SystemTime) -> Vec<u8> {
    let since: Duration = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let time = Message::default().number(1, since.as_secs()).number(2, u64::from(since.subsec_nanos()));
    let event = Message::default().message(1, time).text(2, name.as_str()).text(3, message);
    Message::default().message(1, Message::default().text(1, machine).message(2, event)).into_bytes()
}

/// Returns the events that the server rejected. Empty if it accepted all, or the response cannot be parsed.
pub fn not_taken(answer: &[u8]) -> Vec<String> {
    protobuf::texts(answer, 2).unwrap_or_default()
}

/// Returns the report of a success; the server ignores a report of a failure. Paths are those of the installed system.
pub fn report(machine: &str, image: &str, boot: &BootInfo, console_password: &str, message: &str) -> Vec<u8> {
    let BootInfo { kernel, initrd, cmdline, bootloader_id } = boot;
    let boot =
        Message::default().text(1, image).text(4, initrd).text(5, cmdline).text(6, kernel).text(8, bootloader_id);
    let report = Message::default().text(1, machine).text(2, console_password).message(3, boot);
    report.flag(4, true).text(5, message).into_bytes()
}

pub fn abort_reinstall(machine: &str, wiped: bool) -> Vec<u8> {
    Message::default().text(1, machine).flag(2, wiped).into_bytes()
}

/// Returns the size that the server found for the machine, from the response to a registration.
pub fn size(answer: &[u8]) -> Option<String> {
    protobuf::texts(answer, 2)?.pop()
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
        let bytes = event("m", EventName::BootingNewKernel, "x", now);
        assert_eq!(bytes, expected);
    }

    #[test]
    fn what_the_server_did_not_take_is_read() {
        assert_eq!(not_taken(b"\x08\x01"), Vec::<String>::new());
        assert_eq!(not_taken(b"\x08\x01\x12\x01a\x12\x01b"), ["a", "b"]);
        assert_eq!(not_taken(b"\x12\x09a"), Vec::<String>::new());
        assert_eq!(size(b"\x0a\x01m\x12\x09c1-xlarge").as_deref(), Some("c1-xlarge"));
        assert_eq!(size(b""), None);
    }
}
