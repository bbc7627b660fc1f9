//! Conversion of a node and a deploy step's arguments to a layout and an allocation.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::diagnostic::{self, Diagnostic};
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use common::type_errors::reword_type_error;
use model::allocation::{AllocatedImage, Allocation, BootOrder};
use model::deploy_steps::EraseMode;
use model::ironic_raid::{self, RaidConfig};
use model::layout::{self, Layout};
use serde_json::{Map, Value, json};
use uuid::Uuid;

/// Supported fields of the argument `image`.
const IMAGE_FIELDS: [&str; 6] = ["url", "id", "digest", "mirrors", "finish", "pull_secrets"];

/// Placeholder that a conductor sends instead of secret values.
const MASKED: &str = "******";

/// Ironic's data about the node, which the conductor sends with each step.
pub(crate) struct IronicNode<'a>(pub &'a Map<String, Value>);

/// Requested operation: installation or reinstall.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestedMode {
    Install,
    Reinstall {
        without_marker: bool,
        /// UUIDs of the preserved LUKS containers that may stay locked.
        leave_locked: Vec<String>,
    },
    /// No operation is specified: the contents of the disks determine whether the machine is installed or reinstalled.
    Unspecified,
}

impl IronicNode<'_> {
    pub(crate) fn uuid(&self) -> &str {
        self.0.get("uuid").and_then(Value::as_str).unwrap_or_default()
    }

    pub(crate) fn name(&self) -> &str {
        self.0.get("name").and_then(Value::as_str).unwrap_or_default()
    }

    /// Returns the arrays that `raid.create_configuration` creates during cleaning: the arrays that the conductor has
    /// selected for this cleaning, or else all arrays of the node's `target_raid_config`.
    ///
    /// # Errors
    /// Fails if the node has no configuration.
    pub(crate) fn target_raid_config(&self) -> Result<&Value> {
        let chosen = self.0.get("driver_internal_info").and_then(|internal| internal.get("target_raid_config"));
        let is_there = |config: &&Value| config.as_object().is_some_and(|config| !config.is_empty());
        let found = chosen.filter(is_there).or(self.0.get("target_raid_config").filter(is_there));
        found.ok_or_else(|| plan_refusal("the node lacks a target_raid_config"))
    }

    /// Returns the hints for the root disk. Hints of the instance take precedence over hints of the machine.
    pub(crate) fn root_device(&self) -> Option<&Map<String, Value>> {
        let of_machine = || self.0.get("properties")?.get("root_device");
        self.instance_info("root_device").or_else(of_machine)?.as_object().filter(|hints| !hints.is_empty())
    }

    fn instance_info(&self, word: &str) -> Option<&Value> {
        self.0.get("instance_info")?.get(word).filter(|value| !value.is_null())
    }
}

/// Parses the argument `layout`.
///
/// # Errors
/// Returns all problems in one error.
pub(crate) fn parse_layout(args: &Map<String, Value>) -> Result<Layout> {
    let Some(document) = args.get("layout") else {
        return Err(Error::refusal(Phase::Layout, "the step requires the argument `layout`; nothing was written")
            .with_code(ErrorCode::DeployArguments));
    };
    layout::read_json(document).map(|parsed| parsed.layout).map_err(|problems| {
        let reasons = diagnostic::summarize_problems(&problems);
        Error::refusal(Phase::Layout, format!("invalid layout: {reasons}; nothing was written"))
            .with_code(ErrorCode::DeployArguments)
    })
}

/// Parses the arrays in the arguments of a step.
///
/// # Errors
/// Returns all problems in one error.
pub(crate) fn parse_arrays(step: &str, args: &Map<String, Value>) -> Result<RaidConfig> {
    ironic_raid::read_step_arrays(step, args).map_err(|problems| {
        let reasons = diagnostic::summarize_problems(&problems);
        Error::refusal(Phase::Plan, format!("invalid arrays: {reasons}; nothing was written"))
            .with_code(ErrorCode::DeployArguments)
    })
}

/// Parses the arguments `mode`, `without_marker` and `leave_locked`.
///
/// # Errors
/// Fails if one of the arguments is invalid, or if they contradict each other.
pub(crate) fn parse_mode(args: &Map<String, Value>) -> Result<RequestedMode> {
    let (without_marker, leave_locked) = (parse_flag(args, "without_marker")?, parse_containers(args)?);
    let is_overridden = without_marker || !leave_locked.is_empty();
    match args.get("mode").map(|mode| mode.as_str()) {
        None if !is_overridden => Ok(RequestedMode::Unspecified),
        Some(Some("install")) if !is_overridden => Ok(RequestedMode::Install),
        Some(Some("reinstall")) => Ok(RequestedMode::Reinstall { without_marker, leave_locked }),
        None | Some(Some("install")) => {
            Err(plan_refusal("the arguments `without_marker` and `leave_locked` require `mode: reinstall`"))
        }
        Some(_) => Err(plan_refusal("the argument `mode` must be `install` or `reinstall`")),
    }
}

