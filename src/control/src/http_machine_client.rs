//! Asynchronous client of a control plane over HTTP: `drophammer serve`, or another server with the same API. The agent
//! uses its blocking interface, [`super::HttpControlPlane`]. One thread can run the clients of many machines.

mod acknowledged_requests;
mod privileged_port_requests;

use super::agent_api_types::{ErrorBody, InstallReport, LogPart, PointOfNoReturn, REQUEST_ID, RegisterRequest};
use super::retry::{NO_RETRIES, ONE_MINUTE_RETRIES, RetryPolicy, RetrySchedule, TEN_MINUTE_RETRIES};
use super::{AttemptNotice, ReportAcknowledgement};
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
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use serde_json::Value;
use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Timeout of a request. For a long poll, the maximum duration of the poll is added.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout of an event, which is sent only once.
const EVENT: Duration = Duration::from_secs(5);
/// Minimum interval between two registrations that follow rejected events. If the server rejects an event, the machine
/// registers again, but not after every event: events are frequent, and each registration sends the large inventory.
const REGISTRATION_INTERVAL: Duration = Duration::from_secs(30);

/// Status codes with which a server responds if it does not support log uploads.
const UNSUPPORTED_LOG_STATUSES: [StatusCode; 3] =
    [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED, StatusCode::NOT_IMPLEMENTED];

/// Client of an HTTP control plane, on behalf of one machine.
pub struct HttpMachineClient {
    client: Client,
    /// Address from which the client connects; `None` if the kernel selects the address.
    source: Option<IpAddr>,
    url: String,
    token: String,
    machine: String,
    /// Prefix of the request ids of this boot.
    pub(crate) boot: String,
    /// Number of requests sent in this boot.
    requests: AtomicU64,
    /// Last registration. It is sent again if the server rejects the token, for example after the address of the
    /// machine has changed.
    registered: Mutex<Option<RegisterRequest>>,
    /// Secret fields of the allocation, which the server sends only in response to a separate request.
    separate: Mutex<SeparateSecretFields>,
    /// Time of the last registration after a rejected event.
    pub(crate) by_event: Mutex<Option<Instant>>,
}

