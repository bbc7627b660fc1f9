//! Test of the dependencies between modules: those in the code must match the table in CONTRIBUTING.md.
//!
//! The table consists of modules, called rooms: paths below `src/` such as `plan` or `image/fetch`. Code belongs to the room with the
//! longest matching path. Test code may use any room and is ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Minimum numbers of rooms and uses; fewer mean that the parser below does not work.
const ROOMS: usize = 30;
const USES: usize = 150;

/// Line of the table.
struct Row {
    /// Layer of the room, counted from the top.
    floor: usize,
    uses: BTreeSet<String>,
}

type Table = BTreeMap<String, Row>;

/// Uses between rooms, each with the first file that contains it.
type Uses = BTreeMap<(String, String), PathBuf>;

/// File that is compiled outside of tests.
struct Source {
    file: PathBuf,
    /// Path of the module: `["plan", "display", "preserved_tree"]`.
    module: Vec<String>,
    code: String,
}

/// Returns every file that is compiled outside of tests, with its code.
pub fn product_sources() -> Vec<(PathBuf, String)> {
    sources(Path::new(env!("CARGO_MANIFEST_DIR"))).into_iter().map(|source| (source.file, source.code)).collect()
}

fn sources(root: &Path) -> Vec<Source> {
    let mut sources = vec![source(root.join("src/main.rs"), vec!["main".to_owned()])];
    read_modules(&root.join("src"), source(root.join("src/lib.rs"), vec![]), &mut sources);
    sources
}

#[test]
fn rooms_use_what_the_table_has() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = table(&fs::read_to_string(root.join("CONTRIBUTING.md")).unwrap());
    let sources = sources(root);
    let (uses, mut problems) = uses(&sources, &table);
    problems.extend(judged(&table, &uses));
    assert!(problems.is_empty(), "the table of rooms in CONTRIBUTING.md:\n{}", problems.join("\n"));
    assert!(table.len() >= ROOMS && uses.len() >= USES, "{} rooms, {} uses", table.len(), uses.len());
}

/// Parses the table: each line consists of a room and the rooms that it may use. Empty lines separate layers.
fn table(text: &str) -> Table {
    let (_, block) = text.split_once("```rooms\n").expect("a block of rooms");
    let (block, _) = block.split_once("\n```").expect("the end of the block");
    let mut table = Table::new();
    for (floor, lines) in block.split("\n\n").enumerate() {
        for line in lines.lines() {
            let mut words = line.split_whitespace().map(str::to_owned);
            let room = words.next().expect("a room");
            let before = table.insert(room, Row { floor, uses: words.collect() });
            assert!(before.is_none(), "the table contains this room twice: {line}");
        }
    }
    table
}

/// Returns all problems. If every use leads to a lower layer, there are no cycles.
fn judged(table: &Table, uses: &Uses) -> Vec<String> {
    let mut problems = Vec::new();
    for (room, row) in table {
        for used in &row.uses {
            match table.get(used) {
                None => problems.push(format!("{room} may use {used}, which is not in the table")),
                Some(other) if other.floor <= row.floor => {
                    problems.push(format!(
                        "{room} may use {used}, which is not in a lower layer: a cycle, or a wrong layer"
                    ));
                }
                Some(_) if !uses.contains_key(&(room.clone(), used.clone())) => {
                    problems.push(format!("{room} may use {used}, but does not: remove it"));
                }
                Some(_) => {}
            }
        }
    }
    for ((room, used), file) in uses {
        if !table[room].uses.contains(used) {
            problems.push(format!("{}: {room} uses {used}, which the table does not allow", file.display()));
        }
    }
    problems
}

/// Returns the uses between rooms, and code that belongs to no room.
fn uses(sources: &[Source], table: &Table) -> (Uses, Vec<String>) {
    let (mut uses, mut problems) = (Uses::new(), Vec::new());
    for Source { file, module, code } in sources.iter().filter(|source| !source.module.is_empty()) {
        let Some(own) = room(module, table) else {
            problems.push(format!("{}: {} is not in the table", file.display(), module[0]));
            continue;
        };
        for path in mentions(code, module) {
            match room(&path, table) {
                Some(used) if used != own => drop(uses.entry((own.clone(), used)).or_insert_with(|| file.clone())),
                Some(_) => {}
                None if path.is_empty() => {}
                None => problems.push(format!("{}: uses {}, which is not in the table", file.display(), path[0])),
            }
        }
    }
    (uses, problems)
}

fn room(path: &[String], table: &Table) -> Option<String> {
    (1..=path.len()).rev().map(|length| path[..length].join("/")).find(|room| table.contains_key(room))
}

/// Reads a module and all its submodules.
fn read_modules(src: &Path, module: Source, sources: &mut Vec<Source>) {
    let below = module.module.iter().fold(src.to_owned(), |dir, name| dir.join(name));
    for name in declared(&module.code) {
        let file = below.join(format!("{name}.rs"));
        let file = if file.exists() { file } else { below.join(name).join("mod.rs") };
        let path = [&module.module[..], &[name.to_owned()]].concat();
        read_modules(src, source(file, path), sources);
    }
    sources.push(module);
}

