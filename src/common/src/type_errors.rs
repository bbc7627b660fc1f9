//! Rewording of parser messages about values of a wrong type, and about missing and unknown fields: names of Rust types
//! are replaced by the terms of YAML and JSON.

use serde_json::error::Category;

/// Names of Rust types in serde's messages, each with the words that replace it.
const EXPECTED: [(&str, &str); 18] = [
    ("a sequence", "a list"),
    ("sequence", "a list"),
    ("an array", "a list"),
    ("tuple", "a list"),
    ("a map", "a mapping"),
    ("map", "a mapping"),
    ("struct ", "a mapping"),
    ("internally tagged enum ", "a mapping"),
    ("a string", "text"),
    ("string", "text"),
    ("a boolean", "true or false"),
    ("f64", "a number"),
    ("any valid JSON value", "a value"),
    ("enum ", "one of the supported values"),
    ("variant identifier", "one of the supported values"),
    ("unit variant", "one of the supported values"),
    ("unit", "empty"),
    ("option", "a value"),
];
const INTEGERS: [&str; 10] = ["u8", "u16", "u32", "u64", "usize", "i8", "i16", "i32", "i64", "isize"];

/// Syntax errors of serde_json, each with the words that replace it.
const SYNTAX: [(&str, &str); 8] = [
    ("EOF while parsing", "the document ends too early"),
    ("expected value", "a value is missing or invalid"),
    ("expected ident", "a value is missing or invalid"),
    ("expected `:`", "a colon is missing"),
    ("expected `,` or `}`", "a comma or a closing brace is missing"),
    ("expected `,` or `]`", "a comma or a closing bracket is missing"),
    ("key must be a string", "the name of a field must be in double quotes"),
    ("trailing characters", "the document is followed by further text"),
];

/// Rewords a message of serde such as `invalid type: string "5", expected a sequence` to `must be a list, but is the
/// text "5"`. Other messages are returned unchanged.
pub fn reword_type_error(message: &str) -> String {
    let reworded = reword_value(message).or_else(|| reword_length(message));
    let reworded = reworded.or_else(|| reword_variant(message)).or_else(|| reword_field(message));
    reworded.unwrap_or_else(|| message.to_owned())
}

/// Describes an error in a JSON document, without its position.
pub fn describe_json_error(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let message = match error.line() {
        0 => text.as_str(),
        _ => text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message),
    };
    match error.classify() {
        Category::Syntax | Category::Eof => {
            let known = SYNTAX.iter().find(|(start, _)| message.starts_with(start));
            known.map_or_else(|| message.to_owned(), |(_, words)| (*words).to_owned())
        }
        Category::Data | Category::Io => reword_type_error(message),
    }
}

/// Describes an error in a JSON document, followed by its position if the position is known.
pub fn locate_json_error(error: &serde_json::Error) -> String {
    let message = describe_json_error(error);
    match error.line() {
        0 => message,
        line => format!("{message} at line {line} column {column}", column = error.column()),
    }
}

fn reword_value(message: &str) -> Option<String> {
    let (before, rest) = message.split_once("invalid type: ").or_else(|| message.split_once("invalid value: "))?;
    let (actual, expected) = rest.rsplit_once(", expected ")?;
    // The name of the expected type ends where serde_json appends the position, or where the next message of the error
    // chain starts.
    let end = [" at line ", ": ", "; "].iter().filter_map(|mark| expected.find(mark)).min().unwrap_or(expected.len());
    let (expected, after) = expected.split_at(end);
    Some(format!(
        "{before}must be {expected}, but is {actual}{after}",
        expected = describe_expected(expected),
        actual = describe_actual(actual)
    ))
}

/// Rewords serde's message `invalid length 1, expected struct Size with 3 elements`, which reports a list in place of a
/// mapping, or a list of the wrong length.
fn reword_length(message: &str) -> Option<String> {
    let (before, rest) = message.split_once("invalid length ")?;
    let (length, expected) = rest.split_once(", expected ")?;
    let (expected, after) = expected.split_at(expected.find(" at line ").unwrap_or(expected.len()));
    Some(match describe_expected(expected) {
        "a mapping" => format!("{before}must be a mapping, but is a list{after}"),
        _ => format!("{before}must be a list of another length, but has {length} values{after}"),
    })
}

fn describe_expected(expected: &str) -> &str {
    if INTEGERS.contains(&expected) {
        return "a whole number";
    }
    EXPECTED.iter().find(|(name, _)| expected.starts_with(name)).map_or(expected, |(_, words)| words)
}

fn describe_actual(actual: &str) -> String {
    let quoted = |kind: &str| actual.strip_prefix(kind).map(|value| value.trim_matches('`'));
    if let Some(text) = actual.strip_prefix("string ") {
        return format!("the text {text}");
    }
    if let Some(number) = quoted("integer ").or_else(|| quoted("floating point ")) {
        return format!("the number {number}");
    }
    match (quoted("boolean "), actual) {
        (Some(value), _) => value.to_owned(),
        (None, "sequence") => "a list".to_owned(),
        (None, "map") => "a mapping".to_owned(),
        (None, "null" | "unit value") => "empty".to_owned(),
        (None, other) => other.to_owned(),
    }
}

/// Rewords serde's message `unknown variant …` as `unknown value "a"; supported: b, c`.
fn reword_variant(message: &str) -> Option<String> {
    let (before, rest) = message.split_once("unknown variant `")?;
    let (actual, expected) = rest.split_once("`, expected ")?;
    let expected = expected.strip_prefix("one of ").unwrap_or(expected).replace("` or `", "`, `").replace('`', "");
    Some(format!("{before}unknown value {actual:?}; supported: {expected}"))
}

