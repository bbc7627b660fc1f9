//! Field-by-field access to a JSON document; problems are collected, each with its path.

use crate::problem::Problem;
use serde_json::{Map, Value};

/// Value with its path in the document.
#[derive(Clone)]
pub(super) struct Field<'a> {
    pub place: String,
    pub value: &'a Value,
}

/// Mapping with its path in the document.
pub(super) struct Fields<'a> {
    pub place: String,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// Returns the value of a field; `None` if it is missing or null.
    pub fn get(&self, name: &str) -> Option<Field<'a>> {
        let value = self.map.get(name).filter(|value| !value.is_null())?;
        Some(Field { place: child(&self.place, name), value })
    }
}

pub(super) fn child(place: &str, name: &str) -> String {
    if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") }
}

/// Reader that collects problems.
#[derive(Default)]
pub(super) struct Reader {
    pub problems: Vec<Problem>,
}

impl Reader {
    pub fn problem(&mut self, place: &str, message: impl Into<String>) {
        self.problems.push(Problem::new(place, message));
    }

    /// Returns the fields of a mapping. A name that is not in `known` is a problem; `unread` lists the names that only netplan supports.
    pub fn fields<'a>(&mut self, field: &Field<'a>, known: &[&str], unread: &[&str]) -> Option<Fields<'a>> {
        let map = self.mapping(field)?;
        for name in map.keys().filter(|name| !known.contains(&name.as_str())) {
            let message = match unread.contains(&name.as_str()) {
                true => format!("drophammer does not support netplan's field {name:?}: remove it"),
                false => format!("unknown field {name:?}{}", nearest(name, known)),
            };
            self.problem(&child(&field.place, name), message);
        }
        Some(Fields { place: field.place.clone(), map })
    }

    /// Returns the entries of a mapping whose keys are chosen by the user.
    pub fn entries<'a>(&mut self, field: &Field<'a>) -> Vec<(&'a str, Field<'a>)> {
        let map = self.mapping(field).into_iter().flatten();
        map.map(|(name, value)| (name.as_str(), Field { place: child(&field.place, name), value })).collect()
    }

    fn mapping<'a>(&mut self, field: &Field<'a>) -> Option<&'a Map<String, Value>> {
        let map = field.value.as_object();
        if map.is_none() {
            self.problem(&field.place, format!("this must be a mapping of fields, but is {}", kind(field.value)));
        }
        map
    }

    pub fn items<'a>(&mut self, field: &Field<'a>) -> Vec<Field<'a>> {
        let Some(items) = field.value.as_array() else {
            self.problem(&field.place, format!("this must be a list, but is {}", kind(field.value)));
            return Vec::new();
        };
        let place = |index| format!("{}[{index}]", field.place);
        items.iter().enumerate().map(|(index, value)| Field { place: place(index), value }).collect()
    }

    /// Returns a scalar as it was written.
    pub fn text(&mut self, field: &Field) -> Option<String> {
        match field.value {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            other => {
                self.problem(&field.place, format!("this must be text, but is {}", kind(other)));
                None
            }
        }
    }

    /// Returns the result of `parse` for a scalar.
    pub fn parsed<T>(&mut self, field: &Field, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        let text = self.text(field)?;
        parse(&text).map_err(|why| self.problem(&field.place, why)).ok()
    }

    /// Returns the results of `parse` for the scalars of a list, each with its path. Items that cannot be parsed are reported and skipped.
    pub fn all_parsed<T>(
        &mut self,
        field: Option<Field>,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Vec<(T, String)> {
        let items = field.map(|field| self.items(&field)).unwrap_or_default();
        items.iter().filter_map(|item| Some((self.parsed(item, &parse)?, item.place.clone()))).collect()
    }

    /// Returns a boolean; the words of YAML 1.1 are accepted too.
    pub fn flag(&mut self, field: Option<Field>) -> Option<bool> {
        let field = field?;
        let word = field.value.as_str().map(str::to_lowercase);
        match (field.value, word.as_deref()) {
            (Value::Bool(flag), _) => Some(*flag),
            (_, Some("true" | "yes" | "on" | "y")) => Some(true),
            (_, Some("false" | "no" | "off" | "n")) => Some(false),
            _ => {
                self.problem(&field.place, "this must be true or false");
                None
            }
        }
    }

    /// Returns an integer within bounds.
    pub fn number(&mut self, field: Option<Field>, least: u32, most: u32, what: &str) -> Option<u32> {
        let field = field?;
        let text = self.text(&field)?;
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|number| is_number && (least..=most).contains(number));
        if number.is_none() {
            self.problem(&field.place, format!("{what} must be an integer from {least} to {most}, but is {text}"));
        }
        number
    }
}

/// Returns the type of a value, for messages.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    }
}

/// Returns `; did you mean "x"?`, or the list of known words if none is similar.
pub(super) fn nearest(word: &str, known: &[&str]) -> String {
    let scored = known.iter().rev().map(|name| (strsim::jaro_winkler(&word.to_lowercase(), name), *name));
    match scored.max_by(|one, other| one.0.total_cmp(&other.0)) {
        Some((score, name)) if score > 0.8 => format!("; did you mean {name:?}?"),
        Some(_) => format!("; supported: {}", known.join(", ")),
        None => String::new(),
    }
}
