//! Audit log: records which user has requested which change, and the values before and after the change. An entry is
//! stored before the handler of a request runs, and completed when the response is ready. Refused requests are also
//! recorded, at a limited rate, because any client can trigger them.

mod audit_file;
mod object_state;
mod refusal_limit;

use crate::AppState;
use crate::access::Identity;
use crate::operator_api::OperatorAuth;
use audit_file::AuditFile;
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::Response;
use common::error::Result;
use common::error_code::ErrorCode;
use common::format::without_secrets;
use common::timestamp::now_in_milliseconds;
use http_server::api_error::ApiError;
use http_server::rate_limited_log::RateLimitedLog;
use http_server::request_context;
use http_server::server_health::ErrorMessage;
pub use object_state::ObjectState;
use refusal_limit::RefusalLimit;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use store::audit::AuditDurability;
pub use store::audit::{AuditChange, AuditEntry, AuditOutcome, AuditQuery, AuditRetention, PAGE};

/// Number of new entries after which excess entries are deleted.
const ENTRIES_PER_TRIM: u32 = 64;
/// Maximum length of a path in an entry, in bytes.
const PATH_BYTES: usize = 512;
/// Maximum length of the ids of the machines in an entry, in bytes. Sufficient for an action on 500 machines.
const OBJECT_BYTES: usize = 20 << 10;

/// Requests that change only the database, by method and route. The audit entry of such a request does not need a
/// separate sync, because the sync of the change includes the entry. A reinstall with an approved plan also writes a
/// file: the audit entry is synced before the file is written.
const DATABASE_ONLY: [(&str, &str); 12] = [
    ("PUT", "/v1/users"),
    ("POST", "/v1/users/{name}"),
    ("DELETE", "/v1/users/{name}"),
    ("POST", "/v1/users/{name}/tokens"),
    ("DELETE", "/v1/users/{name}/tokens/{token}"),
    ("POST", "/v1/machines/confirm"),
    ("POST", "/v1/machine/{id}/reinstall"),
    ("DELETE", "/v1/machine/{id}/reinstall"),
    ("POST", "/v1/machine/{id}/adopt"),
    ("POST", "/v1/machine/{id}/confirm"),
    ("POST", "/machines/{id}/reinstall"),
    ("POST", "/machines/{id}/cancel"),
];

/// Settings and counters of the audit log. The entries are in the database.
pub struct AuditLog {
    retention: AuditRetention,
    /// File to which complete entries are appended as JSON lines.
    file: Option<AuditFile>,
    refusals: RefusalLimit,
    appended: AtomicU32,
}

/// Request as recorded in the audit log.
#[derive(Debug, Clone)]
pub struct AuditedRequest {
    pub method: String,
    /// Route, such as `/v1/machine/{id}/reinstall`.
    pub route: String,
    pub path: String,
    /// Id of the machine, or name of another object; empty if the path contains none. The handler may then determine
    /// the object ([`crate::access::set_audited_object`]).
    pub object: String,
    pub address: IpAddr,
}

impl AuditLog {
    /// Creates the settings, and opens the file. Problems of the file are logged to `rate_limited_log`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened, or is not a regular file.
    pub fn new(retention: AuditRetention, file: Option<PathBuf>, rate_limited_log: RateLimitedLog) -> Result<AuditLog> {
        let file = file.map(|path| AuditFile::start(path, rate_limited_log)).transpose()?;
        Ok(AuditLog { retention, file, refusals: RefusalLimit::default(), appended: AtomicU32::new(0) })
    }

    /// Returns a description of the file's problem, if there is one, and the number of entries that the file lacks.
    pub fn file_health(&self) -> (Option<String>, u64) {
        self.file.as_ref().map_or((None, 0), |file| (file.describe_problem(), file.count_lost()))
    }

