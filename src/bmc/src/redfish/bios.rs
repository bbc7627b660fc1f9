//! BIOS attributes of a system: current and pending values, attribute registry, and changes.

use super::client::RedfishResource;
use super::{RedfishMachine, find_settings, with_apply_time};
use crate::{READS, WriteKind, bmc_refusal, read_until};
use common::error::Result;
use common::format::untrusted_text_limits::sanitize_line;
use model::deploy_steps::{BiosSetting, is_same_value};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Power state and boot targets of a system, and its BIOS.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SystemState {
    /// Power state: `On`, `Off`, or a transition between them; `None` if the service reports no power state.
    pub power: Option<String>,
    /// Boot targets that the service supports; empty if the service does not list them.
    pub boot_targets: Vec<String>,
    /// BIOS of the system; `None` if the service does not offer a Bios resource for the system.
    pub bios: Option<BiosState>,
}

/// Bios resource of a system.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BiosState {
    /// Values that are in force now.
    pub current: Map<String, Value>,
    /// Values that take effect at the next restart.
    pub pending: Map<String, Value>,
    /// Attributes in the attribute registry, by name; empty if the service does not offer the registry.
    pub registry: BTreeMap<String, BiosAttribute>,
    /// Name of the attribute registry.
    registry_name: String,
    /// Path to which changes are sent; `None` if the attributes cannot be changed.
    settings_path: Option<String>,
    /// Value of `@Redfish.Settings` in the Bios resource.
    settings: Value,
    /// Target of the action that resets the attributes.
    reset_path: Option<String>,
}

/// Attribute in an attribute registry.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct BiosAttribute {
    attribute_name: String,
    pub read_only: Option<bool>,
    pub immutable: Option<bool>,
    /// Permitted values of an enumeration.
    pub value: Option<Vec<EnumerationValue>>,
    pub lower_bound: Option<i64>,
    pub upper_bound: Option<i64>,
    pub default_value: Option<Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct EnumerationValue {
    pub value_name: String,
}

impl BiosState {
    /// Returns whether attributes can be changed.
    pub fn is_settable(&self) -> bool {
        self.settings_path.is_some()
    }

    /// Returns whether the attributes can be reset.
    pub fn is_resettable(&self) -> bool {
        self.reset_path.is_some()
    }

    /// Returns a Bios resource with these values, in which attributes can be changed and reset.
    #[cfg(any(test, feature = "testing"))]
    #[allow(clippy::unwrap_used)]
    pub fn with_values(current: Value, pending: Value, registry: Value) -> BiosState {
        let attributes: Vec<BiosAttribute> = serde_json::from_value(registry).unwrap();
        BiosState {
            current: current.as_object().cloned().unwrap(),
            pending: pending.as_object().cloned().unwrap(),
            registry: index_attributes(attributes),
            settings_path: Some("/settings".to_owned()),
            reset_path: Some("/reset".to_owned()),
            ..BiosState::default()
        }
    }
}

