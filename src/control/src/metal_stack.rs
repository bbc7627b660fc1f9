//! Control plane of metal-stack. Pixie's configuration contains the address and the API version of the control plane.
//! This module contains the code that both API versions share. [`MetalApi`] is the interface to the code of one
//! version.

pub(crate) mod bmc_record;
pub mod efi_variable_record;
pub(crate) mod event_filter;
mod loki;
pub mod pixie_config;
pub(crate) mod registration;
pub mod v1;
pub mod v2;

use super::clock;
use super::retry::TEN_MINUTE_RETRIES;
use super::{AttemptNotice, ControlPlane, MachinePool, ReportAcknowledgement};
use bmc_record::{BmcRecord, KnownBmc};
use common::error::{Context, Error, Phase, Result};
use common::output;
use common::sync::lock_mutex;
use efi_variable_record::FirmwareRecord;
use event_filter::EventFilter;
use linux::{efi, ipmi};
use loki::LokiUpload;
use model::allocation::{Allocation, AssignedMachine};
use model::install_report::{EventName, InstallResult, ProgressEvent};
use model::inventory::Inventory;
use model::pool_machine_disks::KnownDisk;
use registration::MachineRegistration;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Characters of generated passwords. Characters that look alike on a console are excluded.
const PASSWORD_CHARACTERS: &[u8] = b"abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789";
/// Number of characters in a generated password.
const PASSWORD: usize = 16;

/// Maximum time for uploading the last log lines before the machine reboots.
const FINAL_LOG_TIMEOUT: Duration = Duration::from_secs(1);

/// Text that is reported in place of the console password if an earlier boot has generated the password, which is then
/// unknown.
const UNKNOWN_PASSWORD_TEXT: &str =
    "the console password is unknown, because the machine was installed before this boot";

/// Refusal of the point of no return if the control plane now assigns another image or another layout.
const CHANGED_ALLOCATION_TEXT: &str = "the image or the layout of the allocation was changed after this boot had \
    received it. Nothing was written; reboot the machine over PXE, so that it receives the current allocation";

/// Client of one version of metal-stack's API, for one machine. Each call has a timeout, and calls that must succeed
/// are retried. Unless noted otherwise, a method fails like the method of [`ControlPlane`] with the same name.
pub trait MetalApi: Send + Sync {
    /// Reads the record of the BMC that the control plane stores. A registration replaces this record.
    ///
    /// # Errors
    /// Fails if the control plane is unreachable or its response is malformed. A registration would then erase the
    /// record.
    fn known_bmc(&self) -> Result<KnownBmc>;

    /// Registers the machine.
    ///
    /// # Errors
    /// Fails if the control plane is unreachable or rejects the registration.
    fn register_machine(&self, registration: &MachineRegistration) -> Result<()>;

    /// Returns whether this machine is allocated; see [`MachinePool::is_allocated`].
    ///
    /// # Errors
    /// Fails if this cannot be determined.
    fn is_allocated(&self, at_stake: bool) -> Result<bool>;

    /// Returns the sizes of the disks in the last registration, in bytes; empty if the control plane does not provide
    /// them.
    fn registered_disks(&self) -> Vec<u64>;

    /// Waits at most `patience` for an allocation. Returns whether the machine has an allocation.
    ///
    /// # Errors
    /// Fails only if a retry cannot succeed. After a transient error, returns false; the caller then waits again.
    fn wait_for_allocation(&self, patience: Duration) -> Result<bool>;

    /// Returns the machine as it was last received. If it was not received yet, may request it from the control plane.
    ///
    /// # Errors
    /// Fails as [`MetalApi::register_machine`] does.
    fn fetch_machine(&self) -> Result<AssignedMachine>;

    /// Sends an event.
    ///
    /// # Errors
    /// Fails if the event was not delivered.
    fn send_event(&self, name: EventName, message: &str) -> Result<()>;

    /// Checks immediately before the first write that neither this allocation nor its reinstall has been canceled.
    ///
    /// # Errors
    /// Fails if the allocation or the reinstall was canceled, or if this cannot be determined.
    fn confirm_begin(&self, notice: &AttemptNotice) -> Result<()>;

    /// Reports the result of an installation. A failed first installation is reported only by the event
    /// [`EventName::Crashed`]. `console_password` is `None` if an earlier boot has generated the password.
    ///
    /// # Errors
    /// Fails if the report was not acknowledged.
    fn report_result(&self, ended: &InstallResult, console_password: Option<&str>) -> Result<ReportAcknowledgement>;
}

