//! Last check before a reinstall is ordered. The checks of an order may take a minute, because they contact a
//! management controller. Meanwhile, the machine may have been locked or freed.

use super::locked_machine;
use crate::AppState;
use crate::metal_api::ApiRefusal;
use crate::metal_api::document_edits;
use axum::http::StatusCode;
use http_server::api_error::ApiError;
use site::operator_files;
use store::operator_documents::ExpectedDocument;
use tokio::sync::OwnedRwLockWriteGuard;

/// Machine file that still permits the order. Until this value is dropped, no other request to this server changes a
/// file.
pub(crate) struct RecheckedMachineFile {
    /// The file, if it is a document in the database, which other servers may change.
    pub(crate) document: Option<ExpectedDocument>,
    _lock: OwnedRwLockWriteGuard<()>,
}

/// Reads the current machine file, which the published snapshot might not contain yet. Checks that the machine is not
/// locked, and still has the allocation.
///
/// # Errors
/// Returns an error if the file no longer permits the order, or cannot be read.
pub(crate) async fn recheck_machine_file(
    app: &AppState,
    id: &str,
    allocation: &str,
) -> Result<RecheckedMachineFile, ApiError> {
    let lock = app.templates.lock_changes().await;
    let unreadable = || {
        let why = format!("the file of machine {id} is missing or invalid: retry when it is valid");
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why)
    };
    let path = app.directory().machine_files.get(id).cloned().ok_or_else(unreadable)?;
    let text = document_edits::read_file(app, &path).await.map_err(ApiRefusal::into_error)?.ok_or_else(unreadable)?;
    let machine = operator_files::parse_machine(&text).ok().filter(|machine| machine.id == id);
    let machine = machine.ok_or_else(unreadable)?;
    if let Some(why) = machine.explain_lock() {
        return Err(locked_machine(id, &why));
    }
    if machine.allocation.is_none_or(|current| *current.id != allocation) {
        let why = format!("the file of machine {id} no longer contains allocation {allocation}");
        return Err(ApiError::new(StatusCode::CONFLICT, why));
    }
    let is_stored = app.documents.stored().is_some();
    let document = is_stored.then(|| ExpectedDocument { path: app.documents.relative_path(&path), text: Some(text) });
    Ok(RecheckedMachineFile { document, _lock: lock })
}
