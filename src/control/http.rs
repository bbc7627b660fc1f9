//! Control plane over HTTP: `drophammer serve`, or another server with the same API.

mod privileged_calls;

use super::retry::{Attempt, BRIEF, ONCE, PATIENT, Retries};
use super::wire::{ErrorBody, LogPart, PointOfNoReturn, REQUEST_ID, Register, Report};
use super::{Acknowledged, AttemptNotice, Control};
use crate::allocation::{Machine, ReleasedSecrets, SecretPurpose};
use crate::carried::Standing;
use crate::error::{Error, Phase, Result};
use crate::facts::{Ended, Event, Outcome};
use crate::http;
use crate::inventory::Inventory;
use crate::text::limits;
use privileged_calls::SeparateSecrets;
use reqwest::blocking::{Client, RequestBuilder, Response};
use reqwest::{Method, StatusCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Timeout of a request. Long polls add theirs.
const ANSWER: Duration = Duration::from_secs(30);

/// Timeout of an event, which is sent only once.
const EVENT: Duration = Duration::from_secs(5);
/// Minimum interval between registrations because of events with a rejected token: events are frequent, and an inventory is long.
const AGAIN: Duration = Duration::from_secs(30);

/// Status codes of a server that does not support uploading the log.
const NOT_KEPT: [StatusCode; 3] = [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED, StatusCode::NOT_IMPLEMENTED];

/// Client of an HTTP control plane.
pub struct HttpControl {
    client: Client,
    url: String,
    token: String,
    machine: String,
    /// Prefix of the request ids of this boot.
    boot: String,
    /// Number of requests sent.
    requests: AtomicU64,
    /// Last registration. A machine whose address has changed sends it again.
    registered: Mutex<Option<Register>>,
    /// Separately released secrets of the received allocation.
    separate: Mutex<SeparateSecrets>,
    /// Time of the last registration because of an event.
    by_event: Mutex<Option<Instant>>,
}

impl HttpControl {
    /// Creates the client.
    ///
    /// # Errors
    /// Fails if TLS cannot be set up.
    pub fn new(url: &str, token: &str, machine: &str) -> Result<HttpControl> {
        let boot = format!("{:08x}", fastrand::u32(..));
        tracing::info!("control plane: {url}; request ids, also in its log: {boot}-1, {boot}-2, …");
        Ok(HttpControl {
            client: http::client()?,
            url: url.to_owned(),
            token: token.to_owned(),
            machine: machine.to_owned(),
            boot,
            requests: AtomicU64::new(0),
            registered: Mutex::default(),
            separate: Mutex::default(),
            by_event: Mutex::default(),
        })
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token)
    }

    /// Adds an id to a request and to its description.
    fn identified(&self, what: &str, request: RequestBuilder) -> (String, RequestBuilder) {
        let (what, id) = self.next_id(what);
        (what, request.header(REQUEST_ID, id))
    }

    /// Returns the description with the id of the next request, and the id.
    fn next_id(&self, what: &str) -> (String, String) {
        let id = format!("{}-{}", self.boot, self.requests.fetch_add(1, Ordering::Relaxed) + 1);
        (format!("{what} (request {id})"), id)
    }

    fn of_machine(&self, call: &str) -> String {
        format!("/v1/machine/{}{call}", self.machine)
    }

    /// Calls [`Self::ask_once`], and again after another registration if the token is rejected: it is bound to the address that registered
    /// with it, and leases change. The timeout of the call also limits the registration.
    fn ask(
        &self,
        retries: Retries,
        what: &str,
        patience: Duration,
        request: impl Fn() -> RequestBuilder,
    ) -> Result<Response> {
        let refused = match self.ask_once(retries, what, patience, &request) {
            Err(error) if error.is_refusal() => error,
            done => return done,
        };
        self.enroll_again(refused, retries, patience.min(ANSWER))?;
        self.ask_once(retries, what, patience, request)
    }

    /// Registers again after a refusal. Returns the refusal if the machine has never registered.
    fn enroll_again(&self, refused: Error, retries: Retries, patience: Duration) -> Result<()> {
        let registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(register) = registered else { return Err(refused) };
        tracing::warn!("{refused}; registering again");
        self.enroll(&register, retries, patience)
    }

    /// Returns whether an event may trigger a registration now, and records it if so.
    fn may_enroll_by_event(&self) -> bool {
        let mut last = self.by_event.lock().unwrap_or_else(PoisonError::into_inner);
        let may = last.is_none_or(|last| last.elapsed() >= AGAIN);
        if may {
            *last = Some(Instant::now());
        }
        may
    }

    /// Sends a request, with retries, until it succeeds. A rejected token is a refusal.
    fn ask_once(
        &self,
        retries: Retries,
        what: &str,
        patience: Duration,
        request: impl Fn() -> RequestBuilder,
    ) -> Result<Response> {
        retries.run(|| {
            let (what, request) = self.identified(what, request());
            match request.timeout(patience).send() {
                Ok(response) if response.status().is_success() => Attempt::Done(response),
                Ok(response) if http::is_passing(response.status()) => Attempt::Again(self.refused(&what, response)),
                Ok(response) => Attempt::Never(self.refused(&what, response)),
                Err(error) if http::is_certificate(&error) => {
                    Attempt::Never(self.unreachable(&what, error.without_url()))
                }
                Err(error) => Attempt::Again(self.unreachable(&what, error.without_url())),
            }
        })
    }

    fn refused(&self, what: &str, response: Response) -> Error {
        let status = response.status();
        self.refusal(what, status, &http::read_refusal(response))
    }

    fn refusal(&self, what: &str, status: StatusCode, body: &str) -> Error {
        let said =
            serde_json::from_slice::<ErrorBody>(body.as_bytes()).map(|body| body.message).unwrap_or(body.to_owned());
        let said = limits::message(&said);
        let said = if said.trim().is_empty() { String::new() } else { format!(": {}", said.trim()) };
        let text = format!("{what}: {} answered {status}{said}", self.url);
        match status {
            StatusCode::UNAUTHORIZED => Error::refusal(Phase::Control, text),
            StatusCode::CONFLICT => Error::denial(Phase::Control, text),
            _ => Error::new(Phase::Control, text),
        }
    }

    fn unreachable(&self, what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
        Error::with_source(Phase::Control, format!("{what}: no answer from {}", self.url), error)
    }

    fn garbled(&self, what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
        Error::with_source(Phase::Control, format!("{what}: cannot parse the response of {}", self.url), error)
    }
}

