//! Checks that every listed test, scenario and script exists. The lists are the tables in the pages
//! `docs/origins-*.md`, and the table with the requirements of Ironic's proposal in `docs/templates-proposal.md`.

use std::fs;
use std::path::Path;

/// Adds the names of all functions in the source files below a folder.
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

/// Returns whether a source file exists for the path of a module.
fn is_module(root: &Path, name: &str) -> bool {
    let Some((name, rest)) = name.split_once("::") else { return false };
    root.join(format!("src/{name}/src/{}.rs", rest.replace("::", "/"))).exists()
}

#[test]
fn every_check_in_the_tables_of_origins_exists() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut functions = Vec::new();
    add_functions(&root.join("src"), &mut functions);
    let proposal = include_str!("../../../../docs/templates-proposal.md");
    let (_, ironic) = proposal.split_once("| the document requires |").unwrap();
    let ironic = ironic.split("\n\n").next().unwrap();
    let origins = concat!(
        include_str!("../../../../docs/origins-layouts.md"),
        include_str!("../../../../docs/origins-reinstall.md"),
        include_str!("../../../../docs/origins-ganeti.md"),
        include_str!("../../../../docs/origins-metalk8s.md"),
    );
    for (page, least) in [(origins, 200), (ironic, 15)] {
        let checks = checks(page);
        assert!(checks.len() > least, "{}", checks.len());
        for name in checks {
            let is_scenario = || root.join(format!("qemu-tests/scenarios/{name}.yaml")).exists();
            let is_script = || name.starts_with("scripts/") && root.join(name).exists();
            let is_function = || functions.iter().any(|function| function == name);
            assert!(is_function() || is_module(root, name) || is_scenario() || is_script(), "{name}");
        }
    }
}
