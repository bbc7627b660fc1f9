//! Reader of untrusted YAML with limits, for files of the server's directory and `boot-info.yaml` of an image. Layouts
//! have a separate reader, which records the line of each value.
//!
//! The nesting depth is limited, because the loader of marked-yaml is recursive: a few kilobytes of `- - - -` would
//! overflow the stack and abort the program.

pub mod block_writer;
pub mod edit;
#[cfg(test)]
mod fuzz;
pub mod syntax_errors;

use crate::format::terminal_escaping::is_hidden;
use crate::format::{INDENTING_TAB_ERROR, find_indenting_tab};
use marked_yaml::{LoadError, LoaderOptions, Node, parse_yaml_with_options};
use serde_json::Value;
use std::fmt::Write;
use syntax_errors::reword_syntax_error;
use yaml_rust2::Event;
use yaml_rust2::parser::Parser;

/// Maximum length of a document, in bytes.
const MAX_BYTES: usize = 4 << 20;
const MAX_DEPTH: usize = 64;

/// Reads the first document of `text`.
///
/// # Errors
/// Returns a message if the document is invalid, too long, or nested too deeply. The message contains the position, if
/// it is known.
pub fn read_document(text: &str, options: LoaderOptions) -> Result<Node, String> {
    if text.len() > MAX_BYTES {
        return Err(format!(
            "the document is {bytes} bytes; at most {limit_mib} MiB are supported",
            bytes = text.len(),
            limit_mib = MAX_BYTES >> 20
        ));
    }
    reject_deep_nesting(text)?;
    parse_yaml_with_options(0, text, options).map_err(|error| describe_load_error(&error))
}

/// Describes an error of the loader. The message begins with the position of the error if the position is known.
fn describe_load_error(error: &LoadError) -> String {
    let (mark, why) = match error {
        LoadError::TopLevelMustBeMapping(mark) => (Some(mark), "the document must be a mapping".to_owned()),
        LoadError::TopLevelMustBeSequence(mark) => (Some(mark), "the document must be a list".to_owned()),
        LoadError::UnexpectedAnchor(mark) => (Some(mark), "anchors and aliases are not supported".to_owned()),
        LoadError::MappingKeyMustBeScalar(mark) => (Some(mark), "the name of a field must be text".to_owned()),
        LoadError::UnexpectedTag(mark) => (Some(mark), "tags are not supported".to_owned()),
        LoadError::ScanError(mark, error) => {
            (Some(mark), format!("invalid YAML: {}", reword_syntax_error(error.info())))
        }
        LoadError::DuplicateKey(duplicate) => {
            let name = duplicate.key.as_str();
            (duplicate.key.span().start(), format!("the field {name:?} is specified twice"))
        }
    };
    let position = mark.map(|mark| format!("{}:{}: ", mark.line(), mark.column())).unwrap_or_default();
    position + &why
}

/// Returns whether the first document of `text` is a sequence. Parses only the start of the document.
pub fn is_sequence(text: &str) -> bool {
    let mut parser = Parser::new(text.chars());
    loop {
        match parser.next_token() {
            Ok((Event::StreamStart | Event::DocumentStart, _)) => {}
            other => return matches!(other, Ok((Event::SequenceStart(..), _))),
        }
    }
}

/// Rejects documents that are nested too deeply. The depth is counted in the events of yaml-rust2's parser, which,
/// unlike the loader of marked-yaml, is not recursive. The only syntax error that this function reports is a tab that
/// indents a line. The loader reports all other syntax errors, because its messages are better.
fn reject_deep_nesting(text: &str) -> Result<(), String> {
    let mut parser = Parser::new(text.chars());
    let mut depth = 0_usize;
    loop {
        let (event, marker) = match parser.next_token() {
            Ok(next) => next,
            Err(error) => match find_indenting_tab(text, error.marker().line()) {
                Some((line, column)) => {
                    return Err(format!("{line}:{column}: invalid YAML: {INDENTING_TAB_ERROR}"));
                }
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
            return Err(format!("{line}:{column}: the document is nested more than {MAX_DEPTH} levels deep"));
        }
    }
    Ok(())
}

/// Returns whether the value is empty or null: `name:` or `name: null`.
pub fn is_null(node: &Node) -> bool {
    node.as_scalar().is_some_and(|scalar| scalar.may_coerce() && ["", "~", "null"].contains(&scalar.as_str()))
}

/// Converts the value to JSON. The loader must have been configured to prevent coercion, so that quoted and unquoted
/// values can be distinguished.
pub fn to_json(node: &Node) -> Value {
    match node {
        Node::Mapping(mapping) => {
            mapping.iter().map(|(key, value)| (key.as_str().to_owned(), to_json(value))).collect()
        }
        Node::Sequence(sequence) => sequence.iter().map(to_json).collect(),
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
            // A scalar becomes a number only if its text is a number in JSON. For example, 007 and 1_000 become
            // strings.
            text => serde_json::from_str(text).ok().filter(Value::is_number).unwrap_or_else(|| Value::from(text)),
        },
    }
}

