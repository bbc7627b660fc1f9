use super::*;
use crate::operator_files::parse_machine;
use model::ganeti_os_definition::{OsSelector, ParameterChange};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc;
use std::time::Duration;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);

/// Directory with `os/`, and its reader.
struct DefinitionDirectory {
    dir: TempDir,
    definitions: OsDefinitions,
    done: mpsc::Receiver<VerifyResult>,
}

impl DefinitionDirectory {
    fn new() -> DefinitionDirectory {
        let dir = tempfile::tempdir().unwrap();
        let (sender, done) = mpsc::channel();
        let verified = VerifyCache::start(move |one| drop(sender.send(one))).unwrap();
        let definitions = OsDefinitions::new(dir.path().join("os"), verified);
        DefinitionDirectory { dir, definitions, done }
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.dir.path().join("os").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        let mode = if text.starts_with("#!") { 0o755 } else { 0o644 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn web(&self, verify: &str) {
        self.write("web/ganeti_api_version", "20\n");
        self.write("web/image", "debian-12\n");
        self.write("web/parameters.list", "ns1 a name server\ntrack stable or testing\n");
        self.write("web/variants.list", "small\nlarge\n");
        self.write("web/verify", verify);
    }

    fn problems(&mut self) -> Vec<String> {
        self.definitions.rescan();
        let problems = self.definitions.collect_problems();
        let dir = format!("{}/", self.dir.path().display());
        problems.into_iter().map(|problem| problem.replace(&dir, "")).collect()
    }

    /// Resolves an allocation with these lines.
    fn choose(&mut self, lines: &str) -> DefinitionChoice {
        let text = format!("id: 4c4c4544-0051-3010-8031-b2c04f333633\nallocation:\n  id: a\n  hostname: h\n{lines}\n");
        let allocation = parse_machine(&text).unwrap().allocation.unwrap();
        loop {
            let choice = self.definitions.choose_definition(&allocation).unwrap();
            let DefinitionState::Verifying = choice.settled else { return choice };
            let done = self.done.recv_timeout(PATIENCE).unwrap();
            self.definitions.store_verdict(done);
        }
    }

    fn bad(&mut self, lines: &str) -> String {
        match self.choose(lines).settled {
            DefinitionState::Unusable(why) => why.replace(&format!("{}/", self.dir.path().display()), ""),
            other => panic!("{other:?}"),
        }
    }

    fn good(&mut self, lines: &str) -> (String, Vec<(String, String)>) {
        match self.choose(lines) {
            DefinitionChoice { settled: DefinitionState::Usable(chosen), image: Some(image), .. } => {
                assert_eq!(image, "debian-12");
                (chosen.selector().to_string(), chosen.parameters.into_iter().collect())
            }
            DefinitionChoice { settled, .. } => panic!("{settled:?}"),
        }
    }
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

const YES: &str = "#!/bin/sh\n";

#[test]
fn site_wide_parameters_apply_unless_overridden() {
    let mut definitions_directory = DefinitionDirectory::new();
    definitions_directory.web(YES);
    definitions_directory.write(
        "parameters.yaml",
        "web: [ns1=site, track=site]\nweb+large: [ns1=large, -track]\nnot-there-yet: [x=y]\n",
    );
    assert_eq!(definitions_directory.problems(), [""; 0]);
    assert_eq!(
        definitions_directory.good("  os: web"),
        ("web+small".to_owned(), pairs(&[("ns1", "site"), ("track", "site")]))
    );
    assert_eq!(definitions_directory.good("  os: web+large"), ("web+large".to_owned(), pairs(&[("ns1", "large")])));
    let own = definitions_directory.good("  os: web+large\n  os_parameters: [track=own, -ns1]");
    assert_eq!(own, ("web+large".to_owned(), pairs(&[("track", "own")])));
}

#[test]
fn missing_definition_is_reported_with_available_ones() {
    let mut definitions_directory = DefinitionDirectory::new();
    assert_eq!(
        definitions_directory.bad("  os: web"),
        "5:7: OS definition \"web\" not found in os/; none is available"
    );
    definitions_directory.web(YES);
    assert_eq!(definitions_directory.problems(), [""; 0]);
    assert_eq!(
        definitions_directory.bad("  os: wep"),
        "5:7: OS definition \"wep\" not found in os/; did you mean \"web\"?"
    );
    assert_eq!(
        definitions_directory.bad("  os: web+huge"),
        "5:7: web: unknown variant \"huge\"; available: small, large"
    );
    assert_eq!(
        definitions_directory.bad("  os: web\n  os_parameters: [ns2=1, track=x, -y]"),
        "6:19: web: unknown parameter \"ns2\"; available: ns1, track\n6:35: web: unknown parameter \"y\"; available: ns1, track"
    );
    // An invalid site-wide parameter makes each machine file that uses the definition invalid.
    definitions_directory.write("parameters.yaml", "web: [ns2=1]\n");
    assert_eq!(
        definitions_directory.problems(),
        ["os/parameters.yaml:1:7: web: unknown parameter \"ns2\"; available: ns1, track"]
    );
    let why = "5:7: os/parameters.yaml:1:7: web: unknown parameter \"ns2\"; available: ns1, track";
    assert_eq!(definitions_directory.bad("  os: web"), why);
    definitions_directory.write("parameters.yaml", "web: [ns1]\n");
    assert_eq!(
        definitions_directory.problems()[0].split_once(" (").unwrap().0,
        "os/parameters.yaml:1:7: \"ns1\" is neither KEY=VALUE nor -KEY"
    );
    definitions_directory.write("parameters.yaml", "web: [ns1=1]\n");
    definitions_directory.write("second.yml", "web: [ns1=2]\n");
    let twice = definitions_directory.problems();
    assert!(
        twice[0].starts_with("os/second.yml:1:1: OS definition web is already configured in ")
            && twice[0].ends_with(", which takes precedence"),
        "{twice:?}"
    );
    assert_eq!(definitions_directory.good("  os: web").1, pairs(&[("ns1", "1")]));
}

/// Site-wide parameters are verified when they change, even if no machine uses them.
#[test]
fn site_wide_parameters_are_verified() {
    let mut definitions_directory = DefinitionDirectory::new();
    definitions_directory.web("#!/bin/sh\n[ \"$OSP_TRACK\" != sid ] && exit 0\necho no sid >&2\nexit 1\n");
    definitions_directory
        .write("parameters.yaml", "web: [track=testing]\nweb+large: [ns1=1, track=sid]\nnot-there-yet: [track=sid]\n");
    let settle = |definitions_directory: &mut DefinitionDirectory| {
        let mut problems = definitions_directory.problems();
        while definitions_directory.definitions.is_waiting() {
            let done = definitions_directory.done.recv_timeout(PATIENCE).unwrap();
            definitions_directory.definitions.store_verdict(done);
            problems = definitions_directory.problems();
        }
        problems
    };
    let problems = settle(&mut definitions_directory);
    if matches!(definitions_directory.choose("  os: web").note, Some(note) if note.contains("was not run here")) {
        return;
    }
    assert_eq!(problems.len(), 1, "{problems:?}");
    let why = "os/parameters.yaml:2:13: the verify program of web+large rejects the site-wide parameters: ";
    assert!(problems[0].starts_with(why) && problems[0].contains("no sid"), "{problems:?}");
    // A refusal of the definition's parameters is reported only once, although it concerns several variants.
    definitions_directory.write("parameters.yaml", "web: [track=sid]\nweb+large: []\n");
    let problems = settle(&mut definitions_directory);
    assert!(problems.len() == 1 && problems[0].starts_with("os/parameters.yaml:1:7: "), "{problems:?}");
    definitions_directory.write("parameters.yaml", "web: [track=sid]\nweb+small: [track=]\nweb+large: [-track]\n");
    assert_eq!(settle(&mut definitions_directory), [""; 0]);
}

#[test]
fn requested_changes_are_combined_with_stored_ones() {
    let mut definitions_directory = DefinitionDirectory::new();
    definitions_directory.web(YES);
    definitions_directory.write("parameters.yaml", "web: [ns1=site]\nweb+large: [track=large]\n");
    assert_eq!(definitions_directory.problems(), [""; 0]);
    let catalog = definitions_directory.definitions.catalog();
    let set = |text: &str| vec![ParameterChange::parse(text).unwrap()];
    let web = OsSelector::parse("web").unwrap();
    assert_eq!(catalog.site_changes(&web), set("ns1=site"));
    assert!(catalog.site_file(&web).unwrap().ends_with("os/parameters.yaml"));
    let chosen = catalog.select_for_allocation("web+large", &set("track=own")).unwrap();
    assert_eq!(chosen.parameters.into_iter().collect::<Vec<_>>(), pairs(&[("ns1", "site"), ("track", "own")]));
    let all = catalog.select_for_site(&web, &set("track=new")).unwrap();
    let all: Vec<String> = all.iter().map(|one| format!("{} {:?}", one.selector(), one.parameters)).collect();
    assert_eq!(all, ["web+small {\"track\": \"new\"}", "web+large {\"track\": \"large\"}"]);
    for (os, change, expected) in [
        ("web", "ns2=1", "web: unknown parameter \"ns2\"; available: ns1, track"),
        ("web+huge", "ns1=1", "web: unknown variant \"huge\"; available: small, large"),
    ] {
        let why = catalog.select_for_site(&OsSelector::parse(os).unwrap(), &set(change)).unwrap_err();
        assert_eq!(why, expected);
    }
    let missing = OsSelector::parse("not-there-yet").unwrap();
    assert_eq!(catalog.select_for_site(&missing, &set("x=y")), Ok(Vec::new()));
}

#[test]
fn definitions_are_read_again_when_they_change() {
    let mut definitions_directory = DefinitionDirectory::new();
    assert!(!definitions_directory.definitions.rescan());
    definitions_directory.web(YES);
    assert!(definitions_directory.definitions.rescan() && !definitions_directory.definitions.rescan());
    fs::remove_file(definitions_directory.dir.path().join("os/web/verify")).unwrap();
    assert_eq!(definitions_directory.problems(), ["os/web: verify is missing"]);
    assert_eq!(definitions_directory.bad("  os: web"), "5:7: os/web cannot be used: verify is missing");
    definitions_directory.web(YES);
    assert_eq!(definitions_directory.problems(), [""; 0]);
    fs::remove_dir_all(definitions_directory.dir.path().join("os")).unwrap();
    assert!(definitions_directory.definitions.rescan() && !definitions_directory.definitions.rescan());
    assert!(definitions_directory.bad("  os: web").contains("not found in os/"));
}

#[test]
fn create_program_must_declare_its_needs() {
    let mut definitions_directory = DefinitionDirectory::new();
    for name in ["create", "export", "import", "rename"] {
        definitions_directory.write(&format!("noop/{name}"), "#!/bin/sh\n");
    }
    definitions_directory.write("noop/ganeti_api_version", "5\n10\n");
    assert_eq!(definitions_directory.problems(), [""; 0]);
    let why = definitions_directory.bad("  os: noop");
    assert!(why.starts_with("5:7: noop has a create program, but lacks the file needs"), "{why}");
    definitions_directory.write("noop/needs", "# nothing\n");
    assert_eq!(definitions_directory.problems(), [""; 0]);
    let DefinitionChoice { settled, image, .. } = definitions_directory.choose("  os: noop");
    assert_eq!((settled.created_os().unwrap().to_string(), image.unwrap()), ("noop".to_owned(), "noop".to_owned()));
    let told = settled.for_machine(true).unwrap();
    assert!(told.has_create() && told.files["create"].executable && told.api == 10);
}

#[test]
fn verify_refusal_is_reported_to_the_operator() {
    let mut definitions_directory = DefinitionDirectory::new();
    definitions_directory
        .web("#!/bin/sh\n[ \"$OSP_TRACK\" = testing ] && exit 0\necho \"no track '$OSP_TRACK'\" >&2\nexit 1\n");
    assert_eq!(definitions_directory.problems(), [""; 0]);
    let choice = definitions_directory.choose("  os: web\n  os_parameters: [track=testing]");
    if let Some(note) = choice.note {
        assert!(note.starts_with("5:7: the verify program of web+small was not run here: "), "{note}");
        return;
    }
    let why = definitions_directory.bad("  os: web\n  os_parameters: [track=sid]");
    assert!(
        why.starts_with(
            "5:7: the verify program of web+small refuses these parameters: the program exited with 1, saying: "
        ),
        "{why}"
    );
    assert!(why.contains("no track 'sid'"), "{why}");
    // `verify` runs again if the definition has changed.
    definitions_directory.web(YES);
    assert_eq!(definitions_directory.problems(), [""; 0]);
    assert_eq!(definitions_directory.good("  os: web\n  os_parameters: [track=sid]").1, pairs(&[("track", "sid")]));
}

#[test]
fn documentation_example_is_a_valid_definition() {
    let page = include_str!("../../../../docs/definitions.md");
    let blocks = |language: &str| testing::docs::code_blocks(page, language);
    let ([parameters, variants], [verify], [of_machine, site]) =
        (&blocks("text")[..], &blocks("sh")[..], &blocks("yaml")[..])
    else {
        panic!("two lists, a verify, a machine and a site")
    };
    let mut definitions_directory = DefinitionDirectory::new();
    for (name, text) in [
        ("web/ganeti_api_version", "20\n"),
        ("web/image", "debian-12.0.20261122\n"),
        ("web/parameters.list", parameters),
        ("web/variants.list", variants),
        ("web/verify", verify),
        ("parameters.yaml", site),
    ] {
        definitions_directory.write(name, text);
    }
    assert_eq!(definitions_directory.problems(), [""; 0]);
    let lines = |change: fn(String) -> String| {
        let text = change(of_machine.clone());
        text.lines().filter(|line| line.starts_with("  os")).collect::<Vec<_>>().join("\n")
    };
    parse_machine(of_machine).unwrap();
    let DefinitionChoice { settled: DefinitionState::Usable(chosen), image, note } =
        definitions_directory.choose(&lines(|text| text))
    else {
        panic!("no")
    };
    assert_eq!(
        (chosen.selector().to_string(), image.unwrap()),
        ("web+small".to_owned(), "debian-12.0.20261122".to_owned())
    );
    let told: Vec<_> = chosen.parameters.into_iter().collect();
    assert_eq!(told, pairs(&[("ns1", "192.0.2.53"), ("track", "testing")]));
    if note.is_none() {
        let why = definitions_directory.bad(&lines(|text| text.replace("testing", "sid")));
        assert!(why.contains("there is no track 'sid': stable or testing"), "{why}");
    }
}

/// Tests definitions that `scripts/compare-ganeti` has unpacked from Debian packages.
#[test]
#[ignore = "needs Debian's packages: scripts/compare-ganeti"]
fn definitions_of_debian_are_valid_os_definitions() {
    let folder = PathBuf::from(std::env::var("DROPHAMMER_DEFINITIONS").unwrap());
    for name in ["debootstrap", "noop"] {
        let definition = OsDefinition::parse(name, definition_files::read_files(&folder.join(name)).unwrap()).unwrap();
        let parameters: Vec<&str> = definition.parameters.iter().map(|one| one.name.as_str()).collect();
        let OsDefinition { api, source, variants, .. } = &definition;
        println!(
            "{name}: version {api} of the interface, {source:?}, variants {variants:?}, parameters {parameters:?}"
        );
        for value in ["", "ext4", "reiserfs"].into_iter().filter(|_| !parameters.is_empty()) {
            let settled = [("filesystem".to_owned(), value.to_owned())].into();
            let verdict = linux::verify_program::run_verify(&definition.select("default", settled), PATIENCE);
            println!("{name}: verify with filesystem={value:?}: {verdict:?}");
            assert_eq!(matches!(verdict, VerifyVerdict::Good), value != "reiserfs");
            assert_eq!(format!("{verdict:?}").contains("Invalid value 'reiserfs'"), value == "reiserfs");
        }
    }
}
