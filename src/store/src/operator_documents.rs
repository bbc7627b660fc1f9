//! Documents of the operator in the database: machine files, layouts, images and all other files that a server would
//! otherwise read from its directory. They are used only on PostgreSQL, which several servers can share.
//!
//! Changes are stored one after the other, each with the next revision number. A change contains the text that it
//! replaces, and is refused if the document has changed since.

use crate::document_protection::{GuardedChange, RefusedChange, find_refused};
use crate::sql::{self, Connection, OptionalExtension, Transaction, params};
use crate::{ServerState, now};
use common::error::Result;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Text of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentContent {
    pub text: String,
    /// True for a program of an OS definition.
    pub executable: bool,
}

/// Document with its path, such as `machines/storage-7.yaml`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDocument {
    pub path: String,
    pub content: DocumentContent,
    pub revision: i64,
}

/// Author and time of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentAuthorship {
    pub changed_by: String,
    /// Time as RFC 3339 in UTC.
    pub changed: String,
}

/// Documents that have changed since an earlier revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentUpdate {
    pub revision: i64,
    pub changed: Vec<StoredDocument>,
    /// Paths of all documents; `None` if no known document was removed.
    pub paths: Option<BTreeSet<String>>,
}

/// Documents that a server already knows.
pub trait KnownDocuments: Send + Sync {
    fn revision(&self) -> i64;
    fn count(&self) -> usize;
    fn contains(&self, path: &str) -> bool;
}

/// Document on which a decision was based. The decision is stored only if the document still has this text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedDocument {
    pub path: String,
    /// Text of the document; `None` if the document does not exist.
    pub text: Option<String>,
}

/// Returns whether one of the documents has changed.
pub(crate) fn has_changed(connection: &Connection, expected: &[ExpectedDocument]) -> sql::Result<bool> {
    for ExpectedDocument { path, text } in expected {
        let select = connection.prepare_cached("SELECT text FROM documents WHERE path = ?1")?;
        let present: Option<String> = select.query_row([path], |row| row.get(0)).optional()?;
        if present != *text {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Change of one document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentChange {
    pub path: String,
    /// Text that the document must have; `None` if the document must not exist.
    pub expected: Option<String>,
    /// New text; `None` removes the document.
    pub new: Option<String>,
}

/// Changes of several documents. Either all of them are stored, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentBatch {
    /// Revision on which the changes are based; `None` if the database has never contained documents.
    pub base: Option<i64>,
    pub stored: Vec<(String, DocumentContent)>,
    /// Paths of documents that are removed.
    pub removed: Vec<String>,
    /// Changes of the batch that are permitted only in certain states of the machines.
    pub guarded: Vec<GuardedChange>,
}

/// Result of changing a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DocumentOutcome {
    /// The change is stored, with this revision.
    Stored(i64),
    /// Another change was stored first. Contains its author, or `None` if the document does not exist.
    Conflict(Option<DocumentAuthorship>),
}

/// Result of storing a batch of changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchOutcome {
    /// All changes are stored, with this revision.
    Stored(i64),
    /// Another change was stored first. Contains its author, if known.
    Conflict(Option<DocumentAuthorship>),
    /// The batch contains changes that the present states of the machines forbid.
    Refused(Vec<RefusedChange>),
}

fn read_revision(connection: &Connection) -> sql::Result<Option<i64>> {
    connection.query_row("SELECT revision FROM document_source WHERE one = 1", [], |row| row.get(0)).optional()
}

fn read_update(connection: &Connection, known: Option<&dyn KnownDocuments>) -> sql::Result<Option<DocumentUpdate>> {
    let known_revision = known.map(KnownDocuments::revision);
    let Some(revision) = read_revision(connection)?.filter(|now| Some(*now) != known_revision) else { return Ok(None) };
    // If the current revision is below the known one, the database was restored, so all documents are read.
    let known = known.filter(|known| known.revision() < revision);
    let changed = "SELECT path, text, executable, revision FROM documents WHERE revision > ?1 ORDER BY path";
    let after = known.map_or(-1, KnownDocuments::revision);
    let changed = connection.prepare_cached(changed)?.query_map([after], |row| {
        let content = DocumentContent { text: row.get(1)?, executable: row.get(2)? };
        Ok(StoredDocument { path: row.get(0)?, content, revision: row.get(3)? })
    })?;
    let changed: Vec<StoredDocument> = changed.collect::<sql::Result<_>>()?;
    let paths = match known {
        Some(known) if !was_document_removed(connection, known, &changed)? => None,
        _ => Some(list_paths(connection)?),
    };
    Ok(Some(DocumentUpdate { revision, changed, paths }))
}

