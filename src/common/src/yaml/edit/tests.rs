use super::*;
use marked_yaml::LoaderOptions;
use serde_json::json;

fn read(text: &str) -> Value {
    let options = LoaderOptions::default().error_on_duplicate_keys(true).prevent_coercion(true);
    crate::yaml::to_json(&crate::yaml::read_document(text, options).unwrap())
}

/// Applies `change` to the value of the text, edits the text accordingly, and checks the value of the edited text.
fn changed(text: &str, change: impl FnOnce(&mut Value)) -> Option<EditedYaml> {
    let old = read(text);
    let mut new = old.clone();
    change(&mut new);
    let edited = edit_values(text, &old, &new)?;
    assert_eq!(read(&edited.text), new, "{}", edited.text);
    Some(edited)
}

const TEXT: &str = "# Of the rack.
id: default   # as metal-api has it
constraints:
  sizes: [c1, \"c 2\"] # two
  images:
    debian: \">= 12\"
disks:
  # The SATA-DOM.
  - device: /dev/sda # first
    wipeonreinstall: true
    partitions:
      - {number: 1, label: root, size: 5000} # root
      - {number: 2, label: var, size: 0}
  - device: /dev/sdb
    # keep!
    wipeonreinstall: false
note: |
  # no comment
  text

# The end.
";

#[test]
fn edit_changes_only_the_modified_value() {
    type Change = fn(&mut Value);
    let cases: [(Change, &str, &str); 12] = [
        (|new| new["id"] = json!("other one"), "id: default   # as", "id: \"other one\"   # as"),
        (
            |new| new["constraints"]["sizes"] = json!(["c1", "c 2", "c3"]),
            "[c1, \"c 2\"] # two",
            "[c1, \"c 2\", c3] # two",
        ),
        (|new| new["constraints"]["sizes"] = json!(["c 2"]), "[c1, \"c 2\"]", "[\"c 2\"]"),
        (|new| new["constraints"]["sizes"] = json!(["c1"]), "[c1, \"c 2\"]", "[c1]"),
        (|new| new["constraints"]["images"]["ubuntu"] = json!("*"), "\">= 12\"\n", "\">= 12\"\n    ubuntu: \"*\"\n"),
        (|new| new["disks"][0]["partitions"][0]["size"] = json!(6000), "size: 5000}", "size: 6000}"),
        (|new| new["disks"][0]["partitions"][1]["gpttype"] = json!("8300"), "size: 0}", "size: 0, gpttype: \"8300\"}"),
        (
            |new| new["disks"][0]["partitions"].as_array_mut().unwrap().push(json!({"number": 3, "size": 1})),
            "size: 0}\n",
            "size: 0}\n      - {number: 3, size: 1}\n",
        ),
        (
            |new| {
                new["disks"]
                    .as_array_mut()
                    .unwrap()
                    .insert(1, json!({"device": "/dev/sdc", "partitions": [{"number": 1}]}))
            },
            "size: 0}\n",
            "size: 0}\n  - device: /dev/sdc\n    partitions:\n      - {number: 1}\n",
        ),
        (|new| new["disks"][1]["wipeonreinstall"] = json!(true), "wipeonreinstall: false", "wipeonreinstall: true"),
        (|new| new["name"] = json!("x"), "  text\n", "  text\nname: x\n"),
        (
            |new| new["list"] = json!([{"a": 1, "b": [1, 2], "c": []}]),
            "  text\n",
            "  text\nlist:\n  - a: 1\n    b: [1, 2]\n",
        ),
    ];
    for (change, before, after) in cases {
        assert!(TEXT.contains(before), "{before}");
        let expected = TEXT.replacen(before, after, 1);
        let old = read(TEXT);
        let mut new = old.clone();
        change(&mut new);
        let edited = edit_values(TEXT, &old, &new).unwrap_or_else(|| panic!("{after}"));
        assert_eq!((edited.text, edited.removed_comments), (expected, vec![]));
    }
}

#[test]
fn removal_reports_the_removed_comments() {
    let edited = changed(TEXT, |new| drop(new["disks"].as_array_mut().unwrap().remove(0))).unwrap();
    assert_eq!(edited.removed_comments, ["# first", "# root"]);
    assert!(edited.text.contains("  # The SATA-DOM.\n  - device: /dev/sdb\n    # keep!\n"), "{}", edited.text);
    let edited = changed(TEXT, |new| drop(new.as_object_mut().unwrap().remove("note"))).unwrap();
    assert!(edited.removed_comments.is_empty() && edited.text.ends_with("false\n\n# The end.\n"), "{}", edited.text);
    let edited = changed(TEXT, |new| drop(new.as_object_mut().unwrap().remove("disks"))).unwrap();
    assert_eq!(edited.removed_comments, ["# The SATA-DOM.", "# first", "# root", "# keep!"]);
    let edited = changed(TEXT, |new| drop(new["disks"][1].as_object_mut().unwrap().remove("device"))).unwrap();
    assert!(edited.text.contains("  - wipeonreinstall: false"), "{}", edited.text);
    assert_eq!(edited.removed_comments, ["# keep!"]);
}

#[test]
fn edits_flow_style_and_unusual_documents() {
    let edited = |text: &str, change: fn(&mut Value)| changed(text, change).map(|edited| edited.text);
    assert_eq!(edited("{a: 1, b: 2}", |new| new["a"] = json!("x y")).unwrap(), "{a: \"x y\", b: 2}");
    assert_eq!(edited("{a: 1, b: 2}\n", |new| drop(new.as_object_mut().unwrap().remove("b"))).unwrap(), "{a: 1}\n");
    assert_eq!(edited("{a: 1, b: 2}\n", |new| drop(new.as_object_mut().unwrap().remove("a"))).unwrap(), "{b: 2}\n");
    assert_eq!(edited("a: [1, 2]\n", |new| new["a"] = json!([])).unwrap(), "a: []\n");
    assert_eq!(edited("a: {b: 1} # c\n", |new| new["a"] = json!({})).unwrap(), "a: {} # c\n");
    assert_eq!(edited("a: []\n", |new| new["a"] = json!([{"b": 1}])).unwrap(), "a:\n  - b: 1\n");
    assert_eq!(edited("é: 'it''s'\r\nb: 1\r\n", |new| new["é"] = json!("ü")).unwrap(), "é: \"ü\"\r\nb: 1\r\n");
    assert_eq!(edited("a: 1\r\n", |new| new["b"] = json!(2)).unwrap(), "a: 1\r\nb: 2\r\n");
    assert_eq!(edited("a: 1", |new| new["b"] = json!({"c": 2})).unwrap(), "a: 1\nb:\n  c: 2");
    assert_eq!(edited("a:\n- 1\n- 2\n", |new| new["a"] = json!([2, 3])).unwrap(), "a:\n- 2\n- 3\n");
    let marked = edit_values("\u{feff}a: 1\n", &json!({"a": 1}), &json!({"a": 2})).unwrap();
    assert_eq!(marked.text, "\u{feff}a: 2\n");
    let text = "a: \"x # no\" # yes\nb: 1\n";
    assert_eq!(edited(text, |new| new["a"] = json!("z")).unwrap(), "a: z # yes\nb: 1\n");
    // Field without a value.
    let old = json!({"b": 1});
    assert_eq!(edit_values("a:\nb: 1\n", &old, &json!({"a": 2, "b": 1})).unwrap().text, "a: 2\nb: 1\n");
}

#[test]
fn unsupported_edits_return_none() {
    for text in ["a: &x 1\nb: *x\n", "a: !!str 1\n", "a: 1\n---\nb: 2\n", "a: [1\n"] {
        assert_eq!(edit_values(text, &json!({"a": 1}), &json!({"a": 2})), None, "{text}");
    }
    // Reordered items cannot be edited in place.
    assert_eq!(edit_values("a: [1, 2]\n", &json!({"a": [1, 2]}), &json!({"a": [2, 1]})), None);
    let deep = "[".repeat(100) + &"]".repeat(100);
    assert_eq!(edit_values(&deep, &json!([]), &json!([1])), None);
    assert!(has_comments("a: 1 # x\n") && !has_comments("a: '#'\nb: x#y\n"));
}

#[test]
fn new_document_contains_ordered_and_unordered_fields() {
    let document = json!({"bmc": {"address": "10.0.0.9"}, "name": "web-1", "id": "m1"});
    let text = format_document(&document, &["id", "missing", "name"]);
    assert_eq!(read(&text), document);
    assert_eq!(text, "id: m1\nname: web-1\nbmc:\n  address: \"10.0.0.9\"\n");
}
