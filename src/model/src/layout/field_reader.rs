//! Field-by-field reader of a document: resolves alternative field names, checks types, and collects all problems.

use super::field_name_spelling::{find_nearest, normalize_name};
use super::spelling_edits::{EditReplacement, SpellingEdit};
use super::value_syntax::{convert_to_mib, is_number_or_boolean, parse_integer, quote_words};
use super::yaml_document::{DocumentEntry, DocumentNode, NodeValue, SourceLocation, located_problem};
use common::diagnostic::{Diagnostic, child_path};
use std::collections::HashMap;
use std::str::FromStr;

/// Canonical name and alternative names of a field.
pub(super) struct FieldNames {
    pub name: &'static str,
    pub also: &'static [&'static str],
}

/// Reader of a document that collects problems, notes about non-canonical names and values, and edits.
#[derive(Default)]
pub(super) struct LayoutReader {
    pub problems: Vec<Diagnostic>,
    pub notes: Vec<Diagnostic>,
    /// Edits that change the spelling of the document to the canonical one.
    pub edits: Vec<SpellingEdit>,
    /// Canonical paths of values that could not be read. The parsed layout contains substitutes for these values.
    pub unread: Vec<String>,
    pub source_map: SourceMap,
}

/// Mapping of the document, with its fields indexed by their canonical names.
pub(super) struct LayoutFields<'a> {
    /// Canonical path of the mapping. The validation uses this path.
    pub place: String,
    node: &'a DocumentNode,
    found: Vec<(&'static str, &'a DocumentNode)>,
    /// Canonical names of the fields that the mapping probably contains under a misspelt name.
    misspelt: Vec<&'static str>,
}

impl<'a> LayoutFields<'a> {
    /// Returns the value of a field; `None` if it is missing or null.
    pub(crate) fn get(&self, name: &str) -> Option<&'a DocumentNode> {
        let found = self.found.iter().find(|(canonical, _)| *canonical == name);
        found.map(|(_, node)| *node).filter(|node| !matches!(node.value, NodeValue::Null))
    }

    pub(crate) fn path_of(&self, name: &str) -> String {
        child_path(&self.place, name)
    }
}

/// Map from the canonical path of each value to its path in the document, with line and column.
#[derive(Debug, Clone, Default)]
pub(crate) struct SourceMap(HashMap<String, (String, Option<SourceLocation>)>);

impl SourceMap {
    /// Replaces the canonical path of a problem by the path in the document, and adds line and column.
    pub(crate) fn locate_problem(&self, mut problem: Diagnostic) -> Diagnostic {
        let mut place = problem.place.as_str();
        loop {
            if let Some((spelt, mark)) = self.0.get(place) {
                return located_problem(spelt, *mark, problem.message);
            }
            match place.rfind(['.', '[']) {
                Some(end) => place = &place[..end],
                None => break,
            }
        }
        if let Some((_, mark)) = self.0.get("") {
            problem.line = mark.map(|mark| mark.line);
            problem.column = mark.map(|mark| mark.column);
        }
        problem
    }
}

impl LayoutReader {
    /// Creates a reader whose list of problems starts with the syntax problems of the document.
    pub fn new(problems: Vec<Diagnostic>) -> LayoutReader {
        LayoutReader { problems, ..LayoutReader::default() }
    }

    pub(crate) fn report(&mut self, node: &DocumentNode, message: impl Into<String>) {
        self.problems.push(node.make_problem(message));
    }

    /// Records a note about a spelling that is not canonical, and the edit that replaces it with the canonical
    /// spelling.
    pub(crate) fn record_respelling(&mut self, node: &DocumentNode, new: EditReplacement, message: impl Into<String>) {
        self.notes.push(node.make_problem(message));
        let old = match &node.value {
            NodeValue::Scalar { text, .. } => text.as_str(),
            NodeValue::List(items) if items.is_empty() => "[]",
            _ => return,
        };
        self.edits.extend(SpellingEdit::at_location(node.mark, old, new));
    }

    /// Reports a problem that prevents reading the value at the canonical path `place`.
    pub(crate) fn report_unreadable(&mut self, node: &DocumentNode, place: &str, message: impl Into<String>) {
        if !matches!(node.value, NodeValue::Unreadable) {
            self.report(node, message);
        }
        self.unread.push(place.to_owned());
    }

    /// Records the location of the value with the canonical path `place`: its path, line and column in the document.
    pub(crate) fn record_location(&mut self, place: &str, node: &DocumentNode) {
        self.source_map.0.insert(place.to_owned(), (node.place.clone(), node.mark));
    }

