//! Takes a document apart field by field: names and their other spellings, kinds of values, and a list of what was wrong.

use super::document::{Entry, Mark, Node, Value, child, marked};
use super::edit::{Edit, New};
use super::words::{is_number_or_truth, mib_of, nearest, plain, quoted, whole_number};
use crate::problem::Problem;
use std::collections::HashMap;
use std::str::FromStr;

/// A field by its canonical name, and the other names in use for it.
pub(super) struct Field {
    pub name: &'static str,
    pub also: &'static [&'static str],
}

/// What reading a document has brought to light so far.
#[derive(Default)]
pub(super) struct Reader {
    pub problems: Vec<Problem>,
    pub notes: Vec<Problem>,
    /// What makes the spelling canonical.
    pub edits: Vec<Edit>,
    /// Canonical places whose value could not be had; the types hold a stand-in there.
    pub unread: Vec<String>,
    pub places: Places,
}

/// One mapping of the document with its fields under their canonical names.
pub(super) struct Fields<'a> {
    /// Canonical place, as the rules name it.
    pub place: String,
    node: &'a Node,
    found: Vec<(&'static str, &'a Node)>,
    /// Canonical names that an unknown field was probably meant to be.
    misspelt: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    /// The field's value; absent and null are the same.
    pub fn get(&self, name: &str) -> Option<&'a Node> {
        let found = self.found.iter().find(|(canonical, _)| *canonical == name);
        found.map(|(_, node)| *node).filter(|node| !matches!(node.value, Value::Null))
    }

    pub fn at(&self, name: &str) -> String {
        child(&self.place, name)
    }
}

/// Where the value at each canonical place stands in the document: its place as spelt there, and its mark.
#[derive(Debug, Clone, Default)]
pub struct Places(HashMap<String, (String, Option<Mark>)>);

impl Places {
    /// Gives a rule's problem the place, line and column in the document.
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
    /// Goes on from what reading the document itself has brought to light.
    pub fn new(problems: Vec<Problem>) -> Reader {
        Reader { problems, ..Reader::default() }
    }

    pub fn problem(&mut self, node: &Node, message: impl Into<String>) {
        self.problems.push(node.problem(message));
    }

    /// Notes an unusual spelling, and the canonical one.
    pub fn respell(&mut self, node: &Node, new: New, message: impl Into<String>) {
        self.notes.push(node.problem(message));
        let old = match &node.value {
            Value::Scalar { text, .. } => text.as_str(),
            Value::List(items) if items.is_empty() => "[]",
            _ => return,
        };
        self.edits.extend(Edit::at(node.mark, old, new));
    }

    /// A problem after which the value at the canonical `place` is not known.
    pub fn unreadable(&mut self, node: &Node, place: &str, message: impl Into<String>) {
        if !matches!(node.value, Value::Unreadable) {
            self.problem(node, message);
        }
        self.unread.push(place.to_owned());
    }

    /// Notes where the value at a canonical place stands in the document.
    pub fn place(&mut self, place: &str, node: &Node) {
        self.places.0.insert(place.to_owned(), (node.place.clone(), node.mark));
    }