/// Control plane of metal-stack.
pub struct MetalControlPlane {
    api: Box<dyn MetalApi>,
    machine: String,
    partition: String,
    /// Console password of the installed system, which the report contains.
    password: String,
    /// True after the agent has passed the point of no return in this boot. Only then does the installed system have
    /// the console password `password`.
    has_started: AtomicBool,
    event_filter: Mutex<EventFilter>,
    record: FirmwareRecord,
    /// Device of the BMC; `None` if the BMC is not read by the machine itself.
    ipmi: Option<PathBuf>,
    /// Log upload; `None` if pixie's configuration does not contain a log server.
    loki: Option<LokiUpload>,
}

impl MetalControlPlane {
    /// Fetches pixie's configuration, sets the clock, and starts the log upload. `ipmi` is the device of the BMC.
    ///
    /// # Errors
    /// Fails if the configuration cannot be fetched or is unusable.
    pub fn new(pixie: &str, machine: &str, ipmi: &Path) -> Result<MetalControlPlane> {
        let config = pixie_config::fetch_config(pixie, machine, TEN_MINUTE_RETRIES)?;
        clock::set_clock_by_date(&config.ntp_servers, config.date.as_deref(), &output::print_line);
        let (partition, record) = (config.partition.clone(), FirmwareRecord::new(Path::new(efi::VARIABLES)));
        let api: Box<dyn MetalApi> = match &config.api {
            pixie_config::ApiCredentials::V2(_) => {
                Box::new(v2::MetalApiV2::new(pixie, machine, &config, record.clone())?)
            }
            pixie_config::ApiCredentials::V1(_) => Box::new(v1::MetalApiV1::new(pixie, machine, &config)?),
        };
        let mut control = MetalControlPlane::with_api(api, machine, &partition, record)?;
        control.ipmi = Some(ipmi.to_owned());
        control.loki = LokiUpload::from_config(&config, machine).map(|mut loki| {
            loki.redact_secret(&control.password);
            loki
        });
        Ok(control)
    }

    /// Creates the control plane from the client of one version of the API, without a BMC and without a log upload.
    ///
    /// # Errors
    /// Fails if no random console password can be generated.
    pub fn with_api(
        api: Box<dyn MetalApi>,
        machine: &str,
        partition: &str,
        record: FirmwareRecord,
    ) -> Result<MetalControlPlane> {
        Ok(MetalControlPlane {
            api,
            machine: machine.to_owned(),
            partition: partition.to_owned(),
            password: generate_password()?,
            has_started: AtomicBool::default(),
            event_filter: Mutex::default(),
            record,
            ipmi: None,
            loki: None,
        })
    }
}

impl MetalControlPlane {
    /// Returns the BMC record for a registration: the control plane's record, with missing fields from the BMC itself.
    fn read_bmc_record(&self) -> Result<BmcRecord> {
        // The BMC is read before the control plane's record. Reading the BMC takes seconds, in which metal-bmc may
        // change the record.
        let in_band = self.ipmi.as_deref().map_or(Ok(None), ipmi::read_bmc).map_err(|error| error.to_string());
        let known = self.api.known_bmc().context(Phase::Control, || {
            "not registered: a registration would erase the control plane's record of the BMC (address, user, password), because the agent cannot read the record and send it back"
        })?;
        Ok(bmc_record::combine(known, in_band, &|line| {
            output::print_line(line);
            self.loki.iter().for_each(|loki| loki.add_lines(line));
        }))
    }

    /// Uploads an event to Loki, unless it only reports the progress of an image transfer. If the event is the last one
    /// before a reboot, waits for the upload.
    fn upload_event(&self, event: &ProgressEvent) {
        let Some(loki) = self.loki.as_ref().filter(|_| event.progress.is_none()) else { return };
        let seconds = event.seconds.map(|seconds| format!(" ({seconds:.1} s)")).unwrap_or_default();
        let stage = event.stage.as_ref().map(|stage| format!("{stage}: ")).unwrap_or_default();
        loki.add_lines(&format!("{}: {stage}{}{seconds}", event.event, event.message));
        if matches!(event.event, EventName::Crashed | EventName::BootingNewKernel | EventName::PlannedReboot) {
            loki.wait_until_sent(FINAL_LOG_TIMEOUT);
        }
    }
}

/// Returns whether both allocations install the same image, with the same layout and the same preserved disks.
fn is_same_installation(received: &Allocation, current: &Allocation) -> bool {
    received.image == current.image
        && received.filesystemlayout == current.filesystemlayout
        && received.keeps == current.keeps
}

