//! `drophammer adopt`: adopts the running machine, which another installer has installed, so that a later reinstall
//! renews its system and preserves its data. The command writes the install marker, and registers the machine at a
//! server, or writes its machine file.
//!
//! [`foreign_system`] reads the machine, [`marker_storage`] writes the marker, [`registration`] sends the requests to
//! the server, and [`adoption_removal`] is `--undo`.

mod adoption_record;
mod adoption_removal;
mod adoption_summary;
mod fleet_machine_file;
mod foreign_system;
mod machine_name_confirmation;
mod marker_storage;
mod registration;
#[cfg(test)]
mod tests;
mod unreadable_devices;

use crate::server_commands::ServerOptions;
use adoption_record::AdoptionRecord;
use adoption_summary::{AdoptionState, AdoptionSummary};
use clap::Args;
use common::command_outcome::{CommandOutcome, report_refusal};
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use foreign_system::ForeignSystem;
use layout_discovery::{AdoptedInstallation, AdoptionPlan, DiscoveredLayout, assess_reinstall, plan_adoption};
use marker_storage::MarkerStorage;
use model::install_marker::InstallMarker;
use registration::AdoptionRegistration;
use std::path::{Path, PathBuf};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

/// Options of `drophammer adopt`.
#[derive(Debug, Default, Args)]
pub struct MachineAdoptionOptions {
    /// Name of the machine [default: its host name].
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Id of the machine [default: its SMBIOS UUID].
    #[arg(long, value_name = "UUID")]
    pub machine: Option<Uuid>,
    /// Image for the machine file at the server: a later reinstall requires an image. The present system is not
    /// changed.
    #[arg(long, value_name = "ID", required_unless_present_any = ["undo", "dry_run", "fleet"])]
    pub image: Option<String>,
    /// Size of the machine [default: the size in sizes/ whose constraints match the machine].
    #[arg(long, value_name = "ID", conflicts_with_all = ["undo", "fleet"])]
    pub size: Option<String>,
    /// Layout to use instead of the discovered layout, for example the edited output of
    /// `drophammer layout from-machine`.
    #[arg(long, value_name = "FILE", conflicts_with = "undo")]
    pub layout: Option<PathBuf>,
    /// Device whose content a reinstall may erase, although neither fstab nor a mount shows that it belongs to the
    /// system; may be given several times.
    #[arg(long, value_name = "DEVICE", conflicts_with = "undo")]
    pub give_up: Vec<String>,
    /// Write the machine file for a fleet without a server to this new file, instead of registering the machine at a
    /// server.
    #[arg(long, value_name = "FILE", conflicts_with = "undo")]
    pub fleet: Option<PathBuf>,
    /// Only print what a reinstall would do. Nothing is written, and no request is sent.
    #[arg(long, conflicts_with = "undo")]
    pub dry_run: bool,
    /// Output of `drophammer inventory`, which is used instead of the inventory of this machine.
    #[arg(long, value_name = "FILE", requires = "dry_run")]
    pub inventory: Option<PathBuf>,
    /// The installed system's /etc/fstab [default: /etc/fstab of this machine; with --inventory, the fstab in the
    /// inventory].
    #[arg(long, value_name = "FILE", requires = "dry_run")]
    pub fstab: Option<PathBuf>,
    /// The installed system's /etc/crypttab [default: /etc/crypttab of this machine; with --inventory, none, and a
    /// machine with encrypted data is refused].
    #[arg(long, value_name = "FILE", requires = "dry_run")]
    pub crypttab: Option<PathBuf>,
    /// Name of the machine, which confirms the adoption or its removal. Without this option, the command prompts for
    /// the name.
    #[arg(long, value_name = "NAME")]
    pub yes: Option<String>,
    /// Remove the install marker and the registration that an earlier run created.
    #[arg(long)]
    pub undo: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub of: ServerOptions,
}

/// Machine that the command adopts: the machine on which it runs or, in tests, a directory that replaces the root.
#[derive(Debug, Clone)]
pub struct AdoptionHost {
    /// Root directory of the installed system.
    pub root: PathBuf,
    /// Content of /proc/self/mountinfo.
    pub mounts: String,
    pub is_privileged: bool,
    /// True if the command can prompt on the terminal.
    pub is_interactive: bool,
}

