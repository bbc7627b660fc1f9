//! BIOS attributes of a system: current and pending values, the registry that describes them, and their changes.

use super::{RedfishClient, RedfishLink, RedfishSystem};
use crate::bmc::{PowerAction, bmc_refusal};
use common::error::Result;
use linux::http;
use model::bmc::{Bmc, BmcAddress};
use model::deploy_steps::{BiosSetting, BootDevice};
use reqwest::Method;
use reqwest::header::IF_MATCH;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// One system of a Redfish service.
pub(crate) struct RedfishMachine<'a> {
    client: RedfishClient<'a>,
    /// Path of the system.
    path: String,
}

/// Power state and boot device of a system, and its BIOS.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SystemState {
    /// `On`, `Off`, or a transition between them; `None` if the service does not report it.
    pub power: Option<String>,
    /// Target of the boot override.
    pub boot_target: Option<String>,
    /// Boot targets that the service supports; empty if it does not list them.
    pub boot_targets: Vec<String>,
    /// `None` if the service offers no Bios resource for the system.
    pub bios: Option<BiosState>,
}

/// Bios resource of a system.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct BiosState {
    /// Values that are in force.
    pub current: Map<String, Value>,
    /// Values that apply after a restart.
    pub pending: Map<String, Value>,
    /// Attributes by name, if the service offers their registry.
    pub registry: BTreeMap<String, BiosAttribute>,
    /// Name of the attribute registry.
    registry_name: String,
    /// Path to which changes are sent; `None` if the attributes cannot be changed.
    settings_path: Option<String>,
    /// Whether changes must be requested for the next restart explicitly.
    takes_apply_time: bool,
    /// Target of the action that resets the attributes.
    reset_path: Option<String>,
}

/// Attribute in a registry.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct BiosAttribute {
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
pub(crate) struct EnumerationValue {
    pub value_name: String,
}

impl BiosState {
    /// Returns whether attributes can be changed.
    pub(crate) fn is_settable(&self) -> bool {
        self.settings_path.is_some()
    }

    /// Returns whether the attributes can be reset.
    pub(crate) fn is_resettable(&self) -> bool {
        self.reset_path.is_some()
    }

