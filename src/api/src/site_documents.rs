//! Endpoints that store and return all documents of the operator at once: `drophammer apply` and `drophammer export`.
//!
//! Documents are stored in a database that several servers share. Before a change is stored, the resulting set of
//! documents is loaded in the same way as by a server. If the load finds new problems, nothing is stored. With SQLite,
//! the documents are the files of the server's directory, and the operator edits them there.

mod candidate_set;
mod protected_changes;

use crate::AppState;
use crate::access;
use crate::metal_api::EditPermit;
use crate::metal_api::document_edits::{database_edits, hex_digest};
use crate::operator_api::OperatorAuth;
use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use candidate_set::CandidateSet;
use common::error_code::ErrorCode;
use common::type_errors::locate_json_error;
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use protected_changes::{ProtectedChanges, find_changes, refuse_changes, resolve_confirmed};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use site::documents::directory_import::{ImportedDirectory, read_directory};
use site::snapshot::SiteSnapshot;
use std::sync::Arc;
use std::time::Duration;
use store::operator_documents::{BatchOutcome, DocumentContent};
use tokio::sync::Semaphore;

/// Maximum size of a request, in bytes. Ten thousand machine files take up 10 MB.
const APPLICATION_BYTES: usize = 48 << 20;
/// Time limit for receiving a request with documents.
const RECEIVE: Duration = Duration::from_secs(120);
/// Time limit for the new documents to be in force.
const EFFECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Permit for a request with documents. Such requests are large, so only one is received and handled at a time.
static REQUEST_SEMAPHORE: Semaphore = Semaphore::const_new(1);

/// Document with its path relative to the server's directory, such as `machines/storage-7.yaml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SiteDocument {
    pub path: String,
    pub text: String,
    /// True for a program of an OS definition.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub executable: bool,
}

/// Request body: documents to store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DocumentApplication {
    pub documents: Vec<SiteDocument>,
    /// True if stored documents that the request does not contain are removed.
    #[serde(default)]
    pub prune: bool,
    /// True if the documents are only checked and compared, and nothing is changed.
    #[serde(default)]
    pub dry_run: bool,
    /// Ids or names of machines whose lock, disk key and allocation the documents may replace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overwrite: Vec<String>,
}

/// Effect of a request on one document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DocumentAction {
    Created,
    Changed,
    Unchanged,
    /// The document is removed: the request, which sets `prune`, does not contain it.
    Deleted,
    /// The stored document is not part of the request, and is preserved.
    Retained,
    /// The document is not part of the request, and is stored from the file in the server's directory, because the
    /// database did not contain any documents yet.
    Imported,
}

/// Document with the effect of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DocumentEffect {
    pub path: String,
    pub action: DocumentAction,
    /// SHA-256 of the resulting text; absent if the document is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Text before the change; only in the response to a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
}

/// Result of a request to store documents.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DocumentReport {
    /// True if nothing was stored.
    pub dry_run: bool,
    /// Revision of the documents in the database; absent if the database does not contain documents yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    pub documents: Vec<DocumentEffect>,
}

/// Source of the documents of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DocumentOrigin {
    /// Files of the server's directory.
    Directory,
    /// Database that several servers share.
    Database,
}

/// All documents of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DocumentExport {
    pub origin: DocumentOrigin,
    /// Revision of the documents in the database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    pub documents: Vec<SiteDocument>,
}

/// Name of the object in audit entries of requests that store or return all documents.
const AUDITED_OBJECT: &str = "documents";

/// `POST /v1/documents/export`: returns all documents as they are stored.
pub(crate) async fn export_documents(
    State(app): State<Arc<AppState>>,
    _: OperatorAuth,
) -> Result<Json<DocumentExport>, ApiError> {
    access::set_audited_object(AUDITED_OBJECT);
    database_edits::refresh(&app).await?;
    let document = |path: &str, DocumentContent { text, executable }: DocumentContent| SiteDocument {
        path: path.to_owned(),
        text,
        executable,
    };
    if let Some(stored) = app.documents.stored() {
        let documents = stored.all().map(|one| document(&one.path, one.content.clone())).collect();
        let revision = Some(stored.revision);
        return Ok(Json(DocumentExport { origin: DocumentOrigin::Database, revision, documents }));
    }
    let documents = import_directory(&app).await?.into_iter().map(|(path, content)| document(&path, content));
    Ok(Json(DocumentExport { origin: DocumentOrigin::Directory, revision: None, documents: documents.collect() }))
}

