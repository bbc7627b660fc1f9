//! Handlers of `/metrics`, `/livez` and `/readyz`.

use super::{Metrics, prometheus};
use crate::AppState;
use crate::access::{Identity, has_metrics_token};
use crate::operator_api;
use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;
use http_server::server_health::FailureKind;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::token_hash::METRICS_FILE;

/// Minimum interval between two counts of machines by phase.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// Number of machines by phase, and the time at which the machines were counted.
#[derive(Default)]
pub(crate) struct CachedPhases(tokio::sync::Mutex<Option<(Instant, BTreeMap<String, u64>)>>);

/// `GET /metrics`: returns the metrics. Authorized by the token of a user, or by the token in `metrics.token`, which
/// is valid only for this endpoint.
pub(crate) async fn get_metrics(
    State(app): State<Arc<AppState>>,
    identity: Option<Extension<Identity>>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, ApiError> {
    if identity.is_none() && !has_metrics_token(&app, &headers) {
        let why = format!("this request requires the token in {METRICS_FILE} in the server's directory");
        return Err(ApiError::new(StatusCode::UNAUTHORIZED, why));
    }
    let metrics: &Metrics = &app.counters;
    // If the database is unavailable, the metrics lack the numbers of machines and rollouts, but must still contain
    // `drophammer_healthy`.
    let phases = count_phases(&app, &metrics.phases).await.ok();
    let rollouts = app.state.count_rollouts().await.ok();
    let text = prometheus::format_metrics(metrics, phases.as_ref(), rollouts.as_ref());
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text))
}

/// `GET /livez`: succeeds if the process responds.
pub(crate) async fn get_livez() -> &'static str {
    "ok\n"
}

/// `GET /readyz`: succeeds if the database responds, the periodic check has found no problem, and the server is not
/// shutting down. The endpoint needs no token, so its response contains only fixed descriptions. The details are in
/// the log and on the web page.
pub(crate) async fn get_readyz(State(app): State<Arc<AppState>>) -> Result<&'static str, ApiError> {
    let not = |why: &str| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why).with_error_code(ErrorCode::ServerProblem);
    if *app.closing.borrow() {
        return Err(not("the server is shutting down"));
    }
    let failures = app.counters.health.readiness_failures();
    if !failures.is_empty() {
        let descriptions: Vec<&str> = failures.into_iter().map(FailureKind::describe).collect();
        return Err(not(&descriptions.join("\n")));
    }
    if let Err(error) = app.state.has_allocation("", "").await {
        app.log_rate_limited(ErrorCode::ServerProblem.annotate(format!("/readyz: cannot read the database: {error}")));
        return Err(not(FailureKind::DatabaseUnreadable.describe()));
    }
    Ok("ok\n")
}

async fn count_phases(app: &AppState, cached: &CachedPhases) -> Result<BTreeMap<String, u64>, ApiError> {
    let mut cached = cached.0.lock().await;
    if let Some((_, phases)) = cached.as_ref().filter(|(counted, _)| counted.elapsed() < COUNT_INTERVAL) {
        return Ok(phases.clone());
    }
    let phases = operator_api::count_phases(app).await?;
    *cached = Some((Instant::now(), phases.clone()));
    Ok(phases)
}
