//! Lists of templates: their order, their length, and the link to the next page.

use super::answer::{Answered, Refused};
use super::shown::{Form, fields, shown};
use super::{Stored, Templates};
use serde_json::{Map, Value, json};
use std::cmp::Ordering;
use std::sync::Arc;

/// Maximum length of a page, as in Ironic.
const MOST: usize = 1000;
const TRUE: [&str; 6] = ["1", "t", "true", "on", "y", "yes"];
const FALSE: [&str; 6] = ["0", "f", "false", "off", "n", "no"];

/// Arguments of a request for a list.
#[derive(Debug)]
struct Asked {
    marker: Option<String>,
    limit: usize,
    key: Key,
    backwards: bool,
    /// `None`: all fields.
    fields: Option<Vec<String>>,
    detail: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    /// Order of creation.
    Id,
    Uuid,
    Name,
    Created,
    Updated,
}

const KEYS: [(&str, Key); 5] = [
    ("id", Key::Id),
    ("uuid", Key::Uuid),
    ("name", Key::Name),
    ("created_at", Key::Created),
    ("updated_at", Key::Updated),
];

pub fn list(templates: &Templates, query: &[(String, String)], base: &str, form: Form) -> Answered<Value> {
    let asked = Asked::read(query)?;
    let mut all: Vec<&Arc<Stored>> = templates.all().collect();
    // Templates that the operator wrote have no time: they come first, by name.
    all.sort_by(|one, other| one.template.created_at.cmp(&other.template.created_at));
    all.sort_by(|one, other| by(asked.key, one, other));
    if asked.backwards {
        all.reverse();
    }
    if let Some(marker) = &asked.marker {
        let place = all.iter().position(|stored| stored.uuid == *marker);
        let place = place.ok_or_else(|| Refused::unknown(marker))?;
        all.drain(..=place);
    }
    all.truncate(asked.limit);
    let shown: Vec<Value> = all.iter().map(|stored| shown(stored, base, form, asked.fields.as_deref())).collect();
    let mut answer = Map::from_iter([(form.path().to_owned(), json!(shown))]);
    if let Some(last) = all.last().filter(|_| all.len() == asked.limit) {
        answer.insert("next".to_owned(), json!(format!("{base}/v1/{}?{}", form.path(), asked.next(&last.uuid))));
    }
    Ok(Value::Object(answer))
}

fn by(key: Key, one: &Stored, other: &Stored) -> Ordering {
    match key {
        Key::Id => Ordering::Equal,
        Key::Uuid => one.uuid.cmp(&other.uuid),
        Key::Name => one.template.name.cmp(&other.template.name),
        Key::Created => one.template.created_at.cmp(&other.template.created_at),
        Key::Updated => one.template.updated_at.cmp(&other.template.updated_at),
    }
}

impl Asked {
    fn read(query: &[(String, String)]) -> Answered<Asked> {
        let mut asked = Asked { marker: None, limit: MOST, key: Key::Id, backwards: false, fields: None, detail: None };
        for (name, value) in query {
            match name.as_str() {
                "marker" if is_name(value) => asked.marker = Some(value.clone()),
                "marker" => return Err(Refused::bad(format!("the marker {value:?} is not a name"))),
                "limit" => asked.limit = limit(value)?,
                "sort_key" => {
                    let known = KEYS.iter().find(|(name, _)| name == value);
                    let none = || Refused::bad(format!("cannot sort by {value:?}"));
                    asked.key = known.ok_or_else(none)?.1;
                }
                "sort_dir" => {
                    let wrong = || Refused::bad(format!("sort_dir must be asc or desc, found {value:?}"));
                    let directions = [("asc", false), ("desc", true)];
                    asked.backwards = directions.iter().find(|(name, _)| name == value).ok_or_else(wrong)?.1;
                }
                "fields" => asked.fields = Some(fields(value)?),
                "detail" => asked.detail = Some(truth(value)?),
                other => return Err(Refused::bad(format!("unknown argument {other:?}"))),
            }
        }
        match (&asked.fields, asked.detail) {
            (Some(_), Some(true)) => return Err(Refused::bad("detail and fields cannot be combined")),
            (None, None | Some(false)) => asked.fields = Some(["uuid", "name"].map(str::to_owned).to_vec()),
            _ => {}
        }
        Ok(asked)
    }

    /// Returns the arguments of the page after that template.
    fn next(&self, uuid: &str) -> String {
        let key = KEYS.iter().find(|(_, key)| *key == self.key).map_or("id", |(name, _)| name);
        let direction = if self.backwards { "desc" } else { "asc" };
        let detail = self.detail.map(|detail| format!("detail={}&", if detail { "True" } else { "False" }));
        let fields = self.fields.as_ref().filter(|fields| !fields.is_empty());
        let fields = fields.map(|fields| format!("fields={}&", fields.join(",")));
        let (detail, fields) = (detail.unwrap_or_default(), fields.unwrap_or_default());
        format!("sort_key={key}&sort_dir={direction}&{detail}{fields}limit={}&marker={uuid}", self.limit)
    }
}

/// Returns whether the text is a name: letters, digits, and characters that need no escaping in URLs.
pub fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    !text.is_empty() && text.len() <= 255 && text.bytes().all(plain)
}

fn limit(text: &str) -> Answered<usize> {
    let number: i64 = text.trim().parse().map_err(|_| Refused::bad(format!("the limit {text:?} is not a number")))?;
    match usize::try_from(number) {
        Ok(0) | Err(_) => Err(Refused::bad("the limit must be above 0")),
        Ok(limit) => Ok(limit.min(MOST)),
    }
}

fn truth(text: &str) -> Answered<bool> {
    let word = text.trim().to_lowercase();
    match (TRUE.contains(&word.as_str()), FALSE.contains(&word.as_str())) {
        (true, _) => Ok(true),
        (_, true) => Ok(false),
        _ => Err(Refused::bad(format!("detail must be true or false, found {text:?}"))),
    }
}
