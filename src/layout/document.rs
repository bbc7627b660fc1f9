//! YAML or JSON document as a tree in which every value has a path, a line and a column.

use crate::problem::Problem;
use crate::text::{TAB, indenting_tab};
use yaml_rust2::Event;
use yaml_rust2::parser::Parser;
use yaml_rust2::scanner::{Marker, TScalarStyle};

/// Maximum nesting. A layout has at most five levels; the rest allows for misplaced values.
const MAX_DEPTH: usize = 32;
/// Maximum size of a document. A layout with a hundred disks of ten partitions each needs half of this. The search for duplicates takes
/// quadratic time.
const MAX_BYTES: usize = 128 << 10;

/// Line and column, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub line: usize,
    pub column: usize,
}

#[derive(Debug, Clone)]
pub(super) struct Node {
    /// Path as the document spells it: `disks[0].partitions[1].size`.
    pub place: String,
    /// Location in the text; `None` for JSON values.
    pub mark: Option<Mark>,
    pub value: Value,
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    Null,
    /// Text, number or boolean, unparsed: unquoted `8e00` is a float in YAML.
    Scalar {
        text: String,
        /// Written without quotes, or a number or boolean in JSON.
        plain: bool,
    },
    List(Vec<Node>),
    Map(Vec<Entry>),
    /// Invalid value whose problem has been reported already.
    Unreadable,
}

#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub key: String,
    pub mark: Option<Mark>,
    pub node: Node,
}

impl Node {
    pub fn problem(&self, message: impl Into<String>) -> Problem {
        marked(&self.place, self.mark, message)
    }

    /// Returns the type of the value, for messages.
    pub fn kind(&self) -> &'static str {
        match &self.value {
            Value::Null | Value::Unreadable => "nothing",
            Value::Scalar { .. } => "a single value",
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        }
    }
}

pub(super) fn marked(place: &str, mark: Option<Mark>, message: impl Into<String>) -> Problem {
    let mut problem = Problem::new(place, message);
    problem.line = mark.map(|mark| mark.line);
    problem.column = mark.map(|mark| mark.column);
    problem
}

pub(super) fn child(place: &str, key: &str) -> String {
    if place.is_empty() { key.to_owned() } else { format!("{place}.{key}") }
}

/// Parses the YAML documents of `text`, except empty ones, each with the problems that do not prevent parsing.
///
/// This consumes events of the parser instead of using marked-yaml's loader, which ignores all documents after the first and is recursive:
/// a few kilobytes of `- - - -` would overflow the stack.
pub(super) fn from_yaml(text: &str) -> Result<Vec<(Node, Vec<Problem>)>, Problem> {
    if text.len() > MAX_BYTES {
        return Err(Problem::new(
            "",
            format!("a layout must not be larger than {} KiB, but this one has {}", MAX_BYTES >> 10, text.len() >> 10),
        ));
    }
    let mut parser = Parser::new(text.strip_prefix('\u{feff}').unwrap_or(text).chars());
    let mut builder = Builder::default();
    loop {
        let (event, marker) =
            parser.next_token().map_err(|error| not_yaml(text, mark(*error.marker()), error.info()))?;
        if event == Event::StreamEnd {
            break;
        }
        builder.event(event, mark(marker))?;
    }
    if builder.documents.is_empty() {
        return Err(Problem::new("", "the document is empty"));
    }
    Ok(builder.documents)
}

fn not_yaml(text: &str, mark: Mark, why: &str) -> Problem {
    match indenting_tab(text, mark.line) {
        Some((line, column)) => marked("", Some(Mark { line, column }), format!("invalid YAML: {}", TAB)),
        None => marked("", Some(mark), format!("invalid YAML: {why}")),
    }
}

fn mark(marker: Marker) -> Mark {
    Mark { line: marker.line(), column: marker.col() + 1 }
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    documents: Vec<(Node, Vec<Problem>)>,
    problems: Vec<Problem>,
}

/// List or mapping whose end has not been reached.
struct Open {
    node: Node,
    /// Key whose value has not been read yet.
    key: Option<(String, Mark)>,
}

