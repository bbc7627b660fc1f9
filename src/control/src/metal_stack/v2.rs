//! metal-stack's API v2: `metalstack.infra.v2.BootService`, over Connect with JSON.

mod allocation;
mod bmc_record_query;
mod connect_rpc;
mod json_encoding;
mod keep_label;
pub mod omitted_layout_values;
#[cfg(test)]
mod tests;

use super::bmc_record::KnownBmc;
use super::efi_variable_record::FirmwareRecord;
use super::pixie_config::{self, PixieConfig};
use super::registration::MachineRegistration;
use super::{
    AttemptNotice, CHANGED_ALLOCATION_TEXT, MetalApi, ReportAcknowledgement, UNKNOWN_PASSWORD_TEXT,
    is_same_installation,
};
use crate::retry::{AttemptResult, NO_RETRIES, RetryPolicy, TEN_MINUTE_RETRIES};
use common::error::{Context, Error, Phase, Result};
use common::sync::lock_mutex;
use connect_rpc::{ConnectClient, ConnectFailure, FirstEvent};
use linux::http;
use model::allocation::AssignedMachine;
use model::install_report::{EventName, InstallOutcome, InstallResult};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const SERVICE: &str = "metalstack.infra.v2.BootService";

/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of an event, which is sent only once.
const EVENT: Duration = Duration::from_secs(5);

/// Timeouts and retry policy. Tests use shorter timeouts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct V2Timeouts {
    pub retries: RetryPolicy,
    /// Maximum duration of a stream. The agent closes the stream before the server's time limit of one minute, because
    /// a message that the server sends at the time limit would be lost.
    pub stream: Duration,
    /// Pause after a stream that has failed, or that the server has closed.
    pub pause: Duration,
    /// Time without a message on an open stream after which the machine counts as unallocated. The server would have
    /// sent an existing allocation immediately.
    pub silence: Duration,
    /// Replaces `silence` for a machine that would lose data if it was wrongly treated as unallocated. The value must
    /// be less than ten seconds, because proxies may close a stream after ten seconds without a message.
    pub long_silence: Duration,
    /// Time within which the server must confirm that an allocation still exists.
    pub confirm: Duration,
}

const PACE: V2Timeouts = V2Timeouts {
    retries: TEN_MINUTE_RETRIES,
    stream: Duration::from_secs(50),
    pause: Duration::from_secs(3),
    silence: Duration::from_secs(3),
    long_silence: Duration::from_secs(8),
    confirm: Duration::from_secs(120),
};

/// Client of metal-stack's API v2 for one machine.
pub(crate) struct MetalApiV2 {
    pixie: String,
    machine: String,
    /// Client for the API. If the server rejects the credentials, a new client is created with a new configuration from
    /// pixie.
    connect: Mutex<Arc<ConnectClient>>,
    /// Allocation as it was last received.
    allocation: Mutex<Option<Value>>,
    /// True if the server is too old to accept events.
    takes_no_events: AtomicBool,
    /// Record of the allocation whose installation was reported. The machine stores it, because the responses of the
    /// server do not show whether an allocation is installed.
    record: FirmwareRecord,
    pace: V2Timeouts,
}

impl MetalApiV2 {
    /// Creates a client with the default timeouts.
    ///
    /// # Errors
    /// Fails if the certificates or the key of the configuration are malformed.
    pub fn new(pixie: &str, machine: &str, config: &PixieConfig, record: FirmwareRecord) -> Result<MetalApiV2> {
        MetalApiV2::with_timeouts(pixie, machine, config, record, PACE)
    }

    pub(super) fn with_timeouts(
        pixie: &str,
        machine: &str,
        config: &PixieConfig,
        record: FirmwareRecord,
        pace: V2Timeouts,
    ) -> Result<MetalApiV2> {
        Ok(MetalApiV2 {
            pixie: pixie.to_owned(),
            machine: machine.to_owned(),
            connect: Mutex::new(Arc::new(connect_client(config)?)),
            allocation: Mutex::default(),
            takes_no_events: AtomicBool::default(),
            record,
            pace,
        })
    }

    fn current_client(&self) -> Arc<ConnectClient> {
        lock_mutex(&self.connect).clone()
    }

    /// Sends a request, with retries. If the token or a certificate is rejected, fetches a new configuration.
    fn call_with_retries(
        &self,
        retries: RetryPolicy,
        method: &str,
        question: &Value,
        patience: Duration,
    ) -> Result<Value> {
        retries.run_attempts(|| match self.current_client().call_unary(method, question, patience) {
            Ok(answer) => AttemptResult::Done(answer),
            Err(failure @ (ConnectFailure::Certificate(_) | ConnectFailure::Token(_))) => {
                self.renew_client();
                AttemptResult::Transient(failure.into_error())
            }
            Err(ConnectFailure::Transient(error)) => AttemptResult::Transient(error),
            Err(failure) => AttemptResult::Permanent(failure.into_error()),
        })
    }

