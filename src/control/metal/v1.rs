//! metal-stack's API v1: gRPC with a certificate that all machines share, and one signed REST request.
//!
//! Its control plane supports reinstalls but does not count their attempts, so the machine does ([`memory`]).

mod grpc;
mod memory;
mod messages;
mod protobuf;
mod rest;
#[cfg(test)]
mod tests;

use super::config::{self, Config};
use super::register::Registration;
use super::{Acknowledged, Api, AttemptNotice, MADE_BEFORE};
use crate::allocation::{Allocation, Machine, Order};
use crate::boot::efi;
use crate::control::retry::{Attempt, ONCE, PATIENT, Retries};
use crate::error::{Error, Phase, Result};
use crate::facts::{Ended, EventName, Outcome};
use crate::http;
use crate::marker::AttemptRecord;
use crate::plan::StageName;
use grpc::{Call, Failure, Grpc, Next};
pub(super) use memory::Memory;
use memory::{ATTEMPTS, Note};
use rest::Rest;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// Timeout of a request.
const ANSWER: Duration = Duration::from_secs(30);
/// Timeout of an event, which is sent only once.
const EVENT: Duration = Duration::from_secs(5);

/// Timeouts and retries. Tests use shorter ones.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    pub retries: Retries,
    /// Pause after a stream that ended with an error or without an allocation.
    pub pause: Duration,
    /// Timeout of a silent stream. The server sends a message every 5 seconds.
    pub silence: Duration,
}

const PACE: Pace = Pace { retries: PATIENT, pause: Duration::from_secs(3), silence: Duration::from_secs(30) };

/// Connections to the control plane, created from one configuration.
struct Ways {
    grpc: Grpc,
    rest: Rest,
}

/// Client of API v1.
pub struct V1 {
    pixie: String,
    machine: String,
    /// Connections, recreated with a new configuration from pixie if credentials are rejected.
    ways: Mutex<Arc<Ways>>,
    /// Open `Wait` stream. A machine is only allocated while its stream is open, so it stays open between waits.
    stream: Mutex<Option<Call>>,
    /// Machine as last received.
    seen: Mutex<Option<Machine>>,
    memory: Memory,
    /// Note of this boot's reinstall, whose attempt has been counted.
    note: Mutex<Option<Note>>,
    pace: Pace,
}

impl V1 {
    /// Creates a client with the default timeouts.
    ///
    /// # Errors
    /// Fails if the certificates or the key of the configuration are malformed.
    pub fn new(pixie: &str, machine: &str, config: &Config) -> Result<V1> {
        V1::with(pixie, machine, config, Memory::new(Path::new(efi::VARIABLES)), PACE)
    }

    pub(super) fn with(pixie: &str, machine: &str, config: &Config, memory: Memory, pace: Pace) -> Result<V1> {
        Ok(V1 {
            pixie: pixie.to_owned(),
            machine: machine.to_owned(),
            ways: Mutex::new(Arc::new(ways(config)?)),
            stream: Mutex::default(),
            seen: Mutex::default(),
            memory,
            note: Mutex::default(),
            pace,
        })
    }

    fn ways(&self) -> Arc<Ways> {
        locked(&self.ways).clone()
    }

    /// Fetches a new configuration from pixie. A failure is only logged, since the next attempt may succeed.
    fn renew(&self) {
        match config::fetch(&self.pixie, &self.machine, ONCE).and_then(|config| ways(&config)) {
            Ok(ways) => *locked(&self.ways) = Arc::new(ways),
            Err(error) => tracing::warn!("{error}"),
        }
    }

    /// Sends a request with retries. If a certificate may have been rejected, fetches a new configuration.
    fn ask(&self, retries: Retries, method: &str, question: &[u8], patience: Duration) -> Result<Vec<u8>> {
        retries.run(|| match self.ways().grpc.ask(&boot(method), question.to_vec(), patience) {
            Ok(answer) => Attempt::Done(answer),
            Err(failure @ Failure::Certificate(_)) => {
                self.renew();
                Attempt::Again(failure.error())
            }
            Err(Failure::Passing(error)) => Attempt::Again(error),
            Err(Failure::Unknown(error)) => Attempt::Never(error),
        })
    }

    /// Reads the machine over REST, with retries.
    fn read<T>(&self, retries: Retries, read: fn(&[u8]) -> serde_json::Result<T>) -> Result<T> {
        retries.run(|| match self.ways().rest.machine(&self.machine, read) {
            Ok(machine) => Attempt::Done(machine),
            Err(failure @ rest::Failure::Signature(_)) => {
                self.renew();
                Attempt::Again(failure.error())
            }
            Err(rest::Failure::Passing(error)) => Attempt::Again(error),
            Err(rest::Failure::Lasting(error)) => Attempt::Never(error),
        })
    }

