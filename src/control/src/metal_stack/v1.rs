//! Client of metal-stack's API v1: gRPC with a certificate that all machines share, and signed REST requests.
//!
//! metal-stack supports reinstalls, but does not count their attempts, so the machine counts them
//! ([`reinstall_attempt_record`]).

mod bmc_record_query;
mod grpc;
mod messages;
mod protobuf_encoding;
pub mod reinstall_attempt_record;
mod reinstall_attempts;
mod rest;
#[cfg(test)]
mod tests;

use super::bmc_record::KnownBmc;
use super::pixie_config::{self, PixieConfig};
use super::registration::MachineRegistration;
use super::{
    AttemptNotice, CHANGED_ALLOCATION_TEXT, MetalApi, ReportAcknowledgement, UNKNOWN_PASSWORD_TEXT,
    is_same_installation,
};
use crate::retry::{AttemptResult, NO_RETRIES, RetryPolicy, TEN_MINUTE_RETRIES};
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use common::sync::lock_mutex;
use grpc::{GrpcCall, GrpcClient, GrpcFailure, StreamEvent};
use linux::{efi, http};
use model::allocation::AssignedMachine;
use model::install_marker::AttemptRecord;
use model::install_report::{EventName, InstallOutcome, InstallResult};
use operations::StageName;
pub(super) use reinstall_attempt_record::ReinstallNoteStore;
use reinstall_attempt_record::{ATTEMPTS, ReinstallNote};
use rest::RestClient;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of an event, which is sent only once.
const EVENT: Duration = Duration::from_secs(5);

/// Timeouts and retry policy. Tests use shorter timeouts.
#[derive(Debug, Clone, Copy)]
pub struct V1Timeouts {
    pub retries: RetryPolicy,
    /// Pause after a stream that ended with an error or without an allocation.
    pub pause: Duration,
    /// Time without a message after which a stream is closed. The server sends a message every 5 seconds.
    pub silence: Duration,
}

const PACE: V1Timeouts =
    V1Timeouts { retries: TEN_MINUTE_RETRIES, pause: Duration::from_secs(3), silence: Duration::from_secs(30) };

/// Clients of both servers of the control plane, from one configuration of pixie.
struct V1Connections {
    grpc: GrpcClient,
    rest: RestClient,
}

/// Client of metal-stack's API v1 for one machine.
pub struct MetalApiV1 {
    pixie: String,
    machine: String,
    /// Connections to the control plane. If the server rejects the credentials, new connections are created with a new
    /// configuration from pixie.
    ways: Mutex<Arc<V1Connections>>,
    /// Open `Wait` stream. The control plane allocates the machine only while this stream is open, so it stays open
    /// between two calls of [`MetalApi::wait_for_allocation`].
    stream: Mutex<Option<GrpcCall>>,
    /// Machine as it was last received.
    seen: Mutex<Option<AssignedMachine>>,
    memory: ReinstallNoteStore,
    /// Note about the reinstall that this boot carries out. The number of attempts already includes this boot.
    note: Mutex<Option<ReinstallNote>>,
    /// True if the point of no return was refused because image or layout had changed since they were received.
    is_superseded: AtomicBool,
    pace: V1Timeouts,
}

impl MetalApiV1 {
    /// Creates a client with the default timeouts.
    ///
    /// # Errors
    /// Fails if the certificates or the key of the configuration are malformed.
    pub fn new(pixie: &str, machine: &str, config: &PixieConfig) -> Result<MetalApiV1> {
        MetalApiV1::with_timeouts(pixie, machine, config, ReinstallNoteStore::new(Path::new(efi::VARIABLES)), PACE)
    }

    pub fn with_timeouts(
        pixie: &str,
        machine: &str,
        config: &PixieConfig,
        memory: ReinstallNoteStore,
        pace: V1Timeouts,
    ) -> Result<MetalApiV1> {
        Ok(MetalApiV1 {
            pixie: pixie.to_owned(),
            machine: machine.to_owned(),
            ways: Mutex::new(Arc::new(connect_apis(config)?)),
            stream: Mutex::default(),
            seen: Mutex::default(),
            memory,
            note: Mutex::default(),
            is_superseded: AtomicBool::default(),
            pace,
        })
    }

    fn current_connections(&self) -> Arc<V1Connections> {
        lock_mutex(&self.ways).clone()
    }

