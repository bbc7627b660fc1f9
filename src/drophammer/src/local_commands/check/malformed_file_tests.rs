//! Tests that no message about a malformed file contains the wording of the parser's implementation. Each valid
//! document is changed in all fields, and each changed document is checked as a file of its type.

use super::{DocumentReport, DocumentType, read_layouts};
use crate::local_commands::decode_layouts;
use serde_json::{Value, json};
use std::path::Path;

/// Fragments of error messages of serde and Rust's standard library, and of Rust type names.
const INTERNAL: [&str; 26] = [
    "invalid type",
    "invalid value",
    "invalid length",
    "invalid digit",
    "missing field",
    "duplicate field",
    "unknown variant",
    "expected a ",
    "expected an ",
    "expected one of",
    "expected struct",
    "expected `",
    "elements",
    "struct ",
    "enum ",
    "EOF while",
    "did not match any variant",
    "Value was not",
    "ParseIntError",
    "u64",
    "u32",
    "usize",
    "f64",
    "Option<",
    "Some(",
    "Error(",
];

/// Texts that are not a valid document of any type.
const MALFORMED: [&str; 16] = [
    "[",
    "{",
    "a: [",
    "a: b: c",
    "\t- a",
    "- 1",
    "5",
    "text",
    "a: &x 1\nb: *x\n",
    "a: !tag 1\n",
    "? [a]\n: 1\n",
    "a: 1\na: 2\n",
    "\u{feff}[",
    "a: \"\\q\"",
    "{\"a\": 1,}",
    "{\"a\" 1}",
];

/// Returns a valid file of each type: the path, the type (`None` for a layout), and the document.
fn valid_files() -> Vec<(&'static str, Option<DocumentType>, Value)> {
    let id = "4c4c4544-0051-3010-8052-b4c04f4d3132";
    let allocation = json!({"id": "a", "hostname": "h", "image": "i", "filesystemlayout": "l", "erase": "quick",
        "ssh_pub_keys": [], "requested_traits": ["CUSTOM_A"], "give_up": ["S1"], "finish": "auto",
        "kernel_arguments": ["quiet"], "boot_order": "pxe", "user_data": "#!/bin/sh", "console_password": "p",
        "network": {"version": 2, "ethernets": {"lan0": {"dhcp4": true}}}, "dns_servers": ["192.0.2.53"], "volumes": []});
    let bmc = json!({"url": "https://10.1.0.7", "username": "u", "password": "p", "insecure": true});
    let machine = json!({"id": id, "name": "n", "project": "p", "macs": ["52:54:00:12:34:56"], "smbios_uuid": id,
        "size": "c1", "consoles": ["tty0"], "locked": "why", "bmc": bmc, "traits": ["CUSTOM_A"],
        "networks": [{"networkid": "n"}], "allocation": allocation});
    let partition = json!({"number": 1, "label": "root", "size": 0, "gpttype": "8300"});
    let layout = json!({"id": "l", "description": "d", "constraints": {"sizes": ["c1"], "images": {"debian": "*"}},
        "disks": [{"device": "/dev/sda", "wipeonreinstall": true, "partitions": [partition]}],
        "raid": [], "volumegroups": [], "logicalvolumes": [],
        "filesystems": [{"path": "/", "device": "/dev/sda1", "format": "ext4", "label": "root"}]});
    let volume = json!({"apiVersion": "storage.metalk8s.scality.com/v1alpha1", "kind": "Volume",
        "metadata": {"name": "v", "uid": "1d78810a-3787-4ca4-b712-50a269e42560"},
        "spec": {"nodeName": "h", "storageClassName": "fast", "sparseLoopDevice": {"size": "1Gi"}}});
    let step = json!({"interface": "raid", "step": "apply_configuration", "args": {}, "priority": 10});
    let image = json!({"id": "i", "name": "n", "description": "d", "url": "oci://h/i:1", "mirrors": ["oci://m/i:1"],
        "finish": "auto", "pull_secret": {"username": "u", "password": "p"}});
    let sizes = json!([{"type": "cores", "min": 1, "max": 4}]);
    let oidc = json!({"issuer": "https://id.example.org", "client_id": "c", "user_claim": "upn", "session_hours": 1,
        "scopes": ["groups"], "roles": [{"group": "g", "role": "operator", "projects": ["blue"]}]});
    vec![
        ("machines/m.yaml", Some(DocumentType::Machine), machine),
        ("layouts/l.yaml", None, layout),
        ("images/i.yaml", Some(DocumentType::Image), image),
        (
            "sizes/s.yaml",
            Some(DocumentType::Size),
            json!({"id": "c1", "name": "n", "description": "d", "constraints": sizes}),
        ),
        ("os/o.yaml", Some(DocumentType::OsParameters), json!({"web": ["ns1=192.0.2.53", "-proxy"]})),
        (
            "deploy-templates/t.yaml",
            Some(DocumentType::Template),
            json!({"name": "CUSTOM_A", "steps": [step], "extra": {}}),
        ),
        ("volumes.yaml", Some(DocumentType::Volumes), volume),
        ("oidc.yaml", Some(DocumentType::Oidc), oidc),
        ("image-states.yaml", Some(DocumentType::ImageStates), json!({"hidden": ["a"], "blacklisted": ["b"]})),
        ("registries.json", Some(DocumentType::Registries), json!({"auths": {"r.example": {"auth": "dTpw"}}})),
    ]
}

