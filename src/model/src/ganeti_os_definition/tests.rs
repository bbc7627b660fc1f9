use super::*;
use serde_json::{Value, json};

fn file(executable: bool, text: &str) -> DefinitionFile {
    DefinitionFile { executable, text: text.to_owned() }
}

/// Returns the files of a definition with an image, these parameters and these variants.
pub(crate) fn files(parameters: &str, variants: &str) -> DefinitionFiles {
    [
        ("ganeti_api_version", file(false, "20\n")),
        ("image", file(false, "# of today\ndebian-12\n")),
        ("parameters.list", file(false, parameters)),
        ("variants.list", file(false, variants)),
        ("verify", file(true, "#!/bin/sh\n")),
    ]
    .map(|(name, file)| (name.to_owned(), file))
    .into()
}

fn changes(texts: &[&str]) -> Vec<ParameterChange> {
    texts.iter().map(|text| ParameterChange::parse(text).unwrap()).collect()
}

#[test]
fn definition_files_are_parsed() {
    let files = files("ns1\tthe first  name server\n\n  track stable or testing\nplain\n", "# all\n\n small \nlarge\n");
    let definition = OsDefinition::parse("web", files.clone()).unwrap();
    let parameters: Vec<_> = definition.parameters.iter().map(|one| (one.name.as_str(), one.about.as_str())).collect();
    assert_eq!(parameters, [("ns1", "the first  name server"), ("track", "stable or testing"), ("plain", "")]);
    assert_eq!((definition.api, definition.variants.join(" ")), (20, "small large".to_owned()));
    assert_eq!(definition.source, SystemSource::Image("debian-12".to_owned()));
    assert_eq!(definition.files, files);
}

/// Files as in Debian's packages ganeti-instance-debootstrap and ganeti-os-noop, except that the programs are empty.
#[test]
fn debian_definitions_are_accepted() {
    let programs =
        |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), file(true, ""))).collect::<DefinitionFiles>();
    let mut noop = programs(&["create", "export", "import", "rename"]);
    noop.insert("ganeti_api_version".to_owned(), file(false, "5\n10\n"));
    let noop = OsDefinition::parse("noop", noop).unwrap();
    assert_eq!((noop.api, noop.source, noop.parameters, noop.variants.len()), (10, SystemSource::Create, vec![], 0));
    assert!(noop.files.contains_key("create"));

    let mut debootstrap = programs(&["create", "export", "import", "rename", "verify"]);
    debootstrap.insert("common.sh".to_owned(), file(false, ""));
    debootstrap.insert("ganeti_api_version".to_owned(), file(false, "20\n15\n10\n5\n"));
    debootstrap.insert("variants.list".to_owned(), file(false, "default\n"));
    debootstrap.insert("parameters.list".to_owned(), file(false, "filesystem The filesystem type.\n"));
    let debootstrap = OsDefinition::parse("debootstrap", debootstrap).unwrap();
    assert_eq!((debootstrap.api, debootstrap.variants.join(" ")), (20, "default".to_owned()));
    assert_eq!(debootstrap.parameters[0].name, "filesystem");
}

