//! Tests that the links between the pages of the documentation are valid, and that the book contains all pages.

use std::fs;
use std::path::{Path, PathBuf};

/// Root of the repository.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns the paths of all pages of the documentation, except the changelog.
pub(super) fn pages() -> Vec<PathBuf> {
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.chain([root().join("README.md"), root().join("CONTRIBUTING.md")]).collect()
}

/// Returns the targets of the links on a page, except links to other hosts.
fn links(page: &str) -> Vec<&str> {
    let links = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    links.filter(|link| !link.contains("://")).collect()
}

/// Returns the anchors of the headings on a page: in lower case, with hyphens instead of blanks, and without other
/// punctuation.
fn headings(page: &str) -> Vec<String> {
    let outside_of_blocks = page.split("\n```").step_by(2);
    let headings = outside_of_blocks.flat_map(str::lines).filter(|line| line.starts_with('#'));
    let in_words = headings.map(|line| line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-"));
    in_words.map(|heading| heading.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()).collect()
}

/// Checks that the target of a link exists, and contains the heading in the link.
fn check_link(page: &Path, link: &str) {
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() { page.to_owned() } else { page.parent().unwrap().join(file) };
    assert!(target.exists(), "{}: {link}", page.display());
    if !heading.is_empty() {
        let headings = headings(&fs::read_to_string(&target).unwrap());
        assert!(
            headings.iter().any(|one| one == heading),
            "{}: {link}: the page has no such heading, only {headings:?}",
            page.display()
        );
    }
}

#[test]
fn every_link_in_the_docs_has_a_target() {
    let mut found = 0;
    for page in pages().into_iter().chain([root().join("CHANGELOG.md")]) {
        for link in links(&fs::read_to_string(&page).unwrap()) {
            check_link(&page, link);
            found += 1;
        }
    }
    assert!(found > 80, "{found}");
}

#[test]
fn the_book_contains_every_page_once() {
    let summary = include_str!("../../../../docs/SUMMARY.md");
    let mut listed = links(summary);
    listed.sort_unstable();
    let mut pages: Vec<String> = pages().iter().map(|page| page.file_name().unwrap().display().to_string()).collect();
    pages.retain(|name| !["SUMMARY.md", "README.md", "CONTRIBUTING.md"].contains(&name.as_str()));
    pages.extend(["../CHANGELOG.md".to_owned(), "../CONTRIBUTING.md".to_owned()]);
    pages.sort_unstable();
    assert_eq!(listed, pages);
}

/// Returns all files below a folder, recursively.
fn source_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { source_files(&path) } else { vec![path] }).collect()
}

/// Checks the paths of pages that messages, comments and scripts mention, such as `docs/serve.md#logs`.
#[test]
fn every_page_that_the_sources_name_exists() {
    let folders = ["src", "scripts", "initramfs", "qemu-tests", "examples", "docs"];
    let mut found = 0;
    for file in folders.iter().flat_map(|folder| source_files(&root().join(folder))) {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        for rest in text.split("docs/").skip(1) {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"-_.#".contains(c)).unwrap_or(rest.len());
            let name = rest[..end].trim_end_matches('.');
            if name.ends_with(".md") || name.contains(".md#") {
                check_link(&root().join("docs").join(file.file_name().unwrap()), name);
                found += 1;
            }
        }
    }
    assert!(found > 60, "{found}");
}
