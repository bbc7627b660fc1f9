//! The schema of a deploy template, `deploy-templates/*.yaml` of `drophammer serve`; written here because Ironic's rules are, and not our
//! types. A test compares it with the reader.

use crate::steps::CATALOGUE;
use serde_json::{Value, json};

pub fn schema() -> Value {
    let time =
        json!({"type": ["string", "null"], "description": "Written by the calls that make and change templates."});
    let known: Vec<&str> = CATALOGUE.iter().filter_map(|entry| Some(entry.name.split_once('.')?.1)).collect();
    let step = json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["interface", "step", "args", "priority"],
        "properties": {
            "interface": {
                "enum": ["vendor", "power", "management", "firmware", "deploy", "bios", "raid"],
                "description": "What the step is a part of. drophammer has steps of deploy and raid.",
            },
            "step": {"type": "string", "minLength": 1, "description": "Name of the step.", "examples": known},
            "args": {"type": "object", "description": "What the step is told."},
            "priority": {
                "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9]+$"}],
                "description": "The highest runs first; 0 disables the step.",
            },
        },
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Deploy template",
        "description": "A file of deploy-templates/, as `drophammer serve` reads it, and a template of Ironic.",
        "type": "object",
        "additionalProperties": false,
        "required": ["name", "steps"],
        "properties": {
            "name": {
                "type": "string",
                "maxLength": 255,
                "pattern": "^[A-Z][A-Z0-9_]+$",
                "description": "A trait: CUSTOM_ with capital letters, digits and _, or one of os-traits.",
                "examples": ["CUSTOM_BM_CONFIG_RAID_DISK_MIRROR"],
            },
            "steps": {"type": "array", "minItems": 1, "items": step, "description": "What a machine gets with the trait."},
            "uuid": {
                "type": ["string", "null"],
                "pattern": "^(-*[0-9a-fA-F]){32}-*$",
                "description": "Without one, it is made of the name.",
            },
            "extra": {"type": ["object", "null"], "description": "For you."},
            "description": {"type": ["string", "null"], "maxLength": 255, "description": "Taken, and not kept."},
            "created_at": time,
            "updated_at": time,
        },
    })
}
