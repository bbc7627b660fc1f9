//! Source of the documents that a loader reads.

use super::SiteLoader;
use crate::documents::SiteDocuments;

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

    /// Reads the changes of documents in the database. Returns whether the result differs from that of the last scan.
    pub(crate) fn refresh_documents(&mut self) -> bool {
        let unread = self.documents.refresh_blocking().err().map(|error| format!("documents: {error}"));
        let changed = unread != self.unread;
        self.unread = unread;
        changed
    }
}