    /// Fetches a new configuration from pixie. A failure is only logged, because the next attempt may succeed.
    fn renew_client(&self) {
        let renewed = pixie_config::fetch_config(&self.pixie, &self.machine, NO_RETRIES)
            .and_then(|config| connect_client(&config));
        match renewed {
            Ok(connect) => *lock_mutex(&self.connect) = Arc::new(connect),
            Err(error) => tracing::warn!("{error}"),
        }
    }

    fn machine_id_message(&self) -> Value {
        json!({ "uuid": self.machine })
    }

    /// Opens a stream, and returns the allocation that the server sends. Returns `None` if the stream stays open for
    /// `patience` without a message. Fails if the stream ends earlier.
    fn wait_on_stream(&self, patience: Duration) -> Result<Option<Value>, Error> {
        let began = Instant::now();
        match self.current_client().read_first_message("Wait", &self.machine_id_message(), patience) {
            Ok(FirstEvent::Message(message)) => match message.get("allocation") {
                Some(allocation) if !allocation.is_null() => Ok(Some(allocation.clone())),
                _ => Err(Error::new(Phase::Control, "`Wait`: the server sent a message without an allocation")),
            },
            Ok(FirstEvent::Silence) => Ok(None),
            Ok(FirstEvent::End) => {
                let seconds = began.elapsed().as_secs_f64();
                Err(Error::new(Phase::Control, format!("`Wait`: the server closed the stream after {seconds:.0} s")))
            }
            Err(failure) => {
                if matches!(failure, ConnectFailure::Certificate(_) | ConnectFailure::Token(_)) {
                    self.renew_client();
                }
                Err(failure.into_error())
            }
        }
    }

    /// Fails if the server now sends another image or another layout than the allocation that this boot has received.
    fn require_same_installation(&self, now: &Value) -> Result<()> {
        let received = lock_mutex(&self.allocation).as_ref().map(allocation::parse_allocation).transpose()?;
        let Some(received) = received else { return Ok(()) };
        match is_same_installation(&received, &allocation::parse_allocation(now)?) {
            true => Ok(()),
            false => Err(Error::refusal(Phase::Control, CHANGED_ALLOCATION_TEXT)),
        }
    }

    /// Returns whether a stream stays open and silent for `patience`. The silence does not prove that there is no
    /// allocation, because the server may have failed meanwhile.
    fn is_silent(&self, patience: Duration) -> Result<bool> {
        self.pace.retries.run_attempts(|| match self.wait_on_stream(patience) {
            Ok(Some(allocation)) => {
                *lock_mutex(&self.allocation) = Some(allocation);
                AttemptResult::Done(false)
            }
            Ok(None) => AttemptResult::Done(true),
            Err(error) => AttemptResult::Transient(error),
        })
    }
}

/// Creates a client that trusts the CA certificates in the configuration. If it contains none, the client trusts the CA
/// certificates of the system.
fn connect_client(config: &PixieConfig) -> Result<ConnectClient> {
    let pixie_config::ApiCredentials::V2(api) = &config.api else {
        return Err(Error::new(
            Phase::Control,
            "pixie's configuration is now for another version of metal-stack's API; reboot the machine to use the new configuration",
        ));
    };
    let mut builder = http::client_builder(None).redirect(reqwest::redirect::Policy::none());
    if let Some(ca_cert) = &api.ca_cert {
        let what = || "`ca_cert` of pixie's configuration";
        let roots = reqwest::Certificate::from_pem_bundle(ca_cert.as_bytes()).context(Phase::Control, what)?;
        if roots.is_empty() {
            return Err(Error::new(Phase::Control, "`ca_cert` of pixie's configuration contains no certificate"));
        }
        builder = builder.tls_certs_only(roots);
    }
    if let Some(identity) = &api.identity {
        let what = || "`cert` and `key` of pixie's configuration";
        let identity = reqwest::Identity::from_pem(identity.as_bytes()).context(Phase::Control, what)?;
        builder = builder.identity(identity);
    }
    let client = builder.build().context(Phase::Control, || "set up TLS with pixie's configuration")?;
    Ok(ConnectClient::new(client, &api.url, SERVICE, api.token.clone()))
}

impl MetalApi for MetalApiV2 {
    fn known_bmc(&self) -> Result<KnownBmc> {
        self.read_known_bmc()
    }

    fn register_machine(&self, registration: &MachineRegistration) -> Result<()> {
        self.call_with_retries(
            self.pace.retries,
            "Register",
            &json_encoding::encode_registration(registration),
            REQUEST_TIMEOUT,
        )
        .map(drop)
    }

