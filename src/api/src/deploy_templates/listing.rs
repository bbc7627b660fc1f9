//! Lists of templates: their order, their length, and the link to the next page.

use super::ironic_response::{IronicRefusal, TemplateResult};
use super::representation::{TemplateForm, parse_fields, render_template};
use serde_json::{Map, Value, json};
use site::deploy_templates::{DeployTemplates, StoredTemplate};
use std::cmp::Ordering;
use std::sync::Arc;

/// Maximum number of templates on a page, as in Ironic.
const MAXIMUM_PAGE_TEMPLATES: usize = 1000;
const TRUE: [&str; 6] = ["1", "t", "true", "on", "y", "yes"];
const FALSE: [&str; 6] = ["0", "f", "false", "off", "n", "no"];

/// Arguments of a request for a list.
#[derive(Debug)]
struct ListQuery {
    marker: Option<String>,
    limit: usize,
    key: SortKey,
    backwards: bool,
    /// Requested fields; `None` if all fields are requested.
    fields: Option<Vec<String>>,
    detail: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SortKey {
    /// Sorts templates in the order of their creation.
    Id,
    Uuid,
    Name,
    Created,
    Updated,
}

pub(super) const SORT_KEYS: [(&str, SortKey); 5] = [
    ("id", SortKey::Id),
    ("uuid", SortKey::Uuid),
    ("name", SortKey::Name),
    ("created_at", SortKey::Created),
    ("updated_at", SortKey::Updated),
];

pub(crate) fn list_templates(
    templates: &DeployTemplates,
    query: &[(String, String)],
    base: &str,
    form: TemplateForm,
) -> TemplateResult<Value> {
    let list_query = ListQuery::parse_query(query)?;
    let mut all: Vec<&Arc<StoredTemplate>> = templates.all().collect();
    // Templates from the operator's files have no creation time. They come first, sorted by name.
    all.sort_by(|one, other| one.template.created_at.cmp(&other.template.created_at));
    all.sort_by(|one, other| compare_by(list_query.key, one, other));
    if list_query.backwards {
        all.reverse();
    }
    if let Some(marker) = &list_query.marker {
        let place = all.iter().position(|stored| stored.uuid == *marker);
        let place = place.ok_or_else(|| IronicRefusal::unknown_template(marker))?;
        all.drain(..=place);
    }
    all.truncate(list_query.limit);
    let shown: Vec<Value> =
        all.iter().map(|stored| render_template(stored, base, form, list_query.fields.as_deref())).collect();
    let mut answer = Map::from_iter([(form.path().to_owned(), json!(shown))]);
    if let Some(last) = all.last().filter(|_| all.len() == list_query.limit) {
        answer.insert(
            "next".to_owned(),
            json!(format!("{base}/v1/{}?{}", form.path(), list_query.next_page_query(&last.uuid))),
        );
    }
    Ok(Value::Object(answer))
}

fn compare_by(key: SortKey, one: &StoredTemplate, other: &StoredTemplate) -> Ordering {
    match key {
        SortKey::Id => Ordering::Equal,
        SortKey::Uuid => one.uuid.cmp(&other.uuid),
        SortKey::Name => one.template.name.cmp(&other.template.name),
        SortKey::Created => one.template.created_at.cmp(&other.template.created_at),
        SortKey::Updated => one.template.updated_at.cmp(&other.template.updated_at),
    }
}

impl ListQuery {
    fn parse_query(query: &[(String, String)]) -> TemplateResult<ListQuery> {
        let mut list_query = ListQuery {
            marker: None,
            limit: MAXIMUM_PAGE_TEMPLATES,
            key: SortKey::Id,
            backwards: false,
            fields: None,
            detail: None,
        };
        for (name, value) in query {
            match name.as_str() {
                "marker" if is_name(value) => list_query.marker = Some(value.clone()),
                "marker" => {
                    return Err(IronicRefusal::bad_request(format!(
                        "the `marker` {value:?} is neither a name nor a uuid"
                    )));
                }
                "limit" => list_query.limit = parse_limit(value)?,
                "sort_key" => {
                    let known = SORT_KEYS.iter().find(|(name, _)| name == value);
                    let none =
                        || IronicRefusal::bad_request(format!("`sort_key`: templates cannot be sorted by {value:?}"));
                    list_query.key = known.ok_or_else(none)?.1;
                }
                "sort_dir" => {
                    let wrong =
                        || IronicRefusal::bad_request(format!("`sort_dir` must be asc or desc, found {value:?}"));
                    let directions = [("asc", false), ("desc", true)];
                    list_query.backwards = directions.iter().find(|(name, _)| name == value).ok_or_else(wrong)?.1;
                }
                "fields" => list_query.fields = Some(parse_fields(value)?),
                "detail" => list_query.detail = Some(parse_bool(value)?),
                other => return Err(IronicRefusal::bad_request(format!("unknown argument {other:?}"))),
            }
        }
        match (&list_query.fields, list_query.detail) {
            (Some(_), Some(true)) => {
                return Err(IronicRefusal::bad_request("`detail` and `fields` cannot be combined: omit one of them"));
            }
            (None, None | Some(false)) => list_query.fields = Some(["uuid", "name"].map(str::to_owned).to_vec()),
            _ => {}
        }
        Ok(list_query)
    }

    /// Returns the query for the next page, which starts after the template with this UUID.
    fn next_page_query(&self, uuid: &str) -> String {
        let key = SORT_KEYS.iter().find(|(_, key)| *key == self.key).map_or("id", |(name, _)| name);
        let direction = if self.backwards { "desc" } else { "asc" };
        let detail = self.detail.map(|detail| format!("detail={}&", if detail { "True" } else { "False" }));
        let fields = self.fields.as_ref().filter(|fields| !fields.is_empty());
        let fields = fields.map(|fields| format!("fields={}&", fields.join(",")));
        let (detail, fields) = (detail.unwrap_or_default(), fields.unwrap_or_default());
        format!("sort_key={key}&sort_dir={direction}&{detail}{fields}limit={}&marker={uuid}", self.limit)
    }
}

/// Returns whether the text can be a template's name: letters, digits, and punctuation that is not escaped in URLs.
pub(crate) fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    !text.is_empty() && text.len() <= 255 && text.bytes().all(plain)
}

fn parse_limit(text: &str) -> TemplateResult<usize> {
    let number: i64 =
        text.trim().parse().map_err(|_| IronicRefusal::bad_request(format!("the limit {text:?} is not a number")))?;
    match usize::try_from(number) {
        Ok(0) | Err(_) => Err(IronicRefusal::bad_request("the limit must be above 0")),
        Ok(limit) => Ok(limit.min(MAXIMUM_PAGE_TEMPLATES)),
    }
}

fn parse_bool(text: &str) -> TemplateResult<bool> {
    let word = text.trim().to_lowercase();
    match (TRUE.contains(&word.as_str()), FALSE.contains(&word.as_str())) {
        (true, _) => Ok(true),
        (_, true) => Ok(false),
        _ => Err(IronicRefusal::bad_request(format!("`detail` must be true or false, found {text:?}"))),
    }
}