    /// Returns a Bios resource with these values that can be changed and reset.
    #[cfg(test)]
    pub(crate) fn with_values(current: Value, pending: Value, registry: Value) -> BiosState {
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

#[derive(Deserialize)]
struct BootResource {
    #[serde(default, rename = "PowerState")]
    power: Option<String>,
    #[serde(default, rename = "Boot")]
    boot: Value,
    #[serde(default, rename = "Bios")]
    bios: Option<RedfishLink>,
}

impl<'a> RedfishMachine<'a> {
    /// Connects to the controller, and finds the system of the machine with this UUID.
    ///
    /// # Errors
    /// The controller does not support Redfish, cannot be reached, rejects the credentials, or belongs to another machine.
    pub(crate) fn connect(bmc: &'a Bmc, machine: &str) -> Result<RedfishMachine<'a>> {
        let BmcAddress::Redfish { url, system } = &bmc.at else {
            return Err(bmc_refusal("the management controller is addressed over IPMI, not over Redfish".to_owned()));
        };
        let client = RedfishClient { client: http::new_device_client(bmc.insecure)?, bmc, url };
        let path = match system {
            Some(path) => path.clone(),
            None => client.find_system(Some(machine))?,
        };
        Ok(RedfishMachine { client, path })
    }

    /// Reads the state of the system without its attribute registry.
    ///
    /// # Errors
    /// The service fails.
    pub(crate) fn read_state(&self) -> Result<SystemState> {
        let (system, _): (BootResource, _) = self.client.fetch(&self.path)?;
        let text = |name: &str| system.boot[name].as_str().map(str::to_owned);
        let targets = system.boot["BootSourceOverrideTarget@Redfish.AllowableValues"].as_array();
        let targets = targets.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
        Ok(SystemState {
            power: system.power,
            boot_target: text("BootSourceOverrideTarget"),
            boot_targets: targets.collect(),
            bios: system.bios.map(|link| self.read_bios(&link.id)).transpose()?,
        })
    }

    /// Reads the state of the system with its attribute registry, if the service offers one.
    ///
    /// # Errors
    /// The service fails.
    pub(crate) fn read_described_state(&self) -> Result<SystemState> {
        let mut state = self.read_state()?;
        if let Some(bios) = &mut state.bios {
            // The registry is optional, and some services link to one that they do not have.
            bios.registry = self.read_registry(&bios.registry_name).map(index_attributes).unwrap_or_default();
        }
        Ok(state)
    }

    fn read_bios(&self, path: &str) -> Result<BiosState> {
        let (bios, _): (Value, _) = self.client.fetch(&self.client.check_link(path)?)?;
        let attributes = |resource: &Value| resource["Attributes"].as_object().cloned().unwrap_or_default();
        let settings = &bios["@Redfish.Settings"];
        let settings_path = settings["SettingsObject"]["@odata.id"].as_str();
        let settings_path = settings_path.map(|path| self.client.check_link(path)).transpose()?;
        let pending: Option<Value> =
            settings_path.as_ref().map(|path| self.client.fetch(path)).transpose()?.map(|(value, _)| value);
        let reset = bios["Actions"]["#Bios.ResetBios"]["target"].as_str();
        let on_reset = |one: &Value| one.as_str() == Some("OnReset");
        Ok(BiosState {
            current: attributes(&bios),
            pending: pending.as_ref().map(attributes).unwrap_or_default(),
            registry: BTreeMap::new(),
            registry_name: bios["AttributeRegistry"].as_str().unwrap_or_default().to_owned(),
            settings_path,
            takes_apply_time: settings["SupportedApplyTimes"].as_array().is_some_and(|all| all.iter().any(on_reset)),
            reset_path: reset.map(|path| self.client.check_link(path)).transpose()?,
        })
    }

    /// Reads the attributes of the registry with this name. If its name in the list of registries differs, as with sushy-emulator, the
    /// registry itself must have the name.
    fn read_registry(&self, name: &str) -> Result<Vec<BiosAttribute>> {
        let (list, _): (Value, _) = self.client.fetch("/redfish/v1/Registries")?;
        let links = list["Members"].as_array().cloned().unwrap_or_default();
        let links = links.iter().filter_map(|link| link["@odata.id"].as_str());
        for link in links.filter(|link| link.contains("BiosAttributeRegistry") || link.contains(name)) {
            let (file, _): (Value, _) = self.client.fetch(&self.client.check_link(link)?)?;
            let locations = file["Location"].as_array().cloned().unwrap_or_default();
            let english = locations.iter().find(|one| one["Language"].as_str().is_none_or(|it| it.starts_with("en")));
            let Some(uri) = english.or(locations.first()).and_then(|one| one["Uri"].as_str()) else { continue };
            let (registry, _): (Value, _) = self.client.fetch(&self.client.check_link(uri)?)?;
            let is_named = [&file["Registry"], &file["Id"], &registry["Id"]].iter().any(|id| id.as_str() == Some(name));
            let attributes = registry["RegistryEntries"]["Attributes"].as_array().filter(|_| is_named);
            if let Some(attributes) = attributes {
                let parsed = attributes.iter().filter_map(|one| BiosAttribute::deserialize(one).ok());
                return Ok(parsed.collect());
            }
        }
        Ok(Vec::new())
    }

    /// Requests these values for the next restart.
    ///
    /// # Errors
    /// The service rejects them, or has no settings resource.
    pub(crate) fn set_attributes(&self, bios: &BiosState, settings: &[BiosSetting]) -> Result<()> {
        let Some(path) = &bios.settings_path else {
            return Err(bmc_refusal(format!(
                "{}{}: the BIOS attributes cannot be changed",
                self.client.url, self.path
            )));
        };
        let attributes: Map<String, Value> = settings.iter().map(|one| (one.name.clone(), one.value.clone())).collect();
        let mut body = json!({ "Attributes": attributes });
        if bios.takes_apply_time {
            body["@Redfish.SettingsApplyTime"] = json!({ "ApplyTime": "OnReset" });
        }
        // Some controllers reject a change without the ETag.
        let (_, etag): (Value, _) = self.client.fetch(path)?;
        let request = self.client.request(Method::PATCH, path).json(&body);
        let request = etag.into_iter().fold(request, |request, etag| request.header(IF_MATCH, etag));
        self.client.send_request(request).map(drop)
    }

    /// Requests a reset of the attributes to their defaults.
    ///
    /// # Errors
    /// The service rejects the request, or does not support it.
    pub(crate) fn reset_attributes(&self, bios: &BiosState) -> Result<()> {
        let Some(path) = &bios.reset_path else {
            return Err(bmc_refusal(format!("{}{}: the BIOS cannot be reset", self.client.url, self.path)));
        };
        self.client.send_request(self.client.request(Method::POST, path).json(&json!({}))).map(drop)
    }

    /// Sets the device from which the machine boots, at the next boot or at each.
    ///
    /// # Errors
    /// The service rejects the request.
    pub(crate) fn set_boot_device(&self, device: BootDevice, persistent: bool) -> Result<()> {
        let (_, etag): (Value, _) = self.client.fetch(&self.path)?;
        let enabled = if persistent { "Continuous" } else { "Once" };
        let target = device.redfish_target();
        let boot = json!({ "Boot": { "BootSourceOverrideEnabled": enabled, "BootSourceOverrideTarget": target } });
        let request = self.client.request(Method::PATCH, &self.path).json(&boot);
        let request = etag.into_iter().fold(request, |request, etag| request.header(IF_MATCH, etag));
        self.client.send_request(request).map(drop)
    }

    /// Switches the power of the machine.
    ///
    /// # Errors
    /// The service rejects the request, or does not support it.
    pub(crate) fn switch_power(&self, action: PowerAction) -> Result<()> {
        let (system, _): (RedfishSystem, _) = self.client.fetch(&self.path)?;
        self.client.reset_system(&self.path, &system, action)
    }
}

fn index_attributes(attributes: Vec<BiosAttribute>) -> BTreeMap<String, BiosAttribute> {
    attributes.into_iter().map(|attribute| (attribute.attribute_name.clone(), attribute)).collect()
}

#[cfg(test)]
mod tests;
