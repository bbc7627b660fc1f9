//! Validation of a template's fields, with the restrictions of Ironic.

use crate::deploy_steps::traits;
use common::diagnostic::{Diagnostic, child_path};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Field that a template file may contain, but that clients of the API cannot set.
pub(super) const CREATED: &str = "created_at";
pub(super) const UPDATED: &str = "updated_at";

const TEMPLATE_FIELDS: [&str; 5] = ["uuid", "name", "steps", "extra", "description"];
const STEP_FIELDS: [&str; 4] = ["interface", "step", "args", "priority"];
const INTERFACES: [&str; 7] = ["vendor", "power", "management", "firmware", "deploy", "bios", "raid"];
const LONGEST_DESCRIPTION: usize = 255;

/// Returns all problems of a template. Fields in `more` are allowed in addition to those that clients can set.
pub fn check_template(document: &Value, more: &[&str]) -> Vec<Diagnostic> {
    let Some(fields) = document.as_object() else {
        return vec![Diagnostic::new(
            "",
            format!("a template must be a JSON object, found {actual}", actual = type_name(document)),
        )];
    };
    let mut found = ProblemList::default();
    let known: Vec<&str> = TEMPLATE_FIELDS.iter().chain(more).copied().collect();
    found.check_unknown("", fields, &known);
    found.check_missing("", fields, &["name", "steps"]);
    for (name, value) in fields {
        match (name.as_str(), value) {
            ("name", Value::String(text)) => found.add_optional(name, traits::check_trait(text)),
            ("steps", Value::Array(steps)) => found.check_steps(steps),
            ("uuid", Value::String(text)) if !is_uuid(text) => {
                found.add_problem(name, format!("{text:?} is not a UUID"))
            }
            ("description", Value::String(text)) if text.chars().count() > LONGEST_DESCRIPTION => {
                found.add_problem(name, format!("a description can have at most {LONGEST_DESCRIPTION} characters"));
            }
            ("uuid" | "description" | CREATED | UPDATED, Value::String(_) | Value::Null)
            | ("extra", Value::Object(_) | Value::Null) => {}
            ("name" | "uuid" | "description" | CREATED | UPDATED, other) => {
                found.add_type_problem(name, "a text", other)
            }
            ("steps", other) => found.add_type_problem(name, "a list", other),
            ("extra", other) => found.add_type_problem(name, "an object", other),
            _ => {}
        }
    }
    found.0
}

#[derive(Default)]
struct ProblemList(Vec<Diagnostic>);

impl ProblemList {
    fn add_problem(&mut self, place: &str, message: impl Into<String>) {
        self.0.push(Diagnostic::new(place, message));
    }

    fn add_optional(&mut self, place: &str, message: Option<String>) {
        self.0.extend(message.map(|message| Diagnostic::new(place, message)));
    }

    fn add_type_problem(&mut self, place: &str, wanted: &str, found: &Value) {
        self.add_problem(place, format!("must be {wanted}, found {actual}", actual = type_name(found)));
    }

    fn check_unknown(&mut self, place: &str, fields: &Map<String, Value>, known: &[&str]) {
        for name in fields.keys().filter(|name| !known.contains(&name.as_str())) {
            self.add_problem(
                &child_path(place, name),
                format!("unknown field {name:?}; supported fields: {known_fields}", known_fields = known.join(", ")),
            );
        }
    }

    fn check_missing(&mut self, place: &str, fields: &Map<String, Value>, needed: &[&str]) {
        for name in needed.iter().filter(|name| !fields.contains_key(**name)) {
            self.add_problem(place, format!("{name} is missing"));
        }
    }

    fn check_steps(&mut self, steps: &[Value]) {
        if steps.is_empty() {
            self.add_problem("steps", "a template must have at least one step");
        }
        let mut seen = BTreeSet::new();
        for (index, step) in steps.iter().enumerate() {
            let place = format!("steps[{index}]");
            let Some(fields) = step.as_object() else {
                self.add_type_problem(&place, "an object", step);
                continue;
            };
            self.check_step(&place, fields);
            let text = |name: &str| fields.get(name).and_then(Value::as_str);
            if let (Some(interface), Some(step)) = (text("interface"), text("step"))
                && !seen.insert((interface, step))
            {
                self.add_problem(
                    &place,
                    format!("duplicate step {interface}.{step}: a template can list each step only once"),
                );
            }
        }
    }

    fn check_step(&mut self, place: &str, fields: &Map<String, Value>) {
        self.check_unknown(place, fields, &STEP_FIELDS);
        self.check_missing(place, fields, &STEP_FIELDS);
        for (name, value) in fields {
            let at = child_path(place, name);
            match (name.as_str(), value) {
                ("interface", Value::String(text)) if INTERFACES.contains(&text.as_str()) => {}
                ("interface", other) => self.add_problem(
                    &at,
                    format!("must be one of {interfaces}, found {other}", interfaces = INTERFACES.join(", ")),
                ),
                ("step", Value::String(text)) if text.is_empty() => {
                    self.add_problem(&at, "the name of a step must not be empty")
                }
                ("step", Value::String(_)) | ("args", Value::Object(_)) => {}
                ("step", other) => self.add_type_problem(&at, "a text", other),
                ("args", other) => self.add_type_problem(&at, "an object", other),
                ("priority", value) if parse_priority(value).is_none() => {
                    self.add_problem(&at, format!("must be a nonnegative whole number, found {value}"));
                }
                _ => {}
            }
        }
    }
}

/// Parses a priority: a string of digits, or an integer as defined by JSON Schema, which also includes 1.0. A number
/// that does not fit in 32 bits is replaced with the largest priority.
pub(crate) fn parse_priority(value: &Value) -> Option<u32> {
    match value {
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(whole), _) => Some(u32::try_from(whole).unwrap_or(u32::MAX)),
            (None, Some(float)) if float >= 0.0 && float.fract() == 0.0 => Some(float as u32),
            _ => None,
        },
        Value::String(text) if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(text.parse().unwrap_or(u32::MAX))
        }
        _ => None,
    }
}

/// Returns whether the text consists of the 32 hexadecimal digits of a UUID. Hyphens are ignored at any position.
pub fn is_uuid(text: &str) -> bool {
    let digits = text.bytes().filter(|byte| *byte != b'-');
    digits.clone().count() == 32 && digits.clone().all(|byte| byte.is_ascii_hexdigit())
}

/// Removes unknown fields of a step, as Ironic does when a template is changed.
pub fn prune_step(step: &mut Value) {
    if let Some(fields) = step.as_object_mut() {
        fields.retain(|name, _| STEP_FIELDS.contains(&name.as_str()));
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn priorities_and_uuids_follow_ironic() {
        for (value, expected) in [
            (json!(0), Some(0)),
            (json!(1.0), Some(1)),
            (json!("010"), Some(10)),
            (json!(u64::MAX), Some(u32::MAX)),
            (json!("99999999999"), Some(u32::MAX)),
            (json!(-1), None),
            (json!(1.5), None),
            (json!(true), None),
            (json!(""), None),
            (json!("1 "), None),
        ] {
            assert_eq!(parse_priority(&value), expected, "{value}");
        }
        assert!(is_uuid("11111111-1111-4111-8111-111111111111") && is_uuid(&"a".repeat(32)));
        assert!(!is_uuid("") && !is_uuid(&"a".repeat(31)) && !is_uuid(&"g".repeat(32)));
    }
}