    /// Fetches a new configuration from pixie. A failure is only logged, because the next attempt may succeed.
    fn renew_connections(&self) {
        match pixie_config::fetch_config(&self.pixie, &self.machine, NO_RETRIES)
            .and_then(|config| connect_apis(&config))
        {
            Ok(ways) => *lock_mutex(&self.ways) = Arc::new(ways),
            Err(error) => tracing::warn!("{error}"),
        }
    }

    /// Sends a request, with retries. If a certificate may have been rejected, fetches a new configuration.
    fn call_with_retries(
        &self,
        retries: RetryPolicy,
        method: &str,
        question: &[u8],
        patience: Duration,
    ) -> Result<Vec<u8>> {
        retries.run_attempts(|| {
            match self.current_connections().grpc.call_unary(&boot_service_method(method), question.to_vec(), patience)
            {
                Ok(answer) => AttemptResult::Done(answer),
                Err(failure @ GrpcFailure::Certificate(_)) => {
                    self.renew_connections();
                    AttemptResult::Transient(failure.into_error())
                }
                Err(GrpcFailure::Transient(error)) => AttemptResult::Transient(error),
                Err(GrpcFailure::Unknown(error)) => AttemptResult::Permanent(error),
            }
        })
    }

    /// Reads the machine over REST, with retries.
    fn read_with_retries<T>(&self, retries: RetryPolicy, read: fn(&[u8]) -> serde_json::Result<T>) -> Result<T> {
        retries.run_attempts(|| self.attempt_request(|rest| rest.fetch_machine(&self.machine, read)))
    }

    /// Fetches the machine, with its current allocation, from the control plane.
    fn fetch_current_machine(&self, retries: RetryPolicy) -> Result<AssignedMachine> {
        let machine = self.read_with_retries(retries, rest::parse_machine)?;
        let about = |what: &str| {
            Err(Error::refusal(Phase::Control, format!("the control plane's response cannot be used: {what}"))
                .with_code(ErrorCode::OtherMachine))
        };
        // Without this check, a response with another machine's allocation could erase this machine.
        if !machine.id.eq_ignore_ascii_case(&self.machine) {
            return about(&format!(
                "the response is for machine {other}, but this is machine {own_machine}",
                other = machine.id,
                own_machine = self.machine
            ));
        }
        if machine.allocation.as_ref().is_some_and(|allocation| allocation.id.is_empty()) {
            return about("the response lacks an allocationuuid, which the install marker requires");
        }
        *lock_mutex(&self.seen) = Some(machine.clone());
        Ok(machine)
    }

    /// Listens to the `Wait` stream for at most `patience`. Returns true if the server has ended the stream without an
    /// error, which means that the machine is allocated.
    fn listen_for_allocation(&self, patience: Duration) -> Result<bool, GrpcFailure> {
        let mut stream = lock_mutex(&self.stream);
        let end = Instant::now() + patience;
        let mut call = match stream.take() {
            Some(call) => call,
            None => self.current_connections().grpc.start_call(
                &boot_service_method("Wait"),
                messages::encode_machine_id(&self.machine),
                REQUEST_TIMEOUT,
            )?,
        };
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match call.next_event(self.pace.silence.min(left))? {
                StreamEvent::End => return Ok(true),
                StreamEvent::Message(_) | StreamEvent::Silence if Instant::now() >= end => {
                    *stream = Some(call);
                    return Ok(false);
                }
                StreamEvent::Message(_) => {}
                StreamEvent::Silence => {
                    let message = format!(
                        "the `Wait` stream sent no message for {seconds} s",
                        seconds = self.pace.silence.as_secs()
                    );
                    return Err(GrpcFailure::Transient(Error::new(Phase::Control, message)));
                }
            }
        }
    }

    fn pause_with_reason(&self, why: &str) {
        let pause = http::add_jitter(self.pace.pause * 2);
        tracing::info!("{why}; the `Wait` request is sent again in {seconds:.1} s", seconds = pause.as_secs_f64());
        thread::sleep(pause);
    }
}