/// Returns the document with each field replaced by a value of each other type, removed, or misspelled.
fn change_everywhere(document: &Value) -> Vec<Value> {
    let others = [
        json!(5),
        json!(-1),
        json!(1.5),
        json!(1e300),
        json!(u64::MAX),
        json!(true),
        json!("text"),
        json!(""),
        json!([]),
        json!([1]),
        json!([[]]),
        json!({}),
        json!({"a": {"b": 1}}),
        Value::Null,
    ];
    let mut changed: Vec<Value> = others.to_vec();
    match document {
        Value::Object(fields) => {
            for (name, value) in fields {
                for inner in change_everywhere(value) {
                    let mut copy = fields.clone();
                    copy.insert(name.clone(), inner);
                    changed.push(copy.into());
                }
                let mut copy = fields.clone();
                let value = copy.remove(name).unwrap_or_default();
                changed.push(copy.clone().into());
                copy.insert(format!("{name}x"), value);
                changed.push(copy.into());
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                for inner in change_everywhere(item) {
                    let mut copy = items.clone();
                    copy[index] = inner;
                    changed.push(copy.into());
                }
            }
        }
        _ => {}
    }
    changed
}

/// Returns the messages about a file, as `drophammer check` prints them.
fn messages(path: &Path, document_type: Option<DocumentType>, text: &str) -> Vec<String> {
    let problems = match (decode_layouts(path, text.as_bytes()), document_type) {
        (Err(problems), _) => problems,
        (Ok(text), Some(document_type)) => document_type.find_problems(path, &text, None),
        (Ok(text), None) => read_layouts(&text).into_iter().filter_map(Result::err).flatten().collect(),
    };
    problems.iter().map(|problem| problem.to_coded_text()).collect()
}

/// Returns the messages that contain wording of the Rust deserializer (`INTERNAL`), each followed by the text of the
/// checked file.
fn find_internal_words(messages: Vec<String>, text: &str) -> Vec<String> {
    let is_internal = |message: &String| INTERNAL.iter().any(|words| message.contains(words));
    messages.into_iter().filter(is_internal).map(|message| format!("{message}\n    {text}")).collect()
}

#[test]
fn no_message_about_a_changed_file_has_internal_words() {
    let dir = tempfile::tempdir().unwrap();
    let mut internal = Vec::new();
    for (name, document_type, document) in valid_files() {
        let path = dir.path().join(name);
        let text = document.to_string();
        assert_eq!(messages(&path, document_type, &text), [""; 0], "{name}");
        assert_eq!(DocumentType::recognize(&path, &text), document_type, "{name}");
        let mut invalid = 0;
        for changed in change_everywhere(&document) {
            let text = changed.to_string();
            let said = messages(&path, document_type, &text);
            invalid += usize::from(!said.is_empty());
            internal.extend(find_internal_words(said, &text));
        }
        assert!(invalid >= 10, "{name}: {invalid}");
        for text in MALFORMED {
            internal.extend(find_internal_words(messages(&path, document_type, text), text));
        }
    }
    assert!(internal.is_empty(), "{}", internal.join("\n"));
}

#[test]
fn a_file_is_checked_as_its_own_type() {
    let dir = tempfile::tempdir().unwrap();
    for (name, document_type, document) in valid_files() {
        let report = DocumentReport::check_text(&dir.path().join("file.yaml"), &document.to_string(), None);
        let found = report.as_ref().map(|report| report.document_type);
        // The fields alone determine the type, without the folder and the name of the file.
        assert_eq!(found, document_type, "{name}");
        assert!(report.is_none_or(|report| report.valid), "{name}");
    }
}