impl RedfishMachine<'_> {
    /// Reads the state of the system without its attribute registry.
    ///
    /// # Errors
    /// The service cannot be reached, or responds with an error.
    pub fn read_state(&self) -> Result<SystemState> {
        let RedfishResource { document, .. } = self.client.fetch(&self.path)?;
        let targets = document["Boot"]["BootSourceOverrideTarget@Redfish.AllowableValues"].as_array();
        let targets = targets.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
        Ok(SystemState {
            power: document["PowerState"].as_str().map(str::to_owned),
            boot_targets: targets.collect(),
            bios: document["Bios"]["@odata.id"].as_str().map(|link| self.read_bios(link)).transpose()?,
        })
    }

    /// Reads the state of the system with its attribute registry, if the service offers one.
    ///
    /// # Errors
    /// The service cannot be reached, or responds with an error.
    pub fn read_described_state(&self) -> Result<SystemState> {
        let mut state = self.read_state()?;
        if let Some(bios) = &mut state.bios {
            // The registry is optional, and some services link to a registry that does not exist, so errors are
            // ignored.
            bios.registry = self.read_registry(&bios.registry_name).map(index_attributes).unwrap_or_default();
        }
        Ok(state)
    }

    fn read_bios(&self, path: &str) -> Result<BiosState> {
        let bios = self.client.fetch(path)?.document;
        let settings_path = find_settings(&bios);
        let pending = settings_path.map(|path| self.client.fetch(path)).transpose()?;
        Ok(BiosState {
            current: read_attributes(&bios),
            pending: pending.map(|pending| read_attributes(&pending.document)).unwrap_or_default(),
            registry: BTreeMap::new(),
            registry_name: bios["AttributeRegistry"].as_str().unwrap_or_default().to_owned(),
            settings_path: settings_path.map(str::to_owned),
            settings: bios["@Redfish.Settings"].clone(),
            reset_path: bios["Actions"]["#Bios.ResetBios"]["target"].as_str().map(str::to_owned),
        })
    }

    /// Reads the attributes of the registry with this name. The name in the registry itself is compared, because the
    /// list of registries may contain another name, as with sushy-emulator.
    fn read_registry(&self, name: &str) -> Result<Vec<BiosAttribute>> {
        let links = self.client.fetch_members("/redfish/v1/Registries")?;
        for link in links.iter().filter(|link| link.contains("BiosAttributeRegistry") || link.contains(name)) {
            let file = self.client.fetch(link)?.document;
            let locations = file["Location"].as_array().cloned().unwrap_or_default();
            let english = locations.iter().find(|one| one["Language"].as_str().is_none_or(|it| it.starts_with("en")));
            let Some(uri) = english.or(locations.first()).and_then(|one| one["Uri"].as_str()) else { continue };
            let registry = self.client.fetch(uri)?.document;
            let is_named = [&file["Registry"], &file["Id"], &registry["Id"]].iter().any(|id| id.as_str() == Some(name));
            let attributes = registry["RegistryEntries"]["Attributes"].as_array().filter(|_| is_named);
            if let Some(attributes) = attributes {
                let parsed = attributes.iter().filter_map(|one| BiosAttribute::deserialize(one).ok());
                return Ok(parsed.collect());
            }
        }
        Ok(Vec::new())
    }

    /// Requests these values, which take effect at the next restart, and checks that the service then lists them as
    /// pending.
    ///
    /// # Errors
    /// The service rejects the values, lists other pending values, or does not have a settings resource.
    pub fn set_attributes(&self, bios: &BiosState, settings: &[BiosSetting]) -> Result<()> {
        let Some(path) = &bios.settings_path else {
            return Err(bmc_refusal(format!(
                "{url}{path}: the Redfish service has no settings resource, so the BIOS attributes cannot be changed",
                url = self.client.url,
                path = self.path
            )));
        };
        let attributes: Map<String, Value> = settings.iter().map(|one| (one.name.clone(), one.value.clone())).collect();
        let body = with_apply_time(&bios.settings, json!({ "Attributes": attributes }));
        let response = self.client.patch(path, &self.client.fetch(path)?, &body)?;
        self.client.expect_success(response)?;
        let read =
            || self.client.fetch(path).map(|pending| find_unaccepted(settings, &read_attributes(&pending.document)));
        match &read_until(READS, read, Vec::is_empty)?[..] {
            [] => Ok(()),
            differing => Err(bmc_refusal(sanitize_line(&format!(
                "management controller {url} accepted the BIOS settings, but reports {settings}",
                url = self.client.url,
                settings = differing.join(", ")
            )))),
        }
    }

    /// Requests a reset of the attributes to their defaults.
    ///
    /// # Errors
    /// The service rejects the request, or does not support it.
    pub fn reset_attributes(&self, bios: &BiosState) -> Result<()> {
        let Some(path) = &bios.reset_path else {
            return Err(bmc_refusal(format!(
                "{url}{path}: the Redfish service does not support Bios.ResetBios",
                url = self.client.url,
                path = self.path
            )));
        };
        self.client.expect_success(self.client.post(path, &json!({}), WriteKind::Settings)?).map(drop)
    }
}

fn read_attributes(resource: &Value) -> Map<String, Value> {
    resource["Attributes"].as_object().cloned().unwrap_or_default()
}

/// Describes the pending values that differ from the requested settings. Settings that the service does not list as
/// pending are skipped here; they are checked after the restart.
fn find_unaccepted(settings: &[BiosSetting], pending: &Map<String, Value>) -> Vec<String> {
    let differing = settings.iter().filter_map(|BiosSetting { name, value }| {
        let reported = pending.get(name).filter(|reported| !reported.is_null() && !is_same_value(reported, value))?;
        Some(format!("{name}={reported} instead of {value}"))
    });
    differing.collect()
}

fn index_attributes(attributes: Vec<BiosAttribute>) -> BTreeMap<String, BiosAttribute> {
    attributes.into_iter().map(|attribute| (attribute.attribute_name.clone(), attribute)).collect()
}

#[cfg(test)]
mod tests;