impl Builder {
    fn event(&mut self, event: Event, mark: Mark) -> Result<(), Problem> {
        let (value, anchor, tag) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                if self.takes_key(&text, mark) {
                    return Ok(());
                }
                (scalar(text, style), anchor, tag)
            }
            Event::SequenceStart(anchor, tag) => (Value::List(Vec::new()), anchor, tag),
            Event::MappingStart(anchor, tag) => (Value::Map(Vec::new()), anchor, tag),
            Event::Alias(_) => (Value::Unreadable, 1, None),
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(open) = self.open.pop() {
                    self.close(open.node);
                }
                return Ok(());
            }
            _ => return Ok(()),
        };
        self.value(value, mark, anchor != 0 || tag.is_some())
    }

    /// Uses the scalar as a key if the innermost mapping expects one.
    fn takes_key(&mut self, text: &str, mark: Mark) -> bool {
        let Some(Open { node, key: key @ None }) = self.open.last_mut() else { return false };
        let Value::Map(entries) = &node.value else { return false };
        // The parser reports the position of a block mapping as that of the colon after its first key.
        if entries.is_empty() && node.mark.is_some_and(|colon| colon.line == mark.line && colon.column > mark.column) {
            node.mark = Some(mark);
        }
        if let Some(first) = entries.iter().find(|entry| entry.key == text) {
            let line = first.mark.map_or(0, |mark| mark.line);
            let message = format!("this field is specified twice, first in line {line}");
            self.problems.push(marked(&child(&node.place, text), Some(mark), message));
        }
        *key = Some((text.to_owned(), mark));
        true
    }

    fn value(&mut self, value: Value, mark: Mark, decorated: bool) -> Result<(), Problem> {
        let mut node = Node { place: String::new(), mark: Some(mark), value };
        if let Some(Open { node: parent, key }) = self.open.last() {
            match (&parent.value, key) {
                (Value::List(items), _) => node.place = format!("{}[{}]", parent.place, items.len()),
                (_, Some((key, key_mark))) => {
                    node.place = child(&parent.place, key);
                    // The parser reports the position of a missing value as that after the next token.
                    if matches!(node.value, Value::Null) {
                        node.mark = Some(*key_mark);
                    }
                }
                (_, None) => return Err(marked(&parent.place, Some(mark), "the name of a field must be plain text")),
            }
        }
        if decorated {
            let message = "anchors, aliases and tags are not supported in layouts: write the value itself";
            self.problems.push(node.problem(message));
        }
        if !matches!(node.value, Value::List(_) | Value::Map(_)) {
            self.close(node);
        } else if self.open.len() == MAX_DEPTH {
            return Err(node.problem("the document is nested too deeply for a layout"));
        } else {
            self.open.push(Open { node, key: None });
        }
        Ok(())
    }

    /// Adds a complete value to its parent. If a field is specified twice, the first value is used.
    fn close(&mut self, node: Node) {
        let Some(Open { node: parent, key }) = self.open.last_mut() else {
            let problems = std::mem::take(&mut self.problems);
            // Empty document at the end, after the last `---`.
            if !matches!(node.value, Value::Null) {
                self.documents.push((node, problems));
            }
            return;
        };
        match &mut parent.value {
            Value::List(items) => items.push(node),
            Value::Map(entries) => {
                if let Some((key, mark)) = key.take()
                    && !entries.iter().any(|entry| entry.key == key)
                {
                    entries.push(Entry { key, mark: Some(mark), node });
                }
            }
            _ => {}
        }
    }
}

fn scalar(text: String, style: TScalarStyle) -> Value {
    let plain = style == TScalarStyle::Plain;
    if plain && matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL") {
        Value::Null
    } else {
        Value::Scalar { text, plain }
    }
}

/// Converts a JSON value to the same tree, without locations.
pub(super) fn from_json(value: &serde_json::Value) -> Result<Node, Problem> {
    json_node(value, String::new(), 0)
}

