//! Tests that the links between the pages of the documentation are valid.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns all pages of the documentation.
pub(super) fn pages() -> Vec<PathBuf> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.chain([root.join("README.md"), root.join("CONTRIBUTING.md")]).collect()
}

/// Returns the targets of a page's links, except links to other hosts.
fn links(page: &str) -> Vec<&str> {
    let links = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    links.filter(|link| !link.contains("://")).collect()
}

/// Returns the anchors of a page's headings: in lower case, with hyphens for blanks, and without other punctuation.
fn headings(page: &str) -> Vec<String> {
    let outside_of_blocks = page.split("\n```").step_by(2);
    let headings = outside_of_blocks.flat_map(str::lines).filter(|line| line.starts_with('#'));
    let in_words = headings.map(|line| line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-"));
    in_words.map(|heading| heading.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()).collect()
}

#[test]
fn every_link_in_the_docs_leads_to_a_page_and_to_a_heading_of_it() {
    let mut found = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for link in links(&text) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link}", page.display());
            if !heading.is_empty() {
                let headings = headings(&fs::read_to_string(&target).unwrap());
                assert!(
                    headings.iter().any(|one| one == heading),
                    "{}: {link}: the page has no such heading, only {headings:?}",
                    page.display()
                );
            }
            found += 1;
        }
    }
    assert!(found > 80, "{found}");
}

#[test]
fn every_page_is_in_the_contents() {
    let readme = include_str!("../../../../README.md");
    for page in pages().iter().filter(|page| page.parent().is_some_and(|folder| folder.ends_with("docs"))) {
        let name = page.file_name().unwrap().to_str().unwrap();
        assert!(links(readme).contains(&format!("docs/{name}").as_str()), "README.md does not link to docs/{name}");
    }
}
