//! Secrets in JSON documents. In responses to viewers and in the audit log, the values of secret fields are replaced.

use common::format::without_secrets;
use linux::process::without_program_output;
use serde_json::Value;

/// Replacement of a secret text.
pub const HIDDEN: &str = "(hidden)";

/// Substrings that occur in the names of secret fields, in lower case.
const SECRET_PARTS: [&str; 6] = ["password", "passphrase", "secret", "token", "private", "credential"];

/// Names of further fields that contain secrets, or can contain them.
const SECRET_FIELDS: [&str; 9] =
    ["userdata", "user_data", "disk_key", "vpn", "args", "auth", "auth_key", "os_parameters", "parameters"];

/// Names of the fields that contain messages of machines. For example, `reason` is the reason why a member of a
/// rollout has failed. A message can quote the output of an image's installer, which may contain passwords.
const MESSAGE_FIELDS: [&str; 5] = ["message", "reason", "withheld", "from_says", "to_says"];

fn is_secret_field(name: &str) -> bool {
    let name = name.to_lowercase();
    SECRET_FIELDS.contains(&name.as_str()) || SECRET_PARTS.iter().any(|part| name.contains(part))
}

/// Replaces the values of all secret fields, and masks the secrets of URLs in all other strings. Empty values are not
/// replaced, and lists and objects keep their structure.
pub fn hide_secrets(document: &mut Value) {
    match document {
        Value::Object(fields) => fields.iter_mut().for_each(|(name, value)| match is_secret_field(name) {
            true => hide_value(value),
            false => hide_secrets(value),
        }),
        Value::Array(items) => items.iter_mut().for_each(hide_secrets),
        Value::String(text) if text.contains("://") => *text = without_secrets(text),
        _ => {}
    }
}

/// Removes the quoted output of programs from all messages of machines in a document, and the reasons from the errors
/// of machine files.
pub fn hide_program_output(document: &mut Value) {
    match document {
        Value::Object(fields) => fields.iter_mut().for_each(|(name, value)| match value {
            Value::String(text) if MESSAGE_FIELDS.contains(&name.as_str()) => {
                *text = without_program_output(text).to_owned();
            }
            Value::String(text) if name == "file_error" => *text = hide_problem_reasons(text),
            value => hide_program_output(value),
        }),
        Value::Array(items) => items.iter_mut().for_each(hide_program_output),
        _ => {}
    }
}

/// Replaces the reason in each line of a problem by a fixed text and the error code, because a reason can quote a
/// secret from a file, or the output of a `verify` program.
pub fn hide_problem_reasons(problem: &str) -> String {
    let shorten = |line: &str| {
        let position = line.split_once(": ").map_or("the server's directory", |(position, _)| position);
        let code = line.rsplit_once(" (DH-").map(|(_, code)| format!(" (DH-{code}")).unwrap_or_default();
        format!("{position}: only operators can read this problem{code}")
    };
    problem.lines().map(shorten).collect::<Vec<_>>().join("\n")
}

/// Replaces the secrets in a value. `path` is the path of the value in its document, such as `/allocation/user_data`.
pub fn hide_secrets_at(path: &str, value: &mut Value) {
    match path.split('/').any(is_secret_field) {
        true => hide_value(value),
        false => hide_secrets(value),
    }
}

/// Replaces all texts and numbers in a value. Empty texts are not replaced, and lists and objects keep their structure.
pub fn hide_value(value: &mut Value) {
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
    fn only_secrets_are_replaced_at_every_depth() {
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
    #[test]
    fn secrets_in_urls_are_masked_at_every_depth() {
        let mut document = json!({"url": "https://me:pw@h/i.tar?token=t&a=b", "mirrors": ["http://h/i?X-Amz-Signature=s", "plain"],
            "message": "fetch http://u:p@h/i: refused"});
        hide_secrets(&mut document);
        let masked = json!({"url": "https://…@h/i.tar?token=…&a=b", "mirrors": ["http://h/i?X-Amz-Signature=…", "plain"],
            "message": "fetch http://…@h/i: refused"});
        assert_eq!(document, masked);
        let mut value = json!("oci://u:p@r/os");
        hide_secrets_at("/url", &mut value);
        assert_eq!(value, json!("oci://…@r/os"));
    }

    #[test]
    fn program_output_is_removed_from_messages_only() {
        let mut document = json!([{"message": "x: `sh` exited with 1: hunter2", "failure": {"message": "no\nhunter2"},
            "plan": "line\nline", "message_count": "a\nb", "from_says": "a\nhunter2", "message2": null,
            "members": [{"state": "failed", "reason": "x: `sh` exited with 1: hunter2"}]}]);
        hide_program_output(&mut document);
        let expected = json!([{"message": "x: `sh` exited with 1", "failure": {"message": "no"}, "plan": "line\nline",
            "message_count": "a\nb", "from_says": "a", "message2": null,
            "members": [{"state": "failed", "reason": "x: `sh` exited with 1"}]}]);
        assert_eq!(document, expected);
    }

    #[test]
    fn problems_without_reasons_have_positions_and_codes() {
        for (problem, expected) in [
            (
                "./m.yaml:3:95: must be a list, but is the text \"hunter2\" (DH-705)\n./m.yaml:4:1: hunter2",
                "./m.yaml:3:95: only operators can read this problem (DH-705)\n./m.yaml:4:1: only operators can read \
                this problem",
            ),
            ("hunter2", "the server's directory: only operators can read this problem"),
            ("", ""),
        ] {
            assert_eq!(hide_problem_reasons(problem), expected);
        }
    }
}
