//! The operator's YAML documents as nodes with positions: parsing, access to fields, and messages.

use common::diagnostic::child_path;
use common::spelling_suggestions::find_similar;
use common::type_errors::reword_type_error;
use common::yaml::{self, is_null};
use marked_yaml::{LoaderOptions, Marker, Node, Spanned, from_node, spanned_serde};
use serde::de::DeserializeOwned;
use std::num::IntErrorKind;

pub use common::yaml::to_json;

/// Parses the YAML document in a file. Null fields are removed.
pub fn parse_document(text: &str) -> Result<Node, String> {
    // Types are inferred for unquoted values only: "10" is a string, and 10 is a number.
    let options = LoaderOptions::default().error_on_duplicate_keys(true).prevent_coercion(true);
    read_without_nulls(text, options)
}

/// Parses a document whose top level is a mapping or a sequence.
///
/// # Errors
/// Fails as [`parse_document`] does.
pub fn parse_document_or_list(text: &str) -> Result<Node, String> {
    if !yaml::is_sequence(text) {
        return parse_document(text);
    }
    let options = LoaderOptions::default().error_on_duplicate_keys(true).prevent_coercion(true);
    read_without_nulls(text, options.toplevel_sequence())
}

fn read_without_nulls(text: &str, options: LoaderOptions) -> Result<Node, String> {
    let mut node = yaml::read_document(text, options)?;
    remove_nulls(&mut node);
    Ok(node)
}

/// Removes null fields, so that `name:` and `name: null` leave `name` unset. Otherwise, serde would deserialize null
/// as a string.
fn remove_nulls(node: &mut Node) {
    match node {
        Node::Mapping(mapping) => {
            let empty = mapping.iter().filter(|(_, value)| is_null(value)).map(|(key, _)| key.clone());
            for key in empty.collect::<Vec<_>>() {
                mapping.remove(&key);
            }
            mapping.iter_mut().for_each(|(_, value)| remove_nulls(value));
        }
        Node::Sequence(sequence) => sequence.iter_mut().for_each(remove_nulls),
        Node::Scalar(_) => {}
    }
}

/// Deserializes a node.
///
/// # Errors
/// Returns a message that begins with the position of the error.
pub fn deserialize_node<T: DeserializeOwned>(node: &Node) -> Result<T, String> {
    from_node(node).map_err(format_error)
}

/// Formats an error so that it begins with its position.
pub(crate) fn format_error(error: spanned_serde::FromNodeError) -> String {
    let place = format_position(error.start_mark().as_ref());
    match error.into_inner() {
        spanned_serde::Error::UnknownFieldError(field, known, _) => {
            format!("{place}unknown field {field:?}{}", suggest_name(&field, known.iter().copied()))
        }
        spanned_serde::Error::NotBoolean(_) => format!("{place}must be true or false"),
        spanned_serde::Error::IntegerParseFailure(why, _) => match why.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => format!("{place}the number is too large"),
            _ => format!("{place}must be a whole number"),
        },
        spanned_serde::Error::FloatParseFailure(..) => format!("{place}must be a number"),
        other => format!("{place}{}", reword_type_error(&other.to_string())),
    }
}

/// Returns `; did you mean "x"?`, or the list of all known names if none is similar.
pub fn suggest_name<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.collect();
    match find_similar(word, known.iter().copied()) {
        Some(name) => format!("; did you mean {name:?}?"),
        None if known.is_empty() => "; none is available".to_owned(),
        None => format!("; available: {}", known.join(", ")),
    }
}

/// Formats a position as `3:7: `, with which a message can begin.
pub(super) fn format_position(mark: Option<&Marker>) -> String {
    mark.map(|mark| format!("{}:{}: ", mark.line(), mark.column())).unwrap_or_default()
}

/// Formats a message so that it begins with the position of the value that it describes.
pub fn format_at(value: &Spanned<String>, message: &str) -> String {
    format!("{}{message}", format_position(value.span().start()))
}

/// Returns the value of a field.
pub(crate) fn get_field<'a>(node: &'a Node, name: &str) -> Option<&'a Node> {
    node.as_mapping()?.get_node(name)
}

/// Replaces the position at the start of each problem by the path of the field at this position, for recipients
/// without the text of the document. `rename` converts each path to a name that the recipient knows; an empty name is
/// omitted.
pub fn replace_positions(text: &str, problems: &str, rename: impl Fn(&str) -> String) -> String {
    let document = parse_document(text).ok();
    let replace = |line: &str| {
        let Some((position, message)) = split_position(line) else { return line.to_owned() };
        let path = document.as_ref().and_then(|node| find_path(node, position, "")).unwrap_or_default();
        match rename(&path) {
            name if name.is_empty() => message.to_owned(),
            name => format!("{name}: {message}"),
        }
    };
    problems.lines().map(replace).collect::<Vec<_>>().join("\n")
}

/// Splits a line such as `3:7: message` into line number, column and message.
fn split_position(line: &str) -> Option<((usize, usize), &str)> {
    let (position, message) = line.split_once(": ")?;
    let (row, column) = position.split_once(':')?;
    Some(((row.parse().ok()?, column.parse().ok()?), message))
}

/// Returns the path of the field whose name or value starts at this position.
fn find_path(node: &Node, position: (usize, usize), path: &str) -> Option<String> {
    let starts = |mark: Option<&Marker>| mark.is_some_and(|mark| (mark.line(), mark.column()) == position);
    let found = |child: &Node, path: String| match starts(child.span().start()) {
        true => Some(path),
        false => find_path(child, position, &path),
    };
    match node {
        Node::Mapping(mapping) => mapping.iter().find_map(|(key, value)| {
            let path = child_path(path, key.as_str());
            if starts(key.span().start()) { Some(path) } else { found(value, path) }
        }),
        Node::Sequence(items) => {
            items.iter().enumerate().find_map(|(index, item)| found(item, format!("{path}[{index}]")))
        }
        Node::Scalar(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_replaced_by_paths() {
        let text = "id: x\nallocation:\n  id: a\n  image: debian-99\n  keys: [one, {deep: two}]\n";
        let problems =
            "4:10: image not found\n5:10: bad key\n5:22: deep\n3:7: size not set\n9:9: elsewhere\nno position";
        let rename = |path: &str| if path == "allocation.id" { String::new() } else { path.to_owned() };
        let said = replace_positions(text, problems, rename);
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(
            lines,
            [
                "allocation.image: image not found",
                "allocation.keys[0]: bad key",
                "allocation.keys[1].deep: deep",
                "size not set",
                "elsewhere",
                "no position"
            ]
        );
    }
}