/// Formats a string as YAML. The string is written without quotes only if every YAML reader, even for YAML 1.1, parses
/// it as a string at any position.
pub fn format_scalar(text: &str) -> String {
    // Words that YAML 1.1, YAML 1.2 or a lenient reader does not parse as a string.
    const OTHERS: [&str; 11] = ["true", "false", "yes", "no", "on", "off", "null", "y", "n", "inf", "nan"];
    let starts = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let plain = text.bytes().all(|c| c.is_ascii_alphanumeric() || b"/._-+=".contains(&c));
    if starts && plain && !OTHERS.contains(&text.to_ascii_lowercase().as_str()) {
        text.to_owned()
    } else {
        quote_string(text)
    }
}

/// Formats a string in double quotes. Escapes all characters that have a special meaning in YAML or on a terminal.
pub fn quote_string(text: &str) -> String {
    let mut yaml = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => yaml.extend(['\\', c]),
            ' '..='~' => yaml.push(c),
            // YAML permits letters of all languages, so they are not escaped.
            c if c.is_alphanumeric() && !is_hidden(c) => yaml.push(c),
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

    /// U+3164 is an invisible letter. The escape that commands print for hidden characters is not valid in YAML.
    #[test]
    fn hidden_letters_are_escaped_with_yaml_syntax() {
        assert_eq!(quote_string("é\u{3164}"), "\"é\\U00003164\"");
    }

    #[test]
    fn too_deep_or_too_long_documents_are_refused() {
        let blocks = "- ".repeat(200_000);
        let flow = "[".repeat(200_000);
        let mapping: String = (0..2000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
        let long = format!("a: {}", "x".repeat(MAX_BYTES));
        for (text, words) in [
            (&blocks, "1:129: the document is nested more than"),
            (&flow, ""),
            (&mapping, "nested more than"),
            (&long, "at most 4 MiB"),
        ] {
            let said = read_document(text, LoaderOptions::default()).unwrap_err();
            assert!(said.contains(words), "{said}");
        }
        let deep = format!("a: {}{}", "[".repeat(MAX_DEPTH - 1), "]".repeat(MAX_DEPTH - 1));
        assert_eq!(read_document(&deep, LoaderOptions::default()).map(|_| ()), Ok(()));
        assert!(read_document("a: [1\n", LoaderOptions::default()).is_err());
    }

    #[test]
    fn syntax_errors_are_named_as_such() {
        let mapping = || LoaderOptions::default().error_on_duplicate_keys(true);
        for (text, expected) in [
            ("id: [a\n", "invalid YAML: "),
            ("a: b: c\n", "invalid YAML: the line contains a second `: `"),
            ("- a\n", "1:1: the document must be a mapping"),
            ("? [a]\n: 1\n", "the name of a field must be text"),
            ("a: &x 1\n", "anchors and aliases are not supported"),
            ("a: !tag 1\n", "tags are not supported"),
            ("a: 1\na: 2\n", "2:1: the field \"a\" is specified twice"),
        ] {
            let error = read_document(text, mapping()).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let error = read_document("a: 1\n", mapping().toplevel_sequence()).unwrap_err();
        assert!(error.ends_with(": the document must be a list"), "{error}");
    }

    #[test]
    fn tab_in_indentation_is_reported_with_position() {
        for (text, place) in [("id: a\n\tname: x\n", "2:1"), ("a:\n  b: 1\n  \tc: 2\n", "3:3")] {
            assert_eq!(
                read_document(text, LoaderOptions::default()).unwrap_err(),
                format!("{place}: invalid YAML: {INDENTING_TAB_ERROR}")
            );
        }
        assert!(read_document("a: \tb\n", LoaderOptions::default()).is_ok());
    }
}
