//! Steps that the server runs through the management controller of a machine before the agent installs the machine. The
//! agent never receives these steps.
//!
//! Names and arguments match Ironic's interfaces `bios`, `management` and `power`.

use super::merge::ArgumentProblem;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Maximum number of settings in one step.
const MAXIMUM_SETTINGS: usize = 500;

/// BIOS attribute and the value that a step sets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BiosSetting {
    pub name: String,
    /// Value of the attribute: a string, a number or a Boolean.
    pub value: Value,
}

/// Step that runs through the management controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum OutOfBandStep {
    /// Step `bios.apply_configuration`.
    ApplyBios { settings: Vec<BiosSetting> },
    /// Step `bios.factory_reset`.
    ResetBios,
    /// Step `management.set_boot_device`.
    SetBootDevice { device: BootDevice, persistent: bool },
    /// Step `power.power_on`.
    PowerOn,
    /// Step `power.power_off`.
    PowerOff,
    /// Step `power.reboot`.
    Reboot,
}

/// Boot device, named as in Ironic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BootDevice {
    Pxe,
    Disk,
    Cdrom,
    /// The setup program of the firmware.
    Bios,
    UefiHttp,
}

impl BootDevice {
    /// Returns the value of Redfish's `BootSourceOverrideTarget`.
    pub fn redfish_target(self) -> &'static str {
        match self {
            BootDevice::Pxe => "Pxe",
            BootDevice::Disk => "Hdd",
            BootDevice::Cdrom => "Cd",
            BootDevice::Bios => "BiosSetup",
            BootDevice::UefiHttp => "UefiHttp",
        }
    }
}

impl OutOfBandStep {
    /// Returns the name of the step in templates.
    pub fn name(&self) -> &'static str {
        match self {
            OutOfBandStep::ApplyBios { .. } => "bios.apply_configuration",
            OutOfBandStep::ResetBios => "bios.factory_reset",
            OutOfBandStep::SetBootDevice { .. } => "management.set_boot_device",
            OutOfBandStep::PowerOn => "power.power_on",
            OutOfBandStep::PowerOff => "power.power_off",
            OutOfBandStep::Reboot => "power.reboot",
        }
    }

    /// Returns whether the step requires a Bios resource of the Redfish service.
    pub fn needs_bios(&self) -> bool {
        matches!(self, OutOfBandStep::ApplyBios { .. } | OutOfBandStep::ResetBios)
    }

    /// Returns whether the step can restart the machine.
    fn may_restart(&self) -> bool {
        !matches!(self, OutOfBandStep::SetBootDevice { .. } | OutOfBandStep::PowerOff)
    }

    /// Parses the arguments of the step with this name.
    ///
    /// # Errors
    /// Returns all invalid arguments. The name must belong to an out-of-band step of the catalog.
    pub fn parse(name: &str, args: &Map<String, Value>) -> Result<OutOfBandStep, Vec<ArgumentProblem>> {
        match name {
            "bios.apply_configuration" => parse_settings(args).map(|settings| OutOfBandStep::ApplyBios { settings }),
            "bios.factory_reset" => Ok(OutOfBandStep::ResetBios),
            "management.set_boot_device" => parse_boot_device(args),
            "power.power_on" => Ok(OutOfBandStep::PowerOn),
            "power.power_off" => Ok(OutOfBandStep::PowerOff),
            "power.reboot" => Ok(OutOfBandStep::Reboot),
            other => Err(vec![(None, format!("step {other} does not run through the management controller"))]),
        }
    }
}

