//! Document in YAML or JSON as a tree. Each value has a path, and a line and a column if it was parsed from
//! text.

use common::diagnostic::{Diagnostic, child_path};
use common::format::{INDENTING_TAB_ERROR, find_indenting_tab};
use common::yaml::syntax_errors::reword_syntax_error;
use yaml_rust2::Event;
use yaml_rust2::parser::Parser;
use yaml_rust2::scanner::{Marker, TScalarStyle};

/// Maximum nesting depth. Layouts have only five levels. The limit is higher, so that misplaced values at a few further
/// levels are reported individually.
const MAX_DEPTH: usize = 32;
/// Maximum size of a document, in bytes. The search for duplicates takes quadratic time. The document of a layout with
/// a hundred disks, each with ten partitions, is half this size.
const MAX_BYTES: usize = 128 << 10;

/// Line and column, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SourceLocation {
    pub line: usize,
    pub column: usize,
}

#[derive(Debug, Clone)]
pub(super) struct DocumentNode {
    /// Path of the value, with the document's own field names: `disks[0].partitions[1].size`.
    pub place: String,
    /// Location in the text; `None` for JSON values.
    pub mark: Option<SourceLocation>,
    pub value: NodeValue,
}

#[derive(Debug, Clone)]
pub(super) enum NodeValue {
    Null,
    /// Text, number or boolean. It is stored as text, because unquoted `8e00` would be a float in YAML.
    Scalar {
        text: String,
        /// True if the value is written without quotes, or is a number or boolean in JSON.
        plain: bool,
    },
    List(Vec<DocumentNode>),
    Map(Vec<DocumentEntry>),
    /// Invalid value whose problem has already been reported.
    Unreadable,
}

#[derive(Debug, Clone)]
pub(super) struct DocumentEntry {
    pub key: String,
    pub mark: Option<SourceLocation>,
    pub node: DocumentNode,
}

impl DocumentNode {
    pub(crate) fn make_problem(&self, message: impl Into<String>) -> Diagnostic {
        located_problem(&self.place, self.mark, message)
    }

    /// Describes the type of the value, for messages.
    pub(crate) fn describe_type(&self) -> &'static str {
        match &self.value {
            NodeValue::Null | NodeValue::Unreadable => "nothing",
            NodeValue::Scalar { .. } => "a single value",
            NodeValue::List(_) => "a list",
            NodeValue::Map(_) => "a mapping",
        }
    }
}

pub(super) fn located_problem(place: &str, mark: Option<SourceLocation>, message: impl Into<String>) -> Diagnostic {
    let mut problem = Diagnostic::new(place, message);
    problem.line = mark.map(|mark| mark.line);
    problem.column = mark.map(|mark| mark.column);
    problem
}

/// Parses all nonempty YAML documents in `text`. Each document is returned with the problems that do not prevent
/// parsing.
///
/// The function reads the events of the parser instead of using marked-yaml's loader. The loader ignores all documents
/// after the first one, and is recursive: a few kilobytes of `- - - -` would overflow the stack.
pub(super) fn parse_yaml(text: &str) -> Result<Vec<(DocumentNode, Vec<Diagnostic>)>, Diagnostic> {
    if text.len() > MAX_BYTES {
        return Err(Diagnostic::new(
            "",
            format!(
                "a layout must not be larger than {limit} KiB, but this layout is {size} KiB",
                limit = MAX_BYTES >> 10,
                size = text.len() >> 10
            ),
        ));
    }
    let mut parser = Parser::new(text.strip_prefix('\u{feff}').unwrap_or(text).chars());
    let mut builder = DocumentBuilder::default();
    loop {
        let (event, marker) = parser
            .next_token()
            .map_err(|error| describe_syntax_error(text, source_location(*error.marker()), error.info()))?;
        if event == Event::StreamEnd {
            break;
        }
        builder.handle_event(event, source_location(marker))?;
    }
    if builder.documents.is_empty() {
        return Err(Diagnostic::new("", "the document is empty"));
    }
    Ok(builder.documents)
}

fn describe_syntax_error(text: &str, mark: SourceLocation, why: &str) -> Diagnostic {
    match find_indenting_tab(text, mark.line) {
        Some((line, column)) => {
            located_problem("", Some(SourceLocation { line, column }), format!("invalid YAML: {}", INDENTING_TAB_ERROR))
        }
        None => located_problem("", Some(mark), format!("invalid YAML: {}", reword_syntax_error(why))),
    }
}

