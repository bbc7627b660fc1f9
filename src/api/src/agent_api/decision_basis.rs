//! Documents on which the permission to erase data is based. If several servers share the documents, another server may
//! have changed them, and this server may not know the change yet. The transaction that records the start of the
//! installation therefore compares the documents with those of the decision.

use crate::AppState;
use crate::metal_api::document_edits::database_edits;
use axum::http::StatusCode;
use http_server::api_error::ApiError;
use site::documents::DocumentSet;
use site::snapshot::SiteSnapshot;
use site::{image_states, plan_approvals};
use std::path::Path;
use std::sync::Arc;
use store::operator_documents::ExpectedDocument;

/// Snapshot of the documents, and the documents in the database that concern one machine.
pub(super) struct DecisionBasis {
    pub(super) directory: Arc<SiteSnapshot>,
    /// Machine file, approval and states of images; empty if the documents are the files of this server.
    pub(super) documents: Vec<ExpectedDocument>,
}

impl DecisionBasis {
    /// Returns the present snapshot with the documents of the machine.
    ///
    /// # Errors
    /// Returns status 503 if the snapshot does not contain the newest known versions of the documents yet. The agent then
    /// repeats its request.
    pub(super) async fn read(app: &AppState, id: &str) -> Result<DecisionBasis, ApiError> {
        let directory = app.directory();
        let Some(stored) = app.documents.stored() else {
            return Ok(DecisionBasis { directory, documents: Vec::new() });
        };
        let revision = directory.revision.unwrap_or_default();
        let mut paths = vec![plan_approvals::approval_path(&app.dir, id), app.dir.join(image_states::FILE)];
        let machine_file = directory.machine_files.get(id).cloned();
        paths.extend(machine_file.clone());
        let mut documents = Vec::new();
        for path in paths {
            let found = find_document(app, &stored, &path);
            let is_machine_file = machine_file.as_ref() == Some(&path);
            let is_missing = found.is_none() && is_machine_file;
            let revision = if is_machine_file { directory.machine_file_revision(id) } else { revision };
            if is_missing || found.is_some_and(|(_, changed)| changed > revision) {
                return Err(request_repetition(app, id).await);
            }
            let text = found.map(|(text, _)| text.to_owned());
            documents.push(ExpectedDocument { path: app.documents.relative_path(&path), text });
        }
        Ok(DecisionBasis { directory, documents })
    }
}

/// Returns the text of a document, and the revision in which it was last changed.
fn find_document<'a>(app: &AppState, stored: &'a DocumentSet, path: &Path) -> Option<(&'a str, i64)> {
    let document = stored.find(&app.documents.relative_path(path))?;
    Some((document.content.text.as_str(), document.revision))
}

/// Reads the newest documents, and returns an error with which the agent repeats its request.
pub(super) async fn request_repetition(app: &AppState, id: &str) -> ApiError {
    if let Err(error) = database_edits::refresh(app).await {
        return error;
    }
    app.request_reload();
    let why = format!(
        "the documents of machine {id} were changed at another server, and are not in effect at this server yet: repeat \
        the request"
    );
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why)
}
