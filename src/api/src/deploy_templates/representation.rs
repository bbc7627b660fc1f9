//! JSON representation of templates in responses.

use super::ironic_response::{IronicRefusal, TemplateResult};
use serde_json::{Map, Value, json};
use site::deploy_templates::StoredTemplate;

/// Format of a response that contains templates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TemplateForm {
    Ironic,
    /// Format of the Ironic specification that proposed deploy templates. It has no links and timestamps, and its
    /// lists contain complete templates.
    Proposed,
}

impl TemplateForm {
    pub(crate) fn path(self) -> &'static str {
        match self {
            TemplateForm::Ironic => "deploy_templates",
            TemplateForm::Proposed => "deploy-templates",
        }
    }
}

const FIELDS: [&str; 8] = ["created_at", "description", "extra", "links", "name", "steps", "updated_at", "uuid"];
const PROPOSED_FIELDS: [&str; 3] = ["name", "steps", "uuid"];
const MASK: &str = "******";
/// Substrings that occur in the names of secret fields. The value of a field is a secret if its name contains one of
/// these substrings.
const SECRETS: [&str; 12] = [
    "admin_pass",
    "adminpass",
    "configdrive",
    "encrypted_key",
    "new_pass",
    "passphrase",
    "password",
    "private_key",
    "secret",
    "sslkey",
    "sys_pswd",
    "token",
];

/// Parses the list of requested fields in a query.
pub(crate) fn parse_fields(text: &str) -> TemplateResult<Vec<String>> {
    let mut fields: Vec<String> = Vec::new();
    for name in text.split(',').map(|name| name.trim().to_lowercase()).filter(|name| !name.is_empty()) {
        if !FIELDS.contains(&name.as_str()) {
            return Err(IronicRefusal::bad_request(format!(
                "unknown field {name:?}; known fields: {known_fields}",
                known_fields = FIELDS.join(", ")
            )));
        }
        if name == "description" {
            return Err(IronicRefusal::bad_request(
                "the field \"description\" cannot be listed, because descriptions are accepted, but not stored",
            ));
        }
        if !fields.contains(&name) {
            fields.push(name);
        }
    }
    Ok(fields)
}

/// Returns the template. With `only`, returns only these fields and the links.
pub(crate) fn render_template(
    stored: &StoredTemplate,
    base: &str,
    form: TemplateForm,
    only: Option<&[String]>,
) -> Value {
    let StoredTemplate { uuid, template, .. } = stored;
    let link =
        |rel: &str, version: &str| json!({"href": format!("{base}{version}/{}/{uuid}", form.path()), "rel": rel});
    let mut whole = Map::new();
    let steps: Vec<Value> = template.steps.iter().map(mask_step).collect();
    for (name, value) in [
        ("uuid", json!(uuid)),
        ("name", json!(template.name)),
        ("steps", json!(steps)),
        ("extra", json!(template.extra)),
        ("created_at", json!(template.created_at)),
        ("updated_at", json!(template.updated_at)),
        ("links", json!([link("self", "/v1"), link("bookmark", "")])),
    ] {
        whole.insert(name.to_owned(), value);
    }
    let wanted = |name: &str| match (form, only) {
        (TemplateForm::Ironic, None) => true,
        (TemplateForm::Ironic, Some(only)) => name == "links" || only.iter().any(|one| one == name),
        (TemplateForm::Proposed, _) => PROPOSED_FIELDS.contains(&name),
    };
    whole.retain(|name, _| wanted(name));
    Value::Object(whole)
}

fn mask_step(step: &Value) -> Value {
    let mut step = step.clone();
    if let Some(arguments) = step.get_mut("args") {
        mask_secrets(arguments);
    }
    step
}

/// Replaces the secrets of a template by `******`. Secrets are never returned, not even to the operator.
fn mask_secrets(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.iter_mut().for_each(|(name, value)| {
            let name = name.to_lowercase();
            match value {
                Value::Object(_) => mask_secrets(value),
                _ if SECRETS.iter().any(|secret| name.contains(secret)) => *value = Value::from(MASK),
                _ => mask_secrets(value),
            }
        }),
        Value::Array(items) => items.iter_mut().for_each(mask_secrets),
        _ => {}
    }
}