fn connect_apis(config: &PixieConfig) -> Result<V1Connections> {
    let pixie_config::ApiCredentials::V1(api) = &config.api else {
        return Err(Error::new(
            Phase::Control,
            "pixie's configuration is now for another version of metal-stack's API; reboot the machine to use the new configuration",
        ));
    };
    let grpc = GrpcClient::new(&api.address, &api.ca_cert, &api.cert, &api.key)?;
    Ok(V1Connections { grpc, rest: RestClient::new(api)? })
}

fn boot_service_method(method: &str) -> String {
    format!("api.v1.BootService/{method}")
}

impl MetalApi for MetalApiV1 {
    fn known_bmc(&self) -> Result<KnownBmc> {
        self.read_known_bmc()
    }

    /// Registers the machine. Also requests the superuser password, because the control plane expects this request. The
    /// agent does not use the password.
    fn register_machine(&self, registration: &MachineRegistration) -> Result<()> {
        if let Err(error) = self.call_with_retries(NO_RETRIES, "SuperUserPassword", &[], REQUEST_TIMEOUT) {
            tracing::info!("{error}");
        }
        let answer = self.call_with_retries(
            self.pace.retries,
            "Register",
            &messages::encode_registration(registration),
            REQUEST_TIMEOUT,
        )?;
        match messages::read_size(&answer).as_deref() {
            None | Some("" | "unknown") => {
                tracing::warn!(
                    "none of the control plane's sizes matches this machine, so the machine cannot be allocated by size"
                );
            }
            Some(size) => tracing::info!("registered, with the size {size}"),
        }
        Ok(())
    }

    fn is_allocated(&self, _: bool) -> Result<bool> {
        Ok(self.fetch_current_machine(self.pace.retries)?.allocation.is_some())
    }

    /// Returns the sizes of the registered disks, in bytes. The list is empty if the machine has never registered.
    fn registered_disks(&self) -> Vec<u64> {
        let registered = self.read_with_retries(self.pace.retries, rest::read_registered_disks);
        registered.inspect_err(|error| tracing::info!("cannot fetch the registered disks: {error}")).unwrap_or_default()
    }

    /// Listens to the `Wait` stream. If the stream ends with an error, or the server is temporarily unreachable,
    /// returns false after a pause. Such failures are normal; the caller waits again.
    fn wait_for_allocation(&self, patience: Duration) -> Result<bool> {
        match self.listen_for_allocation(patience) {
            Ok(true) => match self.fetch_current_machine(NO_RETRIES) {
                Ok(machine) if machine.allocation.is_some() => return Ok(true),
                Ok(_) => self.pause_with_reason("the `Wait` stream ended without an allocation"),
                Err(error) if error.is_refusal() => return Err(error),
                Err(error) => self.pause_with_reason(&error.to_string()),
            },
            Ok(false) => {}
            Err(failure) => {
                if matches!(failure, GrpcFailure::Certificate(_)) {
                    self.renew_connections();
                }
                self.pause_with_reason(&failure.into_error().to_string());
            }
        }
        Ok(false)
    }

    fn fetch_machine(&self) -> Result<AssignedMachine> {
        let seen = lock_mutex(&self.seen).clone();
        let mut machine = match seen {
            Some(machine) => machine,
            None => self.fetch_current_machine(self.pace.retries)?,
        };
        if let Some(allocation) = machine.allocation.as_mut().filter(|allocation| allocation.reinstall) {
            allocation.order = Some(self.build_order(allocation)?);
        }
        Ok(machine)
    }

    fn send_event(&self, name: EventName, message: &str) -> Result<()> {
        let event = messages::encode_event(&self.machine, name, message, SystemTime::now());
        let answer = self
            .current_connections()
            .grpc
            .call_unary("api.v1.EventService/Send", event, EVENT)
            .map_err(GrpcFailure::into_error)?;
        match messages::read_rejected_events(&answer)[..] {
            [] => Ok(()),
            _ => Err(Error::new(Phase::Control, format!("the control plane did not accept the event {name}"))),
        }
    }

