//! Documents on which the permission to erase data is based. If several servers share the documents, another server may
//! have changed them, and this server may not know the change yet. The transaction that records the start of the
//! installation therefore compares the documents with those of the decision.

use crate::AppState;
use crate::metal_api::document_edits::database_edits;
use axum::http::StatusCode;
use http_server::api_error::ApiError;
use site::documents::DocumentSet;
use site::snapshot::SiteSnapshot;
use site::{deploy_templates, image_states, plan_approvals};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::operator_documents::ExpectedDocument;

/// Snapshot of the documents, and the documents in the database that concern one machine.
pub(super) struct DecisionBasis {
    pub(super) directory: Arc<SiteSnapshot>,
    /// Machine file, approval, states of images, layout and deploy templates; empty if the documents are the files of
    /// this server.
    pub(super) documents: Vec<ExpectedDocument>,
}

impl DecisionBasis {
    /// Returns the present snapshot with the documents of the machine and its allocation.
    ///
    /// # Errors
    /// Returns status 503 if the snapshot does not contain the newest known versions of the documents yet. The agent
    /// then repeats its request.
    pub(super) async fn read(app: &AppState, id: &str, allocation: &str) -> Result<DecisionBasis, ApiError> {
        let directory = app.directory();
        let Some(stored) = app.documents.stored() else {
            return Ok(DecisionBasis { directory, documents: Vec::new() });
        };
        let revision = directory.revision.unwrap_or_default();
        let approval = plan_approvals::approval_path(&app.dir, id);
        let states = app.dir.join(image_states::FILE);
        let machine_file = directory.machine_files.get(id).cloned();
        let mut required =
            vec![(approval, directory.known.approvals.contains(id), revision), (states, false, revision)];
        required.extend(machine_file.map(|path| (path, true, directory.machine_file_revision(id))));
        let layout_documents = find_layout_documents(app, &directory, &stored, id, allocation).await?;
        required.extend(layout_documents.into_iter().map(|path| (path, true, revision)));
        let mut documents = Vec::new();
        for (path, is_in_snapshot, revision) in required {
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

/// Returns the documents that determine the layout of an installation that has not started: the layout that was sent to
/// the machine and, if the allocation requests traits, the deploy templates, which may generate the layout. An
/// installation that has started continues with its layout, whatever the documents contain.
async fn find_layout_documents(
    app: &AppState,
    directory: &SiteSnapshot,
    stored: &DocumentSet,
    id: &str,
    allocation: &str,
) -> Result<Vec<PathBuf>, ApiError> {
    let install_state = app.state.read_install_state(id, allocation).await?;
    if install_state.pinned_layout().is_some() {
        return Ok(Vec::new());
    }
    let layout = install_state.layout_id.and_then(|layout| directory.layout_files.get(&layout).cloned());
    let own = directory.find_machine(id).and_then(|machine| machine.allocation.as_ref());
    let has_traits = own.is_some_and(|own| !own.requested_traits.is_empty());
    let folder = Path::new(deploy_templates::FOLDER);
    let is_template = |path: &str| has_traits && Path::new(path).starts_with(folder);
    let templates = stored.all().filter(|document| is_template(&document.path));
    let templates = templates.map(|document| app.dir.join(&document.path));
    Ok(layout.into_iter().chain(templates).collect())
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
pub(crate) async fn request_repetition(app: &AppState, id: &str) -> ApiError {
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
