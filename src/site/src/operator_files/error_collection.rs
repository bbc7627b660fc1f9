//! Parsing of a YAML document that collects all errors. Each field with an error is reported and removed, and the
//! remaining document is parsed again.

use super::yaml_node::format_error;
use marked_yaml::spanned_serde::FromNodeError;
use marked_yaml::types::{MarkedMappingNode, MarkedScalarNode};
use marked_yaml::{Marker, Node, Span, Spanned, from_node};
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;

/// Maximum number of errors that are collected.
const MAXIMUM_ERRORS: usize = 100;

/// Returns the value, with placeholders for missing fields, and all errors with their positions. The value is `None` if
/// the document as a whole cannot be parsed.
pub(crate) fn deserialize_all<T: DeserializeOwned>(node: &Node) -> (Option<T>, Vec<String>) {
    let (mut node, mut wrong, mut gone) = (node.clone(), Vec::new(), BTreeSet::new());
    while wrong.len() < MAXIMUM_ERRORS {
        let error = match from_node::<T>(&node) {
            Ok(value) => return (Some(value), wrong),
            Err(error) => error,
        };
        let mark = error.start_mark();
        let missing = find_missing_field(&error);
        let message = format_error(error);
        let goes_on = match (&missing, mark) {
            (Some(name), _) => insert_placeholder(&mut node, name),
            (None, Some(mark)) => remove_at(&mut node, &mark, &mut gone),
            (None, None) => false,
        };
        // A field that this loop has removed is not reported as missing, because its error is already reported.
        if missing.is_none_or(|name| !gone.contains(&name)) {
            wrong.push(message);
        }
        if !goes_on {
            break;
        }
    }
    (None, wrong)
}

/// Returns the name of the missing field if the error is `missing field `image``.
fn find_missing_field(error: &FromNodeError) -> Option<String> {
    let text = error.to_string();
    Some(text.split_once("missing field `")?.1.split_once('`')?.0.to_owned())
}

/// Returns whether the value comes from the file, and is not a placeholder.
pub(crate) fn is_given(value: &Spanned<String>) -> bool {
    value.span().start().is_some()
}

/// Inserts a placeholder for a missing required field into the document or its allocation.
fn insert_placeholder(node: &mut Node, name: &str) -> bool {
    let Node::Mapping(mapping) = node else { return false };
    let is_own = name == "id" && mapping.get_node(name).is_none();
    let lacking = match is_own {
        true => Some(mapping),
        false => {
            mapping.iter_mut().find(|(key, _)| key.as_str() == "allocation").and_then(|(_, node)| as_mapping(node))
        }
    };
    let Some(lacking) = lacking.filter(|mapping| mapping.get_node(name).is_none()) else { return false };
    let word = |text: &str| MarkedScalarNode::new(Span::new_blank(), text);
    lacking.insert(word(name), Node::Scalar(word("missing")));
    true
}

fn as_mapping(node: &mut Node) -> Option<&mut MarkedMappingNode> {
    match node {
        Node::Mapping(mapping) => Some(mapping),
        _ => None,
    }
}

/// Removes the field whose name or value begins at this position, or the list item that begins at this position.
fn remove_at(node: &mut Node, mark: &Marker, gone: &mut BTreeSet<String>) -> bool {
    let begins = |span: &Span| span.start() == Some(mark);
    match node {
        Node::Mapping(mapping) => {
            let found = mapping.iter().find(|(key, value)| begins(key.span()) || begins(value.span()));
            if let Some(key) = found.map(|(key, _)| key.clone()) {
                gone.insert(key.as_str().to_owned());
                return mapping.remove(&key).is_some();
            }
            mapping.iter_mut().any(|(_, value)| remove_at(value, mark, gone))
        }
        Node::Sequence(sequence) => match sequence.iter().position(|item| begins(item.span())) {
            Some(at) => {
                sequence.remove(at);
                true
            }
            None => sequence.iter_mut().any(|item| remove_at(item, mark, gone)),
        },
        Node::Scalar(_) => false,
    }
}
