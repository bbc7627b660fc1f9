//! Identifiers of the registered hardware, for the filter of the machine list: MAC addresses, and serial numbers of
//! machines and disks.

use api::AppState;
use common::format::truncate_bytes;
use common::sync::lock_mutex;
use http_server::api_error::ApiError;
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Maximum number of identifiers of a machine. The limit is needed because the list of machines contains all of them,
/// and a machine can report any number.
const IDENTIFIERS: usize = 64;
/// Maximum length of an identifier in bytes.
const BYTES: usize = 64;

/// Identifiers of all machines. They are parsed again only when a machine registers again. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct HardwareIdentifiers(Arc<Mutex<HashMap<String, CachedIdentifiers>>>);

struct CachedIdentifiers {
    /// Version of the registration.
    version: String,
    identifiers: Vec<String>,
}

impl HardwareIdentifiers {
    /// Returns the identifiers of all registered machines, by the ids of the machines.
    pub(crate) async fn list_all(&self, app: &AppState) -> Result<HashMap<String, Vec<String>>, ApiError> {
        let versions: HashMap<String, String> = app.state.list_registration_versions().await?.into_iter().collect();
        lock_mutex(&self.0).retain(|id, cached| versions.get(id) == Some(&cached.version));
        let missing: Vec<(String, String)> = {
            let cached = lock_mutex(&self.0);
            versions.into_iter().filter(|(id, _)| !cached.contains_key(id)).collect()
        };
        for (id, version) in missing {
            let identifiers = read_identifiers(app, &id).await?;
            lock_mutex(&self.0).insert(id, CachedIdentifiers { version, identifiers });
        }
        Ok(lock_mutex(&self.0).iter().map(|(id, cached)| (id.clone(), cached.identifiers.clone())).collect())
    }
}

/// Reads the identifiers in the machine's latest registration; empty if the machine has never registered.
pub(crate) async fn read_identifiers(app: &AppState, id: &str) -> Result<Vec<String>, ApiError> {
    match app.state.find_registration(id).await? {
        Some(row) => app.planner.run_job(id, move || parse_identifiers(&row.document)).await,
        None => Ok(Vec::new()),
    }
}

/// Fields of a registration that contain identifiers.
#[derive(Deserialize)]
struct RegisteredIdentifiers {
    hardware: RegisteredNics,
    #[serde(default)]
    inventory: Option<InventorySerials>,
}

#[derive(Deserialize)]
struct RegisteredNics {
    nics: Vec<NicAddress>,
}

#[derive(Deserialize)]
struct NicAddress {
    mac: String,
}

#[derive(Default, Deserialize)]
struct InventorySerials {
    #[serde(default)]
    system: ComponentSerial,
    #[serde(default)]
    disks: Vec<ComponentSerial>,
}

#[derive(Default, Deserialize)]
struct ComponentSerial {
    #[serde(default)]
    serial: String,
}

/// Parses the identifiers in a registration. Returns an empty list if this version does not support the registration.
fn parse_identifiers(document: &str) -> Vec<String> {
    let Ok(register) = serde_json::from_str::<RegisteredIdentifiers>(document) else { return Vec::new() };
    let InventorySerials { system, disks } = register.inventory.unwrap_or_default();
    let macs = register.hardware.nics.into_iter().map(|nic| nic.mac);
    let serials = [system].into_iter().chain(disks).map(|component| component.serial);
    let all = macs.chain(serials).map(|text| truncate_bytes(text.trim(), BYTES).to_owned());
    all.filter(|text| !text.is_empty()).take(IDENTIFIERS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn identifiers_are_macs_and_serial_numbers() {
        let inventory = json!({"system": {"serial": " 7XK "}, "disks": [{"serial": "S1"}, {"serial": ""}, {}]});
        let register =
            json!({"hardware": {"nics": [{"mac": "52:54:00:00:00:01", "name": "eth0"}]}, "inventory": inventory});
        assert_eq!(parse_identifiers(&register.to_string()), ["52:54:00:00:00:01", "7XK", "S1"]);
        let without_inventory = json!({"hardware": {"nics": []}});
        assert_eq!(parse_identifiers(&without_inventory.to_string()), [""; 0]);
    }

    #[test]
    fn identifiers_are_bounded_and_empty_for_unsupported_registrations() {
        let disks: Vec<_> = (0..IDENTIFIERS + 9).map(|number| json!({"serial": "é".repeat(number + 100)})).collect();
        let register = json!({"hardware": {"nics": []}, "inventory": {"disks": disks}});
        let identifiers = parse_identifiers(&register.to_string());
        assert_eq!(identifiers.len(), IDENTIFIERS);
        assert!(identifiers.iter().all(|text| text.len() <= BYTES));
        for document in ["", "[]", r#"{"hardware": {"nics": 1}}"#, r#"{"inventory": {"disks": [{"serial": "S"}]}}"#] {
            assert_eq!(parse_identifiers(document), [""; 0], "{document}");
        }
    }
}
