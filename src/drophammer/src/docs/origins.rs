//! Tests that the tests, scenarios and scripts which `docs/origins.md` lists exist.

use std::fs;
use std::path::Path;

/// Adds the names of all functions in the sources below a folder.
fn add_functions(folder: &Path, names: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_functions(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let functions = text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next());
            names.extend(functions.map(str::to_owned));
        }
    }
}

/// Returns the quoted words in the last column of the tables.
fn checks(page: &str) -> Vec<&str> {
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let last = rows.filter_map(|row| row.trim_end_matches(['|', ' ']).rsplit(" | ").next());
    last.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn every_check_in_the_origins_exists() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut functions = Vec::new();
    add_functions(&root.join("src"), &mut functions);
    let checks = checks(include_str!("../../../../docs/origins.md"));
    assert!(checks.len() > 200, "{}", checks.len());
    for name in checks {
        let is_scenario = || root.join(format!("qemu-tests/scenarios/{name}.yaml")).exists();
        let is_script = || name.starts_with("scripts/") && root.join(name).exists();
        assert!(functions.iter().any(|function| function == name) || is_scenario() || is_script(), "{name}");
    }
}
