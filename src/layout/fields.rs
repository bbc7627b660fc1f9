//! Field-by-field access to a document: alternative names, value types, and a list of problems.

use super::document::{Entry, Mark, Node, Value, child, marked};
use super::edit::{Edit, New};
use super::words::{is_number_or_truth, mib_of, nearest, plain, quoted, whole_number};
use crate::problem::Problem;
use std::collections::HashMap;
use std::str::FromStr;

/// Field with its canonical name and its alternative names.
pub(super) struct Field {
    pub name: &'static str,
    pub also: &'static [&'static str],
}

/// Reader that collects problems, notes and edits.
#[derive(Default)]
pub(super) struct Reader {
    pub problems: Vec<Problem>,
    pub notes: Vec<Problem>,
    /// Edits that make the spelling canonical.
    pub edits: Vec<Edit>,
    /// Canonical paths of values that could not be read; the types contain a substitute there.
    pub unread: Vec<String>,
    pub places: Places,
}

/// Mapping of the document, with its fields under their canonical names.
pub(super) struct Fields<'a> {
    /// Canonical path, as used by the rules.
    pub place: String,
    node: &'a Node,
    found: Vec<(&'static str, &'a Node)>,
    /// Canonical names that an unknown field was probably meant to be.
    misspelt: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    /// Returns the value of a field; `None` if it is missing or null.
    pub fn get(&self, name: &str) -> Option<&'a Node> {
        let found = self.found.iter().find(|(canonical, _)| *canonical == name);
        found.map(|(_, node)| *node).filter(|node| !matches!(node.value, Value::Null))
    }

    pub fn at(&self, name: &str) -> String {
        child(&self.place, name)
    }
}

/// Path, line and column in the document of the value at each canonical path.
#[derive(Debug, Clone, Default)]
pub struct Places(HashMap<String, (String, Option<Mark>)>);

impl Places {
    /// Returns the problem of a rule with its path, line and column in the document.
    pub fn locate(&self, mut problem: Problem) -> Problem {
        let mut place = problem.place.as_str();
        loop {
            if let Some((spelt, mark)) = self.0.get(place) {
                return marked(spelt, *mark, problem.message);
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

impl Reader {
    /// Creates a reader that already has the problems of the document itself.
    pub fn new(problems: Vec<Problem>) -> Reader {
        Reader { problems, ..Reader::default() }
    }

    pub fn problem(&mut self, node: &Node, message: impl Into<String>) {
        self.problems.push(node.problem(message));
    }

    /// Records an unusual spelling and its canonical form.
    pub fn respell(&mut self, node: &Node, new: New, message: impl Into<String>) {
        self.notes.push(node.problem(message));
        let old = match &node.value {
            Value::Scalar { text, .. } => text.as_str(),
            Value::List(items) if items.is_empty() => "[]",
            _ => return,
        };
        self.edits.extend(Edit::at(node.mark, old, new));
    }

    /// Reports a problem that leaves the value at the canonical `place` unknown.
    pub fn unreadable(&mut self, node: &Node, place: &str, message: impl Into<String>) {
        if !matches!(node.value, Value::Unreadable) {
            self.problem(node, message);
        }
        self.unread.push(place.to_owned());
    }

    /// Records the location in the document of the value at a canonical path.
    pub fn place(&mut self, place: &str, node: &Node) {
        self.places.0.insert(place.to_owned(), (node.place.clone(), node.mark));
    }

    /// Returns the fields of a mapping, and reports each name that is not in `known`.
    pub fn fields<'a>(&mut self, node: &'a Node, place: &str, known: &[Field]) -> Option<Fields<'a>> {
        self.fields_of_v2(node, place, known, &[])
    }

    /// Returns the fields of a mapping. `unread` lists descriptive fields of metal-stack's v2 API, which are ignored with a note.
    pub fn fields_of_v2<'a>(
        &mut self,
        node: &'a Node,
        place: &str,
        known: &[Field],
        unread: &[&str],
    ) -> Option<Fields<'a>> {
        self.place(place, node);
        let Value::Map(entries) = &node.value else {
            self.unreadable(node, place, format!("must be a mapping of fields, but is {}", node.kind()));
            return None;
        };
        let mut fields = Fields { place: place.to_owned(), node, found: Vec::new(), misspelt: Vec::new() };
        for entry in entries {
            match known_as(&entry.key, known) {
                Some(field) => self.known_field(&mut fields, entry, field.name),
                None if unread.contains(&entry.key.as_str()) => {
                    let message = "this field of metal-stack's v2 API is ignored";
                    self.notes.push(marked(&entry.node.place, entry.mark, message));
                    self.edits.extend(Edit::at(entry.mark, &entry.key, New::Nothing));
                }
                None => self.unknown_field(&mut fields, entry, known),
            }
        }
        Some(fields)
    }

