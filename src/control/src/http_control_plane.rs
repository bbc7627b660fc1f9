//! Control plane over HTTP: `drophammer serve`, or another server with the same API.

mod privileged_port_requests;

use super::api_types::{ErrorBody, InstallReport, LogPart, PointOfNoReturn, REQUEST_ID, RegisterRequest};
use super::retry::{AttemptResult, BRIEF, ONCE, PATIENT, RetryPolicy};
use super::{AttemptNotice, ControlPlane, ReportAcknowledgement};
use common::error::{Error, Phase, Result};
use common::error_code::{self, ErrorCode};
use common::format::untrusted_text_limits;
use common::sync::lock_mutex;
use linux::http;
use model::allocation::{AssignedMachine, ReleasedSecrets, SecretPurpose};
use model::install_report::{InstallOutcome, InstallResult, ProgressEvent};
use model::inventory::Inventory;
use model::machine_migration::MigrationReport;
use privileged_port_requests::SeparateSecretFields;
use reqwest::blocking::{Client, RequestBuilder, Response};
use reqwest::{Method, StatusCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Timeout of a request. For a long poll, the duration of the poll is added.
const ANSWER: Duration = Duration::from_secs(30);

/// Timeout of an event, which is sent only once.
const EVENT: Duration = Duration::from_secs(5);
/// Minimum interval between two registrations that are triggered by events whose token was rejected. Events are
/// frequent, and each registration sends the inventory, which is long.
const AGAIN: Duration = Duration::from_secs(30);

/// Status codes of servers that do not support log uploads.
const NOT_KEPT: [StatusCode; 3] = [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED, StatusCode::NOT_IMPLEMENTED];

/// Client of an HTTP control plane.
pub struct HttpControlPlane {
    client: Client,
    url: String,
    token: String,
    machine: String,
    /// Prefix of the request ids of this boot.
    boot: String,
    /// Number of requests sent in this boot.
    requests: AtomicU64,
    /// Last registration. It is sent again if the server rejects the token, for example because the address of the
    /// machine has changed.
    registered: Mutex<Option<RegisterRequest>>,
    /// Secret fields of the allocation that the server sends only on a separate request.
    separate: Mutex<SeparateSecretFields>,
    /// Time of the last registration that was triggered by an event.
    by_event: Mutex<Option<Instant>>,
}

impl HttpControlPlane {
    /// Creates the client.
    ///
    /// # Errors
    /// Fails if TLS cannot be set up.
    pub fn new(url: &str, token: &str, machine: &str) -> Result<HttpControlPlane> {
        let boot = format!("{:08x}", fastrand::u32(..));
        tracing::info!("control plane: {url}; its log contains the ids of this boot's requests: {boot}-1, {boot}-2, …");
        Ok(HttpControlPlane {
            client: http::new_client()?,
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

    fn build_request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token)
    }

    /// Adds a new id to a request. Returns the description of the request, which contains the id, and the request
    /// itself.
    fn add_request_id(&self, what: &str, request: RequestBuilder) -> (String, RequestBuilder) {
        let (what, id) = self.next_request_id(what);
        (what, request.header(REQUEST_ID, id))
    }

    /// Returns the description `what` with the id of the next request, and this id itself.
    fn next_request_id(&self, what: &str) -> (String, String) {
        let id = format!("{}-{}", self.boot, self.requests.fetch_add(1, Ordering::Relaxed) + 1);
        (format!("{what} (request {id})"), id)
    }

    fn machine_path(&self, call: &str) -> String {
        format!("/v1/machine/{}{call}", self.machine)
    }

    /// Calls [`Self::request_with_retries`]. If the token is rejected, registers again and repeats the call. A token is
    /// bound to the address from which the machine registered, and a new DHCP lease may have changed this address. The
    /// timeout of the call also applies to the registration.
    fn request_reregistering(
        &self,
        retries: RetryPolicy,
        what: &str,
        patience: Duration,
        request: impl Fn() -> RequestBuilder,
    ) -> Result<Response> {
        let refused = match self.request_with_retries(retries, what, patience, &request) {
            Err(error) if error.is_refusal() => error,
            done => return done,
        };
        self.register_again(refused, retries, patience.min(ANSWER))?;
        self.request_with_retries(retries, what, patience, request)
    }

    /// Registers again after the server has rejected the token. `refused` is the error of the rejected request; it is returned if
    /// the machine has never registered.
    fn register_again(&self, refused: Error, retries: RetryPolicy, patience: Duration) -> Result<()> {
        let registered = lock_mutex(&self.registered).clone();
        let Some(register) = registered else { return Err(refused) };
        tracing::warn!("{refused}; registering again");
        self.register_privileged(&register, retries, patience)
    }

    /// Returns whether an event may trigger a registration now. If it may, stores the current time in `by_event`.
    fn may_register_by_event(&self) -> bool {
        let mut last = lock_mutex(&self.by_event);
        let may = last.is_none_or(|last| last.elapsed() >= AGAIN);
        if may {
            *last = Some(Instant::now());
        }
        may
    }

    /// Sends a request, and repeats it after transient failures within the limits of `retries`. If the server rejects
    /// the token, the error is a refusal ([`Error::refusal`]).
    fn request_with_retries(
        &self,
        retries: RetryPolicy,
        what: &str,
        patience: Duration,
        request: impl Fn() -> RequestBuilder,
    ) -> Result<Response> {
        retries.run_attempts(|| {
            let (what, request) = self.add_request_id(what, request());
            match request.timeout(patience).send() {
                Ok(response) if response.status().is_success() => AttemptResult::Done(response),
                Ok(response) if http::is_retryable(response.status()) => {
                    AttemptResult::Transient(self.response_error(&what, response))
                }
                Ok(response) => AttemptResult::Permanent(self.response_error(&what, response)),
                Err(error) if http::is_untrusted_certificate(&error) => {
                    AttemptResult::Permanent(self.unreachable_error(&what, error.without_url()))
                }
                Err(error) => AttemptResult::Transient(self.unreachable_error(&what, error.without_url())),
            }
        })
    }

    fn response_error(&self, what: &str, response: Response) -> Error {
        let status = response.status();
        self.status_error(what, status, &http::read_error_response(response))
    }

    fn status_error(&self, what: &str, status: StatusCode, body: &str) -> Error {
        let parsed = serde_json::from_slice::<ErrorBody>(body.as_bytes()).ok();
        let code = parsed.as_ref().and_then(|body| body.error_code.clone()).filter(|code| error_code::is_code(code));
        let said = parsed.map_or_else(|| body.to_owned(), |body| body.message);
        let said = untrusted_text_limits::sanitize_message(&said);
        let said = if said.trim().is_empty() { String::new() } else { format!(": {}", said.trim()) };
        let text = format!("{what}: {} answered {status}{said}", self.url);
        let known = code.as_deref().and_then(ErrorCode::parse);
        // A code of a newer server is printed, although it has no entry in the manual of this version.
        let text = match code.filter(|_| known.is_none()) {
            Some(code) => error_code::append(text, &code),
            None => text,
        };
        let error = match status {
            StatusCode::UNAUTHORIZED => Error::refusal(Phase::Control, text).with_code(ErrorCode::BootToken),
            StatusCode::CONFLICT => Error::denial(Phase::Control, text),
            _ => Error::new(Phase::Control, text),
        };
        known.into_iter().fold(error, Error::with_code)
    }

    fn unreachable_error(&self, what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
        let clock = http::describe_clock(&error);
        Error::with_source(Phase::Control, format!("{what}: no answer from {}{clock}", self.url), error)
            .with_code(ErrorCode::NoAnswer)
    }

    fn parse_error(&self, what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
        Error::with_source(Phase::Control, format!("{what}: cannot parse the response of {}", self.url), error)
    }
}

impl ControlPlane for HttpControlPlane {
    fn register_machine(&self, inventory: &Inventory) -> Result<()> {
        let register = RegisterRequest::new(self.machine.clone(), inventory.clone());
        self.register_privileged(&register, PATIENT, ANSWER)?;
        *lock_mutex(&self.registered) = Some(register);
        Ok(())
    }

    fn wait_for_allocation(&self, patience: Duration) -> Result<bool> {
        let path = format!("{}?seconds={}", self.machine_path("/wait"), patience.as_secs());
        let response = self.request_reregistering(PATIENT, "wait for an allocation", patience + ANSWER, || {
            self.build_request(Method::GET, &path)
        })?;
        Ok(response.status() != StatusCode::NO_CONTENT)
    }

    fn fetch_machine(&self) -> Result<AssignedMachine> {
        let what = "fetch the allocation";
        let response = self
            .request_reregistering(PATIENT, what, ANSWER, || self.build_request(Method::GET, &self.machine_path("")))?;
        let text = http::read_response(response).map_err(|error| self.parse_error(what, error))?;
        let machine = serde_json::from_slice(&text).map_err(|error| self.parse_error(what, error))?;
        let machine = super::require_same_machine(machine, &self.machine)?;
        let separate = machine.allocation.as_ref().map(|allocation| SeparateSecretFields {
            allocation: allocation.id.clone(),
            fields: allocation.separate_secrets.clone(),
        });
        *lock_mutex(&self.separate) = separate.unwrap_or_default();
        Ok(machine)
    }

    fn fetch_secrets(&self, purpose: SecretPurpose) -> Result<Option<ReleasedSecrets>> {
        self.request_secrets(purpose, ANSWER)
    }

    fn send_event(&self, event: &ProgressEvent) -> Result<()> {
        let path = self.machine_path("/event");
        let send =
            || self.request_with_retries(ONCE, "event", EVENT, || self.build_request(Method::POST, &path).json(event));
        match send() {
            // As in `request_reregistering`, but with short timeouts. After it, the server accepts the events of this machine again.
            Err(refused) if refused.is_refusal() && self.may_register_by_event() => {
                self.register_again(refused, ONCE, EVENT)?;
                send().map(drop)
            }
            sent => sent.map(drop),
        }
    }

    fn upload_log(&self, start: u64, text: &str) -> Result<bool> {
        let part = LogPart { start, log: text.to_owned() };
        let (what, request) =
            self.add_request_id("log", self.build_request(Method::POST, &self.machine_path("/log")).json(&part));
        match request.timeout(EVENT).send() {
            Ok(response) if response.status().is_success() => Ok(true),
            // The server is another implementation of the control plane, or has an earlier version.
            Ok(response) if NOT_KEPT.contains(&response.status()) => Ok(false),
            Ok(response) => Err(self.response_error(&what, response)),
            Err(error) => Err(self.unreachable_error(&what, error.without_url())),
        }
    }

    fn announce_point_of_no_return(&self, notice: &AttemptNotice) -> Result<()> {
        let notice = PointOfNoReturn {
            allocationuuid: notice.allocation.to_owned(),
            order: notice.order.map(str::to_owned),
            disks: notice.disks.to_vec(),
            extents: notice.extents.to_vec(),
            approved: notice.approved.map(str::to_owned),
            secret_digest: notice.secret_digest.map(str::to_owned),
        };
        let path = self.machine_path("/point-of-no-return");
        self.request_reregistering(PATIENT, "announce the point of no return", ANSWER, || {
            self.build_request(Method::POST, &path).json(&notice)
        })?;
        Ok(())
    }

    fn report_migration_state(&self, standing: &MigrationReport) -> Result<()> {
        let path = self.machine_path("/moving");
        let request = || self.build_request(Method::POST, &path).json(standing);
        self.request_reregistering(PATIENT, "take part in the migration", ANSWER, request).map(drop)
    }

    fn report_result(&self, ended: &InstallResult) -> Result<ReportAcknowledgement> {
        let report = InstallReport::from(ended);
        let request = || self.build_request(Method::POST, &self.machine_path("/report")).json(&report);
        let response = self.request_reregistering(report_retries(&ended.outcome), "report", ANSWER, request)?;
        // A success status acknowledges the report, even if another implementation returns a different body.
        let text = http::read_response(response).unwrap_or_default();
        Ok(serde_json::from_slice(&text).unwrap_or_default())
    }
}

/// Returns the retry policy for the report. Reports of successes, and reports of attempts that were announced to the
/// server, are retried for a long time. Until the server receives the report of an announced attempt, it may assume
/// that the attempt has passed the point of no return. Reports of other failures are retried only briefly, because a
/// failed machine must not wait ten minutes before it offers its console.
fn report_retries(outcome: &InstallOutcome) -> RetryPolicy {
    let must_be_heard = match outcome {
        InstallOutcome::Succeeded { .. } => true,
        InstallOutcome::FailedUntouched(failed) | InstallOutcome::FailedBegun(failed) => failed.announced,
    };
    if must_be_heard { PATIENT } else { BRIEF }
}

#[cfg(test)]
mod tests;