    /// Fetches the machine, with its current allocation, from the control plane.
    fn look(&self, retries: Retries) -> Result<Machine> {
        let machine = self.read(retries, rest::read)?;
        let about = |what: &str| Err(Error::refusal(Phase::Control, format!("the control plane's response {what}")));
        // A response with another machine's allocation would otherwise have this one erased.
        if !machine.id.eq_ignore_ascii_case(&self.machine) {
            return about(&format!("is for machine {}, but this is machine {}", machine.id, self.machine));
        }
        if machine.allocation.as_ref().is_some_and(|allocation| allocation.id.is_empty()) {
            return about("lacks an allocationuuid, which the install marker requires");
        }
        *locked(&self.seen) = Some(machine.clone());
        Ok(machine)
    }

    /// Listens to the `Wait` stream for at most `patience`. Returns whether the server ended it regularly, which means that the machine is
    /// allocated.
    fn listen(&self, patience: Duration) -> Result<bool, Failure> {
        let mut stream = locked(&self.stream);
        let end = Instant::now() + patience;
        let mut call = match stream.take() {
            Some(call) => call,
            None => self.ways().grpc.call(&boot("Wait"), messages::machine(&self.machine), ANSWER)?,
        };
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match call.next(self.pace.silence.min(left))? {
                Next::End => return Ok(true),
                Next::Message(_) | Next::Silence if Instant::now() >= end => {
                    *stream = Some(call);
                    return Ok(false);
                }
                Next::Message(_) => {}
                Next::Silence => {
                    let message = format!("Wait: no message for {} s", self.pace.silence.as_secs());
                    return Err(Failure::Passing(Error::new(Phase::Control, message)));
                }
            }
        }
    }

    fn pause(&self, why: &str) {
        let pause = http::jittered(self.pace.pause * 2);
        tracing::info!("{why}; waiting again in {:.1} s", pause.as_secs_f64());
        thread::sleep(pause);
    }

    /// Returns the order for the reinstall flag, with the machine's note of it. Counts the attempt once per boot, before any action.
    fn order(&self, allocation: &Allocation) -> Result<Order> {
        let mut note = locked(&self.note);
        let counted = note.take().filter(|note| note.allocation == allocation.id && note.image == allocation.image.id);
        let counted = match counted {
            Some(counted) => counted,
            None => {
                let counted = Note::counted(self.memory.read()?, &allocation.id, &allocation.image.id);
                self.remember(&counted);
                counted
            }
        };
        let Note { attempt, order, disks, attempt_record, .. } = note.insert(counted).clone();
        let (begun, id, attempts) = (order.is_some(), order.unwrap_or_default(), ATTEMPTS);
        Ok(Order { id, attempt, attempts, begun, disks, attempt_record, ..Order::default() })
    }

    /// Writes the note. Returns false if it cannot be written; there is no further attempt then.
    fn remember(&self, note: &Note) -> bool {
        let noted = self.memory.write(note);
        noted.inspect_err(|error| tracing::warn!("{error}; this reinstall has only one attempt")).is_ok()
    }

    /// Rules out further attempts, which would take the current contents of the disks for those to be preserved.
    fn give_up(&self) {
        if let Some(note) = locked(&self.note).as_mut() {
            note.attempt = note.attempt.max(ATTEMPTS);
            self.remember(note);
        }
    }

    fn forget(&self) {
        locked(&self.note).take();
        if let Err(error) = self.memory.forget() {
            tracing::warn!("{error}");
        }
    }

    fn abort(&self, wiped: bool) -> Result<()> {
        self.ask(self.pace.retries, "AbortReinstall", &messages::abort_reinstall(&self.machine, wiped), ANSWER)
            .map(drop)
    }
}

fn ways(config: &Config) -> Result<Ways> {
    let config::Api::V1(api) = &config.api else {
        return Err(Error::new(Phase::Control, "pixie's configuration is now for another version of the API"));
    };
    let grpc = Grpc::new(&api.address, &api.ca_cert, &api.cert, &api.key)?;
    Ok(Ways { grpc, rest: Rest::new(api)? })
}

fn boot(method: &str) -> String {
    format!("api.v1.BootService/{method}")
}

