//! Schemas that generators of API clients accept: the same values in a form without the keywords that some generators
//! reject or misinterpret (`scripts/clients`).

use serde_json::{Map, Value, json};

/// Returns the schema in its portable form.
pub(super) fn into_portable(mut schema: Value) -> Value {
    make_portable(&mut schema);
    schema
}

/// Changes a schema, and all schemas in it, to the portable form.
pub(super) fn make_portable(schema: &mut Value) {
    // The schema of any value. openapi-python-client rejects the spelling `true`.
    if *schema == Value::Bool(true) {
        *schema = json!({});
    }
    let Value::Object(fields) = schema else { return };
    // openapi-typescript requires properties with a default in requests, too.
    fields.remove("default");
    split_mixed_enum(fields);
    merge_string_alternatives(fields);
    for (keyword, value) in fields.iter_mut() {
        match (keyword.as_str(), value) {
            ("properties", Value::Object(all)) => all.values_mut().for_each(make_portable),
            ("anyOf" | "oneOf" | "allOf", Value::Array(all)) => all.iter_mut().for_each(make_portable),
            ("items" | "additionalProperties", nested) => make_portable(nested),
            _ => {}
        }
    }
}

/// Replaces an `enum` of strings and both Booleans by two alternatives, since openapi-python-client rejects an `enum`
/// of several types.
fn split_mixed_enum(fields: &mut Map<String, Value>) {
    let Some(Value::Array(values)) = fields.get("enum") else { return };
    let (strings, others): (Vec<Value>, Vec<Value>) = values.iter().cloned().partition(Value::is_string);
    if !strings.is_empty() && others.len() == 2 && others.iter().all(Value::is_boolean) {
        fields.remove("enum");
        fields.insert("anyOf".to_owned(), json!([{"type": "boolean"}, {"type": "string", "enum": strings}]));
    }
}

/// Replaces alternatives that each permit certain strings by one `enum`. Their descriptions are appended to the
/// description of the schema. The code that openapi-python-client generates for such alternatives accepts only the
/// first of them.
fn merge_string_alternatives(fields: &mut Map<String, Value>) {
    for keyword in ["oneOf", "anyOf"] {
        let alternatives = fields.get(keyword).and_then(Value::as_array);
        let Some(strings) = alternatives.and_then(|alternatives| list_strings(alternatives)) else { continue };
        fields.remove(keyword);
        let described = strings.iter().filter(|(_, description)| !description.is_empty());
        let list: Vec<String> = described.map(|(value, description)| format!("* `{value}`: {description}")).collect();
        let description = fields.get("description").and_then(Value::as_str).map(str::to_owned);
        let paragraphs: Vec<String> =
            description.into_iter().chain(Some(list.join("\n")).filter(|list| !list.is_empty())).collect();
        if !paragraphs.is_empty() {
            fields.insert("description".to_owned(), json!(paragraphs.join("\n\n")));
        }
        fields.insert("type".to_owned(), json!("string"));
        fields.insert("enum".to_owned(), strings.into_iter().map(|(value, _)| value).collect());
    }
}

/// Returns the strings that the alternatives permit, with their descriptions, or `None` if an alternative permits other
/// values.
fn list_strings(alternatives: &[Value]) -> Option<Vec<(String, String)>> {
    let mut all = Vec::new();
    for alternative in alternatives {
        let description = alternative["description"].as_str().unwrap_or_default();
        match (&alternative["const"], &alternative["enum"]) {
            (Value::String(value), _) => all.push((value.clone(), description.to_owned())),
            (_, Value::Array(values)) => {
                for value in values {
                    all.push((value.as_str()?.to_owned(), String::new()));
                }
            }
            _ => return None,
        }
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternatives_of_strings_become_an_enum_with_their_descriptions() {
        let roles = json!({"description": "Role.", "oneOf": [
            {"const": "viewer", "type": "string", "description": "Reads."},
            {"enum": ["operator", "admin"], "type": "string"},
        ]});
        let expected = json!({"description": "Role.\n\n* `viewer`: Reads.", "type": "string",
            "enum": ["viewer", "operator", "admin"]});
        assert_eq!(into_portable(roles), expected);
        let other = json!({"anyOf": [{"const": "none", "type": "string"}, {"$ref": "#/components/schemas/Disk"}]});
        assert_eq!(into_portable(other.clone()), other);
    }

    #[test]
    fn unsupported_keywords_are_replaced_in_nested_schemas() {
        let schema = json!({"type": "object", "additionalProperties": false, "properties": {
            "default": {"type": "array", "items": true, "default": []},
            "preserve": {"enum": [false, "unlisted", true]},
            "verdicts": true,
        }});
        let expected = json!({"type": "object", "additionalProperties": false, "properties": {
            "default": {"type": "array", "items": {}},
            "preserve": {"anyOf": [{"type": "boolean"}, {"type": "string", "enum": ["unlisted"]}]},
            "verdicts": {},
        }});
        assert_eq!(into_portable(schema), expected);
    }
}
