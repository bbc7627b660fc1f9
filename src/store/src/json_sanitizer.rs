//! Sanitizing of JSON from machines and operators immediately after it is received. The document is rewritten while it
//! is parsed, and its values are counted. The caller parses only the sanitized document into a tree in memory.

use common::format::untrusted_text_limits::TextKind;
use common::format::{replace_hidden, truncate_bytes};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Maximum number of values in a document, including objects and lists. The largest inventory contains several hundred
/// thousand values.
const MAXIMUM_VALUES: usize = 400_000;
/// Maximum length of a string in an operator's document, in bytes.
const OPERATOR_TEXT_BYTES: usize = 64 << 10;

/// Author of a document, which determines the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentAuthor {
    /// A machine. The limit of each string depends on its field.
    Machine,
    /// The operator, whose documents contain longer strings, such as layouts and user data.
    Operator,
}

/// Returns the JSON document with its strings shortened and sanitized.
///
/// # Errors
/// Returns an error if the input is not JSON, nests too deeply, or has too many values.
pub fn sanitize_json(json: &[u8], author: DocumentAuthor) -> serde_json::Result<Vec<u8>> {
    let mut output = SanitizedOutput { json: Vec::with_capacity(json.len()), author, values: 0 };
    let mut input = serde_json::Deserializer::from_slice(json);
    ValueCopy { output: &mut output, kind: TextKind::Line }.deserialize(&mut input)?;
    input.end()?;
    Ok(output.json)
}

struct SanitizedOutput {
    json: Vec<u8>,
    author: DocumentAuthor,
    values: usize,
}

/// Sanitizes one value, and writes it to the output.
struct ValueCopy<'o> {
    output: &'o mut SanitizedOutput,
    kind: TextKind,
}

/// Returns the type of text that a field contains. The limit of the text depends on this type.
fn text_kind(field: &str) -> TextKind {
    match field {
        "message" | "words" => TextKind::Message,
        "plan" | "fstab" => TextKind::Document,
        "certificate" | "log" => TextKind::Log,
        "step" | "event" | "stage" | "kind" | "label" | "transport" | "vendor" | "model" => TextKind::Name,
        "id" | "uuid" | "serial" | "wwn" | "mac" | "machine" | "allocation" | "allocationuuid" | "order" | "digest"
        | "layout_digest" | "fencing" | "approved" => TextKind::Identifier,
        _ => TextKind::Line,
    }
}

impl SanitizedOutput {
    fn sanitize_text(&self, text: &str, kind: TextKind) -> String {
        match (self.author, kind) {
            (DocumentAuthor::Machine, kind) => kind.sanitize(text),
            (DocumentAuthor::Operator, TextKind::Message | TextKind::Document | TextKind::Log) => kind.sanitize(text),
            (DocumentAuthor::Operator, _) => replace_hidden(truncate_bytes(text, OPERATOR_TEXT_BYTES)),
        }
    }

    fn write_value<E: Error>(&mut self, value: &impl serde::Serialize) -> Result<(), E> {
        serde_json::to_writer(&mut self.json, value).map_err(E::custom)
    }

    fn count_value<E: Error>(&mut self) -> Result<(), E> {
        self.values += 1;
        match self.values > MAXIMUM_VALUES {
            true => Err(E::custom(format_args!("the document has more than {MAXIMUM_VALUES} values"))),
            false => Ok(()),
        }
    }
}

impl<'de> DeserializeSeed<'de> for ValueCopy<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        self.output.count_value()?;
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueCopy<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.output.write_value(&value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.output.write_value(&value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.output.write_value(&value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.output.write_value(&value)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.output.write_value(&())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        let text = self.output.sanitize_text(text, self.kind);
        self.output.write_value(&text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let ValueCopy { output, kind } = self;
        output.json.push(b'[');
        let start = output.json.len();
        loop {
            let end = output.json.len();
            if end > start {
                output.json.push(b',');
            }
            if items.next_element_seed(ValueCopy { output, kind })?.is_none() {
                output.json.truncate(end);
                output.json.push(b']');
                return Ok(());
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let output = self.output;
        output.json.push(b'{');
        let mut separator: &[u8] = b"";
        while let Some(field) = fields.next_key::<std::borrow::Cow<str>>()? {
            output.json.extend_from_slice(std::mem::replace(&mut separator, b","));
            let kind = text_kind(&field);
            let field = output.sanitize_text(&field, TextKind::Name);
            output.write_value(&field)?;
            output.json.push(b':');
            fields.next_value_seed(ValueCopy { output, kind })?;
        }
        output.json.push(b'}');
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::format::untrusted_text_limits::{IDENTIFIER_BYTES, LINE_BYTES, NAME_BYTES};
    use serde_json::{Value, json};

    fn value(json: &Value, author: DocumentAuthor) -> Value {
        serde_json::from_slice(&sanitize_json(json.to_string().as_bytes(), author).unwrap()).unwrap()
    }

    #[test]
    fn machine_texts_are_truncated_and_sanitized_by_type() {
        let long = "ä".repeat(100_000);
        let sent = json!({"message": "a\u{1b}[2J\nb", "plan": "x\n\u{202e}y", "disks": [{"serial": "s\nt", "size": 1}],
            "fstab": "/dev/sda1 / ext4\n\u{1b}x",
            "certificate": "X: 1\n---\u{1b}\nMIIB\n", "step": long, "uuid": long, "tags": [long, ""], long.clone(): 1});
        let value = value(&sent, DocumentAuthor::Machine);
        assert_eq!(value["message"], "a [2J\nb");
        assert_eq!(value["plan"], "x\n y");
        assert_eq!(value["fstab"], "/dev/sda1 / ext4\n x");
        assert_eq!(value["certificate"], "X: 1\n---\nMIIB\n");
        assert_eq!(value["disks"], json!([{"serial": "s t", "size": 1}]));
        let length = |value: &Value| value.as_str().unwrap().len();
        assert!(length(&value["step"]) <= NAME_BYTES && length(&value["uuid"]) <= IDENTIFIER_BYTES);
        assert!(length(&value["tags"][0]) <= LINE_BYTES && value["tags"][1] == "");
        assert!(value.as_object().unwrap().keys().all(|field| field.len() <= NAME_BYTES));
    }

    #[test]
    fn other_json_values_are_copied_unchanged() {
        for author in [DocumentAuthor::Machine, DocumentAuthor::Operator] {
            let sent = json!({"a": [], "b": {}, "c": [[1, -2, 2.5, true, null], {"d": u64::MAX}], "e": "\"\\ä"});
            assert_eq!(value(&sent, author), sent);
        }
        let long = json!({ "user_data": "x".repeat(50_000) });
        assert_eq!(value(&long, DocumentAuthor::Operator), long);
    }

    #[test]
    fn documents_that_would_fill_the_memory_are_refused() {
        let many = format!("[0{}]", ",0".repeat(MAXIMUM_VALUES));
        let error = sanitize_json(many.as_bytes(), DocumentAuthor::Machine).unwrap_err().to_string();
        assert!(error.contains("more than 400000 values"), "{error}");
        for wrong in ["", "{", "[1,]", "1 2", "nul", &"[".repeat(100_000)] {
            assert!(sanitize_json(wrong.as_bytes(), DocumentAuthor::Machine).is_err(), "{wrong:.10}");
        }
    }
}
