//! Comparison of documents.

use super::*;

fn document(path: &str, text: &str) -> SiteDocument {
    SiteDocument { path: path.to_owned(), text: text.to_owned(), executable: false }
}

fn stored(documents: &[(&str, &str)]) -> DocumentSet {
    let stored = |(path, text): &(&str, &str)| StoredDocument {
        path: (*path).to_owned(),
        content: DocumentContent { text: (*text).to_owned(), executable: false },
        revision: 1,
    };
    DocumentSet::new(7, documents.iter().map(stored))
}

const PRESENT: [(&str, &str); 3] = [("layouts/a.yaml", "a"), ("layouts/b.yaml", "b"), ("layouts/c.yaml", "c")];

fn application(prune: bool) -> DocumentApplication {
    let documents =
        vec![document("layouts/a.yaml", "a"), document("layouts/b.yaml", "B"), document("sizes/n.yaml", "n")];
    DocumentApplication { documents, prune, dry_run: true, overwrite: Vec::new() }
}

fn actions(candidate: &CandidateSet) -> Vec<DocumentAction> {
    candidate.report().documents.iter().map(|one| one.action).collect()
}

#[test]
fn documents_are_compared_and_only_prune_deletes() {
    use DocumentAction::{Changed, Created, Deleted, Imported, Retained, Unchanged};
    let merged = CandidateSet::from_stored(&stored(&PRESENT), application(false));
    assert_eq!(actions(&merged), [Unchanged, Changed, Retained, Created]);
    let report = merged.report();
    assert_eq!((report.revision, report.documents[1].before.as_deref()), (Some(7), Some("b")));
    assert!(report.documents[0].before.is_none() && report.documents[3].before.is_none());
    let batch = merged.into_batch(Vec::new());
    let paths: Vec<&str> = batch.stored.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!((batch.base, paths, batch.removed), (Some(7), vec!["layouts/b.yaml", "sizes/n.yaml"], vec![]));

    let pruned = CandidateSet::from_stored(&stored(&PRESENT), application(true));
    assert_eq!(actions(&pruned), [Unchanged, Changed, Deleted, Created]);
    assert_eq!(pruned.into_batch(Vec::new()).removed, ["layouts/c.yaml"]);

    let files =
        PRESENT.map(|(path, text)| (path.to_owned(), DocumentContent { text: text.to_owned(), executable: false }));
    let first = CandidateSet::from_directory(files.to_vec(), application(false));
    assert_eq!(actions(&first), [Created, Created, Imported, Created]);
    let batch = first.into_batch(Vec::new());
    assert_eq!((batch.base, batch.stored.len()), (None, 4));
}

#[test]
fn equal_documents_are_unchanged_except_after_import() {
    let same = || DocumentApplication {
        documents: PRESENT.map(|(path, text)| document(path, text)).to_vec(),
        ..DocumentApplication::default()
    };
    assert!(!CandidateSet::from_stored(&stored(&PRESENT), same()).has_changes());
    assert!(CandidateSet::from_directory(Vec::new(), DocumentApplication::default()).has_changes());
    let mut other = same();
    other.documents[0].executable = true;
    assert!(CandidateSet::from_stored(&stored(&PRESENT), other).has_changes());
}

#[test]
fn reports_new_problems_and_problems_of_changed_documents() {
    let candidate = CandidateSet::from_stored(&stored(&PRESENT), application(false));
    let dir = Path::new("/d");
    let old = ["/d/layouts/b.yaml:1:1: bad (its last good version stays in force)", "/d/layouts/c.yaml: gone"];
    let mut present = SiteSnapshot::default();
    present.problems = old.map(str::to_owned).to_vec();
    let new = ["/d/layouts/b.yaml:1:1: bad", "/d/layouts/c.yaml: gone", "/d/machines/m.yaml: image not found"];
    let scan = SiteScan { problems: new.map(str::to_owned).to_vec(), ..SiteScan::default() };
    let problems = candidate.find_new_problems(&scan, &present, dir);
    assert_eq!(problems, ["layouts/b.yaml:1:1: bad", "machines/m.yaml: image not found"]);
}

#[test]
fn a_request_that_cannot_be_stored_is_refused() {
    let executable = SiteDocument { executable: true, ..document("machines/a.yaml", "x") };
    for (documents, expected) in [
        (vec![document("../operator.token", "x")], "not a valid path"),
        (vec![document("boot/vmlinuz", "x")], "not a document"),
        (vec![document("sizes/a.yaml", "x"), document("sizes/a.yaml", "y")], "contains the document twice"),
        (vec![document("sizes/a.yaml", "\0")], "NUL"),
        (vec![document("sizes/a.yaml", &"x".repeat((4 << 20) + 1))], "longer than"),
        (vec![executable], "only files of OS definitions"),
    ] {
        let problems = check_documents(&documents).unwrap_err();
        assert!(problems.len() == 1 && problems[0].contains(expected), "{problems:?}");
    }
    assert_eq!(check_documents(&[document("os/web/create", "x")]), Ok(()));
}
