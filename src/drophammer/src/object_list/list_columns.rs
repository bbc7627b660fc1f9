//! Columns of a list. Filters and the sort order refer to columns by their keys.

use common::format::table::{TableCell, TableColumn};
use common::format::terminal_escaping::TextStyle;
use common::format::{compare_natural, natural_sort_key, replace_hidden};
use common::timestamp::shorten_time;
use serde_json::Value;
use std::collections::BTreeSet;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Description of a list: the columns, and the names of the listed objects.
pub(crate) struct ObjectList<'a, T> {
    /// Name of the command that lists these objects, such as `machine`.
    pub command: &'static str,
    /// Plural noun for the objects in messages, such as `machines`.
    pub noun: &'static str,
    /// Function that returns the name that commands use for an object.
    pub name: fn(&T) -> String,
    pub columns: Vec<ListColumn<'a, T>>,
}

/// Column of a list.
pub(crate) struct ListColumn<'a, T> {
    /// Key of the column for `--filter` and `--sort`. The title of the column is the key in upper case.
    pub key: &'static str,
    /// True if only `-o wide` prints the column.
    pub is_wide: bool,
    /// True if the cells of the column contain sentences.
    pub is_prose: bool,
    /// True if the column is never narrower than its cells.
    pub is_rigid: bool,
    pub cell: Box<dyn Fn(&T) -> ListCell + 'a>,
}

/// Value of an object in one column.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ListCell {
    /// Printed text, with which filters are compared; empty if the object has no value.
    pub text: String,
    /// Sort key, if it differs from the printed text.
    pub order: Option<String>,
    /// Text with which filters are compared in addition to the printed text.
    pub value: Option<String>,
    pub style: Option<TextStyle>,
}

impl<T: Into<String>> From<T> for ListCell {
    fn from(text: T) -> ListCell {
        ListCell { text: replace_hidden(&text.into()), ..ListCell::default() }
    }
}

impl ListCell {
    /// Returns the cell of a time in RFC 3339, which is printed in seconds, and sorted in nanoseconds. Other text is
    /// printed unchanged.
    fn from_time(time: &str) -> ListCell {
        let parsed = OffsetDateTime::parse(time, &Rfc3339);
        let order = parsed.ok().map(|time| time.unix_timestamp_nanos().to_string());
        ListCell { order, ..ListCell::from(shorten_time(time)) }
    }

    pub(super) fn into_table_cell(self) -> TableCell {
        let text = if self.text.is_empty() { "-".to_owned() } else { self.text };
        TableCell { text, style: self.style }
    }

    fn order(&self) -> &str {
        self.order.as_deref().unwrap_or(&self.text)
    }
}

impl<'a, T> ListColumn<'a, T> {
    pub(crate) fn new<C: Into<ListCell>>(key: &'static str, cell: impl Fn(&T) -> C + 'a) -> ListColumn<'a, T> {
        ListColumn {
            key,
            is_wide: false,
            is_prose: false,
            is_rigid: false,
            cell: Box::new(move |object| cell(object).into()),
        }
    }

    /// Makes the column visible only with `-o wide`.
    pub(crate) fn only_wide(self) -> Self {
        ListColumn { is_wide: true, ..self }
    }

    /// Returns a column of times in RFC 3339.
    pub(crate) fn new_time(key: &'static str, time: impl Fn(&T) -> String + 'a) -> ListColumn<'a, T> {
        let column = ListColumn::new(key, move |object: &T| ListCell::from_time(&time(object)));
        ListColumn { is_rigid: true, ..column }
    }

    /// Marks the column as one with sentences.
    pub(crate) fn with_prose(self) -> Self {
        ListColumn { is_prose: true, ..self }
    }

    pub(super) fn table_column(&self) -> TableColumn {
        TableColumn { title: self.key.to_uppercase(), is_prose: self.is_prose, is_rigid: self.is_rigid }
    }
}

