//! Secrets in JSON documents. Responses to viewers and entries of the audit log contain the fields, but not the values.

use serde_json::Value;

/// Replacement of a secret text.
pub const HIDDEN: &str = "(hidden)";

/// Parts of the names of fields that contain secrets, in lower case.
const SECRET_PARTS: [&str; 6] = ["password", "passphrase", "secret", "token", "private", "credential"];

/// Names of further fields that contain secrets, or can contain them.
const SECRET_FIELDS: [&str; 9] =
    ["userdata", "user_data", "disk_key", "vpn", "args", "auth", "auth_key", "os_parameters", "parameters"];

fn is_secret_field(name: &str) -> bool {
    let name = name.to_lowercase();
    SECRET_FIELDS.contains(&name.as_str()) || SECRET_PARTS.iter().any(|part| name.contains(part))
}

/// Replaces the values of all fields that contain secrets. Empty values remain, and lists and objects keep their form.
pub fn hide_secrets(document: &mut Value) {
    match document {
        Value::Object(fields) => fields.iter_mut().for_each(|(name, value)| match is_secret_field(name) {
            true => hide_value(value),
            false => hide_secrets(value),
        }),
        Value::Array(items) => items.iter_mut().for_each(hide_secrets),
        _ => {}
    }
}

/// Replaces the secrets in a value that is at this path in its document, such as `/allocation/user_data`.
pub fn hide_secrets_at(path: &str, value: &mut Value) {
    match path.split('/').any(is_secret_field) {
        true => hide_value(value),
        false => hide_secrets(value),
    }
}

fn hide_value(value: &mut Value) {
    match value {
        Value::String(text) if !text.is_empty() => *text = HIDDEN.to_owned(),
        Value::Object(fields) => fields.values_mut().for_each(hide_value),
        Value::Array(items) => items.iter_mut().for_each(hide_value),
        Value::Number(_) => *value = Value::Null,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn secrets_are_replaced_at_every_depth_and_nothing_else_is() {
        let mut document = json!({
            "id": "a", "allocation": {"userdata": "#!/bin/sh", "console_password": "p", "ssh_pub_keys": ["ssh-ed25519 A"],
                "vpn": {"auth_key": "k", "port": 7}},
            "bmc": {"address": "redfish://10.0.0.9", "username": "u", "password": "w"},
            "steps": [{"interface": "deploy", "args": {"settings": [{"name": "x", "value": 1}]}}],
            "pull_secrets": [{"registry": "r", "identitytoken": ""}], "user_data": ""});
        hide_secrets(&mut document);
        assert_eq!(
            document,
            json!({
                "id": "a", "allocation": {"userdata": HIDDEN, "console_password": HIDDEN, "ssh_pub_keys": ["ssh-ed25519 A"],
                    "vpn": {"auth_key": HIDDEN, "port": null}},
                "bmc": {"address": "redfish://10.0.0.9", "username": "u", "password": HIDDEN},
                "steps": [{"interface": "deploy", "args": {"settings": [{"name": HIDDEN, "value": null}]}}],
                "pull_secrets": [{"registry": HIDDEN, "identitytoken": ""}], "user_data": ""})
        );
    }
}