/// Returns whether a known document was removed. Counting the documents is much faster than reading all paths, which
/// would make the creation of ten thousand machine files slow.
fn was_document_removed(
    connection: &Connection,
    known: &dyn KnownDocuments,
    changed: &[StoredDocument],
) -> sql::Result<bool> {
    let added = changed.iter().filter(|document| !known.contains(&document.path)).count();
    let count: i64 = connection.prepare_cached("SELECT count(*) FROM documents")?.query_row([], |row| row.get(0))?;
    Ok(usize::try_from(count).ok() != Some(known.count() + added))
}

fn list_paths(connection: &Connection) -> sql::Result<BTreeSet<String>> {
    connection.prepare_cached("SELECT path FROM documents")?.query_map([], |row| row.get(0))?.collect()
}

/// Records the next revision, and returns its number.
fn advance_revision(transaction: &Transaction, who: &str) -> sql::Result<i64> {
    let revision = read_revision(transaction)?.unwrap_or(0) + 1;
    transaction.execute(
        "INSERT INTO document_source (one, revision, changed, changed_by) VALUES (1, ?1, ?2, ?3)
         ON CONFLICT (one) DO UPDATE SET revision = ?1, changed = ?2, changed_by = ?3",
        params![revision, now(), who],
    )?;
    Ok(revision)
}

fn store_content(
    transaction: &Transaction,
    path: &str,
    content: &DocumentContent,
    (revision, who): (i64, &str),
) -> sql::Result<()> {
    transaction.execute(
        "INSERT INTO documents (path, text, executable, revision, changed, changed_by) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (path) DO UPDATE SET text = ?2, executable = ?3, revision = ?4, changed = ?5, changed_by = ?6",
        params![path, content.text, content.executable, revision, now(), who],
    )?;
    Ok(())
}

fn find_author(connection: &Connection, path: Option<&str>) -> sql::Result<Option<DocumentAuthorship>> {
    let read = |row: &sql::Row| Ok(DocumentAuthorship { changed_by: row.get(0)?, changed: row.get(1)? });
    match path {
        Some(path) => {
            let select = "SELECT changed_by, changed FROM documents WHERE path = ?1";
            connection.query_row(select, [path], read).optional()
        }
        None => {
            let select = "SELECT changed_by, changed FROM document_source WHERE one = 1";
            connection.query_row(select, [], read).optional()
        }
    }
}

fn change_document(transaction: &Transaction, change: &DocumentChange, who: &str) -> sql::Result<DocumentOutcome> {
    let select = "SELECT text, executable FROM documents WHERE path = ?1";
    let present: Option<(String, bool)> =
        transaction.query_row(select, [&change.path], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    if present.as_ref().map(|(text, _)| text) != change.expected.as_ref() {
        return Ok(DocumentOutcome::Conflict(find_author(transaction, Some(&change.path))?));
    }
    let revision = advance_revision(transaction, who)?;
    match &change.new {
        Some(text) => {
            let executable = present.is_some_and(|(_, executable)| executable);
            let content = DocumentContent { text: text.clone(), executable };
            store_content(transaction, &change.path, &content, (revision, who))?;
        }
        None => drop(transaction.execute("DELETE FROM documents WHERE path = ?1", [&change.path])?),
    }
    Ok(DocumentOutcome::Stored(revision))
}

fn store_batch(transaction: &Transaction, batch: &DocumentBatch, who: &str) -> sql::Result<BatchOutcome> {
    if read_revision(transaction)? != batch.base {
        return Ok(BatchOutcome::Conflict(find_author(transaction, None)?));
    }
    // The check is repeated, because an order may have been placed since the server checked the batch.
    let refused = find_refused(transaction, &batch.guarded)?;
    if !refused.is_empty() {
        return Ok(BatchOutcome::Refused(refused));
    }
    let revision = advance_revision(transaction, who)?;
    for (path, content) in &batch.stored {
        store_content(transaction, path, content, (revision, who))?;
    }
    for path in &batch.removed {
        transaction.execute("DELETE FROM documents WHERE path = ?1", [path])?;
    }
    Ok(BatchOutcome::Stored(revision))
}

impl ServerState {
    /// Returns the documents that differ from the known ones, or all documents if none are known. Returns `None` if
    /// nothing has changed, or if the database has never contained documents.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub fn read_documents_blocking(&self, known: Option<Arc<dyn KnownDocuments>>) -> Result<Option<DocumentUpdate>> {
        self.run_job_blocking(move |connection| read_update(connection, known.as_deref()))
    }

    /// Changes a document, unless its text differs from the expected one.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn change_document(&self, change: DocumentChange, who: String) -> Result<DocumentOutcome> {
        self.run_durably(move |transaction| change_document(transaction, &change, &who)).await
    }

    /// Stores all changes of a batch. Stores nothing if the documents have changed since the revision on which the
    /// batch is based, or if the present state of a machine forbids a change. From the first batch on, the documents in
    /// the database replace the files of the directory.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn store_documents(&self, batch: DocumentBatch, who: String) -> Result<BatchOutcome> {
        self.run_durably(move |transaction| store_batch(transaction, &batch, &who)).await
    }
}
