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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ganeti_os_definitions::{OsDefinitions, VerifyCache};
    use crate::loader::SiteChanges;
    use crate::machine_refresh::ChangedMachine;
    use std::time::Duration;
    use store::ServerState;
    use store::image_digest_cache::ImageDigests;
    use store::operator_documents::{DocumentBatch, DocumentContent};
    use store::store_address::PostgresAddress;

    const MACHINE_ID: &str = "4c4c4544-0051-3010-8052-b4c04f4d0001";
    const PATH: &str = "machines/one.yaml";

    fn store(state: &ServerState, base: Option<i64>, path: &str, text: String) {
        let stored = vec![(path.to_owned(), DocumentContent { text, executable: false })];
        let batch = DocumentBatch { base, stored, removed: Vec::new(), guarded: Vec::new() };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(state.store_documents(batch, "ann".to_owned())).unwrap();
    }

    fn machine(name: &str) -> String {
        format!("id: {MACHINE_ID}\nname: {name}\n")
    }

    #[test]
    fn single_machines_are_updated_with_the_revision_of_their_documents() {
        let Some(server) = testing::postgres::shared() else { return };
        let address = PostgresAddress::parse(&server.create_database("revisions")).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let state = ServerState::open_postgres(&address, dir.path(), Duration::from_secs(60)).unwrap();
        store(&state, None, PATH, machine("one"));
        let documents = SiteDocuments::open_shared(dir.path(), state.clone()).unwrap();
        let definitions = OsDefinitions::new(dir.path().join("os"), VerifyCache::disabled());
        let loader = SiteLoader::new(dir.path(), ImageDigests::cached_only(state.clone()), definitions, state.clone());
        let mut loader = loader.with_documents(&documents);
        let first = loader.rescan().unwrap().directory;
        assert_eq!(first.revision, Some(1));

        // The server finds the change of another server.
        store(&state, Some(1), PATH, machine("two"));
        let SiteChanges::Machines(changed) = loader.find_changes() else { panic!() };
        let found = loader.apply_found_changes(&first, &changed).unwrap().snapshot;
        assert_eq!((found.display_name(MACHINE_ID), found.revision), ("two", Some(2)));
        assert!(matches!(loader.find_changes(), SiteChanges::None));

        // A request has changed the machine file. Other documents may have changed as well, so only the revision of the
        // machine file is known.
        store(&state, Some(2), PATH, machine("three"));
        let requested = ChangedMachine { id: MACHINE_ID.to_owned(), file: Some(dir.path().join(PATH)) };
        let requested = loader.refresh_machines(&found, &[requested]).unwrap().snapshot;
        assert_eq!((requested.display_name(MACHINE_ID), requested.revision), ("three", Some(2)));
        assert_eq!((requested.machine_file_revision(MACHINE_ID), requested.machine_file_revision("other")), (3, 2));
        let SiteChanges::Machines(changed) = loader.find_changes() else { panic!() };
        assert_eq!(changed, []);
        assert_eq!(loader.apply_found_changes(&requested, &changed).unwrap().snapshot.revision, Some(3));

        store(&state, Some(3), "image-states.yaml", "hidden: [d]\n".to_owned());
        assert!(matches!(loader.find_changes(), SiteChanges::All));
    }
}
