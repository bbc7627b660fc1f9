//! Columns of a list, and its filters and order, which refer to columns by their keys.

use common::format::natural_sort_key;
use common::format::replace_hidden;
use common::format::table::{TableCell, TableColumn};
use common::format::terminal_escaping::TextStyle;
use serde_json::Value;
use std::cmp::Ordering;

/// Columns and names of the objects of a list.
pub(crate) struct ObjectList<'a, T> {
    /// Name of the command for these objects, such as `machine`.
    pub command: &'static str,
    /// Plural noun for messages, such as `machines`.
    pub noun: &'static str,
    /// Returns the name by which other commands refer to the object.
    pub name: fn(&T) -> String,
    pub columns: Vec<ListColumn<'a, T>>,
}

/// Column of a list.
pub(crate) struct ListColumn<'a, T> {
    /// Key for `--filter` and `--sort`. In upper case, the key is the title of the column.
    pub key: &'static str,
    /// True if only `-o wide` prints the column.
    pub is_wide: bool,
    /// True if the cells contain sentences.
    pub is_prose: bool,
    pub cell: Box<dyn Fn(&T) -> ListCell + 'a>,
}

/// Value of an object in one column.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ListCell {
    /// Text to print and to compare with filters; empty if the object has no value.
    pub text: String,
    /// Text to sort by, if it differs from the printed text.
    pub order: Option<String>,
    /// Value that filters also match, if it differs from the printed text.
    pub value: Option<String>,
    pub style: Option<TextStyle>,
}

impl<T: Into<String>> From<T> for ListCell {
    fn from(text: T) -> ListCell {
        ListCell { text: replace_hidden(&text.into()), ..ListCell::default() }
    }
}

impl ListCell {
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
        ListColumn { key, is_wide: false, is_prose: false, cell: Box::new(move |object| cell(object).into()) }
    }

    /// Restricts the column to `-o wide`.
    pub(crate) fn only_wide(self) -> Self {
        ListColumn { is_wide: true, ..self }
    }

    /// Marks the column as one whose cells contain sentences.
    pub(crate) fn with_prose(self) -> Self {
        ListColumn { is_prose: true, ..self }
    }

    pub(super) fn table_column(&self) -> TableColumn {
        TableColumn { title: self.key.to_uppercase(), is_prose: self.is_prose }
    }
}

impl<'a, T> ObjectList<'a, T> {
    /// Splits a filter `KEY=VALUE` into the column and the value.
    pub(super) fn parse_filter<'f>(&self, filter: &'f str) -> Result<(&ListColumn<'a, T>, &'f str), String> {
        let Some((key, value)) = filter.split_once('=') else {
            return Err(format!("--filter {filter:?}: must be KEY=VALUE; keys: {keys}", keys = self.list_keys()));
        };
        Ok((self.find_column("--filter", key)?, value))
    }

    /// Sorts objects by a column, in natural order: rack2 precedes rack10. Objects without a value come last.
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
            let (one, other) = ((column.cell)(one), (column.cell)(other));
            match (one.order().is_empty(), other.order().is_empty()) {
                (false, false) => {
                    let order = natural_sort_key(one.order()).cmp(&natural_sort_key(other.order()));
                    if is_descending { order.reverse() } else { order }
                }
                (one, other) => {
                    if one == other {
                        Ordering::Equal
                    } else {
                        one.cmp(&other)
                    }
                }
            }
        });
        Ok(())
    }

    fn find_column(&self, option: &str, key: &str) -> Result<&ListColumn<'a, T>, String> {
        let found = self.columns.iter().find(|column| column.key.eq_ignore_ascii_case(key));
        found.ok_or_else(|| format!("{option}: unknown key {key:?}; keys: {keys}", keys = self.list_keys()))
    }

    fn list_keys(&self) -> String {
        self.columns.iter().map(|column| column.key).collect::<Vec<_>>().join(", ")
    }
}

/// Returns the text of a field of a JSON object; empty if the field is not a string.
pub(crate) fn text_of_field(object: &Value, field: &str) -> String {
    object[field].as_str().unwrap_or_default().to_owned()
}
