//! Parser of a YAML text that determines the byte range of each value.

use std::ops::Range;
use yaml_rust2::Event;
use yaml_rust2::parser::Parser;
use yaml_rust2::scanner::TScalarStyle;

const MAX_DEPTH: usize = 64;

/// Value in a YAML file, with byte offsets in this file.
#[derive(Debug)]
pub(crate) struct YamlNode {
    pub start: usize,
    /// Offset after the last byte of the value; `None` if it is unknown.
    pub end: Option<usize>,
    /// True if the value is a collection in brackets (flow style).
    pub flow: bool,
    pub within_flow: bool,
    pub kind: NodeKind,
}

#[derive(Debug)]
pub(crate) enum NodeKind {
    Scalar,
    List(Vec<YamlNode>),
    Map(Vec<MapEntry>),
}

#[derive(Debug)]
pub(crate) struct MapEntry {
    pub key: String,
    /// Offset of the key of the entry.
    pub start: usize,
    pub colon: usize,
    pub node: YamlNode,
}

impl YamlNode {
    pub(crate) fn range(&self) -> Option<Range<usize>> {
        Some(self.start..self.end?)
    }

    pub(crate) fn is_scalar(&self) -> bool {
        matches!(self.kind, NodeKind::Scalar)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.end == Some(self.start)
    }
}

pub(crate) struct ParsedYaml {
    pub root: YamlNode,
    /// Byte ranges of all scalars in the text, including keys.
    pub scalars: Vec<Range<usize>>,
}

/// List or mapping whose end has not been parsed yet.
struct OpenCollection {
    node: YamlNode,
    /// Name, start offset and colon offset of a key whose value has not been parsed yet.
    key: Option<(String, usize, usize)>,
}

/// Parses a YAML file. Returns `None` for unsupported constructs: several documents, anchors, tags, and excessive
/// nesting.
pub(crate) fn parse_nodes(text: &str) -> Option<ParsedYaml> {
    let bytes: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let mut parser = Parser::new(text.chars());
    let mut reading = NodeBuilder { text, open: Vec::new(), scalars: Vec::new(), root: None };
    loop {
        let (event, marker) = parser.next_token().ok()?;
        if event == Event::StreamEnd {
            break;
        }
        reading.handle_event(event, *bytes.get(marker.index())?)?;
    }
    Some(ParsedYaml { root: reading.root?, scalars: reading.scalars })
}

struct NodeBuilder<'a> {
    text: &'a str,
    open: Vec<OpenCollection>,
    scalars: Vec<Range<usize>>,
    root: Option<YamlNode>,
}