fn source(file: PathBuf, module: Vec<String>) -> Source {
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    Source { file, module, code: without_tests(&text) }
}

/// Returns the names of submodules in separate files.
fn declared(code: &str) -> impl Iterator<Item = &str> {
    code.lines().filter_map(|line| {
        let (before, name) = line.trim().strip_suffix(';')?.split_once("mod ")?;
        (before.is_empty() || before.starts_with("pub")).then_some(name)
    })
}

/// Removes comments and items that are compiled for tests only. rustfmt indents the end of an item like its beginning.
fn without_tests(text: &str) -> String {
    let mut kept = String::new();
    let mut lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    while let Some(line) = lines.next() {
        let code = line.trim_start();
        if !code.starts_with("#[cfg(test)]") && !code.starts_with("#[cfg(all(test,") {
            kept.extend([line, "\n"]);
            continue;
        }
        let (indent, mut is_open) = (&line[..line.len() - code.len()], false);
        let _ = lines.find(|line| match is_open {
            true => {
                line.strip_prefix(indent).is_some_and(|end| end.starts_with(['}', ')', ']']) && !end.ends_with('{'))
            }
            false => {
                is_open = line.ends_with(['{', '(', '[']);
                line.ends_with([';', ',', '}'])
            }
        });
    }
    kept
}

/// Returns the module paths that the code refers to, by `crate::`, `super::` or its own submodules.
fn mentions(code: &str, module: &[String]) -> Vec<Vec<String>> {
    let mut found: Vec<Vec<String>> = declared(code).map(|name| [module, &[name.to_owned()]].concat()).collect();
    for root in ["crate::", "drophammer::"] {
        for (at, _) in code.match_indices(root).filter(|(at, _)| is_first(code, *at)) {
            expand(&code[at + root.len()..], &[], &mut found);
        }
    }
    for (at, _) in code.match_indices("super::").filter(|(at, _)| is_first(code, *at)) {
        let (mut rest, mut base) = (&code[at..], module);
        while let Some(after) = rest.strip_prefix("super::") {
            (rest, base) = (after, base.split_last().map_or(base, |(_, parents)| parents));
        }
        expand(rest, base, &mut found);
    }
    found
}

/// Returns whether a path begins at this offset.
fn is_first(code: &str, at: usize) -> bool {
    !code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == ':')
}

/// Adds all paths of `a::{b, c::d}`, each prefixed with `base`, and returns the remaining text.
fn expand<'a>(text: &'a str, base: &[String], found: &mut Vec<Vec<String>>) -> &'a str {
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = rest.trim_start_matches([' ', '\n', ',']);
            match rest.strip_prefix('}') {
                Some(after) => return after,
                None => rest = expand(rest, base, found).trim_start_matches(|next| next != ',' && next != '}'),
            }
        }
    }
    let end = text.find(|next: char| !next.is_alphanumeric() && next != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let path = if name.is_empty() { base.to_vec() } else { [base, &[name.to_owned()]].concat() };
    match rest.strip_prefix("::").filter(|_| !name.is_empty()) {
        Some(rest) => expand(rest, &path, found),
        None => {
            found.push(path);
            rest
        }
    }
}

#[test]
fn what_the_table_and_the_code_do_not_share_is_named() {
    let table =
        table("text\n```rooms\nroof attic hall\n\nattic/left cellar\nattic hall\n\nhall attic\n\ncellar\n```\n");
    let module = |path: &str| path.split('/').map(str::to_owned).collect::<Vec<_>>();
    let source = |path: &str, code: &str| Source { file: path.into(), module: module(path), code: code.to_owned() };
    let sources = [
        source("roof", "use crate::{attic::{A, left}, hall as below};"),
        source("attic", "pub(crate) mod left;\nuse super::hall::X;"),
        source("attic/left/window", "use super::super::super::cellar; use super::Y;"),
        source("hall", "const Z: u8 = crate::cellar::BEAM + crate::garden::fence();"),
        source("shed", ""),
    ];
    let (uses, mut problems) = uses(&sources, &table);
    problems.extend(judged(&table, &uses));
    assert_eq!(
        problems,
        [
            "hall: uses garden, which is not in the table",
            "shed: shed is not in the table",
            "hall may use attic, which is not in a lower layer: a cycle, or a wrong layer",
            "attic: attic uses attic/left, which the table does not allow",
            "hall: hall uses cellar, which the table does not allow",
            "roof: roof uses attic/left, which the table does not allow",
        ]
    );
}

#[test]
fn code_of_tests_is_not_read() {
    let code = "use crate::a;\n// crate::b\n#[cfg(test)]\nuse crate::c;\nfn d() {\n    crate::e();\n    #[cfg(test)]\n    \
                if f {\n        crate::g();\n    }\n    crate::h();\n}\n#[cfg(all(test, feature = \"x\"))]\n#[path = \"y\"]\n\
                mod tests {\n    fn i() {\n        crate::i();\n    }\n}\nmod j;\n";
    let names: Vec<String> = mentions(&without_tests(code), &[]).concat();
    assert_eq!(names, ["j", "a", "e", "h"]);
}
