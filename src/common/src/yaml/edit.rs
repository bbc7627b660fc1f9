//! Editor of values in a YAML text. The comments, order, quotes and line ends of unchanged values are preserved.
//!
//! Items of a list are matched by their names. If a value is removed, its comments are also removed, and are returned
//! to the caller.

mod formatter;
mod parser;
use formatter::{format_block, format_flow, format_scalar};
use parser::{MapEntry, NodeKind, ParsedYaml, YamlNode};
use serde_json::{Map, Value};
use std::ops::Range;

/// Result of editing a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EditedYaml {
    pub text: String,
    /// Comments that were removed together with values.
    pub removed_comments: Vec<String>,
}

/// Fields that identify an item of a list even if its other fields change. The name of an item is the value of the
/// first of these fields that the item has.
const NAMES: [&str; 7] = ["id", "number", "arrayname", "name", "path", "device", "type"];

/// Edits a text with the value `old` so that its value becomes `new`. Only the parts that differ are rewritten. Returns
/// `None` if these parts cannot be edited in place. The caller must parse the result and compare it with `new`, because
/// not every YAML notation of `old` is supported.
pub fn edit_values(text: &str, old: &Value, new: &Value) -> Option<EditedYaml> {
    let (bom, body) = match text.strip_prefix('\u{feff}') {
        Some(body) => ("\u{feff}", body),
        None => ("", text),
    };
    let ParsedYaml { root, scalars } = parser::parse_nodes(body)?;
    let mut editor = YamlEditor { text: body, edits: Vec::new() };
    editor.change_value(&root, None, old, new, 0)?;
    let YamlEditor { mut edits, .. } = editor;
    // The sort is stable, so several insertions at the same position stay in the order in which they were added.
    edits.sort_by_key(|(range, _)| range.start);
    if edits.windows(2).any(|two| two[0].0.end > two[1].0.start) {
        return None;
    }
    let comments = find_comments(body, &scalars);
    let goes = |comment: &&Range<usize>| {
        edits.iter().any(|(range, _)| range.start <= comment.start && comment.start < range.end)
    };
    let removed_comments =
        comments.iter().filter(goes).map(|comment| body[comment.clone()].trim_end().to_owned()).collect();
    let mut changed = body.to_owned();
    for (range, new) in edits.into_iter().rev() {
        changed.replace_range(range, &new);
    }
    Some(EditedYaml { text: format!("{bom}{changed}"), removed_comments })
}

/// Returns whether the text has a comment. If the text cannot be parsed, returns whether it contains a `#`.
pub fn has_comments(text: &str) -> bool {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match parser::parse_nodes(text) {
        Some(ParsedYaml { scalars, .. }) => !find_comments(text, &scalars).is_empty(),
        None => text.contains('#'),
    }
}

/// Returns the ranges of comments. A comment starts with a `#` after whitespace and outside of scalars.
fn find_comments(text: &str, scalars: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for (at, _) in text.match_indices('#') {
        let begins = text[..at].chars().next_back().is_none_or(char::is_whitespace);
        let inside = scalars.iter().chain(&found).any(|range| range.contains(&at));
        if begins && !inside {
            found.push(at..line_end(text, at));
        }
    }
    found
}

fn line_end(text: &str, from: usize) -> usize {
    let end = text[from..].find('\n').map_or(text.len(), |end| from + end);
    if text[from..end].ends_with('\r') { end - 1 } else { end }
}

fn line_start(text: &str, from: usize) -> usize {
    text[..from].rfind('\n').map_or(0, |end| end + 1)
}

/// Returns the offset at which the next line starts.
fn next_line_start(text: &str, from: usize) -> usize {
    text[from..].find('\n').map_or(text.len(), |end| from + end + 1)
}

/// Formats a new document with all fields of `document`: first the fields listed in `order`, then all other fields.
pub fn format_document(document: &Value, order: &[&str]) -> String {
    let first = order.iter().filter_map(|name| Some((*name, document.get(*name)?)));
    let others = document.as_object().into_iter().flatten().filter(|(name, _)| !order.contains(&name.as_str()));
    let fields = first.chain(others.map(|(name, value)| (name.as_str(), value)));
    fields.map(|(name, value)| format!("{}:{}\n", format_scalar(name), format_block(value, 0, 1, "\n"))).collect()
}

struct YamlEditor<'a> {
    text: &'a str,
    edits: Vec<(Range<usize>, String)>,
}

