//! Tests of `serve --check`.

use super::*;
use crate::site_check::{SiteCheckReport, SiteProblem, find_problems};

fn found(dir: &TempDir) -> SiteCheckReport {
    find_problems(&options(dir.path())).unwrap()
}

fn files(problems: &[SiteProblem]) -> Vec<(&str, Option<u32>)> {
    problems.iter().map(|one| (one.file.as_deref().unwrap_or_default(), one.line)).collect()
}

#[test]
fn valid_directory_passes_and_is_not_modified() {
    let dir = directory();
    let all = || {
        let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.collect::<std::collections::BTreeSet<_>>()
    };
    let before = all();
    let found = found(&dir);
    assert!(found.good, "{:?}", found.problems);
    assert_eq!((found.machines, found.layouts, found.images), (2, 1, 1));
    assert_eq!(all(), before);
}

/// The Debian package contains the example directory.
#[test]
fn example_directory_is_valid() {
    let dir = tempfile::tempdir().unwrap();
    let example = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("examples/site");
    for folder in ["boot", "images", "layouts", "machines", "sizes"] {
        std::fs::create_dir(dir.path().join(folder)).unwrap();
        for file in std::fs::read_dir(example.join(folder)).into_iter().flatten().map(|file| file.unwrap()) {
            std::fs::copy(file.path(), dir.path().join(folder).join(file.file_name())).unwrap();
        }
    }
    ["vmlinuz", "initrd"].iter().for_each(|name| std::fs::write(dir.path().join("boot").join(name), "x").unwrap());
    let found = found(&dir);
    assert!(found.good, "{:?}", found.problems);
    assert_eq!((found.machines, found.layouts, found.images), (1, 2, 1));
}

#[test]
fn all_problems_are_found_in_one_check() {
    let dir = directory();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let good = machine_file(STRANGER, "three", "52:54:00:00:00:03", "a3", "");
    write("machines/bad.yaml", "id: x\nnam: y\n");
    write("machines/three.yaml", &good.replace("debian-12", "debian-13"));
    write("machines/twice.yaml", &good.replace("a3", "a4"));
    write("layouts/bad.yaml", "id: bad\nfilesystem: []\n");
    write("images/gone.yaml", "id: gone\nfile: gone.tar\n");
    write("registries.json", "{");
    std::fs::create_dir_all(dir.path().join("os/empty")).unwrap();
    std::fs::create_dir_all(dir.path().join("deploy-templates")).unwrap();
    write("deploy-templates/bad.yaml", "name: 1\n");
    std::fs::remove_file(dir.path().join("boot/initrd")).unwrap();
    let found = found(&dir);
    let files = files(&found.problems);
    for expected in [
        ("machines/bad.yaml", Some(1)),
        ("machines/bad.yaml", Some(2)),
        ("machines/three.yaml", Some(8)),
        ("machines/twice.yaml", None),
        ("layouts/bad.yaml", Some(2)),
        ("images/gone.yaml", None),
        ("boot/initrd", None),
    ] {
        assert!(files.contains(&expected), "{expected:?}: {:#?}", found.problems);
    }
    for folder in ["registries.json", "os/empty", "deploy-templates/bad.yaml"] {
        assert!(files.iter().any(|(file, _)| file.starts_with(folder)), "{folder}: {:#?}", found.problems);
    }
    assert!(!found.good);
}

/// The check reads from the database which machines are installed, as the server does. A server may be running in the
/// directory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_considers_installations_of_a_running_server() {
    let server = Running::start().await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    server.report(ONE, &token, "a1", true).await;
    std::fs::remove_file(server.dir.path().join("images/debian.yaml")).unwrap();
    let path = server.dir.path().to_owned();
    let found = tokio::task::spawn_blocking(move || find_problems(&options(&path)).unwrap()).await.unwrap();
    assert!(found.good, "an installed machine needs its image no more: {:?}", found.problems);

    let dir = server.stop().await;
    std::fs::write(dir.path().join(store::DATABASE), "no database").unwrap();
    let found = tokio::task::spawn_blocking(move || (find_problems(&options(dir.path())).unwrap(), dir)).await.unwrap();
    let problem = found.0.problems.iter().find(|problem| problem.message.contains("database")).expect("it is named");
    assert!(!problem.message.contains("drophammer-check"), "{problem:?}");
}

/// These findings are notes and not problems, because an allocation can name its layout.
#[test]
fn sizes_and_images_without_exactly_one_layout_are_noted() {
    let dir = directory();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let noted = || {
        let notes = found(&dir).notes.into_iter().filter(|note| note.file.as_deref() == Some("layouts/"));
        notes.map(|note| note.message).collect::<Vec<_>>()
    };
    assert_eq!(noted(), [""; 0], "no layout has constraints");
    let constrained = |id: &str, sizes: &str| {
        LAYOUT.replace("id: default", &format!("id: {id}"))
            + &format!("constraints: {{sizes: [{sizes}], images: {{debian: '*'}}}}\n")
    };
    write("layouts/one.yaml", &constrained("one", "c2"));
    assert_eq!(noted(), ["could not find a matching filesystemLayout for size:c1 and image:debian-12"]);
    write("layouts/one.yaml", &constrained("one", "c1"));
    assert_eq!(noted(), [""; 0]);
    write("layouts/other.yaml", &constrained("other", "c1"));
    assert!(noted()[0].starts_with("2 layouts match size:c1 and image:debian-12"), "{:?}", noted());
}

/// Phrases that only messages of parsers contain.
const PARSER_WORDING: [&str; 11] = [
    "invalid type",
    "invalid value",
    "missing field",
    "unknown variant",
    "expected a ",
    "expected one of",
    "expected `",
    "struct ",
    "invalid digit",
    "Value was not",
    "EOF while",
];

/// `site check`, `site plan`, the server and the page all print these problems.
#[test]
fn no_problem_has_the_wording_of_a_parser() {
    let values = ["5", "[1]", "[[]]", "{a: 1}", "true", "1.5", "-1", "18446744073709551616", "''", "[", "\"\\q\""];
    let files = [
        ("machines", &["id", "macs", "consoles", "locked", "bmc", "traits", "networks", "allocation", "unknown"][..]),
        ("images", &["id", "url", "mirrors", "digest", "finish", "pull_secret", "unknown"]),
        ("layouts", &["id", "disks", "filesystems", "raid", "constraints", "unknown"]),
        ("sizes", &["id", "constraints", "unknown"]),
        ("deploy-templates", &["name", "steps", "extra", "unknown"]),
        ("os", &["web", "we b"]),
    ];
    let dir = directory();
    for (folder, fields) in files {
        std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        for (field, (index, value)) in
            fields.iter().flat_map(|field| values.iter().enumerate().map(move |value| (field, value)))
        {
            let path = dir.path().join(folder).join(format!("bad-{field}-{index}.yaml"));
            std::fs::write(path, format!("{field}: {value}\n")).unwrap();
        }
    }
    for (name, text) in [
        ("registries.json", "{\"auths\": 5}"),
        ("image-states.yaml", "hidden: {a: 1}\n"),
        ("oidc.yaml", "issuer: [1]\n"),
    ] {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    let found = found(&dir);
    assert!(found.problems.len() > 300, "{}", found.problems.len());
    for SiteProblem { file, message, .. } in &found.problems {
        let internal = PARSER_WORDING.iter().find(|words| message.contains(**words));
        assert_eq!(internal, None, "{file:?}: {message}");
    }
}
