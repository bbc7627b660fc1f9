//! `/metrics`, `/livez` and `/readyz`.

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

/// However often somebody asks, machines are not counted more often than this.
const COUNTED_EVERY: Duration = Duration::from_secs(1);
/// So many machines at once: others have their turn between.
const AT_ONCE: usize = 200;

/// How many machines are in which phase, and when that was counted.
#[derive(Default)]
pub struct Phases(tokio::sync::Mutex<Option<(Instant, BTreeMap<&'static str, u64>)>>);

/// `GET /metrics`, with the token in `metrics.token`, which opens nothing else, or with the operator's.
pub async fn metrics(State(app): State<Arc<App>>, headers: HeaderMap) -> Result<impl IntoResponse, ApiError> {
    let given = bearer(&headers).is_some_and(|given| token::same(&given, &app.metrics));
    if !given && !Operator::is_asking(&app, &headers) {
        let why = format!("this call needs the token that is in {METRICS_FILE} of the server's directory");
        return Err(ApiError::new(StatusCode::UNAUTHORIZED, why));
    }
    let metrics: &Metrics = &app.state.metrics;
    let phases = phases(&app, &metrics.phases).await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text::text(metrics, &phases)))
}

/// `GET /livez`: the process answers.
pub async fn live() -> &'static str {
    "ok\n"
}

/// `GET /readyz`: the database answers too, and the server is not ending.
pub async fn ready(State(app): State<Arc<App>>) -> Result<&'static str, ApiError> {
    let not = |why: String| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why);
    if *app.closing.borrow() {
        return Err(not("the server is ending".to_owned()));
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