    fn known_field<'a>(&mut self, fields: &mut Fields<'a>, entry: &'a Entry, name: &'static str) {
        if fields.found.iter().any(|(canonical, _)| *canonical == name) {
            let message = format!("{name} is specified twice, under two of its names");
            self.problems.push(marked(&entry.node.place, entry.mark, message));
            return;
        }
        if entry.key != name {
            let message = format!("the canonical name of this field is {name}");
            self.notes.push(marked(&entry.node.place, entry.mark, message));
            self.edits.extend(Edit::at(entry.mark, &entry.key, New::Text(name.to_owned())));
        }
        self.place(&fields.at(name), &entry.node);
        fields.found.push((name, &entry.node));
    }

    fn unknown_field(&mut self, fields: &mut Fields, entry: &Entry, known: &[Field]) {
        let spellings =
            known.iter().flat_map(|field| field.also.iter().chain([&field.name]).map(|name| (*name, field.name)));
        let hint = match nearest(&entry.key, spellings) {
            Some(name) => {
                fields.misspelt.push(name);
                format!("did you mean {name}?")
            }
            None => format!("supported: {}", known.iter().map(|field| field.name).collect::<Vec<_>>().join(", ")),
        };
        let message = format!("unknown field {}; {hint}", entry.key);
        self.problems.push(marked(&entry.node.place, entry.mark, message));
    }

    /// Returns a required field. A missing field is not reported if a misspelt name has been reported for it.
    pub fn required<'a>(&mut self, fields: &Fields<'a>, name: &str, missing: &str) -> Option<&'a Node> {
        let found = fields.get(name);
        if found.is_none() {
            if !fields.misspelt.contains(&name) {
                let place = child(&fields.node.place, name);
                self.problems.push(marked(&place, fields.node.mark, missing));
            }
            self.unread.push(fields.at(name));
        }
        found
    }

    /// Returns a scalar as written, and whether it is unquoted.
    pub fn scalar<'a>(&mut self, node: &'a Node, place: &str) -> Option<(&'a str, bool)> {
        match &node.value {
            Value::Scalar { text, plain } => Some((text, *plain)),
            _ => {
                self.unreadable(node, place, format!("must be a single value, but is {}", node.kind()));
                None
            }
        }
    }

    pub fn text(&mut self, node: &Node, place: &str) -> Option<String> {
        let (text, plain) = self.scalar(node, place)?;
        if plain && is_number_or_truth(text) {
            let message = format!(
                "this is text: write it in quotes, \"{text}\", because YAML parsers may treat it as another type"
            );
            self.respell(node, New::Raw(format!("{text:?}")), message);
        }
        Some(text.to_owned())
    }

    /// Returns optional text; empty text counts as missing.
    pub fn optional_text(&mut self, fields: &Fields, name: &str) -> Option<String> {
        let node = fields.get(name)?;
        self.text(node, &fields.at(name)).filter(|text| !text.is_empty())
    }

    /// Returns required text; if it is missing, reports that and returns an empty string.
    pub fn required_text(&mut self, fields: &Fields, name: &str) -> String {
        let node = self.required(fields, name, &format!("{name} is missing"));
        node.and_then(|node| self.text(node, &fields.at(name))).unwrap_or_default()
    }

    /// Returns a non-negative integer.
    pub fn number<T: FromStr>(&mut self, node: &Node, place: &str) -> Option<T> {
        let (text, plain) = self.scalar(node, place)?;
        match whole_number(text) {
            Ok(number) => {
                if !plain {
                    let message = format!("this is a number: write {text} without quotes");
                    self.respell(node, New::Raw(text.to_owned()), message);
                }
                Some(number)
            }
            Err(why) => {
                let mib = if place.ends_with(".size") { mib_of(text) } else { None };
                let mib = mib.map(|mib| format!("; sizes are in MiB: write {mib}")).unwrap_or_default();
                self.unreadable(node, place, why + &mib);
                None
            }
        }
    }

    pub fn required_number<T: FromStr>(&mut self, fields: &Fields, name: &str, missing: &str) -> Option<T> {
        let node = self.required(fields, name, missing)?;
        self.number(node, &fields.at(name))
    }

    pub fn flag(&mut self, fields: &Fields, name: &str) -> bool {
        let Some(node) = fields.get(name) else { return false };
        match self.scalar(node, &fields.at(name)) {
            Some(("true" | "True" | "TRUE", true)) => true,
            Some(("false" | "False" | "FALSE", true)) | None => false,
            Some((text, plain)) => {
                let found = if plain { text.to_owned() } else { format!("{text:?}") };
                self.unreadable(
                    node,
                    &fields.at(name),
                    format!("must be true or false without quotes, but is {found}"),
                );
                false
            }
        }
    }

    /// Returns the items of a list, each read by `read`; a missing list is empty.
    pub fn items<T>(
        &mut self,
        fields: &Fields,
        name: &str,
        mut read: impl FnMut(&mut Reader, &Node, &str) -> Option<T>,
    ) -> Vec<T> {
        let Some(node) = fields.get(name) else { return Vec::new() };
        let place = fields.at(name);
        let Value::List(items) = &node.value else {
            self.unreadable(node, &place, format!("must be a list, but is {}", node.kind()));
            return Vec::new();
        };
        let mut values = Vec::new();
        for item in items {
            // Numbered as in the types, which the rules refer to: items that could not be read are not in them.
            let place = format!("{place}[{}]", values.len());
            self.place(&place, item);
            match read(self, item, &place) {
                Some(value) => values.push(value),
                None => self.incomplete(fields, name, &place),
            }
        }
        values
    }

    /// Records that an item of the list could not be read: rules for the whole list no longer apply. The path belongs to the next item.
    fn incomplete(&mut self, fields: &Fields, name: &str, place: &str) {
        self.unread.retain(|unread| unread != place);
        self.unread.push(format!("{}[]", fields.at(name)));
    }

    pub fn texts(&mut self, fields: &Fields, name: &str) -> Vec<String> {
        self.items(fields, name, |reader, node, place| reader.text(node, place))
    }

    /// Splits a string that is written instead of a list; `None` if the value is not a string.
    pub fn one_string(&mut self, fields: &Fields, name: &str, split: fn(&str) -> Vec<&str>) -> Option<Vec<String>> {
        let node = fields.get(name)?;
        let Value::Scalar { text, .. } = &node.value else { return None };
        let words = split(text);
        let list = format!("[{}]", quoted(&words));
        let words = words.into_iter().map(str::to_owned).collect();
        self.respell(node, New::Raw(list.clone()), format!("write a list with one word per item: {list}"));
        Some(words)
    }
}

/// Returns the field with that name. metal-stack's v2 API writes `mount_options` and `mountOptions`.
fn known_as<'k>(name: &str, known: &'k [Field]) -> Option<&'k Field> {
    let exact = known.iter().find(|field| field.name == name || field.also.contains(&name));
    exact.or_else(|| known.iter().find(|field| field.name == plain(name) && name.len() <= 40))
}
