//! Set of documents that a request would produce, its differences from the present set, and its problems.

use super::{DocumentAction, DocumentApplication, DocumentEffect, DocumentReport, SiteDocument, digest_of};
use crate::AppState;
use common::error::{Context, Phase, Result};
use site::documents::{DOCUMENT_BYTES, DocumentSet, SiteDocuments, check_document_path};
use site::loader::{SiteScan, scan_completely};
use site::snapshot::SiteSnapshot;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use store::document_protection::GuardedChange;
use store::operator_documents::{DocumentBatch, DocumentContent, StoredDocument};

/// Text that ends a message about an invalid document if the previous version of this document remains in force.
const IN_FORCE: &str = " (its last good version stays in force)";

/// Documents by path.
pub(super) type Documents = BTreeMap<String, DocumentContent>;

/// Present documents, and the documents that a request would produce.
#[derive(Clone)]
pub(super) struct CandidateSet {
    /// Revision of the present documents; `None` if they are the files of the server's directory.
    base: Option<i64>,
    pub(super) before: Documents,
    pub(super) after: Documents,
    /// Ids or names of the machines whose protected changes the operator has confirmed.
    pub(super) overwrite: Vec<String>,
    /// Paths of the documents in the request.
    requested: BTreeSet<String>,
    dry_run: bool,
}

/// Checks paths, lengths and characters of the documents in a request.
pub(super) fn check_documents(documents: &[SiteDocument]) -> std::result::Result<(), Vec<String>> {
    let (mut problems, mut paths) = (Vec::new(), BTreeSet::new());
    for SiteDocument { path, text, executable } in documents {
        problems.extend(check_document_path(path).err());
        if !paths.insert(path) {
            problems.push(format!("{path}: the request contains the document twice"));
        }
        if text.len() as u64 > DOCUMENT_BYTES {
            problems.push(format!("{path}: the document is longer than {DOCUMENT_BYTES} bytes"));
        }
        if text.contains('\0') {
            problems.push(format!("{path}: the document contains a NUL character"));
        }
        if *executable && !path.starts_with("os/") {
            problems.push(format!("{path}: only files of OS definitions can be executable"));
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

impl CandidateSet {
    /// Creates the set for documents in the database.
    pub(super) fn from_stored(stored: &DocumentSet, document_application: DocumentApplication) -> CandidateSet {
        let before = stored.all().map(|one| (one.path.clone(), one.content.clone())).collect();
        CandidateSet::new(Some(stored.revision), before, document_application)
    }

    /// Creates the set for a database without documents. The server has read its documents from its directory so far;
    /// unless the request prunes, these documents are also stored in the database.
    pub(super) fn from_directory(
        files: Vec<(String, DocumentContent)>,
        document_application: DocumentApplication,
    ) -> CandidateSet {
        CandidateSet::new(None, files.into_iter().collect(), document_application)
    }

    fn new(base: Option<i64>, before: Documents, document_application: DocumentApplication) -> CandidateSet {
        let requested = document_application.documents.iter().map(|one| one.path.clone()).collect();
        let mut after = if document_application.prune { Documents::new() } else { before.clone() };
        let content = |one: SiteDocument| {
            let SiteDocument { path, text, executable } = one;
            (path, DocumentContent { text, executable })
        };
        after.extend(document_application.documents.into_iter().map(content));
        let DocumentApplication { dry_run, overwrite, .. } = document_application;
        CandidateSet { base, before, after, overwrite, requested, dry_run }
    }

    /// Returns whether the request would change the database. The first request that stores documents always changes
    /// the database, even if the documents are equal to the files.
    pub(super) fn has_changes(&self) -> bool {
        self.base.is_none() || self.before != self.after
    }

    fn action(&self, path: &str) -> DocumentAction {
        match (self.before.get(path), self.after.get(path)) {
            (_, None) => DocumentAction::Deleted,
            (Some(_), Some(_)) if !self.requested.contains(path) => match self.base {
                Some(_) => DocumentAction::Retained,
                None => DocumentAction::Imported,
            },
            // Without a revision (`base`), every document counts as created: the database does not contain any
            // documents before the first request that stores some.
            (None, Some(_)) => DocumentAction::Created,
            (Some(_), Some(_)) if self.base.is_none() => DocumentAction::Created,
            (before, after) if before == after => DocumentAction::Unchanged,
            _ => DocumentAction::Changed,
        }
    }

    /// Returns the effect on each document.
    pub(super) fn report(&self) -> DocumentReport {
        let paths: BTreeSet<&String> = self.before.keys().chain(self.after.keys()).collect();
        let effect = |path: &String| {
            let action = self.action(path);
            let before = self.before.get(path).filter(|_| self.dry_run && action.is_change());
            DocumentEffect {
                path: path.clone(),
                action,
                sha256: self.after.get(path).and_then(|one| digest_of(&one.text)),
                before: before.map(|one| one.text.clone()),
            }
        };
        DocumentReport {
            dry_run: self.dry_run,
            revision: self.base,
            documents: paths.into_iter().map(effect).collect(),
        }
    }

    /// Returns the documents as they would be after the change.
    pub(super) fn document_set(&self) -> DocumentSet {
        let stored = |(path, content): (&String, &DocumentContent)| StoredDocument {
            path: path.clone(),
            content: content.clone(),
            revision: 0,
        };
        DocumentSet::new(0, self.after.iter().map(stored))
    }

    /// Returns the problems that would exist after the change: new problems, and existing problems of documents that
    /// the request changes.
    pub(super) fn find_new_problems(&self, after: &SiteScan, present: &SiteSnapshot, dir: &Path) -> Vec<String> {
        let plain = |problem: &String| problem.trim_end_matches(IN_FORCE).to_owned();
        let known: BTreeSet<String> = present.problems.iter().map(plain).collect();
        let changed: Vec<String> = self
            .after
            .iter()
            .filter(|(path, content)| self.before.get(*path) != Some(content))
            .map(|(path, _)| format!("{}:", dir.join(path).display()))
            .collect();
        let is_new = |problem: &String| {
            !known.contains(problem) || changed.iter().any(|beginning| problem.starts_with(beginning))
        };
        let dir = format!("{}/", dir.display());
        after.problems.iter().map(plain).filter(is_new).map(|problem| problem.replace(&dir, "")).collect()
    }

    /// Returns the changes for the database.
    pub(super) fn into_batch(self, guarded: Vec<GuardedChange>) -> DocumentBatch {
        let CandidateSet { base, before, after, .. } = self;
        let removed = before.keys().filter(|path| !after.contains_key(*path)).cloned().collect();
        let is_changed = |path: &String, content: &DocumentContent| base.is_none() || before.get(path) != Some(content);
        let stored = after.into_iter().filter(|(path, content)| is_changed(path, content)).collect();
        DocumentBatch { base, stored, removed, guarded }
    }
}

/// Loads the documents as they would be after the change, in the same way as a server loads them. The function blocks
/// the calling thread.
pub(super) fn load_candidate(app: &AppState, set: DocumentSet) -> Result<SiteScan> {
    let documents = SiteDocuments::of_set(&app.dir, set);
    scan_completely(&documents, app.state.clone()).context(Phase::Serve, || "check the documents")
}

#[cfg(test)]
mod tests;