/// Rewords serde's messages `missing field …`, `duplicate field …` and `unknown field …`, for example as `a is
/// missing`.
fn reword_field(message: &str) -> Option<String> {
    if let Some((before, name, after)) = split_name(message, "missing field `") {
        return Some(format!("{before}{name} is missing{after}"));
    }
    if let Some((before, name, after)) = split_name(message, "duplicate field `") {
        return Some(format!("{before}{name} is specified twice{after}"));
    }
    let (before, name, after) = split_name(message, "unknown field `")?;
    let hint = match after.strip_prefix(", expected ") {
        Some(known) => {
            let (known, after) = known.split_at(known.find(" at line ").unwrap_or(known.len()));
            let known = known.strip_prefix("one of ").unwrap_or(known).replace("` or `", "`, `").replace('`', "");
            format!("; supported: {known}{after}")
        }
        None => after.replacen(", there are no fields", "", 1),
    };
    Some(format!("{before}unknown field {name:?}{hint}"))
}

/// Splits a message into the text before `mark`, the name up to the next backquote, and the text after it.
fn split_name<'a>(message: &'a str, mark: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let (before, rest) = message.split_once(mark)?;
    let (name, after) = rest.split_once('`')?;
    Some((before, name, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_named_without_rust_words() {
        for (message, expected) in [
            ("missing field `image`", "image is missing"),
            ("a.json: missing field `image` at line 1 column 2", "a.json: image is missing at line 1 column 2"),
            ("duplicate field `a`", "a is specified twice"),
            ("unknown field `a`, expected `b` or `c`", "unknown field \"a\"; supported: b, c"),
            (
                "unknown field `a`, expected one of `b`, `c` at line 1 column 2",
                "unknown field \"a\"; supported: b, c at line 1 column 2",
            ),
            ("unknown field `a`, there are no fields", "unknown field \"a\""),
        ] {
            assert_eq!(reword_type_error(message), expected);
        }
    }

    #[test]
    fn errors_in_json_are_described() {
        #[derive(Debug, serde::Deserialize)]
        struct Document {
            #[serde(rename = "a")]
            _a: u8,
        }
        for (json, expected) in [
            ("", "the document ends too early at line 1 column 0"),
            ("{", "the document ends too early at line 1 column 1"),
            ("x", "a value is missing or invalid at line 1 column 1"),
            ("{1: 2}", "the name of a field must be in double quotes at line 1 column 2"),
            ("{\"a\" 1}", "a colon is missing at line 1 column 6"),
            ("{\"a\": 1} x", "the document is followed by further text at line 1 column 10"),
            ("{\"a\": []}", "must be a whole number, but is a list at line 1 column 6"),
            ("{\"a\": 1 \"b\": 2}", "a comma or a closing brace is missing at line 1 column 9"),
            ("{}", "a is missing at line 1 column 2"),
        ] {
            let error = serde_json::from_str::<Document>(json).unwrap_err();
            assert_eq!(locate_json_error(&error), expected, "{json}");
            assert!(expected.starts_with(&describe_json_error(&error)), "{json}");
        }
        let error = serde_json::from_value::<Document>(serde_json::json!({})).unwrap_err();
        assert_eq!(locate_json_error(&error), "a is missing");
    }

    #[test]
    fn types_are_named_as_in_yaml() {
        for (message, expected) in [
            ("invalid type: string \"5\", expected struct AllocationSpec", "must be a mapping, but is the text \"5\""),
            ("2:3: invalid type: sequence, expected a string", "2:3: must be text, but is a list"),
            ("invalid type: map, expected a sequence", "must be a list, but is a mapping"),
            ("invalid type: integer `5`, expected a boolean", "must be true or false, but is the number 5"),
            ("invalid type: floating point `1.5`, expected u64", "must be a whole number, but is the number 1.5"),
            ("invalid value: integer `-1`, expected u32", "must be a whole number, but is the number -1"),
            (
                "invalid type: null, expected a map at line 1 column 4",
                "must be a mapping, but is empty at line 1 column 4",
            ),
            ("invalid type: boolean `true`, expected a string", "must be text, but is true"),
            (
                "invalid type: string \", expected a\", expected f64",
                "must be a number, but is the text \", expected a\"",
            ),
            ("invalid value: string \"x\", expected a UUID", "must be a UUID, but is the text \"x\""),
            ("2:3: invalid length 0, expected struct Size with 3 elements", "2:3: must be a mapping, but is a list"),
            (
                "invalid length 1, expected a tuple of size 2 at line 1 column 4",
                "must be a list of another length, but has 1 values at line 1 column 4",
            ),
        ] {
            assert_eq!(reword_type_error(message), expected);
        }
    }

    #[test]
    fn alternatives_are_listed() {
        for (message, expected) in [
            ("a: unknown variant `x`, expected one of `b`, `c`", "a: unknown value \"x\"; supported: b, c"),
            ("unknown variant `x`, expected `b` or `c`", "unknown value \"x\"; supported: b, c"),
            ("unknown variant `x`, expected `b`", "unknown value \"x\"; supported: b"),
        ] {
            assert_eq!(reword_type_error(message), expected);
        }
    }

    #[test]
    fn other_messages_are_not_changed() {
        for message in ["", "missing field of view", "No such file", "invalid type: of disk", "expected a sequence"] {
            assert_eq!(reword_type_error(message), message);
        }
    }
}
