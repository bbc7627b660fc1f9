//! Handlers of `/metrics`, `/livez` and `/readyz`.

use super::{Metrics, phase, text};
use crate::serve::App;
use crate::serve::api_error::ApiError;
use crate::serve::caller::bearer;
use crate::serve::operator::Operator;
use crate::serve::token::{self, METRICS_FILE};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum interval between two counts of the machines.
const COUNTED_EVERY: Duration = Duration::from_secs(1);
/// Number of machines counted per database query, so that other queries are not delayed.
const AT_ONCE: usize = 200;

/// Number of machines by phase, and the time when they were counted.
#[derive(Default)]
pub struct Phases(tokio::sync::Mutex<Option<(Instant, BTreeMap<&'static str, u64>)>>);

/// `GET /metrics`, authorized by the token in `metrics.token`, which is only valid here, or by the operator's.
pub async fn metrics(State(app): State<Arc<App>>, headers: HeaderMap) -> Result<impl IntoResponse, ApiError> {
    let given = bearer(&headers).is_some_and(|given| token::same(&given, &app.metrics));
    if !given && !Operator::is_asking(&app, &headers) {
        let why = format!("this request requires the token in {METRICS_FILE} in the server's directory");
        return Err(ApiError::new(StatusCode::UNAUTHORIZED, why));
    }
    let metrics: &Metrics = &app.state.metrics;
    let phases = phases(&app, &metrics.phases).await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text::text(metrics, &phases)))
}

/// `GET /livez`: whether the process responds.
pub async fn live() -> &'static str {
    "ok\n"
}

/// `GET /readyz`: whether the database responds as well, and the server is not shutting down.
pub async fn ready(State(app): State<Arc<App>>) -> Result<&'static str, ApiError> {
    let not = |why: String| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why);
    if *app.closing.borrow() {
        return Err(not("the server is shutting down".to_owned()));
    }
    app.state.has_allocation("", "").await.map(|_| "ok\n").map_err(|error| not(error.to_string()))
}

async fn phases(app: &App, cached: &Phases) -> Result<BTreeMap<&'static str, u64>, ApiError> {
    let mut cached = cached.0.lock().await;
    if let Some((_, phases)) = cached.as_ref().filter(|(counted, _)| counted.elapsed() < COUNTED_EVERY) {
        return Ok(phases.clone());
    }
    let directory = app.directory();
    let (mut phases, mut allocated) = (BTreeMap::new(), Vec::new());
    for machine in directory.machines() {
        match &machine.allocation {
            Some(allocation) => allocated.push((machine.id.clone(), allocation.id.to_string())),
            None => *phases.entry(phase(None)).or_default() += 1,
        }
    }
    for some in allocated.chunks(AT_ONCE) {
        for standing in app.state.standings(some.to_vec()).await? {
            *phases.entry(phase(Some(&standing))).or_default() += 1;
        }
    }
    *cached = Some((Instant::now(), phases.clone()));
    Ok(phases)
}
