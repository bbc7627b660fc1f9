//! Messages of API v2 in JSON. 64-bit integers are strings.

use crate::metal_stack::bmc_record::{BmcRecord, to_camel_case};
use crate::metal_stack::registration::{MachineRegistration, RegisteredNic};
use model::bmc::FruInfo;
use model::install_report::EventName;
use serde_json::{Value, json};

/// MAC that is sent for a BMC whose MAC is unknown.
const UNKNOWN_MAC: &str = "00:00:00:00:00:00";

pub(crate) fn encode_registration(registration: &MachineRegistration) -> Value {
    let MachineRegistration { machine, partition, version, memory_bytes, cpus, disks, nics, bios, product, bmc } =
        registration;
    let disks = disks.iter().map(|(name, bytes)| json!({"name": name, "size": bytes.to_string()}));
    let cpus = cpus
        .iter()
        .map(|cpu| json!({"vendor": cpu.vendor, "model": cpu.model, "cores": cpu.cores, "threads": cpu.threads}));
    // For a machine without an IPMI device, the FRU contains only the product data from the firmware.
    let mut fru = bmc.fru.clone();
    fru.fill_gaps(&FruInfo {
        product_manufacturer: product.manufacturer.clone(),
        product_part_number: product.name.clone(),
        product_serial: product.serial.clone(),
        ..FruInfo::default()
    });
    let fru = fru.fields().map(|(name, value)| (to_camel_case(name), value));
    let fru = fru.iter().map(|(name, value)| (name.as_str(), *value)).collect::<Vec<_>>();
    let mut message = json!({
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
        "fru": nonempty_fields(&fru),
    });
    // An empty record is omitted, because it would replace the server's record of the BMC.
    if let Some(bmc) = encode_bmc(bmc) {
        message["bmc"] = bmc;
    }
    message
}

/// Returns the record of the BMC; `None` if it has no address. The server's validation rules require an address and a
/// MAC. If a record of metal-stack's own programs lacks the MAC, a MAC of zeros is sent, as by metal-stack's own
/// agent.
fn encode_bmc(bmc: &BmcRecord) -> Option<Value> {
    let mac = if is_mac(&bmc.mac) { bmc.mac.as_str() } else { UNKNOWN_MAC };
    (!bmc.address.is_empty()).then(|| {
        nonempty_fields(&[
            ("address", &bmc.address),
            ("mac", mac),
            ("user", &bmc.user),
            ("password", bmc.password.reveal()),
            ("interface", &bmc.interface),
            ("version", &bmc.version),
            ("powerState", &bmc.power_state),
        ])
    })
}

fn is_mac(text: &str) -> bool {
    let mut bytes = text.split(':');
    bytes.clone().count() == 6
        && bytes.all(|byte| byte.len() == 2 && byte.chars().all(|digit| digit.is_ascii_hexdigit()))
}

fn encode_nic(nic: &RegisteredNic) -> Value {
    let mut fields = nonempty_fields(&[
        ("name", &nic.name),
        ("mac", &nic.mac),
        ("identifier", &nic.identifier),
        ("hostname", &nic.hostname),
    ]);
    if !nic.neighbors.is_empty() {
        // The recursion ends after one level, because the neighbors in a registration are listed without neighbors of
        // their own.
        fields["neighbors"] = nic.neighbors.iter().map(self::encode_nic).collect();
    }
    fields
}

/// Returns the fields that are not empty. The server validates only fields that are present.
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

#[cfg(test)]
mod tests {
    use super::*;
    use model::secret_text::SecretText;

    #[test]
    fn bmc_record_is_encoded_with_known_fields() {
        let fru = FruInfo { product_serial: "S1".into(), board_mfg: "B".into(), ..FruInfo::default() };
        let bmc = BmcRecord {
            address: "10.1.0.9:623".into(),
            user: "metal".into(),
            password: SecretText::new("secret"),
            fru,
            ..BmcRecord::default()
        };
        let mut registration = MachineRegistration { bmc, ..MachineRegistration::default() };
        registration.product.serial = "S2".into();
        registration.product.name = "P".into();
        let message = encode_registration(&registration);
        let mac = "00:00:00:00:00:00";
        assert_eq!(
            message["bmc"],
            json!({"address": "10.1.0.9:623", "mac": mac, "user": "metal", "password": "secret"})
        );
        assert_eq!(message["fru"], json!({"productSerial": "S1", "boardMfg": "B", "productPartNumber": "P"}));
        registration.bmc.mac = "0C:C4:7a:00:00:01".into();
        assert_eq!(encode_registration(&registration)["bmc"]["mac"], "0C:C4:7a:00:00:01");
        registration.bmc.address.clear();
        assert!(encode_registration(&registration).get("bmc").is_none());
    }

    #[test]
    fn macs_are_recognized() {
        assert!(is_mac("00:00:00:00:00:0f"));
        for text in [
            "",
            "00:00:00:00:00",
            "00:00:00:00:00:00:00",
            "0g:00:00:00:00:00",
            "0:00:00:00:00:000",
            "00-00-00-00-00-00",
        ] {
            assert!(!is_mac(text), "{text}");
        }
    }
}
