//! metal-stack's API v2: `metalstack.infra.v2.BootService`, over Connect with JSON.

mod allocation;
mod connect;
mod keep;
pub(super) mod layout;
mod spelling;
#[cfg(test)]
mod tests;

use super::config::{self, Config};
use super::record::FirmwareRecord;
use super::register::Registration;
use super::{Acknowledged, Api, AttemptNotice, MADE_BEFORE};
use crate::allocation::Machine;
use crate::control::retry::{Attempt, ONCE, PATIENT, Retries};
use crate::error::{Context, Error, Phase, Result};
use crate::facts::{Ended, EventName, Outcome};
use crate::http;
use connect::{Connect, Failure, First};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const SERVICE: &str = "metalstack.infra.v2.BootService";

/// Timeout of a request.
const ANSWER: Duration = Duration::from_secs(30);
/// Timeout of an event, which is sent only once.
const EVENT: Duration = Duration::from_secs(5);

/// Timeouts and retries. Tests use shorter ones.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    pub retries: Retries,
    /// Maximum duration of a stream. The agent closes it before the server's deadline of one minute, since a message that arrives at the
    /// deadline would be lost.
    pub stream: Duration,
    /// Pause after a stream that the server closed or that failed.
    pub pause: Duration,
    /// Silence that proves that there is no allocation: an existing one is sent immediately.
    pub silence: Duration,
    /// The same if a mistake would erase data. Proxies may cut a stream after ten seconds.
    pub long_silence: Duration,
    /// Timeout of the confirmation that an allocation still exists.
    pub confirm: Duration,
}

const PACE: Pace = Pace {
    retries: PATIENT,
    stream: Duration::from_secs(50),
    pause: Duration::from_secs(3),
    silence: Duration::from_secs(3),
    long_silence: Duration::from_secs(8),
    confirm: Duration::from_secs(120),
};

/// Client of API v2.
pub struct V2 {
    pixie: String,
    machine: String,
    /// Connection, recreated with a new configuration from pixie if credentials are rejected.
    connect: Mutex<Arc<Connect>>,
    /// Allocation as last received.
    allocation: Mutex<Option<Value>>,
    /// Whether the server is too old to support events.
    takes_no_events: AtomicBool,
    /// Record whether an allocation is installed, which the server does not provide.
    record: FirmwareRecord,
    pace: Pace,
}

impl V2 {
    /// Creates a client with the default timeouts.
    ///
    /// # Errors
    /// Fails if the certificates or the key of the configuration are malformed.
    pub fn new(pixie: &str, machine: &str, config: &Config, record: FirmwareRecord) -> Result<V2> {
        V2::with(pixie, machine, config, record, PACE)
    }

    pub(super) fn with(pixie: &str, machine: &str, config: &Config, record: FirmwareRecord, pace: Pace) -> Result<V2> {
        Ok(V2 {
            pixie: pixie.to_owned(),
            machine: machine.to_owned(),
            connect: Mutex::new(Arc::new(connected(config)?)),
            allocation: Mutex::default(),
            takes_no_events: AtomicBool::default(),
            record,
            pace,
        })
    }

    fn connect(&self) -> Arc<Connect> {
        self.connect.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn allocation(&self) -> MutexGuard<'_, Option<Value>> {
        self.allocation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request with retries. If the token or a certificate is rejected, fetches a new configuration.
    fn ask(&self, retries: Retries, method: &str, question: &Value, patience: Duration) -> Result<Value> {
        retries.run(|| match self.connect().ask(method, question, patience) {
            Ok(answer) => Attempt::Done(answer),
            Err(failure @ (Failure::Certificate(_) | Failure::Token(_))) => {
                self.renew();
                Attempt::Again(failure.error())
            }
            Err(Failure::Passing(error)) => Attempt::Again(error),
            Err(Failure::Unknown(error) | Failure::Lasting(error)) => Attempt::Never(error),
        })
    }

    /// Fetches a new configuration from pixie. A failure is only logged, since the next attempt may succeed.
    fn renew(&self) {
        let renewed = config::fetch(&self.pixie, &self.machine, ONCE).and_then(|config| connected(&config));
        match renewed {
            Ok(connect) => *self.connect.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(connect),
            Err(error) => tracing::warn!("{error}"),
        }
    }

    fn this(&self) -> Value {
        json!({ "uuid": self.machine })
    }

    /// Opens a stream and returns the allocation. Returns `None` if the stream was silent for `patience`, and an error if it ended earlier.
    fn look(&self, patience: Duration) -> Result<Option<Value>, Error> {
        let began = Instant::now();
        match self.connect().first("Wait", &self.this(), patience) {
            Ok(First::Message(message)) => match message.get("allocation") {
                Some(allocation) if !allocation.is_null() => Ok(Some(allocation.clone())),
                _ => Err(Error::new(Phase::Control, "Wait: message without an allocation")),
            },
            Ok(First::Silence) => Ok(None),
            Ok(First::End) => {
                let seconds = began.elapsed().as_secs_f64();
                Err(Error::new(Phase::Control, format!("Wait: the server closed the stream after {seconds:.0} s")))
            }
            Err(failure) => {
                if matches!(failure, Failure::Certificate(_) | Failure::Token(_)) {
                    self.renew();
                }
                Err(failure.error())
            }
        }
    }

    /// Returns whether a stream is silent for `patience`. This proves that there is no allocation only if the server responds before and
    /// after.
    fn is_silent(&self, patience: Duration) -> Result<bool> {
        self.pace.retries.run(|| match self.look(patience) {
            Ok(Some(allocation)) => {
                *self.allocation() = Some(allocation);
                Attempt::Done(false)
            }
            Ok(None) => Attempt::Done(true),
            Err(error) => Attempt::Again(error),
        })
    }
}

/// Connects with the certificates of the configuration, or else those of the system.
fn connected(config: &Config) -> Result<Connect> {
    let config::Api::V2(api) = &config.api else {
        return Err(Error::new(Phase::Control, "pixie's configuration is now for another version of the API"));
    };
    let mut builder = http::builder(None).redirect(reqwest::redirect::Policy::none());
    if let Some(ca_cert) = &api.ca_cert {
        let what = || "ca_cert of pixie's configuration";
        let roots = reqwest::Certificate::from_pem_bundle(ca_cert.as_bytes()).context(Phase::Control, what)?;
        if roots.is_empty() {
            return Err(Error::new(Phase::Control, "ca_cert of pixie's configuration contains no certificate"));
        }
        builder = builder.tls_certs_only(roots);
    }
    if let Some(identity) = &api.identity {
        let what = || "cert and key of pixie's configuration";
        let identity = reqwest::Identity::from_pem(identity.as_bytes()).context(Phase::Control, what)?;
        builder = builder.identity(identity);
    }
    let client = builder.build().context(Phase::Control, || "set up TLS with pixie's configuration")?;
    Ok(Connect::new(client, format!("{}/{SERVICE}", api.url), api.token.clone()))
}

impl Api for V2 {
    fn register(&self, registration: &Registration) -> Result<()> {
        self.ask(self.pace.retries, "Register", &spelling::register(registration), ANSWER).map(drop)
    }

