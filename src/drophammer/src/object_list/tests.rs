use super::*;
use serde_json::{Value, json};
use std::cell::Cell;

fn racks() -> ObjectList<'static, Value> {
    let columns = vec![
        ListColumn::new("name", |rack| text_of_field(rack, "name")),
        ListColumn::new("phase", |rack| text_of_field(rack, "phase")),
        ListColumn::new("bytes", |rack: &Value| ListCell {
            order: rack["bytes"].as_u64().map(|bytes| bytes.to_string()),
            ..ListCell::from(rack["bytes"].as_u64().map(common::format::format_bytes).unwrap_or_default())
        })
        .only_wide(),
    ];
    ObjectList { command: "rack", noun: "racks", name: |rack| text_of_field(rack, "name"), columns }
}

fn objects() -> Vec<Value> {
    vec![
        json!({"name": "rack10", "phase": "failed", "bytes": 999}),
        json!({"name": "rack2", "phase": "installed", "bytes": 1000}),
        json!({"name": "rack1", "phase": "Failed", "bytes": null}),
    ]
}

fn formatted(options: &ListOptions, format: OutputFormat) -> Result<String> {
    let table = TableFormat { has_titles: !options.no_headers, ..TableFormat::default() };
    format_list(&racks(), &objects(), options, format, table)
}

fn names(filter: &[&str], sort: Option<&str>) -> Result<Vec<String>> {
    let filter = filter.iter().map(|text| (*text).to_owned()).collect();
    let options = ListOptions { filter, sort: sort.map(str::to_owned), ..ListOptions::default() };
    Ok(formatted(&options, OutputFormat::Name)?.lines().map(str::to_owned).collect())
}

#[test]
fn names_are_in_natural_order() {
    assert_eq!(names(&[], None).unwrap(), ["rack1", "rack2", "rack10"]);
    assert_eq!(names(&[], Some("-name")).unwrap(), ["rack10", "rack2", "rack1"]);
    assert_eq!(names(&[], Some("BYTES")).unwrap(), ["rack10", "rack2", "rack1"], "no value comes last");
    assert_eq!(names(&[], Some("-bytes")).unwrap(), ["rack2", "rack10", "rack1"], "no value comes last");
}

#[test]
fn equal_values_are_in_natural_order_of_the_names() {
    let objects = ["node10", "node2", "node1"].map(|name| json!({"name": name, "phase": "failed"}));
    let table = TableFormat::default();
    for sort in ["phase", "-phase", "bytes"] {
        let options = ListOptions { sort: Some(sort.to_owned()), ..ListOptions::default() };
        let text = format_list(&racks(), &objects, &options, OutputFormat::Name, table).unwrap();
        assert_eq!(text, "node1\nnode2\nnode10\n", "{sort}");
    }
}

#[test]
fn filters_select_objects() {
    for (filter, expected) in [
        (&["phase=failed"][..], &["rack1", "rack10"][..]),
        (&["phase=failed", "name=rack10"], &["rack10"]),
        (&["PHASE=Inst*"], &["rack2"]),
        (&["name=*1*"], &["rack1", "rack10"]),
        (&["bytes="], &["rack1"]),
        (&["bytes=-"], &["rack1"]),
        (&["bytes=1.00 kB"], &["rack2"]),
        (&["name=rack"], &[]),
        (&["phase=failed,installed"], &["rack1", "rack2", "rack10"]),
        (&["phase=INST*,waiting", "bytes=1.00 kB"], &["rack2"]),
        (&["bytes=-,999 B"], &["rack1", "rack10"]),
        (&["name=rack1,"], &["rack1"]),
    ] {
        assert_eq!(names(filter, None).unwrap(), expected, "{filter:?}");
    }
}