/// Parses the optional argument `leave_locked`.
fn parse_containers(args: &Map<String, Value>) -> Result<Vec<String>> {
    let listed = match args.get("leave_locked") {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(Value::Array(listed)) => listed.iter().map(|uuid| Uuid::parse_str(uuid.as_str()?).ok()).collect(),
        Some(_) => None,
    };
    let listed: Vec<Uuid> =
        listed.ok_or_else(|| plan_refusal("leave_locked must be a list of UUIDs of LUKS containers"))?;
    Ok(listed.iter().map(Uuid::to_string).collect())
}

/// Parses an optional boolean argument.
///
/// # Errors
/// Fails if the value is not a boolean.
pub(crate) fn parse_flag(args: &Map<String, Value>, name: &str) -> Result<bool> {
    match args.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(_) => Err(plan_refusal(&format!("{name} must be true or false"))),
    }
}

/// Creates the allocation from the node and the arguments. If neither the node nor the arguments specify an image, the
/// image of the allocation is empty.
///
/// # Errors
/// Returns all problems in one error.
pub(crate) fn build_allocation(node: &IronicNode, args: &Map<String, Value>) -> Result<Allocation> {
    let mut problems = Vec::new();
    let mut note = |problem: Diagnostic| problems.push(problem);
    let image = choose_image(node, args).unwrap_or_else(|problem| {
        note(problem);
        None
    });
    let erase = args.get("erase").map_or(Ok(EraseMode::default()), |erase| serde_json::from_value(erase.clone()));
    let erase = erase.unwrap_or_else(|_| {
        note(Diagnostic::new("erase", "must be `quick`, `secure` or `none`"));
        EraseMode::default()
    });
    let drive = read_config_drive(node).unwrap_or_else(|problem| {
        note(problem);
        Value::Null
    });
    let hostname = drive["meta_data"]["hostname"].as_str().or(drive["meta_data"]["name"].as_str());
    let display = node.instance_info("display_name").and_then(Value::as_str);
    let hostname = hostname.or(display).filter(|name| !name.is_empty()).unwrap_or(node.name());
    let links = &drive["network_data"]["links"];
    if links.as_array().is_some_and(|links| !links.is_empty()) {
        note(Diagnostic::new(
            "configdrive.network_data",
            "network_data has a format that is not supported; remove network_data, and configure the network of the image by user_data or DHCP",
        ));
    }
    if !problems.is_empty() {
        let reasons = diagnostic::summarize_problems(&problems);
        return Err(Error::refusal(Phase::Plan, format!("the step cannot be planned: {reasons}; nothing was written"))
            .with_code(ErrorCode::DeployArguments));
    }
    Ok(Allocation {
        id: Uuid::new_v4().to_string(),
        hostname: hostname.to_owned(),
        role: "machine".to_owned(),
        image: image.unwrap_or_default(),
        filesystemlayout: args.get("layout").cloned().unwrap_or_default(),
        ssh_pub_keys: read_public_keys(&drive["meta_data"]["public_keys"]),
        user_data: encode_user_data(&drive["user_data"]),
        erase,
        // The disk is first in the boot order, as with Ironic's own agent. A network entry is not required, because the
        // conductor sets the boot device before it switches the power on.
        boot_order: BootOrder::Disk,
        ..Allocation::default()
    })
}

