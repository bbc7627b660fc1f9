//! Boot override of a system: the device from which the system boots, once or always, in the boot mode of the machine.
//!
//! Some controllers use legacy boot if the request does not contain the boot mode; others reject a request that
//! contains it. Some controllers accept changes only in the settings resource of the system. All variants are tried,
//! and the override is read back afterwards.

use super::{RedfishMachine, find_settings, with_apply_time};
use crate::{READS, READS_AFTER_REJECTION, bmc_refusal, read_until};
use common::error::Result;
use common::format::untrusted_text_limits::sanitize_line;
use model::deploy_steps::BootDevice;
use model::inventory::FirmwareType;
use serde_json::{Value, json};

const MODE: &str = "BootSourceOverrideMode";
const UEFI: &str = "UEFI";

/// Requested boot override.
struct BootOverride<'a> {
    target: &'static str,
    enabled: &'static str,
    /// Boot mode; `None` if the controller does not report one.
    mode: Option<&'a str>,
}

impl RedfishMachine<'_> {
    /// Sets the device from which the machine boots, once or always, and reads the override back. Returns a warning if
    /// the controller reports another value of `BootSourceOverrideEnabled`.
    ///
    /// # Errors
    /// The service does not support the device, rejects the request, or reports another device or boot mode afterwards.
    pub fn set_boot_device(
        &self,
        device: BootDevice,
        persistent: bool,
        firmware: Option<FirmwareType>,
    ) -> Result<Option<String>> {
        let system = self.client.fetch(&self.path)?;
        let boot = &system.document["Boot"];
        let target = device.redfish_target();
        if let Some(known) = list_excluding(&boot["BootSourceOverrideTarget@Redfish.AllowableValues"], target) {
            let why = format!(
                "{url}{path} cannot boot from {target}; supported targets: {known}",
                url = self.client.url,
                path = self.path
            );
            return Err(bmc_refusal(sanitize_line(&why)));
        }
        let enabled = if persistent { "Continuous" } else { "Once" };
        let wanted = BootOverride { target, enabled, mode: select_mode(boot, firmware) };
        if let Some(known) =
            wanted.mode.and_then(|mode| list_excluding(&boot[format!("{MODE}@Redfish.AllowableValues")], mode))
            && !wanted.is_preserved_by(boot)
        {
            let why = format!(
                "{url}{path} cannot boot in the mode {UEFI}; supported modes: {known}",
                url = self.client.url,
                path = self.path
            );
            return Err(bmc_refusal(sanitize_line(&why)));
        }
        let settings = self.find_boot_settings(&system.document);
        let places = [
            Some((self.path.as_str(), &Value::Null)),
            settings.map(|path| (path, &system.document["@Redfish.Settings"])),
        ];
        let mut failure = None;
        for (path, settings) in places.into_iter().flatten() {
            let is_last = path != self.path || places[1].is_none();
            match self.try_override(path, settings, boot, &wanted, is_last)? {
                Ok(warning) => return Ok(warning),
                Err(why) => failure = failure.or(Some(why)),
            }
        }
        Err(bmc_refusal(failure.unwrap_or_default()))
    }

    /// Returns the path of the system's settings resource, if that resource contains a boot override.
    fn find_boot_settings<'s>(&self, system: &'s Value) -> Option<&'s str> {
        let path = find_settings(system)?;
        let settings = self.client.fetch(path).ok()?.document;
        (!settings["Boot"]["BootSourceOverrideTarget"].is_null()).then_some(path)
    }

    /// Requests the override at a path, first with the boot mode. If the controller rejects the mode, repeats the
    /// request without it. The inner error is the reason why the override did not take effect.
    fn try_override(
        &self,
        path: &str,
        settings: &Value,
        before: &Value,
        wanted: &BootOverride,
        is_last: bool,
    ) -> Result<std::result::Result<Option<String>, String>> {
        let mut mode = wanted.mode;
        loop {
            let body = with_apply_time(settings, wanted.to_body(mode));
            let response = self.client.patch(path, &self.client.fetch(path)?, &body)?;
            let may_try_another = response.is_unsupported();
            let rejects_mode = may_try_another && response.mentions(MODE);
            let rejection = match self.client.expect_success(response) {
                Err(error) if !may_try_another => return Err(error),
                done => done.err(),
            };
            let reads = if is_last && rejection.is_none() { READS } else { READS_AFTER_REJECTION };
            let differs = |boot: &Value| wanted.find_difference(boot, mode);
            let boot = read_until(reads, || self.read_override(path, wanted), |boot| differs(boot).is_none())?;
            match (differs(&boot), rejection) {
                (None, _) => return Ok(Ok(self.explain_duration(&boot, wanted))),
                // The request is repeated without the mode only if the current mode is the requested one. Otherwise,
                // a UEFI machine could boot in legacy mode.
                (Some(_), Some(_)) if rejects_mode && mode.is_some() && wanted.is_preserved_by(before) => mode = None,
                (Some(_), Some(error)) => return Ok(Err(error.to_string())),
                (Some(why), None) => {
                    let url = self.client.url;
                    return Ok(Err(format!(
                        "management controller {url} accepted the boot override, but reports {why}"
                    )));
                }
            }
        }
    }

    /// Reads the boot override of the system. If this override does not have the requested target, returns the override
    /// in the resource at `path` instead.
    fn read_override(&self, path: &str, wanted: &BootOverride) -> Result<Value> {
        let boot = self.client.fetch(&self.path)?.document["Boot"].take();
        match path == self.path || boot["BootSourceOverrideTarget"].as_str() == Some(wanted.target) {
            true => Ok(boot),
            false => Ok(self.client.fetch(path)?.document["Boot"].take()),
        }
    }

    /// Returns a warning if the reported `BootSourceOverrideEnabled` differs from the requested value. sushy-emulator,
    /// for example, always reports `Continuous`.
    fn explain_duration(&self, boot: &Value, wanted: &BootOverride) -> Option<String> {
        let enabled = boot["BootSourceOverrideEnabled"].as_str().filter(|enabled| *enabled != wanted.enabled)?;
        let url = self.client.url;
        let what = format!(
            "management controller {url} reports BootSourceOverrideEnabled {enabled}, not {wanted}",
            wanted = wanted.enabled
        );
        Some(sanitize_line(&format!("{what}: the boot device may apply to more or fewer boots than requested")))
    }
}

