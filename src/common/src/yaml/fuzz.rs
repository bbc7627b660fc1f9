//! Structural fuzz test of the YAML reader, with values in all styles and with unsupported constructs. If this reader
//! and PyYAML both accept a document, they must return the same value.

use super::read_document;
use fastrand::Rng;
use marked_yaml::{LoaderOptions, Node};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;
use testing::fuzz_driver::{Fuzz, folder};
use testing::reference_implementation::ReferenceProcess;

/// Process that parses documents with PyYAML.
static JUDGE: LazyLock<Mutex<ReferenceProcess>> = LazyLock::new(|| {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/yaml/fuzz/yaml_judge.py");
    Mutex::new(ReferenceProcess::start_python(script))
});

/// Number of generated documents for each result of the comparison with PyYAML.
static COUNTS: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

fn read_with_pyyaml(text: &str) -> Result<Value, String> {
    let line = JUDGE.lock().unwrap().ask(text.as_bytes());
    let mut answer: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
    match answer["error"].as_str() {
        Some(error) => Err(error.to_owned()),
        None => Ok(answer["document"].take()),
    }
}

#[test]
fn fuzz_yaml_structure() {
    let fuzz = Fuzz {
        folder: folder("yaml-structure"),
        few: 1500,
        hangs: Duration::from_secs(60),
        corpus: Vec::new(),
        mutated: |_, random| generate(random).into_bytes(),
        check_input: compare,
    };
    fuzz.run();
    let counts = COUNTS.lock().unwrap();
    counts.iter().for_each(|(verdict, count)| println!("{count:>8}  {verdict}"));
    let total: u64 = counts.values().sum();
    let of = |verdict: &str| counts.get(verdict).copied().unwrap_or_default();
    assert!(of("same document") * 4 > total, "{counts:?}");
    assert!(of("refused by both") > 0 && of("refused by this reader, accepted by PyYAML") > 0, "{counts:?}");
    assert!(of("accepted by this reader, refused by PyYAML") * 20 < total, "{counts:?}");
}

fn compare(input: &[u8], _: &mut Rng) -> bool {
    let Ok(text) = std::str::from_utf8(input) else { return false };
    let options = LoaderOptions::default().error_on_duplicate_keys(true).prevent_coercion(true);
    let ours = read_document(text, options).map(|node| plain(&node));
    let theirs = read_with_pyyaml(text);
    let verdict = match (&ours, &theirs) {
        (Ok(ours), Ok(theirs)) => {
            // For an empty document, this reader returns an empty mapping, whereas PyYAML returns null.
            let is_empty = theirs.is_null() && ours.as_object().is_some_and(Map::is_empty);
            assert!(is_empty || ours == theirs, "{text}\n{ours}\n{theirs}");
            "same document"
        }
        (Ok(_), Err(_)) => "accepted by this reader, refused by PyYAML",
        (Err(_), Ok(_)) => "refused by this reader, accepted by PyYAML",
        (Err(_), Err(_)) => "refused by both",
    };
    *COUNTS.lock().unwrap().entry(verdict.to_owned()).or_default() += 1;
    ours.is_ok()
}

/// Returns the document with every scalar converted to a string.
fn plain(node: &Node) -> Value {
    match node {
        Node::Scalar(scalar) => Value::from(scalar.as_str()),
        Node::Sequence(sequence) => sequence.iter().map(plain).collect(),
        Node::Mapping(mapping) => {
            let entries = mapping.iter().map(|(key, value)| (key.as_str().to_owned(), plain(value)));
            Value::Object(entries.collect::<Map<String, Value>>())
        }
    }
}

const WORDS: [&str; 26] = [
    "a", "b c", "", "~", "null", "true", "no", "0x1F", "0o17", "1_000", "1:30", "-", "- a", "a: b", "a #b", "#a", "*a",
    "&a", "!a", "\"", "'", "é x", "{a", "[b]", "<<", "---",
];
const SAMPLE_KEYS: [&str; 8] = ["a", "b", "key", "long key", "x-y", "n", "1", "\u{e9}"];
/// Constructs that the test occasionally adds to a document.
const ODDITIES: [&str; 14] = [
    "a: &anchor x\nb: *anchor\n",
    "a: &m {x: 1}\nb: {<<: *m}\n",
    "<<: {x: 1}\n",
    "a: !!str 1\n",
    "a: !other x\n",
    "a: 1\na: 2\n",
    "%YAML 1.1\n---\na: 1\n",
    "---\na: 1\n---\nb: 2\n",
    "? a\n: b\n",
    "a:\n\t- b\n",
    "a: |2\n   x\n",
    "a: >+\n x\n\n\n",
    "a: 'x\n  y'\n",
    "\"a\\x41\\u00e9\\n\": b\n",
];

