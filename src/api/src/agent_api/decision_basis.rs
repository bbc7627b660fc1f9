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
    /// Returns status 503 if the snapshot does not contain the newest known versions of the documents yet. The agent
    /// then repeats its request.
    pub(super) async fn read(app: &AppState, id: &str) -> Result<DecisionBasis, ApiError> {
        let directory = app.directory();
        let Some(stored) = app.documents.stored() else {
            return Ok(DecisionBasis { directory, documents: Vec::new() });
        };
        let revision = directory.revision.unwrap_or_default();
        let approval = plan_approvals::approval_path(&app.dir, id);
        let states = app.dir.join(image_states::FILE);
        let machine_file = directory.machine_files.get(id).cloned();
        let required = [
            Some((approval, directory.known.approvals.contains(id), revision)),
            Some((states, false, revision)),
            machine_file.map(|path| (path, true, directory.machine_file_revision(id))),
        ];
        let mut documents = Vec::new();
        for (path, is_in_snapshot, revision) in required.into_iter().flatten() {
            let found = find_document(app, &stored, &path);
            if is_outdated(is_in_snapshot, revision, found.map(|(_, changed)| changed)) {
                return Err(request_repetition(app, id).await);
            }
            let text = found.map(|(text, _)| text.to_owned());
            documents.push(ExpectedDocument { path: app.documents.relative_path(&path), text });
        }
        Ok(DecisionBasis { directory, documents })
    }
}

/// Returns whether the newest known version of a document is not in the snapshot yet. `changed` is the revision of the
/// newest version, or `None` if the document was removed.
fn is_outdated(is_in_snapshot: bool, snapshot_revision: i64, changed: Option<i64>) -> bool {
    changed.map_or(is_in_snapshot, |changed| changed > snapshot_revision)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_require_the_newest_known_documents() {
        for (is_in_snapshot, changed, expected) in [
            (true, Some(4), false),
            (true, Some(5), false),
            (true, Some(6), true),
            // The document was removed, for example an approval that was withdrawn.
            (true, None, true),
            (false, None, false),
            (false, Some(6), true),
        ] {
            assert_eq!(is_outdated(is_in_snapshot, 5, changed), expected, "{is_in_snapshot} {changed:?}");
        }
    }
}
