//! YAML documents of the operator as nodes with their positions: parsing, access to fields, and messages.

use common::spelling::find_similar;
use common::yaml::{self, is_null};
use marked_yaml::{LoaderOptions, Marker, Node, Spanned, from_node, spanned_serde};
use serde::de::DeserializeOwned;

pub use common::yaml::to_json;

/// Parses the YAML document in a file. Null fields are removed.
pub fn parse_document(text: &str) -> Result<Node, String> {
    // Only quoted values are exempt from coercion: "10" is a string, 10 a number.
    let options = LoaderOptions::default().error_on_duplicate_keys(true).prevent_coercion(true);
    let mut node = yaml::read_document(text, options)?;
    remove_nulls(&mut node);
    Ok(node)
}

/// Removes null fields, so that `name:` and `name: null` leave `name` unset. serde would read them as strings.
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

/// Deserializes a node. The error message begins with the position of the error.
pub(crate) fn deserialize_node<T: DeserializeOwned>(node: &Node) -> Result<T, String> {
    from_node(node).map_err(format_error)
}

/// Formats an error with its position in front.
pub(crate) fn format_error(error: spanned_serde::FromNodeError) -> String {
    let place = format_position(error.start_mark().as_ref());
    match error.into_inner() {
        spanned_serde::Error::UnknownFieldError(field, known, _) => {
            format!("{place}unknown field {field:?}{}", suggest_name(&field, known.iter().copied()))
        }
        other => format!("{place}{other}"),
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

/// Formats a position as `3:7: `, the start of a message.
pub(super) fn format_position(mark: Option<&Marker>) -> String {
    mark.map(|mark| format!("{}:{}: ", mark.line(), mark.column())).unwrap_or_default()
}

/// Formats a message with the position of its value in front.
pub fn format_at(value: &Spanned<String>, message: &str) -> String {
    format!("{}{message}", format_position(value.span().start()))
}

/// Returns the value of a field.
pub(crate) fn get_field<'a>(node: &'a Node, name: &str) -> Option<&'a Node> {
    node.as_mapping()?.get_node(name)
}