/// Reads the documents of the server's directory.
///
/// # Errors
/// Returns an error if a file cannot be read, or if a file could not be represented unchanged in a database.
async fn import_directory(app: &AppState) -> Result<Vec<(String, DocumentContent)>, ApiError> {
    let dir = app.dir.clone();
    let read = run_blocking(move || read_directory(&dir)).await?;
    let failed = |error: std::io::Error| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("{}: {error}", app.dir.display()))
    };
    let ImportedDirectory { documents, problems, .. } = read.map_err(failed)?;
    // Unknown files are not documents, so they do not prevent the import.
    let problems: Vec<String> = problems.into_iter().filter(|why| !why.contains("unknown file or folder")).collect();
    match problems.is_empty() {
        true => Ok(documents),
        false => Err(refuse_documents(&problems)),
    }
}

/// `POST /v1/documents/apply`: stores documents.
pub(crate) async fn apply_documents(
    State(app): State<Arc<AppState>>,
    _: OperatorAuth,
    peer: ClientAddress,
    body: Body,
) -> Result<Json<DocumentReport>, ApiError> {
    access::set_audited_object(AUDITED_OBJECT);
    if !app.documents.is_shared() {
        let why = "apply: cannot store documents: this server uses SQLite, and its documents are the files of its directory; edit these files, or move the records to PostgreSQL with `drophammer store migrate`";
        return Err(ApiError::new(StatusCode::CONFLICT, why));
    }
    let _lock = REQUEST_SEMAPHORE.acquire().await;
    let document_application = read_application(body).await?;
    candidate_set::check_documents(&document_application.documents).map_err(|problems| refuse_documents(&problems))?;
    let _edit = EditPermit::wait_for_permit(&app, peer, HeaderMap::new()).await;
    let candidate = read_candidate(&app, document_application).await?;
    let report = candidate.report();
    if !candidate.has_changes() {
        return Ok(Json(report));
    }
    let before = app.directory();
    let candidate = Arc::new(candidate);
    let ProtectedChanges { guarded, overwritten, .. } = check_candidate(&app, &candidate, &before).await?;
    if report.dry_run {
        return Ok(Json(report));
    }
    let batch = Arc::unwrap_or_clone(candidate).into_batch(guarded);
    let revision = match app.state.store_documents(batch, access::current_user()).await? {
        BatchOutcome::Stored(revision) => revision,
        BatchOutcome::Conflict(author) => {
            let why = database_edits::describe_conflict(std::path::Path::new("documents"), author.as_ref());
            return Err(ApiError::new(StatusCode::CONFLICT, why));
        }
        BatchOutcome::Refused(refused) => return Err(refuse_changes(&before, &[], &refused)),
    };
    let count = report.documents.iter().filter(|one| one.action.is_change()).count();
    app.watch.log_note(format!("{peer} changed {count} documents in the database, revision {revision}"));
    for id in &overwritten {
        let name = before.display_name(id);
        app.watch.log_note(format!(
            "{name}: {peer} has overwritten the lock, the disk key or the allocation of the machine"
        ));
    }
    if !is_in_force(&app, revision).await {
        let why = "the documents were stored, but are not in effect yet: see the server's output";
        return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, why));
    }
    Ok(Json(DocumentReport { revision: Some(revision), ..report }))
}

/// Returns the set of documents that would result from the request.
async fn read_candidate(app: &AppState, document_application: DocumentApplication) -> Result<CandidateSet, ApiError> {
    database_edits::refresh(app).await?;
    let Some(stored) = app.documents.stored() else {
        return Ok(CandidateSet::from_directory(import_directory(app).await?, document_application));
    };
    // Another server may have added machines, which this server must know before it determines the removed machines.
    if !is_in_force(app, stored.revision).await {
        let why = "apply: nothing was stored: the documents that another server has stored are not in effect at this \
            server yet: see the server's output, and repeat the request";
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why));
    }
    Ok(CandidateSet::from_stored(&stored, document_application))
}

