//! Stable codes of refusals and failures, such as `DH-217`. `drophammer explain DH-217` prints the entry of a code in
//! the manual. `testdata/error-codes.txt` lists all numbers that were ever assigned; a number is never reused.

mod table;

pub use table::ErrorCode;

use crate::error::Phase;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Prefix of all codes.
const PREFIX: &str = "DH-";

impl ErrorCode {
    /// Returns the code with this number, written as `DH-217`, `dh-217` or `217`.
    pub fn parse(text: &str) -> Option<ErrorCode> {
        let text = text.trim();
        let has_prefix = text.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX));
        let digits = if has_prefix { &text[PREFIX.len()..] } else { text };
        let is_number = digits.len() == 3 && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number: u16 = digits.parse().ok().filter(|_| is_number)?;
        ErrorCode::ALL.iter().copied().find(|code| code.number() == number)
    }

    /// Appends the code to a message; the result is, for example, `no space left on device (DH-310)`. A message that
    /// already contains the code is not changed.
    pub fn annotate(self, message: impl Into<String>) -> String {
        append(message.into(), &self.to_string())
    }

    /// Appends the code to a message, unless the message already contains any code in parentheses after its beginning.
    pub fn annotate_uncoded(self, message: impl Into<String>) -> String {
        let message = message.into();
        let mut parts = message.split(" (").skip(1).filter_map(|part| part.split_once(')'));
        if parts.any(|(inside, _)| is_code(inside)) { message } else { self.annotate(message) }
    }
}

/// Appends a code to a message that does not contain the code.
pub fn append(message: String, code: &str) -> String {
    if message.contains(code) { message } else { format!("{message} ({code})") }
}

/// Returns the first code in parentheses, such as `(DH-310)`, with the parentheses; `None` if there is none.
pub fn find_in_parentheses(text: &str) -> Option<&str> {
    text.match_indices('(').find_map(|(at, _)| {
        let (inside, _) = text[at + 1..].split_once(')')?;
        is_code(inside).then(|| &text[at..at + inside.len() + 2])
    })
}

/// Returns whether the text has the form of a code. The code may be unknown to this version, because a newer version
/// has assigned it.
pub fn is_code(text: &str) -> bool {
    let digits = text.strip_prefix(PREFIX).unwrap_or_default();
    digits.len() == 3 && digits.bytes().all(|byte| byte.is_ascii_digit())
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{:03}", self.number())
    }
}

impl Phase {
    /// Returns the code for errors of this phase that have no more specific code.
    pub fn general_code(self) -> ErrorCode {
        match self {
            Phase::Settings => ErrorCode::Settings,
            Phase::Control => ErrorCode::ControlPlane,
            Phase::Inventory => ErrorCode::Inventory,
            Phase::Layout => ErrorCode::Layout,
            Phase::Plan => ErrorCode::Plan,
            Phase::Storage => ErrorCode::Storage,
            Phase::Image => ErrorCode::Image,
            Phase::Target => ErrorCode::Target,
            Phase::Boot => ErrorCode::Boot,
            Phase::Move => ErrorCode::Migration,
            Phase::Serve => ErrorCode::Server,
        }
    }
}

impl Serialize for ErrorCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Reads a code from JSON. Returns `None` for a code that this version does not know.
///
/// # Errors
/// Fails if the value is not a string.
pub fn deserialize_known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ErrorCode>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.and_then(|text| ErrorCode::parse(&text)))
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for ErrorCode {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ErrorCode".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "pattern": "^DH-[0-9]{3}$"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn codes_are_parsed_in_every_accepted_spelling() {
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::parse(&code.to_string()), Some(*code));
        }
        for text in ["DH-217", "dh-217", "217", " DH-217\n"] {
            assert_eq!(ErrorCode::parse(text).map(ErrorCode::number), Some(217), "{text:?}");
        }
        for text in ["", "DH", "DH-", "DH-2", "DH-0217", "DH-+17", "DH-999", "DH-2i7", "XX-217", "ÄH-217"] {
            assert_eq!(ErrorCode::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_message_contains_its_code_once() {
        let once = ErrorCode::Storage.annotate("mdadm: no");
        assert_eq!(once, "mdadm: no (DH-300)");
        assert_eq!(ErrorCode::Storage.annotate(once.clone()), once);
        assert_eq!(ErrorCode::Image.annotate_uncoded(once.clone()), once);
        let followed = format!("{once} (its last good version stays in force)");
        assert_eq!(ErrorCode::Image.annotate_uncoded(followed.clone()), followed);
        for uncoded in ["mdadm: no", "mdadm (4.2)", "mdadm (DH-1)", "(DH-300) mdadm", ""] {
            assert_eq!(ErrorCode::Image.annotate_uncoded(uncoded), format!("{uncoded} (DH-400)"));
        }
    }

    #[test]
    fn the_first_code_in_parentheses_is_found() {
        for (text, code) in [
            ("mdadm (4.2): no (DH-300), repeat (DH-301)", Some("(DH-300)")),
            ("DH-300: no ((DH-301)", Some("(DH-301)")),
            ("no (DH-30", None),
            ("", None),
        ] {
            assert_eq!(find_in_parentheses(text), code, "{text}");
        }
    }

    #[test]
    fn numbers_and_titles_are_unique() {
        let numbers: BTreeSet<u16> = ErrorCode::ALL.iter().map(|code| code.number()).collect();
        let titles: BTreeSet<&str> = ErrorCode::ALL.iter().map(|code| code.title()).collect();
        assert_eq!((numbers.len(), titles.len()), (ErrorCode::ALL.len(), ErrorCode::ALL.len()));
        assert!(numbers.into_iter().all(|number| (100..1000).contains(&number)));
    }

    /// The meaning of a number never changes. To retire a code, replace its name in `testdata/error-codes.txt` by
    /// `retired`.
    #[test]
    fn assigned_numbers_are_never_reused() {
        let assigned: Vec<(&str, &str)> = include_str!("../../../testdata/error-codes.txt")
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split_once(' ').unwrap_or_else(|| panic!("{line}")))
            .collect();
        let numbers: BTreeSet<&str> = assigned.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers.len(), assigned.len(), "a number is assigned twice");
        for (number, name) in &assigned {
            let code = ErrorCode::parse(number);
            let expected = (*name != "retired").then_some(*name);
            assert_eq!(code.map(ErrorCode::name), expected, "{number}: the meaning of an assigned number was changed");
        }
        for code in ErrorCode::ALL {
            assert!(numbers.contains(&*code.to_string()), "add {code} {} to testdata/error-codes.txt", code.name());
        }
    }

    #[test]
    fn a_code_of_a_newer_version_is_ignored() {
        #[derive(Deserialize)]
        struct Carrier {
            #[serde(default, deserialize_with = "deserialize_known")]
            code: Option<ErrorCode>,
        }
        for (json, code) in [
            (r#"{"code": "DH-300"}"#, Some(ErrorCode::Storage)),
            (r#"{"code": "DH-999"}"#, None),
            (r#"{"code": null}"#, None),
            ("{}", None),
        ] {
            assert_eq!(serde_json::from_str::<Carrier>(json).unwrap().code, code, "{json}");
        }
        assert!(serde_json::from_str::<Carrier>(r#"{"code": 300}"#).is_err());
        assert_eq!(serde_json::to_string(&ErrorCode::Storage).unwrap(), r#""DH-300""#);
    }
}
