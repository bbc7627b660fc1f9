//! YAML that others have written, read within bounds: files of the server's directory, an image's `boot-info.yaml`. Layouts have
//! a reader of their own, which knows the line of everything.
//!
//! marked-yaml's loader descends recursively: a few kilobytes of `- - - -` would overflow the stack, and end the program.

#[cfg(feature = "serve")]
pub mod edit;
#[cfg(test)]
#[cfg(feature = "agent")]
mod fuzz;

use crate::text::{TAB, indenting_tab};
use marked_yaml::{LoaderOptions, Node, parse_yaml_with_options};
#[cfg(any(feature = "desk", feature = "serve"))]
use serde_json::Value;
use std::fmt::Write;
use yaml_rust2::Event;
use yaml_rust2::parser::Parser;

/// More than anybody writes by hand or by program.
const MAX_BYTES: usize = 4 << 20;
const MAX_DEPTH: usize = 64;

/// The first document of `text`.
///
/// # Errors
/// It is no YAML, too long, or nested too deep; with its place where there is one.
pub fn read(text: &str, options: LoaderOptions) -> Result<Node, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("it has {} bytes, more than {} MiB are not read", text.len(), MAX_BYTES >> 20));
    }
    refuse_deep(text)?;
    parse_yaml_with_options(0, text, options).map_err(|error| error.to_string())
}

/// The parser itself goes through nested blocks without recursion. What it cannot read the loader says in better words.
fn refuse_deep(text: &str) -> Result<(), String> {
    let mut parser = Parser::new(text.chars());
    let mut depth = 0_usize;
    loop {
        let (event, marker) = match parser.next_token() {
            Ok(next) => next,
            Err(error) => match indenting_tab(text, error.marker().line()) {
                Some((line, column)) => return Err(format!("{line}:{column}: {TAB}")),
                None => break,
            },
        };
        match event {
            Event::SequenceStart(..) | Event::MappingStart(..) => depth += 1,
            Event::SequenceEnd | Event::MappingEnd => depth = depth.saturating_sub(1),
            Event::StreamEnd => break,
            _ => {}
        }
        if depth > MAX_DEPTH {
            let (line, column) = (marker.line(), marker.col() + 1);
            return Err(format!("{line}:{column}: this is nested more than {MAX_DEPTH} deep"));
        }
    }
    Ok(())
}

/// `name:` and `name: null`.
#[cfg(any(feature = "desk", feature = "serve"))]
pub fn is_null(node: &Node) -> bool {
    node.as_scalar().is_some_and(|scalar| scalar.may_coerce() && ["", "~", "null"].contains(&scalar.as_str()))
}

/// The value as JSON. The reader must prevent coercion, or what is in quotes is no longer told from what is not.
#[cfg(any(feature = "desk", feature = "serve"))]
pub fn json(node: &Node) -> Value {
    match node {
        Node::Mapping(mapping) => mapping.iter().map(|(key, value)| (key.as_str().to_owned(), json(value))).collect(),
        Node::Sequence(sequence) => sequence.iter().map(json).collect(),
        Node::Scalar(scalar) if is_null(node) || !scalar.may_coerce() => {
            if is_null(node) {
                Value::Null
            } else {
                Value::from(scalar.as_str())
            }
        }
        Node::Scalar(scalar) => match scalar.as_str() {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            // Only what JSON would write the same way is a number: 007 and 1_000 are words.
            text => serde_json::from_slice(text.as_bytes())
                .ok()
                .filter(Value::is_number)
                .unwrap_or_else(|| Value::from(text)),
        },
    }
}

/// Without quotes what is text to every YAML reader, 1.1 included, wherever it stands.
pub fn scalar(text: &str) -> String {
    // Words that YAML 1.1 or 1.2, or a careless reader, takes for something else.
    const OTHERS: [&str; 11] = ["true", "false", "yes", "no", "on", "off", "null", "y", "n", "inf", "nan"];
    let starts = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let plain = text.bytes().all(|c| c.is_ascii_alphanumeric() || b"/._-+=".contains(&c));
    if starts && plain && !OTHERS.contains(&text.to_ascii_lowercase().as_str()) {
        text.to_owned()
    } else {
        quoted(text)
    }
}

/// In double quotes, everything escaped that YAML or a terminal does not take as it is.
pub fn quoted(text: &str) -> String {
    let mut yaml = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => yaml.extend(['\\', c]),
            ' '..='~' => yaml.push(c),
            // Letters of all languages are printable in YAML.
            c if c.is_alphanumeric() => yaml.push(c),
            c => {
                let _ = write!(yaml, "\\U{:08x}", u32::from(c));
            }
        }
    }
    yaml + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nested_too_deep_or_too_long_is_an_error_and_no_overflow() {
        let blocks = "- ".repeat(200_000);
        let flow = "[".repeat(200_000);
        let mapping: String = (0..2000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
        let long = format!("a: {}", "x".repeat(MAX_BYTES));
        for (text, words) in
            [(&blocks, "1:129: this is nested"), (&flow, ""), (&mapping, "this is nested"), (&long, "more than 4 MiB")]
        {
            let said = read(text, LoaderOptions::default()).unwrap_err();
            assert!(said.contains(words), "{said}");
        }
        let deep = format!("a: {}{}", "[".repeat(MAX_DEPTH - 1), "]".repeat(MAX_DEPTH - 1));
        assert_eq!(read(&deep, LoaderOptions::default()).map(|_| ()), Ok(()));
        assert!(read("a: [1\n", LoaderOptions::default()).is_err());
    }

    #[test]
    fn a_tab_is_told_where_it_is() {
        for (text, place) in [("id: a\n\tname: x\n", "2:1"), ("a:\n  b: 1\n  \tc: 2\n", "3:3")] {
            assert_eq!(read(text, LoaderOptions::default()).unwrap_err(), format!("{place}: {TAB}"));
        }
        assert!(read("a: \tb\n", LoaderOptions::default()).is_ok());
    }
}