fn source_location(marker: Marker) -> SourceLocation {
    SourceLocation { line: marker.line(), column: marker.col() + 1 }
}

#[derive(Default)]
struct DocumentBuilder {
    open: Vec<UnclosedCollection>,
    documents: Vec<(DocumentNode, Vec<Diagnostic>)>,
    problems: Vec<Diagnostic>,
}

/// List or mapping whose end has not been parsed yet.
struct UnclosedCollection {
    node: DocumentNode,
    /// Key whose value has not been parsed yet.
    key: Option<(String, SourceLocation)>,
}

impl DocumentBuilder {
    fn handle_event(&mut self, event: Event, mark: SourceLocation) -> Result<(), Diagnostic> {
        let (value, anchor, tag) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                if self.accept_key(&text, mark) {
                    return Ok(());
                }
                (parse_scalar(text, style), anchor, tag)
            }
            Event::SequenceStart(anchor, tag) => (NodeValue::List(Vec::new()), anchor, tag),
            Event::MappingStart(anchor, tag) => (NodeValue::Map(Vec::new()), anchor, tag),
            Event::Alias(_) => (NodeValue::Unreadable, 1, None),
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(open) = self.open.pop() {
                    self.add_to_parent(open.node);
                }
                return Ok(());
            }
            _ => return Ok(()),
        };
        self.add_value(value, mark, anchor != 0 || tag.is_some())
    }

    /// Uses the scalar as a key if the innermost open mapping expects a key. Returns whether the scalar was used as a
    /// key.
    fn accept_key(&mut self, text: &str, mark: SourceLocation) -> bool {
        let Some(UnclosedCollection { node, key: key @ None }) = self.open.last_mut() else { return false };
        let NodeValue::Map(entries) = &node.value else { return false };
        // For a block mapping, the parser reports the position of the colon after the first key. The position of the
        // key is used instead.
        if entries.is_empty() && node.mark.is_some_and(|colon| colon.line == mark.line && colon.column > mark.column) {
            node.mark = Some(mark);
        }
        if let Some(first) = entries.iter().find(|entry| entry.key == text) {
            let line = first.mark.map_or(0, |mark| mark.line);
            let message = format!("this field is specified twice, first in line {line}");
            self.problems.push(located_problem(&child_path(&node.place, text), Some(mark), message));
        }
        *key = Some((text.to_owned(), mark));
        true
    }

    fn add_value(&mut self, value: NodeValue, mark: SourceLocation, decorated: bool) -> Result<(), Diagnostic> {
        let mut node = DocumentNode { place: String::new(), mark: Some(mark), value };
        if let Some(UnclosedCollection { node: parent, key }) = self.open.last() {
            match (&parent.value, key) {
                (NodeValue::List(items), _) => node.place = format!("{}[{}]", parent.place, items.len()),
                (_, Some((key, key_mark))) => {
                    node.place = child_path(&parent.place, key);
                    // The parser reports a wrong position for a missing value, so the position of the key is used.
                    if matches!(node.value, NodeValue::Null) {
                        node.mark = Some(*key_mark);
                    }
                }
                (_, None) => {
                    return Err(located_problem(&parent.place, Some(mark), "the name of a field must be plain text"));
                }
            }
        }
        if decorated {
            let message = "anchors, aliases and tags are not supported in layouts: write the value itself";
            self.problems.push(node.make_problem(message));
        }
        if !matches!(node.value, NodeValue::List(_) | NodeValue::Map(_)) {
            self.add_to_parent(node);
        } else if self.open.len() == MAX_DEPTH {
            return Err(node.make_problem("the document is nested too deeply for a layout"));
        } else {
            self.open.push(UnclosedCollection { node, key: None });
        }
        Ok(())
    }

    /// Adds a completely parsed value to its parent. If a field is specified twice, the second value is ignored.
    fn add_to_parent(&mut self, node: DocumentNode) {
        let Some(UnclosedCollection { node: parent, key }) = self.open.last_mut() else {
            let problems = std::mem::take(&mut self.problems);
            // An empty document, such as after a final `---`, is dropped.
            if !matches!(node.value, NodeValue::Null) {
                self.documents.push((node, problems));
            }
            return;
        };
        match &mut parent.value {
            NodeValue::List(items) => items.push(node),
            NodeValue::Map(entries) => {
                if let Some((key, mark)) = key.take()
                    && !entries.iter().any(|entry| entry.key == key)
                {
                    entries.push(DocumentEntry { key, mark: Some(mark), node });
                }
            }
            _ => {}
        }
    }
}

