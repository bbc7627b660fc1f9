//! Tests of the schemas of allocations and templates.

use super::*;

#[test]
fn allocation_schema_contains_the_layout_schema() {
    let (layout, mut allocation) =
        (generate_schema(SchemaDocument::Layout), generate_schema(SchemaDocument::Allocation));
    for (name, definition) in layout["$defs"].as_object().unwrap() {
        assert_eq!(allocation["$defs"][name], *definition, "{name}");
    }
    let inner = allocation.pointer_mut("/$defs/Layout").unwrap().take();
    for (keyword, rule) in inner.as_object().unwrap() {
        assert_eq!(layout[keyword], *rule, "{keyword}");
    }
}

#[test]
fn allocations_are_checked() {
    let validator = validator(SchemaDocument::Allocation);
    let example: Value =
        serde_json::from_str(&code_blocks(include_str!("../../../../../../docs/api-allocation.md"), "json")[0])
            .unwrap();
    assert_eq!(problems(&validator, &example), [""; 0]);
    let good = |place: &str, value: Value| {
        let mut machine = example.clone();
        *machine.pointer_mut(place).unwrap() = value;
        validator.is_valid(&machine)
    };
    assert!(!good("/allocation/filesystemlayout", json!("default")), "only `drophammer serve` resolves layout names");
    assert!(!good("/allocation/image/digest", json!("md5:00")));
    assert!(!good("/allocation/hostname", json!(7)));
    let with = |field: &str, value: Value| {
        let mut machine = example.clone();
        machine["allocation"][field] = value;
        validator.is_valid(&machine)
    };
    assert!(with("erase", json!("secure")) && with("reinstall", json!(true)) && with("networks", json!([{"asn": 1}])));
    assert!(!with("erase", json!("thorough")) && !with("reinstal", json!(true)) && !with("reinstall", json!("yes")));
}

#[test]
fn template_schema_agrees_with_the_parser() {
    use model::deploy_steps::template::DeployTemplate;
    let validator = validator(SchemaDocument::Template);
    jsonschema::draft202012::meta::validate(&generate_schema(SchemaDocument::Template)).unwrap();
    let good = parsed(&code_blocks(include_str!("../../../../../../docs/templates.md"), "yaml")[0]);
    assert_eq!(problems(&validator, &good), [""; 0]);
    for (place, value) in [
        ("/name", json!("mirror")),
        ("/name", json!("CUSTOM_É")),
        ("/name", json!(null)),
        ("/steps", json!([])),
        ("/steps", json!({})),
        ("/steps/0", json!({})),
        ("/steps/0/interface", json!("network")),
        ("/steps/0/step", json!("")),
        ("/steps/0/args", json!([])),
        ("/steps/0/priority", json!(-1)),
        ("/steps/0/priority", json!(1.5)),
        ("/steps/0/priority", json!("x")),
        ("/steps/0/priority", json!("7")),
        ("/uuid", json!("1")),
        ("/uuid", json!("1".repeat(32))),
        ("/uuid", json!(null)),
        ("/extra", json!({"a": 1})),
        ("/extra", json!("a")),
        ("/description", json!("x".repeat(256))),
        ("/created_at", json!("2026")),
        ("/traits", json!([])),
    ] {
        let mut changed = good.clone();
        match changed.pointer_mut(place) {
            Some(there) => *there = value.clone(),
            None => drop(changed.as_object_mut().unwrap().insert(place[1..].to_owned(), value.clone())),
        }
        let is_read = DeployTemplate::parse_file(&changed.to_string()).is_ok();
        assert_eq!(problems(&validator, &changed).is_empty(), is_read, "{place} {value}");
    }
}