/// Refuses documents with new problems, and documents that would remove machines in use or undo changes without a
/// confirmation. Returns the protected changes; the transaction that stores the documents checks them again.
async fn check_candidate(
    app: &Arc<AppState>,
    candidate: &Arc<CandidateSet>,
    before: &Arc<SiteSnapshot>,
) -> Result<ProtectedChanges, ApiError> {
    let (of, set) = (app.clone(), candidate.document_set());
    let after = run_blocking(move || candidate_set::load_candidate(&of, set)).await??;
    let problems = candidate.find_new_problems(&after, before, &app.dir);
    if !problems.is_empty() {
        return Err(refuse_documents(&problems));
    }
    let (dir, compared, present) = (app.dir.clone(), candidate.clone(), before.clone());
    let changes = run_blocking(move || {
        let confirmed = resolve_confirmed(&compared.overwrite, &compared.before, &present, &dir)?;
        Ok::<_, Vec<String>>(find_changes((&compared.before, &compared.after), &present, &dir, &confirmed))
    });
    let changes = changes
        .await?
        .map_err(|unknown| ApiError::bad_request(format!("apply: nothing was stored: {}", unknown.join("; "))))?;
    let refused = app.state.list_refused_changes(changes.guarded.clone()).await?;
    match refused.is_empty() && changes.unconfirmed.is_empty() {
        true => Ok(changes),
        false => Err(refuse_changes(before, &changes.unconfirmed, &refused)),
    }
}

impl DocumentAction {
    /// Returns whether the action changes the database.
    pub fn is_change(self) -> bool {
        !matches!(self, DocumentAction::Unchanged | DocumentAction::Retained)
    }
}

/// Reads a request. The contents of documents are not sanitized, since they must be stored unchanged.
async fn read_application(body: Body) -> Result<DocumentApplication, ApiError> {
    let late = |_| ApiError::new(StatusCode::REQUEST_TIMEOUT, "the request body did not arrive in time");
    let bytes = tokio::time::timeout(RECEIVE, to_bytes(body, APPLICATION_BYTES)).await.map_err(late)?;
    let bytes = bytes.map_err(|error| {
        let why = format!("the request body is incomplete or exceeds {APPLICATION_BYTES} bytes: {error}");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, why)
    })?;
    serde_json::from_slice(&bytes)
        .map_err(|error| ApiError::bad_request(format!("request body: {}", locate_json_error(&error))))
}

async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    let failed = |error: tokio::task::JoinError| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    tokio::task::spawn_blocking(work).await.map_err(failed)
}

/// Returns the error for documents that cannot be stored.
fn refuse_documents(problems: &[String]) -> ApiError {
    const MAXIMUM_LISTED_DOCUMENTS: usize = 50;
    let mut lines: Vec<String> = problems.iter().take(MAXIMUM_LISTED_DOCUMENTS).cloned().collect();
    if problems.len() > MAXIMUM_LISTED_DOCUMENTS {
        lines.push(format!("and {} further problems", problems.len() - MAXIMUM_LISTED_DOCUMENTS));
    }
    let why = format!("apply: nothing was stored: {} problems\n{}", problems.len(), lines.join("\n"));
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, why).with_error_code(ErrorCode::SiteFile)
}

/// Waits until this server has published the stored documents. Returns false if this takes longer than
/// [`EFFECT_TIMEOUT`].
async fn is_in_force(app: &AppState, revision: i64) -> bool {
    app.request_reload();
    let mut directory = app.directory.clone();
    let seen = directory.wait_for(|known| known.revision.is_some_and(|known| known >= revision));
    matches!(tokio::time::timeout(EFFECT_TIMEOUT, seen).await, Ok(Ok(_)))
}

fn digest_of(text: &str) -> Option<String> {
    Some(hex_digest(text.as_bytes()))
}