fn parse_scalar(text: String, style: TScalarStyle) -> NodeValue {
    let plain = style == TScalarStyle::Plain;
    if plain && matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL") {
        NodeValue::Null
    } else {
        NodeValue::Scalar { text, plain }
    }
}

/// Converts a JSON value to a tree without locations.
pub(super) fn convert_json(value: &serde_json::Value) -> Result<DocumentNode, Diagnostic> {
    convert_node(value, String::new(), 0)
}

fn convert_node(value: &serde_json::Value, place: String, depth: usize) -> Result<DocumentNode, Diagnostic> {
    use serde_json::Value as Json;
    if depth > MAX_DEPTH {
        return Err(Diagnostic::new(place, "the document is nested too deeply for a layout"));
    }
    let value = match value {
        Json::Null => NodeValue::Null,
        Json::Bool(truth) => NodeValue::Scalar { text: truth.to_string(), plain: true },
        Json::Number(number) => NodeValue::Scalar { text: number.to_string(), plain: true },
        Json::String(text) => NodeValue::Scalar { text: text.clone(), plain: false },
        Json::Array(items) => {
            let items = items.iter().enumerate();
            let nodes = items.map(|(index, item)| convert_node(item, format!("{place}[{index}]"), depth + 1));
            NodeValue::List(nodes.collect::<Result<_, _>>()?)
        }
        Json::Object(fields) => {
            let entries = fields.iter().map(|(key, value)| {
                let node = convert_node(value, child_path(&place, key), depth + 1)?;
                Ok(DocumentEntry { key: key.clone(), mark: None, node })
            });
            NodeValue::Map(entries.collect::<Result<_, _>>()?)
        }
    };
    Ok(DocumentNode { place, mark: None, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsed_values_have_line_and_column() {
        let (root, problems) = parse_yaml("disks:\n  - device: /dev/sda\n    wipe:\n").unwrap().remove(0);
        assert!(problems.is_empty());
        let NodeValue::Map(fields) = &root.value else { panic!("{root:?}") };
        let NodeValue::List(disks) = &fields[0].node.value else { panic!("{root:?}") };
        let NodeValue::Map(disk) = &disks[0].value else { panic!("{root:?}") };
        assert_eq!(disks[0].mark, Some(SourceLocation { line: 2, column: 5 }));
        assert_eq!(disk[0].node.place, "disks[0].device");
        assert_eq!(disk[0].node.mark, Some(SourceLocation { line: 2, column: 13 }));
        assert_eq!(
            disk[1].node.mark,
            Some(SourceLocation { line: 3, column: 5 }),
            "an absent value is where its key is"
        );
    }

    #[test]
    fn refuses_unreadable_documents_with_the_reason() {
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
            ("a: b: c\n", "invalid YAML: the line contains a second `: `"),
            ("{[a]: b}\n", "plain text"),
            (deep.as_str(), "nested too deeply"),
            (flow.as_str(), "recursion limit"),
        ] {
            let said = parse_yaml(text).map(|_| ()).unwrap_err().to_string();
            assert!(said.contains(words), "{said}");
        }
        let (_, problems) = parse_yaml("a: &x 1\nb: *x\na: !!str 2\n").unwrap().remove(0);
        let said: Vec<String> = problems.iter().map(|problem| problem.to_string()).collect();
        assert_eq!(said.len(), 4, "{said:?}");
        assert!(said.iter().any(|line| line.starts_with("3:1: a: this field is specified twice, first in line 1")));
    }

    #[test]
    fn several_documents_are_parsed_and_empty_ones_ignored() {
        for (text, count) in [("a: 1\n---\n", 1), ("---\na: 1\n...\n", 1), ("a: 1\n---\nb: &x 2\n---\n", 2)] {
            let documents = parse_yaml(text).unwrap();
            assert_eq!(documents.len(), count, "{text}");
            assert!(documents[0].1.is_empty(), "problems of another document are not reported: {text}");
        }
    }

    #[test]
    fn byte_order_mark_is_ignored() {
        let (root, _) = parse_yaml("\u{feff}id: x\n").unwrap().remove(0);
        let NodeValue::Map(fields) = root.value else { panic!("no mapping") };
        assert_eq!(fields[0].key, "id");
    }
}