fn generate(random: &mut Rng) -> String {
    let mut text = String::new();
    if random.u8(..20) == 0 {
        text.push_str("---\n");
    }
    match random.u8(..12) {
        0 => text.push_str(random.choice(&ODDITIES).unwrap()),
        1 => {
            block_mapping(random, &mut text, 0, 2);
            text.push_str(random.choice(&ODDITIES).unwrap());
        }
        2 | 3 => block_sequence(random, &mut text, 0, 3),
        _ => block_mapping(random, &mut text, 0, 3),
    }
    if random.u8(..10) == 0 {
        text = text.replace('\n', "\r\n");
    }
    if random.u8(..15) == 0 && !text.is_empty() {
        let at = (0..=random.usize(..text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.insert_str(at, random.choice(&["\t", " ", "\n", ":", "- ", "#", "\"", "&x ", "{"]).unwrap());
    }
    text
}

fn block_mapping(random: &mut Rng, text: &mut String, indent: usize, depth: usize) {
    let mut keys = SAMPLE_KEYS.to_vec();
    random.shuffle(&mut keys);
    keys.truncate(random.usize(1..4));
    for key in keys {
        let key = if random.u8(..4) == 0 { format!("\"{key}\"") } else { key.to_owned() };
        text.push_str(&format!("{}{key}:", " ".repeat(indent)));
        value(random, text, indent, depth);
    }
}

fn block_sequence(random: &mut Rng, text: &mut String, indent: usize, depth: usize) {
    for _ in 0..random.usize(1..4) {
        text.push_str(&format!("{}-", " ".repeat(indent)));
        value(random, text, indent, depth);
    }
}

/// Generates the text between a colon or a dash and the end of the value's last line.
fn value(random: &mut Rng, text: &mut String, indent: usize, depth: usize) {
    let step = random.usize(1..5);
    match random.u8(..9) {
        0 | 1 if depth > 0 => {
            comment(random, text);
            text.push('\n');
            block_mapping(random, text, indent + step, depth - 1);
        }
        2 if depth > 0 => {
            comment(random, text);
            text.push('\n');
            block_sequence(random, text, indent + step, depth - 1);
        }
        3 => {
            text.push(' ');
            flow(random, text, depth);
            comment(random, text);
            text.push('\n');
        }
        4 => {
            let style = random.choice(&[" |", " >", " |-", " >-", " |+"]).unwrap();
            text.push_str(&format!("{style}\n"));
            let blanks = " ".repeat(indent + step);
            for line in ["first", "second line", "", "  indented", "last #1"].iter().take(random.usize(1..6)) {
                text.push_str(&if line.is_empty() { "\n".to_owned() } else { format!("{blanks}{line}\n") });
            }
        }
        _ => {
            text.push(' ');
            scalar(random, text);
            comment(random, text);
            text.push('\n');
        }
    }
}

fn comment(random: &mut Rng, text: &mut String) {
    if random.u8(..5) == 0 {
        text.push_str(" # a: [comment");
    }
}

fn scalar(random: &mut Rng, text: &mut String) {
    let word = random.choice(&WORDS).unwrap();
    match random.u8(..5) {
        0 => text.push_str(&format!("'{}'", word.replace('\'', "''"))),
        1 => text.push_str(&super::quote_string(word)),
        2 => text.push_str(&super::format_scalar(word)),
        // The word is written without quotes, even if YAML requires quotes for it.
        3 => text.push_str(word),
        _ => text.push_str(&format!("plain{}", random.u8(..))),
    }
}

fn flow(random: &mut Rng, text: &mut String, depth: usize) {
    if depth == 0 || random.u8(..3) == 0 {
        let word = random.choice(&WORDS).unwrap();
        return text.push_str(&super::quote_string(word));
    }
    let is_mapping = random.bool();
    text.push(if is_mapping { '{' } else { '[' });
    let mut keys = SAMPLE_KEYS.to_vec();
    random.shuffle(&mut keys);
    for (index, key) in keys.iter().take(random.usize(..4)).enumerate() {
        text.push_str(if index > 0 { ", " } else { "" });
        if is_mapping {
            text.push_str(&format!("{key}: "));
        }
        flow(random, text, depth - 1);
    }
    text.push(if is_mapping { '}' } else { ']' });
}
