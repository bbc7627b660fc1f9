//! Source of the operator's documents: files of a directory, or records of a database that several servers share.
//!
//! In both cases, a path such as `DIR/machines/storage-7.yaml` identifies a document. If the documents are in the
//! database, no file exists at this path. Images, the ramdisk and tokens are always files.

pub mod directory_import;
mod document_paths;

pub use document_paths::{DOCUMENT_BYTES, check_document_path};

use crate::ganeti_os_definitions::FolderStamp;
use crate::yaml_folder::is_yaml;
use common::error::Result;
use model::ganeti_os_definition::{DefinitionFile, DefinitionFiles};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use store::operator_documents::{DocumentContent, KnownDocuments, StoredDocument};
use store::{FileStamp, ServerState, image_digest_cache};

/// Documents of one revision of the database, by their path relative to the server's directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DocumentSet {
    pub revision: i64,
    documents: BTreeMap<PathBuf, Arc<StoredDocument>>,
}

impl DocumentSet {
    /// Creates a set with these documents.
    pub fn new(revision: i64, documents: impl IntoIterator<Item = StoredDocument>) -> DocumentSet {
        let documents = documents.into_iter().map(|one| (PathBuf::from(&one.path), Arc::new(one))).collect();
        DocumentSet { revision, documents }
    }

    /// Returns all documents, sorted by path.
    pub fn all(&self) -> impl Iterator<Item = &StoredDocument> {
        self.documents.values().map(Arc::as_ref)
    }

    /// Returns the document with this path.
    pub fn find(&self, path: &str) -> Option<&StoredDocument> {
        self.documents.get(Path::new(path)).map(Arc::as_ref)
    }

    /// Returns the documents below a folder, with their paths relative to the folder.
    fn below<'a>(&'a self, folder: &'a Path) -> impl Iterator<Item = (&'a Path, &'a StoredDocument)> {
        let documents = self.documents.range(folder.to_owned()..).take_while(move |(path, _)| path.starts_with(folder));
        documents.filter_map(move |(path, one)| Some((path.strip_prefix(folder).ok()?, one.as_ref())))
    }
}

impl KnownDocuments for DocumentSet {
    fn revision(&self) -> i64 {
        self.revision
    }

    fn count(&self) -> usize {
        self.documents.len()
    }

    fn contains(&self, path: &str) -> bool {
        self.find(path).is_some()
    }
}

/// Source of the documents of one server. All clones of this value share the same state.
#[derive(Clone)]
pub struct SiteDocuments(Arc<SharedSource>);

struct SharedSource {
    dir: PathBuf,
    /// Database that may contain documents; `None` if the documents are always the files of the directory.
    state: Option<ServerState>,
    /// Documents of the database; `None` while the documents are the files of the directory.
    stored: RwLock<Option<Arc<DocumentSet>>>,
    /// Serializes updates, so that an older revision never replaces a newer one.
    update: Mutex<()>,
}

impl SiteDocuments {
    /// Creates the source that consists of the files of a directory.
    pub fn of_directory(dir: &Path) -> SiteDocuments {
        SiteDocuments::with_state(dir, None, None)
    }

    /// Creates a source with a fixed set of documents.
    pub fn of_set(dir: &Path, set: DocumentSet) -> SiteDocuments {
        SiteDocuments::with_state(dir, None, Some(Arc::new(set)))
    }