#[test]
fn reports_every_problem_of_a_definition() {
    type Change = fn(&mut DefinitionFiles);
    let cases: [(&str, Change, &[&str]); 12] = [
        ("we b", |_| {}, &["\"we b\" is not a valid OS definition name"]),
        ("web", |files| files.clear(), &["ganeti_api_version is missing", "neither `create` nor `image` exists"]),
        ("web", |files| set(files, "ganeti_api_version", "20\nx\n"), &["ganeti_api_version:2: \"x\" is not a version"]),
        ("web", |files| set(files, "ganeti_api_version", ""), &["ganeti_api_version is empty"]),
        ("web", |files| set(files, "ganeti_api_version", "5\n7\n"), &["unsupported interface version 5, 7"]),
        ("web", |files| drop(files.remove("verify")), &["verify is missing"]),
        ("web", |files| drop(files.insert("verify".to_owned(), file(false, ""))), &["verify is not executable"]),
        ("web", |files| drop(files.remove("parameters.list")), &["parameters.list is missing"]),
        ("web", |files| set(files, "create", ""), &["both `image` and `create` exist"]),
        ("web", |files| set(files, "image", "# none\n"), &["`image` is empty"]),
        ("web", |files| set(files, "image", "a\nb\n"), &["`image` has several lines"]),
        (
            "web",
            |files| set(files, "parameters.list", "a-b\n\na.c x\nA_B y\n"),
            &[
                "parameters.list:3: \"a.c\" is not a valid parameter name",
                "parameters.list:4: \"A_B\" and \"a-b\" have the same environment variable, OSP_A_B",
            ],
        ),
    ];
    for (name, change, expected) in cases {
        let mut files = files("ns1 x\n", "");
        change(&mut files);
        let wrong = OsDefinition::parse(name, files).unwrap_err();
        assert_eq!(wrong.len(), expected.len(), "{wrong:?}");
        for (wrong, expected) in wrong.iter().zip(expected) {
            assert!(wrong.contains(expected), "{wrong}");
        }
    }
    let mut raw = files("ns1 x\n", "");
    raw.remove("image");
    raw.insert("create".to_owned(), file(true, ""));
    let wrong = OsDefinition::parse("raw", raw.clone()).unwrap_err();
    assert_eq!(wrong, ["import is missing", "export is missing", "rename is missing"]);
    raw.remove("create");
    raw.insert("create_untrusted".to_owned(), file(true, ""));
    assert!(OsDefinition::parse("raw", raw).unwrap_err()[0].contains("`create_untrusted` is supported only by Ganeti"));
}

#[test]
fn create_program_declares_required_programs() {
    let needs = |texts: &[(&str, &str)]| {
        let files = texts.iter().map(|(name, text)| ((*name).to_owned(), file(true, text))).collect();
        SelectedDefinition { name: "raw".to_owned(), files, ..SelectedDefinition::default() }.required_programs()
    };
    assert_eq!(needs(&[("image", "i")]), Ok(vec![]));
    let said = needs(&[("create", "#!/bin/bash -e\n"), ("needs", "# all\nsfdisk\n\n  mkfs.ext4\n")]);
    assert_eq!(said.unwrap(), ["/bin/bash", "sfdisk", "mkfs.ext4"]);
    assert_eq!(needs(&[("create", "#! /usr/bin/env python3\n"), ("needs", "")]).unwrap(), ["/usr/bin/env", "python3"]);
    for (files, why) in [
        (&[("create", "#!/bin/sh\n")][..], "raw has a create program, but lacks the file needs"),
        (&[("create", "#!/bin/sh\n"), ("needs", "a b\n")], "needs of raw: \"a b\" is not the name of a program"),
        (&[("create", "#!/bin/sh\n"), ("needs", "/bin/a\n")], "is not the name of a program"),
        (
            &[("create", "echo\n"), ("needs", "")],
            "the create program of raw: the first line does not specify an interpreter",
        ),
        (&[("create", ""), ("needs", "")], "the create program of raw: the first line does not specify an interpreter"),
    ] {
        assert!(needs(files).unwrap_err().contains(why), "{files:?}");
    }
    // A definition without parameters does not need `verify`.
    let programs = ["create", "export", "import", "rename", "verify"];
    let mut files: DefinitionFiles = programs.iter().map(|name| ((*name).to_owned(), file(true, ""))).collect();
    set(&mut files, "ganeti_api_version", "15\n");
    assert!(!OsDefinition::parse("old", files).unwrap().files.contains_key("verify"));
}

fn set(files: &mut DefinitionFiles, name: &str, text: &str) {
    files.insert(name.to_owned(), file(true, text));
}