    /// Checks that the allocation or the reinstall is still in force, with the image and the layout that were received.
    /// Before a reinstall, also records the disks: an interrupted attempt leaves no install marker on them, so the next
    /// attempt identifies them by this record.
    fn confirm_begin(&self, notice: &AttemptNotice) -> Result<()> {
        let received = lock_mutex(&self.seen).as_ref().and_then(|machine| machine.allocation.clone());
        let now = self.fetch_current_machine(self.pace.retries)?.allocation;
        let reinstall = notice.order.is_some();
        let Some(now) = now.filter(|now| now.id == notice.allocation && now.reinstall == reinstall) else {
            let what = if reinstall { "the reinstall order of allocation" } else { "allocation" };
            let message =
                format!("{what} {allocation} is no longer valid. Nothing was written", allocation = notice.allocation);
            return Err(Error::refusal(Phase::Control, message));
        };
        if received.is_some_and(|received| !is_same_installation(&received, &now)) {
            self.is_superseded.store(true, Ordering::Relaxed);
            return Err(Error::refusal(Phase::Control, CHANGED_ALLOCATION_TEXT));
        }
        if let Some(note) = lock_mutex(&self.note).as_mut().filter(|_| reinstall) {
            (note.order, note.disks) = (notice.order.map(str::to_owned), notice.disks.to_vec());
            let image = Some(note.image.clone());
            let secret_digest = notice.secret_digest.map(str::to_owned);
            note.attempt_record = secret_digest.map(|secret_digest| AttemptRecord { secret_digest, image });
            self.write_note(note);
        }
        Ok(())
    }

    /// Reports a success, with the few fields that the server evaluates. If a reinstall fails and the old system is
    /// intact, aborts the reinstall. After any other failure of a reinstall, leaves the reinstall flag at the control
    /// plane set, so that the next boot makes the next attempt.
    fn report_result(&self, ended: &InstallResult, console_password: Option<&str>) -> Result<ReportAcknowledgement> {
        let allocation = lock_mutex(&self.seen).as_ref().and_then(|machine| machine.allocation.clone());
        let allocation = allocation.filter(|allocation| allocation.id == ended.allocation);
        let reinstall = allocation.as_ref().is_some_and(|allocation| allocation.reinstall);
        let is_known = !reinstall && allocation.as_ref().is_some_and(|allocation| allocation.succeeded);
        match &ended.outcome {
            // The machine was already installed, and has booted over PXE by accident. The server already has the report
            // of the installation, and another report would overwrite the console password at the server.
            InstallOutcome::Succeeded { .. } if console_password.is_none() && is_known => {}
            InstallOutcome::Succeeded { boot, marker } => {
                let console_password = console_password.unwrap_or(UNKNOWN_PASSWORD_TEXT);
                let image = messages::find_installed_image(marker.as_ref(), allocation.as_ref());
                let report = messages::encode_report(&self.machine, &image, boot, console_password, &ended.message);
                self.call_with_retries(self.pace.retries, "Report", &report, REQUEST_TIMEOUT)?;
                self.delete_note();
            }
            // The installation is complete, but the server has rejected its report. No other report is sent, and the
            // machine does not reboot.
            InstallOutcome::FailedBegun(failed) if failed.stage == StageName::ReportFinal.as_str() => {}
            // The operator has changed the order. An abort would cancel the changed order, so the next boot carries the
            // order out instead.
            InstallOutcome::FailedUntouched(_) | InstallOutcome::FailedBegun(_)
                if reinstall && self.is_superseded.load(Ordering::Relaxed) =>
            {
                return Ok(ReportAcknowledgement { retry: true });
            }
            // If no install marker was found, only the note that this machine stores proves that no earlier attempt has
            // written to the disks.
            InstallOutcome::FailedUntouched(failed)
                if reinstall && (!failed.lacks_record || self.is_noted_as_not_started()) =>
            {
                self.abort_reinstall(false)?;
                self.delete_note();
            }
            InstallOutcome::FailedUntouched(failed) | InstallOutcome::FailedBegun(failed) if reinstall => {
                if failed.stage == StageName::StorageProvePreserved.as_str() {
                    self.rule_out_attempts();
                }
                self.abort_reinstall(true)?;
                let again = |note: &ReinstallNote| {
                    note.attempt < ATTEMPTS
                        && note.order.is_some()
                        && self.memory.read_note().is_ok_and(|read| read.as_ref() == Some(note))
                };
                return Ok(ReportAcknowledgement { retry: lock_mutex(&self.note).as_ref().is_some_and(again) });
            }
            InstallOutcome::FailedUntouched(_) | InstallOutcome::FailedBegun(_) => {}
        }
        Ok(ReportAcknowledgement::default())
    }
}
