//! Messages of API v2 in JSON, where 64-bit integers are strings.

use crate::metal::registration::{MachineRegistration, RegisteredNic};
use model::install_report::EventName;
use serde_json::{Value, json};

pub(crate) fn encode_registration(registration: &MachineRegistration) -> Value {
    let MachineRegistration { machine, partition, version, memory_bytes, cpus, disks, nics, bios, product } =
        registration;
    let disks = disks.iter().map(|(name, bytes)| json!({"name": name, "size": bytes.to_string()}));
    let cpus = cpus
        .iter()
        .map(|cpu| json!({"vendor": cpu.vendor, "model": cpu.model, "cores": cpu.cores, "threads": cpu.threads}));
    json!({
        "uuid": machine,
        "partition": partition,
        "metalHammerVersion": version,
        "hardware": {
            "memory": memory_bytes.to_string(),
            "disks": disks.collect::<Vec<_>>(),
            "cpus": cpus.collect::<Vec<_>>(),
            "nics": nics.iter().map(encode_nic).collect::<Vec<_>>(),
        },
        "bios": nonempty_fields(&[("vendor", &bios.vendor), ("version", &bios.version), ("date", &bios.date)]),
        "fru": nonempty_fields(&[
            ("productManufacturer", &product.manufacturer),
            ("productPartNumber", &product.name),
            ("productSerial", &product.serial),
        ]),
    })
}

fn encode_nic(card: &RegisteredNic) -> Value {
    let mut fields = nonempty_fields(&[
        ("name", &card.name),
        ("mac", &card.mac),
        ("identifier", &card.identifier),
        ("hostname", &card.hostname),
    ]);
    if !card.neighbours.is_empty() {
        // Neighbours have no neighbours themselves.
        fields["neighbors"] = card.neighbours.iter().map(self::encode_nic).collect();
    }
    fields
}

/// Returns the nonempty fields. The server's validation rules apply only to present fields.
fn nonempty_fields(fields: &[(&str, &str)]) -> Value {
    let given = fields.iter().filter(|(_, value)| !value.is_empty());
    Value::Object(given.map(|(name, value)| ((*name).to_owned(), json!(value))).collect())
}

pub(crate) fn encode_event_type(name: EventName) -> &'static str {
    match name {
        EventName::PxeBooting => "MACHINE_PROVISIONING_EVENT_TYPE_PXE_BOOTING",
        EventName::Preparing => "MACHINE_PROVISIONING_EVENT_TYPE_PREPARING",
        EventName::Registering => "MACHINE_PROVISIONING_EVENT_TYPE_REGISTERING",
        EventName::Waiting => "MACHINE_PROVISIONING_EVENT_TYPE_WAITING",
        EventName::Installing => "MACHINE_PROVISIONING_EVENT_TYPE_INSTALLING",
        EventName::BootingNewKernel => "MACHINE_PROVISIONING_EVENT_TYPE_BOOTING_NEW_KERNEL",
        EventName::PhonedHome => "MACHINE_PROVISIONING_EVENT_TYPE_PHONED_HOME",
        EventName::Alive => "MACHINE_PROVISIONING_EVENT_TYPE_ALIVE",
        EventName::Crashed => "MACHINE_PROVISIONING_EVENT_TYPE_CRASHED",
        EventName::PlannedReboot => "MACHINE_PROVISIONING_EVENT_TYPE_PLANNED_REBOOT",
    }
}
