//! Names with control characters cannot forge the output of commands.

use super::*;
use crate::output_capture::{HOSTILE, first_hidden, recorded};

#[test]
fn json_with_hostile_text_is_escaped_and_unchanged() {
    let text = to_json(&serde_json::json!({ "name": HOSTILE })).unwrap();
    assert_eq!(first_hidden(&text), None);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap()["name"], HOSTILE);
}

#[test]
fn error_with_hostile_text_remains_one_message() {
    let said = recorded(|| Err::<(), _>(Error::new(Phase::Image, format!("unpack {HOSTILE}"))));
    assert_eq!(first_hidden(&said), None);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("drophammer: unpack n\\u{1b}[2J"), "{said}");
    assert!(lines[1..].iter().all(|line| line.starts_with("    ")), "{said}");
}
