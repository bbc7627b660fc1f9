//! What machines say of themselves, made harmless where it comes in: no text steers a terminal, and none is longer than anybody
//! reads.

use crate::text::{clean, cut};
use serde_json::Value;

/// A serial number, a name, a message.
const TEXT_BYTES: usize = 64 << 10;
/// The plan as it was printed.
const PLAN_BYTES: usize = 1 << 20;

/// All texts below a value, at any depth. Those that are written in lines keep them.
pub fn tidy(value: &mut Value) {
    match value {
        Value::String(text) => *text = clean(cut(text, TEXT_BYTES)),
        Value::Array(items) => items.iter_mut().for_each(tidy),
        Value::Object(fields) => fields.iter_mut().for_each(|(name, value)| match (name.as_str(), value) {
            ("message", Value::String(text)) => *text = lines(cut(text, TEXT_BYTES)),
            ("plan", Value::String(text)) => *text = lines(cut(text, PLAN_BYTES)),
            // To the last line end: a signature may be over it.
            ("certificate", Value::String(text)) => *text = said(cut(text, PLAN_BYTES)),
            (_, value) => tidy(value),
        }),
        _ => {}
    }
}

fn lines(text: &str) -> String {
    text.lines().map(clean).collect::<Vec<_>>().join("\n")
}

/// A part of what was said on a console. Its last line may go on in the next one.
pub fn said(text: &str) -> String {
    let line = |line: &str| clean(line.trim_end_matches('\n')) + if line.ends_with('\n') { "\n" } else { "" };
    text.split_inclusive('\n').map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn texts_are_cut_and_steer_nothing() {
        let long = "ä".repeat(TEXT_BYTES);
        let mut value = json!({"message": "a\u{1b}[2J\nb", "plan": "x\n\u{202e}y", "disks": [{"serial": "s\nt", "size": 1}], "name": long,
                               "certificate": "X: 1\n---\u{1b}\nMIIB\n"});
        tidy(&mut value);
        assert_eq!(value["message"], "a [2J\nb");
        assert_eq!(value["plan"], "x\n y");
        assert_eq!(value["certificate"], "X: 1\n---\nMIIB\n");
        assert_eq!(said("a \u{1b}b \n\nc"), "a  b\n\nc");
        assert_eq!(value["disks"], json!([{"serial": "s t", "size": 1}]));
        assert_eq!(value["name"].as_str().map(str::len), Some(TEXT_BYTES));
    }
}
