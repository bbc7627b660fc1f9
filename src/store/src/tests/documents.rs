//! Documents in the database.

use super::*;
use crate::document_protection::{GuardedChange, GuardedChangeKind};
use crate::operator_documents::{
    BatchOutcome, DocumentAuthorship, DocumentBatch, DocumentChange, DocumentContent, DocumentOutcome, DocumentUpdate,
    ExpectedDocument, KnownDocuments,
};
use std::sync::Arc;

struct KnownSet(i64, &'static [&'static str]);

impl KnownDocuments for KnownSet {
    fn revision(&self) -> i64 {
        self.0
    }

    fn count(&self) -> usize {
        self.1.len()
    }

    fn contains(&self, path: &str) -> bool {
        self.1.contains(&path)
    }
}

fn read_since(state: &ServerState, revision: i64, paths: &'static [&'static str]) -> Option<DocumentUpdate> {
    state.read_documents_blocking(Some(Arc::new(KnownSet(revision, paths)))).unwrap()
}

fn content(text: &str) -> DocumentContent {
    DocumentContent { text: text.to_owned(), executable: false }
}

fn batch(base: Option<i64>, stored: &[(&str, &str)], removed: &[&str]) -> DocumentBatch {
    let stored = stored.iter().map(|(path, text)| ((*path).to_owned(), content(text))).collect();
    let removed = removed.iter().map(|path| (*path).to_owned()).collect();
    DocumentBatch { base, stored, removed, guarded: Vec::new() }
}

fn change(state: &ServerState, path: &str, expected: Option<&str>, new: Option<&str>) -> DocumentOutcome {
    let text = |text: Option<&str>| text.map(str::to_owned);
    let change = DocumentChange { path: path.to_owned(), expected: text(expected), new: text(new) };
    wait(state.change_document(change, "bob".to_owned()))
}

/// Returns all documents with their contents.
fn all(state: &ServerState) -> Vec<(String, String)> {
    let update = state.read_documents_blocking(None).unwrap().unwrap();
    let all: Vec<_> = update.changed.into_iter().map(|one| (one.path, one.content.text)).collect();
    assert!(all.iter().map(|(path, _)| path).eq(&update.paths.unwrap()));
    all
}

#[test]
fn batch_is_stored_atomically_on_its_base_revision() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    assert_eq!(state.read_documents_blocking(None).unwrap(), None);
    let text = "# a comment\nid: a\r\n\t\u{fc} \n\n";
    let first = batch(None, &[("machines/a.yaml", text), ("layouts/b.yaml", "b")], &[]);
    assert_eq!(wait(state.store_documents(first.clone(), "ann".to_owned())), BatchOutcome::Stored(1));
    let expected = [("layouts/b.yaml".to_owned(), "b".to_owned()), ("machines/a.yaml".to_owned(), text.to_owned())];
    assert_eq!(all(&state), expected);

    // A second initial batch, and a batch based on an outdated revision, change nothing. The response names the
    // author of the last change.
    let BatchOutcome::Conflict(Some(author)) = wait(state.store_documents(first, "bob".to_owned())) else {
        panic!("stored twice")
    };
    assert_eq!(author.changed_by, "ann");
    let outdated = batch(Some(0), &[("sizes/c.yaml", "c")], &["layouts/b.yaml"]);
    assert!(matches!(wait(state.store_documents(outdated, "bob".to_owned())), BatchOutcome::Conflict(Some(_))));
    assert_eq!(all(&state), expected);

    let second = batch(Some(1), &[("sizes/c.yaml", "c")], &["layouts/b.yaml"]);
    assert_eq!(wait(state.store_documents(second, "bob".to_owned())), BatchOutcome::Stored(2));
    let update = read_since(&state, 1, &["layouts/b.yaml", "machines/a.yaml"]).unwrap();
    assert_eq!((update.revision, update.changed.len()), (2, 1));
    assert_eq!(update.paths.unwrap().into_iter().collect::<Vec<_>>(), ["machines/a.yaml", "sizes/c.yaml"]);
    let known = &["machines/a.yaml", "sizes/c.yaml"];
    assert_eq!(read_since(&state, 2, known), None);
    // A known revision above that of the database was read before a restore.
    let update = read_since(&state, 9, known).unwrap();
    assert!(update.changed.len() == 2 && update.paths.is_some());
    // Paths are not read if no document was removed.
    let third = batch(Some(2), &[("sizes/c.yaml", "changed"), ("sizes/d.yaml", "d")], &[]);
    wait(state.store_documents(third, "bob".to_owned()));
    let update = read_since(&state, 2, known).unwrap();
    assert_eq!((update.changed.len(), update.paths), (2, None));
}

