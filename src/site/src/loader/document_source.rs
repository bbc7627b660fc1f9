//! Source of the documents that a loader reads.

use super::SiteLoader;
use crate::documents::SiteDocuments;
use crate::documents::directory_import::find_document_files;
use crate::snapshot::SiteSnapshot;

impl SiteLoader {
    /// Reads the documents from this source.
    pub fn with_documents(mut self, documents: &SiteDocuments) -> SiteLoader {
        self.machines.set_documents(documents);
        self.layouts.set_documents(documents);
        self.images.set_documents(documents);
        self.templates.set_documents(documents);
        self.approvals.set_documents(documents);
        self.sizes.set_documents(documents);
        self.registries.set_documents(documents);
        self.states.set_documents(documents);
        self.definitions.set_documents(documents);
        SiteLoader { documents: documents.clone(), ..self }
    }

    /// Reads changed documents from the database. Returns whether a read error has appeared, changed or disappeared.
    pub(crate) fn refresh_documents(&mut self) -> bool {
        let unread = self.documents.refresh_blocking().err().map(|error| format!("documents: {error}"));
        let changed = unread != self.unread;
        self.unread = unread;
        changed
    }

    /// Reads the changes of documents in the database before a scan. Returns whether the revision or the read error has
    /// changed.
    pub(super) fn refresh_revision(&mut self) -> bool {
        let is_changed = self.refresh_documents();
        let revision = self.documents.stored().map(|stored| stored.revision);
        let before = std::mem::replace(&mut self.revision, revision);
        is_changed || before != revision
    }

    /// Returns a note about the files in the directory that are ignored, because the documents are in the database.
    pub(super) fn describe_ignored_files(&self) -> Option<String> {
        if !self.documents.is_shared() || self.documents.stored().is_none() {
            return None;
        }
        let ignored = find_document_files(&self.dir);
        let first = ignored.first()?;
        let count = ignored.len();
        Some(format!(
            "{first}: ignored, as are all {count} document files in {dir}: the documents are in the database; remove the files, or store them with `drophammer apply -f {dir}`",
            dir = self.dir.display()
        ))
    }

    pub(super) fn empty_snapshot(&self) -> SiteSnapshot {
        SiteSnapshot { scan: self.scans, revision: self.revision, ..SiteSnapshot::default() }
    }
}