impl BootOverride<'_> {
    fn to_body(&self, mode: Option<&str>) -> Value {
        let mut boot = json!({ "BootSourceOverrideEnabled": self.enabled, "BootSourceOverrideTarget": self.target });
        if let Some(mode) = mode {
            boot[MODE] = json!(mode);
        }
        json!({ "Boot": boot })
    }

    /// Describes the first property whose value differs from the requested value, with both values. `sent_mode` is
    /// `None` if the request did not contain the mode.
    fn find_difference(&self, boot: &Value, sent_mode: Option<&str>) -> Option<String> {
        let text = |name: &str| boot[name].as_str();
        let expected_mode = sent_mode.or(self.mode.filter(|mode| *mode == UEFI));
        let differences = [
            ("BootSourceOverrideTarget", text("BootSourceOverrideTarget").or(Some("unknown")), Some(self.target)),
            // `Continuous` is accepted here, because `explain_duration` returns a warning about it.
            (
                "BootSourceOverrideEnabled",
                text("BootSourceOverrideEnabled").filter(|it| *it != "Continuous"),
                Some(self.enabled),
            ),
            (MODE, text(MODE), expected_mode),
        ];
        let mut differences =
            differences.into_iter().filter_map(|(name, actual, expected)| Some((name, actual?, expected?)));
        let (name, actual, expected) = differences.find(|(_, actual, expected)| actual != expected)?;
        Some(sanitize_line(&format!("{name}={actual} instead of {expected}")))
    }

    /// Returns whether a request without a boot mode would result in the requested mode.
    fn is_preserved_by(&self, before: &Value) -> bool {
        self.mode != Some(UEFI) || before[MODE].as_str() == self.mode
    }
}

/// Returns the boot mode to request: that of the registered firmware type, or the current mode if the type is unknown.
fn select_mode(boot: &Value, firmware: Option<FirmwareType>) -> Option<&str> {
    let present = boot[MODE].as_str()?;
    Some(match firmware {
        Some(FirmwareType::Uefi) => UEFI,
        Some(FirmwareType::Bios) => "Legacy",
        None => present,
    })
}

/// Returns the values of a list that does not contain `value`, joined by commas; `None` if the list contains `value` or
/// is empty.
fn list_excluding(list: &Value, value: &str) -> Option<String> {
    let known: Vec<&str> = list.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    (!known.is_empty() && !known.contains(&value)).then(|| known.join(", "))
}