fn json_node(value: &serde_json::Value, place: String, depth: usize) -> Result<Node, Problem> {
    use serde_json::Value as Json;
    if depth > MAX_DEPTH {
        return Err(Problem::new(place, "the document is nested too deeply for a layout"));
    }
    let value = match value {
        Json::Null => Value::Null,
        Json::Bool(truth) => Value::Scalar { text: truth.to_string(), plain: true },
        Json::Number(number) => Value::Scalar { text: number.to_string(), plain: true },
        Json::String(text) => Value::Scalar { text: text.clone(), plain: false },
        Json::Array(items) => {
            let items = items.iter().enumerate();
            let nodes = items.map(|(index, item)| json_node(item, format!("{place}[{index}]"), depth + 1));
            Value::List(nodes.collect::<Result<_, _>>()?)
        }
        Json::Object(fields) => {
            let entries = fields.iter().map(|(key, value)| {
                let node = json_node(value, child(&place, key), depth + 1)?;
                Ok(Entry { key: key.clone(), mark: None, node })
            });
            Value::Map(entries.collect::<Result<_, _>>()?)
        }
    };
    Ok(Node { place, mark: None, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_know_where_they_are() {
        let (root, problems) = from_yaml("disks:\n  - device: /dev/sda\n    wipe:\n").unwrap().remove(0);
        assert!(problems.is_empty());
        let Value::Map(fields) = &root.value else { panic!("{root:?}") };
        let Value::List(disks) = &fields[0].node.value else { panic!("{root:?}") };
        let Value::Map(disk) = &disks[0].value else { panic!("{root:?}") };
        assert_eq!(disks[0].mark, Some(Mark { line: 2, column: 5 }));
        assert_eq!(disk[0].node.place, "disks[0].device");
        assert_eq!(disk[0].node.mark, Some(Mark { line: 2, column: 13 }));
        assert_eq!(disk[1].node.mark, Some(Mark { line: 3, column: 5 }), "an absent value is where its key is");
    }

    #[test]
    fn documents_that_cannot_be_read_say_why() {
        let long = "#".repeat(MAX_BYTES + 1);
        let deep = "- ".repeat(50_000);
        let flow = "[".repeat(50_000);
        for (text, words) in [
            ("", "empty"),
            ("# only a comment\n", "empty"),
            (long.as_str(), "larger than 128 KiB"),
            ("--- # nothing\n---\n", "empty"),
            ("id: a\ndisks:\n\t- device: /dev/sda\n", "3:1: invalid YAML: a tab indents this line"),
            ("a: [1\n", "invalid YAML"),
            ("a: b: c\n", "invalid YAML"),
            ("{[a]: b}\n", "plain text"),
            (deep.as_str(), "nested too deeply"),
            (flow.as_str(), "recursion limit"),
        ] {
            let said = from_yaml(text).map(|_| ()).unwrap_err().to_string();
            assert!(said.contains(words), "{said}");
        }
        let (_, problems) = from_yaml("a: &x 1\nb: *x\na: !!str 2\n").unwrap().remove(0);
        let said: Vec<String> = problems.iter().map(|problem| problem.to_string()).collect();
        assert_eq!(said.len(), 4, "{said:?}");
        assert!(said.iter().any(|line| line.starts_with("3:1: a: this field is specified twice, first in line 1")));
    }

    #[test]
    fn a_file_may_hold_several_documents_and_empty_ones_are_none() {
        for (text, count) in [("a: 1\n---\n", 1), ("---\na: 1\n...\n", 1), ("a: 1\n---\nb: &x 2\n---\n", 2)] {
            let documents = from_yaml(text).unwrap();
            assert_eq!(documents.len(), count, "{text}");
            assert!(documents[0].1.is_empty(), "the problems of another one are not its own: {text}");
        }
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_key() {
        let (root, _) = from_yaml("\u{feff}id: x\n").unwrap().remove(0);
        let Value::Map(fields) = root.value else { panic!("no mapping") };
        assert_eq!(fields[0].key, "id");
    }
}