impl HttpMachineClient {
    /// Creates the client. If `source` is set, the client connects from this address.
    ///
    /// # Errors
    /// Fails if TLS cannot be set up.
    pub fn new(url: &str, token: &str, machine: &str, source: Option<IpAddr>) -> Result<HttpMachineClient> {
        let boot = format!("{:08x}", fastrand::u32(..));
        tracing::info!("control plane: {url}; its log contains the ids of this boot's requests: {boot}-1, {boot}-2, …");
        Ok(HttpMachineClient {
            client: http::new_async_client(source)?,
            source,
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

    /// Adds a new id to a request. Returns the description `what`, extended by the id, and the request.
    fn add_request_id(&self, what: &str, request: RequestBuilder) -> (String, RequestBuilder) {
        let (what, id) = self.next_request_id(what);
        (what, request.header(REQUEST_ID, id))
    }

    /// Creates the id of the next request. Returns the description `what`, extended by the id, and the id.
    fn next_request_id(&self, what: &str) -> (String, String) {
        let id = format!("{}-{}", self.boot, self.requests.fetch_add(1, Ordering::Relaxed) + 1);
        (format!("{what} (request {id})"), id)
    }

    fn machine_path(&self, call: &str) -> String {
        format!("/v1/machine/{}{call}", self.machine)
    }

    /// Calls [`Self::request_with_retries`]. If the server rejects the token, registers again and repeats the call: a
    /// token is bound to the address from which the machine has registered, and a new DHCP lease may have changed
    /// this address. The timeout also applies to the registration.
    async fn request_reregistering(
        &self,
        retries: RetryPolicy,
        what: &str,
        patience: Duration,
        request: impl Fn() -> RequestBuilder,
    ) -> Result<Response> {
        let refused = match self.request_with_retries(retries, what, patience, &request).await {
            Err(error) if error.is_refusal() => error,
            done => return done,
        };
        self.register_again(refused, retries, patience.min(REQUEST_TIMEOUT)).await?;
        self.request_with_retries(retries, what, patience, request).await
    }

    /// Registers again after the server has rejected the token. Returns `refused`, the error of the rejected request,
    /// if the machine has never registered.
    async fn register_again(&self, refused: Error, retries: RetryPolicy, patience: Duration) -> Result<()> {
        let registered = lock_mutex(&self.registered).clone();
        let Some(register) = registered else { return Err(refused) };
        tracing::warn!("{refused}; registering again");
        self.register_privileged(&register, retries, patience).await
    }

    /// Returns whether a registration is permitted after a rejected event. If so, stores the current time in
    /// `by_event`.
    fn may_register_by_event(&self) -> bool {
        let mut last = lock_mutex(&self.by_event);
        let may = last.is_none_or(|last| last.elapsed() >= REGISTRATION_INTERVAL);
        if may {
            *last = Some(Instant::now());
        }
        may
    }

    /// Sends a request, and repeats it after transient failures within the limits of `retries`. If the server rejects
    /// the token, the returned error is a refusal ([`Error::refusal`]).
    async fn request_with_retries(
        &self,
        retries: RetryPolicy,
        what: &str,
        patience: Duration,
        request: impl Fn() -> RequestBuilder,
    ) -> Result<Response> {
        let mut schedule = RetrySchedule::start(retries);
        loop {
            let (what, request) = self.add_request_id(what, request());
            let (error, pause) = match request.timeout(patience).send().await {
                Ok(response) if response.status().is_success() => return Ok(response),
                Ok(response) => {
                    let pause = http::requested_pause(response.headers()).unwrap_or_default();
                    let may_succeed = http::is_retryable(response.status());
                    let error = self.response_error(&what, response).await;
                    if !may_succeed {
                        return Err(error);
                    }
                    (error, pause)
                }
                Err(error) if http::is_untrusted_certificate(&error) => {
                    return Err(self.unreachable_error(&what, error.without_url()));
                }
                Err(error) => (self.unreachable_error(&what, error.without_url()), Duration::ZERO),
            };
            tokio::time::sleep(schedule.next_pause(error, pause)?).await;
        }
    }

    async fn response_error(&self, what: &str, response: Response) -> Error {
        let status = response.status();
        self.status_error(what, status, &http::read_async_error_response(response).await)
    }

    fn status_error(&self, what: &str, status: StatusCode, body: &str) -> Error {
        let parsed = serde_json::from_slice::<ErrorBody>(body.as_bytes()).ok();
        let code = parsed.as_ref().and_then(|body| body.error_code.clone()).filter(|code| error_code::is_code(code));
        let said = parsed.map_or_else(|| body.to_owned(), |body| body.message);
        let said = untrusted_text_limits::sanitize_message(&said);
        let said = if said.trim().is_empty() { String::new() } else { format!(": {}", said.trim()) };
        let text = format!("{what}: control plane {url} answered {status}{said}", url = self.url);
        let known = code.as_deref().and_then(ErrorCode::parse);
        // A newer server may send a code that this version does not know. Such a code is printed unchanged.
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
        Error::with_source(
            Phase::Control,
            format!("{what}: no answer from control plane {url}{clock}", url = self.url),
            error,
        )
        .with_code(ErrorCode::NoAnswer)
    }

    fn parse_error(&self, what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
        Error::with_source(
            Phase::Control,
            format!("{what}: cannot parse the response of control plane {url}", url = self.url),
            error,
        )
    }
}

impl HttpMachineClient {
    /// Registers the machine.
    ///
    /// # Errors
    /// Fails if the control plane cannot be reached within a bounded number of retries, or rejects the registration.
    pub async fn register_machine(&self, inventory: &Inventory) -> Result<()> {
        let register = RegisterRequest::new(self.machine.clone(), inventory.clone());
        self.register_privileged(&register, TEN_MINUTE_RETRIES, REQUEST_TIMEOUT).await?;
        *lock_mutex(&self.registered) = Some(register);
        Ok(())
    }

    /// Waits at most `patience` for an allocation. Returns whether the machine has an allocation.
    ///
    /// # Errors
    /// The same errors as for [`Self::register_machine`].
    pub async fn wait_for_allocation(&self, patience: Duration) -> Result<bool> {
        let path = format!("{}?seconds={}", self.machine_path("/wait"), patience.as_secs());
        let response = self.request_reregistering(
            TEN_MINUTE_RETRIES,
            "wait for an allocation",
            patience + REQUEST_TIMEOUT,
            || self.build_request(Method::GET, &path),
        );
        let response = response.await?;
        Ok(response.status() != StatusCode::NO_CONTENT)
    }

    /// Returns the machine with its allocation.
    ///
    /// # Errors
    /// The same errors as for [`Self::register_machine`].
    pub async fn fetch_machine(&self) -> Result<AssignedMachine> {
        let what = "fetch the allocation";
        let response = self
            .request_reregistering(TEN_MINUTE_RETRIES, what, REQUEST_TIMEOUT, || {
                self.build_request(Method::GET, &self.machine_path(""))
            })
            .await?;
        let text = http::read_async_response(response).await.map_err(|error| self.parse_error(what, error))?;
        let machine = serde_json::from_slice(&text).map_err(|error| self.parse_error(what, error))?;
        let machine = super::require_same_machine(machine, &self.machine)?;
        let separate = machine.allocation.as_ref().map(|allocation| SeparateSecretFields {
            allocation: allocation.id.clone(),
            fields: allocation.separate_secrets.clone(),
        });
        *lock_mutex(&self.separate) = separate.unwrap_or_default();
        Ok(machine)
    }

    /// Fetches the secrets for this purpose. Returns `None` if the control plane does not send secrets separately.
    ///
    /// # Errors
    /// The same errors as for [`Self::register_machine`].
    pub async fn fetch_secrets(&self, purpose: SecretPurpose) -> Result<Option<ReleasedSecrets>> {
        self.request_secrets(purpose, REQUEST_TIMEOUT).await
    }

    /// Sends an event once, with a short timeout.
    ///
    /// # Errors
    /// Fails if the event was not delivered.
    pub async fn send_event(&self, event: &ProgressEvent) -> Result<()> {
        let path = self.machine_path("/event");
        let send = || {
            self.request_with_retries(NO_RETRIES, "event", EVENT, || {
                self.build_request(Method::POST, &path).json(event)
            })
        };
        match send().await {
            // Registers again, as `request_reregistering` does, but with short timeouts. The server then accepts the
            // events of this machine again.
            Err(refused) if refused.is_refusal() && self.may_register_by_event() => {
                self.register_again(refused, NO_RETRIES, EVENT).await?;
                send().await.map(drop)
            }
            sent => sent.map(drop),
        }
    }

    /// Sends a part of the console log once, with a short timeout. Returns false if the control plane does not store
    /// logs.
    ///
    /// # Errors
    /// Fails if the part was not delivered.
    pub async fn upload_log(&self, start: u64, text: &str) -> Result<bool> {
        let part = LogPart { start, log: text.to_owned() };
        let (what, request) =
            self.add_request_id("log", self.build_request(Method::POST, &self.machine_path("/log")).json(&part));
        match request.timeout(EVENT).send().await {
            Ok(response) if response.status().is_success() => Ok(true),
            // The server does not support log uploads: it is an earlier version, or another implementation of the API.
            Ok(response) if UNSUPPORTED_LOG_STATUSES.contains(&response.status()) => Ok(false),
            Ok(response) => Err(self.response_error(&what, response).await),
            Err(error) => Err(self.unreachable_error(&what, error.without_url())),
        }
    }

    /// Announces an attempt that is about to destroy data.
    ///
    /// # Errors
    /// The same errors as for [`Self::register_machine`]; also if the attempt must not continue.
    pub async fn announce_point_of_no_return(&self, notice: &AttemptNotice<'_>) -> Result<()> {
        let notice = PointOfNoReturn {
            allocationuuid: notice.allocation.to_owned(),
            order: notice.order.map(str::to_owned),
            disks: notice.disks.to_vec(),
            extents: notice.extents.to_vec(),
            approved: notice.approved.map(str::to_owned),
            secret_digest: notice.secret_digest.map(str::to_owned),
        };
        let path = self.machine_path("/point-of-no-return");
        let request = || self.build_request(Method::POST, &path).json(&notice);
        self.request_acknowledged(TEN_MINUTE_RETRIES, "announce the point of no return", request).await.map(drop)
    }

    /// Reports the state of the machine in a migration.
    ///
    /// # Errors
    /// The same errors as for [`Self::register_machine`]; also if the migration order is no longer in force.
    pub async fn report_migration_state(&self, migration_report: &MigrationReport) -> Result<()> {
        let path = self.machine_path("/moving");
        let request = || self.build_request(Method::POST, &path).json(migration_report);
        self.request_reregistering(TEN_MINUTE_RETRIES, "take part in the migration", REQUEST_TIMEOUT, request)
            .await
            .map(drop)
    }

    /// Reports the result of an installation, and waits until the report is acknowledged.
    ///
    /// # Errors
    /// Fails if the report was not acknowledged within a bounded number of retries.
    pub async fn report_result(&self, ended: &InstallResult) -> Result<ReportAcknowledgement> {
        let report = InstallReport::from(ended);
        let request = || self.build_request(Method::POST, &self.machine_path("/report")).json(&report);
        let answer = self.request_acknowledged(report_retries(&ended.outcome), "report", request).await?;
        // Other implementations of the API may send an object with other fields.
        Ok(serde_json::from_value(Value::Object(answer)).unwrap_or_default())
    }
}

/// Returns the retry policy for the report. Reports of success, and of attempts that were announced to the server, are
/// retried for a long time: without a report, the server would assume that an announced attempt has passed the point of
/// no return. Reports of other failures are retried only briefly, because a failed machine should offer its console
/// soon.
pub(crate) fn report_retries(outcome: &InstallOutcome) -> RetryPolicy {
    let must_be_heard = match outcome {
        InstallOutcome::Succeeded { .. } => true,
        InstallOutcome::FailedUntouched(failed) | InstallOutcome::FailedBegun(failed) => failed.announced,
    };
    if must_be_heard { TEN_MINUTE_RETRIES } else { ONE_MINUTE_RETRIES }
}