#[test]
fn second_of_two_conflicting_changes_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    assert!(matches!(change(&state, "machines/a.yaml", None, Some("one")), DocumentOutcome::Stored(1)));
    assert!(matches!(change(&state, "machines/a.yaml", Some("one"), Some("two")), DocumentOutcome::Stored(2)));
    for (expected, new) in
        [(Some("one"), Some("three")), (None, Some("three")), (Some("one"), None), (Some("two "), None)]
    {
        let DocumentOutcome::Conflict(Some(DocumentAuthorship { changed_by, .. })) =
            change(&state, "machines/a.yaml", expected, new)
        else {
            panic!("{expected:?} {new:?}")
        };
        assert_eq!(changed_by, "bob");
    }
    assert_eq!(change(&state, "machines/b.yaml", Some("x"), Some("y")), DocumentOutcome::Conflict(None));
    assert_eq!(all(&state), [("machines/a.yaml".to_owned(), "two".to_owned())]);
    assert_eq!(change(&state, "machines/a.yaml", Some("two"), None), DocumentOutcome::Stored(3));
    assert!(all(&state).is_empty());
}

/// Two requests arrive at the same time: one removes a machine, the other one orders its reinstall.
#[test]
fn machine_with_new_order_is_not_removed_by_batch() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    wait(state.store_documents(batch(None, &[("machines/m.yaml", "id: m")], &[]), "ann".to_owned()));
    let removed = |id: &str, allocation: Option<&str>| GuardedChange {
        machine: id.to_owned(),
        kind: GuardedChangeKind::RemovedMachine(allocation.map(str::to_owned)),
    };
    let pruning = DocumentBatch {
        guarded: vec![removed("m", Some("a")), removed("n", None)],
        ..batch(Some(1), &[], &["machines/m.yaml"])
    };
    assert_eq!(wait(state.list_refused_changes(pruning.guarded.clone())), []);
    install(&state, "m");
    let placed = wait(state.place_order("m", "a", "i1", ReinstallOverrides::default(), None));
    assert!(matches!(placed, OrderOutcome::Placed { .. }));
    let BatchOutcome::Refused(refused) = wait(state.store_documents(pruning.clone(), "bob".to_owned())) else {
        panic!("the machine was removed")
    };
    assert_eq!((refused.len(), refused[0].change.machine.as_str()), (1, "m"));
    assert_eq!(refused[0].reason, "has an order for a reinstall");
    assert_eq!(all(&state), [("machines/m.yaml".to_owned(), "id: m".to_owned())]);
    // Nothing was stored, so the revision is unchanged.
    let other = DocumentBatch { guarded: Vec::new(), ..pruning };
    assert_eq!(wait(state.store_documents(other, "bob".to_owned())), BatchOutcome::Stored(2));
}

#[test]
fn changed_program_remains_executable() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let program = DocumentContent { text: "#!/bin/sh\n".to_owned(), executable: true };
    let stored = vec![("os/a/create".to_owned(), program)];
    let batch = DocumentBatch { base: None, stored, removed: Vec::new(), guarded: Vec::new() };
    wait(state.store_documents(batch, "ann".to_owned()));
    change(&state, "os/a/create", Some("#!/bin/sh\n"), Some("#!/bin/bash\n"));
    let update = state.read_documents_blocking(None).unwrap().unwrap();
    assert!(update.changed[0].content.executable);
}

#[test]
fn migration_does_not_start_with_outdated_documents() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    wait(state.store_documents(batch(None, &[("approved/b.yaml", "new")], &[]), "ann".to_owned()));
    for (text, expected) in [("old", CopyStart::Outdated), ("new", CopyStart::NotTarget)] {
        let based_on = vec![ExpectedDocument { path: "approved/b.yaml".to_owned(), text: Some(text.to_owned()) }];
        assert_eq!(wait(state.start_migration_copy("b", AttemptStart { based_on, ..start() })), expected);
    }
}