fn parse_settings(args: &Map<String, Value>) -> Result<Vec<BiosSetting>, Vec<ArgumentProblem>> {
    let wrong = |message: String| vec![(Some("settings".to_owned()), format!("bios.apply_configuration: {message}"))];
    let Some(list) = args.get("settings").and_then(Value::as_array) else {
        return Err(wrong("`settings` is required: a list of objects with the fields `name` and `value`".to_owned()));
    };
    if list.is_empty() || list.len() > MAXIMUM_SETTINGS {
        return Err(wrong(format!("`settings` must have 1 to {MAXIMUM_SETTINGS} elements, found {}", list.len())));
    }
    let (mut settings, mut problems, mut names) = (Vec::new(), Vec::new(), BTreeSet::new());
    for (index, one) in list.iter().enumerate() {
        let at = |why: &str| wrong(format!("settings[{index}]: {why}"));
        match BiosSetting::deserialize(one) {
            Err(_) => problems.extend(at("must be an object with the fields `name` and `value`")),
            Ok(setting) => {
                if let Some(why) = explain_bad_setting(&setting) {
                    problems.extend(at(&why));
                } else if !names.insert(setting.name.clone()) {
                    problems.extend(at(&format!("{:?} is listed twice", setting.name)));
                }
                settings.push(setting);
            }
        }
    }
    if problems.is_empty() { Ok(settings) } else { Err(problems) }
}

fn explain_bad_setting(setting: &BiosSetting) -> Option<String> {
    let BiosSetting { name, value } = setting;
    if name.is_empty() || name.chars().any(char::is_control) {
        return Some(format!("{name:?} is not the name of a BIOS attribute"));
    }
    if name.to_lowercase().contains("password") {
        // Passwords are rejected: services never return them, so the change could not be verified.
        return Some(format!("{name}: passwords cannot be verified; set this password by hand"));
    }
    let is_scalar = value.is_string() || value.is_number() || value.is_boolean();
    (!is_scalar).then(|| format!("the value of {name} must be a string, a number, true or false; found {value}"))
}

fn parse_boot_device(args: &Map<String, Value>) -> Result<OutOfBandStep, Vec<ArgumentProblem>> {
    let wrong = |argument: &str, message: String| (Some(argument.to_owned()), message);
    let name = "management.set_boot_device";
    let device = args.get("device").map(BootDevice::deserialize);
    let persistent = args.get("persistent").map_or(Some(false), Value::as_bool);
    match (device, persistent) {
        (Some(Ok(device)), Some(persistent)) => Ok(OutOfBandStep::SetBootDevice { device, persistent }),
        (device, persistent) => {
            let no_device = !matches!(device, Some(Ok(_)));
            let no_device = no_device
                .then(|| wrong("device", format!("{name}: `device` must be pxe, disk, cdrom, bios or uefihttp")));
            let no_flag = persistent.is_none();
            let no_flag = no_flag.then(|| wrong("persistent", format!("{name}: `persistent` must be true or false")));
            Err(no_device.into_iter().chain(no_flag).collect())
        }
    }
}

/// Returns the index of the first step that cannot run at its position, and the reason. `steps` must be in the order in
/// which they run.
pub fn find_misplaced_step(steps: &[OutOfBandStep]) -> Option<(usize, String)> {
    let mut off_since = None;
    for (index, step) in steps.iter().enumerate() {
        let later = steps[index + 1..].iter().find(|later| later.may_restart());
        match (step, later) {
            (OutOfBandStep::SetBootDevice { .. }, Some(later)) => {
                let why = format!(
                    "management.set_boot_device must have a lower priority than {}, whose restart boots over PXE and would replace \
                     the boot device",
                    later.name()
                );
                return Some((index, why));
            }
            (OutOfBandStep::PowerOff, _) => off_since = off_since.or(Some(index)),
            (OutOfBandStep::PowerOn | OutOfBandStep::Reboot, _) => off_since = None,
            _ => {}
        }
    }
    off_since.map(|index| {
        let why =
            "power.power_off leaves the machine off, so the machine cannot be installed: add power.power_on with a lower priority";
        (index, why.to_owned())
    })
}

