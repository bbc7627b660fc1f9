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

/// For one answer.
const ANSWER: Duration = Duration::from_secs(30);
/// For an event, which is sent once.
const EVENT: Duration = Duration::from_secs(5);

/// How long it all takes. Tests take less.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    pub retries: Retries,
    /// A stream is ended by the agent before the server's deadline of a minute cuts it: what would arrive in that moment would be lost.
    pub stream: Duration,
    /// After a stream that ended by itself or with an error.
    pub pause: Duration,
    /// An allocation comes at once, where there is one. A stream that is silent for so long has none.
    pub silence: Duration,
    /// The same where a mistake would erase something. What stands between may cut a stream after ten seconds.
    pub long_silence: Duration,
    /// From begin to end of asking whether an allocation is still there.
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

pub struct V2 {
    pixie: String,
    machine: String,
    /// Made anew with what pixie tells then, when it is refused.
    connect: Mutex<Arc<Connect>>,
    /// The last one that came.
    allocation: Mutex<Option<Value>>,
    /// The server is older than the call for events.
    takes_no_events: AtomicBool,
    /// The server does not say whether an allocation is installed. The machine remembers it.
    record: FirmwareRecord,
    pace: Pace,
}

impl V2 {
    /// # Errors
    /// Certificates or key of the configuration are none.
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

    /// Asks with retries. After a refusal of token or certificate, pixie is asked for new ones.
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

    /// What pixie cannot tell now it tells another time.
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

    /// One stream: is there an allocation? None when it was silent until its end; an error when it did not last so long.
    fn look(&self, patience: Duration) -> Result<Option<Value>, Error> {
        let began = Instant::now();
        match self.connect().first("Wait", &self.this(), patience) {
            Ok(First::Message(message)) => match message.get("allocation") {
                Some(allocation) if !allocation.is_null() => Ok(Some(allocation.clone())),
                _ => Err(Error::new(Phase::Control, "Wait: a message without an allocation")),
            },
            Ok(First::Silence) => Ok(None),
            Ok(First::End) => {
                let seconds = began.elapsed().as_secs_f64();
                Err(Error::new(Phase::Control, format!("Wait: the stream has ended by itself after {seconds:.0} s")))
            }
            Err(failure) => {
                if matches!(failure, Failure::Certificate(_) | Failure::Token(_)) {
                    self.renew();
                }
                Err(failure.error())
            }
        }
    }

    /// A stream that is silent proves something only of a server that lives: it answers before and after.
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

/// With the certificates of the configuration, or the system's.
fn connected(config: &Config) -> Result<Connect> {
    let config::Api::V2(api) = &config.api else {
        return Err(Error::new(Phase::Control, "pixie speaks of another version of the API now"));
    };
    let mut builder = http::builder(None).redirect(reqwest::redirect::Policy::none());
    if let Some(ca_cert) = &api.ca_cert {
        let what = || "ca_cert of pixie's configuration";
        let roots = reqwest::Certificate::from_pem_bundle(ca_cert.as_bytes()).context(Phase::Control, what)?;
        if roots.is_empty() {
            return Err(Error::new(Phase::Control, "ca_cert of pixie's configuration has no certificate in it"));
        }
        builder = builder.tls_certs_only(roots);
    }
    if let Some(identity) = &api.identity {
        let what = || "cert and key of pixie's configuration";
        let identity = reqwest::Identity::from_pem(identity.as_bytes()).context(Phase::Control, what)?;
        builder = builder.identity(identity);
    }
    let client = builder.build().context(Phase::Control, || "set up TLS as pixie's configuration wants it")?;
    Ok(Connect::new(client, format!("{}/{SERVICE}", api.url), api.token.clone()))
}

impl Api for V2 {
    fn register(&self, registration: &Registration) -> Result<()> {
        self.ask(self.pace.retries, "Register", &spelling::register(registration), ANSWER).map(drop)
    }

    /// The API has no question for that, and [`Api::wait`] says nothing while there is none. So a "no" is a stream that stays open and
    /// silent, of a server that answers another question afterwards; and three times so where something is at stake.
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

    /// A stream that ends is normal, and so is a server that is away for a while: the machine goes on waiting.
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

    /// The registered hardware is not among the calls that a machine may make.
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
                tracing::info!("{error}: no events are sent");
                self.takes_no_events.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(failure) => Err(failure.error()),
        }
    }

    /// An allocation that is still there comes at once.
    fn begin(&self, notice: &AttemptNotice) -> Result<()> {
        let end = Instant::now() + self.pace.confirm;
        let why = loop {
            let why = match self.look(self.pace.long_silence) {
                Ok(Some(now)) if now.get("uuid").and_then(Value::as_str) == Some(notice.allocation) => {
                    return Ok(());
                }
                Ok(Some(_)) => break "the machine was given to somebody else".to_owned(),
                Ok(None) => "it is not confirmed".to_owned(),
                Err(error) => error.to_string(),
            };
            if Instant::now() >= end {
                break why;
            }
            thread::sleep(http::jittered(self.pace.pause));
        };
        let message = format!(
            "allocation {} is not in force any more, as far as can be told: {why}. Nothing was written",
            notice.allocation
        );
        Err(Error::refusal(Phase::Control, message))
    }

    /// A second report would replace the console password, which cannot be restored.
    fn report(&self, ended: &Ended, console_password: Option<&str>) -> Result<Acknowledged> {
        let is_news = console_password.is_some() || !self.record.is_reported(&ended.allocation)?;
        if matches!(ended.outcome, Outcome::Succeeded { .. }) && is_news {
            let question = json!({"uuid": self.machine, "consolePassword": console_password.unwrap_or(MADE_BEFORE)});
            self.ask(self.pace.retries, "InstallationSucceeded", &question, ANSWER)?;
            if let Err(error) = self.record.write_reported(&ended.allocation) {
                tracing::warn!("{error}: after an accidental boot over PXE the installation is reported again");
            }
        }
        Ok(Acknowledged::default())
    }
}
