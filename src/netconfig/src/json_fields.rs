//! Access to the fields of a JSON document. Problems are collected, each with the path of its field.

use common::diagnostic::{Diagnostic, child_path};
use common::spelling_suggestions::find_similar;
use serde_json::{Map, Value};

/// Value with its path in the document.
#[derive(Clone)]
pub(super) struct JsonField<'a> {
    pub place: String,
    pub value: &'a Value,
}

/// Mapping with its path in the document.
pub(super) struct JsonFields<'a> {
    pub place: String,
    map: &'a Map<String, Value>,
}

impl<'a> JsonFields<'a> {
    /// Returns the value of a field; `None` if the field is missing or null.
    pub(crate) fn get(&self, name: &str) -> Option<JsonField<'a>> {
        let value = self.map.get(name).filter(|value| !value.is_null())?;
        Some(JsonField { place: child_path(&self.place, name), value })
    }
}

/// Reader of a document, which collects all problems.
#[derive(Default)]
pub(super) struct NetworkReader {
    pub problems: Vec<Diagnostic>,
}

impl NetworkReader {
    pub(crate) fn report(&mut self, place: &str, message: impl Into<String>) {
        self.problems.push(Diagnostic::new(place, message));
    }

    /// Returns the fields of a mapping. Reports each field that is not in `known`. The message about a field in
    /// `unread` states that netplan supports it, but drophammer does not.
    pub(crate) fn read_fields<'a>(
        &mut self,
        field: &JsonField<'a>,
        known: &[&str],
        unread: &[&str],
    ) -> Option<JsonFields<'a>> {
        let map = self.read_mapping(field)?;
        for name in map.keys().filter(|name| !known.contains(&name.as_str())) {
            let message = match unread.contains(&name.as_str()) {
                true => format!("drophammer does not support netplan's field {name:?}: remove this field"),
                false => format!("unknown field {name:?}{}", suggest_nearest(name, known)),
            };
            self.report(&child_path(&field.place, name), message);
        }
        Some(JsonFields { place: field.place.clone(), map })
    }

    /// Returns the entries of a mapping whose keys the user chooses.
    pub(crate) fn read_entries<'a>(&mut self, field: &JsonField<'a>) -> Vec<(&'a str, JsonField<'a>)> {
        let map = self.read_mapping(field).into_iter().flatten();
        map.map(|(name, value)| (name.as_str(), JsonField { place: child_path(&field.place, name), value })).collect()
    }

    fn read_mapping<'a>(&mut self, field: &JsonField<'a>) -> Option<&'a Map<String, Value>> {
        let map = field.value.as_object();
        if map.is_none() {
            self.report(
                &field.place,
                format!("the value must be a mapping of fields, but is {actual}", actual = describe_type(field.value)),
            );
        }
        map
    }

    pub(crate) fn read_items<'a>(&mut self, field: &JsonField<'a>) -> Vec<JsonField<'a>> {
        let Some(items) = field.value.as_array() else {
            self.report(
                &field.place,
                format!("the value must be a list, but is {actual}", actual = describe_type(field.value)),
            );
            return Vec::new();
        };
        let place = |index| format!("{}[{index}]", field.place);
        items.iter().enumerate().map(|(index, value)| JsonField { place: place(index), value }).collect()
    }

    /// Returns a string or number as text. Reports values of other types.
    pub(crate) fn read_text(&mut self, field: &JsonField) -> Option<String> {
        match field.value {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            other => {
                self.report(
                    &field.place,
                    format!("the value must be text, but is {actual}", actual = describe_type(other)),
                );
                None
            }
        }
    }

    /// Parses a string or number with `parse`. Reports a value that `parse` rejects.
    pub(crate) fn parse_scalar<T>(
        &mut self,
        field: &JsonField,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let text = self.read_text(field)?;
        parse(&text).map_err(|why| self.report(&field.place, why)).ok()
    }

    /// Parses the items of a list with `parse`. Returns the results with their paths. Items that `parse` rejects are
    /// reported and skipped.
    pub(crate) fn parse_items<T>(
        &mut self,
        field: Option<JsonField>,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Vec<(T, String)> {
        let items = field.map(|field| self.read_items(&field)).unwrap_or_default();
        items.iter().filter_map(|item| Some((self.parse_scalar(item, &parse)?, item.place.clone()))).collect()
    }

    /// Returns a boolean. Also accepts the words for booleans in YAML 1.1, such as `yes`.
    pub(crate) fn read_flag(&mut self, field: Option<JsonField>) -> Option<bool> {
        let field = field?;
        let word = field.value.as_str().map(str::to_lowercase);
        match (field.value, word.as_deref()) {
            (Value::Bool(flag), _) => Some(*flag),
            (_, Some("true" | "yes" | "on" | "y")) => Some(true),
            (_, Some("false" | "no" | "off" | "n")) => Some(false),
            _ => {
                self.report(&field.place, "the value must be true or false");
                None
            }
        }
    }

    /// Returns an integer from `least` to `most`. Reports any other value.
    pub(crate) fn read_number(&mut self, field: Option<JsonField>, least: u32, most: u32, what: &str) -> Option<u32> {
        let field = field?;
        let text = self.read_text(&field)?;
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|number| is_number && (least..=most).contains(number));
        if number.is_none() {
            self.report(&field.place, format!("{what} must be an integer from {least} to {most}, but is {text}"));
        }
        number
    }
}

/// Returns the type of a value, for messages.
fn describe_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    }
}

/// Returns `; did you mean "x"?` with the most similar known word, or the list of known words if none is similar.
pub(super) fn suggest_nearest(word: &str, known: &[&str]) -> String {
    match find_similar(word, known.iter().rev().copied()) {
        Some(name) => format!("; did you mean {name:?}?"),
        None if known.is_empty() => String::new(),
        None => format!("; supported: {}", known.join(", ")),
    }
}
