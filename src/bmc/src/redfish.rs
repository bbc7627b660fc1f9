//! Redfish (DSP0266): the system of a machine, with its power, boot override and BIOS.

pub mod bios;
mod boot_override;
mod client;
mod etag;
mod power;
mod session;

use super::{PowerAction, PowerState, TargetMachine, WriteGuard, bmc_refusal};
use client::RedfishClient;
use common::error::Result;
use model::bmc::{Bmc, BmcAddress};
use model::deploy_steps::BootDevice;
use model::machine_identity::{is_same_uuid, parse_usable_uuid};
use serde_json::{Value, json};
use uuid::Uuid;

/// One system of a Redfish service.
pub struct RedfishMachine<'a> {
    client: RedfishClient<'a>,
    /// Path of the system's resource.
    path: String,
}

/// Performs the action, and reads the resulting state back from the service. Returns a warning if this state differs
/// harmlessly from the requested state.
pub(crate) fn perform_action(
    bmc: &Bmc,
    action: PowerAction,
    machine: &TargetMachine,
    guard: &dyn WriteGuard,
) -> Result<Option<String>> {
    let system = RedfishMachine::connect(bmc, machine)?.guarded_by(guard);
    match action {
        PowerAction::On => system.switch_on().map(|()| None),
        PowerAction::Off => system.switch_off().map(|()| None),
        PowerAction::Cycle => system.cycle_power().map(|()| None),
        PowerAction::Pxe => system.set_boot_device(BootDevice::Pxe, false, machine.firmware),
    }
}

/// Returns the power state of the machine's system.
pub(crate) fn read_power_state(bmc: &Bmc, machine: &TargetMachine) -> Result<PowerState> {
    let system = RedfishMachine::connect(bmc, machine)?;
    let document = system.client.fetch(&system.path)?.document;
    Ok(PowerState::from_name(document["PowerState"].as_str().unwrap_or_default()))
}

impl<'a> RedfishMachine<'a> {
    /// Connects to the controller, and finds the system of the machine.
    ///
    /// # Errors
    /// The controller does not support Redfish, cannot be reached, rejects the credentials, or belongs to another
    /// machine.
    pub fn connect(bmc: &'a Bmc, machine: &TargetMachine) -> Result<RedfishMachine<'a>> {
        let BmcAddress::Redfish { url, system } = &bmc.at else {
            return Err(bmc_refusal("the management controller is addressed over IPMI, not over Redfish".to_owned()));
        };
        let client = RedfishClient::new(bmc, url)?;
        let path = match system {
            Some(path) => client.check_selected_system(path, machine).map(|()| path.clone())?,
            None => client.find_system(machine)?,
        };
        Ok(RedfishMachine { client, path })
    }

    /// Sets the guard, whose permission is requested before each request that changes the machine.
    pub fn guarded_by(mut self, guard: &'a dyn WriteGuard) -> RedfishMachine<'a> {
        self.client.guard = guard;
        self
    }
}

impl RedfishClient<'_> {
    /// Finds the path of the machine's system. If the service has a single system, it is accepted unless it reports the
    /// UUID of another machine. If there are several systems, exactly one of them must report the machine's UUID.
    fn find_system(&self, machine: &TargetMachine) -> Result<String> {
        let members = self.fetch_members("/redfish/v1/Systems")?;
        if let [path] = &members[..] {
            return self.check_single_system(path, machine).map(|()| path.clone());
        }
        let wanted = machine.uuid.as_deref().and_then(|id| Uuid::try_parse(id).ok());
        let mut found = Vec::new();
        for path in &members {
            if let (Some(uuid), Some(wanted)) = (self.read_uuid(path)?, wanted)
                && is_same_uuid(uuid, wanted)
            {
                found.push((uuid == wanted, path));
            }
        }
        // A UUID in the other byte order counts only if no system has exactly the requested UUID.
        let exact = found.iter().any(|(is_exact, _)| *is_exact);
        found.retain(|(is_exact, _)| *is_exact == exact);
        if let [(_, path)] = found[..] {
            return Ok(path.clone());
        }
        let which = machine.uuid.as_deref().map_or("is requested".to_owned(), |id| format!("has the id {id}"));
        Err(bmc_refusal(format!(
            "management controller {url} manages {count} systems, and does not report which system {which}: append \
            the path of the right system to the address. Systems: {systems}",
            url = self.url,
            count = members.len(),
            systems = members.join(", ")
        )))
    }

    /// Returns the UUID of a system; `None` if the UUID is missing or a placeholder.
    fn read_uuid(&self, path: &str) -> Result<Option<Uuid>> {
        Ok(self.fetch(path)?.document["UUID"].as_str().and_then(parse_usable_uuid))
    }

    /// Refuses the only system of the service if it reports the UUID of another machine. This happens, for example, if
    /// the address of the controller was reassigned, swapped or mistyped. If several machine files contain the address,
    /// the system must report the machine's UUID.
    fn check_single_system(&self, path: &str, machine: &TargetMachine) -> Result<()> {
        let url = &self.url;
        match (self.read_uuid(path)?, machine.usable_uuid()) {
            (Some(uuid), Some(wanted)) if is_same_uuid(uuid, wanted) => Ok(()),
            (Some(uuid), _) if machine.is_other_machine(uuid) => Err(machine.refuse_other_machine(url, uuid)),
            (Some(uuid), Some(wanted)) => Err(bmc_refusal(format!(
                "management controller {url} belongs to machine {uuid}, not to {wanted}: power state and boot device were not changed. Correct the controller's address; if the address is right even though the UUIDs differ, append the system's path to the address: {url}{path}"
            ))),
            _ if machine.must_match_uuid => Err(bmc_refusal(format!(
                "management controller {url}: power state and boot device were not changed: several machine files contain this address, and the controller does not report the UUID of the machine. Correct the address, or append the path of the machine's system: {url}{path}"
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses the system with this path if it reports the UUID of another known machine.
    fn check_selected_system(&self, path: &str, machine: &TargetMachine) -> Result<()> {
        if machine.other_uuids.is_empty() {
            return Ok(());
        }
        let is_own = |uuid| machine.usable_uuid().is_some_and(|own| is_same_uuid(uuid, own));
        match self.read_uuid(path)?.filter(|uuid| !is_own(*uuid) && machine.is_other_machine(*uuid)) {
            Some(uuid) => Err(machine.refuse_other_machine(&format!("{}{path}", self.url), uuid)),
            None => Ok(()),
        }
    }
}

impl TargetMachine {
    /// Returns whether this is the UUID of another known machine, in either byte order.
    fn is_other_machine(&self, uuid: Uuid) -> bool {
        self.other_uuids.iter().any(|other| is_same_uuid(uuid, *other))
    }
}

/// Returns the path of the settings resource that contains the pending values of `resource`.
fn find_settings(resource: &Value) -> Option<&str> {
    resource["@Redfish.Settings"]["SettingsObject"]["@odata.id"].as_str()
}

/// Adds the apply time `OnReset` to the body of a change, if the settings resource supports it.
fn with_apply_time(settings: &Value, mut body: Value) -> Value {
    let times = settings["SupportedApplyTimes"].as_array();
    if times.into_iter().flatten().any(|time| time.as_str() == Some("OnReset")) {
        body["@Redfish.SettingsApplyTime"] = json!({ "ApplyTime": "OnReset" });
    }
    body
}

#[cfg(test)]
mod quirk_tests;
#[cfg(test)]
mod system_selection_tests;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used)]
pub mod test_double;