    /// The fields of a mapping, with a problem for each name that is none of `known`.
    pub fn fields<'a>(&mut self, node: &'a Node, place: &str, known: &[Field]) -> Option<Fields<'a>> {
        self.fields_of_v2(node, place, known, &[])
    }

    /// The same where metal-stack's v2 API has fields more, which are for people and mean nothing here.
    pub fn fields_of_v2<'a>(
        &mut self,
        node: &'a Node,
        place: &str,
        known: &[Field],
        unread: &[&str],
    ) -> Option<Fields<'a>> {
        self.place(place, node);
        let Value::Map(entries) = &node.value else {
            self.unreadable(node, place, format!("must be a mapping of fields, found {}", node.kind()));
            return None;
        };
        let mut fields = Fields { place: place.to_owned(), node, found: Vec::new(), misspelt: Vec::new() };
        for entry in entries {
            match known_as(&entry.key, known) {
                Some(field) => self.known_field(&mut fields, entry, field.name),
                None if unread.contains(&entry.key.as_str()) => {
                    let message = "metal-stack's v2 API has this field, and it is not read here";
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
            let message = format!("{name} is given twice, under two of its names");
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
            None => format!("known here: {}", known.iter().map(|field| field.name).collect::<Vec<_>>().join(", ")),
        };
        let message = format!("unknown field {}; {hint}", entry.key);
        self.problems.push(marked(&entry.node.place, entry.mark, message));
    }

    /// A field that must be there. One that was misspelt has been reported under its wrong name.
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

    /// A single value as written, and whether it stands without quotes.
    pub fn scalar<'a>(&mut self, node: &'a Node, place: &str) -> Option<(&'a str, bool)> {
        match &node.value {
            Value::Scalar { text, plain } => Some((text, *plain)),
            _ => {
                self.unreadable(node, place, format!("must be a single value, found {}", node.kind()));
                None
            }
        }
    }

    pub fn text(&mut self, node: &Node, place: &str) -> Option<String> {
        let (text, plain) = self.scalar(node, place)?;
        if plain && is_number_or_truth(text) {
            let message = format!("this is text: only in quotes, \"{text}\", is it that for every reader");
            self.respell(node, New::Raw(format!("{text:?}")), message);
        }
        Some(text.to_owned())
    }

    /// Text that may be absent; empty text is absent.
    pub fn optional_text(&mut self, fields: &Fields, name: &str) -> Option<String> {
        let node = fields.get(name)?;
        self.text(node, &fields.at(name)).filter(|text| !text.is_empty())
    }

    /// Text that must be there; empty when it is not, which is then in `unread`.
    pub fn required_text(&mut self, fields: &Fields, name: &str) -> String {
        let node = self.required(fields, name, &format!("{name} is missing"));
        node.and_then(|node| self.text(node, &fields.at(name))).unwrap_or_default()
    }

    /// A whole number, not negative.
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
                let mib = mib.map(|mib| format!("; sizes are MiB: write {mib}")).unwrap_or_default();
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
                    format!("must be true or false, without quotes, found {found}"),
                );
                false
            }
        }
    }

    /// The items of a list, each read by `read`; an absent list is empty.
    pub fn items<T>(
        &mut self,
        fields: &Fields,
        name: &str,
        mut read: impl FnMut(&mut Reader, &Node, &str) -> Option<T>,
    ) -> Vec<T> {
        let Some(node) = fields.get(name) else { return Vec::new() };
        let place = fields.at(name);
        let Value::List(items) = &node.value else {
            self.unreadable(node, &place, format!("must be a list, found {}", node.kind()));
            return Vec::new();
        };
        let mut values = Vec::new();
        for item in items {
            // By the position in the types, which the rules speak of: an item that could not be read is not in them.
            let place = format!("{place}[{}]", values.len());
            self.place(&place, item);
            match read(self, item, &place) {
                Some(value) => values.push(value),
                None => self.incomplete(fields, name, &place),
            }
        }
        values
    }

    /// An item is not in the list: nothing can be said about the list as a whole, and the place is free again.
    fn incomplete(&mut self, fields: &Fields, name: &str, place: &str) {
        self.unread.retain(|unread| unread != place);
        self.unread.push(format!("{}[]", fields.at(name)));
    }

    pub fn texts(&mut self, fields: &Fields, name: &str) -> Vec<String> {
        self.items(fields, name, |reader, node, place| reader.text(node, place))
    }

    /// Words in one string where a list belongs, as `split` finds them; `None` when the value is no string.
    pub fn one_string(&mut self, fields: &Fields, name: &str, split: fn(&str) -> Vec<&str>) -> Option<Vec<String>> {
        let node = fields.get(name)?;
        let Value::Scalar { text, .. } = &node.value else { return None };
        let words = split(text);
        let list = format!("[{}]", quoted(&words));
        let words = words.into_iter().map(str::to_owned).collect();
        self.respell(node, New::Raw(list.clone()), format!("this is a list of single words: {list}"));
        Some(words)
    }
}

/// The field of that name. metal-stack's v2 API writes `mount_options` and `mountOptions`.
fn known_as<'k>(name: &str, known: &'k [Field]) -> Option<&'k Field> {
    let exact = known.iter().find(|field| field.name == name || field.also.contains(&name));
    exact.or_else(|| known.iter().find(|field| field.name == plain(name) && name.len() <= 40))
}