/// Returns the image from the arguments, or else from the node.
///
/// # Errors
/// Fails if the image is invalid.
pub(crate) fn choose_image(node: &IronicNode, args: &Map<String, Value>) -> Result<Option<AllocatedImage>, Diagnostic> {
    let bad = |why: String| Diagnostic::new("image", why);
    let words = match args.get("image") {
        Some(Value::String(url)) => json!({ "url": url }),
        Some(Value::Object(words)) => {
            // Unknown fields are refused: if `digest` was misspelled, the image would not be verified.
            if let Some(other) = words.keys().find(|word| !IMAGE_FIELDS.contains(&word.as_str())) {
                return Err(bad(format!(
                    "unknown field `{other}`; supported fields: {known_fields}",
                    known_fields = IMAGE_FIELDS.join(", ")
                )));
            }
            Value::Object(words.clone())
        }
        Some(Value::Null) | None => match image_of_node(node) {
            Some(words) => words,
            None => return Ok(None),
        },
        Some(_) => return Err(bad("must be a URL, or an object with a URL".to_owned())),
    };
    let Some(url) = words["url"].as_str().filter(|url| url.contains("://")) else {
        return Err(bad(format!(
            "`url` must begin with http://, https://, oci:// or file:///, found {url}",
            url = words["url"]
        )));
    };
    let mut words = words.clone();
    if words["id"].as_str().is_none_or(str::is_empty) {
        words["id"] = json!(image_name(url));
    }
    serde_json::from_value(words).map(Some).map_err(|error| bad(reword_type_error(&error.to_string())))
}

fn image_of_node(node: &IronicNode) -> Option<Value> {
    let url = node.instance_info("image_source")?;
    let text = |word: &str| {
        node.instance_info(word).and_then(Value::as_str).filter(|text| !text.is_empty() && *text != MASKED)
    };
    let digest = text("image_os_hash_algo").zip(text("image_os_hash_value"));
    let digest = digest.map(|(algorithm, value)| format!("{algorithm}:{value}"));
    Some(json!({ "url": url, "digest": digest }))
}

/// Returns the name of the image at a URL: `debian-12.0.20261101` for `http://h/debian-12.0.20261101.tar.zst?x`.
pub(crate) fn image_name(url: &str) -> String {
    let path = url.split(['?', '#']).next().unwrap_or(url);
    let mut name = path.rsplit('/').next().unwrap_or(path);
    for ending in [".zst", ".lz4", ".xz", ".gz", ".tar", ".tgz", ".raw", ".img", ".qcow2"] {
        name = name.strip_suffix(ending).unwrap_or(name);
    }
    name.to_owned()
}

/// Returns the config drive of the node.
///
/// # Errors
/// Fails if the config drive is an image, which would require a separate partition.
fn read_config_drive(node: &IronicNode) -> Result<Value, Diagnostic> {
    match node.instance_info("configdrive") {
        None => Ok(Value::Null),
        Some(drive @ Value::Object(_)) => Ok(drive.clone()),
        Some(_) => {
            let why = "a config drive in the form of an image is not supported, because the layout does not contain a partition for it; specify the config drive as JSON (meta_data, user_data)";
            Err(Diagnostic::new("configdrive", why))
        }
    }
}

/// Returns the keys of a list, or the values of an object.
fn read_public_keys(keys: &Value) -> Vec<String> {
    let all: Vec<&Value> = match keys {
        Value::Array(keys) => keys.iter().collect(),
        Value::Object(keys) => keys.values().collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    };
    let text = |key: &Value| Some(key.as_str()?.trim().to_owned()).filter(|key| !key.is_empty());
    all.into_iter().filter_map(text).collect()
}

/// Encodes user data in base64. User data that is not a string is first serialized as JSON.
fn encode_user_data(data: &Value) -> String {
    match data {
        Value::Null => String::new(),
        Value::String(text) => STANDARD.encode(text),
        other => STANDARD.encode(other.to_string()),
    }
}