/// Returns whether two values of a BIOS attribute are equal. Numbers are compared by value, so 1 equals 1.0.
pub fn is_same_value(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use OutOfBandStep::{PowerOff, PowerOn, Reboot, ResetBios};
    use serde_json::json;

    fn parse(name: &str, args: Value) -> Result<OutOfBandStep, String> {
        let problems = |all: Vec<ArgumentProblem>| all.into_iter().map(|(_, why)| why).collect::<Vec<_>>().join("; ");
        OutOfBandStep::parse(name, args.as_object().unwrap()).map_err(problems)
    }

    #[test]
    fn step_arguments_match_those_of_ironic() {
        let settings =
            json!({"settings": [{"name": "ProcVirtualization", "value": "Enabled"}, {"name": "Cores", "value": 4}]});
        let step = parse("bios.apply_configuration", settings.clone()).unwrap();
        let OutOfBandStep::ApplyBios { settings: parsed } = &step else { panic!("{step:?}") };
        assert_eq!(json!(parsed), settings["settings"]);
        assert_eq!(serde_json::from_value::<OutOfBandStep>(json!(step)).unwrap(), step);
        let device = parse("management.set_boot_device", json!({"device": "disk", "persistent": true}));
        assert_eq!(device, Ok(OutOfBandStep::SetBootDevice { device: BootDevice::Disk, persistent: true }));
        for (name, step) in [
            ("bios.factory_reset", ResetBios),
            ("power.power_on", PowerOn),
            ("power.power_off", PowerOff),
            ("power.reboot", Reboot),
        ] {
            assert_eq!((parse(name, json!({})), step.name()), (Ok(step.clone()), name));
        }
    }

    #[test]
    fn invalid_arguments_are_refused() {
        for (name, args, expected) in [
            ("bios.apply_configuration", json!({}), "`settings` is required"),
            ("bios.apply_configuration", json!({"settings": {}}), "`settings` is required"),
            ("bios.apply_configuration", json!({"settings": []}), "must have 1 to 500"),
            ("bios.apply_configuration", json!({"settings": [7]}), "settings[0]: must be an object"),
            ("bios.apply_configuration", json!({"settings": [{"name": "A"}]}), "settings[0]: must be an object"),
            (
                "bios.apply_configuration",
                json!({"settings": [{"name": "A", "value": 1, "x": 1}]}),
                "settings[0]: must be an object",
            ),
            ("bios.apply_configuration", json!({"settings": [{"name": "", "value": 1}]}), "is not the name"),
            ("bios.apply_configuration", json!({"settings": [{"name": "A", "value": null}]}), "must be a string"),
            ("bios.apply_configuration", json!({"settings": [{"name": "A", "value": [1]}]}), "must be a string"),
            (
                "bios.apply_configuration",
                json!({"settings": [{"name": "A", "value": 1}, {"name": "A", "value": 2}]}),
                "settings[1]: \"A\" is listed twice",
            ),
            (
                "bios.apply_configuration",
                json!({"settings": [{"name": "SysPassword", "value": "hunter2"}]}),
                "SysPassword: passwords cannot be verified",
            ),
            ("management.set_boot_device", json!({}), "`device` must be"),
            ("management.set_boot_device", json!({"device": "floppy"}), "`device` must be"),
            ("management.set_boot_device", json!({"device": "pxe", "persistent": "yes"}), "`persistent` must be"),
            ("raid.create_configuration", json!({}), "does not run through"),
        ] {
            let why = parse(name, args.clone()).unwrap_err();
            assert!(why.contains(expected) && !why.contains("hunter2"), "{name} {args}: {why}");
        }
    }

    #[test]
    fn steps_that_power_off_or_change_boot_are_misplaced() {
        let device = || OutOfBandStep::SetBootDevice { device: BootDevice::Disk, persistent: true };
        for (steps, expected) in [
            (vec![], None),
            (vec![ResetBios, device()], None),
            (vec![PowerOff, PowerOn, device()], None),
            (vec![PowerOff, ResetBios, Reboot], None),
            (vec![PowerOff, ResetBios], Some(0)),
            (vec![Reboot, PowerOff], Some(1)),
            (vec![PowerOff, device()], Some(0)),
            (vec![device(), ResetBios], Some(0)),
            (vec![device(), PowerOn], Some(0)),
        ] {
            assert_eq!(find_misplaced_step(&steps).map(|(index, _)| index), expected, "{steps:?}");
        }
        assert!(is_same_value(&json!(1), &json!(1.0)) && !is_same_value(&json!(1), &json!("1")));
    }
}