impl AdoptionHost {
    /// Returns the machine on which this program runs.
    fn read() -> AdoptionHost {
        AdoptionHost {
            root: PathBuf::from("/"),
            mounts: std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default(),
            is_privileged: nix::unistd::geteuid().is_root(),
            is_interactive: std::io::IsTerminal::is_terminal(&std::io::stdin()),
        }
    }
}

/// Adopts this machine, or removes the adoption.
///
/// # Errors
/// Returns an error if the machine cannot be read, a file cannot be written, or the server cannot be reached.
pub fn run_adopt(options: &MachineAdoptionOptions) -> Result<CommandOutcome> {
    run_adopt_on(options, &AdoptionHost::read())
}

/// Adopts a machine, or removes the adoption.
///
/// # Errors
/// Fails as [`run_adopt`] does.
pub fn run_adopt_on(options: &MachineAdoptionOptions, host: &AdoptionHost) -> Result<CommandOutcome> {
    report_refusal(match options.undo {
        true => adoption_removal::remove_adoption(options, host),
        false => adopt_machine(options, host),
    })
}

fn adopt_machine(options: &MachineAdoptionOptions, host: &AdoptionHost) -> Result<CommandOutcome> {
    let storage = MarkerStorage::new(&host.root);
    let allocation = Uuid::new_v4().to_string();
    let mut examined = ExaminedMachine::examine(options, host, &storage, &allocation)?;
    let summary = &examined.summary;
    if options.dry_run || !summary.obstacles.is_empty() {
        return summary.print_planned(options.json);
    }
    if !options.json {
        summary.print_text()?;
    }
    require_privileges(host)?;
    machine_name_confirmation::confirm_name(&examined.system.name, options.yes.as_deref(), host.is_interactive)?;
    if options.yes.is_none() {
        examined = examined.confirm_unchanged(ExaminedMachine::examine(options, host, &storage, &allocation)?)?;
    }
    let ExaminedMachine { system, found, planned, summary } = examined;
    let AdoptionPlan { marker, .. } = planned.map_err(|why| refuse(why.join("; ")))?;
    let adoption = PendingAdoption { options, system: &system, found: &found, storage: &storage };
    let record = adoption.carry_out(stamp_time(marker)?)?;
    summary.print_adopted(&AdoptionState::Adopted(record), options.json)
}

/// Machine as it was read, with the plan of its adoption.
struct ExaminedMachine {
    system: ForeignSystem,
    found: DiscoveredLayout,
    planned: std::result::Result<AdoptionPlan, Vec<String>>,
    summary: AdoptionSummary,
}

impl ExaminedMachine {
    /// Reads the machine, and plans its adoption with this id of the allocation.
    fn examine(
        options: &MachineAdoptionOptions,
        host: &AdoptionHost,
        storage: &MarkerStorage,
        allocation: &str,
    ) -> Result<ExaminedMachine> {
        let system = ForeignSystem::read(options, host)?;
        let found = system.discover_layout(options)?;
        let mut obstacles = assess_reinstall(&found, &system.inventory).obstacles;
        obstacles.extend(system.list_unreadable());
        obstacles.extend(unreadable_devices::list_unreadable_stacks(&system.inventory));
        let adopted = AdoptedInstallation { machine: &system.machine, allocation, image: &system.image };
        let planned = plan_adoption(&found, &system.inventory, adopted);
        if let Err(refused) = &planned {
            obstacles.extend(refused.iter().filter(|why| !obstacles.contains(why)).cloned().collect::<Vec<_>>());
        }
        if options.inventory.is_none() {
            obstacles.extend(storage.find_obstacles(&host.mounts));
        }
        let summary = AdoptionSummary::new(&system, &found, planned.as_ref().ok(), obstacles);
        Ok(ExaminedMachine { system, found, planned, summary })
    }

