//! JSON Schema of a deploy template, `deploy-templates/*.yaml` of `drophammer serve`. It is written by hand, because it
//! follows Ironic's rules instead of Rust types. A test compares it with the parser of templates.

use model::deploy_steps::CATALOG;
use serde_json::{Value, json};

pub(crate) fn template_schema() -> Value {
    let time = json!({"type": ["string", "null"], "description": "Timestamp, set when the template is created or changed through the API."});
    let known: Vec<&str> = CATALOG.iter().filter_map(|entry| Some(entry.name.split_once('.')?.1)).collect();
    let step = json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["interface", "step", "args", "priority"],
        "properties": {
            "interface": {
                "enum": ["vendor", "power", "management", "firmware", "deploy", "bios", "raid"],
                "description": "Interface of the step. drophammer supports the interfaces deploy, raid, bios, management and power.",
            },
            "step": {"type": "string", "minLength": 1, "description": "Name of the step.", "examples": known},
            "args": {"type": "object", "description": "Arguments of the step."},
            "priority": {
                "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9]+$"}],
                "description": "The step with the highest priority runs first; priority 0 disables the step.",
            },
        },
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Deploy template",
        "description": "Deploy template, compatible with Ironic's deploy templates. `drophammer serve` reads deploy templates from the folder deploy-templates/ of its directory.",
        "type": "object",
        "additionalProperties": false,
        "required": ["name", "steps"],
        "properties": {
            "name": {
                "type": "string",
                "maxLength": 255,
                "pattern": "^[A-Z][A-Z0-9_]+$",
                "description": "Name of a trait: CUSTOM_ with capital letters, digits and _, or a trait of os-traits.",
                "examples": ["CUSTOM_BM_CONFIG_RAID_DISK_MIRROR"],
            },
            "steps": {"type": "array", "minItems": 1, "items": step, "description": "Steps that the trait adds or changes."},
            "uuid": {
                "type": ["string", "null"],
                "pattern": "^(-*[0-9a-fA-F]){32}-*$",
                "description": "UUID of the template; derived from the name of the template if absent.",
            },
            "extra": {"type": ["object", "null"], "description": "Arbitrary data of the operator; drophammer stores the data, but does not use it."},
            "description": {"type": ["string", "null"], "maxLength": 255, "description": "Description of the template, which is accepted but not stored."},
            "created_at": time,
            "updated_at": time,
        },
    })
}