impl<'a, T> ObjectList<'a, T> {
    /// Parses a filter `KEY=VALUE`. Returns the column with this key, and the value, which may be a list.
    pub(super) fn parse_filter<'f>(&self, filter: &'f str) -> Result<(&ListColumn<'a, T>, &'f str), String> {
        let Some((key, value)) = filter.split_once('=') else {
            return Err(format!("--filter {filter:?}: must be KEY=VALUE; keys: {keys}", keys = self.list_keys()));
        };
        Ok((self.find_column("--filter", key)?, value))
    }

    /// Splits the value of a filter at its commas. The whole value is also a pattern, because it may be text that
    /// contains commas. Patterns for prose are not split.
    ///
    /// # Errors
    /// Returns an error if the value would select more objects than was probably intended, since filters also select
    /// the machines of a reinstall: if it contains another condition, or `*` as one of several values.
    pub(super) fn split_patterns<'f>(
        &self,
        column: &ListColumn<'a, T>,
        value: &'f str,
    ) -> Result<Vec<&'f str>, String> {
        let parts: Vec<&str> = value.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
        if column.is_prose {
            return Ok(vec![value]);
        }
        let is_list = parts.len() > 1;
        if let Some(part) = parts.iter().find(|part| is_list && part.chars().all(|letter| letter == '*')) {
            return Err(format!(
                "--filter: {part} matches every value, so the other values of {value:?} have no effect"
            ));
        }
        let is_condition =
            |part: &&&str| part.split_once('=').is_some_and(|(key, _)| self.find_column("--filter", key).is_ok());
        if let Some(part) = parts.iter().skip(1).find(is_condition) {
            return Err(format!(
                "--filter: {part} is another condition, and commas separate the values of one condition: specify `--filter \
                 {part}` separately"
            ));
        }
        Ok(std::iter::once(value).chain(parts).collect())
    }

    /// Returns the filters that begin with this text: keys with `=`, or, after a key, its values in the objects.
    pub(crate) fn complete_filter(&self, objects: &[T], prefix: &str) -> Vec<String> {
        let Some((key, typed)) = prefix.split_once('=') else {
            let keys = self.columns.iter().map(|column| format!("{}=", column.key));
            return keys.filter(|key| key.starts_with(prefix)).collect();
        };
        let Ok(column) = self.find_column("--filter", key) else { return Vec::new() };
        // A filter may contain several values separated by commas. Only the last value is completed.
        let before = typed.rfind(',').map_or("", |comma| &typed[..=comma]);
        let values: BTreeSet<String> = objects.iter().map(|object| (column.cell)(object).text).collect();
        let values = values.into_iter().filter(|value| !value.is_empty());
        values.map(|value| format!("{key}={before}{value}")).filter(|filter| filter.starts_with(prefix)).collect()
    }

    /// Sorts objects by a column, in natural order: rack2 precedes rack10. Objects without a value are last. Objects
    /// with equal values are sorted by name.
    pub(crate) fn sort(&self, objects: &mut [&T], key: Option<&str>) -> Result<(), String> {
        let is_descending = key.is_some_and(|key| key.starts_with('-'));
        let column = match key {
            Some(key) => self.find_column("--sort", key.trim_start_matches('-'))?,
            None => match self.columns.first() {
                Some(first) => first,
                None => return Ok(()),
            },
        };
        objects.sort_by(|one, other| {
            let by_name = || compare_natural(&(self.name)(one), &(self.name)(other));
            let (one, other) = ((column.cell)(one), (column.cell)(other));
            let by_value = match (one.order().is_empty(), other.order().is_empty()) {
                (false, false) => {
                    let order = natural_sort_key(one.order()).cmp(&natural_sort_key(other.order()));
                    if is_descending { order.reverse() } else { order }
                }
                (one, other) => one.cmp(&other),
            };
            by_value.then_with(by_name)
        });
        Ok(())
    }

    pub(super) fn find_column(&self, option: &str, key: &str) -> Result<&ListColumn<'a, T>, String> {
        let found = self.columns.iter().find(|column| column.key.eq_ignore_ascii_case(key));
        found.ok_or_else(|| format!("{option}: unknown key {key:?}; keys: {keys}", keys = self.list_keys()))
    }

    fn list_keys(&self) -> String {
        self.columns.iter().map(|column| column.key).collect::<Vec<_>>().join(", ")
    }
}

/// Returns the value of a field of a JSON object, or an empty string if the field is not a string.
pub(crate) fn text_of_field(object: &Value, field: &str) -> String {
    object[field].as_str().unwrap_or_default().to_owned()
}