    /// Returns `present`, the machine as it was read after the operator has confirmed this one. Disks may have been
    /// attached, removed or changed while the command waited for the confirmation.
    fn confirm_unchanged(&self, present: ExaminedMachine) -> Result<ExaminedMachine> {
        match self.summary.explain_changes(&present.summary) {
            None => Ok(present),
            Some(why) => Err(refuse(format!(
                "drophammer adopt: the machine has changed since it was displayed: {why}. Nothing was written; repeat the command"
            ))),
        }
    }
}

/// Adoption that the operator has confirmed.
struct PendingAdoption<'a> {
    options: &'a MachineAdoptionOptions,
    system: &'a ForeignSystem,
    found: &'a DiscoveredLayout,
    storage: &'a MarkerStorage,
}

impl PendingAdoption<'_> {
    /// Adopts the machine. The marker is written before the machine is registered at a server, because a machine with a
    /// marker is not installed by mistake, even if the server's records are wrong. If the server refuses the
    /// registration, the marker is removed again.
    fn carry_out(&self, marker: InstallMarker) -> Result<AdoptionRecord> {
        let mut record = AdoptionRecord::new(self.system, &marker)?;
        match &self.options.fleet {
            Some(file) => {
                fleet_machine_file::write_machine_file(file, self.system, self.found, &marker)?;
                self.storage.write(&mut record, &marker)?;
            }
            None => {
                let registration = AdoptionRegistration::prepare(self.options, self.system, self.found)?;
                record.server = Some(registration.url().to_owned());
                self.storage.write(&mut record, &marker)?;
                self.register(&registration, &mut record, &marker)?;
            }
        }
        Ok(record)
    }

    fn register(
        &self,
        registration: &AdoptionRegistration,
        record: &mut AdoptionRecord,
        marker: &InstallMarker,
    ) -> Result<()> {
        record.created_layout = registration.create_layout().or_else(|error| self.abandon(record, error))?;
        self.storage.update_record(record)?;
        let Err(error) = registration.register(marker) else { return Ok(()) };
        if !error.is_refusal() {
            return Err(report_uncertainty(error));
        }
        // A proxy may have repeated the request: the server then accepted the first request, and refused only the
        // repetition.
        if registration.is_registered(marker).map_err(report_uncertainty)? {
            return Ok(());
        }
        if record.created_layout {
            registration.delete_layout();
        }
        self.abandon(record, error)
    }

    /// Removes the marker if the server has refused the registration. After any other error, the server may have
    /// registered the machine, so the marker must remain.
    fn abandon<T>(&self, record: &AdoptionRecord, error: Error) -> Result<T> {
        if error.is_refusal() {
            self.storage.remove(record)?;
            return Err(error);
        }
        Err(report_uncertainty(error))
    }
}

/// Returns the error of an adoption whose marker remains, because the server may have registered the machine.
fn report_uncertainty(error: Error) -> Error {
    let why = "the install marker was written, but it is unknown whether the server has registered the machine; run \
               `drophammer adopt --undo`, and repeat the command";
    match error.is_refusal() {
        // The refusal becomes a part of the text, not the source of the error: an error whose source is a refusal would
        // itself count as a refusal.
        true => Error::new(Phase::Control, format!("{why}: {error}")),
        false => Error::with_source(Phase::Control, why, error),
    }
}

fn require_privileges(host: &AdoptionHost) -> Result<()> {
    match host.is_privileged {
        true => Ok(()),
        false => Err(refuse(
            "drophammer adopt: only root can write the install marker; `--dry-run` prints the plan without writing",
        )),
    }
}

/// Returns the marker with the present time, without fractions of a second.
fn stamp_time(marker: InstallMarker) -> Result<InstallMarker> {
    let now = OffsetDateTime::now_utc();
    let now = now.replace_nanosecond(0).unwrap_or(now);
    let time = now.format(&Rfc3339).map_err(|error| Error::new(Phase::Settings, error.to_string()))?;
    Ok(InstallMarker { time, ..marker })
}

fn refuse(why: impl Into<String>) -> Error {
    Error::refusal(Phase::Settings, why).with_code(ErrorCode::Settings)
}

/// Reads a small text file, or returns `None` if it does not exist or is not text.
fn read_optional_text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}
