//! Messages about syntax errors in YAML, in place of the messages of the parser library, which name its internal
//! states.

use crate::format::INDENTING_TAB_ERROR;
use std::borrow::Cow;

/// Messages of the parser library, and the messages that replace them.
const MESSAGES: [(&str, &str); 24] = [
    (
        "mapping values are not allowed in this context",
        "the line contains a second `: `, or its indentation is wrong; text that contains `: ` must be quoted",
    ),
    (
        "while parsing a node, did not find expected node content",
        "a value is missing, or begins with a reserved character; text that begins with a special character must be quoted",
    ),
    (
        "while parsing a block mapping, did not find expected key",
        "the name of a field is expected here; the fields of a mapping must have the same indentation",
    ),
    (
        "while parsing a block collection, did not find expected '-' indicator",
        "`- ` is expected here; the elements of a list must have the same indentation",
    ),
    ("while parsing a flow sequence, expected ',' or ']'", "`,` or `]` is expected here"),
    ("while parsing a flow mapping, did not find expected ',' or '}'", "`,` or `}` is expected here"),
    ("simple key expected", "`:` is missing after the name of a field"),
    ("simple key expect ':'", "`:` is missing after the name of a field"),
    ("while scanning a quoted scalar, found unexpected end of stream", "the closing quotation mark is missing"),
    ("while scanning a quoted scalar, found unexpected document indicator", "the closing quotation mark is missing"),
    (
        "while parsing a quoted scalar, found unknown escape character",
        "unknown escape sequence; a backslash in double quotes must be doubled",
    ),
    ("invalid trailing content after double-quoted scalar", "unexpected text after the closing quotation mark"),
    ("invalid indentation in quoted scalar", "the continuation lines of quoted text must be indented"),
    (
        "invalid indentation in flow construct",
        "the continuation lines of a list in `[]` or a mapping in `{}` must be indented",
    ),
    ("invalid indentation", "the indentation is wrong"),
    ("while parsing node, found unknown anchor", "the anchor does not exist; text that begins with `*` must be quoted"),
    ("block sequence entries are not allowed in this context", "a list must begin in its own line"),
    ("mapping keys are not allowed in this context", "the name of a field is not allowed here"),
    ("did not find expected <document start>", "the line does not belong to the mapping or list of the document"),
    ("comments must be separated from other tokens by whitespace", "a space is required before `#`"),
    ("plain scalar cannot start with '-' followed by ,[]{}", "text that begins with `-` must be quoted"),
    ("unexpected eof", "the document ends too early"),
    ("tabs disallowed in this context", INDENTING_TAB_ERROR),
    ("tabs disallowed within this context (block indentation)", INDENTING_TAB_ERROR),
];

/// Returns the message for operators about a syntax error that the parser library reports. Returns an unknown message
/// unchanged.
pub fn reword_syntax_error(message: &str) -> Cow<'_, str> {
    if let Some(rest) = message.strip_prefix("unexpected character: `") {
        return Cow::Owned(format!("text that begins with {} must be quoted", rest.trim_end_matches('\'')));
    }
    Cow::Borrowed(MESSAGES.iter().find(|(theirs, _)| *theirs == message).map_or(message, |(_, ours)| *ours))
}

#[cfg(test)]
mod tests {
    use super::*;
    use yaml_rust2::Event;
    use yaml_rust2::parser::Parser;

    fn syntax_error(text: &str) -> String {
        let mut parser = Parser::new(text.chars());
        loop {
            match parser.next_token() {
                Ok((Event::StreamEnd, _)) => panic!("{text:?} is valid"),
                Ok(_) => {}
                Err(error) => return reword_syntax_error(error.info()).into_owned(),
            }
        }
    }

    #[test]
    fn common_syntax_errors_are_reworded() {
        for (text, expected) in [
            ("a: b: c\n", "the line contains a second `: `"),
            ("a: @b\n", "text that begins with @ must be quoted"),
            ("a: [1\nb: 2\n", ""),
            ("a: {b: 1\n", ""),
            ("a: 1\nb\n", "`:` is missing"),
            ("a: \"b\n", "the closing quotation mark is missing"),
            ("a: \"b\" c\n", "unexpected text after the closing quotation mark"),
            ("a: \"\\q\"\n", "unknown escape sequence"),
            ("a: *b\n", "the anchor does not exist"),
            ("- a\nb: 1\n", ""),
        ] {
            let error = syntax_error(text);
            assert!(error.starts_with(expected), "{text:?}: {error}");
            for internal in ["while ", "expected key", "node content", "scalar", "simple key"] {
                assert!(!error.contains(internal), "{text:?}: {error}");
            }
        }
    }

    #[test]
    fn unknown_messages_are_unchanged() {
        assert_eq!(reword_syntax_error("recursion limit exceeded"), "recursion limit exceeded");
    }
}
