//! Power control of a system: it selects a reset type that the controller supports, and checks the power state
//! afterwards.

use super::RedfishMachine;
use super::client::RedfishResource;
use crate::{READS, READS_AFTER_REJECTION, WriteKind, bmc_refusal, read_until};
use common::error::{Error, Result};
use common::format::untrusted_text_limits::sanitize_line;
use serde_json::{Value, json};

const ON: &str = "On";
const OFF: &str = "Off";
/// Property with the time at which the system was last reset (ComputerSystem 1.12).
const LAST_RESET: &str = "LastResetTime";
/// Reset types for each purpose, the preferred ones first. `ForcePowerCycle` is specific to Huawei's controllers.
const SWITCH_ON: [&str; 2] = ["On", "ForceOn"];
const SWITCH_OFF: [&str; 1] = ["ForceOff"];
const RESTART: [&str; 3] = ["ForceRestart", "PowerCycle", "ForcePowerCycle"];

/// Result of a reset request: the accepted type, or the reason why no type was accepted.
type ResetResult = std::result::Result<&'static str, Error>;

impl RedfishMachine<'_> {
    /// Switches the machine on, unless it is on already.
    ///
    /// # Errors
    /// The service does not support the action, rejects the request, or does not report the new state afterwards.
    pub fn switch_on(&self) -> Result<()> {
        self.reach_state(&self.client.fetch(&self.path)?, ON, &SWITCH_ON)
    }

    /// Switches the machine off without a shutdown, unless it is off already.
    ///
    /// # Errors
    /// As with [`RedfishMachine::switch_on`].
    pub fn switch_off(&self) -> Result<()> {
        self.reach_state(&self.client.fetch(&self.path)?, OFF, &SWITCH_OFF)
    }

    /// Restarts the machine, or switches it on if it is off. If the controller cannot restart the machine, the machine
    /// is switched off and on.
    ///
    /// # Errors
    /// As with [`RedfishMachine::switch_on`].
    pub fn cycle_power(&self) -> Result<()> {
        let system = self.client.fetch(&self.path)?;
        if is_in_state(&system, OFF) {
            return self.reach_state(&system, ON, &SWITCH_ON);
        }
        match self.request_reset(&system, &RESTART)? {
            Ok(kind) => self.await_restart(&system, kind),
            Err(_) => {
                self.switch_off()?;
                // Some controllers refuse to switch on a machine for some seconds after it was switched off, so this is
                // retried.
                read_until(READS_AFTER_REJECTION, || self.switch_on(), |()| true)
            }
        }
    }

    fn reach_state(&self, system: &RedfishResource, state: &str, kinds: &[&'static str]) -> Result<()> {
        match is_in_state(system, state) {
            true => Ok(()),
            false => {
                let requested = self.request_reset(system, kinds)?;
                self.await_state(state, requested)
            }
        }
    }

    /// Waits until the machine is on again. The power state is the same before and after a restart, so if the
    /// controller reports the time of the last reset, this time must also have changed.
    fn await_restart(&self, before: &RedfishResource, kind: &'static str) -> Result<()> {
        let former = &before.document[LAST_RESET];
        let is_unchanged = |system: &RedfishResource| former.is_string() && system.document[LAST_RESET] == *former;
        let system = read_until(READS, || self.client.fetch(&self.path), |system| !is_unchanged(system))?;
        if is_unchanged(&system) {
            let url = self.client.url;
            return Err(bmc_refusal(sanitize_line(&format!(
                "management controller {url} accepted the reset type {kind}, but reports no restart: {LAST_RESET} is still {former}"
            ))));
        }
        self.await_state(ON, Ok(kind))
    }

    /// Waits until the controller reports the state. The request counts as successful if the machine reaches the state,
    /// even if the controller has rejected the request.
    fn await_state(&self, state: &str, requested: ResetResult) -> Result<()> {
        let reads = if requested.is_ok() { READS } else { READS_AFTER_REJECTION };
        let system = read_until(reads, || self.client.fetch(&self.path), |system| is_in_state(system, state))?;
        match requested {
            _ if is_in_state(&system, state) => Ok(()),
            Err(rejection) => Err(rejection),
            Ok(kind) => {
                let actual = system.document["PowerState"].as_str().unwrap_or("unknown");
                let url = self.client.url;
                Err(bmc_refusal(sanitize_line(&format!(
                    "management controller {url} accepted the reset type {kind}, but reports PowerState {actual}, not {state}"
                ))))
            }
        }
    }

    /// Requests these reset types in order, until the controller accepts one of them.
    fn request_reset(&self, system: &RedfishResource, kinds: &[&'static str]) -> Result<ResetResult> {
        let reset = &system.document["Actions"]["#ComputerSystem.Reset"];
        let place = format!("{}{}", self.client.url, self.path);
        let Some(target) = reset["target"].as_str() else {
            return Err(bmc_refusal(format!(
                "cannot switch the power of {place}: the system does not support ComputerSystem.Reset"
            )));
        };
        let allowed = self.list_reset_types(reset);
        let supported = allowed.as_ref().map_or("not listed".to_owned(), |allowed| allowed.join(", "));
        let unsupported = format!(
            "{place} does not support any of the reset types {types}; supported types: {supported}",
            types = kinds.join(", ")
        );
        let mut rejection = bmc_refusal(sanitize_line(&unsupported));
        for kind in kinds.iter().filter(|kind| allowed.as_ref().is_none_or(|all| all.iter().any(|one| one == **kind))) {
            let response = self.client.post(target, &json!({ "ResetType": kind }), WriteKind::Power)?;
            let may_try_another = response.is_unsupported();
            match self.client.expect_success(response) {
                Ok(_) => return Ok(Ok(kind)),
                Err(error) if may_try_another => rejection = error,
                Err(error) => return Err(error),
            }
        }
        Ok(Err(rejection))
    }

    /// Returns the reset types that the controller supports, as listed in the action or in its `@Redfish.ActionInfo`;
    /// `None` if neither lists them.
    fn list_reset_types(&self, reset: &Value) -> Option<Vec<String>> {
        read_strings(&reset["ResetType@Redfish.AllowableValues"]).or_else(|| {
            let info = self.client.fetch(reset["@Redfish.ActionInfo"].as_str()?).ok()?.document;
            let mut parameters = info["Parameters"].as_array()?.iter();
            let parameter = parameters.find(|parameter| parameter["Name"].as_str() == Some("ResetType"))?;
            read_strings(&parameter["AllowableValues"])
        })
    }
}

/// Returns the strings of a list; `None` if the list is missing or empty.
fn read_strings(list: &Value) -> Option<Vec<String>> {
    let strings: Vec<String> = list.as_array()?.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    (!strings.is_empty()).then_some(strings)
}

fn is_in_state(system: &RedfishResource, state: &str) -> bool {
    system.document["PowerState"].as_str() == Some(state)
}