    /// Returns the fields of a mapping. Reports each field whose name is not in `known`.
    pub(crate) fn read_fields<'a>(
        &mut self,
        node: &'a DocumentNode,
        place: &str,
        known: &[FieldNames],
    ) -> Option<LayoutFields<'a>> {
        self.read_fields_with_ignored(node, place, known, &[])
    }

    /// Returns the fields of a mapping, as [`LayoutReader::read_fields`] does. Fields in `unread`, which are
    /// descriptive fields of metal-stack's v2 API, are ignored and reported as notes.
    pub(crate) fn read_fields_with_ignored<'a>(
        &mut self,
        node: &'a DocumentNode,
        place: &str,
        known: &[FieldNames],
        unread: &[&str],
    ) -> Option<LayoutFields<'a>> {
        self.record_location(place, node);
        let NodeValue::Map(entries) = &node.value else {
            self.report_unreadable(
                node,
                place,
                format!("must be a mapping of fields, but is {actual}", actual = node.describe_type()),
            );
            return None;
        };
        let mut fields = LayoutFields { place: place.to_owned(), node, found: Vec::new(), misspelt: Vec::new() };
        for entry in entries {
            match find_field(&entry.key, known) {
                Some(field) => self.add_known_field(&mut fields, entry, field.name),
                None if unread.contains(&entry.key.as_str()) => {
                    let message = "this field of metal-stack's v2 API is ignored";
                    self.notes.push(located_problem(&entry.node.place, entry.mark, message));
                    self.edits.extend(SpellingEdit::at_location(entry.mark, &entry.key, EditReplacement::Removal));
                }
                None => self.report_unknown_field(&mut fields, entry, known),
            }
        }
        Some(fields)
    }

    fn add_known_field<'a>(&mut self, fields: &mut LayoutFields<'a>, entry: &'a DocumentEntry, name: &'static str) {
        if fields.found.iter().any(|(canonical, _)| *canonical == name) {
            let message = format!("the field {name} is specified twice, under two different names");
            self.problems.push(located_problem(&entry.node.place, entry.mark, message));
            return;
        }
        if entry.key != name {
            let message = format!("the canonical name of this field is {name}");
            self.notes.push(located_problem(&entry.node.place, entry.mark, message));
            self.edits.extend(SpellingEdit::at_location(
                entry.mark,
                &entry.key,
                EditReplacement::Text(name.to_owned()),
            ));
        }
        self.record_location(&fields.path_of(name), &entry.node);
        fields.found.push((name, &entry.node));
    }

    fn report_unknown_field(&mut self, fields: &mut LayoutFields, entry: &DocumentEntry, known: &[FieldNames]) {
        let spellings =
            known.iter().flat_map(|field| field.also.iter().chain([&field.name]).map(|name| (*name, field.name)));
        let hint = match find_nearest(&entry.key, spellings) {
            Some(name) => {
                fields.misspelt.push(name);
                format!("did you mean {name}?")
            }
            None => format!("supported: {}", known.iter().map(|field| field.name).collect::<Vec<_>>().join(", ")),
        };
        let message = format!("unknown field {}; {hint}", entry.key);
        self.problems.push(located_problem(&entry.node.place, entry.mark, message));
    }

    /// Returns a required field. If the field is missing, and no misspelt name of the field has been reported, reports
    /// the missing field.
    pub(crate) fn read_required<'a>(
        &mut self,
        fields: &LayoutFields<'a>,
        name: &str,
        missing: &str,
    ) -> Option<&'a DocumentNode> {
        let found = fields.get(name);
        if found.is_none() {
            if !fields.misspelt.contains(&name) {
                let place = child_path(&fields.node.place, name);
                self.problems.push(located_problem(&place, fields.node.mark, missing));
            }
            self.unread.push(fields.path_of(name));
        }
        found
    }

    /// Returns the text of a scalar, and whether it is written without quotes.
    pub(crate) fn read_scalar<'a>(&mut self, node: &'a DocumentNode, place: &str) -> Option<(&'a str, bool)> {
        match &node.value {
            NodeValue::Scalar { text, plain } => Some((text, *plain)),
            _ => {
                self.report_unreadable(
                    node,
                    place,
                    format!("must be a single value, but is {actual}", actual = node.describe_type()),
                );
                None
            }
        }
    }

    pub(crate) fn read_text(&mut self, node: &DocumentNode, place: &str) -> Option<String> {
        let (text, plain) = self.read_scalar(node, place)?;
        if plain && is_number_or_boolean(text) {
            let message = format!(
                "must be text: write \"{text}\" in quotes, because YAML parsers may treat {text} as another type"
            );
            self.record_respelling(node, EditReplacement::Raw(format!("{text:?}")), message);
        }
        Some(text.to_owned())
    }

    /// Returns an optional text; `None` if it is missing or empty.
    pub(crate) fn read_optional_text(&mut self, fields: &LayoutFields, name: &str) -> Option<String> {
        let node = fields.get(name)?;
        self.read_text(node, &fields.path_of(name)).filter(|text| !text.is_empty())
    }

    /// Returns a required text. If the text is missing, reports this and returns an empty string.
    pub(crate) fn read_required_text(&mut self, fields: &LayoutFields, name: &str) -> String {
        let node = self.read_required(fields, name, &format!("{name} is missing"));
        node.and_then(|node| self.read_text(node, &fields.path_of(name))).unwrap_or_default()
    }

    /// Returns the value of a field as a non-negative integer. Reports any other value.
    pub(crate) fn read_number<T: FromStr>(&mut self, node: &DocumentNode, place: &str) -> Option<T> {
        let (text, plain) = self.read_scalar(node, place)?;
        match parse_integer(text) {
            Ok(number) => {
                if !plain {
                    let message = format!("the value must be a number: write {text} without quotes");
                    self.record_respelling(node, EditReplacement::Raw(text.to_owned()), message);
                }
                Some(number)
            }
            Err(why) => {
                let mib = if place.ends_with(".size") { convert_to_mib(text) } else { None };
                let mib = mib.map(|mib| format!("; sizes are in MiB: write {mib}")).unwrap_or_default();
                self.report_unreadable(node, place, why + &mib);
                None
            }
        }
    }

    pub(crate) fn read_required_number<T: FromStr>(
        &mut self,
        fields: &LayoutFields,
        name: &str,
        missing: &str,
    ) -> Option<T> {
        let node = self.read_required(fields, name, missing)?;
        self.read_number(node, &fields.path_of(name))
    }

    pub(crate) fn read_flag(&mut self, fields: &LayoutFields, name: &str) -> bool {
        let Some(node) = fields.get(name) else { return false };
        self.read_flag_value(node, &fields.path_of(name), "true or false without quotes")
    }

    /// Returns the value of a flag. `expected` describes the permitted values in the message about any other value.
    pub(crate) fn read_flag_value(&mut self, node: &DocumentNode, place: &str, expected: &str) -> bool {
        match self.read_scalar(node, place) {
            Some(("true" | "True" | "TRUE", true)) => true,
            Some(("false" | "False" | "FALSE", true)) | None => false,
            Some((text, plain)) => {
                let found = if plain { text.to_owned() } else { format!("{text:?}") };
                self.report_unreadable(node, place, format!("must be {expected}, but is {found}"));
                false
            }
        }
    }

    /// Reads each item of a list with `read`, and returns the results. The result is empty if the list is missing.
    pub(crate) fn read_items<T>(
        &mut self,
        fields: &LayoutFields,
        name: &str,
        mut read: impl FnMut(&mut LayoutReader, &DocumentNode, &str) -> Option<T>,
    ) -> Vec<T> {
        let Some(node) = fields.get(name) else { return Vec::new() };
        let place = fields.path_of(name);
        let NodeValue::List(items) = &node.value else {
            self.report_unreadable(
                node,
                &place,
                format!("must be a list, but is {actual}", actual = node.describe_type()),
            );
            return Vec::new();
        };
        let mut values = Vec::new();
        for item in items {
            // The path counts only readable items. The rules check the parsed layout, which lacks the unreadable items,
            // so the index in the path must be the index in the parsed layout.
            let place = format!("{place}[{}]", values.len());
            self.record_location(&place, item);
            match read(self, item, &place) {
                Some(value) => values.push(value),
                None => self.mark_incomplete(fields, name, &place),
            }
        }
        values
    }

    /// Records that an item of a list could not be read. Rules for the whole list are then skipped. The path of this
    /// item is not marked as unread: only readable items are counted in paths, so the next item gets the index and path
    /// that this item would have had.
    fn mark_incomplete(&mut self, fields: &LayoutFields, name: &str, place: &str) {
        self.unread.retain(|unread| unread != place);
        self.unread.push(format!("{}[]", fields.path_of(name)));
    }

    pub(crate) fn read_texts(&mut self, fields: &LayoutFields, name: &str) -> Vec<String> {
        self.read_items(fields, name, |reader, node, place| reader.read_text(node, place))
    }

    /// Splits a string that the document contains in place of a list. Returns `None` if the value is not a string.
    pub(crate) fn split_string(
        &mut self,
        fields: &LayoutFields,
        name: &str,
        split: fn(&str) -> Vec<&str>,
    ) -> Option<Vec<String>> {
        let node = fields.get(name)?;
        let NodeValue::Scalar { text, .. } = &node.value else { return None };
        let words = split(text);
        let list = format!("[{}]", quote_words(&words));
        let words = words.into_iter().map(str::to_owned).collect();
        self.record_respelling(
            node,
            EditReplacement::Raw(list.clone()),
            format!("write a list with one word per item: {list}"),
        );
        Some(words)
    }
}

/// Returns the field with this name, or with an equivalent name of metal-stack's v2 API, such as `mountOptions`.
fn find_field<'k>(name: &str, known: &'k [FieldNames]) -> Option<&'k FieldNames> {
    let exact = known.iter().find(|field| field.name == name || field.also.contains(&name));
    exact.or_else(|| known.iter().find(|field| field.name == normalize_name(name) && name.len() <= 40))
}