/// Generates a console password from random bytes of the kernel.
fn generate_password() -> Result<String> {
    let mut password = String::new();
    while password.len() < PASSWORD {
        let mut random = [0; PASSWORD];
        getrandom::fill(&mut random).context(Phase::Control, || "get random bytes for the console password")?;
        let missing = PASSWORD - password.len();
        password.extend(random.into_iter().filter_map(password_character).take(missing));
    }
    Ok(password)
}

/// Returns the character that a random byte selects; `None` for bytes that would make some characters more likely than
/// others.
fn password_character(random: u8) -> Option<char> {
    let (random, count) = (usize::from(random), PASSWORD_CHARACTERS.len());
    let multiples = 256 / count * count;
    (random < multiples).then(|| char::from(PASSWORD_CHARACTERS[random % count]))
}

impl ControlPlane for MetalControlPlane {
    fn register_machine(&self, inventory: &Inventory) -> Result<()> {
        let bmc = self.read_bmc_record()?;
        self.api.register_machine(&MachineRegistration::new(&self.machine, &self.partition, inventory, bmc))
    }

    fn wait_for_allocation(&self, patience: Duration) -> Result<bool> {
        self.api.wait_for_allocation(patience)
    }

    fn fetch_machine(&self) -> Result<AssignedMachine> {
        let mut machine = self.api.fetch_machine()?;
        if let Some(allocation) = &mut machine.allocation {
            allocation.console_password.clone_from(&self.password);
        }
        Ok(machine)
    }

    fn send_event(&self, event: &ProgressEvent) -> Result<()> {
        self.upload_event(event);
        let told = lock_mutex(&self.event_filter).filter_event(event, Instant::now());
        told.map_or(Ok(()), |(name, message)| self.api.send_event(name, &message))
    }

    /// Checks that the disks may still be erased: either the machine is still unallocated, or this allocation is still
    /// in force.
    fn announce_point_of_no_return(&self, notice: &AttemptNotice) -> Result<()> {
        if notice.allocation.is_empty() {
            return match self.api.is_allocated(false)? {
                false => Ok(()),
                true => {
                    let message = "this machine was allocated in the meantime, so its disks are no longer erased for the next \
                        owner";
                    Err(Error::refusal(Phase::Control, message))
                }
            };
        }
        self.api.confirm_begin(notice)?;
        self.has_started.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn report_result(&self, ended: &InstallResult) -> Result<ReportAcknowledgement> {
        if let Some(loki) = &self.loki {
            loki.add_lines(&format!("{}\n{}", ended.plan, ended.message));
        }
        let is_new = self.has_started.load(Ordering::Relaxed);
        self.api.report_result(ended, is_new.then_some(self.password.as_str()))
    }

    /// Returns false, because only the install marker on the disks records whether the allocation is installed.
    fn records_installations(&self) -> bool {
        false
    }

    fn machine_pool(&self) -> Option<&dyn MachinePool> {
        Some(self)
    }
}

impl MachinePool for MetalControlPlane {
    fn is_allocated(&self, at_stake: bool) -> Result<bool> {
        self.api.is_allocated(at_stake)
    }

    /// Returns the disks that the machine itself has recorded. If it has no record, returns the disks of its last
    /// registration, which the control plane stores until the next registration.
    fn known_disks(&self) -> Result<Vec<KnownDisk>> {
        let recorded = self.record.read_disks()?;
        if !recorded.is_empty() {
            return Ok(recorded);
        }
        let registered = self.api.registered_disks().into_iter();
        Ok(registered.map(|size_bytes| KnownDisk { size_bytes, ..KnownDisk::default() }).collect())
    }

    fn remember_disks(&self, disks: &[KnownDisk]) -> Result<()> {
        self.record.write_disks(disks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A generator with a known state would also reveal the passwords of later boots.
    #[test]
    fn console_password_does_not_depend_on_the_state_of_fastrand() {
        let [one, other] = [(); 2].map(|()| {
            fastrand::seed(7);
            generate_password().unwrap()
        });
        assert_ne!(one, other);
        assert!(one.len() == PASSWORD && one.bytes().all(|byte| PASSWORD_CHARACTERS.contains(&byte)), "{one}");
    }

    #[test]
    fn all_characters_of_a_password_are_equally_likely() {
        let selected: Vec<char> = (0..=u8::MAX).filter_map(password_character).collect();
        let count = |wanted: &u8| selected.iter().filter(|found| **found == char::from(*wanted)).count();
        let times = 256 / PASSWORD_CHARACTERS.len();
        assert!(PASSWORD_CHARACTERS.iter().all(|character| count(character) == times), "{selected:?}");
    }
}