pub(crate) fn plan_refusal(why: &str) -> Error {
    Error::refusal(Phase::Plan, format!("the step cannot be planned: {why}; nothing was written"))
        .with_code(ErrorCode::DeployArguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    /// Returns a node as the deploy interface `custom-agent` sends it (`execute_deploy_step`).
    fn node() -> Map<String, Value> {
        map(json!({"uuid": "bc495481", "name": "n2", "properties": {}, "instance_info": {
            "image_source": "http://127.0.0.1:8300/debian-12.0.20261101.tar.zst",
            "image_os_hash_algo": "sha256", "image_os_hash_value": "bf063e", "image_url": "******",
            "configdrive": {"meta_data": {"hostname": "m1", "public_keys": {"mine": "ssh-ed25519 AAAA me\n"}},
                "user_data": "#cloud-config\n", "network_data": {"links": []}}}}))
    }

    #[test]
    fn allocation_is_built_from_the_node() {
        let node = node();
        let allocation = build_allocation(&IronicNode(&node), &map(json!({"erase": "secure"}))).unwrap();
        assert_eq!((allocation.hostname.as_str(), allocation.erase), ("m1", EraseMode::Secure));
        assert_eq!(allocation.image.id, "debian-12.0.20261101");
        assert_eq!(allocation.image.digest.as_deref(), Some("sha256:bf063e"));
        assert_eq!(allocation.ssh_pub_keys, ["ssh-ed25519 AAAA me"]);
        assert_eq!(STANDARD.decode(allocation.user_data).unwrap(), b"#cloud-config\n");
        assert!(!allocation.reinstall && Uuid::parse_str(&allocation.id).is_ok());
    }

    #[test]
    fn arguments_take_precedence_over_the_node() {
        let node = node();
        let of = |image: Value| super::choose_image(&IronicNode(&node), &map(json!({ "image": image })));
        let given = of(json!("http://h/x.raw.zst")).unwrap().unwrap();
        assert_eq!((given.id.as_str(), given.url.as_str(), given.digest), ("x", "http://h/x.raw.zst", None));
        let given =
            of(json!({"url": "oci://r/x:1", "id": "x-1", "digest": "sha256:7", "finish": "none"})).unwrap().unwrap();
        assert_eq!((given.id.as_str(), given.digest.as_deref()), ("x-1", Some("sha256:7")));
        for (image, why) in [
            (json!(7), "must be a URL"),
            (json!({"url": "5f0c-glance"}), "`url` must begin"),
            (json!({"url": "http://h/x", "digset": "sha256:7"}), "unknown field `digset`"),
            (json!({"url": "http://h/x", "mirrors": 7}), "must be a list"),
        ] {
            let problem = of(image.clone()).unwrap_err().to_string();
            assert!(problem.contains(why), "{image}: {problem}");
        }
        assert_eq!(super::choose_image(&IronicNode(&Map::new()), &Map::new()).unwrap(), None);
    }

    #[test]
    fn refuses_unsupported_node_settings_with_all_reasons() {
        let node = map(json!({"uuid": "u", "instance_info": {"configdrive": "H4sIA", "image_source": "glance"}}));
        let error = build_allocation(&IronicNode(&node), &map(json!({"erase": 3}))).unwrap_err();
        let text = error.to_string();
        for word in ["image: `url`", "erase: ", "configdrive: ", "nothing was written"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert!(error.is_refusal());
        let node = map(json!({"instance_info": {"configdrive": {"network_data": {"links": [{"id": "a"}]}}}}));
        assert!(build_allocation(&IronicNode(&node), &Map::new()).unwrap_err().to_string().contains("network_data"));
    }

    #[test]
    fn install_mode_is_parsed_from_the_arguments() {
        let reinstall = |without_marker: bool, leave_locked: &[&str]| RequestedMode::Reinstall {
            without_marker,
            leave_locked: leave_locked.iter().map(|uuid| (*uuid).to_owned()).collect(),
        };
        let uuid = "5b9e2c74-1f0a-4c3b-9d52-7a1f0c3b9d52";
        for (args, expected) in [
            (json!({}), RequestedMode::Unspecified),
            (json!({"mode": "install", "leave_locked": []}), RequestedMode::Install),
            (json!({"mode": "reinstall"}), reinstall(false, &[])),
            (json!({"mode": "reinstall", "without_marker": true}), reinstall(true, &[])),
            (json!({"mode": "reinstall", "leave_locked": [uuid.to_uppercase()]}), reinstall(false, &[uuid])),
        ] {
            assert_eq!(parse_mode(&map(args)).unwrap(), expected);
        }
        for args in [
            json!({"mode": "keep"}),
            json!({"mode": 1}),
            json!({"without_marker": true}),
            json!({"without_marker": "yes"}),
            json!({"leave_locked": [uuid]}),
            json!({"mode": "install", "leave_locked": [uuid]}),
            json!({"mode": "reinstall", "leave_locked": uuid}),
            json!({"mode": "reinstall", "leave_locked": ["/dev/sdb1"]}),
        ] {
            assert!(parse_mode(&map(args.clone())).is_err(), "{args}");
        }
    }

    #[test]
    fn layout_of_a_template_is_parsed_in_any_spelling() {
        let layout = super::parse_layout(&map(json!({"layout": {
            "id": "default",
            "disks": [{"device": "/dev/sda", "wipe": true, "partitions": [{"number": 1, "size": "500", "gpttype": "ef00"}]}],
            "filesystems": [{"path": "/", "device": "/dev/sda1", "format": "ext4"}],
        }})));
        assert_eq!(layout.unwrap().disks.len(), 1);
        let error = super::parse_layout(&map(json!({"layout": {"id": "x", "disks": []}}))).unwrap_err().to_string();
        assert!(error.contains("nothing was written"), "{error}");
        assert!(super::parse_layout(&Map::new()).unwrap_err().is_refusal());
    }
}