impl YamlEditor<'_> {
    /// Edits a value. `from` is the offset after the colon of a field; `None` for an item of a list, and for the whole
    /// document.
    fn change_value(
        &mut self,
        node: &YamlNode,
        from: Option<usize>,
        old: &Value,
        new: &Value,
        depth: usize,
    ) -> Option<()> {
        if old == new {
            return Some(());
        }
        match (&node.kind, old, new) {
            (NodeKind::Map(entries), Value::Object(old), Value::Object(new))
                if entries.iter().any(|entry| !is_removed(entry, old, new)) =>
            {
                self.change_fields(node, entries, old, new, depth)
            }
            (NodeKind::List(items), Value::Array(old), Value::Array(new))
                if !items.is_empty() && !new.is_empty() && items.len() == old.len() =>
            {
                self.change_items(node, items, old, new, depth)
            }
            _ => self.replace_value(node, from, new, depth),
        }
    }

    fn replace_value(&mut self, node: &YamlNode, from: Option<usize>, new: &Value, depth: usize) -> Option<()> {
        let is_short = !new.is_array() && !new.is_object();
        let (range, text) = match from {
            // Only the value is replaced. The text between the colon and the value is preserved.
            Some(_) if is_short && !node.is_empty() && node.is_scalar() => (node.range()?, format_flow(new)),
            Some(from) if node.within_flow => (from..node.end?, format!(" {}", format_flow(new))),
            Some(from) => {
                let indent = self.indent_of(from);
                (from..node.end?, format_block(new, indent, depth, self.newline()))
            }
            None => (node.range()?, format_flow(new)),
        };
        self.edits.push((range, text));
        Some(())
    }

    fn change_fields(
        &mut self,
        node: &YamlNode,
        entries: &[MapEntry],
        old: &Map<String, Value>,
        new: &Map<String, Value>,
        depth: usize,
    ) -> Option<()> {
        for (index, entry) in entries.iter().enumerate() {
            let (before, after) = (field_value(old, &entry.key), field_value(new, &entry.key));
            match is_removed(entry, old, new) {
                true => self.remove_entry(node, entries, index)?,
                // A field of the text that neither `old` nor `new` contains is not changed.
                false if before == after => {}
                false => self.change_value(&entry.node, Some(entry.colon + 1), &before, &after, depth + 1)?,
            }
        }
        let is_new = |name: &str| !entries.iter().any(|entry| entry.key == name);
        let added =
            new.iter().filter(|(name, value)| is_new(name) && !value.is_null() && field_value(old, name) != **value);
        let last = entries.last()?;
        for (name, value) in added {
            let text = if node.flow {
                format!(", {}: {}", format_scalar(name), format_flow(value))
            } else {
                let indent = self.column_of(entries.first()?.start);
                let blanks = " ".repeat(indent);
                format!(
                    "{}{blanks}{}:{}",
                    self.newline(),
                    format_scalar(name),
                    format_block(value, indent, depth + 1, self.newline())
                )
            };
            let at = last.node.end?;
            let at = if node.flow { at } else { line_end(self.text, at) };
            self.edits.push((at..at, text));
        }
        Some(())
    }

    fn remove_entry(&mut self, node: &YamlNode, entries: &[MapEntry], index: usize) -> Option<()> {
        let entry = &entries[index];
        let range = match (node.flow, entries.get(index + 1)) {
            (true, Some(next)) => entry.start..next.start,
            (true, None) => entries[index.checked_sub(1)?].node.end?..entry.node.end?,
            (false, next) => {
                let start = line_start(self.text, entry.start);
                match (self.text[start..entry.start].trim().is_empty(), next) {
                    (true, _) => start..next_line_start(self.text, entry.node.end?),
                    // The removed field is the first one after the dash of a list item, so the next field takes its
                    // position.
                    (false, Some(next)) => entry.start..next.start,
                    (false, None) => return None,
                }
            }
        };
        self.edits.push((range, String::new()));
        Some(())
    }

    fn change_items(
        &mut self,
        node: &YamlNode,
        items: &[YamlNode],
        old: &[Value],
        new: &[Value],
        depth: usize,
    ) -> Option<()> {
        let places = match_items(old, new);
        let stays: Vec<usize> = places.iter().flatten().copied().collect();
        if stays.is_empty() || !stays.is_sorted() {
            return None;
        }
        for (index, _) in items.iter().enumerate().filter(|(index, _)| !stays.contains(index)) {
            self.remove_item(node, items, index)?;
        }
        let mut previous: Option<usize> = None;
        for (value, place) in new.iter().zip(&places) {
            match place {
                Some(place) => {
                    self.change_value(&items[*place], None, &old[*place], value, depth + 1)?;
                    previous = Some(*place);
                }
                None => self.insert_item(node, items, previous, stays[0], value, depth)?,
            }
        }
        Some(())
    }

    fn remove_item(&mut self, node: &YamlNode, items: &[YamlNode], index: usize) -> Option<()> {
        let item = &items[index];
        let range = match (node.flow, items.get(index + 1)) {
            (true, Some(next)) => item.start..next.start,
            (true, None) => items[index.checked_sub(1)?].end?..item.end?,
            (false, _) => {
                let dash = self.find_dash(item)?;
                let start = line_start(self.text, dash);
                if !self.text[start..dash].trim().is_empty() {
                    return None;
                }
                start..next_line_start(self.text, item.end?)
            }
        };
        self.edits.push((range, String::new()));
        Some(())
    }

    /// Inserts `value` into a list, after the item with the index `previous`. If `previous` is `None`, inserts `value`
    /// in front of the item with the index `first`, which is the first preserved item.
    fn insert_item(
        &mut self,
        node: &YamlNode,
        items: &[YamlNode],
        previous: Option<usize>,
        first: usize,
        value: &Value,
        depth: usize,
    ) -> Option<()> {
        let neighbor = &items[previous.unwrap_or(first)];
        let (at, text) = match (node.flow, previous) {
            (true, Some(_)) => (neighbor.end?, format!(", {}", format_flow(value))),
            (true, None) => (neighbor.start, format!("{}, ", format_flow(value))),
            (false, _) => {
                let dash = self.find_dash(neighbor)?;
                let newline = self.newline();
                let item = formatter::format_item(value, self.column_of(dash), depth, newline);
                match previous {
                    Some(_) => (line_end(self.text, neighbor.end?), format!("{newline}{item}")),
                    None => (line_start(self.text, dash), format!("{item}{newline}")),
                }
            }
        };
        self.edits.push((at..at, text));
        Some(())
    }

    fn find_dash(&self, item: &YamlNode) -> Option<usize> {
        let before = self.text[..item.start].trim_end();
        before.ends_with('-').then(|| before.len() - 1)
    }

    fn column_of(&self, at: usize) -> usize {
        self.text[line_start(self.text, at)..at].chars().count()
    }

    /// Returns the indentation of the field in this line. Dashes of list items are part of the indentation.
    fn indent_of(&self, at: usize) -> usize {
        let line = &self.text[line_start(self.text, at)..at];
        line.chars().take_while(|c| [' ', '-'].contains(c)).count()
    }

    fn newline(&self) -> &'static str {
        if self.text.contains("\r\n") { "\r\n" } else { "\n" }
    }
}

