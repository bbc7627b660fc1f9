//! Which room of the house uses which: what the code says, held against the table in CONTRIBUTING.md.
//!
//! A room is a path below `src/`: `plan`, or `image/get` for a part of `image`. Of the rooms that the table names, the longest
//! path decides. Code of tests may use any room, and is not read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// So many are seen at least, or the reader below is blind.
const ROOMS: usize = 30;
const USES: usize = 150;

/// What the table has of a room.
struct Row {
    /// Counted from the roof.
    floor: usize,
    uses: BTreeSet<String>,
}

type Table = BTreeMap<String, Row>;

/// Who uses whom, and in which file first.
type Uses = BTreeMap<(String, String), PathBuf>;

/// A file that is built outside of tests too.
struct Source {
    file: PathBuf,
    /// Where it stands: `["plan", "display", "kept"]`.
    module: Vec<String>,
    code: String,
}

/// Returns each file that is built outside of tests, with its code.
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

/// One room a line, then the rooms that it may use. An empty line lies between two floors.
fn table(text: &str) -> Table {
    let (_, block) = text.split_once("```rooms\n").expect("a block of rooms");
    let (block, _) = block.split_once("\n```").expect("the end of the block");
    let mut table = Table::new();
    for (floor, lines) in block.split("\n\n").enumerate() {
        for line in lines.lines() {
            let mut words = line.split_whitespace().map(str::to_owned);
            let room = words.next().expect("a room");
            let before = table.insert(room, Row { floor, uses: words.collect() });
            assert!(before.is_none(), "two lines of the table begin as this one: {line}");
        }
    }
    table
}

/// All that is wrong. Where every use leads to a floor beneath, there is no circle.
fn judged(table: &Table, uses: &Uses) -> Vec<String> {
    let mut problems = Vec::new();
    for (room, row) in table {
        for used in &row.uses {
            match table.get(used) {
                None => problems.push(format!("{room} may use {used}, which has no line of its own")),
                Some(other) if other.floor <= row.floor => {
                    problems.push(format!(
                        "{room} may use {used}, which is not on a floor beneath: a circle, or a wrong floor"
                    ));
                }
                Some(_) if !uses.contains_key(&(room.clone(), used.clone())) => {
                    problems.push(format!("{room} may use {used}, and does not: take it out"));
                }
                Some(_) => {}
            }
        }
    }
    for ((room, used), file) in uses {
        if !table[room].uses.contains(used) {
            problems.push(format!("{}: {room} uses {used}, which the table does not have", file.display()));
        }
    }
    problems
}

/// The uses from room to room, and what belongs to no room.
fn uses(sources: &[Source], table: &Table) -> (Uses, Vec<String>) {
    let (mut uses, mut problems) = (Uses::new(), Vec::new());
    for Source { file, module, code } in sources.iter().filter(|source| !source.module.is_empty()) {
        let Some(own) = room(module, table) else {
            problems.push(format!("{}: {} has no line in the table", file.display(), module[0]));
            continue;
        };
        for path in mentions(code, module) {
            match room(&path, table) {
                Some(used) if used != own => drop(uses.entry((own.clone(), used)).or_insert_with(|| file.clone())),
                Some(_) => {}
                None if path.is_empty() => {}
                None => problems.push(format!("{}: uses {}, which has no line in the table", file.display(), path[0])),
            }
        }
    }
    (uses, problems)
}

fn room(path: &[String], table: &Table) -> Option<String> {
    (1..=path.len()).rev().map(|length| path[..length].join("/")).find(|room| table.contains_key(room))
}

/// The module and all below it.
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

/// Names of the modules that have files of their own.
fn declared(code: &str) -> impl Iterator<Item = &str> {
    code.lines().filter_map(|line| {
        let (before, name) = line.trim().strip_suffix(';')?.split_once("mod ")?;
        (before.is_empty() || before.starts_with("pub")).then_some(name)
    })
}

/// Without comments, and without what is built for tests only. rustfmt indents the end of an item as its beginning.
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

/// The paths from the root of the crate that the code of a module names, `crate::`, `super::` and its own modules.
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

/// Does a path begin there?
fn is_first(code: &str, at: usize) -> bool {
    !code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == ':')
}

/// Adds all paths of `a::{b, c::d}`, each behind `base`. What follows them is left.
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
            "hall: uses garden, which has no line in the table",
            "shed: shed has no line in the table",
            "hall may use attic, which is not on a floor beneath: a circle, or a wrong floor",
            "attic: attic uses attic/left, which the table does not have",
            "hall: hall uses cellar, which the table does not have",
            "roof: roof uses attic/left, which the table does not have",
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
