//! Rewording of parser messages about values of a wrong type: names of Rust types are replaced by the terms of YAML and
//! JSON.

/// Names of Rust types in serde's messages, each with the words that replace it.
const EXPECTED: [(&str, &str); 12] = [
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
];
const INTEGERS: [&str; 10] = ["u8", "u16", "u32", "u64", "usize", "i8", "i16", "i32", "i64", "isize"];

/// Rewords a message of serde such as `invalid type: string "5", expected a sequence` to `must be a list, but is the text "5"`. Other
/// messages are returned unchanged.
pub fn reword_type_error(message: &str) -> String {
    reword_value(message).or_else(|| reword_variant(message)).unwrap_or_else(|| message.to_owned())
}

fn reword_value(message: &str) -> Option<String> {
    let (before, rest) = message.split_once("invalid type: ").or_else(|| message.split_once("invalid value: "))?;
    let (actual, expected) = rest.rsplit_once(", expected ")?;
    // The reworded part ends before the position that serde_json appends, and before further messages of an error
    // chain.
    let end = [" at line ", ": ", "; "].iter().filter_map(|mark| expected.find(mark)).min().unwrap_or(expected.len());
    let (expected, after) = expected.split_at(end);
    Some(format!(
        "{before}must be {expected}, but is {actual}{after}",
        expected = describe_expected(expected),
        actual = describe_actual(actual)
    ))
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

/// Rewords `unknown variant `a`, expected one of `b`, `c``.
fn reword_variant(message: &str) -> Option<String> {
    let (before, rest) = message.split_once("unknown variant `")?;
    let (actual, expected) = rest.split_once("`, expected ")?;
    let expected = expected.strip_prefix("one of ").unwrap_or(expected).replace("` or `", "`, `").replace('`', "");
    Some(format!("{before}unknown value {actual:?}; supported: {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for message in ["", "missing field `image`", "No such file", "invalid type: of disk", "expected a sequence"] {
            assert_eq!(reword_type_error(message), message);
        }
    }
}