/// Returns the value of a field, or null if it is missing.
fn field_value(fields: &Map<String, Value>, name: &str) -> Value {
    fields.get(name).cloned().unwrap_or_default()
}

fn is_removed(entry: &MapEntry, old: &Map<String, Value>, new: &Map<String, Value>) -> bool {
    field_value(new, &entry.key).is_null() && !field_value(old, &entry.key).is_null()
}

/// Returns, for each new item, the index of an equal old item or, if there is none, of an old item with the same name.
fn match_items(old: &[Value], new: &[Value]) -> Vec<Option<usize>> {
    let mut places: Vec<Option<usize>> = vec![None; new.len()];
    let is_free = |places: &[Option<usize>], index: usize| !places.contains(&Some(index));
    for (place, value) in new.iter().enumerate() {
        let same = (0..old.len()).find(|index| old[*index] == *value && is_free(&places, *index));
        places[place] = same;
    }
    for (place, value) in new.iter().enumerate() {
        if places[place].is_none() {
            places[place] = (0..old.len()).find(|index| is_namesake(&old[*index], value) && is_free(&places, *index));
        }
    }
    places
}

fn is_namesake(one: &Value, other: &Value) -> bool {
    let says = |name: &&str| [one, other].iter().any(|value| value.get(*name).is_some_and(|value| !value.is_null()));
    NAMES.into_iter().find(says).is_some_and(|name| one.get(name) == other.get(name))
}

#[cfg(test)]
mod tests;