impl NodeBuilder<'_> {
    fn handle_event(&mut self, event: Event, at: usize) -> Option<()> {
        match event {
            Event::Alias(_) => None,
            Event::Scalar(_, _, anchor, tag) | Event::SequenceStart(anchor, tag) | Event::MappingStart(anchor, tag)
                if anchor != 0 || tag.is_some() =>
            {
                None
            }
            Event::Scalar(value, style, ..) => self.handle_scalar(value, style, at),
            Event::SequenceStart(..) => self.open_collection(NodeKind::List(Vec::new()), '[', at),
            Event::MappingStart(..) => self.open_collection(NodeKind::Map(Vec::new()), '{', at),
            Event::SequenceEnd | Event::MappingEnd => {
                let node = close_collection(self.open.pop()?.node, self.text, at)?;
                self.add_node(node)
            }
            _ => Some(()),
        }
    }

    fn open_collection(&mut self, kind: NodeKind, bracket: char, at: usize) -> Option<()> {
        let flow = self.text[at..].starts_with(bracket);
        self.open.push(OpenCollection {
            node: YamlNode { start: at, end: None, flow, within_flow: false, kind },
            key: None,
        });
        (self.open.len() <= MAX_DEPTH).then_some(())
    }

    fn handle_scalar(&mut self, value: String, style: TScalarStyle, at: usize) -> Option<()> {
        if let Some(OpenCollection { node: YamlNode { kind: NodeKind::Map(_), .. }, key: key @ None }) =
            self.open.last_mut()
        {
            let end = scalar_end(self.text, at, &value, style)?;
            self.scalars.push(at..end);
            let colon = end + self.text[end..].find(|c: char| !c.is_whitespace())?;
            *key = Some((value, at, colon));
            return self.text[colon..].starts_with(':').then_some(());
        }
        let colon = self.open.last().and_then(|open| open.key.as_ref()).map(|(.., colon)| colon + 1);
        // The position of an empty value must be corrected, because the parser reports the position of the next token.
        let (start, end) = match (colon, value.is_empty() && style == TScalarStyle::Plain) {
            (Some(colon), true) => (colon, Some(colon)),
            (None, true) => (at, None),
            (_, false) => (at, scalar_end(self.text, at, &value, style)),
        };
        self.scalars.extend(end.map(|end| start..end));
        self.add_node(YamlNode { start, end, flow: false, within_flow: false, kind: NodeKind::Scalar })
    }

    fn add_node(&mut self, mut node: YamlNode) -> Option<()> {
        let Some(parent) = self.open.last_mut() else {
            // Several documents in a file are not supported.
            return self.root.replace(node).is_none().then_some(());
        };
        node.within_flow = parent.node.flow;
        match &mut parent.node.kind {
            NodeKind::List(items) => items.push(node),
            NodeKind::Map(entries) => {
                let (key, start, colon) = parent.key.take()?;
                entries.push(MapEntry { key, start, colon, node });
            }
            NodeKind::Scalar => return None,
        }
        Some(())
    }
}

/// Sets the range of a collection. In block style, a collection starts with its first key or first item, and ends with
/// its last value.
fn close_collection(mut node: YamlNode, text: &str, at: usize) -> Option<YamlNode> {
    node.end = match &node.kind {
        _ if node.flow => text[at..].starts_with([']', '}']).then_some(at + 1),
        NodeKind::List(items) => items.last()?.end,
        NodeKind::Map(entries) => {
            node.start = entries.first()?.start;
            entries.last()?.node.end
        }
        NodeKind::Scalar => None,
    };
    Some(node)
}

fn scalar_end(text: &str, at: usize, value: &str, style: TScalarStyle) -> Option<usize> {
    let rest = &text[at..];
    match style {
        TScalarStyle::Plain => rest.starts_with(value).then_some(at + value.len()),
        TScalarStyle::SingleQuoted => {
            let mut quotes = rest.match_indices('\'').skip(1);
            loop {
                let (quote, _) = quotes.next()?;
                match rest[quote + 1..].starts_with('\'') {
                    true => drop(quotes.next()),
                    false => return Some(at + quote + 1),
                }
            }
        }
        TScalarStyle::DoubleQuoted => {
            let mut chars = rest.char_indices().skip(1);
            while let Some((index, c)) = chars.next() {
                match c {
                    '\\' => drop(chars.next()),
                    '"' => return Some(at + index + 1),
                    _ => {}
                }
            }
            None
        }
        TScalarStyle::Literal | TScalarStyle::Folded => block_end(text, at),
    }
}

/// Returns the end offset of a block scalar. Its content ends before the first line that is indented less than the
/// first line of the content.
fn block_end(text: &str, at: usize) -> Option<usize> {
    let first = at + text[at..].find('\n')? + 1;
    let indent = |line: &str| line.len() - line.trim_start_matches(' ').len();
    let own = text[first..].lines().find(|line| !line.trim().is_empty()).map(indent)?;
    let (mut end, mut place) = (first - 1, first);
    for line in text[first..].split_inclusive('\n') {
        let is_blank = line.trim().is_empty();
        if !is_blank && indent(line) < own {
            break;
        }
        if !is_blank {
            end = place + line.trim_end_matches(['\n', '\r']).len();
        }
        place += line.len();
    }
    Some(end)
}