impl Control for HttpControl {
    fn register(&self, inventory: &Inventory) -> Result<()> {
        let register = Register::new(self.machine.clone(), inventory.clone());
        self.enroll(&register, PATIENT, ANSWER)?;
        *self.registered.lock().unwrap_or_else(PoisonError::into_inner) = Some(register);
        Ok(())
    }

    fn wait(&self, patience: Duration) -> Result<bool> {
        let path = format!("{}?seconds={}", self.of_machine("/wait"), patience.as_secs());
        let response =
            self.ask(PATIENT, "wait for an allocation", patience + ANSWER, || self.request(Method::GET, &path))?;
        Ok(response.status() != StatusCode::NO_CONTENT)
    }

    fn machine(&self) -> Result<Machine> {
        let what = "fetch the allocation";
        let response = self.ask(PATIENT, what, ANSWER, || self.request(Method::GET, &self.of_machine("")))?;
        let text = http::read_answer(response).map_err(|error| self.garbled(what, error))?;
        let machine = serde_json::from_slice(&text).map_err(|error| self.garbled(what, error))?;
        let machine = super::of_this_machine(machine, &self.machine)?;
        let separate = machine.allocation.as_ref().map(|allocation| SeparateSecrets {
            allocation: allocation.id.clone(),
            fields: allocation.separate_secrets.clone(),
        });
        *self.separate.lock().unwrap_or_else(PoisonError::into_inner) = separate.unwrap_or_default();
        Ok(machine)
    }

    fn secrets(&self, purpose: SecretPurpose) -> Result<Option<ReleasedSecrets>> {
        self.fetch_secrets(purpose, ANSWER)
    }

    fn event(&self, event: &Event) -> Result<()> {
        let path = self.of_machine("/event");
        let send = || self.ask_once(ONCE, "event", EVENT, || self.request(Method::POST, &path).json(event));
        match send() {
            // As in `ask`, but with short timeouts. The server thereby learns again that the machine is alive.
            Err(refused) if refused.is_refusal() && self.may_enroll_by_event() => {
                self.enroll_again(refused, ONCE, EVENT)?;
                send().map(drop)
            }
            sent => sent.map(drop),
        }
    }

    fn log(&self, start: u64, text: &str) -> Result<bool> {
        let part = LogPart { start, log: text.to_owned() };
        let (what, request) = self.identified("log", self.request(Method::POST, &self.of_machine("/log")).json(&part));
        match request.timeout(EVENT).send() {
            Ok(response) if response.status().is_success() => Ok(true),
            // Another implementation of the control plane, or an earlier version.
            Ok(response) if NOT_KEPT.contains(&response.status()) => Ok(false),
            Ok(response) => Err(self.refused(&what, response)),
            Err(error) => Err(self.unreachable(&what, error.without_url())),
        }
    }

    fn point_of_no_return(&self, notice: &AttemptNotice) -> Result<()> {
        let notice = PointOfNoReturn {
            allocationuuid: notice.allocation.to_owned(),
            order: notice.order.map(str::to_owned),
            disks: notice.disks.to_vec(),
            extents: notice.extents.to_vec(),
            approved: notice.approved.map(str::to_owned),
            secret_digest: notice.secret_digest.map(str::to_owned),
        };
        let path = self.of_machine("/point-of-no-return");
        self.ask(PATIENT, "start the reinstall", ANSWER, || self.request(Method::POST, &path).json(&notice))?;
        Ok(())
    }

    fn moving(&self, standing: &Standing) -> Result<()> {
        let path = self.of_machine("/moving");
        let request = || self.request(Method::POST, &path).json(standing);
        self.ask(PATIENT, "take part in the migration", ANSWER, request).map(drop)
    }

    fn report(&self, ended: &Ended) -> Result<Acknowledged> {
        let report = Report::from(ended);
        let request = || self.request(Method::POST, &self.of_machine("/report")).json(&report);
        let response = self.ask(how_long(&ended.outcome), "report", ANSWER, request)?;
        // The status acknowledges the report, regardless of the body of other implementations.
        let text = http::read_answer(response).unwrap_or_default();
        Ok(serde_json::from_slice(&text).unwrap_or_default())
    }
}

/// Returns how persistently the report is sent. A failed machine waits at its console, which must not be delayed by ten minutes. But a
/// server that was asked whether the reinstall may begin may assume that it has begun until it receives a report.
fn how_long(outcome: &Outcome) -> Retries {
    let must_be_heard = match outcome {
        Outcome::Succeeded { .. } => true,
        Outcome::FailedUntouched(failed) | Outcome::FailedBegun(failed) => failed.announced,
    };
    if must_be_heard { PATIENT } else { BRIEF }
}

#[cfg(test)]
mod tests;
