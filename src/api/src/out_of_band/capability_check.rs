//! Checks whether a Redfish service can run steps, before the first step changes anything. The module performs no I/O.

use bmc::redfish::bios::{BiosAttribute, BiosState, SystemState};
use common::format::untrusted_text_limits::sanitize_line;
use model::deploy_steps::{BiosSetting, OutOfBandStep};
use serde_json::Value;

/// Returns the reasons why the service cannot run these steps.
pub(crate) fn find_unsupported(steps: &[OutOfBandStep], state: &SystemState) -> Vec<String> {
    let no_bios = steps.iter().find(|step| step.needs_bios()).filter(|_| state.bios.is_none());
    let no_bios = no_bios.map(|step| {
        format!(
            "{}: the Redfish service offers no Bios resource for this machine; remove the step, or use another machine",
            step.name()
        )
    });
    let problems = steps.iter().flat_map(|step| match (step, &state.bios) {
        (OutOfBandStep::ApplyBios { .. }, Some(bios)) if !bios.is_settable() => {
            vec![format!(
                "{}: the Redfish service has no settings resource, so its BIOS attributes cannot be changed",
                step.name()
            )]
        }
        (OutOfBandStep::ApplyBios { settings }, Some(bios)) => {
            settings.iter().filter_map(|setting| explain_unsupported(setting, bios)).collect()
        }
        (OutOfBandStep::ResetBios, Some(bios)) if !bios.is_resettable() => {
            vec![format!("{}: the Redfish service does not support Bios.ResetBios", step.name())]
        }
        (OutOfBandStep::SetBootDevice { device, .. }, _) => {
            let target = device.redfish_target();
            let is_known = state.boot_targets.is_empty() || state.boot_targets.iter().any(|known| known == target);
            let known = state.boot_targets.join(", ");
            let why =
                format!("{}: the Redfish service cannot boot from {target}; supported targets: {known}", step.name());
            if is_known { Vec::new() } else { vec![sanitize_line(&why)] }
        }
        _ => Vec::new(),
    });
    no_bios.into_iter().chain(problems).collect()
}

fn explain_unsupported(setting: &BiosSetting, bios: &BiosState) -> Option<String> {
    let BiosSetting { name, value } = setting;
    let wrong = |why: String| Some(sanitize_line(&format!("bios.apply_configuration: {name}: {why}")));
    let current = bios.current.get(name);
    let attribute = bios.registry.get(name);
    match (current, attribute) {
        (None, None) => {
            let similar = site::operator_files::suggest_name(name, bios.current.keys().map(String::as_str));
            return wrong(format!("the machine has no such BIOS attribute{similar}"));
        }
        (Some(current), _) if !is_same_type(current, value) => {
            return wrong(format!(
                "the value must be {}, like the current value {current}; found {value}",
                type_name(current)
            ));
        }
        _ => {}
    }
    attribute.and_then(|attribute| explain_bad_value(attribute, value)).and_then(wrong)
}

fn explain_bad_value(attribute: &BiosAttribute, value: &Value) -> Option<String> {
    if attribute.read_only == Some(true) || attribute.immutable == Some(true) {
        return Some("the attribute is read-only".to_owned());
    }
    let allowed: Vec<&str> = attribute.value.iter().flatten().map(|one| one.value_name.as_str()).collect();
    if let Some(text) = value.as_str().filter(|text| !allowed.is_empty() && !allowed.contains(text)) {
        return Some(format!("the value must be one of {}; found {text:?}", allowed.join(", ")));
    }
    let number = value.as_f64()?;
    let (lower, upper) = (attribute.lower_bound, attribute.upper_bound);
    let is_outside =
        lower.is_some_and(|bound| number < bound as f64) || upper.is_some_and(|bound| number > bound as f64);
    is_outside.then(|| {
        let bound = |bound: Option<i64>| bound.map_or("any".to_owned(), |bound| bound.to_string());
        format!("the value must be between {} and {}; found {value}", bound(lower), bound(upper))
    })
}

/// Returns whether both values have the same type. Null is an unknown value, and matches every type.
fn is_same_type(one: &Value, other: &Value) -> bool {
    one.is_null() || std::mem::discriminant(one) == std::mem::discriminant(other)
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a string",
        Value::Number(_) => "a number",
        Value::Bool(_) => "true or false",
        _ => "of another type",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::deploy_steps::BootDevice;
    use serde_json::json;

    fn apply(name: &str, value: Value) -> OutOfBandStep {
        OutOfBandStep::ApplyBios { settings: vec![BiosSetting { name: name.to_owned(), value }] }
    }

    fn state() -> SystemState {
        let current = json!({"Vmx": "Off", "Cores": 4, "Quiet": true, "Serial": "7", "Asset": null});
        let registry = json!([
            {"AttributeName": "Vmx", "Value": [{"ValueName": "On"}, {"ValueName": "Off"}]},
            {"AttributeName": "Cores", "LowerBound": 1, "UpperBound": 8},
            {"AttributeName": "Serial", "ReadOnly": true}, {"AttributeName": "Hidden"}]);
        let bios = BiosState::with_values(current, json!({}), registry);
        SystemState { bios: Some(bios), boot_targets: vec!["Pxe".to_owned()], ..SystemState::default() }
    }

    #[test]
    fn unsupported_bios_values_are_found_before_any_change() {
        let disk = OutOfBandStep::SetBootDevice { device: BootDevice::Disk, persistent: true };
        let pxe = OutOfBandStep::SetBootDevice { device: BootDevice::Pxe, persistent: false };
        for (step, expected) in [
            (apply("Vmx", json!("On")), ""),
            (apply("Cores", json!(8)), ""),
            (apply("Quiet", json!(false)), ""),
            (apply("Asset", json!("x")), ""),
            (apply("Hidden", json!("x")), ""),
            (OutOfBandStep::ResetBios, ""),
            (OutOfBandStep::Reboot, ""),
            (pxe, ""),
            (apply("Vmx", json!("Enabled")), "Vmx: the value must be one of On, Off; found \"Enabled\""),
            (apply("Vmx", json!(true)), "Vmx: the value must be a string"),
            (apply("Cores", json!(9)), "Cores: the value must be between 1 and 8; found 9"),
            (apply("Cores", json!("4")), "Cores: the value must be a number"),
            (apply("Quiet", json!("false")), "Quiet: the value must be true or false"),
            (apply("Serial", json!("8")), "Serial: the attribute is read-only"),
            (apply("VMX", json!("On")), "VMX: the machine has no such BIOS attribute"),
            (disk, "cannot boot from Hdd; supported targets: Pxe"),
        ] {
            let found = find_unsupported(std::slice::from_ref(&step), &state()).join("\n");
            assert!(found.contains(expected) && found.is_empty() == expected.is_empty(), "{step:?}: {found}");
        }
    }

    #[test]
    fn bios_steps_are_refused_without_a_bios_resource() {
        let none = SystemState::default();
        let fixed = SystemState { bios: Some(BiosState::default()), ..SystemState::default() };
        let both = [OutOfBandStep::ResetBios, apply("Vmx", json!("On"))];
        let why = find_unsupported(&both, &none).join("\n");
        assert!(why.contains("bios.factory_reset: the Redfish service offers no Bios resource"), "{why}");
        let why = find_unsupported(&both, &fixed).join("\n");
        assert!(why.contains("no settings resource") && why.contains("does not support Bios.ResetBios"), "{why}");
        assert_eq!(find_unsupported(&[OutOfBandStep::PowerOff, OutOfBandStep::PowerOn], &none), [""; 0]);
    }
}