    /// Returns whether the machine is allocated. The API has no call for this, but the stream of an unallocated machine
    /// is silent. Therefore the machine counts as unallocated if a stream stays open and silent, and the server then
    /// responds to another request. If data would be lost by a wrong answer, the stream must be silent three times.
    fn is_allocated(&self, at_stake: bool) -> Result<bool> {
        let (times, silence) = if at_stake { (3, self.pace.long_silence) } else { (1, self.pace.silence) };
        for _ in 0..times {
            if !self.is_silent(silence)? {
                return Ok(true);
            }
            self.call_with_retries(
                self.pace.retries,
                "SuperUserPassword",
                &self.machine_id_message(),
                REQUEST_TIMEOUT,
            )?;
        }
        Ok(false)
    }

    /// Waits on a stream for an allocation. If the stream ends, or the server is temporarily unreachable, returns false
    /// after a pause. Such failures are normal; the caller waits again.
    fn wait_for_allocation(&self, patience: Duration) -> Result<bool> {
        match self.wait_on_stream(patience.min(self.pace.stream)) {
            Ok(Some(allocation)) => {
                *lock_mutex(&self.allocation) = Some(allocation);
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(error) => {
                let pause = http::add_jitter(self.pace.pause * 2);
                tracing::info!(
                    "{error}; the `Wait` request is sent again in {seconds:.1} s",
                    seconds = pause.as_secs_f64()
                );
                thread::sleep(pause);
                Ok(false)
            }
        }
    }

    /// Returns an empty list, because a machine cannot read its registered hardware over this API.
    fn registered_disks(&self) -> Vec<u64> {
        Vec::new()
    }

    fn fetch_machine(&self) -> Result<AssignedMachine> {
        let mut allocation = lock_mutex(&self.allocation).as_ref().map(allocation::parse_allocation).transpose()?;
        if let Some(allocation) = &mut allocation {
            allocation.succeeded = self.record.is_reported(&allocation.id)?;
        }
        Ok(AssignedMachine { id: self.machine.clone(), allocation, ..AssignedMachine::default() })
    }

    fn send_event(&self, name: EventName, message: &str) -> Result<()> {
        if self.takes_no_events.load(Ordering::Relaxed) {
            return Ok(());
        }
        let event = json!({"event": json_encoding::encode_event_type(name), "message": message});
        let question = json!({"uuid": self.machine, "event": event});
        match self.current_client().call_unary("SendEvent", &question, EVENT) {
            Ok(_) => Ok(()),
            Err(ConnectFailure::Unknown(error)) => {
                tracing::info!("{error}; no events will be sent");
                self.takes_no_events.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(failure) => Err(failure.into_error()),
        }
    }

    /// Checks that the allocation is still in force, with the image and the layout that were received. The server sends
    /// an allocation that is in force immediately on a new stream.
    fn confirm_begin(&self, notice: &AttemptNotice) -> Result<()> {
        let end = Instant::now() + self.pace.confirm;
        let why = loop {
            let why = match self.wait_on_stream(self.pace.long_silence) {
                Ok(Some(now)) if now.get("uuid").and_then(Value::as_str) == Some(notice.allocation) => {
                    return self.require_same_installation(&now);
                }
                Ok(Some(_)) => break "the machine has another allocation".to_owned(),
                Ok(None) => "no confirmation was received".to_owned(),
                Err(error) => error.to_string(),
            };
            if Instant::now() >= end {
                break why;
            }
            thread::sleep(http::add_jitter(self.pace.pause));
        };
        let message = format!(
            "metal-stack did not confirm that allocation {allocation} is still valid: {why}. Nothing was written",
            allocation = notice.allocation
        );
        Err(Error::refusal(Phase::Control, message))
    }

    /// Reports the success of an installation once. A later boot does not know the console password, and a second
    /// report would overwrite the password at the server.
    fn report_result(&self, ended: &InstallResult, console_password: Option<&str>) -> Result<ReportAcknowledgement> {
        let is_news = console_password.is_some() || !self.record.is_reported(&ended.allocation)?;
        if matches!(ended.outcome, InstallOutcome::Succeeded { .. }) && is_news {
            let question =
                json!({"uuid": self.machine, "consolePassword": console_password.unwrap_or(UNKNOWN_PASSWORD_TEXT)});
            self.call_with_retries(self.pace.retries, "InstallationSucceeded", &question, REQUEST_TIMEOUT)?;
            if let Err(error) = self.record.write_reported(&ended.allocation) {
                tracing::warn!("{error}; if the machine boots over PXE by accident, it reports the installation again");
            }
        }
        Ok(ReportAcknowledgement::default())
    }
}
