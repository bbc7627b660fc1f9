//! A YAML document of the operator, with the place of each value: read, taken apart, and what is said of a misspelt name.

use crate::yaml::{self, is_null};
use marked_yaml::{LoaderOptions, Marker, Node, Spanned, from_node, spanned_serde};
use serde::de::DeserializeOwned;

pub use crate::yaml::json;

/// The document of a file.
pub fn parse(text: &str) -> Result<Node, String> {
    // Coercion is prevented for what is in quotes only: "10" is a word, 10 a number.
    let options = LoaderOptions::default().error_on_duplicate_keys(true).prevent_coercion(true);
    let mut node = yaml::read(text, options)?;
    drop_nulls(&mut node);
    Ok(node)
}

/// `name:` and `name: null` say nothing about `name`; serde would take them for the words.
fn drop_nulls(node: &mut Node) {
    match node {
        Node::Mapping(mapping) => {
            let empty = mapping.iter().filter(|(_, value)| is_null(value)).map(|(key, _)| key.clone());
            for key in empty.collect::<Vec<_>>() {
                mapping.remove(&key);
            }
            mapping.iter_mut().for_each(|(_, value)| drop_nulls(value));
        }
        Node::Sequence(sequence) => sequence.iter_mut().for_each(drop_nulls),
        Node::Scalar(_) => {}
    }
}

/// The document as a type; an error has its place in front.
pub fn read<T: DeserializeOwned>(node: &Node) -> Result<T, String> {
    from_node(node).map_err(reading_error)
}

/// The error with its place in front.
pub fn reading_error(error: spanned_serde::FromNodeError) -> String {
    let place = place(error.start_mark().as_ref());
    match error.into_inner() {
        spanned_serde::Error::UnknownFieldError(field, known, _) => {
            format!("{place}there is no field {field:?}{}", nearest(&field, known.iter().copied()))
        }
        other => format!("{place}{other}"),
    }
}

/// `; did you mean "x"?`, or all there is when nothing is near.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.collect();
    let scored = known.iter().map(|name| (strsim::jaro_winkler(&word.to_lowercase(), &name.to_lowercase()), *name));
    match scored.max_by(|one, other| one.0.total_cmp(&other.0)) {
        Some((score, name)) if score > 0.8 => format!("; did you mean {name:?}?"),
        Some(_) => format!("; there is {}", known.join(", ")),
        None => "; there is none".to_owned(),
    }
}

/// `3:7: `, to stand before a message.
pub(super) fn place(mark: Option<&Marker>) -> String {
    mark.map(|mark| format!("{}:{}: ", mark.line(), mark.column())).unwrap_or_default()
}

/// A message with the place of the value that it is about.
pub fn at(value: &Spanned<String>, message: &str) -> String {
    format!("{}{message}", place(value.span().start()))
}

/// The value of a field.
pub fn field<'a>(node: &'a Node, name: &str) -> Option<&'a Node> {
    node.as_mapping()?.get_node(name)
}