#[test]
fn unknown_keys_are_refused_with_the_list_of_keys() {
    for (filter, sort, expected) in [
        (&["phases=failed"][..], None, "--filter: unknown key \"phases\"; keys: name, phase, bytes"),
        (&["failed"], None, "--filter \"failed\": must be KEY=VALUE; keys: name, phase, bytes"),
        (&[], Some("size"), "--sort: unknown key \"size\"; keys: name, phase, bytes"),
        (&[], Some("-"), "--sort: unknown key \"\"; keys: name, phase, bytes"),
    ] {
        let error = names(filter, sort).unwrap_err();
        assert!(error.is_refusal());
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn asterisk_in_pattern_matches_any_text() {
    for (text, pattern, expected) in [
        ("debian-12", "debian-12", true),
        ("debian-12", "DEBIAN-12", true),
        ("debian-12", "debian", false),
        ("debian-12", "debian*", true),
        ("debian-12", "*12", true),
        ("debian-12", "d*n*2", true),
        ("debian-12", "d*x*2", false),
        ("aba", "ab*ba", false),
        ("", "*", true),
        ("a", "", false),
    ] {
        assert_eq!(matches_pattern(text, pattern), expected, "{text} {pattern}");
    }
}

#[test]
fn commas_separate_values_or_are_part_of_the_text() {
    let list = racks();
    let phase = list.find_column("--filter", "phase").unwrap();
    for (text, value, expected) in [
        ("failed", "waiting,failed", true),
        ("failed", "waiting, failed", true),
        ("failed", "waiting,new", false),
        ("no disk, no network", "no disk, no network", true),
        ("no disk, no network", "*disk, no*", true),
        ("", ",", false),
        ("", "failed,-", true),
    ] {
        let patterns = list.split_patterns(phase, value).unwrap();
        assert_eq!(matches_any(text, &patterns), expected, "{text} {value}");
    }
    // These values would select more objects than intended.
    for (value, message) in
        [("failed,name=rack1", "name=rack1 is another condition"), ("failed,*", "* matches every value")]
    {
        let refused = list.split_patterns(phase, value).unwrap_err();
        assert!(refused.contains(message), "{refused}");
    }
    let message = ListColumn::new("message", |rack: &Value| text_of_field(rack, "message")).with_prose();
    assert_eq!(list.split_patterns(&message, "*1 of 3, started*").unwrap(), ["*1 of 3, started*"]);
}

#[test]
fn list_is_printed_in_every_output_format() {
    let failed = ListOptions { filter: vec!["phase=installed".to_owned()], ..ListOptions::default() };
    for (format, expected) in [
        (OutputFormat::Table, "NAME   PHASE\nrack2  installed\n"),
        (OutputFormat::Wide, "NAME   PHASE      BYTES\nrack2  installed  1.00 kB\n"),
        (OutputFormat::Name, "rack2\n"),
        (OutputFormat::Yaml, "- bytes: 1000\n  name: rack2\n  phase: installed\n"),
        (
            OutputFormat::Json,
            "[\n  {\n    \"bytes\": 1000,\n    \"name\": \"rack2\",\n    \"phase\": \"installed\"\n  }\n]\n",
        ),
    ] {
        assert_eq!(formatted(&failed, format).unwrap(), expected);
    }
    let bare = ListOptions { no_headers: true, ..failed.clone() };
    assert_eq!(formatted(&bare, OutputFormat::Table).unwrap(), "rack2  installed\n");
    let none = ListOptions { filter: vec!["name=x".to_owned()], ..failed };
    assert_eq!(formatted(&none, OutputFormat::Table).unwrap(), "");
    assert_eq!(formatted(&none, OutputFormat::Json).unwrap(), "[]\n");
}

#[test]
fn documents_preserve_the_order_of_the_server() {
    let order = |sort: Option<&str>| {
        let options = ListOptions { sort: sort.map(str::to_owned), ..ListOptions::default() };
        let text = formatted(&options, OutputFormat::Json).unwrap();
        let all: Vec<Value> = serde_json::from_str(&text).unwrap();
        all.iter().map(|rack| text_of_field(rack, "name")).collect::<Vec<_>>()
    };
    assert_eq!(order(None), ["rack10", "rack2", "rack1"]);
    assert_eq!(order(Some("name")), ["rack1", "rack2", "rack10"]);
}

#[test]
fn keys_and_values_of_filters_are_completed() {
    for (prefix, expected) in [
        ("ph", &["phase="][..]),
        ("phase=ins", &["phase=installed"]),
        ("name=rack1,ra", &["name=rack1,rack1", "name=rack1,rack10", "name=rack1,rack2"]),
        ("nothing=", &[]),
    ] {
        assert_eq!(racks().complete_filter(&objects(), prefix), expected, "{prefix}");
    }
}

#[test]
fn objects_are_shown_by_name() {
    let shown =
        |name: &str, format| common::output_capture::recorded(|| print_object(&racks(), &objects(), name, format));
    assert_eq!(shown("rack2", ShowFormat::Yaml), "bytes: 1000\nname: rack2\nphase: installed\n");
    assert!(shown("rack2", ShowFormat::Json).starts_with("{\n  \"bytes\": 1000,"));
    let refused = "drophammer: the server has no rack \"rack3\"; `drophammer rack list` lists its racks (DH-609)\n";
    assert_eq!(shown("rack3", ShowFormat::Yaml), refused);
    assert_eq!(shown("rack3", ShowFormat::Json), refused);
}

#[test]
fn quiet_and_json_select_a_format() {
    let options = ListOptions { output: Some(OutputFormat::Table), ..ListOptions::default() };
    assert_eq!(options.output_format(true).unwrap(), OutputFormat::Table, "an option precedes DROPHAMMER_JSON");
    assert_eq!(ListOptions { quiet: true, ..options }.output_format(true).unwrap(), OutputFormat::Name);
    assert_eq!(ListOptions::default().output_format(true).unwrap(), OutputFormat::Json);
    for (value, expected) in
        [(None, OutputFormat::Table), (Some(""), OutputFormat::Table), (Some("yaml"), OutputFormat::Yaml)]
    {
        assert_eq!(parse_default_format(value).unwrap(), expected);
    }
    assert!(parse_default_format(Some("xml")).unwrap_err().to_string().contains("unknown format \"xml\""));
}

#[test]
fn watched_list_is_reprinted_only_after_changes() {
    let round = Cell::new(0);
    let output = common::output_capture::recorded(|| {
        watch_list(Duration::ZERO, || {
            round.set(round.get() + 1);
            match round.get() {
                1 | 2 => Ok(Some("one\n".to_owned())),
                3 => Ok(Some("two\n".to_owned())),
                _ => Err(Error::new(Phase::Control, "no response")),
            }
        })
    });
    assert_eq!((round.get(), output.as_str()), (4, "one\ntwo\ndrophammer: no response\n"));
}