#[test]
fn names_of_definitions_and_variants_are_parsed() {
    for (text, name, variant) in [("a", "a", ""), ("a-B_1+x", "a-B_1", "x"), ("a+x+y", "a", "x+y")] {
        let os = OsSelector::parse(text).unwrap();
        assert_eq!((os.name.as_str(), os.variant.as_str(), os.to_string().as_str()), (name, variant, text));
    }
    for bad in ["", "+", "a+", "+x", "a b", "../a", "a/b", "a+x y", ".a"] {
        assert!(OsSelector::parse(bad).is_err(), "{bad}");
    }
    let definition = OsDefinition::parse("web", files("", "small\nlarge\n")).unwrap();
    let variant = |os: &str| definition.resolve_variant(&OsSelector::parse(os).unwrap());
    assert_eq!((variant("web"), variant("web+large")), (Ok("small"), Ok("large")));
    assert_eq!(variant("web+huge").unwrap_err(), "web: unknown variant \"huge\"; available: small, large");
    let plain = OsDefinition::parse("web", files("", "")).unwrap();
    assert_eq!(plain.resolve_variant(&OsSelector::parse("web").unwrap()), Ok(""));
    let none = plain.resolve_variant(&OsSelector::parse("web+x").unwrap()).unwrap_err();
    assert_eq!(none, "web: unknown variant \"x\"; none are defined");
}

#[test]
fn parameters_use_the_syntax_of_ganeti() {
    let set = |key: &str, value: &str| Ok(ParameterChange::Set(key.to_owned(), value.to_owned()));
    assert_eq!(ParameterChange::parse("a=b"), set("a", "b"));
    assert_eq!(ParameterChange::parse("a="), set("a", ""));
    assert_eq!(ParameterChange::parse("a-b_1= x=y, z"), set("a-b_1", " x=y, z"));
    assert_eq!(ParameterChange::parse("-a"), Ok(ParameterChange::Unset("a".to_owned())));
    let long = format!("a={}", "x".repeat(70_000));
    for (bad, why) in [
        ("a", "neither KEY=VALUE nor -KEY"),
        ("", "neither"),
        ("=x", "not a valid parameter name"),
        ("-", "not a valid parameter name"),
        ("-a=b", "not a valid parameter name"),
        ("a b=c", "not a valid parameter name"),
        ("a=\0", "NUL"),
        (&long, "64 KiB"),
    ] {
        assert!(ParameterChange::parse(bad).unwrap_err().contains(why), "{bad}");
    }
}

/// Parameters of the allocation take precedence over parameters of the variant, which take precedence over parameters
/// of the site. `-key` discards the values of lower levels, so the default of the definition applies.
#[test]
fn parameters_of_the_allocation_override_variant_and_site() {
    let definition = OsDefinition::parse("web", files("key x\nother-key y\n", "")).unwrap();
    type Row = (&'static [&'static str], &'static [&'static str], &'static [&'static str], Value);
    let rows: [Row; 12] = [
        (&[], &[], &[], json!({})),
        (&["key=site"], &[], &[], json!({"key": "site"})),
        (&["key=site"], &["key=variant"], &[], json!({"key": "variant"})),
        (&["key=site"], &["key=variant"], &["key=own"], json!({"key": "own"})),
        (&["key=site"], &[], &["key=own"], json!({"key": "own"})),
        (&["key=site"], &[], &["key="], json!({"key": ""})),
        (&["key=site"], &["-key"], &[], json!({})),
        (&["key=site"], &["-key"], &["key=own"], json!({"key": "own"})),
        (&["key=site"], &["key=variant"], &["-key"], json!({})),
        (&[], &[], &["-key"], json!({})),
        (&["key=site", "other-key=1"], &["KEY=variant"], &["OTHER_KEY=2"], json!({"key": "variant", "other-key": "2"})),
        (&["key=site", "other-key=1"], &[], &["-Key"], json!({"other-key": "1"})),
    ];
    for (site, variant, allocation, expected) in rows {
        let [site, variant, allocation] = [site, variant, allocation].map(changes);
        let levels = ParameterLevels { site: &site, variant: &variant, allocation: &allocation };
        assert_eq!(json!(levels.resolve(&definition)), expected, "{site:?} {variant:?} {allocation:?}");
    }
    let unknown = definition.find_parameter(&ParameterChange::parse("-kez").unwrap()).unwrap_err();
    assert_eq!(unknown, "web: unknown parameter \"kez\"; available: key, other-key");
    let none = OsDefinition::parse("web", files("", "")).unwrap();
    let unknown = none.find_parameter(&ParameterChange::parse("a=b").unwrap()).unwrap_err();
    assert_eq!(unknown, "web: unknown parameter \"a\"; none are defined");
}