    /// Returns whether the machine is allocated. The API has no such call, and [`Api::wait`] stays silent without an allocation. So the
    /// absence is proven by a stream that stays open and silent, and a server that then responds to another request; three times if data is
    /// at stake.
    fn allocated(&self, at_stake: bool) -> Result<bool> {
        let (times, silence) = if at_stake { (3, self.pace.long_silence) } else { (1, self.pace.silence) };
        for _ in 0..times {
            if !self.is_silent(silence)? {
                return Ok(true);
            }
            self.ask(self.pace.retries, "SuperUserPassword", &self.this(), ANSWER)?;
        }
        Ok(false)
    }

    /// Retries after a stream that ended or a server that is temporarily unreachable. Both are normal.
    fn wait(&self, patience: Duration) -> Result<bool> {
        match self.look(patience.min(self.pace.stream)) {
            Ok(Some(allocation)) => {
                *self.allocation() = Some(allocation);
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(error) => {
                let pause = http::jittered(self.pace.pause * 2);
                tracing::info!("{error}; waiting again in {:.1} s", pause.as_secs_f64());
                thread::sleep(pause);
                Ok(false)
            }
        }
    }

    /// Returns an empty list: no call available to a machine returns the registered hardware.
    fn registered_disks(&self) -> Vec<u64> {
        Vec::new()
    }

    fn machine(&self) -> Result<Machine> {
        let mut allocation = self.allocation().as_ref().map(allocation::read).transpose()?;
        if let Some(allocation) = &mut allocation {
            allocation.succeeded = self.record.is_reported(&allocation.id)?;
        }
        Ok(Machine { id: self.machine.clone(), allocation, ..Machine::default() })
    }

    fn event(&self, name: EventName, message: &str) -> Result<()> {
        if self.takes_no_events.load(Ordering::Relaxed) {
            return Ok(());
        }
        let event = json!({"event": spelling::event(name), "message": message});
        let question = json!({"uuid": self.machine, "event": event});
        match self.connect().ask("SendEvent", &question, EVENT) {
            Ok(_) => Ok(()),
            Err(Failure::Unknown(error)) => {
                tracing::info!("{error}; no events will be sent");
                self.takes_no_events.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(failure) => Err(failure.error()),
        }
    }

    /// An allocation that still exists is sent immediately.
    fn begin(&self, notice: &AttemptNotice) -> Result<()> {
        let end = Instant::now() + self.pace.confirm;
        let why = loop {
            let why = match self.look(self.pace.long_silence) {
                Ok(Some(now)) if now.get("uuid").and_then(Value::as_str) == Some(notice.allocation) => {
                    return Ok(());
                }
                Ok(Some(_)) => break "the machine has another allocation".to_owned(),
                Ok(None) => "no confirmation was received".to_owned(),
                Err(error) => error.to_string(),
            };
            if Instant::now() >= end {
                break why;
            }
            thread::sleep(http::jittered(self.pace.pause));
        };
        let message =
            format!("allocation {} is not confirmed to be in force: {why}. Nothing was written", notice.allocation);
        Err(Error::refusal(Phase::Control, message))
    }

    /// Reports only once: a second report would overwrite the console password, which cannot be restored.
    fn report(&self, ended: &Ended, console_password: Option<&str>) -> Result<Acknowledged> {
        let is_news = console_password.is_some() || !self.record.is_reported(&ended.allocation)?;
        if matches!(ended.outcome, Outcome::Succeeded { .. }) && is_news {
            let question = json!({"uuid": self.machine, "consolePassword": console_password.unwrap_or(MADE_BEFORE)});
            self.ask(self.pace.retries, "InstallationSucceeded", &question, ANSWER)?;
            if let Err(error) = self.record.write_reported(&ended.allocation) {
                tracing::warn!("{error}; after an accidental PXE boot the installation will be reported again");
            }
        }
        Ok(Acknowledged::default())
    }
}