/// Locks the mutex. A panic while it was locked leaves no inconsistent state here.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Api for V1 {
    /// Requests the superuser password too, as the control plane expects, although no BMC is configured here.
    fn register(&self, registration: &Registration) -> Result<()> {
        if let Err(error) = self.ask(ONCE, "SuperUserPassword", &[], ANSWER) {
            tracing::info!("{error}");
        }
        let answer = self.ask(self.pace.retries, "Register", &messages::register(registration), ANSWER)?;
        match messages::size(&answer).as_deref() {
            None | Some("" | "unknown") => {
                tracing::warn!("the control plane found no size for this machine, so it cannot be allocated by size");
            }
            Some(size) => tracing::info!("registered, with the size {size}"),
        }
        Ok(())
    }

    fn allocated(&self, _: bool) -> Result<bool> {
        Ok(self.look(self.pace.retries)?.allocation.is_some())
    }

    /// Returns an empty list for a machine that has never registered, which is unknown.
    fn registered_disks(&self) -> Vec<u64> {
        let registered = self.read(self.pace.retries, rest::read_registered_disks);
        registered.inspect_err(|error| tracing::info!("cannot fetch the registered disks: {error}")).unwrap_or_default()
    }

    /// Retries after a stream that ended with an error or a server that is temporarily unreachable. Both are normal.
    fn wait(&self, patience: Duration) -> Result<bool> {
        match self.listen(patience) {
            Ok(true) => match self.look(ONCE) {
                Ok(machine) if machine.allocation.is_some() => return Ok(true),
                Ok(_) => self.pause("Wait ended without an allocation"),
                Err(error) if error.is_refusal() => return Err(error),
                Err(error) => self.pause(&error.to_string()),
            },
            Ok(false) => {}
            Err(failure) => {
                if matches!(failure, Failure::Certificate(_)) {
                    self.renew();
                }
                self.pause(&failure.error().to_string());
            }
        }
        Ok(false)
    }

    fn machine(&self) -> Result<Machine> {
        let seen = locked(&self.seen).clone();
        let mut machine = match seen {
            Some(machine) => machine,
            None => self.look(self.pace.retries)?,
        };
        if let Some(allocation) = machine.allocation.as_mut().filter(|allocation| allocation.reinstall) {
            allocation.order = Some(self.order(allocation)?);
        }
        Ok(machine)
    }

    fn event(&self, name: EventName, message: &str) -> Result<()> {
        let event = messages::event(&self.machine, name, message, SystemTime::now());
        let answer = self.ways().grpc.ask("api.v1.EventService/Send", event, EVENT).map_err(Failure::error)?;
        match messages::not_taken(&answer)[..] {
            [] => Ok(()),
            _ => Err(Error::new(Phase::Control, format!("the control plane did not accept the event {name}"))),
        }
    }

    /// Notes the disks before the first write: the next attempt finds no marker on them.
    fn begin(&self, notice: &AttemptNotice) -> Result<()> {
        let now = self.look(self.pace.retries)?.allocation;
        let reinstall = notice.order.is_some();
        let still = now.is_some_and(|now| now.id == notice.allocation && now.reinstall == reinstall);
        if !still {
            let what = if reinstall { "the reinstall of allocation" } else { "allocation" };
            let message = format!("{what} {} is no longer in force. Nothing was written", notice.allocation);
            return Err(Error::refusal(Phase::Control, message));
        }
        if let Some(note) = locked(&self.note).as_mut().filter(|_| reinstall) {
            (note.order, note.disks) = (notice.order.map(str::to_owned), notice.disks.to_vec());
            let image = Some(note.image.clone());
            let secret_digest = notice.secret_digest.map(str::to_owned);
            note.attempt_record = secret_digest.map(|secret_digest| AttemptRecord { secret_digest, image });
            self.remember(note);
        }
        Ok(())
    }

    /// Reports a success; the server ignores all other contents of a report. A failed reinstall is aborted if the old system is intact.
    /// Otherwise the flag remains set, and the next boot is the next attempt.
    fn report(&self, ended: &Ended, console_password: Option<&str>) -> Result<Acknowledged> {
        let allocation = locked(&self.seen).as_ref().and_then(|machine| machine.allocation.clone());
        let allocation = allocation.filter(|allocation| allocation.id == ended.allocation);
        let reinstall = allocation.as_ref().is_some_and(|allocation| allocation.reinstall);
        let is_known = !reinstall && allocation.as_ref().is_some_and(|allocation| allocation.succeeded);
        match &ended.outcome {
            // Booted by accident. The server has the report already, and another one would overwrite the password.
            Outcome::Succeeded { .. } if console_password.is_none() && is_known => {}
            Outcome::Succeeded { boot, .. } => {
                let console_password = console_password.unwrap_or(MADE_BEFORE);
                let image = allocation.map(|allocation| allocation.image.id).unwrap_or_default();
                let report = messages::report(&self.machine, &image, boot, console_password, &ended.message);
                self.ask(self.pace.retries, "Report", &report, ANSWER)?;
                self.forget();
            }
            // The installation is complete but its report was rejected. The machine does not reboot.
            Outcome::FailedBegun(failed) if failed.stage == StageName::ReportFinal.as_str() => {}
            // Without a marker, only this machine's note proves that no earlier attempt has written.
            Outcome::FailedUntouched(failed)
                if reinstall && (!failed.unmarked || matches!(self.memory.read(), Ok(Some(_)))) =>
            {
                self.abort(false)?;
                self.forget();
            }
            Outcome::FailedUntouched(failed) | Outcome::FailedBegun(failed) if reinstall => {
                if failed.stage == StageName::StorageProveKept.as_str() {
                    self.give_up();
                }
                self.abort(true)?;
                let again = |note: &Note| {
                    note.attempt < ATTEMPTS
                        && note.order.is_some()
                        && self.memory.read().is_ok_and(|read| read.as_ref() == Some(note))
                };
                return Ok(Acknowledged { retry: locked(&self.note).as_ref().is_some_and(again) });
            }
            Outcome::FailedUntouched(_) | Outcome::FailedBegun(_) => {}
        }
        Ok(Acknowledged::default())
    }
}