/// Comparison with the environments that Debian's Ganeti 3.0 has built for the same definitions
/// (`scripts/compare-ganeti --record`).
#[test]
fn environments_match_those_of_ganeti() {
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("../../../../testdata/definitions/environments.json")).unwrap();
    assert_eq!(cases.len(), 20);
    let words = |value: &Value| -> Vec<String> {
        let words = value.as_array().unwrap().iter();
        words.map(|word| word.as_str().map_or_else(|| word.to_string(), str::to_owned)).collect()
    };
    for case in cases {
        let of = &case["definition"];
        let mut files = files(&words(&of["parameters"]).join("\n"), &words(&of["variants"]).join("\n"));
        set(&mut files, "ganeti_api_version", &words(&of["versions"]).join("\n"));
        let definition = OsDefinition::parse(of["name"].as_str().unwrap(), files).unwrap();
        let os = OsSelector::parse(case["os"].as_str().unwrap()).unwrap();
        let parameters = serde_json::from_value(case["parameters"].clone()).unwrap();
        let chosen = definition.select(definition.resolve_variant(&os).unwrap(), parameters);
        assert_eq!(json!(chosen.verify_environment()), case["verify"], "{os}");
        if let Some(instance) = case.get("instance") {
            assert_eq!(json!(chosen.create_environment(&read_instance(instance))), case["create"], "{os}");
        }
    }
}

fn read_instance(of: &Value) -> GanetiInstance {
    let text = |of: &Value, name: &str| of[name].as_str().unwrap().to_owned();
    let maybe = |of: &Value, name: &str| of[name].as_str().map(str::to_owned);
    let disk = |disk: &Value| GanetiDisk {
        path: text(disk, "path"),
        uuid: text(disk, "uuid"),
        size_mib: disk["size_mib"].as_u64().unwrap(),
        name: maybe(disk, "name"),
    };
    let nic = |nic: &Value| GanetiNic {
        mac: text(nic, "mac"),
        uuid: text(nic, "uuid"),
        name: maybe(nic, "name"),
        ip: maybe(nic, "ip"),
        mode: text(nic, "mode"),
        link: maybe(nic, "link"),
    };
    GanetiInstance {
        name: text(of, "name"),
        uuid: text(of, "uuid"),
        created: text(of, "created"),
        changed: text(of, "changed"),
        primary_node: text(of, "primary_node"),
        hypervisor: text(of, "hypervisor"),
        disks: of["disks"].as_array().unwrap().iter().map(disk).collect(),
        nics: of["cards"].as_array().unwrap().iter().map(nic).collect(),
        settings: serde_json::from_value(of["settings"].clone()).unwrap(),
        reinstall: of["reinstall"].as_bool().unwrap(),
    }
}

#[test]
fn version_is_the_first_line_of_os_version() {
    for (text, expected) in [
        ("3\n", Some("3")),
        ("  2026.11-1 \r\nmore\n", Some("2026.11-1")),
        ("", None),
        ("\n3\n", None),
        (&"\u{fc}".repeat(300), Some(&*"\u{fc}".repeat(100))),
    ] {
        let file = DefinitionFile { executable: false, text: text.to_owned() };
        let chosen = SelectedDefinition {
            name: "web".to_owned(),
            variant: "small".to_owned(),
            files: [("os_version".to_owned(), file)].into(),
            ..SelectedDefinition::default()
        };
        assert_eq!(chosen.os_version(), expected, "{text:?}");
        assert_eq!(chosen.to_record().os, "web+small");
    }
    assert_eq!(SelectedDefinition::default().os_version(), None);
}