    /// Waits until all entries are in the file, or the time limit has passed. Returns the number of entries that are
    /// not in the file yet.
    pub async fn flush_file(&self, limit: Duration) -> usize {
        let Some(file) = &self.file else { return 0 };
        let all = async {
            while file.count_pending() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let _ = tokio::time::timeout(limit, all).await;
        file.count_pending()
    }

    fn write_line(&self, entry: &AuditEntry) {
        if let Some(file) = &self.file {
            file.append_line(entry.id, serde_json::json!(entry).to_string());
        }
    }

    async fn trim(&self, app: &AppState) {
        if !self.appended.fetch_add(1, Ordering::Relaxed).is_multiple_of(ENTRIES_PER_TRIM) {
            return;
        }
        let problem = match app.state.trim_audit(self.retention).await {
            Ok(problem) => problem,
            Err(error) => Some(format!("cannot delete the oldest entries: {error}")),
        };
        if let Some(problem) = problem {
            app.log_rate_limited(ErrorCode::ServerProblem.annotate(format!("audit log: {problem}")));
        }
    }
}

impl AuditedRequest {
    /// Returns how durable the entry of the request must be before the request is carried out.
    fn required_durability(&self) -> AuditDurability {
        match DATABASE_ONLY.contains(&(self.method.as_str(), self.route.as_str())) {
            true => AuditDurability::WithChange,
            false => AuditDurability::BeforeChange,
        }
    }
}

fn new_entry(request: &AuditedRequest, identity: Option<&Identity>) -> AuditEntry {
    let text = |get: fn(&Identity) -> String| identity.map(get).unwrap_or_default();
    AuditEntry {
        id: 0,
        time: now_in_milliseconds(),
        user: text(|identity| identity.user.clone()),
        token: text(|identity| identity.token.clone()),
        role: text(|identity| identity.role.to_string()),
        address: request.address.to_string(),
        request: request_context::current_id().unwrap_or_default(),
        method: request.method.clone(),
        path: common::format::truncate_bytes(&request.path, PATH_BYTES).to_owned(),
        action: format!("{} {}", request.method, request.route),
        object: common::format::truncate_bytes(&request.object, PATH_BYTES).to_owned(),
        outcome: AuditOutcome::Started,
        status: None,
        committed: false,
        changes: Vec::new(),
        reason: String::new(),
    }
}

/// Stores the entry of a request that may change something, before its handler runs. Returns the id of the entry.
///
/// # Errors
/// Returns an error if the database cannot be written. In that case, the handler must not run.
pub async fn begin_entry(app: &AppState, request: &AuditedRequest, identity: &Identity) -> Result<i64> {
    app.audit.trim(app).await;
    app.state.append_audit(new_entry(request, Some(identity)), request.required_durability()).await
}

/// Completes the entry of a request whose response is ready. `object` is the object that the handler has determined;
/// empty if the path contains the object.
pub async fn complete_entry(
    app: &AppState,
    (id, object): (i64, String),
    (status, reason): (u16, String),
    changes: Vec<AuditChange>,
) {
    let object = common::format::truncate_bytes(&object, OBJECT_BYTES).to_owned();
    match app.state.complete_audit((id, object), status, changes, without_secrets(&reason)).await {
        Ok(Some(entry)) => app.audit.write_line(&entry),
        Ok(None) => {}
        Err(error) => {
            let why = format!("audit log: cannot complete entry {id}: {error}");
            app.log_rate_limited(ErrorCode::ServerProblem.annotate(why));
        }
    }
}

/// Records a request whose response is ready: a refusal, a login or a logout. Refusals above the rate limit are
/// dropped.
pub async fn record_request(
    app: &AppState,
    request: &AuditedRequest,
    identity: Option<&Identity>,
    actor: Option<&(String, String)>,
    (status, reason): (u16, &str),
) {
    if status >= 400 && !app.audit.refusals.count_entry(request.address) {
        return;
    }
    app.audit.trim(app).await;
    let mut entry = new_entry(request, identity);
    if let Some((user, token)) = actor {
        (entry.user, entry.token) = (user.clone(), token.clone());
    }
    (entry.status, entry.outcome) = (Some(status), AuditOutcome::from_status(status));
    entry.reason = without_secrets(reason);
    // A login or a logout changes a session, which is not in the database, so the entry needs a sync of its own.
    match app.state.append_audit(entry.clone(), AuditDurability::BeforeChange).await {
        Ok(id) => app.audit.write_line(&AuditEntry { id, ..entry }),
        Err(error) => {
            let why = format!("audit log: cannot record a refused request: {error}");
            app.log_rate_limited(ErrorCode::ServerProblem.annotate(why));
        }
    }
}

/// Returns the status of a response, and the message of an error response.
pub fn response_outcome<B>(response: &Response<B>) -> (u16, String) {
    let reason = response.extensions().get::<ErrorMessage>().map(|message| message.0.clone()).unwrap_or_default();
    (response.status().as_u16(), reason)
}

/// `GET /v1/audit`: returns the entries that match the filters.
pub(crate) async fn get_audit(
    State(app): State<Arc<AppState>>,
    _: OperatorAuth,
    query: std::result::Result<Query<AuditQuery>, QueryRejection>,
) -> std::result::Result<Json<Vec<AuditEntry>>, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::bad_request(error.to_string()))?;
    Ok(Json(app.state.list_audit(query).await?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::route_access;

    #[test]
    fn the_requests_that_only_change_the_database_exist() {
        for (method, route) in DATABASE_ONLY {
            assert!(route_access::find_rule(method, route).is_some(), "{method} {route}");
        }
    }

    #[test]
    fn files_and_management_controllers_are_changed_only_after_the_entry_is_on_disk() {
        let durability = |method: &str, route: &str| {
            let request = AuditedRequest {
                method: method.to_owned(),
                route: route.to_owned(),
                path: String::new(),
                object: String::new(),
                address: [127, 0, 0, 1].into(),
            };
            request.required_durability()
        };
        for (method, route) in [
            ("POST", "/v1/machine/{id}/power"),
            ("POST", "/v1/machine/{id}/file"),
            ("POST", "/v1/machine/{id}/lock"),
            ("DELETE", "/v1/machine/{id}/free"),
            ("PUT", "/v1/image"),
            ("POST", "/v1/rollouts"),
            ("GET", "/v1/users"),
        ] {
            assert_eq!(durability(method, route), AuditDurability::BeforeChange, "{method} {route}");
        }
        assert_eq!(durability("POST", "/v1/machine/{id}/reinstall"), AuditDurability::WithChange);
    }
}
