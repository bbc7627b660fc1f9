//! Access to the source files of the product, for tests of rules that no lint checks.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the path and the code of each source file of the workspace, without code that is compiled only for tests.
pub fn product_sources() -> Vec<(PathBuf, String)> {
    let mut sources = Vec::new();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    read_sources(&crates, &mut sources);
    sources.sort();
    sources
}

fn read_sources(directory: &Path, sources: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let is_test = ["testing", "tests", "tests.rs", "testing.rs", "output_capture.rs", "fuzz", "fuzz.rs"]
            .contains(&name)
            || name == "large_inventories.rs"
            || name.trim_end_matches(".rs").ends_with("_tests");
        if path.is_dir() && !is_test {
            read_sources(&path, sources);
        } else if name.ends_with(".rs") && !is_test {
            let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            sources.push((path, without_tests(&text)));
        }
    }
}

/// Removes comments, and items that are compiled only for tests. The last line of an item is the first one with the
/// same indentation as the first line of the item.
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