    /// Creates the source of a server with a shared database. The documents are the files of the directory until the
    /// database contains documents.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub fn open_shared(dir: &Path, state: ServerState) -> Result<SiteDocuments> {
        let documents = SiteDocuments::with_state(dir, Some(state), None);
        documents.refresh_blocking()?;
        Ok(documents)
    }

    fn with_state(dir: &Path, state: Option<ServerState>, stored: Option<Arc<DocumentSet>>) -> SiteDocuments {
        let stored = RwLock::new(stored);
        SiteDocuments(Arc::new(SharedSource { dir: dir.to_owned(), state, stored, update: Mutex::default() }))
    }

    /// Reads the changes in the database. If the database cannot be read, the known documents stay in force.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub fn refresh_blocking(&self) -> Result<()> {
        let Some(state) = &self.0.state else { return Ok(()) };
        let _update = self.0.update.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.stored();
        let known_documents = known.clone().map(|known| known as Arc<dyn KnownDocuments>);
        let Some(update) = state.read_documents_blocking(known_documents)? else {
            return Ok(());
        };
        let mut documents = known.map(|known| known.documents.clone()).unwrap_or_default();
        if let Some(paths) = &update.paths {
            documents.retain(|_, one| paths.contains(&one.path));
        }
        documents.extend(update.changed.into_iter().map(|one| (PathBuf::from(&one.path), Arc::new(one))));
        let set = Arc::new(DocumentSet { revision: update.revision, documents });
        *self.0.stored.write().unwrap_or_else(PoisonError::into_inner) = Some(set);
        Ok(())
    }

    /// Returns the documents of the database; `None` if the documents are the files of the directory.
    pub fn stored(&self) -> Option<Arc<DocumentSet>> {
        self.0.stored.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the revision of a document in the database; `None` if there is no such document.
    pub fn revision_of(&self, path: &Path) -> Option<i64> {
        self.find(path)?.ok().map(|document| document.revision)
    }

    /// Returns whether the server has a database that can contain the documents.
    pub fn is_shared(&self) -> bool {
        self.0.state.is_some()
    }

    /// Returns whether several servers may share the database while each of them reads the documents in its own
    /// directory.
    pub fn are_separate_files(&self) -> bool {
        self.is_shared() && self.stored().is_none()
    }

    /// Returns the path of a document relative to the server's directory, as in the database.
    pub fn relative_path(&self, path: &Path) -> String {
        path.strip_prefix(&self.0.dir).unwrap_or(path).to_string_lossy().into_owned()
    }

    /// Returns the server's directory.
    pub fn directory_path(&self) -> &Path {
        &self.0.dir
    }

    fn relative<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(&self.0.dir).unwrap_or(path)
    }

    fn find(&self, path: &Path) -> Option<io::Result<Arc<StoredDocument>>> {
        let stored = self.stored()?;
        let found = stored.documents.get(self.relative(path)).cloned();
        Some(found.ok_or_else(|| io::ErrorKind::NotFound.into()))
    }

    /// Lists all YAML documents in a folder. If the documents are in the database, a folder without documents is
    /// treated as an empty folder.
    ///
    /// # Errors
    /// Fails as [`crate::yaml_folder::list_yaml_files`] does.
    pub fn list_yaml(&self, folder: &Path) -> io::Result<BTreeSet<PathBuf>> {
        let Some(stored) = self.stored() else { return crate::yaml_folder::list_yaml_files(folder) };
        let below = stored.below(self.relative(folder));
        let own = below.filter(|(path, _)| path.components().count() == 1 && is_yaml(path));
        Ok(own.map(|(path, _)| folder.join(path)).collect())
    }

    /// Returns the stamp of a document, which changes whenever its text changes.
    ///
    /// # Errors
    /// Returns an error if the document does not exist, or is not a regular file.
    pub fn stamp(&self, path: &Path) -> io::Result<FileStamp> {
        let Some(found) = self.find(path) else { return image_digest_cache::file_stamp(path) };
        let found = found?;
        Ok(FileStamp::from_revision(path.display().to_string(), found.content.text.len(), found.revision))
    }

    /// Reads the text of a document.
    ///
    /// # Errors
    /// Returns an error if the document does not exist, or cannot be read.
    pub fn read(&self, path: &Path) -> io::Result<String> {
        match self.find(path) {
            Some(found) => found.map(|found| found.content.text.clone()),
            None => std::fs::read_to_string(path),
        }
    }

    /// Returns the names of the folders in a folder of the database; `None` if the documents are files.
    pub(crate) fn list_stored_folders(&self, folder: &Path) -> Option<BTreeSet<String>> {
        let stored = self.stored()?;
        let below = stored.below(self.relative(folder)).filter(|(path, _)| path.components().count() > 1);
        let first = |path: &Path| path.iter().next().map(|name| name.to_string_lossy().into_owned());
        Some(below.filter_map(|(path, _)| first(path)).collect())
    }

    /// Returns the files of an OS definition in the database, and the stamp of the definition; `None` if the documents
    /// are files of the directory.
    pub(crate) fn stored_definition(&self, folder: &Path) -> Option<(DefinitionFiles, FolderStamp)> {
        let stored = self.stored()?;
        let (mut files, mut stamp) = (DefinitionFiles::new(), FolderStamp::new());
        for (path, one) in stored.below(self.relative(folder)) {
            let DocumentContent { text, executable } = one.content.clone();
            let path = path.to_string_lossy().into_owned();
            stamp.push((FileStamp::from_revision(path.clone(), text.len(), one.revision), 0));
            files.insert(path, DefinitionFile { executable, text });
        }
        Some((files, stamp))
    }
}

#[cfg(test)]
mod stored_document_tests;
