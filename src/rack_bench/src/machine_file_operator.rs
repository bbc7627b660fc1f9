//! Operator in a run: creates files for machines that have registered without a file, and lists the machines.

use crate::run_figures::RunFigures;
use common::error::{Context, Phase, Result};
use common::output::print_note;
use common::sync::lock_mutex;
use linux::http;
use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Interval between two requests for a page of machines.
const LIST_INTERVAL: Duration = Duration::from_secs(1);
/// Number of requests for a page between two requests for all machines.
const PAGES_PER_LIST: u32 = 10;
const PATIENCE: Duration = Duration::from_secs(60);

/// Operator of the server. Clones share the same state.
#[derive(Clone)]
pub struct Operator {
    client: Client,
    url: String,
    token: String,
    figures: Arc<RunFigures>,
    /// Time at which the creation of a machine's file was requested, by machine.
    requested: Arc<Mutex<HashMap<String, Instant>>>,
    /// Machines for which the creation of a file was requested.
    created: Arc<Mutex<HashSet<String>>>,
}

impl Operator {
    pub fn new(api: SocketAddr, token: &Path, figures: Arc<RunFigures>) -> Result<Operator> {
        let read = std::fs::read_to_string(token).context(Phase::Control, || format!("read {}", token.display()))?;
        let (client, url) = (http::new_async_client(None)?, format!("https://{api}"));
        let (requested, created) = (Arc::default(), Arc::default());
        Ok(Operator { client, url, token: read.trim().to_owned(), figures, requested, created })
    }

    /// Creates the file of a machine, with an allocation. Returns the error of the server if the file cannot be
    /// created. The request is completed even if the caller is aborted: if the machine loses power, the operator does
    /// not.
    pub async fn create_machine_file(&self, id: &str, name: &str, allocation: &str) -> Result<(), String> {
        let (operator, id) = (self.clone(), id.to_owned());
        let (name, allocation) = (name.to_owned(), allocation.to_owned());
        let request = tokio::spawn(async move { operator.send_machine_file(&id, &name, &allocation).await });
        request.await.map_err(|error| error.to_string())?
    }

    async fn send_machine_file(&self, id: &str, name: &str, allocation: &str) -> Result<(), String> {
        let body = json!({"name": name, "image": "bench", "allocation": allocation, "layout": "bench"});
        let request = self.client.post(format!("{}/v1/machine/{id}/file", self.url)).json(&body);
        lock_mutex(&self.requested).insert(id.to_owned(), Instant::now());
        lock_mutex(&self.created).insert(id.to_owned());
        self.figures.measure("create machine file", self.send(request)).await.map(drop)
    }

    /// Returns whether this operator has requested the creation of the machine's file.
    pub fn has_requested(&self, id: &str) -> bool {
        lock_mutex(&self.created).contains(id)
    }

    /// Returns the time since the creation of the machine's file was requested. Returns `None` if there was no such
    /// request, or if an earlier call has already returned the time for this machine.
    pub fn take_time_since_request(&self, id: &str) -> Option<Duration> {
        lock_mutex(&self.requested).remove(id).map(|requested| requested.elapsed())
    }

    /// Lists machines until the task is aborted.
    pub async fn list_forever(&self) {
        for round in 1_u32.. {
            tokio::time::sleep(LIST_INTERVAL).await;
            self.list_once("machine list, one page", "?limit=100").await;
            if round % PAGES_PER_LIST == 0 {
                self.list_once("machine list, failed", "?phase=failed&limit=100").await;
                self.list_once("machine list, all", "").await;
            }
        }
    }

    async fn list_once(&self, name: &'static str, query: &str) {
        let request = self.client.get(format!("{}/v1/machines{query}", self.url));
        if let Err(error) = self.figures.measure(name, self.send(request)).await {
            print_note(&format!("rack-bench: {name}: {error}"));
        }
    }

    async fn send(&self, request: RequestBuilder) -> Result<Value, String> {
        let answer = request.bearer_auth(&self.token).timeout(PATIENCE).send().await;
        let answer = answer.map_err(|error| error.to_string())?;
        let status = answer.status();
        let body = http::read_async_response(answer).await.map_err(|error| error.to_string())?;
        match status.is_success() {
            true => serde_json::from_slice(&body).map_err(|error| error.to_string()),
            false => Err(format!("{status}: {}", String::from_utf8_lossy(&body))),
        }
    }
}
