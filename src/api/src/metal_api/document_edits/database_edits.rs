//! Changes of documents in a database that several servers share.

use crate::AppState;
use crate::access;
use crate::metal_api::api_refusal::{ApiRefusal, ApiResult};
use http_server::api_error::ApiError;
use std::path::Path;
use store::operator_documents::{DocumentAuthorship, DocumentChange, DocumentOutcome};

/// Result of a change of one document in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoredChange {
    Stored,
    /// The document was changed concurrently, by this author; `None` if the document does not exist.
    Conflict(Option<DocumentAuthorship>),
}

impl StoredChange {
    /// Returns an error that names the author of the concurrent change.
    pub(crate) fn require_stored(self, path: &Path) -> ApiResult<()> {
        match self {
            StoredChange::Stored => Ok(()),
            StoredChange::Conflict(author) => Err(ApiRefusal::conflict(describe_conflict(path, author.as_ref()))),
        }
    }
}

/// Describes a concurrent change.
pub(crate) fn describe_conflict(path: &Path, author: Option<&DocumentAuthorship>) -> String {
    match author {
        Some(DocumentAuthorship { changed_by, changed }) => format!(
            "{}: cannot store the change: {changed_by} changed the document first, at {changed}; read the current version, and repeat the change",
            path.display()
        ),
        None => format!("{}: cannot store the change: the document was removed", path.display()),
    }
}

/// Reads the newest documents, if the server shares its database.
pub(crate) async fn refresh(app: &AppState) -> Result<(), ApiError> {
    if !app.documents.is_shared() {
        return Ok(());
    }
    let documents = app.documents.clone();
    let read = tokio::task::spawn_blocking(move || documents.refresh_blocking()).await;
    let failed = |error: tokio::task::JoinError| {
        ApiError::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, format!("read the documents: {error}"))
    };
    Ok(read.map_err(failed)??)
}

/// Changes a document in the database. Returns `None` if documents are stored as files.
pub(crate) async fn change(
    app: &AppState,
    path: &Path,
    expected: Option<&str>,
    new: Option<&str>,
) -> Result<Option<StoredChange>, ApiError> {
    refresh(app).await?;
    if app.documents.stored().is_none() {
        return Ok(None);
    }
    let change = DocumentChange {
        path: app.documents.relative_path(path),
        expected: expected.map(str::to_owned),
        new: new.map(str::to_owned),
    };
    Ok(Some(match app.state.change_document(change, access::current_user()).await? {
        DocumentOutcome::Stored(_) => StoredChange::Stored,
        DocumentOutcome::Conflict(author) => StoredChange::Conflict(author),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conflict_names_the_other_author() {
        let path = Path::new("/d/machines/a.yaml");
        let author = DocumentAuthorship { changed_by: "ann".to_owned(), changed: "2026-11-28T10:00:00Z".to_owned() };
        let text = describe_conflict(path, Some(&author));
        assert!(text.contains("ann changed the document first, at 2026-11-28T10:00:00Z"), "{text}");
        assert!(describe_conflict(path, None).contains("was removed"));
        assert!(StoredChange::Stored.require_stored(path).is_ok());
        assert!(StoredChange::Conflict(Some(author)).require_stored(path).is_err());
    }
}
